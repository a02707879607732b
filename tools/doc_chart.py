"""The charts of the documents, each an SVG of plain text, so that it repeats.

``docs/speed.svg`` shows how much of a copy's bandwidth sternway and torch reach, ``docs/steps.svg`` how much faster training
steps are, and ``docs/errors.svg`` the errors of both. A phone shows 358 pixels, in which the text must remain readable: the
picture is narrow, and the label of a row stands above its bars.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

import doc_steps
from doc_results import Results, Row, machine, times
from doc_tables import HIGHLIGHTS, found

DTYPE = "bfloat16"
WIDTH, FONT, LEFT, RIGHT = 480, 14, 16, 64  # pixels: the picture, its text, the room beside the axis and for the gain
TOP, LABEL, BAR = 62, 18, 10  # pixels: the heading, the label of a row, a bar
# Middle tones, which are readable on white and on black.
TEXT, GRID, OURS, THEIRS = "#7a828e", "#7a828e", "#2f81f7", "#c69026"

# The rows of the chart of errors: label, operation and input of exactness_h200.csv.
ERRORS = (
    ("lerp, weight per row", "lerp_backward", "da, db, dweight per row"),
    ("dequantize, values and scale", "dequantize_per_token_backward", "dx, dscale"),
    ("fake quantize, values and scale", "fake_quantize_per_token_backward", "dx, dscale"),
    ("RoPE, pairs of halves", "rope_backward", "dx half"),
    ("cumsum along rows", "scan_backward", "cumsum, dim -1"),
    ("cumprod along rows", "scan_backward", "cumprod, dim -1"),
    ("cummax along rows", "scan_backward", "cummax, dim -1"),
    ("logcumsumexp along rows", "scan_backward", "logcumsumexp, dim -1"),
    ("embedding bag, sum, Zipf indices", "embedding_bag_backward", "sum, zipf"),
    ("embedding, all indices equal", "embedding_backward", "one row"),
)


def speed(results: Results) -> str:
    """Two bars for each of the rows HIGHLIGHTS."""
    scale, size = WIDTH - LEFT - RIGHT, row_of(2)
    heading = f"Share of a copy's bandwidth, {DTYPE}, {machine(results.file('h200_scan.csv'))}"
    lines = start("Share of the bandwidth of a copy that sternway and torch reach", heading, size * len(HIGHLIGHTS))
    lines += [key(LEFT, OURS, "sternway"), key(LEFT + 110, THEIRS, "torch"), text(WIDTH - 4, 46, "times faster", "end")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        lines += line_of_grid(LEFT + scale * share, len(HIGHLIGHTS), size, f"{share:g}", strong=share in (0, 1))
    for i, (label, name, *which) in enumerate(HIGHLIGHTS):
        row, y = found(results, name, *which, DTYPE), TOP + size * i
        ours = float(row["share_of_copy"])
        lines += labels(y, label, times(row["ratio"]))
        lines.append(bar(y + LABEL, scale * ours, OURS))
        lines.append(bar(y + LABEL + BAR + 1, scale * ours / float(row["ratio"]), THEIRS))
    return "\n".join([*lines, "</svg>", ""])


def steps(results: Results) -> str:
    """A bar for each training step of the table in README.md, on a logarithmic axis that begins where both are equal."""
    file = results.file(doc_steps.GPU)
    rows = [(name, gain) for name, _, step, ours in doc_steps.highlights(results) if (gain := step.gain(ours=ours))]
    place = logarithmic(1, 10 ** math.ceil(math.log10(max(gain for _, gain in rows))))
    heading = f"Training steps, {machine(file)}"
    size = row_of(1)
    lines = start("How many times faster training steps are", heading, size * len(rows))
    lines.append(text(WIDTH - 4, 46, "times faster than torch", "end"))
    for k in range(round(math.log10(max(gain for _, gain in rows)) + 1)):
        lines += line_of_grid(place(10**k), len(rows), size, f"{10**k}x", strong=k == 0)
    for i, (label, gain) in enumerate(rows):
        y = TOP + size * i
        lines += [*labels(y, label.replace("`", ""), times(gain)), bar(y + LABEL, place(gain) - LEFT, OURS)]
    return "\n".join([*lines, "</svg>", ""])


def errors(results: Results) -> str:
    """Two dots for each operation, on a logarithmic axis."""
    file = results.file("exactness_h200.csv")
    rows = [(label, error_row(file.rows, op, words)) for label, op, words in ERRORS]
    place, size = logarithmic(1e-4, 1), row_of(1)
    lines = start("Errors of sternway and of torch", f"Relative error, {DTYPE}, {machine(file)}", size * len(rows))
    lines += [dot(LEFT + 6, 41, OURS), text(LEFT + 18, 46, "sternway", "start")]
    lines += [dot(LEFT + 116, 41, THEIRS), text(LEFT + 128, 46, "torch", "start"), text(WIDTH - 4, 46, "times larger", "end")]
    for k in range(-4, 1):
        lines += line_of_grid(place(10**k), len(rows), size, f"1e{k}" if k else "1", strong=k == -4)
    for i, (label, row) in enumerate(rows):
        top, ours, theirs = TOP + size * i, float(row["norm"]), float(row["torch_norm"])
        y = top + LABEL + BAR // 2
        lines += labels(top, label, times(theirs / ours) if theirs > 1.05 * ours else "equal")
        lines.append(f'<path d="M{place(ours):.1f} {y}H{place(theirs):.1f}" stroke="{GRID}" stroke-opacity="0.6"/>')
        lines += [dot(place(theirs), y, THEIRS), dot(place(ours), y, OURS)]
    return "\n".join([*lines, "</svg>", ""])


def error_row(rows: list[Row], op: str, words: str) -> Row:
    """The row of the file of errors for an operation and its input."""
    [row] = [row for row in rows if (row["op"], row["input"], row["dtype"]) == (op, words, DTYPE)]
    return row


def logarithmic(low: float, high: float) -> Callable[[float], float]:
    """The place of a number on an axis, in pixels. Numbers beyond its ends are put at the ends."""
    pixels = (WIDTH - LEFT - RIGHT) / math.log(high / low)
    return lambda value: LEFT + pixels * math.log(min(max(value, low), high) / low)


def row_of(bars: int) -> int:
    """The height of a row: its label, its bars and the space below, in pixels."""
    return LABEL + (BAR + 1) * bars + 10


def start(title: str, heading: str, rows: int) -> list[str]:
    """The first lines of a chart, whose rows have a height in pixels together."""
    height = TOP + rows + 34
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"',
        f'     font-family="system-ui, sans-serif" font-size="{FONT}" fill="{TEXT}">',
        f"<title>{escape(title)}</title>",
        text(LEFT, 22, heading, "start", bold=True),
    ]


def line_of_grid(x: float, rows: int, size: int, words: str, *, strong: bool) -> list[str]:
    """A vertical line through the bars of rows of a size, but not through their labels, with its number below."""
    parts = "".join(f"M{x:g} {TOP + size * i + LABEL - 2}V{TOP + size * (i + 1) - 6}" for i in range(rows))
    line = f'<path d="{parts}" stroke="{GRID}" stroke-opacity="{1 if strong else 0.35}"/>'
    return [line, text(x, TOP + size * rows + FONT + 2, words, "middle")]


def text(x: float, y: float, words: str, anchor: str, *, bold: bool = False) -> str:
    """Words at a place."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'


def labels(y: float, label: str, gain: str) -> list[str]:
    """The words above the bars of a row: what it is, and at the right the gain over torch."""
    return [text(LEFT + 4, y + FONT - 1, label, "start"), text(WIDTH - 4, y + FONT - 1, gain, "end")]


def bar(y: float, length: float, color: str) -> str:
    """A bar of a length in pixels."""
    return f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{color}"/>'


def key(x: float, color: str, name: str) -> str:
    """The color of a library, with its name."""
    return f'<rect x="{x}" y="36" width="{BAR}" height="{BAR}" fill="{color}"/>' + text(x + BAR + 6, 46, name, "start")


def dot(x: float, y: float, color: str) -> str:
    """A dot around a place."""
    return f'<circle cx="{x:.1f}" cy="{y}" r="5.5" fill="{color}"/>'
