"""Gradients of an embedding bag: row b is the sum, mean or maximum of ``weight[indices[i]]`` over positions i of bag b."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from . import _outputs, _plan, errors
from ._arrays import Array, device_of, require_array
from ._bag_arguments import flag, flat_positions, flat_weights
from ._descriptor import Descriptor
from ._sku import PlanPreference
from ._types import ArrayT, BagMode, DLPackArray, FloatDType, IndexDType, Optimizer

__all__ = [
    "EmbeddingBagBackwardDescriptor",
    "EmbeddingBagBackwardPlan",
    "embedding_bag_backward",
    "embedding_bag_per_sample_weights_backward",
]


@dataclasses.dataclass(frozen=True)
class EmbeddingBagBackwardDescriptor(Descriptor):
    """The backward of an embedding bag, the problem of :func:`embedding_bag_backward`.

    Args:
        num_embeddings, embedding_dim: the shape [V, D] of weight.
        num_bags: the number of bags, which are the rows of dy.
        total_indices: the number of positions of all bags together.
        dtype: the dtype of dy, weight and dweight: float32, float64, float16 or bfloat16. Sample weights have it too, or
            float32.
        mode: "sum", "mean" or "max".
        index_dtype: the dtype of indices: int32 or int64.
        offset_dtype: the dtype of offsets: int32 or int64; None: ``index_dtype``.
        padding_idx: a row that is not counted; a negative one counts from the end. None: there is none.
        include_last_offset: True: offsets has one more element, the end of the last bag.
        scale_grad_by_freq: True: divide the gradient of a row by the number of its positions; not with mode "max".
        optimizer: "sgd", "adagrad", "rowwise_adagrad" or "adam": the run updates the rows of weight that are used, and has no
            dweight. None: it writes dweight.
        stochastic_rounding: True: an optimizer rounds a float16 or bfloat16 table at random, with the exact number as the mean.

    Raises:
        InvalidProblemError: a field of another type. ``EmbeddingBagBackwardPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> descriptor = sw.EmbeddingBagBackwardDescriptor(
        ...     num_embeddings=1000, embedding_dim=64, num_bags=32, total_indices=640, dtype="float32", mode="mean"
        ... )
        >>> descriptor.shape
        (1000, 64)
    """

    family: ClassVar[str] = "embedding_bag_backward"

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
    scale_grad_by_freq: bool = False
    optimizer: Optimizer | None = None
    stochastic_rounding: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of weight and dweight, (num_embeddings, embedding_dim)."""
        return self.num_embeddings, self.embedding_dim


