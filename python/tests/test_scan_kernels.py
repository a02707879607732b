"""Kernels that take turns by shape do the same: bit by bit where every sum is exact, as those of small integers are."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from families.scan import rows_of

import sternway as sw
from sternway._cases.scan_definitions import DEFINITIONS
from sternway._kinds import KINDS, WITH_KERNELS

# For 132 SMs: cooperative rows (few and long), more rows than CTAs, panels whole and split; ends that no tile fills; rows that
# begin inside an aligned vector.
SHAPES = (
    ((1, (1 << 22) + 4096 * 3 + 16), 1),
    ((5, 262144 + 8), 1),
    ((300, 65536), 1),
    ((400, 65536 + 64), 1),
    ((1, (1 << 22) + 4097), 1),
    ((5, 262143), 1),
    ((300, 65537), 1),
    ((2048, 1024), 0),
    ((1000, 8192), 0),
    ((3, 1025, 1024), 1),
)


def early(shape: tuple[int, ...]) -> torch.Tensor:
    """The best comes first in each row: no part behind the first has a record."""
    x = torch.randn(shape, device="cuda")
    x[..., 0] = 100
    return x


def rising(shape: tuple[int, ...]) -> torch.Tensor:
    """In steps: records everywhere, and some parts begin among equals."""
    return (torch.arange(math.prod(shape), device="cuda") // 5000).reshape(shape)


VALUES: dict[str, Callable[[tuple[int, ...]], torch.Tensor]] = {
    "normal": lambda shape: torch.randn(shape, device="cuda"),
    "ties": lambda shape: torch.randint(0, 4, shape, device="cuda"),
    "early": early,
    "rising": rising,
    "no number": lambda shape: torch.full(shape, -math.inf, device="cuda"),
    "NaN": lambda shape: torch.where(torch.rand(shape, device="cuda") < 1e-4, math.nan, torch.randn(shape, device="cuda")),
}


# kind, reverse, tie
SCANS = (("cumsum", False, "last"), ("cummax", False, "last"), ("cummax", True, "first"), ("cummin", False, "first"))


@pytest.mark.gpu
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_kernels_agree(shape: tuple[int, ...], dim: int, values: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, dy = VALUES[values](shape).to(dtype), torch.randint(-2, 3, shape, device="cuda").to(dtype)
    for kind, reverse, tie in SCANS:
        descriptor = sw.ScanBackwardDescriptor(kind, shape, dtype, dim, reverse, tie)
        found = []
        kernels = ["row_pipelined", "row_tiled"] if dim == len(shape) - 1 else ["column_pipelined", "column_tiled"]
        if not KINDS[kind].is_linear and 65536 <= shape[dim] <= 65600 and shape[dim] % 8 == 0:
            kernels.append("row_cluster")
        for kernel in kernels:
            plan = sw.ScanBackwardPlan.select(descriptor, "cuda", sw.PlanPreference(kernel=kernel))
            dx = torch.full_like(dy, math.nan)
            workspace = torch.full((max(1, plan.workspace_size),), 0xAB, dtype=torch.uint8, device="cuda")
            plan.run(dy=dy, x=None if KINDS[kind].is_linear else x, dx=dx, workspace=workspace)
            found.append(dx)
        for kernel, dx in zip(kernels, found, strict=True):
            assert torch.equal(dx, found[0]), f"{kind}, reverse={reverse}, tie={tie}, {kernel}"


@pytest.mark.gpu
@pytest.mark.parametrize("length", [33, 101, 128])
@pytest.mark.parametrize("kind", ["cumprod", "logcumsumexp"])
def test_rows_that_are_done_again_agree(kind: str, length: int, dtype: torch.dtype) -> None:
    """A warp does its rows again where one has a 0 or a -inf; the last warp has fewer of them."""
    torch.manual_seed(length)
    shape = (2003, length)
    rare = torch.rand(shape, device="cuda") < 3 / length
    x = torch.randn(shape, device="cuda").masked_fill(rare, 0 if kind == "cumprod" else -math.inf).to(dtype)
    dy = torch.randint(-2, 3, shape, device="cuda").to(dtype)
    descriptor = sw.ScanBackwardDescriptor(kind, shape, dtype, 1)
    found = []
    for kernel in "row_packed", "row_tiled":
        plan = sw.ScanBackwardPlan.select(descriptor, "cuda", sw.PlanPreference(kernel=kernel))
        dx = torch.full_like(dy, math.nan)
        plan.run(dy=dy, x=x, dx=dx)
        found.append(dx.double())
    assert_near(*found, dtype, 64)


# More rows than clusters; a last slice that is short; smaller CTAs; clusters of more CTAs than every device takes, up to the
# largest; larger CTAs, up to one per SM; rows of more CTAs than a cluster has, several rows at once, or one.
@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("rows", "ctas"),
    [(300, 2), (5, 2.3), (150, 3.7), (70, 9.5), (60, 16), (20, 16.1), (1, 32), (9, 42), (17, 43.3), (3, 170)],
)
@pytest.mark.parametrize("kind", ["cumprod", "cummax", "logcumsumexp"])
def test_row_cluster_agrees(kind: str, rows: int, ctas: float, reverse: bool, dtype: torch.dtype) -> None:
    """Rows that blocks share, some of which hold a 0 or a -inf and are done again; dy as it is, and one number for each row."""
    held = (32768 if dtype.itemsize == 8 else 24576) // dtype.itemsize  # elements of a block of 256 or 192 threads
    shape = (rows, int(held * ctas) // 16 * 16)
    torch.manual_seed(shape[1])
    rare = torch.rand(shape, device="cuda") < 0.3 / shape[1]
    x = torch.randn(shape, device="cuda")
    x = (1 + x / 3000 if kind == "cumprod" else x).masked_fill(rare, 0 if kind == "cumprod" else -math.inf).to(dtype)
    dy = torch.randint(-2, 3, shape, device="cuda").to(dtype)
    descriptor = sw.ScanBackwardDescriptor(kind, shape, dtype, 1, reverse)
    for given in dy, (dy[:, :1] / shape[1]).expand(shape):
        found = []
        for kernel in "row_cluster", "row_tiled":
            plan = sw.ScanBackwardPlan.select(descriptor, "cuda", sw.PlanPreference(kernel=kernel))
            dx = torch.full_like(dy, math.nan)
            workspace = torch.full((max(1, plan.workspace_size),), 0xAB, dtype=torch.uint8, device="cuda")
            plan.run(dy=given, x=x, dx=dx, workspace=workspace)
            found.append(dx.double())
        assert_near(*found, dtype, 8 + 3 * math.sqrt(shape[1]))


# More panels than clusters; clusters of one CTA, of two and of sixteen, with a last slice that is short; panels of a few
# columns; shapes for which other kernels are selected.
@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 8192, 1024), (1, 7777, 136), (3, 4100, 72), (2, 1025, 4096), (5, 513, 32), (4, 31, 8)], ids=str
)
@pytest.mark.parametrize("kind", ["cumprod", "logcumsumexp"])
def test_column_cluster_agrees(kind: str, shape: tuple[int, ...], reverse: bool, dtype: torch.dtype) -> None:
    """Columns of a wider tensor, some of which hold a 0 or a -inf and are done again; dy as it is, and one row for all."""
    torch.manual_seed(shape[1])
    rare = torch.rand(shape, device="cuda") < 0.02 / shape[1]
    x = torch.randn(shape, device="cuda")
    x = (1 + x / 3000 if kind == "cumprod" else x).masked_fill(rare, 0 if kind == "cumprod" else -math.inf)
    dy = torch.randint(-2, 3, shape, device="cuda")

    def inside(values: torch.Tensor | float) -> torch.Tensor:
        wide = torch.full((*shape[:2], shape[2] + 16), math.nan, dtype=dtype, device="cuda")
        wide[..., 8:-8] = values
        return wide

    for given in inside(dy)[..., 8:-8], (dy[:, :1] / shape[1]).to(dtype).expand(shape):
        found = []
        for kernel in "column_cluster", "column_tiled":
            plan = sw.ScanBackwardPlan.select(
                sw.ScanBackwardDescriptor(kind, shape, dtype, 1, reverse), "cuda", sw.PlanPreference(kernel=kernel)
            )
            wide = inside(math.nan)
            workspace = torch.full((max(1, plan.workspace_size),), 0xAB, dtype=torch.uint8, device="cuda")
            plan.run(dy=given, x=inside(x)[..., 8:-8], dx=wide[..., 8:-8], workspace=workspace)
            assert torch.cat((wide[..., :8], wide[..., -8:])).isnan().all()
            found.append(wide[..., 8:-8].double())
        assert_near(*found, dtype, 8 + 3 * math.sqrt(shape[1]))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "dim", "kernel"), [((5, 40960), 1, "row_cluster"), ((3000, 64), 0, "column_cluster")], ids=str
)
def test_clusters_are_captured(shape: tuple[int, ...], dim: int, kernel: str) -> None:
    """Also by the first run of a plan, which asks the driver how many of them a device has."""
    x, dy = 1 + torch.randn(shape, device="cuda") / 3000, torch.randn(shape, device="cuda")
    plan = sw.ScanBackwardPlan.select(
        sw.ScanBackwardDescriptor("cumprod", shape, torch.float32, dim), "cuda", sw.PlanPreference(kernel=kernel)
    )
    captured, dx = torch.full_like(dy, math.nan), torch.full_like(dy, math.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(dy=dy, x=x, dx=captured)
    for _ in range(2):
        dy.mul_(-2)
        graph.replay()
    plan.run(dy=dy, x=x, dx=dx)
    assert torch.equal(captured, dx)


# Columns of a warp, of a block, of tiles in a block, of tiles in some blocks; in more of them than are on an H100 at once.
@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(50, 9, 33), (7, 128, 64), (70, 600, 60), (1, 40000, 5), (170, 9000, 3)], ids=str)
@pytest.mark.parametrize("kind", ["cumprod", "logcumsumexp"])
def test_columns_that_are_done_again_agree(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Where a column has a 0 or a -inf the block does its own again, or the strip is marked for another launch."""
    torch.manual_seed(shape[1])
    rare = torch.rand(shape, device="cuda") < 0.1 / shape[1]
    x = torch.randn(shape, device="cuda")
    x = (1 + x / 300 if kind == "cumprod" else x).masked_fill(rare, 0 if kind == "cumprod" else -math.inf).to(dtype)
    dy = torch.randint(-2, 3, shape, device="cuda").to(dtype)
    rows = torch.empty((shape[0], shape[2], shape[1]), dtype=dtype, device="cuda")
    found = []
    for kernel, like, dim in ("column_tiled", dy, 1), ("row_tiled", rows, 2):
        plan = sw.ScanBackwardPlan.select(
            sw.ScanBackwardDescriptor(kind, like.shape, dtype, dim), "cuda", sw.PlanPreference(kernel=kernel)
        )
        dx = torch.full_like(like, math.nan)
        given = [t if dim == 1 else t.transpose(1, 2).contiguous() for t in (dy, x)]
        plan.run(dy=given[0], x=given[1], dx=dx)
        found.append(dx.double() if dim == 1 else dx.transpose(1, 2).double())
    assert_near(*found, dtype, 8 + 3 * math.sqrt(shape[1]))


