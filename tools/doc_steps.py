"""The generated tables of whole training steps, in README.md and docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from doc_results import (
    KINDS,
    File,
    Gains,
    Results,
    Row,
    duration,
    filled,
    folded,
    gain_text,
    shape_text,
    table,
    times,
    versions,
)

GPU, CPU, MAMBA = "step_h200.csv", "step_cpu.csv", "step_mamba_h200.csv"
LEARNING = ("step_learning_h200.csv", "step_learning_cpu.csv")  # tables that learn in the backward
OURS, TORCH, COMPILE, TOGETHER, FROZEN = "sternway", "torch", "compile", "EmbeddingBags", "frozen"
QUIET = 0.2  # processors that other work may take, as in python/bench/timing.py

# The rows of the table in README.md: name, size in words, file, contestant of sternway, step, shape, dtype.
HIGHLIGHTS = (
    ("Llama with `st.patch_rope`", "6 layers, 2 x 4096 tokens, width 2048, bfloat16",
     GPU, OURS, "Llama, 6 layers", "2x4096x2048", "bfloat16"),
    ("Mamba with `st.patch_recurrence`", "2 layers, 2 x 1024 tokens, width 1024, bfloat16; PyTorch: the loop of transformers",
     MAMBA, OURS, "Mamba, 2 layers", "2x1024x1024", "bfloat16"),
    ("recommender, `st.EmbeddingBags`, SGD",
     "8 tables of 10^6 x 128, batch 8192, 20 indices a bag, float32; PyTorch: 8 modules",
     LEARNING[0], TOGETHER, "learning tables, sgd", "8x1000000x128x8192x20", "float32"),
    ("recommender, `st.EmbeddingBags`, Adagrad",
     "100 tables of 10^5 x 64, batch 2048, 10 indices a bag, float32; PyTorch: 100 modules",
     LEARNING[0], TOGETHER, "learning tables, adagrad", "100x100000x64x2048x10", "float32"),
    ("embedding of a language model", "151936 x 4096, 32768 tokens, bfloat16",
     GPU, OURS, "embedding", "151936x4096x32768", "bfloat16"),
    ("quantization-aware training", "6 linear layers, 16384 tokens, width 2048, bfloat16",
     GPU, OURS, "fake quantize + linear, 6 layers", "16384x2048", "bfloat16"),
    ("Cox regression", "10^6 rows, float32", GPU, OURS, "Cox loss", "1000000", "float32"),
    ("cumsum along rows", "8192 x 8192, float32", GPU, OURS, "cumsum, dim 1", "8192x8192", "float32"),
    ("logcumsumexp along columns", "8192 x 8192, float32", GPU, OURS, "logcumsumexp, dim 0", "8192x8192", "float32"),
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step at a shape and dtype, with the line of each contestant."""

    name: str
    shape: str
    dtype: str
    lines: dict[str, Row]

    def value(self, contestant: str, column: str) -> float | None:
        """A number of a contestant. None: it was not measured."""
        found = self.lines.get(contestant, {}).get(column)
        return float(found) if found else None

    def time(self, contestant: str, part: str = "") -> float | None:
        """Milliseconds: the median on a GPU, the shortest on the CPU, whose processors other programs share.

        part: "forward_" for the forward alone.
        """
        device = next(iter(self.lines.values()))["device"]
        return self.value(contestant, part + ("best_ms" if device == "cpu" else "ms"))

    def gain(self, contestant: str = TORCH, part: str = "", ours: str = OURS) -> float | None:
        """How many times as long a contestant takes as sternway, or another contestant."""
        own, theirs = self.time(ours, part), self.time(contestant, part)
        return theirs / own if own and theirs else None

    def others(self) -> Iterator[tuple[str, str]]:
        """The rivals beside torch and torch.compile with the gain over them; of those without a backward, over the forward."""
        for contestant in self.lines:
            if contestant not in (OURS, TORCH, COMPILE):
                for part, title in (("", ""), ("forward_", " (forward)")):
                    if gain := self.gain(contestant, part):
                        yield f"{contestant}{title}", times(gain)
                        break

    def is_scan(self) -> bool:
        """Whether the step is the forward and the backward of one scan, and no model."""
        return self.name.startswith(KINDS)

    def described(self) -> str:
        """The step in words."""
        return f"{self.name}, {shape_text(self.shape)}, {self.dtype}"


def steps(file: File) -> list[Step]:
    """The steps of a file, in its order."""
    found: dict[tuple[str, str, str], Step] = {}
    for row in file.rows:
        key = row["step"], row["shape"], row["dtype"]
        found.setdefault(key, Step(*key, {})).lines[row["contestant"]] = row
    return list(found.values())


def highlights(results: Results) -> list[tuple[str, str, Step, str]]:
    """The rows of the table in README.md: name, size, step, and the contestant of sternway."""
    rows = []
    for label, scale, file, ours, *key in HIGHLIGHTS:
        [step] = [step for step in steps(results.file(file)) if [step.name, step.shape, step.dtype] == key]
        rows.append((label, scale, step, ours))
    return rows


def readme(results: Results) -> str:
    """The table of some steps in README.md."""
    head = ["training step", "size", "PyTorch", "`torch.compile`", "sternway", "times faster than PyTorch"]
    lines = [[name, scale, *(text(step.time(who)) for who in (TORCH, COMPILE, ours)), gain(step, ours=ours)]
             for name, scale, step, ours in highlights(results)]  # fmt: skip
    return f"""\
Forward and backward of training steps on one {versions(results.file(GPU))}, the contestants in turn. A time is a median.

{table(head, lines, align=False)}"""


