"""Packed sequences that ranks cut anywhere, and exclusive scans across ranks: they are those of one process with the whole."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Ranks, default_device, seeded, world
from support import BF16, F16, F32, F64, pairwise, values_of
from test_distributed_scans import CYCLES, NAN, SHAPES, close, lengths_of, numbers, part_of
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

import sternway as sw
import sternway.torch as st
import sternway.torch.distributed as std
from sternway._kinds import EXTREMA, WITH_KERNELS

KINDS = (*WITH_KERNELS, "linear_recurrence")
BOUNDS = ("none", "one", "edges", "random", "elements", "empty")
OPTIONS = tuple(
    (bounds, exclusive) for bounds in BOUNDS for exclusive in (False, True) if (bounds, exclusive) != ("none", False)
)


def bounds_of(name: str, lengths: list[int]) -> Tensor | None:
    """Bounds of sequences: at the ends of parts, across several of them, of one element each, and with empty ones."""
    n = sum(lengths)
    inner = {
        "one": [],
        "edges": list(itertools.accumulate(lengths))[::2],
        "random": sorted(torch.randint(n + 1, (3,), generator=seeded(n)).tolist()),
        "elements": range(1, n),
        "empty": [0, n // 3, n // 3, n],
    }
    return None if name == "none" else torch.tensor([0, *inner[name], n], dtype=torch.int32)


def scan(of: Any, kind: str, x: Tensor, dim: int, **options: Any) -> Any:
    """A scan of sternway.torch or of sternway.torch.distributed; of the recurrence x is a and, twice, b."""
    if kind != "linear_recurrence":
        return getattr(of, kind)(x, dim, **options)
    options.pop("exclusive", None)
    return of.linear_recurrence(x, 2 * x, dim, **options)


def compare(kind: str, x: Tensor, dim: int, lengths: list[int], **options: Any) -> None:
    whole = x.clone().requires_grad_()
    want = scan(st, kind, whole, dim, **options)
    dy = torch.randn(x.shape, dtype=F64, generator=seeded(7)).to(x.dtype)
    values_of(want).backward(dy)
    own = part_of(whole, dim, lengths)
    found = scan(std, kind, own, dim, **options)
    close(values_of(found), part_of(values_of(want).detach(), dim, lengths), x.dtype)
    if kind in EXTREMA:
        assert torch.equal(found.indices, part_of(want.indices, dim, lengths))
    values_of(found).backward(part_of(dy, dim, lengths))
    assert own.grad is not None
    assert whole.grad is not None
    close(own.grad, part_of(whole.grad, dim, lengths), x.dtype)


def options_of(kind: str, bounds: str, exclusive: bool, lengths: list[int]) -> dict[str, Any] | None:
    """The options of a call; None if the kind does not have them."""
    has_exclusive = kind not in (*EXTREMA, "linear_recurrence")
    if not has_exclusive and bounds == "none":
        return None
    chosen = {"exclusive": exclusive} if has_exclusive else {}
    return {**chosen, "cu_seqlens": bounds_of(bounds, lengths)}


def scans(kind: str, rows: list[tuple[Any, ...]]) -> None:
    for cycle, (shape, dim), reverse, dtype, (bounds, exclusive) in rows:
        lengths = lengths_of(cycle)
        options = options_of(kind, bounds, exclusive, lengths)
        if options is not None:
            x = numbers(kind, tuple(sum(lengths) if extent == -1 else extent for extent in shape), dtype)
            x = x / (1 + x.abs()) if kind == "linear_recurrence" else x
            compare(kind, x, dim, lengths, reverse=reverse, **options)


def values_stay(kind: str) -> None:
    """NaN in a sequence reaches no other one, nor results and gradients of the positions before it if it comes last."""
    lengths, n = [6] * world(), 6 * world()
    bounds = torch.tensor([0, 4, 4, n // 2 + 1, n - 2, n])
    for reverse, at in itertools.product((False, True), (3, n // 2, n - 3)):
        x = numbers(kind, (2, n), F64)
        x[:, at] = NAN
        options = options_of(kind, "one", True, lengths) or {}
        compare(kind, x, 1, lengths, **{**options, "cu_seqlens": bounds, "reverse": reverse})


def second_derivatives(kind: str) -> None:
    for cycle, bounds, exclusive in (((3, 2), "random", True), ((0, 3), "edges", False), ((2, 0, 1), "none", True)):
        lengths = lengths_of(cycle)
        options = options_of(kind, bounds, exclusive, lengths)
        if options is None:
            continue
        x, dy, u = (numbers(kind, (2, sum(lengths)), F64, seed) for seed in (1, 2, 3))
        x = x + torch.arange(x.numel(), dtype=F64).view(x.shape) / 100  # no ties

        def twice(of: Any, x: Tensor, dy: Tensor, u: Tensor) -> list[Tensor]:
            x, dy = x.clone().requires_grad_(), dy.clone().requires_grad_()
            y = values_of(scan(of, kind, x, 1, **options))  # noqa: B023
            (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
            found = torch.autograd.grad(dx, (x, dy), u, allow_unused=True)
            return [torch.zeros_like(x) if grad is None else grad for grad in found]

        want = twice(st, x, dy, u)
        found = twice(std, *(part_of(t, 1, lengths) for t in (x, dy, u)))
        for ours, theirs in zip(found, want, strict=True):
            close(ours, part_of(theirs, 1, lengths), F64)


def dtensors(kind: str) -> None:
    """Sharded along the scanned dimension, evenly, unevenly, and with empty shards; bounds of either kind."""
    mesh = init_device_mesh(default_device(), (world(),))
    for n, bounds in itertools.product((4 * world(), 4 * world() - 3, world() - 1), ("none", "random", "empty")):
        options = options_of(kind, bounds, True, [n])
        if options is None:
            continue
        x = numbers(kind, (3, n), F64)
        whole = x.clone().requires_grad_()
        want = scan(st, kind, whole, 1, reverse=n % 2 == 1, **options)
        if bounds == "empty":
            options["cu_seqlens"] = distribute_tensor(options["cu_seqlens"], mesh, [Replicate()])
        shared = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
        found = values_of(scan(st, kind, shared, 1, reverse=n % 2 == 1, **options))
        assert isinstance(found, DTensor)
        assert found.placements == (Shard(1),)
        close(found.full_tensor(), values_of(want).detach(), F64)
        dy = torch.randn(x.shape, dtype=F64, generator=seeded(5))
        values_of(want).backward(dy)
        found.backward(distribute_tensor(dy, mesh, [Shard(1)]))
        assert shared.grad is not None
        close(shared.grad.full_tensor(), whole.grad, F64)


def wrong_calls() -> None:
    """A wrong call on one rank is an error on all."""
    x, bounds = torch.ones(2, 3), torch.tensor([0, 3 * world()])
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: std.cumsum(x, 1, cu_seqlens=torch.tensor([0, 1, 3 * world()])), "the call of rank"),
        (lambda: std.cumsum(x, 1), "the call of rank"),
        (lambda: std.cumsum(x, 1, cu_seqlens=bounds, exclusive=True), "the call of rank"),
        (lambda: std.cumsum(x, 1, cu_seqlens=bounds.short()), "cu_seqlens must be int32 or int64, got int16"),
        (lambda: std.cumsum(x, 1, cu_seqlens=bounds[None]), "cu_seqlens must be of one dimension"),
        (lambda: std.cumsum(x, 1, cu_seqlens=[0, 3]), "cu_seqlens must be a torch.Tensor"),  # type: ignore[arg-type]
        (lambda: std.linear_recurrence(x, x, 1, cu_seqlens=bounds.float()), "cu_seqlens must be int32 or int64, got float32"),
    ]
    checked = default_device() == "cpu" or os.environ.get("STERNWAY_CHECK") == "1"
    if checked:
        wrong_bounds = torch.tensor([0, 2, 1, 3 * world()])
        wanted = "cu_seqlens must be bounds that rise from 0 to the extent along dim, got 1 at position 2"
        calls += [
            (lambda: std.cumsum(x, 1, cu_seqlens=wrong_bounds), wanted),
            (lambda: std.linear_recurrence(x, x, 1, cu_seqlens=wrong_bounds), wanted),
            (lambda: std.cumsum(x, 1, cu_seqlens=bounds - 1), "got -1 at position 0"),
        ]
    for wrong in range(world()):
        for call, message in calls:
            with pytest.raises((sw.Error, TypeError), match=message):
                call() if torch.distributed.get_rank() == wrong else std.cumsum(x, 1, cu_seqlens=bounds)
    if checked:
        for scan in (lambda b: std.cumsum(x, 1, cu_seqlens=b), lambda b: std.linear_recurrence(x, x, 1, cu_seqlens=b)):
            wanted = f"bounds that rise from 0 to {3 * world()}, the extent along dim, got {3 * world() - 1} at position 1"
            with pytest.raises(sw.InvalidProblemError, match=wanted):
                scan(bounds - torch.tensor([0, 1]))
    assert std.cumsum(x, 1, cu_seqlens=bounds)[0].tolist() == [3.0 * torch.distributed.get_rank() + k for k in (1, 2, 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_packed_scans(kind: str, ranks: Ranks) -> None:
    """It alone finds sequences that run into each other, or fall apart, where ranks meet."""
    ranks.run(scans, kind, pairwise(CYCLES, SHAPES, (False, True), (F64, F32, F16, BF16), OPTIONS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [values_stay, second_derivatives, dtensors], ids=lambda body: body.__name__)
def test_kind(body: Callable[[str], None], kind: str, ranks: Ranks) -> None:
    ranks.run(body, kind)


def wrong_calls_with_checks() -> None:
    """With STERNWAY_CHECK=1 also bounds on a GPU are checked, and those beside a DTensor that differ between ranks."""
    os.environ["STERNWAY_CHECK"] = "1"
    try:
        wrong_calls()
        n = 2 * world()
        right, wrong = torch.tensor([0, 1, n]), (torch.tensor([0, n + 1, n]), torch.tensor([0, 2, n]))
        meshes = [init_device_mesh(default_device(), (world(),))]
        meshes += [init_device_mesh(default_device(), (2, world() // 2))] * (world() > 2)
        for mesh, rank, bounds in itertools.product(meshes, range(world()), wrong):
            x = distribute_tensor(torch.ones(3, n), mesh, [Replicate()] * (mesh.ndim - 1) + [Shard(1)])
            own = bounds if torch.distributed.get_rank() == rank else right
            with pytest.raises(sw.InvalidProblemError, match="cu_seqlens"):
                st.cumsum(x, 1, cu_seqlens=own)
            with pytest.raises(sw.InvalidProblemError, match="cu_seqlens"):
                st.linear_recurrence(x, x, 1, cu_seqlens=own)
            assert st.cumsum(x, 1, cu_seqlens=right).full_tensor()[0, :3].tolist() == [1, 1, 2]
    finally:
        del os.environ["STERNWAY_CHECK"]


@pytest.mark.parametrize("body", [wrong_calls, wrong_calls_with_checks], ids=lambda body: body.__name__)
def test_wrong_calls(body: Callable[[], None], ranks: Ranks) -> None:
    """It alone finds a rank that waits for others whose call is wrong."""
    ranks.run(body)
