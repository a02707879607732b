"""The families under test. A new one is a file here, its row below, and a test file that starts from `Conformance`."""

from .base import Family, Problem, make
from .dequantize import DEQUANTIZE
from .embedding import EMBEDDING
from .embedding_bag import EMBEDDING_BAG
from .fake_quantize import FAKE_QUANTIZE
from .lerp import LERP
from .rope import ROPE
from .scan import CUMMAX, CUMMIN, CUMPROD, CUMSUM, LOGCUMSUMEXP, SCANS

FAMILIES = (LERP, DEQUANTIZE, FAKE_QUANTIZE, ROPE, *SCANS, EMBEDDING_BAG, EMBEDDING)

__all__ = [
    "CUMMAX", "CUMMIN", "CUMPROD", "CUMSUM", "DEQUANTIZE", "EMBEDDING", "EMBEDDING_BAG", "FAKE_QUANTIZE", "FAMILIES", "LERP",
    "LOGCUMSUMEXP", "ROPE", "SCANS", "Family", "Problem", "make",
]  # fmt: skip
