"""Dequantization with a scale for each token or for blocks of any shape, for JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .. import errors
from .._arrays import dtype_name
from .._dequantize import DequantizeDescriptor, DequantizePlan
from .._dequantize_backward import DequantizeBackwardDescriptor, DequantizeBackwardPlan
from .._quantize import of_operands, packed_of, require_qdtype, unpacked_shape
from .._types import FloatDType, FloatName, QuantizedDType
from ._blocks import Operands, block_sums, by_block, expanded, of_blocks, of_tokens
from ._call import Array, run
from ._mesh import arrays
from ._rules import Function, accumulator, differentiable, given, instantiated

__all__ = ["dequantize", "dequantize_per_token"]


def _unpacked(q: Array, packed: str | None) -> Array:
    """Quantized values as an array that has one in each element. packed: their dtype, if q has two in a byte."""
    if packed is None:
        return q
    values = jnp.stack((q & 15, q >> 4), -1).reshape(unpacked_shape("dequantize", q.shape, packed))
    return (values ^ 8).astype(jnp.int8) - 8 if packed == "int4" else values


@functools.lru_cache(maxsize=1024)
def _forward_kernel(dtype: FloatName, packed: Any) -> Function:
    """y, of q, scale and zero_point. packed: as for ``_unpacked``."""

    def call(q: Array, scale: Array, zero_point: Array | None) -> Any:
        shape = unpacked_shape("dequantize", q.shape, packed)
        problem = DequantizeDescriptor(shape, dtype, scale.shape, scale.dtype.name, packed or q.dtype.name)
        inputs = {"q": q, "scale": scale, "zero_point": zero_point}
        return run(DequantizePlan, problem, inputs, {"y": (shape, jnp.dtype(dtype))})

    return by_block(call, 1, functools.partial(unpacked_shape, "dequantize", packed=packed))


@functools.lru_cache(maxsize=1024)
def _backward_kernel(needs: tuple[str, ...], packed: Any) -> Function:
    """The gradients of scale and zero_point, of dy, scale, q and zero_point. packed: as for ``_unpacked``."""

    def call(dy: Array, scale: Array, q: Array, zero_point: Array | None) -> Any:
        problem = DequantizeBackwardDescriptor(dy.shape, dy.dtype.name, scale.shape, scale.dtype.name, packed or q.dtype.name)
        inputs = {"dy": dy, "scale": scale, "q": q, "zero_point": zero_point}
        like = {"dscale": scale, "dzero_point": zero_point}
        outputs = {name: (like[name].shape, like[name].dtype) for name in needs}
        return run(DequantizeBackwardPlan, problem, inputs, outputs)

    return by_block(call, 1)


def _definition(
    needs: tuple[str, ...], packed: str | None, dy: Array, scale: Array, q: Array, zero_point: Array | None
) -> tuple[Array, ...]:
    """The backward in operations of JAX. packed: as for ``_unpacked``."""
    dtype, q = accumulator(dy.dtype), _unpacked(q, packed)
    dy, offset = dy.astype(dtype), 0 if zero_point is None else expanded(zero_point.astype(dtype), q)
    found = {"dscale": block_sums(dy * (q.astype(dtype) - offset), scale).astype(scale.dtype)}
    if "dzero_point" in needs:
        assert zero_point is not None
        found["dzero_point"] = (-scale.astype(dtype) * block_sums(dy, scale)).astype(zero_point.dtype)
    return tuple(found[name] for name in needs)


@functools.lru_cache(maxsize=1024)
def _backward(needs: tuple[str, ...], packed: str | None) -> Function:
    return differentiable(_backward_kernel(needs, packed), functools.partial(_definition, needs, packed))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _dequantize(dtype: str, packed: str | None, q: Array, scale: Array, zero_point: Array | None) -> Array:
    return _forward_kernel(dtype, packed)(q, scale, zero_point)[0]


def _forward(dtype: str, packed: str | None, *primals: Any) -> tuple[Array, Any]:
    operands, perturbed = given(primals)
    needs = {name: None for name, needed in zip(("dscale", "dzero_point"), perturbed[1:], strict=True) if needed}
    return _dequantize(dtype, packed, *operands), (needs, operands)


def _gradients(dtype: str, packed: str | None, saved: Any, dy: Any) -> tuple[Array | None, ...]:
    needs, (q, scale, zero_point) = saved
    names = tuple(sorted(needs))
    found = _backward(names, packed)(instantiated(dy), scale, q, zero_point) if names else ()
    by_name = dict(zip(names, found, strict=True))
    return None, by_name.get("dscale"), by_name.get("dzero_point")


_dequantize.defvjp(_forward, _gradients, symbolic_zeros=True)
_dequantize_jit = jax.jit(_dequantize, static_argnums=(0, 1))


def _run(
    of: Callable[..., Operands], operands: Sequence[Any], dtype: FloatDType | None, packed: str | None = None
) -> jax.Array:
    """Both functions, of q, scale and zero_point as arrays of JAX.

    Args:
        of: checks them.
        packed: as for ``_unpacked``.
    """
    codes, scales, zeros = operands
    checked = of("q", codes, scales, zeros)
    require_qdtype("dequantize", codes.dtype)
    name = scales.dtype.name if dtype is None else dtype_name(dtype)
    with of_operands(**({"dtype": "scale"} if dtype is None else {})):
        y: jax.Array = _dequantize_jit(name, packed, *checked)
    return y.reshape(unpacked_shape("dequantize", codes.shape, packed))


@errors.reported_as("sternway.jax.dequantize", {"scale_dtype": "scale"})
def dequantize(
    q: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    dtype: FloatDType | None = None,
    *,
    qdtype: QuantizedDType | None = None,
) -> jax.Array:
    """Dequantize with a scale for each block: ``y = (q - zero_point) * scale``.

    :func:`sternway.dequantize` says which shapes scale has. Gradients are those of :func:`sternway.dequantize_backward`, of
    scale and of a floating zero_point. The gradient of the gradient is computed by operations of JAX.

    Args:
        q: the quantized values, int8, uint8, float8_e4m3fn or float8_e5m2, of any shape; or uint8 [..., D / 2], which holds
            values [..., D] of 4 bits.
        scale: one number for each block, of the dtype of y or float32: of q's rank, each extent a divisor of that of the
            values; or of rank 0.
        zero_point: of scale's shape, int8, uint8, int32, int64 or floating; None: 0.
        dtype: the dtype of y: float32, float64, float16 or bfloat16; None: scale's dtype.
        qdtype: the dtype of the quantized values; None: q's dtype. ``"int4"`` (two's complement) and ``"uint4"`` say that a
            byte of q has two values, the first in its lower four bits. Another dtype has to be q's own.

    Returns:
        y, of the shape of the values.

    Raises:
        InvalidProblemError: an extent of scale that does not divide that of the values; a qdtype that q cannot have; shapes or
            dtypes that contradict each other.
        UnsupportedError: a dtype without a kernel.

    Example:
        >>> import jax.numpy as jnp, sternway.jax as sj
        >>> q, scale = jnp.array([[1, -2, 3, 4]], jnp.int8), jnp.array([[0.5, 2.0]])  # groups of 2
        >>> sj.dequantize(q, scale, jnp.array([[1, 0]], jnp.int8)).tolist()
        [[0.0, -1.5, 6.0, 8.0]]
        >>> packed = jnp.array([[0xE1, 0x43]], jnp.uint8)  # 1, -2, 3, 4
        >>> sj.dequantize(packed, scale, qdtype="int4").tolist()
        [[0.5, -1.0, 6.0, 8.0]]
    """
    operands = arrays(q, scale, optional=(zero_point,))
    packed = packed_of("dequantize", operands[0].dtype, qdtype)
    shape = None if packed is None else unpacked_shape("dequantize", operands[0].shape, packed)
    return _run(functools.partial(of_blocks, shape=shape), operands, dtype, packed)


@errors.reported_as("sternway.jax.dequantize_per_token", {"qdtype": "q", "scale_dtype": "scale"})
def dequantize_per_token(
    q: ArrayLike, scale: ArrayLike, zero_point: ArrayLike | None = None, *, dtype: FloatDType | None = None
) -> jax.Array:
    """Dequantize with a scale for each token: ``y = (q - zero_point[n]) * scale[n]`` for token n.

    Gradients are those of :func:`sternway.dequantize_per_token_backward`, of scale and of a floating zero_point. The gradient
    of the gradient is computed by operations of JAX.

    Args:
        q: the quantized values [..., D], int8, uint8, float8_e4m3fn or float8_e5m2.
        scale: [...] or [..., 1], of the dtype of y or float32.
        zero_point: [...] or [..., 1], int8, uint8, int32, int64 or floating; None: 0.
        dtype: the dtype of y: float32, float64, float16 or bfloat16; None: scale's dtype.

    Returns:
        y, of q's shape.

    Raises:
        InvalidProblemError: shapes or dtypes that contradict each other.
        UnsupportedError: a dtype without a kernel.

    Example:
        >>> import jax.numpy as jnp, sternway.jax as sj
        >>> q, scale = jnp.array([[1, -2], [3, 4]], jnp.int8), jnp.array([0.5, 2.0])
        >>> sj.dequantize_per_token(q, scale, jnp.array([1, 0], jnp.int8)).tolist()
        [[0.0, -1.5], [6.0, 8.0]]
    """
    return _run(of_tokens, arrays(q, scale, optional=(zero_point,)), dtype)
