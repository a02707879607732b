#!/usr/bin/env python3
"""Counts the files of a change: new ones, those edited by hand, and those that a command writes.

    python tools/count_files.py main...feature    the changes of a branch since it left main
    python tools/count_files.py BASE              those of the tracked files of the working tree against a commit

The costs of features in CONTRIBUTING.md are such counts.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = re.compile(r"Code generated .*DO NOT EDIT")
GOLDEN = re.compile(r"(^|/)testdata/|(^|/)verified\.json$|^docs/.*\.svg$")


def git(*arguments: str) -> str:
    """The output of git in the root of the tree."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def is_written(path: str, text: str) -> bool:
    """Whether a command writes a file: it says so in one of its first lines, or it is a golden file, a digest or a chart."""
    return bool(GOLDEN.search(path) or GENERATED.search("\n".join(text.splitlines()[:5])))


def count(diff: str) -> dict[str, list[str]]:
    """The files of a diff by what was done with them; a file that moved is a new and a deleted one."""
    found: dict[str, list[str]] = {"new": [], "edited by hand": [], "deleted": [], "written by a command": []}
    commit = diff.rpartition("...")[2] if "..." in diff else ""
    for line in git("diff", "--name-status", "--no-renames", diff).splitlines():
        status, path = line.split("\t")
        old = {"A": "new", "D": "deleted"}.get(status, "edited by hand")
        text = "" if status == "D" else git("show", f"{commit}:{path}") if commit else (ROOT / path).read_text(errors="replace")
        found["written by a command" if is_written(path, text) else old].append(path)
    return found


def main(arguments: list[str]) -> int:
    """Print the files and their numbers."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    found = count(arguments[0])
    for what, paths in found.items():
        print(f"{what}: {len(paths)}", *(f"    {path}" for path in paths), sep="\n")
    print(f"by hand: {sum(map(len, found.values())) - len(found['written by a command'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
