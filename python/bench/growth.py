"""``python -m sternway bench growth``: time(2n) / time(n) of scans of length n, which is 2 for one linear pass."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator

from .._cases import CASES, Case, Problem, Shape, TorchSource
from .._cases.progress import Progress
from .._cases.table import Table, shape_text
from .._kinds import WITH_KERNELS
from . import timing
from .report import NewCsv, machine

LENGTHS = tuple(2**e for e in range(10, 21))
TOTAL = 2**26  # elements of the shapes whose number of rows falls as their length grows
SHAPES: dict[str, tuple[str, Callable[[int], Shape]]] = {
    "64 rows": ("dim -1", lambda n: (64, n)),
    "2^26 in rows": ("dim -1", lambda n: (TOTAL // n, n)),
    "64 columns": ("dim 0", lambda n: (n, 64)),
}
COLUMNS = ("kind", "along", "shape", "dtype", "kernel", "ms", "copy_ms", "growth", "copy_growth")


def bench_growth(device: str, text: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print the growth from each length to the next, of the rows that contain a text.

    Where both shapes have as many elements, it is twice the ratio of their times.
    """
    rows, lengths = list(chosen(text)), LENGTHS[:3] if timing.effort.is_quick else LENGTHS
    if not rows:
        print("No such row; see --rows.", file=sys.stderr)
        return 2
    print(f"{machine(device)}\n")
    with new_csv(COLUMNS) as csv, Progress("bench growth", len(rows) * len(lengths), quiet=quiet) as progress:
        table = Table(progress, kind=12, along=12, dtype=9, **{f"to {n}": -10 for n in lengths[1:]}, worst=-5)
        table.head()
        for kind, case, along, dtype in rows:
            shape_of, more = SHAPES[along][1], 2 if along == "2^26 in rows" else 1
            times, kernels = [], []
            for n in lengths:
                progress.step(f"{kind} {shape_text(shape_of(n))} {dtype}")
                kernel, *own = seconds(case, shape_of(n), dtype, device)
                times.append(own)
                kernels.append(kernel)
            found = [(more * b[0] / a[0], more * b[1] / a[1]) for a, b in itertools.pairwise(times)]
            for n, kernel, own, growth in zip(lengths, kernels, times, (("", ""), *found), strict=True):
                csv.row(kind, along, shape_text(shape_of(n)), dtype, kernel, *(t * 1e3 for t in own), *growth)
            table.row(kind, along, dtype, *(f"{ours:.2f}" for ours, _ in (*found, max(found))))
    return 0


def chosen(text: str) -> Iterator[tuple[str, Case, str, str]]:
    """Scans by x along rows and along columns, in every dtype; in a quick run, those of 64 rows or columns."""
    named = {case.name: case for case in CASES}
    for along, (dim, _) in SHAPES.items():
        if timing.effort.is_quick and along == "2^26 in rows":
            continue
        for kind in WITH_KERNELS:
            for dtype in timing.dtypes():
                if text in f"{kind} {along} {dtype}":
                    yield kind, named[f"{kind}, {dim}"], along, dtype


def seconds(case: Case, shape: Shape, dtype: str, device: str) -> tuple[str, float, float]:
    """The kernel, and the seconds of a run and of a copy of as many bytes."""
    problem = Problem(case, TorchSource(device), shape, dtype)
    moved = problem.bytes()
    count = timing.buffers(moved, device)
    problems = [problem, *(Problem(case, TorchSource(device, seed), shape, dtype) for seed in range(1, count))]
    calls: dict[str, list[timing.Call]] = {
        "ours": [functools.partial(p.plan.run, **p.operands()) for p in problems],
        "copy": timing.copies(moved, count, device)["copy_"],
    }
    if device == "cpu":
        times, _ = timing.measure(calls, device)
        return problem.plan.sku.kernel, times["ours"].median, times["copy"].median
    for contestant in calls.values():
        contestant[0]()
    found = timing.replayed(calls, device)
    return problem.plan.sku.kernel, found["ours"], found["copy"]