@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [301, 1001, 8193, 50257])
@pytest.mark.parametrize("kind", WITH_KERNELS)
def test_rows_that_begin_inside_vectors(kind: str, length: int, reverse: bool, dtype: torch.dtype) -> None:
    """Of a length that no vector divides: nothing between the rows is written, and what is there counts nowhere."""
    torch.manual_seed(length)
    shape = (61, length)
    x = torch.randn(shape, device="cuda")
    dy = torch.randint(-2, 3, shape, device="cuda")

    def apart(values: torch.Tensor) -> torch.Tensor:
        return torch.full((61, length + 3), math.nan, dtype=dtype, device="cuda")[:, :length].copy_(values)

    operands = {"dy": apart(dy), "x": None if KINDS[kind].is_linear else apart(1 + x / 300 if kind == "cumprod" else x)}
    found = []
    for kernel in None, "row_tiled":
        plan = sw.ScanBackwardPlan.select(
            sw.ScanBackwardDescriptor(kind, shape, dtype, 1, reverse), "cuda", sw.PlanPreference(kernel=kernel)
        )
        whole = torch.full((61, length + 3), 7.0, dtype=dtype, device="cuda")
        whole[:, :length] = math.nan
        plan.run(**operands, dx=whole[:, :length])
        assert (whole[:, length:] == 7).all()
        found.append(whole[:, :length].double())
    assert_near(*found, dtype, 8 + 3 * math.sqrt(length))


