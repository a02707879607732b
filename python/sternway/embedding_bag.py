"""Gradients of an embedding bag, ``y[b] = reduce over the positions i of bag b of weight[indices[i]]``."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any, ClassVar

from . import _plan, errors
from ._arrays import Array, device_of, producer, require_array
from ._descriptor import Descriptor
from ._sku import PlanPreference


@dataclasses.dataclass(frozen=True)
class EmbeddingBagBackwardDescriptor(Descriptor):
    """The backward of an embedding bag.

    Args:
        num_embeddings, embedding_dim: the shape of weight.
        num_bags: rows of dy.
        total_indices: positions in all bags.
        dtype: of dy and weight: float32, float64, float16 or bfloat16. The weights of samples have it too, or float32.
        mode: "sum", "mean" or "max".
        index_dtype: int32 or int64.
        offset_dtype: int32 or int64; None: index_dtype.
        padding_idx: the row that counts nowhere; negative ones are counted from the end.
        include_last_offset: offsets has a last element more, where the last bag ends.
        scale_grad_by_freq: divide the gradient of a row by its number of positions; not in mode "max".
    """

    family: ClassVar[str] = "embedding_bag_backward"

    num_embeddings: int
    embedding_dim: int
    num_bags: int
    total_indices: int
    dtype: Any
    mode: str = "sum"
    index_dtype: Any = "int64"
    offset_dtype: Any = None
    padding_idx: int | None = None
    include_last_offset: bool = False
    scale_grad_by_freq: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Of weight and its gradient: what the plan shows as its shape."""
        return self.num_embeddings, self.embedding_dim


class EmbeddingBagBackwardPlan(_plan.Plan[EmbeddingBagBackwardDescriptor]):
    """Runs the gradients of :func:`embedding_bag_backward` and :func:`embedding_bag_per_sample_weights_backward`.

    Operands of run: ``dy [num_bags, D], indices, offsets, per_sample_weights?, max_indices?, weight? -> dweight? [V, D],
    d_per_sample_weights?`` (at least one output). ``per_sample_weights`` and their gradient go with mode "sum"; each is of the
    descriptor's dtype or float32, whatever the other is. The gradient needs ``weight``; it may also be
    ``[num_bags, total_indices / num_bags]``, row by row. Mode "max" needs ``max_indices [num_bags, D]``, of the dtype of
    indices or int64: the rows that won, as the forward saved them, or -1; on CUDA a row that is not in its bag contributes
    nothing.

    ``dweight`` is written completely, each row once, zeros included. A row is summed in the order of positions, so the bits
    repeat; there is no atomic kernel, so that ``PlanPreference(deterministic=False)`` chooses the same one. Kernels: "few", on
    a GPU, one launch for at most 2048 indices, and "sorted". Extents are 64-bit; on a GPU each is less than 2^31 - 1, and
    ``select`` raises UnsupportedError for more.
    """

    descriptor_type = EmbeddingBagBackwardDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # as 1 is no flag, though it equals True
def _embedding_bag_plan(
    rows: int, dim: int, bags: int, total: int, dtype: Any, mode: str, index: Any, offset: Any, padding: int | None,
    last: bool, by_frequency: bool, device: str, deterministic: bool,
) -> EmbeddingBagBackwardPlan:  # fmt: skip
    descriptor = EmbeddingBagBackwardDescriptor(rows, dim, bags, total, dtype, mode, index, offset, padding, last, by_frequency)
    return EmbeddingBagBackwardPlan.select(descriptor, device, PlanPreference(deterministic=deterministic))


# What the functions call the outputs of the plan, and where the fields of its descriptor come from.
_OUTPUTS = {"dweight": "out", "d_per_sample_weights": "out"}
_SOURCES = {
    "dtype": "dy", "[num_bags, embedding_dim]": "dy", "[num_bags]": "dy", "num_bags": "dy", "embedding_dim": "dy",
    "num_bags * embedding_dim": "dy", "index_dtype": "indices", "[total_indices]": "indices", "total_indices": "indices",
    "offset_dtype": "offsets", "[num_embeddings, embedding_dim]": "num_embeddings", "[num_embeddings]": "num_embeddings",
}  # fmt: skip


