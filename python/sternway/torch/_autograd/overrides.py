"""Calls that others see before we do, as they see torch's own: function modes, and operands with a ``__torch_function__``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

_DEFAULT = getattr(Tensor.__torch_function__, "__func__", None)


def has_foreign_mode() -> bool:
    """Whether a TorchFunctionMode is active that is neither ours nor torch's, such as that of a default device."""
    modes = (torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack()))
    return any(not type(mode).__module__.startswith(("torch.", "sternway.")) for mode in modes)


def _overrides(x: Any) -> bool:
    if isinstance(x, Tensor) and x.is_nested:  # which drop-ins take, or refuse by name
        return False
    function = getattr(type(x), "__torch_function__", None)
    if function is None or function is torch._C._disabled_torch_function_impl or not torch._C._is_torch_function_enabled():
        return False
    return getattr(function, "__func__", None) is not _DEFAULT


def is_overridden(values: Sequence[Any]) -> bool:
    """Whether a function mode is active, or one of some values has a ``__torch_function__`` that is not the default.

    The default is skipped, as it only calls the function again. Under Dynamo the answer is False: it dispatches to modes and
    subclasses itself.
    """
    if not has_torch_function(values) or torch.compiler.is_dynamo_compiling():  # the quick one first
        return False
    return any(map(_overrides, values)) or has_foreign_mode()


def handed_on(
    ours: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    torchs: tuple[Callable[..., Any], Sequence[Any]] | None = None,
) -> Any:
    """The result of a call by the mode or the operand that :func:`is_overridden` found.

    Args:
        ours: the drop-in, which modes see, and fx, whose graphs then contain it.
        args, kwargs: of the call.
        torchs: torch's function for this call, and its arguments. A subclass of Tensor gets it, as it knows no other.
    """
    values = (*args, *kwargs.values())
    if torchs is None or has_foreign_mode() or any(isinstance(x, torch.fx.Proxy) for x in values):
        return handle_torch_function(ours, values, *args, **kwargs)
    function, others = torchs
    return handle_torch_function(function, others, *others)
