"""The options of RoPE as plain values, the dimensions of its layouts, and the errors about them."""

from __future__ import annotations

import operator
from typing import Any

from . import errors
from ._arrays import Array, dtype_name

OP = "rope_backward"
"""The operation that errors name; the functions put their own name in its place."""

_AXES = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "thd": (None, 1, 0, 2)}
"""By layout, the axes of batch, heads, tokens and elements; None: the layout has no such axis."""

_OF_RANK = {
    3: 'layout="thd" takes rank 3, [tokens, heads, dim]',
    4: 'layout="bhsd" takes rank 4, [batch, heads, tokens, dim], and layout="bshd" [batch, tokens, heads, dim]',
}
"""By rank, the layouts that take it."""

Options = tuple[float, str, int | None, int, str, str]
"""base, pairing, rotary_dim, rotary_start, angle, layout."""


def options_of(base: Any, pairing: Any, rotary_dim: Any, rotary_start: Any, angle: Any, layout: Any) -> Options:
    """The options of a call as plain Python numbers and strings, which can be hashed and traced. Plans check their values.

    Raises:
        InvalidProblemError: an option of another kind.
    """
    if not isinstance(base, float):
        base = _converted("base", base, "a number", _number)
    if rotary_dim is not None and not isinstance(rotary_dim, int):
        rotary_dim = _converted("rotary_dim", rotary_dim, "an integer", _integer)
    if not isinstance(rotary_start, int):
        rotary_start = _converted("rotary_start", rotary_start, "an integer", _integer)
    for name, word in (("pairing", pairing), ("angle", angle), ("layout", layout)):
        if not isinstance(word, str):
            raise errors.make("invalid_problem", OP, name, "a word", errors.shown(word))
    return base, pairing, rotary_dim, rotary_start, angle, layout


def _number(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError
    return float(value)


def _integer(value: Any) -> int:
    return int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)


def _converted(name: str, value: Any, kind: str, convert: Any) -> Any:
    try:
        return convert(value)
    except Exception:  # of a value of any class
        raise errors.make("invalid_problem", OP, name, kind, errors.shown(value)) from None


def extents(shape: tuple[int, ...], layout: str, operand: str = "dy") -> tuple[int, int, int, int]:
    """Batch, heads, tokens and elements of an operand in a layout.

    Raises:
        InvalidProblemError: there is no such layout, or it has another rank.
    """
    axes = _AXES.get(layout)
    if axes is None:
        raise errors.make("invalid_problem", OP, "layout", "bhsd, bshd or thd", repr(layout))
    rank = 4 - axes.count(None)
    if len(shape) != rank:
        wanted, got = f"of rank {rank} in the layout {layout}", f"rank {len(shape)}"
        hint = _OF_RANK.get(len(shape), "")
        raise errors.make("invalid_problem", OP, operand, wanted, got, hint)
    b, h, s, d = (1 if axis is None else shape[axis] for axis in axes)
    return b, h, s, d


def num_heads(shape: tuple[int, ...], layout: str) -> int:
    """The number of heads of an operand in a layout; 0 if there is no such layout or axis."""
    axis = _AXES[layout][1] if layout in _AXES else len(shape)
    return shape[axis] if axis < len(shape) else 0


def refuse_complex(name: str, table: Array | None) -> None:
    """Refuse a complex table, with the advice to pass its real and imaginary parts as cos and sin.

    Raises:
        InvalidProblemError: the dtype of the table is complex.
    """
    dtype = getattr(table, "dtype", None)
    if dtype is not None and "complex" in dtype_name(dtype):
        hint = f"pass cos={name}.real and sin={name}.imag"
        wanted, got = "real", f"a table of {dtype_name(dtype)}"
        raise errors.make("invalid_problem", OP, name, wanted, got, hint)
