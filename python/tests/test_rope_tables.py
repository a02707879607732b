"""rope_tables: to the bit the tables of every rotary class of transformers, or a refusal; no setting is ignored."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as strategies
from support import F16, F32, F64, one_sentence
from torch import Tensor

import sternway as sw
import sternway.torch as st
from sternway.torch._rope_tables.frequencies import ROPE_TYPES
from sternway.torch._rope_tables.models import MODELS, REFUSED
from sternway.torch._rope_tables.values import ALIASES, RULES

Settings = dict[str, Any]
LINE = torch.arange(9)


def raised(error: type[Exception], config: Any, *words: str, positions: Any = LINE, operand: str = "", **options: Any) -> None:
    """Fail unless rope_tables raises a typed error, in one sentence that has these words."""
    with pytest.raises(error) as caught:
        st.rope_tables(config, positions, **options)
    assert isinstance(caught.value, sw.Error), repr(caught.value)
    one_sentence(caught.value, operand, words)


def same(ours: tuple[Tensor, Tensor], theirs: Any) -> bool:
    return isinstance(theirs, tuple) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


# --- Every rotary class of the installed transformers ------------------------------------------------------------------


def agree(pair: Any, positions: Tensor, module: Any) -> bool:
    """Whether positions of another rank give the tables of the class, or an error of either."""
    try:
        return same(st.rope_tables(pair.config, positions, layer_type=pair.layer_type), pair.tables(positions, module))
    except Exception:  # the class itself fails in many ways
        return True


def test_every_rotary_class() -> None:
    """Each class with its default configuration and each layer type: equal to the bit, or refused by name.

    Alone finds positions of a rank that a class reads as something else, such as [S, 2] where it takes [B, S, 2].
    """
    pytest.importorskip("transformers", reason="transformers is not installed: its rotary classes cannot be walked")
    from rotary_classes import Pair, configurations, layer_types, positions_for, rotary_classes

    equal, refused, wrong, alone = [], [], [], []
    pairs = [Pair(c, config, name) for c in rotary_classes() for config in configurations(c) for name in layer_types(config)]
    for pair in pairs:
        theirs, inputs = None, [LINE[None]]
        try:
            module = pair.rotary(pair.config)
            inputs = positions_for(module)
            theirs = [pair.tables(x, module) for x in inputs]
        except Exception as error:  # a default configuration that the class itself cannot take, or another forward
            reason = f"{type(error).__name__}: {error}"
        try:
            ours = [st.rope_tables(pair.config, x, layer_type=pair.layer_type) for x in inputs]
        except sw.Error as error:
            refused.append(f"{pair}: {error}")
            continue
        if theirs is None:
            alone.append(f"{pair}: {reason}")
        else:
            alike = all(map(same, ours, theirs)) and all(agree(pair, x, module) for x in (inputs[0][None], inputs[0][0]))
            (equal if alike else wrong).append(str(pair))
    counts = {"equal": equal, "refused": refused, "wrong": wrong, "without a reference": alone}
    print(f"\n{len(pairs)} pairs:", ", ".join(f"{len(lines)} {name}" for name, lines in counts.items()))
    print("\n".join([*refused, *(f"no reference: {line}" for line in alone)]))
    assert not wrong, wrong
    assert len(equal) >= 0.9 * len(pairs)
    # Layer types that the default configuration names and has no layers of: the class has no table of them.
    assert all("KeyError" in line for line in alone), alone
    assert len(alone) <= 0.03 * len(pairs), alone


def test_refused_models() -> None:
    """A class that gives something else than cos and sin of positions is refused with the reason."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: it has the configurations")
    models = ["GPTJ", "CodeGen", "DeepseekV2", "Llama4Text", "Llama4Vision", "Wav2Vec2Conformer", "DINOv3ViT", "EfficientLoFTR"]
    for name in models:
        config = getattr(transformers, f"{name}Config")()
        raised(sw.UnsupportedError, config, repr(config.model_type), REFUSED[config.model_type], operand="config")


def test_composite_and_unknown_configurations() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: it has the configurations")
    raised(sw.UnsupportedError, transformers.Qwen2VLConfig(), "config.text_config", "config.vision_config")
    raised(sw.UnsupportedError, transformers.Gemma3Config(), "config.text_config")

    class Mine(transformers.PreTrainedConfig):
        model_type = "mine-{0}\n" + "x" * 900

    raised(sw.UnsupportedError, Mine(head_dim=64), "as a mapping", operand="config")
    raised(sw.UnsupportedError, transformers.PreTrainedConfig(), "PreTrainedConfig")
    raised(sw.UnsupportedError, transformers.BertConfig(), "'bert'")
    without = transformers.LlamaConfig()
    without.rope_parameters = None
    raised(sw.InvalidProblemError, without, "rope_parameters")
    for nothing in (None, 5, "llama", object(), [("head_dim", 8)]):
        raised(TypeError, nothing, operand="config")


