"""y[i] = weight[indices[i]]; a shape [..., D] has its leading dimensions for positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, F64, Maker, Truth, name_of

import sternway as sw
from sternway._cases.case import roundings

from .base import Family, Problem, Tensors


def build(
    shape: tuple[int, ...],
    maker: Maker,
    *,
    rows: int = 11,
    padding: int | None = None,
    by_frequency: bool = False,
    index: torch.dtype = torch.int64,
) -> tuple[dict[str, Any], Tensors]:
    total, dim = math.prod(shape[:-1]), shape[-1] if shape else 1
    inputs = {"dy": maker.floats((total, dim)), "indices": maker.integers(0, rows - 1, (total,), index)}
    fields = {
        "num_embeddings": rows, "embedding_dim": dim, "num_indices": total, "index_dtype": name_of(index),
        "padding_idx": padding, "scale_grad_by_freq": by_frequency,
    }  # fmt: skip
    return fields, inputs


def truth(d: Any, inputs: Tensors) -> dict[str, Truth]:
    """By definition, in the long double of this machine, so that float64 can be checked too."""
    dy, indices = inputs["dy"].cpu().to(F64).numpy().astype(np.longdouble), inputs["indices"].cpu().long().numpy()
    kept = np.ones(len(indices), bool) if d.padding_idx is None else indices != d.padding_idx % d.num_embeddings
    rows, terms = indices[kept], dy[kept]
    frequency = np.bincount(rows, minlength=d.num_embeddings)
    if d.scale_grad_by_freq:
        terms = terms / frequency[rows][:, None]
    value, square = np.zeros((2, d.num_embeddings, d.embedding_dim), np.longdouble)
    np.add.at(value, rows, terms)
    np.add.at(square, rows, terms * terms)
    device, dtype = inputs["dy"].device, inputs["dy"].dtype
    value, size = (torch.from_numpy(x.astype(np.float64)).to(device) for x in (value, np.sqrt(square)))
    most = int(frequency.max(initial=1))
    return {"dweight": Truth(value, torch.maximum(size, value.abs()), dtype, ACCUMULATOR[dtype], roundings(most))}


def by_torch(d: Any, inputs: Tensors) -> Tensors:
    dy = inputs["dy"]
    weight = dy.new_zeros(d.num_embeddings, d.embedding_dim).requires_grad_()
    if dy.numel() == 0:  # on CUDA torch reads address 0 there
        return {"dweight": torch.zeros_like(weight)}
    y = torch.nn.functional.embedding(
        inputs["indices"], weight, padding_idx=d.padding_idx, scale_grad_by_freq=d.scale_grad_by_freq
    )
    return {"dweight": torch.autograd.grad(y, weight, dy)[0]}


def reads(_wanted: Any, _inputs: Tensors) -> set[str]:
    return {"dy", "indices"}


def call(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    d, x = problem.descriptor, problem.inputs
    dweight = sw.embedding_backward(
        x["dy"], x["indices"], num_embeddings=d.num_embeddings, padding_idx=d.padding_idx,
        scale_grad_by_freq=d.scale_grad_by_freq, out=out,
    )  # fmt: skip
    return dict.fromkeys(wanted, dweight)


def options(draw: Any, _shape: tuple[int, ...]) -> dict[str, Any]:
    rows = draw(st.integers(1, 20))
    return {
        "rows": rows, "padding": draw(st.one_of(st.none(), st.integers(-rows, rows - 1))),
        "by_frequency": draw(st.booleans()), "index": draw(st.sampled_from((torch.int32, torch.int64))),
    }  # fmt: skip


EMBEDDING = Family(
    "embedding", "embedding_backward", sw.EmbeddingBackwardDescriptor, sw.EmbeddingBackwardPlan,
    build, truth, by_torch, reads, call, options,
)  # fmt: skip

FAMILIES = (EMBEDDING,)
