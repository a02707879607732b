"""Linear recurrences: zeros, infinities, range, states, packed sequences, broadcasting, and derivatives of the drop-in."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from conformance import Conformance
from families.linear_recurrence import LINEAR, LINEAR_BACKWARD
from support import BF16, F16, F32, F64, pairwise

import sternway as sw
import sternway.torch as st

INF, NAN = math.inf, math.nan


class TestForward(Conformance):
    family = LINEAR


class TestBackward(Conformance):
    family = LINEAR_BACKWARD


def loop(a: Any, b: Any, initial: Any, bounds: list[int], reverse: bool) -> tuple[Any, Any]:
    """h and final states of rows [R, T] by definition; initial is [R, N] or None."""
    h, final = np.zeros_like(b), np.zeros((len(b), len(bounds) - 1))
    for k, (low, high) in enumerate(itertools.pairwise(bounds)):
        state = None if initial is None else initial[:, k]
        for t in reversed(range(low, high)) if reverse else range(low, high):
            state = b[:, t] if state is None else np.where(a[:, t] == 0, b[:, t], a[:, t] * state + b[:, t])
            h[:, t] = state
        final[:, k] = 0 if state is None else state
    return h, final


def loop_back(dh: Any, a: Any, h: Any, initial: Any, dfinal: Any, bounds: list[int], reverse: bool) -> dict[str, Any]:
    """The gradients by definition."""
    da, db, dinitial = np.zeros_like(dh), np.zeros_like(dh), np.zeros((len(dh), len(bounds) - 1))
    for k, (low, high) in enumerate(itertools.pairwise(bounds)):
        order = list(reversed(range(low, high)) if reverse else range(low, high))
        u = dfinal[:, k]
        for i in reversed(range(len(order))):
            t = order[i]
            g = db[:, t] = dh[:, t] + u
            before = h[:, order[i - 1]] if i else 0 * g if initial is None else initial[:, k]
            da[:, t], u = g * before, np.where(a[:, t] == 0, 0, a[:, t] * g)
        dinitial[:, k] = u
    return {"da": da, "db": db, "dinitial_state": dinitial}


TOLERANCES = {F64: 1e-12, F32: 2e-6, F16: 2e-3, BF16: 1e-2}
LENGTH = 1500  # more than two segments on the CPU
BOUNDS = {
    "one": None,
    "packed": [0, 2, 2, 5, 700, 730, LENGTH, LENGTH],
    "singles": list(range(LENGTH + 1)),
    "empty ends": [0, 0, LENGTH, LENGTH],
}


BOOLS = (False, True)
SEQUENCES = pairwise(TOLERANCES, BOUNDS, (0, 1), BOOLS, BOOLS, BOOLS, (5, 40))


@pytest.mark.parametrize(("dtype", "bounds", "dim", "reverse", "has_initial", "wide_state", "rows"), SEQUENCES)
def test_sequences_and_states(
    dtype: torch.dtype, bounds: str, dim: int, reverse: bool, has_initial: bool, wide_state: bool, rows: int
) -> None:
    """It alone finds a state that enters or leaves the wrong sequence, and an empty sequence that does not pass it on."""
    generator, length = np.random.default_rng(0), LENGTH
    cu = BOUNDS[bounds]
    edges = cu or [0, length]
    a, b, dh = (torch.from_numpy(generator.standard_normal((rows, length))).to(dtype) for _ in range(3))
    a /= a.abs().max()
    a[:, :36:7] = 0
    initial, dfinal = (torch.from_numpy(generator.standard_normal((rows, len(edges) - 1))) for _ in range(2))
    final_dtype = dtype if dtype == F64 else F32
    initial, dfinal = initial.to(final_dtype if wide_state else dtype), dfinal.to(final_dtype)

    def wide(x: torch.Tensor) -> Any:
        return x.double().numpy()

    def placed(x: torch.Tensor) -> torch.Tensor:
        return (x if dim else x.T).contiguous()

    def state(x: torch.Tensor) -> torch.Tensor:
        return placed(x) if cu else x[:, 0].contiguous()

    packed = {} if cu is None else {"cu_seqlens": torch.tensor(cu, dtype=torch.int32)}
    states = {"initial_state": state(initial)} if has_initial else {}
    how = {"dim": dim, "reverse": reverse, **packed, **states}
    h, final = sw.linear_recurrence(placed(a), placed(b), output_final_state=True, **how)
    known = loop(wide(a), wide(b), wide(initial) if has_initial else None, edges, reverse)
    assert (h.dtype, final.dtype) == (dtype, final_dtype)
    for found, true, tolerance in ((h, placed(torch.from_numpy(known[0])), TOLERANCES[dtype]), (final, known[1], None)):
        true = true if tolerance else state(torch.from_numpy(true))
        torch.testing.assert_close(found.double(), true, rtol=tolerance or 1e-6, atol=tolerance or 1e-6)
    needs = ("dinitial_state", "db", "da") if has_initial else ("da", "db")
    grads = sw.linear_recurrence_backward(placed(dh), placed(a), h, dfinal_state=state(dfinal), needs=needs, **how)
    h_rows = wide(h if dim else h.T)
    true = loop_back(wide(dh), wide(a), h_rows, wide(initial) if has_initial else None, wide(dfinal), edges, reverse)
    for name, grad in zip(needs, grads, strict=True):
        place = state if name == "dinitial_state" else placed
        tolerance = 4 * TOLERANCES[grad.dtype if name == "dinitial_state" else dtype]
        torch.testing.assert_close(grad.double(), place(torch.from_numpy(true[name])), rtol=tolerance, atol=tolerance)


CONSTANTS = pairwise((F64, F32, BF16), BOUNDS, (0, 1, 2), BOOLS, BOOLS, ((3, 2), (8, 8)), ("", "0", "1", "01"))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("dtype", "bounds", "dim", "reverse", "has_initial", "rows", "own"), CONSTANTS)
def test_gradient_of_a_constant_factor(
    dtype: torch.dtype, bounds: str, dim: int, reverse: bool, has_initial: bool, rows: tuple[int, int], own: str
) -> None:
    """It alone finds a sum over positions that has a lane twice or not at all, or that depends on the number of threads.

    own: the numbers of the other dimensions in which the factor is not constant.
    """
    generator, others, cu = np.random.default_rng(0), list(rows), BOUNDS[bounds]
    shape = (*others[:dim], LENGTH, *others[dim:])
    dh, h = (torch.from_numpy(generator.standard_normal(shape)).to(dtype) for _ in range(2))
    extents = [n if str(d) in own else 1 for d, n in enumerate(others)]
    a = torch.from_numpy(generator.uniform(-1, 1, (*extents[:dim], 1, *extents[dim:]))).to(dtype)
    a = a.view(()) if a.numel() == 1 else a[0] if a.shape[0] == 1 else a  # fewer dimensions than h, too
    of_states = rows if cu is None else (*others[:dim], len(cu) - 1, *others[dim:])
    how: dict[str, Any] = {"dim": dim, "reverse": reverse}
    how |= {} if cu is None else {"cu_seqlens": torch.tensor(cu)}
    how |= {"initial_state": torch.from_numpy(generator.standard_normal(of_states)).to(dtype)} if has_initial else {}
    found = []
    for n in (1, 2):
        sw.set_num_threads(n)
        found.append(sw.linear_recurrence_backward(dh, a, h, needs=("da",), **how)[0])
    wide = {k: x.double() if k == "initial_state" else x for k, x in how.items()}
    whole = a.double().expand(shape).contiguous()
    (terms,) = sw.linear_recurrence_backward(dh.double(), whole, h.double(), needs=("da",), **wide)
    error = (found[0].double() - terms.sum_to_size(a.shape)).abs()
    assert found[0].shape == a.shape
    assert (error <= torch.finfo(dtype).eps * terms.abs().sum_to_size(a.shape)).all()
    assert torch.equal(*found)


def test_a_zero_cuts_exactly() -> None:
    a = torch.tensor([NAN, INF, 0.0, 2.0, 0.0])
    b = torch.tensor([1.0, NAN, 3.0, 4.0, 5.0])
    h = sw.linear_recurrence(a, b)
    assert [h[0], *h[2:]] == [1.0, 3.0, 10.0, 5.0]  # the first decay is not applied
    da, db = sw.linear_recurrence_backward(torch.tensor([1.0, 1.0, INF, NAN, 1.0]), a, h)
    assert [da[0], da[4], db[1], db[4]] == [0, 10, 1, 1]


def test_a_chunked_sequence_is_the_whole() -> None:
    """States keep the width of the accumulator. It alone finds one that was rounded to 16 bits."""
    a, b = torch.rand(4, 100, dtype=F64).to(BF16), torch.randn(4, 100, dtype=F64).to(BF16)
    whole = sw.linear_recurrence(a, b)
    first, state = sw.linear_recurrence(a[:, :37], b[:, :37], output_final_state=True)
    second = sw.linear_recurrence(a[:, 37:], b[:, 37:], initial_state=state)
    assert torch.equal(torch.cat([first, second], 1), whole)


def test_factors_that_grow() -> None:
    """|a| > 1 for longer than any product of float32 stays finite."""
    a, b = torch.full((2, 4000), 1.1), torch.zeros(2, 4000)
    b[:, 3900] = 1
    assert torch.isfinite(sw.linear_recurrence(a, b)).all()


def test_a_number_keeps_its_precision(device: str) -> None:
    """0.999 is no bfloat16."""
    h = sw.linear_recurrence(0.999, torch.ones(1000, dtype=BF16, device=device))
    assert abs(float(h[-1]) - (1 - 0.999**1000) / 0.001) < 4


@pytest.mark.parametrize("bounds", [[0, 3], [1, 4], [0, 3, 2, 4], [0, 5, 4], [-1, 4], [4]])
def test_bounds_that_do_not_rise(bounds: list[int]) -> None:
    wrong = next(
        (k for k, x in enumerate(bounds) if x > 4 or (k == 0 and x != 0) or (k and x < bounds[k - 1])), len(bounds) - 1
    )
    with pytest.raises(sw.InvalidProblemError, match=f"cu_seqlens .* got {bounds[wrong]} at position {wrong}"):
        sw.linear_recurrence(0.5, torch.ones(4), cu_seqlens=torch.tensor(bounds))


BROADCAST = {
    "whole": (6, 300, 40),
    "number": (),
    "one": (1, 1, 1),
    "first": (6, 1, 1),
    "second": (300, 1),
    "third": (40,),
    "outer": (6, 300, 1),
}
ROWS = pairwise(TOLERANCES, BROADCAST, ("whole", "third", "second"), (0, 1, 2), BOOLS, BOOLS, BOOLS)


@pytest.mark.parametrize(("dtype", "of_a", "of_b", "dim", "packed", "reverse", "has_gaps"), ROWS)
def test_broadcast_operands(
    device: str, dtype: torch.dtype, of_a: str, of_b: str, dim: int, packed: bool, reverse: bool, has_gaps: bool
) -> None:
    """As if they were expanded, in float64. It alone finds a factor of another row, and terms that are summed as 16 bits."""
    generator, shape = torch.Generator().manual_seed(0), BROADCAST["whole"]
    a = torch.rand(BROADCAST[of_a], generator=generator, dtype=F64).to(F32 if of_a == "number" and dtype != F64 else dtype)
    b, dh, h = (torch.randn(s, generator=generator, dtype=F64).to(dtype) for s in (BROADCAST[of_b], shape, shape))
    cu = torch.tensor([0, 1, 1, shape[dim] // 2, shape[dim]]) if packed else None
    how = {"dim": dim, "reverse": reverse}
    whole, terms = a.double().expand(shape), b.double().expand(shape)
    true_h = sw.linear_recurrence(whole, terms, cu_seqlens=cu, **how)
    gradients = sw.linear_recurrence_backward(dh.double(), whole, h.double(), cu_seqlens=cu, **how)
    sizes = sw.linear_recurrence_backward(dh.double().abs(), whole, h.double().abs(), cu_seqlens=cu, **how)
    if packed:
        how["cu_seqlens"] = cu.to(device)
    a, b, dh, h = (x.to(device) for x in (a, b, dh, h))
    if torch.broadcast_shapes(a.shape, b.shape) == shape:
        found = sw.linear_recurrence(a, b, **how)
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(found.double().cpu(), true_h, rtol=tolerance, atol=8 * tolerance)
    out = None
    if has_gaps:
        out = [
            torch.full([2 * n for n in x.shape], NAN, dtype=dtype, device=device)[(slice(None, None, 2),) * x.dim()]
            for x in (a, b)
        ]
    found = sw.linear_recurrence_backward(dh, a, h, a_shape=a.shape, b_shape=b.shape, out=out, **how)
    for grad, true, size, like in zip(found, gradients, sizes, (a, b), strict=True):
        true, size = true.sum_to_size(like.shape), size.sum_to_size(like.shape)
        error = (grad.double().cpu() - true).abs()
        least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        assert (error <= TOLERANCES[dtype] * true.abs() + TOLERANCES[F64 if dtype == F64 else F32] * size + least).all()


@pytest.mark.parametrize("shape", [(3, 0), (0, 4)])
def test_gradients_of_no_elements(device: str, shape: tuple[int, ...]) -> None:
    """Sums of no terms are 0. It alone finds ones that are left as they were."""
    x, state = torch.ones(shape, device=device), torch.ones(shape[0], device=device)
    out = [torch.full(s, NAN, device=device) for s in ((), (shape[1],), (shape[0],))]
    sw.linear_recurrence_backward(
        x, 0.5, x, initial_state=state, dfinal_state=3 * state, a_shape=(), b_shape=shape[1:],
        needs=("da", "db", "dinitial_state"), out=out,
    )  # fmt: skip
    assert [y.tolist() for y in out] == [0.0, [0.0] * shape[1], [3.0] * shape[0]]


SHAPES = [((3, 1), (3, 5)), ((5,), (3, 5)), ((), (3, 5)), ((3, 5), (5,)), ((2, 1, 5), (3, 1)), ((1, 1), (3, 5))]


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_gradients_of_broadcast_operands(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    a, b = (torch.randn(shape, dtype=F64, requires_grad=True) for shape in (a_shape, b_shape))
    assert torch.autograd.gradcheck(st.linear_recurrence, (a, b))
    assert torch.autograd.gradgradcheck(st.linear_recurrence, (a, b))


@pytest.mark.parametrize("way", ["plain", "grad", "vmap", "functions"])
def test_shapes_that_do_not_broadcast(way: str) -> None:
    """It alone finds the error of a library below, which names no operand of the function."""
    ways = {
        "plain": st.linear_recurrence,
        "grad": torch.func.grad(lambda a, b: st.linear_recurrence(a, b).sum()),
        "vmap": torch.vmap(st.linear_recurrence),
        "functions": sw.linear_recurrence,
    }
    for a, b in ((torch.ones(2, 3), torch.ones(2, 4)), (torch.ones(2, 3, 4), torch.ones(2, 2, 4))):
        with pytest.raises(sw.InvalidProblemError, match="linear_recurrence: b must be of a shape that broadcasts with a"):
            ways[way](a, b)


@pytest.mark.parametrize(("dim", "reverse", "has_initial", "packed", "has_final"), pairwise((0, 1), BOOLS, BOOLS, BOOLS, BOOLS))
def test_gradcheck(dim: int, reverse: bool, has_initial: bool, packed: bool, has_final: bool) -> None:
    shape = [3, 5]
    cu = torch.tensor([0, 1, 1, shape[dim]]) if packed else None
    states = list(shape)
    states[dim : dim + 1] = [3] if packed else []
    tensors = [torch.randn(s, dtype=F64, requires_grad=True) for s in (shape, shape, *([states] if has_initial else []))]

    def function(a: torch.Tensor, b: torch.Tensor, *state: torch.Tensor) -> Any:
        initial = state[0] if state else None
        return st.linear_recurrence(
            a, b, dim, initial_state=initial, reverse=reverse, cu_seqlens=cu, output_final_state=has_final
        )

    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


def test_transforms() -> None:
    a, b = torch.rand(4, 6, dtype=F64), torch.randn(4, 6, dtype=F64)
    whole = st.linear_recurrence(a, b)
    torch.testing.assert_close(torch.func.vmap(st.linear_recurrence)(a, b), whole)
    tangent = torch.func.jvp(lambda x: st.linear_recurrence(x, b), (a,), (torch.ones_like(a),))[1]
    step = (st.linear_recurrence(a + 1e-6, b) - st.linear_recurrence(a - 1e-6, b)) / 2e-6
    torch.testing.assert_close(tangent, step, rtol=1e-6, atol=1e-8)


def test_compiled() -> None:
    a, b = (torch.rand(3, 8, requires_grad=True) for _ in range(2))
    torch.compile(lambda x, y: st.linear_recurrence(x, y).sin().sum(), fullgraph=True)(a, b).backward()
    compiled, a.grad = a.grad, None
    st.linear_recurrence(a, b).sin().sum().backward()
    torch.testing.assert_close(compiled, a.grad)


def test_states_of_no_positions() -> None:
    """They pass through, twice differentiated. It alone finds a gradient that looks for a first position."""
    empty, state = torch.rand(2, 0), torch.ones(2, requires_grad=True)
    final = st.linear_recurrence(empty, empty, initial_state=state, output_final_state=True)[1]
    (grad,) = torch.autograd.grad((final**2).sum(), state, create_graph=True)
    assert torch.autograd.grad(grad.sum(), state)[0].tolist() == [2.0, 2.0]


def test_promotion() -> None:
    assert st.linear_recurrence(torch.tensor(0.5), torch.ones(2, dtype=F64)).dtype == F64
    a, b = torch.rand(5, requires_grad=True), torch.ones(5, dtype=F16, requires_grad=True)
    h = st.linear_recurrence(a, b)
    h.sum().backward()
    assert (h.dtype, a.grad.dtype, b.grad.dtype) == (F32, F32, F16)
