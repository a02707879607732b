"""The part of a scan that a rank has: the state of it, the exchange of the states, the scan and its gradient.

Each rank computes the state of its part (a carry of :class:`sternway.ScanPlan`), the ranks gather the states of all, and each
scans its part from the states of those before it in scan order. The backward does the same in the other direction.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_name
from ..._kinds import EXTREMA, KINDS, ScanKind
from ..._scan import ScanBackwardPlan, scan_plan
from ..._scan_forward import ScanPlan, forward_scan_plan
from ..._sequences import count_sequences
from .._autograd.calls import resolve
from ._cuts import Cut
from ._exchange import all_gather
from ._whole import whole_gradient

EXTREMUM_SENT = 2
"""Of the three numbers of a carry of cummax and cummin, the boundary is known to every rank and not sent."""


class Part(NamedTuple):
    """The part of this rank, and how it is scanned."""

    kind: ScanKind
    cut: Cut
    cu_seqlens: Tensor | None
    """The bounds of packed sequences in the whole."""
    bounds: Tensor | None
    """Those in this part."""
    forward: ScanPlan
    backward: ScanBackwardPlan

    def before(self, states: Tensor) -> Tensor:
        """The states of the parts before this one in scan order, in that order."""
        return states[self.cut.rank + 1 :].flip(0) if self.cut.reverse else states[: self.cut.rank]

    def after(self, states: Tensor) -> Tensor:
        """The states of the parts after this one in scan order, in that order."""
        return states[: self.cut.rank].flip(0) if self.cut.reverse else states[self.cut.rank + 1 :]


def part_of(x: Tensor, kind: ScanKind, cut: Cut, cu_seqlens: Tensor | None = None) -> Part:
    """The part x of a scan. The lengths of the cut are left out if only the plans are used.

    Raises:
        Error: no plan has x's shape or dtype, or its device.
    """
    sequences = count_sequences(kind, cu_seqlens)
    problem = kind, tuple(x.shape), x.dtype, cut.dim, cut.reverse, "last", device_name(x.device), True, sequences, False
    bounds = cu_seqlens if cu_seqlens is None or not cut.lengths else cu_seqlens - cut.edges[cut.rank]
    return Part(kind, cut, cu_seqlens, bounds, forward_scan_plan(*problem), scan_plan(*problem))


@functools.lru_cache(maxsize=64)
def _state_of_nothing(kind: ScanKind, dtype: torch.dtype, device: torch.device, backward: bool) -> Tensor:
    """The state of a part without positions, [numbers]; without the boundary of cummax and cummin."""
    x = torch.empty(0, dtype=dtype, device=device)
    part = part_of(x, kind, Cut(0, False, None, ()))
    if backward:
        return _gradient_state(part, {"dy": x, "x": x})
    return summary(x, part)


def _empty_state(x: Tensor, dim: int, numbers: int) -> Tensor:
    rows = [extent for d, extent in enumerate(x.shape) if d != dim]
    return torch.empty(*rows, numbers, dtype=torch.float64, device=x.device)


def _run(plan: Any, **operands: Tensor | None) -> None:
    """Run a plan on plain tensors."""
    if not plan._run_plain(operands):
        plan.run(**operands)


def summary(x: Tensor, part: Part) -> Tensor:
    """The state of this rank's part, [..., numbers]. Indices of cummax and cummin count from the beginning of the part."""
    state = _empty_state(x, part.cut.dim, KINDS[part.kind].carry_size)
    _run(part.forward, x=resolve(x.detach()), carry_out=state, cu_seqlens=part.bounds)
    return state[..., :EXTREMUM_SENT] if part.kind in EXTREMA else state


def _carry_in(state: Tensor, part: Part) -> Tensor:
    """The states of the parts before this one, [parts, ..., numbers], from the state of each rank."""
    cut = part.cut
    states = all_gather(state, cut.group)
    if part.cu_seqlens is not None:
        nothing = _state_of_nothing(part.kind, torch.float64, state.device, False)
        states = cut.without_finished(states, part.cu_seqlens, nothing)
    if part.kind not in EXTREMA:
        return part.before(states)
    states[..., 1] += _offsets(tuple(cut.edges[:-1]), state.dim(), state.device)
    boundary = cut.edges[cut.rank + cut.reverse]  # between this part and the one before it in scan order
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
        _run(part.forward, x=source, carry_in=carry, cu_seqlens=part.bounds, **outputs)
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
        cut = part.cut
        x, carry = ctx.saved_tensors
        if KINDS[part.kind].is_own_gradient:
            back = part_of(dy, part.kind, cut.opposite, part.cu_seqlens)
            return _Scan.apply(dy, summary(dy, back), back), None, None
        if torch.is_grad_enabled() and (dy.requires_grad or x.requires_grad):
            return whole_gradient(dy, x, part.kind, cut, part.cu_seqlens), None, None
        operands = {"dy": resolve(dy), "x": resolve(x.detach()), "carry_in": carry, "cu_seqlens": part.bounds}
        states = all_gather(_gradient_state(part, operands), cut.group)
        if part.cu_seqlens is not None:
            nothing = _state_of_nothing(part.kind, dy.dtype, dy.device, True)
            states = cut.without_finished(states, part.cu_seqlens, nothing)
        dx = torch.empty_like(x)
        _run(part.backward, **operands, dcarry_out=part.after(states), dx=dx)
        return dx, None, None


def _gradient_state(part: Part, operands: dict[str, Tensor | None]) -> Tensor:
    """The state of the gradient of a part, [..., numbers]."""
    kind, dy = KINDS[part.kind], operands["dy"]
    assert dy is not None
    size = kind.gradient_carry_size_float64 if dy.dtype == torch.float64 else kind.gradient_carry_size
    state = _empty_state(dy, part.cut.dim, size)
    _run(part.backward, **operands, dcarry_in=state)
    return state


def scan_part(x: Tensor, state: Tensor, part: Part) -> Any:
    """This rank's part of the scan, with torch's return type. state: that of this part (:func:`summary`)."""
    y = _Scan.apply(x, state, part)
    return getattr(torch.return_types, part.kind)(y) if part.kind in EXTREMA else y
