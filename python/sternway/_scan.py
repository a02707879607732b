"""Gradients of the cumulative operations. A kind is its function here, and its name in ``__all__``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

from . import _outputs, _plan, errors
from ._arrays import device_of, require_array
from ._descriptor import REQUIRED, Descriptor
from ._sequences import count_sequences
from ._types import ArrayT, DLPackArray, FloatDType, ScanKind, Tie

__all__ = [
    "ScanBackwardDescriptor",
    "ScanBackwardPlan",
    "cummax_backward",
    "cummin_backward",
    "cumprod_backward",
    "cumsum_backward",
    "logcumsumexp_backward",
]


@dataclasses.dataclass(frozen=True)
class BaseScanDescriptor(Descriptor):
    """The fields of ScanDescriptor and ScanBackwardDescriptor."""

    kind: ScanKind = "cumsum"
    shape: Sequence[int] = REQUIRED
    dtype: FloatDType = REQUIRED
    dim: int = -1
    reverse: bool = False
    tie: Tie = "last"
    carries: bool = False
    num_sequences: int | None = None
    exclusive: bool = False


@dataclasses.dataclass(frozen=True)
class ScanBackwardDescriptor(BaseScanDescriptor):
    """The backward of a cumulative operation along one dimension.

    Args:
        kind, shape, dim, tie, num_sequences, exclusive: as for :class:`ScanDescriptor`.
        dtype: the dtype of dy, x and dx: float32, float64, float16 or bfloat16; required.
        reverse: True: the forward scanned from the last position to the first.
        carries: whether runs take carries, by which a scan that is cut into chunks is differentiated chunk by chunk.

    Raises:
        InvalidProblemError: a field of another type. ``ScanBackwardPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import dataclasses, sternway as sw
        >>> descriptor = sw.ScanBackwardDescriptor(kind="cumprod", shape=(64, 4096), dtype="bfloat16")
        >>> dataclasses.replace(descriptor, reverse=True).reverse
        True
    """

    family: ClassVar[str] = "scan_backward"


class ScanBackwardPlan(_plan.Plan[ScanBackwardDescriptor]):
    """Plan of the backward of a cumulative operation. ``select`` makes it and ``run`` executes it.

    Every operand but the carries has the descriptor's shape. The formula of a kind is in its function, such as
    :func:`cumsum_backward`.

    Operands:
        dy: input, the upstream gradient.
        x: input of the forward; not for cumsum, nor if indices are given.
        indices: input, int64 positions along ``dim`` that the forward returned; for cummax and cummin instead of x.
        cu_seqlens: input, int32 or int64 [num_sequences + 1], for descriptors with ``num_sequences``, as for :class:`ScanPlan`.
        dx: output; it may be left out if dcarry_in is given.
        carry_in: input, the carry_in of the forward (:class:`ScanPlan`); not for cumsum.
        dcarry_out: input, what the chunk after this one in scan order wrote as its dcarry_in: float64 [..., k], with the
            shape without ``dim`` before k; k is 1 for cumsum, 4 for cumprod in float64, and 2 otherwise. It may also be
            [p, ..., k], of the p adjacent chunks after this one, each written without a dcarry_out of its own. What the
            numbers mean depends on the device.
        dcarry_in: output, of the shape [..., k].

    The carries are for descriptors with ``carries``, and optional: chunks are differentiated from the last one in scan order
    to the first. With ``carries``, indices are not taken.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor(kind="cumprod", shape=(4,), dtype="float64"))
        >>> dx = np.empty(4)
        >>> plan.run(dy=np.ones(4), x=np.array([2.0, 0.0, 3.0, 4.0]), dx=dx)
        >>> dx
        array([ 1., 32.,  0.,  0.])
    """

    descriptor_type = ScanBackwardDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # True is no 1
def scan_plan(
    kind: ScanKind, shape: tuple[int, ...], dtype: FloatDType, dim: int, reverse: bool, tie: Tie, device: str,
    carries: bool = False, num_sequences: int | None = None, exclusive: bool = False,
) -> ScanBackwardPlan:  # fmt: skip
    """The plan of a problem, from a cache."""
    descriptor = ScanBackwardDescriptor(kind, shape, dtype, dim, reverse, tie, carries, num_sequences, exclusive)
    return ScanBackwardPlan.select(descriptor, device)


_OPERANDS = {"dx": "out", "dtype": "dy", "shape": "dy", "num_sequences": "cu_seqlens"}
"""The functions' names of the plan's output and of fields of its descriptor."""


def dim_of(dim: int, axis: int | None) -> int:
    """The scanned dimension of a call, where axis is NumPy's name of dim.

    Raises:
        OperandTypeError: both are given.
    """
    if axis is None:
        return dim
    if not (isinstance(dim, int) and dim == -1):  # arrays, too, can be given, and have no truth value
        raise errors.make("type", "scan", "axis", "left out where dim is given", "both")
    return axis


def _backward(
    kind: ScanKind, dy: ArrayT, dim: int, reverse: bool, exclusive: bool, cu_seqlens: DLPackArray | None, out: ArrayT | None,
    tie: Tie = "last", **inputs: DLPackArray | None,
) -> ArrayT:  # fmt: skip
    op = f"scan_backward({kind})"
    array = require_array(op, "dy", dy)
    inputs["cu_seqlens"] = cu_seqlens
    given = {name: require_array(op, name, x) for name, x in inputs.items() if x is not None}
    options = tie, device_of(array), False, count_sequences(op, given.get("cu_seqlens")), exclusive
    plan = _plan.cached(scan_plan, kind, tuple(array.shape), array.dtype, dim, reverse, *options)
    outputs: dict[str, ArrayT] = _outputs.outputs(plan, array, [("dx", array, None)], out)
    plan.run(dy=array, **given, **outputs)
    return outputs["dx"]


@errors.reported_as("cumsum_backward", _OPERANDS)
def cumsum_backward(
    dy: ArrayT, dim: int = -1, *, axis: int | None = None, reverse: bool = False, exclusive: bool = False,
    cu_seqlens: DLPackArray | None = None, out: ArrayT | None = None,
) -> ArrayT:  # fmt: skip
    """Gradient of a cumulative sum, ``y[i] = sum_{j<=i} x[j]``: ``dx[k] = sum_{i>=k} dy[i]`` in scan order.

    Args:
        dy: the upstream gradient, of any shape of up to 8 dimensions; float32, float64, float16 or bfloat16.
        dim: the scanned dimension; a negative one counts from the end.
        axis: NumPy's name of dim; one of the two is given.
        reverse, exclusive, cu_seqlens: those of the forward, :func:`cumsum`.
        out: an array to write dx into; None: a new array of dy's library.

    Returns:
        dx, of dy's shape and dtype.

    Raises:
        InvalidProblemError: a dim out of range, operands that contradict each other, or bounds of sequences that do not rise
            from 0 to the extent along dim.
        UnsupportedError: a dtype, rank or device without a kernel.
        TypeError: dy is no array; dim and axis are both given.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cumsum_backward(np.array([1.0, 2.0, 3.0]))
        array([6., 5., 3.])
    """
    return _backward("cumsum", dy, dim_of(dim, axis), reverse, exclusive, cu_seqlens, out)


@errors.reported_as("cumprod_backward", _OPERANDS)
def cumprod_backward(
    dy: ArrayT, x: DLPackArray, dim: int = -1, *, axis: int | None = None, reverse: bool = False, exclusive: bool = False,
    cu_seqlens: DLPackArray | None = None, out: ArrayT | None = None,
) -> ArrayT:  # fmt: skip
    """Gradient of a cumulative product: ``dx[k] = L[k] R[k]``, ``L[k] = prod_{i<k} x[i]``, ``R[k] = dy[k] + x[k+1] R[k+1]``.

    Nothing is divided, so the gradient is exact for any number of zeros. 0 times infinity counts as 0 here; NaN stays NaN.

    Args:
        dy, dim, axis, reverse, exclusive, cu_seqlens, out: as for :func:`cumsum_backward`.
        x: the input of the forward, of dy's shape and dtype.

    Returns:
        dx, of dy's shape and dtype.

    Raises:
        InvalidProblemError: a dim out of range, or operands that contradict each other.
        UnsupportedError: a dtype, rank or device without a kernel.
        TypeError: an operand that is no array; dim and axis are both given.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cumprod_backward(np.ones(4), np.array([2.0, 0.0, 3.0, 4.0]))
        array([ 1., 32.,  0.,  0.])
    """
    return _backward("cumprod", dy, dim_of(dim, axis), reverse, exclusive, cu_seqlens, out, x=x)


def _extremum(
    kind: ScanKind, dy: ArrayT, x: DLPackArray | None, dim: int, indices: DLPackArray | None, reverse: bool, exclusive: bool,
    cu_seqlens: DLPackArray | None, tie: Tie, out: ArrayT | None,
) -> ArrayT:  # fmt: skip
    if (x is None) == (indices is None):
        raise errors.make(
            "invalid_problem",
            f"scan_backward({kind})",
            "x or indices",
            "given, one of the two",
            "nothing" if x is None else "both",
        )
    return _backward(kind, dy, dim, reverse, exclusive, cu_seqlens, out, tie, x=x, indices=indices)


@errors.reported_as("cummax_backward", _OPERANDS)
def cummax_backward(
    dy: ArrayT,
    x: DLPackArray | None = None,
    dim: int = -1,
    *,
    axis: int | None = None,
    indices: DLPackArray | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    cu_seqlens: DLPackArray | None = None,
    tie: Tie = "last",
    out: ArrayT | None = None,
) -> ArrayT:
    """Gradient of a cumulative maximum: ``dx[k]`` is the sum of dy over the positions whose maximum is ``x[k]``.

    Args:
        dy, dim, axis, reverse, cu_seqlens, out: as for :func:`cumsum_backward`.
        x: the input of the forward, of dy's shape and dtype. Exactly one of x and indices is given.
        indices: of dy's shape, int64: the positions along dim that the forward returned. Any positions in range are right;
            positions that a scan returned are fast.
        exclusive: False; no position comes before the first, whose maximum would be none.
        tie: the one of equal values that wins, in scan order: "last", as in torch, or "first". A NaN beats every number.

    Returns:
        dx, of dy's shape and dtype.

    Raises:
        InvalidProblemError: a dim out of range; operands that contradict each other; an index out of range, on the CPU or with
            STERNWAY_CHECK=1. On CUDA such an index otherwise contributes nothing.
        UnsupportedError: a dtype, tie, rank or device without a kernel.
        TypeError: an operand that is no array; dim and axis are both given.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cummax_backward(np.ones(5), np.array([1.0, 3.0, 2.0, 3.0, 0.0]))
        array([1., 2., 0., 2., 0.])
    """
    return _extremum("cummax", dy, x, dim_of(dim, axis), indices, reverse, exclusive, cu_seqlens, tie, out)


@errors.reported_as("cummin_backward", _OPERANDS)
def cummin_backward(
    dy: ArrayT,
    x: DLPackArray | None = None,
    dim: int = -1,
    *,
    axis: int | None = None,
    indices: DLPackArray | None = None,
    reverse: bool = False,
    exclusive: bool = False,
    cu_seqlens: DLPackArray | None = None,
    tie: Tie = "last",
    out: ArrayT | None = None,
) -> ArrayT:
    """Gradient of a cumulative minimum: ``dx[k]`` is the sum of dy over the positions whose minimum is ``x[k]``.

    Args:
        dy, x, dim, axis, indices, reverse, exclusive, cu_seqlens, tie, out: as for :func:`cummax_backward`.

    Returns:
        dx, of dy's shape and dtype.

    Raises:
        InvalidProblemError, UnsupportedError, TypeError: as for :func:`cummax_backward`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cummin_backward(np.ones(4), np.array([2.0, 1.0, 1.0, 5.0]), tie="first")
        array([1., 3., 0., 0.])
    """
    return _extremum("cummin", dy, x, dim_of(dim, axis), indices, reverse, exclusive, cu_seqlens, tie, out)


@errors.reported_as("logcumsumexp_backward", _OPERANDS)
def logcumsumexp_backward(
    dy: ArrayT, x: DLPackArray, dim: int = -1, *, axis: int | None = None, reverse: bool = False, exclusive: bool = False,
    cu_seqlens: DLPackArray | None = None, out: ArrayT | None = None,
) -> ArrayT:  # fmt: skip
    """Gradient of ``y[i] = log sum_{j<=i} exp(x[j])``: ``dx[k] = sum_{i>=k} dy[i] exp(x[k] - y[i])``.

    Computed from x alone, with a running maximum and sum, so an offset that is added to x costs no accuracy. ``x[k] = -inf``
    gives 0. At +inf the limit of the softmax is taken; several infinities share it equally.

    Args:
        dy, x, dim, axis, reverse, exclusive, cu_seqlens, out: as for :func:`cumprod_backward`.

    Returns:
        dx, of dy's shape and dtype.

    Raises:
        InvalidProblemError, UnsupportedError, TypeError: as for :func:`cumprod_backward`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.logcumsumexp_backward(np.ones(3), np.array([1.0, np.inf, 2.0]))
        array([1., 2., 0.])
    """
    return _backward("logcumsumexp", dy, dim_of(dim, axis), reverse, exclusive, cu_seqlens, out, x=x)
