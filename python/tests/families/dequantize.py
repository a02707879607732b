"""y = (q - z) s, and its gradients, with numbers for tokens and for blocks."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from support import BF16, F16, F32, F64, Maker, Truth, name_of, wide

import sternway as sw
from sternway._cases.case import Output, Values
from sternway._cases.dequantize import GRADIENTS, Y, of_elements

from .base import Family, Problem, Tensors, truths

INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
ZERO_POINTS = (None, *INTEGERS, F32, F64, F16, BF16)
Q_RANGE = {torch.int8: (-128, 127), torch.uint8: (0, 255)}
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
PACKED = ("int4", "uint4")
"""Two values in a byte of a uint8 tensor; the others are dtypes of a tensor."""
QDTYPES = (*Q_RANGE, *FLOAT8)


def token_shape(shape: tuple[int, ...], trailing: bool) -> tuple[int, ...]:
    """[...] or [..., 1] for data [..., D]; a 0-d tensor is one row."""
    return (*shape[:-1], 1) if trailing else shape[:-1]


def of_rank(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A scale or zero point with the rank of x: [...] of tokens and one of rank 0 get extents of 1 at the end."""
    return values.reshape((*values.shape, *[1] * (len(shape) - values.dim()))[: len(shape)])


def per_element(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The number of each element of x, broadcast where it can be."""
    return of_elements(of_rank(values, tuple(x.shape)), x)


def least_factor(n: int) -> int:
    return next((k for k in range(2, math.isqrt(n) + 1) if n % k == 0), max(n, 1))


GRANULARITIES: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "blocks": lambda shape: tuple(n // least_factor(n) for n in shape),
    "groups": lambda shape: (*shape[:-1], *(n // least_factor(n) for n in shape[-1:])),
    "channels": lambda shape: (*[1] * len(shape[:-1]), *shape[-1:]),
    "rows": lambda shape: (*shape[:1], *[1] * len(shape[1:])),
    "elements": lambda shape: shape,
    "tensor": lambda shape: (),
}
"""The shape of a scale for blocks of x."""


def drawn(qdtype: Any, shape: tuple[int, ...], maker: Maker) -> torch.Tensor:
    """Quantized values, of which no float is NaN. Packed ones are bytes, whose number of values is half as large."""
    if qdtype in FLOAT8:
        return maker.floats(shape, F32).to(qdtype)
    if qdtype not in PACKED:
        return maker.integers(*Q_RANGE[qdtype], shape, qdtype)
    assert shape[-1] % 2 == 0
    return maker.integers(0, 255, (*shape[:-1], shape[-1] // 2), torch.uint8)


def unpacked(q: torch.Tensor, qdtype: str) -> torch.Tensor:
    """The values of q by definition: the lower four bits of a byte first, and in int4 8 to 15 for -8 to -1."""
    if qdtype not in PACKED:
        return q
    values = torch.stack((q % 16, q // 16), -1).flatten(-2).to(torch.int16)
    return torch.where(values > 7, values - 16, values) if qdtype == "int4" else values


def with_values(descriptor: Any, inputs: Tensors) -> Tensors:
    """The inputs with quantized values that are not packed."""
    return {name: unpacked(x, descriptor.qdtype) if name == "q" else x for name, x in inputs.items()}


def stated(descriptor: Any) -> dict[str, Any]:
    """The option of a function that states the dtype of packed values."""
    return {"qdtype": descriptor.qdtype} if descriptor.qdtype in PACKED else {}


def operands(
    shape: tuple[int, ...],
    maker: Maker,
    where: tuple[int, ...],
    where_zero: tuple[int, ...],
    qdtype: Any,
    scale_dtype: torch.dtype | None,
    zero_point: torch.dtype | None,
) -> tuple[dict[str, Any], Tensors]:
    inputs = {
        "dy": maker.floats(shape),
        "scale": maker.uniform(0.01, 2.0, where, scale_dtype),
        "q": drawn(qdtype, shape, maker),
    }
    if zero_point is not None:
        draw = maker.integers if zero_point in INTEGERS else maker.uniform
        inputs["zero_point"] = draw(0, 60, where_zero, zero_point)
    fields = {"qdtype": qdtype if qdtype in PACKED else name_of(qdtype)}
    if scale_dtype is not None:
        fields["scale_dtype"] = name_of(scale_dtype)
    return fields, inputs


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
    where = token_shape(shape, trailing if trailing_zero_point is None else trailing_zero_point)
    return operands(shape, maker, token_shape(shape, trailing), where, qdtype, scale_dtype, zero_point)


def build_blocks(
    shape: tuple[int, ...],
    maker: Maker,
    *,
    granularity: str = "blocks",
    scale_shape: tuple[int, ...] | None = None,
    qdtype: Any = torch.int8,
    scale_dtype: torch.dtype | None = None,
    zero_point: torch.dtype | None = F32,
) -> tuple[dict[str, Any], Tensors]:
    where = GRANULARITIES[granularity](shape) if scale_shape is None else scale_shape
    fields, inputs = operands(shape, maker, where, where, qdtype, scale_dtype, zero_point)
    return {**fields, "scale_shape": where}, inputs


def values_of(inputs: Tensors, **more: Any) -> Values:
    """The inputs in longdouble, scale and zero_point with the rank of x."""
    shape = tuple(next(x for name, x in inputs.items() if name not in ("scale", "zero_point")).shape)
    ranked = {name: of_rank(x, shape) for name, x in inputs.items() if name in ("scale", "zero_point")}
    return Values(**{name: wide(x) for name, x in {**inputs, **ranked}.items()}, **more)


def of_floating(outputs: dict[str, Output], inputs: Tensors) -> dict[str, Output]:
    """The outputs without dzero_point where the zero point is an integer."""
    floating = "zero_point" in inputs and inputs["zero_point"].is_floating_point()
    return outputs if floating else {name: output for name, output in outputs.items() if name != "dzero_point"}


def truth(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    inputs = with_values(descriptor, inputs)
    return truths(of_floating(GRADIENTS, inputs), inputs, values_of(inputs), inputs["dy"].dtype)


def by_torch(descriptor: Any, inputs: Tensors) -> Tensors:
    """Differentiate the composite that users write today, in the dtype of dy."""
    inputs = with_values(descriptor, inputs)
    dtype, dy = inputs["dy"].dtype, inputs["dy"]
    leaves = {"dx": inputs["q"].to(dtype).requires_grad_(), "dscale": inputs["scale"].detach().clone().requires_grad_()}
    shifted = leaves["dx"]
    if "zero_point" in inputs:
        z = inputs["zero_point"].detach().clone()
        if z.is_floating_point():
            leaves["dzero_point"] = z.requires_grad_()
        shifted = shifted - per_element(z, dy).to(dtype)
    y = (shifted * per_element(leaves["dscale"], dy)).to(dtype)
    return dict(zip(leaves, torch.autograd.grad(y, tuple(leaves.values()), dy), strict=True))


def reads(wanted: Any, _inputs: Tensors) -> set[str]:
    needed = {"dy", "scale"}
    if "dscale" in wanted:
        needed |= {"q", "zero_point"}
    if "dzero_point" in wanted:
        needed.add("zero_point")
    return needed


def call(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    """Without q the function returns dx alone; with it, every gradient there is."""
    inputs, function = problem.inputs, getattr(sw, problem.family.op)
    if wanted == ("dx",):
        return {"dx": function(inputs["dy"], inputs["scale"], out=out)}
    options = stated(problem.descriptor)
    results = function(inputs["dy"], inputs["scale"], q=inputs["q"], zero_point=inputs.get("zero_point"), out=out, **options)
    return dict(zip(problem.truth, results, strict=True))


def options(draw: Any, _shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "qdtype": draw(st.sampled_from(QDTYPES)),
        "scale_dtype": draw(st.sampled_from((None, F32))),
        "zero_point": draw(st.sampled_from(ZERO_POINTS)),
        "trailing": draw(st.booleans()),
        "trailing_zero_point": draw(st.sampled_from((None, True, False))),
    }


def options_of_blocks(draw: Any, _shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "granularity": draw(st.sampled_from(tuple(GRANULARITIES))),
        "qdtype": draw(st.sampled_from(QDTYPES)),
        "scale_dtype": draw(st.sampled_from((None, F32))),
        "zero_point": draw(st.sampled_from(ZERO_POINTS)),
    }


DEQUANTIZE = Family(
    "dequantize_per_token", "dequantize_per_token_backward",
    sw.DequantizePerTokenBackwardDescriptor, sw.DequantizePerTokenBackwardPlan,
    build, truth, by_torch, reads, call, options,
    required=("dx",), least_rank=1, in_place=("dx",),
)  # fmt: skip

DEQUANTIZE_BLOCKS = Family(
    "dequantize", "dequantize_backward", sw.DequantizeBackwardDescriptor, sw.DequantizeBackwardPlan,
    build_blocks, truth, by_torch, reads, call, options_of_blocks,
    required=("dx",), in_place=("dx",),
)  # fmt: skip


# --- The forward ------------------------------------------------------------------------------------------------------


def without_dy(built: tuple[dict[str, Any], Tensors]) -> tuple[dict[str, Any], Tensors]:
    fields, inputs = built
    del inputs["dy"]
    return fields, {"q": inputs.pop("q"), **inputs}


def build_forward(shape: tuple[int, ...], maker: Maker, **options: Any) -> tuple[dict[str, Any], Tensors]:
    return without_dy(build(shape, maker, **options))


def build_blocks_forward(shape: tuple[int, ...], maker: Maker, **options: Any) -> tuple[dict[str, Any], Tensors]:
    return without_dy(build_blocks(shape, maker, **options))


def truth_forward(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    inputs = with_values(descriptor, inputs)
    return truths({"y": Y}, inputs, values_of(inputs), getattr(torch, descriptor.dtype))


def forward_by_torch(descriptor: Any, inputs: Tensors) -> Tensors:
    """The composite that users write today, in the dtype of y."""
    q, dtype = unpacked(inputs["q"], descriptor.qdtype), getattr(torch, descriptor.dtype)
    shifted = q.to(dtype)
    if "zero_point" in inputs:
        shifted = shifted - per_element(inputs["zero_point"], q).to(dtype)
    return {"y": (shifted * per_element(inputs["scale"], q)).to(dtype)}


def call_forward(problem: Problem, _wanted: tuple[str, ...], out: Any = None) -> Tensors:
    inputs, function = problem.inputs, getattr(sw, problem.family.op)
    zero_point, options = inputs.get("zero_point"), {"dtype": problem.descriptor.dtype, **stated(problem.descriptor)}
    return {"y": function(inputs["q"], inputs["scale"], zero_point, out=out, **options)}


DEQUANTIZE_FORWARD = Family(
    "dequantize_per_token_forward", "dequantize_per_token", sw.DequantizePerTokenDescriptor, sw.DequantizePerTokenPlan,
    build_forward, truth_forward, forward_by_torch, lambda _, inputs: set(inputs), call_forward, options,
    required=("y",), workspace=False, least_rank=1,
)  # fmt: skip

DEQUANTIZE_BLOCKS_FORWARD = Family(
    "dequantize_forward", "dequantize", sw.DequantizeDescriptor, sw.DequantizePlan,
    build_blocks_forward, truth_forward, forward_by_torch, lambda _, inputs: set(inputs), call_forward, options_of_blocks,
    required=("y",), workspace=False,
)  # fmt: skip

DEQUANTIZE_INT4, DEQUANTIZE_FLOAT8 = (
    dataclasses.replace(DEQUANTIZE_BLOCKS, name=name, build=functools.partial(build_blocks, qdtype=qdtype))
    for name, qdtype in (("dequantize int4", "int4"), ("dequantize float8", torch.float8_e4m3fn))
)
"""The same with values of another dtype, where options do not choose it."""

FAMILIES = (DEQUANTIZE, DEQUANTIZE_FORWARD, DEQUANTIZE_BLOCKS, DEQUANTIZE_BLOCKS_FORWARD)
