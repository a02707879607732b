"""y[b] = reduce over the positions i of bag b of weight[indices[i]]; a shape [..., D] has its leading dimensions for bags."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, F64, Maker, Truth, name_of, roundings

import sternway as sw

from .base import Family, Problem, Tensors
from .embedding_bag import counted


def build(
    shape: tuple[int, ...],
    maker: Maker,
    *,
    rows: int = 11,
    longest: int = 4,
    mode: str = "sum",
    weighted: bool = True,
    single: bool = False,
    one_bag: bool = False,
    padding: int | None = None,
    last: bool = False,
    index: torch.dtype = torch.int64,
    offset: torch.dtype = torch.int64,
) -> tuple[dict[str, Any], Tensors]:
    """Bags of 0 to `longest` positions; behind the last offset, where there is one, three more.

    single: weights in float32. one_bag: the last bag has everything.
    """
    bags, dim = math.prod(shape[:-1]), shape[-1] if shape else 1
    lengths = maker.integers(0, longest, (bags,), torch.int64).cpu()
    if one_bag and bags:
        lengths = torch.zeros_like(lengths).index_fill_(0, torch.tensor(bags - 1), bags * longest)
    total = int(lengths.sum()) + (3 if last else 0)
    ends = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    inputs = {
        "weight": maker.floats((rows, dim)),
        "indices": maker.integers(0, rows - 1, (total,), index),
        "offsets": (ends if last else ends[:-1]).to(maker.device, offset),
    }
    if mode == "sum" and weighted:
        weights = maker.floats((total,))
        inputs["per_sample_weights"] = weights.float() / 3 if single else weights
    fields = {
        "num_embeddings": rows, "embedding_dim": dim, "num_bags": bags, "total_indices": total, "mode": mode,
        "index_dtype": name_of(index), "offset_dtype": name_of(offset), "padding_idx": padding, "include_last_offset": last,
    }  # fmt: skip
    return fields, inputs


def settle(inputs: Tensors) -> None:
    """Offsets that share an element are zeros: the last bag has everything."""
    if len(inputs["offsets"]) > 1 and inputs["offsets"].stride(0) == 0:
        inputs["offsets"].fill_(0)


def truth(d: Any, inputs: Tensors) -> dict[str, Truth]:
    """By definition, in the long double of this machine, so that float64 can be checked too."""
    wide = {name: x.cpu().to(F64).numpy().astype(np.longdouble) for name, x in inputs.items() if x.is_floating_point()}
    dtype, device, (position, rows, bag) = inputs["weight"].dtype, inputs["weight"].device, counted(d, inputs)
    terms = wide["weight"][rows] * (wide["per_sample_weights"][position][:, None] if "per_sample_weights" in wide else 1)
    shape, count = (d.num_bags, d.embedding_dim), np.bincount(bag, minlength=d.num_bags)[:, None]
    value, square = np.zeros(shape, np.longdouble), np.zeros(shape, np.longdouble)
    found, most = {}, int(count.max(initial=1))
    if d.mode == "max":
        winner = np.full(shape, -1)
        for b in np.unique(bag):
            first, end = np.searchsorted(bag, (b, b + 1))
            best = terms[first:end].argmax(0)  # the first of equal ones
            value[b] = np.take_along_axis(terms[first:end], best[None], 0)[0]
            winner[b] = rows[first:end][best]
        square, most = value * value, 1
        exact = torch.from_numpy(winner).to(device, F64)
        found["max_indices"] = Truth(exact, exact.abs(), getattr(torch, name_of(inputs["indices"].dtype)), F64)
    else:
        np.add.at(value, bag, terms)
        np.add.at(square, bag, terms * terms)
    if d.mode == "mean":
        value, square = value / np.maximum(count, 1), square / np.maximum(count, 1) ** 2
    value, size = (torch.from_numpy(x.astype(np.float64)).to(device) for x in (value, np.sqrt(square)))
    return {"y": Truth(value, torch.maximum(size, value.abs()), dtype, ACCUMULATOR[dtype], roundings(most))} | found


def by_torch(d: Any, inputs: Tensors) -> Tensors:
    """torch in the dtype under test on the CPU; nothing where its forward means something else, or refuses it."""
    weight, weights = inputs["weight"], inputs.get("per_sample_weights")
    if weight.is_cuda or d.mode != "sum" or d.include_last_offset or not (d.embedding_dim and d.num_bags):
        return {}
    if weights is not None and weights.dtype != weight.dtype:
        return {}
    indices, offsets = (inputs[name].long().contiguous() for name in ("indices", "offsets"))
    y = torch.nn.functional.embedding_bag(
        indices, weight.contiguous(), offsets, mode=d.mode, padding_idx=d.padding_idx,
        per_sample_weights=None if weights is None else weights.contiguous(),
    )  # fmt: skip
    return {"y": y}


def call(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    d, x = problem.descriptor, problem.inputs
    results = sw.embedding_bag(
        x["weight"], x["indices"], x["offsets"], mode=d.mode, per_sample_weights=x.get("per_sample_weights"),
        padding_idx=d.padding_idx, include_last_offset=d.include_last_offset, out=out,
    )  # fmt: skip
    return dict(zip(wanted, results if d.mode == "max" else (results,), strict=True))


def options(draw: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    rows = draw(st.integers(1, 20))
    integers = st.sampled_from((torch.int32, torch.int64))
    return {
        "rows": rows, "longest": draw(st.sampled_from((1, 4, 40))), "mode": draw(st.sampled_from(("sum", "mean", "max"))),
        "weighted": draw(st.booleans()), "single": draw(st.booleans()), "one_bag": draw(st.booleans()),
        "padding": draw(st.one_of(st.none(), st.integers(-rows, rows - 1))), "last": draw(st.booleans()),
        "index": draw(integers), "offset": draw(integers),
    }  # fmt: skip


EMBEDDING_BAG_FORWARD = Family(
    "embedding_bag_forward", "embedding_bag", sw.EmbeddingBagDescriptor, sw.EmbeddingBagPlan,
    build, truth, by_torch, lambda _wanted, inputs: set(inputs), call, options,
    settle=settle, required=("y",), workspace=False,
)  # fmt: skip

FAMILIES = (EMBEDDING_BAG_FORWARD,)