def _planned(rows_from: str, *fields: Any) -> EmbeddingBagBackwardPlan:
    """The plan of these fields; rows_from: the operand or option that says how many rows the table has."""
    try:
        try:
            return _embedding_bag_plan(*fields)
        except TypeError:  # a field that has no hash, which descriptors refuse by name
            return _embedding_bag_plan.__wrapped__(*fields)
    except errors.Error as error:
        name = _SOURCES.get(error.operand, error.operand)
        error.operand = rows_from if name == "num_embeddings" else name
        raise errors.renamed(error, error.op) from error.__cause__


def _flag(op: str, name: str, value: Any) -> bool:
    """An option that is true or false, also as a scalar of NumPy."""
    if value is True or value is False:
        return value
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.bool_):
        return bool(value)
    raise errors.make("invalid_problem", op, name, "True or False", errors.shown(value))


def _flat(op: str, dy: Array, indices: Array, offsets: Array | None, out: Any) -> tuple[Array, Array]:
    """Indices of rank 1 and offsets: every row of indices of rank 2 is a bag. New offsets are of the library that out is of."""
    if len(dy.shape) != 2:
        raise errors.make("invalid_problem", op, "dy", "of rank 2, [bags, dim]", f"rank {len(dy.shape)}")
    if len(indices.shape) == 1:
        if offsets is None:
            raise errors.make("invalid_problem", op, "offsets", "given for indices of rank 1", "nothing")
        return indices, require_array(op, "offsets", offsets)
    if len(indices.shape) != 2:
        raise errors.make("invalid_problem", op, "indices", "of rank 1 or 2", f"rank {len(indices.shape)}")
    if offsets is not None:
        got = "an operand"
        raise errors.make("invalid_problem", op, "offsets", "left out for indices of rank 2", got, "each row is a bag")
    bags, width = indices.shape
    if bags != dy.shape[0]:
        rows = f"of {dy.shape[0]} rows like dy"
        raise errors.make("invalid_problem", op, "indices", rows, f"shape {list(indices.shape)}", "each row is a bag")
    given = dy if out is None or isinstance(out, (tuple, list)) else out
    return indices.reshape(-1), producer(given, op).multiples(bags, width, device_of(dy))


@errors.reported_as("embedding_bag_backward", _OUTPUTS)
def embedding_bag_backward(
    dy: Array,
    indices: Array,
    offsets: Array | None = None,
    *,
    num_embeddings: int,
    mode: str = "sum",
    padding_idx: int | None = None,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    scale_grad_by_freq: bool = False,
    max_indices: Array | None = None,
    deterministic: bool = True,
    out: Array | None = None,
) -> Array:
    """Gradient of an embedding bag with respect to its weight.

    Over the positions i that hold row v: ``dweight[v] = sum per_sample_weights[i] dy[bag(i)]`` in mode "sum", the mean
    divides by the number of positions of the bag that count, and in mode "max" ``dweight[max_indices[b, d], d]`` gathers
    ``dy[b, d]``. Positions that hold ``padding_idx`` do not count. Sums are made in the order of positions.

    Args:
        dy: the upstream gradient [bags, D]; float32, float64, float16 or bfloat16.
        indices: rows of weight, int32 or int64: [positions], or [bags, positions of a bag].
        offsets: [bags], where each bag begins in indices, from 0 on; not for indices of rank 2.
        num_embeddings: rows of weight.
        mode: "sum", "mean" or "max".
        padding_idx: a row that counts nowhere; negative ones are counted from the end.
        per_sample_weights: of the shape of indices, in dy's dtype or float32; only in mode "sum".
        include_last_offset: offsets is [bags + 1], and later positions count nowhere.
        scale_grad_by_freq: divide the gradient of a row by the number of its positions; not in mode "max".
        max_indices: [bags, D], the rows that won in the forward, or -1; in mode "max".
        deterministic: False lets an atomic kernel be picked; there is none.
        out: an array [num_embeddings, D] to write into, in dy's dtype and any layout.

    Returns:
        dweight [num_embeddings, D].

    Raises:
        InvalidProblemError: shapes, dtypes or operands that contradict each other; on the CPU also offsets out of order and
            an index outside [0, num_embeddings). On CUDA these contribute nothing, unless STERNWAY_CHECK=1.
        UnsupportedError: a dtype, mode, option or device without a kernel; on CUDA also 2^31 - 1 rows, columns, bags or
            positions, or more.

    Example:
        >>> import numpy as np, sternway as sw
        >>> dy = np.array([[1.0, 2.0], [10.0, 20.0]])
        >>> sw.embedding_bag_backward(dy, np.array([2, 0, 2]), np.array([0, 1]), num_embeddings=3)
        array([[10., 20.],
               [ 0.,  0.],
               [11., 22.]])
    """
    op = "embedding_bag_backward"
    dy, indices = require_array(op, "dy", dy), require_array(op, "indices", indices)
    if out is not None and not isinstance(out, (tuple, list)):
        out = require_array(op, "out", out)
    flat, offsets = _flat(op, dy, indices, offsets, out)
    last = _flag(op, "include_last_offset", include_last_offset) and len(indices.shape) == 1
    weights = per_sample_weights
    if weights is not None:
        weights = require_array(op, "per_sample_weights", weights)
        if tuple(weights.shape) != tuple(indices.shape):
            shapes = f"of shape {list(indices.shape)} like indices", str(list(weights.shape))
            raise errors.make("invalid_problem", op, "per_sample_weights", *shapes)
        weights = weights if len(weights.shape) == 1 else weights.reshape(-1)
    plan = _planned(
        "num_embeddings",
        num_embeddings, dy.shape[1], dy.shape[0], flat.shape[0], dy.dtype, mode, flat.dtype, offsets.dtype, padding_idx, last,
        _flag(op, "scale_grad_by_freq", scale_grad_by_freq), device_of(dy), _flag(op, "deterministic", deterministic),
    )  # fmt: skip
    outputs = _plan.outputs(plan, dy, [("dweight", plan.descriptor.shape, None)], out)
    plan.run(dy=dy, indices=flat, offsets=offsets, per_sample_weights=weights, max_indices=max_indices, **outputs)
    return outputs["dweight"]


