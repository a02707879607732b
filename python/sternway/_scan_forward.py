"""The cumulative operations. A kind is its function here, and its name in ``__all__``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, overload

from . import _outputs, _plan, errors
from ._arrays import device_of, require_array
from ._scan import BaseScanDescriptor, dim_of
from ._sequences import count_sequences
from ._types import ArrayT, DLPackArray, DTypeT, FloatDType, ScanKind, ShapeT, Tie

if TYPE_CHECKING:
    from numpy import dtype, int64, ndarray

__all__ = ["ScanDescriptor", "ScanPlan", "cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"]

IndicesT = TypeVar("IndicesT", bound=DLPackArray)


@dataclasses.dataclass(frozen=True)
class ScanDescriptor(BaseScanDescriptor):
    """A cumulative operation along one dimension.

    Args:
        kind: the name of the function that computes it, such as "cumsum".
        shape: the shape of every operand, of up to 8 dimensions; required.
        dtype: the dtype of x and y: float32, float64, float16 or bfloat16; required.
        dim: the scanned dimension; a negative one counts from the end.
        reverse: True: scan from the last position to the first.
        tie: for cummax and cummin, the one of equal values that wins, in scan order: "last", as in torch, or "first".
        carries: whether runs take carries, by which a scan that is cut into chunks is computed chunk by chunk.
        num_sequences: the number of sequences that are packed along ``dim`` and scanned apart, by the operand cu_seqlens; None:
            each row is one sequence.
        exclusive: True: ``y[i]`` is the scan of the positions before i; not for cummax and cummin, nor with ``carries``.

    Raises:
        InvalidProblemError: a field of another type. ``ScanPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import dataclasses, sternway as sw
        >>> descriptor = sw.ScanDescriptor(kind="cumprod", shape=(64, 4096), dtype="bfloat16")
        >>> dataclasses.replace(descriptor, reverse=True).reverse
        True
    """

    family: ClassVar[str] = "scan"


class ScanPlan(_plan.Plan[ScanDescriptor]):
    """Plan of a cumulative operation. ``select`` makes it and ``run`` executes it.

    Every operand but the carries has the descriptor's shape. The formula of a kind is in its function, such as
    :func:`cumsum`.

    Operands:
        x: input.
        y: output; not x. It may be left out if carry_out is given.
        indices: output, int64, for cummax and cummin: the positions along ``dim`` of the values in y. Left out: they are not
            computed.
        carry_in: input, what the chunk before this one in scan order wrote as its carry_out: float64 [..., k], with the shape
            without ``dim`` before k. It may also be [p, ..., k], of the p adjacent chunks before this one in scan order,
            each written without a carry_in of its own.
        carry_out: output, float64 [..., k]: the state of each row after the last position of this chunk.
        cu_seqlens: input, int32 or int64 [num_sequences + 1], for descriptors with ``num_sequences``: sequence k has the
            positions ``cu_seqlens[k]`` to ``cu_seqlens[k + 1] - 1`` along ``dim``. With carries, bounds count from the
            beginning of the chunk: the first may be negative, and the last may exceed the chunk's length.

    The carries are for descriptors with ``carries``, and optional: chunks of a long scan are computed one after another. The k
    numbers of a row:
        cumsum: the sum.
        cumprod: m and e of the product ``m * 2**e``, which may be out of the range of float64.
        logcumsumexp: m and t of the sum of exponentials, ``exp(m) * (1 + t)``.
        cummax, cummin: the value, its index (NaN before the first element), and the boundary: the index at which the next chunk
            begins, or before which it ends with ``reverse``. Indices of runs with carry_in are positions in the whole scan.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.ScanPlan.select(sw.ScanDescriptor(kind="cummax", shape=(4,), dtype="float64"))
        >>> y, indices = np.empty(4), np.empty(4, np.int64)
        >>> plan.run(x=np.array([1.0, 3.0, 2.0, 3.0]), y=y, indices=indices)
        >>> y, indices
        (array([1., 3., 3., 3.]), array([0, 1, 1, 3]))

        A sum of two chunks:

        >>> plan = sw.ScanPlan.select(sw.ScanDescriptor(kind="cumsum", shape=(2,), dtype="float64", carries=True))
        >>> y, carry = np.empty(4), np.empty(1)
        >>> plan.run(x=np.array([1.0, 2.0]), y=y[:2], carry_out=carry)
        >>> plan.run(x=np.array([3.0, 4.0]), carry_in=carry, y=y[2:])
        >>> y
        array([ 1.,  3.,  6., 10.])
    """

    descriptor_type = ScanDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # True is no 1
def forward_scan_plan(
    kind: ScanKind, shape: tuple[int, ...], dtype: FloatDType, dim: int, reverse: bool, tie: Tie, device: str,
    carries: bool = False, num_sequences: int | None = None, exclusive: bool = False,
) -> ScanPlan:  # fmt: skip
    """The plan of a problem, from a cache."""
    descriptor = ScanDescriptor(kind, shape, dtype, dim, reverse, tie, carries, num_sequences, exclusive)
    return ScanPlan.select(descriptor, device)


_OPERANDS = {"y": "out", "dtype": "x", "shape": "x", "num_sequences": "cu_seqlens"}
"""The functions' names of the plan's output and of fields of its descriptor."""


def _scan(
    kind: ScanKind, x: ArrayT, dim: int, reverse: bool, exclusive: bool, cu_seqlens: DLPackArray | None, out: ArrayT | None
) -> ArrayT:
    array = require_array(f"scan({kind})", "x", x)
    plan, bounds = _planned(kind, array, dim, reverse, "last", exclusive, cu_seqlens)
    outputs: dict[str, ArrayT] = _outputs.outputs(plan, array, [("y", array, None)], out)
    plan.run(x=array, **bounds, **outputs)
    return outputs["y"]


def _planned(
    kind: ScanKind, x: Any, dim: int, reverse: bool, tie: Tie, exclusive: bool, cu_seqlens: DLPackArray | None
) -> tuple[ScanPlan, dict[str, Any]]:
    """The plan of a call, and the bounds of its sequences as an operand."""
    op = f"scan({kind})"
    bounds = {} if cu_seqlens is None else {"cu_seqlens": require_array(op, "cu_seqlens", cu_seqlens)}
    options = tie, device_of(x), False, count_sequences(op, bounds.get("cu_seqlens")), exclusive
    return _plan.cached(forward_scan_plan, kind, tuple(x.shape), x.dtype, dim, reverse, *options), bounds


@errors.reported_as("cumsum", _OPERANDS)
def cumsum(
    x: ArrayT, dim: int = -1, *, axis: int | None = None, reverse: bool = False, exclusive: bool = False,
    cu_seqlens: DLPackArray | None = None, out: ArrayT | None = None,
) -> ArrayT:  # fmt: skip
    """Cumulative sum along a dimension: ``y[i] = sum_{j<=i} x[j]`` in scan order.

    Sums are carried in float32 at least, in float64 for float64 and on the CPU, and rounded to the dtype once.

    Args:
        x: of any shape of up to 8 dimensions and any strides; float32, float64, float16 or bfloat16.
        dim: the scanned dimension; a negative one counts from the end.
        axis: NumPy's name of dim; one of the two is given.
        reverse: True: scan from the last position to the first, ``y[i] = sum_{j>=i} x[j]``.
        exclusive: True: ``y[i]`` is the scan of the positions before i in scan order, and that of none, 0, at the first.
        cu_seqlens: the bounds of sequences that are packed along dim and scanned apart, int32 or int64 [N + 1], rising from 0
            to the extent, on x's device: sequence k has the positions ``cu_seqlens[k]`` to ``cu_seqlens[k + 1] - 1``. None:
            one sequence.
        out: an array to write y into, of x's shape and dtype and any strides; not x. None: a new array of x's library.

    Returns:
        y, of x's shape and dtype; out if it is given.

    Raises:
        InvalidProblemError: a dim out of range; an out of another shape, dtype or device, or that overlaps x; bounds of
            sequences that do not rise from 0 to the extent.
        UnsupportedError: a dtype, rank or device without a kernel.
        TypeError: x is no array; dim and axis are both given.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cumsum(np.array([1.0, 2.0, 3.0]))
        array([1., 3., 6.])
        >>> sw.cumsum(np.array([1.0, 2.0, 3.0]), reverse=True)
        array([6., 5., 3.])
        >>> sw.cumsum(np.array([1.0, 2.0, 3.0]), exclusive=True)
        array([0., 1., 3.])
        >>> sw.cumsum(np.array([1.0, 2.0, 3.0]), cu_seqlens=np.array([0, 2, 3]))
        array([1., 3., 3.])
    """
    return _scan("cumsum", x, dim_of(dim, axis), reverse, exclusive, cu_seqlens, out)


@errors.reported_as("cumprod", _OPERANDS)
def cumprod(
    x: ArrayT, dim: int = -1, *, axis: int | None = None, reverse: bool = False, exclusive: bool = False,
    cu_seqlens: DLPackArray | None = None, out: ArrayT | None = None,
) -> ArrayT:  # fmt: skip
    """Cumulative product along a dimension: ``y[i] = prod_{j<=i} x[j]`` in scan order.

    Products are carried in a range wider than the dtype's, so that one that leaves the range and comes back is right again. A
    product that is 0 stays 0 whatever follows, also infinity; NaN stays NaN.

    Args:
        x, dim, axis, reverse, cu_seqlens, out: as for :func:`cumsum`.
        exclusive: True: the product of the positions before each in scan order, 1 at the first.

    Returns:
        y, of x's shape and dtype; out if it is given.

    Raises:
        InvalidProblemError, UnsupportedError, TypeError: as for :func:`cumsum`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cumprod(np.array([1e30, 1e30, 1e-30], np.float32))
        array([1.e+30,    inf, 1.e+30], dtype=float32)
    """
    return _scan("cumprod", x, dim_of(dim, axis), reverse, exclusive, cu_seqlens, out)


@errors.reported_as("logcumsumexp", _OPERANDS)
def logcumsumexp(
    x: ArrayT, dim: int = -1, *, axis: int | None = None, reverse: bool = False, exclusive: bool = False,
    cu_seqlens: DLPackArray | None = None, out: ArrayT | None = None,
) -> ArrayT:  # fmt: skip
    """Logarithm of the cumulative sum of exponentials: ``y[i] = log sum_{j<=i} exp(x[j])`` in scan order.

    Computed with a running maximum and a sum relative to it, so that no exponential overflows. y is -inf as long as every x
    is, inf from the first inf on, and NaN from the first NaN on.

    Args:
        x, dim, axis, reverse, cu_seqlens, out: as for :func:`cumsum`.
        exclusive: True: of the positions before each in scan order, -inf at the first.

    Returns:
        y, of x's shape and dtype; out if it is given.

    Raises:
        InvalidProblemError, UnsupportedError, TypeError: as for :func:`cumsum`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.logcumsumexp(np.array([-np.inf, 1000.0, 1000.0])).round(4)
        array([     -inf, 1000.    , 1000.6931])
    """
    return _scan("logcumsumexp", x, dim_of(dim, axis), reverse, exclusive, cu_seqlens, out)


class _Extremum(Protocol):
    """The types of cummax and cummin."""

    @overload
    def __call__(
        self,
        x: ndarray[ShapeT, DTypeT],
        dim: int = ...,
        *,
        axis: int | None = ...,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: DLPackArray | None = ...,
        tie: Tie = ...,
        out: None = ...,
    ) -> tuple[ndarray[ShapeT, DTypeT], ndarray[ShapeT, dtype[int64]]]: ...
    @overload
    def __call__(
        self,
        x: ArrayT,
        dim: int = ...,
        *,
        axis: int | None = ...,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: DLPackArray | None = ...,
        tie: Tie = ...,
        out: None = ...,
    ) -> tuple[ArrayT, ArrayT]: ...
    @overload
    def __call__(
        self,
        x: DLPackArray,
        dim: int = ...,
        *,
        axis: int | None = ...,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: DLPackArray | None = ...,
        tie: Tie = ...,
        out: tuple[ArrayT, IndicesT],
    ) -> tuple[ArrayT, IndicesT]: ...
    @overload
    def __call__(
        self,
        x: DLPackArray,
        dim: int = ...,
        *,
        axis: int | None = ...,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: DLPackArray | None = ...,
        tie: Tie = ...,
        out: ArrayT | tuple[ArrayT],
    ) -> ArrayT: ...


def _overloaded(function: Callable[..., Any]) -> _Extremum:
    """Give cummax and cummin their types. It returns the function itself."""
    return function


def _extremum(
    kind: ScanKind, x: Any, dim: int, reverse: bool, exclusive: bool, cu_seqlens: DLPackArray | None, tie: Tie, out: Any
) -> Any:
    """Values and indices, or values alone if out is one array."""
    x = require_array(f"scan({kind})", "x", x)
    plan, bounds = _planned(kind, x, dim, reverse, tie, exclusive, cu_seqlens)
    rows = [("y", x, None), ("indices", x, "int64")]
    if out is not None and not (isinstance(out, (tuple, list)) and sum(array is not None for array in out) != 1):
        rows.pop()
    outputs = _outputs.outputs(plan, x, rows, out)
    plan.run(x=x, **bounds, **outputs)
    return tuple(outputs.values()) if len(rows) > 1 else outputs["y"]


@_overloaded
@errors.reported_as("cummax", _OPERANDS)
def cummax(
    x: DLPackArray, dim: int = -1, *, axis: int | None = None, reverse: bool = False, exclusive: bool = False,
    cu_seqlens: DLPackArray | None = None, tie: Tie = "last", out: Any = None,
) -> Any:  # fmt: skip
    """Cumulative maximum along a dimension, ``y[i] = max_{j<=i} x[j]`` in scan order, and its position.

    NaN beats every number, and -0.0 and 0.0 are equal.

    Args:
        x: of any shape of up to 8 dimensions and any strides; float32, float64, float16 or bfloat16.
        dim: the scanned dimension; a negative one counts from the end.
        axis: NumPy's name of dim; one of the two is given.
        reverse: True: scan from the last position to the first.
        exclusive: False; no position comes before the first, whose maximum would be none.
        cu_seqlens: as for :func:`cumsum`. Indices stay positions along dim.
        tie: the one of equal values that wins, in scan order: "last", as in torch, or "first".
        out: None: two new arrays of x's library. A tuple (values, indices): the arrays to write. One array, or a tuple of one:
            the values are written there and the indices are not computed, which is faster. No output may overlap x.

    Returns:
        (values, indices): the maxima, of x's shape and dtype, and int64 positions in x along dim, with reverse too. If out is
        one array or a tuple of one, the values alone, which is that array.

    Raises:
        InvalidProblemError: a dim out of range; outputs of another shape, dtype or device, or that overlap; bounds of
            sequences that do not rise from 0 to the extent.
        UnsupportedError: a dtype, tie, rank or device without a kernel.
        TypeError: x is no array; dim and axis are both given.

    Example:
        >>> import numpy as np, sternway as sw
        >>> x = np.array([1.0, 3.0, 2.0, 3.0, 0.0])
        >>> sw.cummax(x)
        (array([1., 3., 3., 3., 3.]), array([0, 1, 1, 3, 3]))
        >>> sw.cummax(x, tie="first", out=np.empty(5))
        array([1., 3., 3., 3., 3.])
    """
    return _extremum("cummax", x, dim_of(dim, axis), reverse, exclusive, cu_seqlens, tie, out)


@_overloaded
@errors.reported_as("cummin", _OPERANDS)
def cummin(
    x: DLPackArray, dim: int = -1, *, axis: int | None = None, reverse: bool = False, exclusive: bool = False,
    cu_seqlens: DLPackArray | None = None, tie: Tie = "last", out: Any = None,
) -> Any:  # fmt: skip
    """Cumulative minimum along a dimension, ``y[i] = min_{j<=i} x[j]`` in scan order, and its position.

    Args:
        x, dim, axis, reverse, exclusive, cu_seqlens, tie, out: as for :func:`cummax`.

    Returns:
        (values, indices), or the values alone, as for :func:`cummax`.

    Raises:
        InvalidProblemError, UnsupportedError, TypeError: as for :func:`cummax`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cummin(np.array([2.0, 1.0, 1.0, 5.0]), reverse=True)
        (array([1., 1., 1., 5.]), array([1, 1, 2, 3]))
    """
    return _extremum("cummin", x, dim_of(dim, axis), reverse, exclusive, cu_seqlens, tie, out)
