"""Linear recurrences, ``h[t] = a[t] * h[t-1] + b[t]``, and what their gradients share with them."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, overload

from . import _outputs, _plan, errors
from ._arrays import Array, device_of, dtype_name, producer, require_array
from ._descriptor import REQUIRED, Descriptor, is_numpy_bool, normalized
from ._dtypes import ACCUMULATORS
from ._sequences import count_sequences
from ._types import ArrayT, DLPackArray, FloatDType

__all__ = [
    "LinearRecurrenceDescriptor",
    "LinearRecurrencePlan",
    "linear_recurrence",
]


@dataclasses.dataclass(frozen=True)
class BaseLinearRecurrenceDescriptor(Descriptor):
    """The fields of LinearRecurrenceDescriptor and LinearRecurrenceBackwardDescriptor."""

    shape: Sequence[int] = REQUIRED
    dtype: FloatDType = REQUIRED
    dim: int = -1
    reverse: bool = False
    a_shape: Sequence[int] | None = None
    b_shape: Sequence[int] | None = None
    num_sequences: int | None = None
    state_dtype: FloatDType | None = None


@dataclasses.dataclass(frozen=True)
class LinearRecurrenceDescriptor(BaseLinearRecurrenceDescriptor):
    """A linear recurrence along one dimension, the problem of :func:`linear_recurrence`.

    Args:
        shape: the shape of h, of up to 8 dimensions; required.
        dtype: the dtype of a, b and h: float32, float64, float16 or bfloat16; required.
        dim: the dimension along which states follow each other; a negative one counts from the end.
        reverse: True: from the last position to the first.
        a_shape, b_shape: the shapes of a and b if they are broadcast to ``shape``; None: ``shape``.
        num_sequences: the number of sequences that are packed along ``dim``; None: each row is one sequence.
        state_dtype: the dtype of initial_state: ``dtype``, or float32 beside 16 bits; None: float32 beside 16 bits, else
            ``dtype``.

    Raises:
        InvalidProblemError: a field of another type. ``LinearRecurrencePlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.LinearRecurrenceDescriptor(shape=(8, 1024), dtype="float32", a_shape=(8, 1)).a_shape
        (8, 1)
    """

    family: ClassVar[str] = "linear_recurrence"


class LinearRecurrencePlan(_plan.Plan[LinearRecurrenceDescriptor]):
    """Plan of :func:`linear_recurrence`. ``select`` makes it and ``run`` executes it.

    A state has the descriptor's shape without ``dim``; with ``num_sequences``, that number takes the place of ``dim``.

    Operands:
        a: input of ``a_shape``; beside 16 bits, a single number may also be float32.
        b: input of ``b_shape``.
        initial_state: input, a state of ``state_dtype``; left out: the first decay of a sequence is not applied.
        cu_seqlens: input, int32 or int64 [num_sequences + 1], for descriptors with ``num_sequences``: sequence k has the
            positions ``cu_seqlens[k]`` to ``cu_seqlens[k + 1] - 1`` along ``dim``.
        h: output.
        final_state: output, a state of float32 beside 16 bits, else of ``dtype``: h after the last position of each sequence;
            may be left out.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.LinearRecurrencePlan.select(sw.LinearRecurrenceDescriptor(shape=(4,), dtype="float64"))
        >>> h = np.empty(4)
        >>> plan.run(a=np.full(4, 0.5), b=np.ones(4), initial_state=np.array(2.0), h=h)
        >>> h
        array([2., 2., 2., 2.])
    """

    descriptor_type = LinearRecurrenceDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # True is no 1
def linear_plan(fields: tuple[Any, ...], device: str) -> LinearRecurrencePlan:
    """The plan of a problem, from a cache. fields: those of the descriptor, in order."""
    return LinearRecurrencePlan.select(LinearRecurrenceDescriptor(*fields), device)


def broadcast(op: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which two shapes are broadcast.

    Raises:
        InvalidProblemError: they differ in an extent that is not 1.
    """
    if a_shape == b_shape:
        return a_shape
    pairs = itertools.zip_longest(reversed(a_shape), reversed(b_shape), fillvalue=1)
    extents = [(m if n == 1 else n, m == n or 1 in (m, n)) for m, n in pairs]
    if not all(fits for _, fits in extents):
        wanted = f"of a shape that broadcasts with a, {list(a_shape)}"
        shorter = "a" if len(a_shape) < len(b_shape) else "b"
        hint = f"shapes are aligned at the last dimension; {shorter}[:, None] adds one" if len(a_shape) != len(b_shape) else ""
        raise errors.make("invalid_problem", op, "b", wanted, str(list(b_shape)), hint)
    return tuple(extent for extent, _ in reversed(extents))