def test_a_model_is_in_one_table() -> None:
    assert not MODELS.keys() & REFUSED.keys()


# --- Rope types --------------------------------------------------------------------------------------------------------


def scalings(pairs: int) -> dict[str, Settings]:
    """Settings of each rope type, beside its name and the base."""
    short, long = [1 + 0.1 * i for i in range(pairs)], [2 + 0.3 * i for i in range(pairs)]
    lengths = {"factor": 4.0, "original_max_position_embeddings": 128}
    return {
        "default": {},
        "linear": {"factor": 3.0},
        "dynamic": {"factor": 2.5},
        "yarn": lengths,
        "yarn, mscale": {**lengths, "mscale": 0.7, "mscale_all_dim": 0.3, "beta_fast": 16, "beta_slow": 2.0},
        "yarn, attention": {**lengths, "attention_factor": 1.25, "finetuned": True},
        "yarn, factor of the lengths": {"factor": None, "original_max_position_embeddings": 128},
        "longrope": {**lengths, "short_factor": short, "long_factor": long},
        "longrope, attention": {
            "original_max_position_embeddings": 128, "short_factor": short, "long_factor": long, "attention_factor": 1.5,
        },
        "llama3": {**lengths, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "llama3, no blend": {**lengths, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
        "proportional": {"factor": 2.0},
    }  # fmt: skip


FLAT = (
    "Llama", "Qwen2", "Granite", "Cohere", "GptOss", "Olmo2", "GPTNeoX", "Glm", "StableLm", "Phi", "DeepseekV3",
    "HunYuanDenseV1", "Qwen3Next", "Qwen2VLText",
    "Qwen3VLText", "Qwen3_5Text", "Glm4vText", "MiniMaxM2", "Ministral3", "Mistral4", "Molmo2Text",
)  # fmt: skip
NESTED = ("Gemma3Text", "Olmo3", "ModernBert", "Gemma4Text", "MiMoV2Flash", "DeepseekV4", "Lfm3", "CohereCompassText", "NeoMME")


def rotary_class(config: Any) -> Any:
    """The rotary class of a text model, by the names of its configuration."""
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    name = f"{type(config).__name__.removesuffix('Config')}RotaryEmbedding"
    return getattr(module, name, None) or getattr(module, name.replace("TextRotary", "Rotary"))


def compare(config: Any, layer_type: str | None, partial: float | None) -> tuple[int, list[str]]:
    """Every rope type of a configuration with one layer type, short and beyond the trained length: (equal, not equal)."""
    from rotary_classes import Pair

    rotary, given = rotary_class(config), config.rope_parameters
    per_layer = layer_type is not None and type(config).__name__ == "Gemma4TextConfig"
    narrow = config.per_layer_config[layer_type] if per_layer else config
    head_dim = getattr(narrow, "head_dim", None) or narrow.hidden_size // narrow.num_attention_heads
    equal, other = 0, []
    for name, scaling in scalings(int(head_dim * (partial or 1)) // 2).items():
        kind = name.partition(",")[0]
        own = {"rope_type": kind, "rope_theta": 5e5, **scaling}
        if partial is not None:
            own["partial_rotary_factor"] = partial
        if "mrope_section" in (given or {}):
            parts = round(1 / partial) if partial and kind == "proportional" else 1  # which has columns for the whole head
            own["mrope_section"] = [parts * section for section in given["mrope_section"]]
        config.rope_parameters = own if layer_type is None else {**given, layer_type: own}
        config.max_position_embeddings = 512
        for length in (100, 300, 700):
            positions = torch.arange(length)[None]
            expanded = positions.expand(2, 1, -1) if type(config).__name__ == "NeoMMEConfig" else positions
            theirs = Pair(rotary, config, layer_type).tables(expanded)
            ours = st.rope_tables(config, expanded, layer_type=layer_type)
            if same(ours, theirs):
                equal += 1
            else:
                other.append(f"{type(config).__name__}, {layer_type}, {name}, {length}")
    config.rope_parameters = given
    return equal, other


@pytest.mark.parametrize("name", [*FLAT, *NESTED])
def test_every_rope_type(name: str) -> None:
    """Of classes of each layout: all that ROPE_INIT_FUNCTIONS has, as whole heads and as parts of them."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: its tables cannot be compared")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert set(ROPE_INIT_FUNCTIONS) <= set(ROPE_TYPES), "a rope type that is not understood"
    config = getattr(transformers, f"{name}Config")()
    partial: float | None = None
    if name == "Glm4vText":
        config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}
        partial = 0.5
    elif name == "CohereCompassText":
        config.rope_parameters = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    elif name == "HunYuanDenseV1":
        config.head_dim = 64
    elif MODELS[config.model_type].partial is not None and "sections" not in MODELS[config.model_type].layout:
        partial = 0.5
    layers = [None] if name in FLAT else [key for key in config.rope_parameters if key in (config.layer_types or key)]
    if name == "DeepseekV4":
        layers = ["main", "compress"]
    total, wrong = 0, []
    for layer_type in layers:
        equal, other = compare(config, layer_type, partial)
        total, wrong = total + equal, wrong + other
    assert not wrong, wrong
    assert total == 36 * len(layers)


def test_rope_types_of_a_mapping(device: str) -> None:
    """A mapping means what Llama's class makes of it."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: its tables cannot be compared")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    shape = {"hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 512}
    for name, scaling in scalings(32).items():
        parameters = {"rope_theta": 5e5, "rope_type": name.partition(",")[0], **scaling}
        config = transformers.LlamaConfig(**shape, rope_parameters=dict(parameters))
        for length in (16, 300, 2000):
            positions = torch.arange(length, device=device)[None]
            want = LlamaRotaryEmbedding(config).to(device)(torch.zeros((), device=device), positions)
            ours = st.rope_tables(config, positions)
            for tables in (ours, st.rope_tables({**shape, **parameters}, positions)):
                assert torch.equal(tables[0], ours[0])
                assert torch.equal(tables[1], ours[1])
            for a, b in zip(ours, want, strict=True):
                # On a GPU transformers makes the frequencies of some kinds there, with roundings of its own.
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6 if device == "cpu" else 2e-7 * length)
                assert device != "cpu" or torch.equal(a, b), name


def test_truncate() -> None:
    """Read beside the rope type of all layers; transformers does not read it beside that of one."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: its tables cannot be compared")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 256, "truncate": False}
    config = transformers.LlamaConfig(rope_parameters=dict(yarn))
    assert same(st.rope_tables(config, LINE[None]), LlamaRotaryEmbedding(config)(torch.zeros(()), LINE[None]))
    truncated = st.rope_tables({**yarn, "truncate": True, "head_dim": 128}, LINE)
    assert not torch.equal(st.rope_tables(config, LINE)[0], truncated[0])
    nested = transformers.Gemma3TextConfig()
    nested.rope_parameters = {name: dict(yarn) for name in nested.rope_parameters}
    raised(sw.UnsupportedError, nested, layer_type="full_attention", operand="truncate")


def test_length_of_the_sequence() -> None:
    """seq_len stands for the largest position."""
    long = {"head_dim": 8, "rope_type": "dynamic", "factor": 4.0, "max_position_embeddings": 64}
    want = st.rope_tables(long, torch.arange(300))[0][:9]
    assert torch.equal(st.rope_tables(long, LINE, seq_len=300)[0], want)
    assert torch.equal(st.rope_tables(long, LINE)[0], st.rope_tables({"head_dim": 8}, LINE)[0])
    assert not torch.equal(want, st.rope_tables({"head_dim": 8}, LINE)[0])
    for wrong in (-1, 2.5, True, "9", 2**70):
        raised(sw.InvalidProblemError, long, operand="seq_len", seq_len=wrong)
    assert st.rope_tables(long, torch.arange(0))[0].shape == (0, 8)


# --- Configurations that models ship -----------------------------------------------------------------------------------

YARN_OF_DEEPSEEK = {
    "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn",
    "original_max_position_embeddings": 4096,
}  # fmt: skip
DIVISORS = {"short_factor": [1.0 + i / 48 for i in range(48)], "long_factor": [1.1 + i for i in range(48)]}
HUNYUAN = {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}

SHIPPED: dict[str, tuple[str, Settings]] = {
    "Qwen2-VL": ("Qwen2VLText", {
        "hidden_size": 1536, "num_attention_heads": 12, "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    }),
    "Qwen3-VL": ("Qwen3VLText", {
        "rope_theta": 5e6, "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    }),
    "GLM-4.1V": ("Glm4vText", {
        "partial_rotary_factor": 0.5, "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]},
    }),
    "GLM-4.5V": ("Glm4vMoeText", {
        "head_dim": 128, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]},
    }),
    "GLM-Image": ("GlmImageText", {
        "partial_rotary_factor": 0.5, "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]},
    }),
    "GLM-4.5": ("Glm4Moe", {"head_dim": 128, "partial_rotary_factor": 0.5, "rope_theta": 1e6}),
    "GPT-NeoX": ("GPTNeoX", {"rotary_pct": 0.5, "rotary_emb_base": 20000, "hidden_size": 256, "num_attention_heads": 4}),
    "MiniMax-M2": ("MiniMaxM2", {"rotary_dim": 64, "head_dim": 128}),
    "DeepSeek-V3": ("DeepseekV3", {"qk_rope_head_dim": 32, "rope_scaling": YARN_OF_DEEPSEEK}),
    "Phi-2": ("Phi", {"partial_rotary_factor": 0.4, "hidden_size": 2560}),
    "Phi-3": ("Phi3", {
        "hidden_size": 3072, "num_attention_heads": 32, "max_position_embeddings": 131072,
        "original_max_position_embeddings": 256, "rope_scaling": {"type": "longrope", **DIVISORS},
    }),
    "Phi-4-mini": ("Phi3", {
        "hidden_size": 3072, "num_attention_heads": 24, "partial_rotary_factor": 0.75, "max_position_embeddings": 131072,
        "original_max_position_embeddings": 256, "rope_scaling": {"type": "longrope", **DIVISORS},
    }),
    "HunYuan": ("HunYuanDenseV1", {"head_dim": 128, "rope_scaling": {"type": "dynamic", **HUNYUAN}}),
    "HunYuan-VL": ("HunYuanVLText", {
        "head_dim": 128, "rope_scaling": {"type": "xdrope", "xdrope_section": [16, 16, 16, 16], **HUNYUAN},
    }),
    "Gemma 3": ("Gemma3Text", {
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }),
    "Olmo 3": ("Olmo3", {"rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "beta_fast": 32, "beta_slow": 1,
        "attention_factor": 1.2079441541679836,
    }}),
    "ModernBERT": ("ModernBert", {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}),
    "DeepSeek-V4": ("DeepseekV4", {"rope_scaling": {
        "type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1,
    }}),
    "Cohere Compass": ("CohereCompassText", {"rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
    }}),
    "Llama 3.1": ("Llama", {"rope_theta": 5e5, "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }}),
    "YaRN Llama 2": ("Llama", {"rope_scaling": {
        "factor": 16.0, "original_max_position_embeddings": 4096, "type": "yarn", "finetuned": True,
    }}),
    "Phi-3.5-MoE": ("Phimoe", {
        "head_dim": 96, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122,
            "original_max_position_embeddings": 4096, **DIVISORS,
        },
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configurations(name: str) -> None:
    """In the form of their releases, older names included."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: its tables cannot be compared")
    from rotary_classes import Pair, layer_types, positions_for

    kind, given = SHIPPED[name]
    config = getattr(transformers, f"{kind}Config")(**given)
    layers = layer_types(config)
    for layer_type in layers:
        pair = Pair(rotary_class(config), config, layer_type)
        for positions in positions_for(pair.rotary(config)):
            assert same(st.rope_tables(config, positions, layer_type=layer_type), pair.tables(positions))
    if len(layers) > 1 and name != "Olmo 3":
        raised(sw.InvalidProblemError, config, *(repr(layer) for layer in layers), operand="layer_type")


def test_phimoe_beyond_the_trained_length() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: it has the configuration")
    config = transformers.PhimoeConfig(**SHIPPED["Phi-3.5-MoE"][1])
    raised(sw.UnsupportedError, config, "4096", operand="seq_len", seq_len=5000)


def test_molmo_layers_that_are_not_scaled() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: it has the configuration")
    config = transformers.Molmo2TextConfig(rope_scaling_layers=[0, 1])
    st.rope_tables(config, LINE)
    config.rope_parameters = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    raised(sw.UnsupportedError, config, operand="rope_scaling_layers")


def test_configuration_is_left_alone() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: it has the configurations")
    config = transformers.Qwen2Config()
    config.rope_parameters = {"rope_type": "yarn", "factor": 4.0}
    before = dict(config.rope_parameters)
    st.rope_tables(config, LINE)
    assert config.rope_parameters == before


def test_keys_of_a_configuration_are_checked() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: it has the configurations")
    plain = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    for extra in ({"factr": 2.0}, {"beta_fast": 32}, {"rotary_dim": 64}, {"mrope_section": [16, 24, 24]}, {"base": 1e4}):
        config = transformers.LlamaConfig()
        config.rope_parameters = {**plain, **extra}
        raised(sw.InvalidProblemError, config, f"the key {next(iter(extra))!r}", operand="config")
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    raised(sw.InvalidProblemError, config, "rotates the whole head", operand="partial_rotary_factor")
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, "type": "linear"}
    raised(sw.InvalidProblemError, config, "'default' and 'linear'", operand="rope_type")
    nested = transformers.Gemma3TextConfig()
    nested.rope_parameters = {**nested.rope_parameters, "factor": 8.0}
    raised(sw.InvalidProblemError, nested, "the key 'factor'", layer_type="full_attention")
    vision = transformers.Qwen2VLConfig().vision_config
    vision.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    raised(sw.UnsupportedError, vision, "axial", "'linear'", positions=torch.zeros(4, 2), operand="rope_type")


