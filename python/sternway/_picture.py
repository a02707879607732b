"""The picture of a plan: how a run with contiguous operands cuts its work into CTAs or tasks, as inline SVG."""

from __future__ import annotations

import html
import textwrap
from typing import Any

WIDTH = 640  # pixels
MOST_COLUMNS, MOST_ROWS, MOST_TILES, MOST_LAUNCHES = 6, 5, 8, 5  # shown; the rest is elided
LEFT, TOP, MATRIX, BLOCK_LEFT, BLOCK, BOX = 112, 46, 250, 416, 212, 40  # pixels: the matrix, and the enlarged block
LINE = 18  # pixels from one line of text to the next
LONGEST_LINE = 84  # characters

SINGULAR = {
    "CTAs": "CTA",
    "elements": "element",
    "elements of each sum": "element of each sum",
    "heads": "head",
    "indices": "index",
    "launches": "launch",
    "parts": "part",
    "rows": "row",
    "rows of the table": "row of the table",
    "sums": "sum",
    "tasks": "task",
    "threads": "thread",
    "tiles": "tile",
    "tokens": "token",
}


def picture(facts: dict[str, Any]) -> str:
    """Draw the launch geometry of a plan.

    Args:
        facts: what the native library says of the plan: ``division``, the matrix of the work and the part of one block,
            ``launches``, the kernel launches of a run on a GPU, and ``bytes``, which an ideal run moves. Empty: unknown.

    Returns:
        an ``<svg>`` element of at most 640 by 440 pixels in the colour of the text around it; empty where there is no work.
    """
    if not facts or not (facts["division"]["blocks"] or facts["launches"]):
        return ""
    division, launches = facts["division"], facts["launches"]
    drawing = _Drawing()
    if division["blocks"]:
        _draw_division(drawing, division, launches)
    for line in _launch_lines(launches, facts["bytes"]):
        drawing.line(line)
    return drawing.svg()


def count(n: int, unit: str) -> str:
    """A number with its unit: ``"1 row"``, ``"4,096 rows"``."""
    return f"{n:,} {SINGULAR[unit] if n == 1 else unit}"


