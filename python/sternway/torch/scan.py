"""The cumulative operations of torch with sternway's backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._arrays import device_of
from ..scan import scan_plan
from ._calls import FLOATS, by_dispatcher, empty_gradient, require_tensors, strides_like

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
    if not reverse:
        return _FORWARDS[kind](x, dim)
    y = _FORWARDS[kind](x.flip(dim), dim)
    if kind not in _PAIRS:
        return y.flip(dim)
    last = x.size(dim) - 1 if x.dim() else 0
    return y[0].flip(dim), last - y[1].flip(dim)


def _backward(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool, dx: Tensor) -> Tensor:
    """Write dx by the kernels."""
    dy = dy.resolve_neg()
    scan_plan(kind, tuple(dy.shape), dy.dtype, dim, reverse, "last", device_of(dy)).run(dy=dy, x=x, dx=dx)
    return dx


@torch.library.custom_op("sternway::scan_backward", mutates_args=())
def _operator(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool) -> Tensor:
    """The backward as torch.compile sees it; eager calls go past it."""
    return _backward(dy, x, kind, dim, reverse, torch.empty_like(dy if x is None else x))


@_operator.register_fake
def _(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool) -> Tensor:
    return torch.empty_like(dy if x is None else x)


def _batched(info: Any, in_dims: tuple[Any, ...], tensors: tuple[Any, ...], dim: int) -> tuple[list[Any], int]:
    """Tensors with the batch in front, and the scanned dimension counted from the end."""
    moved = []
    for x, where in zip(tensors, in_dims, strict=False):
        if x is not None:
            x = x.unsqueeze(0).expand(info.batch_size, *x.shape) if where is None else x.movedim(where, 0)
            x = x.unsqueeze(-1) if x.dim() == 1 else x  # a number is a row of one
        moved.append(x)
    rank = moved[0].dim() - 1
    return moved, dim if dim < 0 else dim - rank


class _Gradient(torch.autograd.Function):
    """The backward as an operation that can be differentiated again, and that vmap knows."""

    @staticmethod
    def forward(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool) -> Tensor:
        return _backward(dy, x, kind, dim, reverse, torch.empty_like(dy if x is None else x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        dy, x, *ctx.how = inputs
        ctx.save_for_backward(dy, x)

    @staticmethod
    def backward(ctx: Any, ddx: Tensor) -> Any:
        dy, x = ctx.saved_tensors
        kind, dim, reverse = ctx.how
        if x is None:  # cumsum is linear: its gradient's gradient is itself
            return _forward(ddx, kind, dim, reverse), None, None, None, None

        def gradient(dy: Tensor, x: Tensor) -> Tensor:
            def values(x: Tensor) -> Tensor:
                y = _forward(x, kind, dim, reverse)
                return y[0] if kind in _PAIRS else y  # type: ignore[no-any-return]

            return torch.func.vjp(values, x)[1](dy)[0]  # type: ignore[no-any-return]

        grads = torch.func.vjp(gradient, dy, x)[1](ddx)
        if kind == "logcumsumexp":  # torch's formulas make NaN of leading -inf, on which nothing depends
            nothing = torch.isneginf(_forward(x, kind, dim, reverse))
            grads = tuple(g.masked_fill(nothing, 0) for g in grads)
        return *grads, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool) -> Any:
        (g, v), where = _batched(info, in_dims, (dy, x), dim)
        dx = _Gradient.apply(g, v, kind, where, reverse)
        return dx.reshape(info.batch_size, *dx.shape[1:]) if dy.dim() > (in_dims[0] is not None) else dx.squeeze(-1), 0


class _Scan(torch.autograd.Function):
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
            ctx.save_for_backward(None)
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
        (x,) = ctx.saved_tensors
        if x is not None and x.dtype != dy.dtype:  # autocast made the forward wider than x
            x = x.to(dy.dtype)
        kind, dim, reverse = ctx.how
        if by_dispatcher(dy):
            dx = _operator(dy, x, kind, dim, reverse)
        elif torch.is_grad_enabled():  # create_graph=True
            dx = _Gradient.apply(dy, x, kind, dim, reverse)
        else:
            new = empty_gradient(dy, dy.shape, ctx.strides) if x is None else torch.empty_like(x)
            dx = _backward(dy, x, kind, dim, reverse, new)
        return dx if dx.dtype == ctx.dtype else dx.to(ctx.dtype), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, kind: str, dim: int, reverse: bool) -> Any:
        (rows,), where = _batched(info, in_dims, (x,), dim)
        y = _Scan.apply(rows, kind, where, reverse)
        if x.dim() == 1:
            y = tuple(t.squeeze(-1) for t in y) if kind in _PAIRS else y.squeeze(-1)
        return y, (0, 0) if kind in _PAIRS else 0


def _scan(x: Tensor, kind: str, dim: int, reverse: bool) -> Any:
    """One of the five. Dtypes whose gradient is not ours, complex ones, and integers, which have none, stay with torch."""
    require_tensors(kind, x=x)
    return _Scan.apply(x, kind, dim, reverse) if x.dtype in FLOATS else _forward(x, kind, dim, reverse)


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
