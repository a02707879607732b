"""The tools that need no build: symbol versions of glibc, dates, archives, the comparison of machine code."""

from __future__ import annotations

import io
import lzma
import os
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def tool(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of tools/."""
    import importlib

    monkeypatch.syspath_prepend(root / "tools")

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


# --- glibc ------------------------------------------------------------------------------------------------------------

CALLS = """
#include <dlfcn.h>
#include <pthread.h>
static pthread_key_t key;
static void once(void) { pthread_key_create(&key, NULL); }
static void *run(void *symbol) { return pthread_setspecific(key, symbol) ? NULL : symbol; }
void *start(const char *library) {
    static pthread_once_t control = PTHREAD_ONCE_INIT;
    pthread_t thread;
    void *found = dlopen(library, RTLD_NOW);
    pthread_once(&control, once);
    pthread_create(&thread, NULL, run, found ? dlsym(found, "malloc") : NULL);
    pthread_join(thread, &found);
    return found;
}
"""
COMPILERS = [("gcc", "x86_64"), ("clang", "x86_64"), ("aarch64-linux-gnu-gcc", "aarch64")]


@pytest.mark.parametrize(("compiler", "machine"), COMPILERS)
def test_stubs_bind_to_old_versions(tool: Any, compiler: str, machine: str, tmp_path: Path) -> None:
    """A library that calls what moved in glibc 2.34 needs no more than the first version, and says where that is."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not on PATH")
    if machine == "x86_64" and os.uname().machine != machine:
        pytest.skip(f"{compiler} of this machine makes code for {os.uname().machine}")
    glibc = tool("glibc")
    if not glibc.running_version():
        pytest.skip("the C library of this machine is not glibc")
    source, library = tmp_path / "calls.c", tmp_path / "libcalls.so"
    source.write_text(CALLS)
    stubs = glibc.link_stubs([compiler], tmp_path, machine)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, *stubs], check=True)
    assert glibc.needed_minor(library) <= (5 if machine == "x86_64" else 17)
    content = library.read_bytes()
    assert all(b"\0" + stub.name.encode() + b"\0" in content for stub in stubs)
    assert str(tmp_path).encode() not in content


def test_other_machines_have_no_stubs(tool: Any, tmp_path: Path) -> None:
    assert tool("glibc").link_stubs(["/no/such/compiler"], tmp_path, "riscv64") == []


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"\0GLIBC_2.2.5\0GLIBC_2.14\0", 14),
        (b"\0GLIBC_2.34\0GLIBC_2.4\0", 34),
        (b"\0GLIBC_2.17\0and, not as a version, GLIBC_2.40\0", 17),
        (b"\0musl\0", None),
    ],
)
def test_needed_minor(tool: Any, content: bytes, wanted: int | None, tmp_path: Path) -> None:
    (tmp_path / "library.so").write_bytes(content)
    assert tool("glibc").needed_minor(tmp_path / "library.so") == wanted


