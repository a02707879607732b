"""Gradients of dequantization, with a scale for each token or for blocks of any shape, which ``_quantize`` defines."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, overload

from . import _outputs, _plan
from ._arrays import device_of, require_array
from ._dequantize import BaseDequantizeDescriptor, BasePerTokenDescriptor
from ._quantize import (
    PACKED,
    ScaleT,
    adjacent,
    gradient_rows,
    of_operands,
    packed_of,
    require_blocks,
    require_codes,
    require_qdtype,
)
from ._types import ArrayT, DLPackArray, FloatDType, QuantizedDType

Outputs = DLPackArray | Sequence[DLPackArray | None] | None

__all__ = [
    "DequantizeBackwardDescriptor",
    "DequantizeBackwardPlan",
    "DequantizePerTokenBackwardDescriptor",
    "DequantizePerTokenBackwardPlan",
    "dequantize_backward",
    "dequantize_per_token_backward",
]


@dataclasses.dataclass(frozen=True)
class DequantizeBackwardDescriptor(BaseDequantizeDescriptor):
    """The backward of ``x = (q - zero_point) * scale`` with numbers for blocks, the problem of :func:`dequantize_backward`.

    Args:
        shape: the shape of dy, dx and the quantized values.
        dtype: the dtype of dy and dx: float32, float64, float16 or bfloat16.
        scale_shape, scale_dtype, qdtype: as for :class:`DequantizeDescriptor`.

    Raises:
        InvalidProblemError: a field of another type. ``DequantizeBackwardPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.DequantizeBackwardDescriptor((256, 256), "float32", scale_shape=(2, 2)).qdtype  # blocks of 128 x 128
        'int8'
    """

    family: ClassVar[str] = "dequantize_backward"


class DequantizeBackwardPlan(_plan.Plan[DequantizeBackwardDescriptor]):
    """Plan of :func:`dequantize_backward`. ``select`` makes it and ``run`` executes it.

    Shapes and dtypes are of the descriptor: ``shape``, ``scale_shape``, ``dtype``, ``qdtype`` and ``scale_dtype``.

    Operands:
        dy: input of ``shape``, the upstream gradient.
        scale: input of ``scale_shape``.
        q: input of ``shape``, the quantized values; needed for dscale. Packed ones: uint8 with half the last extent, along
            which bytes are adjacent.
        zero_point: input of ``scale_shape``, int8, uint8, int32, int64 or floating; left out: 0.
        dx: output of ``shape``, ``dy * scale``.
        dscale: output like scale, the sums of ``dy * (q - zero_point)`` over blocks; may be left out.
        dzero_point: output like a floating zero_point, ``-scale`` times the sums of dy over blocks; may be left out.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.DequantizeBackwardDescriptor((1, 4), "float32", scale_shape=(1, 2))
        >>> plan = sw.DequantizeBackwardPlan.select(descriptor)
        >>> dy, scale, dx = np.ones((1, 4), np.float32), np.array([[0.5, 2.0]], np.float32), np.empty((1, 4), np.float32)
        >>> plan.run(dy=dy, scale=scale, dx=dx)
        >>> dx.tolist()
        [[0.5, 0.5, 2.0, 2.0]]
    """

    descriptor_type = DequantizeBackwardDescriptor
    _required = ("dx",)


@dataclasses.dataclass(frozen=True)
class DequantizePerTokenBackwardDescriptor(BasePerTokenDescriptor):
    """The backward of ``x = (q - zero_point[n]) * scale[n]``, the problem of :func:`dequantize_per_token_backward`.

    Args:
        shape: the shape [..., D] of dy, dx and q; the leading dimensions are the tokens.
        dtype: the dtype of dy and dx: float32, float64, float16 or bfloat16.
        qdtype: the dtype of the quantized values, as for :class:`DequantizeDescriptor`.
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
def dequantize_backward_plan(
    shape: tuple[int, ...],
    dtype: FloatDType,
    scale_shape: tuple[int, ...] | None,
    scale_dtype: FloatDType,
    qdtype: QuantizedDType,
    device: str,
    qdtype_of: str = "q",
) -> DequantizeBackwardPlan | DequantizePerTokenBackwardPlan:
    """The plan of a problem, from a cache.

    Args:
        scale_shape: None: a scale for each token.
        qdtype: the dtype of q, or a packed one.
        qdtype_of: the operand or option that qdtype was read from.
    """
    if qdtype_of == "q" and qdtype not in PACKED:
        descriptor_type = DequantizeBackwardDescriptor if scale_shape is not None else DequantizePerTokenBackwardDescriptor
        require_qdtype(descriptor_type.family, qdtype)
    with of_operands(shape="dy", dtype="dy", qdtype=qdtype_of, scale_shape="scale", scale_dtype="scale"):
        if scale_shape is None:
            per_token = DequantizePerTokenBackwardDescriptor(shape, dtype, qdtype, scale_dtype)
            return DequantizePerTokenBackwardPlan.select(per_token, device)
        require_blocks(DequantizeBackwardDescriptor.family, "dy", shape, scale_shape)
        descriptor = DequantizeBackwardDescriptor(shape, dtype, scale_shape, scale_dtype, qdtype)
        return DequantizeBackwardPlan.select(descriptor, device)


