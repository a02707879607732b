"""patch_recurrence in Mamba, FalconMamba, Jamba and Zamba: the loss, gradients and tokens of the model, or a refusal."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import refusal
from torch import Tensor

import sternway as sw
import sternway.torch as st

pytest.importorskip("transformers", reason="transformers is not installed: there are no models to patch")

import transformers

NAME = "mamba_selective_scan"
SIZES = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "time_step_rank": 4}
HYBRID = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 2, "mamba_d_state": 4, "mamba_dt_rank": 4,
}  # fmt: skip
JAMBA = {"num_experts": 1, "num_experts_per_tok": 1, "attn_layer_period": 2, "attn_layer_offset": 1}
ZAMBA = {"n_mamba_heads": 2, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]}
MODELS: dict[str, tuple[dict[str, Any], int]] = {  # sizes, and the scans of a forward
    "Mamba": (SIZES, 2),
    "FalconMamba": (SIZES, 2),
    "Jamba": ({**HYBRID, **JAMBA}, 2),
    "Zamba": ({**HYBRID, **ZAMBA}, 4 * 2),
}


def build(name: str = "Mamba") -> Any:
    """A small model. Its parameters are far from their first values, with which the skip hides the states."""
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**MODELS[name][0]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def module_of(name: str = "Mamba") -> Any:
    return sys.modules[getattr(transformers, f"{name}ForCausalLM").__module__]


TOKENS = torch.randint(3, 64, (2, 9), generator=torch.Generator().manual_seed(1))
MASK = torch.ones(2, 9, dtype=torch.long)
MASK[1, :3] = 0


def gradients(model: Any, **more: Any) -> list[Tensor]:
    """The logits and the gradients of all parameters."""
    device = next(model.parameters()).device
    model.zero_grad()
    result = model(input_ids=TOKENS.to(device), attention_mask=MASK.to(device), labels=TOKENS.to(device), **more)
    result.loss.backward()
    return [result.logits.detach(), *(p.grad.clone() for p in model.parameters())]


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of two lists of tensors, each relative to its norm."""
    assert [x.shape for x in found] == [x.shape for x in expected]
    pairs = [(x.detach().double(), y.detach().double()) for x, y in zip(found, expected, strict=True)]
    return max(float((x - y).norm() / y.norm()) for x, y in pairs)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of each call of our scan."""
    models, lengths = sys.modules["sternway.torch._recurrence_models"], list[int]()
    ours = models.selective_scan
    monkeypatch.setattr(models, "selective_scan", lambda u, *rest: lengths.append(u.shape[2]) or ours(u, *rest))
    return lengths


@pytest.fixture(autouse=True)
def unpatched() -> Any:
    """The functions of the models are theirs again after a test."""
    own = {name: getattr(module_of(name), NAME) for name in MODELS if hasattr(transformers, f"{name}ForCausalLM")}
    yield
    left = {name: getattr(module_of(name), NAME) for name in own}
    for name, function in own.items():
        setattr(module_of(name), NAME, function)
    assert left == own


# --- The same numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, dtype: torch.dtype, counter: list[int], device: str) -> None:
    """Training with padding: an operand at the wrong place, of the wrong head, or without its gradient.

    In float64 the models round the operands of the scan to float32.
    """
    model = build(name).to(device, dtype).train()
    theirs = gradients(model)
    with st.patch_recurrence(model) as patch:
        assert patch.functions == (f"{module_of(name).__name__}.{NAME}",)
        counter.clear()
        ours = gradients(model)
        assert counter == [9] * MODELS[name][1]
    assert [x.dtype for x in ours] == [x.dtype for x in theirs]
    assert distance(ours, theirs) < 2e-5
    assert distance(gradients(model), theirs) <= (0.0 if device == "cpu" else 1e-5)


@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16", "autocast"])
@pytest.mark.parametrize("name", MODELS)
def test_narrow_models(name: str, autocast: bool, counter: list[int], device: str) -> None:
    """Operands whose dtypes differ, and a patch made inside autocast: our error is of the size of the model's."""
    model = build(name).to(device, torch.float32 if autocast else torch.bfloat16)
    expected = gradients(copy.deepcopy(model).float())
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        theirs = gradients(model)
        with st.patch_recurrence(model):
            counter.clear()
            ours = gradients(model)
            assert len(counter) == MODELS[name][1]
    assert [x.dtype for x in ours] == [x.dtype for x in theirs]
    assert distance(ours, expected) <= 2.5 * distance(theirs, expected)


