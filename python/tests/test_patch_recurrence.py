"""patch_recurrence in RecurrentGemma: the same loss, gradients and generated tokens, or a refusal that changes nothing."""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import refusal
from torch import Tensor

import sternway as sw
import sternway.torch as st

pytest.importorskip("transformers", reason="transformers is not installed: there are no models to patch")

from transformers import LlamaConfig, LlamaModel, RecurrentGemmaConfig, RecurrentGemmaForCausalLM
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

NAME = "_rnn_scan"
OWN = RecurrentGemmaRglru._rnn_scan


def build(seed: int = 0) -> Any:
    """A small model of two recurrent layers and one with attention."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 64}
    return RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**sizes, num_key_value_heads=1, attention_window_size=8)).eval()


def tokens_on(device: str) -> Tensor:
    return torch.randint(3, 64, (2, 9), generator=torch.Generator().manual_seed(1)).to(device)


def gradients(model: Any, **more: Any) -> list[Tensor]:
    """The logits and the gradients of all parameters."""
    tokens = tokens_on(str(next(model.parameters()).device))
    model.zero_grad()
    result = model(input_ids=tokens, labels=tokens, **more)
    result.loss.backward()
    return [result.logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def equal(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-5) -> None:
    """Within a tolerance, relative to the largest of the tensors."""
    size = max(float(t.double().norm()) for t in theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert float((a.double() - b.double()).norm()) <= tolerance * size


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The shape of each call of our recurrence."""
    module, met = sys.modules["sternway.torch._recurrence_models"], list[Any]()
    ours = module.linear_recurrence
    monkeypatch.setattr(module, "linear_recurrence", lambda a, b, *x, **k: met.append(tuple(b.shape)) or ours(a, b, *x, **k))
    return met


@pytest.fixture(autouse=True)
def unpatched() -> Any:
    yield
    left, RecurrentGemmaRglru._rnn_scan = RecurrentGemmaRglru._rnn_scan, OWN
    assert left is OWN


# --- The same numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, "autocast"], ids=str)
@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
def test_model(dtype: Any, cached: bool, counter: list[Any], device: str) -> None:
    """Logits and gradients in the dtypes of the model, by one call of ours for each recurrent layer."""
    model = build().to(device, torch.float32 if dtype == "autocast" else dtype)
    with torch.autocast(device, torch.bfloat16, enabled=dtype == "autocast"):
        theirs = gradients(model, use_cache=cached)
        with st.patch_recurrence(model):
            counter.clear()
            equal(gradients(model, use_cache=cached), theirs, 1e-5 if dtype == torch.float32 else 2e-2)
            assert counter == [(2, 9, 32)] * 2
        equal(gradients(model, use_cache=cached), theirs, 0.0 if device == "cpu" else 1e-5)


def test_resets() -> None:
    """Two documents in a row: the state is 0 where positions begin anew, in values and gradients."""
    model, positions = build(), torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 0, 1, 2, 3, 4, 5, 6]])
    theirs = gradients(model, use_cache=False, position_ids=positions)
    with st.patch_recurrence(model):
        equal(gradients(model, use_cache=False, position_ids=positions), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_generation(dtype: torch.dtype, counter: list[Any]) -> None:
    """The prompt by ours, tokens after it by the model, and the same states in its cache."""
    model, tokens = build().to(dtype), tokens_on("cpu")

    def generated() -> tuple[Tensor, list[Tensor]]:
        made = model.generate(tokens, max_new_tokens=6, do_sample=False, eos_token_id=None)
        return made, [m.recurrent_states for m in model.modules() if isinstance(m, RecurrentGemmaRglru)]

    expected, states = generated()
    with st.patch_recurrence(model):
        counter.clear()
        found, ours = generated()
    assert counter == [(2, 9, 32)] * 2
    assert torch.equal(found, expected)
    for a, b in zip(ours, states, strict=True):
        assert a.dtype == b.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=1e-5 if dtype == torch.float32 else 2e-2, atol=1e-5)


