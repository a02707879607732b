"""Embedding bags of many tables (table-batched embedding), and their gradient."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from . import _plan
from ._descriptor import Descriptor
from ._types import BagMode, FloatDType, IndexDType, Optimizer

__all__ = [
    "EmbeddingBagsBackwardDescriptor",
    "EmbeddingBagsBackwardPlan",
    "EmbeddingBagsDescriptor",
    "EmbeddingBagsPlan",
]


@dataclasses.dataclass(frozen=True)
class EmbeddingBagsDescriptor(Descriptor):
    """Embedding bags of many tables at once (table-batched embedding), the problem of :class:`EmbeddingBagsPlan`.

    Args:
        num_tables: the number of tables.
        num_bags: the number of bags of each table, which are the rows of y.
        num_rows: the number of rows of all tables together.
        num_elements: the number of elements of weight: all tables end to end, and the gaps between them.
        num_columns: the number of columns of y, the sum of the widths of the tables.
        embedding_dim: the width of the widest table.
        total_indices: the number of positions of all bags of all tables together.
        dtype: the dtype of weight and y: float32, float64, float16 or bfloat16. Sample weights have it too, or float32.
        mode: "sum", "mean" or "max".
        index_dtype: the dtype of indices: int32 or int64.
        offset_dtype: the dtype of offsets: int32 or int64; None: ``index_dtype``.
        is_aligned: True: every table begins at, and every width is, a multiple of 16 bytes. A GPU then has 16-byte accesses.

    Raises:
        InvalidProblemError: a field of another type. ``EmbeddingBagsPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> descriptor = sw.EmbeddingBagsDescriptor(
        ...     num_tables=2, num_bags=32, num_rows=300, num_elements=100 * 8 + 200 * 4, num_columns=12, embedding_dim=8,
        ...     total_indices=640, dtype="float32",
        ... )
        >>> descriptor.shape
        (32, 12)
    """

    family: ClassVar[str] = "embedding_bags"

    num_tables: int
    num_bags: int
    num_rows: int
    num_elements: int
    num_columns: int
    embedding_dim: int
    total_indices: int
    dtype: FloatDType
    mode: BagMode = "sum"
    index_dtype: IndexDType = "int64"
    offset_dtype: IndexDType | None = None
    is_aligned: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of y and of dy, (num_bags, num_columns)."""
        return self.num_bags, self.num_columns


class EmbeddingBagsPlan(_plan.Plan[EmbeddingBagsDescriptor]):
    """Plan of embedding bags of many tables. ``select`` makes it and ``run`` executes it.

    T, B and N are the descriptor's ``num_tables``, ``num_bags`` and ``total_indices``.

    Operands:
        weight: input [num_elements], contiguous: the rows of all tables, table after table.
        indices: input [N], of ``index_dtype``: of all tables end to end; each counts the rows of its own table from 0.
        offsets: input [T * B + 1], of ``offset_dtype``: bag b of table t has the positions from ``offsets[t * B + b]`` up to
            the next offset. The first is 0, the last N.
        tables: input [T + 1, 3], int64, contiguous: the first row, the first element in weight and the first column in y of
            each table; in the last row the ends of these. A table has contiguous rows; between two tables there may be a gap.
        per_sample_weights: input [N], a factor of each position, in ``dtype`` or float32; only with mode "sum".
        y: output [B, num_columns]: bag b of table t is in row b, in the columns of table t.
        max_indices: output [B, num_columns], in ``index_dtype`` or int64: the row, of its table, that won for each element, or
            -1 in a bag without positions; only with mode "max", where it may be left out.

    On the CPU all integers are checked before anything is written. On CUDA bags with bad offsets are empty and bad indices
    contribute nothing, but ``tables`` is trusted, unless STERNWAY_CHECK=1. Numbers are those of :class:`EmbeddingBagPlan` for
    each table.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.EmbeddingBagsDescriptor(
        ...     num_tables=2, num_bags=1, num_rows=5, num_elements=8, num_columns=3, embedding_dim=2, total_indices=3,
        ...     dtype="float64",
        ... )
        >>> plan = sw.EmbeddingBagsPlan.select(descriptor)
        >>> weight = np.array([1.0, 2.0, 10.0, 20.0, 100.0, 200.0, 3.0, 4.0])  # 3 rows of 2 columns, then 2 rows of 1
        >>> tables = np.array([[0, 0, 0], [3, 6, 2], [5, 8, 3]])
        >>> y = np.empty((1, 3))
        >>> plan.run(weight=weight, indices=np.array([2, 0, 1]), offsets=np.array([0, 2, 3]), tables=tables, y=y)
        >>> y.tolist()
        [[101.0, 202.0, 4.0]]
    """

    descriptor_type = EmbeddingBagsDescriptor


