"""Parts that dequantization and fake quantization per token share: checks of operands, dtypes, and their operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._arrays import dtype_name
from ..._plan import Plan
from ...errors import make
from . import eager
from .calls import FLOATS, require_tensors
from .dispatch import require_strided, runs_plan_directly
from .operators import MAX_RANK, batch_first, vmap_by_loop

_INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


def require_dtype(name: str, operand: str, dtype: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise UnsupportedError for a dtype of an operand that is none of these."""
    if dtype not in dtypes:
        wanted = f"one of {', '.join(map(dtype_name, dtypes))}"
        got = dtype_name(dtype) if isinstance(dtype, torch.dtype) else f"{dtype!r:.80}"
        raise make("unsupported", f"sternway.torch.{name}", operand, wanted, got)


def require_tokens(name: str, operand: str, x: Tensor, scale: Tensor, zero_point: Tensor | None) -> None:
    """Raise the error of the backward for operands that it cannot read, or a per-token one without one number for each token.

    operand: the name of x.
    """
    if not runs_plan_directly(x, scale, zero_point):
        require_strided(f"sternway.torch.{name}", **{operand: x}, scale=scale, zero_point=zero_point)
    tokens = list(x.shape[:-1])
    for per_token, value, dtypes in (("scale", scale, FLOATS), ("zero_point", zero_point, FLOATS + _INTEGERS)):
        if value is None:
            continue
        require_tensors(name, **{per_token: value})
        op, shape = f"sternway.torch.{name}", list(value.shape)
        require_dtype(name, per_token, value.dtype, dtypes)
        if shape not in (tokens, [*tokens, 1]):
            raise make("invalid_problem", op, per_token, f"of shape {tokens} or {[*tokens, 1]}", str(shape))


Facts = tuple[torch.Size, torch.dtype, torch.device]
"""Shape, dtype and device of a tensor."""


def fits(shape: torch.Size, dtype: torch.dtype, scale: Facts, zero_point: Facts | None) -> bool:
    """Whether the kernels read scale and zero_point as they are, with x, or the dequantized result, of a shape and dtype."""
    if dtype not in FLOATS or scale[1] not in (dtype, torch.float32):
        return False
    if zero_point is not None and (zero_point[1] not in FLOATS + _INTEGERS or zero_point[2] != scale[2]):
        return False
    per_token = shape[:-1], (*shape[:-1], 1)
    return bool(shape) and scale[0] in per_token and (zero_point is None or zero_point[0] in per_token)


def run_forward(plan: Plan[Any], operands: dict[str, Any]) -> Tensor:
    """Run the plan of a forward on operands, which are given by name, and return its output y."""
    eager.run_forward(plan, operands)
    return operands["y"]  # type: ignore[no-any-return]


def per_token_gradients(scale: Tensor | None, zero_point: Tensor | None) -> dict[str, Tensor | None]:
    """Memory for the gradients of scale and of a floating zero point, by name; None for those that are not asked for."""
    return {
        "dscale": None if scale is None else torch.empty_like(scale),
        "dzero_point": None if zero_point is None or not learned(zero_point) else torch.empty_like(zero_point),
    }


def needs_gradient(*inputs: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


def column(value: Tensor, like: Tensor) -> Tensor:
    """A value for each token as [..., 1], to broadcast along the last dimension."""
    return value if value.dim() == like.dim() else value.unsqueeze(-1)


def rounded(y: Tensor, dtype: torch.dtype) -> Tensor:
    """y in a dtype. torch 2.11 compiles a forward that ends in a conversion to its own dtype to a zero gradient."""
    return y if y.dtype == dtype else y.to(dtype)


def learned(zero_point: Tensor | None) -> bool:
    return zero_point is not None and zero_point.is_floating_point()


def kernel_scale_dtype(scale: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which the kernels read a scale: its own, or the dtype in which the forward reads it."""
    return scale.dtype if scale.dtype in (dtype, torch.float32) else torch.promote_types(dtype, torch.float32)


def kernel_scale(scale: Tensor, dy: Tensor) -> Tensor:
    return rounded(scale, kernel_scale_dtype(scale, dy.dtype))


def padded(dx: Tensor, dscale: Tensor, dzero_point: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The results of an operator, whose number is fixed: an absent gradient is an empty tensor."""
    return dx, dscale, dx.new_empty(0) if dzero_point is None else dzero_point


def fake_gradients(dy: Tensor, scale: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    like = (dy, scale) if zero_point is None or not learned(zero_point) else (dy, scale, zero_point)
    return padded(*map(torch.empty_like, like))


def laid_out(y: Tensor, like: Tensor) -> Tensor:
    """y with the strides that an operator promises."""
    promised = torch.empty_like(like, dtype=y.dtype)
    return y if y.stride() == promised.stride() else promised.copy_(y)


def batched(name: str, operator: Any) -> Callable[..., Any]:
    """The vmap rule of both operators: the batch is one more dimension of tokens, where a plan takes as many."""
    one_by_one = vmap_by_loop(name, operator)

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        given = batch_first(info, in_dims, inputs)
        if given[0].dim() > MAX_RANK:
            return one_by_one(info, in_dims, *inputs)
        dx, dscale, dzero_point = operator(*given)
        zero_point = inputs[3]
        return (dx, dscale, dzero_point if learned(zero_point) else dzero_point.expand(info.batch_size, 0)), (0, 0, 0)

    return rule
