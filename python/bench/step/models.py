"""Steps of language models of transformers, whose contestants differ in one function of the model's Python module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from .case import TORCH, Contestant, Size, Step
from .check import against


def language_model(
    model: Any, size: Size, module: ModuleType, name: str, functions: Mapping[str, Callable[..., Any]],
    left_out: dict[str, str], close: Callable[[], None],
) -> Step:  # fmt: skip
    """The step of a model: the loss of the next token, and gradients of all parameters.

    Args:
        size: its shape begins with batch and tokens.
        module: the Python module of the model.
        name: the function in it that differs.
        functions: the function of each contestant.
    """
    import torch

    batch, tokens = size.shape[:2]
    device = next(model.parameters()).device
    ids = torch.randint(model.config.vocab_size, (batch, tokens), device=device)

    def forward(net: Any, contestant: str) -> Any:
        setattr(module, name, functions[contestant])
        return net(input_ids=ids, labels=ids).loss

    def gradients(net: Any, contestant: str) -> Any:
        return torch.autograd.grad(forward(net, contestant), tuple(net.parameters()))

    def of(contestant: str) -> Contestant:
        return Contestant(lambda: forward(model, contestant), lambda: gradients(model, contestant))

    def reference() -> Any:
        copied = copy.deepcopy(model)
        return gradients(copied.double() if size.dtype == "float32" else copied.float(), TORCH)

    return Step(
        {contestant: of(contestant) for contestant in functions},
        lambda them: against(reference(), them, size.dtype, batch * tokens), left_out, close,
    )  # fmt: skip
