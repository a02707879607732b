"""The gradient of embedding bags of many tables."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from . import _plan
from ._embedding_bag_forward import EmbeddingBagsDescriptor
from ._types import Optimizer

__all__ = ["EmbeddingBagsBackwardDescriptor", "EmbeddingBagsBackwardPlan"]


@dataclasses.dataclass(frozen=True)
class EmbeddingBagsBackwardDescriptor(EmbeddingBagsDescriptor):
    """The backward of embedding bags of many tables.

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

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of dy, (num_bags, num_columns)."""
        return self.num_bags, self.num_columns


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
