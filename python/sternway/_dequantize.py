"""Dequantization, with a scale for each token or for blocks of any shape, which ``_quantize`` defines."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, overload

from . import _outputs, _plan
from ._arrays import device_of, require_array
from ._descriptor import Descriptor, normalized
from ._quantize import PACKED, adjacent, of_operands, packed_of, require_blocks, require_codes, require_qdtype, unpacked_shape
from ._types import ArrayT, DLPackArray, DTypeT, FloatDType, QuantizedDType, ShapeT

if TYPE_CHECKING:
    from numpy import dtype as numpy_dtype
    from numpy import ndarray

__all__ = [
    "DequantizeDescriptor",
    "DequantizePerTokenDescriptor",
    "DequantizePerTokenPlan",
    "DequantizePlan",
    "dequantize",
    "dequantize_per_token",
]


@dataclasses.dataclass(frozen=True)
class BaseDequantizeDescriptor(Descriptor):
    """The fields of DequantizeDescriptor and DequantizeBackwardDescriptor."""

    shape: Sequence[int]
    dtype: FloatDType
    scale_shape: Sequence[int]
    scale_dtype: FloatDType | None = None
    qdtype: QuantizedDType = "int8"


@dataclasses.dataclass(frozen=True)
class DequantizeDescriptor(BaseDequantizeDescriptor):
    """``y = (q - zero_point) * scale`` with numbers for blocks of any shape, the problem of :func:`dequantize`.

    Args:
        shape: the shape of y, and of the quantized values.
        dtype: the dtype of y: float32, float64, float16 or bfloat16.
        scale_shape: the shape of scale and zero_point: of the rank of ``shape``, each extent a divisor; or of rank 0.
        scale_dtype: the dtype of scale: None for ``dtype``, or float32.
        qdtype: the dtype of the quantized values: int8, uint8, float8_e4m3fn, float8_e5m2, int4 or uint4. The last two are
            packed: q is uint8 with half the last extent of ``shape``. A byte has two values, the first in its lower four bits.
            int4 is in two's complement.

    Raises:
        InvalidProblemError: a field of another type. ``DequantizePlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.DequantizeDescriptor((4, 64), "float32", scale_shape=(4, 2)).scale_shape  # groups of 32
        (4, 2)
    """

    family: ClassVar[str] = "dequantize"


class DequantizePlan(_plan.Plan[DequantizeDescriptor]):
    """Plan of :func:`dequantize`. ``select`` makes it and ``run`` executes it.

    Shapes and dtypes are of the descriptor: ``shape``, ``scale_shape``, ``dtype``, ``qdtype`` and ``scale_dtype``.

    Operands:
        q: input of ``shape``, the quantized values. Packed ones: uint8 with half the last extent, along which bytes are
            adjacent.
        scale: input of ``scale_shape``.
        zero_point: input of ``scale_shape``, int8, uint8, int32, int64 or floating; left out: 0.
        y: output of ``shape``, ``(q - zero_point) * scale``.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.DequantizePlan.select(sw.DequantizeDescriptor((1, 4), "float32", scale_shape=(1, 2)))
        >>> q, y = np.array([[1, -2, 3, 4]], np.int8), np.empty((1, 4), np.float32)
        >>> plan.run(q=q, scale=np.array([[0.5, 2.0]], np.float32), y=y)
        >>> y.tolist()
        [[0.5, -1.0, 6.0, 8.0]]
    """

    descriptor_type = DequantizeDescriptor


@dataclasses.dataclass(frozen=True)
class BasePerTokenDescriptor(Descriptor):
    """The fields of DequantizePerTokenDescriptor and DequantizePerTokenBackwardDescriptor."""

    shape: Sequence[int]
    dtype: FloatDType
    qdtype: QuantizedDType = "int8"
    scale_dtype: FloatDType | None = None


@dataclasses.dataclass(frozen=True)
class DequantizePerTokenDescriptor(BasePerTokenDescriptor):
    """``y = (q - zero_point[n]) * scale[n]`` for token n, the problem of :func:`dequantize_per_token`.

    Args:
        shape: the shape [..., D] of q and y; the leading dimensions are the tokens.
        dtype: the dtype of y: float32, float64, float16 or bfloat16.
        qdtype: the dtype of the quantized values, as for :class:`DequantizeDescriptor`.
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


@functools.lru_cache(maxsize=1024, typed=True)
def dequantize_plan(
    shape: tuple[int, ...],
    dtype: FloatDType,
    scale_shape: tuple[int, ...] | None,
    scale_dtype: FloatDType,
    qdtype: QuantizedDType,
    device: str,
    dtype_of: str = "dtype",
) -> DequantizePlan | DequantizePerTokenPlan:
    """The plan of a problem, from a cache.

    Args:
        shape: of the quantized values.
        scale_shape: None: a scale for each token.
        qdtype: the dtype of q, or a packed one.
        dtype_of: the operand or option that dtype was read from.
    """
    is_packed = qdtype in PACKED
    if not is_packed:
        require_qdtype((DequantizeDescriptor if scale_shape is not None else DequantizePerTokenDescriptor).family, qdtype)
    with of_operands(shape="q", dtype=dtype_of, qdtype="q", scale_shape="scale", scale_dtype="scale"):
        if scale_shape is None:
            return DequantizePerTokenPlan.select(DequantizePerTokenDescriptor(shape, dtype, qdtype, scale_dtype), device)
        require_blocks(DequantizeDescriptor.family, "the values of q" if is_packed else "q", shape, scale_shape)
        return DequantizePlan.select(DequantizeDescriptor(shape, dtype, scale_shape, scale_dtype, qdtype), device)


