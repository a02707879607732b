"""Gradients of selective scans, the recurrence of Mamba."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, get_args

from . import _outputs, _plan, errors
from ._arrays import dtype_name, require_array
from ._selective_scan import FIELDS, BaseSelectiveScanDescriptor, Call
from ._types import ArrayT, DLPackArray, SelectiveGradient

__all__ = ["SelectiveScanBackwardDescriptor", "SelectiveScanBackwardPlan", "selective_scan_backward"]


@dataclasses.dataclass(frozen=True)
class SelectiveScanBackwardDescriptor(BaseSelectiveScanDescriptor):
    """The backward of a selective scan, the problem of :func:`selective_scan_backward`.

    Args:
        batch, dim, length, n, dtype, groups, constant_b, constant_c, has_d, has_z, has_bias, delta_softplus, num_sequences: as
            for :class:`SelectiveScanDescriptor`.

    Raises:
        InvalidProblemError, UnsupportedError, TypeError: as for :class:`SelectiveScanDescriptor`.

    Example:
        >>> import sternway as sw
        >>> sw.SelectiveScanBackwardDescriptor(2, 64, 1024, 16, "bfloat16", num_sequences=3).num_sequences
        3
    """

    family: ClassVar[str] = "selective_scan_backward"


class SelectiveScanBackwardPlan(_plan.Plan[SelectiveScanBackwardDescriptor]):
    """Plan of :func:`selective_scan_backward`. ``select`` makes it and ``run`` executes it, with at least one output.

    Operands:
        dy: input of ``dtype`` [batch, dim, length].
        u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens: inputs, those of :class:`SelectiveScanPlan`.
        dlast_state: input, the upstream gradient of last_state, of its shape and dtype; may be left out.
        chunk_states: input, the output of :class:`SelectiveScanPlan`; left out: the run computes the states again.
        du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial_state: outputs of the shapes and dtypes of their operands; any may
            be left out.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.SelectiveScanBackwardPlan.select(sw.SelectiveScanBackwardDescriptor(1, 1, 3, 1, "float64"))
        >>> ones, du = np.ones((1, 1, 3)), np.empty((1, 1, 3))
        >>> plan.run(dy=ones, u=ones, delta=ones, A=np.array([[-np.log(2)]]), B=ones, C=ones, du=du)
        >>> du
        array([[[1.75, 1.5 , 1.  ]]])
    """

    descriptor_type = SelectiveScanBackwardDescriptor


@functools.lru_cache(maxsize=1024, typed=True)
def selective_backward_plan(fields: tuple[Any, ...], device: str) -> SelectiveScanBackwardPlan:
    """The plan of a problem, from a cache. fields: those of the descriptor, in order."""
    return SelectiveScanBackwardPlan.select(SelectiveScanBackwardDescriptor(*fields), device)


OUTPUTS: tuple[SelectiveGradient, ...] = get_args(SelectiveGradient)


@errors.reported_as("selective_scan_backward", FIELDS)
def selective_scan_backward(
    dy: ArrayT,
    u: DLPackArray,
    delta: DLPackArray,
    A: DLPackArray,
    B: DLPackArray,
    C: DLPackArray,
    D: DLPackArray | None = None,
    z: DLPackArray | None = None,
    delta_bias: DLPackArray | None = None,
    delta_softplus: bool = False,
    *,
    dlast_state: DLPackArray | None = None,
    initial_state: DLPackArray | None = None,
    cu_seqlens: DLPackArray | None = None,
    needs: Sequence[SelectiveGradient] | None = None,
    out: ArrayT | Sequence[ArrayT] | None = None,
) -> tuple[ArrayT, ...]:
    """Gradients of a selective scan, the recurrence of Mamba (Gu and Dao 2023).

    The states are computed again, in chunks of 256 positions; nothing of batch * dim * length * n numbers is stored. With
    ``a[t] = exp(d[t] * A)``, the upstream gradient ``dy'`` of y before the gate, and sums over states, ::

        g[t] = C[t] * dy'[t] + a[t+1] * g[t+1]
        du[t] = D * dy'[t] + d[t] * sum(g[t] * B[t])
        dd[t] = sum(g[t] * (B[t] * u[t] + A * a[t] * h[t-1]))

    dlast_state is added to g at the last position of a sequence. dA, dB, dC, dD and ddelta_bias are summed over the indices
    that their operands lack, in an order that depends on the shape alone.

    Args:
        dy: the upstream gradient of y, like u; float32, float64, float16 or bfloat16.
        u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state, cu_seqlens: those of the forward,
            :func:`selective_scan`.
        dlast_state: the upstream gradient of the last state, of its shape and dtype; None: 0.
        needs: the names of the gradients to compute, in the order in which they are returned: "du", "ddelta", "dA", "dB", "dC",
            "dD", "dz", "ddelta_bias", "dinitial_state". None: those of all operands that are given, in this order.
        out: arrays to write into, in the order of the gradients, or one array. None: new arrays of dy's library.

    Returns:
        a tuple of arrays, one for each of ``needs``, of the shape and dtype of its operand.

    Raises:
        InvalidProblemError: shapes, dtypes or devices that differ, a missing operand, unknown ``needs``; bounds that do not
            rise from 0 to the length, as for :func:`selective_scan`.
        UnsupportedError: a dtype, length, number of states or device without a kernel; complex A.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> ones, A = np.ones((1, 1, 3)), np.array([[-np.log(2)]])
        >>> du, dC = sw.selective_scan_backward(ones, ones, ones, A, ones, ones, needs=("du", "dC"))
        >>> du, dC
        (array([[[1.75, 1.5 , 1.  ]]]), array([[[1.  , 1.5 , 1.75]]]))
    """
    op = "selective_scan_backward"
    array = require_array(op, "dy", dy)
    call = Call(op, u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state, cu_seqlens)
    existing = tuple(name for name in OUTPUTS if name[1:] in call.operands)
    wanted = existing if needs is None else tuple(needs) if isinstance(needs, (tuple, list)) else ()
    if not wanted or len(set(wanted)) != len(wanted) or not set(wanted) <= set(OUTPUTS):
        raise errors.make("invalid_problem", op, "needs", f"a tuple of some of {OUTPUTS}", errors.shown(needs))
    missing = next((name[1:] for name in wanted if name not in existing), None)
    if missing is not None:
        raise errors.make("invalid_problem", op, missing, "given for its gradient", "nothing")
    plan = _plan.cached(selective_backward_plan, call.fields, call.device)
    rows: list[tuple[str, Any, str | None]] = []
    for name in wanted:
        like = call.operands[name[1:]]
        of_library = type(like) is type(array)
        rows.append((name, like if of_library else tuple(like.shape), None if of_library else dtype_name(like.dtype)))
    outputs: dict[str, ArrayT] = _outputs.outputs(plan, array, rows, out)
    last = {} if dlast_state is None else {"dlast_state": require_array(op, "dlast_state", dlast_state)}
    plan.run(dy=array, **call.operands, **last, **outputs)
    return tuple(outputs.values())
