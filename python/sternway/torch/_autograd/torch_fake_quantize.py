"""Fake quantization inside accelerate(), by the functions of torch and with their numbers.

The quotient is ``x * (1 / scale)`` in float32, which rounds a few x between two levels to another one than x / scale. Ordinary
eager calls are done here; all others stay with torch, and so do operands that torch does not take on every device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_name
from ..._fake_quantize import fake_quantize_plan
from ..._fake_quantize_backward import fake_quantize_backward_plan
from ..._plan import Plan
from . import quantize
from .eager import apply_in_c, is_eager, is_plain, needs_no_graph
from .fake_quantize import Bounds, formula

_is_grad_enabled = torch.is_grad_enabled
# As at import: accelerate() replaces the attributes.
_per_tensor = torch.fake_quantize_per_tensor_affine
_per_channel = torch.fake_quantize_per_channel_affine
_learnable_per_tensor = torch._fake_quantize_learnable_per_tensor_affine
_learnable_per_channel = torch._fake_quantize_learnable_per_channel_affine

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # torch computes float64 with a scale in float32
_HALF = torch.float16  # of which torch's learnable functions have no gradient


class Steps(NamedTuple):
    """How a fake quantization of tensors of some shapes is done, which is decided before anything runs."""

    dtype: torch.dtype
    bounds: Bounds
    blocks: tuple[int, ...]  # the shape in which the plans read scale and zero_point
    forward: Plan[Any]
    backward: Plan[Any]


def _blocks(
    shape: torch.Size, scale: torch.Size, zero_point: torch.Size, axis: int | None, learnable: bool
) -> tuple[int, ...] | None:
    """The shape of scale and zero_point to a plan for x of a shape; None: torch refuses theirs, or reads a part of them."""
    if axis is not None:
        if not (type(axis) is int and 0 <= axis < len(shape) and tuple(scale) == tuple(zero_point) == (shape[axis],)):
            return None
        return tuple(n if d == axis else 1 for d, n in enumerate(shape))
    if learnable:
        return () if tuple(scale) == tuple(zero_point) == (1,) else None
    return () if math.prod(scale) == math.prod(zero_point) == 1 else None


@functools.lru_cache(maxsize=1024)
def _steps(
    x: quantize.Facts,
    scale: quantize.Facts,
    zero_point: quantize.Facts,
    axis: int | None,
    bounds: Bounds,
    learnable: bool,
) -> Steps | None:
    """The steps of a fake quantization, from a cache; None: it stays with torch.

    axis: of the channels; None: per tensor.

    Raises:
        Error: there is no plan.
    """
    shape, dtype, device = x
    blocks = _blocks(shape, scale[0], zero_point[0], axis, learnable)
    if blocks is None or 0 in shape or dtype not in _DTYPES or bounds[0] > bounds[1]:
        return None
    if not (scale[1] == torch.float32 and scale[2] == zero_point[2] == device):
        return None
    integers = (torch.int32, torch.int64) if axis is None and device.type == "cpu" else (torch.int32,)
    if zero_point[1] not in ((torch.float32,) if learnable else integers):
        return None
    problem = tuple(shape), dtype, *bounds, blocks, torch.float32, device_name(device), True
    return Steps(dtype, bounds, blocks, fake_quantize_plan(*problem), fake_quantize_backward_plan(*problem))


def _as_blocks(numbers: Tensor, blocks: tuple[int, ...]) -> Tensor:
    """A scale or zero point in the shape in which the plans read it."""
    if numbers.shape == blocks:
        return numbers
    return numbers.view(blocks) if blocks else numbers.squeeze()  # which is quicker


def _forward(x: Tensor, scale: Tensor, zero_point: Tensor, steps: Steps) -> Tensor:
    """The result; scale and zero_point are in the shape of the blocks."""
    operands = {"x": x, "scale": scale, "zero_point": zero_point, "y": torch.empty_like(x)}
    return quantize.run_forward(steps.forward, operands)


class _FakeQuantize(torch.autograd.Function):
    """The autograd function. A gradient that is differentiated again is formed in torch's operations."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        steps: Steps,
        grad_factor: float | None,
        by_torch: Callable[[], Tensor] | None,
    ) -> Tensor:
        ctx.steps, ctx.grad_factor = steps, grad_factor
        ctx.set_materialize_grads(False)
        factor, shift = _as_blocks(scale, steps.blocks), _as_blocks(zero_point, steps.blocks)
        if grad_factor is None:
            # Copies: an observer may write to the numbers before the backward, for which torch saves none.
            ctx.save_for_backward(x, factor.clone(), shift.clone())
        else:
            ctx.save_for_backward(x, scale, zero_point)
        return _forward(x, factor, shift, steps) if by_torch is None else by_torch()

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * 6
        x, scale, zero_point = ctx.saved_tensors
        dx, *sums = _gradients(dy, x, scale, zero_point, ctx.steps, ctx.needs_input_grad)
        if ctx.grad_factor not in (None, 1.0):
            sums = [None if total is None else total * ctx.grad_factor for total in sums]
        return dx, *sums, None, None, None


_apply = apply_in_c(_FakeQuantize)


