"""``python -m sternway bench sparse``: sparse gradients of embedding bags through autograd.

torch's gradient has a row for each position, sternway's a row for each index that occurs.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

from .._cases import TorchSource
from .._cases.embedding_bag import inputs, uniform, zipf
from .._cases.progress import Progress
from .._cases.table import Table, shape_text, time_text
from . import timing
from .kernels import kernels_of
from .report import NewCsv, machine

SHAPES = {
    "cuda": ((1 << 20, 128, 65536, 20), (50000, 768, 65536, 20), (10_000_000, 64, 65536, 20), (1000, 128, 32, 20)),
    "cpu": ((100000, 64, 16384, 20), (1000, 64, 256, 20)),
    "quick": ((1000, 64, 256, 20),),
}
DTYPES = {"cuda": ("float32", "bfloat16"), "cpu": ("float32", "float64"), "quick": ("float32",)}
COLUMNS = (
    "indices",
    "shape",
    "dtype",
    "kernel",
    "ms",
    "torch_ms",
    "torch_coalesced_ms",
    "ratio",
    "ratio_coalesced",
    "error",
    "torch_error",
)


def bench_sparse(device: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print milliseconds of forward and `autograd.grad`, torch's also with `coalesce()`, and errors against float64."""
    print(f"{machine(device)}\n")
    kind = timing.sizes(device)
    rows = list(itertools.product((uniform, zipf), SHAPES[kind], DTYPES[kind]))
    with new_csv(COLUMNS) as file, Progress("bench sparse", len(rows), quiet=quiet) as progress:
        table = Table(
            progress, indices=8, shape=22, dtype=9, ours=-9, torch=-9, coalesced=-9, ratio=-6, error=-8, torch_error=-11
        )
        table.head()
        for draw, shape, dtype in rows:
            name = draw.__name__, shape_text(shape), dtype
            progress.step(" ".join(name))
            kernel, times, errors = measure(draw, shape, dtype, device)
            ours, torch, coalesced = times
            table.row(*name, *map(time_text, times), f"{torch / ours:.1f}x", *(f"{e:.1e}" for e in errors))
            file.row(*name, kernel, *(t * 1e3 for t in times), torch / ours, coalesced / ours, *errors)
    return 0


def measure(draw: Any, shape: tuple[int, ...], dtype: str, device: str) -> tuple[str, list[float], list[float]]:
    """The kernels of ours, seconds of ours, torch's and torch's coalesced, and |d - truth| / |truth| of the first two."""
    import torch

    import sternway.torch as st

    values = inputs(TorchSource(device), shape, dtype, draw=draw)
    weight = values.weight.requires_grad_()

    def gradient(bags: Any) -> Any:  # with the forward, in which ours finds the rows
        y = bags(values.indices, weight, values.offsets, mode="sum", sparse=True)
        return torch.autograd.grad(y, weight, values.dy)

    ours, theirs = (functools.partial(gradient, f) for f in (st.embedding_bag, torch.nn.functional.embedding_bag))
    rows, places = torch.unique(values.indices, return_inverse=True)
    bags = torch.arange(len(values.indices), device=device) // shape[3]
    truth = torch.zeros(len(rows), shape[1], dtype=torch.float64, device=device)
    truth.index_add_(0, places, values.dy.double()[bags])
    found = [f()[0].coalesce() for f in (ours, theirs)]
    if not all(torch.equal(d.indices()[0], rows) for d in found):
        raise AssertionError("a sparse gradient has other rows than those that occur")
    errors = [float((d.values().double() - truth).norm() / truth.norm()) for d in found]
    kernel = kernels_of(ours)
    calls: dict[str, list[timing.Call]] = {
        "ours": [lambda: ours()[0]], "torch": [lambda: theirs()[0]], "coalesced": [lambda: theirs()[0].coalesce()]
    }  # fmt: skip
    if device == "cpu":
        times, _ = timing.measure(calls, device)
        return kernel, [times[name].median for name in calls], errors
    # A call that reads the number of rows waits for the device, so the time of the host is part of it: calls in a row.
    number = 100 if len(values.indices) < 10000 else 5
    seconds = timing.host({name: call for name, (call,) in calls.items()}, torch.cuda.synchronize, 15, number, finish=True)
    return kernel, [seconds[name] for name in calls], errors
