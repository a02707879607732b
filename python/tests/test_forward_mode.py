"""sternway.torch in forward mode: tangents, Jacobians and Hessians of torch.func, dual tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import F64
from test_torch import NAMES, calls
from torch.autograd import forward_ad

import sternway as sw
import sternway.torch as st
from sternway._kinds import KINDS

STRAIGHT_THROUGH = "fake_quantize"  # whose gradient is not that of its forward


def doubles(name: str, device: str) -> tuple[Any, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """A call, its inputs in float64 and tangents of them."""
    function, inputs = calls(device)[name]
    plain = tuple(t.detach().double() for t in inputs)
    return function, plain, tuple(torch.randn_like(t) for t in plain)


@pytest.mark.parametrize("name", NAMES)
def test_tangents_are_the_transpose_of_gradients(name: str, device: str) -> None:
    """By torch.func.jvp, in its graph by linearize, and by dual tensors; dtypes of 16 bits keep theirs."""
    function, inputs, tangents = doubles(name, device)
    y, tangent = torch.func.jvp(function, inputs, tangents)
    torch.testing.assert_close(y, function(*inputs))
    dy = torch.randn_like(y)
    grads = torch.func.vjp(function, *inputs)[1](dy)
    want = sum((g * t).sum() for g, t in zip(grads, tangents, strict=True))
    torch.testing.assert_close((dy * tangent).sum(), want)
    torch.testing.assert_close(torch.func.linearize(function, *inputs)[1](*tangents), tangent)
    with forward_ad.dual_level():
        dual = function(*map(forward_ad.make_dual, inputs, tangents))
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, tangent)
    short = tuple(t.bfloat16() for t in inputs)
    assert torch.func.jvp(function, short, short)[1].dtype == torch.bfloat16


@pytest.mark.parametrize("name", [name for name in NAMES if name != STRAIGHT_THROUGH])
def test_finite_differences(name: str, device: str) -> None:
    function, inputs, _ = doubles(name, device)
    inputs = tuple(t.requires_grad_() for t in inputs)
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_backward_ad=False, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_jacobians(name: str, device: str) -> None:
    """Forward mode under vmap agrees with reverse mode."""
    function, inputs, _ = doubles(name, device)
    forward, reverse = (jac(function, tuple(range(len(inputs))))(*inputs) for jac in (torch.func.jacfwd, torch.func.jacrev))
    torch.testing.assert_close(forward, reverse)


@pytest.mark.parametrize("name", NAMES)
def test_hessian(name: str, device: str) -> None:
    """Forward over reverse agrees with reverse over reverse, and so does reverse over forward."""
    function, (x, *others), (t, *_) = doubles(name, device)
    x, t = (x[..., :3], t[..., :3]) if name == "lerp" else (x, t)
    others = [o[..., :3] for o in others] if name == "lerp" else others

    def loss(x: torch.Tensor) -> torch.Tensor:
        return function(x, *others).pow(3).mean()

    want = torch.autograd.functional.hessian(loss, x)
    torch.testing.assert_close(torch.func.hessian(loss)(x), want)
    slope = torch.func.grad(lambda x: torch.func.jvp(loss, (x,), (t,))[1])(x)
    torch.testing.assert_close(slope, (want * t).sum(tuple(range(x.dim(), 2 * x.dim()))))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_keep_tangents(name: str, device: str) -> None:
    """In a backward without create_graph: of dual inputs, and of a dual dy where the forward ran outside the level."""
    function, (x, *others), (t, *_) = doubles(name, device)
    leaf = x.clone().requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return function(x, *others).pow(3).mean()

    slope = torch.func.jvp(torch.func.grad(loss), (x,), (t,))[1]
    y = function(leaf, *others)
    dy, ddy = torch.randn_like(y), torch.randn_like(y)
    linear = torch.autograd.grad(y, leaf, ddy, retain_graph=True)[0]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(leaf, t)
        found = torch.autograd.grad(loss(dual), dual)[0]
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, slope)
        found = torch.autograd.grad(y, leaf, forward_ad.make_dual(dy, ddy))[0]
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, linear)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_scans_as_torch(name: str, reverse: bool, device: str) -> None:
    """With a zero, ties and reversed; a batch at once."""
    x = torch.tensor([[2.0, 0.0, 3.0, 3.0], [1.0, -1.0, 0.0, 0.0]], dtype=F64, device=device)
    t = torch.randn_like(x)

    def values(y: Any) -> torch.Tensor:
        return y if isinstance(y, torch.Tensor) else y[0]

    def ours(x: torch.Tensor) -> torch.Tensor:
        return values(getattr(st, name)(x, -1, reverse=reverse))

    def torchs(x: torch.Tensor) -> torch.Tensor:
        y = values(getattr(torch, name)(x.flip(-1) if reverse else x, -1))
        return y.flip(-1) if reverse else y

    want = torch.func.jvp(torchs, (x,), (t,))[1]
    torch.testing.assert_close(torch.func.jvp(ours, (x,), (t,))[1], want, rtol=1e-11, atol=1e-12)
    rows = torch.vmap(lambda x, t: torch.func.jvp(ours, (x,), (t,))[1])(x, t)
    torch.testing.assert_close(rows, want, rtol=1e-11, atol=1e-12)


def test_logcumsumexp_is_exact(device: str) -> None:
    """Of torch's own tangents three digits are wrong here."""
    x, t = ([2.0, 0.0, 3.0, 4.0], [0.3, -1.2, 0.7, 0.1])
    given = [(torch.tensor(v, dtype=F64, device=device),) for v in (x, t)]
    for i, got in enumerate(torch.func.jvp(lambda x: st.logcumsumexp(x, 0), *given)[1].tolist()):
        weights = [math.exp(v) for v in x[: i + 1]]
        want = math.fsum(w * u for w, u in zip(weights, t, strict=False)) / math.fsum(weights)
        assert abs(got - want) <= 4e-15


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_without_weights(mode: str, device: str) -> None:
    """Which torch has no forward mode for: they are linear in the rows that they take."""
    indices, offsets = (torch.tensor(v, device=device) for v in ([3, 0, 4, 3, 1], [0, 2, 2]))
    weight, t = (torch.randn(5, 3, dtype=F64, device=device) for _ in range(2))

    def bags(weight: torch.Tensor) -> torch.Tensor:
        return st.embedding_bag(indices, weight, offsets, mode=mode)

    assert torch.autograd.gradcheck(bags, (weight.requires_grad_(),), check_forward_ad=True, check_backward_ad=False)
    with pytest.raises(sw.UnsupportedError, match="embedding_bag"):
        torch.func.jvp(lambda w: st.embedding_bag(indices, w, offsets, mode="sum", sparse=True), (weight,), (t,))


