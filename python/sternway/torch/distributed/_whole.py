"""The gradient of a scan from the whole tensor, which every rank gathers, for derivatives of the gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..._kinds import EXTREMA
from .._autograd import packed_scan
from .._autograd.operators import apply
from .._autograd.scan_gradient import GRADIENT
from ._cuts import Cut
from ._exchange import all_gather


def whole_gradient(dy: Tensor, x: Tensor, kind: str, cut: Cut, cu_seqlens: Tensor | None) -> Tensor:
    """The part of dx of this rank, which can be differentiated by dy and x on every rank."""
    dim, reverse = cut.dim, cut.reverse
    of_dy, of_x = (_Whole.apply(part, dim, cut.group, cut.lengths) for part in (dy, x))
    if cu_seqlens is None:
        dx = apply(GRADIENT.function, of_dy, of_x, dim, kind, reverse)
    else:
        indices = packed_scan.run(of_x.detach(), cu_seqlens, dim, kind, reverse, False)[1] if kind in EXTREMA else None
        operands = of_dy, None if kind in EXTREMA else of_x, indices, cu_seqlens
        dx = apply(packed_scan.GRADIENT.function, *operands, dim, kind, reverse, False)
    return dx.narrow(dim, cut.edges[cut.rank], cut.lengths[cut.rank])  # type: ignore[no-any-return]


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
