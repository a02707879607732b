"""The cumulative operations of torch with sternway's backward."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._arrays import device_of
from ..errors import make
from ..scan import ScanBackwardPlan, scan_plan
from ._calls import FLOATS, empty_gradient, flag, materialized, require_tensors, strides_like
from ._dispatch import Sentence, constant, device_to_ask, named, reach_plans, require, require_strided, sentence
from ._operators import MAX_RANK, apply, by_formula, differentiable, each, exporting, in_front, way

R = TypeVar("R")

_FORWARDS: dict[str, Callable[..., Any]] = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
    "logcumsumexp": torch.logcumsumexp,
}
_PAIRS = ("cummax", "cummin")  # values and indices


def _forward(x: Tensor, kind: str, dim: int, reverse: bool, **others: Any) -> Any:
    """torch's own operation; reverse=True flips x before and y after. others: torch's keywords dtype and out."""
    if not reverse or x.dim() == 0:
        return _FORWARDS[kind](x, dim, **others)
    y = _FORWARDS[kind](x.flip(dim), dim, **others)
    if kind not in _PAIRS:
        return y.flip(dim)
    return y[0].flip(dim), x.size(dim) - 1 - y[1].flip(dim)


@constant
def _probed(kind: str, rank: int, dtype: torch.dtype, device: torch.device) -> Sentence | None:
    return sentence(scan_plan, kind, (1,) * rank, dtype, -1, False, "last", str(device))


def dim_of(x: Tensor, dim: Any) -> int | None:
    """A dimension of x as an int; None if torch refuses it, as it does a bool."""
    if type(dim) is not int:
        if isinstance(dim, bool) or not hasattr(dim, "__index__"):
            return None
        try:
            dim = operator.index(dim)
        except TypeError:
            return None
    rank = max(x.dim(), 1)
    return dim if -rank <= dim < rank else None


def ask(x: Tensor, kind: str, dim: int, reverse: bool) -> ScanBackwardPlan | None:
    """Select the plan of the backward; None if the call is traced. x has one of FLOATS.

    Raises:
        Error: there is no plan.
    """
    if not reach_plans(x):
        require_strided(kind, x=x)
        require(kind, _probed(kind, x.dim(), x.dtype, device_to_ask(x)))
        return None
    return scan_plan(kind, x.shape, x.dtype, dim, reverse, "last", device_of(x))


def _backward(
    dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool, dx: Tensor, plan: ScanBackwardPlan | None = None
) -> Tensor:
    """Compute dx by a plan."""
    plan = plan or scan_plan(kind, dy.shape, dy.dtype, dim, reverse, "last", device_of(dy))
    plan.run(dy=dy, x=x if x is None else materialized(x), dx=dx)
    return dx


@torch.library.custom_op("sternway::scan_backward", mutates_args=())
def _operator(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool) -> Tensor:
    """The backward as an operator, for calls that torch must see."""
    return _backward(dy, x, kind, dim, reverse, torch.empty_like(dy if x is None else x))


@_operator.register_fake
def _(dy: Tensor, x: Tensor | None, kind: str, dim: int, reverse: bool) -> Tensor:
    return torch.empty_like(dy if x is None else x)


@_operator.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
    dy, x, kind, dim, reverse = in_front(info, in_dims, inputs)
    if dy.dim() > MAX_RANK:
        return each(kind, _operator)(info, in_dims, *inputs)  # type: ignore[no-any-return]
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
    """The weights of the softmax of each prefix, ``w[i, k] = exp(x[k] - y[i])`` for k <= i, multiplied by a vector u.

    ``sum_k w[i, k] u[k]``; transposed, ``sum_i w[i, k] u[i]``, which is the gradient of logcumsumexp. Each is the derivative of
    the other. torch's own formula takes the logarithm of dy, so its derivatives are NaN where dy is 0.
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
    def forward(x: Tensor, kind: str, dim: int, reverse: bool, plan: ScanBackwardPlan | None) -> Any:
        y = _forward(x, kind, dim, reverse)
        return tuple(y) if kind in _PAIRS else y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, kind, dim, reverse, ctx.plan = inputs
        ctx.how = kind, dim, reverse
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
            return None, None, None, None, None
        dy = materialized(dy)
        kind, dim, reverse = ctx.how
        x = None if kind == "cumsum" else ctx.saved_tensors[0]
        if x is not None and x.dtype != dy.dtype:  # autocast made the forward wider than x
            x = x.to(dy.dtype)
        if call := way(dy, _GRADIENT):
            dx = call(dy, x, kind, dim, reverse)
        else:
            new = empty_gradient(dy, dy.shape, ctx.strides) if x is None else torch.empty_like(x)
            dx = _backward(dy, x, kind, dim, reverse, new, ctx.plan if dy.dtype == ctx.dtype else None)
        return dx if dx.dtype == ctx.dtype else dx.to(ctx.dtype), None, None, None, None


