"""What tools/pack.py makes of the compiler's output."""

from __future__ import annotations

import lzma
import runpy
from pathlib import Path


def test_machine_code_stays(root: Path) -> None:
    """All of it: compute-sanitizer never comes back from frames that are blank."""
    packed_code = runpy.run_path(str(root / "tools/pack.py"))["packed_code"]
    image = bytes(range(256)) * 40
    assert lzma.decompress(packed_code(image), lzma.FORMAT_ALONE) == image


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
