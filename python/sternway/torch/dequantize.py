"""Dequantisation with one scale for each token, and sternway's backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arrays import device_of, dtype_name
from ..dequantize import dequantize_per_token_backward, dequantize_plan
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

_NAME = "dequantize_per_token"


@torch.library.custom_op("sternway::dequantize_per_token_backward", mutates_args=())
def _operator(dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """dequantize_per_token_backward as an operator, for calls that torch must see."""
    return padded(*dequantize_per_token_backward(dy, scale, q=q, zero_point=zero_point))


@_operator.register_fake
def _(dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return fake_gradients(dy, scale, zero_point)


def _formula(dy: Tensor, scale: Tensor, q: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(dy.dtype, torch.float32)
    zero = 0 if zero_point is None else column(zero_point, q).to(wide)
    s, g = column(scale, q).to(wide), dy.to(wide)
    dscale = (g * (q.to(wide) - zero)).sum(-1).view(scale.shape).to(scale.dtype)
    dzero = None
    if zero_point is not None and learned(zero_point):
        dzero = (-s * g).sum(-1).view(zero_point.shape).to(zero_point.dtype)
    return padded((g * s).to(dy.dtype), dscale, dzero)


_operator.register_vmap(batched(_NAME, _operator))
_GRADIENT = differentiable(_operator, by_formula(_formula))


class _Dequantize(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
        s = column(scale, q).to(torch.promote_types(dtype, torch.float32))
        shifted = q if zero_point is None else q.to(s.dtype) - column(zero_point, q).to(s.dtype)
        return rounded(shifted * s, dtype)

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
        kept = kept_scale(scale, dy)
        if call := way(dy, _GRADIENT):
            grads = call(dy, kept, q, zero_point)
        else:
            grads = dequantize_per_token_backward(dy, kept, q=q, zero_point=zero_point)
        dzero_point = grads[2] if ctx.needs_input_grad[2] else None
        return None, rounded(grads[1], scale.dtype), dzero_point, None


@torch.library.custom_op("sternway::dequantize_per_token", mutates_args=())
def _exported(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The forward as an operator, for torch.export, which drops the backward of an autograd.Function."""
    return laid_out(_Dequantize.forward(q, scale, zero_point, dtype), q)


@_exported.register_fake
def _(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(q, dtype=dtype)


@_exported.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return _exported(*in_front(info, in_dims, inputs)), 0


_exported.register_autograd(_Dequantize.backward, setup_context=_Dequantize.setup_context)


@constant
def _probed(
    rank: int, dtype: torch.dtype, qdtype: torch.dtype, scale_dtype: torch.dtype, device: torch.device
) -> Sentence | None:
    return sentence(dequantize_plan, (1,) * rank, dtype, qdtype, scale_dtype, str(device))


def _ask(q: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> None:
    """Select the plan of the backward, or that of a small problem if the call is traced.

    Raises:
        Error: there is no plan.
    """
    scale_dtype = kept_dtype(scale, dtype)
    if reach_plans(q, scale, zero_point):
        dequantize_plan(tuple(q.shape), dtype, q.dtype, scale_dtype, device_of(q))
    else:
        require(_NAME, _probed(q.dim(), dtype, q.dtype, scale_dtype, device_to_ask(q)))


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
        UnsupportedError: q, scale, zero_point or the result of another dtype; a rank, memory layout or device without a kernel.
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
    require_tensors(_NAME, q=q, scale=scale)
    if q.dtype not in (torch.int8, torch.uint8):
        raise make("unsupported", f"sternway.torch.{_NAME}", "q", "int8 or uint8", dtype_name(q.dtype))
    require_tokens(_NAME, "q", q, scale, zero_point)
    result = scale.dtype if dtype is None else dtype
    require_dtype(_NAME, "dtype", result, FLOATS)
    named(f"sternway.torch.{_NAME}", {"dy": "q"}, _ask, q, scale, zero_point, result)
    if exporting() and needs_gradient(scale, zero_point):
        return _exported(q, scale, zero_point, result)  # type: ignore[no-any-return]
    return apply(_Dequantize, q, scale, zero_point, result)  # type: ignore[no-any-return]