def test_states_of_the_caller() -> None:
    """A second part of a sequence goes on from the state of the first, with the gradient of that state."""
    model, (x, gate) = build(), torch.rand(2, 2, 6, 4)
    scan = next(m for m in model.modules() if isinstance(m, RecurrentGemmaRglru))._rnn_scan
    state, reset = torch.randn(2, 4, requires_grad=True), torch.zeros(1, 6, 1, dtype=torch.bool)

    def derived() -> tuple[Tensor, ...]:
        h, last = getattr(scan.__self__, NAME)(x, gate, reset, state)
        return h, last, *torch.autograd.grad(h.sum() + (last * last).sum(), state)

    theirs = derived()
    with st.patch_recurrence(model):
        for a, b in zip(derived(), theirs, strict=True):
            torch.testing.assert_close(a, b)


def test_checkpointing() -> None:
    model = build().train()
    theirs = gradients(model, use_cache=False)
    model.activation_checkpointing_enable()
    with st.patch_recurrence(model):
        equal(gradients(model, use_cache=False), theirs)


def test_compiled_model(counter: list[Any]) -> None:
    """One graph, with our recurrence in it."""
    model, tokens = build(), tokens_on("cpu")
    theirs = gradients(model, use_cache=False)
    torch._dynamo.reset()
    with st.patch_recurrence(model):
        counter.clear()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        model.zero_grad()
        result = compiled(input_ids=tokens, labels=tokens, use_cache=False)
        result.loss.backward()
        assert len(counter) == 2
    equal([result.logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)], theirs)


def test_calls_that_are_left(counter: list[Any]) -> None:
    """One token, no token, another accumulator and operands that broadcast: the model's own results and errors."""
    model = build()
    layer = next(m for m in model.modules() if isinstance(m, RecurrentGemmaRglru))
    x, gate, reset = torch.rand(2, 5, 4), torch.rand(2, 5, 4), torch.zeros(1, 5, 1, dtype=torch.bool)
    state = torch.rand(2, 4)
    calls: list[tuple[Any, ...]] = [
        (x[:, :1], gate[:, :1], reset[:, :1], state),
        (x[:, :1], gate[:, :1], reset[:, :1], None),
        (x[:, :0], gate[:, :0], reset[:, :0], state),
        (x, gate, reset, state, torch.float64),
        (x, gate, reset, state.double()),
        (x, gate[:1], reset, state),
        (x, gate, reset, state[:1]),
    ]
    with st.patch_recurrence(model) as patch:
        counter.clear()
        for call in calls:
            torch.testing.assert_close(layer._rnn_scan(*call), OWN(layer, *call), rtol=0, atol=0)
        for wrong in ((x, gate), (x, gate[:, :, :3], reset, state)):
            error = refusal(Exception, functools.partial(OWN, layer, *wrong))
            with pytest.raises(type(error)):
                layer._rnn_scan(*wrong)
    assert counter == []
    assert "decoding of one token" in patch.left
    assert "decoding of one token" not in repr(patch)


# --- Patching and undoing -------------------------------------------------------------------------------------------------


def test_undo_in_any_order() -> None:
    """Models share the method: it is ours until the last of them is undone."""
    handles = [st.patch_recurrence(build(seed)) for seed in range(3)]
    ours = RecurrentGemmaRglru._rnn_scan
    assert ours is not OWN
    assert handles[0].functions == (f"{RecurrentGemmaRglru.__module__}.RecurrentGemmaRglru._rnn_scan",)
    assert "left to the model: decoding of one token" in repr(handles[0])
    for k in (1, 0, 2):
        assert RecurrentGemmaRglru._rnn_scan is ours
        for _ in range(2):  # the second does nothing
            handles[k].undo()
    assert RecurrentGemmaRglru._rnn_scan is OWN
    assert "undone" in repr(handles[0])


