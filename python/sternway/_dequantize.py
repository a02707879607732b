"""Per-token dequantization and its gradient.

A token is one index of the leading dimensions; its elements, along the last dimension, share a scale.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, overload

from . import _outputs, _plan
from ._arrays import device_of, require_array
from ._descriptor import Descriptor, normalized
from ._quantize import ScaleT, gradient_rows, of_operands
from ._types import ArrayT, DLPackArray, DTypeT, FloatDType, QuantizedDType, ShapeT

if TYPE_CHECKING:
    from numpy import dtype as numpy_dtype
    from numpy import ndarray

    Outputs = DLPackArray | Sequence[DLPackArray | None] | None

__all__ = [
    "DequantizePerTokenBackwardDescriptor",
    "DequantizePerTokenBackwardPlan",
    "DequantizePerTokenDescriptor",
    "DequantizePerTokenPlan",
    "dequantize_per_token",
    "dequantize_per_token_backward",
]


@dataclasses.dataclass(frozen=True)
class BaseDequantizeDescriptor(Descriptor):
    """The fields of DequantizePerTokenDescriptor and DequantizePerTokenBackwardDescriptor."""

    shape: Sequence[int]
    dtype: FloatDType
    qdtype: QuantizedDType = "int8"
    scale_dtype: FloatDType | None = None


@dataclasses.dataclass(frozen=True)
class DequantizePerTokenDescriptor(BaseDequantizeDescriptor):
    """``y = (q - zero_point[n]) * scale[n]`` for token n, the problem of :func:`dequantize_per_token`.

    Args:
        shape: the shape [..., D] of q and y; the leading dimensions are the tokens.
        dtype: the dtype of y: float32, float64, float16 or bfloat16.
        qdtype: the dtype of q: int8 or uint8.
        scale_dtype: the dtype of scale: None for ``dtype``, or float32.

    Raises:
        InvalidProblemError: a field of another type. ``DequantizePerTokenPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.DequantizePerTokenDescriptor(shape=(2, 3), dtype="bfloat16", qdtype="uint8").dtype
        'bfloat16'
    """

    family: ClassVar[str] = "dequantize_per_token"


class DequantizePerTokenPlan(_plan.Plan[DequantizePerTokenDescriptor]):
    """Plan of :func:`dequantize_per_token`. ``select`` makes it and ``run`` executes it.

    Shapes and dtypes are of the descriptor: shape [..., D], ``dtype``, ``qdtype`` and ``scale_dtype``. Per-token operands have
    the shape [...] or [..., 1].

    Operands:
        q: input [..., D], the quantized values.
        scale: input [...].
        zero_point: input [...], int8, uint8, int32, int64 or floating; left out: 0.
        y: output [..., D], ``(q - zero_point[n]) * scale[n]``.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.DequantizePerTokenPlan.select(sw.DequantizePerTokenDescriptor(shape=(2, 2), dtype="float32"))
        >>> q, scale, y = np.array([[1, -2], [3, 4]], np.int8), np.array([0.5, 2.0], np.float32), np.empty((2, 2), np.float32)
        >>> plan.run(q=q, scale=scale, y=y)
        >>> y.tolist()
        [[0.5, -1.0], [6.0, 8.0]]
    """

    descriptor_type = DequantizePerTokenDescriptor


@dataclasses.dataclass(frozen=True)
class DequantizePerTokenBackwardDescriptor(BaseDequantizeDescriptor):
    """The backward of ``x = (q - zero_point[n]) * scale[n]``, the problem of :func:`dequantize_per_token_backward`.

    Args:
        shape: the shape [..., D] of dy, dx and q; the leading dimensions are the tokens.
        dtype: the dtype of dy and dx: float32, float64, float16 or bfloat16.
        qdtype: the dtype of q: int8 or uint8.
        scale_dtype: the dtype of scale: None for ``dtype``, or float32.

    Raises:
        InvalidProblemError: a field of another type. ``DequantizePerTokenBackwardPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.DequantizePerTokenBackwardDescriptor(shape=(2, 3), dtype="float32").qdtype
        'int8'
    """

    family: ClassVar[str] = "dequantize_per_token_backward"


class DequantizePerTokenBackwardPlan(_plan.Plan[DequantizePerTokenBackwardDescriptor]):
    """Plan of :func:`dequantize_per_token_backward`. ``select`` makes it and ``run`` executes it.

    Shapes and dtypes are of the descriptor: shape [..., D], ``dtype``, ``qdtype`` and ``scale_dtype``. Per-token operands have
    the shape [...] or [..., 1].

    Operands:
        dy: input [..., D], the upstream gradient.
        scale: input [...].
        q: input [..., D], the quantized values; needed for dscale.
        zero_point: input [...], int8, uint8, int32, int64 or floating; left out: 0.
        dx: output [..., D], ``dy * scale[n]``.
        dscale: output like scale, ``sum_d dy * (q - zero_point)``; may be left out.
        dzero_point: output like a floating zero_point, ``-scale[n] * sum_d dy``; may be left out.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.DequantizePerTokenBackwardDescriptor(shape=(2, 3), dtype="float32")
        >>> plan = sw.DequantizePerTokenBackwardPlan.select(descriptor)
        >>> dy, scale, dx = np.ones((2, 3), np.float32), np.array([0.5, 2.0], np.float32), np.empty((2, 3), np.float32)
        >>> plan.run(dy=dy, scale=scale, dx=dx)
        >>> dx.tolist()
        [[0.5, 0.5, 0.5], [2.0, 2.0, 2.0]]
    """

    descriptor_type = DequantizePerTokenBackwardDescriptor
    _required = ("dx",)


@functools.lru_cache(maxsize=1024, typed=True)
def dequantize_forward_plan(
    shape: tuple[int, ...],
    dtype: FloatDType,
    qdtype: QuantizedDType,
    scale_dtype: FloatDType,
    device: str,
    dtype_of: str = "dtype",
) -> DequantizePerTokenPlan:
    """The plan of a problem, from a cache. dtype_of: the operand or option that dtype was read from."""
    with of_operands(shape="q", dtype=dtype_of, qdtype="q", scale_dtype="scale"):
        return DequantizePerTokenPlan.select(DequantizePerTokenDescriptor(shape, dtype, qdtype, scale_dtype), device)


@functools.lru_cache(maxsize=1024, typed=True)
def dequantize_plan(
    shape: tuple[int, ...], dtype: FloatDType, qdtype: QuantizedDType, scale_dtype: FloatDType, device: str
) -> DequantizePerTokenBackwardPlan:
    """The plan of a problem, from a cache."""
    with of_operands(shape="dy", dtype="dy", qdtype="q", scale_dtype="scale"):
        descriptor = DequantizePerTokenBackwardDescriptor(shape, dtype, qdtype, scale_dtype)
        return DequantizePerTokenBackwardPlan.select(descriptor, device)


@overload
def dequantize_per_token(
    q: ndarray[ShapeT, Any],
    scale: ndarray[Any, DTypeT],
    zero_point: DLPackArray | None = ...,
    *,
    dtype: None = ...,
    out: None = ...,
) -> ndarray[ShapeT, DTypeT]: ...
@overload
def dequantize_per_token(
    q: ndarray[ShapeT, Any],
    scale: DLPackArray,
    zero_point: DLPackArray | None = ...,
    *,
    dtype: FloatDType | None = ...,
    out: None = ...,
) -> ndarray[ShapeT, numpy_dtype[Any]]: ...
@overload
def dequantize_per_token(
    q: ArrayT,
    scale: DLPackArray,
    zero_point: DLPackArray | None = ...,
    *,
    dtype: FloatDType | None = ...,
    out: None = ...,
) -> ArrayT: ...
@overload
def dequantize_per_token(
    q: DLPackArray,
    scale: DLPackArray,
    zero_point: DLPackArray | None = ...,
    *,
    dtype: FloatDType | None = ...,
    out: ArrayT,
) -> ArrayT: ...
def dequantize_per_token(
    q: DLPackArray,
    scale: DLPackArray,
    zero_point: DLPackArray | None = None,
    *,
    dtype: FloatDType | None = None,
    out: DLPackArray | None = None,
) -> DLPackArray:
    """Dequantize with a scale for each token: ``y = (q - zero_point[n]) * scale[n]`` for token n.

    The difference and the product are formed in float32, or in float64 for a float64 result, and y is rounded once.

    Args:
        q: the quantized values [..., D], int8 or uint8.
        scale: [...] or [..., 1], of the dtype of y or float32.
        zero_point: [...] or [..., 1], int8, uint8, int32, int64 or floating; None: 0.
        dtype: the dtype of y: float32, float64, float16 or bfloat16; None: scale's dtype.
        out: an array to write into. None: a new array of q's library, in the memory layout of q.

    Returns:
        y, of q's shape.

    Raises:
        InvalidProblemError: shapes, dtypes or devices that contradict each other.
        UnsupportedError: a dtype or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> q, scale = np.array([[1, -2], [3, 4]], np.int8), np.array([0.5, 2.0], np.float32)
        >>> sw.dequantize_per_token(q, scale, np.array([1, 0], np.int8)).tolist()
        [[0.0, -1.5], [6.0, 8.0]]
    """
    op = "dequantize_per_token"
    codes, scales = require_array(op, "q", q), require_array(op, "scale", scale)
    zero_point = zero_point if zero_point is None else require_array(op, "zero_point", zero_point)
    if dtype is None:
        plan = dequantize_forward_plan(tuple(codes.shape), scales.dtype, codes.dtype, scales.dtype, device_of(codes), "scale")
    else:
        element = normalized(op, "dtype", "dtype", dtype)
        plan = dequantize_forward_plan(tuple(codes.shape), element, codes.dtype, scales.dtype, device_of(codes))
    outputs: dict[str, DLPackArray] = _outputs.outputs(plan, codes, [("y", codes, plan.sku.element)], out)
    plan.run(q=codes, scale=scales, zero_point=zero_point, **outputs)
    return outputs["y"]


@overload
def dequantize_per_token_backward(
    dy: ArrayT, scale: DLPackArray, *, q: None = ..., zero_point: DLPackArray | None = ..., out: Outputs = ...
) -> ArrayT: ...
@overload
def dequantize_per_token_backward(
    dy: ArrayT, scale: ScaleT, *, q: DLPackArray, zero_point: None = ..., out: Outputs = ...
) -> tuple[ArrayT, ScaleT]: ...
@overload
def dequantize_per_token_backward(
    dy: ArrayT, scale: DLPackArray, *, q: DLPackArray, zero_point: DLPackArray, out: Outputs = ...
) -> tuple[ArrayT, ...]: ...
def dequantize_per_token_backward(
    dy: DLPackArray,
    scale: DLPackArray,
    *,
    q: DLPackArray | None = None,
    zero_point: DLPackArray | None = None,
    out: DLPackArray | Sequence[DLPackArray | None] | None = None,
) -> DLPackArray | tuple[DLPackArray, ...]:
    """Gradients of ``x = (q - zero_point[n]) * scale[n]`` for token n.

    ``dx = dy * scale[n]`` is the gradient with respect to q in floating point. ``dscale[n] = sum_d dy * (q - zero_point[n])``
    and ``dzero_point[n] = -scale[n] * sum_d dy`` are summed in a fixed order, in the same pass over dy.

    Args:
        dy: the upstream gradient [..., D]; float32, float64, float16 or bfloat16.
        scale: [...] or [..., 1], of dy's dtype or float32.
        q: the quantized values [..., D], int8 or uint8. If given, the per-token gradients are computed too.
        zero_point: [...] or [..., 1], int8, uint8, int32, int64 or floating; None: 0.
        out: arrays to write into: dx, or (dx, dscale[, dzero_point]) with q. None: new arrays of dy's library.

    Returns:
        dx; with q, the tuple (dx, dscale), or (dx, dscale, dzero_point) if zero_point is floating. Each gradient has the shape
        and dtype of its input; dx has the shape and dtype of dy.

    Raises:
        InvalidProblemError: shapes, dtypes or devices that contradict each other.
        UnsupportedError: a dtype or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> dy, q = np.ones((2, 3), np.float32), np.array([[1, 2, 3], [4, 5, 6]], np.int8)
        >>> dx, dscale = sw.dequantize_per_token_backward(dy, np.array([0.5, 2.0], np.float32), q=q)
        >>> dx[:, 0], dscale
        (array([0.5, 2. ], dtype=float32), array([ 6., 15.], dtype=float32))
    """
    op = "dequantize_per_token_backward"
    grad, scales = require_array(op, "dy", dy), require_array(op, "scale", scale)
    codes, zeros = (x if x is None else require_array(op, name, x) for name, x in (("q", q), ("zero_point", zero_point)))
    plan = dequantize_plan(
        tuple(grad.shape), grad.dtype, "int8" if codes is None else codes.dtype, scales.dtype, device_of(grad)
    )
    rows = gradient_rows(grad, None if codes is None else scales, zeros)
    outputs: dict[str, DLPackArray] = _outputs.outputs(plan, grad, rows, out)
    plan.run(dy=grad, scale=scales, q=codes, zero_point=zeros, **outputs)
    return outputs["dx"] if codes is None else tuple(outputs.values())
