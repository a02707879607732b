"""Options of the functions for JAX as plain values of Python."""

from __future__ import annotations

from typing import Any

from .. import errors
from .._descriptor import normalized


def flag(op: str, option: str, value: Any) -> bool:
    """An option that is a bool of Python or NumPy.

    Raises:
        InvalidProblemError: anything else, such as 1, or a value that JAX traces.
    """
    found: bool = normalized(op, option, "bool", value)
    return found


def integer(op: str, option: str, value: Any) -> int:
    """An option that is an integer.

    Raises:
        InvalidProblemError: anything else, such as True, or a value that JAX traces.
    """
    found: int = normalized(op, option, "int", value)
    return found


def axis_of(op: str, axis: Any, rank: int, of: str) -> int:
    """An axis of one or more, counted from the end, so that it is negative. of: the array that has the axes, for errors.

    Raises:
        InvalidProblemError: an axis out of range, or no integer.
    """
    position = integer(op, "axis", axis)
    if not -rank <= position < rank:
        raise errors.make("invalid_problem", op, "axis", f"one of the {rank} axes of {of}", str(position))
    return position if position < 0 else position - rank
