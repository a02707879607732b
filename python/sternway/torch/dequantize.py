"""Per-token dequantisation and fake quantisation with sternway's backward."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._arrays import device_of, dtype_name
from ..dequantize import (
    dequantize_per_token_backward,
    dequantize_plan,
    fake_quantize_per_token_backward,
    fake_quantize_plan,
)
from ..errors import Error, make, renamed
from ._calls import FLOATS, materialized, require_tensors
from ._operators import apply, by_formula, differentiable, exporting, in_front, intercepted, way

_INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


def _require_dtype(name: str, operand: str, dtype: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    if dtype not in dtypes:
        wanted = f"one of {', '.join(map(dtype_name, dtypes))}"
        got = dtype_name(dtype) if isinstance(dtype, torch.dtype) else f"{dtype!r:.80}"
        raise make("unsupported", f"sternway.torch.{name}", operand, wanted, got)


def _require_tokens(name: str, x: Tensor, scale: Tensor, zero_point: Tensor | None) -> None:
    """Raise the error of the backward for a scale or zero point that has not one number for each token of x."""
    tokens = list(x.shape[:-1])
    for operand, value, dtypes in (("scale", scale, FLOATS), ("zero_point", zero_point, FLOATS + _INTEGERS)):
        if value is None:
            continue
        require_tensors(name, **{operand: value})
        op, shape = f"sternway.torch.{name}", list(value.shape)
        _require_dtype(name, operand, value.dtype, dtypes)
        if shape not in (tokens, [*tokens, 1]):
            raise make("invalid_problem", op, operand, f"of shape {tokens} or {[*tokens, 1]}", str(shape))


def _require_plan(
    name: str, x: str, data: Tensor, inputs: tuple[Tensor | None, ...], select: Callable[..., Any], *how: Any
) -> None:
    """If there will be a backward, raise the error of selecting its plan. A traced call selects no plan."""
    if torch.compiler.is_compiling() or intercepted(data) or not _needs_gradient(*inputs):
        return
    try:
        select(tuple(data.shape), *how, device_of(data))
    except Error as error:
        raise renamed(error, f"sternway.torch.{name}", {"dy": x}) from None


def _needs_gradient(*inputs: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


def _column(value: Tensor, like: Tensor) -> Tensor:
    """A value for each token as [..., 1], to broadcast along the last dimension."""
    return value if value.dim() == like.dim() else value.unsqueeze(-1)


def _rounded(y: Tensor, dtype: torch.dtype) -> Tensor:
    """y in a dtype. torch 2.11 compiles a forward that ends in a conversion to its own dtype to a zero gradient."""
    return y if y.dtype == dtype else y.to(dtype)


def _learned(zero_point: Tensor | None) -> bool:
    return zero_point is not None and zero_point.is_floating_point()


def _kept_dtype(scale: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which the kernels read a scale: its own, or the dtype in which the forward reads it."""
    return scale.dtype if scale.dtype in (dtype, torch.float32) else torch.promote_types(dtype, torch.float32)


def _kept(scale: Tensor, dy: Tensor) -> Tensor:
    return _rounded(scale, _kept_dtype(scale, dy.dtype))


