"""Runs the steps that the options choose: check, time, memory, one row after another."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
import time
from collections.abc import Iterator
from typing import Any

from ..._cases.progress import Progress
from ..._cases.table import shape_text
from ..kernels import kernels_of
from ..report import NewCsv, machine
from ..updates import without_sparse_warning
from . import report
from .case import COMPILE, OURS, TORCH, Checked, Size, Step, StepCase
from .measure import Times, measure, peak_memory
from .report import Line, Row
from .table import CASES

COMPILING = 0.65
"""The part of the time limit after which nothing is compiled any more, as one compilation may take half a minute."""


def bench_step(options: argparse.Namespace, device: str, new_csv: NewCsv) -> int:
    """Measure, print a table and a summary, and return the exit code: 1 if a row failed, 2 if there is no such row."""
    chosen = list(rows(options, device))
    if not chosen:
        print(f"No such row. Steps: {', '.join(case.name for case in CASES)}; see --rows.", file=sys.stderr)
        return 2
    print(f"{machine(device)}\n\n{report.READING}")
    started, done = time.monotonic(), list[Row]()
    limit = float("inf") if options.limit is None else options.limit
    columns = [field.name for field in dataclasses.fields(Line)]
    with new_csv(columns) as csv, Progress("bench step", len(chosen), quiet=options.quiet) as progress:
        table = report.table(progress)
        table.head()
        for case, size in chosen:
            passed = time.monotonic() - started
            progress.step(f"{case.name} {shape_text(size.shape)} {size.dtype}")
            if options.quick or passed > COMPILING * limit:
                size = dataclasses.replace(size, compiled=False)
            if passed >= limit:
                row = Row.without_times(case.name, size, device, failure=f"not measured: {limit:.0f} s are over")
            else:
                row = measured(case, size, device)
            done.append(row)
            table.row(*report.cells(row))
            for line in row.lines:
                csv.row(*dataclasses.astuple(line))
    report.summary(done, time.monotonic() - started)
    if options.plot:
        report.plot(done, options.plot, machine(device))
    return 1 if any(row.failed for row in done) else 0


def rows(options: argparse.Namespace, device: str) -> Iterator[tuple[StepCase, Size]]:
    """The steps and sizes that the options choose."""
    for case in CASES:
        sizes = case.cpu if device == "cpu" else case.cuda
        if options.shapes:
            fitting = [shape for shape in options.shapes if len(shape) == len(case.quick.shape)]
            sizes = tuple(dataclasses.replace(case.quick, shape=shape) for shape in fitting)
        elif options.quick:
            sizes = (case.quick,)
        for size in sizes:
            if options.rows in f"{case.name} {shape_text(size.shape)} {size.dtype}":
                yield case, size


def measured(case: StepCase, size: Size, device: str) -> Row:
    """A row. An error becomes the note of the row, so that the other rows are measured all the same."""
    if reason := case.missing():
        return Row.without_times(case.name, size, device, left_out=reason)
    gc.freeze()  # the row's collections skip older objects, hundreds of thousands of which belong to modules
    step: Step | None = None
    try:
        step = case.make(device, size)
        with without_sparse_warning():
            return timed(case.name, step, size, device)
    except Exception as failure:  # of torch, of a compiler, of a kernel: the row says which
        return Row.without_times(case.name, size, device, failure=words(failure))
    finally:
        if step is not None:
            step.close()
        del step
        release(device)
        gc.unfreeze()


def timed(name: str, step: Step, size: Size, device: str) -> Row:
    """Check all contestants, then time them in turn.

    A contestant other than sternway and torch that cannot run is left out with its error.
    """
    failures = {}
    for rival in [n for n in step.contestants if n not in (OURS, TORCH)]:
        try:
            contestant = step.contestants[rival]
            (contestant.step or contestant.forward)()
            if contestant.step is not None:
                contestant.forward()
        except Exception as failure:
            failures[rival] = f"failed: {words(failure)}"
            del step.contestants[rival]
            if rival == COMPILE:
                release(device)
    checked = step.check(step.contestants)
    release(device, graphs=False)
    calls = {}
    for contestant_name, contestant in step.contestants.items():
        calls[contestant_name, "forward"] = contestant.forward
        if contestant.step is not None:
            calls[contestant_name, "step"] = contestant.step
    memory = {}
    for (contestant_name, part), call in calls.items():
        call()  # optimizers allocate their state in their first step
        if part == "step":
            memory[contestant_name] = peak_memory(call, device)
    kernel = kernels_of(calls[OURS, "step"])
    times = measure({" ".join(key): call for key, call in calls.items()}, device)
    lines = [
        line(name, size, device, contestant_name, times, checked, memory.get(contestant_name), kernel)
        for contestant_name in step.contestants
    ]
    notes = {**step.left_out, **failures}
    lines += [Line.of(name, size, device, contestant=c, note=note) for c, note in notes.items()]
    return Row(name, size, lines, failed=bool(failures))


def line(
    name: str, size: Size, device: str, contestant: str, times: dict[str, Times], checked: dict[str, Checked],
    memory: int | None, kernel: str,
) -> Line:  # fmt: skip
    """The line of a contestant."""
    forward, step = times[f"{contestant} forward"], times.get(f"{contestant} step")
    by_torch = times[f"{TORCH} forward"], times[f"{TORCH} step"]
    values: dict[str, Any] = {
        "contestant": contestant,
        "kernel": kernel if contestant == OURS else "",
        "forward_ms": forward.wall,
        "forward_best_ms": forward.best,
        "forward_host_ms": forward.host,
        "forward_device_ms": forward.device,
        "forward_ratio": by_torch[0].wall / forward.wall,
        "memory_bytes": memory,
        "repetitions": forward.count,
        "others": forward.others,
        "error": checked[contestant].error if contestant in checked else None,
    }
    if step is not None:
        values |= {"ms": step.wall, "best_ms": step.best, "host_ms": step.host, "device_ms": step.device,
                   "ratio": by_torch[1].wall / step.wall}  # fmt: skip
    return Line.of(name, size, device, **values)


def release(device: str, *, graphs: bool = True) -> None:
    """Give memory back, and with `graphs` what torch.compile keeps."""
    import torch

    if graphs and "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def words(failure: Exception) -> str:
    """An error on one line, without its traceback."""
    text = str(failure).strip().partition("\n")[0]
    return f"{type(failure).__name__}: {text[:160]}"
