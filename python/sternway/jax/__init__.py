"""Operations with sternway's backward for JAX, under ``jax.jit``, ``jax.grad`` and ``jax.vmap``.

>>> import jax, jax.numpy as jnp, sternway.jax as sj
>>> jax.grad(lambda x: sj.cumprod(x).sum())(jnp.array([2.0, 0.0, 3.0, 4.0]))
Array([ 1., 32.,  0.,  0.], dtype=float32)

Importing this module registers the handlers by which XLA, the compiler of JAX, runs plans. A program that another process
exported or stored runs once it is imported.
"""

try:
    import jax as _jax  # noqa: F401 - everything below needs it
except ImportError as error:
    raise ImportError("sternway.jax needs JAX: pip install jax") from error

from ._call import register as _register
from ._dequantize import dequantize_per_token
from ._embedding import embedding
from ._embedding_bag import embedding_bag
from ._fake_quantize import fake_quantize_per_token
from ._lerp import lerp
from ._rope import rope
from ._scan import cumlogsumexp, cummax, cummin, cumprod, cumsum, logcumsumexp

_register()

__all__ = [
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "dequantize_per_token",
    "embedding",
    "embedding_bag",
    "fake_quantize_per_token",
    "lerp",
    "logcumsumexp",
    "rope",
]
