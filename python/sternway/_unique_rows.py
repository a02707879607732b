"""The distinct rows of a table that an array of indices names."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, ClassVar, overload

from . import _outputs, _plan, errors
from ._arrays import device_of, require_array
from ._descriptor import Descriptor
from ._types import ArrayT, IndexDType

if TYPE_CHECKING:
    from numpy import dtype, int64, ndarray

    Ints = ndarray[tuple[int], dtype[int64]]

__all__ = ["UniqueRowsDescriptor", "UniqueRowsPlan", "unique_rows"]


@dataclasses.dataclass(frozen=True)
class UniqueRowsDescriptor(Descriptor):
    """Find the distinct rows that indices name: the problem of :func:`unique_rows`.

    Args:
        num_rows: the number of rows of the table; indices are in [0, num_rows).
        total: the number of indices.
        index_dtype: the dtype of the indices, int32 or int64.
        padding_idx: a row that is not counted; a negative one counts from the end. None: there is none.

    Raises:
        InvalidProblemError: a field of another type. ``UniqueRowsPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.UniqueRowsDescriptor(num_rows=9, total=5, index_dtype="int32").index_dtype
        'int32'
    """

    family: ClassVar[str] = "unique_rows"

    num_rows: int
    total: int
    index_dtype: IndexDType = "int64"
    padding_idx: int | None = None

    @property
    def shape(self) -> tuple[int]:
        """The shape of indices, (total,)."""
        return (self.total,)


class UniqueRowsPlan(_plan.Plan[UniqueRowsDescriptor]):
    """Plan of :func:`unique_rows`. ``select`` makes it and ``run`` executes it.

    Operands:
        indices: input [total], of the descriptor's ``index_dtype``.
        rows: output [min(num_rows, total)], int64: the distinct rows in rising order, then -1.
        inverse: output [total], int32, or int64 if num_rows or total is 2^31 - 1 or more: the place of each index among rows.
        count: output [1], int64: the number of distinct rows.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.UniqueRowsPlan.select(sw.UniqueRowsDescriptor(num_rows=9, total=4))
        >>> rows, inverse, count = np.empty(4, np.int64), np.empty(4, np.int32), np.empty(1, np.int64)
        >>> plan.run(indices=np.array([7, 1, 7, 4]), rows=rows, inverse=inverse, count=count)
        >>> rows, inverse, count
        (array([ 1,  4,  7, -1]), array([2, 0, 2, 1], dtype=int32), array([3]))
    """

    descriptor_type = UniqueRowsDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # True is no 1
def _unique_rows_plan(rows: int, total: int, index: IndexDType, padding: int | None, device: str) -> UniqueRowsPlan:
    return UniqueRowsPlan.select(UniqueRowsDescriptor(rows, total, index, padding), device)


@overload
def unique_rows(
    indices: ndarray[Any, Any], num_rows: int, *, padding_idx: int | None = ...
) -> tuple[Ints, ndarray[tuple[int], dtype[Any]], Ints]: ...
@overload
def unique_rows(indices: ArrayT, num_rows: int, *, padding_idx: int | None = ...) -> tuple[ArrayT, ArrayT, ArrayT]: ...
@errors.reported_as("unique_rows", {"index_dtype": "indices", "total": "indices"})
def unique_rows(indices: Any, num_rows: int, *, padding_idx: int | None = None) -> tuple[Any, Any, Any]:
    """Find the distinct rows that indices name, without waiting for the device.

    This is ``torch.unique(indices, return_inverse=True)`` for numbers in [0, num_rows), with outputs whose shapes do not depend
    on the values.

    Args:
        indices: [total], int32 or int64.
        num_rows: the number of rows of the table.
        padding_idx: a row that is not counted; a negative one counts from the end.

    Returns:
        three arrays in a tuple:

        - rows, [min(num_rows, total)] int64: the distinct rows in rising order, then -1.
        - inverse, [total] int32, or int64 if num_rows or total is 2^31 - 1 or more: the place of each index among rows. With a
          padding_idx places count from 1, and its own place is 0.
        - count, [1] int64: the number of distinct rows.

    Raises:
        InvalidProblemError: indices that are not of rank 1, a padding_idx that is no row; on the CPU also an index outside
            [0, num_rows). On CUDA such an index is not counted and its place is -1, unless STERNWAY_CHECK=1.
        UnsupportedError: another dtype, a device without kernels; on CUDA also 2^31 - 1 rows or indices, or more.
        TypeError: indices are no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> rows, inverse, count = sw.unique_rows(np.array([7, 1, 7, 4, 1]), 9)
        >>> rows, inverse, count
        (array([ 1,  4,  7, -1, -1]), array([2, 0, 2, 1, 0], dtype=int32), array([3]))
    """
    op = "unique_rows"
    indices = require_array(op, "indices", indices)
    if len(indices.shape) != 1:
        raise errors.make("invalid_problem", op, "indices", "of rank 1", f"rank {len(indices.shape)}")
    total = indices.shape[0]
    plan = _plan.cached(_unique_rows_plan, num_rows, total, indices.dtype, padding_idx, device_of(indices))
    rows = plan.descriptor.num_rows
    places = "int32" if max(rows, total) < 2**31 - 1 else "int64"
    shapes = ("rows", (min(rows, total),), "int64"), ("inverse", (total,), places), ("count", (1,), "int64")
    outputs = _outputs.outputs(plan, indices, shapes, None)
    plan.run(indices=indices, **outputs)
    return outputs["rows"], outputs["inverse"], outputs["count"]
