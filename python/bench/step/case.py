"""Steps: what a row measures, at any shape, in any dtype, on any device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], Any]
Shape = tuple[int, ...]
OURS, TORCH, COMPILE = "sternway", "torch", "compile"


@dataclass(frozen=True)
class Size:
    """A shape and a dtype that are measured. compiled: torch.compile takes part."""

    shape: Shape
    dtype: str
    compiled: bool = False


@dataclass(frozen=True)
class Contestant:
    """One way to do a step.

    Attributes:
        forward: the forward, which records the graph of the backward where `step` is given.
        step: forward and backward, and the optimizer's step where there is one. None: the forward alone takes part.
        gradients: the gradients of one step, without the optimizer's. None: what `step` returns.
    """

    forward: Call
    step: Call | None
    gradients: Call | None = None


@dataclass(frozen=True)
class Checked:
    """The error of a contestant: the 2-norm of the deviations divided by that of the truth."""

    error: float


@dataclass
class Step:
    """A step with its inputs.

    Attributes:
        contestants: sternway, torch, and others, by name.
        check: compares results of the contestants with a more precise computation.
        left_out: for each contestant that cannot take part here, the reason.
        close: undoes what outlives the step.
    """

    contestants: dict[str, Contestant]
    check: Callable[[Mapping[str, Contestant]], dict[str, Checked]]
    left_out: dict[str, str] = field(default_factory=dict)
    close: Call = lambda: None


@dataclass(frozen=True)
class StepCase:
    """A step by name.

    Attributes:
        make: builds the step on a device at a size.
        quick: the size of ``--quick``, on every device.
        cpu, cuda: the sizes that are measured there. Those of the CPU let the whole table finish in 3 minutes on 2 cores.
        missing: a reason to leave the step out on this machine; "" if there is none.
    """

    name: str
    make: Callable[[str, Size], Step]
    quick: Size
    cpu: tuple[Size, ...]
    cuda: tuple[Size, ...]
    missing: Callable[[], str] = lambda: ""


def by_gradient(forward: Call, leaves: Sequence[Any], dy: Any = None) -> Contestant:
    """The contestant that runs a forward and torch.autograd.grad of its result. dy=None: the result is a loss."""
    import torch

    def step() -> Any:
        return torch.autograd.grad(forward(), leaves, dy)

    return Contestant(forward, step)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function by torch.compile in the default mode, for the shapes of its first call."""
    import torch

    return torch.compile(function, dynamic=False)


def ways(
    size: Size, torch_function: Callable[..., Any], ours: Callable[..., Any], *arguments: Any
) -> dict[str, functools.partial[Any]]:
    """The forwards of torch, of sternway and, where the size asks for it, of torch.compile, by the name of the contestant."""
    found = {TORCH: functools.partial(torch_function, *arguments), OURS: functools.partial(ours, *arguments)}
    if size.compiled:
        found[COMPILE] = functools.partial(compiled(torch_function), *arguments)
    return found
