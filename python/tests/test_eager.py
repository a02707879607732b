"""Both autograd functions of each drop-in, that of ordinary eager calls and the general one, have the same properties."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import F32, F64, Subclass, gradcheck, gradgradcheck
from test_torch import NAMES, SAVING, calls
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import sternway as sw
import sternway.torch as st
from sternway._kinds import KINDS
from sternway._plan import Plan
from sternway.torch._autograd import scan

PACKAGE = "sternway.torch._autograd."
MODULES = [module for name, module in sys.modules.items() if name.startswith(PACKAGE) and hasattr(module, "is_eager")]
OURS = list(NAMES)
CONTIGUOUS = ("embedding", "embedding_bag", "linear_recurrence")
"""Operations whose gradients may be contiguous beside inputs that are not."""
SAVE = [name for name in SAVING if name in OURS]
ALL = pytest.mark.parametrize("name", OURS)
ROUNDED = {"rtol": 1e-4, "atol": 1e-4}  # where forwards differ in their roundings
STEPPED = ("dequantize", "fake_quantize")  # whose forward has steps, so that finite differences do not show its gradient
Function = Callable[..., torch.Tensor]


@pytest.fixture(params=["eager", "general"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two autograd functions does ordinary eager calls."""
    if request.param == "general":
        for module in MODULES:
            monkeypatch.setattr(module, "is_eager", lambda x: False)
    return str(request.param)


def given(name: str, device: str, dtype: torch.dtype = F32) -> tuple[Function, tuple[torch.Tensor, ...]]:
    """A call, and leaves of a dtype for its inputs."""
    function, inputs = calls(device)[name]
    return function, tuple(x.detach().to(dtype).requires_grad_() for x in inputs)


