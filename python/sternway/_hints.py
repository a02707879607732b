"""Advice in the words of an operand's library: ``x.to(torch.float32)`` of a tensor, ``x.astype("float32")`` of an array."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ._arrays import library_of
from ._dtypes import BEYOND_NUMPY
from ._lent import Lent, is_jax
from .errors import HintOf

LibraryOf = Callable[[str], "str | None"]
"""The library of an operand, by the operand's name; None: unknown."""

_NUMPY = {"to_dtype": "{x}.astype({dtype})", "to_aligned": "{x}.copy()", "to_dense": "{x}.copy()"}
_CALLS = {
    "torch": {"to_dtype": "{x}.to({dtype})", "to_aligned": "{x}.clone()", "to_dense": "{x}.contiguous()"},
    "numpy": _NUMPY,
    "cupy": _NUMPY,
    "jax": _NUMPY,
}
"""By library, the calls for the kinds of conversion that the Go core advises (Fix in core/internal/errs)."""

_DTYPES = {"torch": "torch.{}", "numpy": '"{}"', "cupy": '"{}"', "jax": '"{}"'}


def hint_of(operands: Mapping[str, Any]) -> HintOf:
    """The function that writes hints as calls of the libraries of these arrays, which are given by name."""

    def find(name: str) -> str | None:
        x = operands.get(name)
        x = x.owner if type(x) is Lent else x
        return "jax" if is_jax(x) else library_of(x)

    return functools.partial(in_code, library_of=find)


def in_code(fix: Mapping[str, str], operand: str, library_of: LibraryOf) -> str | None:
    """A fix of the Go core as a sentence with a call; None: the library of the operand is unknown."""
    library = library_of(operand)
    if library is None:
        return None
    like = fix["like"]
    if like and library_of(like) == library:
        dtype = f"{like}.dtype"
    elif library == "numpy" and fix["dtype"] in BEYOND_NUMPY:
        dtype = f"ml_dtypes.{fix['dtype']}"
    else:
        dtype = _DTYPES[library].format(fix["dtype"])
    return f"{fix['ask']} with {_CALLS[library][fix['do']].format(x=operand, dtype=dtype)}"
