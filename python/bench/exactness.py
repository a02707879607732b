"""``python -m sternway bench exactness``: errors of sternway and of torch against float64.

The inputs are random numbers for every case, inputs that are hard for scans, and RoPE at large positions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

from .. import _scan
from .._cases import CASES, Problem, TorchSource, error
from .._cases.progress import Progress
from .._cases.rope import frequencies
from .._cases.scan_definitions import DEFINITIONS
from .._cases.table import Table, shape_text
from .._kinds import KINDS, ScanKind
from .._rope import rope_backward
from . import timing
from .kernels import kernels_of
from .report import NewCsv

SHAPE, QUICK_SHAPE = (256, 4096), (16, 1024)
INF = math.inf


def bench_exactness(device: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print the table, and write it."""
    columns = ("op", "input", "shape", "dtype", "kernel", "ulp", "torch_ulp", "norm", "torch_norm")
    print("ulp: the largest error in units in the last place of the largest element of its row; norm: |dx - truth| / |truth|\n")
    total = len(CASES) * len(timing.dtypes())
    with new_csv(columns) as csv, Progress("bench exactness", total, quiet=quiet) as progress:
        table = Table(progress, op=32, input=34, shape=10, dtype=9, ulp=-9, torch_ulp=-9, norm=-9, torch_norm=-10)
        table.head()
        for row in itertools.chain(cases(device, progress), hard_cases(device), far_positions(device)):
            op, name, shape, dtype, kernel, numbers = row
            table.row(op, name, shape, dtype, *("" if x is None else f"{x:.2g}" for x in numbers))
            csv.row(op, name, shape, dtype, kernel, *numbers)
    return 0


Row = tuple[str, str, str, str, str, tuple[float | None, ...]]
"""Operation, input, shape, dtype, kernel; errors in units in the last place and norm-wise, ours and torch's."""


def cases(device: str, progress: Progress) -> Iterator[Row]:
    """Every case in every dtype on random numbers; the largest error of its outputs. A quick run has fewer rows."""
    shape = QUICK_SHAPE if timing.effort.is_quick else SHAPE
    for case in CASES:
        for dtype in timing.dtypes():
            progress.step(f"{case.op} {case.name} {dtype}")
            problem = Problem(case, TorchSource(device), shape, dtype)
            results, theirs, truths = problem.run(), problem.by_torch()(), problem.truths()
            numbers = [
                max(measure(found[name], truth) for name, truth in truths.items())
                for measure in (error, lambda out, truth: norm(out, truth.value))
                for found in (results, theirs)
            ]
            yield case.op, case.name, shape_text(shape), dtype, problem.plan.sku.kernel, tuple(numbers)


def norm(out: Any, truth: Any) -> float:
    """|out - truth| / |truth|, infinite where out is not finite."""
    found = float((out.double() - truth).norm() / truth.norm())
    return found if math.isfinite(found) else INF


def hard_cases(device: str) -> Iterator[Row]:
    """Inputs on which a scan that divides, subtracts or sums in 16 bits goes wrong."""
    import torch

    for kind, name, dtype, dy, x in hard_inputs(torch):
        dy, x = (t.to(device, getattr(torch, dtype)) for t in (dy, x))
        leaf = x.clone().requires_grad_()
        theirs = torch.autograd.grad(getattr(torch, kind)(leaf, 0), leaf, dy)[0]
        operands = (dy,) if KINDS[kind].is_linear else (dy, x)
        backward = functools.partial(getattr(_scan, f"{kind}_backward"), *operands)
        kernel, ours = kernels_of(backward), backward()
        truth, _ = DEFINITIONS[kind].gradient(dy.double(), x.double())
        yield (
            f"scan_backward({kind})",
            name,
            shape_text(tuple(x.shape)),
            dtype,
            kernel,
            (None, None, norm(ours, truth), norm(theirs, truth)),
        )


def hard_inputs(torch: Any) -> Iterator[tuple[ScanKind, str, str, Any, Any]]:
    """Inputs as tuples of kind, name, dtype, dy and x."""
    normal = TorchSource().normal
    dy, x = normal((64,)), normal((64,))
    yield "logcumsumexp", "x + 30", "bfloat16", dy, x + 30
    yield "logcumsumexp", "x + 1e6", "float32", dy, x + 1e6
    yield "logcumsumexp", "-inf in front", "float32", dy, torch.where(torch.arange(64) < 8, -INF, x)
    yield "cumprod", "2, 0, 3, 4; dy = 1", "float32", torch.ones(4), torch.tensor([2.0, 0.0, 3.0, 4.0])
    yield "cumprod", "1e30, 1e30, 1e-30; dy = 1, 0, 0", "float32", torch.eye(3)[0], torch.tensor([1e30, 1e30, 1e-30])
    for dtype in ("float16", "bfloat16"):
        yield "cumsum", "65536 ones over 1024", dtype, torch.ones(65536) / 1024, torch.zeros(65536)


def far_positions(device: str) -> Iterator[Row]:
    """RoPE of 256 tokens, starting at large positions. Rotations in models form angles in float32 and cosines in dy's dtype."""
    import torch

    dim = 128
    power = torch.tensor(frequencies(dim), dtype=torch.float64, device=device)
    single = 1.0 / 10000 ** (torch.arange(0, dim, 2, device=device).float() / dim)

    def turned(dy: Any, angles: Any) -> Any:
        cos, sin = (torch.cat((t, t), -1).to(dy.dtype) for t in (angles.cos(), angles.sin()))
        low, high = dy.chunk(2, -1)
        return dy * cos + torch.cat((high, -low), -1) * sin

    for first in (1e3, 1e4, 1e5, 1e6):
        positions = torch.arange(256, device=device) + int(first)
        for dtype in ("float32", "bfloat16"):
            dy = TorchSource().normal((1, 1, 256, dim)).to(device, getattr(torch, dtype))
            truth = turned(dy.double(), positions[:, None] * power)
            backward = functools.partial(rope_backward, dy, positions, pairing="half")
            kernel, *found = kernels_of(backward), backward(), turned(dy, positions[:, None].float() * single)
            numbers = (None, None, *(norm(x, truth) for x in found))
            yield "rope_backward", f"positions from {first:.0e}", shape_text(tuple(dy.shape)), dtype, kernel, numbers
