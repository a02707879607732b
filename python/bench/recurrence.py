"""``python -m sternway bench recurrence``: whole calls of linear recurrences and of their gradients, beside copies and rivals.

A copy moves the bytes of an ideal call: each operand and each result once. The rivals are accelerated-scan on a GPU, and on the
CPU a loop over the positions and ``associative_scan`` of torch.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._cases import FORMATS, TorchSource
from .._cases.case import wide
from .._cases.linear_recurrence import by_loop, growth, inputs
from .._cases.progress import Progress
from .._cases.table import Table, shape_text, time_text
from ..errors import UnsupportedError
from . import timing
from .kernels import kernels_of
from .report import NewCsv, disturbed, machine
from .step.check import WrongResultError

DIRECTIONS = ("forward", "backward")
NARROW = ("float32", "bfloat16")


class Setting(NamedTuple):
    """Recurrences of one shape."""

    name: str
    shape: tuple[int, int]
    dim: int = -1
    dtypes: tuple[str, ...] = NARROW
    reverse: bool = False
    constant: bool = False
    """Whether the factors are constant along dim: an operand of extent 1."""


SETTINGS = {
    "cuda": (
        Setting("rows", (8192, 8192), -1, (*NARROW, "float64")),
        Setting("columns", (8192, 8192), 0, (*NARROW, "float64")),
        Setting("short rows", (671088, 100)),
        Setting("one row", (1, 1 << 26)),
        Setting("constant decay", (8192, 8192), -1, constant=True),
        Setting("constant decay", (8192, 8192), 0, constant=True),
    ),
    "cpu": (
        Setting("rows", (64, 2048), -1, (*NARROW, "float64")),
        Setting("columns", (2048, 64), 0, (*NARROW, "float64")),
        Setting("advantages", (8, 1024), -1, (*NARROW, "float64"), reverse=True),
        Setting("constant decay", (64, 2048), -1, constant=True),
    ),
    "quick": (Setting("rows", (8, 256)), Setting("columns", (256, 8), 0)),
}
"""What is measured on each device, and with ``--quick``. Advantages are those of 8 environments, of 1024 steps each."""

RIVALS = ("accelerated_scan", "loop", "associative_scan")
COLUMNS = (
    "setting", "direction", "shape", "dim", "dtype", "device", "kernel", "bytes", "ms", "best_ms", "copy_ms", "share_of_copy",
    "replayed_share", *(f"{name}_ratio" for name in RIVALS), "others",
)  # fmt: skip


def bench_recurrence(device: str, chosen: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print the time, the share of a copy's speed, and the ratio to each rival, of the rows that contain a text.

    Returns:
        the exit code: 1 if a result is wrong, which has no time, and 2 if there is no such row.
    """
    import torch

    rows = [
        (setting, dtype, direction)
        for setting in SETTINGS[timing.sizes(device)]
        for dtype, direction in itertools.product(setting.dtypes, DIRECTIONS)
        if chosen in f"{setting.name} {direction} {shape_text(setting.shape)} dim {setting.dim} {dtype}"
    ]
    if not rows:
        print("No such row; see --rows.", file=sys.stderr)
        return 2
    print(f"{machine(device)}\n")
    rivals, wrong = usable_rivals(device), 0
    with new_csv(COLUMNS) as file, Progress("bench recurrence", len(rows), quiet=quiet) as progress:
        table = Table(
            progress, setting=14, direction=9, shape=12, dim=-3, dtype=8, time=-8, of_copy=-7, replayed=-8, rivals=50, note=4
        )
        table.head()
        for setting, dtype, direction in rows:
            said = setting.name, direction, shape_text(setting.shape), setting.dim, dtype
            progress.step(" ".join(map(str, said)))
            try:
                kernel, moved, times, replayed, others = measure(setting, dtype, direction, device, rivals)
            except WrongResultError as failure:
                wrong += 1
                table.row(*said, f"WRONG: {failure}")
                continue
            except UnsupportedError as refusal:
                table.row(*said, f"refused: {refusal}")
                continue
            ours, copy = times["ours"], min(times["copy_"].median, times["neg"].median)
            ratios = {name: times[name].median / ours.median for name in RIVALS if name in times}
            text = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
            share = "" if replayed is None else f"{replayed:.2f}"
            table.row(*said, time_text(ours.median), f"{copy / ours.median:.2f}", share, text, disturbed(others))
            numbers = ours.median * 1e3, ours.best * 1e3, copy * 1e3, copy / ours.median, replayed
            file.row(*said, device, kernel, moved, *numbers, *map(ratios.get, RIVALS), others)
            torch.cuda.empty_cache()
    return 1 if wrong else 0


Rival = Callable[[Any, Any, int, bool], Any]
"""A recurrence of a and b along a dimension, reversed or not."""


def usable_rivals(device: str) -> dict[str, Rival]:
    """The rivals on a device. Prints the reason why one is left out."""
    if device == "cpu":
        return {"loop": by_loop, "associative_scan": by_associative_scan}
    try:
        scan = importlib.import_module("accelerated_scan.scalar").scan
    except ImportError as failure:
        print(f"accelerated_scan is left out: {failure}. pip install accelerated-scan==0.3.1\n")
        return {}
    return {"accelerated_scan": lambda a, b, dim, reverse: scan(a[None], b[None])[0]}


