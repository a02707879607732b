"""The chart of README.md: how much of a copy's bandwidth sternway and torch reach. An SVG of plain text, so that it repeats."""

from __future__ import annotations

from html import escape

from doc_results import Results, times
from doc_tables import HIGHLIGHTS, found, machine

DTYPE = "bfloat16"
WIDTH, LABELS, RIGHT = 880, 320, 90  # pixels: the picture, the labels, the room for the gain over torch
TOP, ROW, BAR = 58, 34, 12
# Middle tones, which are readable on white and on black.
TEXT, GRID, OURS, THEIRS = "#7a828e", "#7a828e", "#2f81f7", "#c69026"


def speed(results: Results) -> str:
    """Two bars for each row of the table in README.md."""
    scale = WIDTH - LABELS - RIGHT
    height = TOP + ROW * len(HIGHLIGHTS) + 34
    bottom = height - 26
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"',
        f'     font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}">',
        "<title>Share of the bandwidth of a copy that sternway and torch reach</title>",
        text(LABELS, 20, f"Share of a copy's bandwidth, {DTYPE}, {machine(results.file('h200_scan.csv'))}", "start", bold=True),
        key(LABELS, OURS, "sternway"),
        key(LABELS + 110, THEIRS, "torch"),
        text(WIDTH - 4, 42, "times faster", "end"),
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = LABELS + scale * share
        lines.append(f'<path d="M{x:g} {TOP - 4}V{bottom}" stroke="{GRID}" stroke-opacity="{1 if share in (0, 1) else 0.35}"/>')
        lines.append(text(x, bottom + 17, f"{share:g}", "middle"))
    for i, (label, name, *which) in enumerate(HIGHLIGHTS):
        row, y = found(results, name, *which, DTYPE), TOP + ROW * i
        ours = float(row["share_of_copy"])
        lines.append(text(LABELS - 10, y + 17, label, "end"))
        lines.append(bar(y, scale * ours, OURS))
        lines.append(bar(y + BAR + 1, scale * ours / float(row["ratio"]), THEIRS))
        lines.append(text(WIDTH - 4, y + 17, times(row["ratio"]), "end"))
    return "\n".join([*lines, "</svg>", ""])


def text(x: float, y: float, words: str, anchor: str, *, bold: bool = False) -> str:
    """Words at a place."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'


def bar(y: float, length: float, color: str) -> str:
    """A bar of a length in pixels."""
    return f'<rect x="{LABELS}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{color}"/>'


def key(x: float, color: str, name: str) -> str:
    """The color of a library, with its name."""
    return f'<rect x="{x}" y="32" width="{BAR}" height="{BAR}" fill="{color}"/>' + text(x + BAR + 6, 43, name, "start")
