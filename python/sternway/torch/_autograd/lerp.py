"""The autograd functions of lerp, and the selection of the plan of its backward before the forward runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..._arrays import device_name, device_of
from ..._lerp import OUTPUTS, LerpBackwardPlan, lerp_plan, split_weight
from .calls import FLOATS, empty_gradient, resolve, strides_like
from .constants import constant
from .dispatch import ErrorParts, device_to_ask, require, require_strided, run_operator, runs_plan_directly, selection_error
from .eager import apply_in_c, is_eager, is_plain, needs_no_graph
from .lerp_gradient import GRADIENT
from .operators import is_distributed, is_exporting, recorded_call, traceable, vmap_by_loop

torch_lerp = torch.lerp  # as at import: accelerate() replaces the attribute
WEIGHTS = (float, Tensor, torch.SymFloat, torch.SymInt)
Strides = tuple[int, ...] | None


def is_ours(input: Any, end: Any, weight: Any) -> bool:
    """Whether a lerp gets sternway's gradient. Calls with complex numbers or wrong types are left to torch."""
    if not (isinstance(input, Tensor) and isinstance(end, Tensor) and isinstance(weight, WEIGHTS)):
        return False
    return input.dtype in FLOATS and not (isinstance(weight, Tensor) and weight.is_complex())


@constant
def _probed(rank: int, dtype: torch.dtype, device: torch.device) -> ErrorParts | None:
    ones = (1,) * rank
    return selection_error(lerp_plan, ones, dtype, 0.5, ones, ones, None, str(device))


def _broadcast(a: torch.Size, b: torch.Size) -> torch.Size | None:
    """The shape that two shapes broadcast to; None: they do not broadcast."""
    a, b = (a, b) if len(a) >= len(b) else (b, a)
    if a[len(a) - len(b) :] == b:
        return a
    try:
        return cast(torch.Size, torch.broadcast_shapes(a, b))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None


def select_or_raise(input: Tensor, end: Tensor, weight: Tensor | float) -> LerpBackwardPlan | None:
    """Select the plan of the backward; None if the call is traced, or torch refuses it. The arguments pass ``is_ours``.

    Raises:
        Error: there is no plan.
    """
    tensors = (input, end, weight) if isinstance(weight, Tensor) else (input, end)
    if not runs_plan_directly(*tensors):
        require_strided("lerp", input=input, end=end, weight=weight)
        require("lerp", _probed(max(x.dim() for x in tensors), input.dtype, device_to_ask(input)))
        return None
    shapes = input.shape, end.shape
    shape = _broadcast(*shapes)
    if shape is not None and isinstance(weight, Tensor):
        shape = _broadcast(shape, weight.shape)
    if shape is None:
        return None
    device = device_of(input if input.dim() or not end.dim() else end)
    value = weight.detach() if isinstance(weight, Tensor) else weight
    number, factor = split_weight(value, device) if torch.is_grad_enabled() else (0.5, None)  # one plan for all of them
    return lerp_plan(shape, input.dtype, number, *shapes, None if factor is None else factor.shape, device)


class Steps(NamedTuple):
    """The backward of a lerp whose ends have these shapes."""

    dtype: torch.dtype
    a_shape: torch.Size
    b_shape: torch.Size
    plan: LerpBackwardPlan


@functools.lru_cache(maxsize=1024)
def _steps(
    a: torch.Size, b: torch.Size, weight: torch.Size | None, number: float | None, dtype: torch.dtype, device: torch.device
) -> Steps | None:
    """The steps of a lerp of tensors of one dtype on one device, from a cache; None: it takes the general way.

    Args:
        a, b: the shapes of the ends.
        weight: the shape of the weight, or None.
        number: the weight, if it is a number. It is neither 0, whose sign a cache loses, nor NaN.

    Raises:
        Error: there is no plan.
    """
    shape = _broadcast(a, b)
    if shape is not None and weight is not None:
        shape = _broadcast(shape, weight)
    if shape is None or dtype not in FLOATS or (b and not a):  # an end of rank 0 may be on another device
        return None
    return Steps(dtype, a, b, lerp_plan(shape, dtype, number, a, b, weight, device_name(device)))


