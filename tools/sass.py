"""Compares the machine code (SASS) of all kernels of two builds, to show that a change of names or files is no more than that.

    python tools/sass.py OLD NEW [--arch 90] [--rename 'REGEX=REPLACEMENT'] [--any-name]

OLD and NEW are folders of images, or source trees, which are compiled first. `--arch all` compares every architecture. Two
kernels are equal if all parts of their cubins that decide what runs are equal, byte by byte: instructions, relocations,
constant banks, the size of shared memory, and the attributes of the kernel (registers, stack, launch bounds, parameters).
Names, debug sections and PTX are left out. The tool prints each kernel that differs, and exits with 1 if one does or has no
counterpart.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernels

FATBIN, ELF_ENTRY = 0xBA55ED50, 2
RELA, NOBITS = 4, 8
# Attributes of .nv.info: 4 bytes, or with this format 4 bytes and a value.
SIZED_VALUE = 4
PARAM_CBANK = 0x0A  # its value begins with the index of a symbol
INSTRUCTION = 16  # bytes
INTERNAL = re.compile(r"(?<=__internal_)\d+(?=_)")


@dataclass
class Section:
    """A section of an ELF file. A section without bits, such as shared memory, has a size alone."""

    name: str
    kind: int
    size: int
    info: int
    data: bytes


def cubins(fatbin: bytes) -> Iterator[bytes]:
    """The ELF files in a fat binary whose parts are not compressed."""
    magic, _, header, _ = struct.unpack_from("<IHHQ", fatbin)
    if magic != FATBIN:
        raise ValueError("not a fat binary of nvcc")
    at = header
    while at < len(fatbin):
        kind, _, header, size = struct.unpack_from("<HHIQ", fatbin, at)
        if kind == ELF_ENTRY:
            yield fatbin[at + header : at + header + size]
        at += header + size


def text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def read_sections(elf: bytes) -> list[Section]:
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file; was the fat binary made with --no-compress?")
    [table] = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", elf, table + k * size) for k in range(count)]
    strings = elf[rows[names][4] :]
    return [
        Section(text(strings, name), kind, length, info, b"" if kind == NOBITS else elf[offset : offset + length])
        for name, kind, _, _, offset, length, _, info, _, _ in rows
    ]


def attributes(data: bytes) -> list[tuple[int, bytes]]:
    """The attributes in a section of the kind .nv.info, as (number, value)."""
    found, at = [], 0
    while at < len(data):
        form, number, size = struct.unpack_from("<BBH", data, at)
        length = 4 + (size if form == SIZED_VALUE else 0)
        found.append((number, data[at + 2 : at + length]))
        at += length
    return found


def read_kernels(elf: bytes) -> dict[str, dict[str, Any]]:
    """The parts of each kernel that decide what it does: {kernel: {section: content}}. A kernel's own name is written as *."""
    sections = read_sections(elf)
    by_name = {section.name: section for section in sections}
    symbols, strings = by_name[".symtab"].data, by_name[".strtab"].data
    names = [text(strings, at) for (at,) in struct.iter_unpack("<I20x", symbols)]
    functions = [name.removeprefix(".text.") for name in by_name if name.startswith(".text.")]
    shared = {
        section.name: section.data or section.size
        for section in sections
        if section.name.startswith((".nv.constant", ".nv.global")) and not section.name.endswith(tuple(functions))
    }
    found: dict[str, dict[str, Any]] = {}
    for name in functions:
        parts: dict[str, Any] = dict(shared)
        for section in sections:
            if not section.name.endswith(f".{name}") or section.name.startswith(".debug"):
                continue
            part: Any = section.data or section.size
            if section.kind == RELA:
                rows = struct.iter_unpack("<QIIq", section.data)
                # ptxas numbers the functions that it adds itself.
                part = [(at, kind, INTERNAL.sub("", names[symbol].replace(name, "*")), more) for at, kind, symbol, more in rows]
            elif section.name.startswith(".nv.info"):
                part = [(number, value[6:] if number == PARAM_CBANK else value) for number, value in attributes(section.data)]
            parts[section.name.removesuffix(name)] = part
        whole = attributes(by_name[".nv.info"].data)
        parts[".nv.info"] = sorted((n, v[6:]) for n, v in whole if names[int.from_bytes(v[2:6], "little")] == name)
        found[name] = parts
    return found


