"""The part of a scan that a rank has: the state of it, the exchange of the states, the scan and its gradient.

Each rank computes the state of its part (a carry of :class:`sternway.ScanPlan`), the ranks gather the states of all, and each
scans its part from the states of those before it in scan order. The backward does the same in the other direction.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..._arrays import device_name
from ..._kinds import EXTREMA, KINDS, ScanKind
from ..._scan import ScanBackwardPlan, scan_plan
from ..._scan_forward import ScanPlan, forward_scan_plan
from .._autograd.calls import resolve
from ._exchange import all_gather
from ._whole import whole_gradient

EXTREMUM_SENT = 2
"""Of the three numbers of a carry of cummax and cummin, the boundary is known to every rank and not sent."""


class Part(NamedTuple):
    """The part of this rank, and how it is scanned."""

    kind: ScanKind
    dim: int
    reverse: bool
    group: Any
    lengths: tuple[int, ...]  # of the parts of all ranks
    forward: ScanPlan
    backward: ScanBackwardPlan

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return dist.get_rank(self.group)

    def before(self, states: Tensor) -> Tensor:
        """The states of the parts before this one in scan order, in that order."""
        return states[self.rank + 1 :].flip(0) if self.reverse else states[: self.rank]

    def after(self, states: Tensor) -> Tensor:
        """The states of the parts after this one in scan order, in that order."""
        return states[: self.rank].flip(0) if self.reverse else states[self.rank + 1 :]


def part_of(x: Tensor, kind: ScanKind, dim: int, reverse: bool, group: Any, lengths: tuple[int, ...]) -> Part:
    """The part x of a scan whose ranks have parts of these lengths.

    Raises:
        Error: no plan has x's shape or dtype, or its device.
    """
    problem = kind, tuple(x.shape), x.dtype, dim, reverse, "last", device_name(x.device), True
    return Part(kind, dim, reverse, group, lengths, forward_scan_plan(*problem), scan_plan(*problem))


def _empty_state(x: Tensor, dim: int, numbers: int) -> Tensor:
    rows = [extent for d, extent in enumerate(x.shape) if d != dim]
    return torch.empty(*rows, numbers, dtype=torch.float64, device=x.device)


def _run(plan: Any, **operands: Tensor | None) -> None:
    """Run a plan on plain tensors."""
    if not plan._run_plain(operands):
        plan.run(**operands)


def summary(x: Tensor, part: Part) -> Tensor:
    """The state of this rank's part, [..., numbers]. Indices of cummax and cummin count from the beginning of the part."""
    state = _empty_state(x, part.dim, KINDS[part.kind].carry_size)
    _run(part.forward, x=resolve(x.detach()), carry_out=state)
    return state[..., :EXTREMUM_SENT] if part.kind in EXTREMA else state


def _carry_in(state: Tensor, part: Part) -> Tensor:
    """The states of the parts before this one, [parts, ..., numbers], from the state of each rank."""
    states = all_gather(state, part.group)
    if part.kind not in EXTREMA:
        return part.before(states)
    starts = [0, *itertools.accumulate(part.lengths)]
    states[..., 1] += _offsets(tuple(starts[:-1]), state.dim(), state.device)
    boundary = starts[part.rank + part.reverse]  # between this part and the one before it in scan order
    carry = torch.nn.functional.pad(part.before(states), (0, 1), value=float(boundary))
    if carry.shape[0] or not boundary:
        return carry
    nothing = carry.new_empty(1, *carry.shape[1:])
    nothing[..., 1], nothing[..., 2] = torch.nan, boundary
    return nothing


@functools.lru_cache(maxsize=64)
def _offsets(starts: tuple[int, ...], dims: int, device: torch.device) -> Tensor:
    """The index at which each rank's part begins, to be added to its rows, of ``dims`` - 1 dimensions."""
    return torch.tensor(starts, dtype=torch.float64, device=device).view(-1, *[1] * (dims - 1))


class _Scan(torch.autograd.Function):
    """The scan of this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor, part: Part) -> Any:
        source, carry = resolve(x.detach()), _carry_in(state, part)
        outputs = {"y": torch.empty_like(x, memory_format=torch.contiguous_format)}
        if part.kind in EXTREMA:
            outputs["indices"] = torch.empty_like(outputs["y"], dtype=torch.int64)
        _run(part.forward, x=source, carry_in=carry, **outputs)
        ctx.part = part
        if KINDS[part.kind].is_own_gradient:
            ctx.save_for_backward(None, None)
        else:
            ctx.save_for_backward(x, carry)
        if part.kind not in EXTREMA:
            return outputs["y"]
        ctx.mark_non_differentiable(outputs["indices"])
        return tuple(outputs.values())

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        part: Part = ctx.part
        kind = KINDS[part.kind]
        x, carry = ctx.saved_tensors
        if kind.is_own_gradient:
            back = part_of(dy, part.kind, part.dim, not part.reverse, part.group, part.lengths)
            return _Scan.apply(dy, summary(dy, back), back), None, None
        if torch.is_grad_enabled() and (dy.requires_grad or x.requires_grad):
            return whole_gradient(dy, x, part.kind, part.dim, part.reverse, part.group, part.lengths), None, None
        dy = resolve(dy)
        operands = {"dy": dy, "x": resolve(x.detach()), "carry_in": carry}
        size = kind.gradient_carry_size_float64 if dy.dtype == torch.float64 else kind.gradient_carry_size
        state = _empty_state(dy, part.dim, size)
        _run(part.backward, **operands, dcarry_in=state)
        dx = torch.empty_like(x)
        _run(part.backward, **operands, dcarry_out=part.after(all_gather(state, part.group)), dx=dx)
        return dx, None, None


def scan_part(x: Tensor, state: Tensor, part: Part) -> Any:
    """This rank's part of the scan, with torch's return type. state: that of this part (:func:`summary`)."""
    y = _Scan.apply(x, state, part)
    return getattr(torch.return_types, part.kind)(y) if part.kind in EXTREMA else y
