"""Who does a call, a plan or torch: decided before the forward runs, because a backward can no longer hand the call back.

Each drop-in has a function ``ask`` that selects the plan of its backward, and raises the error of the selection. A drop-in that
was called by its name lets the error through, in its own words; accelerate() leaves such a call to torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from ..errors import Error, make, renamed
from ._operators import PLAIN, intercepted, traced

P = ParamSpec("P")
R = TypeVar("R")
Sentence = tuple[str, str, str, str]
"""Operand, wanted, got and hint of an error: constants, which torch.compile can keep."""

TORCH_KEYWORDS = {"input": "x", "axis": "dim"}


def require_strided(op: str, **operands: Any) -> None:
    """Raise what a plan would for a tensor that it cannot read: nested, sparse, of MKL-DNN, or spread over processes.

    Raises:
        UnsupportedError: with the way out.
    """
    for operand, x in operands.items():
        if not isinstance(x, Tensor):
            continue
        if x.is_nested:
            raise make(
                "unsupported", op, operand, "a strided tensor", "a nested tensor", f"call it for each of {operand}.unbind()"
            )
        if x.layout is not torch.strided:
            raise make("unsupported", op, operand, "a strided tensor", f"a {x.layout} tensor", f"use {operand}.to_dense()")
        if type(x) not in PLAIN and _is_distributed(x):
            hint = f"use {operand}.to_local(), or redistribute it"
            raise make("unsupported", op, operand, "a tensor of this process", "a DTensor", hint)


def _is_distributed(x: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def unknown_to_plans(*tensors: Any) -> bool:
    """Whether one of them is no plain strided tensor with memory: such calls stay with torch inside accelerate()."""
    return any(
        isinstance(x, Tensor) and (type(x) not in PLAIN or x.is_meta or x.is_nested or x.layout is not torch.strided)
        for x in tensors
    )


def without_plan(x: Tensor) -> bool:
    """Whether torch has to see what becomes of x, so that a plan of its very shape is of no use."""
    return traced() or intercepted(x)


def device_to_ask(x: Tensor) -> torch.device:
    """The device on which the plan of a traced call is asked for. A tensor without values says nothing of this machine."""
    return torch.device("cpu") if x.is_meta or type(x).__name__ == "FakeTensor" else x.device


def sentence(select: Callable[..., Any], *problem: Any) -> Sentence | None:
    """What a selection is refused with; None: there is a plan."""
    try:
        select(*problem)
    except Error as error:
        return error.operand, error.wanted, str(error.got), error.hint
    return None


def require(op: str, refusal: Sentence | None) -> None:
    """Raise UnsupportedError with a sentence, if there is one."""
    if refusal is not None:
        operand, wanted, got, hint = refusal
        raise make("unsupported", op, operand, wanted, got, hint)


def named(op: str, operands: Mapping[str, str], ask: Callable[..., R], *arguments: Any) -> R:
    """ask(*arguments), whose errors speak of the drop-in and its operands."""
    try:
        return ask(*arguments)
    except Error as error:
        raise renamed(error, op, operands) from error.__cause__
