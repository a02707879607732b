"""unique_rows: values against torch.unique, strides, padding, both kernels, indices that are no row, capture in a graph."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as hs
from support import Guarded, Snapshot, name_of

import sternway as sw
from sternway import UniqueRowsDescriptor, UniqueRowsPlan, unique_rows

INTEGERS = (torch.int32, torch.int64)
KERNELS = ("single", "marked")
SHAPES = ("rows", torch.int64), ("inverse", torch.int32), ("count", torch.int64)
# Rows and indices: around a cell, a group of cells, a block, what one block does; a large table.
SIZES = (
    (1, 1), (1, 5000), (31, 33), (32, 2048), (33, 2047), (1000, 640), (1024, 1025), (32769, 8192), (1 << 17, 8192),
    ((1 << 17) + 1, 9), (50, 8193), (300_000, 70_000), (3_000_000, 1_400_000), (1 << 30, 40),
)  # fmt: skip


def drawn(rows: int, total: int, device: str, dtype: torch.dtype, skewed: bool = False) -> torch.Tensor:
    """Indices of which all are equally likely, or the first ones likelier."""
    generator = torch.Generator().manual_seed(total)
    power = 6 if skewed else 1
    uniform = torch.rand(total, generator=generator, dtype=torch.float64) ** power
    return (uniform * rows).long().clamp(max=rows - 1).to(device, dtype)


def expected(indices: torch.Tensor, padding: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and places by torch.unique; indices that are no row, which are negative here, have the place -1."""
    right = indices >= 0
    counted = right if padding is None else right & (indices != padding)
    unique, places = torch.unique(indices[counted].long(), return_inverse=True)
    inverse = torch.full(indices.shape, -1, dtype=torch.int32, device=indices.device)
    inverse[right] = 0
    inverse[counted] = (places + (padding is not None)).int()
    return unique, inverse


def check(indices: torch.Tensor, rows: int, padding: int | None, got: Any) -> None:
    unique, inverse = expected(indices, padding if padding is None else padding % rows)
    found, places, count = got
    n = int(count)
    assert count.shape == (1,)
    assert found.shape == (min(rows, len(indices)),)
    assert torch.equal(found[:n], unique)
    assert bool((found[n:] == -1).all())
    assert torch.equal(places, inverse)


