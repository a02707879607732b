"""linear_recurrence as an ordinary eager call: its plans from a cache of its own, and its autograd function."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_name, dtype_name
from ..._linear_recurrence import LinearRecurrencePlan, broadcast, final_dtype, linear_plan, state_shape
from ..._linear_recurrence_backward import LinearRecurrenceBackwardPlan, linear_backward_plan
from .calls import empty_gradient
from .eager import apply_in_c, is_eager, is_plain, needs_no_graph, run_forward
from .linear_recurrence import gradients, is_wide_number, own_extents


class Steps(NamedTuple):
    """How recurrences of some shapes are done, which is decided before anything runs."""

    shape: torch.Size  # of h
    state: tuple[int, ...]  # the shape of states
    state_dtype: torch.dtype  # of the final state
    a_shape: torch.Size
    b_shape: torch.Size
    extents: list[int]  # of b, by own_extents
    dim: int
    reverse: bool
    forward: LinearRecurrencePlan
    backward: LinearRecurrenceBackwardPlan


@functools.lru_cache(maxsize=1024)
def _steps(
    a: torch.Size, a_dtype: torch.dtype, b: torch.Size, dtype: torch.dtype, state_dtype: torch.dtype | None,
    bounds: torch.Size | None, dim: int, reverse: bool, device: torch.device,
) -> Steps | None:  # fmt: skip
    """The steps of a recurrence, from a cache; None: it takes the general way.

    Args:
        a, b: the shapes of a and b.
        state_dtype: of the initial state, or None.
        bounds: the shape of cu_seqlens, or None.

    Raises:
        Error: there is no plan, or the shapes do not broadcast.
    """
    shape = torch.Size(broadcast("linear_recurrence", a, b))  # torch.broadcast_shapes imports sympy, half a second
    if a_dtype != dtype and not is_wide_number(len(a), a_dtype, dtype):
        return None
    if bounds is not None and (len(bounds) != 1 or not bounds[0]):
        return None
    name, sequences = dtype_name(dtype), None if bounds is None else bounds[0] - 1
    final = final_dtype(name)
    state = sequences, name if state_dtype == dtype else final
    fields = tuple(shape), name, dim, reverse, tuple(a), tuple(b), *state
    return Steps(
        shape, state_shape(shape, dim, sequences), getattr(torch, final), a, b, own_extents(b, shape), dim, reverse,
        linear_plan(fields, device_name(device)), linear_backward_plan(fields, device_name(device)),
    )  # fmt: skip


def run_eager(a: Any, b: Any, dim: Any, initial_state: Any, reverse: Any, cu_seqlens: Any, wants_state: Any) -> Any:
    """Do a recurrence as an ordinary eager call; None: nothing was done, and the call takes the general way or is wrong."""
    if not (type(dim) is int and type(reverse) is type(wants_state) is bool and is_eager(b)):
        return None
    if not ((initial_state is None or is_plain(initial_state)) and (cu_seqlens is None or is_plain(cu_seqlens))):
        return None
    dtype, device = b.dtype, b.device
    try:
        if type(a) is float:
            a = torch.full((), a, dtype=dtype if dtype is torch.float64 else torch.float32, device=device)
        elif not is_plain(a):
            return None
        state_dtype, bounds = None, None
        learned = a.requires_grad or b.requires_grad
        if initial_state is not None:
            state_dtype, learned = initial_state.dtype, learned or initial_state.requires_grad
        if cu_seqlens is not None:
            bounds = cu_seqlens.shape
        steps = _steps(a.shape, a.dtype, b.shape, dtype, state_dtype, bounds, dim, reverse, device)
    except (RuntimeError, ValueError):  # errors of plans; a nested tensor, which has no shape; a number beyond float32
        return None
    if steps is None:
        return None
    if learned:
        return _apply(a, b, initial_state, cu_seqlens, wants_state, steps)
    return _by_plan(a, b, initial_state, cu_seqlens, wants_state, steps)


def _by_plan(
    a: Tensor, b: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, wants_state: bool, steps: Steps
) -> Any:
    """h; with wants_state also the final state."""
    h = empty_gradient(b, steps.shape, None)
    final = b.new_empty(steps.state, dtype=steps.state_dtype) if wants_state else None
    operands = {"a": a, "b": b, "initial_state": initial_state, "cu_seqlens": cu_seqlens}
    operands["h"], operands["final_state"] = h, final
    run_forward(steps.forward, operands)
    return h if final is None else (h, final)


class _LinearRecurrenceEager(torch.autograd.Function):
    """The autograd function of ordinary eager calls."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, wants_state: bool, steps: Steps
    ) -> Any:
        outputs = _by_plan(a, b, initial_state, cu_seqlens, wants_state, steps)
        ctx.save_for_backward(a, outputs[0] if wants_state else outputs, initial_state, cu_seqlens)
        ctx.set_materialize_grads(False)
        ctx.steps = steps
        return outputs

    @staticmethod
    def backward(ctx: Any, dh: Tensor | None, dfinal: Tensor | None = None) -> tuple[Any, ...]:
        saved, steps, needs = ctx.saved_tensors, ctx.steps, ctx.needs_input_grad
        if dh is not None and needs_no_graph(dh) and (dfinal is None or is_plain(dfinal)):
            a, h, initial_state, cu_seqlens = saved
            operands = {"dh": dh, "dfinal_state": dfinal, "a": a, "h": h, "initial_state": initial_state}
            operands["cu_seqlens"] = cu_seqlens
            operands["da"] = da = empty_gradient(dh, steps.a_shape, None) if needs[0] else None
            operands["db"] = db = empty_gradient(dh, steps.b_shape, None) if needs[1] else None
            operands["dinitial_state"] = dstate = torch.empty_like(initial_state) if needs[2] else None
            if steps.backward._run_plain(operands):
                return da, db, dstate, None, None, None
        grads = gradients(dh, dfinal, saved, steps.extents, steps.dim, steps.reverse, needs[:3])
        return *grads, None, None, None


_apply = apply_in_c(_LinearRecurrenceEager)
