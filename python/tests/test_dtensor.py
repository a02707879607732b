"""Functions of sternway.torch on DTensors, on several processes: values and gradients of one process, and refusals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from ranks import Ranks, default_device, seeded, world
from support import F64
from torch import Tensor

import sternway as sw
import sternway.torch as st
from sternway._kinds import EXTREMA, KINDS

dtensor = pytest.importorskip("torch.distributed.tensor", reason="torch has no torch.distributed")
if not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402

R, S0, S1, S2, S3, SUM = Replicate(), Shard(0), Shard(1), Shard(2), Shard(3), Partial()


@functools.cache
def mesh() -> Any:
    """The mesh of all tests. torch.compile mixes up equal meshes that are several objects."""
    return dtensor.init_device_mesh(default_device(), (world(),))


class Case(NamedTuple):
    """A call, its inputs, and how they may be placed, with the placements of the outputs that follow: one for all, or each."""

    function: Callable[..., Any]
    inputs: Callable[[], Sequence[Tensor | None]]
    placements: Sequence[tuple[Sequence[Placement], Placement | tuple[Placement, ...]]]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded(sum(shape)), dtype=F64)


def indices(rows: int, *shape: int) -> Tensor:
    return torch.randint(rows, shape, generator=seeded(rows))


def positive(*shape: int) -> Tensor:
    return random(*shape).abs() / 4 + 0.1


def levels(*shape: int) -> Tensor:
    return indices(255, *shape).sub(127).to(torch.int8)


def scan(kind: str, dim: int, reverse: bool) -> Case:
    """A scan along dimension 0 or 1."""
    other = S1 if dim % 3 == 0 else S0
    placements = [((p,), p) for p in (other, S2, R)] + ([((SUM,), SUM)] if KINDS[kind].is_linear else [])
    return Case(lambda x: getattr(st, kind)(x, dim, reverse=reverse), lambda: [random(5, 7, 3)], placements)


def packed_scan(kind: str) -> Case:
    """A scan of packed sequences along dimension 1; exclusive where it can be."""
    options = {} if kind in EXTREMA else {"exclusive": True}
    return Case(
        lambda x, bounds: getattr(st, kind)(x, 1, cu_seqlens=bounds, **options),
        lambda: [random(5, 7, 3), torch.tensor([0, 3, 3, 7])],
        [((S0, R), S0), ((S2, R), S2), ((R, R), R)] + ([((SUM, R), SUM)] if KINDS[kind].is_linear else []),
    )


# Extents are odd, so that shards have different lengths.
PER_TOKEN = [((S0, S0), S0), ((S1, S1), S1), ((S2, R), S2), ((S0, R), S0), ((R, R), R)]
WITH_ZERO_POINT = [((S0, S0, S0), S0), ((S1, S1, R), S1), ((S2, R, R), S2), ((R, R, R), R)]
CASES: dict[str, Case] = {
    **{f"{kind} along {dim}": scan(kind, dim, dim == -2) for kind in KINDS for dim in (0, 1, -2)},
    **{f"{kind} of packed sequences": packed_scan(kind) for kind in ("cumsum", "cumprod", "cummax")},
    "lerp": Case(
        lambda a, b: st.lerp(a, b, 0.25),
        lambda: [random(5, 3), random(5, 3)],
        [((S0, S0), S0), ((S1, S1), S1), ((S0, R), S0), ((R, S1), S1), ((R, R), R)],
    ),
    "lerp with broadcast": Case(
        st.lerp,
        lambda: [random(5, 3, 7), random(3, 1), positive(7)],
        [((S0, R, R), S0), ((S1, S0, R), S1), ((S1, R, R), S1), ((S2, R, S0), S2), ((R, R, R), R)],
    ),
    "lerp with a number as weight": Case(
        st.lerp, lambda: [random(5, 3), random(3), positive()], [((S0, R, R), S0), ((S1, S0, R), S1), ((R, R, R), R)]
    ),
    "linear_recurrence": Case(
        lambda a, b: st.linear_recurrence(a, b, 1),
        lambda: [random(5, 7, 3), random(5, 7, 3)],
        [((S0, S0), S0), ((S2, S2), S2), ((R, S2), S2), ((S0, R), S0), ((R, R), R)],
    ),
    "linear_recurrence by a number": Case(
        lambda b: st.linear_recurrence(0.5, b, -1, reverse=True), lambda: [random(5, 7, 3)], [((S0,), S0), ((SUM,), SUM)]
    ),
    "linear_recurrence with broadcast and states": Case(
        lambda a, b, s: st.linear_recurrence(a, b, -2, initial_state=s, output_final_state=True),
        lambda: [random(7, 1), random(5, 7, 6), random(5, 6)],
        [((R, S0, S0), S0), ((R, S2, S1), (S2, S1)), ((R, S2, R), (S2, S1)), ((R, R, R), R)],
    ),
    "linear_recurrence of packed sequences": Case(
        lambda a, b, s, cu: st.linear_recurrence(a, b, -2, initial_state=s, cu_seqlens=cu, output_final_state=True),
        lambda: [random(5, 7, 1), random(7, 6), random(5, 3, 6), torch.tensor([0, 4, 4, 7])],
        [((S0, R, S0, R), S0), ((R, S1, S2, R), S2)],
    ),
    "dequantize_per_token": Case(st.dequantize_per_token, lambda: [levels(5, 3, 7), positive(5, 3)], PER_TOKEN),
    "dequantize_per_token with zero points": Case(
        st.dequantize_per_token, lambda: [levels(5, 3, 7), positive(5, 3, 1), random(5, 3)], WITH_ZERO_POINT
    ),
    "dequantize_per_token with integers": Case(
        st.dequantize_per_token, lambda: [levels(5, 3, 7), positive(5, 3, 1), indices(9, 5, 3)], WITH_ZERO_POINT
    ),
    "fake_quantize_per_token": Case(
        lambda x, s: st.fake_quantize_per_token(x, s, quant_min=-2, quant_max=3),
        lambda: [random(5, 3, 7), positive(5, 3)],
        PER_TOKEN,
    ),
    "fake_quantize_per_token with zero points": Case(
        lambda x, s, z: st.fake_quantize_per_token(x, s, z, quant_min=-2, quant_max=3),
        lambda: [random(5, 3, 7), positive(5, 3, 1), random(5, 3)],
        WITH_ZERO_POINT,
    ),
    "fake_quantize per tensor": Case(
        lambda x, s, z: st.fake_quantize(x, s, z, quant_min=-2, quant_max=3),
        lambda: [random(5, 3, 7), positive(), random()],
        [((S0, R, R), S0), ((S2, R, R), S2), ((R, R, R), R)],
    ),
    "fake_quantize per channel": Case(
        lambda x, s, z: st.fake_quantize(x, s, z, quant_min=-2, quant_max=3),
        lambda: [random(5, 3, 7), positive(1, 1, 7), random(1, 1, 7)],
        [((S0, R, R), S0), ((S2, S2, S2), S2), ((S2, R, R), S2)],
    ),
    "dequantize by groups": Case(  # four, which two and four ranks share evenly
        st.dequantize,
        lambda: [levels(5, 3, 8), positive(5, 3, 4), random(5, 3, 4)],
        [((S0, S0, S0), S0), ((S2, S2, R), S2), ((R, R, R), R)],
    ),
    "dequantize packed values": Case(  # 16 in 8 bytes
        lambda q, s, z: st.dequantize(q, s, z, qdtype="int4"),
        lambda: [indices(256, 5, 3, 8).to(torch.uint8), positive(5, 3, 4), random(5, 3, 4)],
        [((S0, S0, S0), S0), ((S2, S2, R), S2), ((R, R, R), R)],
    ),
    "rope": Case(st.rope, lambda: [random(5, 3, 7, 4)], [((S0,), S0), ((S1,), S1), ((R,), R), ((SUM,), SUM)]),
    "rope with positions": Case(
        lambda x, p: st.rope(x, p, pairing="half", layout="bshd"),
        lambda: [random(5, 7, 3, 4), indices(50, 7)],
        [((S0, R), S0), ((S1, S0), S1), ((S1, R), S1), ((S2, R), S2), ((R, R), R)],
    ),
    "rope with positions of each batch": Case(
        st.rope,
        lambda: [random(5, 3, 7, 4), indices(50, 5, 7)],
        [((S0, S0), S0), ((S0, R), S0), ((S1, R), S1), ((S2, S1), S2), ((R, R), R)],
    ),
    "rope of tokens": Case(
        lambda x, p, c, s: st.rope(x, p, cos=c, sin=s, layout="thd"),
        lambda: [random(7, 3, 4), indices(9, 7), indices(9, 9, 2).cos(), indices(9, 9, 2).sin()],
        [((S0, S0, R, R), S0), ((S1, R, R, R), S1), ((R, R, R, R), R)],
    ),
    "apply_rotary_pos_emb": Case(
        st.apply_rotary_pos_emb,
        lambda: [random(5, 6, 7, 4), random(5, 2, 7, 4), indices(9, 5, 7, 4).cos(), indices(9, 5, 7, 4).sin()],
        [((S0, S0, S0, S0), S0), ((S0, S0, R, R), S0), ((S1, S1, R, R), S1), ((S2, S2, S1, S1), S2), ((R, R, R, R), R)],
    ),
    "apply_rotary_pos_emb with one head of keys": Case(
        st.apply_rotary_pos_emb,
        lambda: [random(5, 6, 7, 4), random(5, 1, 7, 4), indices(9, 1, 7, 4).cos(), indices(9, 1, 7, 4).sin()],
        [((S1, R, R, R), (S1, R))],
    ),
    "rope with tables of each head": Case(
        lambda x, c, s: st.rope(x, cos=c, sin=s),
        lambda: [random(5, 3, 7, 4), indices(9, 1, 3, 7, 2).cos(), indices(9, 1, 3, 7, 2).sin()],
        [((S0, R, R), S0), ((S1, S1, S1), S1), ((R, R, R), R)],
    ),
    "rope with learned tables": Case(
        lambda x, p, c, s: st.rope(x, p, cos=c, sin=s),
        lambda: [random(5, 3, 7, 4), indices(9, 5, 7), random(9, 2), random(9, 2)],
        [((S0, S0, R, R), S0), ((S1, R, R, R), S1), ((S2, S1, R, R), S2), ((R, R, R, R), R)],
    ),
    "rope with learned tables of tokens": Case(
        lambda q, k, c, s: st.apply_rotary_pos_emb(q, k, c, s),
        lambda: [random(5, 6, 7, 4), random(5, 2, 7, 4), random(5, 7, 4), random(5, 7, 4)],
        [((S0, S0, S0, S0), S0), ((S1, S1, R, R), S1), ((S2, S2, S1, S1), S2), ((R, R, R, R), R)],
    ),
    "embedding": Case(
        lambda w, i: st.embedding(i, w, padding_idx=3),
        lambda: [random(6, 5), indices(6, 7, 3)],
        [((R, S0), S0), ((R, S1), S1), ((S1, R), S2), ((R, R), R)],
    ),
    "embedding with frequencies": Case(
        lambda w, i: st.embedding(i, w, scale_grad_by_freq=True), lambda: [random(6, 5), indices(6, 7, 3)], [((S1, R), S2)]
    ),
    **{
        f"embedding_bag {mode}": Case(
            lambda w, i, mode=mode: st.embedding_bag(i, w, mode=mode, padding_idx=1),
            lambda: [random(6, 5), indices(6, 7, 3)],
            [((R, S0), S0), ((S1, R), S1), ((R, R), R)],
        )
        for mode in ("sum", "mean", "max")
    },
    "embedding_bag with offsets": Case(
        lambda w, i, o: st.embedding_bag(i, w, o),
        lambda: [random(6, 5), indices(6, 9), torch.tensor([0, 2, 2, 5])],
        [((S1, R, R), S1), ((R, R, R), R)],
    ),
    "embedding_bag with weights of samples": Case(
        lambda w, i, s: st.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        lambda: [random(6, 5), indices(6, 7, 3), random(7, 3)],
        [((R, S0, S0), S0), ((R, S0, R), S0), ((S1, R, R), S1), ((R, R, R), R)],
    ),
}  # fmt: skip


def outputs(y: Any) -> tuple[Tensor, ...]:
    return tuple(y) if isinstance(y, tuple) else (y,)


def floating(y: Any) -> list[Tensor]:
    return [t for t in outputs(y) if t.is_floating_point()]


def leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Those that get a gradient."""
    return [x for x in tensors if x.requires_grad]


