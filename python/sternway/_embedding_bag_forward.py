"""Embedding bags forward: row b is the sum, mean or maximum of ``weight[indices[i]]`` over positions i of bag b."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Literal, overload

from . import _outputs, _plan, errors
from ._arrays import device_of, dtype_name, require_array
from ._bag_arguments import flag, flat_positions, flat_weights
from ._descriptor import Descriptor
from ._types import ArrayT, BagMode, DLPackArray, FloatDType, IndexDType

__all__ = ["EmbeddingBagDescriptor", "EmbeddingBagPlan", "embedding_bag"]


@dataclasses.dataclass(frozen=True)
class EmbeddingBagDescriptor(Descriptor):
    """An embedding bag, the problem of :func:`embedding_bag`.

    Args:
        num_embeddings, embedding_dim: the shape [V, D] of weight.
        num_bags: the number of bags, which are the rows of y.
        total_indices: the number of positions of all bags together.
        dtype: the dtype of weight and y: float32, float64, float16 or bfloat16. Sample weights have it too, or float32.
        mode: "sum", "mean" or "max".
        index_dtype: the dtype of indices: int32 or int64.
        offset_dtype: the dtype of offsets: int32 or int64; None: ``index_dtype``.
        padding_idx: a row that is not counted; a negative one counts from the end. None: there is none.
        include_last_offset: True: offsets has one more element, the end of the last bag.

    Raises:
        InvalidProblemError: a field of another type. ``EmbeddingBagPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> descriptor = sw.EmbeddingBagDescriptor(
        ...     num_embeddings=1000, embedding_dim=64, num_bags=32, total_indices=640, dtype="float32", mode="mean"
        ... )
        >>> descriptor.shape
        (32, 64)
    """

    family: ClassVar[str] = "embedding_bag"

    num_embeddings: int
    embedding_dim: int
    num_bags: int
    total_indices: int
    dtype: FloatDType
    mode: BagMode = "sum"
    index_dtype: IndexDType = "int64"
    offset_dtype: IndexDType | None = None
    padding_idx: int | None = None
    include_last_offset: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of y, (num_bags, embedding_dim)."""
        return self.num_bags, self.embedding_dim


class EmbeddingBagPlan(_plan.Plan[EmbeddingBagDescriptor]):
    """Plan of :func:`embedding_bag`. ``select`` makes it and ``run`` executes it.

    B, V, D and N are the descriptor's ``num_bags``, ``num_embeddings``, ``embedding_dim`` and ``total_indices``.

    Operands:
        weight: input [V, D], the table.
        indices: input [N], rows of weight, of the descriptor's ``index_dtype``.
        offsets: input [B], or [B + 1] with ``include_last_offset``: the position at which each bag begins, of ``offset_dtype``.
        per_sample_weights: input [N], a factor of each position, in ``dtype`` or float32; only with mode "sum".
        y: output [B, D].
        max_indices: output [B, D], in ``index_dtype`` or int64: the row that won for each element, or -1 in a bag without
            counted positions; only with mode "max", where it may be left out.

    The formulas, and what becomes of bad offsets and indices, are in :func:`embedding_bag`. Sums are made in the order of
    positions, in float32 on CUDA (float64 for a float64 table) and in float64 on the CPU, and are rounded once, so the bits
    repeat from run to run. Extents are 64-bit on the CPU. On a GPU each is less than 2^31 - 1, and ``select`` raises
    UnsupportedError for more. A run is one launch, without a workspace.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.EmbeddingBagDescriptor(
        ...     num_embeddings=3, embedding_dim=2, num_bags=2, total_indices=3, dtype="float64"
        ... )
        >>> plan = sw.EmbeddingBagPlan.select(descriptor)
        >>> weight, y = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]]), np.empty((2, 2))
        >>> plan.run(weight=weight, indices=np.array([2, 0, 2]), offsets=np.array([0, 1]), y=y)
        >>> y.tolist()
        [[100.0, 200.0], [101.0, 202.0]]
    """

    descriptor_type = EmbeddingBagDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # as 1 is no flag, though it equals True
def _forward_plan(
    rows: int, dim: int, bags: int, total: int, dtype: FloatDType, mode: BagMode, index: IndexDType, offset: IndexDType,
    padding: int | None, last: bool, device: str,
) -> EmbeddingBagPlan:  # fmt: skip
    descriptor = EmbeddingBagDescriptor(rows, dim, bags, total, dtype, mode, index, offset, padding, last)
    return EmbeddingBagPlan.select(descriptor, device)


# The function's names of the plan's outputs, and the arguments from which the fields of its descriptor are read.
_OUTPUTS = {"y": "out", "max_indices": "out"}
_SOURCES = {
    "dtype": "weight", "[num_embeddings, embedding_dim]": "weight", "[num_embeddings]": "weight", "num_embeddings": "weight",
    "embedding_dim": "weight", "[num_bags, embedding_dim]": "weight", "[num_bags]": "offsets", "num_bags": "offsets",
    "index_dtype": "indices", "[total_indices]": "indices", "total_indices": "indices", "offset_dtype": "offsets",
}  # fmt: skip


