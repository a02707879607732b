"""Fake quantization, with a scale for each token or for blocks of any shape, which ``_quantize`` defines."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

from . import _outputs, _plan
from ._arrays import device_of, require_array
from ._descriptor import Descriptor
from ._quantize import of_operands, require_blocks
from ._types import ArrayT, DLPackArray, FloatDType

__all__ = [
    "FakeQuantizeDescriptor",
    "FakeQuantizePerTokenDescriptor",
    "FakeQuantizePerTokenPlan",
    "FakeQuantizePlan",
    "fake_quantize",
    "fake_quantize_per_token",
]


@dataclasses.dataclass(frozen=True)
class BoundedDescriptor(Descriptor):
    """The fields of every descriptor of a fake quantization."""

    shape: Sequence[int]
    dtype: FloatDType
    quant_min: int
    quant_max: int


@dataclasses.dataclass(frozen=True)
class BaseFakeQuantizeDescriptor(BoundedDescriptor):
    """The fields of FakeQuantizeDescriptor and FakeQuantizeBackwardDescriptor."""

    scale_shape: Sequence[int]
    scale_dtype: FloatDType | None = None
    reciprocal: bool = False


@dataclasses.dataclass(frozen=True)
class FakeQuantizeDescriptor(BaseFakeQuantizeDescriptor):
    """Quantize and dequantize with numbers for blocks of any shape, the problem of :func:`fake_quantize`.

    Args:
        shape: the shape of x and y.
        dtype: the dtype of x and y: float32, float64, float16 or bfloat16.
        quant_min, quant_max: the bounds of the quantized values, inclusive.
        scale_shape: the shape of scale and zero_point: of the rank of ``shape``, each extent a divisor; or of rank 0.
        scale_dtype: the dtype of scale: None for ``dtype``, or float32.
        reciprocal: whether ``x * (1 / scale)`` takes the place of ``x / scale``, as in
            ``torch.fake_quantize_per_tensor_affine``, which rounds a few x between two levels to the other one. ``1 / scale``
            has to be finite, unless scale is 0.

    Raises:
        InvalidProblemError: a field of another type. ``FakeQuantizePlan.select`` checks numbers and shapes.
        UnsupportedError: a dtype or another name that its field does not take.
        TypeError: a required field is missing.

    Example:
        >>> import sternway as sw
        >>> sw.FakeQuantizeDescriptor((4, 64), "float32", quant_min=-8, quant_max=7, scale_shape=()).scale_shape  # per tensor
        ()
    """

    family: ClassVar[str] = "fake_quantize"


class FakeQuantizePlan(_plan.Plan[FakeQuantizeDescriptor]):
    """Plan of :func:`fake_quantize`. ``select`` makes it and ``run`` executes it.

    Shapes and dtypes are of the descriptor: ``shape``, ``scale_shape``, ``dtype`` and ``scale_dtype``.

    Operands:
        x: input of ``shape``.
        scale: input of ``scale_shape``.
        zero_point: input of ``scale_shape``, int8, uint8, int32, int64 or floating; left out: 0.
        y: output of ``shape``; it may be x.

    Raises:
        Error: see ``select`` and ``run``.

    Example:
        >>> import numpy as np, sternway as sw
        >>> descriptor = sw.FakeQuantizeDescriptor((1, 4), "float32", quant_min=-8, quant_max=7, scale_shape=(1, 2))
        >>> plan = sw.FakeQuantizePlan.select(descriptor)
        >>> x = np.array([[0.6, -100.0, 3.8, 100.0]], np.float32)
        >>> plan.run(x=x, scale=np.array([[0.5, 2.0]], np.float32), y=x)
        >>> x.tolist()
        [[0.5, -4.0, 4.0, 14.0]]
    """

    descriptor_type = FakeQuantizeDescriptor


@dataclasses.dataclass(frozen=True)
class BasePerTokenDescriptor(BoundedDescriptor):
    """The fields of FakeQuantizePerTokenDescriptor and FakeQuantizePerTokenBackwardDescriptor."""

    scale_dtype: FloatDType | None = None


@dataclasses.dataclass(frozen=True)
class FakeQuantizePerTokenDescriptor(BasePerTokenDescriptor):
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


@functools.lru_cache(maxsize=1024, typed=True)
def fake_quantize_plan(
    shape: tuple[int, ...],
    dtype: FloatDType,
    quant_min: int,
    quant_max: int,
    scale_shape: tuple[int, ...] | None,
    scale_dtype: FloatDType,
    device: str,
    reciprocal: bool = False,
) -> FakeQuantizePlan | FakeQuantizePerTokenPlan:
    """The plan of a problem, from a cache. scale_shape: None: a scale for each token, without reciprocal."""
    with of_operands(shape="x", dtype="x", scale_shape="scale", scale_dtype="scale"):
        if scale_shape is None:
            per_token = FakeQuantizePerTokenDescriptor(shape, dtype, quant_min, quant_max, scale_dtype)
            return FakeQuantizePerTokenPlan.select(per_token, device)
        require_blocks(FakeQuantizeDescriptor.family, "x", shape, scale_shape)
        descriptor = FakeQuantizeDescriptor(shape, dtype, quant_min, quant_max, scale_shape, scale_dtype, reciprocal)
        return FakeQuantizePlan.select(descriptor, device)


def _fake_quantize(
    op: str,
    x: ArrayT,
    scale: DLPackArray,
    zero_point: DLPackArray | None,
    quant_min: int,
    quant_max: int,
    out: ArrayT | None,
) -> ArrayT:
    """Both functions, which ``op`` tells apart."""
    array, scales = require_array(op, "x", x), require_array(op, "scale", scale)
    zero_point = zero_point if zero_point is None else require_array(op, "zero_point", zero_point)
    blocks = None if op == FakeQuantizePerTokenDescriptor.family else tuple(scales.shape)
    problem = tuple(array.shape), array.dtype, quant_min, quant_max, blocks, scales.dtype, device_of(array)
    plan = _plan.cached(fake_quantize_plan, *problem)
    outputs: dict[str, ArrayT] = _outputs.outputs(plan, array, [("y", array, None)], out)
    plan.run(x=array, scale=scales, zero_point=zero_point, **outputs)
    return outputs["y"]


def fake_quantize(
    x: ArrayT,
    scale: DLPackArray,
    zero_point: DLPackArray | None = None,
    *,
    quant_min: int,
    quant_max: int,
    out: ArrayT | None = None,
) -> ArrayT:
    """Quantize and dequantize with a scale for each block, as quantization-aware training does.

    scale has x's rank and in each dimension an extent that divides x's, or rank 0. Element i of a dimension uses the number ``i
    // (extent of x / extent of scale)``. For x [T, D]: per tensor [] or [1, 1], per token [T, 1], per channel [1, D], per group
    of g elements [T, D / g], per block of 128 x 128 [T / 128, D / 128].

    ``t = round_half_even(x / scale) + zero_point`` and ``y = (clamp(t, quant_min, quant_max) - zero_point) * scale``. A
    floating zero point is first rounded and clamped. All of this is formed in float32, or in float64 for float64 operands, and
    y is rounded once. Where scale is 0, as for a block of padding, y is 0. A NaN in x gives NaN.

    Args:
        x: float32, float64, float16 or bfloat16, of any shape.
        scale: one number for each block, of x's dtype or float32.
        zero_point: of scale's shape, int8, uint8, int32, int64 or floating; None: 0.
        quant_min, quant_max: bounds of the quantized values, integers, inclusive.
        out: an array to write into; it may be x. None: a new array of x's library.

    Returns:
        y, of x's shape and dtype.

    Raises:
        InvalidProblemError: an extent of scale that does not divide x's; shapes, dtypes, devices or bounds that contradict each
            other.
        UnsupportedError: a dtype or device without a kernel.
        TypeError: an operand that is no array.

    Example:
        >>> import numpy as np, sternway as sw
        >>> x = np.array([[0.6, -100.0, 3.8, 100.0]], np.float32)
        >>> sw.fake_quantize(x, np.array([[0.5, 2.0]], np.float32), quant_min=-8, quant_max=7).tolist()  # groups of 2
        [[0.5, -4.0, 4.0, 14.0]]
    """
    return _fake_quantize(FakeQuantizeDescriptor.family, x, scale, zero_point, quant_min, quant_max, out)


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
    op = FakeQuantizePerTokenDescriptor.family
    return _fake_quantize(op, x, scale, zero_point, quant_min, quant_max, out)
