"""Gradients of RoPE, scans, dequantization, lerp and embedding bags: exact, deterministic, at the speed of memory.

    >>> import numpy as np, sternway as sw
    >>> da, db = sw.lerp_backward(np.ones(4, np.float32), 0.25)
    >>> da, db
    (array([0.75, 0.75, 0.75, 0.75], dtype=float32), array([0.25, 0.25, 0.25, 0.25], dtype=float32))

Functions take arrays of any library that speaks DLPack; plans are for calls that repeat; ``sternway.torch`` is for autograd.
"""

from . import (
    _dequantize,
    _dequantize_backward,
    _embedding,
    _embedding_bag,
    _embedding_bag_forward,
    _embedding_bags,
    _fake_quantize,
    _fake_quantize_backward,
    _lerp,
    _library,
    _linear_recurrence,
    _linear_recurrence_backward,
    _rope,
    _scan,
    _scan_forward,
    _selective_scan,
    _selective_scan_backward,
    _sku,
    _unique_rows,
    errors,
)
from ._dequantize import *
from ._dequantize_backward import *
from ._embedding import *
from ._embedding_bag import *
from ._embedding_bag_forward import *
from ._embedding_bags import *
from ._fake_quantize import *
from ._fake_quantize_backward import *
from ._lerp import *
from ._library import *
from ._linear_recurrence import *
from ._linear_recurrence_backward import *
from ._plan import Plan
from ._rope import *
from ._scan import *
from ._scan_forward import *
from ._selective_scan import *
from ._selective_scan_backward import *
from ._sku import *
from ._tracing import keep_untraced
from ._unique_rows import *
from .errors import *

__all__ = [
    "__version__",  # noqa: F405 - of __getattr__
    *_dequantize.__all__,
    *_dequantize_backward.__all__,
    *_embedding.__all__,
    *_embedding_bag.__all__,
    *_embedding_bag_forward.__all__,
    *_embedding_bags.__all__,
    *_fake_quantize.__all__,
    *_fake_quantize_backward.__all__,
    *_lerp.__all__,
    *_library.__all__,
    *_linear_recurrence.__all__,
    *_linear_recurrence_backward.__all__,
    *_rope.__all__,
    *_scan.__all__,
    *_scan_forward.__all__,
    *_selective_scan.__all__,
    *_selective_scan_backward.__all__,
    *_sku.__all__,
    *_unique_rows.__all__,
    *errors.__all__,
]
"""Each module states its public names."""

keep_untraced(_function for _name in __all__ if callable(_function := globals().get(_name)) and not isinstance(_function, type))
keep_untraced((Plan.select.__func__, Plan.run, Plan.can_implement))  # type: ignore[attr-defined]


def __getattr__(name: str) -> str:
    if name == "__version__":  # the version lives in the package's metadata
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("sternway")
        except PackageNotFoundError:
            return "0+source"  # a source tree that was never installed
    raise AttributeError(f"module 'sternway' has no attribute {name!r}")
