"""The step of a language model of transformers, a small Mamba, with its own loop over tokens and with sternway's scan."""

from __future__ import annotations

import importlib.util
from typing import Any

from .case import OURS, TORCH, Size, Step, StepCase
from .models import language_model

LAYERS, VOCABULARY = 2, 1000
SCAN = "mamba_selective_scan"


def mamba(device: str, size: Size) -> Step:
    """A shape is (batch, tokens, width). Gradients of all parameters; sternway's contestant is patch_recurrence."""
    import torch
    from transformers import MambaConfig, MambaForCausalLM
    from transformers.models.mamba import modeling_mamba

    import sternway.torch as st

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=size.shape[2], num_hidden_layers=LAYERS, use_cache=False)
    model: Any = MambaForCausalLM(config)
    model.to(device, getattr(torch, size.dtype))
    functions = {TORCH: getattr(modeling_mamba, SCAN)}
    patch = st.patch_recurrence(model)
    functions[OURS] = getattr(modeling_mamba, SCAN)

    def undo() -> None:
        setattr(modeling_mamba, SCAN, functions[OURS])  # the function that the patch left, so that it puts back the model's
        patch.undo()

    return language_model(model, size, modeling_mamba, SCAN, functions, {}, undo)


def missing() -> str:
    """The reason to leave the step out: the function is compared without the kernels of mamba_ssm."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    return "mamba_ssm is installed, whose kernels the model calls" if importlib.util.find_spec("mamba_ssm") else ""


CASE = StepCase(
    f"Mamba, {LAYERS} layers", mamba,
    Size((1, 16, 32), "float32"),
    (Size((1, 64, 128), "float32"),),
    (Size((2, 1024, 1024), "bfloat16"),),
    missing,
)  # fmt: skip
