"""The cumulative operations for JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, overload

import jax
from jax.typing import ArrayLike

from .. import errors
from .._kinds import ScanKind
from .._sequences import count_sequences
from .._types import Tie
from ._call import Array
from ._mesh import arrays
from ._options import axis_of, flag
from ._scan_rules import Scan, forward, with_indices

__all__ = ["cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"]


def _options(kind: ScanKind, x: Array, axis: Any, reverse: Any, exclusive: Any, tie: str = "last") -> Scan:
    """The options of a call as plain values.

    Raises:
        InvalidProblemError: an option of another kind, or an axis out of range.
    """
    if not isinstance(tie, str):
        raise errors.make("invalid_problem", kind, "tie", "a name", errors.shown(tie))
    axis = axis_of(kind, axis, x.ndim, "x")
    return Scan(kind, axis, flag(kind, "reverse", reverse), tie, flag(kind, "exclusive", exclusive))


def _rows(x: Any) -> tuple[Array, tuple[int, ...]]:
    """The operand as an array of rank 1 or more, and its shape. A number is a row of length 1."""
    (x,) = arrays(x)
    return (x if x.ndim else x[None]), x.shape


def _apply(kind: ScanKind, x: Any, axis: int, reverse: bool, exclusive: bool, cu_seqlens: Any) -> jax.Array:
    x, shape = _rows(x)
    y: jax.Array = forward(_options(kind, x, axis, reverse, exclusive), x, _bounds(kind, cu_seqlens)).reshape(shape)
    return y


def _bounds(kind: str, cu_seqlens: Any) -> Array | None:
    """The bounds of sequences as an array.

    Raises:
        InvalidProblemError: they are not of one dimension, or empty.
    """
    if cu_seqlens is None:
        return None
    (bounds,) = arrays(cu_seqlens)
    count_sequences(kind, bounds)
    return bounds


_OPERANDS = {"dtype": "x"}
"""The functions' names of what plans refuse."""


@errors.reported_as("sternway.jax.cumsum", _OPERANDS)
def cumsum(
    x: ArrayLike, axis: int = -1, reverse: bool = False, *, exclusive: bool = False, cu_seqlens: ArrayLike | None = None
) -> jax.Array:
    """Cumulative sum along an axis, as :func:`jax.lax.cumsum`: ``y[i] = sum_{j<=i} x[j]`` in scan order.

    The gradient is the sum in the other direction; it can be differentiated any number of times.

    Args:
        x: of any shape; float32, float64, float16 or bfloat16. A number is a row of length 1.
        axis: the scanned axis; a negative one counts from the end.
        reverse: True: scan from the last position to the first.
        exclusive: True: ``y[i]`` is the scan of the positions before i in scan order, and that of none, 0, at the first.
        cu_seqlens: the bounds of sequences that are packed along the axis and scanned apart, int32 or int64 [N + 1], rising
            from 0 to the extent: sequence k has the positions ``cu_seqlens[k]`` to ``cu_seqlens[k + 1] - 1``. None: one
            sequence.

    Returns:
        y, of x's shape and dtype.

    Raises:
        InvalidProblemError: an axis out of range, or an option of another kind.
        UnsupportedError: another dtype.

    Example:
        >>> import jax, jax.numpy as jnp, sternway.jax as sj
        >>> sj.cumsum(jnp.array([1.0, 2.0, 3.0]))
        Array([1., 3., 6.], dtype=float32)
        >>> jax.grad(lambda x: sj.cumsum(x)[1])(jnp.ones(3))
        Array([1., 1., 0.], dtype=float32)
    """
    return _apply("cumsum", x, axis, reverse, exclusive, cu_seqlens)


@errors.reported_as("sternway.jax.cumprod", _OPERANDS)
def cumprod(
    x: ArrayLike, axis: int = -1, reverse: bool = False, *, exclusive: bool = False, cu_seqlens: ArrayLike | None = None
) -> jax.Array:
    """Cumulative product along an axis, as :func:`jax.lax.cumprod`: ``y[i] = prod_{j<=i} x[j]`` in scan order.

    The gradient is finite where the true gradient is, also after zeros and where a product overflows; :func:`sternway.cumprod`
    and :func:`sternway.cumprod_backward` have the formulas. The gradient of the gradient is JAX's own.

    Args:
        x, axis, reverse, cu_seqlens: as for :func:`cumsum`.
        exclusive: True: the product of the positions before each in scan order, 1 at the first.

    Returns:
        y, of x's shape and dtype.

    Raises:
        InvalidProblemError, UnsupportedError: as for :func:`cumsum`.

    Example:
        >>> import jax, jax.numpy as jnp, sternway.jax as sj
        >>> jax.grad(lambda x: sj.cumprod(x).sum())(jnp.array([2.0, 0.0, 3.0, 4.0]))
        Array([ 1., 32.,  0.,  0.], dtype=float32)
    """
    return _apply("cumprod", x, axis, reverse, exclusive, cu_seqlens)


