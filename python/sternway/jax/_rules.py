"""Parts of the rules for ``jax.vmap`` and ``jax.grad`` that operations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import errors
from ._call import Array
from ._mesh import axes_of, is_explicit, varying

Function = Callable[..., Any]


def batched(function: Function, rule: Function) -> Function:
    """A function with a rule for vmap: ``rule(size, batched, *operands)`` gets operands whose batch is their first dimension.

    Args:
        rule: returns the results with the batch in front.
    """
    mapped = jax.custom_batching.custom_vmap(function)

    @mapped.def_vmap
    def _(size: int, is_batched: Sequence[Any], *operands: Array | None) -> tuple[Any, Any]:
        if any(x is not None and is_explicit(x) for x in operands):
            wanted = "sharded by automatic axes of the mesh"
            raise errors.make("unsupported", "vmap", "the batch", wanted, "explicit axes", "use jax.shard_map")
        results = rule(size, list(is_batched), *operands)
        return results, jax.tree.map(lambda _: True, results)

    return mapped


def leading(size: int, is_batched: Sequence[Any], operands: Sequence[Array | None]) -> list[Array | None]:
    """The operands, each with the batch in front; those without one are repeated."""
    return [
        x if x is None or has else jnp.broadcast_to(x, (size, *x.shape)) for x, has in zip(operands, is_batched, strict=True)
    ]


def each_example(function: Function, size: int, is_batched: Sequence[Any], operands: Sequence[Array | None]) -> Any:
    """A batch by one call for each example."""
    return jax.lax.map(lambda example: function(*example), tuple(leading(size, is_batched, operands)))


def differentiable(function: Function, definition: Function) -> Function:
    """A function whose gradient is that of its definition in operations of JAX."""

    @jax.custom_vjp
    def evaluate(*operands: Array | None) -> Any:
        return function(*operands)

    def forward(*operands: Array | None) -> tuple[Any, Any]:
        return evaluate(*operands), operands

    def backward(operands: Any, cotangents: Any) -> Any:
        return jax.vjp(definition, *operands)[1](cotangents)

    evaluate.defvjp(forward, backward)
    return evaluate


def accumulator(dtype: Any) -> Any:
    """The dtype in which formulas are evaluated: float64 for float64, and float32 for all others."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def given(primals: Sequence[Any]) -> tuple[list[Array | None], list[bool]]:
    """The values of the arguments of a rule with symbolic zeros, and which of them get a gradient."""
    values = [None if p is None else p.value for p in primals]
    return values, [p is not None and p.perturbed and jnp.issubdtype(p.value.dtype, jnp.floating) for p in primals]


def instantiated(cotangent: Any) -> Array:
    """A cotangent as an array; of a symbolic zero, an array of zeros."""
    if isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        return varying(jnp.zeros(cotangent.shape, cotangent.dtype), axes_of(cotangent.aval))
    return cotangent


def inside(indices: Array, rows: int) -> Array:
    """The indices, with ``rows`` in place of one that is out of range."""
    return jnp.where((indices < 0) | (indices >= rows), rows, indices)


def summed(x: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the dimensions along which an operand of this shape was broadcast."""
    extra = x.ndim - len(shape)
    axes = (*range(extra), *(extra + k for k, n in enumerate(shape) if n == 1 and x.shape[extra + k] != 1))
    return x.sum(axes, keepdims=True).reshape(shape)
