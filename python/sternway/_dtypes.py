"""The element types of operands.

core/internal/generate writes this file from the tables of the Go core: run ``make generate``.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple


class DType(NamedTuple):
    """An element type."""

    name: str
    itemsize: int
    """In bytes."""
    code: int
    """DLPack's code of the type."""
    exponent: int
    """Bits of the exponent of a float; 0 for an integer."""
    fraction: int
    """Bits of the fraction of a float."""
    is_finite: bool
    """Whether a float has no infinities: only the pattern of all ones is no number."""

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number of a float."""
        return math.ldexp(1.0, -self.fraction)

    @property
    def tiny(self) -> float:
        """The smallest positive number of a float that has all digits of the fraction."""
        return math.ldexp(1.0, 2 - (1 << (self.exponent - 1)))

    def number(self, data: bytes) -> float:
        """The number that the bytes of an element are."""
        bits = int.from_bytes(data, sys.byteorder, signed=self.code == 0)
        if not self.exponent:
            return float(bits)
        sign, magnitude = divmod(bits, 1 << (self.exponent + self.fraction))
        power, digits = divmod(magnitude, 1 << self.fraction)
        greatest = (1 << self.exponent) - 1
        if self.is_finite and power == greatest and digits == (1 << self.fraction) - 1:
            value = math.nan
        elif not self.is_finite and power == greatest:
            value = math.nan if digits else math.inf
        else:  # a power of 0 is that of subnormal numbers
            value = math.ldexp((digits * self.eps + (power > 0)) * self.tiny, max(power - 1, 0))
        return -value if sign else value


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("float32", 4, 2, 8, 23, False),
        DType("float64", 8, 2, 11, 52, False),
        DType("float16", 2, 2, 5, 10, False),
        DType("bfloat16", 2, 4, 8, 7, False),
        DType("int8", 1, 0, 0, 0, False),
        DType("uint8", 1, 1, 0, 0, False),
        DType("int32", 4, 0, 0, 0, False),
        DType("int64", 8, 0, 0, 0, False),
    )
}
"""By name."""

BEYOND_NUMPY = tuple(name for name, dtype in DTYPES.items() if dtype.code not in (0, 1, 2))
"""The types that NumPy has from ml_dtypes alone."""

ACCUMULATORS = {
    "float32": "float32",
    "float64": "float64",
    "float16": "float32",
    "bfloat16": "float32",
}
"""The type of arithmetic of each float that operations compute in."""
