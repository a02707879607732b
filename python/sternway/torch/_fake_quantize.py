"""Fake quantization with a scale for each token or for blocks of any shape, and sternway's backward."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..errors import make
from ._autograd.calls import FLOATS, require_tensors
from ._autograd.dispatch import with_public_names
from ._autograd.fake_quantize import run_eager, run_general, select_or_raise, traced_by_torch
from ._autograd.operators import is_jit_tracing
from ._autograd.overrides import handed_on, is_overridden
from ._autograd.quantize import require_dtype, require_operands

__all__ = ["fake_quantize", "fake_quantize_per_token"]


def _bound(op: str, bound: str, value: Any) -> int:
    """A bound as an int, as descriptors take it."""
    if type(value) is not int:
        try:
            value = operator.index(int(value) if isinstance(value, float) and value.is_integer() else value)
        except TypeError:
            raise make("invalid_problem", op, bound, "an integer", f"{value!r:.80}") from None
    if not -(2**63) <= value < 2**63:
        raise make("invalid_problem", op, bound, "an integer of 64 bits", f"{value!r:.80}")
    return value  # type: ignore[no-any-return]


def _by_general_way(
    function: Callable[..., Any], x: Tensor, scale: Tensor, zero_point: Tensor | None, quant_min: int, quant_max: int
) -> Tensor:
    """The call of one of the functions below that is no ordinary eager call, or is wrong."""
    name = function.__name__
    op = f"sternway.torch.{name}"
    if is_overridden((x, scale, zero_point)):
        options = {"quant_min": quant_min, "quant_max": quant_max}
        return handed_on(function, (x, scale, zero_point), options)  # type: ignore[no-any-return]
    require_tensors(name, x=x, scale=scale)
    require_dtype(name, "x", x.dtype, FLOATS)
    require_operands(name, "x", x, scale, zero_point, name == "fake_quantize_per_token")
    quant_min, quant_max = _bound(op, "quant_min", quant_min), _bound(op, "quant_max", quant_max)
    if quant_min > quant_max:
        raise make("invalid_problem", op, "quant_min", "at most quant_max", f"{quant_min} and {quant_max}")
    inputs = x, scale, zero_point
    if is_jit_tracing():
        return traced_by_torch(x, scale, zero_point, (quant_min, quant_max))
    with_public_names(op, {"dy": "x"}, select_or_raise, *inputs, quant_min, quant_max)
    return run_general(name, *inputs, quant_min, quant_max)


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, quant_min: int, quant_max: int) -> Tensor:
    """Quantize and dequantize with a scale for each block, as quantization-aware training does.

    scale has x's rank and in each dimension an extent that divides x's, or rank 0. Element i of a dimension uses the number ``i
    // (extent of x / extent of scale)``. For x [T, D]: per tensor [] or [1, 1], per token [T, 1], per channel [1, D], per group
    of g elements [T, D / g], per block of 128 x 128 [T / 128, D / 128].

    ``t = round_half_even(x / scale) + zero_point``; the result is ``(clamp(t, quant_min, quant_max) - zero_point) * scale``. It
    is 0 if scale is 0, as for a block of padding. The gradients with respect to x, scale and a floating zero_point are those of
    :func:`sternway.fake_quantize_backward`, in one pass (learned step size quantization, Esser et al. 2020, arXiv:1902.08153).

    Args:
        x: float32, float64, float16 or bfloat16, of any shape.
        scale: one number for each block, floating.
        zero_point: of scale's shape, integer or floating (first rounded and clamped); None: 0.
        quant_min, quant_max: bounds of the quantized values, integers, inclusive.

    Returns:
        a tensor of x's shape and dtype; formed in float32 (float64 for float64) and rounded once.

    Raises:
        InvalidProblemError: an extent of scale that does not divide x's; a zero_point of another shape; bounds that are no
            integers, or quant_min above quant_max.
        UnsupportedError: x, a scale or zero_point of another dtype; a rank, memory layout or device without a kernel.
        TypeError: an operand that is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> x, scale = torch.tensor([[0.6, -100.0, 3.8, 1.0]], requires_grad=True), torch.tensor([[0.5, 2.0]])  # groups of 2
        >>> y = st.fake_quantize(x, scale, quant_min=-8, quant_max=7)
        >>> y.tolist()
        [[0.5, -4.0, 4.0, 0.0]]
        >>> y.sum().backward()
        >>> x.grad.tolist()  # -100 is outside the range
        [[1.0, 0.0, 1.0, 1.0]]
    """
    done = run_eager(x, scale, zero_point, quant_min, quant_max, False)
    return _by_general_way(fake_quantize, x, scale, zero_point, quant_min, quant_max) if done is None else done


def fake_quantize_per_token(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, quant_min: int, quant_max: int
) -> Tensor:
    """Quantize and dequantize with one scale for each token, as quantization-aware training does.

    ``t = round_half_even(x / scale) + zero_point``; the result is ``(clamp(t, quant_min, quant_max) - zero_point) * scale``. It
    is 0 if scale is 0, as for a row of padding. The gradients with respect to x, scale and a floating zero_point are those of
    :func:`sternway.fake_quantize_per_token_backward`, in one pass (learned step size quantization, Esser et al. 2020,
    arXiv:1902.08153).

    Args:
        x: [..., D]; float32, float64, float16 or bfloat16.
        scale: [...] or [..., 1], floating.
        zero_point: [...] or [..., 1], integer or floating (first rounded and clamped); None: 0.
        quant_min, quant_max: bounds of the quantized values, integers, inclusive.

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
    done = run_eager(x, scale, zero_point, quant_min, quant_max, True)
    return _by_general_way(fake_quantize_per_token, x, scale, zero_point, quant_min, quant_max) if done is None else done
