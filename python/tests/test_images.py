"""What tools/kernels.py makes of the compiler's output."""

from __future__ import annotations

import runpy
import struct
from pathlib import Path


def elf(sections: dict[str, bytes]) -> bytes:
    """A 64-bit file of these sections and the table of their names."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    header, table, content = 64, [struct.pack("<40x24x")], b""
    for name, data in (*sections.items(), (".shstrtab", names)):
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        table.append(struct.pack("<I20xQQ24x", place, header + len(content), len(data)))
        content += data
    start = struct.pack("<4s36xQ12xHH", b"\x7fELF", header + len(content), len(table), len(table) - 1)
    assert len(start) == header
    return start + content + b"".join(table)


def test_frames_are_blank(root: Path) -> None:
    """Those of debuggers alone, whatever is ahead of the file; PTX stays as it is."""
    without_frames = runpy.run_path(str(root / "tools/kernels.py"))["without_frames"]
    sections = {".text.f": b"code" * 9, ".debug_frame": b"frame" * 7, ".rela.debug_frame": b"place" * 3, ".nv.info": b"info"}
    blank = {name: bytes(len(data)) if "frame" in name else data for name, data in sections.items()}
    assert without_frames(b"ahead" + elf(sections)) == b"ahead" + elf(blank)
    assert without_frames(b".version 8.0 .debug_frame") == b".version 8.0 .debug_frame"
