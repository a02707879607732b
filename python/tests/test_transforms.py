"""sternway.torch under torch.compile, torch.func, autocast, checkpointing and saved-tensor hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from support import F32, refusal
from test_torch import NAMES, SAVING, calls
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import sternway as sw
import sternway.torch as st
from sternway._kinds import KINDS

# aot_eager traces forward and backward as inductor does, and needs no compiler on the machine.
BACKENDS = ("eager", "aot_eager")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_compile_without_a_graph_break(name: str, backend: str, device: str) -> None:
    function, inputs = calls(device)[name]
    compiled = torch.compile(lambda *xs: function(*xs) * 2, fullgraph=True, backend=backend)
    want, got = function(*inputs) * 2, compiled(*inputs)
    torch.testing.assert_close(got, want)
    dy = torch.randn_like(want)
    for ours, eager in zip(torch.autograd.grad(got, inputs, dy), torch.autograd.grad(want, inputs, dy), strict=True):
        torch.testing.assert_close(ours, eager)


def test_compile_with_dynamic_shapes(device: str) -> None:
    """One compilation for all sizes."""
    compiled = torch.compile(st.lerp, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (3, 5, 8, 13):
        a, b = (torch.randn(n, 4, device=device, requires_grad=True) for _ in range(2))
        da, db = torch.autograd.grad(compiled(a, b, 0.25).sum(), (a, b))
        assert (da == 0.75).all()
        assert (db == 0.25).all()


@pytest.mark.parametrize("name", NAMES)
def test_func_grad(name: str, device: str) -> None:
    """torch.func.grad is torch.autograd.grad."""
    function, inputs = calls(device)[name]
    want = torch.autograd.grad(function(*inputs).sum(), inputs)
    plain = tuple(t.detach() for t in inputs)
    got = torch.func.grad(lambda *xs: function(*xs).sum(), argnums=tuple(range(len(plain))))(*plain)
    for ours, other in zip(got, want, strict=True):
        torch.testing.assert_close(ours, other)


@pytest.mark.parametrize("name", NAMES)
def test_vmap(name: str, device: str) -> None:
    """Of everything, and of the first input alone."""
    function, inputs = calls(device)[name]
    plain = tuple(t.detach() for t in inputs)
    stacked = tuple(torch.stack([t, 2 * t, 3 * t]) for t in plain)
    for given, dims in ((stacked, 0), ((stacked[0], *plain[1:]), (0, *[None] * (len(plain) - 1)))):
        rows = [[t if dims and i else t[k] for i, t in enumerate(given)] for k in range(3)]
        torch.testing.assert_close(torch.vmap(function, in_dims=dims)(*given), torch.stack([function(*row) for row in rows]))


@pytest.mark.parametrize("name", NAMES)
def test_vmap_of_nothing(name: str, device: str) -> None:
    """An empty batch makes an empty result, or an error that names the op."""
    function, inputs = calls(device)[name]
    empty = tuple(t.detach()[None][:0] for t in inputs)
    if refused := refusal(NotImplementedError, lambda: torch.vmap(function)(*empty)):
        assert name.removeprefix("packed_") in str(refused), refused
        return
    assert torch.vmap(function)(*empty).shape == (0, *function(*inputs).shape)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch calls the operator for each dy
@pytest.mark.parametrize("name", NAMES)
def test_batched_gradients(name: str, device: str) -> None:
    """Several dy at once, as vectorized Jacobians do."""
    function, inputs = calls(device)[name]
    y = function(*inputs)
    dy = torch.randn(3, *y.shape, device=device, dtype=y.dtype)
    got = torch.autograd.grad(y, inputs, dy, retain_graph=True, is_grads_batched=True)
    rows = [torch.autograd.grad(y, inputs, row, retain_graph=True) for row in dy]
    for ours, want in zip(got, zip(*rows, strict=True), strict=True):
        assert torch.equal(ours, torch.stack(want))


@pytest.mark.parametrize("name", NAMES)
def test_per_sample_gradients(name: str, device: str) -> None:
    """Vmap over grad: of everything, and of what all samples share."""
    function, inputs = calls(device)[name]
    plain = tuple(t.detach() for t in inputs)
    stacked = tuple(torch.stack([t, 2 * t]) for t in plain)
    gradient = torch.func.grad(lambda *xs: function(*xs).square().sum(), argnums=tuple(range(len(inputs))))
    for given, dims in ((stacked, 0), ((*plain[:-1], stacked[-1]), (*[None] * (len(plain) - 1), 0))):
        rows = [gradient(*(t if dims and i < len(plain) - 1 else t[k] for i, t in enumerate(given))) for k in range(2)]
        for ours, want in zip(torch.vmap(gradient, in_dims=dims)(*given), zip(*rows, strict=True), strict=True):
            torch.testing.assert_close(ours, torch.stack(want))


@pytest.mark.parametrize("name", NAMES)
def test_pullback_without_grad(name: str, device: str) -> None:
    """What torch.func.vjp returns, when the transform has ended."""
    function, inputs = calls(device)[name]
    y, pull = torch.func.vjp(function, *(t.detach() for t in inputs))
    dy = torch.randn_like(y)
    with torch.no_grad():
        got = pull(dy)
    for ours, want in zip(got, torch.autograd.grad(function(*inputs), inputs, dy), strict=True):
        assert torch.equal(ours, want)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", NAMES)
def test_vectorized_hessian(name: str, device: str) -> None:
    """Batched gradients of gradients."""
    function, inputs = calls(device)[name]
    x, *others = (t.detach()[..., :2] if name == "lerp" else t.detach() for t in inputs)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return function(x, *others).pow(3).mean()

    slow, quick = (torch.autograd.functional.hessian(loss, x, vectorize=v) for v in (False, True))
    torch.testing.assert_close(quick, slow)


class Recorder(torch.fx.Interpreter):
    """Runs a traced graph and keeps each call of an operator of ours, with its arguments."""

    def __init__(self, module: torch.fx.GraphModule, seen: list[Any]) -> None:
        super().__init__(module)
        self.seen = seen

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if getattr(target, "namespace", "") == "sternway":
            self.seen.append((target, *tree_map_only(torch.Tensor, torch.clone, (args, kwargs))))
        return super().call_function(target, args, kwargs)


def recording(seen: list[Any]) -> Any:
    """A backend that keeps the calls of operators of ours, forward and backward, with their arguments."""
    return aot_autograd(fw_compiler=lambda module, _: make_boxed_func(Recorder(module, seen).run))


@pytest.mark.parametrize("name", NAMES)
def test_compiled_transform(name: str, device: str) -> None:
    """A compiled gradient by torch.func runs our operator, and not torch's derivative of the forward."""
    function, inputs = calls(device)[name]
    plain = tuple(t.detach() for t in inputs)
    gradient = torch.func.grad(lambda *xs: function(*xs).square().sum(), argnums=tuple(range(len(plain))))
    seen: list[Any] = []
    compiled = torch.compile(gradient, backend=recording(seen))
    for ours, want in zip(compiled(*plain), gradient(*plain), strict=True):
        torch.testing.assert_close(ours, want)
    assert seen, "the graphs contain no operator of sternway"


