"""The picture of a plan: how a run with contiguous operands cuts its work into CTAs or tasks, as inline SVG."""

from __future__ import annotations

import dataclasses
import html
import textwrap
from typing import Any

WIDTH = 640  # pixels
MOST_COLUMNS, MOST_ROWS, MOST_TILES, MOST_LAUNCHES = 6, 5, 8, 5  # shown; the rest is elided
MOST_MATRICES = 5
LEFT, TOP, MATRIX, BLOCK_LEFT, BLOCK, BOX = 112, 46, 250, 416, 212, 40  # pixels: the matrix, and the enlarged block
LINE = 18  # pixels from one line of text to the next
LONGEST_LINE = 90  # characters

SINGULAR = {"batches": "batch", "indices": "index", "rows and indices": "row or index"}
"""Units whose singular is not their first word without its s."""


@dataclasses.dataclass
class Matrix:
    """A matrix of the work to draw: its division, and the launches that divide it so, by number."""

    division: dict[str, Any]
    launches: list[int]


def picture(facts: dict[str, Any]) -> str:
    """Draw how a plan divides its work.

    Args:
        facts: what the native library says of the plan: ``tasks``, the matrices of the work and the part of one task, on the
            CPU; ``launches``, the kernel launches of a run on a GPU, each with its ``divisions``; and ``bytes``, which an
            ideal run moves. Empty: unknown.

    Returns:
        an ``<svg>`` element of at most 640 by 860 pixels in the color of the text around it; empty where there is no work.
    """
    if not facts or not (facts["tasks"] or facts["launches"]):
        return ""
    launches = facts["launches"]
    drawing = _Drawing()
    matrices = matrices_of(facts)
    for k, matrix in enumerate(matrices[:MOST_MATRICES]):
        if title := _title(k, matrices, launches):
            drawing.title(title, space=k > 0)
        _draw_division(drawing, matrix, launches)
    if len(matrices) > MOST_MATRICES:
        drawing.line(f"… {count(len(matrices) - MOST_MATRICES, 'steps')} more")
    for line in _launch_lines(launches, facts["bytes"]):
        drawing.line(line)
    return drawing.svg()


def matrices_of(facts: dict[str, Any]) -> list[Matrix]:
    """The matrices to draw, in the order of the launches; launches that divide their work alike share one.

    Auxiliary steps, such as the clearing of the workspace, are named among the launches and not drawn.
    """
    if not facts["launches"]:
        return [Matrix(division, []) for division in facts["tasks"]]
    matrices: list[Matrix] = []
    for number, launch in enumerate(facts["launches"]):
        for division in launch["divisions"]:
            if division["is_auxiliary"]:
                continue
            known = next((m for m in matrices if m.division == division), None)
            if known is None:
                matrices.append(Matrix(division, [number]))
            else:
                known.launches.append(number)
    return matrices


def _title(k: int, matrices: list[Matrix], launches: list[dict[str, Any]]) -> str:
    """The step to which a matrix belongs: its kernels, without the beginning that all names share. Empty: there is one step."""
    drawn = {number for matrix in matrices for number in matrix.launches}
    if not launches:
        return "The last splits of the rows, which are shorter" if k else ""
    if len(drawn) == 1:
        return ""
    numbers = matrices[k].launches
    names = {number: launches[number]["kernel"].split("_") for number in drawn}
    shared = 0
    while len({tuple(name[: shared + 1]) for name in names.values()}) == 1 and shared < len(names[numbers[0]]):
        shared += 1
    own = dict.fromkeys("_".join(names[number][shared:]) for number in numbers)
    if [*own] == [""]:  # one kernel runs all steps
        return f"{k + 1}. launch{'es' if len(numbers) > 1 else ''} {', '.join(str(number + 1) for number in numbers)}"
    return f"{k + 1}. {', '.join(own)}"


def count(n: int, unit: str) -> str:
    """A number with its unit: ``"1 row"``, ``"4,096 rows"``."""
    if n == 1:
        first, space, rest = unit.partition(" ")
        unit = SINGULAR.get(unit) or f"{SINGULAR.get(first, first.removesuffix('s'))}{space}{rest}"
    return f"{n:,} {unit}"


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

    def text(self, x: float, y: float, words: str, anchor: str = "middle", style: str = "") -> None:
        self.words.append(words)
        self.elements.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{style}>{html.escape(words)}</text>')

    def line(self, words: str) -> None:
        """Write text below everything else, on as many lines as it needs."""
        for k, part in enumerate(textwrap.wrap(words, LONGEST_LINE)):
            self.bottom += LINE
            self.text(24 if k else 8, self.bottom, part, "start")

    def title(self, words: str, space: bool) -> None:
        """Write a line in bold, some space below what is above it."""
        self.bottom += LINE + 12 * space
        self.text(8, self.bottom, words, "start", ' font-weight="bold"')
        self.bottom -= LINE  # the matrix leaves room for a line above it

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


