"""Embedding bags: y[b] reduces weight[indices[i]] over the positions i of bag b.

dweight[v] sums dy[bag(i)] over the positions i that hold v.

A shape is (rows of weight, D, bags, positions of a bag), or (bags, D) with a few rows and positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .._arrays import Array
from .._embedding_bag import EmbeddingBagBackwardDescriptor, EmbeddingBagBackwardPlan
from .case import Case, Output, Shape, Truth, Values, library, numbers, on, roundings, whole
from .source import Source

Draw = Callable[[Source, int, int], Array]


def uniform(source: Source, rows: int, n: int) -> Array:
    """n rows drawn uniformly."""
    return source.cast(abs(source.normal((n,))) * 1e9 % rows, "int64")


def zipf(source: Source, rows: int, n: int, exponent: float = 1.05) -> Array:
    """n rows drawn by inverting the integral of a density (k + 1) ** -exponent over rows k."""
    share, power = abs(source.normal((n,))) * 1e9 % 1, 1 - exponent
    return source.cast(((rows**power - 1) * share + 1) ** (1 / power), "int64").clip(1, rows) - 1


def one_row(source: Source, rows: int, n: int) -> Array:
    """The same row n times."""
    return uniform(source, 1, n) + rows // 2


def inputs(source: Source, shape: Shape, dtype: str, *, mode: str = "sum", draw: Draw = uniform, empty: bool = False) -> Values:
    """Bags of equal length, or without any position."""
    rows, dim, bags, width = shape if len(shape) == 4 else (min(100, 8 * shape[0]), shape[1], shape[0], 5)
    if empty:
        width = 0
    dy, weight = (source.cast(source.normal(s), dtype) for s in ((bags, dim), (rows, dim)))
    offsets = source.cast(source.normal((bags,)) * 0, "int64")
    offsets[:] = width
    indices = draw(source, rows, bags * width)
    values = Values(dy=dy, weight=weight, indices=indices, offsets=offsets.cumsum(0) - width, mode=mode)
    if mode == "max":
        values.max_indices = max_indices(values, bags, width)
    return values


def max_indices(v: Values, bags: int, width: int) -> Array:
    """For each bag and column, the row of the maximum."""
    lib = library(v.weight)
    if lib.__name__ == "torch":  # which says who wins among equals
        return lib.embedding_bag(v.weight, v.indices, v.offsets, False, 2)[3]
    table = v.indices.reshape(bags, width)
    return lib.take_along_axis(table, v.weight[table].argmax(1), 1)


def describe(v: Values) -> EmbeddingBagBackwardDescriptor:
    """The descriptor of these operands."""
    return EmbeddingBagBackwardDescriptor(
        v.weight.shape[0], v.dy.shape[1], v.dy.shape[0], v.indices.shape[0], v.dy.dtype, v.mode
    )


def added(into: Array, at: Array, rows: Array, pick: Array) -> Array:
    """into[at[k]] += rows[pick[k]], a block of k at a time."""
    step = 1 << 17
    for first in range(0, len(at), step):
        some = slice(first, first + step)
        if hasattr(into, "index_add_"):
            into.index_add_(0, at[some], rows[pick[some]])
        else:
            library(into).add.at(into, at[some], rows[pick[some]])
    return into


def sums(at: Array, count: int, rows: Array, pick: Array) -> Array:
    """The sum of rows[pick[k]] over each value of at[k], in groups of 16, so that float64 rounding errors stay negligible."""
    lib = library(rows)
    order = lib.argsort(at, stable=True)
    at, pick = at[order], pick[order]
    while len(at):
        rank = lib.cumsum(lib.ones_like(at), 0) - 1 - lib.searchsorted(at, at)
        if int(rank.max()) < 16:
            break
        head = rank % 16 == 0
        group = lib.cumsum(whole(head), 0) - 1
        rows = added(zeros(rows, int(group[-1]) + 1), group, rows, pick)
        at, pick = at[head], group[head]
    return added(zeros(rows, count), at, rows, pick)


def zeros(like: Array, rows: int) -> Array:
    """Rows of zeros."""
    return library(like).zeros((rows, like.shape[1]), dtype=like.dtype, **on(like))


def dweight(v: Values) -> Truth:
    """dweight by definition; in mode max each element of dy is a term of its column."""
    rows, dim = v.weight.shape
    if v.mode == "max":
        terms = v.dy.reshape(-1, 1)
        at = (whole(v.max_indices) * dim + numbers(v.dy, dim)).reshape(-1)
        pick, count, most = numbers(v.dy, len(terms)), rows * dim, v.dy.shape[0]
    else:
        at, width = whole(v.indices), max(1, len(v.indices) // max(1, v.dy.shape[0]))
        terms = v.dy / width if v.mode == "mean" else v.dy
        pick, count, most = numbers(v.dy, len(at)) // width, rows, len(at)
    value, square = (sums(at, count, x, pick).reshape(v.weight.shape) for x in (terms, terms * terms))
    return Truth(value, square**0.5, roundings(most))


def dsample(v: Values) -> Truth:
    """d_per_sample_weights by definition: dot(dy[bag(i)], weight[indices[i]])."""
    bag = numbers(v.dy, len(v.indices)) // max(1, len(v.indices) // v.dy.shape[0])
    products = v.dy[bag] * v.weight[whole(v.indices)]
    return Truth(products.sum(1), (products * products).sum(1) ** 0.5, roundings(v.dy.shape[1]))


def by_torch(v: Values) -> Any:
    """The operation by torch.nn.functional.embedding_bag."""
    import torch

    weights, weight = getattr(v, "per_sample_weights", None), v.weight
    if weight.dtype == torch.bfloat16 and weight.is_cuda and (v.mode == "max" or weights is not None):
        weight, weights = weight.float(), None if weights is None else weights.float()  # torch 2.11 has no such kernel
    y = torch.nn.functional.embedding_bag(v.indices, weight, v.offsets, mode=v.mode, per_sample_weights=weights)
    return y.to(v.weight.dtype)


def drop_in(v: Values) -> Any:
    """The operation by sternway.torch.embedding_bag."""
    import sternway.torch

    weights = getattr(v, "per_sample_weights", None)
    return sternway.torch.embedding_bag(v.indices, v.weight, v.offsets, mode=v.mode, per_sample_weights=weights)


def weighted(source: Source, shape: Shape, dtype: str) -> Values:
    """A weight for each position."""
    values = inputs(source, shape, dtype)
    values.per_sample_weights = source.cast(source.normal(tuple(values.indices.shape)), dtype)
    return values


RIVAL = "torch.nn.functional.embedding_bag, bfloat16 through float32 where it must"


def case(name: str, make: Any = inputs, reads: tuple[str, ...] = (), output: str = "dweight", **options: Any) -> Case:
    """A case of embedding bags."""
    outputs = {"dweight": Output("weight", dweight), "d_per_sample_weights": Output("per_sample_weights", dsample)}
    return Case(
        "embedding_bag", name, EmbeddingBagBackwardPlan, make, describe, {output: outputs[output]}, by_torch,
        RIVAL, reads=("dy", "indices", "offsets", *reads), drop_in=drop_in, **options,
    )  # fmt: skip


LARGE = (1 << 20, 128, 65536, 20)
WIDE, TALL, SMALL = (50_000, 768, 65536, 20), (10_000_000, 64, 65536, 20), (1000, 128, 32, 20)
ON_CPU = ((1000, 64, 256, 20), (20_000, 64, 4096, 20), (100_000, 64, 16384, 20))

CASES = (
    case("sum, uniform", cpu=ON_CPU, cuda=(LARGE, WIDE, TALL, SMALL), demo=(10_000, 64, 2048, 20)),
    case("sum, zipf", functools.partial(inputs, draw=zipf), cpu=ON_CPU, cuda=(LARGE,)),
    case("sum, one row", functools.partial(inputs, draw=one_row), cpu=ON_CPU[:2], cuda=(LARGE,)),
    case("sum, no position", functools.partial(inputs, empty=True), cpu=ON_CPU, cuda=(LARGE,)),
    case("mean", functools.partial(inputs, mode="mean"), cpu=ON_CPU, cuda=(LARGE,)),
    case("max", functools.partial(inputs, mode="max"), ("max_indices",), cpu=ON_CPU, cuda=(LARGE,)),
    case("weights of samples", weighted, ("weight",), "d_per_sample_weights", cpu=ON_CPU, cuda=(LARGE,)),
)
