"""``python -m sternway selftest``: every operation, in every dtype, on every device, compared with float64."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence

from . import errors
from ._cases import CASES, FORMATS, Case, NumPySource, Problem, Shape, Source, TorchSource, error
from ._cases.progress import Progress
from ._cases.source import cuda_devices, usable
from ._cases.table import Table, shape_text
from ._dtypes import BEYOND_NUMPY
from ._requirements import TORCH

# Rows that are no multiple of a vector and begin at odd addresses; few rows that are long enough to be cut into parts.
SHAPES: tuple[Shape, ...] = ((67, 1031), (2, 40001))


def selftest(device: str | None = None, *, quiet: bool = False) -> int:
    """Print a table and a summary.

    Args:
        device: cpu, cuda or cuda:N; None: every device.
        quiet: print only the rows that fail, and no progress on standard error.

    Returns:
        the exit code: 0 if all rows passed, 1 if one failed, 2 if nothing could be tested.
    """
    found = list(sources(device))
    if not found:
        return 2
    rows = [
        (case, source, shape, dtype, where)
        for where, source, dtypes in found
        for case in CASES
        if source is not NumPySource or not set(case.stored) & set(BEYOND_NUMPY)
        for dtype in dtypes
        for shape in SHAPES
    ]
    failures = shown = 0
    with Progress("selftest", len(rows), quiet=quiet) as progress:
        table = Table(progress, op=32, outputs=24, dtype=8, device=6, shape=10, error=-9, allowed=-9, result=6)
        for case, source, shape, dtype, where in rows:
            said = case.op, case.name, dtype, where, shape_text(shape)
            progress.step(" ".join(said))
            cells, passed = one(case, source, shape, dtype)
            failures += not passed
            if quiet and passed:
                continue
            if not shown:
                progress.clear()
                print("error: the largest against float64, in units in the last place of the largest element of its row\n")
                table.head()
            shown += 1
            table.row(*said, *cells)
    if shown:
        print()
    print(f"{len(rows) - failures} passed, {failures} failed")
    return 1 if failures else 0


def one(case: Case, source: Callable[[], Source], shape: Shape, dtype: str) -> tuple[Sequence[str], bool]:
    """Run one case.

    Returns:
        the cells of its row, which are of the output whose error is largest relative to the error allowed; whether it passed.
    """
    try:
        problem = Problem(case, source(), shape, dtype)
        results, truths = problem.run(), problem.truths()
        found = [(error(results[name], truth), problem.allowed(name, truth)) for name, truth in truths.items()]
    except (errors.Error, RuntimeError) as failure:  # torch reports what a kernel did at a later call, as a RuntimeError
        return ("", "", f"FAILED {str(failure).partition(chr(10))[0]}"), False
    worst, allowed = max(found, key=lambda pair: pair[0] / pair[1])
    passed = worst <= allowed
    return (f"{worst:.3g}", f"{allowed:.3g}", "ok" if passed else "FAILED"), passed


def sources(device: str | None) -> Iterator[tuple[str, Callable[[], Source], tuple[str, ...]]]:
    """The sources of arrays, with their devices and dtypes. Prints what is not tested, and why."""
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)  # the truth is quick enough, and threads that wait for each other are slow on a busy machine
        found, reason = cuda_devices()
        if not device and not found:
            print(f"cuda is not tested: {reason}\n")
        for name in [usable(device)] if device else ["cpu", *found]:
            yield name, functools.partial(TorchSource, name), tuple(FORMATS)
    elif device not in (None, "cpu"):
        print(f"{device} is tested with PyTorch, which is not installed: pip install '{TORCH}'", file=sys.stderr)
    elif importlib.util.find_spec("numpy"):
        print("PyTorch is not installed: testing NumPy arrays on the CPU, without bfloat16 and float8, which NumPy lacks.\n")
        yield "cpu", NumPySource, tuple(dtype for dtype in FORMATS if dtype not in BEYOND_NUMPY)
    else:
        print(
            f"The selftest needs arrays: install PyTorch (pip install '{TORCH}') or NumPy (pip install numpy).",
            file=sys.stderr,
        )
