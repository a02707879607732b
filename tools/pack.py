"""Packs what nvcc wrote: machine code as it is, PTX with short and few names.

PTX means the same afterwards: instructions stay, and each finds in its registers what it found before.
"""

from __future__ import annotations

import heapq
import lzma
import re
from collections import Counter
from collections.abc import Iterator

# Instructions are 16 bytes long, and PTX is text.
CODE, TEXT = {"lc": 0, "lp": 4, "pb": 4, "nice_len": 128}, {"lc": 4, "lp": 0, "pb": 0}
SHORTER = (
    (rb"//.*", b""),
    (rb"[ \t]+", b" "),
    (rb", ", b","),
    (rb"\n\s+", b"\n"),
    (rb"\b\w+_param_(\d+)\b", rb"p\1"),
    (rb"\$L__BB(\d+_\d+)\b", rb"$\1"),
)
REGISTER = re.compile(rb"%(p|rs|r|rd|f|fd)(\d+)\b")
LABEL = re.compile(rb"(^|[\s;{])[$\w]+:(\s|$)")
JUMP = re.compile(rb"\b(bra|brx|ret|exit)\b")


def packed_code(fatbin: bytes) -> bytes:
    """An image of machine code, of which debuggers and compute-sanitizer read every section."""
    return packed(fatbin, CODE)


def packed_ptx(ptx: bytes) -> bytes:
    """An image of PTX, with the 0 that drivers want at its end."""
    return packed(short(ptx) + b"\0", TEXT)


def packed(image: bytes, packing: dict[str, int]) -> bytes:
    """By LZMA, as the Go package `cuda` reads it."""
    method = {"id": lzma.FILTER_LZMA1, "preset": 9 | lzma.PRESET_EXTREME, **packing}
    return lzma.compress(image, lzma.FORMAT_ALONE, filters=[method])


def short(ptx: bytes) -> bytes:
    """PTX that means the same. Each function has its own parameters, labels and registers."""
    for pattern, instead in SHORTER:
        ptx = re.sub(pattern, instead, ptx)
    return b"\n".join(line for function in functions(ptx.split(b"\n")) for line in with_few_registers(function))


def functions(lines: list[bytes]) -> Iterator[list[bytes]]:
    """The lines of each, with what is ahead of it."""
    first = depth = 0
    for k, line in enumerate(lines):
        inside, depth = depth > 0, depth + line.count(b"{") - line.count(b"}")
        if inside and depth == 0:
            yield lines[first : k + 1]
            first = k + 1
    yield lines[first:]


def with_few_registers(lines: list[bytes]) -> list[bytes]:
    """The same, half as large when it is packed: registers that one basic block alone knows take turns, lowest number first."""
    last = {match[0]: k for k, line in enumerate(lines) for match in REGISTER.finditer(line)}
    kinds = {match[0]: match[1] for line in lines for match in REGISTER.finditer(line)}
    free = {kind: list(range(1, count + 1)) for kind, count in Counter(kinds.values()).items()}
    most: Counter[bytes] = Counter()
    numbers: dict[bytes, int] = {}
    lasting = lasting_registers(lines)
    for k, line in enumerate(lines):
        passing = {match[0]: match[1] for match in REGISTER.finditer(line) if match[0] not in lasting}
        for register, kind in passing.items():
            if register not in numbers:
                numbers[register] = heapq.heappop(free[kind])
                most[kind] = max(most[kind], numbers[register])
        for register, kind in passing.items():
            if last[register] == k:
                heapq.heappush(free[kind], numbers[register])
    for register in lasting:
        most[kinds[register]] += 1
        numbers[register] = most[kinds[register]]
    return [REGISTER.sub(lambda match: b"%%%s%d" % (match[1], numbers[match[0]]), line) for line in lines]


def lasting_registers(lines: list[bytes]) -> dict[bytes, None]:
    """Those that several basic blocks know, or that some threads alone set first, as what they hold may be from elsewhere."""
    known: dict[bytes, set[int]] = {}
    block = 0
    for line in lines:
        block += bool(LABEL.search(line))
        for match in REGISTER.finditer(line):
            known.setdefault(match[0], {-1} if line.startswith(b"@") else set()).add(block)
        block += bool(JUMP.search(line))
    return {register: None for register, blocks in known.items() if len(blocks) > 1}
