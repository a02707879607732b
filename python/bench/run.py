"""Measures the rows of the benchmark, each an operation with given outputs, shape and dtype."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator

from .._cases import CASES, Case, Problem, Shape, TorchSource, error
from .._cases.progress import Progress
from .._cases.source import cuda_devices, usable
from .._cases.table import Table, shape_text
from . import report, timing
from .carries import bench_carries
from .embedding import bench_embedding
from .exactness import bench_exactness
from .growth import bench_growth
from .host import bench_host
from .jax import bench_jax
from .packed import bench_packed
from .quantize import bench_quantize
from .ranks import bench_ranks
from .recurrence import bench_recurrence
from .row import Row
from .selective import bench_selective
from .sparse import bench_sparse
from .step import bench_step
from .step.check import WrongResultError
from .timing import Call

MOST_BUFFERS = 64


OTHERS: dict[str, Callable[[argparse.Namespace, str, report.NewCsv], int]] = {
    "host": lambda options, device, csv: bench_host(device, csv, options.quiet),
    "exactness": lambda options, device, csv: bench_exactness(device, csv, options.quiet),
    "carries": lambda options, device, csv: bench_carries(device, csv, options.quiet),
    "embedding": lambda options, device, csv: bench_embedding(device, options.rows, options.shapes, csv, options.quiet),
    "growth": lambda options, device, csv: bench_growth(device, options.rows, csv, options.quiet),
    "jax": lambda options, device, csv: bench_jax(device, options.rows, csv, options.quiet),
    "packed": lambda options, device, csv: bench_packed(device, options.rows, csv, options.quiet),
    "quantize": lambda options, device, csv: bench_quantize(device, options.rows, csv, options.quiet),
    "ranks": lambda options, device, csv: bench_ranks(functools.partial(report.Csv, options.csv, "cuda", options.commit)),
    "recurrence": lambda options, device, csv: bench_recurrence(device, options.rows, csv, options.quiet),
    "selective": lambda options, device, csv: bench_selective(device, options.rows, csv, options.quiet),
    "sparse": lambda options, device, csv: bench_sparse(device, csv, options.quiet),
    "step": lambda options, device, csv: bench_step(options, device, csv),
}
"""The benchmarks that measure no rows of the table of cases."""

FAMILIES = tuple(dict.fromkeys([*(case.family for case in CASES), *OTHERS]))
"""All that ``bench FAMILY`` measures. The start of an operation's name chooses rows of a family."""

ABOUT_QUICK = """\
--quick: small shapes, for which a call may cost more than its work, and few repetitions: times and ratios are rough.
Without --quick the shapes of docs/performance.md are measured.
"""


def bench(options: argparse.Namespace) -> int:
    """Run the rows that the options choose."""
    import torch

    family = options.family or ""
    if family not in OTHERS and not any(is_in_family(case, family) for case in CASES):
        print(f"There is no family {family!r}. Families: {', '.join(FAMILIES)}.", file=sys.stderr)
        return 2
    found, _ = cuda_devices()
    device = usable(options.device or (found[0] if found else "cpu"))
    if options.quick:
        if family == "ranks":
            print("bench ranks has no --quick.", file=sys.stderr)
            return 2
        timing.effort = timing.QUICK
        print(ABOUT_QUICK)
    new_csv = functools.partial(report.Csv, options.csv, device, options.commit)
    if family in OTHERS:
        return OTHERS[family](options, device, new_csv)
    chosen = list(rows(options, device))
    if not chosen:
        print("No such row; see --rows.", file=sys.stderr)
        return 2
    print(f"{report.machine(device)}\n")
    done, wrong = [], 0
    columns = [field.name for field in dataclasses.fields(Row)]
    with new_csv(columns) as csv, Progress("bench", len(chosen), quiet=options.quiet) as progress:
        table = Table(progress, **report.COLUMNS)
        table.head()
        for case, shape, dtype in chosen:
            progress.step(f"{case.op} {case.name} {shape_text(shape)} {dtype}")
            try:
                row = measure(case, shape, dtype, device)
            except WrongResultError as failure:
                wrong += 1
                report.show_wrong(table, case, shape, dtype, str(failure))
                continue
            done.append(row)
            report.show(table, row)
            csv.row(*dataclasses.astuple(row))
            torch.cuda.empty_cache()
    report.summary(done)
    if options.plot and done:
        report.plot(done, options.plot, device)
    return 1 if wrong else 0


