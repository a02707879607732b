"""Per-token dequantisation and fake quantisation with sternway's backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arrays import dtype_name
from ..dequantize import dequantize_per_token_backward, fake_quantize_per_token_backward
from ..errors import make
from ._calls import FLOATS, by_dispatcher, refuse_vmap, require_tensors

_INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


def _require_tokens(name: str, x: Tensor, scale: Tensor, zero_point: Tensor | None) -> None:
    """Raise what the backward would for a scale or a zero point that are not a number for each token of x."""
    tokens = list(x.shape[:-1])
    for operand, value, dtypes in (("scale", scale, FLOATS), ("zero_point", zero_point, FLOATS + _INTEGERS)):
        if value is None:
            continue
        require_tensors(name, **{operand: value})
        op, shape = f"sternway.torch.{name}", list(value.shape)
        if value.dtype not in dtypes:
            raise make("unsupported", op, operand, f"one of {', '.join(map(dtype_name, dtypes))}", dtype_name(value.dtype))
        if shape not in (tokens, [*tokens, 1]):
            raise make("invalid_problem", op, operand, f"of shape {tokens} or {[*tokens, 1]}", str(shape))


def _column(value: Tensor, like: Tensor) -> Tensor:
    """A value for each token as [..., 1], to broadcast along the last dimension."""
    return value if value.dim() == like.dim() else value.unsqueeze(-1)


def _rounded(y: Tensor, dtype: torch.dtype) -> Tensor:
    """y in a dtype. torch 2.11 compiles a forward that ends in a conversion to its own dtype to a gradient of zero."""
    return y if y.dtype == dtype else y.to(dtype)


def _learned(zero_point: Tensor | None) -> bool:
    return zero_point is not None and zero_point.is_floating_point()


def _kept(scale: Tensor, dy: Tensor) -> Tensor:
    """scale in a dtype that the kernels read beside dy."""
    return scale if scale.dtype in (dy.dtype, torch.float32) else scale.to(dy.dtype)


@torch.library.custom_op("sternway::dequantize_per_token_backward", mutates_args=())
def _dequantize_operator(dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None) -> list[Tensor]:
    """dequantize_per_token_backward as torch.compile sees it; eager calls go past it."""
    return list(dequantize_per_token_backward(dy, scale, q=q, zero_point=zero_point))


@_dequantize_operator.register_fake
def _(dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None) -> list[Tensor]:
    learned = [zero_point.new_empty(zero_point.shape)] if zero_point is not None and _learned(zero_point) else []
    return [torch.empty_like(dy), scale.new_empty(scale.shape), *learned]


@torch.library.custom_op("sternway::fake_quantize_per_token_backward", mutates_args=())
def _fake_quantize_operator(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int,
    quant_max: int,
) -> list[Tensor]:
    """fake_quantize_per_token_backward as torch.compile sees it; eager calls go past it."""
    grads = fake_quantize_per_token_backward(dy, x, scale, zero_point, quant_min=quant_min, quant_max=quant_max)
    return [g for g in grads if g is not None]


@_fake_quantize_operator.register_fake
def _(dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> list[Tensor]:
    learned = [zero_point.new_empty(zero_point.shape)] if zero_point is not None and _learned(zero_point) else []
    return [torch.empty_like(dy), scale.new_empty(scale.shape), *learned]


class _Dequantize(torch.autograd.Function):
    @staticmethod
    def forward(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
        s = _column(scale, q).to(torch.promote_types(dtype, torch.float32))
        shifted = q if zero_point is None else q.to(s.dtype) - _column(zero_point, q).to(s.dtype)
        return _rounded(shifted * s, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, scale, zero_point, _ = inputs
        ctx.save_for_backward(q, scale, zero_point)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        q, scale, zero_point = ctx.saved_tensors
        if dy is None:
            return None, None, None, None
        dispatched = by_dispatcher(dy)
        if torch.is_grad_enabled() and not dispatched:  # create_graph=True: the gradients in torch operations
            wide = torch.promote_types(dy.dtype, torch.float32)
            zero = 0 if zero_point is None else _column(zero_point, q).to(wide)
            s, g = _column(scale, q).to(wide), dy.to(wide)
            dscale = (g * (q.to(wide) - zero)).sum(-1).view(scale.shape).to(scale.dtype)
            dzero = (-s * g).sum(-1).view(zero_point.shape).to(zero_point.dtype) if ctx.needs_input_grad[2] else None
            return None, dscale, dzero, None
        kept = _kept(scale, dy)
        grads = (
            _dequantize_operator(dy, kept, q, zero_point)
            if dispatched
            else dequantize_per_token_backward(dy.resolve_neg(), kept, q=q, zero_point=zero_point)
        )
        dzero_point = grads[2] if ctx.needs_input_grad[2] else None
        return None, _rounded(grads[1], scale.dtype), dzero_point, None

    vmap = refuse_vmap("dequantize_per_token")


def dequantize_per_token(
    q: Tensor, scale: Tensor, zero_point: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """``(q - zero_point) * scale`` with a scale for each token, that is, each index of the leading dimensions.

    Gradients flow to scale and to a floating zero_point, both summed in one pass
    (:func:`sternway.dequantize_per_token_backward`). They can be differentiated again.

    Args:
        q: [..., D], int8 or uint8.
        scale: [...] or [..., 1]; float32, float64, float16 or bfloat16.
        zero_point: [...] or [..., 1], integer or floating; None: 0.
        dtype: of the result; None: scale's.

    Returns:
        [..., D]. The product is formed in float32 (float64 for float64) and rounded once.

    Raises:
        InvalidProblemError: a scale or zero_point of another shape.
        UnsupportedError: q, scale or zero_point of another dtype.
    """
    name = "dequantize_per_token"
    require_tensors(name, q=q, scale=scale)
    if q.dtype not in (torch.int8, torch.uint8):
        raise make("unsupported", f"sternway.torch.{name}", "q", "int8 or uint8", dtype_name(q.dtype))
    _require_tokens(name, q, scale, zero_point)
    return _Dequantize.apply(q, scale, zero_point, dtype or scale.dtype)  # type: ignore[no-any-return]


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> Tensor:
        _, zero, _, level, s = _levels(x, scale, zero_point, quant_min, quant_max)
        return _rounded((level - zero) * s, x.dtype)

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
        dispatched = by_dispatcher(dy)
        if torch.is_grad_enabled() and not dispatched:  # create_graph=True: the gradients in torch operations
            dx, dscale, dzero_point = _differentiable(dy, x, scale, zero_point, ctx.quant_min, ctx.quant_max)
        elif dispatched:
            dx, dscale, *rest = _fake_quantize_operator(dy, x, _kept(scale, dy), zero_point, ctx.quant_min, ctx.quant_max)
            dzero_point = rest[0] if rest else None
        else:
            kept, zero = _kept(scale, dy), [zero_point] if zero_point is not None and _learned(zero_point) else []
            dx, dscale, dzero_point = fake_quantize_per_token_backward(
                dy.resolve_neg(), x, kept, zero_point, quant_min=ctx.quant_min, quant_max=ctx.quant_max,
                out=[torch.empty_like(t) for t in (x, kept, *zero)],
            )  # fmt: skip
        return dx, _rounded(dscale, scale.dtype), dzero_point if ctx.needs_input_grad[2] else None, None, None

    vmap = refuse_vmap("fake_quantize_per_token")


def _levels(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> tuple[Tensor, ...]:
    """x / scale, the zero point, t, clamp(t) and the scale, in float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    s = _column(scale, x).to(wide)
    zero = torch.zeros((), dtype=wide, device=x.device) if zero_point is None else _column(zero_point, x).to(wide)
    if zero_point is not None and zero_point.is_floating_point():
        zero = zero.round().clamp(quant_min, quant_max)
    ratio = x.to(wide) / s
    t = ratio.round() + zero
    return ratio, zero, t, t.clamp(quant_min, quant_max), s