def gains(file: File, ours: str = OURS, *, of_scans: bool = False) -> Gains:
    """The gains over torch of the steps of a file, by name: of those of one scan, or of the others."""
    return [(gain, step.name) for step in steps(file) if step.is_scan() == of_scans and (gain := step.gain(ours=ours))]


def written(name: str) -> Callable[[Results], str]:
    """The table of a file."""

    def write(results: Results) -> str:
        file = results.file(name)
        found = steps(file)
        return f"{summary(found)}\n\n{file.tables(*all_tables(found), *remarks(found))}"

    return write


def summary(found: list[Step]) -> str:
    """Sentences about the gain over torch of the steps that were measured."""
    measured = [(step.is_scan(), gain, step.described()) for step in found if (gain := step.gain())]
    groups = {"Steps of models, losses, embeddings and `lerp`": False, "Steps of one scan": True}
    rows = {subject: [row for is_scan, *row in measured if is_scan == wanted] for subject, wanted in groups.items()}
    return " ".join(gain_text(subject, map(tuple, chosen)) for subject, chosen in rows.items() if chosen)


def together(found: list[Step]) -> str:
    """Sentences about the gain over torch of tables that learn in the backward, in one module and in many."""
    apart, beside = ([(gain, step.described()) for step in found if (gain := step.gain(ours=who))] for who in (OURS, TOGETHER))
    slowest = min(apart)
    return (
        f"{gain_text('Tables that learn in the backward, in one `st.EmbeddingBags`,', beside)} With a module for each table "
        f"the slowest of these rows is {slowest[1]} ({times(slowest[0])})."
    )


def learning_tables(results: Results) -> str:
    """Steps of tables that learn in the backward, beside torch's sparse optimizers and beside tables that do not learn."""
    texts = []
    for name in LEARNING:
        file = results.file(name)
        found = steps(file)
        names = [[step.name.rpartition(", ")[2], shape_text(step.shape)] for step in found]
        gains = [
            [
                *name,
                text(step.time(TORCH)),
                *(cell for who in (OURS, TOGETHER) for cell in (text(step.time(who)), gain(step, ours=who))),
            ]
            for name, step in zip(names, found, strict=True)
        ]
        parts = [
            [*name, *(text(step.value(who, "device_ms")) for who in (TOGETHER, TORCH)), text(step.time(FROZEN)),
             *(size(step.value(who, "memory_bytes")) for who in (TOGETHER, TORCH))]
            for name, step in zip(names, found, strict=True)
        ]  # fmt: skip
        head = ["optimizer", "shape"]
        columns = ["torch", "a module for each table", "times faster", "`EmbeddingBags`", "times faster"]
        folded_columns = ["device", "device, torch", "frozen tables", "memory", "memory, torch"]
        more = folded("Device, frozen tables and memory", filled([*head, *folded_columns], parts))
        texts += [together(found), file.tables(filled([*head, *columns], gains), more, *remarks(found))]
    return "\n\n".join(texts)


def all_tables(found: list[Step]) -> Iterator[str]:
    """The times of all rows, and folded what they consist of."""
    named = [([step.name, shape_text(step.shape), step.dtype], step) for step in found]
    head = ["step", "shape", "dtype"]
    shown = [
        [*name, text(step.time(OURS)) or note(step), text(step.time(TORCH)), gain(step), gain(step, COMPILE)]
        for name, step in named
    ]
    yield filled([*head, "sternway", "torch", "times faster", "than compile"], shown)
    parts = [
        [*name, text(step.time(OURS, "forward_")), gain(step, part="forward_"),
         *(text(step.value(who, f"{what}_ms")) for what in ("host", "device") for who in (OURS, TORCH))]
        for name, step in named
    ]  # fmt: skip
    columns = ["forward", "times faster", "host", "host, torch", "device", "device, torch"]
    yield folded("Forward, host and device", filled([*head, *columns], parts))
    memory = [[*name, *(size(step.value(who, "memory_bytes")) for who in (OURS, TORCH))] for name, step in named]
    yield folded("Memory", filled([*head, "memory", "memory, torch"], memory))
    if rivals := [[*name, *rival] for name, step in named for rival in step.others()]:
        yield folded("Than others", table([*head, "other", "times faster"], rivals))


def remarks(found: list[Step]) -> Iterator[str]:
    """Sentences on the contestants without times, and on rows of the CPU that other work disturbed."""
    reasons: dict[str, list[str]] = {}
    for step in found:
        for contestant, row in step.lines.items():
            if row["note"] and (contestant != OURS or step.time(OURS)):
                reasons.setdefault(f"{contestant}, {row['note']}", []).append(step.described())
    if reasons:
        yield "Without times: " + "; ".join(f"{reason} ({'; '.join(where)})" for reason, where in reasons.items()) + "."
    disturbed = [others for step in found if (others := step.value(OURS, "others") or 0) > QUIET]
    if disturbed:
        yield (
            f"Other programs kept more than {QUIET:g} processors busy during {len(disturbed)} of {len(found)} rows, "
            f"at most {max(disturbed):.1f} (column `others`)."
        )


def gain(step: Step, contestant: str = TORCH, part: str = "", ours: str = OURS) -> str:
    """A gain as text; empty where there is none."""
    found = step.gain(contestant, part, ours)
    return times(found) if found else ""


def text(milliseconds: float | None) -> str:
    """A time as text; empty where there is none."""
    return "" if milliseconds is None else duration(milliseconds)


def size(count: float | None) -> str:
    """A number of bytes as text; empty where there is none."""
    return "" if count is None else f"{count / 2**20:.3g} MiB" if count < 2**30 else f"{count / 2**30:.3g} GiB"


def note(step: Step) -> str:
    """The reason why sternway has no time in a row."""
    return step.lines.get(OURS, {}).get("note", "")
