"""The cumulative operations of torch with sternway's backward. A kind is its function here, and its name in ``__all__``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from .._kinds import EXTREMA
from .._sequences import count_sequences
from ..errors import make
from ._autograd import packed_scan
from ._autograd.calls import FLOATS, flag, require_tensors
from ._autograd.dispatch import with_public_names
from ._autograd.operators import is_distributed, is_jit_tracing
from ._autograd.overrides import handed_on, is_overridden
from ._autograd.scan import autocast_input, dim_of, run_eager, run_general, select_or_raise
from ._autograd.scan_gradient import FORWARDS, torch_forward
from ._autograd.sharding import sharding
from ._signatures import Pair, Scan, ScanWithDType

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"]

R = TypeVar("R", bound=tuple[Tensor, Tensor])


def _scan(x: Tensor, kind: str, dim: int, reverse: bool, exclusive: bool, cu_seqlens: Tensor | None) -> Any:
    """A scan, called by name. Complex numbers and integers are left to torch."""
    if exclusive is not False or cu_seqlens is not None:
        return _packed(x, kind, dim, reverse, exclusive, cu_seqlens)
    require_tensors(kind, x=x)
    reverse = flag(kind, "reverse", reverse)
    where = dim_of(x, dim)
    if x.dtype not in FLOATS or where is None or is_jit_tracing():
        y = torch_forward(x, kind, dim, reverse)  # or torch's own error
        return getattr(torch.return_types, kind)(y) if kind in EXTREMA else y
    done = run_eager(x, kind, where, reverse)  # with dim as an int
    if done is not None:
        return done
    with_public_names(f"sternway.torch.{kind}", {"shape": "x"}, select_or_raise, x, kind, where, reverse)
    return run_general(x, kind, where, reverse)


def _packed(x: Tensor, kind: str, dim: int, reverse: bool, exclusive: bool, cu_seqlens: Tensor | None) -> Any:
    """A scan that is exclusive or of packed sequences, which torch does not have."""
    op = f"sternway.torch.{kind}"
    require_tensors(kind, x=x, **({} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}))
    reverse, exclusive = flag(kind, "reverse", reverse), flag(kind, "exclusive", exclusive)
    where = dim_of(x, dim)
    if where is None:
        return torch_forward(x, kind, dim, reverse)  # which raises torch's own error
    count_sequences(op, cu_seqlens)
    problem = autocast_input(x, kind), cu_seqlens, where, kind, reverse, exclusive
    with_public_names(op, {"shape": "x", "dtype": "x", "num_sequences": "cu_seqlens"}, packed_scan.select_or_raise, *problem)
    if is_distributed(x):
        found = sharding().scan(x, kind, where, reverse, exclusive, cu_seqlens)
        if found is not None:
            return found
    y = packed_scan.run(*problem)
    return getattr(torch.return_types, kind)(y) if kind in EXTREMA else y[0]


@overload
def _as_torch(scan: Callable[..., Tensor]) -> Scan[Tensor, Tensor]: ...
@overload
def _as_torch(scan: Callable[..., R]) -> Scan[R, Pair]: ...
def _as_torch(scan: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a scan the quick way of ordinary eager calls, and torch's keywords: input for x, axis for dim, dtype and out."""
    name = scan.__name__

    @functools.wraps(scan)
    def operation(
        x: Any = None, dim: Any = None, *, reverse: Any = False, exclusive: Any = False, cu_seqlens: Any = None, **torchs: Any
    ) -> Any:
        is_packed = exclusive is not False or cu_seqlens is not None
        if not torchs:
            if is_packed:
                done = packed_scan.run_eager(x, name, dim, reverse, exclusive, cu_seqlens)
            else:
                done = run_eager(x, name, dim, reverse)
            if done is not None:
                return done
        if not torchs and not is_packed:
            if is_overridden((x,)):
                return handed_on(operation, (x, dim), {"reverse": reverse}, None if reverse else (FORWARDS[name], (x, dim)))
            return scan(x, dim, reverse=reverse)
        others: dict[str, Any] = {k: torchs.pop(k) for k in ("dtype", "out") if k in torchs}
        if "input" in torchs:
            x = _one(name, "input", torchs.pop("input"), "x", x)
        if "axis" in torchs:
            dim = _one(name, "axis", torchs.pop("axis"), "dim", dim)
        others = {k: value for k, value in others.items() if value is not None}
        if is_packed:
            ours = {"reverse": reverse, "exclusive": exclusive, "cu_seqlens": cu_seqlens}
            if is_overridden((x, cu_seqlens)):
                return handed_on(operation, (x, dim), {**ours, **others, **torchs})
            if "out" in others:
                hint = "copy the result with out.copy_"
                raise make("unsupported", f"sternway.torch.{name}", "out", "left out", "an output", hint)
            if "dtype" in others and name not in EXTREMA and isinstance(x, Tensor):
                x = x.to(others.pop("dtype"))
            return scan(x, dim, **ours, **others, **torchs)
        if torchs:
            return scan(x, dim, reverse=reverse, **torchs)  # which raises TypeError
        if others and reverse and is_overridden((x,)):
            return handed_on(operation, (x, dim), {"reverse": reverse, **others})
        if others:
            return _by_torch(name, others, x, dim, reverse=reverse)
        return operation(x, dim, reverse=reverse)

    return operation


