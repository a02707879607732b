"""Exclusive scans and scans of packed sequences for JAX, beside JAX's own scan of each sequence."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import sternway as sw  # noqa: E402
import sternway.jax as sj  # noqa: E402
from sternway._kinds import EXTREMA, KINDS  # noqa: E402

EDGES = [0, 0, 3, 4, 9, 9]
EMPTY = {"cumsum": 0.0, "cumprod": 1.0, "logcumsumexp": -np.inf}


def by_jax(kind: str, x: Any, axis: int, reverse: bool, exclusive: bool, edges: list[int]) -> Any:
    scan = getattr(jax.lax, "cumlogsumexp" if kind == "logcumsumexp" else kind)
    parts = []
    for low, high in itertools.pairwise(edges):
        if low == high:
            continue
        y = scan(jax.lax.slice_in_dim(x, low, high, axis=axis), axis % x.ndim, reverse)
        if exclusive:
            none, n = jnp.full_like(jax.lax.slice_in_dim(y, 0, 1, axis=axis), EMPTY[kind]), high - low
            rest = jax.lax.slice_in_dim(y, 1 if reverse else 0, n if reverse else n - 1, axis=axis)
            y = jnp.concatenate([rest, none] if reverse else [none, rest], axis)
        parts.append(y)
    return jnp.concatenate(parts, axis)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("axis", "reverse", "exclusive"), [(0, False, False), (-1, True, True)])
def test_values_and_derivatives(kind: str, axis: int, reverse: bool, exclusive: bool) -> None:
    """It alone finds a rule of JAX that drops the bounds or the shift: of the first or second derivative, vmap or jit."""
    if exclusive and kind in EXTREMA:
        with pytest.raises(sw.UnsupportedError, match="exclusive"):
            getattr(sj, kind)(jnp.ones(3), exclusive=True)
        return
    with jax.enable_x64(True):
        generator = np.random.default_rng(0)
        x, w = (jnp.array(generator.standard_normal((9, 9))) for _ in range(2))
        bounds = jnp.array(EDGES)

        def ours(x: Any, bounds: Any = bounds) -> Any:
            return getattr(sj, kind)(x, axis, reverse, exclusive=exclusive, cu_seqlens=bounds)

        def theirs(x: Any) -> Any:
            return by_jax(kind, x, axis, reverse, exclusive, EDGES)

        def gradient(scan: Any) -> Any:
            return jax.grad(lambda x: (jnp.where(jnp.isneginf(scan(x)), 0, scan(x)) * w).sum())

        close = {"rtol": 1e-9, "atol": 1e-11}
        np.testing.assert_allclose(ours(x), theirs(x), **close)
        np.testing.assert_allclose(gradient(ours)(x), gradient(theirs)(x), **close)
        if exclusive:
            second = (jax.grad(lambda x, f=f: (gradient(f)(x) * w).sum())(x) for f in (ours, theirs))
            np.testing.assert_allclose(*second, rtol=1e-8, atol=1e-9)
        both = jnp.stack([x, 2 * x])
        np.testing.assert_allclose(jax.jit(jax.vmap(ours))(both)[1], ours(2 * x))
        several = jax.vmap(lambda x, bounds: ours(x, bounds))(both, jnp.stack([bounds, jnp.array([0, 1, 1, 1, 2, 9])]))
        np.testing.assert_allclose(several[0], ours(x))


def test_bounds_that_do_not_rise() -> None:
    on_cpu = jax.default_device(jax.devices("cpu")[0])
    with on_cpu, pytest.raises(Exception, match="got 5 at position 1"):
        sj.cumsum(jnp.ones(4), cu_seqlens=jnp.array([0, 5])).block_until_ready()
    with pytest.raises(sw.InvalidProblemError, match="one dimension"):
        sj.cumsum(jnp.ones(4), cu_seqlens=jnp.ones((2, 2), int))
