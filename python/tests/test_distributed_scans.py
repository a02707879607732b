"""Scans along a dimension that ranks share: values and gradients are those of one process with the whole tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, default_device, seeded, world
from support import BF16, F16, F32, F64, pairwise, values_of
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

import sternway as sw
import sternway.torch as st
import sternway.torch.distributed as std
from sternway._kinds import EXTREMA, KINDS

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

INF, NAN = math.inf, math.nan
# Lengths of the parts, repeated for all ranks: alike, uneven, and empty first, last and in between.
CYCLES = ((4, 4), (3, 5), (0, 4), (4, 0), (0, 0), (1, 0, 7), (300, 50))
SHAPES = (((-1,), 0), ((3, -1), -1), ((-1, 5), 0), ((2, -1, 3), 1))  # and dim, whose length is -1
TOLERANCE = {F64: 1e-12, F32: 1e-5, F16: 2e-3, BF16: 2e-2}


def lengths_of(cycle: tuple[int, ...]) -> list[int]:
    return [cycle[k % len(cycle)] for k in range(world())]


def part_of(x: Tensor, dim: int, lengths: list[int]) -> Tensor:
    return x.split(lengths, dim)[dist.get_rank()].detach().clone().requires_grad_(x.requires_grad)


def numbers(kind: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random numbers; with many ties for maxima, and around 1 for products."""
    x = torch.randn(shape, dtype=F64, generator=seeded(seed))
    if kind in EXTREMA:
        x = (x * 2).round()
    return ((1 + x / 8) if kind == "cumprod" else x).to(dtype)