def _draw_division(drawing: _Drawing, matrix: Matrix, launches: list[dict[str, Any]]) -> None:
    """The matrix of the work on the left, and one block of it, enlarged, on the right."""
    division, top = matrix.division, drawing.bottom + TOP
    block_columns = division["block_columns"]
    row_sizes = part_sizes(division["rows"], division["block_rows"], MOST_ROWS)
    column_sizes = part_sizes(division["columns"], block_columns, MOST_COLUMNS)
    height = 40.0 if len(row_sizes) == 1 else 28.0 * len(row_sizes)
    across, down = _spans(column_sizes, block_columns, MATRIX), _spans(row_sizes, division["block_rows"], height)
    for row, (y, tall) in zip(row_sizes, down, strict=True):
        for column, (x, wide) in zip(column_sizes, across, strict=True):
            if row is None or column is None:
                drawing.text(LEFT + x + wide / 2, top + y + tall / 2 + 4, "…")
            else:
                drawing.rectangle(LEFT + x, top + y, wide, tall, 0.3 if x == y == 0 else 0.05)
    drawing.text(LEFT + MATRIX / 2, top - 10, count(division["columns"], division["column_unit"]))
    label = textwrap.wrap(count(division["rows"], division["row_unit"]), 15)
    for k, words in enumerate(label if division["row_unit"] else ()):
        drawing.text(LEFT - 10, top + height / 2 + 4 + LINE * (k - (len(label) - 1) / 2), words, "end")
    below = _draw_block(drawing, division, top, down[0][1], "CTA" if launches else "task")
    drawing.bottom = top + max(height, below) + 4
    drawing.line(_parts_line(matrix, launches))


def _draw_block(drawing: _Drawing, division: dict[str, Any], top: float, tall: float, unit: str) -> float:
    """The first block, enlarged, with its tiles. It is as tall as so many pixels in the matrix; returns the height of all."""
    tiles = part_sizes(division["block_columns"], division["tile_columns"], MOST_TILES)
    for k, (x, length) in enumerate(_spans(tiles, division["tile_columns"], BLOCK)):
        if tiles[k] is None:
            drawing.text(BLOCK_LEFT + x + length / 2, top + BOX / 2 + 4, "…")
        else:
            drawing.rectangle(BLOCK_LEFT + x, top, length, BOX, 0.3)
    drawing.stroke(LEFT + MATRIX, top, BLOCK_LEFT, top)
    drawing.stroke(LEFT + MATRIX, top + tall, BLOCK_LEFT, top + BOX)
    middle = BLOCK_LEFT + BLOCK / 2
    drawing.text(middle, top - 10, f"one {unit}")
    columns = count(division["block_columns"], division["column_unit"])
    lines = [] if not division["row_unit"] else [f"{count(division['block_rows'], division['row_unit'])} of"]
    lines.append(columns)
    number = -(-division["block_columns"] // division["tile_columns"])
    if number > 1:
        lines.append(f"in {count(number, 'tiles')} of {division['tile_columns']:,}")
    for k, words in enumerate(lines, 1):
        drawing.text(middle, top + BOX + k * LINE, words)
    return BOX + len(lines) * LINE


def _parts_line(matrix: Matrix, launches: list[dict[str, Any]]) -> str:
    """How many blocks there are, who computes them, and what a thread holds."""
    division = matrix.division
    words = count(division["blocks"], "parts" if launches else "tasks")
    groups = ""
    if division["groups"] > 1:
        groups = f", in {count(division['groups'], division['group_unit'])} that are divided alike"
    if not launches:
        return words if division["blocks"] == 1 else f"{words}{groups}, which the threads of the worker pool share"
    last = launches[matrix.launches[-1]]
    parts = sum(d["blocks"] for d in last["divisions"])
    if parts > last["grid"] and len(last["divisions"]) == 1:
        words += f", which {count(last['grid'], 'CTAs')} share"
    elif parts == last["grid"] > 1:
        words += ", one for each CTA"
    words += groups
    if division["thread_vectors"]:
        held = count(division["vector_elements"], "elements")
        if division["vector_elements"] > 1:
            held = f"{count(division['thread_vectors'], 'vectors')} of {held}"
        else:
            held = count(division["thread_vectors"], "elements")
        words += f"; a thread holds {held}"
        if division["thread_rows"] > 1:
            words += f" in each of {count(division['thread_rows'], division['row_unit'])}"
    return words


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