# --- Layer types -------------------------------------------------------------------------------------------------------

LAYERS = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}


@pytest.mark.parametrize("where", ["", "rope_parameters", "rope_scaling"])
def test_layer_types_of_a_mapping(where: str) -> None:
    config = {"head_dim": 64, **({where: LAYERS} if where else LAYERS)}
    raised(sw.InvalidProblemError, config, "'sliding_attention'", "'full_attention'", operand="layer_type")
    for name, own in LAYERS.items():
        assert same(st.rope_tables(config, LINE, layer_type=name), st.rope_tables({"head_dim": 64, **own}, LINE))
    for wrong in ("full", "", "{x}" * 400, 7):
        raised(sw.InvalidProblemError, config, "'full_attention'", operand="layer_type", layer_type=wrong)
    agreeing = {"sliding_attention": {"base": 500000}, "full_attention": {"rope_theta": 5e5, "type": "default"}}
    config = {"head_dim": 64, **({where: agreeing} if where else agreeing)}
    assert same(st.rope_tables(config, LINE), st.rope_tables({"head_dim": 64, "rope_theta": 5e5}, LINE))


def test_layer_types_of_configurations() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: it has the configurations")
    qwen = transformers.Qwen2Config(num_hidden_layers=2)
    assert same(st.rope_tables(qwen, LINE, layer_type="full_attention"), st.rope_tables(qwen, LINE))
    raised(sw.InvalidProblemError, qwen, "'full_attention'", operand="layer_type", layer_type="sliding_attention")
    raised(sw.InvalidProblemError, transformers.LlamaConfig(), operand="layer_type", layer_type="full_attention")
    raised(sw.InvalidProblemError, {"head_dim": 8}, operand="layer_type", layer_type="full_attention")
    olmo = transformers.Olmo3Config()
    assert same(st.rope_tables(olmo, LINE), st.rope_tables(olmo, LINE, layer_type="sliding_attention"))
    gemma = transformers.Gemma3TextConfig()
    raised(sw.InvalidProblemError, gemma, "'full_attention'", operand="layer_type")
    gemma.rope_parameters = {**gemma.rope_parameters, "full_attention": None}
    raised(sw.InvalidProblemError, gemma, "with a rotary embedding", operand="layer_type", layer_type="full_attention")
    raised(sw.InvalidProblemError, gemma, operand="layer_type")


