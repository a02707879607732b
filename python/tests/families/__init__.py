"""The families under test. A new one is a file here, its row below, and a test file that starts from `Conformance`."""

from .base import Family, Problem, make
from .dequantize import DEQUANTIZE, DEQUANTIZE_FORWARD
from .embedding import EMBEDDING
from .embedding_bag import EMBEDDING_BAG
from .fake_quantize import FAKE_QUANTIZE, FAKE_QUANTIZE_FORWARD
from .lerp import LERP
from .rope import ROPE, ROPE_FORWARD
from .scan import CUMMAX, CUMMIN, CUMPROD, CUMSUM, FORWARD_SCANS, LOGCUMSUMEXP, SCANS

FORWARDS = (DEQUANTIZE_FORWARD, FAKE_QUANTIZE_FORWARD, ROPE_FORWARD)
FAMILIES = (LERP, DEQUANTIZE, FAKE_QUANTIZE, ROPE, *SCANS, EMBEDDING_BAG, EMBEDDING, *FORWARDS, *FORWARD_SCANS)

__all__ = [
    "CUMMAX", "CUMMIN", "CUMPROD", "CUMSUM", "DEQUANTIZE", "DEQUANTIZE_FORWARD", "EMBEDDING", "EMBEDDING_BAG", "FAKE_QUANTIZE",
    "FAKE_QUANTIZE_FORWARD", "FAMILIES", "FORWARDS", "FORWARD_SCANS", "LERP", "LOGCUMSUMEXP",
    "ROPE", "ROPE_FORWARD", "SCANS", "Family", "Problem", "make",
]  # fmt: skip
