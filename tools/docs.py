#!/usr/bin/env python3
"""Writes the generated parts of the documents: the table of README.md and the charts docs/*.svg.

    python tools/docs.py            write them
    python tools/docs.py --check    name the files that differ, and exit with 1 if there are any

The tables of docs/ are not committed. A line ``[file.csv](...) <!-- table: NAME -->`` stands for each, so that the document on
GitHub leads to the figures; the build of the site puts the table of TABLES in its place. The comment is last, as Markdown does
not read the rest of a line that begins with one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import doc_chart
import doc_operations
import doc_steps
import doc_tables
from doc_results import Results

ROOT = Path(__file__).resolve().parent.parent
CHARTS = {"docs/speed.svg": doc_chart.speed, "docs/steps.svg": doc_chart.steps, "docs/errors.svg": doc_chart.errors}
REGION = re.compile(r"(?P<head><!-- generated -->\n).*?(?P<foot>^<!-- end -->$)", re.DOTALL | re.MULTILINE)
PLACE = re.compile(r"^.*<!-- table: (?P<name>[\w-]+) -->$", re.MULTILINE)

TABLES: dict[str, Callable[[Results], str]] = {
    "overview": doc_tables.overview,
    "steps": doc_steps.written(doc_steps.GPU),
    "steps-cpu": doc_steps.written(doc_steps.CPU),
    "learning-tables": doc_steps.learning_tables,
    "embedding-bags": doc_operations.embedding_bags,
    "summary": doc_tables.summary,
    "h200": doc_tables.speed_of("h200.csv", leave_out="scan_backward"),
    "h200-scans": doc_tables.speed_of("h200_scan.csv"),
    "h200-scans-forward": doc_tables.speed_of("h200_scan_forward.csv"),
    "h100-scans": doc_tables.speed_of("h100_scan.csv"),
    "growth-h100": doc_tables.growth_of("h100_growth.csv"),
    "growth-h200": doc_tables.growth_of("h200_growth.csv"),
    "host-runs": doc_tables.host_runs,
    "host-autograd": doc_tables.host_autograd,
    "sparse": doc_operations.sparse,
    "sparse-variants": doc_operations.sparse_variants,
    "ranks": doc_operations.ranks,
    "carries": doc_operations.carries,
    "recurrences": doc_operations.recurrences,
    "selective_scans": doc_operations.selective_scans,
    "packed": doc_operations.packed,
    "quantizations": doc_operations.quantizations,
    "jax": doc_operations.jax,
    "cpu": doc_tables.cpu,
    "variants": doc_operations.variants,
    "errors": doc_tables.errors_of("exactness.csv"),
    "errors-h200": doc_tables.errors_of("exactness_h200.csv"),
    "hard-inputs": doc_tables.hard_inputs,
}


def with_tables(text: str, results: Results) -> str:
    """A document with its tables.

    Raises:
        ValueError: a line names no table.
    """

    def table(match: re.Match[str]) -> str:
        if match["name"] not in TABLES:
            raise ValueError(f"tools/docs.py has no table {match['name']}")
        return TABLES[match["name"]](results)

    return PLACE.sub(table, text)


def generated(root: Path = ROOT) -> dict[str, str]:
    """The content that each committed file must have, by its path from the root of the tree."""
    results = Results(root)
    speed = doc_tables.readme_speed(results)
    readme, count = REGION.subn(lambda match: f"{match['head']}\n{speed}\n\n{match['foot']}", (root / "README.md").read_text())
    if count != 1:
        raise ValueError(f"README.md has {count} generated regions")
    return {"README.md": readme} | {path: draw(results) for path, draw in CHARTS.items()}


def main(arguments: list[str]) -> int:
    """Write the files that differ, or name them."""
    check = arguments == ["--check"]
    if arguments and not check:
        print(__doc__)
        return 2
    changed = 0
    for path, text in generated().items():
        if not (ROOT / path).exists() or (ROOT / path).read_text() != text:
            changed += 1
            print(f"{path} {'differs; run make docs' if check else 'written'}")
            if not check:
                (ROOT / path).write_text(text)
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
