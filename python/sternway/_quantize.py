"""Parts that per-token dequantization and fake quantization share: names in errors, and the outputs of their backwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar, get_args

from . import errors
from ._arrays import Array, dtype_name
from ._types import DLPackArray, FloatName

ScaleT = TypeVar("ScaleT", bound=DLPackArray)
ZeroPointT = TypeVar("ZeroPointT", bound=DLPackArray)

_FLOATS = get_args(FloatName)


@contextlib.contextmanager
def of_operands(**operands: str) -> Iterator[None]:
    """Rename errors about a field of a descriptor to the operand that the field was read from."""
    try:
        yield
    except errors.Error as error:
        if error.operand not in operands:
            raise
        raise errors.renamed(error, error.op, {error.operand: operands[error.operand]}) from None


def gradient_rows(dy: Array, scale: Array | None, zero_point: Array | None) -> list[tuple[str, Array, None]]:
    """The names of the gradients, each with the array whose shape and dtype it has. Per-token gradients need a scale."""
    rows = [("dx", dy, None)]
    if scale is not None:
        rows.append(("dscale", scale, None))
        if zero_point is not None and dtype_name(zero_point.dtype) in _FLOATS:
            rows.append(("dzero_point", zero_point, None))
    return rows
