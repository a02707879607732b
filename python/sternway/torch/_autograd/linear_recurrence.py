"""The autograd functions of linear recurrences: forward and gradient are operators of plans."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._arrays import device_name
from ..._linear_recurrence import broadcast, final_dtype, linear_plan, state_dtype_of, state_shape
from ..._linear_recurrence_backward import OUTPUTS, linear_backward_plan
from ..._sequences import count_sequences
from .calls import given, resolve
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
from .operators import by_formula, differentiable, is_distributed, is_exporting, recorded_call, traceable, vmap_by_loop
from .sequences import first_positions

_NAME = "linear_recurrence"

OPERANDS = {"dtype": "b", "shape": "the broadcast shape", "a_shape": "a", "b_shape": "b", "num_sequences": "cu_seqlens"}
"""The function's names of what plans refuse."""


def _fields(
    shape: tuple[int, ...], a: Tensor, b_shape: Any, dim: int, reverse: bool, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, dtype: torch.dtype,
) -> tuple[Any, ...]:  # fmt: skip
    """The fields of the descriptor of a problem."""
    name = str(dtype).removeprefix("torch.")
    shapes = tuple(a.shape), tuple(b_shape)
    return tuple(shape), name, dim, reverse, *shapes, count_sequences(_NAME, cu_seqlens), state_dtype_of(name, initial_state)


def _final_dtype(dtype: torch.dtype) -> torch.dtype:
    return getattr(torch, final_dtype(str(dtype).removeprefix("torch.")))  # type: ignore[no-any-return]


@torch.library.custom_op("sternway::linear_recurrence", mutates_args=())
def _forward(
    a: Tensor, b: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, dim: int, reverse: bool
) -> tuple[Tensor, Tensor]:
    """h and the final state."""
    h, final = _empty(a, b, cu_seqlens, dim)
    fields = _fields(h.shape, a, b.shape, dim, reverse, initial_state, cu_seqlens, b.dtype)
    operands = given(a=a, b=b, initial_state=initial_state, cu_seqlens=cu_seqlens)
    linear_plan(fields, device_name(b.device)).run(**operands, h=h, final_state=final)
    return h, final


def _empty(a: Tensor, b: Tensor, cu_seqlens: Tensor | None, dim: int) -> tuple[Tensor, Tensor]:
    shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    final = b.new_empty(state_shape(tuple(shape), dim, count_sequences(_NAME, cu_seqlens)), dtype=_final_dtype(b.dtype))
    return b.new_empty(shape), final


@_forward.register_fake
def _(
    a: Tensor, b: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, dim: int, reverse: bool
) -> tuple[Tensor, Tensor]:
    return _empty(a, b, cu_seqlens, dim)


_forward.register_vmap(vmap_by_loop(_NAME, _forward))


def own_extents(shape: torch.Size, whole: torch.Size) -> list[int]:
    """The extents of an operand of a broadcast shape, -1 for those of the whole: they hold of a shard of it too."""
    return [-1 if extent == of_whole else 1 for extent, of_whole in zip(shape, whole[len(whole) - len(shape) :], strict=True)]


def _extended(extents: list[int], whole: torch.Size) -> list[int]:
    """The shape of an operand from its :func:`own_extents`."""
    return [n if extent == -1 else 1 for extent, n in zip(extents, whole[len(whole) - len(extents) :], strict=True)]