def run(
    indices: torch.Tensor, rows: int, padding: int | None = None, kernel: str | None = None, layout: str = "contiguous"
) -> Any:
    """What a plan writes between guards."""
    descriptor = UniqueRowsDescriptor(rows, len(indices), indices.dtype, padding)
    plan = UniqueRowsPlan.select(descriptor, indices.device, sw.PlanPreference(kernel=kernel))
    assert kernel in (None, plan.sku.kernel)
    extents = min(rows, len(indices)), len(indices), 1
    outputs = {
        name: Guarded((n,), dtype, str(indices.device), layout) for (name, dtype), n in zip(SHAPES, extents, strict=True)
    }
    plan.run(indices=indices, **{name: out.tensor for name, out in outputs.items()})
    return tuple(out.take() for out in outputs.values())


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_against_torch(size: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    """Few indices with many places and many with few, with padding at both ends and in between, by each kernel."""
    rows, total = size
    small = rows <= 1 << 17 and total <= 1 << 13
    for skewed in (False, True):
        indices = drawn(rows, total, device, dtype, skewed)
        for padding in (None, 0, -1, int(indices[total // 2])):
            for kernel in KERNELS if small else ("marked",):
                check(indices, rows, padding, run(indices, rows, padding, kernel))
        check(indices, rows, None, unique_rows(indices, rows))
    if not small:
        with pytest.raises(sw.UnsupportedError, match="marked"):
            run(indices, rows, kernel="single")


def test_strides(device: str) -> None:
    """Indices forwards, apart, expanded; outputs apart."""
    for total in (40, 9000):
        dense = drawn(500, 2 * total, device, torch.int64)
        for indices in (dense[::2], dense[3:][:total], dense[:1].expand(total), dense.reshape(total, 2)[:, 1]):
            for layout in ("contiguous", "offset", "stepped"):
                check(indices, 500, 7, run(indices, 500, 7, layout=layout))


def test_one_row_that_most_have(device: str) -> None:
    """All positions of a large call ask for the same mark; or for two, whose places in a block's memory are the same."""
    indices = torch.zeros(1 << 20, dtype=torch.int64, device=device)
    check(indices, 1 << 20, None, unique_rows(indices, 1 << 20))
    indices[::2] += 1024
    check(indices, 1 << 20, 1024, unique_rows(indices, 1 << 20, padding_idx=1024))


def test_nothing(device: str) -> None:
    """No index, no row, and nothing but padding."""
    none = torch.empty(0, dtype=torch.int64, device=device)
    for rows in (0, 1, 5, (1 << 31) - 2):
        for kernel in KERNELS:
            found, places, count = run(none, rows, kernel=kernel)
            assert (len(found), len(places), int(count)) == (0, 0, 0)
    indices = torch.full((50,), 2, device=device)
    for kernel in KERNELS:
        found, places, count = run(indices, 3, 2, kernel)
        assert (found.tolist(), int(count), bool(places.any())) == ([-1] * 3, 0, False)


@given(data=hs.data())
def test_any(data: hs.DataObject) -> None:
    rows, total = data.draw(hs.integers(1, 200)), data.draw(hs.integers(0, 300))
    indices = torch.tensor(data.draw(hs.lists(hs.integers(0, rows - 1), min_size=total, max_size=total)), dtype=torch.int64)
    padding = data.draw(hs.one_of(hs.none(), hs.integers(-rows, rows - 1)))
    check(indices.int(), rows, padding, run(indices.int(), rows, padding))
    check(indices, rows, padding, unique_rows(indices, rows, padding_idx=padding))


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_no_row(dtype: torch.dtype) -> None:
    """On the CPU an error that names the first index that is no row, and nothing written."""
    plan = UniqueRowsPlan.select(UniqueRowsDescriptor(9, 4, dtype))
    for wrong in (9, -1):
        out = {name: torch.full((n,), 7, dtype=d) for (name, d), n in zip(SHAPES, (4, 4, 1), strict=True)}
        before = Snapshot(out)
        with pytest.raises(sw.InvalidProblemError, match=f"{wrong} at position 2") as caught:
            plan.run(indices=torch.tensor([0, 8, wrong, 20], dtype=dtype), **out)
        assert caught.value.operand == "indices"
        before.check()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("total", [700, 100_000])
def test_no_row_on_a_gpu(total: int, dtype: torch.dtype) -> None:
    """Such an index counts nowhere and has the place -1, however far it is from a row."""
    indices = drawn(3000, total, "cuda", dtype)
    wrong = [-1, -(1 << 31), 3000, (1 << 31) - 1]
    if dtype == torch.int64:
        wrong += [1 << 32, -(1 << 32), (1 << 32) + 5, -(1 << 63), (1 << 63) - 1]
    for k, value in enumerate(wrong):
        indices[k::97] = value
    right = torch.where((indices >= 0) & (indices < 3000), indices, -1)
    for padding in (None, 11):
        check(right, 3000, padding, unique_rows(indices, 3000, padding_idx=padding))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1000, 640), (1 << 20, 100_000)], ids=str)
def test_in_a_graph(size: tuple[int, int]) -> None:
    """Captured, and right again with other indices: nothing is left of the last run."""
    rows, total = size
    indices = drawn(rows, total, "cuda", torch.int64)
    unique_rows(indices, rows, padding_idx=3)  # selects the plan outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = unique_rows(indices, rows, padding_idx=3)
    for skewed in (True, False):
        indices.copy_(drawn(rows, total, "cuda", torch.int64, skewed))
        graph.replay()
        check(indices, rows, 3, got)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.slow
def test_as_many_rows_as_there_may_be() -> None:
    """2^31 - 2 rows: marks of 512 MiB."""
    rows = (1 << 31) - 2
    indices = drawn(rows, 3_000_000, "cuda", torch.int64)
    indices[:2] = torch.tensor([rows - 1, 0])
    check(indices, rows, None, unique_rows(indices, rows))


def test_arrays_of_numpy() -> None:
    found, places, count = unique_rows(np.array([4, 4, 0], dtype=np.int32), 5, padding_idx=-1)
    assert (found.tolist(), places.tolist(), count.tolist()) == ([0, -1, -1], [0, 0, 1], [1])


def test_it_is_a_function_of_the_package() -> None:
    """Under its own name, which no import of a module takes."""
    assert callable(sw.unique_rows)
    assert {"unique_rows", "UniqueRowsDescriptor", "UniqueRowsPlan"} <= set(sw.__all__)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sternway.unique_rows")
    assert callable(sw.unique_rows)


def test_refusals() -> None:
    indices = torch.tensor([0, 1])
    for error, call in (
        (TypeError, lambda: unique_rows([0, 1], 2)),
        (sw.InvalidProblemError, lambda: unique_rows(indices[None], 2)),
        (sw.InvalidProblemError, lambda: unique_rows(indices, 2, padding_idx=2)),
        (sw.InvalidProblemError, lambda: unique_rows(indices, 1)),
        (sw.InvalidProblemError, lambda: unique_rows(indices, -1)),
        (sw.UnsupportedError, lambda: unique_rows(indices.float(), 2)),
        (sw.InvalidProblemError, lambda: unique_rows(indices, 1 << 58)),
    ):
        with pytest.raises(error):
            call()


def test_more_rows_than_32_bits() -> None:
    """From 2^31 - 1 rows on, places are int64."""
    for rows in (2**31 - 1, 2**31 + 5, 2**32 + 5, 2**50):
        indices = torch.tensor([rows - 1, 0, rows // 2, rows - 1, 7])
        for padding in (None, 7, -1):
            found, places, count = unique_rows(indices, rows, padding_idx=padding)
            assert (found.dtype, places.dtype) == (torch.int64, torch.int64)
            check(indices, rows, padding, (found, places.int(), count))


@pytest.mark.gpu
def test_more_rows_than_32_bits_on_a_gpu() -> None:
    with pytest.raises(sw.UnsupportedError, match="num_rows must be less than 2147483647 on a GPU"):
        unique_rows(torch.tensor([0, 1], device="cuda"), 2**31 - 1)
