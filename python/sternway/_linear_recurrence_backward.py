"""Gradients of linear recurrences, ``h[t] = a[t] * h[t-1] + b[t]``."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, get_args

from . import _outputs, _plan, errors
from ._arrays import require_array
from ._descriptor import normalized
from ._linear_recurrence import BaseLinearRecurrenceDescriptor, Call, state_shape
from ._types import ArrayT, DLPackArray, LinearGradient

__all__ = ["LinearRecurrenceBackwardDescriptor", "LinearRecurrenceBackwardPlan", "linear_recurrence_backward"]


@dataclasses.dataclass(frozen=True)
class LinearRecurrenceBackwardDescriptor(BaseLinearRecurrenceDescriptor):
    """The backward of a linear recurrence, the problem of :func:`linear_recurrence_backward`.

    Args:
        shape, dtype, dim, reverse, a_shape, b_shape, num_sequences, state_dtype: as for
            :class:`LinearRecurrenceDescriptor`.

    Raises:
        InvalidProblemError, UnsupportedError, TypeError: as for :class:`LinearRecurrenceDescriptor`.

    Example:
        >>> import sternway as sw
        >>> sw.LinearRecurrenceBackwardDescriptor(shape=(8, 1024), dtype="bfloat16", num_sequences=3).num_sequences
        3
    """

    family: ClassVar[str] = "linear_recurrence_backward"


class LinearRecurrenceBackwardPlan(_plan.Plan[LinearRecurrenceBackwardDescriptor]):
    """Plan of :func:`linear_recurrence_backward`. ``select`` makes it and ``run`` executes it, with at least one output.

    States and cu_seqlens are as for :class:`LinearRecurrencePlan`.

    Operands:
        dh: input, of ``shape``.
        a: input of ``a_shape`` or ``shape``; beside 16 bits, a single number may also be float32.
        h: input of ``shape``, the result of the forward.
        initial_state: input, that of the forward.
        dfinal_state: input, the upstream gradient of final_state, of its dtype.
        cu_seqlens: input, that of the forward.
        da: output of ``a_shape``; may be left out.
        db: output of ``b_shape``; may be left out.
        dinitial_state: output of initial_state's shape and dtype; may be left out.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.LinearRecurrenceBackwardPlan.select(sw.LinearRecurrenceBackwardDescriptor(shape=(3,), dtype="float64"))
        >>> da, db = np.empty(3), np.empty(3)
        >>> plan.run(dh=np.ones(3), a=np.full(3, 0.5), h=np.array([1.0, 1.5, 1.75]), da=da, db=db)
        >>> da, db
        (array([0. , 1.5, 1.5]), array([1.75, 1.5 , 1.  ]))
    """

    descriptor_type = LinearRecurrenceBackwardDescriptor


@functools.lru_cache(maxsize=1024, typed=True)
def linear_backward_plan(fields: tuple[Any, ...], device: str) -> LinearRecurrenceBackwardPlan:
    """The plan of a problem, from a cache. fields: those of the descriptor, in order."""
    return LinearRecurrenceBackwardPlan.select(LinearRecurrenceBackwardDescriptor(*fields), device)


OUTPUTS: tuple[LinearGradient, ...] = get_args(LinearGradient)
_NEEDS = [needs for n in (1, 2, 3) for needs in itertools.permutations(OUTPUTS, n)]


_FIELDS = {"dtype": "dh", "shape": "dh", "num_sequences": "cu_seqlens", "state_dtype": "initial_state"}
"""The function's names of fields of the descriptor."""


@errors.reported_as("linear_recurrence_backward", _FIELDS)
def linear_recurrence_backward(
    dh: ArrayT,
    a: float | DLPackArray,
    h: DLPackArray,
    dim: int = -1,
    *,
    initial_state: DLPackArray | None = None,
    dfinal_state: DLPackArray | None = None,
    reverse: bool = False,
    cu_seqlens: DLPackArray | None = None,
    a_shape: Sequence[int] | None = None,
    b_shape: Sequence[int] | None = None,
    needs: Sequence[LinearGradient] = ("da", "db"),
    out: ArrayT | Sequence[ArrayT] | None = None,
) -> tuple[ArrayT, ...]:
    """Gradients of a linear recurrence, ``h[t] = a[t] * h[t-1] + b[t]``.

    In scan order, ``g[t] = dh[t] + a[t+1] * g[t+1]``, to which dfinal_state is added at the last position of a sequence. Then
    ``db[t] = g[t]``, ``da[t] = g[t] * h[t-1]`` and ``dinitial_state = a[0] * g[0]``, where ``h[-1]`` is the initial state;
    without one, ``da[0]`` is 0. A factor of exactly 0 cuts off whatever comes after it. da and db are summed over the
    dimensions that their operands were broadcast along, in a fixed order.

    Args:
        dh: the upstream gradient, of h's shape; float32, float64, float16 or bfloat16, on the CPU or CUDA.
        a: the factors of the forward, of dh's dtype, or a number.
        h: the result of the forward.
        dim, initial_state, reverse, cu_seqlens: those of the forward.
        dfinal_state: the upstream gradient of the final state, of its shape and dtype; None: 0.
        a_shape: the shape of da; None: the shape of a.
        b_shape: the shape of db; None: the shape of h.
        needs: the names of the gradients to compute, in the order in which they are returned: "da", "db", "dinitial_state".
        out: arrays to write into, in the order of ``needs``, or one array. None: new arrays of dh's library.

    Returns:
        a tuple of arrays, one for each of ``needs``: da and db in dh's dtype, dinitial_state in that of initial_state.

    Raises:
        InvalidProblemError: shapes, dtypes or devices that differ, a missing operand, unknown ``needs``; bounds that do not
            rise from 0 to the extent, as for :func:`linear_recurrence`.
        UnsupportedError: a dtype, rank or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> a, b = np.full(3, 0.5), np.ones(3)
        >>> h = sw.linear_recurrence(a, b)
        >>> sw.linear_recurrence_backward(np.ones(3), a, h)
        (array([0. , 1.5, 1.5]), array([1.75, 1.5 , 1.  ]))
    """
    op = "linear_recurrence_backward"
    array, saved = require_array(op, "dh", dh), require_array(op, "h", h)
    wanted = tuple(needs) if isinstance(needs, (tuple, list)) else ()
    if wanted not in _NEEDS:
        raise errors.make("invalid_problem", op, "needs", f"a tuple of some of {OUTPUTS}", errors.shown(needs))
    call = Call(op, array, a, dim, reverse, initial_state, cu_seqlens)
    shape = tuple(array.shape)
    shapes = {
        "da": tuple(call.a.shape) if a_shape is None else normalized(op, "a_shape", "shape", a_shape),
        "db": shape if b_shape is None else normalized(op, "b_shape", "shape", b_shape),
    }
    fields = call.fields(shape, shapes["da"], shapes["db"])
    plan = _plan.cached(linear_backward_plan, fields, call.device)
    shapes["dinitial_state"] = state_shape(shape, plan.descriptor.dim, call.sequences)
    state_dtype = fields[-1]
    rows = [
        (name, array if shapes[name] == shape and name != "dinitial_state" else shapes[name],
         state_dtype if name == "dinitial_state" else None)
        for name in wanted
    ]  # fmt: skip
    outputs: dict[str, ArrayT] = _outputs.outputs(plan, array, rows, out)
    final = {} if dfinal_state is None else {"dfinal_state": require_array(op, "dfinal_state", dfinal_state)}
    plan.run(dh=array, h=saved, **call.operands(), **final, **outputs)
    return tuple(outputs.values())
