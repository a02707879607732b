"""The autograd functions of selective scans: forward and gradient are operators of plans."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._arrays import device_name
from ..._selective_scan import chunk_shape, problem_fields, selective_plan, state_dtype, state_shape
from ..._selective_scan_backward import OUTPUTS, selective_backward_plan
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
from .eager import apply_in_c, is_eager
from .linear_recurrence import run as run_linear
from .operators import (
    by_formula,
    differentiable,
    is_exporting,
    is_jit_tracing,
    recorded_call,
    traceable,
    vmap_by_loop,
)

_NAME = "selective_scan"

OPERANDS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state", "cu_seqlens")
"""The tensors of a call, in order. All but cu_seqlens have gradients."""


def _fields(tensors: tuple[Any, ...], softplus: bool) -> tuple[Any, ...]:
    """The fields of the descriptor of a problem."""
    u, _, A, B, C, D, z, delta_bias, _, cu_seqlens = tensors
    return problem_fields(_NAME, u, A, B, C, D, z, delta_bias, softplus, cu_seqlens)


def _state_dtype(u: Tensor) -> torch.dtype:
    return getattr(torch, state_dtype(str(u.dtype).removeprefix("torch.")))  # type: ignore[no-any-return]


def _run(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, delta_bias: Tensor | None,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, softplus: bool, saves: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, the last state and, if the gradient will be computed, the chunk states; otherwise these are empty."""
    tensors = u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens
    fields = _fields(tensors, softplus)
    y, last, chunks = _empty(u, fields, saves)
    operands = given(**dict(zip(OPERANDS, tensors, strict=True)))
    outputs = {"y": y, "last_state": last, **({"chunk_states": chunks} if saves else {})}
    selective_plan(fields, device_name(u.device)).run(**operands, **outputs)
    return y, last, chunks


_forward = torch.library.custom_op("sternway::selective_scan", mutates_args=())(_run)


def _empty(u: Tensor, fields: tuple[Any, ...], saves: bool) -> tuple[Tensor, Tensor, Tensor]:
    last = u.new_empty(state_shape(fields), dtype=_state_dtype(u))
    return torch.empty_like(u), last, last.new_empty(chunk_shape(fields) if saves else 0)


