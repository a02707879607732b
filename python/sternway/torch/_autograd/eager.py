"""Ordinary eager calls: the conditions under which autograd alone has to see a call, and autograd functions for them.

Each operation has two autograd functions that share their bodies. One has ``setup_context``, as transforms of torch.func,
torch.compile and forward-mode derivatives need; torch binds the signature of its forward in Python on every call. The other
takes ``ctx`` in its forward, as autograd did before, and is called where nothing but autograd is active. Where torch lacks one
of the private functions below, every call takes the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..._plan import Plan
from .calls import resolve
from .operators import PLAIN
from .overrides import has_foreign_mode

_TYPES = frozenset(PLAIN)
_is_traced_by_dynamo = torch.compiler.is_dynamo_compiling  # whose other traces have a dispatch mode
_is_grad_enabled = torch.is_grad_enabled
_transforms_are_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_is_tracing: Callable[[], bool] = getattr(torch._C, "_is_tracing", lambda: True)  # by torch.jit.trace
_count_function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
_count_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)


def is_eager(x: Any) -> bool:
    """Whether x is a strided tensor, and nothing but autograd sees operations on it.

    It is of no subclass, and no trace, transform, dispatch mode or tangent is active. x may be nested, which its shape refuses.
    """
    return (
        not _is_traced_by_dynamo()  # first: it traces no further
        and type(x) in _TYPES
        and x.layout is torch.strided
        and not _transforms_are_active()
        and not _count_modes()
        and not (_count_function_modes() and has_foreign_mode())
        and not _is_tracing()
        and forward_ad._current_level < 0
    )


def is_plain(x: Any) -> bool:
    """Whether x is a strided tensor of no subclass; a second operand, if the first passes :func:`is_eager`."""
    return type(x) in _TYPES and x.layout is torch.strided


def needs_no_graph(dy: Tensor) -> bool:
    """Whether a backward that got dy may run a plan without torch seeing it, as nobody differentiates or traces it.

    Tensors that a plan cannot read, such as those of ``is_grads_batched``, are refused by :meth:`Plan._run_plain`.
    """
    return (
        not _is_traced_by_dynamo()
        and type(dy) in _TYPES
        and dy.layout is torch.strided
        and not _is_grad_enabled()
        and not _transforms_are_active()
        and not _count_modes()
        and forward_ad._current_level < 0
    )


def run_forward(plan: Plan[Any], operands: dict[str, Any]) -> None:
    """Run the plan of a forward on operands, which are given by name."""
    if not plan._run_plain(operands):
        plan.run(**{name: x if x is None or name in plan._outputs else resolve(x.detach()) for name, x in operands.items()})


def apply_in_c(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` as C code alone, for calls that pass :func:`is_eager`.

    Until torch 2.13 the method itself is Python, which looks for transforms and dead wrappers of tensors first.
    """
    try:
        found: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    except AttributeError:
        found = function.apply
    return found
