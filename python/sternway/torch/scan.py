"""The cumulative operations of torch with sternway's backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._arrays import device_of
from ..scan import scan_plan
from ._calls import FLOATS, empty_gradient, require_tensors, strides_like
from ._operators import apply, by_formula, differentiable, in_front, way

_FORWARDS: dict[str, Callable[..., Any]] = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
    "logcumsumexp": torch.logcumsumexp,
}
_PAIRS = ("cummax", "cummin")  # values and indices


def _forward(x: Tensor, kind: str, dim: int, reverse: bool) -> Any:
    """Torch's own operation; a reversed one between two flips."""
    if not reverse or x.dim() == 0:
        return _FORWARDS[kind](x, dim)
    y = _FORWARDS[kind](x.flip(dim), dim)
    if kind not in _PAIRS:
        return y.flip(dim)
    last = x.size(dim) - 1 if x.dim() else 0
    return y[0].flip(dim), last - y[1].flip(dim)


def _backward(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool, dx: Tensor) -> Tensor:
    """Write dx by the kernels."""
    if dy.is_neg():
        dy = dy.resolve_neg()
    scan_plan(kind, dy.shape, dy.dtype, dim, reverse, "last", device_of(dy)).run(dy=dy, x=x, dx=dx)
    return dx


@torch.library.custom_op("sternway::scan_backward", mutates_args=())
def _operator(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool) -> Tensor:
    """The backward where torch has to see it; others call it past torch."""
    return _backward(dy, x, kind, dim, reverse, torch.empty_like(dy if x is None else x))


@_operator.register_fake
def _(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool) -> Tensor:
    return torch.empty_like(dy if x is None else x)


@_operator.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
    dy, x, kind, dim, reverse = in_front(info, in_dims, inputs)
    if dy.dim() == 1:  # numbers, each a row of one
        return _operator(dy[:, None], None if x is None else x[:, None], kind, 1, reverse)[:, 0], 0
    return _operator(dy, x, kind, dim if dim < 0 else dim + 1, reverse), 0


def _formula(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool) -> Tensor:
    if x is None:  # cumsum, whose gradient is a sum from the other side
        return _forward(dy, kind, dim, not reverse)  # type: ignore[no-any-return]
    if kind == "logcumsumexp":
        return apply(_Weighted, dy, x, dim, reverse, True)  # type: ignore[no-any-return]

    def values(x: Tensor) -> Tensor:
        y = _forward(x, kind, dim, reverse)
        return y[0] if kind in _PAIRS else y  # type: ignore[no-any-return]

    return torch.func.vjp(values, x)[1](dy)[0]  # type: ignore[no-any-return]


_GRADIENT = differentiable(_operator, by_formula(_formula))


