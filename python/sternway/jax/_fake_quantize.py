"""Fake quantization with a scale for each token or for blocks of any shape, for JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .. import errors
from .._fake_quantize import FakeQuantizeDescriptor, FakeQuantizePlan
from .._fake_quantize_backward import FakeQuantizeBackwardDescriptor, FakeQuantizeBackwardPlan
from ._blocks import Operands, block_sums, by_block, expanded, of_blocks, of_tokens
from ._call import Array, run
from ._mesh import arrays
from ._options import integer
from ._rules import Function, accumulator, differentiable, given, instantiated

__all__ = ["fake_quantize", "fake_quantize_per_token"]


class _Bounds(NamedTuple):
    quant_min: int
    quant_max: int


_OUTPUTS = ("dx", "dscale", "dzero_point")


@functools.lru_cache(maxsize=1024)
def _forward_kernel(bounds: _Bounds) -> Function:
    """y, of x, scale and zero_point."""

    def call(x: Array, scale: Array, zero_point: Array | None) -> Any:
        problem = FakeQuantizeDescriptor(x.shape, x.dtype.name, *bounds, scale.shape, scale.dtype.name)
        inputs = {"x": x, "scale": scale, "zero_point": zero_point}
        return run(FakeQuantizePlan, problem, inputs, {"y": (x.shape, x.dtype)})

    return by_block(call, 1)


@functools.lru_cache(maxsize=1024)
def _backward_kernel(bounds: _Bounds, needs: tuple[str, ...]) -> Function:
    """The gradients, of dy, x, scale and zero_point."""

    def call(dy: Array, x: Array, scale: Array, zero_point: Array | None) -> Any:
        problem = FakeQuantizeBackwardDescriptor(x.shape, x.dtype.name, *bounds, scale.shape, scale.dtype.name)
        inputs = {"dy": dy, "x": x, "scale": scale, "zero_point": zero_point}
        like = dict(zip(_OUTPUTS, (x, scale, zero_point), strict=True))
        outputs = {name: (like[name].shape, like[name].dtype) for name in needs}
        return run(FakeQuantizeBackwardPlan, problem, inputs, outputs)

    return by_block(call, 2)


def _definition(bounds: _Bounds, needs: tuple[str, ...], dy: Array, x: Array, scale: Array, zero_point: Any) -> Any:
    """The backward in operations of JAX. It is constant where the rounding is."""
    dtype = accumulator(dy.dtype)
    dy, x_wide, s = dy.astype(dtype), x.astype(dtype), expanded(scale.astype(dtype), x)
    offset = jnp.zeros_like(s) if zero_point is None else expanded(zero_point.astype(dtype), x)
    if zero_point is not None and jnp.issubdtype(zero_point.dtype, jnp.floating):
        offset = jnp.clip(jnp.round(offset), *bounds)
    ratio = jnp.where(s == 0, jnp.sign(x_wide) * jnp.inf, x_wide / jnp.where(s == 0, 1, s))
    ratio = jnp.where((s == 0) & (x_wide == 0), 0, ratio)
    unclamped = jnp.round(ratio) + offset
    inside = (unclamped >= bounds.quant_min) & (unclamped <= bounds.quant_max)
    difference = jnp.clip(unclamped, *bounds) - offset
    found = {
        "dx": jnp.where(inside, dy, 0),
        "dscale": block_sums(dy * jnp.where(inside, difference - jnp.where(inside, ratio, 0), difference), scale),
        "dzero_point": block_sums(jnp.where(inside, 0, -dy * s), scale),
    }
    like = dict(zip(_OUTPUTS, (x, scale, zero_point), strict=True))
    return tuple(found[name].astype(like[name].dtype) for name in needs)


@functools.lru_cache(maxsize=1024)
def _backward(bounds: _Bounds, needs: tuple[str, ...]) -> Function:
    return differentiable(_backward_kernel(bounds, needs), functools.partial(_definition, bounds, needs))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fake_quantize(bounds: _Bounds, x: Array, scale: Array, zero_point: Array | None) -> Array:
    return _forward_kernel(bounds)(x, scale, zero_point)[0]


def _forward(bounds: _Bounds, *primals: Any) -> tuple[Array, Any]:
    operands, perturbed = given(primals)
    needs = {name: None for name, needed in zip(_OUTPUTS, perturbed, strict=True) if needed}
    return _fake_quantize(bounds, *operands), (needs, operands)


def _gradients(bounds: _Bounds, saved: Any, dy: Any) -> tuple[Array | None, ...]:
    needs, operands = saved
    if not needs:
        return None, None, None
    names = tuple(name for name in _OUTPUTS if name == "dx" or name in needs)  # the plan always computes dx
    found = dict(zip(names, _backward(bounds, names)(instantiated(dy), *operands), strict=True))
    return tuple(found[name] if name in needs else None for name in _OUTPUTS)


_fake_quantize.defvjp(_forward, _gradients, symbolic_zeros=True)
_fake_quantize_jit = jax.jit(_fake_quantize, static_argnums=0)


def _run(op: str, of: Callable[..., Operands], operands: tuple[Any, ...], quant_min: int, quant_max: int) -> jax.Array:
    """Both functions. of: checks the operands x, scale and zero_point."""
    x, scale, zero_point = operands
    array, scales, zeros = arrays(x, scale, optional=(zero_point,))
    bounds = _Bounds(integer(op, "quant_min", quant_min), integer(op, "quant_max", quant_max))
    y: jax.Array = _fake_quantize_jit(bounds, *of("x", array, scales, zeros)).reshape(array.shape)
    return y


@errors.reported_as("sternway.jax.fake_quantize", {"dtype": "x", "scale_dtype": "scale"})
def fake_quantize(
    x: ArrayLike, scale: ArrayLike, zero_point: ArrayLike | None = None, *, quant_min: int, quant_max: int
) -> jax.Array:
    """Quantize and dequantize with a scale for each block, as quantization-aware training does.

    :func:`sternway.fake_quantize` says which shapes scale has, and with :func:`sternway.fake_quantize_backward` the formulas:
    rounding is straight-through, and scale and a floating zero_point have gradients (Esser et al. 2020, arXiv:1902.08153). The
    gradient of the gradient is computed by operations of JAX.

    Args:
        x: float32, float64, float16 or bfloat16, of any shape.
        scale: one number for each block, of x's dtype or float32: of x's rank, each extent a divisor of x's; or of rank 0.
        zero_point: of scale's shape, int8, uint8, int32, int64 or floating; None: 0.
        quant_min, quant_max: bounds of the quantized values, Python integers, inclusive.

    Returns:
        y, of x's shape and dtype.

    Raises:
        InvalidProblemError: an extent of scale that does not divide x's; shapes, dtypes or bounds that contradict each other.
        UnsupportedError: a dtype without a kernel.

    Example:
        >>> import jax.numpy as jnp, sternway.jax as sj
        >>> x, scale = jnp.array([[0.6, -100.0, 3.8, 1.0]]), jnp.array([[0.5, 2.0]])  # groups of 2
        >>> sj.fake_quantize(x, scale, quant_min=-8, quant_max=7).tolist()
        [[0.5, -4.0, 4.0, 0.0]]
    """
    return _run("fake_quantize", of_blocks, (x, scale, zero_point), quant_min, quant_max)


@errors.reported_as("sternway.jax.fake_quantize_per_token", {"dtype": "x", "scale_dtype": "scale"})
def fake_quantize_per_token(
    x: ArrayLike, scale: ArrayLike, zero_point: ArrayLike | None = None, *, quant_min: int, quant_max: int
) -> jax.Array:
    """Quantize and dequantize with a scale for each token, as quantization-aware training does.

    :func:`sternway.fake_quantize_per_token` and :func:`sternway.fake_quantize_per_token_backward` have the formulas: rounding
    is straight-through, and scale and a floating zero_point have gradients (Esser et al. 2020, arXiv:1902.08153). The gradient
    of the gradient is computed by operations of JAX.

    Args:
        x: [..., D]; float32, float64, float16 or bfloat16.
        scale: [...] or [..., 1], of x's dtype or float32.
        zero_point: [...] or [..., 1], int8, uint8, int32, int64 or floating; None: 0.
        quant_min, quant_max: bounds of the quantized values, Python integers, inclusive.

    Returns:
        y, of x's shape and dtype.

    Raises:
        InvalidProblemError: shapes, dtypes or bounds that contradict each other.
        UnsupportedError: a dtype without a kernel.

    Example:
        >>> import jax.numpy as jnp, sternway.jax as sj
        >>> x, scale = jnp.array([[0.6, 3.8, -100.0]]), jnp.array([0.5])
        >>> sj.fake_quantize_per_token(x, scale, quant_min=-8, quant_max=7).tolist()
        [[0.5, 3.5, -4.0]]
    """
    return _run("fake_quantize_per_token", of_tokens, (x, scale, zero_point), quant_min, quant_max)