def suits(name: str, setting: Setting, dtype: str) -> bool:
    """Whether a rival takes a problem. accelerated-scan takes contiguous rows of float32 in one direction, fewer than 2^16."""
    if name != "accelerated_scan":
        return not setting.constant
    is_plain = setting.dim == -1 and dtype == "float32" and not setting.reverse and not setting.constant
    return is_plain and max(setting.shape) <= 2**16


def by_associative_scan(a: Any, b: Any, dim: int, reverse: bool) -> Any:
    """The recurrence by torch's associative scan."""
    from torch._higher_order_ops import associative_scan

    def combine(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    return associative_scan(combine, (a, b), dim, reverse=reverse, combine_mode="generic")[1]


def measure(
    setting: Setting, dtype: str, direction: str, device: str, rivals: Mapping[str, Rival]
) -> tuple[str, int, dict[str, timing.Time], float | None, float]:
    """The kernels, the bytes of an ideal call, the times, the share in replays, and the processors that other work took."""
    import torch

    problems = [Problem(setting, dtype, device)]
    ours = problems[0].call(direction)
    moved = problems[0].check(direction, ours())
    count = timing.buffers(moved, device)
    problems += [Problem(setting, dtype, device, seed) for seed in range(1, count)]
    contestants: dict[str, list[timing.Call]] = {
        "ours": [problem.call(direction) for problem in problems],
        **timing.copies(moved, count, device),
        **{
            name: [problem.by_rival(direction, rival) for problem in problems]
            for name, rival in rivals.items()
            if suits(name, setting, dtype)
        },
    }
    times, others = timing.measure(contestants, device)
    if device == "cpu":
        return kernels_of(ours), moved, times, None, others
    torch.cuda.empty_cache()
    replays = timing.replayed({name: contestants[name] for name in ("ours", "copy_", "neg")}, device)
    return kernels_of(ours), moved, times, min(replays["copy_"], replays["neg"]) / replays["ours"], others


class Problem:
    """The operands of a recurrence and of its gradient."""

    def __init__(self, setting: Setting, dtype: str, device: str, seed: int = 0) -> None:
        import sternway as sw

        values = inputs(setting.dim, TorchSource(device, seed), setting.shape, dtype)
        self.setting, self.format = setting, FORMATS[dtype]
        self.dh, self.a, self.b = values.dy, values.a, values.b
        if setting.constant:
            self.a = self.a.narrow(setting.dim, 0, 1).contiguous()
        self.h = sw.linear_recurrence(self.a, self.b, setting.dim, reverse=setting.reverse)

    def call(self, direction: str) -> Callable[[], tuple[Any, ...]]:
        """The call that is measured, which allocates its results."""
        import sternway as sw

        options: Any = {"dim": self.setting.dim, "reverse": self.setting.reverse}
        if direction == "forward":
            return lambda: (sw.linear_recurrence(self.a, self.b, **options),)
        return lambda: sw.linear_recurrence_backward(self.dh, self.a, self.h, **options)

    def by_rival(self, direction: str, rival: Rival) -> timing.Call:
        """The same by a rival, whose gradient is that of autograd."""
        import torch

        setting = self.setting
        if direction == "forward":
            return lambda: rival(self.a, self.b, setting.dim, setting.reverse)
        a, b = (x.detach().requires_grad_() for x in (self.a, self.b))
        y = rival(a, b, setting.dim, setting.reverse)
        return lambda: torch.autograd.grad(y, (a, b), self.dh, retain_graph=True)

    def check(self, direction: str, results: tuple[Any, ...]) -> int:
        """The bytes of the operands and the results, which are compared with their definition from one position to the next.

        The gradient of a constant, a sum over positions, is not compared.

        Raises:
            WrongResultError: a difference is beyond roundings.
        """
        read = (self.a, self.b) if direction == "forward" else (self.dh, self.a, self.h)
        a, first = (self._in_order(x) for x in (self.a, read[0] if direction == "backward" else self.b))
        if direction == "forward":
            states = self._in_order(results[0])
            self._near("h", states[..., 1:], a[..., 1:] * states[..., :-1] + first[..., 1:], states)
            self._near("h", states[..., 0], first[..., 0], states)
        else:
            da, g, h = (self._in_order(x) for x in (*results, self.h))
            self._near("db", g[..., :-1], a[..., 1:] * g[..., 1:] + first[..., :-1], g)
            self._near("db", g[..., -1], first[..., -1], g)
            if not self.setting.constant:
                self._near("da", da[..., 1:], g[..., 1:] * h[..., :-1], da)
        return sum(x.numel() * x.itemsize for x in (*read, *results))

    def _in_order(self, x: Any) -> Any:
        """An operand in float64, with the positions in scan order along the last dimension."""
        x = wide(x).expand(self.setting.shape).movedim(self.setting.dim, -1)
        return x.flip(-1) if self.setting.reverse else x

    def _near(self, name: str, x: Any, expected: Any, all_of_them: Any) -> None:
        n = self.setting.shape[self.setting.dim]
        allowed = (2 * self.format.eps + growth(n) * self.format.carried) * float(all_of_them.abs().max())
        found = float((x - expected).abs().max())
        if not found <= allowed:
            raise WrongResultError(f"{name} is {found:.3g} from its definition, allowed are {allowed:.3g}")
