"""What the drop-ins share: whom they refuse, and which calls go through torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import make

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def require_tensors(name: str, **operands: Any) -> None:
    """Raise TypeError for an operand of a drop-in that is no tensor, before anything looks at it."""
    for operand, x in operands.items():
        if not isinstance(x, Tensor):
            raise make("type", f"sternway.torch.{name}", operand, "a torch.Tensor", f"a {type(x).__name__}")


def by_dispatcher(dy: Tensor) -> bool:
    """Whether a backward has to be an operator of torch's: torch.compile traces it, is_grads_batched calls it for each dy."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_legacy_batchedtensor(dy)


def refuse_vmap(name: str) -> Callable[..., NoReturn]:
    """A vmap rule for an autograd.Function that has none: an error that names the public function."""

    def vmap(*_: Any) -> NoReturn:
        raise make(
            "unsupported",
            f"sternway.torch.{name}",
            "the call",
            "made without vmap",
            "vmap",
            "add the batch as a leading dimension instead",
        )

    return staticmethod(vmap)
