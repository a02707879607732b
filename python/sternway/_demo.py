"""``python -m sternway demo``: every gradient on real data, compared with torch.autograd and with float64."""

from __future__ import annotations

import csv
import importlib
import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._cases import CASES, FORMATS, Case, Problem, SeriesSource, error
from ._cases.progress import Progress
from ._cases.source import cuda_devices
from ._cases.table import Table, shape_text, time_text
from ._kinds import KINDS

FIRST = {f"{kind.name}, dim -1": int(kind.is_linear or kind.has_indices) for kind in KINDS.values()}
"""Scans along rows begin the table: gradients of cumprod and logcumsumexp, which PyTorch gets wrong at times, then others."""


ABOUT_ERRORS = """\
error: the largest difference from the result in float64, in ulp (units in the last place: steps between numbers of the dtype).
       Up to 0.5 ulp is the rounding of the result itself. Each row of a tensor counts in ulp of its largest number."""

LARGE = 1000.0  # ulp
ABOUT_LARGE_ERRORS = """\
In selective_scan_backward in 16 bits torch's errors are in the thousands: the gradients dA and dD are float32, and torch rounds
silu(z), a factor of every term, to 16 bits. One ulp of bfloat16 is 65536 ulp of float32."""
"""A test has that these errors go away where torch computes silu(z) in float32."""


def chosen(everything: bool) -> list[tuple[Case, str]]:
    """The rows: the gradients of every family in two dtypes; everything: forwards and all dtypes, too."""
    cases = [case for case in CASES if case.demo and (everything or case.op.endswith("_backward"))]
    cases.sort(key=lambda case: FIRST.get(case.name, 2) if case.op == "scan_backward" else 2)
    return [(case, dtype) for case in cases for dtype in FORMATS if everything or dtype in ("float32", "bfloat16")]


def demo(*, everything: bool = False, quiet: bool = False) -> int:
    """Print a description of the data, the table, and what it shows.

    Args:
        everything: forwards and all dtypes, too.
        quiet: no progress on standard error.
    """
    import torch

    from .bench.timing import QUIET

    returns = log_returns()
    found, reason = cuda_devices()
    device = found[0] if found else "cpu"
    where = torch.cuda.get_device_name(device) if found else f"the CPU ({reason})"
    print(
        f"Data: {len(returns)} monthly log returns of five stocks, 2000 to 2010 (vega_datasets), repeated to fill each tensor."
    )
    print(f"On {where}, torch {torch.__version__}. Tensors of torch are shared with sternway through DLPack.")
    print(ABOUT_ERRORS)
    if everything:
        print("       float64 has none, as its reference is rounded like the results.")
    print()
    rows, ratios, errors, disturbed = chosen(everything), [], [], 0
    with Progress("demo", len(rows), quiet=quiet) as progress:
        table = Table(progress, op=32, outputs=24, dtype=8, shape=9, error=-8, of_torch=-8, time=-8, torch=-8, ratio=-6)
        table.head()
        for case, dtype in rows:
            progress.step(f"{case.op} {case.name} {dtype}")
            row = one(table, Problem(case, SeriesSource(returns, device), case.demo or (), dtype))
            ratios.append(row.ratio)
            errors += [row.errors] if row.errors else []
            disturbed += row.others > QUIET
    print()
    if disturbed:
        print(f"Other programs kept processors busy during {disturbed} of {len(rows)} rows: these times may be far off.")
    summary(ratios, errors)
    if not everything:
        print("`python -m sternway demo --all` has forwards and all dtypes, `python -m sternway bench` larger sizes.")
    return 0


def summary(ratios: Sequence[float], errors: Sequence[tuple[float, float]]) -> None:
    """Print how often sternway has the smaller error and the shorter time, and why torch has errors that are very large."""
    less = sum(ours < theirs for ours, theirs in errors)
    more = sum(ours > theirs for ours, theirs in errors)
    faster = sum(ratio > 1 for ratio in ratios)
    middle, mean = statistics.median(ratios), statistics.geometric_mean(ratios)
    print(f"Of {len(errors)} errors sternway's is the smaller one in {less}, and torch's in {more}.")
    print(f"Of {len(ratios)} times sternway's is the shorter one in {faster};")
    print(f"torch takes {middle:.1f} times as long in the median, and {mean:.1f} times in the geometric mean.")
    if any(theirs > LARGE for _, theirs in errors):
        print(ABOUT_LARGE_ERRORS)


class Row(NamedTuple):
    """What a row found: the errors of both, how much longer torch takes, and the processors that other programs took."""

    errors: tuple[float, float] | None
    ratio: float
    others: float


def one(table: Table, problem: Problem) -> Row:
    """Run and time one case, and print its row."""
    from .bench.timing import measure

    case, operands, torch = problem.case, problem.operands(), problem.by_torch()
    truths, ours, theirs = problem.truths(), problem.run(), torch()
    mine, other = (max(error(results[name], truth) for name, truth in truths.items()) for results in (ours, theirs))
    errors = None if problem.dtype == "float64" else (mine, other)
    contestants: Any = {"ours": [lambda: problem.plan.run(**operands)], "torch": [torch]}
    time, others = measure(contestants, problem.source.device, tries=1)
    seconds = [time["ours"].median, time["torch"].median]
    said = [f"{ulps:.3g}" for ulps in errors] if errors else ["", ""]
    ratio = seconds[1] / seconds[0]
    table.row(case.op, case.name, problem.dtype, shape_text(problem.shape), *said, *map(time_text, seconds), f"{ratio:.1f}x")
    return Row(errors, ratio, others)


def log_returns() -> list[float]:
    """log(price / price a month before) of the stocks that vega_datasets carries as a file."""
    path = importlib.import_module("vega_datasets").local_data.stocks.filepath
    with Path(path).open() as file:
        months = itertools.pairwise(csv.DictReader(file))
        return [math.log(float(b["price"]) / float(a["price"])) for a, b in months if a["symbol"] == b["symbol"]]
