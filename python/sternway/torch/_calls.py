"""What the drop-ins share: whom they refuse, which calls go through torch's dispatcher, how gradients lie in memory."""

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


def strides_like(x: Tensor) -> tuple[int, ...] | None:
    """The strides that a gradient of x shall have; None: contiguous. Operators that are traced have strides of their own."""
    if x.is_contiguous() or torch.compiler.is_compiling():
        return None
    return torch.empty_like(x, device="meta").stride()


def empty_gradient(dy: Tensor, shape: torch.Size, strides: tuple[int, ...] | None) -> Tensor:
    """A tensor of dy's dtype and device for a gradient."""
    if strides is not None:
        return dy.new_empty_strided(shape, strides)
    return torch.empty_like(dy, memory_format=torch.contiguous_format) if shape == dy.shape else dy.new_empty(shape)


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
