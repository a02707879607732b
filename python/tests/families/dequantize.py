"""y = (q - z) s, and its gradients."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from support import BF16, F16, F32, F64, Maker, Truth, name_of, wide

import sternway as sw
from sternway._cases.case import Output, Values
from sternway._cases.dequantize import GRADIENTS, Y

from .base import Family, Problem, Tensors, truths

INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
ZERO_POINTS = (None, *INTEGERS, F32, F64, F16, BF16)
Q_RANGE = {torch.int8: (-128, 127), torch.uint8: (0, 255)}


def token_shape(shape: tuple[int, ...], trailing: bool) -> tuple[int, ...]:
    """[...] or [..., 1] for data [..., D]; a 0-d tensor is one row."""
    return (*shape[:-1], 1) if trailing else shape[:-1]


def per_row(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """[...] or [..., 1] in float64, made to broadcast along a row of `shape`."""
    return values.to(F64).reshape((*shape[:-1], 1) if shape else ())


def build(
    shape: tuple[int, ...],
    maker: Maker,
    *,
    qdtype: torch.dtype = torch.int8,
    scale_dtype: torch.dtype | None = None,
    zero_point: torch.dtype | None = F32,
    trailing: bool = False,
    trailing_zero_point: bool | None = None,
) -> tuple[dict[str, Any], Tensors]:
    tokens = token_shape(shape, trailing)
    inputs = {
        "dy": maker.floats(shape),
        "scale": maker.uniform(0.01, 2.0, tokens, scale_dtype),
        "q": maker.integers(*Q_RANGE[qdtype], shape, qdtype),
    }
    if zero_point is not None:
        where = tokens if trailing_zero_point is None else token_shape(shape, trailing_zero_point)
        integer = zero_point in INTEGERS
        draw = maker.integers if integer else maker.uniform
        inputs["zero_point"] = draw(0, 60, where, zero_point)
    fields = {"qdtype": name_of(qdtype)}
    if scale_dtype is not None:
        fields["scale_dtype"] = name_of(scale_dtype)
    return fields, inputs


def values_of(inputs: Tensors, **more: Any) -> Values:
    """The inputs in longdouble, with numbers of tokens along rows."""
    shape = tuple(next(x for name, x in inputs.items() if name not in ("scale", "zero_point")).shape)
    per_token = {name: per_row(x, shape) for name, x in inputs.items() if name in ("scale", "zero_point")}
    return Values(**{name: wide(x) for name, x in {**inputs, **per_token}.items()}, **more)


def of_floating(outputs: dict[str, Output], inputs: Tensors) -> dict[str, Output]:
    """The outputs without dzero_point where the zero point is an integer."""
    floating = "zero_point" in inputs and inputs["zero_point"].is_floating_point()
    return outputs if floating else {name: output for name, output in outputs.items() if name != "dzero_point"}


def truth(_descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    return truths(of_floating(GRADIENTS, inputs), inputs, values_of(inputs), inputs["dy"].dtype)


def by_torch(_descriptor: Any, inputs: Tensors) -> Tensors:
    """Differentiate the composite that users write today, in the dtype of dy."""
    dtype, shape = inputs["dy"].dtype, tuple(inputs["dy"].shape)
    row = (*shape[:-1], 1) if shape else ()
    leaves = {"dx": inputs["q"].to(dtype).requires_grad_(), "dscale": inputs["scale"].detach().clone().requires_grad_()}
    shifted = leaves["dx"]
    if "zero_point" in inputs:
        z = inputs["zero_point"].detach().clone()
        if z.is_floating_point():
            leaves["dzero_point"] = z.requires_grad_()
        shifted = shifted - z.reshape(row).to(dtype)
    y = (shifted * leaves["dscale"].reshape(row)).to(dtype)
    return dict(zip(leaves, torch.autograd.grad(y, tuple(leaves.values()), inputs["dy"]), strict=True))


def reads(wanted: Any, _inputs: Tensors) -> set[str]:
    needed = {"dy", "scale"}
    if "dscale" in wanted:
        needed |= {"q", "zero_point"}
    if "dzero_point" in wanted:
        needed.add("zero_point")
    return needed


def call(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    """Without q the function returns dx alone; with it, every gradient there is."""
    inputs = problem.inputs
    if wanted == ("dx",):
        return {"dx": sw.dequantize_per_token_backward(inputs["dy"], inputs["scale"], out=out)}
    sums = {"q": inputs["q"], "zero_point": inputs.get("zero_point")}
    results = sw.dequantize_per_token_backward(inputs["dy"], inputs["scale"], **sums, out=out)
    return dict(zip(problem.truth, results, strict=True))


def options(draw: Any, _shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "qdtype": draw(st.sampled_from(tuple(Q_RANGE))),
        "scale_dtype": draw(st.sampled_from((None, F32))),
        "zero_point": draw(st.sampled_from(ZERO_POINTS)),
        "trailing": draw(st.booleans()),
        "trailing_zero_point": draw(st.sampled_from((None, True, False))),
    }


DEQUANTIZE = Family(
    "dequantize_per_token", "dequantize_per_token_backward",
    sw.DequantizePerTokenBackwardDescriptor, sw.DequantizePerTokenBackwardPlan,
    build, truth, by_torch, reads, call, options,
    required=("dx",), least_rank=1, in_place=("dx",),
)  # fmt: skip


# --- The forward ------------------------------------------------------------------------------------------------------


def build_forward(shape: tuple[int, ...], maker: Maker, **options: Any) -> tuple[dict[str, Any], Tensors]:
    fields, inputs = build(shape, maker, **options)
    del inputs["dy"]
    return fields, {"q": inputs.pop("q"), **inputs}


def truth_forward(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    return truths({"y": Y}, inputs, values_of(inputs), getattr(torch, descriptor.dtype))


def forward_by_torch(descriptor: Any, inputs: Tensors) -> Tensors:
    """The composite that users write today, in the dtype of y."""
    shape, dtype = tuple(inputs["q"].shape), getattr(torch, descriptor.dtype)
    s = per_row(inputs["scale"], shape).to(inputs["scale"].dtype)
    q = inputs["q"].to(dtype)
    shifted = q - per_row(inputs["zero_point"], shape).to(dtype) if "zero_point" in inputs else q
    return {"y": (shifted * s).to(dtype)}


def call_forward(problem: Problem, _wanted: tuple[str, ...], out: Any = None) -> Tensors:
    inputs = problem.inputs
    zero_point, dtype = inputs.get("zero_point"), problem.descriptor.dtype
    return {"y": sw.dequantize_per_token(inputs["q"], inputs["scale"], zero_point, dtype=dtype, out=out)}


DEQUANTIZE_FORWARD = Family(
    "dequantize_per_token_forward", "dequantize_per_token", sw.DequantizePerTokenDescriptor, sw.DequantizePerTokenPlan,
    build_forward, truth_forward, forward_by_torch, lambda _, inputs: set(inputs), call_forward, options,
    required=("y",), workspace=False, least_rank=1,
)  # fmt: skip

FAMILIES = (DEQUANTIZE, DEQUANTIZE_FORWARD)
