"""What tools/pack.py makes of the compiler's output."""

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
    without_frames = runpy.run_path(str(root / "tools/pack.py"))["without_frames"]
    sections = {".text.f": b"code" * 9, ".debug_frame": b"frame" * 7, ".rela.debug_frame": b"place" * 3, ".nv.info": b"info"}
    blank = {name: bytes(len(data)) if "frame" in name else data for name, data in sections.items()}
    assert without_frames(b"ahead" + elf(sections)) == b"ahead" + elf(blank)
    assert without_frames(b".version 8.0 .debug_frame") == b".version 8.0 .debug_frame"


def test_ptx_is_short(root: Path) -> None:
    """It means the same: instructions stay, in lines of their own, and names that no other function knows are shorter."""
    short = runpy.run_path(str(root / "tools/pack.py"))["short"]
    ptx = b"""//
// Generated
.version 9.0

.visible .entry lerp_f32(
\t.param .align 8 .b8 lerp_f32_param_0[24], // of the launch
\t.param .u64 lerp_f32_param_12
)
{
\tld.param.u64 \t%rd1, [lerp_f32_param_0+8];
\tcall.uni (retval0), f, (param0, param1);
\t// begin inline asm
\t@%p1 bra \t$L__BB12_34;

$L__BB12_34:
\tret;
}
"""
    wanted = b"""
.version 9.0
.visible .entry lerp_f32(
.param .align 8 .b8 p0[24],
.param .u64 p12
)
{
ld.param.u64 %rd1,[p0+8];
call.uni (retval0),f,(param0,param1);
@%p1 bra $12_34;
$12_34:
ret;
}
"""
    assert short(ptx) == wanted


def test_registers_take_turns(root: Path) -> None:
    """Those of one basic block, lowest number first; of a line none, as an instruction may write before it has read."""
    short = runpy.run_path(str(root / "tools/pack.py"))["short"]
    ptx = b""".visible .entry f()
{
.reg .b32 %r<9>;
.reg .pred %p<3>;
mov.u32 %r1,%tid.x;
mov.u32 %r2,1;
add.s32 %r3,%r2,%r2;
mul.lo.s32 %r4,%r3,%r1;
$1_1:
add.s32 %r5,%r1,%r4;
setp.eq.s32 %p1,%r5,7;
@%p1 mov.u32 %r6,5;
{ .reg .pred all; AGAIN: try %r7,%r6; @!all bra AGAIN; }
add.s32 %r8,%r7,%r6;
setp.lt.s32 %p2,%r8,%r4;
@%p2 bra $1_1;
ret;
}
.func g()
{
mov.u32 %r7,%clock;
}
"""
    wanted = b""".visible .entry f()
{
.reg .b32 %r<9>;
.reg .pred %p<3>;
mov.u32 %r3,%tid.x;
mov.u32 %r1,1;
add.s32 %r2,%r1,%r1;
mul.lo.s32 %r4,%r2,%r3;
$1_1:
add.s32 %r1,%r3,%r4;
setp.eq.s32 %p1,%r1,7;
@%p1 mov.u32 %r5,5;
{ .reg .pred all; AGAIN: try %r6,%r5; @!all bra AGAIN; }
add.s32 %r1,%r6,%r5;
setp.lt.s32 %p1,%r1,%r4;
@%p1 bra $1_1;
ret;
}
.func g()
{
mov.u32 %r1,%clock;
}
"""
    assert short(ptx) == wanted