def is_in_family(case: Case, family: str) -> bool:
    """Whether `bench FAMILY` measures a case; an empty family has all."""
    return family in ("", case.family) or case.op.startswith(family)


def rows(options: argparse.Namespace, device: str) -> Iterator[tuple[Case, Shape, str]]:
    """Cases, shapes and dtypes that the options choose."""
    for case in CASES:
        if not is_in_family(case, options.family or ""):
            continue
        own = case.cpu if device == "cpu" else case.cuda
        if timing.effort.is_quick:
            own = tuple(sorted(own, key=math.prod)[:1])
        for shape in own and (options.shapes or own):
            for dtype in timing.dtypes():
                if options.rows in f"{case.op} {case.name} {shape_text(shape)} {dtype}":
                    yield case, shape, dtype


def measure(case: Case, shape: Shape, dtype: str, device: str) -> Row:
    """Check one row, then time it."""
    problem = Problem(case, TorchSource(device), shape, dtype)
    ours, theirs = check(problem)
    moved = problem.bytes()
    count = min(MOST_BUFFERS, timing.buffers(moved, device))
    problems = [problem, *(Problem(case, TorchSource(device, seed), shape, dtype) for seed in range(1, count))]
    contestants: dict[str, list[Call]] = {
        "ours": [functools.partial(p.plan.run, **p.operands()) for p in problems],
        "torch": [p.by_torch() for p in problems],
        **timing.copies(moved, count, device),
    }
    if device == "cpu" and not case.is_in_place and not timing.effort.is_quick:
        contestants["new"] = [lambda: problem.plan.run(**problem.operands(poisoned=False))]
    found, others = timing.measure(contestants, device)
    replays = None
    if device != "cpu":
        replays = timing.replayed({name: contestants[name] for name in ("ours", "copy_", "neg")}, device)
    time, torch_time = found["ours"], found["torch"]
    copy = min(found["copy_"].median, found["neg"].median)
    return Row(
        op=case.op, outputs=case.name, shape=shape_text(shape), dtype=dtype, device=device,
        kernel=problem.plan.sku.kernel, bytes=moved,
        ms=time.median * 1e3, best_ms=time.best * 1e3,
        new_outputs_ms=found["new"].median * 1e3 if "new" in found else None,
        copy_ms=copy * 1e3, share_of_copy=copy / time.median,
        replayed_share=min(replays["copy_"], replays["neg"]) / replays["ours"] if replays else None,
        torch_ms=torch_time.median * 1e3, torch_best_ms=torch_time.best * 1e3, ratio=torch_time.median / time.median,
        error=ours, torch_error=theirs, torch_way=case.rival, others=others,
    )  # fmt: skip


def check(problem: Problem) -> tuple[float, float]:
    """The largest errors of sternway and of torch.

    Raises:
        WrongResultError: an error above torch's own and above the roundings that are allowed.
    """
    results, theirs = problem.run(), problem.by_torch()()
    worst = (0.0, 0.0)
    for name, truth in problem.truths().items():
        ours, rival, allowed = error(results[name], truth), error(theirs[name], truth), problem.allowed(name, truth)
        if not ours <= max(allowed, rival):
            raise WrongResultError(f"{name} is {ours:.3g} ulp from float64, allowed are {allowed:.3g}, torch has {rival:.3g}")
        worst = max(worst[0], ours), max(worst[1], rival)
    return worst