def _gradients(
    op: str,
    dy: DLPackArray,
    scale: DLPackArray,
    q: DLPackArray | None,
    zero_point: DLPackArray | None,
    qdtype: QuantizedDType | None,
    out: Outputs,
) -> DLPackArray | tuple[DLPackArray, ...]:
    """Both functions, which ``op`` tells apart."""
    grad, scales = require_array(op, "dy", dy), require_array(op, "scale", scale)
    codes = None if q is None else require_codes(op, q)
    zeros = None if zero_point is None else require_array(op, "zero_point", zero_point)
    blocks = None if op == DequantizePerTokenBackwardDescriptor.family else tuple(scales.shape)
    problem = tuple(grad.shape), grad.dtype, blocks, scales.dtype
    if codes is None:
        plan = _plan.cached(dequantize_backward_plan, *problem, "int8" if qdtype is None else qdtype, device_of(grad), "qdtype")
    else:
        packed = packed_of(op, codes.dtype, qdtype)
        plan = dequantize_backward_plan(*problem, packed or codes.dtype, device_of(grad))
        codes = codes if packed is None else adjacent(codes)
    rows = gradient_rows(grad, None if codes is None else scales, zeros)
    outputs: dict[str, DLPackArray] = _outputs.outputs(plan, grad, rows, out)
    plan.run(dy=grad, scale=scales, q=codes, zero_point=zeros, **outputs)
    return outputs["dx"] if codes is None else tuple(outputs.values())


@overload
def dequantize_backward(
    dy: ArrayT, scale: DLPackArray, *, q: None = ..., zero_point: DLPackArray | None = ...,
    qdtype: QuantizedDType | None = ..., out: Outputs = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def dequantize_backward(
    dy: ArrayT, scale: ScaleT, *, q: DLPackArray, zero_point: None = ..., qdtype: QuantizedDType | None = ...,
    out: Outputs = ...,
) -> tuple[ArrayT, ScaleT]: ...  # fmt: skip
@overload
def dequantize_backward(
    dy: ArrayT, scale: DLPackArray, *, q: DLPackArray, zero_point: DLPackArray, qdtype: QuantizedDType | None = ...,
    out: Outputs = ...,
) -> tuple[ArrayT, ...]: ...  # fmt: skip
def dequantize_backward(
    dy: DLPackArray,
    scale: DLPackArray,
    *,
    q: DLPackArray | None = None,
    zero_point: DLPackArray | None = None,
    qdtype: QuantizedDType | None = None,
    out: Outputs = None,
) -> DLPackArray | tuple[DLPackArray, ...]:
    """Gradients of ``x = (q - zero_point) * scale`` with numbers for blocks; :func:`dequantize` says which shapes scale has.

    ``dx = dy * scale`` is the gradient with respect to q in floating point. ``dscale``, the sums of ``dy * (q - zero_point)``
    over blocks, and ``dzero_point``, ``-scale`` times the sums of dy, are summed in a fixed order, in the same pass over dy.

    Args:
        dy: the upstream gradient; float32, float64, float16 or bfloat16.
        scale: one number for each block of dy, of dy's dtype or float32.
        q: the quantized values, of dy's shape or packed, in a dtype that :func:`dequantize` takes. If given, the sums are
            computed too.
        zero_point: of scale's shape, int8, uint8, int32, int64 or floating; None: 0.
        qdtype: the dtype of the quantized values; None: q's dtype. ``"int4"`` and ``"uint4"`` say that q is packed. Another
            dtype has to be q's own.
        out: arrays to write into: dx, or (dx, dscale[, dzero_point]) with q. None: new arrays of dy's library.

    Returns:
        dx; with q, the tuple (dx, dscale), or (dx, dscale, dzero_point) if zero_point is floating. Each gradient has the shape
        and dtype of its input; dx has the shape and dtype of dy.

    Raises:
        InvalidProblemError: an extent of scale that does not divide dy's; a qdtype that q cannot have; an odd last extent of dy
            with a packed qdtype; shapes, dtypes or devices that contradict each other.
        UnsupportedError: a dtype or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> dy, q = np.ones((2, 4), np.float32), np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int8)
        >>> dx, dscale = sw.dequantize_backward(dy, np.array([[0.5, 2.0]], np.float32), q=q)  # blocks of 2 x 2
        >>> dx[0], dscale
        (array([0.5, 0.5, 2. , 2. ], dtype=float32), array([[14., 22.]], dtype=float32))
    """
    return _gradients(DequantizeBackwardDescriptor.family, dy, scale, q, zero_point, qdtype, out)


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
    out: Outputs = None,
) -> DLPackArray | tuple[DLPackArray, ...]:
    """Gradients of ``x = (q - zero_point[n]) * scale[n]`` for token n.

    ``dx = dy * scale[n]`` is the gradient with respect to q in floating point. ``dscale[n] = sum_d dy * (q - zero_point[n])``
    and ``dzero_point[n] = -scale[n] * sum_d dy`` are summed in a fixed order, in the same pass over dy.

    Args:
        dy: the upstream gradient [..., D]; float32, float64, float16 or bfloat16.
        scale: [...] or [..., 1], of dy's dtype or float32.
        q: the quantized values [..., D], int8, uint8, float8_e4m3fn or float8_e5m2. If given, the per-token gradients
            are computed too.
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
    return _gradients(DequantizePerTokenBackwardDescriptor.family, dy, scale, q, zero_point, None, out)