def test_patched_twice(counter: list[Any]) -> None:
    model = build()
    theirs = gradients(model)
    with st.patch_recurrence(model):
        with st.patch_recurrence(model):
            counter.clear()
            equal(gradients(model), theirs)
            assert len(counter) == 2
        assert RecurrentGemmaRglru._rnn_scan is not OWN
    assert RecurrentGemmaRglru._rnn_scan is OWN


def test_error_inside_the_block() -> None:
    with pytest.raises(KeyError), st.patch_recurrence(build()):
        raise KeyError


def test_copies_and_generators() -> None:
    """A copy of a patched model is an ordinary model, and the generator of the caller stays as it is."""
    state, model = torch.get_rng_state(), build()
    state = torch.get_rng_state()
    with st.patch_recurrence(model):
        copied = copy.deepcopy(model)
    assert torch.equal(torch.get_rng_state(), state)
    equal(gradients(copied), gradients(model), 0.0)


def test_inside_inference_mode() -> None:
    with torch.inference_mode(), st.patch_recurrence(build()):
        pass


def test_beside_patch_rope() -> None:
    model = build()
    theirs = gradients(model)
    with st.patch_recurrence(model), st.patch_rope(model):
        equal(gradients(model), theirs)


# --- What nobody can reproduce --------------------------------------------------------------------------------------------


def scan_of(
    before: Callable[..., Any] = lambda gate, reset: (gate, reset), after: Callable[..., Any] = lambda layer, h, last: (h, last)
) -> Any:  # fmt: skip
    """The model's scan with changes of its operands and results."""

    def _rnn_scan(
        self: Any, hidden_states: Any, recurrent_gate: Any, reset: Any, recurrent_states: Any, acc_dtype: Any = torch.float32
    ) -> Any:  # fmt: skip
        gate, reset = before(recurrent_gate, reset)
        return after(self, *OWN(self, hidden_states, gate, reset, recurrent_states, acc_dtype))

    return _rnn_scan


def of_another_form(self: Any, hidden_states: Any, gate: Any, reset: Any, recurrent_states: Any) -> Any:
    return OWN(self, hidden_states, gate, reset, recurrent_states)


