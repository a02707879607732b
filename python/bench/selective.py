"""``python -m sternway bench selective``: selective scans and their gradients, beside copies, mamba_ssm and a loop.

The calls are those of autograd: ``st.selective_scan`` with D, z, delta_bias and softplus, and its backward, which gives the
gradients of all eight operands. A copy moves the bytes of an ideal call: each row of u's length once. The rival on a GPU is the
extension of mamba_ssm, ``selective_scan_cuda``, and on the CPU a loop over the positions.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from .._cases import FORMATS, TorchSource
from .._cases.case import Values, wide
from .._cases.progress import Progress
from .._cases.selective_scan import READS, by_loop, definition, drop_in, inputs, roundings
from .._cases.table import Table, shape_text, time_text
from . import timing
from .kernels import kernels_of
from .report import NewCsv, disturbed, machine
from .step.check import WrongResultError

DIRECTIONS = ("forward", "backward")
DTYPES = ("bfloat16", "float32")


class Setting(NamedTuple):
    """Selective scans of one shape [batch, channels, positions]."""

    name: str
    shape: tuple[int, int, int]
    n: int = 16
    is_transposed: bool = False
    """Whether u, delta and z are views of [batch, positions, channels], as in a model."""


SETTINGS = {
    "cuda": (
        Setting("training", (8, 2048, 2048)),
        Setting("transposed", (8, 2048, 2048), is_transposed=True),
        Setting("long", (4, 4096, 4096)),
        Setting("longest", (1, 1536, 65536)),
        Setting("vision", (64, 384, 196)),
        Setting("many states", (8, 2048, 2048), 64),
    ),
    "cpu": (Setting("training", (1, 1536, 512)), Setting("transposed", (1, 1536, 512), is_transposed=True)),
    "quick": (Setting("training", (1, 128, 128)),),
}
"""What is measured on each device, and with ``--quick``."""

COLUMNS = (
    "setting", "direction", "shape", "n", "dtype", "device", "kernel", "ms", "best_ms", "copy_ms", "share_of_copy", "rival",
    "rival_ratio", "error", "rival_error", "peak_bytes", "rival_peak_bytes", "others",
)  # fmt: skip
CHECKED = 64
"""The channels of the problem whose results are compared with their definition."""


def bench_selective(device: str, chosen: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print the time, the share of a copy's speed, the ratio to the rival, errors and memory, of the rows that contain a text.

    Returns:
        the exit code: 1 if a result is wrong, which has no time, and 2 if there is no such row.
    """
    rows = [
        (setting, dtype)
        for setting, dtype in itertools.product(SETTINGS[timing.sizes(device)], DTYPES)
        if chosen in f"{setting.name} {shape_text(setting.shape)} n {setting.n} {dtype}"
    ]
    if not rows:
        print("No such row; see --rows.", file=sys.stderr)
        return 2
    print(f"{machine(device)}\n")
    name, rival = rival_on(device)
    wrong = 0
    with new_csv(COLUMNS) as file, Progress("bench selective", len(rows), quiet=quiet) as progress:
        table = Table(
            progress,
            setting=11,
            direction=9,
            shape=12,
            n=-2,
            dtype=8,
            time=-8,
            of_copy=-7,
            rival=24,
            error=-7,
            of_rival=-8,
            note=4,
        )
        table.head()
        for setting, dtype in rows:
            said = setting.name, "", shape_text(setting.shape), setting.n, dtype
            progress.step(" ".join(map(str, said)))
            try:
                measured = measure(setting, dtype, device, rival)
            except WrongResultError as failure:
                wrong += 1
                table.row(*said, f"WRONG: {failure}")
                continue
            for row in measured:
                said = setting.name, row.direction, *said[2:]
                text = "" if row.ratio is None else f"{name} {row.ratio:.2f}x"
                errors = ("" if x is None else f"{x:.2g}" for x in row.errors)
                share = f"{row.copy / row.time.median:.2f}"
                table.row(*said, time_text(row.time.median), share, text, *errors, disturbed(row.others))
                numbers = row.time.median * 1e3, row.time.best * 1e3, row.copy * 1e3, row.copy / row.time.median
                file.row(*said, device, row.kernel, *numbers, name, row.ratio, *row.errors, *row.peaks, row.others)
    return 1 if wrong else 0


class Measured(NamedTuple):
    """One row. The pairs are ours and the rival's; None where there is none."""

    direction: str
    kernel: str
    time: timing.Time
    copy: float
    """Seconds."""
    ratio: float | None
    errors: tuple[float | None, float | None]
    """|found - truth| / |truth|, the largest of the results."""
    peaks: tuple[int | None, int | None]
    """Bytes that a call allocates at once, results included; on a GPU."""
    others: float


Steps = tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]
"""The forward, which returns y, and the backward, which returns the gradients of READS."""
Rival = Callable[[Values], Steps]