def _three(dx: Tensor, dscale: Tensor, dzero_point: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The results of an operator, whose number is fixed: an absent gradient is an empty tensor."""
    return dx, dscale, dx.new_empty(0) if dzero_point is None else dzero_point


def _fake(dy: Tensor, scale: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    like = (dy, scale) if zero_point is None or not _learned(zero_point) else (dy, scale, zero_point)
    return _three(*map(torch.empty_like, like))


def _laid_out(y: Tensor, like: Tensor) -> Tensor:
    """y with the strides that an operator promises."""
    promised = torch.empty_like(like, dtype=y.dtype)
    return y if y.stride() == promised.stride() else promised.copy_(y)


def _batched(operator: Any) -> Callable[..., Any]:
    """The vmap rule of both operators: the batch is one more dimension of tokens."""

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        dx, dscale, dzero_point = operator(*in_front(info, in_dims, inputs))
        zero_point = inputs[3]
        return (dx, dscale, dzero_point if _learned(zero_point) else dzero_point.expand(info.batch_size, 0)), (0, 0, 0)

    return rule


@torch.library.custom_op("sternway::dequantize_per_token_backward", mutates_args=())
def _dequantize_operator(dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """dequantize_per_token_backward as an operator, for calls that torch must see."""
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
        dy, q, scale = (materialized(t) for t in (dy, q, scale))
        zero_point = None if zero_point is None else materialized(zero_point)
        kept = _kept(scale, dy)
        if call := way(dy, _DEQUANTIZE_GRADIENT):
            grads = call(dy, kept, q, zero_point)
        else:
            grads = dequantize_per_token_backward(dy, kept, q=q, zero_point=zero_point)
        dzero_point = grads[2] if ctx.needs_input_grad[2] else None
        return None, _rounded(grads[1], scale.dtype), dzero_point, None


@torch.library.custom_op("sternway::dequantize_per_token", mutates_args=())
def _dequantize_forward(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The forward as an operator, for torch.export, which drops the backward of an autograd.Function."""
    return _laid_out(_Dequantize.forward(q, scale, zero_point, dtype), q)


@_dequantize_forward.register_fake
def _(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(q, dtype=dtype)


@_dequantize_forward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return _dequantize_forward(*in_front(info, in_dims, inputs)), 0


_dequantize_forward.register_autograd(_Dequantize.backward, setup_context=_Dequantize.setup_context)


def dequantize_per_token(
    q: Tensor, scale: Tensor, zero_point: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """``(q - zero_point) * scale`` with one scale for each token, which is one index of the leading dimensions.

    Gradients flow to scale and to a floating zero_point, both summed in one pass
    (:func:`sternway.dequantize_per_token_backward`). They can be differentiated again.

    Args:
        q: [..., D], int8 or uint8.
        scale: [...] or [..., 1]; float32, float64, float16 or bfloat16.
        zero_point: [...] or [..., 1], integer or floating; None: 0.
        dtype: the dtype of the result: float32, float64, float16 or bfloat16; None: scale's dtype.

    Returns:
        [..., D]. The product is formed in float32 (float64 for float64) and rounded once.

    Raises:
        InvalidProblemError: a scale or zero_point of another shape.
        UnsupportedError: q, scale, zero_point or the result of another dtype; if a gradient will be needed, more than 8
            dimensions, or a device without a kernel.
        TypeError: an operand that is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> q, scale = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8), torch.tensor([0.5, 2.0], requires_grad=True)
        >>> y = st.dequantize_per_token(q, scale)
        >>> y.tolist()
        [[0.5, -1.0], [6.0, 8.0]]
        >>> y.sum().backward()
        >>> scale.grad
        tensor([-1.,  7.])
    """
    name = "dequantize_per_token"
    require_tensors(name, q=q, scale=scale)
    if q.dtype not in (torch.int8, torch.uint8):
        raise make("unsupported", f"sternway.torch.{name}", "q", "int8 or uint8", dtype_name(q.dtype))
    _require_tokens(name, q, scale, zero_point)
    result = scale.dtype if dtype is None else dtype
    _require_dtype(name, "dtype", result, FLOATS)
    _require_plan(name, "q", q, (scale, zero_point), dequantize_plan, result, q.dtype, _kept_dtype(scale, result))
    if exporting() and _needs_gradient(scale, zero_point):
        return _dequantize_forward(q, scale, zero_point, result)  # type: ignore[no-any-return]
    return apply(_Dequantize, q, scale, zero_point, result)  # type: ignore[no-any-return]


@torch.library.custom_op("sternway::fake_quantize_per_token_backward", mutates_args=())
def _fake_quantize_operator(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    quant_min: int,
    quant_max: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """fake_quantize_per_token_backward as an operator, for calls that torch must see."""
    return _three(*fake_quantize_per_token_backward(dy, x, scale, zero_point, quant_min=quant_min, quant_max=quant_max))


@_fake_quantize_operator.register_fake
def _(dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _fake(dy, scale, zero_point)


def _levels(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> tuple[Tensor, ...]:
    """x / scale, the zero point, t, clamp(t) and the scale, in float32 or wider; see _limit for a scale of 0."""
    wide = torch.promote_types(x.dtype, torch.float32)
    s = _column(scale, x).to(wide)
    zero = torch.zeros((), dtype=wide, device=x.device) if zero_point is None else _column(zero_point, x).to(wide)
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


def _fake_quantize_formula(
    dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor, Tensor]:
    ratio, zero, t, level, s = _limit(x, _levels(x, scale, zero_point, quant_min, quant_max), (quant_min, quant_max))
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
        dy, x, scale = (materialized(t) for t in (dy, x, scale))
        zero_point = None if zero_point is None else materialized(zero_point)
        kept = _kept(scale, dy)
        if call := way(dy, _FAKE_QUANTIZE_GRADIENT):
            dx, dscale, dzero_point = call(dy, x, kept, zero_point, ctx.quant_min, ctx.quant_max)
        else:
            like = [x, kept, zero_point] if zero_point is not None and _learned(zero_point) else [x, kept]
            dx, dscale, dzero_point = fake_quantize_per_token_backward(
                dy, x, kept, zero_point, quant_min=ctx.quant_min, quant_max=ctx.quant_max,
                out=[torch.empty_like(t) for t in like],
            )  # fmt: skip
        return dx, _rounded(dscale, scale.dtype), dzero_point if ctx.needs_input_grad[2] else None, None, None


@torch.library.custom_op("sternway::fake_quantize_per_token", mutates_args=())
def _fake_quantize_forward(x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int) -> Tensor:
    """The forward as an operator, for torch.export. The gradient of torch.round in its place would be 0."""
    return _laid_out(_FakeQuantize.forward(x, scale, zero_point, quant_min, quant_max), x)


@_fake_quantize_forward.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@_fake_quantize_forward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return _fake_quantize_forward(*in_front(info, in_dims, inputs)), 0


_fake_quantize_forward.register_autograd(_FakeQuantize.backward, setup_context=_FakeQuantize.setup_context)


def _bound(name: str, bound: str, value: Any) -> int:
    """A bound as an int, as descriptors take it."""
    if type(value) is int:
        return value
    try:
        return operator.index(int(value) if isinstance(value, float) and value.is_integer() else value)
    except TypeError:
        raise make("invalid_problem", f"sternway.torch.{name}", bound, "an integer", f"{value!r:.80}") from None


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
        UnsupportedError: x, a scale or zero_point of another dtype; if a gradient will be needed, more than 8 dimensions, or a
            device without a kernel.
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
    name = "fake_quantize_per_token"
    require_tensors(name, x=x, scale=scale)
    _require_dtype(name, "x", x.dtype, FLOATS)
    _require_tokens(name, x, scale, zero_point)
    quant_min, quant_max = _bound(name, "quant_min", quant_min), _bound(name, "quant_max", quant_max)
    if quant_min > quant_max:
        got = f"{quant_min} and {quant_max}"
        raise make("invalid_problem", f"sternway.torch.{name}", "quant_min", "at most quant_max", got)
    inputs = x, scale, zero_point
    how = x.dtype, quant_min, quant_max, _kept_dtype(scale, x.dtype)
    _require_plan(name, "x", x, inputs, fake_quantize_plan, *how)
    if exporting() and _needs_gradient(*inputs):
        return _fake_quantize_forward(*inputs, quant_min, quant_max)  # type: ignore[no-any-return]
    return apply(_FakeQuantize, *inputs, quant_min, quant_max)  # type: ignore[no-any-return]