def close(found: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    size = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 1.0
    torch.testing.assert_close(found, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * max(size, 1e-3), equal_nan=True)


def compare(kind: str, x: Tensor, dim: int, lengths: list[int], reverse: bool) -> None:
    """One scan and its gradient against those of the whole tensor."""
    whole = x.clone().requires_grad_()
    want = getattr(st, kind)(whole, dim, reverse=reverse)
    dy = torch.randn(x.shape, dtype=F64, generator=seeded(7)).to(x.dtype)
    values_of(want).backward(dy)
    own = part_of(whole, dim, lengths)
    found = getattr(std, kind)(own, dim, reverse=reverse)
    assert values_of(found).dtype == x.dtype
    assert values_of(found).shape == own.shape
    close(values_of(found), part_of(values_of(want).detach(), dim, lengths), x.dtype)
    if kind in EXTREMA:
        assert type(found) is type(want)
        assert torch.equal(found.indices, part_of(want.indices, dim, lengths))
    values_of(found).backward(part_of(dy, dim, lengths))
    assert own.grad is not None
    assert whole.grad is not None
    close(own.grad, part_of(whole.grad, dim, lengths), x.dtype)


def scans(kind: str, rows: list[tuple[Any, ...]]) -> None:
    for cycle, (shape, dim), reverse, dtype in rows:
        lengths = lengths_of(cycle)
        whole = tuple(sum(lengths) if extent == -1 else extent for extent in shape)
        compare(kind, numbers(kind, whole, dtype), dim, lengths, reverse)


def long_parts(kind: str) -> None:
    """Rows of which each rank does several parts at once."""
    lengths = [70_000 + 1001 * k for k in range(world())]
    for shape, dim in (((2, sum(lengths)), 1), ((sum(lengths), 3), 0)):
        x = numbers(kind, shape, F64)
        x = 1 + (x - 1) / 64 if kind == "cumprod" else x
        compare(kind, x, dim, lengths, False)


def special_values(kind: str) -> None:
    """At the ends of parts, as whole parts, and products that leave the range on one rank and return on another."""
    lengths = [6] * world()
    n = 6 * world()
    for reverse in (False, True):
        for special in (0.0, -0.0, NAN, INF, -INF):
            if kind == "cumprod" and math.isinf(special) and default_device() == "cpu":
                continue  # the gradient of an infinite factor is no affine map of what follows
            x = numbers(kind, (6, n), F64)
            x[0, 5] = x[1, 6] = x[2, 0] = x[3, -1] = x[4, 6:12] = x[5, 2] = x[5, -3] = special
            compare(kind, x, 1, lengths, reverse)
    if kind == "cumprod":
        for dtype in (F64, F32, BF16):
            x = torch.full((n,), torch.finfo(dtype).max ** 0.5, dtype=dtype)
            x[n // 2 :] = 1 / x[0]
            compare("cumprod", x, 0, lengths, False)
            y = std.cumprod(part_of(x, 0, lengths), 0)
            assert y.isinf().any() or dist.get_rank() not in (0, world() - 1)
    if kind == "logcumsumexp":
        x = numbers(kind, (2, n), F64) + torch.tensor([[1e6], [-1e6]], dtype=F64)
        compare(kind, x, 1, lengths, False)


def strided_parts(kind: str) -> None:
    """Transposed and sliced parts, and a gradient that is one number."""
    lengths = [4] * world()
    x = numbers(kind, (4 * world(), 6), F64)
    rank = dist.get_rank()
    own = x.T.contiguous().T[4 * rank : 4 * rank + 4, ::2].requires_grad_()
    want = values_of(getattr(st, kind)(whole := x[:, ::2].clone().requires_grad_(), 0))
    found = values_of(getattr(std, kind)(own, 0))
    close(found, part_of(want.detach(), 0, lengths), F64)
    want.sum().backward()
    (grad,) = torch.autograd.grad(found.sum(), own)
    close(grad, part_of(whole.grad, 0, lengths), F64)


def second_derivatives(kind: str) -> None:
    lengths = lengths_of((3, 2))
    x, dy, u = (numbers(kind, (2, sum(lengths)), F64, seed) for seed in (1, 2, 3))
    x = x + torch.arange(x.numel(), dtype=F64).view(x.shape) / 100  # no ties

    def twice(scan: Callable[..., Any], x: Tensor, dy: Tensor, u: Tensor) -> list[Tensor]:
        x, dy = x.clone().requires_grad_(), dy.clone().requires_grad_()
        (dx,) = torch.autograd.grad(values_of(scan(x, 1)), x, dy, create_graph=True)
        found = torch.autograd.grad(dx, (x, dy), u, allow_unused=True)
        return [torch.zeros_like(x) if grad is None else grad for grad in found]

    want = twice(getattr(st, kind), x, dy, u)
    found = twice(getattr(std, kind), *(part_of(t, 1, lengths) for t in (x, dy, u)))
    for ours, theirs in zip(found, want, strict=True):
        close(ours, part_of(theirs, 1, lengths), F64)


def wrong_calls() -> None:
    """A wrong call on one rank is an error on all, and the group goes on."""
    x = torch.ones(2, 3)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: std.cumsum(torch.ones(3, 3), 1), "the call of rank"),
        (lambda: std.cumsum(torch.ones(2, 3, 1), 1), "the call of rank"),
        (lambda: std.cumsum(x.double(), 1), "the call of rank"),
        (lambda: std.cumsum(x, 0), "the call of rank"),
        (lambda: std.cumsum(x, 1, reverse=True), "the call of rank"),
        (lambda: std.cummax(x, 1), "the call of rank"),
        (lambda: std.cumsum(x.int(), 1), "float32, float64"),
        (lambda: std.cumsum(x, 2), "dim must be between -2 and 1, got 2"),
        (lambda: std.cumsum(x, 1.0), "dim must be an integer"),
        (lambda: std.cumsum(x, 1, reverse=1), "reverse must be True or False"),
        (lambda: std.cumsum([1.0], 0), "x must be a torch.Tensor"),
        (lambda: std.cumsum(torch.tensor(1.0), 0), "of 1 to 7 dimensions, got 0"),
        (lambda: std.cumsum(torch.ones(1, 1, 1, 1, 1, 1, 1, 2), 7), "of 1 to 7 dimensions, got 8"),
        (lambda: std.cumsum(torch.ones(2, 3, device="meta"), 1), ""),
    ]
    for wrong in range(world()):
        for call, message in calls:
            with pytest.raises((sw.Error, TypeError), match=message):
                call() if dist.get_rank() == wrong else std.cumsum(x, 1)
    y = std.cumsum(x, 1)
    assert y[0].tolist() == [3.0 * dist.get_rank() + k for k in (1, 2, 3)]