@errors.reported_as("sternway.jax.cumlogsumexp", {**_OPERANDS, "logcumsumexp": "cumlogsumexp"})
def cumlogsumexp(
    x: ArrayLike, axis: int = -1, reverse: bool = False, *, exclusive: bool = False, cu_seqlens: ArrayLike | None = None
) -> jax.Array:
    """Logarithm of the cumulative sum of exponentials along an axis, as :func:`jax.lax.cumlogsumexp`.

    :func:`sternway.logcumsumexp` and :func:`sternway.logcumsumexp_backward` have the formulas. The gradient of the gradient is
    JAX's own. ``logcumsumexp`` is another name of this function.

    Args:
        x, axis, reverse, cu_seqlens: as for :func:`cumsum`.
        exclusive: True: of the positions before each in scan order, -inf at the first.

    Returns:
        y, of x's shape and dtype.

    Raises:
        InvalidProblemError, UnsupportedError: as for :func:`cumsum`.

    Example:
        >>> import jax, jax.numpy as jnp, sternway.jax as sj
        >>> jax.grad(lambda x: sj.cumlogsumexp(x)[-1])(jnp.array([-jnp.inf, 0.0, 0.0]))
        Array([0. , 0.5, 0.5], dtype=float32)
    """
    return _apply("logcumsumexp", x, axis, reverse, exclusive, cu_seqlens)


logcumsumexp = cumlogsumexp


class _Extremum(Protocol):
    """The types of cummax and cummin."""

    @overload
    def __call__(
        self,
        x: ArrayLike,
        axis: int = ...,
        reverse: bool = ...,
        *,
        exclusive: bool = ...,
        cu_seqlens: ArrayLike | None = ...,
        return_indices: Literal[False] = ...,
        tie: Tie = ...,
    ) -> jax.Array: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        axis: int = ...,
        reverse: bool = ...,
        *,
        exclusive: bool = ...,
        cu_seqlens: ArrayLike | None = ...,
        return_indices: Literal[True],
        tie: Tie = ...,
    ) -> tuple[jax.Array, jax.Array]: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        axis: int = ...,
        reverse: bool = ...,
        *,
        exclusive: bool = ...,
        cu_seqlens: ArrayLike | None = ...,
        return_indices: bool,
        tie: Tie = ...,
    ) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def _overloaded(function: Callable[..., Any]) -> _Extremum:
    """Give cummax and cummin their types. It returns the function itself."""
    return function


def _extremum(
    kind: ScanKind, x: Any, axis: int, reverse: bool, exclusive: bool, cu_seqlens: Any, return_indices: bool, tie: str
) -> Any:
    x, shape = _rows(x)
    scan, bounds = _options(kind, x, axis, reverse, exclusive, tie), _bounds(kind, cu_seqlens)
    if not flag(kind, "return_indices", return_indices):
        return forward(scan, x, bounds).reshape(shape)
    y, indices = with_indices(scan, x, bounds)
    return y.reshape(shape), indices.reshape(shape)


@_overloaded
@errors.reported_as("sternway.jax.cummax", _OPERANDS)
def cummax(
    x: ArrayLike,
    axis: int = -1,
    reverse: bool = False,
    *,
    exclusive: bool = False,
    cu_seqlens: ArrayLike | None = None,
    return_indices: bool = False,
    tie: Tie = "last",
) -> Any:
    """Cumulative maximum along an axis, as :func:`jax.lax.cummax`: ``y[i] = max_{j<=i} x[j]`` in scan order.

    The gradient of ``y[i]`` goes to one position, that of the maximum. NaN beats every number.

    Args:
        x, axis, reverse, cu_seqlens: as for :func:`cumsum`.
        exclusive: False; no position comes before the first, whose extremum would be none.
        return_indices: True: also return positions.
        tie: the one of equal values that wins, in scan order: "last" or "first".

    Returns:
        y, of x's shape and dtype; with ``return_indices`` the pair (y, indices), where indices are the positions of the maxima
        along the axis, int64 if ``jax_enable_x64`` is set and int32 otherwise.

    Raises:
        InvalidProblemError: an axis out of range, or an option of another kind.
        UnsupportedError: another dtype or tie.

    Example:
        >>> import jax.numpy as jnp, sternway.jax as sj
        >>> sj.cummax(jnp.array([1.0, 3.0, 2.0, 3.0]), return_indices=True)
        (Array([1., 3., 3., 3.], dtype=float32), Array([0, 1, 1, 3], dtype=int32))
    """
    return _extremum("cummax", x, axis, reverse, exclusive, cu_seqlens, return_indices, tie)


@_overloaded
@errors.reported_as("sternway.jax.cummin", _OPERANDS)
def cummin(
    x: ArrayLike,
    axis: int = -1,
    reverse: bool = False,
    *,
    exclusive: bool = False,
    cu_seqlens: ArrayLike | None = None,
    return_indices: bool = False,
    tie: Tie = "last",
) -> Any:
    """Cumulative minimum along an axis, as :func:`jax.lax.cummin`: ``y[i] = min_{j<=i} x[j]`` in scan order.

    Args:
        x, axis, reverse, exclusive, cu_seqlens, return_indices, tie: as for :func:`cummax`.

    Returns:
        y, or the pair (y, indices), as for :func:`cummax`.

    Raises:
        InvalidProblemError, UnsupportedError: as for :func:`cummax`.

    Example:
        >>> import jax, jax.numpy as jnp, sternway.jax as sj
        >>> jax.grad(lambda x: sj.cummin(x, tie="first").sum())(jnp.array([2.0, 1.0, 1.0, 5.0]))
        Array([1., 3., 0., 0.], dtype=float32)
    """
    return _extremum("cummin", x, axis, reverse, exclusive, cu_seqlens, return_indices, tie)
