"""Dequantization with a scale for each token or for blocks of any shape, and sternway's backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._quantize import packed_of, require_qdtype, unpacked_shape
from .._types import QuantizedDType
from ._autograd.calls import FLOATS, require_tensors
from ._autograd.dequantize import by_torch, run_eager, run_general, select_or_raise
from ._autograd.dispatch import with_public_names
from ._autograd.operators import is_jit_tracing
from ._autograd.overrides import handed_on, is_overridden
from ._autograd.quantize import require_dtype, require_operands

__all__ = ["dequantize", "dequantize_per_token"]


def _by_general_way(
    function: Callable[..., Any],
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    dtype: torch.dtype | None,
    options: dict[str, Any],
    packed: str | None = None,
) -> Tensor:
    """The call of one of the functions below that is no ordinary eager call, or is wrong.

    Args:
        options: the other arguments of the function.
        packed: the dtype of the quantized values, if it is a packed one.
    """
    name = function.__name__
    if is_overridden((q, scale, zero_point)):
        return handed_on(function, (q, scale, zero_point, dtype), options)  # type: ignore[no-any-return]
    require_tensors(name, q=q, scale=scale)
    require_qdtype(f"sternway.torch.{name}", q.dtype)
    values = None if packed is None else unpacked_shape(f"sternway.torch.{name}", q.shape, packed)
    require_operands(name, "q", q, scale, zero_point, name == "dequantize_per_token", values)
    result = scale.dtype if dtype is None else dtype
    require_dtype(name, "dtype", result, FLOATS)
    if q.is_floating_point():  # which could have a gradient, also where a transform of torch.func hides that it requires one
        q = q.detach()
    if is_jit_tracing():
        return by_torch(q, scale, zero_point, result, packed)
    with_public_names(f"sternway.torch.{name}", {"dy": "q"}, select_or_raise, q, scale, zero_point, result, packed)
    return run_general(name, q, scale, zero_point, result, packed)


def dequantize(
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    dtype: torch.dtype | None = None,
    *,
    qdtype: QuantizedDType | None = None,
) -> Tensor:
    """``(q - zero_point) * scale`` with a scale for each block.

    scale has the rank of the values and in each dimension an extent that divides theirs, or rank 0. Element i of a dimension
    uses the number ``i // (extent of the values / extent of scale)``. For values [T, D]: per tensor [] or [1, 1], per token
    [T, 1], per channel [1, D], per group of g elements [T, D / g], per block of 128 x 128 [T / 128, D / 128].

    Gradients flow to scale and to a floating zero_point, both summed in one pass (:func:`sternway.dequantize_backward`). They
    can be differentiated again.

    Args:
        q: int8, uint8, float8_e4m3fn or float8_e5m2, of any shape; or uint8 [..., D / 2], which holds values [..., D] of 4
            bits. It gets no gradient.
        scale: one number for each block of values, not of bytes; float32, float64, float16 or bfloat16.
        zero_point: of scale's shape, integer or floating; None: 0.
        dtype: the dtype of the result: float32, float64, float16 or bfloat16; None: scale's dtype.
        qdtype: the dtype of the quantized values; None: q's dtype. ``"int4"`` (two's complement) and ``"uint4"`` say that a
            byte of q has two values, the first in its lower four bits. Another dtype has to be q's own.

    Returns:
        a tensor of the shape of the values, in the memory layout of q, or contiguous for values of 4 bits. The product is
        formed in float32 (float64 for float64) and rounded once.

    Raises:
        InvalidProblemError: an extent of scale that does not divide that of the values; a zero_point of another shape; a qdtype
            that q cannot have.
        UnsupportedError: q, scale, zero_point or the result of another dtype; a rank, memory layout or device without a kernel.
        TypeError: an operand that is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> q, scale = torch.tensor([[1, -2, 3, 4]], dtype=torch.int8), torch.tensor([[0.5, 2.0]], requires_grad=True)
        >>> y = st.dequantize(q, scale)  # groups of 2
        >>> y.tolist()
        [[0.5, -1.0, 6.0, 8.0]]
        >>> y.sum().backward()
        >>> scale.grad
        tensor([[-1.,  7.]])
        >>> packed = torch.tensor([[0xE1, 0x43]], dtype=torch.uint8)  # 1, -2, 3, 4
        >>> st.dequantize(packed, scale.detach(), qdtype="int4")
        tensor([[ 0.5000, -1.0000,  6.0000,  8.0000]])
    """
    packed = None
    if qdtype is not None:
        packed = packed_of("sternway.torch.dequantize", q.dtype if isinstance(q, Tensor) else None, qdtype)
    done = run_eager(q, scale, zero_point, dtype, False, packed)
    if done is not None:
        return done
    options = {} if qdtype is None else {"qdtype": qdtype}
    return _by_general_way(dequantize, q, scale, zero_point, dtype, options, packed)


def dequantize_per_token(
    q: Tensor, scale: Tensor, zero_point: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """``(q - zero_point) * scale`` with one scale for each token, which is one index of the leading dimensions.

    Gradients flow to scale and to a floating zero_point, both summed in one pass
    (:func:`sternway.dequantize_per_token_backward`). They can be differentiated again.

    Args:
        q: [..., D], int8, uint8, float8_e4m3fn or float8_e5m2. It gets no gradient.
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
    done = run_eager(q, scale, zero_point, dtype, True)
    return _by_general_way(dequantize_per_token, q, scale, zero_point, dtype, {}) if done is None else done
