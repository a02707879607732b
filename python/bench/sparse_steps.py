"""``python -m sternway bench sparse-steps``: tables with sparse gradients and their optimizer, forward, backward and step."""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from .._cases import TorchSource
from .._cases.embedding_bag import uniform, zipf
from .._cases.progress import Progress
from .._cases.table import Table, shape_text, time_text
from .kernels import kernels_of
from .report import NewCsv, machine

TABLES = 8
SHAPES = {"cuda": (1 << 20, 128, 8192, 20), "cpu": (20_000, 64, 512, 10)}  # rows, width, bags, positions of a bag
VARIANTS = ("late", "early", "flagged", "bounded", "gathered")  # of sternway.torch.sparse_rows
COLUMNS = ("kind", "optimizer", "indices", "shape", "contestant", "kernel", "ms", "ratio")
BATCHES, STEPS = 5, 4


class Tables:
    """Tables and one optimizer, which all contestants share: they differ in the function that looks rows up."""

    def __init__(self, optimizer: str, shape: tuple[int, ...], device: str) -> None:
        import torch

        rows, width, _, _ = shape
        self.weights = [torch.nn.Parameter(torch.randn(rows, width, device=device)) for _ in range(TABLES)]
        self.optimizer = getattr(torch.optim, optimizer)(self.weights, lr=1e-6)

    def gradients(self, look_up: Callable[..., Any], indices: list[Any], dys: list[Any]) -> list[Any]:
        """Forward and backward of all tables."""
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        ys = [look_up(i, weight) for i, weight in zip(indices, self.weights, strict=True)]
        torch.autograd.backward(ys, dys)
        return [weight.grad for weight in self.weights]

    def step(self, *inputs: Any) -> None:
        """A whole step."""
        self.gradients(*inputs)
        self.optimizer.step()


@contextlib.contextmanager
def variant(name: str) -> Iterator[None]:
    """Sparse gradients of sternway in one of the ways that are compared."""
    from sternway.torch import sparse_rows

    with mock.patch.object(sparse_rows, "VARIANT", name):
        yield


def contestants(kind: str) -> dict[str, tuple[Callable[..., Any], str]]:
    """By name, the function that looks rows up, and the way of its gradient."""
    import torch

    import sternway.torch as st

    def of(home: Any) -> Callable[..., Any]:
        if kind == "embedding":
            return functools.partial(home.embedding, sparse=True)
        return functools.partial(home.embedding_bag, mode="sum", sparse=True)

    ways = [way for way in VARIANTS if kind == "embedding" or way != "gathered"]
    return {"torch": (of(torch.nn.functional), "late"), **{way: (of(st), way) for way in ways}}


def seconds(step: Callable[[], None], synchronize: Callable[[], None]) -> float:
    """Wall time of a step, the host's included: the median of batches of steps that follow each other."""
    samples = []
    for _ in range(BATCHES):
        synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        synchronize()
        samples.append((time.perf_counter() - start) / STEPS)
    return statistics.median(samples)


def require_equal(ours: list[Any], theirs: list[Any]) -> None:
    """Raise unless the gradients are those of torch."""
    import torch

    for a, b in zip(ours, theirs, strict=True):
        a, b = a.coalesce(), b.coalesce()
        if not torch.equal(a.indices(), b.indices()):
            raise AssertionError("a sparse gradient has other rows than torch's")
        torch.testing.assert_close(a.values(), b.values(), rtol=1e-4, atol=1e-3)


def bench_sparse_steps(device: str, text: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print milliseconds of a step of 8 tables, of the rows that contain a text."""
    import torch

    print(f"{machine(device)}\n")
    # Said aloud, so that torch does not warn of it.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    shape = SHAPES[device.partition(":")[0]]
    synchronize = (lambda: None) if device == "cpu" else torch.cuda.synchronize
    every = itertools.product(("bags", "embedding"), ("SGD", "SparseAdam", "Adagrad"), (uniform, zipf))
    chosen = [row for row in every if text in f"{row[0]} {row[1]} {row[2].__name__}"]
    with new_csv(COLUMNS) as file, Progress("bench sparse-steps", len(chosen), quiet=quiet) as progress:
        table = Table(progress, kind=9, optimizer=10, indices=7, torch=-9, **dict.fromkeys(VARIANTS, -9))
        table.head()
        for kind, optimizer, draw in chosen:
            name = kind, optimizer, draw.__name__
            progress.step(" ".join(name))
            found = measure(*name[:2], draw, shape, device, synchronize)
            table.row(*name, *(time_text(t) for t, _ in found.values()))
            for contestant, (t, kernel) in found.items():
                file.row(*name, shape_text(shape), contestant, kernel, t * 1e3, found["torch"][0] / t)
    return 0


def measure(
    kind: str, optimizer: str, draw: Any, shape: tuple[int, ...], device: str, synchronize: Callable[[], None]
) -> dict[str, tuple[float, str]]:
    """Seconds of a step and the kernels of ours by contestant, each checked against torch's gradients before it is timed."""
    rows, width, bags, positions = shape
    source, tables = TorchSource(device), Tables(optimizer, shape, device)
    indices = [draw(source, rows, bags * positions).reshape(bags, positions) for _ in range(TABLES)]
    rows_of_dy = (bags, positions) if kind == "embedding" else (bags,)
    dys = [source.cast(source.normal((*rows_of_dy, width)), "float32") for _ in range(TABLES)]
    found: dict[str, tuple[float, str]] = {}
    theirs: list[Any] = []
    for name, (look_up, way) in contestants(kind).items():
        with variant(way):
            grads = [grad.clone() for grad in tables.gradients(look_up, indices, dys)]
            theirs = theirs or grads
            require_equal(grads, theirs)
            del grads
            step = functools.partial(tables.step, look_up, indices, dys)
            step()
            kernel = kernels_of(step)
            found[name] = seconds(step, synchronize), kernel
    return found
