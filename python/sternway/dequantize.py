"""Gradients of per-token dequantisation and of per-token fake quantisation. A token is an index of the leading dimensions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from . import _plan, errors
from ._arrays import Array, device_of, dtype_name, require_array
from ._descriptor import Descriptor

_FLOATS = ("float32", "float64", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class DequantizePerTokenBackwardDescriptor(Descriptor):
    """The backward of ``x = (q - zero_point[n]) * scale[n]``.

    Args:
        shape: of dy: tokens, then the dimension that shares a scale.
        dtype: of dy and dx: float32, float64, float16 or bfloat16.
        qdtype: of q: int8 or uint8.
        scale_dtype: of scale: dtype (None) or float32.
    """

    family: ClassVar[str] = "dequantize_per_token_backward"

    shape: Sequence[int]
    dtype: Any
    qdtype: Any = "int8"
    scale_dtype: Any = None


class DequantizePerTokenBackwardPlan(_plan.Plan[DequantizePerTokenBackwardDescriptor]):
    """Runs the gradients of :func:`dequantize_per_token_backward`.

    Operands of run: ``dy, scale, q?, zero_point? -> dx, dscale?, dzero_point?``. dscale needs q; dzero_point needs a
    floating ``zero_point``. Per-token operands have the shape of the leading dimensions, with or without a last extent of 1.
    """

    descriptor_type = DequantizePerTokenBackwardDescriptor


@dataclasses.dataclass(frozen=True)
class FakeQuantizePerTokenBackwardDescriptor(Descriptor):
    """The backward of quantise-dequantise with straight-through rounding.

    Args:
        shape: of dy and x: tokens, then the dimension that shares a scale.
        dtype: of dy, x and dx: float32, float64, float16 or bfloat16.
        quant_min, quant_max: the bounds of the quantised values, inclusive.
        scale_dtype: of scale: dtype (None) or float32.
    """

    family: ClassVar[str] = "fake_quantize_per_token_backward"

    shape: Sequence[int]
    dtype: Any
    quant_min: int
    quant_max: int
    scale_dtype: Any = None


class FakeQuantizePerTokenBackwardPlan(_plan.Plan[FakeQuantizePerTokenBackwardDescriptor]):
    """Runs the gradients of :func:`fake_quantize_per_token_backward`.

    Operands of run: ``dy, x, scale, zero_point? -> dx, dscale?, dzero_point?``. dzero_point needs a floating zero_point.
    """

    descriptor_type = FakeQuantizePerTokenBackwardDescriptor


@functools.lru_cache(maxsize=1024, typed=True)
def dequantize_plan(
    shape: tuple[int, ...], dtype: Any, qdtype: Any, scale_dtype: Any, device: str
) -> DequantizePerTokenBackwardPlan:
    """The plan of a problem, selected once."""
    with _of_operands(shape="dy", dtype="dy", qdtype="q", scale_dtype="scale"):
        descriptor = DequantizePerTokenBackwardDescriptor(shape, dtype, qdtype, scale_dtype)
        return DequantizePerTokenBackwardPlan.select(descriptor, device)


@functools.lru_cache(maxsize=1024, typed=True)
def fake_quantize_plan(
    shape: tuple[int, ...], dtype: Any, quant_min: int, quant_max: int, scale_dtype: Any, device: str
) -> FakeQuantizePerTokenBackwardPlan:
    """The plan of a problem, selected once."""
    with _of_operands(shape="dy", dtype="dy", scale_dtype="scale"):
        descriptor = FakeQuantizePerTokenBackwardDescriptor(shape, dtype, quant_min, quant_max, scale_dtype)
        return FakeQuantizePerTokenBackwardPlan.select(descriptor, device)


@contextlib.contextmanager
def _of_operands(**operands: str) -> Iterator[None]:
    """Make errors about a field of a descriptor speak of the operand that the field was read from."""
    try:
        yield
    except errors.Error as error:
        if error.operand not in operands:
            raise
        raise errors.renamed(error, error.op, {error.operand: operands[error.operand]}) from None


def _learned(zero_point: Array | None) -> bool:
    """A zero point that a gradient can change."""
    return zero_point is not None and dtype_name(zero_point.dtype) in _FLOATS


def _outputs(dy: Array, scale: Array | None, zero_point: Array | None) -> list[tuple[str, Array, None]]:
    """Names of the gradients, and what they are like; the per-token ones if there is a scale."""
    rows = [("dx", dy, None)]
    if scale is not None:
        rows.append(("dscale", scale, None))
        if _learned(zero_point):
            rows.append(("dzero_point", zero_point, None))
    return rows


def dequantize_per_token_backward(
    dy: Array,
    scale: Array,
    *,
    q: Array | None = None,
    zero_point: Array | None = None,
    out: Array | Sequence[Array] | None = None,
) -> Array | tuple[Array, ...]:
    """Gradients of ``x = (q - zero_point[n]) * scale[n]``.

    ``dx = dy scale[n]`` is the gradient that flows on in floating point; ``dscale[n] = sum_d dy (q - zero_point[n])`` and
    ``dzero_point[n] = -scale[n] sum_d dy`` are summed in a fixed order, in one pass with dx.

    Args:
        dy: the upstream gradient [..., D]; float32, float64, float16 or bfloat16.
        scale: [...] or [..., 1], of dy's dtype or float32.
        q: the quantised values [..., D], int8 or uint8; with it the per-token gradients are computed.
        zero_point: [...] or [..., 1], int8, uint8, int32, int64 or floating; None: 0.
        out: arrays to write into: dx, or (dx, dscale[, dzero_point]) with q.

    Returns:
        dx; with q, (dx, dscale), and dzero_point as a third where zero_point is floating.

    Raises:
        InvalidProblemError: shapes or dtypes that contradict each other.
        UnsupportedError: a dtype or device without a kernel.

    Example:
        >>> import numpy as np, sternway as sw
        >>> dy, q = np.ones((2, 3), np.float32), np.array([[1, 2, 3], [4, 5, 6]], np.int8)
        >>> dx, dscale = sw.dequantize_per_token_backward(dy, np.array([0.5, 2.0], np.float32), q=q)
        >>> dx[:, 0], dscale
        (array([0.5, 2. ], dtype=float32), array([ 6., 15.], dtype=float32))
    """
    op = "dequantize_per_token_backward"
    dy, scale = require_array(op, "dy", dy), require_array(op, "scale", scale)
    q, zero_point = (x if x is None else require_array(op, name, x) for name, x in (("q", q), ("zero_point", zero_point)))
    plan = dequantize_plan(tuple(dy.shape), dy.dtype, "int8" if q is None else q.dtype, scale.dtype, device_of(dy))
    outputs = _plan.outputs(plan, dy, _outputs(dy, None if q is None else scale, zero_point), out)
    plan.run(dy=dy, scale=scale, q=q, zero_point=zero_point, **outputs)
    return outputs["dx"] if q is None else tuple(outputs.values())


def fake_quantize_per_token_backward(
    dy: Array,
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    quant_min: int,
    quant_max: int,
    out: Sequence[Array] | None = None,
) -> tuple[Array, Array, Array | None]:
    """Gradients of quantise-dequantise with straight-through rounding, what quantisation-aware training runs.

    With ``t = round_half_even(x / scale) + zero_point`` and ``q = clamp(t, quant_min, quant_max)``; inside means
    ``quant_min <= t <= quant_max``. dx is dy inside and 0 outside; dscale[n] sums ``dy ((q - zero_point) - x / scale)`` inside
    and ``dy (q - zero_point)`` outside; dzero_point[n] sums ``-dy scale`` outside. A floating zero point is rounded and clamped
    first. Learned step size quantisation, Esser et al. 2020, arXiv:1902.08153, without its gradient scale.

    The quotient that decides t is rounded to float32, or to float64 for float64. A scale of 0 is the limit of small ones:
    ``x / 0`` is infinite with the sign of x and ``0 / 0`` is 0, so that a row of zeros with scale 0 is inside and its
    gradients are finite.

    Args:
        dy, x: [..., D]; float32, float64, float16 or bfloat16.
        scale: [...] or [..., 1], of dy's dtype or float32.
        zero_point: [...] or [..., 1], int8, uint8, int32, int64 or floating; None: 0.
        quant_min, quant_max: bounds of the quantised values, inclusive.
        out: arrays to write into: (dx, dscale), and dzero_point as a third where zero_point is floating.

    Returns:
        (dx, dscale, dzero_point); dzero_point is None unless zero_point is floating.

    Raises:
        InvalidProblemError: shapes, dtypes or bounds that contradict each other.
        UnsupportedError: a dtype or device without a kernel.

    Example:
        >>> import numpy as np, sternway as sw
        >>> x, scale = np.array([[0.5, 3.75, -100.0]], np.float32), np.array([0.5], np.float32)
        >>> dx, dscale, _ = sw.fake_quantize_per_token_backward(np.ones_like(x), x, scale, quant_min=-8, quant_max=7)
        >>> dx, dscale
        (array([[1., 0., 0.]], dtype=float32), array([-1.], dtype=float32))
    """
    op = "fake_quantize_per_token_backward"
    dy, x, scale = (require_array(op, name, array) for name, array in (("dy", dy), ("x", x), ("scale", scale)))
    zero_point = zero_point if zero_point is None else require_array(op, "zero_point", zero_point)
    plan = fake_quantize_plan(tuple(dy.shape), dy.dtype, quant_min, quant_max, scale.dtype, device_of(dy))
    outputs = _plan.outputs(plan, dy, _outputs(dy, scale, zero_point), out)
    plan.run(dy=dy, x=x, scale=scale, zero_point=zero_point, **outputs)
    return outputs["dx"], outputs["dscale"], outputs.get("dzero_point")
