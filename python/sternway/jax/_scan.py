"""The cumulative operations for JAX."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .. import errors
from .._kinds import EXTREMA, KINDS, ScanKind
from .._scan import ScanBackwardDescriptor, ScanBackwardPlan
from .._scan_forward import ScanDescriptor, ScanPlan
from .._sequences import sequences_of
from .._types import Tie
from ._call import Array, run
from ._linear_recurrence import linear_recurrence
from ._mesh import arrays
from ._rules import Function, batched, each_example, leading

__all__ = ["cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"]


class _Scan(NamedTuple):
    """The options of a scan; the axis counts from the end."""

    kind: ScanKind
    axis: int
    reverse: bool
    tie: str
    exclusive: bool


@functools.lru_cache(maxsize=1024)
def _forward_kernel(scan: _Scan, outputs: tuple[str, ...]) -> Function:
    """The outputs of a forward plan, some of "y" and "indices", of x and the bounds of sequences, or None."""

    def call(x: Array, bounds: Array | None) -> Any:
        dtypes = {"y": x.dtype, "indices": np.dtype("int64")}
        return _run(ScanPlan, ScanDescriptor, scan, {"x": x}, bounds, {name: dtypes[name] for name in outputs})

    return batched(call, functools.partial(_mapped, lambda *operands: _forward_kernel(scan, outputs)(*operands)))


@functools.lru_cache(maxsize=1024)
def _backward_kernel(scan: _Scan) -> Function:
    """dx of dy, x and the bounds of sequences; x is None for cumsum."""

    def call(dy: Array, x: Array | None, bounds: Array | None) -> Array:
        return _run(ScanBackwardPlan, ScanBackwardDescriptor, scan, {"dy": dy, "x": x}, bounds, {"dx": dy.dtype})[0]

    return batched(call, functools.partial(_mapped, lambda *operands: _backward_kernel(scan)(*operands)))


def _mapped(kernel: Function, size: int, is_batched: Any, *operands: Array | None) -> Any:
    """The rule for vmap: a batch is one more dimension, unless the bounds of sequences differ in it."""
    *arrays, bounds = operands
    if is_batched[-1] is True:
        return each_example(kernel, size, is_batched, operands)
    return kernel(*leading(size, is_batched[:-1], arrays), bounds)


def _run(
    plan_type: Any, descriptor_type: Any, scan: _Scan, inputs: dict[str, Any], bounds: Array | None, outputs: dict[str, Any]
) -> Any:
    """Run a plan on arrays of any rank: the dimensions before the axis are one, and so are those behind it."""
    shape = next(iter(inputs.values())).shape
    axis = scan.axis + len(shape)
    flat = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    dtype = next(iter(inputs.values())).dtype.name
    sequences = sequences_of(scan.kind, bounds)
    descriptor = descriptor_type(scan.kind, flat, dtype, 1, scan.reverse, scan.tie, False, sequences, scan.exclusive)
    operands = {name: None if x is None else x.reshape(flat) for name, x in inputs.items()}
    operands["cu_seqlens"] = bounds
    results = run(plan_type, descriptor, operands, {name: (flat, dtype) for name, dtype in outputs.items()})
    return tuple(y.reshape(shape) for y in results)


def _gradient(scan: _Scan, dy: Array, x: Array | None, bounds: Array | None) -> Array:
    return _backward(scan, dy, x, bounds)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _forward(scan: _Scan, x: Array, bounds: Array | None) -> Array:
    return _forward_kernel(scan, ("y",))(x, bounds)[0]


_forward.defvjp(
    lambda scan, x, bounds: (_forward(scan, x, bounds), (x if KINDS[scan.kind].operands else None, bounds)),
    lambda scan, saved, dy: (_gradient(scan, dy, *saved), None),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_indices(scan: _Scan, x: Array, bounds: Array | None) -> tuple[Array, Array]:
    """Values and positions."""
    y, indices = _forward_kernel(scan, ("y", "indices"))(x, bounds)
    return y, indices


_with_indices.defvjp(
    lambda scan, x, bounds: (_with_indices(scan, x, bounds), (x, bounds)),
    lambda scan, saved, dys: (_gradient(scan, dys[0], *saved), None),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _backward(scan: _Scan, dy: Array, x: Array | None, bounds: Array | None) -> Array:
    return _backward_kernel(scan)(dy, x, bounds)


_OF_JAX = {"cumprod": jax.lax.cumprod, "logcumsumexp": jax.lax.cumlogsumexp}


def _second(scan: _Scan, operands: tuple[Array, Array | None, Array | None], ddx: Array) -> tuple[Array, Array | None, None]:
    """The gradient of the backward. That of plain cumprod and logcumsumexp is JAX's own."""
    dy, x, bounds = operands
    if x is None:
        return _forward(scan, ddx, bounds), None, None
    axis = scan.axis + x.ndim
    if scan.kind in EXTREMA:
        return jnp.take_along_axis(ddx, _with_indices(scan, x, bounds)[1], axis), jnp.zeros_like(x), None

    def definition(dy: Array, x: Array) -> Array:
        if scan.exclusive or bounds is not None:
            return _packed_gradient(scan, dy, x, bounds)
        return jax.vjp(lambda x: _OF_JAX[scan.kind](x, axis, scan.reverse), x)[1](dy)[0]

    return (*jax.vjp(definition, dy, x)[1](ddx), None)