def needs_gradient(name: str, k: int, x: Tensor) -> bool:
    """Whether input k of a case gets a gradient: floating ones do, except tables of RoPE that are not learned."""
    is_table = k >= 2 and ("rope" in name or "rotary" in name)
    return x.is_floating_point() and (not is_table or "learned" in name)


def distributed(x: Tensor, placement: Placement, learned: bool) -> Any:
    """A DTensor of a tensor that all ranks have. As a sum over the ranks, each has a part."""
    if placement.is_partial():
        part = x * (torch.distributed.get_rank() + 1) / sum(range(world() + 1))
        return DTensor.from_local(part, mesh(), [placement], run_check=False).requires_grad_(learned)
    return distribute_tensor(x, mesh(), [placement]).requires_grad_(learned)


def compare(name: str, index: int) -> None:
    """Values and gradients of a case are those of the single-process run, without communication where dy is placed as y."""
    case = CASES[name]
    placements, made = case.placements[index]
    inputs = case.inputs()
    plain = [x.clone().requires_grad_(needs_gradient(name, k, x)) for k, x in enumerate(inputs)]
    shared = [distributed(x, p, needs_gradient(name, k, x)) for k, (x, p) in enumerate(zip(inputs, placements, strict=True))]
    want, got = case.function(*plain), case.function(*shared)
    assert type(got) is type(want) or isinstance(got, DTensor)
    each = made if isinstance(made, tuple) else (made,) * len(outputs(want))
    for y, whole, placement in zip(outputs(got), outputs(want), each, strict=True):
        assert isinstance(y, DTensor)
        assert y.placements == (placement,), y.placements
        torch.testing.assert_close(y.full_tensor(), whole)
    dy = [random(*whole.shape) for whole in floating(want)]
    wanted = torch.autograd.grad(floating(want), leaves(plain), dy)
    for how in (R, SUM, 0, -1):  # or sharded along a dimension
        shares = [distributed(d, Shard(how % d.dim()) if isinstance(how, int) else how, False) for d in dy]
        found = torch.autograd.grad(floating(got), leaves(shared), shares, retain_graph=True)
        for gradient, single, leaf in zip(found, wanted, leaves(plain), strict=True):
            assert isinstance(gradient, DTensor)
            assert gradient.shape == leaf.shape
            torch.testing.assert_close(gradient.full_tensor(), single)
    shares = [distributed(d, placement, False) for d, placement in zip(dy, each, strict=False)]
    with CommDebugMode() as seen:
        found = torch.autograd.grad(floating(case.function(*shared)), leaves(shared), shares)
    for gradient, single in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient.full_tensor(), single)
    assert seen.get_total_counts() == 0, seen.get_comm_counts()


