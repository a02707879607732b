"""Dequantization and fake quantization with a scale for each block: per tensor or channel, groups, blocks of two dimensions.

The definitions are those of tokens. Composites of torch read each divided dimension as two, of blocks and of their elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from .._dequantize import DequantizeDescriptor, DequantizePlan
from .._dequantize_backward import DequantizeBackwardDescriptor, DequantizeBackwardPlan
from .._fake_quantize import FakeQuantizeDescriptor, FakeQuantizePlan
from .._fake_quantize_backward import FakeQuantizeBackwardDescriptor, FakeQuantizeBackwardPlan
from . import dequantize as tokens
from .case import Case, Shape, Values, blocks
from .source import Source

Granularity = tuple[tuple[int, int], Callable[[Shape], Shape]]
"""The rows and columns whose multiples the shape of x needs, and the shape of the scale for it."""

GRANULARITIES: dict[str, Granularity] = {
    "per tensor": ((1, 1), lambda shape: ()),
    "per channel": ((1, 1), lambda shape: (*[1] * (len(shape) - 1), shape[-1])),
    "groups of 32": ((1, 32), lambda shape: (*shape[:-1], shape[-1] // 32)),
    "blocks 16x32": ((16, 32), lambda shape: (*shape[:-2], shape[-2] // 16, shape[-1] // 32)),
}


def whole_blocks(inputs: Callable[..., Values], granularity: Granularity) -> Callable[..., Values]:
    """The inputs of a shape that is enlarged to whole blocks."""
    multiples, scale_of = granularity

    def enlarged(source: Source, shape: Shape, dtype: str) -> Values:
        last = (-(-n // multiple) * multiple for n, multiple in zip(shape[-2:], multiples, strict=True))
        return inputs(source, (*shape[:-2], *last), dtype, scale_of)

    return enlarged


def by_blocks(forward: Callable[[Values], Any]) -> Callable[[Values], Any]:
    """A composite of torch's operations, on operands whose dimensions are two each where the scale divides them."""

    def split_forward(v: Values) -> Any:
        shape = v.dy.shape
        split, within = blocks(shape, v.scale.shape)
        ones = [1 if d in within else n for d, n in enumerate(split)]
        shapes = {"scale": ones, "zero_point": ones, "x": split, "q": split}
        changed = {name: value.reshape(shapes[name]) for name, value in vars(v).items() if name in shapes}
        return forward(Values(**{**vars(v), **changed})).reshape(shape)

    return split_forward


def describe_forward(v: Values) -> DequantizeDescriptor:
    """The descriptor of dequantization."""
    return DequantizeDescriptor(v.q.shape, v.dy.dtype, v.scale.shape, v.scale.dtype, v.q.dtype)


def describe(v: Values) -> DequantizeBackwardDescriptor:
    """The descriptor of its gradients."""
    return DequantizeBackwardDescriptor(v.q.shape, v.dy.dtype, v.scale.shape, v.scale.dtype, v.q.dtype)


def describe_fake_forward(v: Values) -> FakeQuantizeDescriptor:
    """The descriptor of fake quantization."""
    return FakeQuantizeDescriptor(v.x.shape, v.x.dtype, v.quant_min, v.quant_max, v.scale.shape, v.scale.dtype)


def describe_fake(v: Values) -> FakeQuantizeBackwardDescriptor:
    """The descriptor of its gradients."""
    return FakeQuantizeBackwardDescriptor(v.x.shape, v.x.dtype, v.quant_min, v.quant_max, v.scale.shape, v.scale.dtype)


def drop_in(v: Values) -> Any:
    """The operation by sternway.torch.dequantize."""
    import sternway.torch

    return sternway.torch.dequantize(v.q, v.scale, getattr(v, "zero_point", None))


def fake_drop_in(v: Values) -> Any:
    """The operation by sternway.torch.fake_quantize."""
    import sternway.torch

    zero_point = getattr(v, "zero_point", None)
    return sternway.torch.fake_quantize(v.x, v.scale, zero_point, quant_min=v.quant_min, quant_max=v.quant_max)


def cases(name: str, granularity: Granularity, **options: Any) -> Iterator[Case]:
    """Both operations and their gradients; of blocks of two dimensions with zero points."""
    zero = name.startswith("blocks")
    case = functools.partial(Case, "quantize")
    dequantized = whole_blocks(tokens.with_zero_point if zero else tokens.quantized, granularity)
    faked = whole_blocks(tokens.unquantized_with_zero_point if zero else tokens.unquantized, granularity)
    count = 3 if zero else 2
    yield case(
        f"y, {name}", DequantizePlan, dequantized, describe_forward, {"y": tokens.Y}, by_blocks(tokens.by_torch),
        "(q - zero_point) * scale", reads=("q", "scale", "zero_point"), **options,
    )  # fmt: skip
    yield case(
        f"gradients, {name}", DequantizeBackwardPlan, dequantized, describe,
        dict(list(tokens.GRADIENTS.items())[:count]), by_blocks(tokens.by_torch), "autograd of (q - zero_point) * scale",
        drop_in=drop_in, **options,
    )  # fmt: skip
    yield case(
        f"y, {name}", FakeQuantizePlan, faked, describe_fake_forward, {"y": tokens.FAKE_Y},
        by_blocks(tokens.fake_forward_by_torch), "the composite of elementwise operations",
        reads=("x", "scale", "zero_point"), **options,
    )  # fmt: skip
    yield case(
        f"gradients, {name}", FakeQuantizeBackwardPlan, faked, describe_fake,
        dict(list(tokens.FAKE_GRADIENTS.items())[:count]), by_blocks(tokens.fake_by_torch),
        "autograd of the straight-through composite", drop_in=fake_drop_in, **options,
    )  # fmt: skip


DEMO = (1024, 1024)
MEASURED: dict[str, Any] = {"cpu": ((256, 256), (1024, 1024), (4096, 4096)), "cuda": ((16384, 8192),)}

CASES = tuple(
    case
    for name, granularity in GRANULARITIES.items()
    for case in cases(name, granularity, demo=DEMO if "groups" in name else None, **MEASURED)
)