class EmbeddingBagBackwardPlan(_plan.Plan[EmbeddingBagBackwardDescriptor]):
    """Plan of :func:`embedding_bag_backward` and :func:`embedding_bag_per_sample_weights_backward`.

    ``select`` makes it and ``run`` executes it, with at least one output. B, V, D and N are the descriptor's ``num_bags``,
    ``num_embeddings``, ``embedding_dim`` and ``total_indices``.

    Operands:
        dy: input [B, D], the upstream gradient.
        indices: input [N], rows of weight, of the descriptor's ``index_dtype``.
        offsets: input [B], or [B + 1] with ``include_last_offset``: the position at which each bag begins, of ``offset_dtype``.
        per_sample_weights: input [N], a factor of each position, in ``dtype`` or float32; only with mode "sum".
        max_indices: input [B, D], the row that won for each element of each bag, or -1, as the forward saved it; in
            ``index_dtype`` or int64; needed with mode "max". On CUDA a row that is not in its bag contributes nothing.
        weight: input [V, D]; needed for d_per_sample_weights.
        dweight: output [V, D]; may be left out. Each row is written once, rows of zeros included.
        d_per_sample_weights: output [N] or [B, N / B], in ``dtype`` or float32; only with mode "sum"; may be left out.

    With an optimizer there is no dweight, and all of these are contiguous:
        weight: input and output [V, D]: each row of a counted index is updated, the others are left alone. d_per_sample_weights
            is of weight before the update.
        options: input and output [10], float64 on the plan's device: lr, eps, weight_decay, beta1, beta2, grad_scale, step,
            step_size, seed, draw. A run adds 1 to step (of "adam", 0 at first) and to draw (of the random numbers of
            stochastic rounding), and writes step_size.
        sum: input and output, the state of "adagrad" [V, D] and of "rowwise_adagrad" [V]; float64 for a float64 table, else
            float32, as are
        exp_avg, exp_avg_sq: input and output [V, D], the states of "adam".

    The gradient g of a row is divided by grad_scale, then weight_decay times the row is added. The rules are those of
    torch.optim.SGD, Adagrad and SparseAdam; "rowwise_adagrad" adds the mean of g^2 to the one number of a row.

    A row of dweight is summed in the order of its positions, so the bits repeat from run to run. No kernel uses atomic
    additions: ``PlanPreference(deterministic=False)`` selects the same one. Extents are 64-bit on the CPU. On a GPU each is
    less than 2^31 - 1, and ``select`` raises UnsupportedError for more; up to 2048 indices take a single launch there.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import dataclasses, numpy as np, sternway as sw
        >>> descriptor = sw.EmbeddingBagBackwardDescriptor(
        ...     num_embeddings=3, embedding_dim=2, num_bags=2, total_indices=3, dtype="float64"
        ... )
        >>> plan = sw.EmbeddingBagBackwardPlan.select(descriptor)
        >>> dy, dweight = np.array([[1.0, 2.0], [10.0, 20.0]]), np.empty((3, 2))
        >>> plan.run(dy=dy, indices=np.array([2, 0, 2]), offsets=np.array([0, 1]), dweight=dweight)
        >>> dweight.tolist()
        [[10.0, 20.0], [0.0, 0.0], [11.0, 22.0]]
        >>> learning = sw.EmbeddingBagBackwardPlan.select(dataclasses.replace(descriptor, optimizer="sgd"))
        >>> weight, options = np.ones((3, 2)), np.zeros(10)
        >>> options[0], options[5] = 0.5, 1.0  # lr, grad_scale
        >>> learning.run(dy=dy, indices=np.array([2, 0, 2]), offsets=np.array([0, 1]), weight=weight, options=options)
        >>> weight.tolist()
        [[-4.0, -9.0], [1.0, 1.0], [-4.5, -10.0]]
    """

    descriptor_type = EmbeddingBagBackwardDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # as 1 is no flag, though it equals True
def _embedding_bag_plan(
    rows: int, dim: int, bags: int, total: int, dtype: FloatDType, mode: BagMode, index: IndexDType, offset: IndexDType,
    padding: int | None, last: bool, by_frequency: bool, device: str, deterministic: bool,
    optimizer: Optimizer | None = None, stochastic: bool = False,
) -> EmbeddingBagBackwardPlan:  # fmt: skip
    descriptor = EmbeddingBagBackwardDescriptor(
        rows, dim, bags, total, dtype, mode, index, offset, padding, last, by_frequency, optimizer, stochastic
    )
    return EmbeddingBagBackwardPlan.select(descriptor, device, PlanPreference(deterministic=deterministic))


# The functions' names of the plan's outputs, and the arguments from which the fields of its descriptor are read.
_OUTPUTS = {"dweight": "out", "d_per_sample_weights": "out"}
_SOURCES = {
    "dtype": "dy", "[num_bags, embedding_dim]": "dy", "[num_bags]": "dy", "num_bags": "dy", "embedding_dim": "dy",
    "num_bags * embedding_dim": "dy", "index_dtype": "indices", "[total_indices]": "indices", "total_indices": "indices",
    "offset_dtype": "offsets", "[num_embeddings, embedding_dim]": "num_embeddings", "[num_embeddings]": "num_embeddings",
}  # fmt: skip


