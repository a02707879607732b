"""The generated tables of README.md and docs/, in Markdown."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable

import doc_steps
from doc_results import DTYPES, File, Results, Row, duration, gain_text, geometric_mean, machine, shape_text, table, times

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
    """The region of README.md on speed."""
    backwards = (
        gain("scans", results.file("h200_scan.csv").rows),
        gain("The other operations", without_scans(results.file("h200.csv"))),
    )
    return doc_steps.readme(results, "\n".join([*backwards, exactness(results)]))


def exactness(results: Results) -> str:
    """A sentence about the errors on random numbers beside torch's."""
    rows = [row for row in results.file("exactness_h200.csv").rows if row["ulp"]]
    finite = [pair for row in rows if math.isfinite(sum(pair := (float(row["norm"]), float(row["torch_norm"]))))]
    gains = [theirs / ours if ours else math.inf if theirs else 1.0 for ours, theirs in finite]
    middle = times(statistics.median(gains)).rstrip("x")
    return f"Exactness: PyTorch's error against float64 is {middle} times ours in the median of {len(gains)} results."


def gain(subject: str, rows: list[Row]) -> str:
    """A sentence about the gain over torch of some rows."""
    return gain_text(subject, ((float(row["ratio"]), described(row)) for row in rows))


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
        return f"{file.heading()}\n\n{speed_table(row for row in file.rows if row['op'] != leave_out)}"

    return write


def speed_table(rows: Iterable[Row]) -> str:
    """Time, share of a copy's bandwidth and gain over torch, with a column for each dtype."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        lines.setdefault((operation(row), shape_text(row["shape"])), {})[row["dtype"]] = cell(row)
    body = [[*key, *(cells.get(dtype, "") for dtype in DTYPES)] for key, cells in lines.items()]
    return table(["operation", "shape", *DTYPES], body)


def cell(row: Row) -> str:
    """Time, share (share in replays of CUDA graphs), times faster than torch."""
    return f"{duration(row['ms'])}, {share_text(row)}, {times(row['ratio'])}"


def share_text(row: Row) -> str:
    """Share of the bandwidth of a copy (in replays of CUDA graphs)."""
    replayed = row.get("replayed_share")
    return f"{float(row['share_of_copy']):.2f}" + (f" ({float(replayed):.2f})" if replayed else "")


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
        lines = []
        for kind, along in dict.fromkeys(key[:2] for key in worst):
            found = (worst[kind, along, dtype] for dtype in DTYPES)
            lines.append([kind, along, *(f"{growth:.2f} ({lengths})" for growth, lengths in found)])
        return f"{file.heading()}\n\n{table(['scan', 'along', *DTYPES], lines)}"

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
    return f"{file.heading()}\n\n{table(['call', 'µs', 'divided by `torch.neg(out=)`'], lines)}"


def plain_call(call: str) -> str:
    """The name of a call: ``plan.run`` of an operation and its variant."""
    run = re.fullmatch(r"(\w+): plan\.run \((.*)\)", call)
    if run is None:
        return f"`{call}`" if call.startswith("torch.") else call
    return f"`plan.run`: {operation({'op': run[1], 'outputs': run[2]})}"


def host_autograd(results: Results) -> str:
    """Host time of a forward, of autograd.grad and of both, divided by torch's: of calls in a row, and after a pause."""
    parts = ("forward", "autograd.grad", "forward and autograd.grad")
    cells: dict[str, dict[str, str]] = {}
    for row in results.file("host_h200.csv").rows:
        if call := re.fullmatch(rf"({'|'.join(map(re.escape, parts))}), (.*) of (\w+) \((.*)\): sternway", row["call"]):
            part, gradients, op, variant = call.groups()
            name = f"{operation({'op': op, 'outputs': variant})} (gradient of {gradients})"
            ratios = " / ".join(f"{float(row[column]):.2f}" for column in ("ratio", "paused_ratio"))
            cells.setdefault(name, {})[part] = f"{float(row['us']):.0f} µs, {ratios}"
    lines = [[name, *(found[part] for part in parts)] for name, found in cells.items()]
    return table(["operation", "forward", "`autograd.grad`", "both"], lines)


