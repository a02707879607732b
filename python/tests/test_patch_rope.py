"""patch_rope in the models of transformers: the same loss and gradients, or a refusal that changes nothing."""

from __future__ import annotations

import importlib
import random
import sys
import types
from typing import Any

import pytest
import torch
from support import refusal
from torch import Tensor

import sternway as sw
import sternway.torch as st

transformers = pytest.importorskip("transformers", reason="transformers is not installed: there are no models to patch")

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 1,
}  # fmt: skip
EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
}
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, **EXPERTS,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # of transformers.models, what their classes begin with, settings
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "gemma": ("Gemma", {}),
    "gemma2": ("Gemma2", {}),
    "phi": ("Phi", {}),
    "phi3": ("Phi3", {"partial_rotary_factor": 0.5}),
    "gpt_neox": ("GPTNeoX", {}),
    "gptj": ("GPTJ", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "head_dim": None}),
    "stablelm": ("StableLm", {}),
    "olmo2": ("Olmo2", {}),
    "glm": ("Glm", {}),
    "glm4": ("Glm4", {}),
    "cohere": ("Cohere", {}),
    "cohere2": ("Cohere2", {}),
    "ernie4_5": ("Ernie4_5", {}),
    "helium": ("Helium", {}),
    "gpt_oss": ("GptOss", EXPERTS),
    "nanochat": ("NanoChat", {}),
    "deepseek_v3": ("DeepseekV3", {**LATENT, "head_dim": None}),
    "llama4": ("Llama4", {**EXPERTS, "intermediate_size_mlp": 48}),
}
REFUSED = {"llama4"}  # complex tables
REPORT: dict[str, str] = {}


def build(name: str, **more: Any) -> tuple[Any, types.ModuleType]:
    """A small model, and the Python module that holds its classes."""
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    begin, settings = MODELS[name]
    given = {key: value for key, value in {**SIZES, **settings, **more}.items() if value is not None}
    config_class = getattr(transformers, f"{begin}TextConfig", None) or getattr(transformers, f"{begin}Config")
    config = config_class(**given)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return getattr(module, f"{begin}ForCausalLM")(config).eval(), module


def functions(module: types.ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if callable(value)}