def _planned(rows_from: str, *fields: Any) -> EmbeddingBagBackwardPlan:
    """The plan of these fields, from a cache. rows_from: the argument that gives the number of rows of the table."""
    try:
        return _plan.cached(_embedding_bag_plan, *fields)
    except errors.Error as error:
        name = _SOURCES.get(error.operand, error.operand)
        error.operand = rows_from if name == "num_embeddings" else name
        raise errors.renamed(error, error.op) from error.__cause__


def _flat_of_gradient(op: str, dy: Array, indices: Array, offsets: Array | None, out: Any) -> tuple[Array, Array]:
    if len(dy.shape) != 2:
        raise errors.make("invalid_problem", op, "dy", "of rank 2, [bags, dim]", f"rank {len(dy.shape)}")
    return flat_positions(op, dy, indices, offsets, out, dy.shape[0])


@errors.reported_as("embedding_bag_backward", _OUTPUTS)
def embedding_bag_backward(
    dy: ArrayT,
    indices: DLPackArray,
    offsets: DLPackArray | None = None,
    *,
    num_embeddings: int,
    mode: BagMode = "sum",
    padding_idx: int | None = None,
    per_sample_weights: DLPackArray | None = None,
    include_last_offset: bool = False,
    scale_grad_by_freq: bool = False,
    max_indices: DLPackArray | None = None,
    deterministic: bool = True,
    out: ArrayT | None = None,
) -> ArrayT:
    """Gradient of an embedding bag with respect to its weight.

    Mode "sum": ``dweight[v]`` sums ``per_sample_weights[i] * dy[bag(i)]`` over the positions i with ``indices[i] == v``. Mode
    "mean" also divides by the number of counted positions of the bag. Mode "max": ``dweight[max_indices[b, d], d]`` sums
    ``dy[b, d]``. Positions that hold ``padding_idx`` are not counted. Sums are made in the order of positions, so the bits
    repeat.

    Args:
        dy: the upstream gradient [bags, D]; float32, float64, float16 or bfloat16.
        indices: rows of weight, int32 or int64: [positions] with offsets, or [bags, positions of a bag].
        offsets: [bags], the position at which each bag begins, starting with 0; int32 or int64. None for indices of rank 2.
        num_embeddings: the number of rows of weight.
        mode: "sum", "mean" or "max".
        padding_idx: a row that is not counted; a negative one counts from the end.
        per_sample_weights: a factor of each position, of the shape of indices, in dy's dtype or float32; only with mode "sum".
        include_last_offset: True: offsets is [bags + 1], and positions behind the last offset are not counted.
        scale_grad_by_freq: True: divide the gradient of a row by the number of its positions; not with mode "max".
        max_indices: [bags, D], the row that won for each element of each bag, or -1; needed with mode "max".
        deterministic: for compatibility, without effect: the kernel adds in a fixed order.
        out: an array [num_embeddings, D] to write into, in dy's dtype and any layout. None: a new array of dy's library.

    Returns:
        dweight [num_embeddings, D], in dy's dtype.

    Raises:
        InvalidProblemError: shapes, dtypes or operands that contradict each other; on the CPU also offsets out of order and
            an index outside [0, num_embeddings). On CUDA these contribute nothing, unless STERNWAY_CHECK=1.
        UnsupportedError: a dtype, mode, option or device without a kernel; on CUDA also 2^31 - 1 rows, columns, bags or
            positions, or more.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> dy = np.array([[1.0, 2.0], [10.0, 20.0]])
        >>> sw.embedding_bag_backward(dy, np.array([2, 0, 2]), np.array([0, 1]), num_embeddings=3)
        array([[10., 20.],
               [ 0.,  0.],
               [11., 22.]])
    """
    op = "embedding_bag_backward"
    grad, rows = require_array(op, "dy", dy), require_array(op, "indices", indices)
    if out is not None and not isinstance(out, (tuple, list)):
        out = require_array(op, "out", out)
    flat, starts = _flat_of_gradient(op, grad, rows, offsets, out)
    last = flag(op, "include_last_offset", include_last_offset) and len(rows.shape) == 1
    weights = flat_weights(op, per_sample_weights, rows)
    plan = _planned(
        "num_embeddings",
        num_embeddings, grad.shape[1], grad.shape[0], flat.shape[0], grad.dtype, mode, flat.dtype, starts.dtype, padding_idx,
        last, flag(op, "scale_grad_by_freq", scale_grad_by_freq), device_of(grad), flag(op, "deterministic", deterministic),
    )  # fmt: skip
    outputs: dict[str, ArrayT] = _outputs.outputs(plan, grad, [("dweight", plan.descriptor.shape, None)], out)
    plan.run(dy=grad, indices=flat, offsets=starts, per_sample_weights=weights, max_indices=max_indices, **outputs)
    return outputs["dweight"]


