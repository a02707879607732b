"""Functions that torch.compile calls while it traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def constant(function: F) -> F:
    """Decorate a function of constants: torch.compile calls it while it traces and keeps the result.

    This is torch.compiler.assume_constant_result without its import of torch._dynamo, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
