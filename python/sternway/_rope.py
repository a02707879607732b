"""Rotary position embedding, and its gradient: the transpose of the rotation."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from . import _outputs, _plan, errors
from ._arrays import Array, device_of, require_array
from ._descriptor import Descriptor
from ._rope_options import Options, extents, num_heads, options_of, refuse_complex
from ._types import Angle, ArrayT, DLPackArray, FloatDType, Layout, Pairing

__all__ = ["RopeBackwardDescriptor", "RopeBackwardPlan", "RopeDescriptor", "RopePlan", "rope", "rope_backward"]


@dataclasses.dataclass(frozen=True)
class BaseRopeDescriptor(Descriptor):
    """The fields of RopeDescriptor and RopeBackwardDescriptor."""

    batch_size: int
    num_heads: int
    seq_len: int
    head_dim: int
    dtype: FloatDType
    base: float = 10000.0
    pairing: Pairing = "interleaved"
    rotary_dim: int | None = None
    rotary_start: int = 0
    angle: Angle = "float64"
    layout: Layout = "bhsd"
    num_key_heads: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of x, or of dy, in its layout."""
        b, h, s, d = self.batch_size, self.num_heads, self.seq_len, self.head_dim
        return {"bshd": (b, s, h, d), "thd": (s, h, d)}.get(self.layout, (b, h, s, d))


@dataclasses.dataclass(frozen=True)
class RopeDescriptor(BaseRopeDescriptor):
    """A rotary position embedding, the problem of :func:`rope`.

    Args:
        batch_size, num_heads, seq_len, head_dim: the extents B, H, S and D of x; D is even and at most 2^20.
        dtype: the dtype of x and y: float32, float64, float16 or bfloat16.
        base: the base of the angles: pair k at a position is rotated by ``position * base ** (-2 k / rotary_dim)`` radians.
        pairing: "interleaved": elements 2k and 2k + 1 of the rotated part are a pair; "half": k and k + rotary_dim / 2.
        rotary_dim: the number of rotated elements of a head, even; None: all.
        rotary_start: the first rotated element.
        angle: "float64": angles are formed and reduced in float64. "float32": as the usual torch forward forms them, a float32
            frequency times a float32 position. Cosine and sine of the angle are exact to float32, for float64 operands to
            float64.
        layout: the order of the dimensions of x and y: "bhsd", "bshd", or "thd" (tokens, heads, dim), which has no batch.
        num_key_heads: the number of heads of a second pair of operands ``x_k`` and ``y_k``, rotated by the same launch; None:
            there is no second pair.

    Raises:
        InvalidProblemError: a field of another type. ``RopePlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.RopeDescriptor(2, 8, 128, 64, "bfloat16", pairing="half", layout="bshd").shape
        (2, 128, 8, 64)
    """

    family: ClassVar[str] = "rope"


class RopePlan(_plan.Plan[RopeDescriptor]):
    """Plan of :func:`rope`. ``select`` makes it and ``run`` executes it.

    Each pair (i, j) of the rotated part becomes ``y_i = c_i x_i - s_i x_j`` and ``y_j = c_j x_j + s_j x_i``, with c the cosines
    and s the sines. Other elements are copied. Operands may have any strides, 0 included.

    Operands:
        x: input [B, H, S, D] in the layout "bhsd".
        positions: input [S] or [B, S], int32 or int64; left out: 0 .. S-1.
        cos: input [P, r/2], [P, r], [B, P, r/2] or [B, P, r], where r is ``rotary_dim``; float32, float64 or x's dtype. Row p
            belongs to position p. With r columns each element of a pair has its own. Left out: computed from the angles.
        sin: input like cos; given if cos is.
        x_k: input like x with ``num_key_heads`` heads, if the descriptor has these.
        y: output like x; it may be x.
        y_k: output like x_k; it may be x_k.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.RopePlan.select(sw.RopeDescriptor(1, 1, 2, 2, "float64"))
        >>> x = np.array([1.0, 0.0, 1.0, 0.0]).reshape(1, 1, 2, 2)  # two tokens, one pair
        >>> plan.run(x=x, y=x)
        >>> x.round(3).tolist()
        [[[[1.0, 0.0], [0.54, 0.841]]]]
    """

    descriptor_type = RopeDescriptor


