"""The columns of a table, each given by an axis of the positions and a frequency.

The angle in a column is the position on the axis times the frequency. A text model has one axis; multimodal models have three
(time, height, width), vision encoders two (row, column). Every layout of transformers is such a list of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Column = tuple[int, int]
"""(axis, index of the frequency)."""
Columns = list[Column]


def _halves(pairs: Columns) -> Columns:
    """Columns k and k + r/2 belong to pair k."""
    return pairs + pairs


def _neighbours(pairs: Columns) -> Columns:
    """Columns 2k and 2k + 1 belong to pair k."""
    return [pair for pair in pairs for _ in range(2)]


def _text(count: int, sections: tuple[int, ...]) -> Columns:
    return [(0, k) for k in range(count)]


def _sections(count: int, sections: tuple[int, ...]) -> Columns:
    """Qwen2-VL (Wang et al., arXiv 2409.12191): the first section of the pairs uses the first axis, the second the next."""
    axes = [i % 3 for i, section in enumerate(sections) for _ in range(section)]
    return list(zip(axes, range(count), strict=True))


def _interleaved(count: int, sections: tuple[int, ...]) -> Columns:
    """Qwen3-VL: pairs alternate time, height, width until the sections of height and width are used up; the rest is time."""
    return [(axis if axis and k < 3 * sections[axis] else 0, k) for k in range(count) for axis in [k % 3]]


def _time_last(count: int, sections: tuple[int, ...]) -> Columns:
    """Ernie 4.5 VL: pairs alternate height and width; the last section, with the slowest pairs, is time."""
    return [(1 + k % 2 if k < count - sections[2] else 0, k) for k in range(count)]


def _sections_of_columns(count: int, sections: tuple[int, ...]) -> Columns:
    """HunYuan-VL: sections of columns, twice as wide as those of pairs, so the two columns of a pair may differ in axis."""
    axes = [axis for axis, section in enumerate(sections) for _ in range(2 * section)]
    return [(axis, c % count) for c, axis in enumerate(axes)]


def _alternating(count: int, sections: tuple[int, ...]) -> Columns:
    return [(k % 2, k) for k in range(count)]


def _axis(axis: int, count: int) -> Columns:
    return [(axis, k) for k in range(count)]


@dataclass(frozen=True)
class Layout:
    """How the columns of a table follow from the frequencies, and where the axes of the positions are."""

    columns: Callable[[int, tuple[int, ...]], Columns]
    """Of (number of frequencies, sections)."""
    axes: int = 1
    """Axes of the positions; 0: one for each section."""
    axes_first: bool = False
    """Positions are [axes, ...]; else [..., axes], or [...] where axes is 1."""
    batched: bool = False
    """The tables have a leading dimension of 1, as the rotary class gives them."""
    rank: int = 2
    """Of positions [..., axes] as the rotary classes take them; a mapping of settings takes any."""


LAYOUTS: dict[str, Layout] = {
    # one axis: positions of any shape
    "halves": Layout(lambda n, s: _halves(_text(n, s))),
    "neighbours": Layout(lambda n, s: _neighbours(_text(n, s))),
    "pairs": Layout(_text),  # one column for each pair
    # multimodal: positions [axes, B, S]
    "sections": Layout(lambda n, s: _halves(_sections(n, s)), 3, True),
    "sections, neighbours": Layout(lambda n, s: _neighbours(_sections(n, s)), 3, True),
    "interleaved sections": Layout(lambda n, s: _halves(_interleaved(n, s)), 3, True),
    "time last": Layout(lambda n, s: _neighbours(_time_last(n, s)), 3, True),
    "sections of columns": Layout(_sections_of_columns, 0, True),
    "alternating": Layout(lambda n, s: _halves(_alternating(n, s)), 2, True),
    # axial: positions [..., axes], (row, column) or (frame, row, column)
    "axial": Layout(lambda n, s: _halves(_axis(0, n) + _axis(1, n)), 2),
    "axial, column first": Layout(lambda n, s: _halves(_axis(1, n) + _axis(0, n)), 2),
    "axial, column first, neighbours": Layout(lambda n, s: _neighbours(_axis(1, n) + _axis(0, n)), 2),
    "axial, column first, alternating": Layout(lambda n, s: _halves([(1 - i, k) for k in range(n) for i in range(2)]), 2),
    "axial, neighbours": Layout(lambda n, s: _neighbours(_axis(0, n) + _axis(1, n)), 2, batched=True),
    "axial, halves of each axis": Layout(lambda n, s: _halves(_axis(0, n)) + _halves(_axis(1, n)), 2, rank=3),
    "axial, even and odd": Layout(lambda n, s: _halves([(i, k) for i in range(2) for k in range(i, n, 2)]), 2),
    "axial, three axes": Layout(lambda n, s: _halves(_axis(0, n) + _axis(1, n) + _axis(2, n)), 3),
}