class _Weighted(torch.autograd.Function):
    """The weights of the softmax of each prefix, ``w[i, k] = exp(x[k] - y[i])`` for k <= i, applied to u.

    ``sum_k w[i, k] u[k]``, or transposed ``sum_i w[i, k] u[i]``, the gradient of logcumsumexp: each is the derivative of the
    other. Those of torch's own formula are NaN where dy is 0, whose logarithm it takes.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, x: Tensor, dim: int, reverse: bool, transposed: bool) -> Tensor:
        if transposed:
            return _operator(u, x, "logcumsumexp", dim, reverse)  # type: ignore[no-any-return]
        dtype, u, x = u.dtype, u.double(), x.double()  # whose offset rounds the logarithm of u
        y = _forward(x, "logcumsumexp", dim, reverse)
        above, below = ((_forward(x + part.clamp(min=0).log(), "logcumsumexp", dim, reverse) - y).exp() for part in (u, -u))
        return (above - below).masked_fill(y.isneginf(), 0).to(dtype)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        u, x, *ctx.how, ctx.transposed = inputs
        ctx.save_for_backward(u, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        u, x = ctx.saved_tensors

        def weighted(u: Tensor, transposed: bool) -> Tensor:
            return apply(_Weighted, u, x, *ctx.how, transposed)  # type: ignore[no-any-return]

        left, right = (u, g) if ctx.transposed else (g, u)  # of sum left[i] w[i, k] right[k]
        dx = right * weighted(left, True) - weighted(left * weighted(right, False), True)
        return weighted(g, not ctx.transposed), dx, None, None, None


class _Scan(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kind: str, dim: int, reverse: bool) -> Any:
        y = _forward(x, kind, dim, reverse)
        return tuple(y) if kind in _PAIRS else y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, *ctx.how = inputs
        kind = inputs[1]
        ctx.dtype = x.dtype
        if kind == "cumsum":
            ctx.strides = strides_like(x)
        else:
            ctx.save_for_backward(x)
        if kind in _PAIRS:
            ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *_: Any) -> Any:
        if dy is None:
            return None, None, None, None
        kind, dim, reverse = ctx.how
        x = None if kind == "cumsum" else ctx.saved_tensors[0]
        if x is not None and x.dtype != dy.dtype:  # autocast made the forward wider than x
            x = x.to(dy.dtype)
        if call := way(dy, _GRADIENT):
            dx = call(dy, x, kind, dim, reverse)
        else:
            new = empty_gradient(dy, dy.shape, ctx.strides) if x is None else torch.empty_like(x)
            dx = _backward(dy, x, kind, dim, reverse, new)
        return dx if dx.dtype == ctx.dtype else dx.to(ctx.dtype), None, None, None


def _scan(x: Tensor, kind: str, dim: int, reverse: bool) -> Any:
    """One of the five. Dtypes whose gradient is not ours, complex ones, and integers, which have none, stay with torch."""
    require_tensors(kind, x=x)
    return apply(_Scan, x, kind, dim, reverse) if x.dtype in FLOATS else _forward(x, kind, dim, reverse)


def cumsum(x: Tensor, dim: int, *, reverse: bool = False) -> Tensor:
    """Cumulative sum along a dimension: :func:`torch.cumsum`, backward by :func:`sternway.cumsum_backward`.

    Args:
        x: of any shape up to rank 8; float32, float64, float16 or bfloat16, on the CPU or CUDA. Integers have no gradient.
        dim: the scanned dimension.
        reverse: scan from the last position to the first.

    The backward can be differentiated again, and writes the gradient in x's memory layout. An expanded gradient is not copied.

    Raises:
        IndexError: dim out of range.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.ones(3, requires_grad=True)
        >>> st.cumsum(x, 0, reverse=True).sum().backward()
        >>> x.grad
        tensor([1., 2., 3.])
    """
    return _scan(x, "cumsum", dim, reverse)  # type: ignore[no-any-return]


def cumprod(x: Tensor, dim: int, *, reverse: bool = False) -> Tensor:
    """Cumulative product: :func:`torch.cumprod`, backward by :func:`sternway.cumprod_backward`, exact for any number of zeros.

    The arguments are those of :func:`cumsum`.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([2.0, 0.0, 3.0, 4.0], requires_grad=True)
        >>> st.cumprod(x, 0).sum().backward()
        >>> x.grad
        tensor([ 1., 32.,  0.,  0.])
    """
    return _scan(x, "cumprod", dim, reverse)  # type: ignore[no-any-return]


def logcumsumexp(x: Tensor, dim: int, *, reverse: bool = False) -> Tensor:
    """``log(cumsum(exp(x)))``: :func:`torch.logcumsumexp`, backward by :func:`sternway.logcumsumexp_backward`.

    The gradient is formed from x alone: an offset of x costs it no accuracy, and -inf in front makes no NaN. The arguments are
    those of :func:`cumsum`.
    """
    return _scan(x, "logcumsumexp", dim, reverse)  # type: ignore[no-any-return]


def cummax(x: Tensor, dim: int, *, reverse: bool = False) -> torch.return_types.cummax:
    """Cumulative maximum: :func:`torch.cummax`, backward by :func:`sternway.cummax_backward`.

    The arguments are those of :func:`cumsum`.

    Returns:
        a named tuple of values and indices, int64 positions in x. Of equal values the last in scan order wins.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
        >>> st.cummax(x, 0).values.sum().backward()
        >>> x.grad
        tensor([1., 2., 0.])
    """
    return torch.return_types.cummax(_scan(x, "cummax", dim, reverse))


def cummin(x: Tensor, dim: int, *, reverse: bool = False) -> torch.return_types.cummin:
    """Cumulative minimum: :func:`torch.cummin`, backward by :func:`sternway.cummin_backward`; see :func:`cummax`."""
    return torch.return_types.cummin(_scan(x, "cummin", dim, reverse))