@pytest.mark.parametrize(
    ("name", "index"), [(name, k) for name, case in CASES.items() for k in range(len(case.placements))],
    ids=[f"{name}-{p}" for name, case in CASES.items() for p, _ in case.placements],
)  # fmt: skip
def test_values_and_gradients(name: str, index: int, ranks: Ranks) -> None:
    case = CASES[name]
    for x, placement in zip(case.inputs(), case.placements[index][0], strict=True):
        if x is not None and isinstance(placement, Shard) and x.shape[placement.dim] < ranks.size:
            pytest.skip("torch gathers a dimension that is shorter than the mesh")
    ranks.run(compare, name, index)


# --- Gradients --------------------------------------------------------------------------------------------------------


def placements_of_gradients() -> None:
    """A sum over tokens or broadcast elements of several ranks stays a sum of parts, until somebody needs it whole."""
    x, scale = distributed(random(5, 7), S1, True), distributed(positive(5), R, True)
    y = st.fake_quantize_per_token(x, scale, quant_min=-2, quant_max=3)
    dx, dscale = torch.autograd.grad(y, (x, scale), distributed(random(5, 7), S1, False))
    assert (dx.placements, dscale.placements) == ((S1,), (SUM,))
    a, b, w = (distributed(t, p, True) for t, p in ((random(5, 7), S0), (random(7), R), (positive(5, 1), S0)))
    da, db, dw = torch.autograd.grad(st.lerp(a, b, w), (a, b, w), distributed(random(5, 7), S0, False))
    assert (da.placements, db.placements, dw.placements) == ((S0,), (SUM,), (S0,))
    table = distributed(random(6, 5), R, True)
    y = st.embedding(distributed(indices(6, 7), S0, False), table)
    (dtable,) = torch.autograd.grad(y, table, distributed(random(7, 5), S0, False))
    assert dtable.placements == (SUM,)


