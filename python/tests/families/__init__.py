"""The families under test: FAMILIES of each module of this package. A new one is a file here, and a test file that starts from
`Conformance`."""

from importlib import import_module
from pkgutil import iter_modules

from .base import Family, Problem, make

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__) if module.name != "base"]

FAMILIES: tuple[Family, ...] = tuple(family for module in _MODULES for family in module.FAMILIES)

__all__ = ["FAMILIES", "Family", "Problem", "make"]
