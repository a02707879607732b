"""The scans of JAX by plans: their derivatives, and their rules for vmap."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._kinds import EXTREMA, KINDS, ScanKind
from .._scan import ScanBackwardDescriptor, ScanBackwardPlan
from .._scan_forward import ScanDescriptor, ScanPlan
from .._sequences import count_sequences
from ._call import Array, run
from ._linear_recurrence import linear_recurrence
from ._rules import Function, batched, each_example, leading


class Scan(NamedTuple):
    """The options of a scan; the axis counts from the end."""

    kind: ScanKind
    axis: int
    reverse: bool
    tie: str
    exclusive: bool


@functools.lru_cache(maxsize=1024)
def _forward_kernel(scan: Scan, outputs: tuple[str, ...]) -> Function:
    """The outputs of a forward plan, some of "y" and "indices", of x and the bounds of sequences, or None."""

    def call(x: Array, bounds: Array | None) -> Any:
        dtypes = {"y": x.dtype, "indices": np.dtype("int64")}
        return _run(ScanPlan, ScanDescriptor, scan, {"x": x}, bounds, {name: dtypes[name] for name in outputs})

    return batched(call, functools.partial(_mapped, lambda *operands: _forward_kernel(scan, outputs)(*operands)))


@functools.lru_cache(maxsize=1024)
def _backward_kernel(scan: Scan) -> Function:
    """dx of dy, x and the bounds of sequences; x is None for cumsum."""

    def call(dy: Array, x: Array | None, bounds: Array | None) -> Array:
        return _run(ScanBackwardPlan, ScanBackwardDescriptor, scan, {"dy": dy, "x": x}, bounds, {"dx": dy.dtype})[0]

    return batched(call, functools.partial(_mapped, lambda *operands: _backward_kernel(scan)(*operands)))


def _mapped(kernel: Function, size: int, is_batched: Any, *operands: Array | None) -> Any:
    """The rule for vmap: a batch is one more dimension, unless the bounds of sequences differ in it."""
    *others, bounds = operands
    if is_batched[-1] is True:
        return each_example(kernel, size, is_batched, operands)
    return kernel(*leading(size, is_batched[:-1], others), bounds)


def _run(
    plan_type: Any, descriptor_type: Any, scan: Scan, inputs: dict[str, Any], bounds: Array | None, outputs: dict[str, Any]
) -> Any:
    """Run a plan on arrays of any rank: the dimensions before the axis are one, and so are those behind it."""
    shape = next(iter(inputs.values())).shape
    axis = scan.axis + len(shape)
    flat = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    dtype = next(iter(inputs.values())).dtype.name
    sequences = count_sequences(scan.kind, bounds)
    descriptor = descriptor_type(scan.kind, flat, dtype, 1, scan.reverse, scan.tie, False, sequences, scan.exclusive)
    operands = {name: None if x is None else x.reshape(flat) for name, x in inputs.items()}
    operands["cu_seqlens"] = bounds
    results = run(plan_type, descriptor, operands, {name: (flat, dtype) for name, dtype in outputs.items()})
    return tuple(y.reshape(shape) for y in results)


def _gradient(scan: Scan, dy: Array, x: Array | None, bounds: Array | None) -> Array:
    return _backward(scan, dy, x, bounds)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _forward(scan: Scan, x: Array, bounds: Array | None) -> Array:
    return _forward_kernel(scan, ("y",))(x, bounds)[0]


_forward.defvjp(
    lambda scan, x, bounds: (_forward(scan, x, bounds), (x if KINDS[scan.kind].operands else None, bounds)),
    lambda scan, saved, dy: (_gradient(scan, dy, *saved), None),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_indices(scan: Scan, x: Array, bounds: Array | None) -> tuple[Array, Array]:
    """Values and positions."""
    y, indices = _forward_kernel(scan, ("y", "indices"))(x, bounds)
    return y, indices


_with_indices.defvjp(
    lambda scan, x, bounds: (_with_indices(scan, x, bounds), (x, bounds)),
    lambda scan, saved, dys: (_gradient(scan, dys[0], *saved), None),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _backward(scan: Scan, dy: Array, x: Array | None, bounds: Array | None) -> Array:
    return _backward_kernel(scan)(dy, x, bounds)


_OF_JAX = {"cumprod": jax.lax.cumprod, "logcumsumexp": jax.lax.cumlogsumexp}


def _second(scan: Scan, operands: tuple[Array, Array | None, Array | None], ddx: Array) -> tuple[Array, Array | None, None]:
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


def _packed_gradient(scan: Scan, dy: Array, x: Array, bounds: Array | None) -> Array:
    """dx of cumprod or logcumsumexp, in terms that can be differentiated any number of times."""
    if scan.kind == "logcumsumexp":
        return _weighted(scan, True, dy, x, bounds)
    axis, n = scan.axis + x.ndim, x.shape[scan.axis]
    # dx[k] = L[k] R[k], where R[k] = dy[k] + x[k+1] R[k+1]; of an exclusive scan, dy is that of the next position.
    if scan.exclusive:
        ends = jnp.array([0, n]) if bounds is None else bounds
        ends = ends[:-1] if scan.reverse else ends[1:] - 1
        # The end of an empty sequence is that of the one before it; -1 and n name the last position and none.
        is_last = jnp.zeros(n, bool).at[ends].set(True, mode="drop")
        is_last = is_last.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        dy = jnp.where(is_last, 0, jnp.roll(dy, 1 if scan.reverse else -1, axis))
    wide, dtype = jax.dtypes.canonicalize_dtype(np.float64), dy.dtype  # L and R may leave the range of dx
    dy, x = dy.astype(wide), x.astype(wide)
    left = _forward(scan._replace(exclusive=True), x, bounds)
    following = jnp.roll(x, 1 if scan.reverse else -1, axis)
    return (left * linear_recurrence(following, dy, axis, reverse=not scan.reverse, cu_seqlens=bounds)).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _weighted(scan: Scan, transposed: bool, u: Array, x: Array, bounds: Array | None) -> Array:
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
    scan: Scan, transposed: bool, saved: tuple[Array, Array, Array | None], g: Array
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

forward = jax.jit(_forward, static_argnums=0)
with_indices = jax.jit(_with_indices, static_argnums=0)
