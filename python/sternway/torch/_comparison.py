"""Compares a function of a model with sternway's on small inputs: values, and gradients of all operands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Run on real tensors with gradients, outside the modes, transforms and autocast of the caller."""
    functorch = torch._C._DisableFuncTorch()
    try:
        with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        del functorch


def derived(function: Callable[[], Any], leaves: Sequence[Tensor]) -> list[Tensor] | None:
    """The results of a function and its gradients with respect to leaves. None: the function fails."""
    try:
        result = function()
        results = [result] if isinstance(result, Tensor) else [y for y in result if y is not None]
        random = torch.Generator("cpu").manual_seed(1)
        dy = [torch.randn(y.shape, generator=random, dtype=y.dtype, device="cpu") for y in results]
        return [*results, *torch.autograd.grad(results, leaves, dy, allow_unused=True, materialize_grads=True)]
    except Exception:
        return None  # the model's function refuses as it likes, and ours refuses some candidates


def near(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> bool:
    """Whether two results are equal within a relative and absolute tolerance, by default of roundings of float32."""
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance)
