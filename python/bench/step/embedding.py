"""The step of the token embedding of a language model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._cases import TorchSource
from ..._cases.embedding_bag import zipf
from .case import OURS, TORCH, Size, Step, StepCase, by_gradient
from .check import against

DETERMINISTIC = "torch, deterministic"


def deterministically(call: Callable[[], Any]) -> Callable[[], Any]:
    """A call under torch.use_deterministic_algorithms."""
    import torch

    def deterministic() -> Any:
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            return call()
        finally:
            torch.use_deterministic_algorithms(before)

    return deterministic


def embedding(device: str, size: Size) -> Step:
    """A shape is (rows, width, tokens). Tokens follow Zipf's law, as words do."""
    import torch

    import sternway.torch

    source, (rows, width, tokens) = TorchSource(device), size.shape
    ids = zipf(source, rows, tokens)
    weight, dy = (source.cast(source.normal((n, width)), size.dtype) for n in (rows, tokens))
    weight.requires_grad_()
    ours = sternway.torch.embedding  # type: ignore[attr-defined, unused-ignore]
    theirs = torch.nn.functional.embedding
    contestants = {
        TORCH: by_gradient(lambda: theirs(ids, weight), (weight,), dy),
        OURS: by_gradient(lambda: ours(ids, weight), (weight,), dy),
    }
    if device != "cpu":
        step = contestants[TORCH].step
        assert step is not None
        contestants[DETERMINISTIC] = type(contestants[TORCH])(contestants[TORCH].forward, deterministically(step))

    def reference() -> Any:
        truth = torch.zeros(rows, width, dtype=torch.float32 if size.dtype == "bfloat16" else torch.float64, device=device)
        return (truth.index_add_(0, ids, dy.to(truth.dtype)),)

    return Step(contestants, lambda them: against(reference(), them, size.dtype, tokens))


def missing() -> str:
    """The reason to leave the step out."""
    import sternway.torch

    return "" if hasattr(sternway.torch, "embedding") else "this version of sternway.torch has no embedding"


CASE = StepCase(
    "embedding", embedding,
    Size((1000, 64, 512), "float32"),
    (Size((20_000, 256, 4096), "float32"),),
    (Size((151_936, 4096, 32_768), "bfloat16"),),
    missing,
)  # fmt: skip