@errors.reported_as("embedding_bag_per_sample_weights_backward", _OUTPUTS)
def embedding_bag_per_sample_weights_backward(
    dy: Array,
    weight: Array,
    indices: Array,
    offsets: Array | None = None,
    *,
    padding_idx: int | None = None,
    include_last_offset: bool = False,
    out: Array | None = None,
) -> Array:
    """Gradient of an embedding bag in mode "sum" with respect to the weights of its samples.

    ``d_per_sample_weights[i] = dot(dy[bag(i)], weight[indices[i]])``, and 0 where the position does not count.

    Args:
        dy: the upstream gradient [bags, D]; float32, float64, float16 or bfloat16.
        weight: [V, D] of the forward, in dy's dtype.
        indices, offsets, padding_idx, include_last_offset: as in :func:`embedding_bag_backward`.
        out: an array of the shape of indices to write into, in any layout, and in the dtype of the weights of samples: dy's
            or float32.

    Returns:
        the gradient, in the shape of indices and, without out, dy's dtype.

    Raises:
        InvalidProblemError, UnsupportedError: as in :func:`embedding_bag_backward`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> dy, weight = np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 3.0]])
        >>> sw.embedding_bag_per_sample_weights_backward(dy, weight, np.array([[1, 0, 1]]))
        array([[6., 1., 6.]])
    """
    op = "embedding_bag_per_sample_weights_backward"
    dy, indices = require_array(op, "dy", dy), require_array(op, "indices", indices)
    if out is not None and not isinstance(out, (tuple, list)):
        out = require_array(op, "out", out)
    flat, offsets = _flat(op, dy, indices, offsets, out)
    last = _flag(op, "include_last_offset", include_last_offset) and len(indices.shape) == 1
    weight = require_array(op, "weight", weight)
    if len(weight.shape) != 2:
        raise errors.make("invalid_problem", op, "weight", "of rank 2, [rows, dim]", f"rank {len(weight.shape)}")
    plan = _planned(
        "weight",
        weight.shape[0], dy.shape[1], dy.shape[0], flat.shape[0], dy.dtype, "sum", flat.dtype, offsets.dtype, padding_idx, last,
        False, device_of(dy), True,
    )  # fmt: skip
    shape = tuple(indices.shape)
    outputs = _plan.outputs(plan, dy, [("d_per_sample_weights", shape, None)], out)
    grad = outputs["d_per_sample_weights"]
    if out is not None:
        got = tuple(grad.shape if hasattr(grad, "shape") else require_array(op, "out", grad).shape)
        if got != shape:
            raise errors.make("invalid_problem", op, "out", f"of shape {list(shape)} like indices", str(list(got)))
    plan.run(dy=dy, indices=flat, offsets=offsets, weight=weight, **outputs)
    return grad
