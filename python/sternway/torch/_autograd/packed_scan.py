"""Exclusive scans, and scans of packed sequences, with autograd: operators of plans, and a route for ordinary eager calls."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_name
from ..._kinds import EXTREMA
from ..._scan import ScanBackwardPlan, scan_plan
from ..._scan_forward import ScanPlan, forward_scan_plan
from ..._sequences import count_sequences
from .calls import empty_gradient, given, resolve, strides_like
from .constants import constant
from .dispatch import (
    ErrorParts,
    device_to_ask,
    require,
    require_strided,
    run_operator,
    runs_plan_directly,
    selection_error,
)
from .eager import apply_in_c, is_eager, is_plain, needs_no_graph, run_forward
from .linear_recurrence import run as recurrence
from .linear_recurrence import shifted
from .operators import apply, by_formula, differentiable, is_distributed, is_exporting, recorded_call, traceable, vmap_by_loop
from .scan import NAMED, autocast_input
from .scan_gradient import NEEDS_X, OWN_GRADIENTS, Weighted
from .sequences import first_positions
from .sharding import sharding

_Options = tuple[int, str, bool, bool]
"""The scanned dimension, the kind of the scan, and whether it is reversed and exclusive."""


def _problem(x: Tensor, cu_seqlens: Tensor | None, options: _Options) -> tuple[Any, ...]:
    """The arguments by which a plan is selected."""
    dim, kind, reverse, exclusive = options
    sequences = count_sequences(kind, cu_seqlens)
    return kind, tuple(x.shape), x.dtype, dim, reverse, "last", device_name(x.device), False, sequences, exclusive


@torch.library.custom_op("sternway::packed_scan", mutates_args=())
def _forward(
    x: Tensor, cu_seqlens: Tensor | None, dim: int, kind: str, reverse: bool, exclusive: bool
) -> tuple[Tensor, Tensor]:
    """y, and the indices of cummax and cummin; those of other kinds are empty."""
    y, indices = outputs = _empty(x, kind)
    operands = given(x=x, cu_seqlens=cu_seqlens)
    plan = forward_scan_plan(*_problem(x, cu_seqlens, (dim, kind, reverse, exclusive)))
    plan.run(**operands, y=y, indices=indices if kind in EXTREMA else None)
    return outputs


def _empty(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return y, x.new_empty(x.shape if kind in EXTREMA else 0, dtype=torch.int64)


@_forward.register_fake
def _(x: Tensor, cu_seqlens: Tensor | None, dim: int, kind: str, reverse: bool, exclusive: bool) -> tuple[Tensor, Tensor]:
    return _empty(x, kind)


@_forward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return vmap_by_loop(inputs[3], _forward)(info, in_dims, *inputs)


@torch.library.custom_op("sternway::packed_scan_backward", mutates_args=())
def _backward(
    dy: Tensor, x: Tensor | None, indices: Tensor | None, cu_seqlens: Tensor | None, dim: int, kind: str, reverse: bool,
    exclusive: bool,
) -> Tensor:  # fmt: skip
    """dx."""
    dx = torch.empty_like(dy if x is None else x, dtype=dy.dtype)
    return _run_backward(dy, (x, indices, cu_seqlens), (dim, kind, reverse, exclusive), dx)


def _run_backward(dy: Tensor, saved: tuple[Tensor | None, ...], options: _Options, dx: Tensor) -> Tensor:
    """Compute dx by a plan. saved: x, the indices and the bounds."""
    x, indices, cu_seqlens = saved
    operands = given(dy=dy, x=x, indices=indices, cu_seqlens=cu_seqlens)
    scan_plan(*_problem(dy, cu_seqlens, options)).run(**operands, dx=dx)
    return dx


@_backward.register_fake
def _(
    dy: Tensor, x: Tensor | None, indices: Tensor | None, cu_seqlens: Tensor | None, dim: int, kind: str, reverse: bool,
    exclusive: bool,
) -> Tensor:  # fmt: skip
    return torch.empty_like(dy if x is None else x, dtype=dy.dtype)


@_backward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return vmap_by_loop(inputs[5], _backward)(info, in_dims, *inputs)


def _formula(
    dy: Tensor, x: Tensor | None, indices: Tensor | None, cu_seqlens: Tensor | None, dim: int, kind: str, reverse: bool,
    exclusive: bool,
) -> Tensor:  # fmt: skip
    if kind in OWN_GRADIENTS:
        return run(dy, cu_seqlens, dim, kind, not reverse, exclusive)[0]
    if indices is not None:
        return torch.zeros_like(dy).scatter_add(dim, indices, dy)
    if kind == "logcumsumexp":
        return apply(Weighted, dy, x, cu_seqlens, dim, reverse, exclusive, True)  # type: ignore[no-any-return]
    assert x is not None  # cumprod: dx[k] = L[k] R[k], R[k] = dy[k] + x[k+1] R[k+1]
    if dy.dim() == 0:
        return _formula(dy[None], x[None], None, None, 0, kind, reverse, exclusive)[0]
    if x.shape[dim] == 0:
        return dy * x
    to_next, dtype = 1 if reverse else -1, dy.dtype
    dy, x = dy.double(), x.double()  # L and R may leave the range of dx
    if exclusive:  # y[i] is the product before i, so that dy[k+1] takes the place of dy[k]
        lasts = first_positions(x, cu_seqlens, dim, not reverse)
        dy = shifted(dy, dim, to_next, torch.zeros_like(dy.narrow(dim, 0, 1))).masked_fill(lasts, 0)
    left = run(x, cu_seqlens, dim, kind, reverse, True)[0]
    following = shifted(x, dim, to_next, torch.ones_like(x.narrow(dim, 0, 1)))
    return (left * recurrence(following, dy, None, cu_seqlens, dim, not reverse)[0]).to(dtype)


GRADIENT = differentiable(_backward, by_formula(_formula, "packed_scan_backward"))


def _save(ctx: Any, x: Tensor, cu_seqlens: Tensor | None, kind: str, indices: Tensor | None) -> None:
    """Save in ctx what the gradient needs: of an x that it does not need, the layout."""
    is_extremum = kind in EXTREMA
    needs_x = kind in NEEDS_X and not is_extremum
    ctx.save_for_backward(x if needs_x else None, indices if is_extremum else None, cu_seqlens)
    ctx.strides = None if needs_x else strides_like(x)
    if indices is not None:
        ctx.mark_non_differentiable(indices)
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, dy: Tensor, options: _Options) -> Tensor:
    """dx, with the operations on dy recorded if they must be."""
    dy, saved = resolve(dy), ctx.saved_tensors
    if call := recorded_call(dy, GRADIENT):
        return call(dy, *saved, *options)  # type: ignore[no-any-return]
    return _run_backward(dy, saved, options, _empty_dx(ctx, dy, saved[0]))


def _empty_dx(ctx: Any, dy: Tensor, x: Tensor | None) -> Tensor:
    """A tensor for dx, in the layout of x."""
    return empty_gradient(dy, dy.shape, ctx.strides) if x is None else torch.empty_like(x, dtype=dy.dtype)


class Steps(NamedTuple):
    """How ordinary eager calls of tensors of one shape are done, chosen before the forward runs."""

    options: _Options
    forward: ScanPlan
    backward: ScanBackwardPlan


@functools.lru_cache(maxsize=1024)
def _steps(
    shape: torch.Size, bounds: torch.Size | None, options: _Options, dtype: torch.dtype, device: torch.device
) -> Steps | None:
    """The steps of a scan, from a cache; None: it takes the general way. bounds: the shape of cu_seqlens, or None.

    Raises:
        Error: there is no plan.
    """
    dim, kind, reverse, exclusive = options
    if bounds is not None and (len(bounds) != 1 or not bounds[0]):
        return None
    sequences = None if bounds is None else bounds[0] - 1
    problem = kind, tuple(shape), dtype, dim, reverse, "last", device_name(device), False, sequences, exclusive
    return Steps(options, forward_scan_plan(*problem), scan_plan(*problem))


def run_eager(x: Any, kind: str, dim: Any, reverse: Any, exclusive: Any, cu_seqlens: Any) -> Any:
    """Do a scan as an ordinary eager call; None: nothing was done, and the call takes the general way or is wrong."""
    if not (type(dim) is int and type(reverse) is type(exclusive) is bool and is_eager(x)):
        return None
    if not (cu_seqlens is None or is_plain(cu_seqlens)):
        return None
    x = autocast_input(x, kind)
    try:
        bounds = None if cu_seqlens is None else cu_seqlens.shape
        steps = _steps(x.shape, bounds, (dim, kind, reverse, exclusive), x.dtype, x.device)
    except (RuntimeError, ValueError):  # errors of plans; a nested tensor, which has no shape
        return None
    if steps is None:
        return None
    y = _apply_eager(x, cu_seqlens, steps) if x.requires_grad else _by_plan(x, cu_seqlens, steps)
    return NAMED[kind](y) if kind in EXTREMA else y


def _by_plan(x: Tensor, cu_seqlens: Tensor | None, steps: Steps) -> Any:
    """y; for cummax and cummin with its indices."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    indices = torch.empty_like(y, dtype=torch.int64) if steps.options[1] in EXTREMA else None
    run_forward(steps.forward, {"x": x, "cu_seqlens": cu_seqlens, "y": y, "indices": indices})
    return y if indices is None else (y, indices)