def test_features_of_the_loader_need_the_glibc_of_the_linker(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    glibc = tool("glibc")
    monkeypatch.setattr(glibc, "running_version", lambda: "2.39")
    (tmp_path / "library.so").write_bytes(b"\0GLIBC_2.14\0GLIBC_ABI_DT_RELR\0")
    assert glibc.needed_minor(tmp_path / "library.so") == 39


# --- Dates ------------------------------------------------------------------------------------------------------------


def test_date(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's, else the commit's, else that of the sdist, else a fixed one."""
    archive = tool("archive")
    if not shutil.which("git"):
        pytest.skip("git is not on PATH")

    def date(root: Path) -> int:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "")
        found: int = archive.set_date(root)
        assert os.environ["SOURCE_DATE_EPOCH"] == str(found)
        return found

    clone, inside = tmp_path / "clone", tmp_path / "clone" / "unpacked"
    inside.mkdir(parents=True)
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a"}
    for command in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "-m", "first"]):
        environment = os.environ | who | {"GIT_COMMITTER_DATE": "1700000000 +0000"}
        subprocess.run(["git", *command], cwd=clone, env=environment, check=True)
    assert date(clone) == 1700000000
    assert date(inside) == archive.FIRST_DATE_OF_ZIP, "the repository around it is another project's"
    (inside / "PKG-INFO").touch()
    os.utime(inside / "PKG-INFO", (1600000000, 1600000000))
    assert date(inside) == 1600000000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1500000000")
    assert archive.set_date(clone) == 1500000000


# --- The source distribution ------------------------------------------------------------------------------------------


def test_rewritten_sdist(tool: Any, tmp_path: Path) -> None:
    """Contents stay; order, date, owner, permissions and the header of gzip follow from them and the date."""

    def packed(name: str, members: list[tuple[str, bytes | None, int]], date: int, owner: str) -> bytes:
        path = tmp_path / name
        with tarfile.open(path, "w:gz") as file:
            for member, content, mode in members:
                info = tarfile.TarInfo(member)
                info.mtime, info.mode, info.uname, info.uid = date, mode, owner, date
                info.type, info.size = (tarfile.DIRTYPE, 0) if content is None else (tarfile.REGTYPE, len(content))
                file.addfile(info, io.BytesIO(content or b""))
        tool("archive").rewrite_sdist(path, 1700000000)
        return path.read_bytes()

    members: list[tuple[str, bytes | None, int]] = [("a", None, 0o700), ("a/run", b"#!", 0o700), ("a/text", b"words", 0o600)]
    first = packed("first.tar.gz", members, 1, "somebody")
    wider = [(name, content, mode | mode >> 3 | mode >> 6) for name, content, mode in reversed(members)]
    assert packed("second.tar.gz", wider, 2, "else") == first
    with tarfile.open(tmp_path / "first.tar.gz") as file:
        found = [(m.name, m.mode, m.mtime, m.uid, m.uname) for m in file]
        assert found == [(name, mode, 1700000000, 0, "") for name, mode in (("a", 0o755), ("a/run", 0o755), ("a/text", 0o644))]
        assert [file.extractfile(name).read() for name in ("a/run", "a/text")] == [b"#!", b"words"]  # type: ignore[union-attr]


# --- The comparison of machine code -----------------------------------------------------------------------------------


def cubin(kernels: dict[str, bytes], registers: int = 32, callee: str = "helper") -> bytes:
    """An ELF file like those of ptxas. Each kernel has instructions, a relocation, a constant bank and a count of registers."""
    names = ["", *kernels, callee]
    strings = b"".join(name.encode() + b"\0" for name in names)
    symbols = b"".join(struct.pack("<IBBHQQ", strings.index(name.encode() + b"\0"), 0, 0, 0, 0, 0) for name in names)
    info = b"".join(struct.pack("<BBHII", 4, 0x2F, 8, names.index(name), registers) for name in kernels)
    sections: list[tuple[str, int, bytes]] = [
        ("", 0, b""),
        (".symtab", 2, symbols),
        (".strtab", 3, strings),
        (".nv.info", 1, info),
    ]
    for name, code in kernels.items():
        sections += [
            (f".text.{name}", 1, code),
            (f".rela.text.{name}", 4, struct.pack("<QIIq", 16, 2, names.index(callee), 0)),
            (
                f".nv.info.{name}",
                1,
                struct.pack("<BBHIHH", 4, 0x0A, 8, names.index(name), 0x210, 8) + struct.pack("<BBH", 3, 0x19, 8),
            ),
            (f".nv.constant0.{name}", 1, bytes(8)),
            (f".debug_line.{name}", 1, name.encode()),
        ]
    section_names = b"".join(name.encode() + b"\0" for name, _, _ in sections) + b".shstrtab\0"
    sections.append((".shstrtab", 3, section_names))
    body, rows = b"", b""
    for name, kind, data in sections:
        at = section_names.index(name.encode() + b"\0")
        rows += struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        body += data
    header = struct.pack(
        "<4sB3x8xHHIQQQIHHHHHH",
        b"\x7fELF",
        2,
        2,
        190,
        1,
        0,
        0,
        64 + len(body),
        0,
        64,
        56,
        0,
        64,
        len(sections),
        len(sections) - 1,
    )
    return header + body + rows


def write_image(folder: Path, elf: bytes) -> Path:
    folder.mkdir()
    entry = struct.pack("<HHIQ", 2, 257, 16, len(elf)) + elf
    fatbin = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry
    (folder / "family.sm_90.lzma").write_bytes(lzma.compress(fatbin, lzma.FORMAT_ALONE))
    return folder


CODE = {"lerp_rows": bytes(range(64)), "lerp_map": bytes(48)}


@pytest.mark.parametrize(
    ("new", "options", "wanted"),
    [
        (cubin(CODE), [], []),
        (cubin(dict(reversed(CODE.items()))), [], []),
        (
            cubin({**CODE, "lerp_map": bytes(32) + b"1" + bytes(15)}),
            [],
            ["lerp_map: 3 and 3 instructions, the first difference is at number 2"],
        ),
        (cubin({**CODE, "lerp_map": bytes(64)}), [], ["lerp_map: 3 and 4 instructions, the first difference is at number 3"]),
        (cubin(CODE, registers=40), [], ["lerp_map: .nv.info differs", "lerp_rows: .nv.info differs"]),
        (cubin(CODE, callee="other"), [], ["lerp_map: .rela.text differs", "lerp_rows: .rela.text differs"]),
        (cubin({"lerp_rows": CODE["lerp_rows"]}), [], ["lerp_map: only in the old build"]),
        (
            cubin({"mix_rows": CODE["lerp_rows"], "mix_map": CODE["lerp_map"]}),
            [],
            [
                f"{name}: only in the {build} build"
                for build, op in [("old", "lerp"), ("new", "mix")]
                for name in (f"{op}_map", f"{op}_rows")
            ],
        ),
        (cubin({"mix_rows": CODE["lerp_rows"], "mix_map": CODE["lerp_map"]}), ["--rename", "^lerp_=mix_"], []),
        (cubin({"mix_rows": CODE["lerp_rows"], "mix_map": CODE["lerp_map"]}), ["--any-name"], []),
        (
            cubin({"lerp_rows": CODE["lerp_map"], "lerp_map": CODE["lerp_rows"]}),
            ["--any-name"],
            ["lerp_map: 3 and 4 in", "lerp_rows: 4 and 3 in"],
        ),
    ],
)
def test_comparison_of_machine_code(root: Path, new: bytes, options: list[str], wanted: list[str], tmp_path: Path) -> None:
    """Equal but for names, the order of kernels and debug sections; or a line for each kernel that is not, and exit code 1."""
    folders = [write_image(tmp_path / "old", cubin(CODE)), write_image(tmp_path / "new", new)]
    done = subprocess.run([sys.executable, root / "tools/sass.py", *folders, *options], capture_output=True, text=True)
    assert done.stderr == ""
    *lines, summary = done.stdout.splitlines()
    assert len(lines) == len(wanted)
    assert all(line.startswith(start) for line, start in zip(lines, wanted, strict=True)), lines
    assert summary.endswith(f"kernels, {len(wanted)} differences")
    assert done.returncode == bool(wanted)


# --- The count of files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "written"),
    [
        ("core/x.gen.go", "// Code generated by core/internal/generate; DO NOT EDIT.\n", True),
        ("python/x.py", '"""A module."""\n' * 5 + "# Code generated by nothing; DO NOT EDIT.\n", False),
        ("core/testdata/errors.golden", "", True),
        ("cuda/verified.json", "{}", True),
        ("cuda/elementwise/lerp.cu", "// Code.\n", False),
    ],
)
def test_files_that_a_command_writes(tool: Any, path: str, text: str, written: bool) -> None:
    assert tool("count_files").is_written(path, text) is written
