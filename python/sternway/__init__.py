"""Gradients of RoPE, scans, dequantization, lerp and embedding bags: exact, deterministic, at the speed of memory.

    >>> import numpy as np, sternway as sw
    >>> da, db = sw.lerp_backward(np.ones(4, np.float32), 0.25)
    >>> da, db
    (array([0.75, 0.75, 0.75, 0.75], dtype=float32), array([0.25, 0.25, 0.25, 0.25], dtype=float32))

Functions take arrays of any library that speaks DLPack; plans are for calls that repeat; ``sternway.torch`` is for autograd.
"""

from ._dequantize import (
    DequantizePerTokenBackwardDescriptor,
    DequantizePerTokenBackwardPlan,
    DequantizePerTokenDescriptor,
    DequantizePerTokenPlan,
    dequantize_per_token,
    dequantize_per_token_backward,
)
from ._embedding import EmbeddingBackwardDescriptor, EmbeddingBackwardPlan, embedding_backward
from ._embedding_bag import (
    EmbeddingBagBackwardDescriptor,
    EmbeddingBagBackwardPlan,
    embedding_bag_backward,
    embedding_bag_per_sample_weights_backward,
)
from ._fake_quantize import (
    FakeQuantizePerTokenBackwardDescriptor,
    FakeQuantizePerTokenBackwardPlan,
    FakeQuantizePerTokenDescriptor,
    FakeQuantizePerTokenPlan,
    fake_quantize_per_token,
    fake_quantize_per_token_backward,
)
from ._lerp import LerpBackwardDescriptor, LerpBackwardPlan, lerp_backward
from ._library import get_num_threads, info, set_num_threads
from ._plan import Plan
from ._rope import RopeBackwardDescriptor, RopeBackwardPlan, RopeDescriptor, RopePlan, rope, rope_backward
from ._scan import (
    ScanBackwardDescriptor,
    ScanBackwardPlan,
    cummax_backward,
    cummin_backward,
    cumprod_backward,
    cumsum_backward,
    logcumsumexp_backward,
)
from ._scan_forward import ScanDescriptor, ScanPlan, cummax, cummin, cumprod, cumsum, logcumsumexp
from ._sku import KernelSku, PlanPreference, PrecisionGuarantee
from ._tracing import keep_untraced
from ._unique_rows import UniqueRowsDescriptor, UniqueRowsPlan, unique_rows
from .errors import (
    BufferTooSmallError,
    DeviceError,
    Error,
    InvalidProblemError,
    MisalignedOperandError,
    UnsupportedError,
    WorkspaceTooSmallError,
)

__all__ = [
    "BufferTooSmallError",
    "DequantizePerTokenBackwardDescriptor",
    "DequantizePerTokenBackwardPlan",
    "DequantizePerTokenDescriptor",
    "DequantizePerTokenPlan",
    "DeviceError",
    "EmbeddingBackwardDescriptor",
    "EmbeddingBackwardPlan",
    "EmbeddingBagBackwardDescriptor",
    "EmbeddingBagBackwardPlan",
    "Error",
    "FakeQuantizePerTokenBackwardDescriptor",
    "FakeQuantizePerTokenBackwardPlan",
    "FakeQuantizePerTokenDescriptor",
    "FakeQuantizePerTokenPlan",
    "InvalidProblemError",
    "KernelSku",
    "LerpBackwardDescriptor",
    "LerpBackwardPlan",
    "MisalignedOperandError",
    "PlanPreference",
    "PrecisionGuarantee",
    "RopeBackwardDescriptor",
    "RopeBackwardPlan",
    "RopeDescriptor",
    "RopePlan",
    "ScanBackwardDescriptor",
    "ScanBackwardPlan",
    "ScanDescriptor",
    "ScanPlan",
    "UniqueRowsDescriptor",
    "UniqueRowsPlan",
    "UnsupportedError",
    "WorkspaceTooSmallError",
    "__version__",
    "cummax",
    "cummax_backward",
    "cummin",
    "cummin_backward",
    "cumprod",
    "cumprod_backward",
    "cumsum",
    "cumsum_backward",
    "dequantize_per_token",
    "dequantize_per_token_backward",
    "embedding_backward",
    "embedding_bag_backward",
    "embedding_bag_per_sample_weights_backward",
    "fake_quantize_per_token",
    "fake_quantize_per_token_backward",
    "get_num_threads",
    "info",
    "lerp_backward",
    "logcumsumexp",
    "logcumsumexp_backward",
    "rope",
    "rope_backward",
    "set_num_threads",
    "unique_rows",
]

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
