"""The autograd functions of dequantization, and the selection of plans before the forward runs."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_name, device_of
from ..._dequantize import dequantize_plan
from ..._dequantize_backward import dequantize_backward, dequantize_backward_plan, dequantize_per_token_backward
from ..._plan import Plan
from ..._quantize import QDTYPES, adjacent, unpacked_shape
from . import quantize
from .calls import resolve
from .constants import constant
from .dispatch import ErrorParts, device_to_ask, require, run_operator, runs_plan_directly, selection_error
from .eager import apply_in_c, is_eager, is_plain, needs_no_graph
from .operators import batch_first, by_formula, differentiable, is_distributed, is_exporting, recorded_call, traceable

NAME = "dequantize"
"""Of the operator of the forward. Its scale is for blocks or for tokens, whichever its shape says."""
DTYPES = tuple(getattr(torch, name) for name in QDTYPES)
"""The dtypes of tensors of quantized values."""


def _unpacked(q: Tensor, packed: str | None) -> Tensor:
    """Quantized values as a tensor that has one in each element. packed: their dtype, if q has two in a byte."""
    if packed is None:
        return q
    values = torch.stack((q & 15, q >> 4), -1).flatten(-2)
    return (values ^ 8).to(torch.int8) - 8 if packed == "int4" else values


def _backward(dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None, packed: str | None) -> Any:
    """The gradients by our kernels. packed: as for ``_unpacked``."""
    if packed is None and quantize.is_per_token(dy, scale):
        return dequantize_per_token_backward(dy, scale, q=q, zero_point=zero_point)
    of_blocks: Any = dequantize_backward
    return of_blocks(dy, scale, q=q, zero_point=zero_point, qdtype=packed)


@torch.library.custom_op("sternway::dequantize_backward", mutates_args=())
def _operator(
    dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None, qdtype: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients as an operator, for calls that torch must see. qdtype: None, or a packed dtype."""
    return quantize.padded(*_backward(dy, scale, q, zero_point, qdtype))