def sparse(results: Results) -> str:
    """Sparse gradients of embedding bags."""
    file = results.file("sparse_h200.csv")
    lines = [[row["indices"], shape_text(row["shape"]), row["dtype"],
              *(duration(row[c]) for c in ("ms", "torch_ms", "torch_coalesced_ms")),
              times(row["ratio"]), times(row["ratio_coalesced"])] for row in file.rows]  # fmt: skip
    head = ["indices", "shape", "dtype", "sternway", "torch", "torch, coalesced", "times faster", "than coalesced"]
    return f"{file.heading()}\n\n{table(head, lines)}"


def ranks(results: Results) -> str:
    """Scans and embedding bags that two GPUs share."""
    file = results.file("ranks_h200.csv")
    columns = ("ms", "one_gpu_ms", "gathered_ms", "alone_ms", "exchange_ms", "header_ms")
    lines = [[row["op"], row["shape_of_a_rank"].replace("x", " x "), row["dtype"], row["direction"],
              *(duration(row[c]) if row[c] else "" for c in columns)] for row in file.rows]  # fmt: skip
    head = [
        "op",
        "shape of a rank",
        "dtype",
        "direction",
        "ranks",
        "one GPU, half the work",
        "gathered",
        "alone",
        "exchange",
        "header",
    ]
    return f"{file.heading()}\n\n{table(head, lines)}"


def carries(results: Results) -> str:
    """Chunks of long scans beside plain scans."""
    file = results.file("carries_h200.csv")
    columns = ("plain_ms", "summary_ms", "scan_ms")
    lines = [[row["kind"], row["direction"], f"{row['shape'].replace('x', ' x ')}, dim {row['dim']}", row["dtype"],
              *(duration(row[c]) for c in columns), f"{float(row['ratio']):.2f}x"] for row in file.rows]  # fmt: skip
    head = ["kind", "direction", "shape", "dtype", "plain scan", "summary", "scan with carries", "both over plain"]
    return f"{file.heading()}\n\n{table(head, lines)}"


# The files of operations with a table of their own: one for each machine.
RECURRENCES = ("recurrence_h200.csv", "recurrence_cpu.csv")
SELECTIVE = ("selective_h200.csv", "selective_cpu.csv")
PACKED = ("packed_h200.csv", "packed_cpu.csv")
EMBEDDING = ("embedding_h200.csv", "embedding_cpu.csv")
QUANTIZE = ("quantize_h200.csv", "quantize_cpu.csv")


def recurrences(results: Results) -> str:
    """Linear recurrences beside copies and rivals."""
    text = []
    for file in map(results.file, RECURRENCES):
        rivals = [column for column in file.rows[0] if column.endswith("_ratio") and any(row[column] for row in file.rows)]
        lines = [
            [row["setting"], row["direction"], f"{shape_text(row['shape'])}, dim {row['dim']}", row["dtype"],
             duration(row["ms"]), share_text(row), *(times(row[rival]) if row[rival] else "" for rival in rivals)]
            for row in file.rows
        ]  # fmt: skip
        names = [f"than {rival.removesuffix('_ratio').replace('_', ' ')}" for rival in rivals]
        head = ["recurrence", "direction", "shape", "dtype", "time", "share of a copy", *names]
        text += [file.heading(), table(head, lines)]
    return "\n\n".join(text)


def selective_scans(results: Results) -> str:
    """Selective scans beside copies and a rival."""
    text = []
    for file in map(results.file, SELECTIVE):
        lines = [
            [f"{row['setting']}, n {row['n']}", row["direction"], shape_text(row["shape"]), row["dtype"], duration(row["ms"]),
             times(row["rival_ratio"]), f"{float(row['error']):.2g}", f"{float(row['rival_error']):.2g}"]
            for row in file.rows
        ]  # fmt: skip
        rival = file.rows[0]["rival"]
        head = ["selective scan", "direction", "shape", "dtype", "time", f"than {rival}", "error", f"of {rival}"]
        text += [file.heading(), table(head, lines)]
    return "\n\n".join(text)


