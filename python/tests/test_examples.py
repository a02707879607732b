"""What is written is run: the Python blocks of README.md, and the examples in docstrings."""

from __future__ import annotations

import doctest
import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest

import sternway
import sternway.torch

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def readme_blocks() -> list[Any]:
    """Find the fenced python blocks, by the line they start on; they share one namespace, from top to bottom."""
    path = Path(__file__).parents[2] / "README.md"
    text = path.read_text() if path.exists() else ""
    return [
        (text[: m.start()].count("\n") + 2, m[1]) for m in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]


def test_readme() -> None:
    """Every block runs; one that mentions cuda needs a device, and is compiled where there is none."""
    import torch

    blocks, names = readme_blocks(), {"__name__": "__readme__"}
    assert blocks, "README.md has no python block"
    for line, code in blocks:
        program = compile("\n" * (line - 1) + code, "README.md", "exec")
        if "cuda" not in code or torch.cuda.is_available():
            exec(program, names)


def documented() -> list[tuple[str, Any]]:
    """List the public objects of the modules that have an example, and the modules themselves."""
    found: dict[str, Any] = {}
    for module in (sternway, sternway.torch):
        found[module.__name__] = module
        for name in dir(module):
            thing = getattr(module, name)
            if not name.startswith("_") and not isinstance(thing, types.ModuleType) and (thing.__doc__ or "").count(">>>"):
                found[f"{module.__name__}.{name}"] = thing
    return list(found.items())


@pytest.mark.parametrize(("name", "thing"), documented(), ids=lambda value: value if isinstance(value, str) else "")
def test_docstring(name: str, thing: Any) -> None:
    finder, runner = doctest.DocTestFinder(recurse=inspect.isclass(thing)), doctest.DocTestRunner(optionflags=FLAGS)
    for example in finder.find(thing, name, module=False, globs={}):
        runner.run(example)
    assert runner.failures == 0


@pytest.mark.parametrize(
    "name",
    [n for n in dir(sternway) if n.endswith(("_backward", "BackwardPlan", "BackwardDescriptor"))],
)
def test_every_public_name_is_documented(name: str) -> None:
    thing = getattr(sternway, name)
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        assert ">>>" in thing.__doc__, f"{name} has no example"