def _dequantize(
    op: str,
    q: DLPackArray,
    scale: DLPackArray,
    zero_point: DLPackArray | None,
    dtype: FloatDType | None,
    qdtype: QuantizedDType | None,
    out: DLPackArray | None,
) -> DLPackArray:
    """Both functions, which ``op`` tells apart."""
    codes, scales = require_codes(op, q), require_array(op, "scale", scale)
    zero_point = zero_point if zero_point is None else require_array(op, "zero_point", zero_point)
    element, dtype_of = (scales.dtype, "scale") if dtype is None else (normalized(op, "dtype", "dtype", dtype), "dtype")
    blocks = None if op == DequantizePerTokenDescriptor.family else tuple(scales.shape)
    packed = packed_of(op, codes.dtype, qdtype)
    shape = unpacked_shape(op, codes.shape, packed)
    plan = dequantize_plan(shape, element, blocks, scales.dtype, packed or codes.dtype, device_of(codes), dtype_of)
    codes = codes if packed is None else adjacent(codes)
    outputs: dict[str, DLPackArray] = _outputs.outputs(plan, codes, [("y", shape if packed else codes, plan.sku.element)], out)
    plan.run(q=codes, scale=scales, zero_point=zero_point, **outputs)
    return outputs["y"]


@overload
def dequantize(
    q: ndarray[ShapeT, Any], scale: ndarray[Any, DTypeT], zero_point: DLPackArray | None = ..., dtype: None = ..., *,
    qdtype: QuantizedDType | None = ..., out: None = ...,
) -> ndarray[ShapeT, DTypeT]: ...  # fmt: skip
@overload
def dequantize(
    q: ndarray[ShapeT, Any], scale: DLPackArray, zero_point: DLPackArray | None = ..., dtype: FloatDType | None = ..., *,
    qdtype: QuantizedDType | None = ..., out: None = ...,
) -> ndarray[ShapeT, numpy_dtype[Any]]: ...  # fmt: skip
@overload
def dequantize(
    q: ArrayT, scale: DLPackArray, zero_point: DLPackArray | None = ..., dtype: FloatDType | None = ..., *,
    qdtype: QuantizedDType | None = ..., out: None = ...,
) -> ArrayT: ...  # fmt: skip
@overload
def dequantize(
    q: DLPackArray, scale: DLPackArray, zero_point: DLPackArray | None = ..., dtype: FloatDType | None = ..., *,
    qdtype: QuantizedDType | None = ..., out: ArrayT,
) -> ArrayT: ...  # fmt: skip
def dequantize(
    q: DLPackArray,
    scale: DLPackArray,
    zero_point: DLPackArray | None = None,
    dtype: FloatDType | None = None,
    *,
    qdtype: QuantizedDType | None = None,
    out: DLPackArray | None = None,
) -> DLPackArray:
    """Dequantize with a scale for each block: ``y = (q - zero_point) * scale``.

    scale has the rank of the values and in each dimension an extent that divides theirs, or rank 0. Element i of a dimension
    uses the number ``i // (extent of the values / extent of scale)``. For values [T, D]: per tensor [] or [1, 1], per token
    [T, 1], per channel [1, D], per group of g elements [T, D / g], per block of 128 x 128 [T / 128, D / 128].

    The difference and the product are formed in float32, or in float64 for a float64 result, and y is rounded once.

    Args:
        q: the quantized values, int8, uint8, float8_e4m3fn or float8_e5m2, of any shape; or uint8 [..., D / 2], which holds
            values [..., D] of 4 bits.
        scale: one number for each block, of the dtype of y or float32. Its extents divide those of the values, not of bytes.
        zero_point: of scale's shape, int8, uint8, int32, int64 or floating; None: 0.
        dtype: the dtype of y: float32, float64, float16 or bfloat16; None: scale's dtype.
        qdtype: the dtype of the quantized values; None: q's dtype. ``"int4"`` (two's complement) and ``"uint4"`` say that a
            byte of q has two values, the first in its lower four bits. Another dtype has to be q's own.
        out: an array to write into. None: a new array of q's library, in the memory layout of q, or contiguous for values of 4
            bits.

    Returns:
        y, of the shape of the values.

    Raises:
        InvalidProblemError: an extent of scale that does not divide that of the values; a qdtype that q cannot have; shapes,
            dtypes or devices that contradict each other.
        UnsupportedError: a dtype or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> q, scale = np.array([[1, -2, 3, 4]], np.int8), np.array([[0.5, 2.0]], np.float32)  # groups of 2
        >>> sw.dequantize(q, scale, np.array([[1, 0]], np.int8)).tolist()
        [[0.0, -1.5, 6.0, 8.0]]
        >>> packed = np.array([[0xE1, 0x43]], np.uint8)  # 1, -2, 3, 4
        >>> sw.dequantize(packed, scale, qdtype="int4").tolist()
        [[0.5, -1.0, 6.0, 8.0]]
    """
    return _dequantize(DequantizeDescriptor.family, q, scale, zero_point, dtype, qdtype, out)


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
        q: the quantized values [..., D], int8, uint8, float8_e4m3fn or float8_e5m2.
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
    return _dequantize(DequantizePerTokenDescriptor.family, q, scale, zero_point, dtype, None, out)
