"""Per-token dequantisation and fake quantisation with sternway's backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._arrays import dtype_name
from ..dequantize import dequantize_per_token_backward, fake_quantize_per_token_backward
from ..errors import make
from ._calls import FLOATS, require_tensors
from ._operators import apply, by_formula, differentiable, in_front, way

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


def _three(dx: Tensor, dscale: Tensor, dzero_point: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The results of an operator, whose number is fixed: a gradient that is not there is empty."""
    return dx, dscale, dx.new_empty(0) if dzero_point is None else dzero_point


def _fake(dy: Tensor, scale: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    like = (dy, scale) if zero_point is None or not _learned(zero_point) else (dy, scale, zero_point)
    return _three(*map(torch.empty_like, like))


def _batched(operator: Any) -> Callable[..., Any]:
    """The vmap rule of both operators: the batch is one more dimension of tokens."""

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        dx, dscale, dzero_point = operator(*in_front(info, in_dims, inputs))
        zero_point = inputs[3]
        return (dx, dscale, dzero_point if _learned(zero_point) else dzero_point.expand(info.batch_size, 0)), (0, 0, 0)

    return rule


@torch.library.custom_op("sternway::dequantize_per_token_backward", mutates_args=())
def _dequantize_operator(dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """dequantize_per_token_backward where torch has to see it; others call it past torch."""
    return _three(*dequantize_per_token_backward(dy, scale, q=q, zero_point=zero_point))


@_dequantize_operator.register_fake
def _(dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return _fake(dy, scale, zero_point)


def _dequantize_formula(dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(dy.dtype, torch.float32)
    zero = 0 if zero_point is None else _column(zero_point, q).to(wide)
    s, g = _column(scale, q).to(wide), dy.to(wide)
    dscale = (g * (q.to(wide) - zero)).sum(-1).view(scale.shape).to(scale.dtype)
    dzero = None
    if zero_point is not None and _learned(zero_point):
        dzero = (-s * g).sum(-1).view(zero_point.shape).to(zero_point.dtype)
    return _three((g * s).to(dy.dtype), dscale, dzero)


_dequantize_operator.register_vmap(_batched(_dequantize_operator))
_DEQUANTIZE_GRADIENT = differentiable(_dequantize_operator, by_formula(_dequantize_formula))


class _Dequantize(torch.autograd.Function):
    generate_vmap_rule = True

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
        kept = _kept(scale, dy)
        if call := way(dy, _DEQUANTIZE_GRADIENT):
            grads = call(dy, kept, q, zero_point)
        else:
            grads = dequantize_per_token_backward(dy.resolve_neg(), kept, q=q, zero_point=zero_point)
        dzero_point = grads[2] if ctx.needs_input_grad[2] else None
        return None, _rounded(grads[1], scale.dtype), dzero_point, None


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
    return apply(_Dequantize, q, scale, zero_point, dtype or scale.dtype)  # type: ignore[no-any-return]


@torch.library.custom_op("sternway::fake_quantize_per_token_backward", mutates_args=())
def _fake_quantize_operator(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """fake_quantize_per_token_backward where torch has to see it; others call it past torch."""
    return _three(*fake_quantize_per_token_backward(dy, x, scale, zero_point, quant_min=quant_min, quant_max=quant_max))


@_fake_quantize_operator.register_fake
def _(dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _fake(dy, scale, zero_point)


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


def _fake_quantize_formula(
    dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor, Tensor]:
    ratio, zero, t, level, s = _levels(x, scale, zero_point, quant_min, quant_max)
    inside = (t >= quant_min) & (t <= quant_max)
    g = dy.to(ratio.dtype)
    steps = (level - zero).detach()  # rounding and clamping pass no gradient of their own
    dscale = (g * torch.where(inside, steps - ratio, steps)).sum(-1).view(scale.shape).to(scale.dtype)
    dzero = None
    if zero_point is not None and _learned(zero_point):
        dzero = torch.where(inside, 0.0, -g * s).sum(-1).view(zero_point.shape).to(zero_point.dtype)
    return _three(torch.where(inside, dy, 0.0), dscale, dzero)


_fake_quantize_operator.register_vmap(_batched(_fake_quantize_operator))
_FAKE_QUANTIZE_GRADIENT = differentiable(_fake_quantize_operator, by_formula(_fake_quantize_formula))


class _FakeQuantize(torch.autograd.Function):
    generate_vmap_rule = True

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
        kept = _kept(scale, dy)
        if call := way(dy, _FAKE_QUANTIZE_GRADIENT):
            dx, dscale, dzero_point = call(dy, x, kept, zero_point, ctx.quant_min, ctx.quant_max)
        else:
            like = [x, kept, zero_point] if _learned(zero_point) else [x, kept]
            dx, dscale, dzero_point = fake_quantize_per_token_backward(
                dy.resolve_neg(), x, kept, zero_point, quant_min=ctx.quant_min, quant_max=ctx.quant_max,
                out=[torch.empty_like(t) for t in like],
            )  # fmt: skip
        return dx, _rounded(dscale, scale.dtype), dzero_point if ctx.needs_input_grad[2] else None, None, None


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
    return apply(_FakeQuantize, x, scale, zero_point, quant_min, quant_max)  # type: ignore[no-any-return]