def sent_bytes(kind: str, dtype: torch.dtype) -> None:
    """What a rank sends for each row does not depend on the length, and is at most 16 bytes, or 32 in float64; and a header."""
    sent: list[int] = []
    headers: list[int] = []
    gather = dist.all_gather_into_tensor

    def counted(output: Tensor, own: Tensor, *args: Any, **kwargs: Any) -> Any:
        (headers if own.dtype == torch.uint8 else sent).append(own.nbytes)
        return gather(output, own, *args, **kwargs)

    dist.all_gather_into_tensor = counted
    try:
        for n in (3, 3000):
            x = numbers(kind, (5, n), dtype).requires_grad_()
            sent.clear()
            headers.clear()
            values_of(getattr(std, kind)(x, 1)).sum().backward()
            assert len(sent) == 2
            assert headers == [1024]
            assert max(sent) <= 5 * (32 if dtype == F64 else 16)
            assert sent == sent_bytes.first.setdefault((kind, dtype), list(sent))  # type: ignore[attr-defined]
    finally:
        dist.all_gather_into_tensor = gather


sent_bytes.first = {}  # type: ignore[attr-defined]


def groups() -> None:
    """Of one rank, and of two of four."""
    alone = [dist.new_group([k]) for k in range(world())]
    x = torch.ones(2, requires_grad=True)
    y = std.cumsum(x, 0, alone[dist.get_rank()])
    assert y.tolist() == [1.0, 2.0]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 1.0]
    if world() == 4:
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        rank = dist.get_rank()
        assert std.cumsum(torch.ones(2), 0, pairs[rank % 2]).tolist() == ([1.0, 2.0] if rank < 2 else [3.0, 4.0])
        with pytest.raises(sw.InvalidProblemError, match="a group of which this process is a member"):
            std.cumsum(torch.ones(2), 0, pairs[1 - rank % 2])


def repeated_bits(kind: str) -> None:
    x = numbers(kind, (3, 500), F32)
    first = values_of(getattr(std, kind)(x, 1))
    for _ in range(3):
        assert torch.equal(values_of(getattr(std, kind)(x, 1)), first)


def twice(x: Tensor, y: Tensor, dy: Tensor, u: Tensor) -> list[Tensor]:
    """The gradient of a scan, and the derivatives of ``sum(gradient * u)``, 0 for one that is not a function of x."""
    dy = dy.detach().requires_grad_()
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    second = torch.autograd.grad(dx, (x, dy), u, allow_unused=True)
    return [dx.detach(), *(torch.zeros_like(x).detach() if grad is None else grad for grad in second)]


def dtensors(kind: str) -> None:
    """A DTensor that is sharded along the scanned dimension, evenly, unevenly, and with empty shards; derivatives too."""
    mesh = init_device_mesh(default_device(), (world(),))
    for n in (4 * world(), 4 * world() - 3, world() + 1, world() - 1):
        for reverse in (False, True):
            x = numbers(kind, (3, n), F64)
            whole = x.clone().requires_grad_()
            want = getattr(st, kind)(whole, 1, reverse=reverse)
            shared = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
            found = getattr(st, kind)(shared, 1, reverse=reverse)
            assert isinstance(values_of(found), DTensor)
            assert values_of(found).placements == (Shard(1),)
            close(values_of(found).full_tensor(), values_of(want).detach(), F64)
            if kind in EXTREMA:
                assert torch.equal(found.indices.full_tensor(), want.indices)
            dy, u = (torch.randn(x.shape, dtype=F64, generator=seeded(seed)) for seed in (5, 6))
            wanted = twice(whole, values_of(want), dy, u)
            grads = twice(shared, values_of(found), *(distribute_tensor(t, mesh, [Shard(1)]) for t in (dy, u)))
            assert grads[0].placements == (Shard(1),)  # type: ignore[attr-defined]
            for ours, theirs in zip(grads, wanted, strict=True):
                close(ours.full_tensor(), theirs, F64)  # type: ignore[attr-defined]


