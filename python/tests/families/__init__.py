"""The families under test. A new one is a file here, its row below, and a test file that starts from `Conformance`."""

from .base import Family, Problem, make
from .dequantize import DEQUANTIZE
from .fake_quantize import FAKE_QUANTIZE
from .lerp import LERP
from .scan import CUMMAX, CUMMIN, CUMPROD, CUMSUM, LOGCUMSUMEXP, SCANS

FAMILIES = (LERP, DEQUANTIZE, FAKE_QUANTIZE, *SCANS)

__all__ = [
    "CUMMAX", "CUMMIN", "CUMPROD", "CUMSUM", "DEQUANTIZE", "FAKE_QUANTIZE", "FAMILIES", "LERP", "LOGCUMSUMEXP", "SCANS",
    "Family", "Problem", "make",
]  # fmt: skip
