"""The generated tables of backwards, of the host and of errors, in Markdown; doc_operations.py has those of one operation."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable

import doc_steps
from doc_results import (
    DTYPES,
    SHARES,
    File,
    Gains,
    Results,
    Row,
    duration,
    filled,
    folded,
    gain_cells,
    geometric_mean,
    machine,
    shape_text,
    share,
    table,
    times,
    versions,
)

NAMES = {
    "lerp_backward": "lerp",
    "dequantize_per_token": "dequantize",
    "dequantize_per_token_backward": "dequantize",
    "fake_quantize_per_token": "fake quantize",
    "fake_quantize_per_token_backward": "fake quantize",
    "scan": "forward scan",
    "rope": "RoPE",
    "rope_backward": "RoPE",
    "embedding_bag_backward": "embedding bag",
    "embedding_backward": "embedding",
}
# The rows of the chart of bandwidths: label, file, columns of the file.
HIGHLIGHTS = (
    ("lerp, both ends and a weight per row", "h200.csv", "lerp_backward", "da, db, dweight per row", "16384x8192"),
    ("dequantize, values and scale", "h200.csv", "dequantize_per_token_backward", "dx, dscale", "16384x8192"),
    ("fake quantize, values and scale", "h200.csv", "fake_quantize_per_token_backward", "dx, dscale", "16384x8192"),
    ("RoPE, pairs of halves", "h200.csv", "rope_backward", "dx half", "4x32x4096x128"),
    ("cumprod along rows", "h200_scan.csv", "scan_backward", "cumprod, dim -1", "8192x8192"),
    ("cumprod along columns", "h200_scan.csv", "scan_backward", "cumprod, dim 0", "8192x8192"),
    ("cumprod of one long row", "h200_scan.csv", "scan_backward", "cumprod, dim -1", "1x67108864"),
    ("embedding bag, sum, uniform indices", "h200.csv", "embedding_bag_backward", "sum, uniform", "1048576x128x65536x20"),
)  # fmt: skip

CPU = ("cpu_lerp.csv", "cpu_dequantize.csv", "cpu_rope.csv", "cpu_scan.csv", "cpu_scan_forward.csv", "cpu_embedding_bag.csv")


def operation(row: Row) -> str:
    """What a row measures, in words: operation and variant."""
    name = NAMES.get(row["op"])
    return row["outputs"] if name is None else f"{name}: {row['outputs']}"


def found(results: Results, name: str, op: str, outputs: str, shape: str, dtype: str) -> Row:
    """The one row with these columns."""
    wanted = {"op": op, "outputs": outputs, "shape": shape, "dtype": dtype}
    [row] = [row for row in results.file(name).rows if wanted.items() <= row.items()]
    return row


def without_scans(file: File) -> list[Row]:
    """The rows of operations that have no file of their own."""
    return [row for row in file.rows if row["op"] != "scan_backward"]


def readme_speed(results: Results) -> str:
    """The region of README.md on speed and exactness."""
    return "\n\n".join([doc_steps.readme(results), machines(results), overview(results, align=False), exactness(results)])


def machines(results: Results) -> str:
    """A sentence about the machines of the overview."""
    gpu, cpu = (versions(results.file(name)) for name in (doc_steps.GPU, doc_steps.CPU))
    return f"All rows that were measured, small shapes included, on the {gpu}, and on 2 cores of an {cpu}:"


def overview(results: Results, *, align: bool = True) -> str:
    """A row for each benchmark: the gains of all its rows."""
    gpu, cpu, learning = (results.file(name) for name in (doc_steps.GPU, doc_steps.CPU, doc_steps.LEARNING[0]))
    rows = [
        gain_cells("steps of models, losses, embeddings and `lerp`", doc_steps.gains(gpu)),
        gain_cells("steps of one scan", doc_steps.gains(gpu, of_scans=True)),
        gain_cells("tables updated in the backward, in `st.EmbeddingBags`", doc_steps.gains(learning, doc_steps.TOGETHER)),
        gain_cells("tables updated in the backward, `st.EmbeddingBag` for each", doc_steps.gains(learning)),
        gain_cells("backward of scans", named(results.file("h200_scan.csv").rows)),
        gain_cells("backward of other operations", named(without_scans(results.file("h200.csv")))),
        gain_cells("CPU: steps of models, losses, embeddings and `lerp`", doc_steps.gains(cpu)),
        gain_cells("CPU: steps of one scan", doc_steps.gains(cpu, of_scans=True)),
        gain_cells("CPU: single operations", named(row for name in CPU for row in results.file(name).rows)),
    ]
    head = ["all rows of a benchmark", "rows", "times faster, median", "geometric mean", "slowest row"]
    return table(head, rows, align=align)


def exactness(results: Results) -> str:
    """A sentence about the errors on random numbers beside torch's. In float64 both equal the reference to its rounding."""
    rows = [row for row in results.file("exactness_h200.csv").rows if row["ulp"] and row["dtype"] != "float64"]
    finite = [pair for row in rows if math.isfinite(sum(pair := (float(row["norm"]), float(row["torch_norm"]))))]
    ratios = [theirs / ours if ours else math.inf if theirs else 1.0 for ours, theirs in finite]
    middle, less = times(statistics.median(ratios)).rstrip("x"), sum(ratio < 1 for ratio in ratios)
    return (
        f"Exactness: in the median of {len(ratios)} results in float32, float16 and bfloat16, PyTorch's error against float64 "
        f"is {middle} times ours; in {less} results PyTorch's is the smaller one."
    )


