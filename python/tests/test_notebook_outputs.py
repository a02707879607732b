"""What a reader sees of the committed notebooks in JupyterLab, which sanitizes the outputs of a file that is not trusted.

It removes scripts and styles with their text, and all other tags that it does not know, such as those of SVG, without their
text. So the labels of a drawing remain as a row of words, and a picture that is SVG alone disappears. The tests of
``test_display.py`` read the HTML before it is sanitized, and those of ``test_notebooks.py`` compare outputs with a fresh run.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("notebooks/gpu/*.ipynb")])
SHOWN = ("text/html", "image/png", "text/plain")  # in the order of preference, with SVG removed
WORD = re.compile(r"\d[\d.,]*\d|[^\W_]+")


class Sanitized(HTMLParser):
    """The rows of a table, and the text outside of it, that remain of an output."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.outside = ""
        self.skipped = 0  # open elements whose text is removed
        self.in_cell = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.skipped += tag in ("script", "style")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td") and self.rows:
            self.rows[-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self.skipped -= tag in ("script", "style")
        self.in_cell &= tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self.skipped:
            return
        if self.in_cell:
            self.rows[-1][-1] += data
        else:
            self.outside += data


def rubbish(output: dict[str, Any]) -> list[str]:
    """What a reader of a sanitized output cannot understand."""
    if output["output_type"] == "stream":
        return ["escape codes of a terminal"] if "\x1b" in "".join(output["text"]) else []
    data = {kind: "".join(value) for kind, value in output["data"].items()}
    shown = next((kind for kind in SHOWN if kind in data), None)
    if shown is None:
        return [f"nothing is shown of {', '.join(data)}"]
    if shown == "text/plain":
        return ["the address of an object"] if re.search(r"<.* at 0x", data[shown]) else []
    return table_rubbish(data) if shown == "text/html" else []


def table_rubbish(data: dict[str, str]) -> list[str]:
    """What is wrong with an HTML output: it is a table of titles and values, with the facts of its plain text."""
    left = Sanitized(data["text/html"])
    found = [f"text outside of a table: {left.outside.strip()!r}"] if left.outside.strip() else []
    found += [f"no title and value: {row}" for row in left.rows if len(row) != 2 or not all(cell.strip() for cell in row)]
    found += [f"markup or CSS: {row}" for row in left.rows if re.search(r"[<>{}]|&\w+;", "".join(row))]
    values = {word for row in left.rows for cell in row[1:] for word in WORD.findall(cell)}
    titles = {word for row in left.rows for cell in row[:1] for word in WORD.findall(cell)}
    plain = WORD.findall(data.get("text/plain", ""))
    name, facts = plain[:1], set(plain[1:]) - {"on"}
    if values - facts or facts - values - titles or not name:
        found.append(f"other facts than the plain text: {values ^ facts - titles}")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.relative_to(ROOT / "notebooks").as_posix())
def test_committed_outputs(path: Path) -> None:
    """It alone finds an output that is right where it was made, and has lost its meaning in a file that is not trusted."""
    cells = json.loads(path.read_text())["cells"]
    assert [text for cell in cells for output in cell.get("outputs", ()) for text in rubbish(output)] == []


ROW = "<tr><th>kernel</th><td>rows</td></tr>"
PLAIN = "Plan(kernel='rows')"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"text/html": f"<table onclick='f()'>{ROW}</table>", "text/plain": PLAIN}, ""),
        ({"text/html": f"<style>td {{ color: red }}</style><table>{ROW}</table>", "text/plain": PLAIN}, ""),
        ({"text/html": f"<table>{ROW}</table><svg><text>rows</text></svg>", "text/plain": PLAIN}, "outside of a table"),
        ({"text/html": "<svg><path/></svg>", "text/plain": PLAIN}, "other facts"),
        ({"text/html": "<script>table()</script>", "text/plain": PLAIN}, "other facts"),
        ({"text/html": "<table><tr><th>kernel</th><td>&lt;rows&gt;</td></tr></table>", "text/plain": PLAIN}, "markup"),
        ({"text/html": f"<table>{ROW}<tr><th>x</th><td></td></tr></table>", "text/plain": PLAIN}, "no title and value"),
        ({"text/html": f"<table>{ROW}</table>", "text/plain": "Plan(kernel='rows', tasks=8)"}, "other facts"),
        ({"image/svg+xml": "<svg/>"}, "nothing is shown"),
        ({"image/svg+xml": "<svg/>", "image/png": "iVBOR", "text/plain": "<Figure size 1x1 with 1 Axes>"}, ""),
        ({"text/plain": "<matplotlib.legend.Legend at 0x7f00>"}, "address"),
        ({"text/plain": "tensor([1.])"}, ""),
    ],
)
def test_rubbish_is_found(data: dict[str, str], expected: str) -> None:
    found = rubbish({"output_type": "display_data", "data": data})
    assert len(found) == bool(expected), found
    assert all(expected in text for text in found)
