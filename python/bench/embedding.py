"""``python -m sternway bench embedding``: calls of embedding bags of one table, beside copies and torch.

A row is an operation: the forward; the gradient of the table; or, by the name of an optimizer, the backward that updates the
used rows. Torch's way to an update is the backward with a sparse gradient and the step of its optimizer; its Adagrad stands
beside "rowwise_adagrad", which it does not have. Bags are sums of rows that are drawn uniformly.

A copy moves the bytes of an ideal call, and 16 bytes an index:

- forward: the row of each index, and the result;
- gradient: dy, and the result;
- update: the row of dy of each index; each used row and its state, which are read and written.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._cases import TorchSource
from .._cases.case import Shape, Values, wide
from .._cases.embedding_bag import inputs
from .._cases.progress import Progress
from .._cases.table import Table, shape_text, time_text
from . import timing, updates
from .kernels import kernels_of
from .report import NewCsv, disturbed, machine
from .step.check import WrongResultError, require, roundings

OPERATIONS = ("forward", "gradient", *updates.RULES)
SHAPES: dict[str, tuple[Shape, ...]] = {
    "cuda": ((1_000_000, 128, 8192, 20), (200_000, 64, 4096, 1), (100_000, 64, 2048, 10)),
    "cpu": ((100_000, 64, 2048, 20), (20_000, 64, 4096, 1), (10_000, 64, 2048, 10)),
    "quick": ((10_000, 64, 2048, 10),),
}
"""Rows of the table, row length, bags, indices of a bag."""
DTYPES = ("float32", "bfloat16")
MOST_BUFFERS = 64
STATES = {"adagrad": ("sum",), "rowwise_adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq")}
COLUMNS = (
    "operation", "shape", "dtype", "device", "kernel", "used_rows", "bytes", "ms", "best_ms", "copy_ms", "share_of_copy",
    "replayed_share", "torch_ms", "ratio", "error", "torch_error", "others",
)  # fmt: skip


def bench_embedding(device: str, chosen: str, shapes: Sequence[Shape], new_csv: NewCsv, quiet: bool) -> int:
    """Print the time, the share of a copy's speed, and the ratio to torch, of the rows that contain a text.

    Args:
        shapes: in place of those of the table; those that have not 4 extents are left out.

    Returns:
        the exit code: 1 if a result is wrong, which has no time, and 2 if there is no such row.
    """
    import torch

    own = [shape for shape in shapes if len(shape) == 4] if shapes else SHAPES[timing.sizes(device)]
    rows = [
        row
        for row in itertools.product(own, DTYPES, OPERATIONS)
        if chosen in f"{row[2]} {shape_text(row[0])} {row[1]}"
    ]  # fmt: skip
    if not rows:
        print("No such row; see --rows.", file=sys.stderr)
        return 2
    print(f"{machine(device)}\n")
    wrong = 0
    with new_csv(COLUMNS) as file, Progress("bench embedding", len(rows), quiet=quiet) as progress:
        table = Table(
            progress, operation=15, shape=18, dtype=8, time=-8, of_copy=-7, replayed=-8, torch=-8, ratio=-7, error=-7, note=4
        )
        table.head()
        for shape, dtype, operation in rows:
            said = operation, shape_text(shape), dtype
            progress.step(" ".join(said))
            try:
                row = measure(operation, shape, dtype, device)
            except WrongResultError as failure:
                wrong += 1
                table.row(*said, f"WRONG: {failure}")
                continue
            replayed = "" if row.replayed is None else f"{row.replayed:.2f}"
            ours, share, ratio = row.ours.median, row.copy / row.ours.median, row.torch / row.ours.median
            shown = time_text(ours), f"{share:.2f}", replayed, time_text(row.torch), f"{ratio:.2f}x", f"{row.errors[0]:.1e}"
            table.row(*said, *shown, disturbed(row.others))
            times = ours * 1e3, row.ours.best * 1e3, row.copy * 1e3, share, row.replayed, row.torch * 1e3, ratio
            file.row(*said, device, row.kernel, row.used, row.moved, *times, *row.errors, row.others)
            torch.cuda.empty_cache()
    return 1 if wrong else 0


class Measured(NamedTuple):
    """One row; times are in seconds, errors those of ours and of torch."""

    kernel: str
    used: int
    moved: int
    ours: timing.Time
    torch: float
    copy: float
    replayed: float | None
    """The share of the copy's speed in replays of CUDA graphs."""
    errors: tuple[float, float]
    others: float


@updates.without_sparse_warning()
def measure(operation: str, shape: Shape, dtype: str, device: str) -> Measured:
    """Check an operation, then time it.

    Raises:
        WrongResultError: a result is wrong.
    """
    first = Problem(operation, shape, dtype, device)
    errors, moved = first.check(), first.moved()
    count = min(MOST_BUFFERS, timing.buffers(moved, device))
    problems = [first, *(Problem(operation, shape, dtype, device, seed) for seed in range(1, count))]
    ours: list[timing.Call] = [problem.call() for problem in problems]
    copies = timing.copies(moved, count, device)
    contestants = {"ours": ours, "torch": [problem.by_torch() for problem in problems], **copies}
    kernel = kernels_of(ours[0])
    found, others = timing.measure(contestants, device)
    replayed = None
    if device != "cpu":
        replays = timing.replayed({"ours": ours, **copies}, device)
        replayed = min(replays["copy_"], replays["neg"]) / replays["ours"]
    copy = min(found["copy_"].median, found["neg"].median)
    return Measured(kernel, first.used(), moved, found["ours"], found["torch"].median, copy, replayed, errors, others)


