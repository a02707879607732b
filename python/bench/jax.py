"""``python -m sternway bench jax``: forward and gradient of each operation through ``sternway.jax``, against JAX's own.

Both are compiled by ``jax.jit``: the value and the gradients of all floating operands, for a given cotangent. They take turns.
The error of a result is its largest difference from the same expression of JAX in float64, in units in the last place of the
largest element.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .._cases.progress import Progress
from .._cases.table import Table, shape_text, time_text
from . import timing
from .report import NewCsv, disturbed, machine
from .timing import in_turn, watched

DTYPES = {"cuda": ("float32", "bfloat16"), "cpu": ("float32", "bfloat16"), "quick": ("float32",)}
COLUMNS = (
    "op", "shape", "dtype", "device", "ms", "best_ms", "jax_ms", "jax_best_ms", "ratio", "error", "jax_error", "others",
)  # fmt: skip
BLOCKS = 15
BLOCK = 0.05  # seconds of calls that are timed together, as calls on a GPU overlap


@dataclass(frozen=True)
class Rival:
    """An operation by sternway and by JAX, on operands that are made for a shape.

    Attributes:
        make: the floating operands, and the others, by name.
        cpu, cuda: the shape on each device.
        quick: the shape of ``--quick``, on every device; None: the row is left out. The programs of JAX's own scans grow with
            the length of the axis, and so does the time to compile them, which is most of the time of a row.
    """

    op: str
    make: Callable[..., tuple[dict[str, Any], dict[str, Any]]]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    cpu: tuple[int, ...]
    cuda: tuple[int, ...]
    quick: tuple[int, ...] | None


def bench_jax(device: str, chosen: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print the times and errors of every row whose op, shape and dtype contain a text, and write them to a CSV file."""
    import jax

    kind, _, ordinal = device.partition(":")
    place = jax.local_devices(backend=kind)[int(ordinal or 0)]
    size = timing.sizes(device)
    rows = [
        (rival, shape, dtype)
        for rival in rivals()
        for dtype in DTYPES[size]
        if (shape := getattr(rival, size)) and chosen in f"{rival.op} {shape_text(shape)} {dtype}"
    ]
    if not rows:
        print("No such row; see --rows.", file=sys.stderr)
        return 2
    print(f"{machine(device)}\n")
    with (
        jax.default_device(place),
        new_csv(COLUMNS) as file,
        Progress("bench jax", len(rows), quiet=quiet) as progress,
    ):
        table = Table(progress, op=34, shape=18, dtype=9, time=-9, jax=-9, ratio=-7, error=-8, of_jax=-8, note=4)
        table.head()
        for rival, shape, dtype in rows:
            progress.step(f"{rival.op} {shape_text(shape)} {dtype}")
            (ours, theirs), errors, others = measure(rival, shape, dtype)
            best = min(ours), min(theirs)
            median, of_jax = statistics.median(ours), statistics.median(theirs)
            numbers = time_text(median), time_text(of_jax), f"{of_jax / median:.2f}x", *(f"{e:.3g}" for e in errors)
            table.row(rival.op, shape_text(shape), dtype, *numbers, disturbed(others))
            times = median * 1e3, best[0] * 1e3, of_jax * 1e3, best[1] * 1e3
            file.row(rival.op, shape_text(shape), dtype, device, *times, of_jax / median, *errors, others)
    return 0


