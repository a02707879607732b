"""Operands of the quantizations: the shapes of scale and zero point, sums over blocks, and the rule for vmap.

``sternway._quantize`` defines blocks. In these functions scale and zero_point have the rank of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from .. import errors
from .._quantize import dimensions, extents_of, require_blocks
from ._call import Array
from ._rules import Function, batched, each_example, leading

_MAX_RANK = 8  # of an operand of a plan

Operands = tuple[Array, Array, "Array | None"]
"""x, scale and zero_point."""


def of_tokens(name: str, x: Array, scale: Array, zero_point: Array | None) -> Operands:
    """The operands of tokens as [tokens, D] and [tokens, 1].

    Raises:
        InvalidProblemError: shapes that contradict each other.
    """
    if not x.ndim:
        raise errors.make("invalid_problem", "tokens", name, "of rank 1 or more, [..., D]", "rank 0")
    lead = x.shape[:-1]
    tokens = math.prod(lead)
    per_token = []
    for operand, array in (("scale", scale), ("zero_point", zero_point)):
        if array is not None and array.shape not in (lead, (*lead, 1)):
            wanted = f"of shape {list(lead)} or {[*lead, 1]}"
            raise errors.make("invalid_problem", "tokens", operand, wanted, str(list(array.shape)))
        per_token.append(None if array is None else array.reshape(tokens, 1))
    return x.reshape(tokens, x.shape[-1]), *per_token


def of_blocks(name: str, x: Array, scale: Array, zero_point: Array | None, shape: tuple[int, ...] | None = None) -> Operands:
    """The operands of blocks.

    shape: of the values that x holds, if it has several in an element.

    Raises:
        InvalidProblemError: shapes that contradict each other.
    """
    whole, described = (x.shape, name) if shape is None else (shape, f"the values of {name}")
    require_blocks("blocks", described, whole, scale.shape)
    if zero_point is not None and zero_point.shape != scale.shape:
        wanted = f"of shape {list(scale.shape)}, as scale"
        raise errors.make("invalid_problem", "blocks", "zero_point", wanted, str(list(zero_point.shape)))
    extents = extents_of(x.shape, scale.shape)
    return x, scale.reshape(extents), None if zero_point is None else zero_point.reshape(extents)


def expanded(value: Array, like: Array) -> Array:
    """A scale or zero point that broadcasts with an array whose blocks have these numbers."""
    for d, (extent, n) in enumerate(zip(value.shape, like.shape, strict=True)):
        if extent not in (1, n):
            value = jnp.repeat(value, n // extent, axis=d)
    return value


def block_sums(terms: Array, value: Array) -> Array:
    """The sums of terms over blocks, in the shape of a scale or zero point."""
    split = [k for extent, n in zip(value.shape, terms.shape, strict=True) for k in (extent, n // extent if extent else 1)]
    return terms.reshape(split).sum(tuple(range(1, len(split), 2)))


def by_block(call: Function, scale: int, shape_of: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple) -> Function:
    """A function of operands of blocks, with a rule for vmap: a batch is one more dimension, where a plan takes as many.

    Args:
        scale: the index of scale among the operands. The first is of the shape of x.
        shape_of: the shape of the values in the first operand, from its own.
    """

    def rule(size: int, is_batched: Sequence[Any], *operands: Array | None) -> Any:
        wide = leading(size, is_batched, operands)
        x, blocks = wide[0], wide[scale]
        assert x is not None
        assert blocks is not None
        if dimensions(shape_of(x.shape), blocks.shape) > _MAX_RANK:
            return each_example(call, size, is_batched, operands)
        return mapped(*wide)

    mapped = batched(call, rule)
    return mapped