@_forward.register_fake
def _(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, delta_bias: Tensor | None,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, softplus: bool, saves: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty(u, _fields((u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens), softplus), saves)


_forward.register_vmap(vmap_by_loop(_NAME, _forward))

_Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _run_backward(
    dy: Tensor, dlast: Tensor | None, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
    z: Tensor | None, delta_bias: Tensor | None, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    chunks: Tensor | None, softplus: bool, needs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of OPERANDS. Bit i of needs says that OUTPUTS[i] is needed; others are empty."""
    tensors = u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens
    grads = _empty_gradients(tensors, needs)
    fields = _fields(tensors, softplus)
    saved = chunks if chunks is not None and chunks.dim() == 4 else None
    operands = given(dy=dy, dlast_state=dlast, chunk_states=saved, **dict(zip(OPERANDS, tensors, strict=True)))
    outputs = {name: x for i, (name, x) in enumerate(zip(OUTPUTS, grads, strict=True)) if needs >> i & 1}
    selective_backward_plan(fields, device_name(u.device)).run(**operands, **outputs)
    return grads


_backward = torch.library.custom_op("sternway::selective_scan_backward", mutates_args=())(_run_backward)


def _empty_gradients(tensors: tuple[Any, ...], needs: int) -> _Gradients:
    operands = tensors[: len(OUTPUTS)]
    return tuple(torch.empty_like(x) if needs >> i & 1 else tensors[0].new_empty(0) for i, x in enumerate(operands))  # type: ignore[return-value]


@_backward.register_fake
def _(
    dy: Tensor, dlast: Tensor | None, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
    z: Tensor | None, delta_bias: Tensor | None, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    chunks: Tensor | None, softplus: bool, needs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty_gradients((u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens), needs)


_backward.register_vmap(vmap_by_loop(_NAME, _backward))


def _by_channel(x: Tensor, dim: int) -> Tensor:
    """B or C with channels, states and positions as its last dimensions, of extent 1 where it has none."""
    if x.dim() == 2:
        return x[None, :, :, None]
    x = x[:, None] if x.dim() == 3 else x
    return x.repeat_interleave(dim // x.shape[1], 1) if x.shape[1] > 1 else x


def _recurrence(softplus: bool, *tensors: Any) -> tuple[Tensor, Tensor]:
    """y and the last state by operations that have gradients, with states of all positions in memory."""
    u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens = tensors
    step = delta.to(A.dtype)
    if delta_bias is not None:
        step = step + delta_bias[:, None]
    if softplus:
        step = torch.nn.functional.softplus(step)
    wide = u.to(A.dtype)
    decay = torch.exp(step[:, :, None] * A[:, :, None])
    terms = (step * wide)[:, :, None] * _by_channel(B, u.shape[1]).to(A.dtype)
    state = initial_state if initial_state is None or cu_seqlens is None else initial_state.movedim(1, -1)
    h, last = run_linear(decay, terms.expand(decay.shape), state, cu_seqlens, -1, False)
    y = (h * _by_channel(C, u.shape[1]).to(A.dtype)).sum(2)
    if D is not None:
        y = y + D[:, None] * wide
    if z is not None:
        y = y * torch.nn.functional.silu(z.to(A.dtype))
    return y.to(u.dtype), last if cu_seqlens is None else last.movedim(-1, 1)


def _formula(dy: Tensor, dlast: Tensor | None, *inputs: Any) -> tuple[Tensor, ...]:
    """The outputs of the gradient, by operations that have gradients."""
    *tensors, _, softplus, needs = inputs
    where = [i for i in range(len(OUTPUTS)) if needs >> i & 1]

    def function(*needed: Tensor) -> tuple[Tensor, Tensor]:
        at = dict(zip(where, needed, strict=True))
        return _recurrence(softplus, *(at.get(i, x) for i, x in enumerate(tensors)))

    (_, last), pull = torch.func.vjp(function, *(tensors[i] for i in where))  # type: ignore[misc]
    found = dict(zip(where, pull((dy, torch.zeros_like(last) if dlast is None else dlast)), strict=True))
    return tuple(found[i] if i in found else dy.new_empty(0) for i in range(len(OUTPUTS)))


GRADIENT = differentiable(_backward, by_formula(_formula))


def _gradients(ctx: Any, dy: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of OPERANDS that are needed, with the operations on dy recorded if they must be."""
    *tensors, chunks = ctx.saved_tensors
    needed = ctx.needs_input_grad[: len(OUTPUTS)]
    if dy is None and dlast is None:
        return (None,) * len(OPERANDS)
    dy = torch.zeros_like(tensors[0]) if dy is None else resolve(dy)
    dlast = None if dlast is None else resolve(dlast)
    needs = sum(1 << i for i, need in enumerate(needed) if need)
    inputs = dy, dlast, *tensors, chunks.detach()
    call: Any = recorded_call(dy, GRADIENT) or (dlast is not None and recorded_call(dlast, GRADIENT))
    if not call:  # a plan where that is possible, as the first call of an operator takes a second
        call = _run_backward if runs_plan_directly(*inputs) and not is_jit_tracing() else _backward
    found = call(*inputs, ctx.softplus, needs)
    return *(x if need else None for x, need in zip(found, needed, strict=True)), None


class _SelectiveScan(torch.autograd.Function):
    """The autograd function of all calls but ordinary eager ones."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        delta_bias: Tensor | None, initial_state: Tensor | None, cu_seqlens: Tensor | None, softplus: bool, saves: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        tensors = u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens
        return _forward(*tensors, softplus, saves)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.softplus, _ = inputs
        ctx.save_for_backward(*tensors, output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dlast: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
        return *_gradients(ctx, dy, dlast), None, None


class _SelectiveScanEager(torch.autograd.Function):
    """The autograd function of ordinary eager calls."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        output = _run(*inputs)
        _SelectiveScan.setup_context(ctx, inputs, output)
        return output

    backward = _SelectiveScan.backward


_apply_eager = apply_in_c(_SelectiveScanEager)
_apply = traceable(_SelectiveScan)
_forward.register_autograd(_SelectiveScan.backward, setup_context=_SelectiveScan.setup_context)


def _is_recorded(*tensors: Tensor | None) -> bool:
    """Whether autograd records a call, where no transform of torch.func hides tensors that require grad."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def run(*inputs: Any) -> tuple[Tensor, Tensor]:
    """y and the last state, with a gradient, from OPERANDS and softplus. ``select_or_raise`` found the plans."""
    tensors = inputs[:-1]
    if is_eager(tensors[0]) and runs_plan_directly(*tensors):
        y, last, _ = _apply_eager(*inputs, _is_recorded(*tensors))
    elif is_exporting():
        y, last, _ = run_operator(_NAME, _NAME, OPERANDS, *inputs, torch.is_grad_enabled())
    else:
        y, last, _ = _apply(*inputs, torch.is_grad_enabled())
    return y, last


@constant
def _probed(dtype: torch.dtype, device: torch.device) -> ErrorParts | None:
    return selection_error(selective_backward_plan, (1, 1, 1, 1, str(dtype).removeprefix("torch.")), str(device))


def select_or_raise(softplus: bool, *tensors: Any) -> None:
    """Select the plans of both directions, or those of a small problem if the call is traced.

    Raises:
        Error: there is no plan.
    """
    u, fields = tensors[0], _fields(tensors, softplus)
    if not runs_plan_directly(*tensors):
        require_strided(_NAME, **dict(zip(OPERANDS, tensors, strict=True)))
        require(_NAME, _probed(u.dtype, device_to_ask(u)))
        return
    selective_plan(fields, device_name(u.device))
    if _is_recorded(*tensors):
        selective_backward_plan(fields, device_name(u.device))
