"""An import hook, by which a module that is not imported yet is loaded inside a context manager."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

__all__ = ["load_inside"]


def load_inside(name: str, context: Callable[[], AbstractContextManager[None]]) -> None:
    """Enter the context around the body of the module, when it is imported for the first time."""
    sys.meta_path.insert(0, _Finder(name, context))


class _Finder(MetaPathFinder):
    """Finds one module where Python finds it, with a loader that enters the context."""

    def __init__(self, name: str, context: Callable[[], AbstractContextManager[None]]) -> None:
        self.name, self.context = name, context

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self.name else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with self.context():
                load(module)
            if self in sys.meta_path:  # the spec may have been found twice
                sys.meta_path.remove(self)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
