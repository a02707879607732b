"""Dequantization of integers of 4 bits, two in a byte, and of floats of 8 bits, with a scale for each group of three.

A group begins inside a byte where the one before it ends there. The definitions are those of tokens, on unpacked values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from .._arrays import Array
from .._dequantize import DequantizeDescriptor, DequantizePlan
from .._dequantize_backward import DequantizeBackwardDescriptor, DequantizeBackwardPlan
from .._dtypes import DTYPES
from . import dequantize as tokens
from .case import Case, Output, Shape, Values, library
from .quantize import Granularity, by_blocks, whole_blocks
from .source import Source

LEAST = {"int4": -8, "uint4": 0}
"""The smallest value of each packed type; there are 16."""
GROUPS: Granularity = ((1, 6), lambda shape: (*shape[:-1], shape[-1] // 3))


def packed(source: Source, values: Array) -> Array:
    """Integers as uint8, with two in a byte: the first in the lower four bits."""
    return source.cast(values[..., 0::2] % 16 + values[..., 1::2] % 16 * 16, "uint8")


def unpacked(v: Values) -> Values:
    """The values of a problem with q as one number for each element of dy."""
    if v.qdtype not in LEAST:
        return v
    least = LEAST[v.qdtype]
    q = library(v.q).stack((v.q % 16, v.q // 16), -1).reshape(v.dy.shape)
    return Values(**{**vars(v), "q": (q * 1.0 - least) % 16 + least})


def inputs(qdtype: str, source: Source, shape: Shape, dtype: str, scale_of: Any) -> Values:
    """Quantized values, with a scale and a zero point for each group."""
    x = source.normal(shape)
    levels = (x * 3).round().clip(-8, 7) + 8 + LEAST.get(qdtype, 0)
    q = packed(source, levels) if qdtype in LEAST else source.cast(x, qdtype)
    scale, zero_point = abs(source.normal(scale_of(shape))) + 0.5, source.normal(scale_of(shape))
    floats = {"dy": source.normal(shape), "scale": scale, "zero_point": zero_point}
    return Values(**{name: source.cast(value, dtype) for name, value in floats.items()}, q=q, qdtype=qdtype)


def describe_forward(v: Values) -> DequantizeDescriptor:
    """The descriptor of dequantization."""
    return DequantizeDescriptor(v.dy.shape, v.dy.dtype, v.scale.shape, v.scale.dtype, v.qdtype)


def describe(v: Values) -> DequantizeBackwardDescriptor:
    """The descriptor of its gradients."""
    return DequantizeBackwardDescriptor(v.dy.shape, v.dy.dtype, v.scale.shape, v.scale.dtype, v.qdtype)


def composite(v: Values, added: Any) -> Any:
    """The composite of torch's elementwise operations, on the values plus a number."""
    values = unpacked(v)
    return by_blocks(tokens.by_torch)(Values(**{**vars(values), "q": values.q.to(v.dy.dtype) + added}))


def by_torch(v: Values) -> Any:
    """The operation composed of torch's elementwise operations."""
    return composite(v, 0)


def by_autograd(v: Values) -> Any:
    """The same with a gradient of the values, which have none: dy, whose shape and dtype they have, stands for them."""
    return composite(v, v.dy - v.dy.detach())


def drop_in(v: Values) -> Any:
    """The operation by sternway.torch.dequantize."""
    import sternway.torch

    return sternway.torch.dequantize(v.q, v.scale, v.zero_point, qdtype=v.qdtype)


Y = Output("dy", lambda v: tokens.dequantized(unpacked(v)))
GRADIENTS = {
    "dx": Output("dy", lambda v: tokens.DX.truth(unpacked(v))),
    "dscale": Output("scale", lambda v: tokens.dscale(unpacked(v))),
    "dzero_point": tokens.DZERO_POINT,
}


def cases(qdtype: str) -> Iterator[Case]:
    """The operation and its gradients."""
    made = whole_blocks(functools.partial(inputs, qdtype), GROUPS)
    stored = (qdtype,) if qdtype in DTYPES else ()
    yield Case(
        "dequantize", f"y, {qdtype}", DequantizePlan, made, describe_forward, {"y": Y}, by_torch,
        "(q - zero_point) * scale", reads=("q", "scale", "zero_point"), stored=stored,
    )  # fmt: skip
    yield Case(
        "dequantize", f"gradients, {qdtype}", DequantizeBackwardPlan, made, describe, GRADIENTS, by_autograd,
        "autograd of (q - zero_point) * scale", drop_in=drop_in, stored=stored,
    )  # fmt: skip


CASES = tuple(case for qdtype in (*LEAST, "float8_e4m3fn", "float8_e5m2") for case in cases(qdtype))
