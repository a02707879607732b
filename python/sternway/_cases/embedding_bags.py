"""Embedding bags of many tables, and the update of all tables by Adagrad in the backward.

A shape is (rows of a table, columns of all, bags, positions of a bag), or (bags, columns) with a few rows and positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .._arrays import Array
from .._embedding_bags import (
    EmbeddingBagsBackwardDescriptor,
    EmbeddingBagsBackwardPlan,
    EmbeddingBagsDescriptor,
    EmbeddingBagsPlan,
)
from . import embedding_bag as bags
from . import embedding_bag_forward as forward
from . import embedding_bag_optimizers as optimizers
from .case import Case, Output, Shape, Truth, Values, library
from .source import Source

SHARES = (2, 4, 8, 8)
"""The columns of all tables, divided by those of each; the last has the rest."""


def inputs(source: Source, shape: Shape, dtype: str) -> Values:
    """Tables end to end, with the states of Adagrad. sizes: the rows and columns of each."""
    widths = [shape[1] // share for share in SHARES[:-1]]
    shapes = [(shape[0], width, *shape[2:]) for width in (*widths, shape[1] - sum(widths))]
    each = [optimizers.inputs(source, one, dtype, optimizer="adagrad") for one in shapes]
    lib, total = library(each[0].dy), len(each[0].indices)
    sizes = [tuple(v.weight.shape) for v in each]
    ends = [0, 0, 0]
    for rows, columns in sizes:
        ends += [ends[-3] + rows, ends[-2] + rows * columns, ends[-1] + columns]
    end, tables = (source.cast(optimizers.floats(source, x), "int64") for x in ([total * len(each)], ends))
    parts = {name: [getattr(v, name) for v in each] for name in ("weight", "sum", "indices")}
    parts["offsets"] = [*(total * t + v.offsets for t, v in enumerate(each)), end]
    values = Values(**{name: end_to_end(of_each) for name, of_each in parts.items()}, **shared(each[0]))
    values.dy, values.tables, values.sizes = lib.concatenate([v.dy for v in each], 1), tables.reshape(-1, 3), sizes
    return values


def shared(v: Values) -> dict[str, Any]:
    """The values that tables share."""
    return {name: getattr(v, name) for name in ("mode", "optimizer", "options", "options_after")}


def apart(v: Values) -> Iterator[Values]:
    """The values of each table; weight and sum are views."""
    count, total = v.dy.shape[0], len(v.indices) // len(v.sizes)
    element = column = 0
    for t, (rows, columns) in enumerate(v.sizes):
        of = slice(element, element + rows * columns)
        yield Values(
            dy=v.dy[:, column : column + columns], indices=v.indices[t * total : (t + 1) * total],
            offsets=v.offsets[t * count : (t + 1) * count] - t * total, **shared(v),
            **{name: getattr(v, name)[of].reshape(rows, columns) for name in ("weight", "sum")},
        )  # fmt: skip
        element, column = element + rows * columns, column + columns


def end_to_end(parts: Sequence[Array]) -> Array:
    """The elements of all arrays."""
    return library(parts[0]).concatenate([part.reshape(-1) for part in parts])


def joined(truths: Sequence[Truth], join: Callable[[list[Array]], Array]) -> Truth:
    """The truth of all tables."""
    value, size = (join([getattr(truth, name) for truth in truths]) for name in ("value", "size"))
    exact = [truth.exact for truth in truths if truth.exact is not None]
    return Truth(value, size, max(truth.roundings for truth in truths), join(exact) if exact else None)


def pooled(v: Values) -> Truth:
    """y by definition: the columns of each table."""
    return joined([forward.pooled(one) for one in apart(v)], lambda parts: library(v.dy).concatenate(parts, 1))


def updated(v: Values, name: str) -> Truth:
    """The tables or their state after the run, by definition, end to end."""
    return joined([optimizers.truth(one, name) for one in apart(v)], end_to_end)


def fields(v: Values) -> dict[str, Any]:
    """The fields that the descriptors of both directions have."""
    rows, columns = zip(*v.sizes, strict=True)
    return {
        "num_tables": len(v.sizes), "num_bags": v.dy.shape[0], "num_rows": sum(rows), "num_elements": v.weight.shape[0],
        "num_columns": sum(columns), "embedding_dim": max(columns), "total_indices": v.indices.shape[0],
        "dtype": v.dy.dtype, "mode": v.mode, "is_aligned": all(n * v.dy.dtype.itemsize % 16 == 0 for n in columns),
    }  # fmt: skip


def forward_by_torch(v: Values) -> Any:
    """A call of torch.nn.functional.embedding_bag for each table, and a concatenation."""
    import torch

    return torch.cat([bags.by_torch(one) for one in apart(v)], 1)


def by_torch(v: Values) -> tuple[Any, ...]:
    """The update of each table."""
    for one in apart(v):
        optimizers.by_torch(one)
    return v.weight, v.options_after, v.sum


def used_elements(v: Values) -> int:
    """The elements of the rows that are used."""
    return sum(forward.used_rows(one) * one.weight.shape[1] for one in apart(v))


READS = ("indices", "offsets", "tables", "weight")
ON_CPU: tuple[Shape, ...] = ((1000, 128, 256, 20), (20_000, 128, 4096, 20))
ON_CUDA: tuple[Shape, ...] = ((250_000, 512, 16384, 20), (1000, 256, 32, 20))

CASES = (
    Case(
        "embedding_bags", "sum, zipf", EmbeddingBagsPlan, inputs,
        lambda v: EmbeddingBagsDescriptor(**fields(v)), {"y": Output("dy", pooled)}, forward_by_torch,
        f"{bags.RIVAL}, for each table", reads=READS, cpu=ON_CPU, cuda=ON_CUDA, moved=lambda v: {"weight": used_elements(v)},
    ),
    Case(
        "embedding_bags", "adagrad, zipf", EmbeddingBagsBackwardPlan, inputs,
        lambda v: EmbeddingBagsBackwardDescriptor(**fields(v), optimizer=v.optimizer),
        optimizers.outputs("adagrad", updated), by_torch, f"{optimizers.RIVAL}, for each table",
        reads=("dy", *READS, "options", "sum"), cpu=ON_CPU, cuda=ON_CUDA,
        moved=lambda v: dict.fromkeys(("weight", "sum"), used_elements(v)),
    ),
)  # fmt: skip
