"""Tables that are printed while they grow."""

from __future__ import annotations

from collections.abc import Sequence

from .progress import Progress


class Table:
    """Columns by title and width in characters. Cells are left-aligned, or right-aligned if the width is negative.

    A row may have fewer cells than there are columns. A progress line is erased before a row is printed.
    """

    def __init__(self, progress: Progress | None = None, /, **columns: int) -> None:
        self.progress, self.columns = progress, columns

    def line(self, cells: Sequence[object]) -> str:
        """The text of a row."""
        widths = self.columns.values()
        parts = [f"{cell!s:<{n}}" if n > 0 else f"{cell!s:>{-n}}" for cell, n in zip(cells, widths, strict=False)]
        return "  ".join(parts).rstrip()

    def head(self) -> None:
        """Print the titles."""
        self._clear()
        titles = [title.replace("_", " ") for title in self.columns]
        print(self.line(titles))
        print(self.line(["-" * abs(width) for width in self.columns.values()]), flush=True)

    def row(self, *cells: object) -> None:
        """Print a row."""
        self._clear()
        print(self.line(cells), flush=True)

    def _clear(self) -> None:
        if self.progress:
            self.progress.clear()


def shape_text(shape: Sequence[int]) -> str:
    """16384x8192."""
    return "x".join(map(str, shape))


def time_text(seconds: float) -> str:
    """Three digits with a unit."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
