"""st.accelerate: code that calls torch gets our backward, exact where torch's is not."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from support import F64, Subclass, is_ours, refusal

import sternway.torch as st
from sternway._kinds import KINDS

X, DY = [1e30, 1e30, 1e-30], [1.0, 0.0, 0.0]  # torch's cumprod backward gives NaN
# Ways to write a call of which a function of x has our backward.
TAKEN = {
    **{f"torch.{name}": lambda x, name=name: getattr(torch, name)(x, 0) for name in KINDS},
    **{f"Tensor.{name}": lambda x, name=name: getattr(x, name)(dim=0) for name in KINDS},
    "axis, input": lambda x: torch.cumsum(input=x, axis=0),
    "dtype=None": lambda x: x.cumprod(0, dtype=None),
    "fake quantization": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 1, 0, 4),
    "its channels": lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.full_like(x, 0.5), torch.ones_like(x, dtype=torch.int32), 0, 0, 4
    ),
    "torch.lerp": lambda x: torch.lerp(x, torch.ones_like(x), 0.25),
    "Tensor.lerp": lambda x: x.lerp(end=torch.ones_like(x), weight=torch.tensor(0.25)),
    "functional.embedding_bag": lambda x: torch.nn.functional.embedding_bag(
        torch.tensor([[0, 1]], device=x.device), x[:, None]
    ),
}
# And of which it has not.
LEFT = {
    "out": lambda x: torch.cumsum(x.detach(), 0, out=torch.empty_like(x)),
    "dtype": lambda x: torch.cumsum(x, 0, dtype=F64),
    "another name": lambda x: torch.cumsum(a=x, dim=0),
    "in place": lambda x: x.clone().cumsum_(0),
    "integers": lambda x: torch.cumsum(torch.arange(3), 0) * x.cpu()[:3],
    "a subclass": lambda x: x.as_subclass(Subclass).cumsum(0),
    "something else": lambda x: x.exp(),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str, device: str) -> None:
    """The same values, our node in the graph, torch's gradient; torch's own node outside."""
    x = torch.tensor([0.5, 2.0, 1.5], device=device, requires_grad=True)
    want = TAKEN[name](x)
    assert not is_ours(want)
    with st.accelerate():
        got = TAKEN[name](x)
    assert is_ours(got)
    assert type(got) is type(want)
    got, want = (y if isinstance(y, torch.Tensor) else y[0] for y in (got, want))
    assert torch.equal(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (got, want)))


@pytest.mark.parametrize("name", LEFT)
def test_left(name: str, device: str) -> None:
    x = torch.tensor([0.5, 2.0, 1.5], device=device, requires_grad=True)
    want = LEFT[name](x)
    with st.accelerate():
        got = LEFT[name](x)
    assert not is_ours(got)
    assert type(got) is type(want)
    assert torch.equal(got, want)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"], ids=str)
def test_decorator(backend: str | None, device: str) -> None:
    """Also of a function that is compiled, without a graph break."""
    torch.compiler.reset()

    @st.accelerate()
    def product(x: torch.Tensor) -> torch.Tensor:
        return torch.cumprod(x, -1)

    call = product if backend is None else torch.compile(product, fullgraph=True, backend=backend)
    x, dy = (torch.tensor(values, device=device) for values in (X, DY))
    x.requires_grad_()
    assert torch.autograd.grad(call(x), x, dy)[0].tolist() == DY
    assert torch.autograd.grad(torch.cumprod(x, -1), x, dy)[0].isnan().any(), "outside it is torch's"


@pytest.mark.parametrize("name", TAKEN)
def test_compiled(name: str, device: str) -> None:
    torch.compiler.reset()
    x = torch.tensor([0.5, 2.0, 1.5], device=device, requires_grad=True)
    call = torch.compile(st.accelerate()(TAKEN[name]), fullgraph=True, backend="aot_eager")
    got, want = (y if isinstance(y, torch.Tensor) else y[0] for y in (call(x), TAKEN[name](x)))
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (got, want)))


def test_modules_nesting_and_errors(device: str) -> None:
    bag = torch.nn.EmbeddingBag(5, 3, mode="sum", device=device)
    indices = torch.tensor([[1, 2]], device=device)
    context = st.accelerate()
    with context, context:
        assert is_ours(bag(indices))
    assert not is_ours(bag(indices))
    with pytest.raises(ZeroDivisionError), context:
        raise ZeroDivisionError
    assert not is_ours(bag(indices))
    with context, torch.no_grad():
        assert bag(indices).grad_fn is None


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:.*torch.jit.script")
@pytest.mark.parametrize("name", TAKEN)
def test_transforms(name: str, device: str) -> None:
    """What works without it works with it: vmap, forward-mode derivatives, gradients of functions."""
    x = torch.tensor([0.5, 2.0, 1.5], device=device)

    def call(x: torch.Tensor) -> torch.Tensor:
        y = TAKEN[name](x)
        return y if isinstance(y, torch.Tensor) else y[0]

    ways = {
        "vmap": lambda: torch.vmap(call)(torch.stack([x, 2 * x])),
        "jvp": lambda: torch.func.jvp(call, (x,), (x.flip(0),))[1],
        "grad": lambda: torch.func.grad(lambda x: call(x).sum())(x),
    }
    for way, result in ways.items():
        if refusal(RuntimeError, result):
            continue  # torch itself cannot
        want = result()
        with st.accelerate():
            torch.testing.assert_close(result(), want, msg=way)


def test_threads() -> None:
    """It is the thread's own that entered it; a decorated function has it on any."""
    x = torch.ones(3, requires_grad=True)
    decorated, found = st.accelerate()(lambda: torch.cumsum(x, 0)), []

    def work() -> None:
        found.extend([is_ours(torch.cumsum(x, 0)), is_ours(decorated())])

    with st.accelerate():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [False, True]


class Product(torch.nn.Module):
    @st.accelerate
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumprod(0)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_decorator_without_parentheses(compiled: bool) -> None:
    """Finds a bare @accelerate that returns a region in the place of the function, or that torch.compile cannot trace."""

    @st.accelerate
    def product(x: torch.Tensor) -> torch.Tensor:
        """The documentation of the function."""
        return x.cumprod(0)

    assert (product.__name__, product.__doc__) == ("product", "The documentation of the function.")
    torch.compiler.reset()
    for call in (product, Product(), st.accelerate(product, forward=False)):
        x = torch.tensor(X, requires_grad=True)
        call = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
        call(x).backward(torch.tensor(DY))
        assert not x.grad.isnan().any()


@pytest.mark.parametrize("value", [True, 3, "x", torch.ones(2)])
def test_a_value_in_the_place_of_a_function(value: Any) -> None:
    """Finds a positional argument that is taken for forward, or that fails without advice."""
    with pytest.raises(TypeError, match=r"must be a function to decorate.*; write accelerate\("):
        st.accelerate(value)