def test_placements_of_gradients(ranks: Ranks) -> None:
    ranks.run(placements_of_gradients)


def short() -> None:
    """Of a dimension shorter than the mesh some ranks have nothing. torch replicates it."""
    x, plain = distributed(random(1, 7), S0, True), random(1, 7).requires_grad_()
    with CommDebugMode() as seen:
        assert st.cumprod(x, 1).placements == (R,)
    assert seen.get_total_counts() == 1
    found = [torch.autograd.grad(st.cumprod(t, 1).square().sum(), t)[0] for t in (x, plain)]
    torch.testing.assert_close(found[0].full_tensor(), found[1])


def test_a_dimension_shorter_than_the_mesh(ranks: Ranks) -> None:
    ranks.run(short)


def one_of_two_outputs() -> None:
    """The output of the keys is not used, and has no gradient."""
    q, k = random(5, 6, 7, 4), random(5, 2, 7, 4)
    tables = indices(9, 1, 7, 4).cos(), indices(9, 1, 7, 4).sin()
    plain = q.clone().requires_grad_(), k.clone().requires_grad_(), *tables
    shared = distributed(q, S0, True), distributed(k, S0, True), *(distributed(t, R, False) for t in tables)
    found = [torch.autograd.grad(st.apply_rotary_pos_emb(*ts)[0].square().sum(), ts[0])[0] for ts in (shared, plain)]
    torch.testing.assert_close(found[0].full_tensor(), found[1])


