"""Decides whether a plan or torch does a call. This happens before the forward runs, as a backward cannot hand the call back.

``select_or_raise`` of each drop-in selects the plan of its backward, and raises the error of the selection. A drop-in that was
called by its name lets the error through, in its own words; accelerate() leaves such a call to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...errors import Error, make, renamed
from .operators import PLAIN, is_distributed, is_exporting, is_traced
from .sharding import sharding

E = TypeVar("E", IndexError, RuntimeError)
R = TypeVar("R")
ErrorParts = tuple[str, str, str, str]
"""The operand, wanted, got and hint of an error: plain constants, which torch.compile can keep."""


def require_strided(op: str, **operands: Any) -> None:
    """Raise the error of a plan for a tensor that it cannot read: nested, sparse, or of MKL-DNN.

    Raises:
        UnsupportedError: with the way out.
    """
    for operand, x in operands.items():
        if not isinstance(x, Tensor) or _is_plain(x):
            continue
        if x.is_nested:
            raise make(
                "unsupported", op, operand, "a strided tensor", "a nested tensor", f"call it for each of {operand}.unbind()"
            )
        if x.layout is not torch.strided:
            raise make("unsupported", op, operand, "a strided tensor", f"a {x.layout} tensor", f"use {operand}.to_dense()")


def refuse_distributed(op: str, option: str, *values: Any) -> None:
    """Raise UnsupportedError for an option that DTensors do not have, if one of some values is one."""
    if is_distributed(*values):
        hint = "redistribute them and use to_local()"
        raise make("unsupported", f"sternway.torch.{op}", option, "left out where operands are DTensors", "an option", hint)


def run_operator(name: str, op: str, operands: tuple[str, ...], *inputs: Any) -> Any:
    """Call the operator ``sternway::name``, after a check of the placements of DTensors.

    Args:
        name: of the operator.
        op: the drop-in, for errors.
        operands: what the drop-in calls the tensors of the operator, which are its first inputs.

    Raises:
        UnsupportedError: the operator has no sharding rule for these placements.
    """
    if is_distributed(*inputs):
        sharding().require_rule(name, op, operands, inputs)
    return getattr(torch.ops.sternway, name).default(*inputs)


def _is_plain(x: Tensor) -> bool:
    return type(x) in PLAIN and x.layout is torch.strided and not x.is_nested and not x.is_meta


def _stands_for_plain(x: Tensor) -> bool:
    """Whether x is the placeholder by which torch.export traces a plain tensor."""
    return type(x).__name__ in ("FakeTensor", "FunctionalTensor") and x.layout is torch.strided and is_exporting()


def all_plain(values: Iterable[Any]) -> bool:
    """Whether the tensors among some values are strided, have memory and are of no subclass, as plans need them."""
    return all(_is_plain(x) or _stands_for_plain(x) for x in values if isinstance(x, Tensor))


def runs_plan_directly(*tensors: Tensor | None) -> bool:
    """Whether a plan is run on these tensors without torch seeing the call."""
    if is_traced() or torch._C._len_torch_dispatch_stack():
        return False
    return all(x is None or _is_plain(x) for x in tensors)


def device_to_ask(x: Tensor) -> torch.device:
    """The device on which a traced call selects a plan: the CPU for a tensor without values."""
    without_values = x.is_meta or (type(x).__name__ == "FakeTensor" and not is_exporting())
    return torch.device("cpu") if without_values else x.device


def selection_error(select: Callable[..., Any], *problem: Any) -> ErrorParts | None:
    """The parts of the error by which a selection fails; None: it succeeds."""
    try:
        select(*problem)
    except Error as error:
        return error.operand, error.wanted, str(error.got), error.hint
    return None


def require(op: str, refusal: ErrorParts | None) -> None:
    """Raise UnsupportedError with these parts, if there are any."""
    if refusal is not None:
        operand, wanted, got, hint = refusal
        raise make("unsupported", op, operand, wanted, got, hint)


def with_public_names(op: str, operands: Mapping[str, str], select_or_raise: Callable[..., R], *arguments: Any) -> R:
    """Call ask(*arguments); an error names the drop-in and its operands instead of the plan's."""
    try:
        return select_or_raise(*arguments)
    except Error as error:
        renamed(error, op, operands)
        raise


def with_index(error: E, op: str, input: Tensor, weight: Tensor) -> E:
    """torch's error for an index out of range, with the index and the number of rows where the values are on the CPU."""
    rows = weight.shape[0] if weight.dim() else 0
    if not runs_plan_directly(input, weight) or input.device.type != "cpu":
        return error
    outside = ((input < 0) | (input >= rows)).nonzero()
    if not len(outside):
        return error
    place = outside[0].tolist()
    at = f"position {place[0]}" if len(place) == 1 else str(place)
    value = int(input[tuple(place)])
    return type(error)(f"{op}: index out of range: input must be in [0, {rows}), the rows of the table, got {value} at {at}")
