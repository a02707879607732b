"""``python -m sternway bench quantize``: quantization with a scale for blocks of each shape, beside copies and PyTorch.

A row is an operation, a direction and a granularity. The backward gives the gradients of the values and of the scale, without a
zero point. A copy moves the bytes of the large tensors of an ideal call, each once. The rivals are PyTorch's own operations,
where there is one, and torch.compile of the formula with straight-through rounding.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._cases import FORMATS, TorchSource
from .._cases import dequantize as definitions
from .._cases.case import Output, Shape, Values, error, wide
from .._cases.progress import Progress
from .._cases.table import Table, shape_text, time_text
from . import timing
from .kernels import kernels_of
from .quantize_rivals import RIVALS
from .report import NewCsv, disturbed, machine
from .step.check import WrongResultError

GRANULARITIES: dict[str, Callable[[Shape], Shape]] = {
    "tensor": lambda shape: (),
    "token": lambda shape: (shape[0], 1),
    "channel": lambda shape: (1, shape[1]),
    "group of 128": lambda shape: (shape[0], shape[1] // 128),
    "group of 32": lambda shape: (shape[0], shape[1] // 32),
    "block of 128 x 128": lambda shape: (shape[0] // 128, shape[1] // 128),
}
"""The shape of the scale of a tensor [tokens, channels]."""
OPERATIONS = ("fake quantize", "dequantize")
DIRECTIONS = ("forward", "backward")
SHAPES = {"cuda": (16384, 8192), "cpu": (2048, 4096), "quick": (256, 512)}
DTYPES = {"cuda": ("bfloat16", "float32"), "cpu": ("float32",), "quick": ("float32",)}
COLUMNS = (
    "operation", "direction", "granularity", "shape", "dtype", "device", "kernel", "bytes", "ms", "best_ms", "out_ms",
    "copy_ms", "share_of_copy", "replayed_share",
    *(f"{name}_{column}" for name in RIVALS for column in ("ms", "ratio")), "error", "others",
)  # fmt: skip
"""ms: of a call that allocates its results, as those of rivals do. out_ms: of one that writes into given results, as a copy
does; share_of_copy is its share."""


def bench_quantize(device: str, chosen: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print the time, the share of a copy's speed, and the ratio to each rival, of the rows that contain a text.

    Returns:
        the exit code: 1 if a result is wrong, which has no time, and 2 if there is no such row.
    """
    import torch

    kind = timing.sizes(device)
    shape = SHAPES[kind]
    rows = [
        row
        for row in itertools.product(OPERATIONS, DIRECTIONS, GRANULARITIES, DTYPES[kind])
        if chosen in "{} {} {} {} {}".format(*row[:3], shape_text(shape), row[3])
    ]
    if not rows:
        print("No such row; see --rows.", file=sys.stderr)
        return 2
    print(f"{machine(device)}\n")
    wrong = 0
    with new_csv(COLUMNS) as file, Progress("bench quantize", len(rows), quiet=quiet) as progress:
        table = Table(
            progress, operation=13, direction=9, granularity=18, shape=10, dtype=8, time=-8, of_copy=-7, replayed=-8,
            rivals=47, error=-6, note=4,
        )  # fmt: skip
        table.head()
        for operation, direction, granularity, dtype in rows:
            said = operation, direction, granularity, shape_text(shape), dtype
            progress.step(" ".join(said))
            try:
                row = measure(Problem(operation, direction, granularity, shape, dtype, device))
            except WrongResultError as failure:
                wrong += 1
                table.row(*said, f"WRONG: {failure}")
                continue
            ratios = {name: seconds / row.time.median for name, seconds in row.rivals.items()}
            text = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
            share, replayed = row.copy / row.out, "" if row.replayed is None else f"{row.replayed:.2f}"
            notes = [disturbed(row.others), *(f"without {name}: {why}" for name, why in row.left_out.items())]
            shown = time_text(row.time.median), f"{share:.2f}", replayed, text, f"{row.error:.2g}"
            table.row(*said, *shown, "; ".join(filter(None, notes)))
            times = (1e3 * seconds for seconds in (row.time.median, row.time.best, row.out, row.copy))
            found = ((row.rivals[name] * 1e3, ratios[name]) if name in ratios else (None, None) for name in RIVALS)
            numbers = *times, share, row.replayed, *itertools.chain(*found), row.error, row.others
            file.row(*said, device, row.kernel, row.moved, *numbers)
            torch.cuda.empty_cache()
    return 1 if wrong else 0


class Measured(NamedTuple):
    """One row; times are in seconds."""

    kernel: str
    moved: int
    """Bytes."""
    time: timing.Time
    """A call that allocates its results, as the rivals do."""
    out: float
    """A call that writes into given results, as the copy does."""
    copy: float
    replayed: float | None
    """The share of the copy's speed in replays of CUDA graphs."""
    rivals: dict[str, float]
    left_out: dict[str, str]
    """The reason why a rival that there is does not run."""
    error: float
    """In units in the last place."""
    others: float


