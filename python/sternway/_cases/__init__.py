"""The cases that selftest, demo and bench run. A new family is a file here and a line below."""

from . import dequantize, embedding, embedding_bag, lerp, rope, scan
from .case import FORMATS, Case, Problem, Shape, Truth, error, summed
from .source import NumPySource, SeriesSource, Source, TorchSource

CASES = (*lerp.CASES, *dequantize.CASES, *rope.CASES, *scan.CASES, *embedding_bag.CASES, *embedding.CASES)

__all__ = [
    "CASES",
    "FORMATS",
    "Case",
    "NumPySource",
    "Problem",
    "SeriesSource",
    "Shape",
    "Source",
    "TorchSource",
    "Truth",
    "error",
    "summed",
]