def test_queries_alone_have_a_gradient(ranks: Ranks) -> None:
    ranks.run(one_of_two_outputs)


SECOND = {
    **{kind: (kind + " along 1", 0) for kind in KINDS},
    "linear_recurrence": ("linear_recurrence", 0),
    "linear_recurrence with states": ("linear_recurrence with broadcast and states", 0),
    "linear_recurrence of packed sequences": ("linear_recurrence of packed sequences", 0),
    "linear_recurrence of packed sequences, by columns": ("linear_recurrence of packed sequences", 1),
    **{f"{kind} of packed sequences": (f"{kind} of packed sequences", 0) for kind in ("cumprod", "cummax")},
    "cumsum of packed sequences, a sum of parts": ("cumsum of packed sequences", 3),
    "lerp": ("lerp with broadcast", 0),
    "dequantize_per_token": ("dequantize_per_token with zero points", 0),
    "fake_quantize_per_token": ("fake_quantize_per_token with zero points", 0),
    "fake_quantize per tensor": ("fake_quantize per tensor", 1),
    "dequantize by groups": ("dequantize by groups", 1),
    "dequantize packed values": ("dequantize packed values", 1),
    "rope": ("rope with positions", 1),
    "embedding": ("embedding", 0),
}


def compare_second(name: str, index: int) -> None:
    case = CASES[name]
    inputs, (placements, _) = case.inputs(), case.placements[index]
    plain = [x.clone().requires_grad_(needs_gradient(name, k, x)) for k, x in enumerate(inputs)]
    shared = [distributed(x, p, needs_gradient(name, k, x)) for k, (x, p) in enumerate(zip(inputs, placements, strict=True))]
    found = []
    for tensors in (plain, shared):
        loss = floating(case.function(*tensors))[0].square().sum()
        first = torch.autograd.grad(loss, leaves(tensors), create_graph=True)
        total = sum(g.square().sum() for g in first)
        found.append(torch.autograd.grad(total, leaves(tensors)))
    for single, gradient in zip(*found, strict=True):
        torch.testing.assert_close(gradient.full_tensor(), single)


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str, ranks: Ranks) -> None:
    ranks.run(compare_second, *SECOND[name])