@pytest.mark.parametrize("tracing", ["real", "symbolic"])
@pytest.mark.parametrize("name", NAMES)
def test_traced_gradients_take_other_inputs(name: str, tracing: str, device: str) -> None:
    """A graph by make_fx contains the operator, and not its results at the time."""
    function, inputs = calls(device)[name]

    def gradient(*xs: torch.Tensor) -> Any:
        leaves = tuple(x.detach().requires_grad_() for x in xs)
        return torch.autograd.grad(function(*leaves).square().sum(), leaves)

    def shaken(x: torch.Tensor) -> torch.Tensor:
        return x.detach() + torch.rand_like(x) / 8

    traced = make_fx(gradient, tracing_mode=tracing, _allow_non_fake_inputs=True)(*map(shaken, inputs))
    others = tuple(map(shaken, inputs))
    torch.testing.assert_close(traced(*others), gradient(*others))


def test_traced_functions_are_refused(device: str) -> None:
    """They work past torch: a graph would keep the numbers of the run that traced it."""
    with pytest.raises(sw.UnsupportedError, match=r"cumsum_backward: dy .* sternway.torch"):
        make_fx(lambda dy: sw.cumsum_backward(dy, 0))(torch.ones(3, device=device))


@pytest.mark.parametrize("name", NAMES)
def test_fake_tensors(name: str, device: str) -> None:
    """Which have shapes alone: what estimates memory before a run."""
    function, inputs = calls(device)[name]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = tuple(mode.from_tensor(t.detach()).requires_grad_() for t in inputs)
        grads = torch.autograd.grad(function(*fakes).sum(), fakes)
    assert [(g.shape, g.dtype, g.device) for g in grads] == [(t.shape, t.dtype, t.device) for t in inputs]


