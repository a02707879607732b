"""``torch.lerp`` with sternway's backward."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._arrays import dtype_name
from ..errors import make
from ._autograd.calls import FLOATS, is_bool, require_tensors
from ._autograd.dispatch import with_public_names
from ._autograd.lerp import WEIGHTS, run_eager, run_general, select_or_raise, torch_lerp
from ._autograd.operators import is_jit_tracing
from ._autograd.overrides import handed_on, is_overridden
from ._signatures import Lerp

__all__ = ["lerp"]

_NAME = "sternway.torch.lerp"
_OPERANDS = {"dtype": "input", "shape": "the broadcast shape", "a_shape": "input", "b_shape": "end", "weight_shape": "weight"}
"""By field of the descriptor, the argument of lerp that it comes from."""


def number_of(weight: Any) -> Any:
    """Convert a real number of Python or NumPy to float; return anything else unchanged."""
    if isinstance(weight, (float, Tensor)):
        return weight
    return float(weight) if isinstance(weight, numbers.Real) or is_bool(weight) else weight


def _as_torch(lerp: Callable[..., Tensor]) -> Lerp:
    """Add to lerp the quick way of ordinary eager calls, and torch's keyword out: a call with it is torch's own operation."""

    @functools.wraps(lerp)
    def operation(input: Any, end: Any, weight: Any, *, out: Tensor | None = None) -> Tensor:
        if out is not None:
            return torch.lerp(input, end, weight, out=out)
        done = run_eager(input, end, weight)
        if done is not None:
            return done
        if is_overridden((input, end, weight)):
            arguments = input, end, weight
            return handed_on(operation, arguments, {}, (torch_lerp, arguments))  # type: ignore[no-any-return]
        return lerp(input, end, weight)

    return operation


@_as_torch
def lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """Linear interpolation, ``y = input + weight * (end - input)``, with broadcasting: :func:`torch.lerp`.

    The backward is :func:`sternway.lerp_backward`: one kernel for all the gradients that are needed, with the sums over
    broadcast dimensions. It can be differentiated again. A call with ``out=`` is torch's own operation.

    Args:
        input, end: tensors whose shapes broadcast, of up to 8 dimensions; float32, float64, float16 or bfloat16, on the CPU or
            CUDA. Complex tensors are left to torch.
        weight: a number or a tensor that broadcasts; a 0-d tensor on the CPU may go with data on CUDA.

    Returns:
        y, of the broadcast shape and input's dtype.

    Raises:
        UnsupportedError: a rank, layout or device without a kernel; a complex weight of real ends.
        RuntimeError: arguments that torch.lerp itself refuses, such as mixed dtypes.
        TypeError: input or end is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> a, b = torch.zeros(2, 3, requires_grad=True), torch.ones(3, requires_grad=True)
        >>> st.lerp(a, b, 0.25).sum().backward()
        >>> a.grad[0], b.grad
        (tensor([0.7500, 0.7500, 0.7500]), tensor([0.5000, 0.5000, 0.5000]))
    """
    require_tensors("lerp", input=input, end=end)
    weight = number_of(weight)
    if not isinstance(weight, WEIGHTS) or input.dtype not in FLOATS or is_jit_tracing():
        return torch_lerp(input, end, weight)
    if isinstance(weight, Tensor) and weight.is_complex():
        raise make("unsupported", _NAME, "weight", "real like input", dtype_name(weight.dtype))
    return run_general(input, end, weight, with_public_names(_NAME, _OPERANDS, select_or_raise, input, end, weight))