def gradients(function: Function, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(function(*inputs).square().sum(), inputs)


def node_of(y: torch.Tensor) -> Any:
    """The first node of ours in the graph of y, whose class names its autograd function."""
    nodes = [y.grad_fn]
    while nodes:
        node = nodes.pop()
        if getattr(type(node), "_forward_cls", type(node)).__module__.startswith("sternway"):
            return node
        nodes += [other for other, _ in node.next_functions if other is not None]
    raise AssertionError("the graph has no node of ours")


@ALL
def test_the_function_that_does_it(name: str, way: str, device: str) -> None:
    """Otherwise the other tests would show nothing."""
    function, inputs = given(name, device)
    assert ("Eager" in type(node_of(function(*inputs))).__name__) == (way == "eager")


@ALL
def test_first_and_second_derivatives(name: str, device: str) -> None:
    function, inputs = given(name, device, F64)
    if name not in STEPPED:
        assert gradcheck(function, inputs)
        assert gradgradcheck(function, inputs)
    first = torch.autograd.grad(function(*inputs).square().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    def loss(*xs: torch.Tensor) -> torch.Tensor:
        slopes = torch.func.grad(lambda *ys: function(*ys).square().sum(), tuple(range(len(xs))))(*xs)
        return sum(g.square().sum() for g in slopes)

    want = torch.func.grad(loss, tuple(range(len(inputs))))(*(x.detach() for x in inputs))
    for ours, other in zip(second, want, strict=True):
        torch.testing.assert_close(ours, other)


@ALL
def test_layouts(name: str, device: str) -> None:
    """Transposed inputs get gradients of their strides; dy may be expanded, transposed, sparse, negated or zeros."""
    function, inputs = given(name, device)
    want = gradients(function, inputs)
    turned = tuple(x.detach().mT.contiguous().mT.requires_grad_() if x.dim() > 1 else x for x in inputs)
    for ours, other, x in zip(gradients(function, turned), want, turned, strict=True):
        torch.testing.assert_close(ours, other)
        assert ours.stride() == x.stride() or (name in CONTIGUOUS and ours.is_contiguous())
    y = function(*inputs)
    dy = torch.randn_like(y)
    want = torch.autograd.grad(y, inputs, dy, retain_graph=True)
    sparse = [dy.to_sparse()] if y.grad_fn is node_of(y) else []  # operations of torch after ours take none
    for other in (dy.mT.contiguous().mT, (-dy)._neg_view(), *sparse):
        for ours, g in zip(torch.autograd.grad(y, inputs, other, retain_graph=True), want, strict=True):
            torch.testing.assert_close(ours, g)
    for value in (torch._efficientzerotensor(y.shape, device=device), torch.zeros((), device=device).expand(y.shape)):
        for ours in torch.autograd.grad(y, inputs, value, retain_graph=True):
            assert not ours.any()


@ALL
def test_some_of_the_inputs(name: str, device: str) -> None:
    """Each input alone requires grad."""
    function, inputs = given(name, device)
    want = gradients(function, inputs)
    for i, g in enumerate(want):
        some = tuple(x.detach().requires_grad_(i == k) for k, x in enumerate(inputs))
        assert torch.equal(torch.autograd.grad(function(*some).square().sum(), some[i])[0], g)
    with torch.no_grad():
        assert not function(*inputs).requires_grad
    with torch.inference_mode():
        assert function(*(x.detach() for x in inputs)).is_inference()


@pytest.mark.parametrize(
    ("name", "writes"),
    [("lerp", [["da"], ["db"]]), ("dequantize", [["dscale"]]), ("fake_quantize", [["dx"], ["dx", "dscale"]])],
)
def test_no_gradient_that_nobody_asked_for(
    name: str, writes: list[list[str]], device: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one input that requires a gradient, the plan writes that gradient alone; that of fake quantization always dx."""
    if way != "eager":
        pytest.skip("the general way computes all gradients")
    function, inputs = given(name, device)
    written, run_plain = list[str](), Plan._run_plain

    def recorded(plan: Any, operands: dict[str, Any]) -> bool:
        written.extend(name for name in plan._outputs if operands.get(name) is not None)
        return run_plain(plan, operands)

    monkeypatch.setattr(Plan, "_run_plain", recorded)
    for i, names in enumerate(writes):
        some = tuple(x.detach().requires_grad_(i == k) for k, x in enumerate(inputs))
        y = function(*some)
        written.clear()
        torch.autograd.grad(y.sum(), some[i])
        assert written == names


@ALL
def test_saved_tensors(name: str, device: str) -> None:
    """They pass through hooks, are checked for changes in place, are freed by the backward, and are none for a linear scan."""
    function, inputs = given(name, device)
    want = gradients(function, inputs)
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t):
        y = function(*inputs)
    assert bool(packed) != (name in KINDS and KINDS[name].is_linear)
    for ours, other in zip(torch.autograd.grad(y.square().sum(), inputs), want, strict=True):
        assert torch.equal(ours, other)
    if name in SAVE:
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y.sum(), inputs)
        moved = tuple(x * 1 for x in inputs)
        y = function(*moved)
        for x in moved:
            x.detach().mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            y.sum().backward()
    moved = tuple(x * 1 for x in inputs)
    seen = [weakref.ref(x) for x in moved]
    y = function(*moved)
    del moved
    y.sum().backward()
    gc.collect()
    assert all(r() is None for r in seen)


@ALL
def test_what_calls_a_backward(name: str, device: str) -> None:
    """Another thread, anomaly mode, checkpoint, hooks of nodes, and an upstream gradient that is not there."""
    function, inputs = given(name, device)
    want = gradients(function, inputs)
    results: list[Any] = []
    loss = function(*inputs).square().sum()
    thread = threading.Thread(target=lambda: results.append(torch.autograd.grad(loss, inputs)))
    thread.start()
    thread.join()
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly(check_nan=True):
        results.append(gradients(function, inputs))
    for reentrant in (True, False):
        y = checkpoint(function, *inputs, use_reentrant=reentrant)
        y.square().sum().backward()
        results.append(tuple(x.grad for x in inputs))
        inputs = tuple(x.detach().requires_grad_() for x in inputs)
    for found in results:
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    y = function(*inputs)
    calls: list[Any] = []
    y.grad_fn.register_hook(lambda *grads: calls.append(grads))
    assert torch.autograd.grad(Undefined.apply(y), inputs, allow_unused=True) == (None,) * len(inputs)


class Undefined(torch.autograd.Function):
    """Has no gradient for its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> None:
        return None


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@ALL
def test_transforms(name: str, device: str) -> None:
    """Around the call, around the backward alone, and of tensors that left a transform that has ended."""
    function, inputs = given(name, device)
    plain = tuple(x.detach() for x in inputs)
    places = tuple(range(len(inputs)))
    want = gradients(function, inputs)
    slope = torch.func.grad(lambda *xs: function(*xs).square().sum(), places)
    for ours, other in zip(slope(*plain), want, strict=True):  # the forward is torch's there
        torch.testing.assert_close(ours, other, **ROUNDED)
    batched = torch.vmap(slope)(*(torch.stack((x, x)) for x in plain))
    for ours, other in zip(batched, want, strict=True):
        torch.testing.assert_close(ours, torch.stack((other, other)), **ROUNDED)
    y = function(*inputs)
    dy = torch.randn(2, *y.shape, device=device)
    rows = [torch.autograd.grad(y, inputs, row, retain_graph=True) for row in dy]
    both = torch.autograd.grad(y, inputs, dy, is_grads_batched=True, retain_graph=True)
    for ours, other in zip(both, zip(*rows, strict=True), strict=True):
        assert torch.equal(ours, torch.stack(other))
    pulled = torch.vmap(lambda row: torch.autograd.grad(y, inputs, row, retain_graph=True))(dy)
    for ours, other in zip(pulled, both, strict=True):
        torch.testing.assert_close(ours, other)
    left: list[torch.Tensor] = []
    torch.func.grad(lambda x: (left.append(x * 1), x.sum())[1])(plain[0])
    torch.testing.assert_close(function(left[0], *plain[1:]), function(*plain))


@ALL
def test_tangents(name: str, device: str) -> None:
    function, inputs = given(name, device, F64)
    plain = tuple(x.detach() for x in inputs)
    tangents = tuple(torch.randn_like(x) for x in plain)
    y, tangent = torch.func.jvp(function, plain, tangents)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(function(*map(forward_ad.make_dual, plain, tangents)))
    assert torch.equal(dual.tangent, tangent)
    dy = torch.randn_like(y)
    grads = torch.autograd.grad(function(*inputs), inputs, dy)
    torch.testing.assert_close((dy * tangent).sum(), sum((g * t).sum() for g, t in zip(grads, tangents, strict=True)))


class Names(TorchDispatchMode):
    """Keeps the names of what torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **kwargs or {})


@ALL
def test_modes(name: str, device: str) -> None:
    """A mode around the call, or around the backward alone, sees our operator; fake tensors and traces have it."""
    function, inputs = given(name, device)
    want = gradients(function, inputs)
    with Names() as seen:
        got = gradients(function, inputs)
    loss = function(*inputs).square().sum()
    with Names() as later:
        again = torch.autograd.grad(loss, inputs)
    for mode, found in ((seen, got), (later, again)):
        assert any(op.startswith("sternway::") for op in mode.names)
        for ours, other in zip(found, want, strict=True):  # torch may do the forward
            torch.testing.assert_close(ours, other, **ROUNDED)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = tuple(mode.from_tensor(x.detach()).requires_grad_() for x in inputs)
        assert [g.shape for g in gradients(function, fakes)] == [x.shape for x in inputs]

    def graph(*xs: torch.Tensor) -> Any:
        return gradients(function, tuple(x.detach().requires_grad_() for x in xs))

    traced = make_fx(graph, _allow_non_fake_inputs=True)(*(x.detach() for x in inputs))
    assert "sternway" in traced.code


@ALL
def test_compilers(name: str, device: str) -> None:
    """torch.compile of the call, compiled autograd of its graph, and torch.export."""
    function, inputs = given(name, device)
    want = gradients(function, inputs)
    torch.compiler.reset()
    compiled = torch.compile(lambda *xs: function(*xs), fullgraph=True, backend="aot_eager")
    results = [gradients(compiled, inputs)]
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        results.append(gradients(function, inputs))

    class Module(torch.nn.Module):
        def forward(self, *xs: torch.Tensor) -> torch.Tensor:
            return function(*xs)

    results.append(gradients(torch.export.export(Module(), inputs).module(), inputs))
    for found in results:
        for ours, other in zip(found, want, strict=True):
            torch.testing.assert_close(ours, other, **ROUNDED)


@ALL
def test_kinds_of_tensors(name: str, device: str) -> None:
    """Parameters, a subclass, results under autocast, and copies of what is no leaf of a graph."""
    function, inputs = given(name, device)
    want = gradients(function, inputs)
    for kind in (
        torch.nn.Parameter,
        lambda x: x.as_subclass(Subclass).requires_grad_(),
        lambda x: copy.deepcopy(x).requires_grad_(),
    ):
        leaves = tuple(kind(x.detach()) for x in inputs)
        for ours, other in zip(gradients(function, leaves), want, strict=True):  # torch may do the forward
            torch.testing.assert_close(ours, other, **ROUNDED)
    for dtype in (torch.bfloat16, torch.float16):
        short = tuple(x.detach().to(dtype).requires_grad_() for x in inputs)
        with torch.autocast(device.split(":")[0], dtype=dtype):
            y = function(*short)
        assert all(g.dtype == dtype for g in torch.autograd.grad(y.float().sum(), short))
        assert all(g.dtype == dtype for g in gradients(function, short))


@ALL
def test_many_threads(name: str, device: str) -> None:
    function, inputs = given(name, device)
    want, wrong = gradients(function, inputs), []

    def work() -> None:
        for _ in range(20):
            leaves = tuple(x.detach().requires_grad_() for x in inputs)
            if not all(torch.equal(a, b) for a, b in zip(gradients(function, leaves), want, strict=True)):
                wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_plan_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the selection is that of the drop-in, whichever way the call takes; nothing is cached of it."""
    x = torch.ones((1,) * 9, requires_grad=True)
    for call in (lambda: st.cumsum(x, 0), lambda: st.lerp(x, x, 0.5)):
        for _ in range(2):
            with pytest.raises(sw.UnsupportedError, match=r"^sternway\.torch\.\w+: .* rank 0 to 8, got rank 9"):
                call()


@pytest.mark.parametrize("weight", [0.0, -0.0, float("nan"), float("inf"), 1.0, 2, True, 0.1], ids=repr)
def test_weights_of_lerp(weight: float) -> None:
    """Weights that compare equal, or not even to themselves, have their own gradients."""
    a, b = (torch.tensor([1.0, -0.0, 3.0], requires_grad=True) for _ in range(2))
    ours, theirs = (torch.autograd.grad(f(a, b, weight), (a, b), torch.ones(3)) for f in (st.lerp, torch.lerp))
    for g, want in zip(ours, theirs, strict=True):
        assert torch.equal(g.isnan(), want.isnan())
        assert torch.equal(g.nan_to_num().signbit(), want.nan_to_num().signbit())
        assert torch.equal(g.nan_to_num(), want.nan_to_num())


def test_where_the_forward_is_chosen(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """One decision before anything runs holds with and without a gradient, and for nobody else's shape.

    The general way does not decide: its forward is torch's.
    """
    seen, cumsum = [], torch.cumsum

    def chosen(kind: str, _shape: Any, _dtype: Any, _dim: int, reverse: bool, _device: Any, own: bool) -> Any:
        seen.append((kind, reverse, own))
        return lambda x, dim: cumsum(x, dim) + 100

    monkeypatch.setattr(scan, "_forward_of", chosen)
    scan._steps.cache_clear()
    want = [101.0, 102.0, 103.0] if way == "eager" else [1.0, 2.0, 3.0]
    try:
        for leaf in (torch.ones(3), torch.ones(3, requires_grad=True)):
            assert st.cumsum(leaf, 0).tolist() == want
            with st.accelerate(forward=False):
                torch.cumsum(leaf, 0)
            with st.accelerate():
                assert torch.cumsum(leaf, 0).tolist() == want
    finally:
        scan._steps.cache_clear()
    assert seen == ([("cumsum", False, True), ("cumsum", False, False)] if way == "eager" else [])


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16], ids=str)
def test_the_final_state_of_a_recurrence_alone(dtype: torch.dtype, device: str) -> None:
    """It alone finds a plan that runs on a batch of gradients of final states, beside none of h."""
    b, state = (torch.randn(shape, device=device).to(dtype).requires_grad_() for shape in ((3, 5), (3,)))
    h, final = st.linear_recurrence(0.5, b, initial_state=state, output_final_state=True)
    dfinal = torch.randn(2, 3, device=device).to(dtype).to(final.dtype)
    rows = [torch.autograd.grad(final, (b, state), row, retain_graph=True) for row in dfinal]
    both = torch.autograd.grad(final, (b, state), dfinal, is_grads_batched=True, retain_graph=True)
    last = torch.autograd.grad(h[:, -1], (b, state), dfinal[0].to(dtype))
    for many, one, other, via_h in zip(both, *rows, last, strict=True):
        assert torch.equal(many, torch.stack((one, other)))
        torch.testing.assert_close(one, via_h)
