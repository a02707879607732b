"""Calls that others see as they see torch's own: subclasses, function modes, torch.fx and torch.jit.trace."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from support import values_of
from test_torch import NAMES, OPERATORS, calls
from test_transforms import recording
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import sternway.torch as st

INDICES = torch.tensor([3, 1, 3])
SERVED = {  # what accelerate() does, as code calls it: the function of torch, and a call of it
    "torch.cumsum": (torch.cumsum, lambda x: torch.cumsum(x, 1)),
    "Tensor.cumsum": (torch.Tensor.cumsum, lambda x: x.cumsum(dim=1)),
    "torch.cumprod": (torch.cumprod, lambda x: torch.cumprod(input=x, dim=1)),
    "Tensor.cummax": (torch.Tensor.cummax, lambda x: x.cummax(1)),
    "torch.cummin": (torch.cummin, lambda x: torch.cummin(x, 1)),
    "Tensor.logcumsumexp": (torch.Tensor.logcumsumexp, lambda x: x.logcumsumexp(1)),
    "torch.lerp": (torch.lerp, lambda x: torch.lerp(x, x, 0.5)),
    "Tensor.lerp": (torch.Tensor.lerp, lambda x: x.lerp(x, 0.5)),
    "fake quantization": (
        torch.fake_quantize_per_tensor_affine,
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 7),
    ),
    "F.embedding": (functional.embedding, lambda x: functional.embedding(INDICES, x)),
    "F.embedding_bag": (functional.embedding_bag, lambda x: functional.embedding_bag(INDICES, x, INDICES[:1] * 0, mode="sum")),
}
BY_NAME = {  # torch's function for a call of a drop-in; None: it has none
    "cumsum": (torch.cumsum, lambda x: st.cumsum(x, 1)),
    "cumsum from the end": (None, lambda x: st.cumsum(x, 1, reverse=True)),
    "cummax": (torch.cummax, lambda x: st.cummax(x, 1)),
    "lerp": (torch.lerp, lambda x: st.lerp(x, x, 0.5)),
    "embedding": (functional.embedding, lambda x: st.embedding(INDICES, x)),
    "embedding_bag": (functional.embedding_bag, lambda x: st.embedding_bag(INDICES, x, INDICES[:1] * 0, mode="sum")),
    "rope": (None, lambda x: st.rope(torch.ones(1, 1, 4, 6).as_subclass(type(x)))),
    "dequantize_per_token": (None, lambda x: st.dequantize_per_token(torch.ones(4, 6, 2, dtype=torch.int8), x)),
    "fake_quantize_per_token": (None, lambda x: st.fake_quantize_per_token(torch.ones(4, 6, 2), x, quant_min=-8, quant_max=7)),
}


class Watched(torch.Tensor):
    """Keeps the functions that it is handed."""

    seen: list[Any]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Watching(TorchFunctionMode):
    """Keeps the functions that it is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    Watched.seen = []