def gradients(model: Any) -> list[Tensor]:
    """The loss and the gradients of all parameters."""
    device = next(model.parameters()).device
    tokens = torch.randint(2, 64, (2, 9), generator=torch.Generator().manual_seed(1)).to(device)
    model.zero_grad()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def equal(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-5) -> None:
    """Within roundings of float32; of gradients, against the largest."""
    size = max(float(t.double().norm()) for t in theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert float((a.double() - b.double()).norm()) <= tolerance * size


class Counter:
    """How often calls are rotated by us, and by which conventions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = sys.modules["sternway.torch._patch_rope"]
        turned, self.met = module.turned, list[Any]()
        monkeypatch.setattr(module, "turned", lambda c, call: self.met.append(c) or turned(c, call))


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


@pytest.fixture(autouse=True, scope="module")
def report() -> Any:
    yield
    for verdict in ("patched", "refused"):
        print(f"patch_rope {verdict}: {', '.join(name for name, v in REPORT.items() if v == verdict)}")


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, counter: Counter, device: str) -> None:
    """Patched: the same numbers, by our rotation. Refused: nothing has changed."""
    model, module = build(name)
    model.to(device)
    before, theirs = functions(module), gradients(model)
    if name in REFUSED:
        with pytest.raises(sw.UnsupportedError, match="patch_rope: model must be"):
            st.patch_rope(model)
        assert functions(module) == before
        REPORT[name] = "refused"
        return
    handle = st.patch_rope(model)
    with handle:
        assert functions(module) != before
        equal(gradients(model), theirs)
        assert len(counter.met) >= 2
    assert functions(module) == before
    equal(gradients(model), theirs, 0.0 if device == "cpu" else 1e-5)
    REPORT[name] = "patched"


@pytest.mark.parametrize("seed", range(4))
def test_undone_in_any_order(seed: int) -> None:
    """Models of one architecture share the function: it is ours until the last of them is undone."""
    built = [build(name) for name in ("llama", "llama", "cohere", "glm", "llama")]
    before = [functions(module) for _, module in built]
    handles = [st.patch_rope(model) for model, _ in built]
    order = list(range(len(built)))
    random.Random(seed).shuffle(order)
    left = [module.__name__ for _, module in built]
    for i in order:
        for _ in range(2):  # the second does nothing
            handles[i].undo()
        left.remove(built[i][1].__name__)
        for (_, module), own in zip(built, before, strict=True):
            assert (functions(module) == own) == (module.__name__ not in left)
    with st.patch_rope(built[0][0]) as again:
        assert "modeling_llama.apply_rotary_pos_emb" in again.functions[0]
        assert functions(built[0][1]) != before[0]
    assert functions(built[0][1]) == before[0]


def test_a_replacement_by_others() -> None:
    """What somebody else put over ours stays, and ours is the model's function once it is undone."""
    model, module = build("llama")
    own = module.apply_rotary_pos_emb
    handle = st.patch_rope(model)
    ours = module.apply_rotary_pos_emb
    module.apply_rotary_pos_emb = lambda *args, **kwargs: ours(*args, **kwargs)
    try:
        handle.undo()
        assert module.apply_rotary_pos_emb not in (own, ours)
        assert torch.isfinite(gradients(model)[0])
    finally:
        module.apply_rotary_pos_emb = own


def test_error_inside_the_block() -> None:
    model, module = build("llama")
    before = functions(module)
    with pytest.raises(KeyError), st.patch_rope(model):
        raise KeyError
    assert functions(module) == before


@pytest.mark.parametrize("name", ["llama", "cohere", "gpt_oss"])
def test_conventions(name: str, counter: Counter) -> None:
    model, _ = build(name)
    with st.patch_rope(model):
        gradients(model)
    wanted = {"llama": ("half", "halves"), "cohere": ("interleaved", "neighbours"), "gpt_oss": ("half", "pairs")}[name]
    assert {(c.pairing, c.table) for c in counter.met} == {wanted}


@pytest.mark.parametrize("name", ["llama", "cohere", "olmo2"])
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("k_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dtypes_of_results(name: str, k_dtype: torch.dtype, table_dtype: torch.dtype) -> None:
    """As the model's function has them: some promote to the dtype of the tables, some return that of q."""
    model, module = build(name)
    own = module.apply_rotary_pos_emb
    q, k = torch.randn(2, 4, 5, 8).bfloat16(), torch.randn(2, 2, 5, 8).to(k_dtype)
    cos, sin = (torch.randn(1, 5, 8).to(table_dtype) for _ in range(2))
    with st.patch_rope(model):
        ours = module.apply_rotary_pos_emb(q=q, k=k, cos=cos, sin=sin)
    for a, b in zip(ours, own(q, k, cos, sin), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.float(), b.float(), rtol=5e-2, atol=5e-2)


def test_calls_of_other_forms(counter: Counter) -> None:
    """Tokens first, learned tables, and calls that ours has no convention for, which the model's function answers."""
    model, module = build("llama")
    own = module.apply_rotary_pos_emb
    q, k, cos, sin = (torch.randn(shape) for shape in ((2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 8), (2, 5, 8)))
    cos.requires_grad_()
    with st.patch_rope(model):
        ours = module.apply_rotary_pos_emb
        for call in (lambda f: f(q, k, cos, sin, 2), lambda f: f(q, k, cos, sin, unsqueeze_dim=2)):
            torch.testing.assert_close(call(ours), call(own))
        met = len(counter.met)
        assert met == 2
        grads = (torch.autograd.grad(f(q, k, cos, sin, 2)[0].square().sum(), cos) for f in (ours, own))
        torch.testing.assert_close(*grads)
        odd = torch.randn(2, 1, 4, 5, 8)  # of rank 5
        torch.testing.assert_close(ours(odd, odd, cos, sin), own(odd, odd, cos, sin))
        empty = q[:, :0]
        torch.testing.assert_close(ours(empty, empty, cos[:, :0], sin[:, :0], 2), own(empty, empty, cos[:, :0], sin[:, :0], 2))
        with pytest.raises(TypeError):
            ours(q, k, cos)
        with pytest.raises(RuntimeError):
            ours(q, k, cos[:, :3], sin[:, :3], 2)


def test_compiled_model(counter: Counter) -> None:
    """One graph, with our rotation in it; the convention is found while it is traced."""
    model, _ = build("glm", num_hidden_layers=1)
    theirs = gradients(model)
    torch._dynamo.reset()
    tokens = torch.randint(2, 64, (2, 9), generator=torch.Generator().manual_seed(1))
    with st.patch_rope(model):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        model.zero_grad()
        loss = compiled(input_ids=tokens, labels=tokens).loss
        loss.backward()
    equal([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)], theirs)


def test_generators_stay_as_they_are() -> None:
    model, _ = build("llama")
    state = torch.get_rng_state()
    with st.patch_rope(model):
        gradients(model)
    assert torch.equal(torch.get_rng_state(), state)


# --- functions that nobody can reproduce ------------------------------------------------------------------------------

SOURCES = {
    "needs positions": "def apply_rotary_pos_emb(q, k, cos, sin, position_ids): return q, k",
    "rotates by thirds": """
def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + q.roll(1, -1) * sin, k * cos + k.roll(1, -1) * sin""",
    "leaves the first tokens": """
def apply_rotary_pos_emb(q, k, cos, sin):
    n = q.shape[-2] - cos.shape[-2]
    def one(x):
        first, x = x[..., :n, :], x[..., n:, :]
        a, b = x.chunk(2, -1)
        return torch.cat((first, x * cos + torch.cat((-b, a), -1) * sin), -2)
    return one(q), one(k)""",
    "has no gradient of k": """
def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    def one(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin
    return one(q), one(k.detach())""",
    "is complex": "def apply_rotary_emb(q, k, freqs_cis): return q, k",
    "is none": "def attend(q, k): return q, k",
}


@pytest.mark.parametrize("name", SOURCES)
def test_functions_that_are_refused(name: str) -> None:
    module = types.ModuleType("a_model")
    module.torch = torch  # type: ignore[attr-defined]
    function = SOURCES[name].partition("def ")[2].partition("(")[0]
    call = f"class Model(torch.nn.Module):\n    def forward(self, *x): return {function}(*x)"
    exec(f"{SOURCES[name]}\n{call}", module.__dict__)  # as the file of a model
    before = functions(module)
    refused = refusal(sw.UnsupportedError, lambda: st.patch_rope(module.Model()))
    assert refused is not None
    assert refused.op == "sternway.torch.patch_rope"
    assert functions(module) == before


def test_what_is_no_model() -> None:
    with pytest.raises(TypeError, match=r"sternway\.torch\.patch_rope: model must be a torch\.nn\.Module"):
        st.patch_rope("llama")  # type: ignore[arg-type]