@dataclass(frozen=True)
class Problem:
    """The operands of one call. Ours and torch's have tables of their own."""

    operation: str
    shape: Shape
    dtype: str
    device: str
    seed: int = 0

    @functools.cached_property
    def values(self) -> Values:
        """The operands by name."""
        return inputs(TorchSource(self.device, self.seed), self.shape, self.dtype)

    @functools.cached_property
    def result(self) -> Any:
        """What ours writes, full of NaN; of an update, the table."""
        v = self.values
        if self.operation in updates.RULES:
            return v.weight.clone()
        return (v.dy if self.operation == "forward" else v.weight).new_full((), math.nan).expand(self._shape()).clone()

    def _shape(self) -> Shape:
        rows, width, bags, _ = self.shape
        return (bags if self.operation == "forward" else rows, width)

    def call(self) -> timing.Call:
        """Ours. It writes into given results."""
        import sternway as sw

        v = self.values
        if self.operation == "forward":
            return functools.partial(sw.embedding_bag, v.weight, v.indices, v.offsets, out=self.result)
        rows, width, bags, bag = self.shape
        dtype: Any = self.dtype
        fields = rows, width, bags, bags * bag, dtype
        operands = {"dy": v.dy, "indices": v.indices, "offsets": v.offsets}
        if self.operation == "gradient":
            plan = sw.EmbeddingBagBackwardPlan.select(sw.EmbeddingBagBackwardDescriptor(*fields), self.device)
            return lambda: plan.run(**operands, dweight=self.result)
        rule: Any = self.operation
        learning = sw.EmbeddingBagBackwardDescriptor(*fields, optimizer=rule)
        update = sw.EmbeddingBagBackwardPlan.select(learning, self.device)
        operands |= {"weight": self.result, "options": self._options(), **self._state()}
        return lambda: update.run(**operands)

    def _options(self) -> Any:
        """The operand options of a plan: lr, eps, weight_decay, the betas, grad_scale, and four numbers that runs write."""
        import torch

        numbers = [updates.RATES[self.operation], updates.EPS, 0.0, *updates.BETAS, 1.0, 0.0, 0.0, 0.0, 0.0]
        return torch.tensor(numbers, dtype=torch.float64, device=self.device)

    def _state(self) -> dict[str, Any]:
        import torch

        shape = self.shape[:1] if self.operation == "rowwise_adagrad" else self.shape[:2]
        return {name: torch.zeros(shape, device=self.device) for name in STATES.get(self.operation, ())}

    def by_torch(self) -> timing.Call:
        """The call by torch. It returns the result; of an update, the table."""
        import torch

        v, bags = self.values, torch.nn.functional.embedding_bag
        if self.operation == "forward":
            return functools.partial(bags, v.indices, v.weight, v.offsets, mode="sum")
        is_update = self.operation in updates.RULES
        weight = v.weight.clone().requires_grad_()
        y = bags(v.indices, weight, v.offsets, mode="sum", sparse=is_update)
        if not is_update:
            return lambda: torch.autograd.grad(y, weight, v.dy, retain_graph=True)[0]
        optimizer = updates.by_torch(self.operation, [weight])

        def update() -> Any:
            weight.grad = torch.autograd.grad(y, weight, v.dy, retain_graph=True)[0]
            optimizer.step()
            optimizer.zero_grad()
            return weight.detach()

        return update

    def used(self) -> int:
        """The number of rows that indices name."""
        return int(self.values.indices.unique().numel())

    def moved(self) -> int:
        """The bytes that an ideal call moves."""
        rows, width, bags, bag = self.shape
        row, total = width * int(self.values.dy.itemsize), bags * bag
        if self.operation in ("forward", "gradient"):
            return (total + bags if self.operation == "forward" else rows + bags) * row + 16 * total
        state = 4 * len(STATES.get(self.operation, ())) * (1 if self.operation == "rowwise_adagrad" else width)
        return total * row + 2 * self.used() * (row + state) + 16 * total

    def check(self) -> tuple[float, float]:
        """The errors of ours and of torch by their norms.

        Raises:
            WrongResultError: ours is beyond the roundings that are allowed and beyond that of torch.
        """
        v, bag, is_forward = self.values, self.shape[3], self.operation == "forward"
        self.call()()
        rows: Any = slice(None)
        if is_forward:
            truths = [wide(v.weight)[v.indices].view(-1, bag, self.shape[1]).sum(1)] * 2
        else:
            rows, sums = updates.of_rows(wide(v.dy), v.indices, bag)
            rules = self.operation, updates.of_torch(self.operation)
            is_update, before = self.operation in updates.RULES, wide(v.weight[rows])
            truths = [updates.first_update(rule, before, sums) if is_update else sums for rule in rules]
        results = self.result, self.by_torch()()
        ours, theirs = (updates.deviation(x[rows], truth) for x, truth in zip(results, truths, strict=True))
        require("the result", ours, roundings(self.dtype, 8 + math.log2(len(v.indices))), theirs)
        return ours, theirs
