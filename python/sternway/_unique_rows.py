"""The rows of a table that occur among indices, and which of them each index is."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from . import _plan, errors
from ._arrays import Array, device_of, require_array
from ._descriptor import Descriptor


@dataclasses.dataclass(frozen=True)
class UniqueRowsDescriptor(Descriptor):
    """The rows that occur among indices.

    Args:
        num_rows: rows of the table; indices are in [0, num_rows).
        total: how many indices there are.
        index_dtype: int32 or int64.
        padding_idx: the row that does not count; negative ones are counted from the end.
    """

    family: ClassVar[str] = "unique_rows"

    num_rows: int
    total: int
    index_dtype: Any = "int64"
    padding_idx: int | None = None

    @property
    def shape(self) -> tuple[int]:
        """Of indices: what the plan shows as its shape."""
        return (self.total,)


class UniqueRowsPlan(_plan.Plan[UniqueRowsDescriptor]):
    """Finds what :func:`unique_rows` returns.

    Operands of run: ``indices [total] -> rows [min(num_rows, total)] int64, inverse [total] int32, count [1] int64``, all of
    them written completely. Kernels: "single", one block for few rows and indices, and "marked".
    """

    descriptor_type = UniqueRowsDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # True is no 1
def _unique_rows_plan(rows: int, total: int, index: Any, padding: int | None, device: str) -> UniqueRowsPlan:
    return UniqueRowsPlan.select(UniqueRowsDescriptor(rows, total, index, padding), device)


@errors.reported_as("unique_rows")
def unique_rows(indices: Array, num_rows: int, *, padding_idx: int | None = None) -> tuple[Array, Array, Array]:
    """Find the rows that occur among indices, without waiting for the device.

    ``torch.unique(indices, return_inverse=True)`` of numbers in [0, num_rows), in arrays whose shapes do not depend on them.

    Args:
        indices: [total], int32 or int64.
        num_rows: of the table that the indices are of.
        padding_idx: a row that does not count; negative ones are counted from the end.

    Returns:
        rows, [min(num_rows, total)] int64: the rows that occur, rising, then -1.
        inverse, [total] int32, or int64 where num_rows or total are 2^31 - 1 or more: the place of each index among rows.
        With padding_idx places are counted from 1, and 0 is that of padding_idx.
        count, [1] int64: how many rows occur.

    Raises:
        InvalidProblemError: indices that are not of rank 1, a padding_idx that is no row; on the CPU also an index outside
            [0, num_rows). On CUDA such an index counts nowhere and its place is -1, unless STERNWAY_CHECK=1.
        UnsupportedError: another dtype, a device without kernels; on CUDA also 2^31 - 1 rows or indices, or more.

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
    plan = _unique_rows_plan(num_rows, total, indices.dtype, padding_idx, device_of(indices))
    rows = plan.descriptor.num_rows
    places = "int32" if max(rows, total) < 2**31 - 1 else "int64"
    shapes = ("rows", (min(rows, total),), "int64"), ("inverse", (total,), places), ("count", (1,), "int64")
    outputs = _plan.outputs(plan, indices, shapes, None)
    plan.run(indices=indices, **outputs)
    return outputs["rows"], outputs["inverse"], outputs["count"]