@pytest.mark.parametrize("recording", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("name", SERVED)
def test_accelerate_hands_on_torchs_function(name: str, recording: bool) -> None:
    """Alone finds a replacement of accelerate() in __torch_function__, where libraries look for torch's function."""
    function, call = SERVED[name]
    x = torch.rand(4, 6)
    with st.accelerate(), torch.set_grad_enabled(recording):
        call(x.as_subclass(Watched))
        with Watching() as mode:
            call(x)
    assert function in Watched.seen
    assert function in mode.seen


def test_a_region_in_another_thread_hands_on_torchs_function() -> None:
    """Alone finds it where the attributes are replaced for another thread alone."""
    import threading

    entered, done = threading.Event(), threading.Event()

    def region() -> None:
        with st.accelerate():
            entered.set()
            done.wait(60)

    thread = threading.Thread(target=region)
    thread.start()
    entered.wait(60)
    try:
        torch.rand(4, 6).as_subclass(Watched).cumsum(0)
    finally:
        done.set()
        thread.join()
    assert torch.Tensor.cumsum in Watched.seen


SCANS = (torch.cumsum, torch.Tensor.cumsum, st.cumsum)  # as libraries look functions up: by what they hold when imported


class Widen(TorchFunctionMode):
    """Computes cumulative sums in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SCANS:
            args = (args[0].double(), *args[1:])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", [lambda x: x.cumsum(0), lambda x: torch.cumsum(x, 0), lambda x: st.cumsum(x, 0)])
def test_a_mode_changes_the_call(call: Any) -> None:
    """Alone finds a mode that is not asked, whether it surrounds accelerate() or is inside, eager and compiled."""

    def inside(x: torch.Tensor) -> torch.Tensor:
        with st.accelerate(), Widen():
            return call(x)

    def around(x: torch.Tensor) -> torch.Tensor:
        with Widen(), st.accelerate():
            return call(x)

    for function in (inside, around):
        torch.compiler.reset()
        for run in (function, torch.compile(function, backend="aot_eager")):
            assert run(torch.ones(3)).dtype is torch.float64


def test_a_default_device_leaves_calls_to_us() -> None:
    """Alone finds that torch.set_default_device, which is a function mode, takes every call from us."""
    x = torch.tensor([2.0, 0.0, 3.0], requires_grad=True)
    with torch.device("cpu"), st.accelerate():
        assert type(x.cumprod(0).grad_fn).__name__ == type(st.cumprod(x, 0).grad_fn).__name__ == "_ScanEagerBackward"
        torch.compiler.reset()
        operators: list[Any] = []
        products = torch.compile(st.accelerate()(lambda x: x.cumprod(0)), backend=recording(operators))
        assert torch.autograd.grad(products(x).sum(), x)[0].tolist() == [1, 8, 0]
        assert operators


@pytest.mark.parametrize("name", BY_NAME)
def test_a_drop_in_asks_its_operands(name: str) -> None:
    """Alone finds a drop-in that runs past a subclass: it gets torch's function, or ours. A mode gets ours."""
    theirs, call = BY_NAME[name]
    ours = getattr(st, name.partition(" ")[0])
    x = torch.rand(4, 6)
    want = call(x)
    got = call(x.as_subclass(Watched))
    assert (theirs or ours) in Watched.seen
    with Watching() as mode:
        also = call(x)
    assert ours in mode.seen
    for found in (got, also):
        torch.testing.assert_close([torch.Tensor(t) if t.dtype == x.dtype else t for t in found], list(want))


class Model(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


@pytest.mark.parametrize("name", NAMES)
def test_fx_traces_ours(name: str) -> None:
    """Alone finds a drop-in that reads a value of fx's placeholder; its graph contains the drop-in, with our gradient."""
    function, inputs = calls("cpu")[name]
    count = len(inputs)
    names = ", ".join(f"x{i}" for i in range(count))
    space: dict[str, Any] = {"function": function}
    exec(f"def forward({names}):\n    return function({names})", space)  # fx does not take *inputs
    traced = torch.fx.symbolic_trace(space["forward"])
    assert any(node.target in vars(st).values() for node in traced.graph.nodes)
    y, want = values_of(traced(*inputs)), values_of(function(*inputs))
    assert torch.equal(y, want)
    for ours, eager in zip(torch.autograd.grad(y.sum(), inputs), torch.autograd.grad(want.sum(), inputs), strict=True):
        assert torch.equal(ours, eager)


def test_fx_traces_modules_and_accelerated_functions() -> None:
    """Alone finds modules, and functions of torch inside accelerate(), that fx cannot trace."""
    for module, inputs in (
        (st.Embedding(5, 3, padding_idx=1), (torch.tensor([1, 2]),)),
        (st.EmbeddingBag(5, 3, mode="sum"), (torch.tensor([[1, 2]]),)),
    ):
        traced = torch.fx.symbolic_trace(torch.nn.Sequential(module, torch.nn.ReLU()))
        assert torch.equal(traced(*inputs), module(*inputs).relu())
    with st.accelerate():
        traced = torch.fx.symbolic_trace(lambda x: torch.cumsum(x, 0).cumprod(0))
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [torch.cumsum]


ROPE = {
    f"rope, {layout}, {pairing}, {'tables' if tables else 'angles'}": (layout, pairing, tables)
    for layout, pairing, tables in (
        ("bhsd", "half", True), ("bshd", "interleaved", True), ("thd", "half", False), ("bhsd", "interleaved", False),
    )
}  # fmt: skip


def rope(layout: str, pairing: str, tables: bool) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """A rotation of a part of each head, and its differentiable inputs."""
    shape = {"bhsd": (2, 3, 6, 8), "bshd": (2, 6, 3, 8), "thd": (6, 3, 8)}[layout]
    x, cos, sin = (torch.randn(s, requires_grad=True) for s in (shape, (9, 3), (9, 3)))
    positions = torch.tensor([3, 1, 8, 1, 5, 0])
    options: Any = {"layout": layout, "pairing": pairing, "rotary_dim": 6, "rotary_start": 2}
    if tables:
        return (lambda x, cos, sin: st.rope(x, positions, cos=cos, sin=sin, **options)), (x, cos, sin)
    return (lambda x: st.rope(x, positions, **options)), (x,)


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:.*deprecated", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", [*(name for name in NAMES if name not in OPERATORS), *ROPE])
def test_traces_can_be_saved(name: str) -> None:
    """Alone finds an operation in a trace of torch.jit that cannot be saved, or has another value or gradient than ours."""
    function, inputs = rope(*ROPE[name]) if name in ROPE else calls("cpu")[name]
    for call in (function, st.accelerate()(function)):
        file = io.BytesIO()
        torch.jit.save(torch.jit.trace(Model(call), tuple(t.detach() for t in inputs)), file)
        file.seek(0)
        y, want = torch.jit.load(file)(*inputs), function(*inputs)
        torch.testing.assert_close(y, want)
        for ours, eager in zip(
            torch.autograd.grad(y.square().sum(), inputs), torch.autograd.grad(want.square().sum(), inputs), strict=True
        ):
            torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("rotate", ["rope", "apply_rotary_pos_emb"])
def test_rope_of_meta_tensors(rotate: str, tables: bool) -> None:
    """Alone finds a rotation that asks for a plan on the device "meta", by whose tensors models are sized."""
    x, cos, sin = (torch.empty(s, device="meta", requires_grad=True) for s in ((1, 2, 4, 8), (4, 8), (4, 8)))
    inputs = (x, cos, sin) if tables or rotate != "rope" else (x,)
    if rotate == "rope":
        y = st.rope(*inputs) if len(inputs) == 1 else st.rope(x, cos=cos, sin=sin)
    else:
        y = st.apply_rotary_pos_emb(x, x, cos[None], sin[None])[1]
    grads = torch.autograd.grad(y.sum(), inputs)
    assert [(g.shape, g.device.type) for g in grads] == [(t.shape, "meta") for t in inputs]
