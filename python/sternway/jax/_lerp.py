"""Linear interpolation for JAX."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .. import errors
from .._lerp import OUTPUTS, LerpBackwardDescriptor, LerpBackwardPlan
from .._types import LerpGradient
from ._call import Array, check, run
from ._mesh import arrays
from ._rules import Function, accumulator, batched, differentiable, given, instantiated, leading, summed

__all__ = ["lerp"]

Shape = tuple[int, ...]


class _Lerp(NamedTuple):
    """A backward: the weight as text if it is a number, the shapes of a, b and weight, and the gradients to compute."""

    number: str | None
    shapes: tuple[Shape, Shape, Shape]
    needs: tuple[LerpGradient, ...]


def _interpolated(number: str | None, a: Array, b: Array, weight: Array | None) -> Array:
    """The forward. It is exact at weights 0 and 1."""
    dtype = accumulator(a.dtype if weight is None else jnp.promote_types(a.dtype, weight.dtype))
    w = jnp.asarray(float(number), dtype) if number is not None else weight.astype(dtype)  # type: ignore[union-attr]
    low, high = a.astype(dtype), b.astype(dtype)
    return jnp.where(jnp.abs(w) < 0.5, low + w * (high - low), high - (high - low) * (1 - w)).astype(a.dtype)


@functools.lru_cache(maxsize=1024)
def _kernel(lerp: _Lerp) -> Function:
    """The gradients, of dy, a, b and weight; a and b are None unless dweight is needed."""

    def call(dy: Array, a: Array | None, b: Array | None, weight: Array | None) -> Any:
        number = None if lerp.number is None else float(lerp.number)
        a_shape, b_shape, weight_shape = lerp.shapes
        problem = LerpBackwardDescriptor(
            dy.shape, dy.dtype.name, number, a_shape, b_shape, weight_shape if number is None else None
        )
        inputs = {"dy": dy, "weight": weight, "a": a, "b": b}
        shapes = dict(zip(OUTPUTS, lerp.shapes, strict=True))
        return run(LerpBackwardPlan, problem, inputs, {name: (shapes[name], dy.dtype) for name in lerp.needs})

    return batched(call, functools.partial(_batch, lerp))


def _batch(lerp: _Lerp, size: int, is_batched: Sequence[Any], *operands: Array | None) -> tuple[Array, ...]:
    """Put the batch in front of every shape: gradients are those of each example."""
    dy, *others = leading(size, is_batched, operands)
    assert dy is not None
    shapes: Any = tuple((size, *(1,) * (dy.ndim - 1 - len(shape)), *shape) for shape in lerp.shapes)
    wide = [x if x is None else x.reshape(shape) for x, shape in zip(others, shapes, strict=True)]
    results = _kernel(lerp._replace(shapes=shapes))(dy, *wide)
    own = dict(zip(OUTPUTS, lerp.shapes, strict=True))
    return tuple(x.reshape(size, *own[name]) for name, x in zip(lerp.needs, results, strict=True))


def _definition(lerp: _Lerp, dy: Array, a: Array | None, b: Array | None, weight: Array | None) -> tuple[Array, ...]:
    """The backward in operations of JAX."""
    dtype = accumulator(dy.dtype)
    w = float(lerp.number) if weight is None else weight.astype(dtype)  # type: ignore[arg-type]
    dy = dy.astype(dtype)
    values = {"da": lambda: (1 - w) * dy, "db": lambda: w * dy}
    if a is not None and b is not None:
        values["dweight"] = lambda: dy * (b.astype(dtype) - a.astype(dtype))
    shapes = dict(zip(OUTPUTS, lerp.shapes, strict=True))
    return tuple(summed(values[name](), shapes[name]) for name in lerp.needs)


@functools.lru_cache(maxsize=1024)
def _backward(lerp: _Lerp) -> Function:
    def definition(dy: Array, *others: Array | None) -> tuple[Array, ...]:
        return tuple(x.astype(dy.dtype) for x in _definition(lerp, dy, *others))

    return differentiable(_kernel(lerp), definition)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _lerp(number: str | None, a: Array, b: Array, weight: Array | None) -> Array:
    return _interpolated(number, a, b, weight)


def _forward(number: str | None, *primals: Any) -> tuple[Array, Any]:
    (a, b, weight), perturbed = given(primals)
    needs = {name: None for name, needed in zip(OUTPUTS, perturbed, strict=True) if needed}  # as keys, which are static
    assert a is not None
    assert b is not None
    ends = (a, b) if "dweight" in needs else (None, None)
    like = tuple(jnp.zeros((0, *x.shape), x.dtype) for x in (a, b))  # empty arrays, which carry the shapes of the ends
    return _interpolated(number, a, b, weight), (needs, ends, like, weight)


def _gradients(number: str | None, saved: Any, dy: Any) -> tuple[Array | None, ...]:
    needs, ends, like, weight = saved
    if not needs:
        return None, None, None
    weight_shape = () if weight is None else weight.shape
    lerp = _Lerp(number, (*(x.shape[1:] for x in like), weight_shape), tuple(name for name in OUTPUTS if name in needs))
    dy = instantiated(dy)
    narrow, wide = dy.dtype, dy.dtype if weight is None else weight.dtype  # a weight is not rounded before 1 - weight is formed
    dy, *ends = (x if x is None else x.astype(wide) for x in (dy, *ends))
    found = dict(zip(lerp.needs, _backward(lerp)(dy, *ends, weight), strict=True))
    da, db = (None if name not in found else found[name].astype(narrow) for name in ("da", "db"))
    return da, db, found.get("dweight")


_lerp.defvjp(_forward, _gradients, symbolic_zeros=True)
_lerp_jit = jax.jit(_lerp, static_argnums=0)


@errors.reported_as("sternway.jax.lerp", {"dtype": "a"})
def lerp(a: ArrayLike, b: ArrayLike, weight: ArrayLike) -> jax.Array:
    """Linear interpolation, ``y = a + weight * (b - a)``, with broadcasting.

    Gradients are those of :func:`sternway.lerp_backward`, summed over the dimensions along which an operand was broadcast. The
    gradient of the gradient is computed by operations of JAX.

    Args:
        a, b: the ends; float32, float64, float16 or bfloat16, both of one dtype. A Python number takes that of the other.
        weight: a number, or an array of that dtype. Under ``jax.jit`` and ``jax.grad``, an array.

    Returns:
        y, of the broadcast shape of up to 8 dimensions and of a's dtype.

    Raises:
        InvalidProblemError: shapes that cannot be broadcast together, or dtypes that differ.
        UnsupportedError: another dtype.

    Example:
        >>> import jax, jax.numpy as jnp, sternway.jax as sj
        >>> sj.lerp(jnp.zeros(2), jnp.ones(2), 0.25)
        Array([0.25, 0.25], dtype=float32)
        >>> jax.grad(lambda w: sj.lerp(jnp.zeros(2), jnp.ones(2), w).sum())(0.25)
        Array(2., dtype=float32, weak_type=True)
    """
    number: str | None = None
    factor: Any = weight
    if isinstance(weight, numbers.Real) or (isinstance(weight, np.generic) and not isinstance(weight, np.complexfloating)):
        number, factor = _text(weight), None
    elif weight is None:
        raise errors.make("invalid_problem", "lerp", "weight", "a number or an array", "None")
    low, high, w = arrays(a, b, optional=(factor,))
    low, high = low.astype(high.dtype) if low.weak_type else low, high.astype(low.dtype) if high.weak_type else high
    dtypes = {"a": low.dtype, "b": low.dtype, "weight": low.dtype}
    if w is not None and w.weak_type:  # a number that is traced keeps its digits
        dtypes["weight"] = jnp.promote_types(low.dtype, w.dtype)
        w = w.astype(dtypes["weight"])
    operands = {"a": low, "b": high} if w is None else {"a": low, "b": high, "weight": w}
    for name, x in operands.items():
        if x.dtype != dtypes[name]:
            raise errors.make("invalid_problem", "lerp", name, f"{low.dtype} like a", str(x.dtype))
    try:
        shape = jnp.broadcast_shapes(*(x.shape for x in operands.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in operands.items())
        raise errors.make("invalid_problem", "lerp", "the operands", "of shapes that broadcast", shapes) from None
    check(
        LerpBackwardPlan,
        LerpBackwardDescriptor(shape, low.dtype.name, 0.5),
        {"dy": (shape, low.dtype), "da": (shape, low.dtype)},
    )
    y: jax.Array = _lerp_jit(number, low, high, w)
    return y


def _text(weight: Any) -> str:
    """A number as text, which tells 0.0 from -0.0."""
    try:
        return repr(float(weight))
    except OverflowError:
        raise errors.make("invalid_problem", "lerp", "weight", "within the range of float64", errors.shown(weight)) from None
