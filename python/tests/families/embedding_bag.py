"""y[b] = reduce over the positions i of bag b of weight[indices[i]]; a shape [..., D] has its leading dimensions for bags."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, BF16, F16, F64, Maker, Truth, name_of

import sternway as sw
from sternway._cases.case import roundings

from .base import Family, Problem, Tensors

MODES = ("sum", "mean", "max")


def build(
    shape: tuple[int, ...],
    maker: Maker,
    *,
    rows: int = 11,
    longest: int = 4,
    mode: str = "sum",
    weighted: bool = True,
    single: bool = False,
    padding: int | None = None,
    last: bool = False,
    by_frequency: bool = False,
    index: torch.dtype = torch.int64,
    offset: torch.dtype = torch.int64,
) -> tuple[dict[str, Any], Tensors]:
    """Bags of 0 to `longest` positions; behind the last offset, where there is one, three more. single: weights in float32."""
    bags, dim = math.prod(shape[:-1]), shape[-1] if shape else 1
    lengths = maker.integers(0, longest, (bags,), torch.int64).cpu()
    if bags:
        lengths[-1] += longest  # so that something is to be summed
    total = int(lengths.sum()) + (3 if last else 0)
    ends = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    inputs = {
        "dy": maker.floats((bags, dim)),
        "indices": maker.integers(0, rows - 1, (total,), index),
        "offsets": (ends if last else ends[:-1]).to(maker.device, offset),
    }
    if mode == "sum":
        if weighted:
            weights = maker.floats((total,))
            inputs["per_sample_weights"] = weights.float() / 3 if single else weights
        inputs["weight"] = maker.floats((rows, dim))
    if mode == "max":
        pick = torch.rand(bags, dim, generator=maker.generator)
        inputs["max_indices"] = max_indices(inputs["indices"].cpu(), ends, padding, rows, pick).to(maker.device, index)
    fields = {
        "num_embeddings": rows, "embedding_dim": dim, "num_bags": bags, "total_indices": total, "mode": mode,
        "index_dtype": name_of(index), "offset_dtype": name_of(offset), "padding_idx": padding,
        "include_last_offset": last, "scale_grad_by_freq": by_frequency,
    }  # fmt: skip
    return fields, inputs


def max_indices(indices: torch.Tensor, ends: torch.Tensor, padding: int | None, rows: int, pick: torch.Tensor) -> torch.Tensor:
    """For each bag and column any of the indices that count there; row 0 where none does, as torch's CPU forward leaves it."""
    out = torch.zeros(pick.shape, dtype=torch.int64)
    for b in range(len(pick)):
        bag = indices[ends[b] : ends[b + 1]].long()
        bag = bag if padding is None else bag[bag != padding % rows]
        if len(bag):
            out[b] = bag[(pick[b] * len(bag)).long()]
    return out


def settle(inputs: Tensors) -> None:
    """Offsets that share an element are zeros: the last bag has everything."""
    if len(inputs["offsets"]) > 1 and inputs["offsets"].stride(0) == 0:
        inputs["offsets"].fill_(0)