@dataclass(frozen=True)
class Problem:
    """The operands of one call of ours, which makes them."""

    operation: str
    direction: str
    granularity: str
    shape: Shape
    dtype: str
    device: str
    seed: int = 0

    @functools.cached_property
    def values(self) -> Values:
        """The operands by name."""
        make = definitions.unquantized if self.operation == "fake quantize" else definitions.quantized
        return make(TorchSource(self.device, self.seed), self.shape, self.dtype, GRANULARITIES[self.granularity])

    def call(self) -> Callable[..., Any]:
        """Ours. It allocates its results, or writes into ``out``."""
        import sternway as sw

        v = self.values
        if self.operation == "dequantize":
            if self.direction == "forward":
                return functools.partial(sw.dequantize, v.q, v.scale)
            return functools.partial(sw.dequantize_backward, v.dy, v.scale, q=v.q)
        bounds = {"quant_min": v.quant_min, "quant_max": v.quant_max}
        if self.direction == "forward":
            return functools.partial(sw.fake_quantize, v.x, v.scale, **bounds)
        return functools.partial(sw.fake_quantize_backward, v.dy, v.x, v.scale, **bounds)

    def into_outputs(self) -> tuple[timing.Call, dict[str, Any]]:
        """A call that writes into given results, and these by name, full of NaN."""
        new = {name: getattr(self.values, output.of) for name, output in self.outputs().items()}
        out = {name: self.values.dy.new_full(x.shape, math.nan) for name, x in new.items()}
        arrays = tuple(out.values())
        return functools.partial(self.call(), out=arrays if len(arrays) > 1 else arrays[0]), out

    def outputs(self) -> dict[str, Output]:
        """The definitions of the results."""
        is_fake = self.operation == "fake quantize"
        if self.direction == "forward":
            return {"y": definitions.FAKE_Y if is_fake else definitions.Y}
        gradients = definitions.FAKE_GRADIENTS if is_fake else definitions.GRADIENTS
        return {name: gradients[name] for name in ("dx", "dscale")}

    def moved(self) -> int:
        """The bytes that an ideal call moves, without those of scales."""
        v = self.values
        read = [v.x if self.operation == "fake quantize" else v.q] + [v.dy] * (self.direction == "backward")
        return sum(x.numel() * x.itemsize for x in (*read, v.dy))

    def check(self) -> float:
        """The largest error of a result.

        Raises:
            WrongResultError: one is beyond a rounding of the result and those of the sum.
        """
        call, results = self.into_outputs()
        call()
        values = Values(**{name: wide(x) if hasattr(x, "shape") else x for name, x in vars(self.values).items()})
        form, errors = FORMATS[self.dtype], []
        for name, output in self.outputs().items():
            truth = output.truth(values)
            errors.append(error(results[name], truth))
            allowed = 0.5 + truth.roundings * form.carried / form.eps
            if not errors[-1] <= allowed:
                raise WrongResultError(f"{name} is {errors[-1]:.3g} ulp from float64, allowed are {allowed:.3g}")
        return max(errors)


def measure(first: Problem) -> Measured:
    """Check the results of a problem, then time it beside copies and rivals; a quick run has no torch.compile.

    Raises:
        WrongResultError: a result is wrong.
    """
    import torch

    device, moved, worst = first.device, first.moved(), first.check()
    count = timing.buffers(moved, device)
    problems = [first, *(dataclasses.replace(first, seed=seed) for seed in range(1, count))]
    contestants: dict[str, list[timing.Call]] = {
        "ours": [problem.call() for problem in problems],
        "out": [problem.into_outputs()[0] for problem in problems],
        **timing.copies(moved, count, device),
    }
    found, left_out = dict[str, list[timing.Call]](), dict[str, str]()
    for name, rival in RIVALS.items():
        if timing.effort.is_quick and name == "compile":
            continue
        try:
            ways = (rival(first.operation, first.direction, first.granularity, problem.values) for problem in problems)
            calls = [call for call in ways if call is not None]
            if calls:
                calls[0]()
                found[name] = calls
        except RuntimeError as failure:  # a dtype without a kernel, or no compiler
            left_out[name] = str(failure).strip().partition("\n")[0]
    times, others = timing.measure({**contestants, **found}, device)
    replayed = None
    if device != "cpu":
        replays = timing.replayed({name: contestants[name] for name in ("out", "copy_", "neg")}, device)
        replayed = min(replays["copy_"], replays["neg"]) / replays["out"]
    if "compile" in found:
        torch._dynamo.reset()  # the limit of compilations of one function is that of a process
    return Measured(
        kernel=kernels_of(contestants["ours"][0]), moved=moved, time=times["ours"], out=times["out"].median,
        copy=min(times["copy_"].median, times["neg"].median), replayed=replayed,
        rivals={name: times[name].median for name in found}, left_out=left_out, error=worst, others=others,
    )  # fmt: skip
