"""Operations of PyTorch with sternway's backward: same names, arguments and return values as torch.

>>> import torch, sternway.torch as st
>>> a, b = torch.zeros(3, requires_grad=True), torch.ones(3)
>>> st.lerp(a, b, 0.25).sum().backward()
>>> a.grad
tensor([0.7500, 0.7500, 0.7500])
"""

from .._requirements import TORCH as _TORCH
from .._requirements import require_torch as _require_torch

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(f"sternway.torch needs PyTorch: pip install '{_TORCH}'") from error
else:
    _require_torch(_torch.__version__)

from ._accelerate import accelerate
from ._autograd.sharding import Sharding as _Sharding
from ._autograd.sharding import register as _register_sharding
from ._dequantize import dequantize_per_token
from ._embedding import Embedding, embedding
from ._embedding_bag import EmbeddingBag, embedding_bag
from ._fake_quantize import fake_quantize_per_token
from ._lerp import lerp
from ._modules import let_quantization_find_modules as _let_quantization_find_modules
from ._patch_rope import patch_rope
from ._rope import apply_rotary_pos_emb, rope
from ._rope_tables import rope_tables
from ._scan import cummax, cummin, cumprod, cumsum, logcumsumexp

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "accelerate",
    "apply_rotary_pos_emb",
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
    "patch_rope",
    "rope",
    "rope_tables",
]


def _load_sharding() -> _Sharding:
    """The import of the package that is above the drop-ins, for their first call with a DTensor."""
    from .distributed import _SHARDING

    return _SHARDING


_register_sharding(_load_sharding)
_let_quantization_find_modules()
