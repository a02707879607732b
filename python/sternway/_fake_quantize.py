"""Per-token fake quantization and its gradient.

A token is one index of the leading dimensions; its elements, along the last dimension, share a scale.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

from . import _outputs, _plan
from ._arrays import device_of, require_array
from ._descriptor import Descriptor
from ._quantize import ScaleT, ZeroPointT, gradient_rows, of_operands
from ._types import ArrayT, DLPackArray, FloatDType

__all__ = [
    "FakeQuantizePerTokenBackwardDescriptor",
    "FakeQuantizePerTokenBackwardPlan",
    "FakeQuantizePerTokenDescriptor",
    "FakeQuantizePerTokenPlan",
    "fake_quantize_per_token",
    "fake_quantize_per_token_backward",
]


@dataclasses.dataclass(frozen=True)
class BaseFakeQuantizeDescriptor(Descriptor):
    """The fields of FakeQuantizePerTokenDescriptor and FakeQuantizePerTokenBackwardDescriptor."""

    shape: Sequence[int]
    dtype: FloatDType
    quant_min: int
    quant_max: int
    scale_dtype: FloatDType | None = None


@dataclasses.dataclass(frozen=True)
class FakeQuantizePerTokenDescriptor(BaseFakeQuantizeDescriptor):
    """Quantize and dequantize with a scale for each token, the problem of :func:`fake_quantize_per_token`.

    Args:
        shape: the shape [..., D] of x and y; the leading dimensions are the tokens.
        dtype: the dtype of x and y: float32, float64, float16 or bfloat16.
        quant_min, quant_max: the bounds of the quantized values, inclusive.
        scale_dtype: the dtype of scale: None for ``dtype``, or float32.

    Raises:
        InvalidProblemError: a field of another type. ``FakeQuantizePerTokenPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.FakeQuantizePerTokenDescriptor((2, 3), "float32", quant_min=-8, quant_max=7).quant_max
        7
    """

    family: ClassVar[str] = "fake_quantize_per_token"


class FakeQuantizePerTokenPlan(_plan.Plan[FakeQuantizePerTokenDescriptor]):
    """Plan of :func:`fake_quantize_per_token`. ``select`` makes it and ``run`` executes it.

    Shapes and dtypes are of the descriptor: shape [..., D], ``dtype`` and ``scale_dtype``. Per-token operands have the shape
    [...] or [..., 1].

    Operands:
        x: input [..., D].
        scale: input [...].
        zero_point: input [...], int8, uint8, int32, int64 or floating; left out: 0.
        y: output [..., D]; it may be x.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.FakeQuantizePerTokenDescriptor((1, 3), "float32", quant_min=-8, quant_max=7)
        >>> plan = sw.FakeQuantizePerTokenPlan.select(descriptor)
        >>> x = np.array([[0.6, 3.8, -100.0]], np.float32)
        >>> plan.run(x=x, scale=np.array([0.5], np.float32), y=x)
        >>> x.tolist()
        [[0.5, 3.5, -4.0]]
    """

    descriptor_type = FakeQuantizePerTokenDescriptor


@dataclasses.dataclass(frozen=True)
class FakeQuantizePerTokenBackwardDescriptor(BaseFakeQuantizeDescriptor):
    """The backward of quantize-dequantize with straight-through rounding, the problem of
    :func:`fake_quantize_per_token_backward`.

    Args:
        shape: the shape [..., D] of dy, x and dx; the leading dimensions are the tokens.
        dtype: the dtype of dy, x and dx: float32, float64, float16 or bfloat16.
        quant_min, quant_max: the bounds of the quantized values, inclusive.
        scale_dtype: the dtype of scale: None for ``dtype``, or float32.

    Raises:
        InvalidProblemError: a field of another type. ``FakeQuantizePerTokenBackwardPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> descriptor = sw.FakeQuantizePerTokenBackwardDescriptor((2, 3), "float32", quant_min=-8, quant_max=7)
        >>> descriptor.shape
        (2, 3)
    """

    family: ClassVar[str] = "fake_quantize_per_token_backward"


class FakeQuantizePerTokenBackwardPlan(_plan.Plan[FakeQuantizePerTokenBackwardDescriptor]):
    """Plan of :func:`fake_quantize_per_token_backward`. ``select`` makes it and ``run`` executes it.

    Shapes and dtypes are of the descriptor: shape [..., D], ``dtype`` and ``scale_dtype``. Per-token operands have the shape
    [...] or [..., 1].

    Operands:
        dy: input [..., D], the upstream gradient.
        x: input [..., D] of the forward.
        scale: input [...].
        zero_point: input [...], int8, uint8, int32, int64 or floating; left out: 0.
        dx: output [..., D].
        dscale: output like scale; may be left out.
        dzero_point: output like a floating zero_point; may be left out.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.FakeQuantizePerTokenBackwardDescriptor((1, 3), "float32", quant_min=-8, quant_max=7)
        >>> plan = sw.FakeQuantizePerTokenBackwardPlan.select(descriptor)
        >>> x, dx = np.array([[0.5, 3.75, -100.0]], np.float32), np.empty((1, 3), np.float32)
        >>> plan.run(dy=np.ones_like(x), x=x, scale=np.array([0.5], np.float32), dx=dx)
        >>> dx.tolist()
        [[1.0, 0.0, 0.0]]
    """

    descriptor_type = FakeQuantizePerTokenBackwardDescriptor


@functools.lru_cache(maxsize=1024, typed=True)
def fake_quantize_forward_plan(
    shape: tuple[int, ...], dtype: FloatDType, quant_min: int, quant_max: int, scale_dtype: FloatDType, device: str
) -> FakeQuantizePerTokenPlan:
    """The plan of a problem, from a cache."""
    with of_operands(shape="x", dtype="x", scale_dtype="scale"):
        descriptor = FakeQuantizePerTokenDescriptor(shape, dtype, quant_min, quant_max, scale_dtype)
        return FakeQuantizePerTokenPlan.select(descriptor, device)


@functools.lru_cache(maxsize=1024, typed=True)
def fake_quantize_plan(
    shape: tuple[int, ...], dtype: FloatDType, quant_min: int, quant_max: int, scale_dtype: FloatDType, device: str
) -> FakeQuantizePerTokenBackwardPlan:
    """The plan of a problem, from a cache."""
    with of_operands(shape="dy", dtype="dy", scale_dtype="scale"):
        descriptor = FakeQuantizePerTokenBackwardDescriptor(shape, dtype, quant_min, quant_max, scale_dtype)
        return FakeQuantizePerTokenBackwardPlan.select(descriptor, device)


def fake_quantize_per_token(
    x: ArrayT,
    scale: DLPackArray,
    zero_point: DLPackArray | None = None,
    *,
    quant_min: int,
    quant_max: int,
    out: ArrayT | None = None,
) -> ArrayT:
    """Quantize and dequantize with a scale for each token, as quantization-aware training does.

    For token n, ``t = round_half_even(x / scale[n]) + zero_point[n]`` and ``y = (clamp(t, quant_min, quant_max) -
    zero_point[n]) * scale[n]``. A floating zero point is first rounded and clamped. All of this is formed in float32, or in
    float64 for float64 operands, and y is rounded once. Where scale is 0, as for a row of padding, y is 0. A NaN in x gives
    NaN.

    Args:
        x: [..., D]; float32, float64, float16 or bfloat16.
        scale: [...] or [..., 1], of x's dtype or float32.
        zero_point: [...] or [..., 1], int8, uint8, int32, int64 or floating; None: 0.
        quant_min, quant_max: bounds of the quantized values, integers, inclusive.
        out: an array to write into; it may be x. None: a new array of x's library.

    Returns:
        y, of x's shape and dtype.

    Raises:
        InvalidProblemError: shapes, dtypes, devices or bounds that contradict each other.
        UnsupportedError: a dtype or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> x, scale = np.array([[0.6, 3.8, -100.0]], np.float32), np.array([0.5], np.float32)
        >>> sw.fake_quantize_per_token(x, scale, quant_min=-8, quant_max=7).tolist()
        [[0.5, 3.5, -4.0]]
    """
    op = "fake_quantize_per_token"
    array, scales = require_array(op, "x", x), require_array(op, "scale", scale)
    zero_point = zero_point if zero_point is None else require_array(op, "zero_point", zero_point)
    plan = _plan.cached(
        fake_quantize_forward_plan, tuple(array.shape), array.dtype, quant_min, quant_max, scales.dtype, device_of(array)
    )
    outputs: dict[str, ArrayT] = _outputs.outputs(plan, array, [("y", array, None)], out)
    plan.run(x=array, scale=scales, zero_point=zero_point, **outputs)
    return outputs["y"]


def fake_quantize_per_token_backward(
    dy: ArrayT,
    x: DLPackArray,
    scale: ScaleT,
    zero_point: ZeroPointT | None = None,
    *,
    quant_min: int,
    quant_max: int,
    out: Sequence[DLPackArray | None] | None = None,
) -> tuple[ArrayT, ScaleT, ZeroPointT | None]:
    """Gradients of quantize-dequantize with straight-through rounding, as quantization-aware training uses it.

    For token n, ``t = round_half_even(x / scale[n]) + zero_point[n]`` and ``q = clamp(t, quant_min, quant_max)``. An element is
    inside if ``quant_min <= t <= quant_max``.

    - ``dx`` is dy inside and 0 outside.
    - ``dscale[n]`` sums ``dy * ((q - zero_point) - x / scale)`` inside and ``dy * (q - zero_point)`` outside.
    - ``dzero_point[n]`` sums ``-dy * scale`` outside. A floating zero point is first rounded and clamped.

    Source: learned step size quantization, Esser et al. 2020, arXiv:1902.08153, without its gradient scale. x / scale is
    rounded to float32, or to float64 for float64 operands, before t is formed. A scale of 0 is the limit of small scales: ``x /
    0`` is infinite with the sign of x and ``0 / 0`` is 0, so a row of zeros with scale 0 is inside and its gradients are
    finite.

    Args:
        dy: the upstream gradient [..., D]; float32, float64, float16 or bfloat16.
        x: the input of the forward, of dy's shape and dtype.
        scale: [...] or [..., 1], of dy's dtype or float32.
        zero_point: [...] or [..., 1], int8, uint8, int32, int64 or floating; None: 0.
        quant_min, quant_max: bounds of the quantized values, integers, inclusive.
        out: arrays to write into: (dx, dscale), and dzero_point as a third if zero_point is floating. None: new arrays of dy's
            library.

    Returns:
        the tuple (dx, dscale, dzero_point); dzero_point is None unless zero_point is floating. Each gradient has the shape and
        dtype of its input.

    Raises:
        InvalidProblemError: shapes, dtypes, devices or bounds that contradict each other.
        UnsupportedError: a dtype or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> x, scale = np.array([[0.5, 3.75, -100.0]], np.float32), np.array([0.5], np.float32)
        >>> dx, dscale, _ = sw.fake_quantize_per_token_backward(np.ones_like(x), x, scale, quant_min=-8, quant_max=7)
        >>> dx, dscale
        (array([[1., 0., 0.]], dtype=float32), array([-1.], dtype=float32))
    """
    op = "fake_quantize_per_token_backward"
    operands = (("dy", dy), ("x", x), ("scale", scale))
    grad, array, scales = (require_array(op, name, operand) for name, operand in operands)
    zeros = zero_point if zero_point is None else require_array(op, "zero_point", zero_point)
    plan = _plan.cached(fake_quantize_plan, tuple(grad.shape), grad.dtype, quant_min, quant_max, scales.dtype, device_of(grad))
    outputs = _outputs.outputs(plan, grad, gradient_rows(grad, scales, zeros), out)
    plan.run(dy=grad, x=array, scale=scales, zero_point=zeros, **outputs)
    return outputs["dx"], outputs["dscale"], outputs.get("dzero_point")
