"""Packed sequences that are cut into chunks: with the carries, chunks give what the whole gives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from support import BF16, F32, F64, pairwise
from test_distributed_scans import close, numbers
from torch import Tensor

import sternway as sw
from sternway._kinds import EXTREMA, KINDS

# Bounds of sequences, and where chunks end: within sequences, at their ends, and at whole tiles of the kernels; empty chunks.
CUTS = (
    ((0, 3, 9, 9, 12), (5, 9, 12)),
    ((0, 12), (0, 5, 12)),
    ((0, 1, 2, 3, 4), (1, 1, 3, 4)),
    ((0, 700, 9000), (650, 8000, 9000)),
    ((0, 64, 512, 1024, 4096, 8192, 16384), (64, 512, 1024, 4096, 8192, 16384)),
    ((0, 8192, 40960), (8192, 16384, 40960)),
)


def plan(of: Any, descriptor: Any, kind: str, x: Tensor, options: dict[str, Any], **more: Any) -> Any:
    dtype = str(x.dtype).removeprefix("torch.")
    return of.select(descriptor(kind, list(x.shape), dtype, **options, **more), device=str(x.device))


def whole_and_chunks(kind: str, cut: Any, dim: int, reverse: bool, dtype: torch.dtype, device: str) -> None:
    bounds, ends = cut
    n, places = bounds[-1], list(itertools.pairwise((0, *ends)))
    options = {"dim": dim, "reverse": reverse, "num_sequences": len(bounds) - 1}
    shape = (n, 3) if dim == 0 else (3, n)
    x, dy = (numbers(kind, shape, F64, seed) for seed in (1, 2))
    x, dy = (t.to(dtype).to(device) for t in (1 + (x - 1) / 16 if kind == "cumprod" else x, dy))
    cu = torch.tensor(bounds, device=device)
    outputs = {"y": torch.full_like(x, torch.nan)}
    if kind in EXTREMA:
        outputs["indices"] = torch.full_like(x, -1, dtype=torch.int64)
    plan(sw.ScanPlan, sw.ScanDescriptor, kind, x, options).run(x=x, cu_seqlens=cu, **outputs)
    found = {name: torch.full_like(t, -1) for name, t in outputs.items()}
    order = places[::-1] if reverse else places
    carries: list[Tensor | None] = []
    carry: Tensor | None = None
    if kind in EXTREMA:
        carry = torch.tensor([0.0, torch.nan, n if reverse else 0], dtype=F64, device=device).expand(3, 3)
    for first, end in order:
        chunk = {name: t.narrow(dim, first, end - first) for name, t in {"x": x, **found}.items()}
        carries.append(carry)
        after = torch.full((3, KINDS[kind].carry_size), torch.nan, dtype=F64, device=device)
        chunked = plan(sw.ScanPlan, sw.ScanDescriptor, kind, chunk["x"], options, carries=True)
        chunked.run(**chunk, carry_in=carry, cu_seqlens=cu - first, carry_out=after)
        carry = after
    close(found["y"], outputs["y"], dtype)
    assert kind not in EXTREMA or torch.equal(found["indices"], outputs["indices"])
    if KINDS[kind].is_own_gradient:
        return
    backward = sw.ScanBackwardPlan, sw.ScanBackwardDescriptor, kind
    want, dx = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    plan(*backward, x, options).run(dy=dy, x=x, cu_seqlens=cu, dx=want)
    size = KINDS[kind].gradient_carry_size_float64 if dtype == F64 else KINDS[kind].gradient_carry_size
    state: Tensor | None = None
    for (first, end), before in zip(reversed(order), reversed(carries), strict=True):
        own = {name: t.narrow(dim, first, end - first) for name, t in {"dy": dy, "x": x}.items()}
        chunked = plan(*backward, own["x"], options, carries=True)
        operands = {**own, "carry_in": before, "dcarry_out": state, "cu_seqlens": cu - first}
        leaving = torch.full((3, size), torch.nan, dtype=F64, device=device)
        chunked.run(**operands, dx=dx.narrow(dim, first, end - first), dcarry_in=leaving)
        state = leaving
    close(dx, want, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks(kind: str, device: str) -> None:
    """It alone finds a carry that enters a sequence which begins where a chunk, and a tile of a kernel, ends."""
    for row in pairwise(CUTS, (0, 1), (False, True), (F64, F32, BF16)):
        whole_and_chunks(kind, *row, device)


def test_a_bound_at_the_end_of_a_chunk(device: str) -> None:
    """The next sequence begins without elements, and what leaves it does not enter the chunk, on every device."""
    x, cu = torch.tensor([1.0, 2.0, 3.0], device=device), torch.tensor([0, 3], device=device)
    options = {"dim": 0, "num_sequences": 1, "carries": True}
    y, carry, dx = torch.empty_like(x), torch.full((1,), torch.nan, dtype=F64, device=device), torch.empty_like(x)
    plan(sw.ScanPlan, sw.ScanDescriptor, "cumsum", x, options).run(x=x, cu_seqlens=cu, y=y, carry_out=carry)
    assert (y.tolist(), carry.tolist()) == ([1.0, 3.0, 6.0], [0.0])
    backward = plan(sw.ScanBackwardPlan, sw.ScanBackwardDescriptor, "cumsum", x, options)
    backward.run(dy=x, cu_seqlens=cu, dx=dx, dcarry_out=torch.full_like(carry, 100))
    assert dx.tolist() == [6.0, 5.0, 3.0]
