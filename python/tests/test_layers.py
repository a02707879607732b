"""Imports of Python modules go down, as core/layers_test.go has it for packages of Go.

Every import counts, also one inside a function or for type checkers alone: it is what a reader of the module has to know.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

PYTHON = Path(__file__).parents[1]
FOLDERS = {"sternway": PYTHON / "sternway", "sternway.bench": PYTHON / "bench"}
LEAVES = " ".join(
    f"sternway.{name}" for name in ("errors", "_choices", "_kinds", "_requirements", "_show", "_tracing", "_types")
)


class Layer(NamedTuple):
    """Modules, by patterns of which the longest decides, and the lower layers that they import."""

    modules: str
    imports: str
    reason: str


LAYERS = {
    "PyTorch": Layer("torch torch.*", "", "others make it"),
    "JAX": Layer("jax jax.*", "", "others make it"),
    "native": Layer("sternway._native", "", "the shared library"),
    "leaves": Layer(LEAVES, "", "errors, names and types, which every layer uses"),
    "library": Layer("sternway._library", "leaves native", "it alone loads the shared library, at first use"),
    "core": Layer("sternway sternway.*", "leaves library", "it works with any array library, and without one"),
    "autograd": Layer("sternway.torch._autograd*", "leaves core PyTorch", "drop-ins and distributed share it"),
    "tables": Layer(
        "sternway.torch._learning sternway.torch._table_optimizer sternway.torch._table_options",
        "leaves core autograd PyTorch",
        "modules with a table that learns: drop-ins and distributed share it",
    ),
    "drop-ins": Layer(
        "sternway.torch.*", "leaves core autograd tables PyTorch", "sharding.py says what they call for a DTensor"
    ),
    "distributed": Layer(
        "sternway.torch.distributed*", "leaves library core autograd tables PyTorch", "it knows operators, and no drop-in"
    ),
    "torch": Layer("sternway.torch", "leaves autograd drop-ins distributed PyTorch", "it puts the three together"),
    "jax": Layer("sternway.jax*", "leaves library core JAX", "it works without PyTorch"),
    "cases": Layer("sternway._cases*", "leaves library core torch PyTorch", "they call operations in the ways of users"),
    "bench": Layer("sternway.bench*", "leaves library core cases torch distributed jax PyTorch JAX", "it measures all of it"),
    "commands": Layer(
        "sternway.__main__ sternway._demo sternway._selftest",
        "leaves core cases bench PyTorch",
        "`python -m sternway` runs them",
    ),
}
"""The layers by name, lowest first."""


@functools.cache
def sources() -> dict[str, ast.Module]:
    """The syntax trees of all modules by name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in [*folder.rglob("*.py"), *folder.rglob("*.pyi")]:
            name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            found[name] = ast.parse(path.read_text())
    return found


def layer_of(module: str) -> str:
    """The name of a module's layer; empty for a module of none, such as one of the standard library."""
    module = module.removesuffix(".__init__")
    fits = [(len(p), name) for name, layer in LAYERS.items() for p in layer.modules.split() if fnmatch(module, p)]
    return max(fits, default=(0, ""))[1]


def imported(module: str, tree: ast.Module, known: Mapping[str, object]) -> Iterator[str]:
    """The modules that a module imports. Of a package, known has the name of its ``__init__``."""

    def named(name: str) -> str:
        return f"{name}.__init__" if f"{name}.__init__" in known else name

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (named(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((*module.split(".")[: -node.level], *filter(None, [node.module]))) if node.level else node.module
            for alias in node.names:
                part = named(f"{base}.{alias.name}")
                yield part if part in known else named(str(base))


def graph(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """The imports of each module."""
    return {module: set(imported(module, tree, trees)) - {module} for module, tree in trees.items()}


def forbidden(arrows: Mapping[str, set[str]]) -> list[str]:
    """The imports that the table does not have."""
    found = []
    for module, targets in arrows.items():
        layer = layer_of(module)
        for target in targets:
            below = layer_of(target)
            if below and below != layer and below not in LAYERS[layer].imports.split():
                found.append(f"{module} ({layer}) imports {target} ({below})")
    return found


def in_circles(arrows: Mapping[str, set[str]]) -> set[str]:
    """The modules that are in circles or between them: what is left once modules that import, or serve, none of them go."""
    left = {module: targets & arrows.keys() for module, targets in arrows.items()}
    while True:
        used = set().union(*left.values())
        kept = {module: targets & left.keys() for module, targets in left.items() if targets and module in used}
        if kept == left:
            return set(left)
        left = kept


def test_a_layer_imports_lower_ones() -> None:
    names = list(LAYERS)
    for k, layer in enumerate(LAYERS.values()):
        assert set(layer.imports.split()) <= set(names[:k])


def test_imports_go_down() -> None:
    arrows = graph(sources())
    assert forbidden(arrows) == []
    assert in_circles(arrows) == set()


def test_every_arrow_of_the_table_is_used() -> None:
    """An arrow that no import needs any more is taken out of the table."""
    arrows = graph(sources())
    for name, layer in LAYERS.items():
        used = {layer_of(target) for module, targets in arrows.items() if layer_of(module) == name for target in targets}
        assert set(layer.imports.split()) <= used, name


@pytest.mark.parametrize(
    ("module", "code", "target"),
    [
        ("sternway._scan", "def f():\n    import torch", "torch"),
        ("sternway._plan", "from . import _native", "sternway._native"),
        ("sternway.errors", "from ._plan import Plan", "sternway._plan"),
        ("sternway.torch._lerp", "from .distributed import _rules", "sternway.torch.distributed._rules"),
        (
            "sternway.torch._autograd.scan",
            "if TYPE_CHECKING:\n    from .. import distributed",
            "sternway.torch.distributed.__init__",
        ),
        ("sternway.jax.__init__", "import sternway.torch", "sternway.torch.__init__"),
    ],
)
def test_planted_import(module: str, code: str, target: str) -> None:
    known = {**sources(), module: ast.parse(code)}
    assert forbidden({module: set(imported(module, known[module], known))})
    assert target in set(imported(module, known[module], known))


def test_planted_circle() -> None:
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}