@dataclasses.dataclass(frozen=True)
class RopeBackwardDescriptor(BaseRopeDescriptor):
    """The backward of a rotary position embedding, the problem of :func:`rope_backward`.

    Args:
        batch_size, num_heads, seq_len, head_dim: the extents B, H, S and D of dy; D is even and at most 2^20.
        dtype: the dtype of dy and dx: float32, float64, float16 or bfloat16.
        base, pairing, rotary_dim, rotary_start, angle: as for :class:`RopeDescriptor`.
        layout: the order of the dimensions of dy and dx: "bhsd", "bshd", or "thd" (tokens, heads, dim), which has no batch.
        num_key_heads: the number of heads of a second pair of operands ``dy_k`` and ``dx_k``, rotated by the same launch; None:
            there is no second pair.

    Raises:
        InvalidProblemError: a field of another type. ``RopeBackwardPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.RopeBackwardDescriptor(2, 8, 128, 64, "bfloat16", pairing="half", layout="bshd").shape
        (2, 128, 8, 64)
    """

    family: ClassVar[str] = "rope_backward"


class RopeBackwardPlan(_plan.Plan[RopeBackwardDescriptor]):
    """Plan of :func:`rope_backward`. ``select`` makes it and ``run`` executes it.

    Each pair (i, j) of the rotated part gets ``dx_i = c_i dy_i + s_j dy_j`` and ``dx_j = c_j dy_j - s_i dy_i``, with c the
    cosines and s the sines. Other elements are copied. Operands may have any strides, 0 included.

    Operands:
        dy: input [B, H, S, D] in the layout "bhsd", the upstream gradient.
        positions, cos, sin: as for :class:`RopePlan`.
        dy_k: input like dy with ``num_key_heads`` heads, if the descriptor has these.
        dx: output like dy; it may be dy.
        dx_k: output like dy_k; it may be dy_k.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.RopeBackwardPlan.select(sw.RopeBackwardDescriptor(1, 1, 2, 2, "float64"))
        >>> dy = np.array([1.0, 0.0, 0.0, 1.0]).reshape(1, 1, 2, 2)  # two tokens, one pair
        >>> plan.run(dy=dy, dx=dy)
        >>> dy.round(3).tolist()
        [[[[1.0, 0.0], [0.841, 0.54]]]]
    """

    descriptor_type = RopeBackwardDescriptor


_NAMES = {"forward": ("x", "y"), "backward": ("dy", "dx")}
"""By direction, the operand that is rotated and the result. Those of the keys end in _k."""


@functools.lru_cache(maxsize=1024, typed=True)
def _rope_plan(
    shape: tuple[int, ...], dtype: Any, key_heads: int | None, direction: str, device: str, *options: Any
) -> RopePlan | RopeBackwardPlan:
    """The plan of a problem, from a cache."""
    fields = (*extents(shape, options[-1], _NAMES[direction][0]), dtype, *options, key_heads)
    if direction == "forward":
        return RopePlan.select(RopeDescriptor(*fields), device)
    return RopeBackwardPlan.select(RopeBackwardDescriptor(*fields), device)


def _run(
    direction: str,
    x: Array,
    x_k: Array | None,
    positions: Array | None,
    cos: Array | None,
    sin: Array | None,
    options: Options,
    out: Any = None,
) -> tuple[Array, ...]:
    """Rotate one array, or two with different numbers of heads, in either direction."""
    given, result = _NAMES[direction]
    x = require_array("rope", given, x)
    shape = tuple(x.shape)
    rows: list[tuple[str, Any, None]] = [(result, x, None)]
    inputs, key_heads = {given: x}, None
    if x_k is not None:
        x_k = require_array("rope", f"{given}_k", x_k)
        key_heads = num_heads(tuple(x_k.shape), options[-1])
        rows.append((f"{result}_k", x_k, None))
        inputs[f"{given}_k"] = x_k
    plan = _rope_plan(shape, x.dtype, key_heads, direction, device_of(x), *options)
    outputs = _outputs.outputs(plan, x, rows, out)
    try:
        plan.run(positions=positions, cos=cos, sin=sin, **inputs, **outputs)
    except errors.InvalidProblemError:
        refuse_complex("cos", cos)
        refuse_complex("sin", sin)
        raise
    return tuple(outputs.values())


def rotate(
    direction: str,
    dy: Array,
    dy_k: Array | None,
    positions: Array | None,
    cos: Array | None,
    sin: Array | None,
    options: Options,
    out: Any = None,
) -> tuple[Array, ...]:
    """Rotate in either direction, for drop-ins: errors of both name the operands of the backward."""
    try:
        return _run(direction, dy, dy_k, positions, cos, sin, options, out)
    except errors.Error as error:
        names = {"x": "dy", "x_k": "dy_k", "y": "dx", "y_k": "dx_k"} if direction == "forward" else {}
        errors.renamed(error, RopeBackwardDescriptor.family, names)
        raise


