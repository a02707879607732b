"""The cases that selftest, demo and bench run: ``CASES`` of each module of this package. A new family is a file here."""

from importlib import import_module
from pkgutil import iter_modules

from .case import FORMATS, Case, Problem, Shape, Truth, error, summed
from .source import NumPySource, SeriesSource, Source, TorchSource

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]

CASES: tuple[Case, ...] = tuple(case for module in _MODULES for case in getattr(module, "CASES", ()))

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
