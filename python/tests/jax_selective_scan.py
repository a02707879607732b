"""The selective scan by operations of JAX, and calls of ours, for the tests."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sternway.jax as sj


def by_channel(x: Any, dim: int) -> Any:
    """B or C of a selective scan as [positions or 1, batch or 1, dim, n]."""
    if x.ndim == 2:
        return x[None, None]
    x = x[:, None] if x.ndim == 3 else x
    return jnp.moveaxis(jnp.repeat(x, dim // x.shape[1], 1), -1, 0)


def defined(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, delta_bias: Any, state: Any, bounds: list[int], softplus: bool
) -> tuple[Any, Any]:
    """A selective scan by positions: y, and the last states [batch, N, dim, n] as those that enter. JAX differentiates it."""
    step = delta if delta_bias is None else delta + delta_bias[:, None]
    step = jnp.moveaxis(jnp.logaddexp(step, 0) if softplus else step, -1, 0)[..., None]
    rows = jnp.moveaxis(u, -1, 0)[..., None]
    decays, terms = jnp.exp(step * A), step * by_channel(B, u.shape[1]) * rows
    entering = jnp.zeros((u.shape[0], len(bounds) - 1, *A.shape), u.dtype) if state is None else state
    owner = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))  # the sequence of each position
    begins = np.diff(owner, prepend=-1) > 0

    def one(h: Any, x: Any) -> Any:
        decay, term, is_first, before = x
        h = decay * jnp.where(is_first, before, h) + term
        return h, h

    xs = (decays, terms, jnp.asarray(begins), jnp.moveaxis(entering[:, owner], 1, 0))
    states = jax.lax.scan(one, jnp.zeros_like(entering[:, 0]), xs)[1]
    last = [states[end - 1] if begin < end else entering[:, k] for k, (begin, end) in enumerate(itertools.pairwise(bounds))]
    y = jnp.moveaxis((states * by_channel(C, u.shape[1])).sum(-1), 0, -1)
    y = y if D is None else y + D[:, None] * u
    return y if z is None else y * jax.nn.silu(z), jnp.stack(last, 1)


def together(outputs: tuple[Any, Any]) -> Any:
    """y and the last states, one after the other, in the dtype of y."""
    y, last = outputs
    return jnp.concatenate([y.ravel(), last.ravel().astype(y.dtype)])


def with_float32(u: Any, delta: Any, A: Any, B: Any, C: Any, **others: Any) -> Any:
    """Our y and last states of operands of one dtype: those that are float32 beside 16 bits become that."""
    wide = jnp.float64 if u.dtype == jnp.float64 else jnp.float32
    numbers = {name: x.astype(wide) for name, x in others.items() if name in ("D", "delta_bias", "initial_state")}
    B, C = (x.astype(wide) if x.ndim == 2 else x for x in (B, C))
    return sj.selective_scan(u, delta, A.astype(wide), B, C, **{**others, **numbers}, return_last_state=True)
