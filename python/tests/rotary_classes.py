"""The rotary classes of the installed transformers, each with the configurations that it serves and positions that it takes."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

COMPOSITE = {
    "BltRotaryEmbedding": ("encoder_config", "decoder_config", "global_config", "patcher_config"),
    "CsmRotaryEmbedding": ("depth_decoder_config",),
    "DeepseekOcr2VisionRotaryEmbedding": ("encoder_config",),
    "DiaRotaryEmbedding": ("encoder_config", "decoder_config"),
    "Emu3RotaryEmbedding": ("text_config",),
    "GlmAsrRotaryEmbedding": ("audio_config",),
    "MiniMaxM3VLRotaryEmbedding": ("text_config",),
    "MuseGlimmerTextRotaryEmbedding": ("text_config",),
    "MuseSparkTextRotaryEmbedding": ("text_config",),
    "Nemotron3DiarizationRotaryEmbedding": ("audio_config",),
    "PaddleOCRRotaryEmbedding": ("text_config",),
    "Qwen2_5OmniRotaryEmbedding": ("thinker_config.text_config", "talker_config"),
    "Qwen2_5_VLRotaryEmbedding": ("text_config",),
    "Qwen2VLRotaryEmbedding": ("text_config",),
    "Qwen3OmniMoeRotaryEmbedding": ("talker_config.code_predictor_config", "code2wav_config"),
    "Qwen3OmniMoeTalkerRotaryEmbedding": ("talker_config.text_config",),
    "Step3p7RotaryEmbedding": ("text_config",),
    "T5GemmaRotaryEmbedding": ("encoder", "decoder"),
    "VoxtralRealtimeRotaryEmbedding": ("text_config", "audio_config"),
}
"""Classes whose annotated configuration is one of several models: the parts that they are made from."""

OWNERS = {"Qwen3OmniMoeTalkerRotaryEmbedding": "Qwen3OmniMoeConfig"}
"""The configuration that has these parts, where the annotation names another one."""


def parts(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def rotary_classes() -> Iterator[type[Any]]:
    """Every class of transformers.models whose name says that it is a rotary embedding."""
    import transformers.models

    for folder in sorted(Path(path) for path in transformers.models.__path__):
        for file in sorted(folder.glob("*/modeling_*.py")):
            names = re.findall(r"^class (\w*Rotary\w*Embedding)\b", file.read_text(encoding="utf-8"), re.MULTILINE)
            if names:
                module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
                yield from (getattr(module, name) for name in names)


def configurations(rotary: type[Any]) -> list[Any]:
    """Default configurations that a rotary class is made from; none where its signature does not say."""
    module = importlib.import_module(rotary.__module__)
    (first, *_) = (p for name, p in inspect.signature(rotary.__init__).parameters.items() if name != "self")
    annotation = first.annotation
    if isinstance(annotation, str):
        annotation = getattr(module, annotation.strip("'\""), inspect.Parameter.empty)
    if rotary.__name__ in OWNERS:
        package = module.__name__.rpartition(".")[0]
        names = [m.name for m in pkgutil.iter_modules(importlib.import_module(package).__path__) if m.name.startswith("config")]
        annotation = getattr(importlib.import_module(f"{package}.{names[0]}"), OWNERS[rotary.__name__])
    if annotation is inspect.Parameter.empty:
        return []
    config = annotation()
    return [parts(config, path) for path in COMPOSITE.get(rotary.__name__, ())] or [config]


def layer_types(config: Any) -> list[str | None]:
    """The names under which rope settings are kept; [None] where they are common to all layers."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [name for name, value in rope.items() if isinstance(value, dict)] or [None]


def positions_for(module: Any) -> list[Tensor]:
    """Positions as the forward of a rotary class takes them."""
    name, generator = type(module).__name__, torch.Generator().manual_seed(5)

    def integers(*shape: int) -> Tensor:
        return torch.randint(0, 300, shape, generator=generator)

    if getattr(module, "rope_type", None) == "axial":
        shape = {"Gemma4VisionRotaryEmbedding": (2, 7, 2), "MiniMaxM3VLVisionRotaryEmbedding": (7, 3)}.get(name, (7, 2))
        return [integers(*shape), integers(*shape) / 3]
    if name == "NeoMMERotaryEmbedding":
        return [integers(2, 3, 7), integers(2, 1, 7) / 3]
    if hasattr(module, "mrope_section"):
        axes = len(module.mrope_section) if isinstance(module.mrope_section, (list, tuple)) else 3
        return [integers(axes, 2, 7), integers(3, 7), integers(axes, 1, 7) / 3]
    return [integers(2, 7), torch.arange(65)[None], integers(1, 7).double() / 3]


@dataclass(frozen=True)
class Pair:
    """One comparison: a rotary class, a configuration of it, a layer type."""

    rotary: type[Any]
    config: Any
    layer_type: str | None

    def __str__(self) -> str:
        layer = f", {self.layer_type}" if self.layer_type else ""
        return f"{self.rotary.__name__}({type(self.config).__name__}{layer})"

    def tables(self, positions: Tensor, module: Any = None) -> Any:
        """What the class itself gives, in float32."""
        module = self.rotary(self.config) if module is None else module
        layer = () if self.layer_type is None else (self.layer_type,)
        return module(torch.zeros(()), positions, *layer)
