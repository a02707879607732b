"""Runs the Python blocks of README.md and docs/, and the examples in docstrings."""

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


ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "docs/autograd.md", "docs/operations.md"]
"""The documents that have Python blocks."""


def blocks_of(document: str) -> list[tuple[int, str]]:
    """The fenced Python blocks of a document, with the lines on which they start."""
    path = ROOT / document
    text = path.read_text() if path.exists() else ""
    return [
        (text[: m.start()].count("\n") + 2, m[1]) for m in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]


def test_every_document_with_examples_is_listed() -> None:
    with_blocks = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")) if "```python" in path.read_text()]
    assert sorted(str(path.relative_to(ROOT)) for path in with_blocks) == sorted(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document(document: str) -> None:
    """Every block runs, in one namespace for each document. A block for a CUDA device is compiled where there is none."""
    import torch

    blocks, names = blocks_of(document), {"__name__": "__document__"}
    assert blocks, f"{document} has no python block"
    for line, code in blocks:
        if "import transformers" in code or "from transformers" in code:
            pytest.importorskip("transformers", reason="transformers is not installed; later blocks are not run")
        program = compile("\n" * (line - 1) + code, document, "exec")
        if not re.search(r"device=\"cuda", code) or torch.cuda.is_available():
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
