"""The gradient of an embedding: ``y[i] = weight[indices[i]]``."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

from . import _outputs, _plan, errors
from ._arrays import Array, device_of, require_array
from ._bag_arguments import flag
from ._descriptor import Descriptor
from ._embedding_bag import embedding_bag_backward
from ._lent import Lent
from ._operands import refuse_recorded
from ._types import ArrayT, DLPackArray, FloatDType, IndexDType, Optimizer

__all__ = ["EmbeddingBackwardDescriptor", "EmbeddingBackwardPlan", "embedding_backward"]


@dataclasses.dataclass(frozen=True)
class EmbeddingBackwardDescriptor(Descriptor):
    """The backward of an embedding, the problem of :func:`embedding_backward`.

    Args:
        num_embeddings, embedding_dim: the shape [V, D] of weight.
        num_indices: the number of indices, which is the number of rows of dy.
        dtype: the dtype of dy and dweight: float32, float64, float16 or bfloat16.
        index_dtype: the dtype of indices: int32 or int64.
        padding_idx: a row that is not counted; a negative one counts from the end. None: there is none.
        scale_grad_by_freq: True: divide the gradient of a row by the number of its positions.
        optimizer, stochastic_rounding: as of :class:`EmbeddingBagBackwardDescriptor`.

    Raises:
        InvalidProblemError: a field of another type. ``EmbeddingBackwardPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.EmbeddingBackwardDescriptor(num_embeddings=1000, embedding_dim=64, num_indices=640, dtype="float32").shape
        (1000, 64)
    """

    family: ClassVar[str] = "embedding_backward"

    num_embeddings: int
    embedding_dim: int
    num_indices: int
    dtype: FloatDType
    index_dtype: IndexDType = "int64"
    padding_idx: int | None = None
    scale_grad_by_freq: bool = False
    optimizer: Optimizer | None = None
    stochastic_rounding: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of weight and dweight, (num_embeddings, embedding_dim)."""
        return self.num_embeddings, self.embedding_dim


class EmbeddingBackwardPlan(_plan.Plan[EmbeddingBackwardDescriptor]):
    """Plan of :func:`embedding_backward`. ``select`` makes it and ``run`` executes it.

    V, D and N are the descriptor's ``num_embeddings``, ``embedding_dim`` and ``num_indices``. This is
    :class:`EmbeddingBagBackwardPlan` for bags of one position each, without offsets: it runs the same kernels.

    Operands:
        dy: input [N, D], the upstream gradient.
        indices: input [N], rows of weight, of the descriptor's ``index_dtype``.
        dweight: output [V, D]. Each row is written once, rows of zeros included.
        weight, options, sum, exp_avg, exp_avg_sq: in place of dweight with an optimizer, as of
            :class:`EmbeddingBagBackwardPlan`.

    A row of dweight is summed in the order of its positions, so the bits repeat from run to run. Extents are 64-bit on the
    CPU. On a GPU each is less than 2^31 - 1, and ``select`` raises UnsupportedError for more.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.EmbeddingBackwardDescriptor(num_embeddings=3, embedding_dim=2, num_indices=3, dtype="float64")
        >>> plan = sw.EmbeddingBackwardPlan.select(descriptor)
        >>> dy, dweight = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]]), np.empty((3, 2))
        >>> plan.run(dy=dy, indices=np.array([2, 0, 2]), dweight=dweight)
        >>> dweight.tolist()
        [[10.0, 20.0], [0.0, 0.0], [101.0, 202.0]]
    """

    descriptor_type = EmbeddingBackwardDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # as 1 is no flag, though it equals True
def _embedding_plan(
    rows: int, dim: int, total: int, dtype: FloatDType, index: IndexDType, padding: int | None, by_frequency: bool, device: str,
    optimizer: Optimizer | None = None, stochastic: bool = False,
) -> EmbeddingBackwardPlan:  # fmt: skip
    descriptor = EmbeddingBackwardDescriptor(rows, dim, total, dtype, index, padding, by_frequency, optimizer, stochastic)
    return EmbeddingBackwardPlan.select(descriptor, device)


_SOURCES = {
    "dtype": "dy", "[num_indices, embedding_dim]": "dy", "embedding_dim": "dy", "index_dtype": "indices",
    "num_indices": "indices", "[num_indices]": "indices",
    "[num_embeddings, embedding_dim]": "num_embeddings", "[num_embeddings]": "num_embeddings",
}  # fmt: skip
"""By field of the descriptor, the argument of the function that it is read from."""


def _planned(*fields: Any) -> EmbeddingBackwardPlan:
    """The plan of these fields, from a cache."""
    try:
        return _plan.cached(_embedding_plan, *fields)
    except errors.Error as error:
        error.operand = _SOURCES.get(error.operand, error.operand)
        raise errors.renamed(error, error.op) from error.__cause__


def _permuted(x: Array, order: tuple[int, ...]) -> Array:
    return x.permute(order) if hasattr(x, "permute") else x.transpose(order)


def _steps(dy: Array) -> tuple[int, ...]:
    """The strides of an array of torch, NumPy or CuPy, in elements or bytes."""
    steps: tuple[int, ...] = dy.stride() if callable(getattr(dy, "stride", None)) else dy.strides
    return steps


