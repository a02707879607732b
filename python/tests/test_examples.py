"""What is written is run: the Python blocks of README.md. The examples in docstrings are run by test_docstrings.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


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
