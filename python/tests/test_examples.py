"""Runs the Python blocks of README.md and docs/. test_docstrings.py runs the examples in docstrings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    "docs/README.md",
    "docs/autograd.md",
    "docs/distributed.md",
    "docs/howto/compile.md",
    "docs/howto/cuda-graphs.md",
    "docs/howto/cupy.md",
    "docs/howto/learning-embeddings.md",
    "docs/howto/mamba.md",
    "docs/howto/numpy.md",
    "docs/howto/packed.md",
    "docs/howto/plans.md",
    "docs/howto/quantization.md",
    "docs/howto/recurrences.md",
    "docs/howto/returns.md",
    "docs/jax.md",
    "docs/operations.md",
    "docs/tutorial.md",
]
"""The documents that have Python blocks."""


def blocks_of(document: str) -> list[tuple[int, str]]:
    """The fenced Python blocks of a document, with the lines on which they start."""
    path = ROOT / document
    text = path.read_text() if path.exists() else ""
    return [
        (text[: m.start()].count("\n") + 2, m[1]) for m in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]


def test_every_document_with_examples_is_listed() -> None:
    with_blocks = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if "```python" in path.read_text()]
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
