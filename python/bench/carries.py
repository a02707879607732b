"""``python -m sternway bench carries``: what a chunk of a long scan costs beside a plain scan of the same elements.

A chunk is read twice: by the summary, a plan without y (or dx) that computes the state that leaves it, and by the scan that
takes the state that enters it.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

from .._cases.progress import Progress
from .._cases.table import Table, shape_text, time_text
from .._kinds import KINDS, WITH_KERNELS, ScanKind
from . import timing
from .report import NewCsv, machine

SHAPES = {
    "cuda": (((8192, 16384), 1), ((16384, 8192), 0), ((1, 1 << 27), 1)),
    "cpu": (((256, 8192), 1), ((8192, 256), 0), ((1, 1 << 21), 1)),
    "quick": (((64, 1024), 1),),
}
"""Shapes, and the dimension that is scanned."""
DIRECTIONS = ("forward", "backward")
COLUMNS = ("kind", "direction", "shape", "dim", "dtype", "kernel", "plain_ms", "summary_ms", "scan_ms", "ratio")


def bench_carries(device: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print microseconds of the plain scan, of the summary and of the scan with carries, and their sum over the plain scan."""
    print(f"{machine(device)}\n")
    rows = list(itertools.product(WITH_KERNELS, DIRECTIONS, SHAPES[timing.sizes(device)], ("float32", "bfloat16")))
    with new_csv(COLUMNS) as file, Progress("bench carries", len(rows), quiet=quiet) as progress:
        table = Table(progress, kind=12, direction=9, shape=13, dtype=9, plain=-9, summary=-9, scan=-9, ratio=-6)
        table.head()
        for kind, direction, (shape, dim), dtype in rows:
            progress.step(f"{kind} {direction} {shape_text(shape)} {dtype}")
            kernel, times = measure(kind, direction, shape, dim, dtype, device)
            ratio = (times["summary"] + times["scan"]) / times["plain"]
            seconds = [times[name] for name in ("plain", "summary", "scan")]
            table.row(kind, direction, shape_text(shape), dtype, *map(time_text, seconds), f"{ratio:.2f}x")
            file.row(kind, direction, shape_text(shape), dim, dtype, kernel, *(t * 1e3 for t in seconds), ratio)
    return 0


def measure(
    kind: ScanKind, direction: str, shape: tuple[int, int], dim: int, dtype: str, device: str
) -> tuple[str, dict[str, float]]:
    """The kernel with carries, and seconds of a plain scan, of the summary and of the scan with carries."""
    import torch

    import sternway as sw

    generator = torch.Generator(device).manual_seed(0)
    x, dy = (torch.randn(shape, generator=generator, device=device).to(getattr(torch, dtype)) for _ in range(2))
    if kind == "cumprod":  # products of 2^27 factors that stay in range
        x = torch.exp2(x.float() / 1024 - x.float().roll(1, dim) / 1024).to(x.dtype)
    out = torch.empty_like(x)

    def states(numbers: int) -> Any:
        return torch.zeros(shape[1 - dim], numbers, device=device, dtype=torch.float64)

    scan: Any
    backward: Any
    families: Any = ((sw.ScanPlan, sw.ScanDescriptor), (sw.ScanBackwardPlan, sw.ScanBackwardDescriptor))
    scan, backward = (
        [plan.select(descriptor(kind, shape, dtype, dim=dim, carries=carries), device) for carries in (False, True)]
        for plan, descriptor in families
    )
    start, end = (states(KINDS[kind].carry_size) for _ in range(2))
    scan[1].run(x=x, carry_out=end)
    if direction == "forward":
        calls = {
            "plain": functools.partial(scan[0].run, x=x, y=out),
            "summary": functools.partial(scan[1].run, x=x, carry_out=start),
            "scan": functools.partial(scan[1].run, x=x, carry_in=end, y=out),
        }
    else:
        given = {"dy": dy} if KINDS[kind].is_linear else {"dy": dy, "x": x}
        entering = {} if KINDS[kind].is_own_gradient else {"carry_in": end}
        after, before = (states(KINDS[kind].gradient_carry_size) for _ in range(2))
        backward[1].run(**given, **entering, dcarry_in=after)
        calls = {
            "plain": functools.partial(backward[0].run, **given, dx=out),
            "summary": functools.partial(backward[1].run, **given, **entering, dcarry_in=before),
            "scan": functools.partial(backward[1].run, **given, **entering, dcarry_out=after, dx=out),
        }
    found, _ = timing.measure({name: [call] for name, call in calls.items()}, device)
    plan = (scan if direction == "forward" else backward)[1]
    return plan.sku.kernel, {name: time.median for name, time in found.items()}