class _PackedScanEager(torch.autograd.Function):
    """The autograd function of ordinary eager calls."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cu_seqlens: Tensor | None, steps: Steps) -> Any:
        y = _by_plan(x, cu_seqlens, steps)
        _save(ctx, x, cu_seqlens, steps.options[1], y[1] if type(y) is tuple else None)
        ctx.steps = steps
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        if dy is None:
            return None, None, None
        steps = ctx.steps
        if needs_no_graph(dy):
            x, indices, cu_seqlens = ctx.saved_tensors
            dx = _empty_dx(ctx, dy, x)
            if steps.backward._run_plain({"dy": dy, "x": x, "indices": indices, "cu_seqlens": cu_seqlens, "dx": dx}):
                return dx, None, None
        return _gradient(ctx, dy, steps.options), None, None


_apply_eager = apply_in_c(_PackedScanEager)


class _PackedScan(torch.autograd.Function):
    """The autograd function of all other calls."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, cu_seqlens: Tensor | None, dim: int, kind: str, reverse: bool, exclusive: bool
    ) -> tuple[Tensor, Tensor]:
        return _forward(x, cu_seqlens, dim, kind, reverse, exclusive)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, cu_seqlens, *ctx.options = inputs
        _save(ctx, x, cu_seqlens, ctx.options[1], output[1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, _: Any) -> tuple[Any, ...]:
        return None if dy is None else _gradient(ctx, dy, ctx.options), None, None, None, None, None


_apply = traceable(_PackedScan)
_forward.register_autograd(_PackedScan.backward, setup_context=_PackedScan.setup_context)


def run(x: Tensor, cu_seqlens: Tensor | None, dim: int, kind: str, reverse: bool, exclusive: bool) -> tuple[Tensor, Tensor]:
    """y and indices, with a gradient. ``select_or_raise`` found the plans."""
    if cu_seqlens is not None and is_distributed(x) and not is_distributed(cu_seqlens):
        cu_seqlens = sharding().replicated(cu_seqlens, x)
    inputs = x, cu_seqlens, dim, kind, reverse, exclusive
    if is_exporting() or is_distributed(x, cu_seqlens):
        return run_operator("packed_scan", kind, ("x", "cu_seqlens"), *inputs)  # type: ignore[no-any-return]
    return _apply(*inputs)  # type: ignore[no-any-return]


@constant
def _probed(
    kind: str, rank: int, dtype: torch.dtype, device: torch.device, sequences: int | None, exclusive: bool
) -> ErrorParts | None:
    shape = (1,) * rank
    return selection_error(scan_plan, kind, shape, dtype, -1, False, "last", str(device), False, sequences, exclusive)


def select_or_raise(x: Tensor, cu_seqlens: Tensor | None, dim: int, kind: str, reverse: bool, exclusive: bool) -> None:
    """Select the plans of both directions, or those of a small problem if the call is traced.

    Raises:
        Error: there is no plan.
    """
    if runs_plan_directly(x, cu_seqlens):
        problem = _problem(x, cu_seqlens, (dim, kind, reverse, exclusive))
        forward_scan_plan(*problem)
        scan_plan(*problem)
    else:
        require_strided(kind, x=x, cu_seqlens=cu_seqlens)
        sequences = None if count_sequences(kind, cu_seqlens) is None else 1
        require(kind, _probed(kind, x.dim(), x.dtype, device_to_ask(x), sequences, exclusive))
