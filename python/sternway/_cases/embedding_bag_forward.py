"""Embedding bags forward: y[b] reduces weight[indices[i]] over the positions i of bag b. Shapes are those of the gradients."""

from __future__ import annotations

import functools
import math
from typing import Any

from .._embedding_bag_forward import EmbeddingBagDescriptor, EmbeddingBagPlan
from .case import Case, Output, Truth, Values, library, roundings, whole
from .embedding_bag import LARGE, ON_CPU, RIVAL, SMALL, TALL, WIDE, by_torch, inputs, weighted, zeros, zipf


def describe(v: Values) -> EmbeddingBagDescriptor:
    """The descriptor of these operands."""
    rows, dim = v.weight.shape
    return EmbeddingBagDescriptor(rows, dim, v.dy.shape[0], v.indices.shape[0], v.weight.dtype, v.mode)


def pooled(v: Values) -> Truth:
    """y by definition, a position of every bag at a time. In mode max it is exact."""
    bags, lib = v.dy.shape[0], library(v.weight)
    table = whole(v.indices).reshape(bags, -1)
    width = table.shape[1]
    if v.mode == "max":
        top = functools.reduce(lib.maximum, (v.weight[table[:, k]] for k in range(width)))
        return Truth(top, abs(top), 0, top == top)
    samples = getattr(v, "per_sample_weights", None)
    total, square = zeros(v.dy, bags), zeros(v.dy, bags)
    for k in range(width):
        rows = v.weight[table[:, k]]
        if samples is not None:
            rows = rows * samples.reshape(bags, width)[:, k : k + 1]
        total, square = total + rows, square + rows * rows
    count = width if v.mode == "mean" else 1
    return Truth(total / count, square**0.5 / count, roundings(width))


def used_rows(v: Values) -> int:
    """How many rows of the table some bag has."""
    return len(library(v.indices).unique(v.indices))


def case(name: str, make: Any = inputs, reads: tuple[str, ...] = (), **options: Any) -> Case:
    """A case of the forward."""
    return Case(
        "embedding_bag", name, EmbeddingBagPlan, make, describe, {"y": Output("dy", pooled)}, by_torch, RIVAL,
        reads=("weight", "indices", "offsets", *reads), cpu=ON_CPU,
        moved=lambda v: {"weight": used_rows(v) * math.prod(v.weight.shape[1:])}, **options,
    )  # fmt: skip


CASES = (
    case("sum, uniform", cuda=(LARGE, WIDE, TALL, SMALL), demo=(10_000, 64, 2048, 20)),
    case("sum, zipf", functools.partial(inputs, draw=zipf), cuda=(LARGE,)),
    case("mean", functools.partial(inputs, mode="mean"), cuda=(LARGE,)),
    case("max", functools.partial(inputs, mode="max"), cuda=(LARGE,)),
    case("weights of samples", weighted, ("per_sample_weights",), cuda=(LARGE,)),
)
