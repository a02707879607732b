"""Embedding for JAX."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .. import errors
from .._embedding import EmbeddingBackwardDescriptor, EmbeddingBackwardPlan
from ._call import Array, check, run
from ._mesh import arrays
from ._options import flag, integer
from ._rules import Function, accumulator, batched, differentiable, inside, leading

__all__ = ["embedding"]


class _Table(NamedTuple):
    """The number of rows of a table, and the options of its gradient."""

    rows: int
    padding_idx: int | None
    by_frequency: bool


_MOST_INDICES = {"int32": 2**31, "int64": 2**63}


def gathered(weight: Array, indices: Array) -> Array:
    """Rows of a table; NaN for an index out of range, also a negative one."""
    if not weight.shape[0]:
        weight = jnp.pad(weight, ((0, 1), (0, 0)), constant_values=jnp.nan)  # jnp.take refuses an empty table
    return jnp.take(weight, jnp.where(indices < 0, weight.shape[0], indices), 0, mode="fill", fill_value=jnp.nan)


@functools.lru_cache(maxsize=1024)
def _kernel(table: _Table) -> Function:
    """dweight, of dy [N, D] and indices [N]."""

    def call(dy: Array, indices: Array) -> Array:
        descriptor = _descriptor(table, dy, indices)
        inputs = {"dy": dy, "indices": indices}
        return run(EmbeddingBackwardPlan, descriptor, inputs, {"dweight": ((table.rows, dy.shape[1]), dy.dtype)})[0]

    return batched(call, functools.partial(_batch, table))


def _descriptor(table: _Table, dy: Any, indices: Any) -> EmbeddingBackwardDescriptor:
    shape = table.rows, dy.shape[-1], indices.size
    return EmbeddingBackwardDescriptor(*shape, dy.dtype.name, indices.dtype.name, table.padding_idx, table.by_frequency)


def _batch(table: _Table, size: int, is_batched: Sequence[Any], *operands: Array) -> Array:
    """A batch of tables as one table, whose rows of example k follow those of example k - 1."""
    dy, indices = leading(size, is_batched, operands)
    assert dy is not None
    assert indices is not None
    if size * table.rows >= _MOST_INDICES[indices.dtype.name]:
        got = f"{size} tables of {table.rows} rows"
        hint = "call embedding once with all indices, outside of vmap"
        raise errors.make("unsupported", "embedding", "weight", f"of rows that {indices.dtype} can count", got, hint)
    if table.padding_idx is not None:
        dy = jnp.where((indices == table.padding_idx)[..., None], 0, dy)
    shifted = indices + table.rows * jnp.arange(size, dtype=indices.dtype)[:, None]
    is_inside = inside(indices, table.rows) < table.rows
    shifted = jnp.where(is_inside, shifted, size * table.rows).reshape(-1)  # still out of range
    many = _Table(size * table.rows, None, table.by_frequency)
    dweight = _kernel(many)(dy.reshape(shifted.size, dy.shape[-1]), shifted)
    return dweight.reshape(size, table.rows, dy.shape[-1])


def _definition(table: _Table, dy: Array, indices: Array) -> Array:
    """The backward in operations of JAX."""
    wide, rows = dy.astype(accumulator(dy.dtype)), inside(indices, table.rows)
    if table.padding_idx is not None:
        wide = jnp.where((indices == table.padding_idx)[:, None], 0, wide)
    if table.by_frequency:
        wide = wide / jnp.bincount(rows, length=table.rows + 1)[rows][:, None].astype(wide.dtype)
    return jnp.zeros((table.rows, dy.shape[1]), wide.dtype).at[rows].add(wide, mode="drop").astype(dy.dtype)


@functools.lru_cache(maxsize=1024)
def _backward(table: _Table) -> Function:
    return differentiable(_kernel(table), functools.partial(_definition, table))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _embedding(table: _Table, indices: Array, weight: Array) -> Array:
    return gathered(weight, indices)


def _gradient(table: _Table, indices: Array, dy: Array) -> tuple[None, Array]:
    return None, _backward(table)(dy.reshape(indices.size, dy.shape[-1]), indices.reshape(-1))


_embedding.defvjp(lambda table, indices, weight: (gathered(weight, indices), indices), _gradient)
_embedding_jit = jax.jit(_embedding, static_argnums=0)


def padding_row(op: str, padding_idx: Any, rows: int) -> int | None:
    """A padding_idx that counts from the front. One that is out of range stays, and is refused by the plan."""
    if padding_idx is None:
        return None
    row = integer(op, "padding_idx", padding_idx)
    return row + rows if -rows <= row < 0 else row


@errors.reported_as("sternway.jax.embedding", {"dtype": "weight", "index_dtype": "indices"})
def embedding(
    indices: ArrayLike, weight: ArrayLike, *, padding_idx: int | None = None, scale_grad_by_freq: bool = False
) -> jax.Array:
    """Rows of a table: ``y[...] = weight[indices[...]]``.

    The gradient is that of :func:`sternway.embedding_backward`, whose sums have a fixed order. Under ``jax.vmap`` a table that
    the examples share gets a gradient for each example before these are added up: for a large table, call this once with all
    indices instead.

    Args:
        indices: of any shape, int32 or int64.
        weight: the table [V, D]; float32, float64, float16 or bfloat16.
        padding_idx: a row that gets no gradient; a negative one counts from the end. None: there is none.
        scale_grad_by_freq: True: divide the gradient of a row by the number of its positions.

    Returns:
        y, of the shape of indices and D, in weight's dtype; NaN for an index outside [0, V).

    Raises:
        InvalidProblemError: a table that is not of rank 2, or operands or options that contradict each other.
        UnsupportedError: another dtype.
        jax.errors.JaxRuntimeError or ValueError: in the gradient on the CPU, when it runs: an index outside [0, V). On a GPU
            such an index contributes nothing.

    Example:
        >>> import jax, jax.numpy as jnp, sternway.jax as sj
        >>> weight = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> sj.embedding(jnp.array([1, 1]), weight).tolist()
        [[3.0, 4.0], [3.0, 4.0]]
        >>> jax.grad(lambda w: sj.embedding(jnp.array([1, 1]), w).sum())(weight).tolist()
        [[0.0, 0.0], [2.0, 2.0]]
    """
    rows, values = arrays(indices, weight)
    if values.ndim != 2:
        raise errors.make("invalid_problem", "embedding", "weight", "of rank 2, [rows, dim]", f"rank {values.ndim}")
    by_frequency = flag("embedding", "scale_grad_by_freq", scale_grad_by_freq)
    table = _Table(values.shape[0], padding_row("embedding", padding_idx, values.shape[0]), by_frequency)
    shapes = {
        "dy": ((rows.size, values.shape[1]), values.dtype),
        "indices": ((rows.size,), rows.dtype),
        "dweight": (values.shape, values.dtype),
    }
    check(EmbeddingBackwardPlan, _descriptor(table, values, rows), shapes)
    y: jax.Array = _embedding_jit(table, rows, values)
    return y
