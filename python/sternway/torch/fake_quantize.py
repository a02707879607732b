"""Fake quantisation with one scale for each token, and sternway's backward."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from .._arrays import device_of
from ..dequantize import fake_quantize_per_token_backward, fake_quantize_plan
from ..errors import make
from ._calls import FLOATS, materialized, require_tensors
from ._dispatch import Sentence, constant, device_to_ask, named, reach_plans, require, sentence
from ._operators import apply, by_formula, differentiable, exporting, in_front, way
from ._quantize import (
    batched,
    column,
    fake_gradients,
    kept_dtype,
    kept_scale,
    laid_out,
    learned,
    needs_gradient,
    padded,
    require_dtype,
    require_tokens,
    rounded,
)  # fmt: skip

_NAME = "fake_quantize_per_token"


@torch.library.custom_op("sternway::fake_quantize_per_token_backward", mutates_args=())
def _operator(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """fake_quantize_per_token_backward as an operator, for calls that torch must see."""
    return padded(*fake_quantize_per_token_backward(dy, x, scale, zero_point, quant_min=quant_min, quant_max=quant_max))


@_operator.register_fake
def _(dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return fake_gradients(dy, scale, zero_point)


def _levels(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> tuple[Tensor, ...]:
    """x / scale, the zero point, t, clamp(t) and the scale, in float32 or wider; see _limit for a scale of 0."""
    wide = torch.promote_types(x.dtype, torch.float32)
    s = column(scale, x).to(wide)
    zero = torch.zeros((), dtype=wide, device=x.device) if zero_point is None else column(zero_point, x).to(wide)
    if zero_point is not None and zero_point.is_floating_point():
        zero = zero.round().clamp(quant_min, quant_max)
    ratio = x.to(wide) / s.masked_fill(s == 0, 1.0)
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


def _formula(
    dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor, Tensor]:
    ratio, zero, t, level, s = _limit(x, _levels(x, scale, zero_point, quant_min, quant_max), (quant_min, quant_max))
    inside = (t >= quant_min) & (t <= quant_max)
    g = dy.to(ratio.dtype)
    steps = (level - zero).detach()  # rounding and clamping pass no gradient of their own
    dscale = (g * torch.where(inside, steps - ratio, steps)).sum(-1).view(scale.shape).to(scale.dtype)
    dzero = None
    if zero_point is not None and learned(zero_point):
        dzero = torch.where(inside, 0.0, -g * s).sum(-1).view(zero_point.shape).to(zero_point.dtype)
    return padded(torch.where(inside, dy, 0.0), dscale, dzero)


_operator.register_vmap(batched(_NAME, _operator))
_GRADIENT = differentiable(_operator, by_formula(_formula))


class _FakeQuantize(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> Tensor:
        _, zero, _, level, s = _levels(x, scale, zero_point, quant_min, quant_max)
        return rounded((level - zero) * s, x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, scale, zero_point, ctx.quant_min, ctx.quant_max = inputs
        ctx.save_for_backward(x, scale, zero_point)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        x, scale, zero_point = ctx.saved_tensors
        if dy is None:
            return None, None, None, None, None
        dy, x, scale = (materialized(t) for t in (dy, x, scale))
        zero_point = None if zero_point is None else materialized(zero_point)
        kept = kept_scale(scale, dy)
        if call := way(dy, _GRADIENT):
            dx, dscale, dzero_point = call(dy, x, kept, zero_point, ctx.quant_min, ctx.quant_max)
        else:
            like = [x, kept, zero_point] if zero_point is not None and learned(zero_point) else [x, kept]
            dx, dscale, dzero_point = fake_quantize_per_token_backward(
                dy, x, kept, zero_point, quant_min=ctx.quant_min, quant_max=ctx.quant_max,
                out=[torch.empty_like(t) for t in like],
            )  # fmt: skip
        return dx, rounded(dscale, scale.dtype), dzero_point if ctx.needs_input_grad[2] else None, None, None


@torch.library.custom_op("sternway::fake_quantize_per_token", mutates_args=())
def _exported(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> Tensor:
    """The forward as an operator, for torch.export. The gradient of torch.round in its place would be 0."""
    return laid_out(_FakeQuantize.forward(x, scale, zero_point, quant_min, quant_max), x)


@_exported.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@_exported.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return _exported(*in_front(info, in_dims, inputs)), 0


_exported.register_autograd(_FakeQuantize.backward, setup_context=_FakeQuantize.setup_context)


def _bound(bound: str, value: Any) -> int:
    """A bound as an int, as descriptors take it."""
    op = f"sternway.torch.{_NAME}"
    if type(value) is not int:
        try:
            value = operator.index(int(value) if isinstance(value, float) and value.is_integer() else value)
        except TypeError:
            raise make("invalid_problem", op, bound, "an integer", f"{value!r:.80}") from None
    if not -(2**63) <= value < 2**63:
        raise make("invalid_problem", op, bound, "an integer of 64 bits", f"{value!r:.80}")
    return value  # type: ignore[no-any-return]


@constant
def _probed(rank: int, dtype: torch.dtype, scale_dtype: torch.dtype, device: torch.device) -> Sentence | None:
    return sentence(fake_quantize_plan, (1,) * rank, dtype, 0, 1, scale_dtype, str(device))  # any bounds: no plan refuses some


def _ask(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> None:
    """Select the plan of the backward, or that of a small problem if the call is traced.

    Raises:
        Error: there is no plan.
    """
    scale_dtype = kept_dtype(scale, x.dtype)
    if reach_plans(x, scale, zero_point):
        fake_quantize_plan(tuple(x.shape), x.dtype, quant_min, quant_max, scale_dtype, device_of(x))
    else:
        require(_NAME, _probed(x.dim(), x.dtype, scale_dtype, device_to_ask(x)))


def fake_quantize_per_token(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, quant_min: int, quant_max: int
) -> Tensor:
    """Quantise and dequantise with one scale for each token, as quantisation-aware training does.

    ``t = round_half_even(x / scale) + zero_point``; the result is ``(clamp(t, quant_min, quant_max) - zero_point) * scale``. It
    is 0 if scale is 0, as for a row of padding. The gradients with respect to x, scale and a floating zero_point are those of
    :func:`sternway.fake_quantize_per_token_backward`, in one pass (learned step size quantisation, Esser et al. 2020,
    arXiv:1902.08153).

    Args:
        x: [..., D]; float32, float64, float16 or bfloat16.
        scale: [...] or [..., 1], floating.
        zero_point: [...] or [..., 1], integer or floating (first rounded and clamped); None: 0.
        quant_min, quant_max: bounds of the quantised values, integers, inclusive.

    Returns:
        [..., D] in x's dtype; formed in float32 (float64 for float64) and rounded once.

    Raises:
        InvalidProblemError: a scale or zero_point of another shape; bounds that are no integers, or quant_min above quant_max.
        UnsupportedError: x, a scale or zero_point of another dtype; a rank, memory layout or device without a kernel.
        TypeError: an operand that is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> x, scale = torch.tensor([[0.6, 3.8, -100.0], [0.0, 0.0, 0.0]], requires_grad=True), torch.tensor([0.5, 0.0])
        >>> y = st.fake_quantize_per_token(x, scale, quant_min=-8, quant_max=7)
        >>> y.tolist()
        [[0.5, 3.5, -4.0], [0.0, 0.0, 0.0]]
        >>> y.sum().backward()
        >>> x.grad.tolist()  # 3.8 and -100 are outside the range
        [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    require_tensors(_NAME, x=x, scale=scale)
    require_dtype(_NAME, "x", x.dtype, FLOATS)
    require_tokens(_NAME, "x", x, scale, zero_point)
    quant_min, quant_max = _bound("quant_min", quant_min), _bound("quant_max", quant_max)
    if quant_min > quant_max:
        got = f"{quant_min} and {quant_max}"
        raise make("invalid_problem", f"sternway.torch.{_NAME}", "quant_min", "at most quant_max", got)
    inputs = x, scale, zero_point
    named(f"sternway.torch.{_NAME}", {"dy": "x"}, _ask, *inputs, quant_min, quant_max)
    if exporting() and needs_gradient(*inputs):
        return _exported(*inputs, quant_min, quant_max)  # type: ignore[no-any-return]
    return apply(_FakeQuantize, *inputs, quant_min, quant_max)  # type: ignore[no-any-return]