@torch.library.custom_op("sternway::linear_recurrence_backward", mutates_args=())
def _backward(
    dh: Tensor, dfinal: Tensor | None, a: Tensor, h: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    extents: list[int], dim: int, reverse: bool, needs: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """da, db and the gradient of the initial state. Bit i of needs says that OUTPUTS[i] is needed; others are empty.

    extents: of b, by :func:`own_extents`.
    """
    b_shape = _extended(extents, dh.shape)
    grads = _empty_gradients(dh, a, initial_state, b_shape, needs)
    fields = _fields(dh.shape, a, b_shape, dim, reverse, initial_state, cu_seqlens, dh.dtype)
    operands = given(dh=dh, dfinal_state=dfinal, a=a, h=h, initial_state=initial_state, cu_seqlens=cu_seqlens)
    outputs = {name: x for i, (name, x) in enumerate(zip(OUTPUTS, grads, strict=True)) if needs >> i & 1}
    linear_backward_plan(fields, device_name(dh.device)).run(**operands, **outputs)
    return grads


def _empty_gradients(
    dh: Tensor, a: Tensor, initial_state: Tensor | None, b_shape: Any, needs: int
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        dh.new_empty(a.shape if needs & 1 else 0),
        dh.new_empty(b_shape if needs & 2 else 0),
        torch.empty_like(initial_state) if needs & 4 and initial_state is not None else dh.new_empty(0),
    )


@_backward.register_fake
def _(
    dh: Tensor, dfinal: Tensor | None, a: Tensor, h: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    extents: list[int], dim: int, reverse: bool, needs: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty_gradients(dh, a, initial_state, _extended(extents, dh.shape), needs)


_backward.register_vmap(vmap_by_loop(_NAME, _backward))


def shifted(x: Tensor, dim: int, by: int, entering: Tensor) -> Tensor:
    """x moved by one position along dim, to later positions if by is 1, to earlier ones if it is -1; entering in the place."""
    rest = x.narrow(dim, max(-by, 0), x.shape[dim] - 1)
    return torch.cat([entering, rest] if by > 0 else [rest, entering], dim)


Parts = tuple[Tensor, Tensor, Tensor]
"""g, the state before each position, and the gradient of the initial state."""


def _parts(
    dh: Tensor, dfinal: Tensor | None, a: Tensor, h: Tensor, initial_state: Tensor | None, dim: int, reverse: bool
) -> Parts:
    """The parts of the gradient of one sequence, by a recurrence in the other direction and torch's operations."""
    to_next = 1 if reverse else -1
    end = a.narrow(dim, 0, 1)
    g, _ = run(shifted(a, dim, to_next, torch.ones_like(end)), dh, dfinal, None, dim, not reverse)
    entering = torch.zeros_like(end) if initial_state is None else initial_state.unsqueeze(dim).to(h.dtype)
    at = a.shape[dim] - 1 if reverse else 0
    return g, shifted(h, dim, -to_next, entering), a.select(dim, at) * g.select(dim, at)


def _parts_of_packed(
    dh: Tensor, dfinal: Tensor | None, a: Tensor, h: Tensor, initial_state: Tensor | None, cu: Tensor, dim: int, reverse: bool
) -> Parts:
    """:func:`_parts` of packed sequences. A factor of 0 keeps their gradients apart."""
    n, to_next, cu = dh.shape[dim], 1 if reverse else -1, cu.long()
    there = cu[1:] > cu[:-1]
    first, last = (torch.where(there, x, n) for x in ((cu[1:] - 1, cu[:-1]) if reverse else (cu[:-1], cu[1:] - 1)))
    starts = first_positions(dh, cu, dim, reverse)

    def at(positions: Tensor, states: Tensor) -> Tensor:
        """States of sequences at positions, and 0 elsewhere."""
        states = states.movedim(dim, 0)
        rows = torch.zeros((n + 1, *states.shape[1:]), dtype=states.dtype, device=states.device)
        return rows.index_add(0, positions, states)[:n].movedim(0, dim)

    zero = torch.zeros_like(a.narrow(dim, 0, 1))
    terms = dh if dfinal is None else (dh + at(last, dfinal)).to(dh.dtype)
    following = shifted(a.masked_fill(starts, 0), dim, to_next, zero)
    g, _ = run(following, terms, None, None, dim, not reverse)
    before = shifted(h, dim, -to_next, zero).masked_fill(starts, 0)
    if initial_state is not None:
        before = before + at(first, initial_state).to(h.dtype)
    leaving = (a * g).index_select(dim, torch.where(there, first, 0))
    passed = torch.zeros_like(leaving) if dfinal is None else dfinal.to(leaving.dtype)  # by an empty sequence
    return g, before, torch.where(there.view([-1 if d == dim else 1 for d in range(dh.dim())]), leaving, passed)


def _formula(
    dh: Tensor, dfinal: Tensor | None, a: Tensor, h: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    extents: list[int], dim: int, reverse: bool, needs: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The outputs of the gradient, by operations that have gradients."""
    if dh.dim() == 0:
        da, db, dstate = _formula(dh[None], dfinal, a.reshape(1), h[None], initial_state, cu_seqlens, [-1], 0, reverse, needs)
        return da.reshape(a.shape if needs & 1 else 0), db.reshape(() if needs & 2 else 0), dstate
    dim, b_shape = dim % dh.dim(), _extended(extents, dh.shape)
    if dh.shape[dim] == 0:  # sequences pass their states on
        grads = _empty_gradients(dh, a, initial_state, b_shape, needs)
        da, db, dstate = (torch.zeros_like(x) for x in grads)
        return da, db, dstate if dfinal is None or not needs & 4 else dfinal.to(dstate.dtype)
    operands = dh, dfinal, a.expand(dh.shape).to(dh.dtype), h, initial_state
    if cu_seqlens is None:
        g, before, leaving = _parts(*operands, dim, reverse)
    else:
        g, before, leaving = _parts_of_packed(*operands, cu_seqlens, dim, reverse)
    da = (g * before).sum_to_size(a.shape) if needs & 1 else dh.new_empty(0)
    db = g.sum_to_size(b_shape) if needs & 2 else dh.new_empty(0)
    return da, db, leaving.to(initial_state.dtype) if needs & 4 and initial_state is not None else dh.new_empty(0)


GRADIENT = differentiable(_backward, by_formula(_formula, "linear_recurrence_backward"))


def gradients(
    dh: Tensor | None, dfinal: Tensor | None, saved: tuple[Any, ...], extents: list[int], dim: int, reverse: bool,
    needed: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of a, b and the initial state that are needed, with the operations on dh recorded if they must be.

    Args:
        saved: a, h, initial_state and cu_seqlens of the forward.
        extents: of b, by :func:`own_extents`.
    """
    a, h, initial_state, cu_seqlens = saved
    if dh is None and dfinal is None:
        return None, None, None
    dh = torch.zeros_like(h) if dh is None else resolve(dh)
    dfinal = None if dfinal is None else resolve(dfinal)
    needs = sum(1 << i for i, need in enumerate(needed) if need)
    inputs = dh, dfinal, a, h, initial_state, cu_seqlens, extents, dim, reverse, needs
    call = recorded_call(dh, GRADIENT) or _backward
    return tuple(x if need else None for x, need in zip(call(*inputs), needed, strict=True))


class _LinearRecurrence(torch.autograd.Function):
    """The autograd function of all calls but ordinary eager ones."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        a: Tensor, b: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, dim: int, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        return _forward(a, b, initial_state, cu_seqlens, dim, reverse)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, initial_state, cu_seqlens, ctx.dim, ctx.reverse = inputs
        ctx.extents = own_extents(b.shape, output[0].shape)
        ctx.save_for_backward(a, output[0], initial_state, cu_seqlens)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dh: Tensor | None, dfinal: Tensor | None) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[:3]
        return *gradients(dh, dfinal, ctx.saved_tensors, ctx.extents, ctx.dim, ctx.reverse, needed), None, None, None


_apply = traceable(_LinearRecurrence)
_forward.register_autograd(_LinearRecurrence.backward, setup_context=_LinearRecurrence.setup_context)


def run(
    a: Tensor, b: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, dim: int, reverse: bool
) -> tuple[Tensor, Tensor]:
    """h and the final state, with a gradient. ``select_or_raise`` found the plans."""
    inputs = a, b, initial_state, cu_seqlens, dim, reverse
    if is_exporting() or is_distributed(*inputs):
        return run_operator(_NAME, _NAME, ("a", "b", "initial_state", "cu_seqlens"), *inputs)  # type: ignore[no-any-return]
    return _apply(*inputs)  # type: ignore[no-any-return]


@constant
def _probed(rank: int, dtype: torch.dtype, device: torch.device) -> ErrorParts | None:
    ones = (1,) * rank
    fields = ones, str(dtype).removeprefix("torch."), -1, False, ones, ones, None, None
    return selection_error(linear_backward_plan, fields, str(device))


def select_or_raise(
    a: Tensor, b: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None, dim: int, reverse: bool
) -> None:
    """Select the plans of both directions, or those of a small problem if the call is traced.

    Raises:
        Error: there is no plan, or the shapes do not broadcast.
    """
    tensors = a, b, initial_state, cu_seqlens
    if not runs_plan_directly(*tensors):
        if not torch.compiler.is_compiling():  # which has torch's error
            broadcast(_NAME, tuple(a.shape), tuple(b.shape))
        require_strided(_NAME, a=a, b=b, initial_state=initial_state, cu_seqlens=cu_seqlens)
        require(_NAME, _probed(max(a.dim(), b.dim()), b.dtype, device_to_ask(b)))
        return
    shape = broadcast(_NAME, tuple(a.shape), tuple(b.shape))
    fields = _fields(shape, a, b.shape, dim, reverse, initial_state, cu_seqlens, b.dtype)
    device = device_name(b.device)
    linear_plan(fields, device)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        linear_backward_plan(fields, device)


def is_wide_number(rank: int, a: torch.dtype, b: torch.dtype) -> bool:
    """Whether factors of this rank and dtype are a float32 number beside 16 bits, which plans take as it is."""
    return not rank and a == torch.float32 and b in (torch.float16, torch.bfloat16)


def alike(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Factors and terms of one dtype, by torch's promotion. A float32 number beside 16 bits stays as it is."""
    if a.dtype == b.dtype or is_wide_number(a.dim(), a.dtype, b.dtype):
        return a, b
    dtype = torch.result_type(a, b)
    return a.to(dtype), b.to(dtype)
