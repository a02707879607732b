"""What the drop-ins share: whom they refuse, how gradients lie in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import make
from ._operators import traced

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def require_tensors(name: str, **operands: Any) -> None:
    """Raise TypeError for an operand of a drop-in that is no tensor, before anything looks at it."""
    for operand, x in operands.items():
        if not isinstance(x, Tensor):
            raise make("type", f"sternway.torch.{name}", operand, "a torch.Tensor", type(x).__name__)


def strides_like(x: Tensor) -> tuple[int, ...] | None:
    """The strides that a gradient of x shall have; None: contiguous. What torch traces or batches has strides of its own."""
    if traced() or x.is_contiguous():
        return None
    return torch.empty_like(x, device="meta").stride()


def empty_gradient(dy: Tensor, shape: torch.Size, strides: tuple[int, ...] | None) -> Tensor:
    """A tensor of dy's dtype and device for a gradient."""
    if strides is not None:
        return dy.new_empty_strided(shape, strides)
    return torch.empty_like(dy) if dy.is_contiguous() and dy.shape == shape else dy.new_empty(shape)
