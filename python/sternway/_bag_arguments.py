"""The arguments of embedding bags as operands of plans, which have indices of rank 1."""

from __future__ import annotations

import sys
from typing import Any

from . import errors
from ._arrays import Array, device_of, producer, require_array


def flag(op: str, name: str, value: Any) -> bool:
    """An option as a bool; a scalar of NumPy is accepted."""
    if value is True or value is False:
        return value
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.bool_):
        return bool(value)
    raise errors.make("invalid_problem", op, name, "True or False", errors.shown(value))


def flat_positions(
    op: str, like: Array, indices: Array, offsets: Array | None, out: Any, bags: int | None = None
) -> tuple[Array, Array]:
    """Indices of rank 1, and offsets. Each row of indices of rank 2 is a bag, whose offsets are made here.

    like: an array of the library that makes them, unless `out` is one. bags: how many bags there are, if that is known.
    """
    if len(indices.shape) == 1:
        if offsets is None:
            raise errors.make("invalid_problem", op, "offsets", "given for indices of rank 1", "nothing")
        return indices, require_array(op, "offsets", offsets)
    if len(indices.shape) != 2:
        raise errors.make("invalid_problem", op, "indices", "of rank 1 or 2", f"rank {len(indices.shape)}")
    if offsets is not None:
        got = "an operand"
        raise errors.make("invalid_problem", op, "offsets", "left out for indices of rank 2", got, "each row is a bag")
    count, width = indices.shape
    if bags is not None and bags != count:
        rows = f"of {bags} rows like dy"
        raise errors.make("invalid_problem", op, "indices", rows, f"shape {list(indices.shape)}", "each row is a bag")
    given = like if out is None or isinstance(out, (tuple, list)) else out
    return indices.reshape(-1), producer(given, op).multiples(count, width, device_of(like))


def flat_weights(op: str, weights: Any, indices: Array) -> Array | None:
    """Weights of samples, which have the shape of the indices, of rank 1."""
    if weights is None:
        return None
    weights = require_array(op, "per_sample_weights", weights)
    if tuple(weights.shape) != tuple(indices.shape):
        shapes = f"of shape {list(indices.shape)} like indices", str(list(weights.shape))
        raise errors.make("invalid_problem", op, "per_sample_weights", *shapes)
    return weights if len(weights.shape) == 1 else weights.reshape(-1)