ALTERED = {
    "without reset": scan_of(before=lambda gate, reset: (gate, torch.zeros_like(reset))),
    "without gradient": scan_of(before=lambda gate, reset: (gate.detach(), reset)),
    "of the layer": scan_of(after=lambda layer, h, last: (h * getattr(layer, "scale", 1.0), last)),
    "narrow state": scan_of(after=lambda layer, h, last: (h, last.to(h.dtype))),
    "failing": scan_of(after=lambda layer, h, last: h.missing),
    "of another form": of_another_form,
    "static": staticmethod(OWN),
}
PLACES = ["class", "subclass", "object"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_scan(name: str, place: str) -> None:
    """Refused, wherever it was put: in the class, in a subclass or on one layer. Nothing changes, also in other layers."""
    model, scan = build(), ALTERED[name]
    if (name, place) == ("static", "object"):
        return  # types.MethodType calls it with the layer, as it should be
    layers = [m for m in model.modules() if isinstance(m, RecurrentGemmaRglru)]
    layers[1].scale = 2.0
    if place == "class":
        RecurrentGemmaRglru._rnn_scan = scan
    elif place == "subclass":
        layers[1].__class__ = type("Other", (RecurrentGemmaRglru,), {NAME: scan})
    else:
        layers[1]._rnn_scan = types.MethodType(scan, layers[1])
    try:
        spaces = [RecurrentGemmaRglru, type(layers[1]), layers[1]]
        before = [vars(space).get(NAME) for space in spaces]
        refused = refusal(sw.UnsupportedError, lambda: st.patch_recurrence(model))
        assert refused is not None
        assert (refused.op, refused.operand) == ("sternway.torch.patch_recurrence", "model")
        assert [vars(space).get(NAME) for space in spaces] == before
    finally:
        RecurrentGemmaRglru._rnn_scan = OWN


@pytest.mark.parametrize("place", ["subclass", "object"])
def test_a_scan_of_ones_own(place: str, counter: list[Any]) -> None:
    """One that computes the same is replaced where it is."""
    model = build()
    layer = next(m for m in model.modules() if isinstance(m, RecurrentGemmaRglru))

    if place == "subclass":
        layer.__class__ = type("Other", (RecurrentGemmaRglru,), {NAME: scan_of()})
    else:
        layer._rnn_scan = types.MethodType(scan_of(), layer)
    theirs = gradients(model)
    before = vars(layer).get(NAME), vars(type(layer))[NAME]
    with st.patch_recurrence(model) as patch:
        assert len(patch.functions) == 2
        counter.clear()
        equal(gradients(model), theirs)
        assert len(counter) == 2
    assert (vars(layer).get(NAME), vars(type(layer))[NAME]) == before


def test_a_wrapper_of_ours() -> None:
    """A wrapper with the attributes of our function is somebody else's: it is compared, and stays once ours is undone."""
    model = build()
    handle = st.patch_recurrence(model)
    ours = RecurrentGemmaRglru._rnn_scan

    @functools.wraps(ours)
    def doubled(*args: Any, **kwargs: Any) -> Any:
        h, last = ours(*args, **kwargs)
        return 2 * h, last

    RecurrentGemmaRglru._rnn_scan = doubled
    try:
        assert refusal(sw.UnsupportedError, lambda: st.patch_recurrence(model)) is not None
        handle.undo()
        assert RecurrentGemmaRglru._rnn_scan is doubled
    finally:
        RecurrentGemmaRglru._rnn_scan = OWN


def test_models_without_a_recurrence() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8}
    for model in (LlamaModel(LlamaConfig(**sizes)), torch.nn.Linear(2, 2)):
        with pytest.raises(sw.UnsupportedError, match="patch_recurrence: model must be one whose layers call _rnn_scan"):
            st.patch_recurrence(model)
    with pytest.raises(TypeError, match=r"sternway\.torch\.patch_recurrence: model must be a torch\.nn\.Module"):
        st.patch_recurrence("recurrentgemma")  # type: ignore[arg-type]


# --- A recurrence that is a function of a Python module -------------------------------------------------------------------

SOURCE = """
def running_sum(x, start=None):
    return x.cumsum(-1)

class Model(torch.nn.Module):
    def forward(self, x):
        return running_sum(x)
"""


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_function_of_a_module(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of the table for such functions: they are found by the names that methods use."""
    models, calls = sys.modules["sternway.torch._recurrence_models"], list[int]()

    def ours(x: Tensor, start: Tensor | None = None) -> Tensor | None:
        calls.append(x.dim())
        return factor * st.cumsum(x, -1) if x.dim() == 1 else None

    trials: Any = lambda: iter([{"x": torch.ones(3, requires_grad=True)}])  # noqa: E731
    entry = models.Recurrence("running_sum", False, ours, trials, lambda dtype, device: None, ("matrices",))
    monkeypatch.setattr(models, "RECURRENCES", (entry,))
    module = types.ModuleType("a_model")
    module.torch = torch  # type: ignore[attr-defined]
    exec(SOURCE, module.__dict__)  # as the file of a model
    own, model = module.running_sum, module.Model()
    if factor != 1:
        assert refusal(sw.UnsupportedError, lambda: st.patch_recurrence(model)) is not None
    else:
        with st.patch_recurrence(model) as patch:
            assert (patch.functions, patch.left) == (("a_model.running_sum",), ("matrices",))
            calls.clear()
            assert model(torch.ones(3)).tolist() == [1, 2, 3]
            assert model(torch.ones(1, 2)).tolist() == [[1, 2]]
            assert calls == [1, 2]
    assert module.running_sum is own