def train() -> None:
    """A parameter that is a DTensor is trained by an optimizer of torch, also where its gradient is a sum of parts."""
    module, single = (st.Embedding(6, 5, dtype=F64) for _ in range(2))
    with torch.no_grad():
        module.weight.copy_(random(6, 5))
        single.weight.copy_(random(6, 5))
    module.weight = torch.nn.Parameter(distribute_tensor(module.weight.detach(), mesh(), [R]))
    i = indices(6, 7, 3)
    for net, given in ((module, distributed(i, S0, False)), (single, i)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            st.cumsum(net(given), 1).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(module.weight.full_tensor(), single.weight)


def test_training(ranks: Ranks) -> None:
    ranks.run(train)


# --- Refusals ---------------------------------------------------------------------------------------------------------

REFUSALS: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[Tensor]], Sequence[Placement], str]] = {
    "a scan that is not linear of a sum": (
        lambda x: st.logcumsumexp(x, 0), lambda: [random(5, 7)], [SUM],
        r"^sternway\.torch\.logcumsumexp: x must .*got Partial.*redistribute",
    ),
    "ends with different shards": (
        lambda a, b: st.lerp(a, b, 0.5), lambda: [random(5, 7), random(5, 7)], [S0, S1],
        r"^sternway\.torch\.lerp: end must be placed as Replicate\(\) or Shard\(dim=0\).*end\.redistribute",
    ),
    "an initial state along a sharded dimension": (
        lambda a, b, s: st.linear_recurrence(a, b, initial_state=s), lambda: [random(5, 7), random(5, 7), random(5)],
        [S1, S1, R],
        r"^sternway\.torch\.linear_recurrence: initial_state must be left out along a sharded dimension.*redistribute",
    ),
    "factors that are sums": (
        lambda a, b: st.linear_recurrence(a, b), lambda: [random(5, 7), random(5, 7)], [SUM, R],
        r"^sternway\.torch\.linear_recurrence: a must .*got Partial.*a\.redistribute",
    ),
    "a sum along a sharded dimension": (
        lambda a, b: st.linear_recurrence(a, b), lambda: [random(5, 7), random(5, 7)], [S1, SUM],
        r"^sternway\.torch\.linear_recurrence: b must .*got Partial.*b\.redistribute",
    ),
    "a selective scan": (
        lambda u, step: st.selective_scan(u, step, -torch.ones(4, 2), step, step), lambda: [random(3, 4, 7), random(3, 2, 7)],
        [S0, S0],
        r"^sternway\.torch\.selective_scan: u must be a tensor of one rank, got a DTensor.*to_local\(\)",
    ),
    "a scale without its tokens": (
        st.dequantize_per_token, lambda: [levels(5, 3, 7), positive(5, 3)], [S2, S0],
        r"^sternway\.torch\.dequantize_per_token: scale must be .*scale\.redistribute",
    ),
    "groups that ranks cannot share evenly": (
        st.dequantize, lambda: [levels(5, 3, 9), positive(5, 3, 3)], [S2, R],
        r"^sternway\.torch\.dequantize: q must be placed as .*Shard\(dim=1\), got Shard\(dim=2\).*q\.redistribute",
    ),
    "bytes of packed values that ranks cannot share evenly": (
        lambda q, s: st.dequantize(q, s, qdtype="uint4"),
        lambda: [indices(256, 5, 3, 9).to(torch.uint8), positive(5, 3, 1)], [S2, R],
        r"^sternway\.torch\.dequantize: q must be placed as .*Shard\(dim=1\), got Shard\(dim=2\).*q\.redistribute",
    ),
    "tokens without positions": (
        st.rope, lambda: [random(5, 3, 7, 4)], [S2],
        r"^sternway\.torch\.rope: x must .*got Shard\(dim=2\).*x\.redistribute",
    ),
    "elements of a head": (
        lambda q, k, c, s: st.apply_rotary_pos_emb(q, k, c, s),
        lambda: [random(5, 6, 7, 4), random(5, 2, 7, 4), random(1, 7, 4), random(1, 7, 4)], [R, S3, R, R],
        r"^sternway\.torch\.apply_rotary_pos_emb: k must .*k\.redistribute",
    ),
    "rows of a table": (
        lambda w, i: st.embedding(i, w), lambda: [random(6, 5), indices(6, 7)], [S0, R],
        r"^sternway\.torch\.embedding: weight must .*weight\.redistribute",
    ),
    "positions whose gradient has frequencies": (
        lambda w, i: st.embedding(i, w, scale_grad_by_freq=True), lambda: [random(6, 5), indices(6, 7)], [R, S0],
        r"^sternway\.torch\.embedding: input must be placed as Replicate\(\).*input\.redistribute",
    ),
    "positions of a bag": (
        lambda w, i: st.embedding_bag(i, w), lambda: [random(6, 5), indices(6, 7, 3)], [R, S1],
        r"^sternway\.torch\.embedding_bag: input must .*input\.redistribute",
    ),
    "offsets": (
        lambda w, i, o: st.embedding_bag(i, w, o),
        lambda: [random(6, 5), indices(6, 7), torch.tensor([0, 2, 4])], [R, R, S0],
        r"^sternway\.torch\.embedding_bag: offsets must .*offsets\.redistribute",
    ),
    "a sparse gradient": (
        lambda w, i: st.embedding(i, w, sparse=True), lambda: [random(6, 5), indices(6, 7)], [R, S0],
        r"^sternway\.torch\.embedding: sparse must .*redistribute",
    ),
    "max_norm": (
        lambda w, i: st.embedding_bag(i, w, max_norm=1.0), lambda: [random(6, 5), indices(6, 7, 3)], [R, S0],
        r"^sternway\.torch\.embedding_bag: max_norm must .*redistribute",
    ),
    "floating positions": (
        st.rope, lambda: [random(5, 3, 7, 4), random(7)], [S0, R],
        r"^sternway\.torch\.rope: positions must be int32 or int64 where operands are DTensors.*redistribute",
    ),
    "local tables": (
        lambda q, k: st.apply_rotary_pos_emb(q, k, random(1, 7, 4), random(1, 7, 4)),
        lambda: [random(5, 6, 7, 4), random(5, 2, 7, 4)], [S0, S0],
        r"^sternway\.torch\.apply_rotary_pos_emb: cos must be a DTensor.*redistribute",
    ),
    "a plain tensor beside it": (
        lambda x: st.lerp(x, random(5, 7), 0.5), lambda: [random(5, 7)], [S0],
        r"^sternway\.torch\.lerp: end must be a DTensor.*redistribute",
    ),
}  # fmt: skip


