"""Output of the benchmark: a table on the terminal, a CSV file, a plot."""

from __future__ import annotations

import csv
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from .. import _library
from .._cases import Case, Shape
from .._cases.table import Table, shape_text, time_text
from .row import Row
from .timing import QUIET


def machine(device: str) -> str:
    """The device, its driver, the versions and the threads, on one line."""
    import torch

    facts = _library.info()
    jax = f"jax {sys.modules['jax'].__version__}, " if "jax" in sys.modules else ""
    versions = f"torch {torch.__version__}, {jax}sternway {facts['version']}, Python {platform.python_version()}"
    if device == "cpu":
        threads = f"{torch.get_num_threads()} threads of torch, {_library.get_num_threads()} of sternway"
        return f"{first_line('/proc/cpuinfo', 'model name') or platform.machine()}, {threads}, {versions}"
    name = torch.cuda.get_device_name(device)
    driver = re.search(r"\d+\.\d+[.\d]*", first_line("/proc/driver/nvidia/version", "NVRM version"))
    return f"{name}, {facts['driver']}, driver {driver[0] if driver else 'unknown'}, {versions}"


def first_line(path: str, start: str) -> str:
    """The text after the colon in the first line of a file that begins with `start`; empty if there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((" ".join(line.partition(":")[2].split()) for line in lines if line.startswith(start)), "")


def commit() -> str:
    """The commit of the source tree that this file belongs to, by git; the version of the wheel where there is none.

    An installed package belongs to a tree if it is installed inside it, as `make` does.
    """
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if (Path(git("rev-parse", "--show-toplevel")) / "python/bench/report.py").is_file():
            return git("describe", "--always", "--dirty")
    except (OSError, subprocess.CalledProcessError):
        pass
    return str(_library.info()["version"])


def command() -> str:
    """The command line that runs, under torchrun or alone."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE")
    program = f"torchrun --nproc-per-node {ranks} -m sternway" if ranks else "python -m sternway"
    return f"{program} {shlex.join(sys.argv[1:])}"


NewCsv = Callable[[Sequence[str]], "Csv"]
"""Opens the CSV file that the options ask for, with these columns."""


class Csv:
    """A CSV file whose first line is a comment with its origin; without a path nothing is written.

    The comment has three parts, separated by " | ": the command; the card or processor, the versions of CUDA, driver, torch,
    sternway and Python; and the commit.
    """

    def __init__(self, path: str | None, device: str, source: str | None, columns: Sequence[str]) -> None:
        self.path, self.columns = path, columns
        self.about = f"# {command()} | {machine(device)} | commit {source or commit()}\n" if path else ""

    def __enter__(self) -> Csv:
        self.file: TextIO | None = None
        if self.path:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            self.file = Path(self.path).open("w", newline="")
            self.file.write(self.about)
            self.row(*self.columns)
        return self

    def __exit__(self, *_: object) -> None:
        if self.file:
            self.file.close()

    def row(self, *cells: object) -> None:
        """Write a row, at once."""
        if self.file:
            csv.writer(self.file, lineterminator="\n").writerow(f"{x:.5g}" if isinstance(x, float) else x for x in cells)
            self.file.flush()


COLUMNS = {
    "op": 32, "outputs": 24, "shape": 11, "dtype": 8, "kernel": 16, "bytes": -8, "time": -8, "of_copy": -7, "replayed": -8,
    "torch": -8, "ratio": -6, "error": -6, "of_torch": -8, "note": 4,
}  # fmt: skip


def disturbed(others: float | None) -> str:
    """The note of a row that was measured while other programs kept processors busy."""
    return f"disturbed: other work took {others:.1f} processors" if (others or 0) > QUIET else ""


def show(table: Table, row: Row) -> None:
    """Print a row."""
    table.row(
        row.op, row.outputs, row.shape, row.dtype, row.kernel, f"{row.bytes / 1e6:.4g} MB", time_text(row.ms / 1e3),
        f"{row.share_of_copy:.2f}", "" if row.replayed_share is None else f"{row.replayed_share:.2f}",
        time_text(row.torch_ms / 1e3), f"{row.ratio:.1f}x", f"{row.error:.3g}",
        f"{row.torch_error:.3g}", disturbed(row.others),
    )  # fmt: skip


def show_wrong(table: Table, case: Case, shape: Shape, dtype: str, reason: str) -> None:
    """Print a row whose result is wrong, without a time."""
    table.row(case.op, case.name, shape_text(shape), dtype, f"WRONG: {reason}")


def summary(rows: Sequence[Row]) -> None:
    """Say how all rows compare with torch."""
    if rows:
        ratios = [row.ratio for row in rows]
        median, mean = statistics.median(ratios), statistics.geometric_mean(ratios)
        print(
            f"\n{len(rows)} rows; torch takes {median:.2f} times as long in the median, {mean:.2f} times in the geometric "
            f"mean, and in the slowest row {min(ratios):.2f} times."
        )


def plot(rows: Sequence[Row], path: str, device: str) -> None:
    """Bars of the share of copy speed that sternway and torch reach."""
    shares = {
        "sternway": [row.share_of_copy for row in rows],
        "torch": [row.share_of_copy / row.ratio for row in rows],
    }
    labels = [f"{row.op} ({row.outputs}) {row.shape} {row.dtype}" for row in rows]
    bars(path, machine(device), labels, shares, "share of the speed of a copy of as many bytes")


def bars(
    path: str, title: str, labels: Sequence[str], series: Mapping[str, Sequence[float | None]], unit: str, *, log: bool = False
) -> None:
    """A plot with a bar of each series for each label; None: there is no bar. log: of a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 1.5 + 0.35 * len(labels)), layout="constrained")
    for shift, (name, lengths) in zip((0.18, -0.18), series.items(), strict=True):
        shown = [(len(labels) - k + shift, length) for k, length in enumerate(lengths) if length is not None]
        axes.barh([y for y, _ in shown], [length for _, length in shown], 0.36, label=name)
    axes.set_yticks(range(len(labels), 0, -1), labels)
    axes.set_xscale("log" if log else "linear")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel(unit)
    axes.set_title(title.partition(", torch")[0], fontsize=9)
    axes.legend()
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")
