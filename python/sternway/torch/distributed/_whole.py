"""The gradient of a scan from the whole tensor, which every rank gathers, for derivatives of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._autograd.operators import apply
from .._autograd.scan_gradient import GRADIENT
from ._exchange import all_gather


def whole_gradient(dy: Tensor, x: Tensor, kind: str, dim: int, reverse: bool, group: Any, lengths: Sequence[int]) -> Tensor:
    """The part of dx of this rank, which can be differentiated by dy and x on every rank."""
    wholes = [_Whole.apply(part, dim, group, tuple(lengths)) for part in (dy, x)]
    dx = apply(GRADIENT.function, *wholes, dim, kind, reverse)
    rank = dist.get_rank(group)
    return dx.narrow(dim, sum(lengths[:rank]), lengths[rank])  # type: ignore[no-any-return]


class _Whole(torch.autograd.Function):
    """The parts of all ranks side by side. The gradient of a part is the sum of those that the ranks compute."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: Any, lengths: tuple[int, ...]) -> Tensor:
        ctx.options = dim, group, lengths
        longest = max(lengths)
        padded = part.new_zeros(longest, *part.shape[:dim], *part.shape[dim + 1 :])
        padded[: part.shape[dim]] = part.movedim(dim, 0)
        parts = zip(all_gather(padded, group), lengths, strict=True)
        return torch.cat([one[:length] for one, length in parts]).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        dim, group, lengths = ctx.options
        total = grad.to(torch.promote_types(grad.dtype, torch.float32), memory_format=torch.contiguous_format, copy=True)
        dist.all_reduce(total, group=group)
        rank = dist.get_rank(group)
        return total.narrow(dim, sum(lengths[:rank]), lengths[rank]).to(grad.dtype), None, None, None