# By kernel: rows of one warp, of one CTA, of several CTAs; columns of one tile and of more, panels whole and split.
KERNELS = {
    "row_packed": ((37, 100), 1),
    "row_resident": ((13, 3000), 1),
    "row_resident, inside vectors": ((13, 3001), 1),
    "row_cluster": ((5, 40960), 1),
    "row_cluster, fallback pass of several CTAs": ((5, 135168), 1),  # 16.5 tiles or more
    "row_pipelined": ((3, 49152), 1),
    "row_pipelined, fallback pass of several CTAs": ((3, 135168), 1),
    "column_tiled": ((4, 90, 40), 1),
    "column_tiled, several tiles": ((700, 33), 0),
    "column_pipelined": ((600, 1024), 0),
    "column_pipelined, split panels": ((5000, 64), 0),
    "column_cluster": ((3000, 64), 0),
}


def climb(n: int, to: float) -> torch.Tensor:
    return torch.linspace(0, to, n, device="cuda")


def random(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape, device="cuda")


def whole(shape: tuple[int, ...]) -> torch.Tensor:
    """Of which all sums are exact, and some 0."""
    return torch.randint(-2, 3, shape, device="cuda")


def placed(place: float, value: float, other: torch.Tensor) -> torch.Tensor:
    """One value at a place of each row, 0 being the first and 1 the last."""
    other[..., int(place * (other.shape[-1] - 1))] = value
    return other


