#!/usr/bin/env python3
"""Prints the packages that extras of pyproject.toml name, one a line.

So they can be installed without the package, before it is built or beside its build:

    python tools/packages.py docs | xargs -d '\\n' pip install
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def project() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml."""
    with PROJECT.open("rb") as file:
        return dict(tomllib.load(file)["project"])


def packages(*extras: str) -> list[str]:
    """The requirements of the extras, and of the extras that these name in turn."""
    table = project()["optional-dependencies"]
    found: dict[str, None] = {}
    for extra in extras:
        for requirement in table[extra]:
            own = re.fullmatch(r"sternway\[(.*)\]", requirement)
            found |= dict.fromkeys(packages(*own[1].split(",")) if own else [requirement])
    return list(found)


if __name__ == "__main__":
    print(*packages(*sys.argv[1:]), sep="\n")
