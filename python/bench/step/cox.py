"""The step of Cox regression: the partial likelihood of survival times, and its gradient."""

from __future__ import annotations

from typing import Any

from ..._cases import TorchSource
from .case import Size, Step, StepCase, by_gradient, ways
from .check import against


def loss(risk: Any, died: Any) -> Any:
    """Minus the partial log likelihood of each death (Cox 1975), of subjects in the order of falling times without ties.

    Args:
        risk: the logarithm of each subject's hazard.
        died: 1 for a death, 0 for a subject that was lost from view.
    """
    import torch

    return (died * (torch.logcumsumexp(risk, 0) - risk)).sum() / died.sum()


def cox(device: str, size: Size) -> Step:
    """A shape is (subjects,). sternway's contestant is the same function inside accelerate()."""
    import torch

    import sternway.torch as st

    source = TorchSource(device)
    risk = source.cast(source.normal(size.shape), size.dtype).requires_grad_()
    died = source.cast(source.normal(size.shape) > 0, size.dtype)
    accelerated: Any = st.accelerate()  # a decorator, too
    forwards = ways(size, loss, accelerated(loss), risk, died)
    contestants = {name: by_gradient(forward, (risk,)) for name, forward in forwards.items()}

    def reference() -> Any:
        wide = risk.detach().double().requires_grad_()
        return torch.autograd.grad(loss(wide, died.double()), (wide,))

    return Step(contestants, lambda them: against(reference(), them, size.dtype, size.shape[0]))


SMALL, LARGE = (10_000,), (1_000_000,)
CASE = StepCase(
    "Cox loss", cox, Size((100,), "float32"),
    (Size(SMALL, "float32", True), Size(LARGE, "float32")),
    (Size(SMALL, "float32", True), Size(LARGE, "float32", True)),
)  # fmt: skip