def test_heads_that_differ_by_layer_type() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: it has the configuration")
    config = transformers.Gemma4TextConfig()
    widths = {name: st.rope_tables(config, LINE, layer_type=name)[0].shape[-1] for name in config.rope_parameters}
    assert widths == {name: config.per_layer_config[name].head_dim for name in widths}
    assert len(set(widths.values())) == 2


# --- Mappings ----------------------------------------------------------------------------------------------------------


def test_unknown_keys_of_a_mapping() -> None:
    for key in ("factr", "vocab_size", "model_type", "rope_thetas", "", "a" * 500, "new\nline", "{}", "clé"):
        raised(sw.InvalidProblemError, {"head_dim": 8, key: 1}, "the key", operand="config")
        raised(sw.InvalidProblemError, {"head_dim": 8, "rope_scaling": {key: 1}}, "the key", operand="config")
    for key in (1, None, ("a",), b"head_dim"):
        raised(sw.InvalidProblemError, {"head_dim": 8, key: 1}, "the key", operand="config")
    raised(sw.InvalidProblemError, {"head_dim": 8, "factr": 1}, "'factr'", "did you mean factor?")
    raised(sw.InvalidProblemError, {"head_dim": 8, "rope_paramters": {"rope_theta": 1e4}}, "'rope_paramters'")
    raised(sw.InvalidProblemError, {"head_dim": 8, "rope_parameters": [1]}, operand="rope_parameters")
    raised(sw.InvalidProblemError, {"head_dim": 8, "full": {"deep": {"rope_theta": 1}}}, "'deep'")


