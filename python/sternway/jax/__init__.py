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

from . import _dequantize, _embedding, _embedding_bag, _fake_quantize, _lerp, _linear_recurrence, _rope, _scan, _selective_scan
from ._call import register as _register
from ._dequantize import *
from ._embedding import *
from ._embedding_bag import *
from ._fake_quantize import *
from ._lerp import *
from ._linear_recurrence import *
from ._rope import *
from ._scan import *
from ._selective_scan import *

__all__ = [
    *_dequantize.__all__,
    *_embedding.__all__,
    *_embedding_bag.__all__,
    *_fake_quantize.__all__,
    *_lerp.__all__,
    *_linear_recurrence.__all__,
    *_rope.__all__,
    *_scan.__all__,
    *_selective_scan.__all__,
]
"""Each module states its public names."""

_register()
