"""Selective scans for JAX, the recurrence of Mamba."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .. import errors
from .._selective_scan import (
    FIELDS,
    SelectiveScanDescriptor,
    SelectiveScanPlan,
    chunk_shape,
    problem_fields,
    state_shape,
)
from .._selective_scan_backward import OUTPUTS, SelectiveScanBackwardDescriptor, SelectiveScanBackwardPlan
from ._call import Array, Shaped, Struct, run
from ._linear_recurrence import linear_recurrence
from ._mesh import arrays
from ._options import flag
from ._rules import Function, accumulator, batched, differentiable, each_example, given, instantiated

__all__ = ["selective_scan"]

_NAME = "selective_scan"

_OPERANDS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state", "cu_seqlens")
"""The operands of a call, in order. All but cu_seqlens have gradients; OUTPUTS has their names in this order."""

_INPUTS = ("dy", "dlast_state", "chunk_states", *_OPERANDS)
"""The inputs of both plans, in order; the first three are those of the backward."""

Shape = tuple[int, ...]


def _results(softplus: bool, inputs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Shaped]]:
    """The fields of a descriptor, and the shapes and dtypes of the outputs of both plans."""
    u, _, A, B, C, D, z, delta_bias, _, bounds = ({**dict.fromkeys(_OPERANDS), **inputs}[name] for name in _OPERANDS)
    fields, wide = problem_fields(_NAME, u, A, B, C, D, z, delta_bias, softplus, bounds), accumulator(u.dtype)
    shaped = {"y": (u.shape, u.dtype), "last_state": (state_shape(fields), wide), "chunk_states": (chunk_shape(fields), wide)}
    return fields, {**shaped, **{f"d{name}": (x.shape, x.dtype) for name, x in inputs.items()}}


@functools.lru_cache(maxsize=1024)
def _kernel(softplus: bool, outputs: tuple[str, ...]) -> Function:
    """Some outputs of one of the plans, of _INPUTS; None is left out."""

    def call(*operands: Array | None) -> Any:
        inputs = {name: x for name, x in zip(_INPUTS, operands, strict=True) if x is not None}
        fields, shaped = _results(softplus, inputs)
        results = {name: shaped[name] for name in outputs}
        if "dy" in inputs:
            return run(SelectiveScanBackwardPlan, SelectiveScanBackwardDescriptor(*fields), inputs, results)
        return run(SelectiveScanPlan, SelectiveScanDescriptor(*fields), inputs, results)

    def rule(size: int, is_batched: Sequence[Any], *operands: Array | None) -> Any:
        """A batch is one call with as many times the channels, so that every operand has its own gradient."""
        if is_batched[-1] or size == 0:
            return each_example(_kernel(softplus, outputs), size, is_batched, operands)
        examples, wider = {}, []
        for name, x, has in zip(_INPUTS, operands, is_batched, strict=True):
            if x is not None:
                examples[name] = Struct(x.shape[1:] if has else x.shape, x.dtype)
            wider.append(x if x is None or name == "cu_seqlens" else _with_channels(name, x, size, has))
        shaped = _results(softplus, examples)[1]
        found = _kernel(softplus, outputs)(*wider)
        return tuple(_by_example(name, x, size, shaped[name][0]) for name, x in zip(outputs, found, strict=True))

    return batched(call, rule)


def _axis(name: str, rank: int) -> int:
    """The axis of channels, or of their groups, of an input or output."""
    return rank - 2 if name.endswith("_state") else int(rank > 2)


def _with_channels(name: str, x: Array, size: int, is_batched: bool) -> Array:
    """An input of all examples, one behind the other along its channels or groups.

    is_batched: whether its first dimension has the examples; otherwise all have the same.
    """
    shape = x.shape[1:] if is_batched else x.shape
    axis = _axis(name, len(shape))
    x = jnp.moveaxis(x, 0, axis) if is_batched else jnp.expand_dims(x, axis)
    x = jnp.broadcast_to(x, (*shape[:axis], size, *shape[axis:]))
    if name in ("B", "C") and len(shape) == 3:  # without an axis of groups
        return x
    return x.reshape(*shape[:axis], size * shape[axis], *shape[axis + 1 :])


def _by_example(name: str, x: Array, size: int, shape: Shape) -> Array:
    """An output of all examples with the examples in front. shape: that of the output of one."""
    axis = _axis(name, len(shape))
    return jnp.moveaxis(x.reshape(*shape[:axis], size, *shape[axis:]), axis, 0)


def _recurrence(
    softplus: bool, u: Array, delta: Array, A: Array, B: Array, C: Array, D: Array | None, z: Array | None,
    delta_bias: Array | None, state: Array | None, bounds: Array | None,
) -> tuple[Array, Array]:  # fmt: skip
    """y and the last state by linear recurrences and operations of JAX, with the states of all positions in memory."""
    dtype = accumulator(u.dtype)

    def by_channel(x: Array) -> Array:
        """B or C with channels, states and positions as the last dimensions, of extent 1 where it has none."""
        if x.ndim == 2:
            return x[:, :, None]
        x = (x[:, None] if x.ndim == 3 else x).astype(dtype)
        return jnp.repeat(x, u.shape[1] // x.shape[1], 1) if x.shape[1] > 1 else x

    wide, step = u.astype(dtype), delta.astype(dtype)
    if delta_bias is not None:
        step = step + delta_bias[:, None]
    if softplus:
        step = jax.nn.softplus(step)
    decays = jnp.exp(step[:, :, None] * A[:, :, None])
    terms = (step * wide)[:, :, None] * by_channel(B)
    state = state if state is None or bounds is None else jnp.moveaxis(state, 1, -1)
    h, last = linear_recurrence(decays, terms, initial_state=state, cu_seqlens=bounds, output_final_state=True)
    y = (h * by_channel(C)).sum(2)
    y = y if D is None else y + D[:, None] * wide
    y = y if z is None else y * jax.nn.silu(z.astype(dtype))
    return y.astype(u.dtype), last if bounds is None else jnp.moveaxis(last, -1, 1)


def _definition(
    softplus: bool, needs: tuple[str, ...], dy: Array, dlast: Array | None, _: Array | None, *operands: Array | None
) -> tuple[Array, ...]:
    """The gradients that are needed, by operations of JAX; chunk states are not read."""
    places = [OUTPUTS.index(name) for name in needs]

    def forward(*needed: Array) -> tuple[Array, ...]:
        every: list[Any] = list(operands)
        for place, x in zip(places, needed, strict=True):
            every[place] = x
        return _recurrence(softplus, *every)[: 1 if dlast is None else 2]

    return tuple(jax.vjp(forward, *(operands[place] for place in places))[1]((dy,) if dlast is None else (dy, dlast)))


@functools.lru_cache(maxsize=1024)
def _backward(softplus: bool, needs: tuple[str, ...]) -> Function:
    return differentiable(_kernel(softplus, needs), functools.partial(_definition, softplus, needs))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scan(softplus: bool, saves: bool, *operands: Array | None) -> tuple[Array, ...]:
    """y, the last state and, for the gradient, the chunk states, through which nothing is differentiated."""
    outputs = ("y", "last_state", "chunk_states") if saves else ("y", "last_state")
    return tuple(_kernel(softplus, outputs)(None, None, None, *operands))


def _forward(softplus: bool, saves: bool, *primals: Any) -> tuple[tuple[Array, ...], Any]:
    operands, perturbed = given(primals)
    needs = {name: None for name, needed in zip(OUTPUTS, perturbed, strict=False) if needed}  # as keys, which are static
    found = _scan(softplus, True, *operands)
    return found if saves else found[:2], (needs, found[2], operands)


def _gradients(softplus: bool, _: bool, saved: Any, cotangents: Any) -> tuple[Array | None, ...]:
    needs, chunks, operands = saved
    if not needs:
        return (None,) * len(_OPERANDS)
    dy, dlast = cotangents[:2]
    dlast = None if isinstance(dlast, jax.custom_derivatives.SymbolicZero) else dlast
    wanted = tuple(name for name in OUTPUTS if name in needs)
    found = dict(zip(wanted, _backward(softplus, wanted)(instantiated(dy), dlast, chunks, *operands), strict=True))
    return (*map(found.get, OUTPUTS), None)


_scan.defvjp(_forward, _gradients, symbolic_zeros=True)
_scan_jit = jax.jit(_scan, static_argnums=(0, 1))


@overload
def selective_scan(
    u: ArrayLike, delta: ArrayLike, A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = ...,
    z: ArrayLike | None = ..., delta_bias: ArrayLike | None = ..., delta_softplus: bool = ...,
    return_last_state: Literal[False] = ..., *, initial_state: ArrayLike | None = ..., cu_seqlens: ArrayLike | None = ...,
) -> jax.Array: ...  # fmt: skip
@overload
def selective_scan(
    u: ArrayLike, delta: ArrayLike, A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = ...,
    z: ArrayLike | None = ..., delta_bias: ArrayLike | None = ..., delta_softplus: bool = ...,
    *, return_last_state: Literal[True], initial_state: ArrayLike | None = ..., cu_seqlens: ArrayLike | None = ...,
) -> tuple[jax.Array, jax.Array]: ...  # fmt: skip
@overload
def selective_scan(
    u: ArrayLike, delta: ArrayLike, A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None, z: ArrayLike | None,
    delta_bias: ArrayLike | None, delta_softplus: bool, return_last_state: Literal[True],
    *, initial_state: ArrayLike | None = ..., cu_seqlens: ArrayLike | None = ...,
) -> tuple[jax.Array, jax.Array]: ...  # fmt: skip
@errors.reported_as("sternway.jax.selective_scan", FIELDS)
def selective_scan(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, delta_bias: Any = None,
    delta_softplus: bool = False, return_last_state: bool = False, *, initial_state: Any = None, cu_seqlens: Any = None,
) -> Any:  # fmt: skip
    """Selective scan, the recurrence of Mamba (Gu and Dao 2023).

    Values are those of :func:`sternway.selective_scan`, which states the formula; gradients of all floating operands are those
    of :func:`sternway.selective_scan_backward`, also of the last state, and repeat to the bit. A differentiated call keeps the
    states that enter each chunk of 256 positions for the backward. The gradient of the gradient consists of linear recurrences
    and operations of JAX, with the states of all positions in memory.

    Args:
        u: the input, [batch, dim, length]; float32, float64, float16 or bfloat16. The length is at most 2**20.
        delta: the steps, like u.
        A: the rates of decay, [dim, n] with n from 1 to 256, in float32, or float64 beside float64; real numbers.
        B, C: the factors of the input and the output, of u's dtype: [batch, n, length], or [batch, groups, n, length], where
            groups divides dim and channel c is of group ``c // (dim // groups)``; or [dim, n] of A's dtype, the same at all
            positions.
        D: the factor of the input in y, [dim], of A's dtype. None: 0.
        z: the gate, like u: y is multiplied by silu(z). None: y is not gated.
        delta_bias: is added to delta, [dim], of A's dtype. None: 0.
        delta_softplus: True: softplus is applied to the steps.
        return_last_state: True: return the last state, too.
        initial_state: the state before the first position, [batch, dim, n], or [batch, N, dim, n] with cu_seqlens, of A's
            dtype. None: 0, and the first decay is not applied.
        cu_seqlens: the bounds of sequences that are packed along the positions of every batch, int32 or int64 [N + 1], rising
            from 0 to the length. The last state of an empty sequence is its initial state. None: one sequence.

    A weakly typed array, such as ``jnp.full(shape, 0.5)``, takes the dtype of its operand beside u.

    Returns:
        y, like u; with return_last_state (y, last_state), where last_state has the shape of initial_state and A's dtype.

    Raises:
        InvalidProblemError: shapes that do not belong together, groups that do not divide dim, dtypes that differ, an option
            of another kind.
        UnsupportedError: another dtype, length or number of states; complex A.

    Example:
        >>> import jax, jax.numpy as jnp, sternway.jax as sj
        >>> ones, A = jnp.ones((1, 1, 3)), jnp.zeros((1, 1))  # nothing decays
        >>> sj.selective_scan(ones, ones, A, ones, ones)
        Array([[[1., 2., 3.]]], dtype=float32)
        >>> jax.grad(lambda u: sj.selective_scan(u, ones, A, ones, ones).sum())(ones)
        Array([[[3., 2., 1.]]], dtype=float32)
    """
    softplus = flag(_NAME, "delta_softplus", delta_softplus)
    wants_state = flag(_NAME, "return_last_state", return_last_state)
    found = arrays(u, delta, A, B, C, optional=(D, z, delta_bias, initial_state, cu_seqlens))
    operands = [_beside(found[0], name, x) for name, x in zip(_OPERANDS, found, strict=True)]
    y, last = _scan_jit(softplus, False, *operands)
    return (y, last) if wants_state else y


def _beside(u: Array, name: str, x: Array | None) -> Array | None:
    """An operand, in the dtype that it has beside u if its own is weak."""
    if x is None or not x.weak_type or name in ("u", "cu_seqlens") or jnp.iscomplexobj(x):
        return x
    is_row = name in ("delta", "z") or (name in ("B", "C") and x.ndim > 2)
    return x.astype(u.dtype if is_row else accumulator(u.dtype))
