"""Gradients of fake quantization, with a scale for each token or for blocks of any shape, which ``_quantize`` defines."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

from . import _outputs, _plan
from ._arrays import device_of, require_array
from ._fake_quantize import BaseFakeQuantizeDescriptor, BasePerTokenDescriptor
from ._quantize import ScaleT, ZeroPointT, gradient_rows, of_operands, require_blocks
from ._types import ArrayT, DLPackArray, FloatDType

__all__ = [
    "FakeQuantizeBackwardDescriptor",
    "FakeQuantizeBackwardPlan",
    "FakeQuantizePerTokenBackwardDescriptor",
    "FakeQuantizePerTokenBackwardPlan",
    "fake_quantize_backward",
    "fake_quantize_per_token_backward",
]


@dataclasses.dataclass(frozen=True)
class FakeQuantizeBackwardDescriptor(BaseFakeQuantizeDescriptor):
    """The backward of quantize-dequantize with straight-through rounding, the problem of :func:`fake_quantize_backward`.

    Args:
        shape: the shape of dy, x and dx.
        dtype: the dtype of dy, x and dx: float32, float64, float16 or bfloat16.
        quant_min, quant_max, scale_shape, scale_dtype, reciprocal: as for :class:`FakeQuantizeDescriptor`.

    Raises:
        InvalidProblemError: a field of another type. ``FakeQuantizeBackwardPlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.FakeQuantizeBackwardDescriptor((4, 64), "float32", -8, 7, scale_shape=(1, 64)).scale_shape  # per channel
        (1, 64)
    """

    family: ClassVar[str] = "fake_quantize_backward"


class FakeQuantizeBackwardPlan(_plan.Plan[FakeQuantizeBackwardDescriptor]):
    """Plan of :func:`fake_quantize_backward`. ``select`` makes it and ``run`` executes it.

    Shapes and dtypes are of the descriptor: ``shape``, ``scale_shape``, ``dtype`` and ``scale_dtype``.

    Operands:
        dy: input of ``shape``, the upstream gradient.
        x: input of ``shape``, of the forward.
        scale: input of ``scale_shape``.
        zero_point: input of ``scale_shape``, int8, uint8, int32, int64 or floating; left out: 0.
        dx: output of ``shape``.
        dscale: output like scale; may be left out.
        dzero_point: output like a floating zero_point; may be left out.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.FakeQuantizeBackwardDescriptor((1, 3), "float32", quant_min=-8, quant_max=7, scale_shape=())
        >>> plan = sw.FakeQuantizeBackwardPlan.select(descriptor)
        >>> x, dx = np.array([[0.5, 3.75, -100.0]], np.float32), np.empty((1, 3), np.float32)
        >>> plan.run(dy=np.ones_like(x), x=x, scale=np.array(0.5, np.float32), dx=dx)
        >>> dx.tolist()
        [[1.0, 0.0, 0.0]]
    """

    descriptor_type = FakeQuantizeBackwardDescriptor


@dataclasses.dataclass(frozen=True)
class FakeQuantizePerTokenBackwardDescriptor(BasePerTokenDescriptor):
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
def fake_quantize_backward_plan(
    shape: tuple[int, ...],
    dtype: FloatDType,
    quant_min: int,
    quant_max: int,
    scale_shape: tuple[int, ...] | None,
    scale_dtype: FloatDType,
    device: str,
    reciprocal: bool = False,
) -> FakeQuantizeBackwardPlan | FakeQuantizePerTokenBackwardPlan:
    """The plan of a problem, from a cache. scale_shape: None: a scale for each token, without reciprocal."""
    with of_operands(shape="dy", dtype="dy", scale_shape="scale", scale_dtype="scale"):
        if scale_shape is None:
            per_token = FakeQuantizePerTokenBackwardDescriptor(shape, dtype, quant_min, quant_max, scale_dtype)
            return FakeQuantizePerTokenBackwardPlan.select(per_token, device)
        require_blocks(FakeQuantizeBackwardDescriptor.family, "dy", shape, scale_shape)
        descriptor = FakeQuantizeBackwardDescriptor(shape, dtype, quant_min, quant_max, scale_shape, scale_dtype, reciprocal)
        return FakeQuantizeBackwardPlan.select(descriptor, device)


def _gradients(
    op: str,
    dy: ArrayT,
    x: DLPackArray,
    scale: ScaleT,
    zero_point: ZeroPointT | None,
    quant_min: int,
    quant_max: int,
    out: Sequence[DLPackArray | None] | None,
) -> tuple[ArrayT, ScaleT, ZeroPointT | None]:
    """Both functions, which ``op`` tells apart."""
    operands = (("dy", dy), ("x", x), ("scale", scale))
    grad, array, scales = (require_array(op, name, operand) for name, operand in operands)
    zeros = zero_point if zero_point is None else require_array(op, "zero_point", zero_point)
    blocks = None if op == FakeQuantizePerTokenBackwardDescriptor.family else tuple(scales.shape)
    problem = tuple(grad.shape), grad.dtype, quant_min, quant_max, blocks, scales.dtype, device_of(grad)
    plan = _plan.cached(fake_quantize_backward_plan, *problem)
    outputs = _outputs.outputs(plan, grad, gradient_rows(grad, scales, zeros), out)
    plan.run(dy=grad, x=array, scale=scales, zero_point=zeros, **outputs)
    return outputs["dx"], outputs["dscale"], outputs.get("dzero_point")


def fake_quantize_backward(
    dy: ArrayT,
    x: DLPackArray,
    scale: ScaleT,
    zero_point: ZeroPointT | None = None,
    *,
    quant_min: int,
    quant_max: int,
    out: Sequence[DLPackArray | None] | None = None,
) -> tuple[ArrayT, ScaleT, ZeroPointT | None]:
    """Gradients of quantize-dequantize with straight-through rounding; :func:`fake_quantize` says which shapes scale has.

    ``t = round_half_even(x / scale) + zero_point`` and ``q = clamp(t, quant_min, quant_max)``. An element is inside if
    ``quant_min <= t <= quant_max``.

    - ``dx`` is dy inside and 0 outside.
    - ``dscale`` sums ``dy * ((q - zero_point) - x / scale)`` inside and ``dy * (q - zero_point)`` outside, over each block.
    - ``dzero_point`` sums ``-dy * scale`` outside, over each block. A floating zero point is first rounded and clamped.

    The sums have a fixed order. The source, and the limits where scale is 0, are those of
    :func:`fake_quantize_per_token_backward`.

    Args:
        dy: the upstream gradient; float32, float64, float16 or bfloat16.
        x: the input of the forward, of dy's shape and dtype.
        scale: one number for each block of x, of dy's dtype or float32.
        zero_point: of scale's shape, int8, uint8, int32, int64 or floating; None: 0.
        quant_min, quant_max: bounds of the quantized values, integers, inclusive.
        out: arrays to write into: (dx, dscale), and dzero_point as a third if zero_point is floating. None: new arrays of dy's
            library.

    Returns:
        the tuple (dx, dscale, dzero_point); dzero_point is None unless zero_point is floating. Each gradient has the shape and
        dtype of its input.

    Raises:
        InvalidProblemError: an extent of scale that does not divide dy's; shapes, dtypes, devices or bounds that contradict
            each other.
        UnsupportedError: a dtype or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> x, scale = np.array([[0.5, 3.75], [-100.0, 1.0]], np.float32), np.array([[0.5, 2.0]], np.float32)  # per channel
        >>> dx, dscale, _ = sw.fake_quantize_backward(np.ones_like(x), x, scale, quant_min=-8, quant_max=7)
        >>> dx, dscale
        (array([[1., 1.],
               [0., 1.]], dtype=float32), array([[-8.   , -0.375]], dtype=float32))
    """
    return _gradients(FakeQuantizeBackwardDescriptor.family, dy, x, scale, zero_point, quant_min, quant_max, out)


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
    op = FakeQuantizePerTokenBackwardDescriptor.family
    return _gradients(op, dy, x, scale, zero_point, quant_min, quant_max, out)