def named(rows: Iterable[Row]) -> Gains:
    """The gains over torch of some rows, by operation."""
    return [(float(row["ratio"]), operation(row)) for row in rows]


def described(row: Row) -> str:
    """A row in words."""
    return f"{operation(row)}, {shape_text(row['shape'])}, {row['dtype']}"


def summary(results: Results) -> str:
    """A row for each file: its machine, the geometric mean, the slowest row."""
    rows = []
    for name in ("h200.csv", "h200_scan.csv", "h200_scan_forward.csv", "h100_scan.csv", *CPU):
        file = results.file(name)
        chosen = without_scans(file) if name == "h200.csv" else file.rows
        ratios, slowest = [float(row["ratio"]) for row in chosen], min(chosen, key=lambda row: float(row["ratio"]))
        what = "all but scans" if name == "h200.csv" else group(chosen[0], name)
        rows.append([what, machine(file), str(len(chosen)), times(geometric_mean(ratios)),
                     f"{described(slowest)} ({times(slowest['ratio'])})"])  # fmt: skip
    return table(["operations", "machine", "rows", "geometric mean", "slowest row"], rows)


def group(row: Row, name: str) -> str:
    """The operations of a file that has one group of them."""
    if name == "cpu_dequantize.csv":
        return "dequantize, fake quantize"
    if name.endswith("scan_forward.csv"):
        return "forward scans"
    return NAMES.get(row["op"], "scans")


def speed_of(name: str, leave_out: str = "") -> Callable[[Results], str]:
    """A table of all rows of a file but those of an operation."""

    def write(results: Results) -> str:
        file = results.file(name)
        return file.tables(speed_table(row for row in file.rows if row["op"] != leave_out))

    return write


def speed_table(rows: Iterable[Row]) -> str:
    """Gain over torch, with a column for each dtype; times and shares of a copy's bandwidth are folded."""
    gains: dict[tuple[str, str], dict[str, str]] = {}
    numbers = []
    for row in rows:
        key = operation(row), shape_text(row["shape"])
        gains.setdefault(key, {})[row["dtype"]] = times(row["ratio"])
        numbers.append([*key, row["dtype"], *(duration(row[time]) for time in ("ms", "torch_ms")), *share(row)])
    body = [[*key, *(found.get(dtype, "") for dtype in DTYPES)] for key, found in gains.items()]
    head = ["operation", "shape", "dtype", "time", "torch", *SHARES]
    shown = table(["operation", "shape", *DTYPES], body)
    return "\n\n".join(["Times faster than torch:", shown, folded("Times and shares", filled(head, numbers))])


def cpu(results: Results) -> str:
    """The tables of the CPU, one for each file."""
    return "\n\n".join(speed_of(name)(results) for name in CPU)


def growth_of(name: str) -> Callable[[Results], str]:
    """The largest growth of time for twice the length, with a column for each dtype."""

    def write(results: Results) -> str:
        file, worst = results.file(name), dict[tuple[str, str, str], tuple[float, str]]()
        for row in file.rows:
            if row["growth"]:
                key, length = (row["kind"], row["along"], row["dtype"]), length_of(row)
                worst[key] = max(worst.get(key, (0.0, "")), (float(row["growth"]), f"{length // 2} to {length}"))
        head = ["scan", "along", *DTYPES]
        scans = {(kind, along): [(kind, along, dtype) for dtype in DTYPES] for kind, along, _ in worst}
        growth = table(head, ([*scan, *(f"{worst[key][0]:.2f}" for key in keys)] for scan, keys in scans.items()))
        lengths = table(head, ([*scan, *(worst[key][1] for key in keys)] for scan, keys in scans.items()))
        return file.tables(growth, folded("Lengths between which it occurs", lengths))

    return write