def rival_on(device: str) -> tuple[str, Rival | None]:
    """The name of the rival on a device, and its steps. Prints the reason why there is none."""
    if device == "cpu":
        return "loop", functools.partial(by_autograd, by_loop)
    try:
        extension = importlib.import_module("selective_scan_cuda")
    except ImportError as failure:
        print(f"mamba_ssm is left out: {failure}. Build csrc/selective_scan of its source distribution\n")
        return "mamba_ssm", None
    return "mamba_ssm", functools.partial(by_extension, extension)


def by_autograd(function: Callable[[Values], Any], v: Values) -> Steps:
    """The steps of a function that autograd records."""
    import torch

    leaves = Values(**{name: getattr(v, name).detach().requires_grad_() for name in READS})
    y = function(leaves)
    into = [getattr(leaves, name) for name in READS]
    return lambda: function(leaves), lambda: torch.autograd.grad(y, into, v.dy, retain_graph=True)


def by_extension(extension: Any, v: Values) -> Steps:
    """The steps of mamba_ssm's function: contiguous operands, B and C with a dimension of groups, and its extension."""

    def operands() -> tuple[Any, ...]:
        u, delta, a, b, c, d, z, bias = (getattr(v, name) for name in READS)
        u, delta, b, c, z = (x.contiguous() for x in (u, delta, b, c, z))
        return u, delta, a, b[:, None], c[:, None], d, z, bias

    inputs = operands()
    out, states, *_ = extension.fwd(*inputs, True)

    def backward() -> tuple[Any, ...]:
        du, ddelta, da, db, dc, dd, dbias, dz, *_ = extension.bwd(*inputs, v.dy.contiguous(), states, out, None, True, False)
        return du, ddelta, da, db[:, 0], dc[:, 0], dd, dz, dbias

    return lambda: extension.fwd(*operands(), True)[-1], backward


def transposed(v: Values) -> Values:
    """The values with u, delta and z as views of [batch, positions, channels]."""
    rows = {name: getattr(v, name).mT.contiguous().mT for name in ("u", "delta", "z")}
    return Values(**{**vars(v), **rows})


def measure(setting: Setting, dtype: str, device: str, rival: Rival | None) -> list[Measured]:
    """Check the results of a problem of few channels, then time each direction.

    Raises:
        WrongResultError: a result is beyond roundings.
    """
    arranged = transposed if setting.is_transposed else lambda v: v
    make = functools.partial(inputs, dtype=dtype, states=setting.n)
    batch, _, length = setting.shape
    small = arranged(make(TorchSource(device), (min(batch, 2), CHECKED, length)))
    ours = by_autograd(drop_in, small)
    errors, kernels = check(small, ours, dtype), [kernels_of(step) for step in ours]
    rival_errors = (None, None) if rival is None else check(small, rival(small))
    first = arranged(make(TorchSource(device), setting.shape))
    row = first.u.numel() * first.u.itemsize
    found = []
    for which, direction in enumerate(DIRECTIONS):
        moved = row * (4 if direction == "forward" else 7)
        count = timing.buffers(moved, device)
        problems = [first, *(arranged(make(TorchSource(device, seed), setting.shape)) for seed in range(1, count))]
        contestants: dict[str, list[timing.Call]] = {"ours": [by_autograd(drop_in, v)[which] for v in problems]}
        contestants |= timing.copies(moved, count, device)
        if rival is not None:
            contestants["rival"] = [rival(v)[which] for v in problems]
        times, others = timing.measure(contestants, device, tries=1)
        time, copy = times["ours"], min(times["copy_"].median, times["neg"].median)
        ratio = times["rival"].median / time.median if rival else None
        peaks = tuple(peak(contestants[name][0], device) if name in contestants else None for name in ("ours", "rival"))
        both = errors[which], rival_errors[which]
        found.append(Measured(direction, kernels[which], time, copy, ratio, both, (peaks[0], peaks[1]), others))
    return found


def check(v: Values, steps: Steps, dtype: str = "") -> tuple[float, float]:
    """The error of y, and the largest of a gradient, relative to the norm of the definition; they are checked given a dtype.

    Raises:
        WrongResultError: one is beyond roundings.
    """
    truths = Values(**{name: wide(x) for name, x in vars(v).items()})
    gradients = dict(zip((f"d{name}" for name in READS), steps[1](), strict=True))
    forward = Values(**{name: x for name, x in vars(truths).items() if name != "dy"})
    found = {"y": (steps[0](), definition(forward)["y"])}
    found |= {name: (gradients[name], value) for name, value in definition(truths).items()}
    errors = {name: float((x.detach().double() - truth).norm() / truth.norm()) for name, (x, truth) in found.items()}
    if dtype:
        sizes = definition(forward, is_size=True) | definition(truths, is_size=True)
        allowed = 2 * FORMATS[dtype].eps + roundings(v.u.shape[-1]) * FORMATS[dtype].carried
        for name, error in errors.items():
            limit = allowed * float(sizes[name].norm() / found[name][1].norm())
            if not error <= limit:
                raise WrongResultError(f"{name} is {error:.3g} from its definition, allowed are {limit:.3g}")
    return errors.pop("y"), max(errors.values())


def peak(call: Callable[[], Any], device: str) -> int | None:
    """Bytes that a call allocates at once, results included; None on the CPU."""
    import torch

    if device == "cpu":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before
