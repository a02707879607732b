"""``python -m sternway bench packed``: scans of packed sequences beside the same scan of one sequence, and exclusive scans.

The scans are those with CUDA kernels of their own, the linear recurrence, and their gradients. Sequences have random lengths of
a given mean; those of mean length 1 have one element each. Bounds are int32.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any, cast

from .._cases import TorchSource, linear_recurrence, scan
from .._cases.progress import Progress
from .._cases.table import Table, shape_text, time_text
from .._kinds import EXTREMA, KINDS, WITH_KERNELS, ScanKind
from . import timing
from .kernels import kernels_of
from .report import NewCsv, disturbed, machine

DIRECTIONS = ("forward", "backward")
DTYPES = ("float32", "bfloat16")
LINEAR = "linear_recurrence"
SHAPES = {
    "cuda": (
        ((1, 1 << 26), -1, (1, 100, 4096, 1 << 20)),
        ((8192, 8192), 0, (1, 100, 4096)),
        ((8192, 8192), -1, (1, 100, 4096)),
        ((1, 1 << 20), -1, (1,)),
    ),
    "cpu": (
        ((1, 1 << 22), -1, (1, 100, 4096, 1 << 20)),
        ((2048, 2048), 0, (1, 100)),
        ((1, 1 << 20), -1, (1,)),
    ),
    "quick": (((1, 1 << 16), -1, (1, 100)),),
}
"""Shapes, the dimension that is scanned, and the mean lengths of sequences along it."""
COLUMNS = (
    "kind", "direction", "shape", "dim", "dtype", "device", "variant", "sequences", "kernel", "plain_ms", "ms", "ratio",
    "others",
)  # fmt: skip


def bench_packed(device: str, chosen: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print the time of each variant, and its ratio to that of the plain scan, of the rows that contain a text."""
    import torch

    rows = [
        (kind, direction, *shape, dtype)
        for kind, direction, shape, dtype in itertools.product(
            (*WITH_KERNELS, LINEAR), DIRECTIONS, SHAPES[timing.sizes(device)], DTYPES
        )
        if chosen in f"{kind} {direction} {shape_text(shape[0])} dim {shape[1]} {dtype}"
    ]
    if not rows:
        print("No such row; see --rows.", file=sys.stderr)
        return 2
    print(f"{machine(device)}\n")
    with new_csv(COLUMNS) as file, Progress("bench packed", len(rows), quiet=quiet) as progress:
        table = Table(
            progress, kind=17, direction=9, shape=12, dim=-3, dtype=9, variant=19, plain=-8, time=-8, ratio=-6, note=4
        )
        table.head()
        for kind, direction, shape, dim, means, dtype in rows:
            said = kind, direction, shape_text(shape), dim, dtype
            progress.step(" ".join(map(str, said)))
            kernels, times, others = measure(kind, direction, shape, dim, means, dtype, device)
            plain = times["plain"]
            for variant, seconds in list(times.items())[1:]:
                ratio = seconds / plain
                table.row(*said, variant, time_text(plain), time_text(seconds), f"{ratio:.2f}x", disturbed(others))
                count = sequences(variant, shape[dim])
                file.row(*said, device, variant, count, kernels[variant], plain * 1e3, seconds * 1e3, ratio, others)
            torch.cuda.empty_cache()
    return 0


def sequences(variant: str, extent: int) -> int:
    """The number of sequences along a dimension of this extent."""
    return extent // int(variant.removeprefix("mean length ")) if variant != "exclusive" else 1


def variants(kind: str, extent: int, means: tuple[int, ...], device: str) -> dict[str, dict[str, Any]]:
    """The options of a call by the name of the variant; first the plain scan."""
    import torch

    found: dict[str, dict[str, Any]] = {"plain": {}}
    if kind not in (*EXTREMA, LINEAR):
        found["exclusive"] = {"exclusive": True}
    generator = torch.Generator(device).manual_seed(0)
    for mean in means:
        if mean == 1:
            bounds = torch.arange(extent + 1, dtype=torch.int32, device=device)
        else:
            inner = torch.randint(extent + 1, (extent // mean - 1,), generator=generator, device=device)
            bounds = torch.nn.functional.pad(inner.sort().values, (1, 1)).int()
            bounds[-1] = extent
        found[f"mean length {mean}"] = {"cu_seqlens": bounds}
    return found


def measure(
    kind: str, direction: str, shape: tuple[int, int], dim: int, means: tuple[int, ...], dtype: str, device: str
) -> tuple[dict[str, str], dict[str, float], float]:
    """The kernels and seconds of each variant, and the processors that other work took; on a GPU in replays of CUDA graphs."""
    first, moved = call_of(kind, direction, shape, dim, dtype, device, 0)
    calls = [first]
    for seed in range(1, timing.buffers(moved, device)):
        calls.append(call_of(kind, direction, shape, dim, dtype, device, seed)[0])
    contestants: dict[str, list[timing.Call]] = {
        name: [functools.partial(call, **options) for call in calls]
        for name, options in variants(kind, shape[dim], means, device).items()
    }
    kernels = {name: kernels_of(found[0]) for name, found in contestants.items()}
    if device != "cpu":
        return kernels, timing.replayed(contestants, device), 0.0
    times, others = timing.measure(contestants, device)
    return kernels, {name: time.median for name, time in times.items()}, others


def call_of(
    kind: str, direction: str, shape: tuple[int, int], dim: int, dtype: str, device: str, seed: int
) -> tuple[Callable[..., object], int]:
    """A call that writes into outputs of its own and takes the options of a variant, and the bytes of its operands."""
    import torch

    import sternway as sw

    source, given = TorchSource(device, seed), list[Any]()
    if kind == LINEAR:
        v = linear_recurrence.inputs(dim, source, shape, dtype)
        backward = v.dy, v.a, sw.linear_recurrence(v.a, v.b, dim)
        given += (v.a, v.b) if direction == "forward" else backward
        outputs = 1 if direction == "forward" else 2
    else:
        v = scan.inputs(kind, dim, source, shape, dtype)
        is_linear = KINDS[cast("ScanKind", kind)].is_linear
        given += (v.x,) if direction == "forward" else (v.dy,) if is_linear else (v.dy, v.x)
        outputs = 1
    out = [torch.empty_like(v.dy) for _ in range(outputs)]
    function = getattr(sw, kind if direction == "forward" else f"{kind}_backward")
    moved = sum(x.numel() * x.itemsize for x in (*given, *out))
    return functools.partial(function, *given, dim=dim, out=out if outputs > 1 else out[0]), moved
