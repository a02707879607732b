"""What st.accelerate() replaces in torch, for whom, and that all of it is restored."""

from __future__ import annotations

import gc
import importlib
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from interpreter import python
from test_accelerate import is_ours

import sternway as sw
import sternway.torch as st
from sternway._kinds import KINDS

module = importlib.import_module("sternway.torch._accelerate")
X = torch.tensor([0.5, 2.0, 1.5], requires_grad=True)
NAMES = [(home, name) for home in (torch, torch.Tensor) for name in (*KINDS, "lerp")]
NAMES.extend((torch, f"fake_quantize_per_{each}_affine") for each in ("tensor", "channel"))
NAMES.extend((torch, f"_fake_quantize_learnable_per_{each}_affine") for each in ("tensor", "channel"))
NAMES.append((torch.nn.functional, "embedding_bag"))
NAMES.append((torch.nn.functional, "embedding"))


def attributes() -> list[Any]:
    """What the namespaces of torch hold themselves under the names of the operations."""
    return [vars(home).get(name, "inherited") for home, name in NAMES]


TORCHS = attributes()


def inside(x: torch.Tensor = X) -> bool:
    """Whether calls of this thread are ours, as a function and as a method alike."""
    function, method = is_ours(torch.cumsum(x, 0)), is_ours(x.cumprod(0))
    assert function == method
    return function


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Every test leaves torch as it found it."""
    yield
    assert attributes() == TORCHS
    assert not inside()


def test_exactly_these_are_replaced_meanwhile() -> None:
    namespaces = [torch, torch.Tensor, torch.nn.functional, torch.nn.Parameter, torch.nn.EmbeddingBag, torch.special]
    before = [dict(vars(space)) for space in namespaces]
    order = [list(vars(space)) for space in namespaces]
    with st.accelerate():
        changed = [
            (space, name)
            for space, old in zip(namespaces, before, strict=True)
            for name, value in vars(space).items()
            if old.get(name) is not value
        ]
        assert sorted(changed, key=str) == sorted(NAMES, key=str)
        for home, name in NAMES:
            assert getattr(home, name).__name__ == name
            assert getattr(home, name).__doc__ or name.startswith("_"), "torch documents none of those"
    assert [dict(vars(space)) for space in namespaces] == before
    assert [list(vars(space)) for space in namespaces] == order


def test_nested_regions() -> None:
    """Also of one object, and left by an error."""
    context = st.accelerate()
    with context:
        with st.accelerate(), context:
            assert inside()
        assert inside()
        with pytest.raises(ZeroDivisionError), context:
            raise ZeroDivisionError
        assert inside()
    with pytest.raises(ZeroDivisionError), st.accelerate():
        raise ZeroDivisionError


def test_forward_of_the_innermost(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inner region overrides the outer, and the outer holds again behind it; torch's forward has our backward."""
    seen = []
    scan = importlib.import_module("sternway.torch._autograd.scan")
    asked = scan.run_eager
    monkeypatch.setattr(scan, "run_eager", lambda *arguments: seen.append(arguments[-1]) or asked(*arguments))
    with st.accelerate():
        assert is_ours(torch.cumsum(X, 0))
        with st.accelerate(forward=False):
            assert is_ours(torch.cumsum(X, 0))
            with st.accelerate(forward=True):
                X.cumsum(dim=0)
            X.cumsum(axis=0)
        torch.cumsum(input=X, dim=0)
    assert seen == [True, False, True, False, True]
    with pytest.raises(sw.InvalidProblemError, match=r"^sternway\.torch\.accelerate: forward must be True or False"):
        st.accelerate(forward=1)
    with pytest.raises(TypeError):
        st.accelerate(False)


def test_decorated_functions() -> None:
    """Recursive ones, and methods; the name and the signature stay."""

    @st.accelerate()
    def depth(n: int) -> int:
        assert inside()
        return depth(n - 1) + 1 if n else 0

    assert depth(5) == 5
    assert depth.__name__ == "depth"
    assert list(inspect.signature(depth).parameters) == ["n"]

    class Model:
        @st.accelerate()
        def forward(self) -> bool:
            return inside()

    assert Model().forward()