def run_eager(input: Any, end: Any, weight: Any) -> Tensor | None:
    """Do a lerp as an ordinary eager call; None: nothing was done, and the call takes the general way or is wrong."""
    if not (is_eager(input) and is_plain(end)):
        return None
    dtype, device, learned = input.dtype, input.device, False
    try:
        if type(weight) is float:
            if not weight or weight != weight:
                return None
            steps = _steps(input.shape, end.shape, None, weight, dtype, device)
        else:
            if not (is_plain(weight) and weight.dtype is dtype and weight.device == device):
                return None
            steps, learned = _steps(input.shape, end.shape, weight.shape, None, dtype, device), weight.requires_grad
    except (RuntimeError, ValueError):  # errors of plans; a nested tensor, which has no shape
        return None
    if steps is None:
        return None
    if learned or input.requires_grad or end.requires_grad:
        return _apply(input, end, weight, steps)  # type: ignore[no-any-return]
    return torch_lerp(input, end, weight)


def _gradients(
    dy: Tensor,
    saved: tuple[Tensor | None, ...],
    number: float | None,
    dtype: torch.dtype,
    shapes: tuple[torch.Size, torch.Size],
    strides: tuple[Strides, Strides],
    needs: tuple[bool, ...],
    plan: LerpBackwardPlan | None,
) -> tuple[Tensor | None, ...]:
    """The gradients of input, end and weight, with the operations on dy recorded if they must be.

    Args:
        saved: the ends, if the weight needs its gradient or they are DTensors, and the weight, if it is a tensor.
        number: the weight, if it is a number.
        dtype, shapes, strides: of the ends.
        needs: which of the three gradients are needed.
        plan: of tensors of these shapes and dtype; None: it is selected.
    """
    dy = resolve(dy)
    input, end, factor = saved
    weight: Any = number if factor is None else factor
    home = dy if factor is None else factor
    if home.device == dy.device or needs[2]:  # otherwise the plan reads a 0-d weight on the CPU as a number
        if home.dtype != dy.dtype:  # a 0-d weight, which must not be rounded before 1 - weight is formed
            dy = dy.to(torch.promote_types(dy.dtype, home.dtype))
        if factor is not None:
            weight = factor.to(dy)
    if home.device != dy.device:  # a plan of a number
        plan = None
    if dtype != dy.dtype:
        plan = None
        input, end = (x if x is None else x.to(dy.dtype) for x in (input, end))
    names = [name for name, need in zip(OUTPUTS, needs, strict=False) if need]
    if call := recorded_call(dy, GRADIENT):
        factor, number = (weight, 0.0) if factor is not None else (None, float(weight))
        ends = (input, end) if needs[2] or is_distributed(dy) else (None, None)
        da, db, dweight = call(dy, factor, *ends, sum(1 << OUTPUTS.index(name) for name in names), number, *shapes)
        grads = {"da": da, "db": db, "dweight": dweight}
    else:
        grads = _run(dy, weight, input, end, shapes, strides, names, plan)
    homes = dtype, dtype, home
    return tuple(grads[name].to(like) if need else None for name, need, like in zip(OUTPUTS, needs, homes, strict=False))


def _run(
    dy: Tensor,
    weight: Tensor | float,
    a: Tensor | None,
    b: Tensor | None,
    shapes: tuple[torch.Size, torch.Size],
    strides: tuple[Any, Any],
    names: Sequence[str],
    plan: LerpBackwardPlan | None,
) -> dict[str, Tensor]:
    """Some of the gradients by name, laid out as a and b, which are given for dweight alone, and the weight."""
    device = device_of(dy)
    number, factor = split_weight(weight, device)
    lies = {"da": (shapes[0], strides[0]), "db": (shapes[1], strides[1])}
    if factor is not None:
        lies["dweight"] = factor.shape, strides_like(factor)
        factor = resolve(factor)
    grads = {name: empty_gradient(dy, *lies[name]) for name in names}
    plan = plan or lerp_plan(dy.shape, dy.dtype, number, *shapes, None if factor is None else factor.shape, device)
    a, b = (x if x is None else resolve(x) for x in (a, b))
    plan.run(dy=dy, weight=factor, a=a, b=b, **grads)
    return grads