@pytest.mark.parametrize("name", MODELS)
def test_generation(name: str, counter: list[int]) -> None:
    """The prompt by ours, tokens after it by the model: a state of the cache that is wrong, or of another dtype."""
    model = build(name)

    def generated() -> Any:
        return model.generate(
            TOKENS, attention_mask=MASK, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0,
            return_dict_in_generate=True,
        )  # fmt: skip

    expected = generated()
    with st.patch_recurrence(model):
        counter.clear()
        found = generated()
    assert counter == [9] * MODELS[name][1]
    assert torch.equal(found.sequences, expected.sequences)
    layers = [result.past_key_values.layers for result in (found, expected)]
    caches = [[x for layer in of_one for x in getattr(layer, "recurrent_states", ())] for of_one in layers]
    assert len(caches[0]) >= 2
    for a, b in zip(*caches, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def operands(
    dtype: torch.dtype = torch.float32, wide: torch.dtype = torch.float32, n: int = 3, length: int = 7
) -> list[Tensor]:
    """The tensors of a call in their order: u, dt, A, B, C, D, z and the bias."""
    random = torch.Generator().manual_seed(0)
    shapes = [(2, 4, length), (2, 4, length), (4, n), (2, n, length), (2, n, length), (4,), (2, 4, length), (4,)]
    made = [torch.rand(shape, generator=random, dtype=torch.float64) for shape in shapes]
    made[2] = -made[2]
    return [x.to(wide if k in (2, 5, 7) else dtype).requires_grad_() for k, x in enumerate(made)]


def test_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the roundings of float64: an operand that ours narrows. The model narrows some, unless float() is double()."""
    tensors, function = operands(torch.float64, torch.float64), getattr(module_of(), NAME)

    def derived() -> list[Tensor]:
        y, last = getattr(module_of(), NAME)(*tensors, delta_softplus=True, return_last_state=True)
        return [y, last, *torch.autograd.grad([y, last], tensors, [torch.cos(y.detach()), torch.sin(last.detach())])]

    with st.patch_recurrence(build()):
        assert getattr(module_of(), NAME) is not function
        ours = derived()
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    assert distance(ours, derived()) < 1e-13


def test_bfloat16() -> None:
    """Each result and gradient is nearer to float64 than the model's: a step or state that ours rounds to bfloat16."""
    tensors = operands(torch.bfloat16, length=40)

    def derived(tensors: list[Tensor]) -> list[Tensor]:
        y = getattr(module_of(), NAME)(*tensors, delta_softplus=True).to(tensors[0].dtype)
        return [y, *torch.autograd.grad(y, tensors, torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype))]

    theirs = derived(tensors)
    with st.patch_recurrence(build()):
        ours, expected = derived(tensors), derived([x.detach().double().requires_grad_() for x in tensors])
    for a, b, c in zip(ours, theirs, expected, strict=True):
        assert distance([a], [c]) < distance([b], [c])


def test_factors_of_another_dtype() -> None:
    """Norms with float32 weights widen B and C beside u under autocast: the narrower dtype would round them."""
    tensors = [x if k in (3, 4) else y for k, (x, y) in enumerate(zip(operands(), operands(torch.bfloat16), strict=True))]
    with st.patch_recurrence(build()):
        y = getattr(module_of(), NAME)(*tensors)
        expected = getattr(module_of(), NAME)(*(x.detach().double() for x in tensors))
    assert y.dtype == torch.float32
    assert distance([y], [expected]) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dtypes_of_results(dtype: torch.dtype) -> None:
    """Those of the model for each set of operands, where D in float32 widens y, and A in the model's dtype."""
    own = getattr(module_of(), NAME)
    with st.patch_recurrence(build()):
        for wide in (torch.float32, dtype):
            u, dt, A, B, C, D, z, bias = operands(dtype, wide)
            for more in ((), (D,), (None, z), (None, z.float()), (D, z, bias)):
                calls = [f(u, dt, A, B, C, *more, return_last_state=True) for f in (own, getattr(module_of(), NAME))]
                theirs, ours = ([x.dtype for x in results] for results in calls)
                assert ours == theirs, (wide, len(more))