def packed(results: Results) -> str:
    """Time of packed and exclusive scans divided by that of the plain scan, with a column for each variant."""
    text = []
    for file in map(results.file, PACKED):
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for row in file.rows:
            key = row["kind"], row["direction"], f"{shape_text(row['shape'])}, dim {row['dim']}", row["dtype"]
            found = lines.setdefault((*key, duration(row["plain_ms"])), {})
            found[row["variant"]] = f"{float(row['ratio']):.2f}"
        variants = list(dict.fromkeys(row["variant"] for row in file.rows))
        head = ["kind", "direction", "shape", "dtype", "plain scan", *variants]
        body = [[*key, *(cells.get(variant, "") for variant in variants)] for key, cells in lines.items()]
        text += [file.heading(), table(head, body)]
    return "\n\n".join(text)


def quantizations(results: Results) -> str:
    """Quantizations with a scale for blocks of each shape, of the machines that have a file."""
    text = []
    for file in (results.file(name) for name in QUANTIZE if (results.folder / name).exists()):
        rivals = {"torch_ratio": "than torch", "torch_dx_ratio": "than torch, dx alone", "compile_ratio": "than compile"}
        lines = [
            [row["operation"], row["direction"], row["granularity"], row["dtype"], duration(row["ms"]), share_text(row),
             *(times(row[rival]) if row[rival] else "" for rival in rivals)]
            for row in file.rows
        ]  # fmt: skip
        head = ["operation", "direction", "granularity", "dtype", "time", "share of a copy", *rivals.values()]
        text += [f"{file.heading()} Shape {shape_text(file.rows[0]['shape'])}.", table(head, lines)]
    return "\n\n".join(text)


def embedding_bags(results: Results) -> str:
    """Forward, gradient and updates of one table, beside torch."""
    text = []
    for file in map(results.file, EMBEDDING):
        lines = [
            [row["operation"], shape_text(row["shape"]), row["dtype"], duration(row["ms"]), share_text(row),
             duration(row["torch_ms"]), times(row["ratio"])]
            for row in file.rows
        ]  # fmt: skip
        head = ["operation", "shape", "dtype", "time", "share of a copy", "torch", "times faster"]
        text += [file.heading(), table(head, lines)]
    return "\n\n".join(text)


def jax(results: Results) -> str:
    """Operations in JAX, beside its own, on a GPU and on the CPU."""
    head = ["op", "shape", "dtype", "sternway", "JAX", "times faster", "error", "of JAX"]
    text = []
    for file in (results.file("jax_h200.csv"), results.file("jax_cpu.csv")):
        lines = [
            [row["op"], row["shape"].replace("x", " x "), row["dtype"], duration(row["ms"]), duration(row["jax_ms"]),
             f"{float(row['ratio']):.2f}x", f"{float(row['error']):.3g}", f"{float(row['jax_error']):.3g}"]
            for row in file.rows
        ]  # fmt: skip
        text += [file.heading(), table(head, lines)]
    return "\n\n".join(text)


def sparse_variants(results: Results) -> str:
    """Steps of tables and their optimizers with each way to a sparse gradient."""
    file, rows = results.file("h200_sparse_variants.csv"), dict[tuple[str, ...], dict[str, str]]()
    for row in file.rows:
        rows.setdefault((row["kind"], row["optimizer"], row["indices"]), {})[row["contestant"]] = row["ms"]
    ways = ["torch", "late", "early", "flagged", "bounded", "gathered"]
    lines = [[*name, *(duration(found[way]) if way in found else "" for way in ways)] for name, found in rows.items()]
    return f"`{file.name}`, {file.machine}: {file.command}.\n\n{table(['tables', 'optimizer', 'indices', *ways], lines)}"


def errors_of(name: str) -> Callable[[Results], str]:
    """Norm-wise errors of every operation on random numbers, in every dtype."""
    return lambda results: errors(results.file(name))


def errors(file: File) -> str:
    """The table of one file."""
    lines: dict[str, dict[str, str]] = {}
    for row in file.rows:
        if row["ulp"]:
            lines.setdefault(operation({**row, "outputs": row["input"]}), {})[row["dtype"]] = pair(row)
    body = [[key, *(cells[dtype] for dtype in DTYPES)] for key, cells in lines.items()]
    return f"{file.heading()}\n\n{table(['operation', *DTYPES], body)}"


def pair(row: Row) -> str:
    """The errors of sternway and of torch."""
    if float(row["ulp"]) == 0 == float(row["torch_ulp"]) and math.isinf(float(row["norm"])):
        return "0, 0"  # the true gradient is 0, and has no norm to divide by
    return f"{error(row['norm'])}, {error(row['torch_norm'])}"


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
