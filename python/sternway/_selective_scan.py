"""Selective scans, the recurrence of Mamba, and what their gradients share with them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, overload

from . import _outputs, _plan, errors
from ._arrays import Array, device_of, dtype_name, require_array
from ._descriptor import REQUIRED, Descriptor, normalized
from ._dtypes import ACCUMULATORS
from ._sequences import count_sequences
from ._types import ArrayT, DLPackArray, FloatDType

__all__ = [
    "SelectiveScanDescriptor",
    "SelectiveScanPlan",
    "selective_scan",
]

CHUNK = 256
"""Positions from one of the chunk states to the next."""


@dataclasses.dataclass(frozen=True)
class BaseSelectiveScanDescriptor(Descriptor):
    """The fields of SelectiveScanDescriptor and SelectiveScanBackwardDescriptor."""

    batch: int = REQUIRED
    dim: int = REQUIRED
    length: int = REQUIRED
    n: int = REQUIRED
    dtype: FloatDType = REQUIRED
    groups: int = 1
    constant_b: bool = False
    constant_c: bool = False
    has_d: bool = False
    has_z: bool = False
    has_bias: bool = False
    delta_softplus: bool = False
    num_sequences: int | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of u, (batch, dim, length)."""
        return self.batch, self.dim, self.length


@dataclasses.dataclass(frozen=True)
class SelectiveScanDescriptor(BaseSelectiveScanDescriptor):
    """A selective scan, the problem of :func:`selective_scan`.

    Args:
        batch: the number of batches; required.
        dim: the number of channels; required.
        length: the number of positions, at most 2**20; required.
        n: the number of states of a channel, from 1 to 256; required.
        dtype: the dtype of u, delta, z, y, B and C: float32, float64, float16 or bfloat16; required.
        groups: the number of groups of channels that share B and C; a divisor of ``dim``.
        constant_b, constant_c: True: B or C is the same at all positions of a channel, [dim, n].
        has_d, has_z, has_bias: whether runs take D, z and delta_bias.
        delta_softplus: True: the step is ``log(1 + exp(delta + delta_bias))``.
        num_sequences: the number of sequences that are packed along the positions; None: each batch is one sequence.

    Raises:
        InvalidProblemError: a field of another type. ``SelectiveScanPlan.select`` checks numbers.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.SelectiveScanDescriptor(2, 64, 1024, 16, "bfloat16", has_z=True).groups
        1
    """

    family: ClassVar[str] = "selective_scan"


class SelectiveScanPlan(_plan.Plan[SelectiveScanDescriptor]):
    """Plan of :func:`selective_scan`. ``select`` makes it and ``run`` executes it.

    States have shape [batch, dim, n] or, with ``num_sequences``, [batch, num_sequences, dim, n]. They, A, D, delta_bias and
    constant B and C are float64 beside float64, and float32 beside other dtypes.

    Operands:
        u, delta: inputs of ``dtype`` [batch, dim, length].
        A: input [dim, n].
        B, C: inputs of ``dtype`` [batch, groups, n, length] or, with one group, [batch, n, length]; constant ones are [dim, n].
        D: input [dim], for descriptors with ``has_d``.
        z: input of ``dtype`` [batch, dim, length], for descriptors with ``has_z``.
        delta_bias: input [dim], for descriptors with ``has_bias``.
        initial_state: input, a state for each sequence; left out: the first decay of a sequence is not applied.
        cu_seqlens: input, int32 or int64 [num_sequences + 1], for descriptors with ``num_sequences``: sequence k has the
            positions ``cu_seqlens[k]`` to ``cu_seqlens[k + 1] - 1`` of every batch.
        y: output of ``dtype`` [batch, dim, length].
        last_state: output, the state after each sequence; may be left out.
        chunk_states: output [batch, dim, ceil(length / 256), n], the states that enter each chunk of 256 positions, which the
            gradient reads: where a sequence begins with a chunk, its initial state or 0. It may be left out.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.SelectiveScanPlan.select(sw.SelectiveScanDescriptor(1, 1, 3, 1, "float64"))
        >>> ones, y = np.ones((1, 1, 3)), np.empty((1, 1, 3))
        >>> plan.run(u=ones, delta=ones, A=np.array([[-np.log(2)]]), B=ones, C=ones, y=y)
        >>> y
        array([[[1.  , 1.5 , 1.75]]])
    """

    descriptor_type = SelectiveScanDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # True is no 1
