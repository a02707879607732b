"""The generated tables of docs/scan-kernels.md: the kernel selected for each shape, and what each variant of a kernel gains."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from doc_results import Results, Row, duration, table

DEVICE, DTYPE = "H100", "float32"
KINDS = runpy.run_path(str(Path(__file__).parent.parent / "python/sternway/_kinds.py"))["WITH_KERNELS"]
PROBLEM = re.compile(
    r"(?P<kind>\w+) (?P<shape>\[[\d, ]+\]) (?P<dtype>\w+) dim (?P<dim>\d) by (?P<operands>[\w, ]+): (?P<kernel>\w+),"
)


def selection(results: Results) -> str:
    """Kernels by shape and kind, for aligned operands."""
    [golden] = results.root.glob("core/**/scan_selection.golden")
    chosen: dict[tuple[str, str], dict[str, str]] = {}
    for section in re.split(r"^# ", golden.read_text(), flags=re.MULTILINE)[
        1:
    ]:  # a device repeats what differs from the one before
        for line in section.splitlines():
            found = PROBLEM.match(line)
            if found and found["dtype"] == DTYPE and "indices" not in found["operands"]:
                chosen.setdefault((found["shape"], found["dim"]), {})[found["kind"]] = found["kernel"]
        if section.startswith(DEVICE):
            break
    else:
        raise ValueError(f"{golden} has no device {DEVICE}")
    lines = [[f"{shape}, dim {dim}", *(f"`{kernels[kind]}`" for kind in KINDS)]
             for (shape, dim), kernels in chosen.items()]  # fmt: skip
    return table(["shape and dimension", *KINDS], lines)


def variants(results: Results) -> str:
    """For each variant of a kernel, the row that takes longest without it."""
    file, worst = results.file("h200_scan_variants.csv"), dict[str, Row]()
    for row in file.rows:
        kept = worst.setdefault(row["variant"], row)
        worst[row["variant"]] = max(kept, row, key=lambda row: float(row["ratio"]))
    lines = [
        [variant, f"{row['outputs']}, {row['shape'].replace('x', ' x ')}, {row['dtype']}",
         *(duration(row[time]) for time in ("with_ms", "without_ms")), f"{float(row['ratio']):.2f}"]
        for variant, row in worst.items()
    ]  # fmt: skip
    head = ["variant", "row that loses most", "time", "time without the variant", "ratio"]
    return f"`{file.name}`, {file.machine}: {file.command}.\n\n{table(head, lines)}"
