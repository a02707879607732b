"""The autograd functions of fake quantization, and the selection of plans before the forward runs."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_name, device_of
from ..._fake_quantize import fake_quantize_plan
from ..._fake_quantize_backward import fake_quantize_backward, fake_quantize_backward_plan, fake_quantize_per_token_backward
from ..._plan import Plan
from . import quantize
from .calls import resolve
from .constants import constant
from .dispatch import ErrorParts, device_to_ask, require, run_operator, runs_plan_directly, selection_error
from .eager import apply_in_c, is_eager, is_plain, needs_no_graph
from .operators import batch_first, by_formula, differentiable, is_distributed, is_exporting, recorded_call, traceable

NAME = "fake_quantize"
"""Of the operator of the forward. Its scale is for blocks or for tokens, whichever its shape says."""


def _backward(x: Tensor, scale: Tensor) -> Any:
    """The function that computes the gradients."""
    return fake_quantize_per_token_backward if quantize.is_per_token(x, scale) else fake_quantize_backward


@torch.library.custom_op("sternway::fake_quantize_backward", mutates_args=())
def _operator(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients as an operator, for calls that torch must see."""
    return quantize.padded(*_backward(x, scale)(dy, x, scale, zero_point, quant_min=quant_min, quant_max=quant_max))


