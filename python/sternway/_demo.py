"""``python -m sternway demo``: every operation on real data, compared with torch.autograd and with float64."""

from __future__ import annotations

import csv
import importlib
import itertools
import math
import statistics
from pathlib import Path

from ._cases import CASES, FORMATS, Problem, SeriesSource, error
from ._cases.progress import Progress
from ._cases.source import cuda_devices
from ._cases.table import Table, shape_text, time_text


def demo(*, quiet: bool = False) -> int:
    """Print a description of the data, and the table; quiet: without progress on standard error."""
    import torch

    returns = log_returns()
    found, reason = cuda_devices()
    device = found[0] if found else "cpu"
    where = torch.cuda.get_device_name(device) if found else f"the CPU ({reason})"
    print(
        f"Data: {len(returns)} monthly log returns of five stocks, 2000 to 2010 (vega_datasets), repeated to fill each tensor."
    )
    print(f"On {where}, torch {torch.__version__}. Tensors of torch are shared with sternway through DLPack.")
    print("error: the largest against float64, in units in the last place of the largest element of its row;")
    print("       in float64 the reference is rounded like the results, so small errors do not tell which is nearer\n")
    rows, ratios = [(case, dtype) for case in CASES if case.demo for dtype in FORMATS], []
    with Progress("demo", len(rows), quiet=quiet) as progress:
        table = Table(progress, op=32, outputs=24, dtype=8, shape=9, error=-8, of_torch=-8, time=-8, torch=-8, ratio=-6)
        table.head()
        for case, dtype in rows:
            progress.step(f"{case.op} {case.name} {dtype}")
            ratios.append(one(table, Problem(case, SeriesSource(returns, device), case.demo or (), dtype)))
    print(f"\n{len(ratios)} rows; torch takes {statistics.geometric_mean(ratios):.1f} times as long (geometric mean).")
    return 0


def one(table: Table, problem: Problem) -> float:
    """Run and time one case, print its row, and return how much longer torch takes."""
    from .bench.timing import measure

    case, operands, torch = problem.case, problem.operands(), problem.by_torch()
    truths, ours, theirs = problem.truths(), problem.run(), torch()
    errors = [max(error(results[name], truth) for name, truth in truths.items()) for results in (ours, theirs)]
    time, _ = measure({"ours": [lambda: problem.plan.run(**operands)], "torch": [torch]}, problem.source.device, tries=1)
    seconds = [time["ours"].median, time["torch"].median]
    ratio = seconds[1] / seconds[0]
    said = (*(f"{ulps:.3g}" for ulps in errors), *map(time_text, seconds), f"{ratio:.1f}x")
    table.row(case.op, case.name, problem.dtype, shape_text(problem.shape), *said)
    return ratio


def log_returns() -> list[float]:
    """log(price / price a month before) of the stocks that vega_datasets carries as a file."""
    path = importlib.import_module("vega_datasets").local_data.stocks.filepath
    with Path(path).open() as file:
        months = itertools.pairwise(csv.DictReader(file))
        return [math.log(float(b["price"]) / float(a["price"])) for a, b in months if a["symbol"] == b["symbol"]]
