"""The families under test. A new one is a file here, its row below, and a test file that starts from `Conformance`."""

from .base import Family, Problem, make
from .dequantize import DEQUANTIZE
from .fake_quantize import FAKE_QUANTIZE
from .lerp import LERP
from .rope import ROPE

FAMILIES = (LERP, DEQUANTIZE, FAKE_QUANTIZE, ROPE)

__all__ = ["DEQUANTIZE", "FAKE_QUANTIZE", "FAMILIES", "LERP", "ROPE", "Family", "Problem", "make"]
