"""Linear recurrences with gradients: ``h[t] = a[t] * h[t-1] + b[t]``."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from .._sequences import count_sequences
from ._autograd.calls import flag, integer, require_tensors
from ._autograd.dispatch import with_public_names
from ._autograd.linear_recurrence import OPERANDS, alike, run, select_or_raise
from ._autograd.linear_recurrence_eager import run_eager
from ._autograd.operators import is_distributed
from ._autograd.overrides import handed_on, is_overridden
from ._autograd.sharding import sharding
from ._lerp import number_of

__all__ = ["linear_recurrence"]

_NAME = "sternway.torch.linear_recurrence"


@overload
def linear_recurrence(
    a: Tensor | float, b: Tensor, dim: int = ..., *, initial_state: Tensor | None = ..., reverse: bool = ...,
    cu_seqlens: Tensor | None = ..., output_final_state: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def linear_recurrence(
    a: Tensor | float, b: Tensor, dim: int = ..., *, initial_state: Tensor | None = ..., reverse: bool = ...,
    cu_seqlens: Tensor | None = ..., output_final_state: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def linear_recurrence(
    a: Any, b: Any, dim: int = -1, *, initial_state: Any = None, reverse: bool = False, cu_seqlens: Any = None,
    output_final_state: bool = False,
) -> Any:  # fmt: skip
    """Linear recurrence along a dimension, ``h[t] = a[t] * h[t-1] + b[t]``, with gradients of a, b and the initial state.

    Values are those of :func:`sternway.linear_recurrence`. The backward is one pass over the data,
    :func:`sternway.linear_recurrence_backward`. It can be differentiated again.

    Args:
        a: the factors, a tensor that broadcasts with b, or a number.
        b: the terms. Dtypes of a and b promote as in torch; the result is float32, float64, float16 or bfloat16. The broadcast
            shape has up to 8 dimensions.
        dim: the dimension along which states follow each other; a negative one counts from the end.
        initial_state: h before the first position, of h's shape without dim; with cu_seqlens, the number of sequences takes
            the place of dim. Of h's dtype, or float32 beside 16 bits. None: 0, and the first decay is not applied.
        reverse: True: from the last position to the first, where the initial state enters.
        cu_seqlens: the bounds of sequences that are packed along dim, int32 or int64 [N + 1], rising from 0 to the
            extent, on b's device. The final state of an empty sequence is its initial state. None: one sequence.
        output_final_state: True: return the final state, too.

    Returns:
        h, of the broadcast shape; with output_final_state (h, final_state), where final_state has the shape of initial_state,
        in float32 beside 16 bits, else in h's dtype.

    Raises:
        InvalidProblemError: shapes that do not broadcast, a dim out of range, dtypes or devices that differ, bounds that do
            not rise from 0 to the extent.
        UnsupportedError: a dtype, rank, layout or device without a kernel.
        TypeError: b is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> a = torch.full((3,), 0.5, requires_grad=True)
        >>> h = st.linear_recurrence(a, torch.ones(3))
        >>> h.sum().backward()
        >>> h.detach(), a.grad
        (tensor([1.0000, 1.5000, 1.7500]), tensor([0.0000, 1.5000, 1.5000]))
    """
    done = run_eager(a, b, dim, initial_state, reverse, cu_seqlens, output_final_state)
    if done is not None:
        return done
    if is_overridden((a, b, initial_state, cu_seqlens)):
        states = {"initial_state": initial_state, "output_final_state": output_final_state}
        options = {**states, "reverse": reverse, "cu_seqlens": cu_seqlens}
        return handed_on(linear_recurrence, (a, b, dim), options)
    given = {name: x for name, x in (("initial_state", initial_state), ("cu_seqlens", cu_seqlens)) if x is not None}
    require_tensors("linear_recurrence", b=b, **given)
    reverse = flag("linear_recurrence", "reverse", reverse)
    wants_state = flag("linear_recurrence", "output_final_state", output_final_state)
    dim = integer("linear_recurrence", "dim", dim)
    a = number_of(a)
    if isinstance(a, float):
        a = _number(a, b)
        a = sharding().replicated(a, b) if is_distributed(b) else a
    else:
        require_tensors("linear_recurrence", a=a)
    count_sequences(_NAME, cu_seqlens)
    a, b = alike(a, b)
    with_public_names(_NAME, OPERANDS, select_or_raise, a, b, initial_state, cu_seqlens, dim, reverse)
    if is_distributed(a, b):
        h = sharding().linear_recurrence(a, b, initial_state, cu_seqlens, dim, reverse, wants_state)
        if h is not None:
            return h
    h, final_state = run(a, b, initial_state, cu_seqlens, dim, reverse)
    return (h, final_state) if wants_state else h


def _number(a: float, b: Tensor) -> Tensor:
    """A number as a factor of rank 0, in float32 beside 16 bits."""
    wide = b.dtype if b.dtype in (torch.float32, torch.float64) else torch.float32
    return torch.full((), a, dtype=torch.float64, device=b.device).to(wide)  # infinite if it is beyond float32
