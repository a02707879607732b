"""Embedding bag for JAX."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .. import errors
from .._embedding_bag import EmbeddingBagBackwardDescriptor, EmbeddingBagBackwardPlan
from .._types import BagMode
from ._call import Array, check, run
from ._embedding import gathered, padding_row
from ._mesh import arrays
from ._options import flag
from ._rules import Function, accumulator, batched, differentiable, given, inside, instantiated

__all__ = ["embedding_bag"]


class _Bags(NamedTuple):
    """The rows of the table, the number of bags, and the options."""

    rows: int
    bags: int
    mode: BagMode
    padding_idx: int | None
    include_last_offset: bool
    by_frequency: bool


def _descriptor(bags: _Bags, dim: int, dtype: Any, indices: Any, offsets: Any) -> EmbeddingBagBackwardDescriptor:
    return EmbeddingBagBackwardDescriptor(
        bags.rows, dim, bags.bags, indices.size, dtype.name, bags.mode, indices.dtype.name, offsets.dtype.name,
        bags.padding_idx, bags.include_last_offset, bags.by_frequency,
    )  # fmt: skip


# The forward, in operations of JAX.


def _bag_of(bags: _Bags, indices: Array, offsets: Array) -> Array:
    """The bag of each position; bags.bags for one that is not counted."""
    bag = jnp.searchsorted(offsets, jnp.arange(indices.size, dtype=offsets.dtype), side="right") - 1
    if bags.padding_idx is not None:
        bag = jnp.where(indices == bags.padding_idx, bags.bags, bag)
    return bag


def _pooled(bags: _Bags, weight: Array, indices: Array, offsets: Array, samples: Array | None) -> Array:
    """The sums or means of the bags."""
    dtype = accumulator(weight.dtype)
    bag = _bag_of(bags, indices, offsets)
    rows = gathered(weight, indices).astype(dtype)
    if samples is not None:
        rows = rows * samples.astype(dtype)[:, None]
    y = jax.ops.segment_sum(rows, bag, bags.bags)
    if bags.mode == "mean":
        counts = jax.ops.segment_sum(jnp.ones(indices.size, dtype), bag, bags.bags)
        y = y / jnp.maximum(counts, 1)[:, None]
    return y.astype(weight.dtype)


def _maxima(bags: _Bags, weight: Array, indices: Array, offsets: Array) -> tuple[Array, Array]:
    """The maxima of the bags, and the rows that won, the first of equal ones; 0 and -1 for an empty bag."""
    bag = _bag_of(bags, indices, offsets)
    rows = gathered(weight, indices)
    top = jax.ops.segment_max(rows, bag, bags.bags)
    wins = (rows == top[jnp.minimum(bag, bags.bags - 1)]) | jnp.isnan(rows) if bags.bags else rows == rows
    place = jnp.where(wins, jnp.arange(indices.size, dtype=indices.dtype)[:, None], indices.size)
    first = jax.ops.segment_min(place, bag, bags.bags)
    won = (first >= 0) & (first < indices.size)
    rows = jnp.where(won, jnp.take(indices, jnp.where(won, first, 0), mode="clip"), -1) if indices.size else first * 0 - 1
    return jnp.where(won, top, 0).astype(weight.dtype), rows.astype(indices.dtype)


# The gradients, by plans.


def _sequential(call: Function) -> Function:
    """A function whose batches are computed one example after the other."""

    def rule(size: int, is_batched: Sequence[Any], *operands: Array | None) -> Array:
        def example(examples: tuple[Array | None, ...]) -> Array:
            return mapped(*(m if has else x for m, has, x in zip(examples, is_batched, operands, strict=True)))

        return jax.lax.map(example, tuple(x if has else None for x, has in zip(operands, is_batched, strict=True)))

    mapped = batched(call, rule)
    return mapped


@functools.lru_cache(maxsize=1024)
def _dweight(bags: _Bags) -> Function:
    """dweight, of dy [B, D], indices [N], offsets, sample weights [N] and the rows that won."""

    def call(dy: Array, indices: Array, offsets: Array, samples: Array | None, max_indices: Array | None) -> Array:
        descriptor = _descriptor(bags, dy.shape[1], dy.dtype, indices, offsets)
        inputs = {
            "dy": dy, "indices": indices, "offsets": offsets, "per_sample_weights": samples, "max_indices": max_indices,
        }  # fmt: skip
        return run(EmbeddingBagBackwardPlan, descriptor, inputs, {"dweight": ((bags.rows, dy.shape[1]), dy.dtype)})[0]

    def definition(dy: Array, indices: Array, offsets: Array, samples: Array | None, max_indices: Array | None) -> Array:
        shape = bags.rows, dy.shape[1]
        if not dy.size:
            return jnp.zeros(shape, dy.dtype)
        if max_indices is not None:
            rows = jnp.where(max_indices < 0, bags.rows, max_indices)
            return jnp.zeros(shape, dy.dtype).at[rows, jnp.arange(shape[1])].add(dy, mode="drop")
        found = jax.vjp(lambda w: _pooled(bags, w, indices, offsets, samples), jnp.zeros(shape, dy.dtype))[1](dy)[0]
        if bags.by_frequency:
            bag = _bag_of(bags, indices, offsets)
            rows = jnp.where((bag >= 0) & (bag < bags.bags), inside(indices, bags.rows), bags.rows)
            found = found / jnp.maximum(jnp.bincount(rows, length=bags.rows), 1)[:, None].astype(found.dtype)
        return found

    return differentiable(_sequential(call), definition)


@functools.lru_cache(maxsize=1024)
def _dsamples(bags: _Bags, dtype: str) -> Function:
    """The gradient of sample weights [N], of dy [B, D], weight, indices [N] and offsets."""

    def call(dy: Array, weight: Array, indices: Array, offsets: Array) -> Array:
        descriptor = _descriptor(bags, dy.shape[1], dy.dtype, indices, offsets)
        inputs = {"dy": dy, "weight": weight, "indices": indices, "offsets": offsets}
        outputs = {"d_per_sample_weights": (indices.shape, jnp.dtype(dtype))}
        return run(EmbeddingBagBackwardPlan, descriptor, inputs, outputs)[0]

    def definition(dy: Array, weight: Array, indices: Array, offsets: Array) -> Array:
        if not dy.size:
            return jnp.zeros(indices.shape, dtype)
        ones = jnp.ones(indices.shape, dtype)
        return jax.vjp(lambda s: _pooled(bags, weight, indices, offsets, s), ones)[1](dy)[0]

    return differentiable(_sequential(call), definition)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _bag(bags: _Bags, indices: Array, weight: Array, offsets: Array, samples: Array | None) -> Array:
    if bags.mode == "max":
        return _maxima(bags, weight, indices, offsets)[0]
    return _pooled(bags, weight, indices, offsets, samples)


def _forward(bags: _Bags, *primals: Any) -> tuple[Array, Any]:
    (indices, weight, offsets, samples), (_, of_weight, _, of_samples) = given(primals)
    assert weight is not None
    assert indices is not None
    assert offsets is not None
    max_indices = None
    if bags.mode == "max":
        y, max_indices = _maxima(bags, weight, indices, offsets)
    else:
        y = _pooled(bags, weight, indices, offsets, samples)
    needs = {name: None for name, needed in (("weight", of_weight), ("samples", of_samples)) if needed}
    return y, (needs, indices, offsets, samples, max_indices, weight if of_samples else None)


def _gradients(bags: _Bags, saved: Any, dy: Any) -> tuple[Array | None, ...]:
    needs, indices, offsets, samples, max_indices, weight = saved
    dy = instantiated(dy)
    dweight = dsamples = None
    if "weight" in needs:
        dweight = _dweight(bags)(dy, indices, offsets, samples, max_indices)
    if "samples" in needs:
        dsamples = _dsamples(bags._replace(by_frequency=False), samples.dtype.name)(dy, weight, indices, offsets)
    return None, dweight, None, dsamples


_bag.defvjp(_forward, _gradients, symbolic_zeros=True)
_bag_jit = jax.jit(_bag, static_argnums=0)


@errors.reported_as("sternway.jax.embedding_bag", {"dtype": "weight", "index_dtype": "indices", "offset_dtype": "offsets"})
def embedding_bag(
    indices: ArrayLike,
    weight: ArrayLike,
    offsets: ArrayLike | None = None,
    *,
    mode: BagMode = "sum",
    padding_idx: int | None = None,
    per_sample_weights: ArrayLike | None = None,
    include_last_offset: bool = False,
    scale_grad_by_freq: bool = False,
) -> jax.Array:
    """Sums, means or maxima over bags of rows of a table: row b is over ``weight[indices[i]]`` for the positions i of bag b.

    The forward consists of operations of JAX. Gradients are those of :func:`sternway.embedding_bag_backward` and
    :func:`sternway.embedding_bag_per_sample_weights_backward`, whose sums have a fixed order; those of a batch of
    ``jax.vmap`` are computed one after the other. The gradient of the gradient is computed by operations of JAX.

    Args:
        indices: rows of weight, int32 or int64: [positions] with offsets, or [bags, positions of a bag].
        weight: the table [V, D]; float32, float64, float16 or bfloat16.
        offsets: [bags], the position at which each bag begins, starting with 0; int32 or int64. None for indices of rank 2.
        mode: "sum", "mean" or "max".
        padding_idx: a row that is not counted; a negative one counts from the end.
        per_sample_weights: a factor of each position, of the shape of indices, in weight's dtype or float32; only with mode
            "sum".
        include_last_offset: True: offsets is [bags + 1], and positions behind the last offset are not counted.
        scale_grad_by_freq: True: divide the gradient of a row by the number of its positions; not with mode "max".

    Returns:
        y [bags, D], in weight's dtype; 0 for an empty bag, and NaN for an index outside [0, V).

    Raises:
        InvalidProblemError: shapes, dtypes or options that contradict each other.
        UnsupportedError: a dtype or mode without a kernel.
        jax.errors.JaxRuntimeError or ValueError: in the gradient on the CPU, when it runs: an index outside [0, V), or offsets
            out of order. On a GPU these contribute nothing.

    Example:
        >>> import jax, jax.numpy as jnp, sternway.jax as sj
        >>> weight = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> sj.embedding_bag(jnp.array([2, 0, 2]), weight, jnp.array([0, 1])).tolist()
        [[5.0, 6.0], [6.0, 8.0]]
        >>> jax.grad(lambda w: sj.embedding_bag(jnp.array([[2, 0, 2]]), w)[0, 0])(weight).tolist()
        [[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]]
    """
    rows, table, starts, samples = arrays(indices, weight, optional=(offsets, per_sample_weights))
    op = "embedding_bag"
    last = flag(op, "include_last_offset", include_last_offset) and rows.ndim == 1
    rows, starts, samples = _flat(rows, table, starts, samples)
    if last and not starts.shape[0]:
        wanted = "of one element or more with include_last_offset"
        raise errors.make("invalid_problem", op, "offsets", wanted, "[0]")
    count = starts.shape[0] - last
    padding, by_frequency = padding_row(op, padding_idx, table.shape[0]), flag(op, "scale_grad_by_freq", scale_grad_by_freq)
    bags = _Bags(table.shape[0], count, mode, padding, last, by_frequency)
    shapes = {
        "dy": ((count, table.shape[1]), table.dtype),
        "indices": (rows.shape, rows.dtype),
        "offsets": (starts.shape, starts.dtype),
        "dweight": (table.shape, table.dtype),
    }
    if samples is not None:
        shapes["per_sample_weights"] = samples.shape, samples.dtype
    if mode == "max":
        shapes["max_indices"] = (count, table.shape[1]), rows.dtype
    check(EmbeddingBagBackwardPlan, _descriptor(bags, table.shape[1], table.dtype, rows, starts), shapes)
    y: jax.Array = _bag_jit(bags, *arrays(rows, table, starts, optional=(samples,)))
    return y


def _flat(indices: Array, weight: Array, offsets: Any, samples: Array | None) -> tuple[Array, Array, Array | None]:
    """Indices, offsets and sample weights of rank 1. Each row of indices of rank 2 is a bag."""
    op = "embedding_bag"
    if weight.ndim != 2:
        raise errors.make("invalid_problem", op, "weight", "of rank 2, [rows, dim]", f"rank {weight.ndim}")
    if indices.ndim not in (1, 2):
        raise errors.make("invalid_problem", op, "indices", "of rank 1 or 2", f"rank {indices.ndim}")
    if samples is not None and samples.shape != indices.shape:
        wanted = f"of shape {list(indices.shape)} like indices"
        raise errors.make("invalid_problem", op, "per_sample_weights", wanted, str(list(samples.shape)))
    if indices.ndim == 1:
        if offsets is None:
            raise errors.make("invalid_problem", op, "offsets", "given for indices of rank 1", "nothing")
        if offsets.ndim != 1:
            raise errors.make("invalid_problem", op, "offsets", "of rank 1", f"rank {offsets.ndim}")
        return indices, offsets, samples
    if offsets is not None:
        got = "an operand"
        raise errors.make("invalid_problem", op, "offsets", "left out for indices of rank 2", got, "each row is a bag")
    count, width = indices.shape
    offsets = width * jnp.arange(count, dtype=indices.dtype if jnp.issubdtype(indices.dtype, jnp.integer) else jnp.int32)
    return indices.reshape(-1), offsets, None if samples is None else samples.reshape(-1)