def _with_dtype(scan: Callable[..., Any]) -> ScanWithDType:
    """Tell type checkers that a scan takes ``dtype``. It returns the scan itself."""
    return scan


def _one(name: str, theirs: str, value: Any, ours: str, other: Any) -> Any:
    """The value of an argument that was given under torch's name and not under ours."""
    if other is not None:
        raise TypeError(f"{name}() got both {theirs} and {ours}")
    return value


def _by_torch(kind: str, others: dict[str, Any], x: Tensor, dim: int, *, reverse: bool = False) -> Any:
    if not is_overridden((x,)):  # which torch asks
        require_tensors(kind, x=x)
    reverse = flag(kind, "reverse", reverse)
    if reverse and "out" in others:
        hint = "copy the result with out.copy_"
        raise make("unsupported", f"sternway.torch.{kind}", "out", "left out with reverse=True", "an output", hint)
    return torch_forward(x, kind, dim, reverse, **others)


@_with_dtype
@_as_torch
def cumsum(x: Tensor, dim: int, *, reverse: bool = False, exclusive: bool = False, cu_seqlens: Tensor | None = None) -> Tensor:
    """Cumulative sum along a dimension, ``y[i] = sum_{j<=i} x[j]``: :func:`torch.cumsum`.

    The backward is :func:`sternway.cumsum_backward`. It can be differentiated again and writes the gradient in x's memory
    layout, with ``create_graph=True`` in that of the upstream gradient; an expanded one is not copied. torch's keywords
    ``input`` and ``axis`` are accepted for x and dim; calls with ``dtype`` or ``out`` are torch's own operation.

    Args:
        x: a tensor of up to 8 dimensions; float32, float64, float16 or bfloat16, on the CPU or CUDA. Integers and complex
            numbers are left to torch.
        dim: the scanned dimension; a negative one counts from the end.
        reverse: True: scan from the last position to the first.
        exclusive: True: ``y[i]`` is the sum of the positions before i in scan order, 0 at the first.
        cu_seqlens: the bounds of sequences that are packed along dim and scanned apart, int32 or int64 [N + 1], rising from 0
            to the extent, on x's device: sequence k has the positions ``cu_seqlens[k]`` to ``cu_seqlens[k + 1] - 1``. None:
            one sequence.

    Returns:
        y, of x's shape and dtype.

    Raises:
        IndexError: dim out of range.
        InvalidProblemError: reverse or exclusive is no bool; bounds of sequences that do not rise from 0 to the extent.
        UnsupportedError: a rank, memory layout or device without a kernel.
        TypeError: x is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.ones(3, requires_grad=True)
        >>> st.cumsum(x, 0, reverse=True).sum().backward()
        >>> x.grad
        tensor([1., 2., 3.])
        >>> st.cumsum(torch.ones(5), 0, cu_seqlens=torch.tensor([0, 2, 5]))
        tensor([1., 2., 1., 2., 3.])
    """
    return _scan(x, "cumsum", dim, reverse, exclusive, cu_seqlens)  # type: ignore[no-any-return]