def test_checkpointing() -> None:
    """Forwards that run again in the backward."""
    model = build("FalconMamba").train()
    theirs = gradients(model, use_cache=False)
    model.activation_checkpointing_enable()
    with st.patch_recurrence(model):
        assert distance(gradients(model, use_cache=False), theirs) < 2e-5


def test_compiled_model(counter: list[int]) -> None:
    """One graph with our scan in it: a call that the compiler cannot trace."""
    model = build()
    theirs = gradients(model, use_cache=False)
    torch._dynamo.reset()
    with st.patch_recurrence(model):
        counter.clear()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        model.zero_grad()
        result = compiled(input_ids=TOKENS, attention_mask=MASK, labels=TOKENS, use_cache=False)
        result.loss.backward()
        assert len(counter) == 2
    assert distance([result.logits.detach(), *(p.grad for p in model.parameters())], theirs) < 2e-5


# --- Calls and models that are left ---------------------------------------------------------------------------------------


def test_calls_that_are_left(counter: list[int]) -> None:
    """The results and errors of the model for calls that our scan does not take."""
    own = getattr(module_of(), NAME)
    u, dt, A, B, C, D, _, _ = operands()
    many = operands(n=257)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (tuple(x[..., :1] if x.dim() == 3 else x for x in (u, dt, A, B, C)), {}),  # one position
        (tuple(many[:5]), {}),
        ((u, dt[:, :1], A, B, C), {}),  # broadcasts
        ((u, dt, A, B, C, D[:1]), {}),
        ((u, dt, A, B, C), {"cu_seqlens": torch.tensor([0, 7])}),
        ((u, dt, A, B[:, :2], C), {}),
        ((u, dt, A[0], B, C), {}),
    ]
    with st.patch_recurrence(build()) as patch:
        counter.clear()
        for args, options in calls:
            results = []
            for function in (own, getattr(module_of(), NAME)):
                try:
                    results.append(function(*args, **options))
                except Exception as error:
                    results.append((type(error), str(error)))
            if isinstance(results[0], tuple):
                assert results[1] == results[0]
            else:
                torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert counter == []
    assert patch.left == ("decoding of one token", "more than 256 states or 1048576 tokens")


def without(place: int, name: str) -> Callable[..., Any]:
    """A change of a call that drops an operand."""

    def change(args: list[Any], options: dict[str, Any]) -> None:
        if len(args) > place:
            args[place] = None
        options.pop(name, None)

    return change


def detached(args: list[Any], options: dict[str, Any]) -> None:
    args[2] = args[2].detach()


def failing(args: list[Any], options: dict[str, Any]) -> None:
    raise RuntimeError("u must be on a GPU")  # as kernels of mamba_ssm do where they are installed


ALTERED = {
    "no D": without(5, "D"),
    "no z": without(6, "z"),
    "no bias": without(7, "delta_bias"),
    "no softplus": without(8, "delta_softplus"),
    "no gradient of A": detached,
    "failing": failing,
}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_scan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that ignores an operand or fails is refused and stays: a comparison that leaves the operand out."""
    module, own = module_of(), getattr(module_of(), NAME)

    def mamba_selective_scan(*args: Any, **options: Any) -> Any:
        changed = list(args)
        ALTERED[name](changed, options)
        return own(*changed, **options)

    mamba_selective_scan.__wrapped__ = own  # type: ignore[attr-defined]  # it has the signature of the model's function
    with monkeypatch.context() as context:
        context.setattr(module, NAME, mamba_selective_scan)
        refused = refusal(sw.UnsupportedError, lambda: st.patch_recurrence(build()))
        assert getattr(module, NAME) is mamba_selective_scan
    assert refused is not None
    assert f"model must be one whose recurrence ours can reproduce, got {NAME} of {module.__name__}" in str(refused)


def test_each_model_by_itself() -> None:
    """The functions of other architectures stay theirs, and a model inside another is found."""
    own = {name: getattr(module_of(name), NAME) for name in MODELS}
    both = torch.nn.ModuleList([build("Mamba"), build("Jamba")])
    with contextlib.ExitStack() as stack:
        stack.enter_context(st.patch_recurrence(both))
        patched = {name for name in MODELS if getattr(module_of(name), NAME) is not own[name]}
        assert patched == {"Mamba", "Jamba"}
