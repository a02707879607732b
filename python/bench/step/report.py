"""Output of the steps: a line of the table for each row, the lines of the CSV file, a summary, a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..._cases.progress import Progress
from ..._cases.table import Table, shape_text, time_text
from ..report import bars, disturbed
from .case import COMPILE, OURS, TORCH, Size


@dataclass(frozen=True)
class Line:
    """One contestant of a row, as a line of the CSV file.

    Times are in milliseconds, medians unless the name says best: wall time; host time, until the call returns; device time,
    between events. Those of a GPU are empty on the CPU. Ratios are torch's time divided by the contestant's.
    """

    step: str
    shape: str
    dtype: str
    device: str
    contestant: str
    kernel: str = ""  # the kernels that sternway's plans ran, joined by "+"
    ms: float | None = None  # forward and backward, and the optimizer's step where there is one
    best_ms: float | None = None
    host_ms: float | None = None
    device_ms: float | None = None
    ratio: float | None = None
    forward_ms: float | None = None  # the forward alone, in training
    forward_best_ms: float | None = None
    forward_host_ms: float | None = None
    forward_device_ms: float | None = None
    forward_ratio: float | None = None
    memory_bytes: int | None = None  # at the peak of a step, above what was in use before it
    error: float | None = None  # of values and gradients, by their 2-norms, relative to the truth
    repetitions: int | None = None
    others: float | None = None  # processors that other programs kept busy meanwhile, on the CPU
    note: str = ""  # the reason why there are no times

    @staticmethod
    def of(step: str, size: Size, device: str, **values: Any) -> Line:
        """A line of a row at a size."""
        return Line(step, shape_text(size.shape), size.dtype, device, **values)


@dataclass(frozen=True)
class Row:
    """A step at a size with the lines of its contestants. failed: it, or one of them, could not be measured."""

    step: str
    size: Size
    lines: Sequence[Line]
    failed: bool = False

    @staticmethod
    def without_times(step: str, size: Size, device: str, *, failure: str = "", left_out: str = "") -> Row:
        """A row that failed, or that was left out for a reason."""
        note = f"failed: {failure}" if failure else f"left out: {left_out}"
        return Row(step, size, [Line.of(step, size, device, contestant=OURS, note=note)], bool(failure))

    def line(self, contestant: str) -> Line | None:
        """The line of a contestant that was measured."""
        return next((line for line in self.lines if line.contestant == contestant and line.forward_ms is not None), None)

    def rivals(self) -> list[Line]:
        """The lines of measured contestants beside sternway, torch and torch.compile."""
        return [line for line in self.lines if line.contestant not in (OURS, TORCH, COMPILE) and line.forward_ms is not None]


READING = (
    "\"x torch\" is torch's time divided by sternway's: above 1.00x sternway is faster, below it torch is. The other\n"
    "ratios are the same for torch.compile, the forward alone, the time of the host, the peak of the memory, and in the note.\n"
)
"""How to read the ratios of the table, which follows."""


def table(progress: Progress) -> Table:
    """The columns on the terminal. "x" is how many times as long as sternway another one takes."""
    return Table(
        progress, step=32, shape=20, dtype=8, sternway=-8, x_torch=-7, x_compile=-9, forward=-8, x_torch_forward=-15, x_host=-6,
        memory=-6, note=4,
    )  # fmt: skip


def cells(row: Row) -> list[str]:
    """A row on the terminal."""
    head = [row.step, shape_text(row.size.shape), row.size.dtype]
    ours, theirs = row.line(OURS), row.line(TORCH)
    if ours is None or theirs is None or ours.ms is None:
        return [*head, row.lines[0].note]
    rivals = [f"{line.contestant} {times(line.ms, ours.ms)}" for line in row.rivals() if line.ms is not None]
    rivals += [f"{line.contestant} forward {times(line.forward_ms, ours.forward_ms)}" for line in row.rivals() if not line.ms]
    rivals += [f"{line.contestant} {line.note}" for line in row.lines if line.note.startswith("failed")]
    rivals += filter(None, [disturbed(ours.others)])
    compiled = row.line(COMPILE)
    return [
        *head,
        time_text((ours.ms or 0) / 1e3),
        times(theirs.ms, ours.ms),
        times(compiled.ms, ours.ms) if compiled else "",
        time_text((ours.forward_ms or 0) / 1e3),
        times(theirs.forward_ms, ours.forward_ms),
        times(theirs.host_ms, ours.host_ms),
        times(theirs.memory_bytes, ours.memory_bytes),
        "; ".join(rivals),
    ]


def times(theirs: float | None, ours: float | None) -> str:
    """How many times as long another one takes, or as much memory; empty where one is not known."""
    return f"{theirs / ours:.2f}x" if theirs and ours else ""


def summary(rows: Sequence[Row], seconds: float) -> None:
    """Medians, means and the worst rows, the contestants that were left out, and the rows that failed."""
    print(f"\n{len(rows)} rows in {seconds:.0f} s. Times as long as sternway: median, geometric mean, and worst row")
    parts = (("", "ms"), (" forward", "forward_ms"), (" host", "host_ms"), (" memory", "memory_bytes"))
    for contestant in dict.fromkeys(line.contestant for row in rows for line in row.lines if line.contestant != OURS):
        for title, part in parts:
            found = list(ratios(rows, contestant, part))
            if found:
                worst, where = min(found)
                values = [ratio for ratio, _ in found]
                median, mean = statistics.median(values), statistics.geometric_mean(values)
                print(f"  {contestant + title:<46} {median:7.2f}x  {mean:7.2f}x   {worst:.2f}x  {where}")
    for note, steps in notes(rows).items():
        print(f"{note}: {', '.join(steps)}")


def ratios(rows: Sequence[Row], contestant: str, part: str) -> Iterable[tuple[float, str]]:
    """How many times as much a contestant takes as sternway, with the name of the row."""
    for row in rows:
        ours, theirs = row.line(OURS), row.line(contestant)
        if ours and theirs and getattr(ours, part) and getattr(theirs, part):
            yield getattr(theirs, part) / getattr(ours, part), f"{row.step} {shape_text(row.size.shape)} {row.size.dtype}"


def notes(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The rows of each reason for which a contestant has no times."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for line in row.lines:
            if line.note:
                found.setdefault(f"{line.contestant}, {line.note}", []).append(f"{row.step} {line.shape} {line.dtype}")
    return found


def plot(rows: Sequence[Row], path: str, title: str) -> None:
    """Bars of how many times as long the step of each other contestant takes as that of sternway."""
    shown = [row for row in rows if row.line(OURS) and row.line(TORCH)]
    labels = [f"{row.step} {shape_text(row.size.shape)} {row.size.dtype}" for row in shown]
    series = {
        contestant: [next((ratio for ratio, _ in ratios([row], contestant, "ms")), None) for row in shown]
        for contestant in (TORCH, COMPILE)
    }
    bars(path, title, labels, series, "times as long as a step with sternway", log=True)
