"""How the ranks of a group cut rows, and the sequences packed in them: each rank has a contiguous part, in rank order."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .._autograd.sequences import first_positions
from ._exchange import all_gather


class Cut(NamedTuple):
    """The parts that ranks have along a dimension, and the direction of a scan through them."""

    dim: int
    reverse: bool
    group: Any
    lengths: tuple[int, ...]
    """The extents of the parts, by rank."""

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return dist.get_rank(self.group)

    @property
    def edges(self) -> list[int]:
        """The position at which each part begins, and the extent of the whole."""
        return [0, *itertools.accumulate(self.lengths)]

    @property
    def opposite(self) -> Cut:
        """The same parts in the other direction."""
        return self._replace(reverse=not self.reverse)

    def before(self) -> list[int]:
        """The ranks before this one in scan order, in that order, that have positions."""
        rank, ranks = self.rank, range(len(self.lengths))
        return [r for r in (reversed(ranks[rank + 1 :]) if self.reverse else ranks[:rank]) if self.lengths[r]]

    def first_positions(self, x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        """Whether each position of the part x is the first of its sequence in scan order. The shape broadcasts with x."""
        start, extent = self.edges[self.rank], self.edges[-1]
        return first_positions(x, cu_seqlens, self.dim, self.reverse, start, extent)

    def without_finished(self, states: Tensor, cu_seqlens: Tensor | None, nothing: Tensor) -> Tensor:
        """The states of all ranks, [ranks, ...], without those of sequences that end before they reach this part.

        nothing: the state that takes their place.
        """
        if cu_seqlens is None:
            return states
        rank, edges = self.rank, self.edges
        lows, highs = zip(
            *((edges[r + 1], edges[rank]) if r < rank else (edges[rank + 1], edges[r]) for r in range(len(self.lengths))),
            strict=True,
        )
        bounds, device = cu_seqlens.long().contiguous(), states.device
        below = torch.searchsorted(bounds, _on_device(lows, device))
        begins = torch.searchsorted(bounds, _on_device(highs, device), right=True) > below
        return torch.where(begins.view(-1, *[1] * (states.dim() - 1)), nothing, states)


@functools.lru_cache(maxsize=64)
def _on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device)


class Shifted(torch.autograd.Function):
    """Each position gets the element before it in scan order, which may be that of another rank; the first gets 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cut: Cut) -> Tensor:
        ctx.cut = cut
        n, dim = x.shape[cut.dim], cut.dim
        last = x.select(dim, 0 if cut.reverse else n - 1) if n else x.new_zeros(x.shape[:dim] + x.shape[dim + 1 :])
        edges = all_gather(last, cut.group)
        if not n:
            return x.clone()
        ranks = cut.before()
        edge = (edges[ranks[-1]] if ranks else torch.zeros_like(last)).unsqueeze(dim)
        return torch.cat([x.narrow(dim, 1, n - 1), edge] if cut.reverse else [edge, x.narrow(dim, 0, n - 1)], dim)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return Shifted.apply(dy, ctx.cut.opposite), None