def part_sizes(extent: int, part: int, most: int) -> list[int | None]:
    """The sizes of the parts of an extent in order; None stands for those that are elided."""
    n = -(-extent // part)
    last = extent - (n - 1) * part
    if n <= most:
        return [*[part] * (n - 1), last]
    return [*[part] * (most - 2), None, last]


class _Drawing:
    """Elements of an SVG image, from the top down."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.words: list[str] = []
        self.bottom = 0.0

    def text(self, x: float, y: float, words: str, anchor: str = "middle") -> None:
        self.words.append(words)
        self.elements.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(words)}</text>')

    def line(self, words: str) -> None:
        """Write text below everything else, on as many lines as it needs."""
        for k, part in enumerate(textwrap.wrap(words, LONGEST_LINE)):
            self.bottom += LINE
            self.text(24 if k else 8, self.bottom, part, "start")

    def rectangle(self, x: float, y: float, width: float, height: float, opacity: float = 0.0) -> None:
        self.elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="currentColor" fill-opacity="{opacity:g}" '
            'stroke="currentColor"/>'
        )

    def stroke(self, x1: float, y1: float, x2: float, y2: float, opacity: float = 0.5) -> None:
        self.elements.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="currentColor" stroke-opacity="{opacity:g}"/>'
        )

    def svg(self) -> str:
        height = self.bottom + 10
        label = html.escape("; ".join(word for word in self.words if word != "…"), quote=True)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" width="{WIDTH}" height="{height:g}" '
            f'viewBox="0 0 {WIDTH} {height:g}" style="max-width:100%;height:auto" font-family="sans-serif" font-size="12" '
            f'fill="currentColor">{"".join(self.elements)}</svg>'
        )


def _spans(sizes: list[int | None], whole: int, length: float) -> list[tuple[float, float]]:
    """Start and length of each part in pixels. A last part that is not whole is shorter, but can still be seen."""
    weights = [0.6 if size is None else max(0.35, size / whole) for size in sizes]
    unit, spans, at = length / sum(weights), [], 0.0
    for weight in weights:
        spans.append((at, weight * unit))
        at += weight * unit
    return spans


def _draw_division(drawing: _Drawing, division: dict[str, Any], launches: list[dict[str, Any]]) -> None:
    """The matrix of the work on the left, and one block of it, enlarged, on the right."""
    rows, columns = division["rows"], division["columns"]
    block_rows, block_columns = division["block_rows"], division["block_columns"]
    row_sizes = part_sizes(rows, block_rows, MOST_ROWS)
    column_sizes = part_sizes(columns, block_columns, MOST_COLUMNS)
    height = 40.0 if len(row_sizes) == 1 else 28.0 * len(row_sizes)
    across, down = _spans(column_sizes, block_columns, MATRIX), _spans(row_sizes, block_rows, height)
    for row, (y, tall) in zip(row_sizes, down, strict=True):
        for column, (x, wide) in zip(column_sizes, across, strict=True):
            if row is None or column is None:
                drawing.text(LEFT + x + wide / 2, TOP + y + tall / 2 + 4, "…")
            else:
                drawing.rectangle(LEFT + x, TOP + y, wide, tall, 0.3 if x == y == 0 else 0.05)
    drawing.text(LEFT + MATRIX / 2, TOP - 10, count(columns, division["column_unit"]))
    label = textwrap.wrap(count(rows, division["row_unit"]), 15)
    for k, words in enumerate(label):
        drawing.text(LEFT - 10, TOP + height / 2 + 4 + LINE * (k - (len(label) - 1) / 2), words, "end")
    below = _draw_block(drawing, division, down[0][1], "CTA" if launches else "task")
    drawing.bottom = TOP + max(height, below) + 4
    drawing.line(_parts_line(division, launches))


def _draw_block(drawing: _Drawing, division: dict[str, Any], tall: float, unit: str) -> float:
    """The first block, enlarged, with its tiles. It is as tall as so many pixels in the matrix; returns the height of all."""
    tiles = part_sizes(division["block_columns"], division["tile_columns"], MOST_TILES)
    for k, (x, length) in enumerate(_spans(tiles, division["tile_columns"], BLOCK)):
        if tiles[k] is None:
            drawing.text(BLOCK_LEFT + x + length / 2, TOP + BOX / 2 + 4, "…")
        else:
            drawing.rectangle(BLOCK_LEFT + x, TOP, length, BOX, 0.3)
    drawing.stroke(LEFT + MATRIX, TOP, BLOCK_LEFT, TOP)
    drawing.stroke(LEFT + MATRIX, TOP + tall, BLOCK_LEFT, TOP + BOX)
    middle = BLOCK_LEFT + BLOCK / 2
    drawing.text(middle, TOP - 10, f"one {unit}")
    lines = [
        f"{count(division['block_rows'], division['row_unit'])} of",
        count(division["block_columns"], division["column_unit"]),
    ]
    number = -(-division["block_columns"] // division["tile_columns"])
    if number > 1:
        lines.append(f"in {count(number, 'tiles')} of {division['tile_columns']:,}")
    for k, words in enumerate(lines, 1):
        drawing.text(middle, TOP + BOX + k * LINE, words)
    return BOX + len(lines) * LINE


def _parts_line(division: dict[str, Any], launches: list[dict[str, Any]]) -> str:
    """How many blocks there are."""
    blocks = count(division["blocks"], "parts" if launches else "tasks")
    if division["blocks"] == 1:
        return blocks
    return f"{blocks}, which the {'CTAs of a launch' if launches else 'threads of the worker pool'} share"


def _launch_lines(launches: list[dict[str, Any]], moved: int) -> list[str]:
    """Each launch in words; equal ones that follow each other are one line."""
    lines: list[str] = []
    times: list[int] = []
    for launch in launches:
        words = f"{launch['kernel']}: {count(launch['grid'], 'CTAs')} of {count(launch['threads'], 'threads')}"
        if launch["cluster"] > 1:
            words += f", in clusters of {launch['cluster']}"
        if launch["shared"]:
            words += f", {launch['shared'] / 1024:.4g} KiB of shared memory each"
        if lines and lines[-1] == words:
            times[-1] += 1
        else:
            lines.append(words)
            times.append(1)
    shown = [words if n == 1 else f"{n} times {words}" for words, n in zip(lines, times, strict=True)]
    if len(shown) > MOST_LAUNCHES:
        shown = [*shown[: MOST_LAUNCHES - 1], f"… {count(len(shown) - MOST_LAUNCHES + 1, 'launches')} more"]
    if launches:
        largest = max(launch["grid"] for launch in launches)
        shown.append(f"{moved / largest:,.0f} bytes to move for each CTA of the largest grid, on average")
    return shown
