"""The step of a language model of transformers, a small Llama, with three rotary embeddings: its own, sternway's, Liger's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from .case import OURS, TORCH, Size, Step, StepCase
from .models import language_model

LAYERS, HEAD, VOCABULARY = 6, 128, 32_000
ROTATION = "apply_rotary_pos_emb"


def config(width: int, tokens: int) -> Any:
    """Layers of a width with heads of 128 elements, and Llama's ratio of the inner width."""
    from transformers import LlamaConfig

    heads = max(1, width // HEAD)
    return LlamaConfig(
        vocab_size=VOCABULARY if width > 512 else 1000,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=tokens,
        use_cache=False,
    )


def rotations(model: Any, device: str, left_out: dict[str, str]) -> tuple[dict[str, Callable[..., Any]], Callable[[], Any]]:
    """The rotation of each contestant, and a function that undoes what was patched."""
    from transformers.models.llama import modeling_llama

    import sternway.torch as st

    found = {TORCH: getattr(modeling_llama, ROTATION)}
    patch = st.patch_rope(model)
    found[OURS] = getattr(modeling_llama, ROTATION)
    if device == "cpu":
        left_out["liger"] = "liger has no kernels for the CPU"
    elif importlib.util.find_spec("liger_kernel") is None:
        left_out["liger"] = "liger_kernel is not installed"
    else:
        from liger_kernel.transformers.rope import liger_rotary_pos_emb  # type: ignore[import-not-found, unused-ignore]

        found["liger"] = liger_rotary_pos_emb

    def undo() -> None:
        setattr(modeling_llama, ROTATION, found[OURS])  # the function that the patch left, so that it puts back torch's
        patch.undo()

    return found, undo


def llama(device: str, size: Size) -> Step:
    """A shape is (batch, tokens, width). Gradients of all parameters; sternway's contestant is patch_rope."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    _, tokens, width = size.shape
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config(width, tokens))
    model.to(device, getattr(torch, size.dtype))
    left_out: dict[str, str] = {}
    functions, undo = rotations(model, device, left_out)
    return language_model(model, size, modeling_llama, ROTATION, functions, left_out, undo)


def missing() -> str:
    """The reason to leave the step out."""
    return "" if importlib.util.find_spec("transformers") else "transformers is not installed"


CASE = StepCase(
    f"Llama, {LAYERS} layers", llama,
    Size((1, 64, 128), "float32"),
    (Size((1, 256, 256), "float32"),),
    (Size((2, 4096, 2048), "bfloat16"),),
    missing,
)  # fmt: skip