class _LerpEager(torch.autograd.Function):
    """The autograd function of ordinary eager calls of tensors of one dtype on one device."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, end: Tensor, weight: Tensor | float, steps: Steps) -> Tensor:
        a_strides = None if input.is_contiguous() else strides_like(input)
        b_strides = None if end.is_contiguous() else strides_like(end)
        if type(weight) is float:
            ctx.saved_values = steps, a_strides, b_strides, weight
        else:
            ctx.saved_values = steps, a_strides, b_strides, None
            _save(ctx, input, end, weight)
        ctx.set_materialize_grads(False)
        return torch_lerp(input, end, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None
        steps, a_strides, b_strides, number = ctx.saved_values
        saved = (None, None, None) if number is not None else ctx.saved_tensors
        needs = ctx.needs_input_grad
        if needs_no_graph(dy) and dy.dtype is steps.dtype:
            da = empty_gradient(dy, steps.a_shape, a_strides) if needs[0] else None
            db = empty_gradient(dy, steps.b_shape, b_strides) if needs[1] else None
            operands: dict[str, Any] = {"dy": dy, "da": da, "db": db}
            dweight = None
            if number is None:
                operands["a"], operands["b"], operands["weight"] = saved
                if needs[2]:
                    operands["dweight"] = dweight = torch.empty_like(operands["weight"])
            if steps.plan._run_plain(operands):
                return da, db, dweight, None
        shapes, strides = (steps.a_shape, steps.b_shape), (a_strides, b_strides)
        return *_gradients(dy, saved, number, steps.dtype, shapes, strides, needs, steps.plan), None


def _save(ctx: Any, input: Tensor, end: Tensor, weight: Tensor | float) -> None:
    """Save the weight, and the ends for its gradient, or for the shapes of their shards."""
    ends = (input, end) if ctx.needs_input_grad[2] or is_distributed(input) else (None, None)
    ctx.save_for_backward(*ends, weight if isinstance(weight, Tensor) else None)


_apply = apply_in_c(_LerpEager)


class _Lerp(torch.autograd.Function):
    """The autograd function of all other calls."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, end: Tensor, weight: Tensor | float, plan: LerpBackwardPlan | None) -> Tensor:
        return torch_lerp(input, end, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, end, weight, ctx.plan = inputs
        ctx.shapes = input.shape, end.shape
        ctx.strides = strides_like(input), strides_like(end)
        ctx.dtype = input.dtype
        ctx.weight = None if isinstance(weight, Tensor) else weight
        _save(ctx, input, end, weight)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        if dy is None:
            return None, None, None, None
        needs, saved = ctx.needs_input_grad, ctx.saved_tensors
        return *_gradients(dy, saved, ctx.weight, ctx.dtype, ctx.shapes, ctx.strides, needs, ctx.plan), None


_lerp = traceable(_Lerp)


@torch.library.custom_op("sternway::lerp", mutates_args=())
def _exported(input: Tensor, end: Tensor, weight: Tensor | None, number: float) -> Tensor:
    """The forward as an operator that has its gradient, for torch.export and DTensors. Without weight, number is it."""
    return torch_lerp(input, end, number if weight is None else weight)


@_exported.register_fake
def _(input: Tensor, end: Tensor, weight: Tensor | None, number: float) -> Tensor:
    return torch_lerp(input, end, number if weight is None else weight)


_exported.register_vmap(vmap_by_loop("lerp", _exported))


def _set_up_exported(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, end, weight, number = inputs
    _Lerp.setup_context(ctx, (input, end, number if weight is None else weight, None), output)


_exported.register_autograd(_Lerp.backward, setup_context=_set_up_exported)


def run_general(input: Tensor, end: Tensor, weight: Tensor | float, plan: LerpBackwardPlan | None) -> Tensor:
    """torch.lerp with the backward of the plan that ``select_or_raise`` selected."""
    if is_exporting() or is_distributed(input, end, weight):
        weights = (weight, 0.0) if isinstance(weight, Tensor) else (None, weight)
        return run_operator("lerp", "lerp", ("input", "end", "weight"), input, end, *weights)  # type: ignore[no-any-return]
    return _lerp(input, end, weight, plan)  # type: ignore[no-any-return]
