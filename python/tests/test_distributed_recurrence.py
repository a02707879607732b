"""Linear recurrences along a dimension that ranks share: values and gradients are those of one process with the whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, default_device, seeded, world
from support import BF16, F16, F32, F64, pairwise
from test_distributed_scans import CYCLES, TOLERANCE, close, lengths_of, part_of
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

import sternway as sw
import sternway.torch as st
import sternway.torch.distributed as std

INF, NAN = math.inf, math.nan
# The shapes of a and b, and dim, where the length is -1.
SHAPES = (((-1,), (-1,), 0), ((-1,), (3, -1), -1), ((-1, 5), (-1, 1), 0), ((-1, 1), (2, -1, 3), 1), ((2, -1), (2, -1), 1))


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, dtype=F64, generator=seeded(seed)).to(dtype)


def compare(a: Tensor, b: Tensor, dims: tuple[int, int, int], lengths: list[int], reverse: bool) -> None:
    """One recurrence and its gradients against those of the whole; dims: the scanned one, of a, b and h."""
    of_a, of_b, dim = dims
    wholes = [x.clone().requires_grad_() for x in (a, b)]
    want = st.linear_recurrence(*wholes, dim, reverse=reverse)
    dh = random(tuple(want.shape), want.dtype, 7)
    want.backward(dh)
    own = [part_of(x, d, lengths) for x, d in zip(wholes, (of_a, of_b), strict=True)]
    found = std.linear_recurrence(*own, dim, reverse=reverse)
    mine = part_of(want.detach(), dim, lengths)
    assert (found.dtype, found.shape) == (want.dtype, mine.shape)
    close(found, mine, want.dtype)
    found.backward(part_of(dh, dim, lengths))
    for x, whole, d in zip(own, wholes, (of_a, of_b), strict=True):
        assert x.grad is not None
        assert whole.grad is not None
        close(x.grad, part_of(whole.grad, d, lengths), x.dtype)


def recurrences(rows: list[tuple[Any, ...]]) -> None:
    for cycle, (a_shape, b_shape, dim), reverse, dtype in rows:
        lengths = lengths_of(cycle)
        a, b = (
            random(tuple(sum(lengths) if extent == -1 else extent for extent in shape), dtype, seed)
            for seed, shape in enumerate((a_shape, b_shape))
        )
        a = a / (1 + a.abs())
        if a.numel():
            a.view(-1)[:: 1 + a.numel() // 3] = 0
        compare(a, b, (a_shape.index(-1), b_shape.index(-1), dim), lengths, reverse)


def range_of_products() -> None:
    """The product of a part leaves the range of float64, and states do not: a tiny one grows to a large one, and 0 stays 0."""
    if world() < 4:
        return
    each = 1500
    lengths = [each] * world()
    for reverse in (False, True):
        for dtype, first in ((F64, 1e-300), (F32, 0.0), (BF16, 0.0)):
            a, b = torch.ones(4 * each, dtype=dtype), torch.zeros(4 * each, dtype=dtype)
            a[each : 2 * each] = a[3 * each :] = 2.46  # whose power 1500 is 1e586
            a[2 * each : 3 * each] = 1 / a[each]
            b[each - 1], b[2 * each] = first, 1.0
            a, b = (x.flip(0) if reverse else x for x in (a, b))
            want = st.linear_recurrence(a, b, 0, reverse=reverse)
            assert want[each : 3 * each].isfinite().all()
            found = std.linear_recurrence(part_of(a, 0, lengths), part_of(b, 0, lengths), 0, reverse=reverse)
            rank = world() - 1 - dist.get_rank() if reverse else dist.get_rank()
            if rank < 3:  # the numbers of the first three parts differ by 586 orders of magnitude
                mine = part_of(want, 0, lengths)
                torch.testing.assert_close(found, mine, rtol=max(TOLERANCE[dtype], 1e-10), atol=0)


def special_values() -> None:
    """A zero cuts whatever came before, on other ranks too; the first decay of the whole is not applied."""
    lengths = [6] * world()
    n = sum(lengths)
    for reverse in (False, True):
        for special in (INF, -INF, NAN):
            a, b = random((6, n), F64, 1), random((6, n), F64, 2)
            a[:, 9], a[:, -9] = 0, 0  # on the second rank and the last but one
            a[0, 5] = a[1, 6] = a[2, 0] = a[3, -1] = b[4, 7] = b[5, -8] = special
            want = st.linear_recurrence(a, b, 1, reverse=reverse)
            found = std.linear_recurrence(part_of(a, 1, lengths), part_of(b, 1, lengths), 1, reverse=reverse)
            close(found, part_of(want, 1, lengths), F64)
            assert found.isfinite().any()
            dh = random((6, n), F64, 3)
            dh[0, 3] = dh[1, -3] = special
            finite = [x.nan_to_num(1.0, 2.0, 2.0).requires_grad_() for x in (a, b)]
            wanted = torch.autograd.grad(st.linear_recurrence(*finite, 1, reverse=reverse), finite, dh)
            own = [part_of(x, 1, lengths) for x in finite]
            grads = torch.autograd.grad(std.linear_recurrence(*own, 1, reverse=reverse), own, part_of(dh, 1, lengths))
            for grad, whole in zip(grads, wanted, strict=True):
                close(grad, part_of(whole, 1, lengths), F64)


def higher_derivatives() -> None:
    """Of second and third order, with an empty part and a broadcast operand."""
    for cycle, reverse in (((3, 2), False), ((0, 3), True), ((2, 0, 1), False)):
        lengths = lengths_of(cycle)
        n = sum(lengths)
        a, b, dh = random((n,), F64, 1), random((2, n), F64, 2), random((2, n), F64, 3)

        def thrice(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
            a, b, dh = (x.detach().clone().requires_grad_() for x in tensors)
            first = torch.autograd.grad(function(a, b, 1, reverse=reverse), (a, b), dh, create_graph=True)  # noqa: B023
            second = torch.autograd.grad([(g**2).sum() for g in first], (a, b, dh), create_graph=True)
            third = torch.autograd.grad([(g**2).sum() for g in second], (a, b, dh))
            return [*first, *second, *third]

        want = thrice(st.linear_recurrence, a, b, dh)
        found = thrice(std.linear_recurrence, part_of(a, 0, lengths), part_of(b, 1, lengths), part_of(dh, 1, lengths))
        for ours, whole in zip(found, want, strict=True):
            close(ours, part_of(whole, whole.dim() - 1, lengths), F64)


def chosen_gradients() -> None:
    """Of a alone and of b alone; promoted dtypes; and bits that repeat."""
    lengths = [4] * world()
    a, b = random((3, 4 * world()), F32, 1), random((3, 4 * world()), F64, 2)
    for k in range(2):
        whole = [a.clone(), b.clone()]
        whole[k].requires_grad_()
        st.linear_recurrence(*whole, 1).square().sum().backward()
        own = [part_of(x, 1, lengths) for x in whole]
        for _ in range(2):
            std.linear_recurrence(*own, 1).square().sum().backward()
        assert own[1 - k].grad is None
        close(own[k].grad / 2, part_of(whole[k].grad, 1, lengths), whole[k].dtype)  # type: ignore[operator]
    own = [part_of(x, 1, lengths) for x in (a, b)]
    assert torch.equal(std.linear_recurrence(*own, 1), std.linear_recurrence(*own, 1))


def sent_bytes(dtype: torch.dtype) -> None:
    """What a rank sends for each row does not depend on the length."""
    sent: list[int] = []
    gather = dist.all_gather_into_tensor

    def counted(output: Tensor, own: Tensor, *args: Any, **kwargs: Any) -> Any:
        if own.dtype != torch.uint8:
            sent.append(own.nbytes)
        return gather(output, own, *args, **kwargs)

    dist.all_gather_into_tensor = counted
    try:
        for n in (3, 3000):
            sent.clear()
            a, b = (random((5, n), dtype, seed).requires_grad_() for seed in (1, 2))
            std.linear_recurrence(a, b, 1).sum().backward()
            assert sent == [5 * (24 if dtype == F64 else 16), 5 * 8]
    finally:
        dist.all_gather_into_tensor = gather


def dtensors() -> None:
    """DTensors that are sharded along the scanned dimension, evenly, unevenly, and with empty shards; derivatives too."""
    mesh = init_device_mesh(default_device(), (world(),))
    for n in (4 * world(), 4 * world() - 3, world() + 1, world() - 1):
        for reverse, of_a, of_b in ((False, Shard(0), Shard(1)), (True, Replicate(), Shard(1)), (False, Shard(0), Replicate())):
            a, b, dh = random((n,), F64, 1), random((3, n), F64, 2), random((3, n), F64, 3)
            wholes = [x.clone().requires_grad_() for x in (a, b)]
            want = st.linear_recurrence(*wholes, 1, reverse=reverse)
            shared = [distribute_tensor(x, mesh, [p]).requires_grad_() for x, p in ((a, of_a), (b, of_b))]
            found = st.linear_recurrence(*shared, 1, reverse=reverse)
            assert isinstance(found, DTensor)
            assert found.placements == (Shard(1),)
            close(found.full_tensor(), want.detach(), F64)
            first = torch.autograd.grad(want, wholes, dh, create_graph=True)
            ours = torch.autograd.grad(found, shared, distribute_tensor(dh, mesh, [Shard(1)]), create_graph=True)
            second = torch.autograd.grad(sum((g**2).sum() for g in first), wholes)
            again = torch.autograd.grad(sum((g**2).sum() for g in ours), shared)
            for grad, whole in zip((*ours, *again), (*first, *second), strict=True):
                close(grad.full_tensor().detach(), whole.detach(), F64)
    whole = distribute_tensor(torch.ones(3, world()), mesh, [Shard(1)])
    for factor in (0.5, distribute_tensor(torch.ones(3, 1), mesh, [Replicate()])):
        with pytest.raises(sw.InvalidProblemError, match=f"a must be of b's extent along dim, {world()}, got 1"):
            st.linear_recurrence(factor, whole, 1)


def dtensors_on_meshes_of_two_dimensions() -> None:
    if world() < 4:
        return
    mesh = init_device_mesh(default_device(), (2, world() // 2))
    a, b, dh = random((1, 10), F64, 1), random((4, 10), F64, 2), random((4, 10), F64, 3)
    wholes = [x.clone().requires_grad_() for x in (a, b)]
    want = st.linear_recurrence(*wholes, 1)
    grads = torch.autograd.grad(want, wholes, dh)
    for placements in ([Shard(0), Shard(1)], [Replicate(), Shard(1)], [Shard(1), Shard(0)]):
        of_a = [Replicate() if p == Shard(0) else p for p in placements]
        shared = [distribute_tensor(x, mesh, p).requires_grad_() for x, p in ((a, of_a), (b, placements))]
        found = st.linear_recurrence(*shared, 1)
        assert found.placements == tuple(placements)
        close(found.full_tensor(), want.detach(), F64)
        for grad, whole in zip(torch.autograd.grad(found, shared, distribute_tensor(dh, mesh, placements)), grads, strict=True):
            close(grad.full_tensor(), whole, F64)


def compiled() -> None:
    """torch.compile breaks the graph at a recurrence across ranks."""
    a, b, lengths = random((3, 4 * world()), F64, 1), random((3, 4 * world()), F64, 2), [4] * world()
    want = 2 * st.linear_recurrence(a, b, 1)
    own = part_of(a, 1, lengths), part_of(b, 1, lengths)
    found = torch.compile(lambda a, b: 2 * std.linear_recurrence(a, b, 1), backend="eager")(*own)
    close(found, part_of(want, 1, lengths), F64)
    mesh = init_device_mesh(default_device(), (world(),))
    shared = [distribute_tensor(x, mesh, [Shard(1)]) for x in (a, b)]
    found = torch.compile(lambda a, b: 2 * st.linear_recurrence(a, b, 1), backend="eager")(*shared)
    close(found.full_tensor(), want, F64)


def wrong_calls() -> None:
    """A wrong call on one rank is an error on all, and the group goes on."""
    a, b = torch.ones(2, 3), torch.ones(2, 3)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: std.linear_recurrence(torch.ones(3, 3), torch.ones(3, 3), 1), "the call of rank"),
        (lambda: std.linear_recurrence(a, b.double(), 1), "the call of rank"),
        (lambda: std.linear_recurrence(a, b, 0), "the call of rank"),
        (lambda: std.linear_recurrence(a, b, 1, reverse=True), "the call of rank"),
        (lambda: std.cumsum(a, 1), "the call of rank"),
        (lambda: std.linear_recurrence(torch.ones(2, 1), b, 1), "a must be of b's extent along dim, 3, got 1"),
        (lambda: std.linear_recurrence(0.5, b, 1), "a must be of b's extent along dim, 3, got 1"),
        (lambda: std.linear_recurrence(a, torch.ones(2, 1), 1), "a must be of b's extent along dim, 1, got 3"),
        (lambda: std.linear_recurrence(a, torch.ones(4, 3), 1), "broadcasts with a"),
        (lambda: std.linear_recurrence(a.int(), b.int(), 1), "float32, float64"),
        (lambda: std.linear_recurrence(a, b, 2), "dim must be between -2 and 1, got 2"),
        (lambda: std.linear_recurrence(a, b, 1.0), "dim must be an integer"),
        (lambda: std.linear_recurrence(a, b, 1, reverse=1), "reverse must be True or False"),
        (lambda: std.linear_recurrence(a, [1.0], 0), "b must be a torch.Tensor"),
        (lambda: std.linear_recurrence([1.0], b, 0), "a must be a torch.Tensor"),
        (lambda: std.linear_recurrence(torch.tensor(1.0), torch.tensor(1.0), 0), "of 1 to 7 dimensions, got 0"),
        (lambda: std.linear_recurrence(torch.ones(2, 3, device="meta"), torch.ones(2, 3, device="meta"), 1), ""),
    ]
    for wrong in range(world()):
        for call, message in calls:
            with pytest.raises((sw.Error, TypeError), match=message):
                call() if dist.get_rank() == wrong else std.linear_recurrence(a, b, 1)
    h = std.linear_recurrence(a, b, 1)
    assert h[0].tolist() == [3.0 * dist.get_rank() + k for k in (1, 2, 3)]
    assert default_device() == h.device.type


@pytest.mark.parametrize("rows", [pairwise(CYCLES, SHAPES, (False, True), (F64, F32, F16, BF16))], ids=["pairs"])
def test_recurrences(rows: list[tuple[Any, ...]], ranks: Ranks) -> None:
    """It alone finds wrong results of parts of a certain length, next to each other, in a shape, direction or dtype."""
    ranks.run(recurrences, rows)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_sent_bytes(dtype: torch.dtype, ranks: Ranks) -> None:
    ranks.run(sent_bytes, dtype)


BODIES = [range_of_products, special_values, higher_derivatives, chosen_gradients, wrong_calls]
BODIES += [compiled, dtensors, dtensors_on_meshes_of_two_dimensions]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_calls(body: Callable[[], None], ranks: Ranks) -> None:
    ranks.run(body)


def test_without_a_group() -> None:
    with pytest.raises(sw.InvalidProblemError, match="group must be a process group, got none, as none is initialized"):
        std.linear_recurrence(torch.ones(3), torch.ones(3), 0)