def read_images(folder: Path, code: str) -> dict[str, dict[str, Any]]:
    """The kernels of all images that a folder has for a code, sm_90 for example. Names are unique among images."""
    files = sorted(folder.glob(f"*.{code}.lzma"))
    if not files:
        sys.exit(f"{folder} has no images of {code}")
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for elf in cubins(lzma.decompress(file.read_bytes())):
            found |= read_kernels(elf)
    return found


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The first thing in which two kernels differ, "" if there is none."""
    for part in sorted(old.keys() | new.keys(), key=lambda part: part != ".text."):
        before, after = old.get(part), new.get(part)
        if before == after:
            continue
        if part == ".text." and isinstance(before, bytes) and isinstance(after, bytes):
            lengths = f"{len(before) // INSTRUCTION} and {len(after) // INSTRUCTION} instructions"
            first = next(
                (k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
            )
            return f"{lengths}, the first difference is at number {first // INSTRUCTION}"
        return f"{part.rstrip('.')} differs"
    return ""


def compare(
    old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]], rename: Callable[[str], str], any_name: bool
) -> list[str]:
    """A line for each kernel that differs or has no counterpart. any_name: kernels left over are paired by equal code."""
    renamed = {rename(name): parts for name, parts in old.items()}
    if len(renamed) != len(old):
        return ["--rename gives two kernels one name"]
    lines = [f"{name}: {found}" for name in renamed.keys() & new.keys() if (found := difference(renamed[name], new[name]))]
    gone = {name: renamed[name] for name in renamed.keys() - new.keys()}
    added = {name: new[name] for name in new.keys() - renamed.keys()}
    if any_name:
        for name, parts in [*gone.items()]:
            equal = next((other for other in added if not difference(parts, added[other])), None)
            if equal is not None:
                del gone[name], added[equal]
    return sorted(
        lines + [f"{name}: only in the old build" for name in gone] + [f"{name}: only in the new build" for name in added]
    )


def renamer(patterns: list[str]) -> Callable[[str], str]:
    """Applies 'REGEX=REPLACEMENT' patterns to a name, in order."""
    rules = [pattern.split("=", 1) for pattern in patterns]

    def rename(name: str) -> str:
        for rule in rules:
            name = re.sub(rule[0], rule[1], name)
        return name

    return rename


def images_of(path: Path, architectures: str, scratch: Path) -> Path:
    """The folder itself, or the images of a source tree, compiled by its own tools/kernels.py."""
    if not (path / "tools/kernels.py").is_file():
        return path
    print(f"compiling {path} for {architectures}", file=sys.stderr)
    command = [sys.executable, str(path / "tools/kernels.py"), "--out", str(scratch)]
    subprocess.run(command, env=os.environ | {"STERNWAY_CUDA_ARCHS": architectures}, stdout=subprocess.DEVNULL, check=True)
    return scratch


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares the machine code of all kernels of two builds.")
    parser.add_argument("old", type=Path, help="source tree, or folder of images")
    parser.add_argument("new", type=Path, help="source tree, or folder of images")
    parser.add_argument("--arch", default="90", help="architecture, or all (90)")
    parser.add_argument(
        "--rename", action="append", default=[], metavar="REGEX=REPLACEMENT", help="applied to names of the old build"
    )
    parser.add_argument("--any-name", action="store_true", help="pair kernels whose names differ if their code is equal")
    options = parser.parse_args()
    if any("=" not in pattern for pattern in options.rename):
        parser.error("--rename wants REGEX=REPLACEMENT")
    architectures = kernels.ARCHITECTURES if options.arch == "all" else options.arch
    failed = False
    with tempfile.TemporaryDirectory(prefix="sass-") as scratch:
        old = images_of(options.old, architectures, Path(scratch) / "old")
        new = images_of(options.new, architectures, Path(scratch) / "new")
        for code in (f"sm_{architecture}" for architecture in architectures.split(";")):
            before, after = read_images(old, code), read_images(new, code)
            lines = compare(before, after, renamer(options.rename), options.any_name)
            failed = failed or bool(lines)
            print("\n".join([*lines, f"{code}: {len(before)} and {len(after)} kernels, {len(lines)} differences"]))
    sys.exit(failed)


if __name__ == "__main__":
    main()