@torch.library.custom_op("sternway::scan", mutates_args=())
def _exported(x: Tensor, kind: str, dim: int, reverse: bool) -> tuple[Tensor, Tensor]:
    """The forward as an operator that has its gradient, for torch.export. Operations without indices return empty ones."""
    y = _forward(x, kind, dim, reverse)
    return tuple(y) if kind in _PAIRS else (y, torch.empty(0, dtype=torch.int64, device=x.device))


@_exported.register_fake
def _(x: Tensor, kind: str, dim: int, reverse: bool) -> tuple[Tensor, Tensor]:
    y = _forward(x, kind, dim, reverse)
    return tuple(y) if kind in _PAIRS else (y, torch.empty(0, dtype=torch.int64, device=x.device))


@_exported.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return each(inputs[1], _exported)(info, in_dims, *inputs)


def _set_up_exported(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _Scan.setup_context(ctx, (*inputs, None), output)


_exported.register_autograd(lambda ctx, *grads: _Scan.backward(ctx, *grads)[:4], setup_context=_set_up_exported)


def call(x: Tensor, kind: str, dim: int, reverse: bool, plan: ScanBackwardPlan | None) -> Any:
    """One of the five operations with torch's return type and the backward of the plan that ``ask`` selected."""
    if exporting():
        y = _exported(x, kind, dim, reverse)
        y = y if kind in _PAIRS else y[0]
    else:
        y = apply(_Scan, x, kind, dim, reverse, plan)
    return getattr(torch.return_types, kind)(y) if kind in _PAIRS else y


def _scan(x: Tensor, kind: str, dim: int, reverse: bool) -> Any:
    """One of the five operations, called by name. Complex numbers and integers are left to torch."""
    require_tensors(kind, x=x)
    reverse = flag(kind, "reverse", reverse)
    where = dim_of(x, dim)
    if x.dtype not in FLOATS or where is None:
        y = _forward(x, kind, dim, reverse)  # or torch's own error
        return getattr(torch.return_types, kind)(y) if kind in _PAIRS else y
    plan = named(f"sternway.torch.{kind}", {"shape": "x"}, ask, x, kind, where, reverse)
    return call(x, kind, where, reverse, plan)


def _as_torch(scan: Callable[..., R]) -> Callable[..., R]:
    """Add torch's keywords to a scan: input for x, axis for dim; a call with dtype or out is torch's own operation."""
    name = scan.__name__

    @functools.wraps(scan)
    def taking_keywords(*args: Any, **kwargs: Any) -> R:
        if not kwargs.keys() & _TORCH_KEYWORDS:
            return scan(*args, **kwargs)
        others: dict[str, Any] = {k: kwargs.pop(k) for k in ("dtype", "out") if k in kwargs}
        for torchs, ours in (("input", "x"), ("axis", "dim")):
            if torchs in kwargs:
                if ours in kwargs:
                    raise TypeError(f"{name}() got both {torchs} and {ours}")
                kwargs[ours] = kwargs.pop(torchs)
        others = {k: value for k, value in others.items() if value is not None}
        return _by_torch(name, others, *args, **kwargs) if others else scan(*args, **kwargs)

    return taking_keywords


_TORCH_KEYWORDS = {"input", "axis", "dtype", "out"}


def _by_torch(kind: str, others: dict[str, Any], x: Tensor, dim: int, *, reverse: bool = False) -> Any:
    require_tensors(kind, x=x)
    reverse = flag(kind, "reverse", reverse)
    if reverse and "out" in others:
        hint = "copy the result with out.copy_"
        raise make("unsupported", f"sternway.torch.{kind}", "out", "left out with reverse=True", "an output", hint)
    return _forward(x, kind, dim, reverse, **others)


@_as_torch
def cumsum(x: Tensor, dim: int, *, reverse: bool = False) -> Tensor:
    """Cumulative sum along a dimension, ``y[i] = sum_{j<=i} x[j]``: :func:`torch.cumsum`.

    The backward is :func:`sternway.cumsum_backward`. It can be differentiated again and writes the gradient in x's memory
    layout; an expanded upstream gradient is not copied. torch's keywords ``input`` and ``axis`` are accepted for x and dim;
    calls with ``dtype`` or ``out`` are torch's own operation.

    Args:
        x: a tensor of up to 8 dimensions; float32, float64, float16 or bfloat16, on the CPU or CUDA. Integers and complex
            numbers are left to torch.
        dim: the scanned dimension; a negative one counts from the end.
        reverse: True: scan from the last position to the first.

    Returns:
        y, of x's shape and dtype.

    Raises:
        IndexError: dim out of range.
        InvalidProblemError: reverse is no bool.
        UnsupportedError: a rank, memory layout or device without a kernel.
        TypeError: x is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.ones(3, requires_grad=True)
        >>> st.cumsum(x, 0, reverse=True).sum().backward()
        >>> x.grad
        tensor([1., 2., 3.])
    """
    return _scan(x, "cumsum", dim, reverse)  # type: ignore[no-any-return]


@_as_torch
def cumprod(x: Tensor, dim: int, *, reverse: bool = False) -> Tensor:
    """Cumulative product along a dimension, ``y[i] = prod_{j<=i} x[j]``: :func:`torch.cumprod`.

    The backward is :func:`sternway.cumprod_backward`, which is exact for any number of zeros. Keywords are as for
    :func:`cumsum`.

    Args:
        x, dim, reverse: as for :func:`cumsum`.

    Returns:
        y, of x's shape and dtype.

    Raises:
        IndexError: dim out of range.
        InvalidProblemError: reverse is no bool.
        UnsupportedError: a rank, memory layout or device without a kernel.
        TypeError: x is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([2.0, 0.0, 3.0, 4.0], requires_grad=True)
        >>> st.cumprod(x, 0).sum().backward()
        >>> x.grad
        tensor([ 1., 32.,  0.,  0.])
    """
    return _scan(x, "cumprod", dim, reverse)  # type: ignore[no-any-return]


@_as_torch
def logcumsumexp(x: Tensor, dim: int, *, reverse: bool = False) -> Tensor:
    """``y[i] = log sum_{j<=i} exp(x[j])`` along a dimension: :func:`torch.logcumsumexp`.

    The backward is :func:`sternway.logcumsumexp_backward`. It is computed from x alone: an offset that is added to x costs no
    accuracy, and elements of -inf in front make no NaN. Keywords are as for :func:`cumsum`.

    Args:
        x, dim, reverse: as for :func:`cumsum`.

    Returns:
        y, of x's shape and dtype.

    Raises:
        IndexError: dim out of range.
        InvalidProblemError: reverse is no bool.
        UnsupportedError: a rank, memory layout or device without a kernel.
        TypeError: x is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([-torch.inf, 0.0, 0.0], requires_grad=True)
        >>> st.logcumsumexp(x, 0)[2].backward()
        >>> x.grad
        tensor([0.0000, 0.5000, 0.5000])
    """
    return _scan(x, "logcumsumexp", dim, reverse)  # type: ignore[no-any-return]


@_as_torch
def cummax(x: Tensor, dim: int, *, reverse: bool = False) -> torch.return_types.cummax:
    """Cumulative maximum along a dimension, with its positions: :func:`torch.cummax`.

    The backward is :func:`sternway.cummax_backward`. Keywords are as for :func:`cumsum`.

    Args:
        x, dim, reverse: as for :func:`cumsum`.

    Returns:
        a named tuple: ``values``, of x's shape and dtype, and ``indices``, their int64 positions along dim. The last of equal
        values in scan order wins.

    Raises:
        IndexError: dim out of range.
        InvalidProblemError: reverse is no bool.
        UnsupportedError: a rank, memory layout or device without a kernel.
        TypeError: x is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
        >>> st.cummax(x, 0).values.sum().backward()
        >>> x.grad
        tensor([1., 2., 0.])
    """
    return _scan(x, "cummax", dim, reverse)  # type: ignore[no-any-return]


@_as_torch
def cummin(x: Tensor, dim: int, *, reverse: bool = False) -> torch.return_types.cummin:
    """Cumulative minimum along a dimension, with its positions: :func:`torch.cummin`.

    The backward is :func:`sternway.cummin_backward`. Keywords are as for :func:`cumsum`.

    Args:
        x, dim, reverse: as for :func:`cumsum`.

    Returns:
        a named tuple: ``values``, of x's shape and dtype, and ``indices``, their int64 positions along dim. The last of equal
        values in scan order wins.

    Raises:
        IndexError: dim out of range.
        InvalidProblemError: reverse is no bool.
        UnsupportedError: a rank, memory layout or device without a kernel.
        TypeError: x is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([2.0, 1.0, 3.0], requires_grad=True)
        >>> values, indices = st.cummin(x, 0)
        >>> indices
        tensor([0, 1, 1])
        >>> values.sum().backward()
        >>> x.grad
        tensor([1., 2., 0.])
    """
    return _scan(x, "cummin", dim, reverse)  # type: ignore[no-any-return]