def refused(name: str) -> None:
    function, inputs, placements, message = REFUSALS[name]
    shared = [distributed(x, p, False) for x, p in zip(inputs(), placements, strict=True)]
    with pytest.raises(sw.UnsupportedError, match=message), CommDebugMode() as seen:
        function(*shared)
    assert seen.get_total_counts() == 0


@pytest.mark.parametrize("name", REFUSALS)
def test_what_has_no_rule_is_refused(name: str, ranks: Ranks) -> None:
    ranks.run(refused, name)


def refused_second_derivative() -> None:
    w, i = distributed(random(6, 5), R, True), distributed(indices(6, 7, 3), S0, False)
    (dw,) = torch.autograd.grad(st.embedding_bag(i, w).square().sum(), w, create_graph=True)
    with pytest.raises(sw.UnsupportedError, match=r"embedding_bag: the gradient must be differentiated once.*redistribute"):
        torch.autograd.grad(dw.square().sum(), w)


def test_second_derivative_of_bags_is_refused(ranks: Ranks) -> None:
    ranks.run(refused_second_derivative)


# --- torch.compile ----------------------------------------------------------------------------------------------------


def compare_compiled(name: str, index: int) -> None:
    case = CASES[name]
    inputs, (placements, made) = case.inputs(), case.placements[index]
    shared = [distributed(x, p, needs_gradient(name, k, x)) for k, (x, p) in enumerate(zip(inputs, placements, strict=True))]
    compiled = torch.compile(case.function, backend="aot_eager", fullgraph=True)
    found = []
    for function in (case.function, compiled):
        y = floating(function(*shared))
        assert y[0].placements == (made,)
        found.append([*y, *torch.autograd.grad(sum(t.square().sum() for t in y), leaves(shared))])
    for ours, eager in zip(*found, strict=True):
        assert ours.placements == eager.placements
        torch.testing.assert_close(ours.to_local(), eager.to_local())


