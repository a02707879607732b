"""Kernels that take turns by shape do the same: bit by bit where every sum is exact, as those of small integers are."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import sternway as sw

# For 132 multiprocessors: teams of blocks (few long rows), more rows than blocks, strips whole and in parts; ends that no tile
# fills; rows that begin inside of an aligned vector.
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
        for kernel in ("long", "tiles") if dim == len(shape) - 1 else ("strips", "columns"):
            plan = sw.ScanBackwardPlan.select(descriptor, "cuda", sw.PlanPreference(kernel=kernel))
            dx = torch.full_like(dy, math.nan)
            workspace = torch.full((max(1, plan.workspace_size),), 0xAB, dtype=torch.uint8, device="cuda")
            plan.run(dy=dy, x=None if kind == "cumsum" else x, dx=dx, workspace=workspace)
            found.append(dx)
        assert torch.equal(*found), f"{kind}, reverse={reverse}, tie={tie}"


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
    for kernel in "rows", "tiles":
        plan = sw.ScanBackwardPlan.select(descriptor, "cuda", sw.PlanPreference(kernel=kernel))
        dx = torch.full_like(dy, math.nan)
        plan.run(dy=dy, x=x, dx=dx)
        found.append(dx.double())
    assert_near(*found, dtype, 64)


# More rows than blocks have at once; a last piece that is short; as many pieces as a row can have.
@pytest.mark.gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("rows", "pieces"), [(300, 2), (5, 2.3), (70, 9.5), (1, 32)])
@pytest.mark.parametrize("kind", ["cumprod", "logcumsumexp"])
def test_pieces_agree(kind: str, rows: int, pieces: float, reverse: bool, dtype: torch.dtype) -> None:
    """Rows that blocks share, some of which hold a 0 or a -inf and are done again; dy as it is, and one number for each row."""
    held = 32768 // dtype.itemsize if kind == "cumprod" or dtype.itemsize > 2 else 8192  # elements of a block
    shape = (rows, int(held * pieces) // 16 * 16)
    torch.manual_seed(shape[1])
    rare = torch.rand(shape, device="cuda") < 0.3 / shape[1]
    x = torch.randn(shape, device="cuda")
    x = (1 + x / 3000 if kind == "cumprod" else x).masked_fill(rare, 0 if kind == "cumprod" else -math.inf).to(dtype)
    dy = torch.randint(-2, 3, shape, device="cuda").to(dtype)
    descriptor = sw.ScanBackwardDescriptor(kind, shape, dtype, 1, reverse)
    for given in dy, (dy[:, :1] / shape[1]).expand(shape):
        found = []
        for kernel in "pieces", "tiles":
            plan = sw.ScanBackwardPlan.select(descriptor, "cuda", sw.PlanPreference(kernel=kernel))
            dx = torch.full_like(dy, math.nan)
            workspace = torch.full((max(1, plan.workspace_size),), 0xAB, dtype=torch.uint8, device="cuda")
            plan.run(dy=given, x=x, dx=dx, workspace=workspace)
            found.append(dx.double())
        assert_near(*found, dtype, 8 + 3 * math.sqrt(shape[1]))


# Columns of a warp, of a block, of tiles in a block, of tiles in some blocks.
@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(50, 9, 33), (7, 128, 64), (70, 600, 60), (1, 40000, 5)], ids=str)
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
    for kernel, like, dim in ("columns", dy, 1), ("tiles", rows, 2):
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
@pytest.mark.parametrize("kind", ["cumsum", "cumprod", "cummax", "logcumsumexp"])
def test_rows_that_begin_inside_vectors(kind: str, length: int, reverse: bool, dtype: torch.dtype) -> None:
    """Of a length that no vector divides: nothing between the rows is written, and what is there counts nowhere."""
    torch.manual_seed(length)
    shape = (61, length)
    x = torch.randn(shape, device="cuda")
    dy = torch.randint(-2, 3, shape, device="cuda")

    def apart(values: torch.Tensor) -> torch.Tensor:
        return torch.full((61, length + 3), math.nan, dtype=dtype, device="cuda")[:, :length].copy_(values)

    operands = {"dy": apart(dy), "x": None if kind == "cumsum" else apart(1 + x / 300 if kind == "cumprod" else x)}
    found = []
    for kernel in None, "tiles":
        plan = sw.ScanBackwardPlan.select(
            sw.ScanBackwardDescriptor(kind, shape, dtype, 1, reverse), "cuda", sw.PlanPreference(kernel=kernel)
        )
        whole = torch.full((61, length + 3), 7.0, dtype=dtype, device="cuda")
        whole[:, :length] = math.nan
        plan.run(**operands, dx=whole[:, :length])
        assert (whole[:, length:] == 7).all()
        found.append(whole[:, :length].double())
    assert_near(*found, dtype, 8 + 3 * math.sqrt(length))


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype, roundings: float) -> None:
    """Within a rounding of the dtype and so many of the accumulator."""
    accumulator = torch.float64 if dtype == torch.float64 else torch.float32
    assert (ours - theirs).norm() <= (torch.finfo(dtype).eps + roundings * torch.finfo(accumulator).eps) * theirs.norm()