@pytest.mark.parametrize("name", ["lerp", *KINDS])
def test_meta_tensors(name: str) -> None:
    function, inputs = calls("cpu")[name]
    metas = tuple(t.detach().to("meta").requires_grad_() for t in inputs)
    grads = torch.autograd.grad(function(*metas).sum(), metas)
    assert [(g.shape, g.device.type) for g in grads] == [(t.shape, "meta") for t in inputs]


class Seen(TorchDispatchMode):
    """Keeps the names of what torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("name", NAMES)
def test_modes_see_the_operator(name: str, device: str) -> None:
    """The numbers are those without a mode."""
    function, inputs = calls(device)[name]
    want = torch.autograd.grad(function(*inputs).sum(), inputs)
    with Seen() as seen:
        got = torch.autograd.grad(function(*inputs).sum(), inputs)
    assert any(op.startswith("sternway::") for op in seen.names)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_by_transforms(name: str, device: str) -> None:
    """A gradient of a gradient by torch.func is that of autograd, for each sample of a batch as well. In float64, as
    torch's own forward rounds otherwise in a batch."""
    function, inputs = calls(device)[name]
    plain = tuple(t.detach().double() for t in inputs)
    inputs = tuple(t.clone().requires_grad_() for t in plain)
    places = tuple(range(len(plain)))

    def loss(*xs: torch.Tensor) -> torch.Tensor:
        return function(*xs).pow(3).sum()

    def slope(*xs: torch.Tensor) -> torch.Tensor:
        return sum(g.square().sum() for g in torch.func.grad(loss, places)(*xs))

    first = torch.autograd.grad(loss(*inputs), inputs, create_graph=True)
    want = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
    got = torch.func.grad(slope, places)(*plain)
    batched = torch.vmap(torch.func.grad(slope, places))(*(t.expand(2, *t.shape) for t in plain))
    for ours, both, autograd in zip(got, batched, want, strict=True):
        torch.testing.assert_close(ours, autograd)
        torch.testing.assert_close(both, torch.stack((autograd, autograd)))


@pytest.mark.parametrize("name", NAMES)
def test_autocast(name: str, device: str) -> None:
    """Inside autocast the call works, and gradients keep the dtype of their inputs."""
    function, inputs = calls(device)[name]
    with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
        y = function(*inputs)
        grads = torch.autograd.grad(y.sum(), inputs)
    assert all(g.dtype == t.dtype for g, t in zip(grads, inputs, strict=True))


@pytest.mark.parametrize("name", SAVING)
def test_checkpoint_and_saved_tensor_hooks(name: str, device: str) -> None:
    """Recomputation gives the same gradient, and what is saved passes through the hooks."""
    function, inputs = calls(device)[name]
    want = torch.autograd.grad(function(*inputs).sum(), inputs)
    recomputed = torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False)
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(recomputed.sum(), inputs), want, strict=True))
    packed: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t):
        y = function(*inputs)
    assert packed
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(y.sum(), inputs), want, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str, device: str) -> None:
    """Every operator that a compiled forward and backward contains: schema, fake, registration and gradient agree."""
    function, inputs = calls(device)[name]
    seen: list[Any] = []
    compiled = torch.compile(lambda *xs: function(*xs), fullgraph=True, backend=recording(seen))
    torch.autograd.grad(compiled(*inputs).sum(), inputs)
    assert seen, "the graphs contain no operator of sternway"
    for target, args, kwargs in seen:
        torch.library.opcheck(target, args, kwargs)
        leaves = [x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
        torch.library.opcheck(target, leaves, kwargs)


def test_module_compiles_and_trains(device: str) -> None:
    """A few steps of a model that interpolates: the loss falls, through the compiled graph."""

    class Mix(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(8))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return st.lerp(a, b, self.weight)

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(32, 8, generator=generator, dtype=F32).to(device) for _ in range(2))
    target, model = torch.lerp(a, b, 0.7), Mix().to(device)
    step, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(30):
        loss = (compiled(a, b) - target).square().mean()
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def nested(function: Any) -> dict[str, Any]:
    """Derivatives of a function by nested transforms of torch.func, by name."""
    func = torch.func

    def loss(*xs: torch.Tensor) -> torch.Tensor:
        return function(*xs).pow(3).sum()

    def gradient(*xs: torch.Tensor) -> Any:
        return func.grad(loss, tuple(range(len(xs))))(*xs)

    def slope(*xs: torch.Tensor) -> torch.Tensor:
        return sum(g.square().sum() for g in gradient(*xs))

    def of_last_row(transform: Any) -> Any:
        """A transform with respect to the last row of the first input, so that Hessians are small."""
        return lambda x, *others: transform(lambda row: loss(torch.cat((x[:-1], row)), *others))(x[-1:])

    return {
        "grad of grad": lambda *xs: func.grad(slope, tuple(range(len(xs))))(*xs),
        "vjp of vjp": lambda *xs: func.vjp(lambda *xs: func.vjp(loss, *xs)[1](torch.ones_like(loss(*xs)))[0], *xs)[1](xs[0]),
        "jvp": lambda *xs: func.jvp(function, xs, xs)[1],
        "jvp of grad": lambda *xs: func.jvp(gradient, xs, xs)[1],
        "vmap of grad": lambda *xs: torch.vmap(gradient)(*(torch.stack((x, 2 * x)) for x in xs)),
        "hessian": of_last_row(func.hessian),
        "jacrev of jacfwd": of_last_row(lambda f: func.jacrev(func.jacfwd(f))),
    }