@errors.reported_as("rope", {"dtype": "x", "shape": "x"})
def rope(
    x: ArrayT,
    positions: DLPackArray | None = None,
    *,
    base: float = 10000.0,
    cos: DLPackArray | None = None,
    sin: DLPackArray | None = None,
    pairing: Pairing = "interleaved",
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    angle: Angle = "float64",
    layout: Layout = "bhsd",
    out: ArrayT | None = None,
) -> ArrayT:
    """Rotary position embedding (Su et al., arXiv:2104.09864).

    Each pair (i, j) of the rotated part becomes ``y_i = c_i x_i - s_i x_j`` and ``y_j = c_j x_j + s_j x_i``. Here c and s are
    the cosine and sine of ``position * base ** (-2 k / rotary_dim)`` radians for pair k, or the row of the tables that belongs
    to the position. Elements outside the rotated part are copied.

    Args:
        x: [B, H, S, D] in the layout "bhsd"; float32, float64, float16 or bfloat16; any strides.
        positions: [S] or [B, S] ([tokens] in "thd"), int32 or int64; negative ones only without tables. None: 0 .. S-1.
        base: the base of the frequencies.
        cos, sin: tables [P, rotary_dim / 2] or [P, rotary_dim], or with a leading batch; float32, float64 or x's dtype. Both
            or none is given.
        pairing: "interleaved" (elements 2k and 2k + 1 are a pair), or "half" (k and k + rotary_dim / 2).
        rotary_dim: the number of rotated elements of a head, even; None: all.
        rotary_start: the first rotated element.
        angle: "float64", or "float32" to form angles as the usual torch forward does.
        layout: "bhsd", "bshd" or "thd" (tokens, heads, dim).
        out: an array to write into; it may be x. None: a new array of x's library.

    Returns:
        y, of x's shape and dtype.

    Raises:
        InvalidProblemError: shapes or options that contradict each other; tables that are not real floating numbers; positions
            that are not int32 or int64; on the CPU, a position outside the tables. On a GPU such a token is copied, and
            STERNWAY_CHECK=1 reports it.
        UnsupportedError: a dtype, pairing, layout or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> x = np.array([1.0, 0.0, 1.0, 0.0]).reshape(1, 1, 2, 2)  # two tokens, one pair
        >>> sw.rope(x).round(3).tolist()
        [[[[1.0, 0.0], [0.54, 0.841]]]]
    """
    options = options_of(base, pairing, rotary_dim, rotary_start, angle, layout)
    y: ArrayT
    (y,) = _run("forward", x, None, positions, cos, sin, options, out)
    return y


@errors.reported_as("rope_backward", {"dtype": "dy", "shape": "dy"})
def rope_backward(
    dy: ArrayT,
    positions: DLPackArray | None = None,
    *,
    base: float = 10000.0,
    cos: DLPackArray | None = None,
    sin: DLPackArray | None = None,
    pairing: Pairing = "interleaved",
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    angle: Angle = "float64",
    layout: Layout = "bhsd",
    out: ArrayT | None = None,
) -> ArrayT:
    """Gradient of a rotary position embedding: the exact transpose of the rotation (Su et al., arXiv:2104.09864).

    Each pair (i, j) of the rotated part gets ``dx_i = c_i dy_i + s_j dy_j`` and ``dx_j = c_j dy_j - s_i dy_i``. Here c and s
    are the cosine and sine of ``position * base ** (-2 k / rotary_dim)`` radians for pair k, or the row of the tables that
    belongs to the position. Tables that are scaled (YaRN, LongRoPE) keep their scale. Elements outside the rotated part are
    copied.

    Args:
        dy: the upstream gradient, [B, H, S, D] in the layout "bhsd"; float32, float64, float16 or bfloat16; any strides.
        positions, base, cos, sin, pairing, rotary_dim, rotary_start, angle, layout: as for :func:`rope`.
        out: an array to write into; it may be dy. None: a new array of dy's library.

    Returns:
        dx, of dy's shape and dtype.

    Raises:
        InvalidProblemError, UnsupportedError, TypeError: as for :func:`rope`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> dy = np.array([1.0, 0.0, 0.0, 1.0]).reshape(1, 1, 2, 2)  # two tokens, one pair
        >>> sw.rope_backward(dy).round(3).tolist()
        [[[[1.0, 0.0], [0.841, 0.54]]]]
    """
    options = options_of(base, pairing, rotary_dim, rotary_start, angle, layout)
    dx: ArrayT
    (dx,) = _run("backward", dy, None, positions, cos, sin, options, out)
    return dx