def length_of(row: Row) -> int:
    """The number of positions that are scanned."""
    extents = row["shape"].split("x")
    return int(extents[0] if "columns" in row["along"] else extents[1])


def host_runs(results: Results) -> str:
    """Host time of one run of each plan."""
    file = results.file("host_h200.csv")
    others = ("autograd", "forward", "torch.neg, ", "Tensor.")  # of tables of their own, and inside accelerate()
    rows = [row for row in file.rows if not row["call"].startswith(others)]
    lines = [[plain_call(row["call"]), f"{float(row['us']):.3g}", f"{float(row['ratio']):.2f}"] for row in rows]
    return file.tables(table(["call", "µs", "divided by `torch.neg(out=)`"], lines))


def plain_call(call: str) -> str:
    """The name of a call: ``plan.run`` of an operation and its variant."""
    run = re.fullmatch(r"(\w+): plan\.run \((.*)\)", call)
    if run is None:
        return f"`{call}`" if call.startswith("torch.") else call
    return f"`plan.run`: {operation({'op': run[1], 'outputs': run[2]})}"


def host_autograd(results: Results) -> str:
    """Host time of a forward, of autograd.grad and of both, divided by torch's: of calls in a row, and after a pause."""
    parts = ("forward", "autograd.grad", "forward and autograd.grad")
    file, found = results.file("host_h200.csv"), dict[str, dict[str, Row]]()
    for row in file.rows:
        if call := re.fullmatch(rf"({'|'.join(map(re.escape, parts))}), (.*) of (\w+) \((.*)\): sternway", row["call"]):
            part, gradients, op, variant = call.groups()
            name = f"{operation({'op': op, 'outputs': variant})} (gradient of {gradients})"
            found.setdefault(name, {})[part] = row

    def numbers(column: str, digits: str) -> str:
        lines = ([name, *(f"{float(rows[part][column]):{digits}}" for part in parts)] for name, rows in found.items())
        return table(["operation", "forward", "`autograd.grad`", "both"], lines)

    paused = folded("Divided by torch's, after a pause", numbers("paused_ratio", ".2f"))
    return file.tables(numbers("ratio", ".2f"), paused, folded("Times in µs, of calls in a row", numbers("us", ".0f")))


def errors_of(name: str) -> Callable[[Results], str]:
    """Norm-wise errors of every operation on random numbers, in every dtype."""
    return lambda results: errors(results.file(name))


def errors(file: File) -> str:
    """The table of one file, with two columns for each dtype."""
    lines: dict[str, dict[str, tuple[str, str]]] = {}
    for row in file.rows:
        if row["ulp"]:
            lines.setdefault(operation({**row, "outputs": row["input"]}), {})[row["dtype"]] = pair(row)
    body = [[key, *(number for dtype in DTYPES for number in found[dtype])] for key, found in lines.items()]
    head = ["operation", *(f"{dtype}{whose}" for dtype in DTYPES for whose in ("", ", torch"))]
    return file.tables(table(head, body))


def pair(row: Row) -> tuple[str, str]:
    """The errors of sternway and of torch."""
    if float(row["ulp"]) == 0 == float(row["torch_ulp"]) and math.isinf(float(row["norm"])):
        return "0", "0"  # the true gradient is 0, and has no norm to divide by
    return error(row["norm"]), error(row["torch_norm"])


def error(norm: str) -> str:
    """An error with two digits. The benchmark writes inf where a result is not finite."""
    value = float(norm)
    return "not finite" if math.isinf(value) else "0" if value == 0 else f"{value:.1e}"


def hard_inputs(results: Results) -> str:
    """Norm-wise errors on inputs that lose accuracy in a plain implementation."""
    lines = []
    for row in results.file("exactness.csv").rows:
        if not row["ulp"]:
            kind = re.search(r"\((\w+)\)", row["op"])
            lines.append([kind[1] if kind else NAMES[row["op"]], row["input"], row["dtype"], error(row["norm"]),
                          error(row["torch_norm"])])  # fmt: skip
    return table(["operation", "input", "dtype", "sternway", "torch"], lines)