@pytest.mark.parametrize("name", ROPE_TYPES)
def test_keys_of_another_rope_type(name: str) -> None:
    """A key that the rope type does not read is refused, also where another type reads it."""
    formula = ROPE_TYPES[name]
    good = {"head_dim": 8, "rope_type": name, **scalings(4).get(name, {})}
    positions = torch.zeros(3, 2) if name == "axial" else LINE
    good |= {"max_position_embeddings": 512} if name == "dynamic" else {}
    st.rope_tables(good, positions)
    read = {*formula.required, *formula.optional, *formula.without_effect}
    if formula.trained:
        read.add("original_max_position_embeddings")
    others = {"factor": 2.0, "beta_fast": 32, "attention_factor": 1.0, "low_freq_factor": 1.0, "truncate": True, "alpha": 2.0}
    for key in others.keys() - read:
        raised(sw.InvalidProblemError, {**good, key: others[key]}, repr(key), repr(name), positions=positions)
        st.rope_tables({**good, key: None}, positions)  # None: not given
    for key in formula.required:
        missing = {k: v for k, v in good.items() if k != key}
        raised(sw.InvalidProblemError, missing, "nothing", positions=positions, operand=key)


def test_missing_lengths() -> None:
    original = "original_max_position_embeddings"
    for name in ("yarn", "llama3", "longrope"):
        missing = {k: v for k, v in scalings(4)[name].items() if k != original}
        raised(sw.InvalidProblemError, {"head_dim": 8, "rope_type": name, **missing}, operand=original)
        st.rope_tables({"head_dim": 8, "rope_type": name, "max_position_embeddings": 64, **missing}, LINE)
    yarn = {"head_dim": 8, "rope_type": "yarn", "original_max_position_embeddings": 64}
    raised(sw.InvalidProblemError, yarn, operand="factor")
    raised(sw.InvalidProblemError, {"rope_type": "linear", "factor": 2.0}, operand="head_dim")
    raised(sw.InvalidProblemError, {"head_dim": 8, "rope_type": "linear"}, operand="factor")
    raised(sw.UnsupportedError, {"head_dim": 8, "rope_type": "spiral"}, "'spiral'", operand="rope_type")


