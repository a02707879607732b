"""Operands of the per-token quantizations: their shapes, and their rule for vmap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import errors
from ._call import Array
from ._rules import Function, batched, leading


def flat(name: str, x: Array, scale: Array, zero_point: Array | None) -> tuple[Array, Array, Array | None]:
    """The operands as [tokens, D] and [tokens].

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
        per_token.append(None if array is None else array.reshape(tokens))
    return x.reshape(tokens, x.shape[-1]), *per_token


def by_token(call: Function) -> Function:
    """A function of operands [tokens, D] and [tokens], with a rule for vmap: a batch is more tokens."""

    def rule(size: int, is_batched: Sequence[Any], *operands: Array | None) -> Any:
        wide = leading(size, is_batched, operands)
        first = wide[0]
        assert first is not None
        tokens = first.shape[1]
        merged = [None if x is None else x.reshape(size * tokens, *x.shape[2:]) for x in wide]
        results = mapped(*merged)
        return tuple(y.reshape(size, tokens, *y.shape[1:]) for y in results)

    mapped = batched(call, rule)
    return mapped