@_with_dtype
@_as_torch
def cumprod(x: Tensor, dim: int, *, reverse: bool = False, exclusive: bool = False, cu_seqlens: Tensor | None = None) -> Tensor:
    """Cumulative product along a dimension, ``y[i] = prod_{j<=i} x[j]``: :func:`torch.cumprod`.

    The backward is :func:`sternway.cumprod_backward`, which is exact for any number of zeros. Keywords are as for
    :func:`cumsum`.

    Args:
        x, dim, reverse, cu_seqlens: as for :func:`cumsum`.
        exclusive: True: the product of the positions before each in scan order, 1 at the first.

    Returns:
        y, of x's shape and dtype.

    Raises:
        IndexError, InvalidProblemError, UnsupportedError, TypeError: as for :func:`cumsum`.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([2.0, 0.0, 3.0, 4.0], requires_grad=True)
        >>> st.cumprod(x, 0).sum().backward()
        >>> x.grad
        tensor([ 1., 32.,  0.,  0.])
    """
    return _scan(x, "cumprod", dim, reverse, exclusive, cu_seqlens)  # type: ignore[no-any-return]


@_as_torch
def logcumsumexp(
    x: Tensor, dim: int, *, reverse: bool = False, exclusive: bool = False, cu_seqlens: Tensor | None = None
) -> Tensor:
    """``y[i] = log sum_{j<=i} exp(x[j])`` along a dimension: :func:`torch.logcumsumexp`.

    The backward is :func:`sternway.logcumsumexp_backward`. It is computed from x alone: an offset that is added to x costs no
    accuracy, and elements of -inf in front make no NaN. Keywords are as for :func:`cumsum`.

    Args:
        x, dim, reverse, cu_seqlens: as for :func:`cumsum`.
        exclusive: True: of the positions before each in scan order, -inf at the first.

    Returns:
        y, of x's shape and dtype.

    Raises:
        IndexError, InvalidProblemError, UnsupportedError, TypeError: as for :func:`cumsum`.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([-torch.inf, 0.0, 0.0], requires_grad=True)
        >>> st.logcumsumexp(x, 0)[2].backward()
        >>> x.grad
        tensor([0.0000, 0.5000, 0.5000])
    """
    return _scan(x, "logcumsumexp", dim, reverse, exclusive, cu_seqlens)  # type: ignore[no-any-return]


@_as_torch
def cummax(
    x: Tensor, dim: int, *, reverse: bool = False, exclusive: bool = False, cu_seqlens: Tensor | None = None
) -> torch.return_types.cummax:
    """Cumulative maximum along a dimension, with its positions: :func:`torch.cummax`.

    The backward is :func:`sternway.cummax_backward`. Keywords are as for :func:`cumsum`.

    Args:
        x, dim, reverse, cu_seqlens: as for :func:`cumsum`.
        exclusive: False; no position comes before the first, whose extremum would be none.

    Returns:
        a named tuple: ``values``, of x's shape and dtype, and ``indices``, their int64 positions along dim. The last of equal
        values in scan order wins.

    Raises:
        IndexError, InvalidProblemError, UnsupportedError, TypeError: as for :func:`cumsum`.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
        >>> st.cummax(x, 0).values.sum().backward()
        >>> x.grad
        tensor([1., 2., 0.])
    """
    return _scan(x, "cummax", dim, reverse, exclusive, cu_seqlens)  # type: ignore[no-any-return]


@_as_torch
def cummin(
    x: Tensor, dim: int, *, reverse: bool = False, exclusive: bool = False, cu_seqlens: Tensor | None = None
) -> torch.return_types.cummin:
    """Cumulative minimum along a dimension, with its positions: :func:`torch.cummin`.

    The backward is :func:`sternway.cummin_backward`. Keywords are as for :func:`cumsum`.

    Args:
        x, dim, reverse, cu_seqlens: as for :func:`cumsum`.
        exclusive: False; no position comes before the first, whose extremum would be none.

    Returns:
        a named tuple of values and indices, as for :func:`cummax`.

    Raises:
        IndexError, InvalidProblemError, UnsupportedError, TypeError: as for :func:`cumsum`.

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
    return _scan(x, "cummin", dim, reverse, exclusive, cu_seqlens)  # type: ignore[no-any-return]
