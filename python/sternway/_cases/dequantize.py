"""Dequantization and fake quantization, forward and backward: definitions for blocks of any shape, and cases of tokens.

x = (q - z) s:  dx = dy s,  ds = sum dy (q - z),  dz = -s sum dy.
q = clamp(round(x / s) + z), y = (q - z) s, dx = dy inside the bounds and 0 outside:  ds = sum dy ((q - z) - x / s) inside,
dy (q - z) outside,  dz = sum -s dy outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._arrays import Array
from .._dequantize import DequantizePerTokenDescriptor, DequantizePerTokenPlan
from .._dequantize_backward import DequantizePerTokenBackwardDescriptor, DequantizePerTokenBackwardPlan
from .._fake_quantize import FakeQuantizePerTokenDescriptor, FakeQuantizePerTokenPlan
from .._fake_quantize_backward import FakeQuantizePerTokenBackwardDescriptor, FakeQuantizePerTokenBackwardPlan
from .case import Case, Output, Shape, Truth, Values, blocks, library, numbers, summed
from .source import Source

QUANT_MIN, QUANT_MAX = -4, 3
LEAST = 2.0**-1074
"""The smallest float64."""


def of_elements(value: Any, x: Array) -> Any:
    """The number of each element of x, where value has one for each block: that of element i is i // (extent of x / extent).

    Where its extents are 1 or those of x it is broadcast.
    """
    if not hasattr(value, "shape"):
        return value
    value = value.reshape((1,) * x.ndim) if not value.ndim else value
    for d, (extent, n) in enumerate(zip(value.shape, x.shape, strict=True)):
        if extent not in (1, n):
            value = value[(slice(None),) * d + (numbers(value, n) // max(n // extent, 1),)]
    return value


def per_token(shape: Shape) -> Shape:
    """The shape of a scale for each token."""
    return (*shape[:-1], 1)


# ---------------------------------------------------------------------------------------------------------- dequantize


def quantized(source: Source, shape: Shape, dtype: str, scale_of: Callable[[Shape], Shape] = per_token) -> Values:
    """Blocks in int8, each scaled to its largest element. scale_of: the shape of the scale."""
    x = source.normal(shape)
    split, within = blocks(shape, scale_of(shape))
    scale = library(x).amax(abs(x).reshape(split), within).reshape(scale_of(shape)) / 127
    q = source.cast((x / of_elements(scale, x)).round(), "int8")
    return Values(dy=source.cast(source.normal(shape), dtype), scale=source.cast(scale, dtype), q=q)


def with_zero_point(source: Source, shape: Shape, dtype: str, scale_of: Callable[[Shape], Shape] = per_token) -> Values:
    """The inputs of `quantized` with a floating zero point."""
    values = quantized(source, shape, dtype, scale_of)
    values.zero_point = source.cast(source.normal(scale_of(shape)), dtype)
    return values


def describe(v: Values) -> DequantizePerTokenBackwardDescriptor:
    """The descriptor of these operands."""
    return DequantizePerTokenBackwardDescriptor(v.dy.shape, v.dy.dtype, v.q.dtype, v.scale.dtype)


def zero_of(v: Values) -> Any:
    """The zero point of each element, or 0."""
    return of_elements(getattr(v, "zero_point", 0), v.q)


def dscale(v: Values) -> Truth:
    """The sum of dy (q - z) by definition. Its rounding errors scale with q and z, which may cancel."""
    return summed(v.dy * (v.q - zero_of(v)), v.scale, abs(v.dy) * (abs(v.q) + abs(zero_of(v))))


def dzero_point(v: Values) -> Truth:
    """-s sum dy by definition: the sum is scaled, and not its terms."""
    total = summed(v.dy, v.zero_point)
    return Truth(-v.scale * total.value, abs(v.scale) * total.size, total.roundings)


DX = Output("q", lambda v: summed(v.dy * of_elements(v.scale, v.dy), v.dy))
DSCALE = Output("scale", dscale)
DZERO_POINT = Output("zero_point", dzero_point)
GRADIENTS = {"dx": DX, "dscale": DSCALE, "dzero_point": DZERO_POINT}


def describe_forward(v: Values) -> DequantizePerTokenDescriptor:
    """The descriptor of the operation itself."""
    return DequantizePerTokenDescriptor(v.q.shape, v.dy.dtype, v.q.dtype, v.scale.dtype)


def dequantized(v: Values) -> Truth:
    """(q - z) s by definition. Its rounding errors scale with q and z, which may cancel."""
    scale, zero = of_elements(v.scale, v.q), zero_of(v)
    return summed((v.q - zero) * scale, v.q, abs(scale) * (abs(v.q) + abs(zero)))


Y = Output("q", dequantized)


def by_torch(v: Values) -> Any:
    """The operation composed of torch's elementwise operations."""
    return (v.q - getattr(v, "zero_point", 0)) * v.scale


