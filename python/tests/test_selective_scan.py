"""Selective scans: groups, constant factors, states, packed sequences, special values, strides, and the drop-in."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

import pytest
import torch
from conformance import Conformance
from families import make
from families.selective_scan import SELECTIVE, SELECTIVE_BACKWARD
from support import BF16, F16, F32, F64, gradcheck, gradgradcheck, pairwise

import sternway as sw
import sternway.torch as st
from sternway._selective_scan_backward import OUTPUTS
from sternway.torch._autograd import selective_scan as scan

INF, NAN = math.inf, math.nan
Tensors = dict[str, Any]


class TestForward(Conformance):
    family = SELECTIVE


class TestBackward(Conformance):
    family = SELECTIVE_BACKWARD


def by_channel(x: Any, dim: int) -> Any:
    """B or C for each channel: [batch, dim, n, length], of extent 1 where it is constant."""
    if x.dim() == 2:
        return x[None, :, :, None]
    x = x if x.dim() == 4 else x[:, None]
    return x.repeat_interleave(dim // x.shape[1], 1)


def loop(x: Tensors, softplus: bool, bounds: list[int]) -> tuple[Any, Any]:
    """y and the states after each sequence [batch, N, dim, n] by definition, one position after the other."""
    u, A, (dim, n) = x["u"], x["A"], x["A"].shape
    b, c = by_channel(x["B"], dim), by_channel(x["C"], dim)
    step = x["delta"] + x["delta_bias"][:, None] if "delta_bias" in x else x["delta"]
    step = torch.log1p(torch.exp(step)) if softplus else step
    decays = torch.exp(step[:, :, None] * A[:, :, None]).unbind(-1)
    terms = ((step * u)[:, :, None] * b).unbind(-1)
    states, last = [], []
    for k, (low, high) in enumerate(itertools.pairwise(bounds)):
        h = None
        if "initial_state" in x:
            h = x["initial_state"][:, k] if x["initial_state"].dim() == 4 else x["initial_state"]
        for t in range(low, high):
            h = terms[t] if h is None else decays[t] * h + terms[t]
            states.append(h)
        last.append((0 * A).expand(len(u), dim, n) if h is None else h)
    y = (c * torch.stack(states, -1)).sum(2) if states else u + 0
    y = y + x["D"][:, None] * u if "D" in x else y
    return y * torch.nn.functional.silu(x["z"]) if "z" in x else y, torch.stack(last, 1)


LENGTH = 530  # three chunks
BOUNDS = {
    "one": None,
    "packed": [0, 2, 2, 5, 256, 300, LENGTH, LENGTH],
    "singles": list(range(41)),
    "empty ends": [0, 0, 40, 40],
    "nothing": [0, 0],
}
TOLERANCES = {F64: 1e-11, F32: 3e-5, F16: 4e-3, BF16: 3e-2}
FORMS = ("shared", "one group", "two groups", "constant")
BOOLS = (False, True)


def problem(
    dtype: torch.dtype, bounds: str, form_b: str, form_c: str, has: tuple[bool, bool, bool], has_initial: bool, n: int,
    dim: int, as_model: bool,
) -> tuple[Tensors, list[int]]:  # fmt: skip
    """Random operands. as_model: rows and factors are transposed views, as Mamba has them."""
    torch.manual_seed(0)
    batch, wide, edges = 2, dtype if dtype == F64 else F32, BOUNDS[bounds] or [0, LENGTH]
    length = edges[-1]

    def row(*shape: int) -> Any:
        if as_model:
            return torch.randn(*shape[:-2], shape[-1], shape[-2], dtype=F64).to(dtype).transpose(-1, -2)
        return torch.randn(*shape, dtype=F64).to(dtype)

    def factor(form: str) -> Any:
        if form == "constant":
            return torch.randn(dim, n, dtype=wide)
        groups = {"shared": (), "one group": (1,), "two groups": (2,)}[form]
        return row(batch, *groups, n, length)

    if "two groups" in (form_b, form_c):
        form_b, form_c = (form if form == "constant" else "two groups" for form in (form_b, form_c))
    x = {"u": row(batch, dim, length), "delta": row(batch, dim, length), "A": -2 * torch.rand(dim, n, dtype=wide)}
    x |= {"B": factor(form_b), "C": factor(form_c)}
    x |= {"D": torch.randn(dim, dtype=wide)} if has[0] else {}
    x |= {"z": row(batch, dim, length)} if has[1] else {}
    x |= {"delta_bias": torch.randn(dim, dtype=wide)} if has[2] else {}
    if has_initial:
        x["initial_state"] = torch.randn(batch, len(edges) - 1, dim, n, dtype=wide)
    return x, edges


HAS = [(True, True, True), (False, False, False), (True, False, True), (False, True, False)]
PROBLEMS = pairwise(TOLERANCES, BOUNDS, FORMS, FORMS, HAS, BOOLS, (1, 3, 17), (2, 38), BOOLS)


@pytest.mark.parametrize(("dtype", "bounds", "b", "c", "has", "has_initial", "n", "dim", "as_model"), PROBLEMS)
def test_against_the_loop(
    device: str, dtype: torch.dtype, bounds: str, b: str, c: str, has: tuple[bool, bool, bool], has_initial: bool, n: int,
    dim: int, as_model: bool,
) -> None:  # fmt: skip
    """It alone finds a state, group, factor or chunk that is taken for another, in y, states and every gradient."""
    x, edges = problem(dtype, bounds, b, c, has, has_initial, n, dim, as_model)
    packed = {} if BOUNDS[bounds] is None else {"cu_seqlens": torch.tensor(edges, dtype=torch.int32, device=device)}
    given = {name: v[:, 0] if name == "initial_state" and not packed else v for name, v in x.items()}
    given = {name: v.to(device) for name, v in given.items()}
    y, last = sw.selective_scan(**given, delta_softplus=True, return_last_state=True, **packed)
    leaves = {name: v.double().detach().clone().requires_grad_() for name, v in x.items()}
    true_y, true_last = loop(leaves, True, edges)
    dy, dlast = torch.randn_like(y), torch.randn_like(last)
    grads = sw.selective_scan_backward(dy, **given, delta_softplus=True, dlast_state=dlast, **packed)
    upstream = dy.double().cpu(), (dlast if packed else dlast[:, None]).double().cpu()
    true = torch.autograd.grad([true_y, true_last], list(leaves.values()), upstream, allow_unused=True)
    found = {"y": y, "last": last if packed else last[:, None], **dict(zip(x, grads, strict=True))}
    if "initial_state" in found and not packed:
        found["initial_state"] = found["initial_state"][:, None]
    for (name, ours), want in zip(found.items(), (true_y, true_last, *true), strict=True):
        want = torch.zeros_like(ours, dtype=F64, device="cpu") if want is None else want.detach()
        assert ours.dtype == (dtype if name in ("y", "u", "delta", "z") else x[name].dtype if name in x else last.dtype), name
        tolerance = TOLERANCES[ours.dtype]
        scale = float(want.abs().max()) if want.numel() else 1.0
        torch.testing.assert_close(ours.double().cpu(), want, rtol=tolerance, atol=tolerance * max(scale, 1e-3), msg=name)


def test_chunk_states_are_the_states_that_enter_chunks() -> None:
    """It alone finds a forward that stores others than those from which the gradient goes on."""
    x, edges = problem(F64, "packed", "shared", "shared", HAS[0], True, 3, 38, False)
    fields = (2, 38, LENGTH, 3, "float64", 1, False, False, True, True, True, True, len(edges) - 1)
    plan = sw.SelectiveScanPlan.select(sw.SelectiveScanDescriptor(*fields))
    y, chunks = torch.empty_like(x["u"]), torch.full((2, 38, 3, 3), NAN, dtype=F64)
    operands = {**x, "cu_seqlens": torch.tensor(edges)}
    plan.run(**operands, y=y, chunk_states=chunks)
    torch.testing.assert_close(chunks[:, :, 0], x["initial_state"][:, 0])
    torch.testing.assert_close(chunks[:, :, 1], x["initial_state"][:, 4])  # of the sequence that begins at 256
    rows = {name: v[..., :512] if name in ("u", "delta", "B", "C", "z") else v for name, v in x.items()}
    rows["initial_state"] = x["initial_state"][:, :6]
    torch.testing.assert_close(chunks[:, :, 2], loop(rows, True, [*edges[:6], 512])[1][:, 5])
    backward = sw.SelectiveScanBackwardPlan.select(sw.SelectiveScanBackwardDescriptor(*fields))
    dA, again = (torch.empty_like(x["A"]) for _ in range(2))
    backward.run(dy=y, **operands, dA=dA)
    backward.run(dy=y, **operands, chunk_states=chunks, dA=again)
    assert torch.equal(dA, again)


@pytest.mark.usefixtures("threads")
def test_bits_do_not_depend_on_the_threads() -> None:
    """Of several batches and groups, whose sums of dA, dB, dC, dD and ddelta_bias come from many tasks."""
    x, edges = problem(F32, "packed", "two groups", "two groups", HAS[0], True, 3, 2 * 300, True)
    results = []
    for n in (1, 2, 7):
        sw.set_num_threads(n)
        cu = torch.tensor(edges)
        results.append(sw.selective_scan_backward(x["u"], **x, delta_softplus=True, cu_seqlens=cu))
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def ones(*shape: int) -> Any:
    return torch.ones(*shape, dtype=F64)


def row_of(numbers: list[float], device: str, dtype: torch.dtype) -> Any:
    """u, delta, B, C or dy of one batch, channel and state."""
    return torch.tensor(numbers, dtype=dtype, device=device).reshape(1, 1, -1)


@pytest.mark.parametrize("dtype", [F32, F64, BF16])
def test_a_decay_of_zero_cuts_off(device: str, dtype: torch.dtype) -> None:
    """Infinity and NaN in the state as well: it alone finds 0 times infinity, in y and in the gradient."""
    one, A = row_of([1.0] * 3, device, dtype), -torch.ones(1, 1, dtype=dtype if dtype == F64 else F32, device=device)
    for spoiled in (INF, NAN):
        y = sw.selective_scan(row_of([spoiled, 1, 2], device, dtype), row_of([1, 1000, 1], device, dtype), A, one, one)
        assert not y[0, 0, 0].isfinite()
        torch.testing.assert_close(
            y[0, 0, 1:].double().cpu(), torch.tensor([1000, 1000 * math.exp(-1) + 2], dtype=F64), rtol=1e-2, atol=0
        )
        dy, delta = row_of([1, 1, spoiled], device, dtype), row_of([1, 1, 1000], device, dtype)
        du = sw.selective_scan_backward(dy, one, delta, A, one, one, needs=("du",))[0]
        assert du[0, 0, :2].isfinite().all()
        assert not du[0, 0, 2].isfinite()


@pytest.mark.parametrize("dtype", [F32, F64, BF16])
def test_a_decay_of_zero_cuts_off_other_decays(device: str, dtype: torch.dtype) -> None:
    """It alone finds a product of decays that is NaN although one of them is 0, or that continues after the last position."""
    one, A = row_of([1.0] * 20, device, dtype), -torch.ones(1, 1, dtype=dtype if dtype == F64 else F32, device=device)
    for spoiled in (INF, -INF, NAN):
        delta = row_of([1, 1, 1, spoiled, 1000, *[1] * 15], device, dtype)
        y, last = sw.selective_scan(one, delta, A, one, one, return_last_state=True)
        assert y[0, 0, 4:].isfinite().all()
        assert last.isfinite().all()
        for gradient in sw.selective_scan_backward(one, one, delta, A, one, one, needs=("du", "ddelta", "dB", "dC")):
            assert gradient[0, 0, 4:].isfinite().all()
    y, last = sw.selective_scan(one, one, -INF * torch.ones_like(A), one, one, return_last_state=True)
    (du,) = sw.selective_scan_backward(one, one, one, -INF * torch.ones_like(A), one, one, needs=("du",))
    assert all((x == 1).all() for x in (y, last, du))
    (dA,) = sw.selective_scan_backward(one, row_of([1] * 19 + [INF], device, dtype), one, A, one, one, needs=("dA",))
    assert dA.isfinite().all()


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_decay_of_zero_cuts_off_growth(device: str, dtype: torch.dtype) -> None:
    """It alone finds a gradient that judges the states of a thread by their composed map, finite where they are not."""
    one, A = row_of([1.0] * 6, device, dtype), torch.ones(1, 1, dtype=dtype, device=device)
    delta, initial = row_of([2, -2000, 1, 1, 1, 1], device, dtype), torch.finfo(dtype).max / 2 * torch.ones_like(A)[None]
    needs = ("du", "ddelta", "dC")
    for gradient in sw.selective_scan_backward(one, one, delta, A, one, one, initial_state=initial, needs=needs):
        assert gradient[0, 0, 1:].isfinite().all()


@pytest.mark.parametrize("dtype", [F32, F64])
def test_the_slope_of_the_gate_around_its_root(device: str, dtype: torch.dtype) -> None:
    """It alone finds a slope that loses digits, in rows of one position: no larger dz is beside them."""
    distances = 2.0 ** -torch.arange(1, 24 if dtype == F32 else 13, dtype=F64)  # a nearer one would cancel in the truth
    z = (-1.278464542761073795 + torch.cat([distances, -distances])).to(device, dtype)
    drawn = make(SELECTIVE_BACKWARD, (len(z), 1), dtype, device)
    inputs = {**drawn.inputs, "z": z[None, :, None]}
    truth = SELECTIVE_BACKWARD.truth(drawn.descriptor, inputs)
    near = dataclasses.replace(drawn, inputs=inputs, truth=truth)
    near.check(near.run())


def test_the_gradient_of_a_large_last_state(device: str) -> None:
    """It alone finds a sum over positions after the last one, where a state times its gradient leaves the range."""
    one = torch.ones(1, 1, 1, device=device)
    (dA,) = sw.selective_scan_backward(0 * one, 1e20 * one, one, -one[0], one, 0 * one, dlast_state=1e20 * one, needs=("dA",))
    assert dA.tolist() == [[0.0]]


def test_guarantee() -> None:
    """It alone finds a plan that promises sums in float64, as others have on the CPU: states are float32 beside float32."""
    for plan in (sw.SelectiveScanPlan, sw.SelectiveScanBackwardPlan):
        for dtype, accumulator in (("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")):
            selected = plan.select(plan.descriptor_type(1, 1, 1, 1, dtype))
            assert selected.precision_guarantee.accumulator == accumulator


def test_the_first_decay_is_not_applied() -> None:
    """Without an initial state: it alone finds a product of a decay that is NaN or infinite and 0."""
    for rate in (NAN, INF):
        one, A = ones(1, 1, 1), torch.full((1, 1), rate, dtype=F64)
        y, last = sw.selective_scan(one, one, A, one, one, return_last_state=True)
        assert y.item() == last.item() == 1
        dA, ddelta = sw.selective_scan_backward(
            ones(1, 1, 1), ones(1, 1, 1), ones(1, 1, 1), torch.full((1, 1), 5.0, dtype=F64), ones(1, 1, 1), ones(1, 1, 1),
            needs=("dA", "ddelta"),
        )  # fmt: skip
        assert (dA.item(), ddelta.item()) == (0, 1)


def test_nothing_reaches_another_channel_batch_or_sequence(device: str) -> None:
    """It alone finds NaN that leaves its channel, batch or sequence, also through an empty lane of a vector."""
    x, edges = problem(F32, "packed", "shared", "shared", HAS[0], True, 3, 38, False)
    x, cu = {name: v.to(device) for name, v in x.items()}, torch.tensor(edges, device=device)
    names, same = [*x], functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)

    def run(**changed: Any) -> tuple[Any, dict[str, Any]]:
        operands = {**x, **changed}
        y = sw.selective_scan(**operands, delta_softplus=True, cu_seqlens=cu)
        dy = torch.ones_like(y)
        grads = sw.selective_scan_backward(dy, **operands, delta_softplus=True, cu_seqlens=cu)
        return y, dict(zip(names, grads, strict=True))

    usual_y, usual = run()
    for spoiled in (NAN, INF, -INF):
        for name in ("u", "delta", "z"):
            bad = x[name].clone()
            bad[1, 37, 3] = spoiled  # of batch 1, the last channel, sequence 2
            y, grads = run(**{name: bad})
            far = torch.ones_like(usual_y, dtype=torch.bool)
            far[1, 37, 2:5] = False
            same(y[far], usual_y[far], msg=name)
            for other in ("u", "delta", "z"):
                same(grads[other][far], usual[other][far], msg=f"{name}, {other}")
            same(grads["A"][:37], usual["A"][:37])
            for other in ("B", "C"):
                same(grads[other][0], usual[other][0])
                same(grads[other][1, :, 5:], usual[other][1, :, 5:])
        bad = x["B"].clone()
        bad[1, :, 3] = spoiled
        y, grads = run(B=bad, u=x["u"] * (x["u"] != x["u"][1, :, 3:4]))
        assert torch.equal(y[0], run(u=x["u"] * (x["u"] != x["u"][1, :, 3:4]))[0][0])
        assert grads["C"][0].isfinite().all()


@pytest.mark.parametrize(("change", "kind", "text"), [
    ({"A": torch.ones(4, 3, dtype=torch.complex64)}, sw.UnsupportedError, "A must be real, got complex64"),
    ({"u": torch.ones(4, 5)}, sw.InvalidProblemError, "u must be of 3 dimensions: batches, channels and positions, got shape"),
    ({"B": torch.ones(2, 3, 3, 5)}, sw.InvalidProblemError,
     "the groups of B and C must be a divisor of the number of channels, 4, got 3"),
    ({"C": torch.ones(2, 2, 3, 5)}, sw.InvalidProblemError, r"B must be of shape \[2, 2, 3, 5\], got \[2, 3, 5\]"),
    ({"delta": torch.ones(2, 4, 5, dtype=F64)}, sw.InvalidProblemError, "delta must be float32 like u, got float64"),
    ({"A": torch.ones(4, 3, dtype=F64)}, sw.InvalidProblemError, "A must be float32 beside float32, got float64"),
    ({"C": torch.ones(4, 3, dtype=BF16)}, sw.InvalidProblemError, "C must be float32 beside float32, got bfloat16"),
    ({"A": torch.ones(4, 257), "B": torch.ones(2, 257, 5), "C": torch.ones(2, 257, 5)}, sw.UnsupportedError,
     "the number of states in A must be at most 256, got 257"),
    ({"D": torch.ones(3)}, sw.InvalidProblemError, r"D must be of shape \[4\], got \[3\]"),
    ({"cu_seqlens": torch.tensor([0, 3, 2, 5])}, sw.InvalidProblemError, "cu_seqlens must be bounds that rise from 0 to 5"),
    ({"initial_state": torch.ones(2, 1, 4, 3)}, sw.InvalidProblemError, r"initial_state must be of shape \[2, 4, 3\]"),
])  # fmt: skip
def test_bad_input_is_named(change: Tensors, kind: type[Exception], text: str) -> None:
    """By the function, its gradient and the drop-in."""
    row, factor = torch.ones(2, 4, 5), torch.ones(2, 3, 5)
    x = {"u": row, "delta": row, "A": torch.ones(4, 3), "B": factor, "C": factor, **change}
    for name, call in (
        ("selective_scan", lambda: sw.selective_scan(**x)),
        ("selective_scan_backward", lambda: sw.selective_scan_backward(row, **x)),
        (r"(sternway\.torch\.)?selective_scan", lambda: st.selective_scan(**x)),
    ):
        with pytest.raises(kind, match=rf"^{name}: {text}"):
            call()


def test_needs_and_out() -> None:
    """The gradients come in the order of needs, and a gradient of no operand is refused by its name."""
    row, A = ones(1, 2, 3), -ones(2, 1)
    x = (row, row, row, A, ones(1, 1, 3), ones(1, 1, 3))
    every = sw.selective_scan_backward(*x)
    assert len(every) == 5
    dC, du = sw.selective_scan_backward(*x, needs=("dC", "du"))
    assert torch.equal(dC, every[4])
    assert torch.equal(du, every[0])
    out = torch.empty_like(A)
    assert sw.selective_scan_backward(*x, needs=("dA",), out=out)[0] is out
    with pytest.raises(sw.InvalidProblemError, match="z must be given for its gradient"):
        sw.selective_scan_backward(*x, needs=("dz",))
    for needs in ((), ("y",), ("du", "du"), "du"):
        with pytest.raises(sw.InvalidProblemError, match="needs must be a tuple of some of"):
            sw.selective_scan_backward(*x, needs=needs)


def small(form: str = "two groups", bounds: str = "empty ends") -> tuple[list[Any], Any]:
    """The operands of the drop-in in order, in float64 with gradients, and the bounds of sequences."""
    x, edges = problem(F64, bounds, form, "shared", HAS[0], True, 3, 4, True)
    edges = [min(e, 5) for e in edges]
    x = {name: v[..., :5] if name in ("u", "delta", "z") or (name in "BC" and v.dim() > 2) else v for name, v in x.items()}
    return [v.detach().requires_grad_() for v in x.values()], torch.tensor(edges)


def drop_in(cu: Any) -> Any:
    return lambda *x: st.selective_scan(*x[:8], True, True, initial_state=x[8], cu_seqlens=cu)


@pytest.mark.parametrize("form", FORMS)
def test_derivatives(form: str) -> None:
    """First and second ones, of all operands and both results."""
    x, cu = small(form)
    assert gradcheck(drop_in(cu), x)
    assert gradgradcheck(drop_in(cu), x, atol=1e-4)


def test_gradients_of_one_result() -> None:
    """Of y alone, of the last state alone, and of no operand but A, whose others are not computed."""
    x, cu = small()
    for i in range(2):
        found = torch.autograd.grad(drop_in(cu)(*x)[i].sum(), x)
        assert all(g.isfinite().all() for g in found)
    only = [v.detach() for v in x]
    only[2].requires_grad_()
    y, last = drop_in(cu)(*only)
    (dA,) = torch.autograd.grad(y.sum() + last.sum(), only[2])
    usual = torch.autograd.grad(sum(r.sum() for r in drop_in(cu)(*x)), x)[2]
    assert torch.equal(dA, usual)


def test_a_call_without_a_gradient_keeps_no_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """It alone finds states of chunks that are computed although no operand requires grad."""
    shapes = []
    monkeypatch.setattr(scan, "chunk_shape", lambda fields: shapes.append(fields) or (0,))
    u, A, B = torch.ones(1, 3, 5), -torch.ones(3, 2), torch.ones(1, 2, 5)
    st.selective_scan(u, u, A, B, B)
    assert not shapes


def test_a_batch_of_gradients_of_the_last_state_alone(device: str) -> None:
    """It alone finds a plan that runs on the batch, beside no gradient of y."""
    u = torch.randn(1, 3, 5, device=device, requires_grad=True)
    A, B = -torch.rand(3, 2, device=device), torch.randn(1, 2, 5, device=device)
    _, last = st.selective_scan(u, u.detach().abs(), A, B, B, return_last_state=True)
    dlast = torch.randn(2, *last.shape, device=device)
    (many,) = torch.autograd.grad(last, u, dlast, is_grads_batched=True, retain_graph=True)
    rows = [torch.autograd.grad(last, u, row, retain_graph=True)[0] for row in dlast]
    assert torch.equal(many, torch.stack(rows))


def test_compile_export_and_vmap() -> None:
    """The same bits as eager calls: it alone finds an operator that its fake, its rule or its graph contradicts."""
    x, cu = small()
    function = drop_in(cu)
    usual = function(*x)
    compiled = torch.compile(function, fullgraph=True)(*x)
    assert all(torch.equal(a, b) for a, b in zip(compiled, usual, strict=True))
    grads = [torch.autograd.grad(y.sum() + last.square().sum(), x) for y, last in (compiled, usual)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))

    class Module(torch.nn.Module):
        def forward(self, *x: Any) -> Any:
            return function(*x)

    program = torch.export.export(Module(), tuple(x)).module()
    assert all(torch.equal(a, b) for a, b in zip(program(*x), usual, strict=True))
    pairs = [torch.stack([v.detach(), v.detach() / 2]) for v in x]
    batched = torch.vmap(torch.func.grad(lambda *x: function(*x)[0].sum(), argnums=(0, 2)))(*pairs)
    single = torch.func.grad(lambda *x: function(*x)[0].sum(), argnums=(0, 2))(*(v[1] for v in pairs))
    assert all(torch.equal(a[1], b) for a, b in zip(batched, single, strict=True))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_the_drop_in_in_16_bits(dtype: torch.dtype) -> None:
    """A, D, the bias and states stay float32, and each gradient has its operand's dtype and strides as rows have them."""
    x, _ = problem(dtype, "one", "shared", "constant", HAS[0], False, 3, 4, True)
    leaves = {name: v.detach().requires_grad_() for name, v in x.items()}
    y, last = st.selective_scan(**leaves, delta_softplus=True, return_last_state=True)
    assert (y.dtype, last.dtype, y.stride()) == (dtype, F32, x["u"].stride())
    (y.float().sum() + last.sum()).backward()
    assert all(v.grad is not None and v.grad.dtype == v.dtype for v in leaves.values())


def test_outputs_are_named_after_operands() -> None:
    """The drop-in pairs gradients with operands by their order."""
    from sternway.torch._autograd.selective_scan import OPERANDS

    assert tuple(f"d{name}" for name in OPERANDS[: len(OUTPUTS)]) == OUTPUTS
