"""Sequences that are packed along a dimension: their bounds, ``cu_seqlens``."""

from __future__ import annotations

from . import errors
from ._arrays import Array


def count_sequences(op: str, cu_seqlens: Array | None) -> int | None:
    """The number of sequences that some bounds have; None without bounds.

    Raises:
        InvalidProblemError: they are not of one dimension, or empty.
    """
    if cu_seqlens is None:
        return None
    if len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] == 0:
        wanted = "of one dimension, one longer than the number of sequences"
        raise errors.make("invalid_problem", op, "cu_seqlens", wanted, f"shape {list(cu_seqlens.shape)}")
    return int(cu_seqlens.shape[0]) - 1