def selective_plan(fields: tuple[Any, ...], device: str) -> SelectiveScanPlan:
    """The plan of a problem, from a cache. fields: those of the descriptor, in order."""
    return SelectiveScanPlan.select(SelectiveScanDescriptor(*fields), device)


def state_dtype(dtype: str) -> str:
    """The dtype of states beside the dtype of u: the accumulator's. A dtype that select refuses has float32."""
    return ACCUMULATORS.get(dtype, "float32")


def problem_fields(
    op: str, u: Any, A: Any, B: Any, C: Any, D: Any, z: Any, delta_bias: Any, delta_softplus: bool, cu_seqlens: Any
) -> tuple[Any, ...]:
    """The fields of the descriptor of a problem, read off its operands.

    Raises:
        InvalidProblemError: an operand has a rank that no problem has.
        UnsupportedError: A is complex.
    """
    for name, x, ranks, wanted in (
        ("u", u, (3,), "of 3 dimensions: batches, channels and positions"),
        ("A", A, (2,), "of 2 dimensions: channels and states"),
        ("B", B, (2, 3, 4), "of 3 dimensions, of 4 with groups, or of 2 if it is constant"),
        ("C", C, (2, 3, 4), "of 3 dimensions, of 4 with groups, or of 2 if it is constant"),
    ):
        if len(x.shape) not in ranks:
            raise errors.make("invalid_problem", op, name, wanted, f"shape {list(x.shape)}")
    if dtype_name(A.dtype).startswith("complex"):
        raise errors.make("unsupported", op, "A", "real", dtype_name(A.dtype))
    groups = next((x.shape[1] for x in (B, C) if len(x.shape) == 4), 1)
    constant = tuple(len(x.shape) == 2 for x in (B, C))
    has = tuple(x is not None for x in (D, z, delta_bias))
    sequences = count_sequences(op, cu_seqlens)
    return *u.shape, A.shape[1], dtype_name(u.dtype), groups, *constant, *has, delta_softplus, sequences


