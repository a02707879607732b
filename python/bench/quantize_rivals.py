"""PyTorch's ways to the quantizations of ``bench quantize``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from .._cases.case import Values
from .._cases.dequantize import rounded

Call = Callable[[], Any]
Rival = Callable[[str, str, str, Values], Call | None]
"""The call of an operation, a direction, a granularity and values; None: there is none."""


def gradient(y: Any, into: tuple[Any, ...], dy: Any) -> Call:
    """The backward of a forward that autograd has recorded."""
    import torch

    return lambda: torch.autograd.grad(y, into, dy, retain_graph=True)


# ---------------------------------------------------------------------------------------------------- torch's operations


def has_operation(operation: str, granularity: str) -> bool:
    """Whether torch has an operation: a view of x has one scale for each index of one dimension, or for all of it."""
    return operation == "fake quantize" and not granularity.startswith("block")


def fake_quantize(name: str, granularity: str, v: Values, x: Any, scale: Any, zero_dtype: str, *options: float) -> Call:
    """A fake quantization of torch, per tensor or per channel. options: the arguments after the bounds."""
    import torch

    zero = torch.zeros(scale.numel(), dtype=getattr(torch, zero_dtype), device=x.device)
    bounds = v.quant_min, v.quant_max
    if granularity == "tensor":
        return functools.partial(getattr(torch, f"{name}_per_tensor_affine"), x, scale.view(1), zero, *bounds, *options)
    view, dim = (x, 1) if granularity == "channel" else (x.view(scale.numel(), -1), 0)
    function = getattr(torch, f"{name}_per_channel_affine")
    return functools.partial(function, view, scale.flatten(), zero, dim, *bounds, *options)


plain = functools.partial(fake_quantize, "fake_quantize")
learnable = functools.partial(fake_quantize, "_fake_quantize_learnable")


def by_operation(operation: str, direction: str, granularity: str, v: Values) -> Call | None:
    """The forward, and the backward of the operation that learns its scale. The scale is float32, as both take it."""
    if not has_operation(operation, granularity):
        return None
    scale = v.scale.detach().float()
    if direction == "forward":
        return plain(granularity, v, v.x, scale, "int32")
    leaves = v.x.detach().requires_grad_(), scale.requires_grad_()
    y = learnable(granularity, v, *leaves, "float32", 1.0)()
    return gradient(y.view(v.dy.shape), leaves, v.dy)


def dx_by_operation(operation: str, direction: str, granularity: str, v: Values) -> Call | None:
    """The backward of the operation that does not learn its scale: dx alone."""
    if direction == "forward" or not has_operation(operation, granularity):
        return None
    x = v.x.detach().requires_grad_()
    y = plain(granularity, v, x, v.scale.float(), "int32")()
    return gradient(y.view(v.dy.shape), (x,), v.dy)


# --------------------------------------------------------------------------------------------------------- torch.compile


def in_blocks(x: Any, scale: Any) -> tuple[Any, Any]:
    """Views of x and scale that broadcast: two dimensions for each of x, the blocks and their elements."""
    rows, columns = scale.shape if scale.ndim else (1, 1)
    return x.view(rows, x.shape[0] // rows, columns, x.shape[1] // columns), scale.view(rows, 1, columns, 1)


def fake_quantize_formula(x: Any, scale: Any, low: int, high: int) -> Any:
    """The formula with straight-through rounding. torch.clamp would pass no gradient for values on a bound."""
    import torch

    blocks, scales = in_blocks(x, scale)
    level = rounded(blocks / scales)
    inside = (level >= low) & (level <= high)
    return (torch.where(inside, level, level.detach().clamp(low, high)) * scales).view(x.shape)


def dequantize_formula(q: Any, scale: Any) -> Any:
    """The formula."""
    blocks, scales = in_blocks(q, scale)
    return (blocks * scales).view(q.shape)


def dequantize_backward_formula(dy: Any, q: Any, scale: Any) -> tuple[Any, Any]:
    """The gradients. Autograd has none for integers."""
    blocks, scales = in_blocks(dy, scale)
    codes, _ = in_blocks(q, scale)
    return (blocks * scales).view(dy.shape), (blocks * codes).sum((1, 3)).view(scale.shape)


def by_compile(operation: str, direction: str, granularity: str, v: Values) -> Call | None:
    """The compiled formula; its backward is that of autograd, and of dequantization a formula, too."""
    import torch

    compiled = functools.partial(torch.compile, dynamic=False)
    if operation == "dequantize":
        if direction == "forward":
            return functools.partial(compiled(dequantize_formula), v.q, v.scale)
        return functools.partial(compiled(dequantize_backward_formula), v.dy, v.q, v.scale)
    function = functools.partial(compiled(fake_quantize_formula), low=v.quant_min, high=v.quant_max)
    if direction == "forward":
        return functools.partial(function, v.x, v.scale)
    leaves = v.x.detach().requires_grad_(), v.scale.detach().requires_grad_()
    with torch._functorch.config.patch(donated_buffer=False):  # the graph is kept for further calls
        return gradient(function(*leaves), leaves, v.dy)


RIVALS: Mapping[str, Rival] = {"torch": by_operation, "torch_dx": dx_by_operation, "compile": by_compile}