@pytest.mark.parametrize("name", SECOND)
def test_compiled(name: str, ranks: Ranks) -> None:
    ranks.run(compare_compiled, *SECOND[name])


# --- More than one mesh dimension -----------------------------------------------------------------------------------------


def two_dimensions() -> None:
    """Rules are combined over the dimensions of a mesh, of which one has one rank here."""
    both = dtensor.init_device_mesh(default_device(), (1, world()), mesh_dim_names=("data", "model"))
    x, scale = random(5, 7), positive(5)
    leaves = [distribute_tensor(x, both, [S0, S1]).requires_grad_(), distribute_tensor(scale, both, [S0, R]).requires_grad_()]
    plain = [x.clone().requires_grad_(), scale.clone().requires_grad_()]
    found = []
    for tensors in (leaves, plain):
        y = st.fake_quantize_per_token(*tensors, quant_min=-2, quant_max=3)
        found.append(torch.autograd.grad(y.square().sum(), tensors))
    for ours, single in zip(*found, strict=True):
        torch.testing.assert_close(ours.full_tensor(), single)
    torch.testing.assert_close(st.cumsum(leaves[0], 1).full_tensor(), plain[0].cumsum(1))
    with pytest.raises(sw.UnsupportedError, match=r"^sternway\.torch\.lerp: end must be on the mesh .*distribute_tensor"):
        st.lerp(leaves[0], distributed(x, R, False), 0.5)


def test_two_mesh_dimensions(ranks: Ranks) -> None:
    ranks.run(two_dimensions)


# --- The processes of the tests ---------------------------------------------------------------------------------------


def one_fails() -> None:
    if torch.distributed.get_rank() == 1:
        raise ValueError("of rank 1 alone")
    torch.distributed.barrier()


def test_a_rank_that_fails_makes_all_fail(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"rank 1: (.|\n)*ValueError: of rank 1 alone"):
        ranks.run(one_fails)
    ranks.run(torch.distributed.barrier)


def one_waits() -> None:
    if torch.distributed.get_rank() == 0:
        torch.distributed.barrier()


def test_a_rank_that_waits_for_ever_is_ended(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks.run(torch.distributed.barrier)
    monkeypatch.setattr(ranks, "timeout", 1.0)
    with pytest.raises(AssertionError, match=r"no answer from ranks \[0"):
        ranks.run(one_waits)
