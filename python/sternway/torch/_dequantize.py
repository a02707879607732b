"""Dequantization with one scale for each token, and sternway's backward."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arrays import dtype_name
from ..errors import make
from ._autograd.calls import FLOATS, require_tensors
from ._autograd.dequantize import NAME, by_torch, run_eager, run_general, select_or_raise
from ._autograd.dispatch import with_public_names
from ._autograd.operators import is_jit_tracing
from ._autograd.overrides import handed_on, is_overridden
from ._autograd.quantize import require_dtype, require_tokens

__all__ = ["dequantize_per_token"]


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
    done = run_eager(q, scale, zero_point, dtype)
    if done is not None:
        return done
    if is_overridden((q, scale, zero_point)):
        return handed_on(dequantize_per_token, (q, scale, zero_point, dtype), {})  # type: ignore[no-any-return]
    require_tensors(NAME, q=q, scale=scale)
    if q.dtype not in (torch.int8, torch.uint8):
        raise make("unsupported", f"sternway.torch.{NAME}", "q", "int8 or uint8", dtype_name(q.dtype))
    require_tokens(NAME, "q", q, scale, zero_point)
    result = scale.dtype if dtype is None else dtype
    require_dtype(NAME, "dtype", result, FLOATS)
    if is_jit_tracing():
        return by_torch(q, scale, zero_point, result)
    with_public_names(f"sternway.torch.{NAME}", {"dy": "q"}, select_or_raise, q, scale, zero_point, result)
    return run_general(q, scale, zero_point, result)