def test_tangents_of_tables(device: str) -> None:
    """The rotation is linear in its tables."""
    x, table, tangent = (torch.randn(shape, dtype=F64, device=device) for shape in ((1, 1, 3, 4), (3, 2), (3, 2)))
    found = torch.func.jvp(lambda table: st.rope(x, cos=table, sin=table), (table,), (tangent,))[1]
    torch.testing.assert_close(found, st.rope(x, cos=tangent, sin=tangent))


@pytest.mark.parametrize("name", NAMES)
def test_twice_forward_is_refused(name: str, device: str) -> None:
    """torch takes the tangent of a custom jvp for zero, which would be a wrong result."""
    function, inputs, tangents = doubles(name, device)

    def once(*xs: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(function, xs, tangents)[1]

    with pytest.raises(sw.UnsupportedError, match="jvp of jvp; use jvp of grad"):
        torch.func.jvp(once, inputs, tangents)


def test_values_may_change_in_place_afterwards() -> None:
    """Alone finds that a function keeps its result for a backward that does not need it, and refuses a change of it."""

    def changed(x: torch.Tensor) -> torch.Tensor:
        h = x * 1
        y = st.cumsum(h, 0)
        h.add_(1)
        y.mul_(2)
        return y.pow(3).sum()

    x = torch.rand(4, dtype=F64)
    want = torch.func.hessian(lambda x: (2 * torch.cumsum(x, 0)).pow(3).sum())(x)
    torch.testing.assert_close(torch.func.hessian(changed)(x), want)
