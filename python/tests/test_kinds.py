"""Scans are listed in ``sternway._kinds``, which is generated: other code derives its lists from there.

A list that is typed by hand is one more file that a new kind has to find. It alone finds such a list.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sternway._kinds import KINDS

ROOT = Path(__file__).parents[2]
FOLDERS = ("python", "tools", "docs/site", "examples")
GENERATED = {"python/sternway/_choices.py", "python/sternway/_kinds.py"}
FEWEST = 4
"""Kinds that make a list. Tests of some kinds name fewer."""
NAME = re.compile(rf"(?<![a-z])({'|'.join(KINDS)})(?![a-z])", re.IGNORECASE)

ALLOWED = {
    "python/sternway/_cases/scan_definitions.py: DEFINITIONS": "the formulas of each kind, of which a new one has its own",
    "python/bench/step/triton_rows.py: KINDS": "the kinds that the rival in Triton has",
    "python/tests/jax_cases.py: OF_PREFIX": "the formulas of the scans that JAX has, by JAX's names",
    "tools/doc_chart.py: ERRORS": "the rows of a chart, chosen for its readers",
}
"""Lists by file and variable, with the reason why each cannot follow from ``KINDS``."""


def text_of(element: ast.expr | None) -> str:
    """The name that an entry of a display stands for: a string, a name, an attribute, or the first one of a row."""
    while isinstance(element, ast.Tuple | ast.List) and element.elts:
        element = element.elts[0]
    if isinstance(element, ast.Constant) and isinstance(element.value, str):
        return element.value
    return ast.unparse(element) if isinstance(element, ast.Name | ast.Attribute) else ""


def is_list(display: ast.expr) -> bool:
    """Whether a display has entries for several kinds in the same spelling, such as ``st.cumsum`` and ``st.cumprod``."""
    kinds: dict[str, set[str]] = {}
    for element in display.keys if isinstance(display, ast.Dict) else display.elts:  # type: ignore[attr-defined]
        if found := NAME.search(text := text_of(element)):
            kinds.setdefault(f"{text[: found.start()]}*{text[found.end() :]}", set()).add(found[0])
    return any(len(names) >= FEWEST for names in kinds.values())


def lists(node: ast.AST, variable: str = "") -> Iterator[str]:
    """The variables of a module or a part of it that hold a list of kinds; ``__all__`` is none."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        variable = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        variable = node.name
    if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict) and variable != "__all__" and is_list(node):
        yield variable
    for child in ast.iter_child_nodes(node):
        yield from lists(child, variable)


def test_no_list_of_kinds_by_hand() -> None:
    found = set()
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name not in GENERATED:
            found |= {f"{name}: {variable}" for variable in lists(ast.parse(path.read_text()))}
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "code",
    [
        'X = ("cumsum", "cumprod", "cummax", "cummin")',
        'X = {"cumsum": 1, "cumprod": 1, "cummax": 1, "logcumsumexp": 1}',
        "def X():\n    return [st.cumsum, st.cumprod, st.cummax, st.cummin]",
        'X: tuple = (("cumsum", 1), ("cumprod", 2), ("cummax", 3), ("cummin", 4))',
        'X = [f(name) for name in ("cumsum_backward", "cumprod_backward", "cummax_backward", "cummin_backward")]',
        "class X:\n    CUMSUM, CUMPROD, CUMMAX, CUMMIN = scans()",
    ],
)
def test_a_planted_list_is_found(code: str) -> None:
    assert list(lists(ast.parse(code)))


def test_some_kinds_are_no_list() -> None:
    names = '"cumsum", "cumprod", "cummax"'
    assert not list(lists(ast.parse(f'X = ({names}), ("sj.cummin",)\n__all__ = [{names}, "cummin"]')))