COMMON = ("grad of grad", "jvp", "vmap of grad")


def all_at_once(derivatives: dict[str, Any], names: Any) -> Any:
    """One function for several derivatives, which takes the compiler less time."""
    return lambda *xs: {name: derivatives[name](*xs) for name in names}


OPTIONS = {  # that a compiled tangent or gradient could lose
    "embedding, padding_idx": lambda w: st.embedding(torch.tensor([3, 9, 3], device=w.device), w, 3),
    "embedding, scale_grad_by_freq": lambda w: st.embedding(
        torch.tensor([3, 9, 3], device=w.device), w, scale_grad_by_freq=True
    ),
    "embedding_bag, mean": lambda w: st.embedding_bag(torch.tensor([[3, 9], [3, 1]], device=w.device), w, padding_idx=1),
    "embedding_bag, max": lambda w: st.embedding_bag(torch.tensor([[3, 9], [3, 1]], device=w.device), w, mode="max"),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", [*NAMES, *OPTIONS])
def test_compiled_derivatives_of_every_order(name: str, device: str) -> None:
    """Alone finds zeros for second derivatives and tangents of a compiled autograd.Function, and its errors under vmap."""
    function, inputs = calls(device).get(name) or (OPTIONS[name], calls(device)["embedding"][1])
    plain = tuple(t.detach().double() for t in inputs)
    derivatives = nested(function)
    every = all_at_once(derivatives, derivatives if name in ("lerp", "rope") else COMMON)
    want = every(*plain)
    torch.testing.assert_close(torch.compile(every, backend="aot_eager", fullgraph=True)(*plain), want)
    assert all(any(t.any() for t in tree_leaves(x)) for x in want.values())


ACCELERATED = {
    "cumprod": lambda x: x.cumprod(1),
    "lerp": lambda x: torch.lerp(x, x.square(), 0.3),
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([3, 0, 3], device=x.device), x, 3),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ACCELERATED)
def test_compiled_derivatives_inside_accelerate(name: str, device: str) -> None:
    """Alone finds zeros and errors of calls that accelerate() does, in a compiled function that it decorates or surrounds."""
    x = calls(device)["embedding"][1][0].detach().double()[:, :3]
    plain, decorated = (all_at_once(nested(f), COMMON) for f in (ACCELERATED[name], st.accelerate()(ACCELERATED[name])))
    want = plain(x)
    torch.testing.assert_close(torch.compile(decorated, backend="aot_eager")(x), want)
    with st.accelerate():
        torch.testing.assert_close(torch.compile(plain, backend="aot_eager")(x), want)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_of_a_compiled_transform(name: str, device: str) -> None:
    """Alone finds that a compiled torch.func.grad has no gradient of its own, as meta-learning needs."""
    function, inputs = calls(device)[name]
    gradient = torch.func.grad(lambda *xs: function(*xs).pow(3).sum())
    want, got = (f(*inputs) for f in (gradient, torch.compile(gradient, backend="aot_eager")))
    for ours, eager in zip(
        torch.autograd.grad(got.square().sum(), inputs, allow_unused=True),
        torch.autograd.grad(want.square().sum(), inputs, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, eager)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    "call", [lambda x: st.cumprod(x, 0), st.accelerate()(lambda x: torch.cumprod(x, 0))], ids=["st", "accelerate"]
)
def test_compiled_hessians_of_samples(call: Any, device: str) -> None:
    """Alone finds an eager call that is wrong after Dynamo, which cannot trace a jvp inside two vmaps, has given up."""
    hessians = torch.vmap(torch.func.hessian(lambda x: call(x).square().sum()))
    rows = torch.rand(3, 5, device=device)
    want = hessians(rows)
    torch.testing.assert_close(torch.compile(hessians, backend="aot_eager")(rows), want)
