"""Selective scans with gradients, the recurrence of Mamba."""

from __future__ import annotations

from typing import Any, Literal, overload

from torch import Tensor

from .._selective_scan import FIELDS
from ..errors import make
from ._autograd.calls import flag, require_tensors
from ._autograd.dispatch import with_public_names
from ._autograd.operators import is_distributed
from ._autograd.overrides import handed_on, is_overridden
from ._autograd.selective_scan import OPERANDS, run, select_or_raise

__all__ = ["selective_scan"]

_NAME = "selective_scan"


@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = ..., z: Tensor | None = ...,
    delta_bias: Tensor | None = ..., delta_softplus: bool = ..., return_last_state: Literal[False] = ...,
    *, initial_state: Tensor | None = ..., cu_seqlens: Tensor | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = ..., z: Tensor | None = ...,
    delta_bias: Tensor | None = ..., delta_softplus: bool = ...,
    *, return_last_state: Literal[True], initial_state: Tensor | None = ..., cu_seqlens: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, delta_bias: Tensor | None,
    delta_softplus: bool, return_last_state: Literal[True], *, initial_state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def selective_scan(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, delta_bias: Any = None,
    delta_softplus: bool = False, return_last_state: bool = False, *, initial_state: Any = None, cu_seqlens: Any = None,
) -> Any:  # fmt: skip
    """Selective scan, the recurrence of Mamba (Gu and Dao 2023), with gradients of all floating tensors.

    The arguments are those of ``selective_scan_fn`` of mamba_ssm, in their order. Values are those of
    :func:`sternway.selective_scan`, which states the formula; gradients are those of :func:`sternway.selective_scan_backward`,
    also of the last state, and repeat to the bit. The forward keeps the states that enter each chunk of 256 positions for the
    backward. A second derivative is computed by torch operations, with the states of all positions in memory.

    Args:
        u: the input, [batch, dim, length]; float32, float64, float16 or bfloat16. The length is at most 2**20.
        delta: the steps, like u.
        A: the rates of decay, [dim, n] with n from 1 to 256, in float32, or float64 beside float64; real numbers.
        B, C: the factors of the input and the output, of u's dtype: [batch, n, length], or [batch, groups, n, length], where
            groups divides dim; or [dim, n] of A's dtype, the same at all positions.
        D: the factor of the input in y, [dim], of A's dtype. None: 0.
        z: the gate, like u: y is multiplied by silu(z). None: y is not gated.
        delta_bias: is added to delta, [dim], of A's dtype. None: 0.
        delta_softplus: True: softplus is applied to the steps.
        return_last_state: True: return the last state, too.
        initial_state: the state before the first position, [batch, dim, n], or [batch, N, dim, n] with cu_seqlens, of A's
            dtype. None: 0, and the first decay is not applied.
        cu_seqlens: the bounds of sequences that are packed along the positions of every batch, int32 or int64 [N + 1], rising
            from 0 to the length, on u's device. The last state of an empty sequence is its initial state. None: one sequence.

    Returns:
        y, like u; with return_last_state (y, last_state), where last_state has the shape of initial_state and A's dtype.

    Raises:
        InvalidProblemError: shapes that do not belong together, groups that do not divide dim, dtypes or devices that differ,
            bounds that do not rise from 0 to the length.
        UnsupportedError: a dtype, length, number of states, layout or device without a kernel; complex A; DTensors.
        TypeError: an operand is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> u = torch.ones(1, 1, 3, requires_grad=True)
        >>> y = st.selective_scan(u, torch.ones(1, 1, 3), torch.tensor([[-0.5]]), torch.ones(1, 1, 3), torch.ones(1, 1, 3))
        >>> y.sum().backward()
        >>> u.grad
        tensor([[[1.9744, 1.6065, 1.0000]]])
    """
    tensors = u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens
    if is_overridden(tensors):
        options = {"initial_state": initial_state, "cu_seqlens": cu_seqlens}
        return handed_on(selective_scan, (*tensors[:8], delta_softplus, return_last_state), options)
    named = dict(zip(OPERANDS, tensors, strict=True))
    require_tensors(_NAME, **{name: x for name, x in named.items() if x is not None or name in OPERANDS[:5]})
    for name, x in named.items():
        if is_distributed(x):
            hint = "call it with the batches or the channels of each rank, by to_local()"
            raise make("unsupported", f"sternway.torch.{_NAME}", name, "a tensor of one rank", "a DTensor", hint)
    softplus = flag(_NAME, "delta_softplus", delta_softplus)
    wants_state = flag(_NAME, "return_last_state", return_last_state)
    with_public_names(f"sternway.torch.{_NAME}", FIELDS, select_or_raise, softplus, *tensors)
    y, last_state = run(*tensors, softplus)
    return (y, last_state) if wants_state else y
