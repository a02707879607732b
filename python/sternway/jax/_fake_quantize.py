"""Fake quantization with a scale for each token, for JAX."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .. import errors
from .._fake_quantize import (
    FakeQuantizePerTokenBackwardDescriptor,
    FakeQuantizePerTokenBackwardPlan,
    FakeQuantizePerTokenDescriptor,
    FakeQuantizePerTokenPlan,
)
from ._call import Array, run
from ._mesh import arrays
from ._options import integer
from ._rules import Function, accumulator, differentiable, given, instantiated
from ._tokens import by_token, flat

__all__ = ["fake_quantize_per_token"]


class _Bounds(NamedTuple):
    quant_min: int
    quant_max: int


_OUTPUTS = ("dx", "dscale", "dzero_point")


@functools.lru_cache(maxsize=1024)
def _forward_kernel(bounds: _Bounds) -> Function:
    """y, of x [tokens, D], scale and zero_point."""

    def call(x: Array, scale: Array, zero_point: Array | None) -> Any:
        problem = FakeQuantizePerTokenDescriptor(x.shape, x.dtype.name, *bounds, scale.dtype.name)
        inputs = {"x": x, "scale": scale, "zero_point": zero_point}
        return run(FakeQuantizePerTokenPlan, problem, inputs, {"y": (x.shape, x.dtype)})

    return by_token(call)


@functools.lru_cache(maxsize=1024)
def _backward_kernel(bounds: _Bounds, needs: tuple[str, ...]) -> Function:
    """The gradients, of dy, x, scale and zero_point."""

    def call(dy: Array, x: Array, scale: Array, zero_point: Array | None) -> Any:
        problem = FakeQuantizePerTokenBackwardDescriptor(x.shape, x.dtype.name, *bounds, scale.dtype.name)
        inputs = {"dy": dy, "x": x, "scale": scale, "zero_point": zero_point}
        like = dict(zip(_OUTPUTS, (x, scale, zero_point), strict=True))
        outputs = {name: (like[name].shape, like[name].dtype) for name in needs}
        return run(FakeQuantizePerTokenBackwardPlan, problem, inputs, outputs)

    return by_token(call)


def _definition(bounds: _Bounds, needs: tuple[str, ...], dy: Array, x: Array, scale: Array, zero_point: Any) -> Any:
    """The backward in operations of JAX. It is constant where the rounding is."""
    dtype = accumulator(dy.dtype)
    dy, x_wide, s = dy.astype(dtype), x.astype(dtype), scale.astype(dtype)[:, None]
    offset = jnp.zeros_like(s) if zero_point is None else zero_point.astype(dtype)[:, None]
    if zero_point is not None and jnp.issubdtype(zero_point.dtype, jnp.floating):
        offset = jnp.clip(jnp.round(offset), *bounds)
    ratio = jnp.where(s == 0, jnp.sign(x_wide) * jnp.inf, x_wide / jnp.where(s == 0, 1, s))
    ratio = jnp.where((s == 0) & (x_wide == 0), 0, ratio)
    unclamped = jnp.round(ratio) + offset
    inside = (unclamped >= bounds.quant_min) & (unclamped <= bounds.quant_max)
    difference = jnp.clip(unclamped, *bounds) - offset
    found = {
        "dx": jnp.where(inside, dy, 0),
        "dscale": (dy * jnp.where(inside, difference - jnp.where(inside, ratio, 0), difference)).sum(-1),
        "dzero_point": jnp.where(inside, 0, -dy * s).sum(-1),
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
    array, scales, zeros = arrays(x, scale, optional=(zero_point,))
    op = "fake_quantize_per_token"
    bounds = _Bounds(integer(op, "quant_min", quant_min), integer(op, "quant_max", quant_max))
    y: jax.Array = _fake_quantize_jit(bounds, *flat("x", array, scales, zeros)).reshape(array.shape)
    return y