def compiled() -> None:
    """torch.compile breaks the graph at a scan across ranks. A number is no row that can be shared."""
    x, lengths = numbers("cumsum", (3, 4 * world()), F64), [4] * world()
    found = torch.compile(lambda t: 2 * std.cumsum(t, 1), backend="eager")(part_of(x, 1, lengths))
    close(found, part_of(2 * x.cumsum(1), 1, lengths), F64)
    mesh = init_device_mesh(default_device(), (world(),))
    found = torch.compile(lambda t: 2 * st.cumsum(t, 1), backend="eager")(distribute_tensor(x, mesh, [Shard(1)]))
    close(found.full_tensor(), 2 * x.cumsum(1), F64)
    assert st.cumsum(distribute_tensor(torch.tensor(2.0), mesh, [Replicate()]), 0).full_tensor() == 2
    wide = distribute_tensor(torch.ones(*[1] * 7, 4), mesh, [Shard(7)])
    with pytest.raises(sw.UnsupportedError, match="x must be of at most 7 dimensions along a sharded one, got 8"):
        st.cumsum(wide, 7)


def dtensors_on_meshes_of_two_dimensions() -> None:
    if world() < 4:
        return
    mesh = init_device_mesh(default_device(), (2, world() // 2))
    x = numbers("cumsum", (4, 10), F64)
    for placements in ([Shard(0), Shard(1)], [Replicate(), Shard(1)], [Shard(1), Shard(0)]):
        y = st.cumsum(distribute_tensor(x, mesh, placements), 1)
        assert y.placements == tuple(placements)
        close(y.full_tensor(), x.cumsum(1), F64)
    partial = DTensor.from_local(distribute_tensor(x, mesh, [Replicate(), Shard(1)]).to_local(), mesh, [Partial(), Shard(1)])
    y = st.cumsum(partial.requires_grad_(), 1)
    close(y.full_tensor().detach(), 2 * x.cumsum(1), F64)
    dy, u = (distribute_tensor(t, mesh, [Replicate(), Shard(1)]) for t in (x, x.flip(1)))
    for ours, theirs in zip(twice(partial, y, dy, u), (x.flip(1).cumsum(1).flip(1), 0 * x, x.flip(1).cumsum(1)), strict=True):
        close(ours.full_tensor(), theirs, F64)  # type: ignore[attr-defined]
    with pytest.raises(sw.UnsupportedError, match="redistribute"):
        st.cumprod(partial, 1)
    with pytest.raises(sw.UnsupportedError, match="redistribute"):
        st.cumsum(distribute_tensor(x, mesh, [Shard(1), Shard(1)]), 1)


EACH_KIND = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in std.__all__])


@EACH_KIND
def test_scans(kind: str, ranks: Ranks) -> None:
    """It alone finds wrong results of parts of a certain length, next to each other, in a shape, direction or dtype."""
    ranks.run(scans, kind, pairwise(CYCLES, SHAPES, (False, True), TOLERANCE))


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@EACH_KIND
def test_sent_bytes(kind: str, dtype: torch.dtype, ranks: Ranks) -> None:
    ranks.run(sent_bytes, kind, dtype)


OF_EACH_KIND = [long_parts, special_values, strided_parts, second_derivatives, repeated_bits, dtensors]


@EACH_KIND
@pytest.mark.parametrize("body", OF_EACH_KIND, ids=lambda body: body.__name__)
def test_kind(body: Callable[[str], None], kind: str, ranks: Ranks) -> None:
    ranks.run(body, kind)


@pytest.mark.parametrize(
    "body", [wrong_calls, groups, compiled, dtensors_on_meshes_of_two_dimensions], ids=lambda body: body.__name__
)
def test_calls(body: Callable[[], None], ranks: Ranks) -> None:
    ranks.run(body)


def test_without_a_group() -> None:
    with pytest.raises(sw.InvalidProblemError, match="group must be a process group, got none, as none is initialized"):
        std.cumsum(torch.ones(3), 0)
