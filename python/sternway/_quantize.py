"""Parts that dequantization and fake quantization share: the blocks of a scale, names in errors, outputs of backwards.

A block is the elements that share a number of the scale. The scale has the rank of x and in each dimension an extent that
divides that of x, or rank 0; element i of a dimension has the number i // (extent of x / extent of the scale). A scale for each
token, which is one index of the leading dimensions, is that of extent 1 in the last dimension, which may be left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, get_args

from . import errors
from ._arrays import Array, dtype_name, library_of, require_array
from ._descriptor import normalized
from ._dtypes import DTYPES
from ._types import DLPackArray, FloatName, QuantizedDType, QuantizedName

ScaleT = TypeVar("ScaleT", bound=DLPackArray)
ZeroPointT = TypeVar("ZeroPointT", bound=DLPackArray)

_FLOATS = get_args(FloatName)

QDTYPES = tuple(name for name in get_args(QuantizedName) if name in DTYPES)
"""The dtypes of quantized values that arrays have."""

PACKED = tuple(name for name in get_args(QuantizedName) if name not in DTYPES)
"""The others: uint8 arrays hold two values in a byte along the last dimension, in the lower four bits first."""


def divides(extent: int, whole: int) -> bool:
    """Whether an extent of a scale divides the one of x. 0 divides 0."""
    return whole % extent == 0 if extent else whole == 0


def is_blocks(shape: Sequence[int], scale: Sequence[int]) -> bool:
    """Whether a scale of a shape has a number for each block of a tensor of a shape."""
    if len(scale) == 0:
        return True
    return len(scale) == len(shape) and all(divides(e, n) for e, n in zip(scale, shape, strict=True))


def require_blocks(op: str, operand: str, shape: Sequence[int], scale: Sequence[int]) -> None:
    """Raise InvalidProblemError for the shape of a scale that :func:`is_blocks` denies.

    operand: the name of the tensor of that shape.
    """
    if is_blocks(shape, scale):
        return
    hint = ""
    if len(scale) != len(shape):
        wanted = f"of rank {len(shape)}, as {operand}, or of rank 0"
        if len(shape) == 2 and tuple(scale) == tuple(shape[:1]):
            hint = "scale[:, None] has a number for each row"
    else:
        wanted = f"of extents that divide those of {operand} ({list(shape)})"
    raise errors.make("invalid_problem", op, "scale", wanted, str(list(scale)), hint)


def extents_of(shape: Sequence[int], value: Sequence[int]) -> tuple[int, ...]:
    """The extents of a scale or zero point in each dimension of a tensor of a shape.

    value: the shape of the scale or zero point, of which extents of 1 at the end may be left out.
    """
    return (*value, *[1] * (len(shape) - len(value)))[: len(shape)]


def dimensions(shape: Sequence[int], extents: Sequence[int]) -> int:
    """The dimensions that blocks have to a plan, which takes 8.

    They are those of x, one more for each that the extents of the scale divide, and one if none is divided or shared.
    """
    divided = sum(extent not in (1, n) for extent, n in zip(extents, shape, strict=True))
    return len(shape) + divided + (bool(shape) and tuple(extents) == tuple(shape) and 1 not in extents)


@contextlib.contextmanager
def of_operands(**operands: str) -> Iterator[None]:
    """Rename errors about a field of a descriptor to the operand that the field was read from."""
    try:
        yield
    except errors.Error as error:
        if error.operand not in operands:
            raise
        raise errors.renamed(error, error.op, {error.operand: operands[error.operand]}) from None


def require_qdtype(op: str, q: Any) -> None:
    """Raise UnsupportedError for the dtype of an array that holds no quantized values."""
    name = dtype_name(q)
    if name in PACKED:
        raise errors.make("unsupported", op, "q", f"uint8, two values in a byte, with qdtype={name!r}", name)
    if name not in QDTYPES:
        raise errors.make("unsupported", op, "q", errors.any_of(QDTYPES), name)


def require_codes(op: str, q: Any) -> Array:
    """:func:`~sternway._arrays.require_array` for quantized values, which says how int4 and uint4 are given."""
    if library_of(q) == "numpy" and q.dtype.kind == "V" and q.dtype.name in PACKED:  # of ml_dtypes
        require_qdtype(op, q.dtype)
    return require_array(op, "q", q)


def packed_of(op: str, q: Any, qdtype: QuantizedDType | None) -> str | None:
    """The packed dtype that an option states. None: the quantized values have the dtype of their array.

    Args:
        q: the dtype of the array that has them; None: there is no array.
        qdtype: the option.

    Raises:
        InvalidProblemError: the array has none of the stated dtype.
    """
    if qdtype is None:
        return None
    stated, name = normalized(op, "qdtype", "dtype", qdtype), None if q is None else dtype_name(q)
    if stated in PACKED:
        if name not in (None, "uint8"):
            raise errors.make("invalid_problem", op, "q", f"uint8, two values in a byte, for {stated}", errors.shown(name))
        return str(stated)
    if name not in (None, stated):
        others = f", {errors.any_of(PACKED)}" if name == "uint8" else ""
        raise errors.make("invalid_problem", op, "qdtype", f"{name}, the dtype of q{others}", errors.shown(stated))
    return None


def unpacked_shape(op: str, q: Sequence[int], packed: str | None) -> tuple[int, ...]:
    """The shape of the quantized values in an array of shape q.

    packed: their dtype, if it is a packed one.

    Raises:
        InvalidProblemError: an array without the dimension along which values are packed.
    """
    if packed is None:
        return tuple(q)
    if not len(q):
        raise errors.make(
            "invalid_problem", op, "q", f"of rank 1 or more for {packed}, which has two values in a byte", "rank 0"
        )
    return (*q[:-1], 2 * q[-1])


def adjacent(q: Array) -> Array:
    """An array of bytes that are adjacent along the last dimension, as plans read packed values: q, or a copy of it."""
    library = library_of(q)
    if library is None or q.ndim == 0 or q.shape[-1] < 2:
        return q
    if library == "torch":
        return q if q.stride(-1) == 1 else q.new_empty(q.shape).copy_(q)  # contiguous() keeps the strides of an empty tensor
    return q if q.strides[-1] == 1 else q.copy()


def gradient_rows(dy: Array, scale: Array | None, zero_point: Array | None) -> list[tuple[str, Array, None]]:
    """The names of the gradients, each with the array whose shape and dtype it has. Sums over blocks need a scale."""
    rows = [("dx", dy, None)]
    if scale is not None:
        rows.append(("dscale", scale, None))
        if zero_point is not None and dtype_name(zero_point.dtype) in _FLOATS:
            rows.append(("dzero_point", zero_point, None))
    return rows
