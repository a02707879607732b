"""Exclusive scans, and scans of packed sequences: values, gradients, derivatives of the drop-ins, and wrong bounds."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from families.base import make
from families.scan import FORWARD_SCANS, SCANS
from support import BF16, F16, F32, F64, FLOATS, allowed, deviation, pairwise, values_of

import sternway as sw
import sternway.torch as st
from sternway._kinds import EXTREMA, KINDS

EMPTY = {"cumsum": 0.0, "cumprod": 1.0, "logcumsumexp": -math.inf}
"""The scan of no positions."""

BOOLS = (False, True)
LENGTH = 1500  # more than one tile of rows and of columns, and than one split on the CPU
BOUNDS = {
    "none": None,
    "one": [0, LENGTH],
    "few": [0, 0, 3, 700, 701, LENGTH, LENGTH],
    "singles": list(range(LENGTH + 1)),
    "equal": list(range(0, LENGTH + 1, 50)),
    "many": sorted({0, LENGTH, *np.random.default_rng(0).integers(0, LENGTH, 90).tolist()}),
}


def options(kind: str, dim: int, reverse: bool, exclusive: bool, cu_seqlens: torch.Tensor | None) -> dict[str, Any]:
    packed = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}
    return {"dim": dim, "reverse": reverse, **({"exclusive": True} if exclusive else {}), **packed}


def later(x: torch.Tensor, dim: int, by: int, empty: float) -> torch.Tensor:
    """Move x by one position, and put a number in the place that is left."""
    n = x.shape[dim]
    rest = x.narrow(dim, 0 if by > 0 else 1, n - 1)
    left = torch.full_like(x.narrow(dim, 0, 1), empty)
    return torch.cat([left, rest] if by > 0 else [rest, left], dim)


def check(found: torch.Tensor, problem: Any, name: str, bounds: list[int], exclusive: bool) -> None:
    """Compare a result with the definition of each sequence; those of an exclusive scan are shifted."""
    d = problem.descriptor
    by = -1 if d.reverse else 1
    for low, high in itertools.pairwise(bounds):
        if low == high:
            continue
        part = {key: x.narrow(d.dim, low, high - low).clone() for key, x in problem.inputs.items()}
        if exclusive and name == "dx":
            part["dy"] = later(part["dy"], d.dim, -by, 0.0)
        truth = problem.family.truth(d, part)[name]
        if exclusive and name == "y":
            value, size = later(truth.value, d.dim, by, EMPTY[d.kind]), later(truth.size, d.dim, by, 0.0)
            truth = dataclasses.replace(truth, value=value, size=size)
        assert deviation(found.narrow(d.dim, low, high - low), truth).norm <= allowed(truth).norm, (low, high)


CASES = [
    case for case in pairwise(KINDS, FLOATS, BOUNDS, (0, 1, 2), BOOLS, BOOLS)
    if not (case[5] and case[0] in EXTREMA) and not (case[2] == "none" and not case[5])
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype", "bounds", "dim", "reverse", "exclusive"), CASES)
def test_sequences(kind: str, dtype: torch.dtype, bounds: str, dim: int, reverse: bool, exclusive: bool, device: str) -> None:
    """It alone finds a sequence that reads another one, or a position of an exclusive scan that reads itself."""
    shape = [3, 16, 2]  # on the CPU, few rows, many that are adjacent, and many that are not
    shape[dim] = LENGTH
    edges = BOUNDS[bounds]
    cu = None if edges is None else torch.tensor(edges, dtype=torch.int32 if reverse else torch.int64, device=device)
    how = options(kind, dim, reverse, exclusive, cu)
    problem = make(FORWARD_SCANS[kind], tuple(shape), dtype, device, dim=dim, reverse=reverse)
    y = torch.full(shape, math.nan, dtype=dtype, device=device)
    x = problem.inputs["x"]
    if kind in EXTREMA:
        indices = torch.full(shape, -1, device=device)
        getattr(sw, kind)(x, out=(y, indices), **how)
        assert torch.equal(x.gather(dim, indices), y)
    else:
        getattr(sw, kind)(x, out=y, **how)
    check(y, problem, "y", edges or [0, LENGTH], exclusive)
    problem = make(SCANS[kind], tuple(shape), dtype, device, dim=dim, reverse=reverse)
    dx = torch.full(shape, math.nan, dtype=dtype, device=device)
    getattr(sw, f"{kind}_backward")(*problem.inputs.values(), out=dx, **how)
    check(dx, problem, "dx", edges or [0, LENGTH], exclusive)
    if kind in EXTREMA:
        found = getattr(sw, kind)(problem.inputs["x"], **how)[1]
        dx = getattr(sw, f"{kind}_backward")(problem.inputs["dy"], indices=found, **how)
        check(dx, problem, "dx", edges or [0, LENGTH], exclusive)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("rows", [3, 40])
def test_no_sequence_reaches_another(kind: str, dim: int, rows: int, device: str) -> None:
    """Bits of a sequence do not depend on the values of others, NaN and infinity included."""
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(rows, LENGTH, generator=generator).to(device) for _ in range(2))
    edges = [0, 37, 38, 75, 803, LENGTH]  # threads of up to 32 elements hold parts of several sequences
    for value, others in itertools.product((math.nan, math.inf, -math.inf, 1e38, -3e38, 0.0), (0, 1)):
        changed, changed_dy = x.clone(), dy.clone()
        for part in (changed, changed_dy):
            for low, high in itertools.islice(itertools.pairwise(edges), others, None, 2):
                part[:, low:high:3] = value
        results = []
        for values, grads in ((x, dy), (changed, changed_dy)):
            values, grads = (t if dim else t.T.contiguous() for t in (values, grads))
            how = options(kind, dim, False, False, torch.tensor(edges, device=device))
            y = values_of(getattr(sw, kind)(values, **how))
            dx = getattr(sw, f"{kind}_backward")(*((grads, values) if KINDS[kind].operands else (grads,)), **how)
            results.append([t if dim else t.T for t in (y, dx)])
        for before, after in zip(*results, strict=True):
            for low, high in itertools.islice(itertools.pairwise(edges), 1 - others, None, 2):
                assert torch.equal(before[:, low:high], after[:, low:high]), value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F64])
@pytest.mark.parametrize("cu", [None, [0, 64, 64, 200]])
def test_lowest_numbers_are_no_infinities(dtype: torch.dtype, cu: list[int] | None, device: str) -> None:
    """Rows of masked logits: weights of a row of logcumsumexp sum to 1, also where all x are the lowest finite number."""
    x = torch.full((3, 200), torch.finfo(dtype).min, dtype=dtype, device=device)
    x[:, 130:] = 0.0
    dy = torch.zeros_like(x)
    dy[:, [63, 129, 199]] = 1.0
    bounds = cu and torch.tensor(cu, device=device)
    dx = sw.logcumsumexp_backward(dy, x, dim=1, cu_seqlens=bounds).double()
    sums = dx.cumsum(1)[:, [63, 129, 199]]
    expected = torch.tensor([1 + 64 / 130, 2.0, 3.0] if cu is None else [1.0, 2.0, 3.0], dtype=F64, device=device)
    assert torch.allclose(sums, expected.expand(3, 3), rtol=0, atol=0.02 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_drop_in(kind: str, device: str) -> None:
    """Autograd against a scan by torch of each sequence: once, twice, forward-mode, vmap and compiled."""
    edges = [0, 0, 3, 4, 9]
    cu = torch.tensor(edges, device=device)
    for dim, reverse, exclusive in ((0, False, False), (-1, True, True), (1, True, False), (0, False, True)):
        if exclusive and kind in EXTREMA:
            continue
        x = torch.randn(9, 9, generator=torch.Generator().manual_seed(0), dtype=F64).to(device).requires_grad_()

        def ours(x: torch.Tensor, dim=dim, reverse=reverse, exclusive=exclusive) -> torch.Tensor:  # type: ignore[no-untyped-def]
            y = values_of(getattr(st, kind)(x, dim, reverse=reverse, exclusive=exclusive, cu_seqlens=cu))
            return torch.where(torch.isneginf(y), 0, y)

        def torchs(x: torch.Tensor, dim=dim, reverse=reverse, exclusive=exclusive) -> torch.Tensor:  # type: ignore[no-untyped-def]
            parts = []
            for low, high in itertools.pairwise(edges):
                part = x.narrow(dim, low, high - low)
                part = values_of(getattr(torch, kind)(part.flip(dim) if reverse else part, dim))
                part = part.flip(dim) if reverse else part
                parts.append(
                    later(part, dim, -1 if reverse else 1, 0.0 + (kind == "cumprod")) if exclusive and high > low else part
                )
            return torch.cat(parts, dim)

        torch.testing.assert_close(ours(x), torchs(x))
        w = torch.randn_like(x)
        first = [torch.autograd.grad((f(x) * w).sum(), x, create_graph=True)[0] for f in (ours, torchs)]
        torch.testing.assert_close(*first)
        if kind not in (*EXTREMA, "cumsum"):
            torch.testing.assert_close(*(torch.autograd.grad((g * w).sum(), x)[0] for g in first))
        small = x.detach().narrow(1 if dim == 0 else 0, 0, 2).clone().requires_grad_()
        assert torch.autograd.gradcheck(ours, (small,), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(ours, (small,))
        both = torch.stack([x.detach(), 2 * x.detach()])
        torch.testing.assert_close(torch.vmap(ours)(both)[1], ours(both[1]))
        torch._dynamo.reset()
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(torch.autograd.grad((compiled(x) * w).sum(), x)[0], first[0].detach())


def test_options_of_drop_ins() -> None:
    x = torch.ones(4, dtype=F16)
    assert st.cumsum(x, 0, exclusive=True, dtype=F32).dtype == F32
    assert torch.equal(st.cumsum(input=x, axis=0, exclusive=True), torch.tensor([0, 1, 2, 3], dtype=F16))
    assert float(st.cumprod(torch.tensor(3.0), 0, exclusive=True)) == 1
    with torch.autocast("cpu", BF16):
        assert st.cumsum(x, 0, exclusive=True).dtype == st.cumsum(x, 0).dtype
    with pytest.raises(sw.UnsupportedError, match="out"):
        st.cumsum(x, 0, exclusive=True, out=torch.empty_like(x))
    with pytest.raises(sw.UnsupportedError, match="float32"):
        st.cumsum(torch.ones(3, dtype=torch.int32), 0, exclusive=True)
    with pytest.raises(IndexError):
        st.cumsum(x, 3, exclusive=True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_and_no_positions(kind: str, device: str) -> None:
    """It alone finds a loop over nothing, of rows, positions or sequences."""
    for shape, bounds in (((0, 4), [0, 1, 4]), ((3, 0), [0, 0, 0]), ((3, 0), [0]), ((1, 1), [0, 1])):
        x, cu = torch.ones(shape, device=device), torch.tensor(bounds, device=device)
        for exclusive, packed in ((False, cu),) if kind in EXTREMA else ((False, cu), (True, cu), (True, None)):
            how = options(kind, 1, False, exclusive, packed)
            assert values_of(getattr(sw, kind)(x, **how)).shape == shape
            assert getattr(sw, f"{kind}_backward")(*([x, x] if KINDS[kind].operands else [x]), **how).shape == shape


def test_second_derivatives_of_products_at_the_edges(device: str) -> None:
    """It alone finds factors of the gradient that leave the range, a product of no positions, and one of a number."""
    x = torch.tensor([1e-30] * 3 + [1e30] * 3, device=device, requires_grad=True)
    found = []
    for values in (x, x.detach().double().requires_grad_()):
        y = st.cumprod(values, 0, cu_seqlens=torch.tensor([0, 6], device=device))
        gradient = torch.autograd.grad(y.sum(), values, create_graph=True)[0]
        found.append(torch.autograd.grad(gradient.sum(), values)[0])
    torch.testing.assert_close(found[0], found[1].float(), rtol=1e-5, atol=1e-5)
    for empty in (torch.ones((), device=device), torch.ones(3, 0, device=device)):
        leaf = empty.clone().requires_grad_()
        gradient = torch.autograd.grad(st.cumprod(leaf, -1, exclusive=True).sum(), leaf, create_graph=True)[0]
        assert torch.autograd.grad(gradient.sum(), leaf)[0].shape == empty.shape


@pytest.mark.parametrize("kind", EXTREMA)
def test_extrema_are_not_exclusive(kind: str) -> None:
    x = torch.ones(3)
    for call in (getattr(sw, kind), getattr(sw, f"{kind}_backward"), getattr(st, kind)):
        with pytest.raises(sw.UnsupportedError, match="exclusive"):
            call(*([x, x] if call.__name__.endswith("backward") else [x]), dim=0, exclusive=True)


@pytest.mark.parametrize("bounds", [[0, 3], [1, 4], [0, 3, 2, 4], [0, 5, 4], [-1, 4], [4]])
def test_bounds_that_do_not_rise(bounds: list[int]) -> None:
    wrong = next(
        (k for k, v in enumerate(bounds) if v > 4 or (k == 0 and v != 0) or (k and v < bounds[k - 1])), len(bounds) - 1
    )
    x, cu = torch.ones(4), torch.tensor(bounds)
    for call in (
        lambda: sw.cumsum(x, cu_seqlens=cu),
        lambda: sw.cumprod_backward(x, x, cu_seqlens=cu),
        lambda: sw.cummax(x, cu_seqlens=cu),
        lambda: st.logcumsumexp(x, 0, cu_seqlens=cu),
    ):
        with pytest.raises(sw.InvalidProblemError, match=f"at position {wrong}"):
            call()
    with pytest.raises(sw.InvalidProblemError, match="int32 or int64"):
        sw.cumsum(x, cu_seqlens=torch.tensor([0.0, 4.0]))
    with pytest.raises(sw.InvalidProblemError, match="one dimension"):
        sw.cumsum(x, cu_seqlens=torch.tensor([[0, 4]]))