@dataclasses.dataclass(frozen=True)
class EmbeddingBagsBackwardDescriptor(EmbeddingBagsDescriptor):
    """The backward of embedding bags of many tables, the problem of :class:`EmbeddingBagsBackwardPlan`.

    Args:
        num_tables, num_bags, num_rows, num_elements, num_columns: as of :class:`EmbeddingBagsDescriptor`.
        embedding_dim, total_indices, dtype, mode, index_dtype, offset_dtype, is_aligned: likewise.
        optimizer, stochastic_rounding: as of :class:`EmbeddingBagBackwardDescriptor`.

    Raises:
        InvalidProblemError: a field of another type. ``EmbeddingBagsBackwardPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> descriptor = sw.EmbeddingBagsBackwardDescriptor(
        ...     num_tables=2, num_bags=4, num_rows=5, num_elements=8, num_columns=3, embedding_dim=2, total_indices=12,
        ...     dtype="float32", optimizer="adam",
        ... )
        >>> descriptor.shape
        (4, 3)
    """

    family: ClassVar[str] = "embedding_bags_backward"

    optimizer: Optimizer | None = None
    stochastic_rounding: bool = False


class EmbeddingBagsBackwardPlan(_plan.Plan[EmbeddingBagsBackwardDescriptor]):
    """Plan of the backward of :class:`EmbeddingBagsPlan`. ``select`` makes it and ``run`` executes it.

    T, B and N are the descriptor's ``num_tables``, ``num_bags`` and ``total_indices``.

    Operands:
        dy: input [B, num_columns], contiguous, the upstream gradient.
        indices, offsets, tables, per_sample_weights: inputs of the forward.
        max_indices: input [B, num_columns], in ``index_dtype`` or int64, as the forward wrote it; needed with mode "max".
        weight: input [num_elements], contiguous; needed for d_per_sample_weights.
        dweight: output [num_elements], contiguous; may be left out. The gradient of a gap between two tables is 0.
        d_per_sample_weights: output [N], in ``dtype`` or float32; only with mode "sum"; may be left out.
        weight, options, sum, exp_avg, exp_avg_sq: with an optimizer, in place of dweight, as of
            :class:`EmbeddingBagBackwardPlan`; a state has ``num_elements`` numbers, that of "rowwise_adagrad" ``num_rows``.

    Sums are those of :class:`EmbeddingBagBackwardPlan` for each table, in the order of positions, so the bits repeat. On a GPU
    one sort has the rows of all tables, so that there may be 2^31 - 2 of them at most.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.EmbeddingBagsBackwardDescriptor(
        ...     num_tables=2, num_bags=1, num_rows=5, num_elements=8, num_columns=3, embedding_dim=2, total_indices=3,
        ...     dtype="float64",
        ... )
        >>> plan = sw.EmbeddingBagsBackwardPlan.select(descriptor)
        >>> tables = np.array([[0, 0, 0], [3, 6, 2], [5, 8, 3]])  # 3 rows of 2 columns, then 2 rows of 1
        >>> indices, offsets, dweight = np.array([2, 0, 1]), np.array([0, 2, 3]), np.empty(8)
        >>> plan.run(dy=np.array([[1.0, 2.0, 3.0]]), indices=indices, offsets=offsets, tables=tables, dweight=dweight)
        >>> dweight.tolist()
        [1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0, 3.0]
    """

    descriptor_type = EmbeddingBagsBackwardDescriptor
