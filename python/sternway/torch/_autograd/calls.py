"""Helpers of all drop-ins: checks of arguments, and the memory layout of gradients."""

from __future__ import annotations

import operator
from typing import Any, get_args

import torch
from torch import Tensor

from ..._arrays import dtype_name
from ..._descriptor import is_numpy_bool
from ..._types import FloatName
from ...errors import make
from .operators import PLAIN, is_traced

FLOATS: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in get_args(FloatName))


def require_tensors(name: str, **operands: Any) -> None:
    """Raise TypeError if an operand of a drop-in is no tensor, before any of its attributes is read."""
    for operand, x in operands.items():
        if not isinstance(x, Tensor):
            hint = f"torch.tensor({x}) is one" if type(x) in (int, float) else ""
            raise make("type", f"sternway.torch.{name}", operand, "a torch.Tensor", type(x).__name__, hint)


def require_order(name: str, input: Tensor, weight: Tensor) -> None:
    """Raise InvalidProblemError for a table that was given in place of its indices.

    Raises:
        InvalidProblemError: input is floating and weight has integers.
    """
    if input.is_floating_point() and not weight.is_floating_point() and not weight.is_complex():
        got, hint = dtype_name(input.dtype), f"the order is {name}(input, weight)"
        raise make("invalid_problem", f"sternway.torch.{name}", "input", "integer indices", got, hint)


def _shown(value: Any) -> str:
    """The start of a value on one line."""
    return f"{' '.join(repr(value).split()):.80}"


def is_bool(value: Any) -> bool:
    """Whether a value is a bool of Python or NumPy."""
    return isinstance(value, bool) or is_numpy_bool(value)


def flag(name: str, option: str, value: Any) -> bool:
    """An option of a drop-in that is a bool of Python or NumPy.

    Raises:
        InvalidProblemError: for anything else, 0 and 1 included.
    """
    if value is True or value is False:
        return value
    if is_bool(value):
        return bool(value)
    raise make("invalid_problem", f"sternway.torch.{name}", option, "True or False", _shown(value))


def integer(name: str, option: str, value: Any) -> int:
    """An option of a drop-in that is an integer of Python, NumPy or torch.

    Raises:
        InvalidProblemError: for anything else, True and False included.
    """
    if type(value) is int:
        return value
    if not is_bool(value):
        if isinstance(value, torch.SymInt):
            return value  # type: ignore[return-value]
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise make("invalid_problem", f"sternway.torch.{name}", option, "an integer", _shown(value))


def resolve(x: Tensor) -> Tensor:
    """x with its values in memory. A gradient may be lazily negated, sparse, or zeros without storage (torch's zero tensors).

    Every backward calls it first. It can be differentiated.
    """
    if torch.compiler.is_compiling():  # tensors have no values yet
        return x
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x._is_zerotensor():
        return x.clone()
    return x.resolve_neg() if x.is_neg() else x


def strides_like(x: Tensor) -> tuple[int, ...] | None:
    """The strides of a gradient of x, None: contiguous. None as well where torch decides its layout.

    It does so for a traced or batched x, and for a subclass, such as a DTensor.
    """
    if is_traced() or x.is_contiguous() or type(x) not in PLAIN:
        return None
    return torch.empty_like(x, device="meta").stride()


def empty_gradient(dy: Tensor, shape: torch.Size, strides: tuple[int, ...] | None) -> Tensor:
    """A tensor of dy's dtype and device for a gradient."""
    if strides is not None:
        return dy.new_empty_strided(shape, strides)
    if dy.shape != shape:
        return dy.new_empty(shape)
    return torch.empty_like(dy) if dy.is_contiguous() else torch.empty_like(dy, memory_format=torch.contiguous_format)


def given(**operands: Tensor | None) -> dict[str, Tensor]:
    """The operands of a plan that are not None, as it reads them."""
    return {name: resolve(x.detach()) for name, x in operands.items() if x is not None}