def state_shape(fields: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape of states of a problem."""
    batch, dim, _, n, *_, sequences = fields
    return (batch, dim, n) if sequences is None else (batch, sequences, dim, n)


def chunk_shape(fields: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape of the chunk states of a problem."""
    batch, dim, length, n, *_ = fields
    return batch, dim, -(-length // CHUNK), n


FIELDS = {
    "length": "the length of u", "n": "the number of states in A", "groups": "the groups of B and C", "dtype": "u",
    "num_sequences": "cu_seqlens",
}  # fmt: skip
"""The function's names of fields of the descriptor."""


class Call:
    """The problem of a call: the fields of its descriptor, and the operands that both directions have."""

    def __init__(
        self, op: str, u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, delta_bias: Any, delta_softplus: Any,
        initial_state: Any, cu_seqlens: Any,
    ) -> None:  # fmt: skip
        given = {
            "u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias,
            "initial_state": initial_state, "cu_seqlens": cu_seqlens,
        }  # fmt: skip
        optional = "D", "z", "delta_bias", "initial_state", "cu_seqlens"
        self.operands: dict[str, Array] = {
            name: require_array(op, name, x) for name, x in given.items() if x is not None or name not in optional
        }
        get = self.operands.get
        softplus = normalized(op, "delta_softplus", "bool", delta_softplus)
        self.fields = problem_fields(
            op, get("u"), get("A"), get("B"), get("C"), get("D"), get("z"), get("delta_bias"), softplus, get("cu_seqlens")
        )
        self.u = self.operands["u"]
        self.device, self.state_dtype = device_of(self.u), state_dtype(dtype_name(self.u.dtype))


@overload
def selective_scan(
    u: ArrayT,
    delta: DLPackArray,
    A: DLPackArray,
    B: DLPackArray,
    C: DLPackArray,
    D: DLPackArray | None = ...,
    z: DLPackArray | None = ...,
    delta_bias: DLPackArray | None = ...,
    delta_softplus: bool = ...,
    return_last_state: Literal[False] = ...,
    *,
    initial_state: DLPackArray | None = ...,
    cu_seqlens: DLPackArray | None = ...,
    out: ArrayT | None = ...,
) -> ArrayT: ...
@overload
def selective_scan(
    u: ArrayT,
    delta: DLPackArray,
    A: DLPackArray,
    B: DLPackArray,
    C: DLPackArray,
    D: DLPackArray | None = ...,
    z: DLPackArray | None = ...,
    delta_bias: DLPackArray | None = ...,
    delta_softplus: bool = ...,
    *,
    return_last_state: Literal[True],
    initial_state: DLPackArray | None = ...,
    cu_seqlens: DLPackArray | None = ...,
    out: Sequence[ArrayT] | None = ...,
) -> tuple[ArrayT, ArrayT]: ...
@errors.reported_as("selective_scan", FIELDS)
def selective_scan(
    u: Any,
    delta: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    initial_state: Any = None,
    cu_seqlens: Any = None,
    out: Any = None,
) -> Any:
    """Selective scan, the recurrence of Mamba (Gu and Dao 2023).

    For each batch and each of dim channels there are n states h. With ``d = delta + delta_bias``, or
    ``d = log(1 + exp(delta + delta_bias))`` if delta_softplus, ::

        h[t] = exp(d[t] * A) * h[t-1] + d[t] * B[t] * u[t]
        y[t] = (sum over states of C[t] * h[t]) + D * u[t]

    and y is multiplied by ``z / (1 + exp(-z))``, silu, if z is given. The arithmetic is that of float32, of float64 for
    float64, and y is rounded once. A decay that is exactly 0 cuts off whatever came before, infinity and NaN included.

    Args:
        u: the input, [batch, dim, length]; float32, float64, float16 or bfloat16. The length is at most 2**20.
        delta: the steps, like u.
        A: the rates of decay, [dim, n] with n from 1 to 256, in float32, or float64 beside float64; real numbers.
        B, C: the factors of the input and the output, of u's dtype: [batch, n, length], or [batch, groups, n, length], where
            groups divides dim and channel c is of group ``c // (dim // groups)``; or [dim, n] of A's dtype, the same at all
            positions.
        D: the factor of the input in y, [dim], of A's dtype. None: 0.
        z: the gate, like u. None: y is not gated.
        delta_bias: is added to delta, [dim], of A's dtype. None: 0.
        delta_softplus: True: softplus is applied to the steps.
        return_last_state: True: return the last state, too.
        initial_state: h before the first position, [batch, dim, n], or [batch, N, dim, n] with cu_seqlens, of A's dtype. None:
            0, and the first decay is not applied.
        cu_seqlens: the bounds of sequences that are packed along the positions of every batch, int32 or int64 [N + 1], rising
            from 0 to the length: sequence k has the positions ``cu_seqlens[k]`` to ``cu_seqlens[k + 1] - 1``. The last state
            of an empty sequence is its initial state. None: one sequence.
        out: an array to write y into, or (y, last_state); they overlap no input. None: new arrays of u's library.

    Returns:
        y, like u; with return_last_state (y, last_state), where last_state has the shape of initial_state and A's dtype.

    Raises:
        InvalidProblemError: shapes that do not belong together, groups that do not divide dim, dtypes or devices that differ,
            bounds that do not rise from 0 to the length.
        UnsupportedError: a dtype, length, number of states or device without a kernel; complex A.
        TypeError: an operand is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> ones = np.ones((1, 1, 3))
        >>> sw.selective_scan(ones, ones, np.array([[-np.log(2)]]), ones, ones, D=np.array([1.0]))
        array([[[2.  , 2.5 , 2.75]]])
    """
    op = "selective_scan"
    return_last_state = normalized(op, "return_last_state", "bool", return_last_state)
    call = Call(op, u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state, cu_seqlens)
    plan = _plan.cached(selective_plan, call.fields, call.device)
    rows: list[tuple[str, Any, str | None]] = [("y", call.u, None)]
    if return_last_state:
        rows.append(("last_state", state_shape(call.fields), call.state_dtype))
    outputs = _outputs.outputs(plan, call.u, rows, out)
    plan.run(**call.operands, **outputs)
    return tuple(outputs.values()) if return_last_state else outputs["y"]
