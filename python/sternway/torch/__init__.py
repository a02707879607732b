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

from . import (
    _accelerate,
    _dequantize,
    _embedding,
    _embedding_bag,
    _embedding_bags,
    _fake_quantize,
    _lerp,
    _linear_recurrence,
    _patch_recurrence,
    _patch_rope,
    _rope,
    _rope_tables,
    _scan,
    _selective_scan,
)
from ._accelerate import *
from ._autograd.sharding import Sharding as _Sharding
from ._autograd.sharding import register as _register_sharding
from ._dequantize import *
from ._embedding import *
from ._embedding_bag import *
from ._embedding_bags import *
from ._fake_quantize import *
from ._lerp import *
from ._linear_recurrence import *
from ._modules import let_quantization_find_modules as _let_quantization_find_modules
from ._patch_recurrence import *
from ._patch_rope import *
from ._rope import *
from ._rope_tables import *
from ._scan import *
from ._selective_scan import *

__all__ = [
    *_accelerate.__all__,
    *_dequantize.__all__,
    *_embedding.__all__,
    *_embedding_bag.__all__,
    *_embedding_bags.__all__,
    *_fake_quantize.__all__,
    *_lerp.__all__,
    *_linear_recurrence.__all__,
    *_patch_recurrence.__all__,
    *_patch_rope.__all__,
    *_rope.__all__,
    *_rope_tables.__all__,
    *_scan.__all__,
    *_selective_scan.__all__,
]
"""Each module states its public names."""


def _load_sharding() -> _Sharding:
    """The import of the package that is above the drop-ins, for their first call with a DTensor."""
    from .distributed import _SHARDING

    return _SHARDING


_register_sharding(_load_sharding)
_let_quantization_find_modules()