def _differentiable(
    dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    ratio, zero, t, level, s = _levels(x, scale, zero_point, quant_min, quant_max)
    inside = (t >= quant_min) & (t <= quant_max)
    g = dy.to(ratio.dtype)
    steps = (level - zero).detach()  # rounding and clamping pass no gradient of their own
    dscale = (g * torch.where(inside, steps - ratio, steps)).sum(-1).view(scale.shape)
    dzero = None
    if zero_point is not None and zero_point.is_floating_point():
        dzero = torch.where(inside, 0.0, -g * s).sum(-1).view(zero_point.shape).to(zero_point.dtype)
    return torch.where(inside, dy, 0.0), dscale, dzero


def fake_quantize_per_token(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, quant_min: int, quant_max: int
) -> Tensor:
    """Quantise and dequantise with a scale for each token, what quantisation-aware training runs.

    ``t = round_half_even(x / scale) + zero_point``; the result is ``(clamp(t, quant_min, quant_max) - zero_point) * scale``.
    The gradients to x, scale and a floating zero_point are those of
    :func:`sternway.fake_quantize_per_token_backward`, in one pass.

    Args:
        x: [..., D]; float32, float64, float16 or bfloat16.
        scale: [...] or [..., 1], floating.
        zero_point: [...] or [..., 1], integer or floating (rounded and clamped first); None: 0.
        quant_min, quant_max: bounds of the quantised values, inclusive.

    Returns:
        [..., D] in x's dtype; formed in float32 (float64 for float64) and rounded once.

    Raises:
        InvalidProblemError: a scale or zero_point of another shape; bounds that are no integers, or quant_min above quant_max.
        UnsupportedError: a scale or zero_point of another dtype.
    """
    name = "fake_quantize_per_token"
    require_tensors(name, x=x, scale=scale)
    _require_tokens(name, x, scale, zero_point)
    for bound, value in (("quant_min", quant_min), ("quant_max", quant_max)):
        if not isinstance(value, int):
            raise make("invalid_problem", f"sternway.torch.{name}", bound, "an integer", str(value))
    if quant_min > quant_max:
        got = f"{quant_min} and {quant_max}"
        raise make("invalid_problem", f"sternway.torch.{name}", "quant_min", "at most quant_max", got)
    return _FakeQuantize.apply(x, scale, zero_point, quant_min, quant_max)  # type: ignore[no-any-return]