def drop_in(v: Values) -> Any:
    """The operation by sternway.torch.dequantize_per_token."""
    import sternway.torch

    return sternway.torch.dequantize_per_token(v.q, v.scale, getattr(v, "zero_point", None))


# -------------------------------------------------------------------------------------------------------- fake quantize


def unquantized(source: Source, shape: Shape, dtype: str, scale_of: Callable[[Shape], Shape] = per_token) -> Values:
    """Blocks with the initial step of learned step size quantization, Esser et al. 2020, arXiv:1902.08153.

    x is drawn towards the nearest step by a fifth of its distance, so that no rounding of x / scale decides which one it is.
    scale_of: the shape of the scale.
    """
    x = source.normal(shape)
    split, within = blocks(shape, scale_of(shape))
    scale = 2 * abs(x).reshape(split).mean(within).reshape(scale_of(shape)) / QUANT_MAX**0.5
    step = of_elements(scale, x)
    nearest = (x / step).round()
    x, dy = step * (nearest + 0.8 * (x / step - nearest)), source.normal(shape)
    cast = {name: source.cast(value, dtype) for name, value in (("dy", dy), ("x", x), ("scale", scale))}
    return Values(**cast, quant_min=QUANT_MIN, quant_max=QUANT_MAX)


def unquantized_with_zero_point(
    source: Source, shape: Shape, dtype: str, scale_of: Callable[[Shape], Shape] = per_token
) -> Values:
    """The inputs of `unquantized` with a floating zero point."""
    values = unquantized(source, shape, dtype, scale_of)
    values.zero_point = source.cast(source.normal(scale_of(shape)), dtype)
    return values


def describe_fake(v: Values) -> FakeQuantizePerTokenBackwardDescriptor:
    """The descriptor of these operands."""
    return FakeQuantizePerTokenBackwardDescriptor(v.dy.shape, v.dy.dtype, v.quant_min, v.quant_max, v.scale.dtype)


def levels(v: Values) -> tuple[Any, Any, Any, Any]:
    """x / scale, the zero point of each element, the clamped level, and whether it was within the bounds before.

    A zero point is rounded and clamped unless it `is_whole`, of an integer dtype. Where scale is 0, x / scale is the limit of
    small scales.
    """
    scale = of_elements(v.scale, v.x)
    zero = of_elements(getattr(v, "zero_point", library(v.x).zeros_like(v.scale)), v.x)
    if not getattr(v, "is_whole", False):
        zero = zero.round().clip(v.quant_min, v.quant_max)
    steps = v.x / library(v.x).where(scale == 0, LEAST, scale)
    t = steps.round() + zero
    return steps, zero, t.clip(v.quant_min, v.quant_max), (t >= v.quant_min) & (t <= v.quant_max)


def fake_dx(v: Values) -> Truth:
    """dx by definition: dy inside the bounds, 0 outside."""
    *_, inside = levels(v)
    return summed(library(v.x).where(inside, v.dy, 0.0), v.dy)


def fake_dscale(v: Values) -> Truth:
    """dscale by definition: the sum of dy ((q - z) - x / s) inside and of dy (q - z) outside."""
    steps, zero, q, inside = levels(v)
    steps = library(v.x).where(inside, steps, 0.0)
    return summed(v.dy * ((q - zero) - steps), v.scale, abs(v.dy) * (abs(q - zero) + abs(steps)))


def fake_dzero_point(v: Values) -> Truth:
    """dzero_point by definition: the sum of -s dy outside."""
    *_, inside = levels(v)
    return summed(library(v.x).where(inside, 0.0, -of_elements(v.scale, v.x) * v.dy), v.zero_point)


FAKE_DX = Output("x", fake_dx)
FAKE_DSCALE = Output("scale", fake_dscale)
FAKE_DZERO_POINT = Output("zero_point", fake_dzero_point)
FAKE_GRADIENTS = {"dx": FAKE_DX, "dscale": FAKE_DSCALE, "dzero_point": FAKE_DZERO_POINT}


