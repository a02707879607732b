"""Gradients of linear interpolation, ``y = a + weight * (b - a)``, with broadcasting."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar, get_args

from . import _outputs, _plan, errors
from ._arrays import Array, device_of, require_array
from ._descriptor import Descriptor, is_numpy_bool, normalized
from ._operands import refuse_recorded
from ._types import ArrayT, DLPackArray, FloatDType, LerpGradient

__all__ = ["LerpBackwardDescriptor", "LerpBackwardPlan", "lerp_backward"]


@dataclasses.dataclass(frozen=True)
class LerpBackwardDescriptor(Descriptor):
    """The backward of ``y = a + weight * (b - a)``, the problem of :func:`lerp_backward`.

    Args:
        shape: the shape of dy.
        dtype: the dtype of every operand: float32, float64, float16 or bfloat16.
        weight: a number; None: weight is an operand of ``run``.
        a_shape, b_shape, weight_shape: the shapes of these operands if they are broadcast to ``shape``; None: ``shape``.

    Raises:
        InvalidProblemError: a field of another type. ``LerpBackwardPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.LerpBackwardDescriptor(shape=(4, 8), dtype="float32", weight=0.25, b_shape=(8,)).b_shape
        (8,)
    """

    family: ClassVar[str] = "lerp_backward"

    shape: Sequence[int]
    dtype: FloatDType
    weight: float | None = None
    a_shape: Sequence[int] | None = None
    b_shape: Sequence[int] | None = None
    weight_shape: Sequence[int] | None = None


class LerpBackwardPlan(_plan.Plan[LerpBackwardDescriptor]):
    """Plan of :func:`lerp_backward`. ``select`` makes it and ``run`` executes it, with at least one output.

    Every operand has the descriptor's dtype. Each gradient is summed, in a fixed order, over the dimensions that its operand
    was broadcast along.

    Operands:
        dy: input, of the descriptor's ``shape``.
        weight: input of ``weight_shape``; needed for da and db unless the descriptor holds a number.
        a: input of ``a_shape``; needed for dweight.
        b: input of ``b_shape``; needed for dweight.
        da: output of ``a_shape``, ``(1 - weight) * dy``; may be left out.
        db: output of ``b_shape``, ``weight * dy``; may be left out.
        dweight: output of ``weight_shape``, ``dy * (b - a)``; may be left out.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.LerpBackwardDescriptor(shape=(2, 3), dtype="float64", weight=0.25, b_shape=(3,))
        >>> plan = sw.LerpBackwardPlan.select(descriptor)
        >>> da, db = np.empty((2, 3)), np.empty(3)
        >>> plan.run(dy=np.ones((2, 3)), da=da, db=db)
        >>> da[0], db
        (array([0.75, 0.75, 0.75]), array([0.5, 0.5, 0.5]))
    """

    descriptor_type = LerpBackwardDescriptor


OUTPUTS: tuple[LerpGradient, ...] = get_args(LerpGradient)
_NEEDS = {needs for n in (1, 2, 3) for needs in itertools.permutations(OUTPUTS, n)}


def lerp_plan(
    shape: tuple[int, ...],
    dtype: Any,
    number: float | None,
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    weight_shape: tuple[int, ...] | None,
    device: str,
) -> LerpBackwardPlan:
    """The plan of a problem, from a cache."""
    return _select(shape, dtype, None if number is None else repr(number), a_shape, b_shape, weight_shape, device)


@functools.lru_cache(maxsize=1024, typed=True)
def _select(
    shape: tuple[int, ...],
    dtype: FloatDType,
    weight: str | None,  # as text, since -0.0 is not 0.0 and NaN is NaN
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    weight_shape: tuple[int, ...] | None,
    device: str,
) -> LerpBackwardPlan:
    descriptor = LerpBackwardDescriptor(shape, dtype, None if weight is None else float(weight), a_shape, b_shape, weight_shape)
    return LerpBackwardPlan.select(descriptor, device)


def split_weight(weight: Any, device: str) -> tuple[float | None, Array | None]:
    """A weight as a number or as an array. A 0-d array on the CPU with data on CUDA becomes a number."""
    if type(weight) is float:
        return weight, None
    if isinstance(weight, numbers.Number) or is_numpy_bool(weight):
        return normalized("lerp_backward", "weight", "float", weight), None
    weight = require_array("lerp_backward", "weight", weight)
    if len(weight.shape) == 0 and device != "cpu" and device_of(weight) == "cpu":
        refuse_recorded("lerp_backward", "weight", weight)
        return float(weight.detach() if hasattr(weight, "detach") else weight), None
    return None, weight


def _extents(name: str, x: Array | None, shape: Any) -> tuple[int, ...] | None:
    """The shape of an end: that of the array, or the given one, which must agree. None: neither was given."""
    given: tuple[int, ...] | None = None
    if shape is not None:
        given = normalized("lerp_backward", f"{name}_shape", "shape", shape)
    if x is None:
        return given
    if given is not None and tuple(x.shape) != given:
        raise errors.make("invalid_problem", "lerp_backward", name, f"of {name}_shape, {list(given)}", str(list(x.shape)))
    return tuple(x.shape)


@errors.reported_as("lerp_backward", {"dtype": "dy", "shape": "dy", "weight_shape": "weight"})
def lerp_backward(
    dy: ArrayT,
    weight: float | DLPackArray,
    a: DLPackArray | None = None,
    b: DLPackArray | None = None,
    *,
    a_shape: Sequence[int] | None = None,
    b_shape: Sequence[int] | None = None,
    needs: Sequence[LerpGradient] = ("da", "db"),
    out: ArrayT | Sequence[ArrayT] | None = None,
) -> tuple[ArrayT, ...]:
    """Gradients of linear interpolation, ``y = a + weight * (b - a)``.

    ``da = (1 - weight) * dy``, ``db = weight * dy`` and ``dweight = dy * (b - a)``. Each is summed over the dimensions that its
    operand was broadcast along and has that operand's shape. If weight is a number, ``1 - weight`` is formed in float64.

    Args:
        dy: the upstream gradient, of the broadcast shape; float32, float64, float16 or bfloat16, on the CPU or CUDA.
        weight: a number, or an array of dy's dtype that broadcasts to dy's shape.
        a, b: the ends, of dy's dtype. Needed for "dweight"; otherwise their shapes are enough.
        a_shape, b_shape: the shapes of the ends if these are not given; None: dy's shape.
        needs: the names of the gradients to compute, in the order in which they are returned: "da", "db", "dweight".
        out: arrays to write into, in the order of ``needs``, or one array. None: new arrays of dy's library.

    Returns:
        a tuple of arrays in dy's dtype, one for each of ``needs``.

    Raises:
        InvalidProblemError: shapes that do not broadcast to dy's, dtypes or devices that differ, a missing operand, unknown
            ``needs``.
        UnsupportedError: a dtype or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> da, db = sw.lerp_backward(np.ones((2, 3), np.float32), 0.25, b_shape=(3,))
        >>> da[0], db
        (array([0.75, 0.75, 0.75], dtype=float32), array([0.5, 0.5, 0.5], dtype=float32))
    """
    op = "lerp_backward"
    array = require_array(op, "dy", dy)
    a, b = (x if x is None else require_array(op, name, x) for name, x in (("a", a), ("b", b)))
    device = device_of(array)
    number, factor = split_weight(weight, device)
    wanted = tuple(needs) if isinstance(needs, (tuple, list)) else ()
    if wanted not in _NEEDS:
        raise errors.make("invalid_problem", op, "needs", f"a tuple of some of {OUTPUTS}", errors.shown(needs))
    shape = tuple(array.shape)
    a_shape, b_shape = _extents("a", a, a_shape), _extents("b", b, b_shape)
    shapes = {
        "da": shape if a_shape is None else a_shape,
        "db": shape if b_shape is None else b_shape,
        "dweight": () if factor is None else tuple(factor.shape),
    }
    plan = lerp_plan(
        shape, array.dtype, number, shapes["da"], shapes["db"], None if factor is None else shapes["dweight"], device
    )
    rows = [(name, array if shapes[name] == shape else shapes[name], None) for name in wanted]
    outputs: dict[str, ArrayT] = _outputs.outputs(plan, array, rows, out)
    ends = {"a": a, "b": b} if "dweight" in wanted else {}
    plan.run(dy=array, weight=factor, **ends, **outputs)
    return tuple(outputs.values())
