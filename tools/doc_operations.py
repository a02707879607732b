"""The generated tables of docs/ on one operation, and on ways to compute it, in Markdown."""

from __future__ import annotations

from doc_results import SHARES, Results, Row, duration, filled, folded, shape_text, share, table, times


def sparse(results: Results) -> str:
    """Sparse gradients of embedding bags."""
    file = results.file("sparse_h200.csv")
    lines = [[row["indices"], shape_text(row["shape"]), row["dtype"],
              *(duration(row[c]) for c in ("ms", "torch_ms", "torch_coalesced_ms")),
              times(row["ratio"]), times(row["ratio_coalesced"])] for row in file.rows]  # fmt: skip
    head = ["indices", "shape", "dtype", "sternway", "torch", "torch, coalesced", "times faster", "than coalesced"]
    return file.tables(table(head, lines))


def ranks(results: Results) -> str:
    """Scans and embedding bags that two GPUs share."""
    file = results.file("ranks_h200.csv")

    def columns(**titles: str) -> str:
        lines = [[row["op"], row["shape_of_a_rank"].replace("x", " x "), row["dtype"], row["direction"],
                  *(duration(row[c]) if row[c] else "" for c in titles)] for row in file.rows]  # fmt: skip
        return table(["op", "shape of a rank", "dtype", "direction", *titles.values()], lines)

    shown = columns(ms="ranks", one_gpu_ms="one GPU, half the work", gathered_ms="gathered")
    parts = columns(alone_ms="alone", exchange_ms="exchange", header_ms="header")
    return file.tables(shown, folded("A call alone, and its parts", parts))


def carries(results: Results) -> str:
    """Chunks of long scans beside plain scans."""
    file = results.file("carries_h200.csv")
    columns = ("plain_ms", "summary_ms", "scan_ms")
    lines = [[row["kind"], row["direction"], f"{row['shape'].replace('x', ' x ')}, dim {row['dim']}", row["dtype"],
              *(duration(row[c]) for c in columns), f"{float(row['ratio']):.2f}x"] for row in file.rows]  # fmt: skip
    head = ["kind", "direction", "shape", "dtype", "plain scan", "summary", "scan with carries", "both over plain"]
    return file.tables(table(head, lines))


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
             duration(row["ms"]), *share(row), *(times(row[rival]) if row[rival] else "" for rival in rivals)]
            for row in file.rows
        ]  # fmt: skip
        names = [f"than {rival.removesuffix('_ratio').replace('_', ' ')}" for rival in rivals]
        head = ["recurrence", "direction", "shape", "dtype", "time", *SHARES, *names]
        text.append(file.tables(filled(head, lines)))
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
        text.append(file.tables(table(head, lines)))
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
        text.append(file.tables(table(head, body)))
    return "\n\n".join(text)


def quantizations(results: Results) -> str:
    """Quantizations with a scale for blocks of each shape, of the machines that have a file."""
    text = []
    for file in (results.file(name) for name in QUANTIZE if (results.folder / name).exists()):
        rivals = {"torch_ratio": "than torch", "torch_dx_ratio": "than torch, dx alone", "compile_ratio": "than compile"}
        names = [[row[column] for column in ("operation", "direction", "granularity", "dtype")] for row in file.rows]
        lines = [
            [*name, duration(row["ms"]), *(times(row[rival]) if row[rival] else "" for rival in rivals)]
            for name, row in zip(names, file.rows, strict=True)
        ]
        shares = [[*name, *share(row)] for name, row in zip(names, file.rows, strict=True)]
        head = ["operation", "direction", "granularity", "dtype"]
        shape = f"Shape {shape_text(file.rows[0]['shape'])}."
        more = folded("Shares of a copy", filled([*head, *SHARES], shares))
        text.append(file.tables(shape, table([*head, "time", *rivals.values()], lines), more))
    return "\n\n".join(text)


def embedding_bags(results: Results) -> str:
    """Forward, gradient and updates of one table, beside torch."""
    text = []
    for file in map(results.file, EMBEDDING):
        lines = [
            [row["operation"], shape_text(row["shape"]), row["dtype"], duration(row["ms"]), duration(row["torch_ms"]),
             times(row["ratio"]), *share(row)]
            for row in file.rows
        ]  # fmt: skip
        head = ["operation", "shape", "dtype", "time", "torch", "times faster", *SHARES]
        text.append(file.tables(filled(head, lines)))
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
        text.append(file.tables(table(head, lines)))
    return "\n\n".join(text)


def sparse_variants(results: Results) -> str:
    """Steps of tables and their optimizers with each way to a sparse gradient."""
    file, rows = results.file("h200_sparse_variants.csv"), dict[tuple[str, ...], dict[str, str]]()
    for row in file.rows:
        rows.setdefault((row["kind"], row["optimizer"], row["indices"]), {})[row["contestant"]] = row["ms"]
    ways = ["torch", "late", "early", "flagged", "bounded", "gathered"]
    lines = [[*name, *(duration(found[way]) if way in found else "" for way in ways)] for name, found in rows.items()]
    source = f"`{file.name}`, {file.machine}: {file.command}."
    return file.folded(source, table(["tables", "optimizer", "indices", *ways], lines))


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