def _planned(*fields: Any) -> EmbeddingBagPlan:
    """The plan of these fields, from a cache."""
    try:
        return _plan.cached(_forward_plan, *fields)
    except errors.Error as error:
        error.operand = _SOURCES.get(error.operand, error.operand)
        raise errors.renamed(error, error.op) from error.__cause__


@overload
def embedding_bag(
    weight: ArrayT, indices: DLPackArray, offsets: DLPackArray | None = None, *, mode: Literal["sum", "mean"] = "sum",
    per_sample_weights: DLPackArray | None = None, padding_idx: int | None = None, include_last_offset: bool = False,
    out: ArrayT | None = None,
) -> ArrayT: ...  # fmt: skip
@overload
def embedding_bag(
    weight: ArrayT, indices: DLPackArray, offsets: DLPackArray | None = None, *, mode: Literal["max"],
    per_sample_weights: None = None, padding_idx: int | None = None, include_last_offset: bool = False,
    out: tuple[ArrayT, ArrayT] | None = None,
) -> tuple[ArrayT, ArrayT]: ...  # fmt: skip
@errors.reported_as("embedding_bag", _OUTPUTS)
def embedding_bag(
    weight: ArrayT,
    indices: DLPackArray,
    offsets: DLPackArray | None = None,
    *,
    mode: BagMode = "sum",
    per_sample_weights: DLPackArray | None = None,
    padding_idx: int | None = None,
    include_last_offset: bool = False,
    out: Any = None,
) -> Any:
    """Bags of rows of a table: ``y[b]`` reduces ``weight[indices[i]]`` over the positions i of bag b.

    Mode "sum": ``y[b]`` sums ``per_sample_weights[i] * weight[indices[i]]``. Mode "mean" divides the sum by the number of
    counted positions of the bag. Mode "max" takes the maximum of each column; the first of equal values wins, and a NaN only
    if it comes first, as in torch. Positions that hold ``padding_idx`` are not counted. A bag without counted positions is 0.

    Args:
        weight: the table [V, D]; float32, float64, float16 or bfloat16, in any layout.
        indices: rows of weight, int32 or int64: [positions] with offsets, or [bags, positions of a bag].
        offsets: [bags], the position at which each bag begins, starting with 0; int32 or int64. None for indices of rank 2.
        mode: "sum", "mean" or "max".
        per_sample_weights: a factor of each position, of the shape of indices, in weight's dtype or float32; only with mode
            "sum".
        padding_idx: a row that is not counted; a negative one counts from the end.
        include_last_offset: True: offsets is [bags + 1], and positions behind the last offset are not counted.
        out: an array [bags, D] to write into, in weight's dtype and any layout; with mode "max" a tuple of it and of one for
            max_indices. None: new arrays of weight's library.

    Returns:
        y [bags, D], in weight's dtype. Mode "max": (y, max_indices), where max_indices [bags, D] is the row that won for each
        element, in the dtype of indices, or -1 in a bag without counted positions.

    Raises:
        InvalidProblemError: shapes, dtypes or operands that contradict each other; on the CPU also offsets out of order and
            an index outside [0, V). On CUDA a bag with bad offsets is empty and a bad index contributes nothing, unless
            STERNWAY_CHECK=1.
        UnsupportedError: a dtype, mode, option or device without a kernel; on CUDA also 2^31 - 1 rows, columns, bags or
            positions, or more.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> weight = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
        >>> sw.embedding_bag(weight, np.array([2, 0, 2]), np.array([0, 1]))
        array([[100., 200.],
               [101., 202.]])
    """
    op = "embedding_bag"
    table, rows = require_array(op, "weight", weight), require_array(op, "indices", indices)
    if len(table.shape) != 2:
        raise errors.make("invalid_problem", op, "weight", "of rank 2, [rows, dim]", f"rank {len(table.shape)}")
    if out is not None and not isinstance(out, (tuple, list)):
        out = require_array(op, "out", out)
    flat, starts = flat_positions(op, table, rows, offsets, out)
    if len(starts.shape) != 1:
        raise errors.make("invalid_problem", op, "offsets", "of rank 1", f"rank {len(starts.shape)}")
    last = flag(op, "include_last_offset", include_last_offset) and len(rows.shape) == 1
    if last and not starts.shape[0]:
        raise errors.make("invalid_problem", op, "offsets", "of at least one element with include_last_offset", "none")
    samples = flat_weights(op, per_sample_weights, rows)
    plan = _planned(
        table.shape[0], table.shape[1], starts.shape[0] - last, flat.shape[0], table.dtype, mode, flat.dtype, starts.dtype,
        padding_idx, last, device_of(table),
    )  # fmt: skip
    wanted: list[tuple[str, Any, str | None]] = [("y", plan.descriptor.shape, None)]
    if mode == "max":
        wanted.append(("max_indices", plan.descriptor.shape, dtype_name(flat.dtype)))
    outputs = _outputs.outputs(plan, table, wanted, out)
    plan.run(weight=table, indices=flat, offsets=starts, per_sample_weights=samples, **outputs)
    return tuple(outputs.values()) if mode == "max" else outputs["y"]
