"""The gradient of the cumulative operations as an operator of torch, and the derivative of that gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._arrays import device_of
from ..._kinds import EXTREMA, KINDS
from ..._scan import scan_plan
from .calls import resolve
from .operators import MAX_RANK, apply, batch_first, by_formula, differentiable, vmap_by_loop

FORWARDS: dict[str, Callable[..., Any]] = {kind: getattr(torch, kind) for kind in KINDS}
NEEDS_X = frozenset[str](name for name, kind in KINDS.items() if not kind.is_linear)
"""The kinds whose gradient takes x. The others are linear."""
OWN_GRADIENTS = frozenset[str](name for name, kind in KINDS.items() if kind.is_own_gradient)
"""The kinds whose gradient is the scan in the other direction."""


def torch_forward(x: Tensor, kind: str, dim: int, reverse: bool, **others: Any) -> Any:
    """torch's own operation; reverse=True flips x before and y after. others: torch's keywords dtype and out."""
    if not reverse or x.dim() == 0:
        return FORWARDS[kind](x, dim, **others)
    y = FORWARDS[kind](x.flip(dim), dim, **others)
    if kind not in EXTREMA:
        return y.flip(dim)
    return y[0].flip(dim), x.size(dim) - 1 - y[1].flip(dim)


def run_backward(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool, dx: Tensor) -> Tensor:
    """Compute dx by a plan."""
    plan = scan_plan(kind, dy.shape, dy.dtype, dim, reverse, "last", device_of(dy))
    plan.run(dy=dy, x=x if x is None else resolve(x), dx=dx)
    return dx


@torch.library.custom_op("sternway::scan_backward", mutates_args=())
def _operator(dy: Tensor, x: Tensor | None, dim: int, kind: str, reverse: bool) -> Tensor:
    """The backward as an operator, for calls that torch must see.

    The sharding cache of DTensor keeps what follows the first integer, so dim comes before kind.
    """
    return run_backward(dy, x, kind, dim, reverse, torch.empty_like(dy if x is None else x))


@_operator.register_fake
def _(dy: Tensor, x: Tensor | None, dim: int, kind: str, reverse: bool) -> Tensor:
    return torch.empty_like(dy if x is None else x)


@_operator.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
    dy, x, dim, kind, reverse = batch_first(info, in_dims, inputs)
    if dy.dim() > MAX_RANK:
        return vmap_by_loop(kind, _operator)(info, in_dims, *inputs)  # type: ignore[no-any-return]
    if dy.dim() == 1:  # numbers, each a row of one
        return _operator(dy[:, None], None if x is None else x[:, None], 1, kind, reverse)[:, 0], 0
    return _operator(dy, x, dim if dim < 0 else dim + 1, kind, reverse), 0


def _formula(dy: Tensor, x: Tensor | None, dim: int, kind: str, reverse: bool) -> Tensor:
    if kind in OWN_GRADIENTS:
        return torch_forward(dy, kind, dim, not reverse)  # type: ignore[no-any-return]
    if kind == "logcumsumexp":
        return apply(Weighted, dy, x, None, dim, reverse, False, True)  # type: ignore[no-any-return]

    assert x is not None

    def values(x: Tensor) -> Tensor:
        y = torch_forward(x, kind, dim, reverse)
        return y[0] if kind in EXTREMA else y  # type: ignore[no-any-return]

    return torch.func.vjp(values, x)[1](dy)[0]  # type: ignore[no-any-return]


GRADIENT = differentiable(_operator, by_formula(_formula, "scan_backward"))


class Weighted(torch.autograd.Function):
    """The weights of the softmax of each prefix, ``w[i, k] = exp(x[k] - y[i])`` for k <= i, multiplied by a vector u.

    ``sum_k w[i, k] u[k]``; transposed, ``sum_i w[i, k] u[i]``, which is the gradient of logcumsumexp. Each is the derivative of
    the other. torch's own formula takes the logarithm of dy, so its derivatives are NaN where dy is 0. Prefixes may be
    exclusive, k < i, and those of packed sequences.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        u: Tensor, x: Tensor, cu_seqlens: Tensor | None, dim: int, reverse: bool, exclusive: bool, transposed: bool
    ) -> Tensor:
        kind, is_packed = "logcumsumexp", exclusive or cu_seqlens is not None
        if transposed:
            if is_packed:
                return torch.ops.sternway.packed_scan_backward(u, x, None, cu_seqlens, dim, kind, reverse, exclusive)  # type: ignore[no-any-return]
            return _operator(u, x, dim, kind, reverse)  # type: ignore[no-any-return]

        def scan(x: Tensor) -> Tensor:
            if is_packed:
                return torch.ops.sternway.packed_scan(x, cu_seqlens, dim, kind, reverse, exclusive)[0]  # type: ignore[no-any-return]
            return torch_forward(x, kind, dim, reverse)  # type: ignore[no-any-return]

        dtype, u, x = u.dtype, u.double(), x.double()  # whose offset rounds the logarithm of u
        y = scan(x)
        above, below = ((scan(x + part.clamp(min=0).log()) - y).exp() for part in (u, -u))
        return (above - below).masked_fill(y.isneginf(), 0).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        u, x, cu_seqlens, *ctx.options, ctx.transposed = inputs
        ctx.save_for_backward(u, x, cu_seqlens)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        u, x, cu_seqlens = ctx.saved_tensors

        def weighted(u: Tensor, transposed: bool) -> Tensor:
            return apply(Weighted, u, x, cu_seqlens, *ctx.options, transposed)  # type: ignore[no-any-return]

        left, right = (u, g) if ctx.transposed else (g, u)  # of sum left[i] w[i, k] right[k]
        dx = right * weighted(left, True) - weighted(left * weighted(right, False), True)
        return weighted(g, not ctx.transposed), dx, None, None, None, None, None
