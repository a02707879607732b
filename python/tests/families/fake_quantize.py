"""Fake quantization, and its gradients, with numbers for tokens and for blocks."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, F32, F64, Maker, Truth, name_of

import sternway as sw
from sternway._cases.case import Values
from sternway._cases.dequantize import FAKE_GRADIENTS, FAKE_Y

from .base import Family, Problem, Tensors, truths
from .dequantize import GRANULARITIES, INTEGERS, ZERO_POINTS, of_floating, per_element, token_shape, values_of


def operands(
    shape: tuple[int, ...],
    maker: Maker,
    where: tuple[int, ...],
    where_zero: tuple[int, ...],
    bounds: tuple[int, int],
    scale_dtype: torch.dtype | None,
    zero_point: torch.dtype | None,
) -> tuple[dict[str, Any], Tensors]:
    low, high = bounds
    dy, scale = maker.floats(shape), maker.uniform(0.05, 0.2, where, scale_dtype)
    steps = maker.uniform(low - 5, high + 5, shape, F64)
    inputs = {"dy": dy, "x": (steps * per_element(scale.to(F64), steps)).to(dy.dtype), "scale": scale}
    if zero_point is not None:
        draw = maker.integers if zero_point in INTEGERS else maker.uniform
        inputs["zero_point"] = draw(0, 3, where_zero, zero_point)
    fields: dict[str, Any] = {"quant_min": low, "quant_max": high}
    if scale_dtype is not None:
        fields["scale_dtype"] = name_of(scale_dtype)
    return fields, inputs


def build(
    shape: tuple[int, ...],
    maker: Maker,
    *,
    quant_min: int = -8,
    quant_max: int = 7,
    scale_dtype: torch.dtype | None = None,
    zero_point: torch.dtype | None = F32,
    trailing: bool = False,
    trailing_zero_point: bool | None = None,
) -> tuple[dict[str, Any], Tensors]:
    where = token_shape(shape, trailing if trailing_zero_point is None else trailing_zero_point)
    return operands(shape, maker, token_shape(shape, trailing), where, (quant_min, quant_max), scale_dtype, zero_point)


def build_blocks(
    shape: tuple[int, ...],
    maker: Maker,
    *,
    quant_min: int = -8,
    quant_max: int = 7,
    granularity: str = "blocks",
    scale_shape: tuple[int, ...] | None = None,
    scale_dtype: torch.dtype | None = None,
    zero_point: torch.dtype | None = F32,
) -> tuple[dict[str, Any], Tensors]:
    where = GRANULARITIES[granularity](shape) if scale_shape is None else scale_shape
    fields, inputs = operands(shape, maker, where, where, (quant_min, quant_max), scale_dtype, zero_point)
    return {**fields, "scale_shape": where}, inputs


def settle(inputs: Tensors) -> None:
    """Zero x where x / scale is so near to a half that the rounding of the quotient would decide which way it rounds."""
    x = inputs["x"]
    steps = x.to(F64) / per_element(inputs["scale"].to(F64), x)
    near = ((steps - steps.floor()) - 0.5).abs() < 1e-2
    for dim, stride in enumerate(x.stride()):
        if stride == 0 and x.shape[dim] > 1:
            near, x = near.any(dim, keepdim=True), x.narrow(dim, 0, 1)
    x.masked_fill_(near, 0.0)


def values(descriptor: Any, inputs: Tensors) -> Values:
    """The inputs in longdouble, and the options."""
    whole = "zero_point" in inputs and not inputs["zero_point"].is_floating_point()
    return values_of(inputs, quant_min=descriptor.quant_min, quant_max=descriptor.quant_max, is_whole=whole)


def truth(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    return truths(of_floating(FAKE_GRADIENTS, inputs), inputs, values(descriptor, inputs), inputs["dy"].dtype)


def by_torch(descriptor: Any, inputs: Tensors) -> Tensors:
    """Differentiate the straight-through composite, in the dtype of dy."""
    dtype, dy = inputs["dy"].dtype, inputs["dy"]
    low, high = descriptor.quant_min, descriptor.quant_max
    leaves = {name: inputs[source].detach().clone().requires_grad_() for name, source in (("dx", "x"), ("dscale", "scale"))}
    z: Any = 0
    if "zero_point" in inputs:
        z = inputs["zero_point"].detach().clone()
        if z.is_floating_point():
            leaves["dzero_point"] = z.requires_grad_()
            z = straight_through(z, z.detach().round().clamp(low, high))
        z = per_element(z, dy)
    s = per_element(leaves["dscale"], dy)
    steps = leaves["dx"] / s
    t = straight_through(steps, steps.detach().round()) + z
    outside = ((t < low) | (t > high)).detach()
    q = torch.where(outside, t.detach().clamp(low, high), t)
    y = ((q - z) * s).to(dtype)
    return dict(zip(leaves, torch.autograd.grad(y, tuple(leaves.values()), dy), strict=True))


def straight_through(smooth: torch.Tensor, stepped: torch.Tensor) -> torch.Tensor:
    """Give the value of `stepped`, exactly, with the gradient of `smooth`: the added difference is 0."""
    return stepped + (smooth - smooth.detach())


def reads(_wanted: Any, inputs: Tensors) -> set[str]:
    return set(inputs)


def call(problem: Problem, _wanted: tuple[str, ...], out: Any = None) -> Tensors:
    """Check that the function returns three; the last is None unless zero_point is floating."""
    inputs, d = problem.inputs, problem.descriptor
    if isinstance(out, tuple):
        out = (*out, *[None] * (3 - len(out)))
    results = getattr(sw, problem.family.op)(
        inputs["dy"], inputs["x"], inputs["scale"], inputs.get("zero_point"),
        quant_min=d.quant_min, quant_max=d.quant_max, out=out,
    )  # fmt: skip
    names = ("dx", "dscale", "dzero_point")
    assert len(results) == len(names)
    assert all((result is None) == (name not in problem.truth) for name, result in zip(names, results, strict=True))
    return {name: result for name, result in zip(names, results, strict=True) if result is not None}


def shared_options(draw: Any) -> dict[str, Any]:
    low, high = draw(st.sampled_from(((-8, 7), (-128, 127), (0, 255), (0, 1), (0, 0))))
    return {
        "quant_min": low,
        "quant_max": high,
        "scale_dtype": draw(st.sampled_from((None, F32))),
        "zero_point": draw(st.sampled_from(ZERO_POINTS)),
    }


def options(draw: Any, _shape: tuple[int, ...]) -> dict[str, Any]:
    shared = shared_options(draw)
    trailing = draw(st.booleans())
    return {**shared, "trailing": trailing, "trailing_zero_point": draw(st.sampled_from((None, True, False)))}


def options_of_blocks(draw: Any, _shape: tuple[int, ...]) -> dict[str, Any]:
    return {**shared_options(draw), "granularity": draw(st.sampled_from(tuple(GRANULARITIES)))}


FAKE_QUANTIZE = Family(
    "fake_quantize_per_token", "fake_quantize_per_token_backward",
    sw.FakeQuantizePerTokenBackwardDescriptor, sw.FakeQuantizePerTokenBackwardPlan,
    build, truth, by_torch, reads, call, options,
    settle=settle, required=("dx",), least_rank=1,
)  # fmt: skip

FAKE_QUANTIZE_BLOCKS = Family(
    "fake_quantize", "fake_quantize_backward", sw.FakeQuantizeBackwardDescriptor, sw.FakeQuantizeBackwardPlan,
    build_blocks, truth, by_torch, reads, call, options_of_blocks,
    settle=settle, required=("dx",),
)  # fmt: skip


# --- The forward ------------------------------------------------------------------------------------------------------


def without_dy(built: tuple[dict[str, Any], Tensors]) -> tuple[dict[str, Any], Tensors]:
    del built[1]["dy"]
    return built


def build_forward(shape: tuple[int, ...], maker: Maker, **options: Any) -> tuple[dict[str, Any], Tensors]:
    return without_dy(build(shape, maker, **options))


def build_blocks_forward(shape: tuple[int, ...], maker: Maker, **options: Any) -> tuple[dict[str, Any], Tensors]:
    return without_dy(build_blocks(shape, maker, **options))


def truth_forward(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    return truths({"y": FAKE_Y}, inputs, values(descriptor, inputs), inputs["x"].dtype)


def forward_by_torch(descriptor: Any, inputs: Tensors) -> Tensors:
    """The composite of torch operations in float32 (float64 for float64), with 1 for a scale of 0 as the divisor."""
    x, low, high = inputs["x"], descriptor.quant_min, descriptor.quant_max
    wide = ACCUMULATOR[x.dtype]
    s = per_element(inputs["scale"].to(wide), x)
    z, given = torch.zeros((), dtype=wide, device=x.device), inputs.get("zero_point")
    if given is not None:
        z = per_element(given.to(wide), x)
        if given.is_floating_point():
            z = z.round().clamp(low, high)
    t = (x.to(wide) / s.masked_fill(s == 0, 1.0)).round() + z
    return {"y": ((t.clamp(low, high) - z) * s).to(x.dtype)}


def call_forward(problem: Problem, _wanted: tuple[str, ...], out: Any = None) -> Tensors:
    inputs, d = problem.inputs, problem.descriptor
    bounds = {"quant_min": d.quant_min, "quant_max": d.quant_max}
    function = getattr(sw, problem.family.op)
    return {"y": function(inputs["x"], inputs["scale"], inputs.get("zero_point"), **bounds, out=out)}


FAKE_QUANTIZE_FORWARD = Family(
    "fake_quantize_per_token_forward", "fake_quantize_per_token",
    sw.FakeQuantizePerTokenDescriptor, sw.FakeQuantizePerTokenPlan,
    build_forward, truth_forward, forward_by_torch, reads, call_forward, options,
    settle=settle, required=("y",), workspace=False, least_rank=1, in_place=("y",),
)  # fmt: skip

FAKE_QUANTIZE_BLOCKS_FORWARD = Family(
    "fake_quantize_forward", "fake_quantize", sw.FakeQuantizeDescriptor, sw.FakeQuantizePlan,
    build_blocks_forward, truth_forward, forward_by_torch, reads, call_forward, options_of_blocks,
    settle=settle, required=("y",), workspace=False, in_place=("y",),
)  # fmt: skip

FAMILIES = (FAKE_QUANTIZE, FAKE_QUANTIZE_FORWARD, FAKE_QUANTIZE_BLOCKS, FAKE_QUANTIZE_BLOCKS_FORWARD)
