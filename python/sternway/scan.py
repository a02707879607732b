"""Gradients of the cumulative operations: cumsum, cumprod, cummax, cummin, logcumsumexp."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

from . import _plan, errors
from ._arrays import Array, device_of, require_array
from ._descriptor import REQUIRED, Descriptor


@dataclasses.dataclass(frozen=True)
class ScanBackwardDescriptor(Descriptor):
    """The backward of a cumulative operation along one dimension.

    Args:
        kind: "cumsum", "cumprod", "cummax", "cummin" or "logcumsumexp".
        shape: of every operand; required.
        dtype: of dy, x and dx: float32, float64, float16 or bfloat16; required.
        dim: the scanned dimension; negative: counted from the end.
        reverse: the forward ran from the last position to the first.
        tie: which of equal values wins in cummax and cummin, in scan order: "last", as in torch, or "first".
    """

    family: ClassVar[str] = "scan_backward"

    kind: str = "cumsum"
    shape: Sequence[int] = REQUIRED
    dtype: Any = REQUIRED
    dim: int = -1
    reverse: bool = False
    tie: str = "last"


class ScanBackwardPlan(_plan.Plan[ScanBackwardDescriptor]):
    """Runs the gradients of the functions of this module.

    Operands of run: ``dy, x?, indices? -> dx``. cumsum takes neither x nor indices, cummax and cummin exactly one of them
    (indices: int64 positions along dim), cumprod and logcumsumexp x.
    """

    descriptor_type = ScanBackwardDescriptor


@functools.lru_cache(maxsize=1024, typed=True)  # True is no 1
def scan_plan(
    kind: str, shape: tuple[int, ...], dtype: Any, dim: int, reverse: bool, tie: str, device: str
) -> ScanBackwardPlan:
    """The plan of a problem, selected once."""
    return ScanBackwardPlan.select(ScanBackwardDescriptor(kind, shape, dtype, dim, reverse, tie), device)


_OPERANDS = {"dx": "out"}
"""What the functions call the plan's output."""


def _backward(
    kind: str, dy: Array, dim: int, reverse: bool, out: Array | None, tie: str = "last", **inputs: Array | None
) -> Array:
    op = f"scan_backward({kind})"
    dy = require_array(op, "dy", dy)
    given = {name: require_array(op, name, x) for name, x in inputs.items() if x is not None}
    plan = scan_plan(kind, tuple(dy.shape), dy.dtype, dim, reverse, tie, device_of(dy))
    outputs = _plan.outputs(plan, dy, [("dx", dy, None)], out)
    plan.run(dy=dy, **given, **outputs)
    return outputs["dx"]


@errors.reported_as("cumsum_backward", _OPERANDS)
def cumsum_backward(dy: Array, dim: int = -1, *, reverse: bool = False, out: Array | None = None) -> Array:
    """Gradient of a cumulative sum: ``dx[k] = sum_{i>=k} dy[i]`` in scan order.

    Args:
        dy: the upstream gradient, of any shape up to rank 8; float32, float64, float16 or bfloat16.
        dim: the scanned dimension.
        reverse: the forward ran from the last position to the first.
        out: an array to write dx into; None: a new one of dy's library.

    Raises:
        InvalidProblemError: a dim out of range, or operands that contradict each other.
        UnsupportedError: a dtype, tie or device without a kernel.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cumsum_backward(np.array([1.0, 2.0, 3.0]))
        array([6., 5., 3.])
    """
    return _backward("cumsum", dy, dim, reverse, out)


@errors.reported_as("cumprod_backward", _OPERANDS)
def cumprod_backward(dy: Array, x: Array, dim: int = -1, *, reverse: bool = False, out: Array | None = None) -> Array:
    """Gradient of a cumulative product: ``dx[k] = L[k] R[k]``, ``L[k] = prod_{i<k} x[i]``, ``R[k] = dy[k] + x[k+1] R[k+1]``.

    Nothing is divided, so any number of zeros is exact; a zero cuts infinities, but not NaN.

    Args:
        dy, x: of one shape and dtype; float32, float64, float16 or bfloat16. x is the input of the forward.
        dim, reverse, out: as for :func:`cumsum_backward`, which also lists the errors.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cumprod_backward(np.ones(4), np.array([2.0, 0.0, 3.0, 4.0]))
        array([ 1., 32.,  0.,  0.])
    """
    return _backward("cumprod", dy, dim, reverse, out, x=x)


def _extremum(
    kind: str, dy: Array, x: Array | None, dim: int, indices: Array | None, reverse: bool, tie: str, out: Array | None
) -> Array:
    if (x is None) == (indices is None):
        raise errors.make(
            "invalid_problem",
            f"scan_backward({kind})",
            "x or indices",
            "given, one of the two",
            "nothing" if x is None else "both",
        )
    return _backward(kind, dy, dim, reverse, out, tie, x=x, indices=indices)


@errors.reported_as("cummax_backward", _OPERANDS)
def cummax_backward(
    dy: Array,
    x: Array | None = None,
    dim: int = -1,
    *,
    indices: Array | None = None,
    reverse: bool = False,
    tie: str = "last",
    out: Array | None = None,
) -> Array:
    """Gradient of a cumulative maximum: ``dx[k]`` is the sum of dy over the positions whose maximum was ``x[k]``.

    Args:
        dy: float32, float64, float16 or bfloat16.
        x: the input of the forward, like dy. Exactly one of x and indices is given.
        indices: int64, the positions along dim that the forward returned; any positions are right.
        tie: which of equal values wins, in scan order: "last", as in torch, or "first". A NaN beats every number.
        dim, reverse, out: as for :func:`cumsum_backward`, which also lists the errors.

    Raises:
        InvalidProblemError: an index out of range, on the CPU or with STERNWAY_CHECK=1; otherwise it contributes nothing.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cummax_backward(np.ones(5), np.array([1.0, 3.0, 2.0, 3.0, 0.0]))
        array([1., 2., 0., 2., 0.])
    """
    return _extremum("cummax", dy, x, dim, indices, reverse, tie, out)


@errors.reported_as("cummin_backward", _OPERANDS)
def cummin_backward(
    dy: Array,
    x: Array | None = None,
    dim: int = -1,
    *,
    indices: Array | None = None,
    reverse: bool = False,
    tie: str = "last",
    out: Array | None = None,
) -> Array:
    """Gradient of a cumulative minimum; the arguments are those of :func:`cummax_backward`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cummin_backward(np.ones(4), np.array([2.0, 1.0, 1.0, 5.0]), tie="first")
        array([1., 3., 0., 0.])
    """
    return _extremum("cummin", dy, x, dim, indices, reverse, tie, out)


@errors.reported_as("logcumsumexp_backward", _OPERANDS)
def logcumsumexp_backward(dy: Array, x: Array, dim: int = -1, *, reverse: bool = False, out: Array | None = None) -> Array:
    """Gradient of ``y[i] = log sum_{j<=i} exp(x[j])``: ``dx[k] = sum_{i>=k} dy[i] exp(x[k] - y[i])``.

    Formed from x alone, through a running maximum and sum, so an offset of x costs no accuracy. ``x[k] = -inf`` gives 0; at
    +inf the limit of the softmax is taken.

    Args:
        dy, x: of one shape and dtype; float32, float64, float16 or bfloat16. x is the input of the forward.
        dim, reverse, out: as for :func:`cumsum_backward`, which also lists the errors.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.logcumsumexp_backward(np.ones(3), np.array([1.0, np.inf, 2.0]))
        array([1., 2., 0.])
    """
    return _backward("logcumsumexp", dy, dim, reverse, out, x=x)