def _gradients(
    dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, steps: Steps, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of x, and of scale and zero_point where they are needed."""
    factor, shift = _as_blocks(scale, steps.blocks), _as_blocks(zero_point, steps.blocks)
    if needs_no_graph(dy) and dy.dtype is steps.dtype:
        dx, sums = torch.empty_like(x), quantize.empty_sums(factor if needs[1] else None, shift if needs[2] else None)
        done = steps.backward._run_plain({"dy": dy, "x": x, "scale": factor, "zero_point": shift, "dx": dx, **sums})
        dscale, dzero_point = sums["dscale"], sums["dzero_point"]
    else:
        done = False
    if not done:
        dx, dscale, dzero_point = formula(dy, x, factor, shift, *steps.bounds, True)
    return (
        dx,
        dscale.view(scale.shape) if needs[1] and dscale is not None else None,
        dzero_point.view(zero_point.shape) if needs[2] and dzero_point is not None else None,
    )


def _run(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int | None,
    bounds: Bounds,
    grad_factor: float | None,
    by_torch: Callable[[], Tensor] | None,
) -> Tensor | None:
    """Do an eager call of tensors; None: nothing was done, and torch does it.

    Args:
        axis: of the channels; None: per tensor.
        grad_factor: of the gradients of scale and zero_point; None: they have none.
        by_torch: does the forward in the place of ours.
    """
    try:
        facts = (x.shape, x.dtype, x.device), (scale.shape, scale.dtype, scale.device)
        shift = zero_point.shape, zero_point.dtype, zero_point.device
        steps = _steps(*facts, shift, axis, bounds, grad_factor is not None)
    except (RuntimeError, ValueError):  # errors of plans; a nested tensor, which has no shape
        return None
    if steps is None:
        return None
    numbers_are_learned = scale.requires_grad or zero_point.requires_grad
    if not (_is_grad_enabled() and (x.requires_grad or numbers_are_learned)):
        if by_torch is not None:
            return None
        return _forward(x, _as_blocks(scale, steps.blocks), _as_blocks(zero_point, steps.blocks), steps)
    if (numbers_are_learned and grad_factor is None) or (steps.dtype is _HALF and grad_factor is not None):
        return None  # torch refuses the gradient
    return _apply(x, scale, zero_point, steps, grad_factor, by_torch)  # type: ignore[no-any-return]


def _number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor of rank 0. Nobody writes to it."""
    return _cpu_number(value, dtype) if device.type == "cpu" else torch.full((), value, dtype=dtype, device=device)


@functools.lru_cache(maxsize=1024)
def _cpu_number(value: float, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # whose tensors could not be saved for a backward
        return torch.full((), value, dtype=dtype, device="cpu")


def run_per_tensor(x: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, use_our_forward: bool) -> Tensor | None:
    """``torch.fake_quantize_per_tensor_affine`` as an ordinary eager call; None: nothing was done, and torch does it."""
    if not (is_eager(x) and type(quant_min) is type(quant_max) is int):
        return None
    by_torch = None if use_our_forward else functools.partial(_per_tensor, x, scale, zero_point, quant_min, quant_max)
    if type(zero_point) is int and type(scale) in (float, int):
        if not quant_min <= zero_point <= quant_max:
            return None  # torch's error
        try:
            scale = _number(float(scale), torch.float32, x.device)
            zero_point = _number(zero_point, torch.int32, x.device)
        except (OverflowError, RuntimeError):  # numbers beyond these dtypes
            return None
    elif not (is_plain(scale) and is_plain(zero_point)):
        return None
    return _run(x, scale, zero_point, None, (quant_min, quant_max), None, by_torch)


def run_per_channel(
    x: Any, scale: Any, zero_point: Any, axis: Any, quant_min: Any, quant_max: Any, use_our_forward: bool
) -> Tensor | None:
    """``torch.fake_quantize_per_channel_affine`` as an ordinary eager call; None: nothing was done, and torch does it."""
    if not (is_eager(x) and type(quant_min) is type(quant_max) is int and type(axis) is int):
        return None
    if not (is_plain(scale) and is_plain(zero_point)):
        return None
    if zero_point.device.type == "cpu":  # elsewhere the check would wait for the device
        if not zero_point.numel():
            return None
        levels = zero_point.flatten().tolist()
        if not quant_min <= min(levels) <= max(levels) <= quant_max:
            return None  # torch's error
    inputs = x, scale, zero_point
    by_torch = None if use_our_forward else functools.partial(_per_channel, *inputs, axis, quant_min, quant_max)
    return _run(*inputs, axis, (quant_min, quant_max), None, by_torch)


def run_learnable_per_tensor(
    x: Any, scale: Any, zero_point: Any, quant_min: Any, quant_max: Any, grad_factor: Any, use_our_forward: bool
) -> Tensor | None:
    """``torch._fake_quantize_learnable_per_tensor_affine`` as an ordinary eager call; None: torch does it.

    torch's forward rounds and clamps the zero point, as the plans do with a floating one.
    """
    if not (is_eager(x) and type(quant_min) is type(quant_max) is int and type(grad_factor) in (float, int)):
        return None
    if not (is_plain(scale) and is_plain(zero_point)):
        return None
    inputs = x, scale, zero_point
    by_torch = None if use_our_forward else functools.partial(_learnable_per_tensor, *inputs, quant_min, quant_max)
    return _run(*inputs, None, (quant_min, quant_max), grad_factor, by_torch)


def run_learnable_per_channel(
    x: Any, scale: Any, zero_point: Any, axis: Any, quant_min: Any, quant_max: Any, grad_factor: Any, use_our_forward: bool
) -> Tensor | None:
    """``torch._fake_quantize_learnable_per_channel_affine`` as an ordinary eager call; None: torch does it."""
    if not (is_eager(x) and type(quant_min) is type(quant_max) is int and type(axis) is int):
        return None
    if not (is_plain(scale) and is_plain(zero_point) and type(grad_factor) in (float, int)):
        return None
    inputs = x, scale, zero_point
    by_torch = None if use_our_forward else functools.partial(_learnable_per_channel, *inputs, axis, quant_min, quant_max)
    return _run(*inputs, axis, (quant_min, quant_max), grad_factor, by_torch)