def _expanded(dy: Array, indices: Array) -> tuple[int, ...]:
    """The leading dimensions along which dy is expanded, as the gradient of a mean is, if it is not along the others."""
    if len(dy.shape) < 3 or type(dy) is Lent or type(indices) is Lent:
        return ()
    wide = [(d, step) for d, (n, step) in enumerate(zip(dy.shape[:-1], _steps(dy), strict=False)) if n > 1]
    found = tuple(d for d, step in wide if step == 0)
    return found if len(found) < len(wide) else ()


def _as_bags(dy: Array, indices: Array, expanded: tuple[int, ...]) -> tuple[Array, Array]:
    """Positions that share a row of dy are a bag: dy as [bags, D] and indices as [bags, positions of a bag]."""
    lead = range(len(dy.shape) - 1)
    own = tuple(d for d in lead if d not in expanded)
    bags = math.prod(dy.shape[d] for d in own)
    narrow = dy[tuple(0 if d in expanded else slice(None) for d in lead)]
    together = _permuted(indices, (*own, *expanded))
    return narrow.reshape(bags, dy.shape[-1]), together.reshape(bags, math.prod(dy.shape[d] for d in expanded))


def _rows(dy: Array, indices: Array) -> tuple[Array, Array]:
    """dy as [N, D] and indices as [N]. The order of positions is that of dy's memory, so that a permuted dy is not copied."""
    if len(dy.shape) == 2:
        return dy, indices
    if type(dy) is Lent:
        return dy.rows(), indices.reshape(-1)
    if len(dy.shape) > 2 and type(indices) is not Lent:
        steps = _steps(dy)
        order = tuple(sorted(range(len(dy.shape) - 1), key=lambda d: -abs(steps[d])))
        if order != tuple(range(len(order))):
            dy, indices = _permuted(dy, (*order, len(order))), _permuted(indices, order)
    return dy.reshape(math.prod(indices.shape), dy.shape[-1]), indices.reshape(-1)


@errors.reported_as("embedding_backward", {"dweight": "out"})
def embedding_backward(
    dy: ArrayT,
    indices: DLPackArray,
    *,
    num_embeddings: int,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
    out: ArrayT | None = None,
) -> ArrayT:
    """Gradient of an embedding with respect to its weight.

    ``dweight[v]`` sums ``dy[i]`` over the positions i with ``indices[i] == v``. Positions that hold ``padding_idx`` are not
    counted. Sums are made in the order in which positions follow each other in dy's memory, so the bits repeat.

    Args:
        dy: the upstream gradient [..., D]; float32, float64, float16 or bfloat16. Its leading dimensions may be permuted or
            expanded in memory; it is copied only if they have gaps.
        indices: rows of weight [...], int32 or int64, of dy's shape without its last dimension.
        num_embeddings: the number of rows of weight.
        padding_idx: a row that is not counted; a negative one counts from the end.
        scale_grad_by_freq: True: divide the gradient of a row by the number of its positions.
        out: an array [num_embeddings, D] to write into, in dy's dtype and any layout. None: a new array of dy's library.

    Returns:
        dweight [num_embeddings, D], in dy's dtype.

    Raises:
        InvalidProblemError: shapes, dtypes or options that contradict each other; on the CPU also an index outside
            [0, num_embeddings). On CUDA such an index contributes nothing, unless STERNWAY_CHECK=1.
        UnsupportedError: a dtype or device without a kernel; on CUDA also 2^31 - 1 rows, columns or indices, or more.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> dy = np.array([[[1.0, 2.0], [10.0, 20.0]], [[3.0, 4.0], [5.0, 6.0]]])
        >>> sw.embedding_backward(dy, np.array([[2, 0], [2, 2]]), num_embeddings=3)
        array([[10., 20.],
               [ 0.,  0.],
               [ 9., 12.]])
    """
    op = "embedding_backward"
    grad, rows = require_array(op, "dy", dy), require_array(op, "indices", indices)
    if out is not None and not isinstance(out, (tuple, list)):
        out = require_array(op, "out", out)
    shape = tuple(grad.shape)
    if not shape:
        raise errors.make("invalid_problem", op, "dy", "of rank 1 or more, [..., dim]", "rank 0")
    if tuple(rows.shape) != shape[:-1]:
        wanted, got = f"of shape {list(shape[:-1])} like dy without its last dimension", str(list(rows.shape))
        raise errors.make("invalid_problem", op, "indices", wanted, got)
    if expanded := _expanded(grad, rows):
        refuse_recorded(op, "dy", dy)  # before the drop-in of another operation is named
        bags, positions = _as_bags(grad, rows, expanded)
        dweight: ArrayT = embedding_bag_backward(
            bags, positions, num_embeddings=num_embeddings, padding_idx=padding_idx,
            scale_grad_by_freq=scale_grad_by_freq, out=out,
        )  # fmt: skip
        return dweight
    flat_grad, flat_rows = _rows(grad, rows)
    plan = _planned(
        num_embeddings, shape[-1], flat_rows.shape[0], grad.dtype, rows.dtype, padding_idx,
        flag(op, "scale_grad_by_freq", scale_grad_by_freq), device_of(grad),
    )  # fmt: skip
    outputs: dict[str, ArrayT] = _outputs.outputs(plan, grad, [("dweight", plan.descriptor.shape, None)], out)
    plan.run(dy=flat_grad, indices=flat_rows, **outputs)
    return outputs["dweight"]