def final_dtype(dtype: str) -> str:
    """The dtype of final states beside the dtype of h: the accumulator's. A dtype that select refuses has float32."""
    return ACCUMULATORS.get(dtype, "float32")


def state_dtype_of(dtype: str, initial_state: Array | None) -> str:
    """The dtype of initial states beside the dtype of h: float32 or h's own beside 16 bits, else h's."""
    own = None if initial_state is None else dtype_name(initial_state.dtype)
    return dtype if own == dtype else final_dtype(dtype)


def state_shape(shape: tuple[int, ...], dim: int, sequences: int | None) -> tuple[int, ...]:
    """The shape of states beside the shape of h. A dim out of range, which select refuses, leaves the shape as it is."""
    if not shape or not -len(shape) <= dim < len(shape):
        return shape
    dim %= len(shape)
    return (*shape[:dim], *(() if sequences is None else (sequences,)), *shape[dim + 1 :])


class Call:
    """The problem of a call: the fields of its descriptor, and the operands that both directions have."""

    def __init__(self, op: str, like: Array, a: Any, dim: int, reverse: bool, initial_state: Any, cu_seqlens: Any) -> None:
        self.op, self.like, self.device = op, like, device_of(like)
        self.dtype = dtype_name(like.dtype)
        if isinstance(a, numbers.Number) or is_numpy_bool(a):
            number, wide = normalized(op, "a", "float", a), final_dtype(self.dtype)
            number = number if wide == "float64" else ctypes.c_float(number).value  # infinite if it is beyond float32
            self.a = producer(like, op).full((), number, wide, self.device)
        else:
            self.a = require_array(op, "a", a)
        self.dim, self.reverse = dim, reverse
        self.initial_state = None if initial_state is None else require_array(op, "initial_state", initial_state)
        self.cu_seqlens = None if cu_seqlens is None else require_array(op, "cu_seqlens", cu_seqlens)
        self.sequences = count_sequences(op, self.cu_seqlens)

    def fields(self, shape: tuple[int, ...], a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> tuple[Any, ...]:
        state_dtype = state_dtype_of(self.dtype, self.initial_state)
        return shape, self.dtype, self.dim, self.reverse, a_shape, b_shape, self.sequences, state_dtype

    def operands(self) -> dict[str, Array]:
        optional = {"initial_state": self.initial_state, "cu_seqlens": self.cu_seqlens}
        return {"a": self.a, **{name: x for name, x in optional.items() if x is not None}}


_FIELDS = {"dtype": "b", "shape": "the broadcast shape", "a_shape": "a", "b_shape": "b", "num_sequences": "cu_seqlens"}
"""The function's names of fields of the descriptor."""


@overload
def linear_recurrence(
    a: float | DLPackArray,
    b: ArrayT,
    dim: int = ...,
    *,
    initial_state: DLPackArray | None = ...,
    reverse: bool = ...,
    cu_seqlens: DLPackArray | None = ...,
    output_final_state: Literal[False] = ...,
    out: ArrayT | None = ...,
) -> ArrayT: ...
@overload
def linear_recurrence(
    a: float | DLPackArray,
    b: ArrayT,
    dim: int = ...,
    *,
    initial_state: DLPackArray | None = ...,
    reverse: bool = ...,
    cu_seqlens: DLPackArray | None = ...,
    output_final_state: Literal[True],
    out: Sequence[ArrayT] | None = ...,
) -> tuple[ArrayT, ArrayT]: ...
@errors.reported_as("linear_recurrence", _FIELDS)
def linear_recurrence(
    a: Any,
    b: Any,
    dim: int = -1,
    *,
    initial_state: Any = None,
    reverse: bool = False,
    cu_seqlens: Any = None,
    output_final_state: bool = False,
    out: Any = None,
) -> Any:
    """Linear recurrence along a dimension: ``h[t] = a[t] * h[t-1] + b[t]`` in scan order.

    States are carried in float32 at least, in float64 for float64 and on the CPU. A factor of exactly 0 cuts off whatever came
    before, infinity and NaN included. The products of factors that a parallel computation carries neither overflow nor
    underflow where h does not.

    Args:
        a: the factors, an array of b's dtype that broadcasts with b, or a number, which keeps its precision beside 16 bits.
        b: the terms; float32, float64, float16 or bfloat16. The broadcast shape has up to 8 dimensions.
        dim: the dimension along which states follow each other; a negative one counts from the end.
        initial_state: h before the first position, of h's shape without dim; with cu_seqlens, the number of sequences takes
            the place of dim. Of h's dtype, or float32 beside 16 bits. None: 0, and the first decay is not applied.
        reverse: True: from the last position to the first, where the initial state enters.
        cu_seqlens: the bounds of sequences that are packed along dim, int32 or int64 [N + 1], rising from 0 to the extent:
            sequence k has the positions ``cu_seqlens[k]`` to ``cu_seqlens[k + 1] - 1``. The final state of an empty sequence is
            its initial state. None: one sequence.
        output_final_state: True: return the final state, too.
        out: an array to write h into, or (h, final_state); they overlap no input. None: new arrays of b's library.

    Returns:
        h, of the broadcast shape and b's dtype; with output_final_state (h, final_state), where final_state has the shape of
        initial_state, in float32 beside 16 bits, else in h's dtype.

    Raises:
        InvalidProblemError: shapes that do not broadcast, a dim out of range, dtypes or devices that differ, bounds that do
            not rise from 0 to the extent.
        UnsupportedError: a dtype, rank or device without a kernel.
        TypeError: b is no array.

    Example:
        An exponential moving average, and discounted returns of two packed episodes:

        >>> import numpy as np, sternway as sw
        >>> x = np.array([1.0, 2.0, 3.0])
        >>> sw.linear_recurrence(0.5, 0.5 * x)
        array([0.5  , 1.25 , 2.125])
        >>> rewards = np.array([1.0, 1.0, 1.0, 8.0])
        >>> sw.linear_recurrence(0.5, rewards, reverse=True, cu_seqlens=np.array([0, 2, 4]))
        array([1.5, 1. , 5. , 8. ])
    """
    op = "linear_recurrence"
    array = require_array(op, "b", b)
    output_final_state = normalized(op, "output_final_state", "bool", output_final_state)
    call = Call(op, array, a, dim, reverse, initial_state, cu_seqlens)
    a_shape, b_shape = tuple(call.a.shape), tuple(array.shape)
    shape = broadcast(op, a_shape, b_shape)
    plan = _plan.cached(linear_plan, call.fields(shape, a_shape, b_shape), call.device)
    rows: list[tuple[str, Any, str | None]] = [("h", array if shape == b_shape else shape, None)]
    if output_final_state:
        rows.append(("final_state", state_shape(shape, plan.descriptor.dim, call.sequences), final_dtype(call.dtype)))
    outputs = _outputs.outputs(plan, array, rows, out)
    plan.run(b=array, **call.operands(), **outputs)
    return tuple(outputs.values()) if output_final_state else outputs["h"]
