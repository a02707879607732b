"""Where the sequences of a dimension begin."""

from __future__ import annotations

import torch
from torch import Tensor


def first_positions(
    x: Tensor, cu_seqlens: Tensor | None, dim: int, reverse: bool, start: int = 0, extent: int | None = None
) -> Tensor:
    """Whether each position of x along dim is the first of its sequence in scan order. The shape broadcasts with x.

    Args:
        x: a whole, or the part of one that begins at position ``start`` of ``extent`` positions.
        cu_seqlens: the bounds of sequences in the whole; None: one sequence.
        dim: the dimension of the sequences.
        reverse: scan order runs from the last position to the first.
    """
    n = x.shape[dim]
    if cu_seqlens is None:
        last = (n if extent is None else extent) - 1
        firsts = torch.arange(n, device=x.device) == (last if reverse else 0) - start
    else:
        at = cu_seqlens.long() - (start + reverse)
        firsts = torch.zeros(n + 1, dtype=torch.bool, device=x.device)
        firsts = firsts.index_fill(0, torch.where((at >= 0) & (at < n), at, n), True)[:n]
    return firsts.view([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])
