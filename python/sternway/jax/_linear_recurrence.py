"""Linear recurrences for JAX: ``h[t] = a[t] * h[t-1] + b[t]``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .. import errors
from .._linear_recurrence import (
    LinearRecurrenceDescriptor,
    LinearRecurrencePlan,
    broadcast,
    final_dtype,
    state_dtype_of,
    state_shape,
)
from .._linear_recurrence_backward import OUTPUTS, LinearRecurrenceBackwardDescriptor, LinearRecurrenceBackwardPlan
from .._sequences import count_sequences
from .._types import LinearGradient
from ._call import Array, Shaped, run
from ._mesh import arrays
from ._options import axis_of, flag
from ._rules import Function, accumulator, batched, differentiable, each_example, given, instantiated, leading, summed

__all__ = ["linear_recurrence"]

_NAME = "linear_recurrence"

Shape = tuple[int, ...]


class _Recurrence(NamedTuple):
    """The options of a recurrence; the axis counts from the end. Operands a and b have the rank of h, 1 or more."""

    axis: int
    reverse: bool


class _Gradient(NamedTuple):
    """A backward: the options of the forward, the shape of b, and the gradients to compute."""

    recurrence: _Recurrence
    b_shape: Shape
    needs: tuple[LinearGradient, ...]


def _fields(r: _Recurrence, shape: Shape, dtype: str, a_shape: Shape, b_shape: Shape, state: Any, bounds: Any) -> Any:
    """The fields of a descriptor."""
    return shape, dtype, r.axis, r.reverse, a_shape, b_shape, count_sequences(_NAME, bounds), state_dtype_of(dtype, state)


@functools.lru_cache(maxsize=1024)
def _forward_kernel(r: _Recurrence) -> Function:
    """h and the final state, of a, b, the initial state and the bounds of sequences."""

    def call(a: Array, b: Array, state: Array | None, bounds: Array | None) -> tuple[Array, Array]:
        if a.dtype != b.dtype and a.size != 1:  # plans take one float32 number beside 16 bits
            h, final = call(a, b.astype(a.dtype), None if state is None else state.astype(a.dtype), bounds)
            return h.astype(b.dtype), final
        shape, dtype = jnp.broadcast_shapes(a.shape, b.shape), b.dtype.name
        of_states = state_shape(shape, r.axis, count_sequences(_NAME, bounds)), final_dtype(dtype)
        problem = LinearRecurrenceDescriptor(*_fields(r, shape, dtype, a.shape, b.shape, state, bounds))
        inputs = {"a": a, "b": b, "initial_state": state, "cu_seqlens": bounds}
        h, final = run(LinearRecurrencePlan, problem, inputs, {"h": (shape, dtype), "final_state": of_states})
        return h, final

    def rule(size: int, is_batched: Sequence[Any], *operands: Array | None) -> Any:
        *others, bounds = operands
        if is_batched[-1]:
            return each_example(_forward_kernel(r), size, is_batched, operands)
        return _forward_kernel(r)(*leading(size, is_batched[:-1], others), bounds)

    return batched(call, rule)


def _shaped(g: _Gradient, dh: Array, a: Array, state: Array | None) -> dict[str, Shaped]:
    """The shape and the dtype of each gradient to compute."""
    like = {"da": a, "dinitial_state": state}
    return {name: (g.b_shape, dh.dtype) if name == "db" else (like[name].shape, like[name].dtype) for name in g.needs}


def _of_no_positions(shaped: dict[str, Shaped], dfinal: Array | None) -> tuple[Array, ...]:
    """The gradients of sequences without positions, which pass their states on."""
    zeros = {name: jnp.zeros(shape, dtype) for name, (shape, dtype) in shaped.items()}
    if dfinal is not None and "dinitial_state" in zeros:
        zeros["dinitial_state"] = dfinal.astype(zeros["dinitial_state"].dtype)
    return tuple(zeros.values())


@functools.lru_cache(maxsize=1024)
def _backward_kernel(g: _Gradient) -> Function:
    """The gradients, of dh, the gradient of the final state, a, h, the initial state and the bounds of sequences."""

    def call(dh: Array, dfinal: Array | None, a: Array, h: Array, state: Array | None, bounds: Array | None) -> Any:
        shaped = _shaped(g, dh, a, state)
        if a.dtype != dh.dtype and ("da" in g.needs or a.size != 1):  # plans round da to the dtype of h
            wide = accumulator(dh.dtype)
            state = None if state is None else state.astype(wide)
            grads = _backward_kernel(g)(dh.astype(wide), dfinal, a.astype(wide), h.astype(wide), state, bounds)
            return tuple(x.astype(dtype) for x, (_, dtype) in zip(grads, shaped.values(), strict=True))
        fields = _fields(g.recurrence, dh.shape, dh.dtype.name, a.shape, g.b_shape, state, bounds)
        problem = LinearRecurrenceBackwardDescriptor(*fields)
        inputs = {"dh": dh, "a": a, "h": h, "initial_state": state, "dfinal_state": dfinal, "cu_seqlens": bounds}
        return run(LinearRecurrenceBackwardPlan, problem, inputs, shaped)

    def rule(size: int, is_batched: Sequence[Any], *operands: Array | None) -> Any:
        *others, bounds = operands
        if is_batched[-1]:
            return each_example(_backward_kernel(g), size, is_batched, operands)
        kernel = _backward_kernel(g._replace(b_shape=(size, *g.b_shape)))
        return kernel(*leading(size, is_batched[:-1], others), bounds)

    return batched(call, rule)


def _definition(
    g: _Gradient, dh: Array, dfinal: Array | None, a: Array, h: Array, state: Array | None, bounds: Array | None
) -> tuple[Array, ...]:
    """The backward by a recurrence in the other direction and operations of JAX."""
    dtype, axis = accumulator(dh.dtype), g.recurrence.axis + dh.ndim
    n, to_next = dh.shape[axis], 1 if g.recurrence.reverse else -1
    shaped = _shaped(g, dh, a, state)
    if n == 0:
        return _of_no_positions(shaped, dfinal)
    cu = jnp.array([0, n]) if bounds is None else bounds
    is_empty = cu[:-1] == cu[1:]
    first, last = (cu[1:] - 1, cu[:-1]) if g.recurrence.reverse else (cu[:-1], cu[1:] - 1)
    outside = [jnp.where(is_empty, n, x) for x in (first, last)]  # in place of the ends of empty sequences
    starts = jnp.zeros(n, bool).at[outside[0]].set(True, mode="drop").reshape(-1, *(1,) * (dh.ndim - 1 - axis))

    def with_states(states: Array) -> Array:
        """States with their sequences in front."""
        return jnp.moveaxis(states.astype(dtype), axis, 0) if bounds is not None else states.astype(dtype)[None]

    def at(positions: Array, states: Array | None) -> Any:
        """States of sequences at positions, and 0 elsewhere."""
        if states is None:
            return 0
        rows = with_states(states)
        return jnp.moveaxis(jnp.zeros((n, *rows.shape[1:]), dtype).at[positions].add(rows, mode="drop"), 0, axis)

    wide = jnp.broadcast_to(a.astype(dtype), dh.shape)
    following = jnp.roll(jnp.where(starts, 0, wide), to_next, axis)  # 0 behind the last position of a sequence
    terms = dh.astype(dtype) + at(outside[1], dfinal)
    u = _recurrence(_Recurrence(g.recurrence.axis, not g.recurrence.reverse), following, terms, None, None)[0]
    before = jnp.where(starts, 0, jnp.roll(h.astype(dtype), -to_next, axis)) + at(outside[0], state)
    found = {"da": summed(u * before, a.shape), "db": summed(u, g.b_shape)}
    if state is not None:
        leaving = jnp.take(jnp.moveaxis(wide * u, axis, 0), jnp.where(is_empty, 0, first), 0)
        passed = jnp.zeros_like(leaving) if dfinal is None else with_states(dfinal)
        leaving = jnp.where(is_empty.reshape(-1, *(1,) * (dh.ndim - 1)), passed, leaving)
        found["dinitial_state"] = leaving[0] if bounds is None else jnp.moveaxis(leaving, 0, axis)
    return tuple(found[name].astype(dtype) for name, (_, dtype) in shaped.items())


@functools.lru_cache(maxsize=1024)
def _backward(g: _Gradient) -> Function:
    return differentiable(_backward_kernel(g), functools.partial(_definition, g))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recurrence(r: _Recurrence, a: Array, b: Array, state: Array | None, bounds: Array | None) -> tuple[Array, Array]:
    """h and the final state."""
    h, final = _forward_kernel(r)(a, b, state, bounds)
    return h, final


def _forward(r: _Recurrence, *primals: Any) -> tuple[tuple[Array, Array], Any]:
    (a, b, state, bounds), perturbed = given(primals)
    assert b is not None
    needs = {name: None for name, needed in zip(OUTPUTS, perturbed, strict=False) if needed}  # as keys, which are static
    h, final = _recurrence(r, a, b, state, bounds)
    return (h, final), (needs, a, jnp.zeros((0, *b.shape), b.dtype), h, state, bounds)  # an empty array carries the shape of b


def _gradients(r: _Recurrence, saved: Any, cotangents: Any) -> tuple[Array | None, ...]:
    needs, a, like, h, state, bounds = saved
    if not needs:
        return None, None, None, None
    dh, dfinal = cotangents
    dfinal = None if isinstance(dfinal, jax.custom_derivatives.SymbolicZero) else dfinal
    g = _Gradient(r, like.shape[1:], tuple(name for name in OUTPUTS if name in needs))
    found = dict(zip(g.needs, _backward(g)(instantiated(dh), dfinal, a, h, state, bounds), strict=True))
    return (*(found.get(name) for name in OUTPUTS), None)


_recurrence.defvjp(_forward, _gradients, symbolic_zeros=True)
_recurrence_jit = jax.jit(_recurrence, static_argnums=0)


@overload
def linear_recurrence(
    a: ArrayLike, b: ArrayLike, axis: int = ..., *, initial_state: ArrayLike | None = ..., reverse: bool = ...,
    cu_seqlens: ArrayLike | None = ..., output_final_state: Literal[False] = ...,
) -> jax.Array: ...  # fmt: skip
@overload
def linear_recurrence(
    a: ArrayLike, b: ArrayLike, axis: int = ..., *, initial_state: ArrayLike | None = ..., reverse: bool = ...,
    cu_seqlens: ArrayLike | None = ..., output_final_state: Literal[True],
) -> tuple[jax.Array, jax.Array]: ...  # fmt: skip
@errors.reported_as("sternway.jax.linear_recurrence", {"dtype": "b", "shape": "the broadcast shape", "a_shape": "a"})
def linear_recurrence(
    a: Any, b: Any, axis: int = -1, *, initial_state: Any = None, reverse: bool = False, cu_seqlens: Any = None,
    output_final_state: bool = False,
) -> Any:  # fmt: skip
    """Linear recurrence along an axis, ``h[t] = a[t] * h[t-1] + b[t]`` in scan order.

    Values are those of :func:`sternway.linear_recurrence`, and gradients of a, b and the initial state those of
    :func:`sternway.linear_recurrence_backward`. The gradient of the gradient consists of recurrences and operations of JAX.

    Args:
        a: the factors, an array of b's dtype that broadcasts with b, or a number.
        b: the terms; float32, float64, float16 or bfloat16. The broadcast shape has up to 8 dimensions.
        axis: the axis along which states follow each other; a negative one counts from the end.
        initial_state: h before the first position, of h's shape without the axis; with cu_seqlens, the number of sequences
            takes the place of the axis. Of h's dtype, or float32 beside 16 bits. None: 0, and the first decay is not applied.
        reverse: True: from the last position to the first, where the initial state enters.
        cu_seqlens: the bounds of sequences that are packed along the axis, int32 or int64 [N + 1], rising from 0 to the
            extent. The final state of an empty sequence is its initial state. None: one sequence.
        output_final_state: True: return the final state, too.

    Returns:
        h, of the broadcast shape and b's dtype; with output_final_state (h, final_state), where final_state has the shape of
        initial_state, in float32 beside 16 bits, else in h's dtype.

    Raises:
        InvalidProblemError: shapes that do not broadcast, an axis out of range, dtypes that differ, an option of
            another kind.
        UnsupportedError: another dtype, or more dimensions.

    Example:
        >>> import jax, jax.numpy as jnp, sternway.jax as sj
        >>> sj.linear_recurrence(0.5, jnp.ones(3))
        Array([1.  , 1.5 , 1.75], dtype=float32)
        >>> jax.grad(lambda a: sj.linear_recurrence(a, jnp.ones(3)).sum())(jnp.array([0.5, 0.5, 0.5]))
        Array([0. , 1.5, 1.5], dtype=float32)
    """
    factors, terms, state, bounds = arrays(a, b, optional=(initial_state, cu_seqlens))
    factors, terms = _alike(factors, terms)
    shape = broadcast(_NAME, factors.shape, terms.shape)
    rank = max(len(shape), 1)  # a number is a row of length 1
    wants_state = flag(_NAME, "output_final_state", output_final_state)
    recurrence = _Recurrence(axis_of(_NAME, axis, rank, "the broadcast shape"), flag(_NAME, "reverse", reverse))
    factors, terms = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (factors, terms))
    count_sequences(_NAME, bounds)
    state = state.astype(accumulator(terms.dtype)) if state is not None and state.weak_type else state
    h, final = _recurrence_jit(recurrence, factors, terms, state, bounds)
    return (h.reshape(shape), final) if wants_state else h.reshape(shape)


def _alike(a: Array, b: Array) -> tuple[Array, Array]:
    """Factors and terms of one dtype. A number beside an array takes its dtype, but as a factor beside 16 bits float32.

    Raises:
        InvalidProblemError: two arrays of dtypes that differ.
    """
    if a.weak_type and b.weak_type:
        dtype = jnp.promote_types(a.dtype, b.dtype)
        return a.astype(dtype), b.astype(dtype)
    if a.weak_type:
        return a.astype(accumulator(b.dtype) if a.ndim == 0 else b.dtype), b
    b = b.astype(a.dtype) if b.weak_type else b
    if a.dtype != b.dtype:
        raise errors.make("invalid_problem", _NAME, "a", f"{b.dtype} like b", str(a.dtype))
    return a, b
