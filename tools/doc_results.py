"""Reads the benchmark results in python/bench/results/."""

from __future__ import annotations

import csv
import math
import re
import runpy
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "python/sternway"
DTYPES = tuple(runpy.run_path(str(PACKAGE / "_dtypes.py"))["ACCUMULATORS"])
KINDS = tuple(runpy.run_path(str(PACKAGE / "_kinds.py"))["KINDS"])  # the scans
Row = dict[str, str]


@dataclass(frozen=True)
class File:
    """One CSV file. Its first line holds the command, the machine and, in newer files, the commit, separated by bars."""

    name: str
    command: str
    machine: str
    commit: str  # "": the file names none
    rows: list[Row]

    def heading(self) -> str:
        """The source of a table: file, machine, versions and command. The driver is named where the file has it."""
        source = f"Source: commit {self.commit}." if self.commit else "The file names no commit."
        return f"`{self.name}`, {self.machine}. Made by `{self.command}`. {source}"

    def folded(self, *parts: str) -> str:
        """The tables of the file, folded, so that a page is a list of files until its reader opens one."""
        return folded(f"Rows of {self.name}, {machine(self)}", *parts)

    def tables(self, *parts: str) -> str:
        """The source of the file and its tables, folded."""
        return self.folded(self.heading(), *parts)


class Results:
    """The results of a source tree, read when asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "python" / "bench" / "results"

    def file(self, name: str) -> File:
        """Read a file."""
        first, *lines = (self.folder / name).read_text().splitlines()
        command, machine, *commit = first.removeprefix("# ").split(" | ")
        tokens = command.split(" ")
        if "--csv" in tokens:  # a path on the machine that measured says nothing to a reader
            tokens[tokens.index("--csv") + 1] = name
        return File(name, " ".join(tokens), machine, "".join(commit).removeprefix("commit "), list(csv.DictReader(lines)))


def machine(file: File) -> str:
    """The card, or the processor with its threads."""
    return re.split(r", (?:CUDA|torch)", file.machine)[0]


def versions(file: File) -> str:
    """The machine and the version of PyTorch: NVIDIA H200 with PyTorch 2.11."""
    [torch] = re.findall(r", torch (\d+\.\d+)", file.machine)
    return f"{machine(file).partition(',')[0]} with PyTorch {torch}"


SHAPES = {
    "1x67108864": "1 x 2^26",
    "1x4194304": "1 x 2^22",
    "1x1048576": "1 x 2^20",
    "134217728": "2^27",
    "1048576x2": "2^20 x 2",
    "1048576x128x8192x20": "2^20 x 128 x 8192 x 20",
    "1048576x128x65536x20": "2^20 rows of 128, 65536 bags of 20",
}


def shape_text(shape: str) -> str:
    """A shape in words."""
    return SHAPES.get(shape, shape.replace("x", " x "))


def geometric_mean(ratios: Iterable[float]) -> float:
    """Of the times faster than torch."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


Gains = list[tuple[float, str]]
"""Times faster than torch of rows, with what they measure."""


def gain_cells(subject: str, gains: Gains) -> list[str]:
    """The cells of a row of a table of gains: what, rows, median, geometric mean, slowest row."""
    numbers = [gain for gain, _ in gains]
    least, slowest = min(gains)
    middle, mean = times(statistics.median(numbers)), times(geometric_mean(numbers))
    return [subject, str(len(gains)), middle, mean, f"{slowest} ({times(least)})"]


def gain_text(subject: str, gains: Iterable[tuple[float, str]]) -> str:
    """A sentence about the gains over torch of rows, given with what they measure."""
    found = list(gains)
    middle = times(statistics.median(gain for gain, _ in found)).rstrip("x")
    mean = times(geometric_mean(gain for gain, _ in found))
    least, slowest = min(found)
    where = f"the slowest row is {slowest} ({times(least)})"
    return f"{subject} are {middle} times faster in the median of {len(found)} rows (geometric mean {mean}); {where}."


def times(ratio: float | str) -> str:
    """A ratio as text: 9.3x."""
    value = float(ratio)
    return f"{value:.0f}x" if value >= 100 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"


def duration(milliseconds: float | str) -> str:
    """A time as text, with three digits."""
    value = float(milliseconds)
    unit, number = ("ms", value) if value >= 1 else ("µs", value * 1e3)
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


SHARES = ("share of a copy", "share in replays")
"""The columns of the numbers of ``share``."""


def share(row: Row) -> tuple[str, ...]:
    """Shares of the bandwidth of a copy: of calls, and in replays of CUDA graphs, where they were measured."""
    return tuple(f"{float(found):.2f}" if (found := row.get(column)) else "" for column in ("share_of_copy", "replayed_share"))


NUMBER = re.compile(r"(\d[\d.]*(e[-+]\d+)?( [µm]s| [MG]iB|x)?|not finite)?")
"""A cell of a column of numbers, with their unit."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, align: bool = True) -> str:
    """A table in Markdown, whose columns of numbers are aligned to the right."""
    rows = list(rows)
    numeric = [align and all(NUMBER.fullmatch(row[k]) for row in rows) for k in range(len(head))]
    lines = [head, ["---:" if right else "---" for right in numeric], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def filled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without the columns that no row fills."""
    kept = [k for k in range(len(head)) if any(row[k] for row in rows)]
    return table([head[k] for k in kept], [[row[k] for k in kept] for row in rows])


def folded(title: str, *parts: str) -> str:
    """Text that the reader opens by its title. The search of the site leaves it out."""
    return "\n\n".join([f'<details markdown="1" data-search-exclude><summary>{title}</summary>', *parts, "</details>"])