def counted(d: Any, inputs: Tensors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The positions that count, with their rows and bags."""
    indices, offsets = (inputs[name].cpu().long().numpy() for name in ("indices", "offsets"))
    end = offsets[-1] if d.include_last_offset else len(indices)
    position = np.arange(end if d.num_bags else 0)
    bag = np.searchsorted(offsets[: d.num_bags], position, side="right") - 1
    rows = indices[position]
    kept = np.ones(len(rows), bool) if d.padding_idx is None else rows != d.padding_idx % d.num_embeddings
    return position[kept], rows[kept], bag[kept]


def truth(d: Any, inputs: Tensors) -> dict[str, Truth]:
    """By definition, in the long double of this machine, so that float64 can be checked too."""
    wide = {name: x.cpu().to(F64).numpy().astype(np.longdouble) for name, x in inputs.items() if x.is_floating_point()}
    dtype, dy, (position, rows, bag) = inputs["dy"].dtype, wide["dy"], counted(d, inputs)
    shape = (d.num_embeddings, d.embedding_dim)
    frequency = np.bincount(rows, minlength=d.num_embeddings)
    if d.mode == "max":
        full = np.isin(np.arange(d.num_bags), bag)
        b, column = np.nonzero(np.broadcast_to(full[:, None], dy.shape))
        at = (inputs["max_indices"].cpu().long().numpy()[b, column], column)
        terms, most = dy[b, column], np.bincount(at[0], minlength=1).max(initial=1)
    else:
        factor = wide["per_sample_weights"][position] if "per_sample_weights" in wide else np.ones(len(rows), np.longdouble)
        if d.mode == "mean":
            factor = factor / np.bincount(bag, minlength=d.num_bags)[bag]
        if d.scale_grad_by_freq:
            factor = factor / frequency[rows]
        at, terms, most = rows, dy[bag] * factor[:, None], frequency.max(initial=1)
    value, square = np.zeros(shape, np.longdouble), np.zeros(shape, np.longdouble)
    np.add.at(value, at, terms)
    np.add.at(square, at, terms * terms)
    device, carried = inputs["dy"].device, ACCUMULATOR[dtype]

    def outcome(value: np.ndarray, square: np.ndarray, n: int, dtype: torch.dtype = dtype) -> Truth:
        value, size = (torch.from_numpy(x.astype(np.float64)).to(device) for x in (value, np.sqrt(square)))
        return Truth(value, torch.maximum(size, value.abs()), dtype, carried, roundings(int(n)))

    outputs = {"dweight": outcome(value, square, most)}
    if "weight" in inputs:
        products = dy[bag] * wide["weight"][rows]
        dots, squares = np.zeros((2, d.total_indices), np.longdouble)
        dots[position], squares[position] = products.sum(1), (products * products).sum(1)
        outputs["d_per_sample_weights"] = outcome(dots, squares, d.embedding_dim, dtype_of_samples(inputs))
    return outputs


def dtype_of_samples(inputs: Tensors) -> torch.dtype:
    """That of the weights of samples, which their gradient has too."""
    return inputs.get("per_sample_weights", inputs["dy"]).dtype


def by_torch(d: Any, inputs: Tensors) -> Tensors:
    """torch.autograd, where the forward of torch means the same: without positions behind the last offset, in one dtype."""
    dy, device = inputs["dy"], inputs["dy"].device.type
    if dtype_of_samples(inputs) != dy.dtype:
        return {}
    missing = (F16, "cpu") if device == "cpu" else (BF16, "cuda")  # on CUDA, where samples have weights
    if d.mode == "max" or d.include_last_offset or (dy.dtype, device) == missing:
        return {}
    if not d.embedding_dim:
        return {}  # its forward on the CPU refuses rows without columns
    if device == "cuda" and not (d.num_bags and d.total_indices):
        return {}  # what its forward leaves unwritten, its backward reads: pytorch/pytorch#193691
    given = inputs.get("weight", dy.new_zeros(d.num_embeddings, d.embedding_dim))
    leaves = {"dweight": given.detach().clone().requires_grad_()}
    weights = inputs.get("per_sample_weights")
    if weights is not None:
        weights = leaves["d_per_sample_weights"] = weights.detach().clone().requires_grad_()
    indices, offsets = inputs["indices"].contiguous(), inputs["offsets"].contiguous()
    if offsets.dtype != indices.dtype:
        indices, offsets = indices.long(), offsets.long()
    y = torch.nn.functional.embedding_bag(
        indices, leaves["dweight"], offsets, mode=d.mode, padding_idx=d.padding_idx,
        per_sample_weights=weights, scale_grad_by_freq=d.scale_grad_by_freq,
    )  # fmt: skip
    return dict(zip(leaves, torch.autograd.grad(y, tuple(leaves.values()), dy), strict=True))


def reads(wanted: Any, inputs: Tensors) -> set[str]:
    needed = {"dy", "indices", "offsets"}
    if "dweight" in wanted:
        needed |= {"per_sample_weights", "max_indices"}
    if "d_per_sample_weights" in wanted:
        needed.add("weight")
    return needed


def call(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    d, x = problem.descriptor, problem.inputs
    given = dict(zip(wanted, out if isinstance(out, tuple) else (out,) * len(wanted), strict=True))
    common = {"padding_idx": d.padding_idx, "include_last_offset": d.include_last_offset}
    results = {}
    if "dweight" in wanted:
        results["dweight"] = sw.embedding_bag_backward(
            x["dy"], x["indices"], x["offsets"], num_embeddings=d.num_embeddings, mode=d.mode, out=given["dweight"],
            per_sample_weights=x.get("per_sample_weights"), max_indices=x.get("max_indices"),
            scale_grad_by_freq=d.scale_grad_by_freq, **common,
        )  # fmt: skip
    if "d_per_sample_weights" in wanted:
        samples = given["d_per_sample_weights"]
        if samples is None and dtype_of_samples(x) != x["dy"].dtype:
            samples = torch.empty(x["indices"].shape, dtype=dtype_of_samples(x), device=x["dy"].device)
        results["d_per_sample_weights"] = sw.embedding_bag_per_sample_weights_backward(
            x["dy"], x["weight"], x["indices"], x["offsets"], out=samples, **common
        )
    return {name: results[name] for name in wanted}


def options(draw: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    rows = draw(st.integers(1, 20))
    integers = st.sampled_from((torch.int32, torch.int64))
    mode = draw(st.sampled_from(("sum", "mean")))  # the max_indices follow from indices, whatever their layout
    return {
        "rows": rows, "longest": draw(st.sampled_from((1, 4, 40))), "mode": mode, "weighted": draw(st.booleans()),
        "single": draw(st.booleans()),
        "padding": draw(st.one_of(st.none(), st.integers(-rows, rows - 1))), "last": draw(st.booleans()),
        "by_frequency": draw(st.booleans()), "index": draw(integers), "offset": draw(integers),
    }  # fmt: skip


EMBEDDING_BAG = Family(
    "embedding_bag", "embedding_bag_backward", sw.EmbeddingBagBackwardDescriptor, sw.EmbeddingBagBackwardPlan,
    build, truth, by_torch, reads, call, options,
    settle=settle,
)  # fmt: skip

FAMILIES = (EMBEDDING_BAG,)
