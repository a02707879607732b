"""Scans and gradients that are computed chunk by chunk: carries from one chunk to the next, and of several chunks at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from families import Family, Problem, make
from families.scan import FORWARD_SCANS, SCANS, back, places, rows_of
from support import DIRECTIONS, F16, F32, F64, Guarded
from torch import Tensor

import sternway as sw
from sternway._kinds import KINDS

INF, NAN = math.inf, math.nan
EXTREMA = {"cummax": 1, "cummin": -1}
# A chunk shorter than a vector, longer than a tile of some threads, empty, and of one element.
CUTS = ((5, 300, 0, 1, 94), (128, 272), (400,), (0, 400), (399, 1))
SHAPES = (((3, -1), 1), ((-1, 3), 0), ((2, -1, 5), 1), ((-1,), 0), ((70, -1), -1), ((-1, 130), 0))
FORWARD = pytest.mark.parametrize("scan", FORWARD_SCANS.values(), ids=lambda family: family.name)
BACKWARD = pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)


class Chunks:
    """A problem cut along the scanned dimension, with a plan for each chunk; chunks are numbered in scan order."""

    def __init__(self, problem: Problem, lengths: Sequence[int], kernel: str | None = None) -> None:
        d = problem.descriptor
        self.problem, self.kind, self.dim, self.reverse = problem, d.kind, d.dim, d.reverse
        self.device, self.dtype = problem.device, problem.main.dtype
        self.lengths = lengths[::-1] if self.reverse else lengths
        ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
        self.places = [(a, b - a) for a, b in itertools.pairwise(ends)]
        if self.reverse:
            self.places.reverse()
        preference = sw.PlanPreference(kernel=kernel if self.device != "cpu" else None)
        self.plans = []
        for length in self.lengths:
            shape = list(d.shape)
            shape[self.dim] = length
            chunk = type(d)(d.kind, shape, d.dtype, self.dim, self.reverse, d.tie, carries=True)
            self.plans.append(problem.family.plan.select(chunk, self.device, preference))

    def of(self, x: Tensor, k: int) -> Tensor:
        return x.narrow(self.dim, *self.places[k])

    def state(self, numbers: int, layout: str = "contiguous") -> Guarded:
        rows = list(self.problem.main.shape)
        rows.pop(self.dim)
        return Guarded((*rows, numbers), F64, self.device, layout)

    def nothing(self, boundary: int) -> Tensor | None:
        """The carry of no elements at a boundary; None: the kind needs none."""
        if self.kind not in EXTREMA:
            return None
        return torch.tensor([0.0, NAN, boundary], dtype=F64, device=self.device).expand(self.state(3).tensor.shape)

    @property
    def numbers(self) -> int:
        return KINDS[self.kind].carry_size

    @property
    def gradient_numbers(self) -> int:
        kind = KINDS[self.kind]
        return kind.gradient_carry_size_float64 if self.dtype == F64 else kind.gradient_carry_size


def forward(chunks: Chunks, layout: str = "contiguous") -> tuple[dict[str, Tensor], list[Tensor]]:
    """The outputs of a scan chunk by chunk, and the carries that enter the chunks from the second on."""
    x = chunks.problem.main
    outputs = {"y": Guarded(x.shape, x.dtype, chunks.device)}
    if chunks.kind in EXTREMA:
        outputs["indices"] = Guarded(x.shape, torch.int64, chunks.device)
    carries: list[Tensor] = []
    for k, plan in enumerate(chunks.plans):
        carry = chunks.state(chunks.numbers, layout)
        into = {name: chunks.of(out.tensor, k) for name, out in outputs.items()}
        enters = carries[-1] if carries else chunks.nothing(x.shape[chunks.dim]) if chunks.reverse else None
        plan.run(x=chunks.of(x, k), carry_in=enters, carry_out=carry.tensor, **into)
        carries.append(carry.take())
    return {name: out.take() for name, out in outputs.items()}, carries[:-1]


def summaries(chunks: Chunks) -> list[Tensor]:
    """The carries of single chunks, without a scan. Boundaries are those of the whole."""
    found: list[Tensor] = []
    for k, plan in enumerate(chunks.plans):
        carry, (start, length) = chunks.state(chunks.numbers), chunks.places[k]
        enters = chunks.nothing(start + length if chunks.reverse else start)
        plan.run(x=chunks.of(chunks.problem.main, k), carry_in=enters, carry_out=carry.tensor)
        found.append(carry.take())
    return found


def by_summaries(chunks: Chunks) -> dict[str, Tensor]:
    """The outputs of a scan from the summaries of all chunks, as ranks compute it."""
    x, states = chunks.problem.main, summaries(chunks)
    outputs = {"y": Guarded(x.shape, x.dtype, chunks.device)}
    if chunks.kind in EXTREMA:
        outputs["indices"] = Guarded(x.shape, torch.int64, chunks.device)
    for k, plan in enumerate(chunks.plans):
        into = {name: chunks.of(out.tensor, k) for name, out in outputs.items()}
        enters = torch.stack(states[:k]) if k else chunks.nothing(x.shape[chunks.dim] if chunks.reverse else 0)
        plan.run(x=chunks.of(x, k), carry_in=enters, **into)
    return {name: out.take() for name, out in outputs.items()}


def backward(chunks: Chunks, carries: list[Tensor], layout: str = "contiguous") -> Tensor:
    """dx, from the last chunk in scan order to the first. carries: those that entered the chunks of the forward."""
    inputs, dx = chunks.problem.inputs, Guarded(chunks.problem.main.shape, chunks.dtype, chunks.device)
    after: Tensor | None = None
    for k in reversed(range(len(chunks.plans))):
        state = chunks.state(chunks.gradient_numbers, layout)
        entering = {"carry_in": carries[k - 1] if k and carries else None, "dcarry_out": after}
        chunk = {name: chunks.of(x, k) for name, x in inputs.items()}
        chunks.plans[k].run(**chunk, **entering, dx=chunks.of(dx.tensor, k), dcarry_in=state.tensor)
        after = state.take()
    return dx.take()


def backward_by_summaries(chunks: Chunks, carries: list[Tensor]) -> Tensor:
    """dx from the summaries of all chunks."""
    inputs, dx = chunks.problem.inputs, Guarded(chunks.problem.main.shape, chunks.dtype, chunks.device)
    states, entering = [], []
    for k, plan in enumerate(chunks.plans):
        state = chunks.state(chunks.gradient_numbers)
        entering.append(
            {name: chunks.of(x, k) for name, x in inputs.items()} | {"carry_in": carries[k - 1] if k and carries else None}
        )
        plan.run(**entering[k], dcarry_in=state.tensor)
        states.append(state.take())
    for k, plan in enumerate(chunks.plans):
        after = torch.stack(states[k + 1 :]) if k + 1 < len(states) else None
        plan.run(**entering[k], dcarry_out=after, dx=chunks.of(dx.tensor, k))
    return dx.take()


def entering_carries(problem: Problem, lengths: Sequence[int], kernel: str | None) -> list[Tensor]:
    """The carries of the forward that a gradient needs."""
    d = problem.descriptor
    if KINDS[d.kind].is_own_gradient:
        return []
    scan = FORWARD_SCANS[d.kind]
    of_x = sw.ScanDescriptor(d.kind, d.shape, d.dtype, d.dim, d.reverse, d.tie)
    whole = Problem(scan, of_x, {"x": problem.inputs["x"]}, {})
    return forward(Chunks(whole, lengths, kernel))[1]


def indices_of(problem: Problem) -> Tensor | None:
    d, x = problem.descriptor, problem.main
    if d.kind not in EXTREMA:
        return None
    found = back(places(EXTREMA[d.kind], rows_of(x, d.dim, d.reverse), d.tie), x, d.dim, d.reverse).long()
    return x.shape[d.dim] - 1 - found if d.reverse else found


def ties_of(family: Family) -> tuple[str, ...]:
    return ("last", "first") if family.name.removesuffix("_forward") in EXTREMA else ("last",)


def kernels_of(device: str) -> tuple[str | None, ...]:
    """The kernel that a plan selects, and on a GPU each of them."""
    return (None,) if device == "cpu" else (None, "row_tiled", "column_tiled")


def shapes(n: int) -> list[tuple[tuple[int, ...], int]]:
    return [(tuple(n if extent == -1 else extent for extent in shape), dim) for shape, dim in SHAPES]


@DIRECTIONS
@FORWARD
def test_forward(scan: Family, reverse: bool, dtype: torch.dtype, device: str) -> None:
    for tie, kernel in itertools.product(ties_of(scan), kernels_of(device)):
        for shape, dim in shapes(400):
            options = {"tie": tie} if tie != "last" else {}
            problem = make(scan, shape, dtype, device, dim=dim, reverse=reverse, **options)
            indices = indices_of(problem)
            for lengths in CUTS if kernel is None else CUTS[:2]:
                chunks = Chunks(problem, lengths, kernel)
                for found in (forward(chunks)[0], by_summaries(chunks)):
                    problem.check({"y": found["y"]})
                    assert indices is None or torch.equal(found["indices"], indices)


@DIRECTIONS
@BACKWARD
def test_backward(scan: Family, reverse: bool, dtype: torch.dtype, device: str) -> None:
    for tie, kernel in itertools.product(ties_of(scan), kernels_of(device)):
        for shape, dim in shapes(400):
            options = {"tie": tie} if tie != "last" else {}
            problem = make(scan, shape, dtype, device, dim=dim, reverse=reverse, **options)
            for lengths in CUTS if kernel is None else CUTS[:2]:
                chunks, carries = Chunks(problem, lengths, kernel), entering_carries(problem, lengths, kernel)
                for dx in (backward(chunks, carries), backward_by_summaries(chunks, carries)):
                    problem.check({"dx": dx})


@pytest.mark.parametrize(
    ("shape", "dim", "lengths"),
    [((2, 100_000), 1, (30_001, 69_999)), ((70_000, 3), 0, (1000, 69_000)), ((600_000,), 0, (262_145, 337_855))],
    ids=str,
)
@pytest.mark.parametrize("both", [(FORWARD_SCANS[kind], SCANS[kind]) for kind in KINDS], ids=KINDS)
def test_rows_that_are_split(both: Any, shape: Any, dim: int, lengths: Any, dtype: torch.dtype, device: str) -> None:
    """Rows of which the device does several parts at once."""
    problem = make(both[0], shape, dtype, device, dim=dim)
    chunks, indices = Chunks(problem, lengths), indices_of(problem)
    for found in (forward(chunks)[0], by_summaries(chunks)):
        problem.check({"y": found["y"]})
        assert indices is None or torch.equal(found["indices"], indices)
    problem = make(both[1], shape, dtype, device, dim=dim)
    chunks, carries = Chunks(problem, lengths), entering_carries(problem, lengths, None)
    for dx in (backward(chunks, carries), backward_by_summaries(chunks, carries)):
        problem.check({"dx": dx})


@DIRECTIONS
@FORWARD
def test_special_values_at_borders(scan: Family, reverse: bool, dtype: torch.dtype, device: str) -> None:
    """The last element of a chunk, and the first one of the next; also a chunk of nothing else."""
    for tie in ties_of(scan):
        options = {"tie": tie} if tie != "last" else {}
        for special in (NAN, INF, -INF, 0.0, -0.0):
            problem = make(scan, (6, 60), dtype, device, reverse=reverse, **options)
            x = problem.main.clone()
            x[0, 19] = x[1, 20] = x[2, 0] = x[3, 59] = x[4, 20:40] = x[5, :20] = special
            x[3, 20] = -INF
            d = problem.descriptor
            problem = Problem(scan, d, {"x": x}, scan.truth(d, {"x": x}))
            for shape_dim in (1, 0):
                if shape_dim == 0:
                    turned = x.T.contiguous()
                    d = sw.ScanDescriptor(d.kind, turned.shape, d.dtype, 0, d.reverse, d.tie)
                    problem = Problem(scan, d, {"x": turned}, scan.truth(d, {"x": turned}))
                chunks, indices = Chunks(problem, (20, 20, 20)), indices_of(problem)
                for found in (forward(chunks)[0], by_summaries(chunks)):
                    problem.check({"y": found["y"]})
                    assert indices is None or torch.equal(found["indices"], indices)


@DIRECTIONS
@BACKWARD
def test_special_values_of_gradients_at_borders(scan: Family, reverse: bool, dtype: torch.dtype, device: str) -> None:
    kind = scan.name
    for tie in ties_of(scan):
        options = {"tie": tie} if tie != "last" else {}
        for special in (0.0, -0.0, -INF, NAN, INF):
            if kind == "cumprod" and math.isinf(special) and device == "cpu":
                continue  # the gradient of an infinite factor is no affine map of what follows
            problem = make(scan, (6, 60), dtype, device, reverse=reverse, **options)
            x = problem.inputs.get("x", problem.main).clone()
            x[0, 19] = x[1, 20] = x[2, 0] = x[3, 59] = x[4, 20:40] = x[5, :20] = special
            inputs = problem.inputs | {"x" if "x" in problem.inputs else "dy": x}
            problem = Problem(scan, problem.descriptor, inputs, scan.truth(problem.descriptor, inputs))
            chunks, carries = Chunks(problem, (20, 20, 20)), entering_carries(problem, (20, 20, 20), None)
            for dx in (backward(chunks, carries), backward_by_summaries(chunks, carries)):
                problem.check({"dx": dx})


def test_products_that_leave_the_range_and_return_in_another_chunk(dtype: torch.dtype, device: str) -> None:
    big = torch.finfo(dtype).max / 4
    x = torch.tensor([big, 8, big, 8, 1 / big, 0.125, 1 / big, 0.125], dtype=F64).to(device, dtype)
    descriptor = sw.ScanDescriptor("cumprod", x.shape, dtype)
    scan = FORWARD_SCANS["cumprod"]
    problem = Problem(scan, descriptor, {"x": x}, scan.truth(descriptor, {"x": x}))
    for lengths in ((4, 4), (2, 2, 2, 2), (3, 5), (1,) * 8):
        chunks = Chunks(problem, lengths)
        for found in (forward(chunks)[0], by_summaries(chunks)):
            problem.check({"y": found["y"]})


@FORWARD
def test_carries_of_any_layout(scan: Family, device: str) -> None:
    problem = make(scan, (4, 40, 3), F32, device, dim=1)
    for layout in ("offset", "transposed", "rotated", "stepped", "pitched"):
        problem.check({"y": forward(Chunks(problem, (17, 23)), layout)[0]["y"]})


@BACKWARD
def test_carries_of_gradients_of_any_layout(scan: Family, device: str) -> None:
    problem = make(scan, (4, 40, 3), F32, device, dim=1)
    carries = entering_carries(problem, (17, 23), None)
    for layout in ("offset", "transposed", "rotated", "stepped", "pitched"):
        problem.check({"dx": backward(Chunks(problem, (17, 23)), carries, layout)})


@FORWARD
def test_summary_is_the_carry_of_a_run(scan: Family, dtype: torch.dtype, device: str) -> None:
    """Bit for bit, and again on a second run."""
    for shape, dim in (((5, 3000), 1), ((3000, 40), 0), ((1, 300_000), 1)):
        problem = make(scan, shape, dtype, device, dim=dim)
        chunks = Chunks(problem, (shape[dim],))
        (plan,) = chunks.plans
        found = []
        for outputs in ({}, {"y": torch.empty_like(problem.main)}, {}):
            carry = chunks.state(chunks.numbers)
            plan.run(x=problem.main, carry_out=carry.tensor, **outputs)
            found.append(carry.take())
        assert torch.equal(found[0].view(torch.int64), found[1].view(torch.int64))
        assert torch.equal(found[0].view(torch.int64), found[2].view(torch.int64))


def test_carries_by_definition(device: str) -> None:
    x = torch.tensor([[1.0, 3.0, 2.0], [-2.0, 0.5, 0.5]], dtype=F64, device=device)

    def carry(kind: str, numbers: int, **fields: Any) -> Tensor:
        plan = sw.ScanPlan.select(sw.ScanDescriptor(kind, (2, 3), F64, carries=True, **fields), device)
        out = torch.full((2, numbers), NAN, dtype=F64, device=device)
        plan.run(x=x, carry_out=out)
        return out.cpu()

    assert carry("cumsum", 1).tolist() == [[6.0], [-1.0]]
    m, e = carry("cumprod", 2).unbind(1)
    torch.testing.assert_close(m * torch.exp2(e), x.cpu().prod(1))
    m, t = carry("logcumsumexp", 2).unbind(1)
    torch.testing.assert_close(m + torch.log1p(t), x.cpu().logsumexp(1))
    assert carry("cummax", 3).tolist() == [[3.0, 1.0, 3.0], [0.5, 2.0, 3.0]]
    assert carry("cummax", 3, tie="first").tolist() == [[3.0, 1.0, 3.0], [0.5, 1.0, 3.0]]
    assert carry("cummin", 3, reverse=True).tolist() == [[1.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_empty_chunks(kind: str, device: str) -> None:
    """An empty chunk passes on what enters it, and without that a state with which a chunk is what it is without one."""
    numbers = KINDS[kind].carry_size
    plan = sw.ScanPlan.select(sw.ScanDescriptor(kind, (2, 0), F32, carries=True), device)
    x = torch.empty(2, 0, device=device)
    out = torch.full((2, numbers), NAN, dtype=F64, device=device)
    plan.run(x=x, carry_out=out)
    numbers_of_nothing = out.clone()
    row = torch.tensor([[2.0, -INF, 0.5]] * 2, device=device)
    whole = sw.ScanPlan.select(sw.ScanDescriptor(kind, (2, 3), F32, carries=True), device)
    found = [row.clone() for _ in range(2)]
    whole.run(x=row, y=found[0])
    whole.run(x=row, y=found[1], carry_in=numbers_of_nothing)
    assert torch.equal(*found)
    enters = torch.tensor([[1.5, 3.0, 7.0]] * 2, dtype=F64, device=device)[:, :numbers]
    plan.run(x=x, y=x.clone(), carry_in=enters, carry_out=out)
    assert torch.equal(out, enters)
    plan.run(x=x, carry_in=enters[None].expand(0, 2, numbers), carry_out=out)
    assert str(out[:, :2].tolist()) == str(numbers_of_nothing[:, :2].tolist())


def refused(run: Callable[..., None], message: str, **operands: Any) -> None:
    with pytest.raises(sw.InvalidProblemError, match=message):
        run(**operands)


def test_refusals(device: str) -> None:
    x, carry = torch.ones(2, 3, device=device), torch.zeros(2, 1, dtype=F64, device=device)
    plain = sw.ScanPlan.select(sw.ScanDescriptor("cumsum", (2, 3), F32), device)
    refused(plain.run, "carry_in must be left out, .*carries=True", x=x, y=x.clone(), carry_in=carry)
    plan = sw.ScanPlan.select(sw.ScanDescriptor("cumsum", (2, 3), F32, carries=True), device)
    refused(plan.run, "y must be given", x=x)
    refused(
        plan.run,
        r"carry_out must be of shape \[2, 1\], got \[2, 2\]",
        x=x,
        carry_out=torch.zeros(2, 2, dtype=F64, device=device),
    )
    refused(plan.run, "carry_out must be float64", x=x, carry_out=carry.float())
    refused(plan.run, "carry_out must be disjoint from carry_in", x=x, carry_in=carry, carry_out=carry)
    back = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cumsum", (2, 3), F32, carries=True), device)
    refused(back.run, "dx must be given", dy=x)
    refused(back.run, "carry_in must be left out", dy=x, carry_in=carry, dx=x.clone())
    extremum = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cummax", (2, 3), F32, carries=True), device)
    indices = torch.zeros(2, 3, dtype=torch.int64, device=device)
    refused(extremum.run, "indices must be left out with carries", dy=x, indices=indices, dx=x.clone())


def test_descriptor() -> None:
    descriptor = sw.ScanDescriptor("cumsum", (2, 3), "float32", carries=True)
    assert sw.ScanDescriptor.from_json(descriptor.to_json()) == descriptor
    assert descriptor != sw.ScanDescriptor("cumsum", (2, 3), "float32")
    assert "carries" in repr(descriptor)


@pytest.mark.gpu
def test_kernel_for_rows_with_carries() -> None:
    device = "cuda:0"
    descriptor = sw.ScanDescriptor("cumsum", (4, 9000), F16, carries=True)
    assert sw.ScanPlan.select(descriptor, device).sku.kernel == "row_tiled"
    with pytest.raises(sw.UnsupportedError, match="row_tiled or column_tiled with carries"):
        sw.ScanPlan.select(descriptor, device, sw.PlanPreference(kernel="row_pipelined"))