def test_names_of_a_partial_rotation() -> None:
    half = st.rope_tables({"head_dim": 64, "partial_rotary_factor": 0.5}, LINE)
    assert half[0].shape == (9, 32)
    for partial in ({"rotary_pct": 0.5}, {"rotary_dim": 32}, {"qk_rope_head_dim": 32}, {"rotary_dim": 32, "rotary_pct": 0.5}):
        assert same(st.rope_tables({"head_dim": 64, **partial}, LINE), half)
    assert same(st.rope_tables({"rotary_dim": 32}, LINE), half)
    assert same(st.rope_tables({"qk_rope_head_dim": 32, "hidden_size": 256, "num_attention_heads": 4}, LINE), half)
    assert same(st.rope_tables({"head_dim": 32, "rotary_emb_base": 10000}, LINE), half)


@pytest.mark.parametrize(
    ("operand", "contradiction"),
    [
        ("rope_theta", {"rope_theta": 1e4, "base": 1e5}),
        ("rope_theta", {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}}),
        ("rope_theta", {"rope_scaling": {"rope_theta": 1e4}, "rope_parameters": {"rope_theta": 1e5}}),
        ("rope_theta", {"rope_theta": 1e4, "full_attention": {"rope_theta": 1e5}}),
        ("rope_type", {"rope_type": "linear", "type": "dynamic", "factor": 2.0}),
        ("rotary_dim", {"rotary_dim": 32, "qk_rope_head_dim": 16}),
        ("rotary_dim", {"rotary_dim": 32, "rotary_pct": 0.25}),
        ("rotary_dim", {"rotary_dim": 128}),
        ("partial_rotary_factor", {"partial_rotary_factor": 0.5, "rotary_pct": 0.25}),
        ("mrope_section", {"mrope_section": [16, 16, 8]}),
        ("mrope_section", {"mrope_interleaved": True}),
        ("high_freq_factor", {"rope_type": "llama3", **scalings(32)["llama3"], "high_freq_factor": 0.5}),
        ("short_factor", {"rope_type": "longrope", **scalings(16)["longrope"]}),
    ],
)
def test_contradictions(operand: str, contradiction: Settings) -> None:
    raised(sw.InvalidProblemError, {"head_dim": 64, **contradiction}, operand=operand)


EXTREME = (math.nan, math.inf, -math.inf, -1, 0, 10**400, -(10**400), 1e-320, 1e300)
NOT_NUMBERS = (*EXTREME, True, "8", [8], object(), {}, torch.ones(3))


