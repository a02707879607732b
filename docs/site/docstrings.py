"""Docstrings as the site shows them: Sphinx roles become links, and sections that Griffe lacks become sections or lists."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
import reference  # beside this file

ROLE = re.compile(r":(?:func|class|mod|meth|attr|data|exc):`~?([\w.]+)`")
ENTRY = re.compile(r"^( *)(\*{0,2}\w+(?:, \*{0,2}\w+)+): ", re.MULTILINE)
OPERANDS = re.compile(r"^( *)Operands:\n((?:\1    .*\n|\s*\n)+)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites the docstring of each object before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = rewritten(obj.docstring.value, obj.path)


def rewritten(text: str, path: str) -> str:
    """The docstring of the object at a path, in the sections and links of Griffe and Markdown."""
    text = ROLE.sub(lambda match: linked(match[1], path), text + "\n")
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
    text = OPERANDS.sub(listed, text)
    return split_entries(text).rstrip()


def linked(name: str, path: str) -> str:
    """A name as inline code, which links to its object if a page has it. The nearest public module decides."""
    there = reference.resolved(name, path)
    return f"[`{name}`][{there}]" if there else f"`{name}`"


def split_entries(text: str) -> str:
    """The docstring with an entry for each of the names that share one, as in `dim, out: as for cumsum.`."""
    lines: list[str] = []
    for line in text.splitlines():
        shared = ENTRY.match(line)
        if shared and shared[1]:
            lines += [f"{shared[1]}{name}: {line[shared.end() :]}" for name in shared[2].split(", ")]
        else:
            lines.append(line)
    return "\n".join(lines)


def listed(match: re.Match[str]) -> str:
    """The section of operands as a list."""
    indent, body = match[1], match[2]
    entry = re.compile(rf"^{indent}    (\w+(?:, \w+)*): ", re.MULTILINE)
    items = entry.sub(lambda m: f"{indent}- {', '.join(f'`{name}`' for name in m[1].split(', '))}: ", body)
    return f"{indent}**Operands of** `run`**:**\n\n{items}\n"