def describe_fake_forward(v: Values) -> FakeQuantizePerTokenDescriptor:
    """The descriptor of the operation itself."""
    return FakeQuantizePerTokenDescriptor(v.x.shape, v.x.dtype, v.quant_min, v.quant_max, v.scale.dtype)


def fake_quantized(v: Values) -> Truth:
    """(q - z) s by definition."""
    _, zero, q, _ = levels(v)
    scale = of_elements(v.scale, v.x)
    return summed((q - zero) * scale, v.x, abs(scale) * (abs(q) + abs(zero)))


FAKE_Y = Output("x", fake_quantized)


def fake_forward_by_torch(v: Values) -> Any:
    """The operation composed of torch's elementwise operations."""
    zero = v.zero_point.round().clamp(v.quant_min, v.quant_max) if hasattr(v, "zero_point") else 0
    return (((v.x / v.scale).round() + zero).clamp(v.quant_min, v.quant_max) - zero) * v.scale


def rounded(x: Any) -> Any:
    """Rounding with a straight-through gradient."""
    return x.round().detach() + (x - x.detach())


def fake_by_torch(v: Values) -> Any:
    """The straight-through composite of torch operations. torch.clamp would pass no gradient for values on a bound."""
    import torch

    zero = rounded(v.zero_point) if hasattr(v, "zero_point") else 0
    level = rounded(v.x / v.scale) + zero
    inside = (level >= v.quant_min) & (level <= v.quant_max)
    level = torch.where(inside, level, level.detach().clamp(v.quant_min, v.quant_max))
    return (level - zero) * v.scale


def fake_drop_in(v: Values) -> Any:
    """The operation by sternway.torch.fake_quantize_per_token."""
    import sternway.torch

    zero_point = getattr(v, "zero_point", None)
    return sternway.torch.fake_quantize_per_token(v.x, v.scale, zero_point, quant_min=v.quant_min, quant_max=v.quant_max)


# ------------------------------------------------------------------------------------------------------------ the table


def case(name: str, inputs: Any, outputs: dict[str, Output], **options: Any) -> Case:
    """A case of dequantization."""
    return Case(
        "dequantize", name, DequantizePerTokenBackwardPlan, inputs, describe, outputs, by_torch,
        "autograd of (q - zero_point) * scale", drop_in=drop_in, **options,
    )  # fmt: skip


def fake_case(name: str, inputs: Any, outputs: dict[str, Output], **options: Any) -> Case:
    """A case of fake quantization."""
    return Case(
        "dequantize", name, FakeQuantizePerTokenBackwardPlan, inputs, describe_fake, outputs, fake_by_torch,
        "autograd of the straight-through composite", drop_in=fake_drop_in, **options,
    )  # fmt: skip


def forward_case(name: str, inputs: Any, **options: Any) -> Case:
    """A case of dequantization itself."""
    return Case(
        "dequantize", name, DequantizePerTokenPlan, inputs, describe_forward, {"y": Y}, by_torch,
        "(q - zero_point) * scale", reads=("q", "scale", "zero_point"), **options,
    )  # fmt: skip


def fake_forward_case(name: str, inputs: Any, **options: Any) -> Case:
    """A case of fake quantization itself."""
    return Case(
        "dequantize", name, FakeQuantizePerTokenPlan, inputs, describe_fake_forward, {"y": FAKE_Y}, fake_forward_by_torch,
        "the composite of elementwise operations", reads=("x", "scale", "zero_point"), **options,
    )  # fmt: skip


MEASURED: dict[str, Any] = {
    "demo": (1024, 1024),
    "cpu": ((256, 256), (1024, 1024), (4096, 4096)),
    "cuda": ((16384, 8192),),
}

CASES = (
    case("dx", quantized, {"dx": DX}, reads=("dy", "scale"), **MEASURED),
    case("dx, dscale", quantized, {"dx": DX, "dscale": DSCALE}, **MEASURED),
    case("dx, dscale, dzero_point", with_zero_point, GRADIENTS),
    fake_case("dx", unquantized, {"dx": FAKE_DX}, **MEASURED),
    fake_case("dx, dscale", unquantized, {"dx": FAKE_DX, "dscale": FAKE_DSCALE}, **MEASURED),
    fake_case("dx, dscale, dzero_point", unquantized_with_zero_point, FAKE_GRADIENTS),
    forward_case("y", quantized, **MEASURED),
    forward_case("y by zero_point", with_zero_point),
    fake_forward_case("y", unquantized, **MEASURED),
    fake_forward_case("y by zero_point", unquantized_with_zero_point),
)