@pytest.mark.parametrize("key", ["factor", "rope_theta", "head_dim", "rotary_pct", "rotary_dim", "beta_fast", "mscale"])
def test_values_out_of_range(key: str) -> None:
    yarn = {"head_dim": 64, "rope_type": "yarn", **scalings(32)["yarn"]}
    for value in NOT_NUMBERS:
        if key == "mscale" and type(value) is int and value == 0:
            continue  # DeepSeek's way to leave it out
        raised(sw.InvalidProblemError, {**yarn, key: value})
    for odd in ({"head_dim": 7}, {"head_dim": 1}, {"head_dim": 8, "rotary_dim": 3}, {"head_dim": 6, "rotary_pct": 0.5}):
        raised(sw.InvalidProblemError, odd)
    raised(sw.InvalidProblemError, {"hidden_size": 3, "num_attention_heads": 4})
    raised(sw.InvalidProblemError, {"head_dim": 2**21})
    raised(sw.InvalidProblemError, {**yarn, "rope_theta": 1.0})
    raised(sw.InvalidProblemError, {"head_dim": 2, "rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 4})
    raised(sw.InvalidProblemError, {"head_dim": 6, "rope_type": "axial"}, positions=torch.zeros(3, 2))


def test_numpy_scalars() -> None:
    numpy = pytest.importorskip("numpy")
    plain = {"head_dim": 8, "rope_type": "yarn", **scalings(4)["yarn"], "truncate": False}
    scalars = {"head_dim": numpy.int64(8), "factor": numpy.float32(4), "truncate": numpy.bool_(False)}
    assert same(st.rope_tables({**plain, **scalars}, LINE), st.rope_tables(plain, LINE))


VALUES = strategies.one_of(
    strategies.none(), strategies.booleans(), strategies.integers(), strategies.floats(), strategies.text(max_size=8),
    strategies.sampled_from([*ROPE_TYPES, "mrope", "su"]), strategies.sampled_from([2, 4, 8, 64, 0.5, 1.0, 2.0, 1e4, 4096]),
    strategies.lists(strategies.one_of(strategies.integers(-2, 40), strategies.floats(0.5, 8)), max_size=5),
)  # fmt: skip
KEYS = strategies.one_of(strategies.sampled_from([*RULES, *ALIASES]), strategies.text(max_size=6), strategies.integers())
FLAT_SETTINGS = strategies.dictionaries(KEYS, VALUES, max_size=7)
NAMES = strategies.sampled_from(["rope_parameters", "rope_scaling", "full_attention", "sliding_attention"])
MAPPINGS = strategies.builds(
    lambda flat, nested, width: {**flat, **nested, **width},
    FLAT_SETTINGS,
    strategies.dictionaries(NAMES, strategies.one_of(FLAT_SETTINGS, VALUES), max_size=2),
    strategies.sampled_from([{}, {"head_dim": 8}, {"head_dim": 64}]),
)


@settings(max_examples=400)
@given(config=MAPPINGS, layer_type=strategies.sampled_from([None, "full_attention", "x"]))
def test_any_mapping(config: Any, layer_type: str | None) -> None:
    """Tables of finite numbers, or a typed error; no exception of another class."""
    try:
        cos, sin = st.rope_tables(config, torch.arange(6).expand(3, 6), layer_type=layer_type)
    except sw.Error:
        return
    assert cos.isfinite().all()
    assert sin.isfinite().all()
    assert cos.shape == sin.shape
    assert cos.shape[-1] % 2 == 0


# --- Positions ---------------------------------------------------------------------------------------------------------

SECTIONS = {"head_dim": 32, "rope_theta": 1e6, "mrope_section": [4, 6, 6]}


def angles_of(positions: Tensor, axes: list[int]) -> Tensor:
    """Angles in float64: positions [3, ...], one axis for each of 16 pairs of base 10^6."""
    frequencies = 1e6 ** (-torch.arange(0, 32, 2).double() / 32)
    return positions.double()[axes].movedim(0, -1) * frequencies


@pytest.mark.parametrize("interleaved", [False, True])
def test_multimodal_mapping(interleaved: bool, device: str) -> None:
    axes = [0, 1, 2] * 5 + [0] if interleaved else [0] * 4 + [1] * 6 + [2] * 6
    config = {**SECTIONS, "mrope_interleaved": interleaved}
    if interleaved:
        config["mrope_section"] = [6, 5, 5]
    for shape in ((3, 2, 10), (3, 10)):
        positions = torch.randint(0, 40, shape, device=device)
        cos, sin = st.rope_tables(config, positions)
        assert cos.shape == (*shape[1:], 32)
        angles = angles_of(positions.cpu(), axes)
        torch.testing.assert_close(cos.cpu(), torch.cat((angles, angles), -1).cos().float(), rtol=0, atol=1e-5)
        torch.testing.assert_close(sin.cpu(), torch.cat((angles, angles), -1).sin().float(), rtol=0, atol=1e-5)
    text = torch.arange(10, device=device)
    assert torch.equal(st.rope_tables(config, text)[0], st.rope_tables(config, text.expand(3, -1))[0])
    assert st.rope_tables(config, text[None])[0].shape == (1, 10, 32)


def test_shapes_of_positions() -> None:
    for shape in ((2, 10), (2, 3, 10), (4, 10)):
        raised(sw.InvalidProblemError, SECTIONS, "[3, batch, sequence]", positions=torch.zeros(shape), operand="positions")
    for shape in ((), (3,), (4, 3)):
        axial = {"head_dim": 8, "rope_type": "axial"}
        raised(sw.InvalidProblemError, axial, "[..., 2]", positions=torch.zeros(shape), operand="positions")
    assert st.rope_tables(axial, torch.zeros(5, 4, 2))[0].shape == (5, 4, 8)


def test_multimodal_configuration_takes_a_batch_of_texts() -> None:
    """[3, S] is three sequences for the class of a model, and one for a mapping."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: it has the configuration")
    config = transformers.Qwen2VLConfig().text_config
    positions = torch.randint(0, 50, (3, 10))
    assert st.rope_tables(config, positions)[0].shape == (3, 10, 128)
    assert torch.equal(st.rope_tables(config, positions)[0][1], st.rope_tables(config, positions[1])[0])


def test_axial_mapping() -> None:
    """The first half of the columns' pairs turns with the row, the second with the column of a patch."""
    grid = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    cos, sin = st.rope_tables({"head_dim": 16, "rope_type": "axial"}, grid)
    frequencies = 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    angles = torch.cat((grid[:, :1] * frequencies, grid[:, 1:] * frequencies), -1).repeat(1, 2)
    torch.testing.assert_close(cos, angles.cos().float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(sin, angles.sin().float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [F16, torch.bfloat16, F32, F64], ids=str)
def test_floating_positions(dtype: torch.dtype, device: str) -> None:
    """Angles are formed in float32 from positions of any dtype, as models do."""
    positions = torch.linspace(0, 3, 12, device=device).to(dtype)
    angles = positions.float()[:, None] * (1 / 10000.0 ** (torch.arange(0, 8, 2).float() / 8)).to(device)
    cos, sin = st.rope_tables({"head_dim": 8}, positions)
    assert torch.equal(cos, torch.cat((angles, angles), -1).cos())
    assert torch.equal(sin, torch.cat((angles, angles), -1).sin())


def test_what_is_refused_as_positions() -> None:
    config = {"head_dim": 8}
    raised(sw.InvalidProblemError, config, "bool", positions=torch.ones(3, dtype=torch.bool), operand="positions")
    raised(sw.InvalidProblemError, config, "complex64", positions=torch.ones(3, dtype=torch.complex64), operand="positions")
    for wrong in ([0, 1], 3, None, "x"):
        raised(TypeError, config, positions=wrong, operand="positions")
    for wrong_dtype in (torch.int32, torch.complex64, "float32", None):
        raised(sw.InvalidProblemError, config, operand="dtype", dtype=wrong_dtype)


@pytest.mark.parametrize("dtype", [F16, torch.bfloat16, F64], ids=str)
def test_dtype_of_the_tables(dtype: torch.dtype, device: str) -> None:
    """The float32 table, rounded once."""
    settings = {"head_dim": 8, "rope_type": "yarn", **scalings(4)["yarn"]}
    positions = torch.arange(200, device=device)
    for table, wide in zip(st.rope_tables(settings, positions, dtype=dtype), st.rope_tables(settings, positions), strict=True):
        assert table.dtype == dtype
        assert torch.equal(table, wide.to(dtype))


def test_default_dtype_and_device_change_nothing(device: str) -> None:
    config = {"head_dim": 64, "rope_type": "dynamic", "factor": 2.5, "max_position_embeddings": 64}
    positions = torch.arange(200, device=device)
    want = st.rope_tables(config, positions)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(F64)
        assert same(st.rope_tables(config, positions), want)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            assert same(st.rope_tables(config, positions), want)
    finally:
        torch.set_default_dtype(before)


def test_compiled() -> None:
    """One graph; two where frequencies follow the largest position, which is read."""
    layers = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
    dynamic = {"rope_type": "dynamic", "factor": 2.5, "max_position_embeddings": 64}
    positions = torch.arange(100)
    for own, layer_type in (({}, None), (layers, "full_attention"), (dynamic, None)):
        config: Settings = {"head_dim": 8, **own}

        def tables(x: Tensor, config: Settings = config, name: str | None = layer_type) -> tuple[Tensor, Tensor]:
            return st.rope_tables(config, x, layer_type=name)

        torch.compiler.reset()
        compiled = torch.compile(tables, backend="eager", fullgraph=own is not dynamic)
        assert same(compiled(positions), tables(positions))