def valleys(shape: tuple[int, ...]) -> torch.Tensor:
    """Of which products fall to 2^-400 and come back to 1, again and again."""
    falls = torch.arange(shape[-1], device="cuda") // 400 % 2 == 0
    return torch.where(falls, 0.5, 2.0).expand(shape)


def level(shape: tuple[int, ...]) -> torch.Tensor:
    """dy for which dx of valleys is what precedes it, so that none of it hides what is lost in them."""
    dy = 1 - valleys(shape).roll(-1, -1)
    return placed(1, 1.0, dy.contiguous())


# Rows of x and of dy. Products that leave their range by falling, and by rising; results that are too small to be formed from
# what is left of such products; sums of exponentials that rise, within what one base allows and beyond.
FAR: dict[str, tuple[str, Callable[[tuple[int, ...]], torch.Tensor], Callable[[tuple[int, ...]], torch.Tensor]]] = {
    "uniform": ("cumprod", random, lambda shape: torch.randn(shape, device="cuda")),
    "normal": ("cumprod", lambda shape: torch.randn(shape, device="cuda"), lambda shape: torch.randn(shape, device="cuda")),
    "near 1": ("cumprod", lambda shape: 1 + torch.randn(shape, device="cuda") / 10, lambda shape: random(shape) / 64),
    "normal, with zeros": ("cumprod", lambda shape: placed(0.6, 0, torch.randn(shape, device="cuda")), random),
    "valleys": ("cumprod", valleys, level),
    "next to nothing": ("cumprod", lambda shape: 2 ** (-100 * random(shape)), random),
    "mask": ("cumprod", lambda shape: (random(shape) > 0.01).float(), whole),
    "signs": ("cumprod", lambda shape: torch.randint(-1, 2, shape, device="cuda"), whole),
    "steep": ("cumprod", lambda shape: 2 ** (-14 * random(shape)), random),
    "a rise": ("cumprod", lambda shape: placed(0.2, 1.0078125, random(shape)), random),
    "a great rise": ("cumprod", lambda shape: placed(0.9, 2.0**15, random(shape)), random),
    "dy begins with 0": ("cumprod", random, lambda shape: placed(0, 0, random(shape))),
    "dy is 0": ("cumprod", random, lambda shape: 0 * random(shape)),
    "dy ends alone": (
        "cumprod",
        lambda shape: 2 ** (-260 / shape[-1] * random(shape)),
        lambda shape: placed(1, 2.0**15, 0 * random(shape)),
    ),
    "dy is great where products are small": (
        "cumprod",
        lambda shape: 2 ** (-280 / shape[-1] * random(shape)),
        lambda shape: placed(0.97, 2.0**100, 2.0**-60 * random(shape)),
    ),
    "NaN": ("cumprod", lambda shape: placed(0.3, math.nan, random(shape)), random),
    "NaN in dy": ("cumprod", random, lambda shape: placed(0.7, math.nan, random(shape))),
    "to 30": ("logcumsumexp", lambda shape: random(shape) + climb(shape[-1], 30), random),
    "to 60": ("logcumsumexp", lambda shape: random(shape) + climb(shape[-1], 60), random),
    "to 300": ("logcumsumexp", lambda shape: random(shape) + climb(shape[-1], 300), random),
    "down": ("logcumsumexp", lambda shape: random(shape) - climb(shape[-1], 80), random),
    "far": ("logcumsumexp", lambda shape: 10 * torch.randn(shape, device="cuda") + 300, random),
    "low first": ("logcumsumexp", lambda shape: placed(0, -45.0, 10 * torch.randn(shape, device="cuda")), random),
    "lowest first": ("logcumsumexp", lambda shape: placed(0, -75.0, 10 * torch.randn(shape, device="cuda")), random),
    "rise, then down": ("logcumsumexp", lambda shape: placed(0, -25.0, random(shape) - climb(shape[-1], 80)), random),
    "small dy": ("logcumsumexp", lambda shape: random(shape) + climb(shape[-1], 60), lambda shape: 2.0**-14 * random(shape)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("values", FAR)
def test_far_values(values: str, kernel: str, reverse: bool, dtype: torch.dtype) -> None:
    """By definition, of rows that leave the range of the quick ways, or nearly."""
    torch.manual_seed(len(values))
    (shape, dim), (kind, *make) = KERNELS[kernel], FAR[values]
    turned = (*shape[:dim], *shape[dim + 1 :], shape[dim])
    x, dy = (f(turned).to(dtype) for f in make)
    if reverse:
        x, dy = x.flip(-1), dy.flip(-1)
    x, dy = x.movedim(-1, dim).contiguous(), dy.movedim(-1, dim).contiguous()
    plan = sw.ScanBackwardPlan.select(
        sw.ScanBackwardDescriptor(kind, shape, dtype, dim, reverse),
        "cuda",
        sw.PlanPreference(kernel=kernel.split(",")[0]),
    )
    dx = torch.full_like(dy, math.nan)
    plan.run(dy=dy, x=x, dx=dx)
    truth, _ = DEFINITIONS[kind].gradient(rows_of(dy, dim, reverse), rows_of(x, dim, reverse), "last")
    found = rows_of(dx, dim, reverse)
    assert (np.isnan(found) == np.isnan(truth)).all()
    size = np.nanmax(abs(truth), axis=1, keepdims=True, initial=0)
    accumulator = torch.float64 if dtype == torch.float64 else torch.float32
    n = shape[dim]
    roundings = 4 + 1.5 * n**0.5 if kind == "cumprod" else 8 + 2 * math.log2(n)
    bound = (
        size * (torch.finfo(dtype).eps + roundings * torch.finfo(accumulator).eps)
        + torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    )
    assert (np.nan_to_num(abs(found - truth)) <= bound).all(), float(np.nanmax(abs(found - truth) / bound))


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype, roundings: float) -> None:
    """Within a rounding of the dtype and so many of the accumulator."""
    accumulator = torch.float64 if dtype == torch.float64 else torch.float32
    assert (ours - theirs).norm() <= (torch.finfo(dtype).eps + roundings * torch.finfo(accumulator).eps) * theirs.norm()