def measure(rival: Rival, shape: tuple[int, ...], dtype: str) -> tuple[list[list[float]], list[float], float]:
    """Seconds of the calls by sternway and by JAX, their errors, and the processors that other work took meanwhile."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    floats, others = rival.make(np.random.default_rng(0), shape)
    narrow = {name: jnp.asarray(x, dtype) for name, x in floats.items()}
    fixed = {name: jnp.asarray(x) for name, x in others.items()}
    out = jax.eval_shape(lambda f: rival.theirs(**f, **fixed), narrow)
    dy = np.random.default_rng(1).normal(size=out.shape)

    def compiled(function: Callable[..., Any], floats: Any, dy: Any) -> Callable[[], Any]:
        @jax.jit
        def step(floats: Any, fixed: Any, dy: Any) -> Any:
            y, vjp = jax.vjp(lambda f: function(**f, **fixed), floats)
            return y, vjp(dy)[0]

        return lambda: step(floats, fixed, dy)

    calls = [compiled(function, narrow, jnp.asarray(dy, out.dtype)) for function in (rival.ours, rival.theirs)]
    with jax.enable_x64(True):
        wide = {name: jnp.asarray(np.asarray(x, np.float64)) for name, x in narrow.items()}
        narrowed = np.asarray(jnp.asarray(dy, out.dtype), np.float64)
        truth = jax.tree.map(np.asarray, compiled(rival.theirs, wide, jnp.asarray(narrowed))())
    errors = [max(jax.tree.leaves(jax.tree.map(error, call(), truth))) for call in calls]
    del truth, wide
    times, taken = timed(calls)
    return times, errors, taken


def error(result: Any, truth: Any) -> float:
    """The largest difference, in units in the last place of the largest element of the truth."""
    import jax.numpy as jnp
    import numpy as np

    largest = float(np.abs(truth).max(initial=0)) or 1.0
    difference = np.abs(np.asarray(result, np.float64) - truth).max(initial=0)
    return float(difference / (largest * float(jnp.finfo(result.dtype).eps)))  # type: ignore[no-untyped-call]


def timed(calls: list[Callable[[], Any]]) -> tuple[list[list[float]], float]:
    """Seconds of each call, as means of blocks that take turns, and the processors that other work took meanwhile."""
    import jax

    counts = []
    for call in calls:
        jax.block_until_ready(call())  # type: ignore[no-untyped-call]
        start = time.perf_counter()
        jax.block_until_ready(call())  # type: ignore[no-untyped-call]
        counts.append(max(1, round(BLOCK / (time.perf_counter() - start))))

    def block(k: int) -> None:
        for _ in range(counts[k]):
            result = calls[k]()
        jax.block_until_ready(result)  # type: ignore[no-untyped-call]

    blocks = {str(k): functools.partial(block, k) for k in range(len(calls))}
    (walls, _), others = watched(lambda: in_turn(blocks, lambda: None, lambda rounds: rounds < timing.effort.part_of(BLOCKS)))
    return [[seconds / count for seconds in walls[k]] for k, count in zip(blocks, counts, strict=True)], others


def rivals() -> Iterator[Rival]:
    """The rows of the benchmark."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import sternway.jax as sj

    def one(random: Any, shape: Any) -> Any:
        return {"x": random.normal(size=shape)}, {}

    def near_one(random: Any, shape: Any) -> Any:
        return {"x": 1 + 0.02 * random.normal(size=shape)}, {}

    def distinct(random: Any, shape: Any) -> Any:
        """Rows and columns without equal values in bfloat16, among which JAX would share the gradient of an extremum."""
        count = max(shape)
        bits = 0x3C00 + random.permutation(count)[sum(np.ogrid[: shape[0], : shape[1]]) % count]
        return {"x": (bits.astype(np.uint32) << 16).view(np.float32)}, {}

    makers = {"cumprod": near_one, "cummax": distinct, "cummin": distinct}
    for name in (name for name in sj.__all__ if name.startswith("cum")):
        for axis in (1, 0):
            yield Rival(
                f"{name}, axis {axis}", makers.get(name, one),
                lambda x, name=name, axis=axis: getattr(sj, name)(x, axis),
                lambda x, name=name, axis=axis: getattr(jax.lax, name)(x, axis),
                (512, 2048), (8192, 8192), (64, 4) if axis == 1 else None,
            )  # fmt: skip

    def rotated(x: Any) -> Any:
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        d = x.shape[-1]
        angle = jnp.arange(x.shape[-2])[:, None] * 10000.0 ** (-jnp.arange(0, d, 2) / d)
        c, s = jnp.cos(angle).astype(wide.dtype), jnp.sin(angle).astype(wide.dtype)
        a, b = jnp.split(wide, 2, -1)
        return jnp.concatenate([a * c - b * s, b * c + a * s], -1).astype(x.dtype)

    yield Rival(
        "rope", one, lambda x: sj.rope(x, pairing="half"), rotated,
        (1, 8, 512, 64), (4, 32, 4096, 128), (1, 2, 64, 32),
    )  # fmt: skip
    yield from quantizations()

    def ends(random: Any, shape: Any) -> Any:
        return {"a": random.normal(size=shape), "b": random.normal(size=shape), "weight": random.random(shape[1:])}, {}

    yield Rival(
        "lerp", ends, sj.lerp, lambda a, b, weight: a + weight * (b - a),
        (1024, 1024), (8192, 8192), (64, 64),
    )  # fmt: skip

    def indexed(random: Any, shape: Any) -> Any:
        rows, dim, *count = shape
        return {"weight": random.normal(size=(rows, dim))}, {"indices": random.integers(0, rows, count).astype("int32")}

    yield Rival(
        "embedding", indexed, sj.embedding, lambda indices, weight: weight[indices],
        (20000, 64, 8192), (128256, 4096, 16384), (100, 16, 64),
    )  # fmt: skip
    yield Rival(
        "embedding bag", indexed, sj.embedding_bag, lambda indices, weight: weight[indices].sum(1),
        (20000, 64, 1024, 8), (1048576, 128, 8192, 20), (100, 16, 32, 4),
    )  # fmt: skip


def quantizations() -> Iterator[Rival]:
    """The rows of the quantizations."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import sternway.jax as sj

    def stored(random: Any, shape: Any) -> Any:
        return {"scale": random.uniform(0.5, 2, shape[:1])}, {"q": random.integers(-128, 128, shape).astype("int8")}

    yield Rival(
        "dequantize", stored, lambda q, scale: sj.dequantize_per_token(q, scale),
        lambda q, scale: q.astype(scale.dtype) * scale[:, None],
        (1024, 1024), (8192, 8192), (64, 64),
    )  # fmt: skip

    def scaled(random: Any, shape: Any) -> Any:
        """Elements of at most 0.3 steps from a whole number of steps, which every precision rounds to the same one."""
        scale = random.uniform(0.2, 0.4, shape[:1])
        steps = np.round(3 * random.normal(size=shape)) + random.uniform(-0.3, 0.3, shape)
        return {"x": scale[:, None] * steps, "scale": scale}, {}

    def fake_quantized(x: Any, scale: Any) -> Any:
        ratio = x / scale[:, None]
        rounded = ratio + jax.lax.stop_gradient(jnp.round(ratio) - ratio)
        return jnp.where(rounded < -8, -8, jnp.where(rounded > 7, 7, rounded)) * scale[:, None]

    yield Rival(
        "fake quantize", scaled, lambda x, scale: sj.fake_quantize_per_token(x, scale, quant_min=-8, quant_max=7),
        fake_quantized, (1024, 1024), (8192, 8192), (64, 64),
    )  # fmt: skip
