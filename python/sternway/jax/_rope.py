"""Rotary position embedding for JAX."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .. import errors
from .._rope import RopeBackwardDescriptor, RopeBackwardPlan, RopeDescriptor, RopePlan
from .._rope_options import extents, options_of, refuse_complex
from .._types import Angle, Layout, Pairing
from ._call import Array, run
from ._mesh import arrays
from ._rules import Function, accumulator, batched, inside

__all__ = ["rope"]


class _Rotation(NamedTuple):
    """The options of a rotation, or of its transpose, the backward."""

    direction: str
    base: float
    pairing: str
    rotary_dim: int | None
    rotary_start: int
    angle: str
    layout: str


_PLANS: dict[str, tuple[Any, Any, str, str]] = {
    "forward": (RopePlan, RopeDescriptor, "x", "y"),
    "backward": (RopeBackwardPlan, RopeBackwardDescriptor, "dy", "dx"),
}
_TRANSPOSE = {"forward": "backward", "backward": "forward"}


@functools.lru_cache(maxsize=1024)
def _kernel(rotation: _Rotation) -> Function:
    """The rotated x, of x, positions, cos and sin."""
    plan, descriptor, given, result = _PLANS[rotation.direction]

    def call(x: Array, positions: Array | None, cos: Array | None, sin: Array | None) -> Array:
        problem = descriptor(*extents(x.shape, rotation.layout, given), x.dtype.name, *rotation[1:])
        inputs = {given: x, "positions": positions, "cos": cos, "sin": sin}
        return run(plan, problem, inputs, {result: (x.shape, x.dtype)})[0]

    return batched(call, functools.partial(_batch, rotation))


def _batch(rotation: _Rotation, size: int, is_batched: Sequence[Any], *operands: Array | None) -> Array:
    """Merge the dimension of a vmap with the batch, which the layout "thd" lacks."""
    x, positions, cos, sin = operands
    assert x is not None
    x = x if is_batched[0] else jnp.broadcast_to(x, (size, *x.shape))
    shape, layout = x.shape, rotation.layout
    if layout == "thd":
        x, layout = x[:, None], "bshd"
    inner = x.shape[1]

    def merged(table: Array | None, has: bool, rank: int, expand: bool) -> Array | None:
        """An operand that has the rank without a batch, with the merged batch; as it is if it has none and expand is False."""
        if table is None or not expand:
            return table
        table = table if has else table[None]
        table = table if table.ndim == rank + 2 else table[:, None]
        own = table.shape[2:]
        return jnp.broadcast_to(table, (size, inner, *own)).reshape(size * inner, *own)

    def has_batch(table: Array | None, has: bool, rank: int) -> bool:
        return table is not None and (has or table.ndim > rank)

    expand = has_batch(cos, is_batched[2], 2) or has_batch(sin, is_batched[3], 2)
    operands = (
        merged(positions, is_batched[1], 1, has_batch(positions, is_batched[1], 1)),
        merged(cos, is_batched[2], 2, expand),
        merged(sin, is_batched[3], 2, expand),
    )
    flat = x.reshape(size * inner, *x.shape[2:])
    return _kernel(rotation._replace(layout=layout))(flat, *operands).reshape(shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rotate(rotation: _Rotation, x: Array, positions: Array | None, cos: Array | None, sin: Array | None) -> Array:
    return _kernel(rotation)(x, positions, cos, sin)


def _rotate_forward(rotation: _Rotation, *operands: Array | None) -> tuple[Array, Any]:
    x, positions, cos, sin = operands
    return _rotate(rotation, *operands), (None if cos is None else x, positions, cos, sin)


def _rotate_backward(rotation: _Rotation, saved: Any, dy: Array) -> tuple[Array | None, ...]:
    x, positions, cos, sin = saved
    transpose = rotation._replace(direction=_TRANSPOSE[rotation.direction])
    dx = _rotate(transpose, dy, positions, cos, sin)
    if cos is None:
        return dx, None, None, None
    by_tables = functools.partial(_definition, rotation, x, positions)
    return dx, None, *jax.vjp(by_tables, cos, sin)[1](dy)


def _definition(rotation: _Rotation, x: Array, positions: Array | None, cos: Array, sin: Array) -> Array:
    """The rotation in operations of JAX, by which tables are differentiated. XLA drops it where no table needs a gradient."""
    dtype = accumulator(x.dtype)
    axes = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3)}.get(rotation.layout)
    y = x.astype(dtype)
    y = y.transpose(axes) if axes else y.swapaxes(0, 1)[None]  # [B, H, S, D]
    width = y.shape[-1] if rotation.rotary_dim is None else rotation.rotary_dim
    rotated = y[..., rotation.rotary_start : rotation.rotary_start + width]
    first, second = _pairs(rotated, rotation.pairing)
    c, s = (_rows(table.astype(dtype), positions, y.shape[2]) for table in (cos, sin))
    c_first, c_second = (c, c) if 2 * c.shape[-1] == width else _pairs(c, rotation.pairing)
    s_first, s_second = (s, s) if 2 * s.shape[-1] == width else _pairs(s, rotation.pairing)
    if rotation.direction == "forward":
        pair = c_first * first - s_first * second, c_second * second + s_second * first
    else:
        pair = c_first * first + s_second * second, c_second * second - s_first * first
    together = jnp.concatenate(pair, -1) if rotation.pairing == "half" else jnp.stack(pair, -1).reshape(rotated.shape)
    end = rotation.rotary_start + width
    y = jnp.concatenate([y[..., : rotation.rotary_start], together, y[..., end:]], -1).astype(x.dtype)
    return y.transpose(axes) if axes else y[0].swapaxes(0, 1)


def _pairs(x: Array, pairing: str) -> tuple[Array, Array]:
    """The first and the second elements of all pairs."""
    if pairing == "half":
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]
    return x[..., 0::2], x[..., 1::2]


def _rows(table: Array, positions: Array | None, tokens: int) -> Array:
    """The rows of a table for the tokens, as [B or 1, 1, tokens, columns]; 0 for a position outside the table."""
    table = table if table.ndim == 3 else table[None]
    if positions is None:
        return table[:, None, :tokens]
    positions = positions if positions.ndim == 2 else positions[None]
    batch = max(table.shape[0], positions.shape[0])
    positions = jnp.broadcast_to(positions, (batch, tokens))
    table = jnp.broadcast_to(table, (batch, *table.shape[1:]))
    positions = inside(positions, table.shape[1])
    return jnp.take_along_axis(table, positions[..., None], 1, mode="fill", fill_value=0)[:, None]


_rotate.defvjp(_rotate_forward, _rotate_backward)
_rotate_jit = jax.jit(_rotate, static_argnums=0)


@errors.reported_as("sternway.jax.rope", {"dtype": "x"})
def rope(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    *,
    base: float = 10000.0,
    cos: ArrayLike | None = None,
    sin: ArrayLike | None = None,
    pairing: Pairing = "interleaved",
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    angle: Angle = "float64",
    layout: Layout = "bhsd",
) -> jax.Array:
    """Rotary position embedding (Su et al., arXiv:2104.09864), with the formula of :func:`sternway.rope`.

    The gradient is the transposed rotation; it can be differentiated any number of times. Tables have gradients too, which are
    computed by operations of JAX.

    Args:
        x: [B, H, S, D] in the layout "bhsd"; float32, float64, float16 or bfloat16.
        positions: [S] or [B, S] ([tokens] in "thd"), int32 or int64; negative ones only without tables. None: 0 .. S-1.
        base: the base of the frequencies, a Python number.
        cos, sin: tables [P, rotary_dim / 2] or [P, rotary_dim], or with a leading batch; float32, float64 or x's dtype. Both
            or none is given.
        pairing: "interleaved" (elements 2k and 2k + 1 are a pair), or "half" (k and k + rotary_dim / 2).
        rotary_dim: the number of rotated elements of a head, even; None: all.
        rotary_start: the first rotated element.
        angle: "float64", or "float32" to form angles as models in float32 do.
        layout: "bhsd", "bshd" or "thd" (tokens, heads, dim).

    Returns:
        y, of x's shape and dtype.

    Raises:
        InvalidProblemError: shapes, dtypes or options that contradict each other.
        UnsupportedError: a dtype, pairing or layout without a kernel.
        jax.errors.JaxRuntimeError or ValueError: on the CPU, when it runs: a position outside the tables. On a GPU such a
            token is copied.

    Example:
        >>> import jax.numpy as jnp, sternway.jax as sj
        >>> x = jnp.array([1.0, 0.0, 1.0, 0.0]).reshape(1, 1, 2, 2)  # two tokens, one pair
        >>> sj.rope(x).round(3).tolist() == jnp.array([[[[1.0, 0.0], [0.54, 0.841]]]]).tolist()
        True
    """
    options = options_of(base, pairing, rotary_dim, rotary_start, angle, layout)
    refuse_complex("cos", cos)
    refuse_complex("sin", sin)
    y: jax.Array = _rotate_jit(_Rotation("forward", *options), *arrays(x, optional=(positions, cos, sin)))
    return y