@_operator.register_fake
def _(
    dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None, qdtype: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    return quantize.fake_gradients(dy, scale, zero_point)


def _formula(
    dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None, packed: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    q, wide = _unpacked(q, packed), torch.promote_types(dy.dtype, torch.float32)
    zero = 0 if zero_point is None else quantize.expanded(zero_point, q).to(wide)
    s, g = quantize.expanded(scale, q).to(wide), dy.to(wide)
    dscale = quantize.block_sums(g * (q.to(wide) - zero), scale)
    dzero = None
    if zero_point is not None and quantize.learned(zero_point):
        dzero = quantize.block_sums(-s * g, zero_point)
    return quantize.padded((g * s).to(dy.dtype), dscale, dzero)


_operator.register_vmap(quantize.batched(NAME, _operator, 1))
_GRADIENT = differentiable(_operator, by_formula(_formula, "dequantize_backward"))


def by_torch(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype, packed: str | None = None) -> Tensor:
    """The forward in torch's operations. packed: as for ``_unpacked``."""
    q = _unpacked(q, packed)
    s = quantize.expanded(scale, q).to(torch.promote_types(dtype, torch.float32))
    values = q.to(s.dtype) if q.is_floating_point() or zero_point is not None else q  # a product widens integers alone
    shifted = values if zero_point is None else values - quantize.expanded(zero_point, q).to(s.dtype)
    return quantize.rounded(shifted * s, dtype)


def _gradients(
    dy: Tensor, q: Tensor, scale: Tensor, zero_point: Tensor | None, needs: tuple[bool, ...], packed: str | None
) -> tuple[Tensor | None, ...]:
    """The gradients of q (None), scale and zero_point, with the operations on dy recorded if they must be.

    packed: as for ``_unpacked``.
    """
    dy, q, scale = (resolve(t) for t in (dy, q, scale))
    zero_point = None if zero_point is None else resolve(zero_point)
    factor = quantize.kernel_scale(scale, dy)
    if call := recorded_call(dy, _GRADIENT):
        grads = call(dy, factor, q, zero_point, packed)
    else:
        grads = _backward(dy, factor, q, zero_point, packed)
    return None, quantize.rounded(grads[1], scale.dtype), grads[2] if needs[2] else None


class Steps(NamedTuple):
    """How a dequantization of tensors of some shapes is done, which is decided before anything runs."""

    dtype: torch.dtype
    forward: Plan[Any]
    backward: Plan[Any]
    packed: str | None
    """The dtype of the quantized values, if it is a packed one."""
    shape: tuple[int, ...] | None
    """Of the result of packed values; None: it is laid out as q."""

    def result(self, q: Tensor) -> Tensor:
        """Memory for the result."""
        if self.shape is None:
            return torch.empty_like(q, dtype=self.dtype)
        return q.new_empty(self.shape, dtype=self.dtype)


@functools.lru_cache(maxsize=1024)
def _steps(
    shape: torch.Size,
    qdtype: torch.dtype,
    scale: quantize.Facts,
    zero_point: quantize.Facts | None,
    dtype: torch.dtype,
    per_token: bool,
    packed: str | None,
) -> Steps | None:
    """The steps of a dequantization, from a cache; None: it takes the general way.

    Args:
        shape, qdtype: of q.
        dtype: of the result.
        per_token: whether there is one number for each token, otherwise for each block.
        packed: the dtype of the quantized values, if it is a packed one.

    Raises:
        Error: there is no plan.
    """
    values = unpacked_shape(NAME, shape, packed)
    if qdtype not in DTYPES or not quantize.fits(values, dtype, scale, zero_point, per_token):
        return None
    scale_shape, scale_dtype, device = scale
    blocks = None if per_token else tuple(scale_shape)
    problem = values, dtype, blocks, scale_dtype, packed or qdtype, device_name(device)
    plans = dequantize_plan(*problem), dequantize_backward_plan(*problem)
    return Steps(dtype, *plans, packed, None if packed is None else values)


def run_eager(q: Any, scale: Any, zero_point: Any, dtype: Any, per_token: bool, packed: str | None = None) -> Tensor | None:
    """Dequantize as an ordinary eager call; None: nothing was done, and the call takes the general way or is wrong.

    Args:
        per_token: whether there is one number for each token, otherwise for each block.
        packed: the dtype of the quantized values, if it is a packed one.
    """
    if not (is_eager(q) and is_plain(scale) and (zero_point is None or is_plain(zero_point)) and q.device == scale.device):
        return None
    learned, shift = scale.requires_grad, None
    try:
        if zero_point is not None:
            learned = learned or zero_point.requires_grad
            shift = zero_point.shape, zero_point.dtype, zero_point.device
        factor = scale.shape, scale.dtype, scale.device
        steps = _steps(q.shape, q.dtype, factor, shift, scale.dtype if dtype is None else dtype, per_token, packed)
    except (RuntimeError, TypeError, ValueError):  # errors of plans; a nested tensor; a dtype that cannot be hashed
        return None
    if steps is None:
        return None
    if packed is not None:
        q = adjacent(q)
    if learned:
        return _apply(q, scale, zero_point, steps)  # type: ignore[no-any-return]
    y = steps.result(q)
    return quantize.run_forward(steps.forward, {"q": q, "scale": scale, "zero_point": zero_point, "y": y})


class _DequantizeEager(torch.autograd.Function):
    """The autograd function of ordinary eager calls."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, scale: Tensor, zero_point: Tensor | None, steps: Steps) -> Tensor:
        ctx.steps = steps
        ctx.save_for_backward(q, scale, zero_point)
        ctx.set_materialize_grads(False)
        y = steps.result(q)
        return quantize.run_forward(steps.forward, {"q": q, "scale": scale, "zero_point": zero_point, "y": y})

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None
        steps: Steps = ctx.steps
        q, scale, zero_point = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if needs_no_graph(dy) and dy.dtype is steps.dtype:
            grads = quantize.empty_sums(scale if needs[1] else None, zero_point if needs[2] else None)
            if steps.backward._run_plain({"dy": dy, "scale": scale, "q": q, "zero_point": zero_point, **grads}):
                return None, grads["dscale"], grads["dzero_point"], None
        return *_gradients(dy, q, scale, zero_point, needs, steps.packed), None


_apply = apply_in_c(_DequantizeEager)


class _Dequantize(torch.autograd.Function):
    """The autograd function of all other calls."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype, packed: str | None) -> Tensor:
        return by_torch(q, scale, zero_point, dtype, packed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, scale, zero_point, _, ctx.packed = inputs
        ctx.save_for_backward(q, scale, zero_point)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        q, scale, zero_point = ctx.saved_tensors
        if dy is None:
            return (None,) * 5
        return *_gradients(dy, q, scale, zero_point, ctx.needs_input_grad, ctx.packed), None, None


_dequantize = traceable(_Dequantize)


@torch.library.custom_op("sternway::dequantize", mutates_args=())
def _exported(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype, qdtype: str | None = None) -> Tensor:
    """The forward as an operator, for DTensors, and for torch.export, which drops the backward of an autograd.Function.

    qdtype: None, or a packed dtype.
    """
    y = by_torch(q, scale, zero_point, dtype, qdtype)
    return quantize.laid_out(y, q) if qdtype is None else y.contiguous()


@_exported.register_fake
def _(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype, qdtype: str | None = None) -> Tensor:
    if qdtype is None:
        return torch.empty_like(q, dtype=dtype)
    return q.new_empty((*q.shape[:-1], 2 * q.shape[-1]), dtype=dtype)


@_exported.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return _exported(*quantize.ranked(batch_first(info, in_dims, inputs))), 0


_exported.register_autograd(_Dequantize.backward, setup_context=_Dequantize.setup_context)


@constant
def _probed(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    blocks: tuple[int, ...] | None,
    scale_dtype: torch.dtype,
    qdtype: torch.dtype | str,
    device: torch.device,
) -> ErrorParts | None:
    return selection_error(dequantize_backward_plan, shape, dtype, blocks, scale_dtype, qdtype, str(device))


def select_or_raise(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype, packed: str | None) -> None:
    """Select the plan of the backward, or that of a small problem if the call is traced.

    packed: the dtype of the quantized values, if it is a packed one.

    Raises:
        Error: there is no plan.
    """
    scale_dtype, qdtype = quantize.kernel_scale_dtype(scale, dtype), packed or q.dtype
    if runs_plan_directly(q, scale, zero_point):
        blocks = quantize.blocks_of(q, scale) if packed is None else tuple(scale.shape)
        dequantize_backward_plan(unpacked_shape(NAME, q.shape, packed), dtype, blocks, scale_dtype, qdtype, device_of(q))
    else:
        values = None if packed is None else unpacked_shape(NAME, q.shape, packed)
        shape, blocks = quantize.small_problem(q, scale, values)
        if values and shape[-1] == 1:  # and packed values fill bytes
            shape = *shape[:-1], 2
        require(NAME, _probed(shape, dtype, blocks, scale_dtype, qdtype, device_to_ask(q)))


def run_general(
    op: str, q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype, packed: str | None = None
) -> Tensor:
    """Dequantize in the general way; ``select_or_raise`` found the plans.

    Args:
        op: the drop-in, for errors.
        packed: the dtype of the quantized values, if it is a packed one.
    """
    inputs = q, scale, zero_point, dtype, packed
    if (is_exporting() and quantize.needs_gradient(scale, zero_point)) or is_distributed(*inputs):
        return run_operator(NAME, op, ("q", "scale", "zero_point"), *inputs)  # type: ignore[no-any-return]
    return _dequantize(*inputs)  # type: ignore[no-any-return]
