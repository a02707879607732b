"""The outputs of the functions: arrays that the caller gave, or new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import errors
from ._arrays import Array, device_of, dtype_name, producer
from ._lent import Lent
from ._plan import Plan


def outputs(plan: Plan[Any], dy: Array, rows: Sequence[tuple[str, Any, str | None]], out: Any) -> dict[str, Array]:
    """The outputs of a function by name: the arrays that the caller gave, or new ones of dy's library.

    rows: name, an array that the output is like, or a shape, and a dtype (None: that of the array, or for a shape dy's).
    """
    if out is not None:
        return _given(plan.sku.op, [name for name, _, _ in rows], out)
    library, kind, new = producer(dy, plan.sku.op), type(dy), {}
    try:
        for name, like, dtype in rows:
            if type(like) is kind and kind is not Lent:
                new[name] = library.empty_like(like, dtype)
            elif isinstance(like, tuple):
                new[name] = library.empty(like, dtype or plan.sku.element, plan.device)
            else:  # of another library
                if device_of(like) != plan.device:  # before memory is taken for a shape that nobody has checked
                    raise errors.make(
                        "invalid_problem", plan.sku.op, name, f"like an operand on {plan.device}", device_of(like)
                    )
                new[name] = library.empty(tuple(like.shape), dtype or dtype_name(like.dtype), plan.device)
    except (MemoryError, OverflowError, RuntimeError, ValueError) as error:
        checked = like is dy or isinstance(like, tuple)  # by select; the shape of another operand the plan may refuse yet
        text = errors.reason(error)  # "Stride calculation overflowed" and the like, of torch, are no lack of memory
        out_of_memory = isinstance(error, (MemoryError, RuntimeError)) and "overflow" not in text
        if isinstance(error, errors.Error) or (out_of_memory and (checked or type(error).__name__ == "OutOfMemoryError")):
            raise
        raise errors.make("invalid_problem", plan.sku.op, name, "of a shape that can be made", text) from None
    return new


def _given(op: str, names: list[str], out: Any) -> dict[str, Array]:
    """The outputs that a caller gave: an array, or a tuple or list of them. Trailing Nones are dropped."""
    given = list(out) if isinstance(out, (tuple, list)) else [out]
    while given and given[-1] is None:
        given.pop()
    missing = sum(x is None for x in given)
    if len(given) != len(names) or missing:
        count = "1 array" if len(names) == 1 else f"{len(names)} arrays"
        got = f"{len(given)}, of which {missing} None" if missing else str(len(given))
        raise errors.make("invalid_problem", op, "out", f"{count} ({', '.join(names)})", got)
    return dict(zip(names, given, strict=True))
