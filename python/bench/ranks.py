"""``torchrun --nproc-per-node 2 -m sternway bench ranks``: scans and embedding bags that ranks share, a GPU each.

A scan across ranks is compared with a scan of one rank's part on one GPU, which is half the work for two ranks, and with
gathering the whole on every rank. Times are those of one call in a series, which the host issues ahead of the GPU, and of one
call alone, which waits for the host; both of the slowest rank.
"""

from __future__ import annotations

import functools
import os
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from .._cases.progress import Progress
from .._cases.table import Table, shape_text, time_text
from .._kinds import EXTREMA, KINDS
from .report import NewCsv, machine

REPETITIONS = 9
SERIES = 8
SCANS = (((8192, 16384), 1), ((16384, 8192), 0), ((1, 1 << 27), 1))
"""Shapes of a rank's part, of 2^27 elements, and the dimension that is shared."""
BAG = (4_000_000, 64, 16384, 32)
"""Rows and columns of the table, bags of a rank, and indices of a bag."""
COLUMNS = (
    "op", "shape_of_a_rank", "dtype", "ranks", "direction", "ms", "one_gpu_ms", "gathered_ms", "alone_ms", "exchange_ms",
    "header_ms",
)  # fmt: skip


def bench_ranks(new_csv: NewCsv) -> int:
    """Print milliseconds of every row, and write them to a CSV file on rank 0."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    first = dist.get_rank() == 0
    if first:
        print(f"{machine('cuda')}, {dist.get_world_size()} ranks\n")
    found = [*scan_rows(), *bag_rows()]
    if first:
        with new_csv(COLUMNS) as file, Progress("bench ranks", len(found), quiet=True) as progress:
            widths = {"op": 22, "shape": 18, "dtype": 9, "direction": 9, "ranks": -9, "one_gpu": -9, "gathered": -9}
            table = Table(progress, **widths, alone=-9, exchange=-9, header=-9)
            table.head()
            for row in found:
                op, shape, dtype, ranks, direction, *times = row
                table.row(op, shape, dtype, direction, *("" if t is None else time_text(t) for t in times))
                file.row(op, shape, dtype, ranks, direction, *("" if t is None else t * 1e3 for t in times))
    dist.destroy_process_group()
    return 0


def slowest(call: Callable[[Any], Any], prepare: Callable[[], Any] = lambda: None, series: int = 1) -> float:
    """Median seconds of a call on the slowest rank, one of a series that begins when all ranks are ready."""
    import torch
    import torch.distributed as dist

    samples = []
    for k in range(REPETITIONS + 2):
        prepared = [prepare() for _ in range(series)]
        dist.barrier()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for one in prepared:
            call(one)
        end.record()
        torch.cuda.synchronize()
        if k >= 2:
            samples.append(start.elapsed_time(end) / 1e3 / series)
    median = torch.tensor([statistics.median(samples)])
    dist.all_reduce(median, dist.ReduceOp.MAX)
    return float(median)


def both(forward: Callable[[], Any], inputs: Any, dy: Any, series: int = SERIES) -> tuple[float, float]:
    """Seconds of a forward, and of the backward of another."""
    import torch

    def backward(y: Any) -> None:
        torch.autograd.grad(y, inputs, dy)

    return slowest(lambda _: forward(), series=series), slowest(backward, forward, series)


def scan_rows() -> Iterator[tuple[Any, ...]]:
    """The rows of cumsum and logcumsumexp."""
    import torch
    import torch.distributed as dist
    from torch.distributed.nn import functional

    import sternway.torch as st
    import sternway.torch.distributed as std

    from ..torch.distributed._exchange import all_gather, all_gather_objects
    from ..torch.distributed._parts import EXTREMUM_SENT

    rank, ranks = dist.get_rank(), dist.get_world_size()
    for kind in ("cumsum", "logcumsumexp"):
        for dtype in (torch.float32, torch.bfloat16):
            for shape, dim in SCANS:
                x, dy = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))

                def shared(x: Any, kind: str = kind, dim: int = dim) -> Any:
                    return getattr(std, kind)(x, dim)

                def alone(x: Any, kind: str = kind, dim: int = dim) -> Any:
                    return getattr(st, kind)(x, dim)

                def by_gathering(x: Any, kind: str = kind, dim: int = dim) -> Any:
                    whole = torch.cat(functional.all_gather(x), dim)  # type: ignore[no-untyped-call]
                    return getattr(st, kind)(whole, dim).chunk(ranks, dim)[rank]

                x.requires_grad_()
                calls = [functools.partial(scan, x) for scan in (shared, alone, by_gathering)]
                times = [*(both(call, x, dy) for call in calls), both(calls[0], x, dy, 1)]
                rows = shape[1 - dim]
                size = EXTREMUM_SENT if kind in EXTREMA else KINDS[kind].carry_size
                state = torch.zeros(rows, size, device="cuda", dtype=torch.float64)
                exchange = slowest(lambda _, state=state: all_gather(state, None))  # type: ignore[misc]
                header = slowest(lambda _: all_gather_objects(("cumsum", ((3,), "float32", "cuda", 0, False), 3), None))
                name = str(dtype).removeprefix("torch.")
                for k, direction in enumerate(("forward", "backward")):
                    row = kind, shape_text(shape), name, ranks, direction, *(pair[k] for pair in times), exchange
                    yield (*row, header if k == 0 else None)
                del x, dy
                torch.cuda.empty_cache()


def bag_rows() -> Iterator[tuple[Any, ...]]:
    """The rows of embedding bags: the same bags for each rank, with the whole table on one GPU."""
    import torch
    import torch.distributed as dist

    import sternway.torch as st
    import sternway.torch.distributed as std

    rows, columns, bags, each = BAG
    generator = torch.Generator("cuda").manual_seed(dist.get_rank())
    indices = torch.randint(rows, (bags, each), device="cuda", generator=generator)
    dy = torch.randn(bags, columns, device="cuda")
    plain = st.EmbeddingBag(rows, columns, mode="sum", device="cuda")
    one = both(lambda: plain(indices), plain.weight, dy)
    for sharding in ("row", "column"):
        bag = std.ShardedEmbeddingBag(rows, columns, sharding=sharding, mode="sum", device="cuda")
        call = functools.partial(bag, indices)
        times, alone = both(call, bag.weight, dy), both(call, bag.weight, dy, 1)
        for k, direction in enumerate(("forward", "backward")):
            row = f"bag by {sharding}s", shape_text(BAG), "float32", dist.get_world_size(), direction
            yield *row, times[k], one[k], None, alone[k], None, None