def run(work: Callable[[], Any]) -> Any:
    """The result of work on another thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_threads_that_leave_in_any_order() -> None:
    """Each is inside while its own region lasts."""
    entered, leave = threading.Event(), threading.Event()
    found = []

    def work() -> None:
        with st.accelerate():
            entered.set()
            leave.wait(10)
            found.append(inside())
        found.append(inside())

    thread = threading.Thread(target=work)
    with st.accelerate():
        thread.start()
        assert entered.wait(10)
        assert run(inside) is False
        assert inside()
    assert not inside()
    leave.set()
    thread.join()
    assert found == [True, False]


def test_many_threads() -> None:
    """One object that several threads enter and leave at once."""
    context, wrong = st.accelerate(), []

    def work() -> None:
        x = X.detach().clone().requires_grad_()  # of its own: torch may lock up where threads share a leaf
        for _ in range(200):
            with context:
                if not inside(x):
                    wrong.append("outside of its region")
            if inside(x):
                wrong.append("inside of another thread's")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def region(context: Any) -> Iterator[bool]:
    with context:
        while True:
            yield inside()


def test_generators() -> None:
    """A region that a generator is inside of ends when that one does, in any order, on any thread, and by collection."""
    context = st.accelerate()
    for contexts in ((context, context), (st.accelerate(), st.accelerate(forward=False))):
        first, second = map(region, contexts)
        assert next(first)
        assert next(second)
        first.close()
        assert next(second)
        second.close()
        assert not inside()
    generator = region(st.accelerate())
    assert next(generator)
    assert run(generator.close) is None
    assert not inside()
    generator = region(st.accelerate())
    assert run(lambda: next(generator))  # the thread ends inside of it
    assert not inside()
    generator.close()
    cycle: list[Any] = [region(st.accelerate())]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert not inside()


def test_another_library_on_top() -> None:
    """Its function is left in place, calls ours while a region is open, and torch's when none is."""
    called = []

    def patched(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (called.append(1), function(*args, **kwargs))[1]

    torchs = torch.cumsum
    with st.accelerate():
        ours, method = torch.cumsum, torch.Tensor.cumsum
        torch.cumsum, torch.Tensor.cumsum = theirs = patched(ours), patched(method)
        assert is_ours(torch.cumsum(X, 0))
        assert is_ours(X.cumsum(0))
    assert (torch.cumsum, torch.Tensor.cumsum) == theirs
    assert not is_ours(torch.cumsum(X, 0))
    assert not is_ours(X.cumsum(0))
    with st.accelerate():
        assert is_ours(torch.cumsum(X, 0))
    assert len(called) == 5
    torch.cumsum, torch.Tensor.cumsum = ours, method  # it restores what it found
    assert not is_ours(torch.cumsum(X, 0))
    with st.accelerate():
        assert is_ours(X.cumsum(0))
    assert torch.cumsum is torchs, "the next region takes ours away"


def test_another_library_before() -> None:
    """Its function stays, and is called: what it does to the call is not bypassed."""
    torchs, called = torch.cumsum, []
    torch.cumsum = theirs = lambda *args: (called.append(1), torchs(*args))[1]
    try:
        with st.accelerate():
            assert not is_ours(torch.cumsum(X, 0))
            assert is_ours(X.cumsum(0))
        assert torch.cumsum is theirs
        assert called
    finally:
        torch.cumsum = torchs


def test_what_it_does_not_reach() -> None:
    """A function that was taken before the region, and operators of the dispatcher."""
    cumsum, method = torch.cumsum, torch.Tensor.cumsum
    with st.accelerate():
        assert not is_ours(cumsum(X, 0))
        assert not is_ours(method(X, 0))
        assert not is_ours(torch.ops.aten.cumsum(X, 0))
        kept = torch.cumsum
    assert not is_ours(kept(X, 0)), "one that was taken inside is torch's outside"
    with st.accelerate():
        assert is_ours(kept(X, 0))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("first", ["inside", "outside"])
def test_a_compiled_function_that_is_called_in_a_region(first: str) -> None:
    """Functions of torch are ours in it, and torch's again outside. Products of 0 and infinity tell them apart."""
    x, dy = torch.tensor([1e30, 1e30, 1e-30], requires_grad=True), torch.tensor([1.0, 0.0, 0.0])
    call = compiled(lambda x: torch.cumprod(x, 0))

    def is_finite() -> bool:
        return bool(torch.autograd.grad(call(x), x, dy)[0].isfinite().all())

    if first == "outside":
        assert not is_finite()
    for _ in range(2):
        with st.accelerate():
            assert is_finite()
        assert not is_finite()


def test_methods_in_a_compiled_function() -> None:
    """They are ours if the compiled function enters the region itself."""
    x, dy = torch.tensor([1e30, 1e30, 1e-30], requires_grad=True), torch.tensor([1.0, 0.0, 0.0])
    outer = compiled(lambda x: x.cumprod(0))
    with st.accelerate():
        assert torch.autograd.grad(outer(x), x, dy)[0].isnan().any(), "it is reached: say so in the documents"

    def entering(x: torch.Tensor) -> torch.Tensor:
        with st.accelerate():
            return x.cumprod(0)

    for call in (compiled(entering), compiled(st.accelerate()(lambda x: x.cumprod(0)))):
        assert torch.autograd.grad(call(x), x, dy)[0].tolist() == [1.0, 0.0, 0.0]
        assert not inside()


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:.*deprecated")
def test_other_tools_of_torch() -> None:
    """Scripts, traces and pickles made inside a region are those of torch's functions."""

    def function(x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 0).lerp(x, 0.5).sum() + torch.nn.functional.embedding_bag(i, w).sum()

    indices, table = torch.tensor([[0, 1]]), torch.ones(2, 3)
    want = function(X, indices, table)
    with st.accelerate():
        scripted = torch.jit.script(function)
        assert torch.equal(scripted(X, indices, table), want)
        traced = torch.fx.symbolic_trace(lambda x: torch.cumsum(x, 0).cummax(0)[0])
        names = [torch.cumsum, torch.nn.functional.embedding_bag]
        assert pickle.loads(pickle.dumps(names)) == names
    assert next(node.target for node in traced.graph.nodes if node.op == "call_function") is torch.cumsum
    assert torch.equal(torch.jit.script(function)(X, indices, table), want)
    assert torch.overrides.is_tensor_method_or_property(torch.Tensor.cumsum)
    with pytest.raises(IndexError), st.accelerate():
        torch.cumsum(X, 7)


@pytest.mark.parametrize("most_changes", [0, 1000], ids=["methods stay replaced", "methods are restored"])
def test_dynamo_is_first_imported_in_a_region(most_changes: int) -> None:
    """Alone finds a replacement that torch.compile keeps in a table or a cache, which it fills in that import.

    A function that is compiled afterwards, outside of regions, would be ours or would break the graph.
    """
    python(f"""
        import gc, importlib, sys, torch
        if "torch._dynamo" in sys.modules:
            raise SystemExit  # this version of torch imports it itself
        import sternway.torch as st
        module = importlib.import_module("sternway.torch._accelerate")
        module._MOST_CHANGES = {most_changes}
        finders = list(sys.meta_path)
        with st.accelerate():
            pass
        with st.accelerate():
            ours = torch.cumsum, torch.Tensor.cumsum
            holders = [len(gc.get_referrers(function)) for function in ours]
            from torch._dynamo import trace_rules
            assert holders == [len(gc.get_referrers(function)) for function in ours]
            assert ours == (torch.cumsum, torch.Tensor.cumsum), "the region goes on"
        originals, rules = (torch.cumsum, torch._C.TensorBase.cumsum), trace_rules.get_torch_obj_rule_map()
        assert originals[0] in rules and ours[0] not in rules
        assert originals[1] in trace_rules.get_tensor_method()
        assert sys.meta_path == finders, "the import hook is gone"
        x = torch.tensor([1e30, 1e30, 1e-30], requires_grad=True)
        y = torch.compile(lambda x: torch.cumprod(x, 0), fullgraph=True, backend="aot_eager")(x)
        dx, = torch.autograd.grad(y, x, torch.tensor([1.0, 0.0, 0.0]))
        assert dx.isnan().any(), "it is torch's"
    """)


def test_many_regions_do_not_change_a_class_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """From some number on the replaced methods stay, and do nothing outside."""
    monkeypatch.setattr(module, "_MOST_CHANGES", max(patch.applied for patch in module._PATCHES) + 2)
    for _ in range(4):
        with st.accelerate():
            assert inside()
        assert not inside()
    assert "cumsum" in vars(torch.Tensor)
    monkeypatch.undo()
    with st.accelerate():
        assert inside()


def test_one_entry_for_each_function() -> None:
    """The table names its operations once."""
    served = importlib.import_module("sternway.torch._served").SERVED
    assert len({s.name for s in served}) == len(served)
    assert [(home, s.name) for s in served for home in s.homes if home is torch] == [n for n in NAMES if n[0] is torch]