_backward.defvjp(lambda scan, dy, x, bounds: (_backward(scan, dy, x, bounds), (dy, x, bounds)), _second)


def _packed_gradient(scan: _Scan, dy: Array, x: Array, bounds: Array | None) -> Array:
    """dx of cumprod or logcumsumexp, in terms that can be differentiated any number of times."""
    if scan.kind == "logcumsumexp":
        return _weighted(scan, True, dy, x, bounds)
    axis, n = scan.axis + x.ndim, x.shape[scan.axis]
    # dx[k] = L[k] R[k], where R[k] = dy[k] + x[k+1] R[k+1]; of an exclusive scan, dy is that of the next position.
    if scan.exclusive:
        ends = jnp.array([0, n]) if bounds is None else bounds
        ends = ends[:-1] if scan.reverse else ends[1:] - 1
        is_last = jnp.zeros(n, bool).at[ends].set(True, mode="drop")
        is_last = is_last.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        dy = jnp.where(is_last, 0, jnp.roll(dy, 1 if scan.reverse else -1, axis))
    left = _forward(scan._replace(exclusive=True), x, bounds)
    following = jnp.roll(x, 1 if scan.reverse else -1, axis)
    return left * linear_recurrence(following, dy, axis, reverse=not scan.reverse, cu_seqlens=bounds)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _weighted(scan: _Scan, transposed: bool, u: Array, x: Array, bounds: Array | None) -> Array:
    """The weights of the softmax of each prefix, ``w[i, k] = exp(x[k] - y[i])``, multiplied by a vector u.

    ``sum_k w[i, k] u[k]``; transposed, ``sum_i w[i, k] u[i]``, which is the gradient of logcumsumexp. Each is the derivative of
    the other.
    """
    if transposed:
        return _backward_kernel(scan)(u, x, bounds)
    wide = jax.dtypes.canonicalize_dtype(np.float64)  # whose offset rounds the logarithm of u
    dtype, u, x = u.dtype, u.astype(wide), x.astype(wide)
    y = _forward(scan, x, bounds)
    above, below = (jnp.exp(_forward(scan, x + jnp.log(jnp.maximum(part, 0)), bounds) - y) for part in (u, -u))
    return jnp.where(jnp.isneginf(y), 0, above - below).astype(dtype)


def _weighted_gradient(
    scan: _Scan, transposed: bool, saved: tuple[Array, Array, Array | None], g: Array
) -> tuple[Array, Array, None]:
    u, x, bounds = saved

    def weighted(u: Array, transposed: bool) -> Array:
        return _weighted(scan, transposed, u, x, bounds)

    left, right = (u, g) if transposed else (g, u)  # of sum left[i] w[i, k] right[k]
    dx = right * weighted(left, True) - weighted(left * weighted(right, False), True)
    return weighted(g, not transposed), dx, None


_weighted.defvjp(
    lambda scan, transposed, u, x, bounds: (_weighted(scan, transposed, u, x, bounds), (u, x, bounds)), _weighted_gradient
)

_forward_jit = jax.jit(_forward, static_argnums=0)
_with_indices_jit = jax.jit(_with_indices, static_argnums=0)


def _options(kind: ScanKind, x: Array, axis: Any, reverse: Any, exclusive: Any, tie: str = "last") -> _Scan:
    """The options of a call as plain values.

    Raises:
        InvalidProblemError: an axis out of range.
    """
    if not isinstance(tie, str):
        raise errors.make("invalid_problem", kind, "tie", "a name", errors.shown(tie))
    axis = operator.index(axis)
    if not -x.ndim <= axis < x.ndim:
        raise errors.make("invalid_problem", kind, "axis", f"one of the {x.ndim} axes of x", str(axis))
    return _Scan(kind, axis if axis < 0 else axis - x.ndim, bool(reverse), tie, bool(exclusive))


def _rows(x: Any) -> tuple[Array, tuple[int, ...]]:
    """The operand as an array of rank 1 or more, and its shape. A number is a row of length 1."""
    (x,) = arrays(x)
    return (x if x.ndim else x[None]), x.shape


def _apply(kind: ScanKind, x: Any, axis: int, reverse: bool, exclusive: bool, cu_seqlens: Any) -> jax.Array:
    x, shape = _rows(x)
    y: jax.Array = _forward_jit(_options(kind, x, axis, reverse, exclusive), x, _bounds(kind, cu_seqlens)).reshape(shape)
    return y


def _bounds(kind: str, cu_seqlens: Any) -> Array | None:
    """The bounds of sequences as an array.

    Raises:
        InvalidProblemError: they are not of one dimension, or empty.
    """
    if cu_seqlens is None:
        return None
    (bounds,) = arrays(cu_seqlens)
    sequences_of(kind, bounds)
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
        InvalidProblemError: an axis out of range.
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
    if not return_indices:
        return _forward_jit(scan, x, bounds).reshape(shape)
    y, indices = _with_indices_jit(scan, x, bounds)
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
        InvalidProblemError: an axis out of range.
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
