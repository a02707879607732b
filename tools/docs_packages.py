#!/usr/bin/env python3
"""Prints the packages of the extra `docs` of pyproject.toml, one a line.

The site is built from sources, so they can be installed without building the package:

    python tools/docs_packages.py | xargs -d '\\n' pip install
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def packages() -> list[str]:
    """The requirements of the extra."""
    with PROJECT.open("rb") as file:
        return list(tomllib.load(file)["project"]["optional-dependencies"]["docs"])


if __name__ == "__main__":
    print(*packages(), sep="\n")