@errors.reported_as("embedding_bag_per_sample_weights_backward", _OUTPUTS)
def embedding_bag_per_sample_weights_backward(
    dy: ArrayT,
    weight: DLPackArray,
    indices: DLPackArray,
    offsets: DLPackArray | None = None,
    *,
    padding_idx: int | None = None,
    include_last_offset: bool = False,
    out: ArrayT | None = None,
) -> ArrayT:
    """Gradient of an embedding bag in mode "sum" with respect to its per-sample weights.

    ``d_per_sample_weights[i] = dot(dy[bag(i)], weight[indices[i]])``, and 0 for a position that is not counted.

    Args:
        dy: the upstream gradient [bags, D]; float32, float64, float16 or bfloat16.
        weight: the table [V, D] of the forward, in dy's dtype.
        indices, offsets, padding_idx, include_last_offset: as in :func:`embedding_bag_backward`.
        out: an array to write into, of the shape of indices and any layout, in dy's dtype or float32. None: a new array of dy's
            library, in dy's dtype.

    Returns:
        the gradient, in the shape of indices.

    Raises:
        InvalidProblemError: as in :func:`embedding_bag_backward`.
        UnsupportedError: as in :func:`embedding_bag_backward`.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> dy, weight = np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 3.0]])
        >>> sw.embedding_bag_per_sample_weights_backward(dy, weight, np.array([[1, 0, 1]]))
        array([[6., 1., 6.]])
    """
    op = "embedding_bag_per_sample_weights_backward"
    grad, rows = require_array(op, "dy", dy), require_array(op, "indices", indices)
    if out is not None and not isinstance(out, (tuple, list)):
        out = require_array(op, "out", out)
    flat, starts = _flat_of_gradient(op, grad, rows, offsets, out)
    last = flag(op, "include_last_offset", include_last_offset) and len(rows.shape) == 1
    table = require_array(op, "weight", weight)
    if len(table.shape) != 2:
        raise errors.make("invalid_problem", op, "weight", "of rank 2, [rows, dim]", f"rank {len(table.shape)}")
    plan = _planned(
        "weight",
        table.shape[0], grad.shape[1], grad.shape[0], flat.shape[0], grad.dtype, "sum", flat.dtype, starts.dtype, padding_idx,
        last, False, device_of(grad), True,
    )  # fmt: skip
    shape = tuple(rows.shape)
    outputs = _outputs.outputs(plan, grad, [("d_per_sample_weights", shape, None)], out)
    written = outputs["d_per_sample_weights"]
    if out is not None:
        got = tuple(written.shape if hasattr(written, "shape") else require_array(op, "out", written).shape)
        if got != shape:
            raise errors.make("invalid_problem", op, "out", f"of shape {list(shape)} like indices", str(list(got)))
    plan.run(dy=grad, indices=flat, offsets=starts, weight=table, **outputs)
    result: ArrayT = written
    return result
