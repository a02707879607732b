"""Embeddings: y[i] = weight[indices[i]].

dweight[v] sums dy[i] over the positions i that hold v.

A shape is (rows of weight, D, positions), or (positions, D) with a few rows.
"""

from __future__ import annotations

import functools
from typing import Any

from .._embedding import EmbeddingBackwardDescriptor, EmbeddingBackwardPlan
from .case import Case, Output, Shape, Truth, Values, numbers, roundings, whole
from .embedding_bag import Draw, one_row, sums, uniform, zipf
from .source import Source


def inputs(source: Source, shape: Shape, dtype: str, *, draw: Draw = uniform) -> Values:
    """Positions whose rows are drawn."""
    rows, dim, total = shape if len(shape) == 3 else (100, shape[1], shape[0])
    dy, weight = (source.cast(source.normal(s), dtype) for s in ((total, dim), (rows, dim)))
    return Values(dy=dy, weight=weight, indices=draw(source, rows, total))


def describe(v: Values) -> EmbeddingBackwardDescriptor:
    """The descriptor of these operands."""
    return EmbeddingBackwardDescriptor(v.weight.shape[0], v.dy.shape[1], v.indices.shape[0], v.dy.dtype)


def dweight(v: Values) -> Truth:
    """dweight by definition."""
    at, total = whole(v.indices), len(v.indices)
    pick = numbers(v.dy, total)
    value, square = (sums(at, v.weight.shape[0], x, pick) for x in (v.dy, v.dy * v.dy))
    return Truth(value, square**0.5, roundings(total))


def by_torch(v: Values) -> Any:
    """The operation by torch.nn.functional.embedding."""
    import torch

    return torch.nn.functional.embedding(v.indices, v.weight)


def drop_in(v: Values) -> Any:
    """The operation by sternway.torch.embedding."""
    import sternway.torch

    return sternway.torch.embedding(v.indices, v.weight)


def case(name: str, draw: Draw, **options: Any) -> Case:
    """A case of embeddings."""
    return Case(
        "embedding", name, EmbeddingBackwardPlan, functools.partial(inputs, draw=draw), describe,
        {"dweight": Output("weight", dweight)}, by_torch, "torch.nn.functional.embedding", reads=("dy", "indices"),
        drop_in=drop_in, **options,
    )  # fmt: skip


LLM, GPT, SMALL, FEW = (151_936, 4096, 32768), (50_257, 768, 32768), (1000, 128, 640), (256, 4096, 32768)
ON_CPU = ((1000, 64, 4096), (50_257, 64, 16384), (20_000, 768, 4096))

CASES = (
    case("uniform", uniform, cpu=ON_CPU, cuda=(LLM, GPT, SMALL, FEW), demo=(10_000, 64, 4096)),
    case("zipf", zipf, cpu=ON_CPU, cuda=(LLM, GPT)),
    case("one row", one_row, cpu=ON_CPU[:1], cuda=(LLM, GPT)),
)