@_operator.register_fake
def _(dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return quantize.fake_gradients(dy, scale, zero_point)


def _levels(
    x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int, reciprocal: bool = False
) -> tuple[Tensor, ...]:
    """The quotient, the zero point, t, clamp(t) and the scale, in float32 or wider; see _limit for a scale of 0.

    The quotient is x / scale, or x * (1 / scale) with reciprocal.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    s = quantize.expanded(scale, x).to(wide)
    zero = torch.zeros((), dtype=wide, device=x.device) if zero_point is None else quantize.expanded(zero_point, x).to(wide)
    if zero_point is not None and zero_point.is_floating_point():
        zero = zero.round().clamp(quant_min, quant_max)
    divisor = s.masked_fill(s == 0, 1.0)
    ratio = x.to(wide) * (1 / divisor) if reciprocal else x.to(wide) / divisor
    t = ratio.round() + zero
    return ratio, zero, t, t.clamp(quant_min, quant_max), s


def _limit(x: Tensor, levels: tuple[Tensor, ...], bounds: tuple[int, int]) -> tuple[Tensor, ...]:
    """The levels with a scale of 0 replaced by the limit of small scales.

    x / 0 is infinite with the sign of x, and 0 / 0 is 0. The forward does without: it multiplies the level by that 0.
    """
    ratio, zero, t, level, s = levels
    infinite = torch.where(x == 0, 0.0, x * math.inf).to(ratio.dtype).detach()
    ratio = torch.where(s == 0, infinite, ratio)
    t = torch.where(s == 0, infinite + zero, t)
    return ratio, zero, t, torch.where(s == 0, t.clamp(*bounds), level), s


def formula(
    dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int, reciprocal: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The results of the operator, in torch's operations."""
    levels = _levels(x, scale, zero_point, quant_min, quant_max, reciprocal)
    ratio, zero, t, level, s = _limit(x, levels, (quant_min, quant_max))
    inside = (t >= quant_min) & (t <= quant_max)
    g = dy.to(ratio.dtype)
    steps = (level - zero).detach()  # rounding and clamping pass no gradient of their own
    dscale = quantize.block_sums(g * torch.where(inside, steps - ratio, steps), scale)
    dzero = None
    if zero_point is not None and quantize.learned(zero_point):
        dzero = quantize.block_sums(torch.where(inside, 0.0, -g * s), zero_point)
    return quantize.padded(torch.where(inside, dy, 0.0), dscale, dzero)


_operator.register_vmap(quantize.batched(NAME, _operator, 2))
_GRADIENT = differentiable(_operator, by_formula(formula, "fake_quantize_backward"))


Bounds = tuple[int, int]
"""quant_min and quant_max."""


def _by_torch(x: Tensor, scale: Tensor, zero_point: Tensor | None, bounds: Bounds) -> Tensor:
    """The forward in torch's operations."""
    _, zero, _, level, s = _levels(x, scale, zero_point, *bounds)
    return quantize.rounded((level - zero) * s, x.dtype)


def traced_by_torch(x: Tensor, scale: Tensor, zero_point: Tensor | None, bounds: Bounds) -> Tensor:
    """The forward in torch's operations, whose derivatives are the gradients, for a trace of torch.jit.

    The form is straight-through, ``y + (line - line.detach())``: line has our gradients, and the value stays y.
    """
    y = _by_torch(x, scale, zero_point, bounds).detach()
    ratio, zero, t, level, s = _limit(x, _levels(x, scale, zero_point, *bounds), bounds)
    inside = (t >= bounds[0]) & (t <= bounds[1])
    steps = torch.where(inside, level - zero - ratio, level - zero).detach()
    line = torch.where(inside, x, 0.0) + s * steps
    if zero_point is not None and quantize.learned(zero_point):
        line = line - torch.where(inside, 0.0, s.detach()) * quantize.expanded(zero_point, x)
    return y + (line - line.detach()).to(y.dtype)


def _gradients(
    dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, bounds: Bounds, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of x, scale and zero_point, with the operations on dy recorded if they must be."""
    dy, x, scale = (resolve(t) for t in (dy, x, scale))
    zero_point = None if zero_point is None else resolve(zero_point)
    factor = quantize.kernel_scale(scale, dy)
    if call := recorded_call(dy, _GRADIENT):
        dx, dscale, dzero_point = call(dy, x, factor, zero_point, *bounds)
    else:
        quant_min, quant_max = bounds
        dx, dscale, dzero_point = _backward(x, factor)(
            dy, x, factor, zero_point, quant_min=quant_min, quant_max=quant_max,
            out=[torch.empty_like(x), *quantize.empty_sums(factor, zero_point).values()],
        )  # fmt: skip
    return dx, quantize.rounded(dscale, scale.dtype), dzero_point if needs[2] else None


class Steps(NamedTuple):
    """How a fake quantization of tensors of some shapes is done, which is decided before anything runs."""

    dtype: torch.dtype
    bounds: Bounds
    forward: Plan[Any]
    backward: Plan[Any]


@functools.lru_cache(maxsize=1024)
def _steps(
    shape: torch.Size,
    dtype: torch.dtype,
    scale: quantize.Facts,
    zero_point: quantize.Facts | None,
    bounds: Bounds,
    per_token: bool,
) -> Steps | None:
    """The steps of a fake quantization, from a cache; None: it takes the general way.

    Args:
        shape, dtype: of x.
        per_token: whether there is one number for each token, otherwise for each block.

    Raises:
        Error: there is no plan.
    """
    if bounds[0] > bounds[1] or not quantize.fits(shape, dtype, scale, zero_point, per_token):
        return None
    scale_shape, scale_dtype, device = scale
    problem = tuple(shape), dtype, *bounds, None if per_token else tuple(scale_shape), scale_dtype, device_name(device)
    return Steps(dtype, bounds, fake_quantize_plan(*problem), fake_quantize_backward_plan(*problem))


def run_eager(x: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, per_token: bool) -> Tensor | None:
    """Quantize as an ordinary eager call; None: nothing was done, and the call takes the general way or is wrong.

    per_token: whether there is one number for each token, otherwise for each block.
    """
    if not (type(quant_min) is type(quant_max) is int and is_eager(x)):
        return None
    if not (is_plain(scale) and (zero_point is None or is_plain(zero_point)) and x.device == scale.device):
        return None
    learned, shift = x.requires_grad or scale.requires_grad, None
    try:
        if zero_point is not None:
            learned = learned or zero_point.requires_grad
            shift = zero_point.shape, zero_point.dtype, zero_point.device
        factor = scale.shape, scale.dtype, scale.device
        steps = _steps(x.shape, x.dtype, factor, shift, (quant_min, quant_max), per_token)
    except (RuntimeError, ValueError):  # errors of plans; a nested tensor, which has no shape
        return None
    if steps is None:
        return None
    if learned:
        return _apply(x, scale, zero_point, steps)  # type: ignore[no-any-return]
    return quantize.run_forward(steps.forward, {"x": x, "scale": scale, "zero_point": zero_point, "y": torch.empty_like(x)})


class _FakeQuantizeEager(torch.autograd.Function):
    """The autograd function of ordinary eager calls."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor | None, steps: Steps) -> Tensor:
        ctx.steps = steps
        ctx.save_for_backward(x, scale, zero_point)
        ctx.set_materialize_grads(False)
        return quantize.run_forward(steps.forward, {"x": x, "scale": scale, "zero_point": zero_point, "y": torch.empty_like(x)})

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None
        steps: Steps = ctx.steps
        x, scale, zero_point = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if needs_no_graph(dy) and dy.dtype is steps.dtype:
            dx = torch.empty_like(x)
            grads = quantize.empty_sums(scale if needs[1] else None, zero_point if needs[2] else None)
            if steps.backward._run_plain({"dy": dy, "x": x, "scale": scale, "zero_point": zero_point, "dx": dx, **grads}):
                return dx, grads["dscale"], grads["dzero_point"], None
        return *_gradients(dy, x, scale, zero_point, steps.bounds, needs), None


_apply = apply_in_c(_FakeQuantizeEager)


class _FakeQuantize(torch.autograd.Function):
    """The autograd function of all other calls."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> Tensor:
        return _by_torch(x, scale, zero_point, (quant_min, quant_max))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, scale, zero_point, *ctx.bounds = inputs
        ctx.save_for_backward(x, scale, zero_point)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        x, scale, zero_point = ctx.saved_tensors
        if dy is None:
            return (None,) * 5
        return *_gradients(dy, x, scale, zero_point, tuple(ctx.bounds), ctx.needs_input_grad), None, None


_fake_quantize = traceable(_FakeQuantize)


@torch.library.custom_op("sternway::fake_quantize", mutates_args=())
def _exported(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> Tensor:
    """The forward as an operator, for torch.export and DTensors. The gradient of torch.round in its place would be 0."""
    return quantize.laid_out(_by_torch(x, scale, zero_point, (quant_min, quant_max)), x)


@_exported.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@_exported.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return _exported(*quantize.ranked(batch_first(info, in_dims, inputs))), 0


_exported.register_autograd(_FakeQuantize.backward, setup_context=_FakeQuantize.setup_context)


@constant
def _probed(
    shape: tuple[int, ...], dtype: torch.dtype, blocks: tuple[int, ...] | None, scale_dtype: torch.dtype, device: torch.device
) -> ErrorParts | None:
    problem = shape, dtype, 0, 1, blocks, scale_dtype, str(device)  # any bounds: no plan refuses some
    return selection_error(fake_quantize_backward_plan, *problem)


def select_or_raise(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> None:
    """Select the plan of the backward, or that of a small problem if the call is traced.

    Raises:
        Error: there is no plan.
    """
    scale_dtype = quantize.kernel_scale_dtype(scale, x.dtype)
    if runs_plan_directly(x, scale, zero_point):
        blocks = quantize.blocks_of(x, scale)
        fake_quantize_backward_plan(tuple(x.shape), x.dtype, quant_min, quant_max, blocks, scale_dtype, device_of(x))
    else:
        shape, blocks = quantize.small_problem(x, scale)
        require(NAME, _probed(shape, x.dtype, blocks, scale_dtype, device_to_ask(x)))


def run_general(op: str, x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> Tensor:
    """Quantize in the general way; ``select_or_raise`` found the plans. op: the drop-in, for errors."""
    inputs = x, scale, zero_point, quant_min, quant_max
    if (is_exporting() and quantize.needs_gradient(x, scale, zero_point)) or is_distributed(*inputs):
        return run_operator(NAME, op, ("x", "scale", "zero_point"), *inputs)  # type: ignore[no-any-return]
    return _fake_quantize(*inputs)  # type: ignore[no-any-return]
