"""Steps of networks that quantize: fake quantization in front of each linear layer, and dequantized activations."""

from __future__ import annotations

import functools
from typing import Any

from ..._cases import TorchSource
from ..._cases.dequantize import quantized, rounded
from .case import Size, Step, StepCase, by_gradient, ways
from .check import against, wider

LAYERS = 6
QUANT_MIN, QUANT_MAX = -128, 127


def fake_by_torch(x: Any, scale: Any) -> Any:
    """The straight-through composite of torch operations. torch.clamp would pass no gradient for values on a bound."""
    import torch

    level = rounded(x / scale)
    inside = (level >= QUANT_MIN) & (level <= QUANT_MAX)
    return torch.where(inside, level, level.detach().clamp(QUANT_MIN, QUANT_MAX)) * scale


def fake_by_operator(x: Any, scale: Any) -> Any:
    """torch's own operator, with tokens in the place of channels. Its scale has no gradient."""
    import torch

    scale = scale.flatten().float()
    zero_point = torch.zeros_like(scale, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(x, scale, zero_point, 0, QUANT_MIN, QUANT_MAX)


def fake_by_sternway(x: Any, scale: Any) -> Any:
    """The operation by sternway."""
    import sternway.torch as st

    return st.fake_quantize_per_token(x, scale, quant_min=QUANT_MIN, quant_max=QUANT_MAX)


def network(fake_quantize: Any, x: Any, *weights: Any) -> Any:
    """Linear layers whose inputs are fake quantized to 8 bits, with a scale for each token from its largest element."""
    import torch

    for weight in weights:
        with torch.no_grad():
            scale = x.abs().amax(-1, keepdim=True) / QUANT_MAX
        x = torch.nn.functional.linear(fake_quantize(x, scale), weight)
    return x


def fake_quantized_linear(device: str, size: Size) -> Step:
    """Six square layers; a shape is (tokens, width). Gradients of x and of all weights."""
    import torch

    source, (tokens, width) = TorchSource(device), size.shape
    x, dy = (source.cast(source.normal((tokens, width)), size.dtype) for _ in range(2))
    weights = [source.cast(source.normal((width, width)) / width**0.5, size.dtype) for _ in range(LAYERS)]
    leaves = [leaf.requires_grad_() for leaf in (x, *weights)]
    by_torch, by_sternway = (functools.partial(network, f) for f in (fake_by_torch, fake_by_sternway))
    contestants = {name: by_gradient(f, leaves, dy) for name, f in ways(size, by_torch, by_sternway, *leaves).items()}
    operator = functools.partial(network, fake_by_operator, *leaves)
    contestants["torch.fake_quantize_per_channel_affine"] = by_gradient(operator, leaves, dy)

    def reference() -> Any:
        wide = [wider(leaf.detach()).requires_grad_() for leaf in leaves]
        return torch.autograd.grad(by_torch(*wide), wide, wider(dy))

    return Step(contestants, lambda them: against(reference(), them, size.dtype, tokens))


def layer(dequantize: Any, q: Any, scale: Any, weight: Any) -> Any:
    """A linear layer of activations that are kept in int8."""
    import torch

    return torch.nn.functional.linear(dequantize(q, scale), weight)


def dequantize_by_torch(q: Any, scale: Any) -> Any:
    """The operation composed of torch operations."""
    return q * scale


def dequantize_by_sternway(q: Any, scale: Any) -> Any:
    """The operation by sternway."""
    import sternway.torch as st

    return st.dequantize_per_token(q, scale)


def dequantized_linear(device: str, size: Size) -> Step:
    """A shape is (tokens, width, outputs). Gradients of the scale of each token and of the weight."""
    import torch

    source, (tokens, width, outputs) = TorchSource(device), size.shape
    values = quantized(source, (tokens, width), size.dtype)
    weight = source.cast(source.normal((outputs, width)) / width**0.5, size.dtype)
    dy = source.cast(source.normal((tokens, outputs)), size.dtype)
    leaves = [leaf.requires_grad_() for leaf in (values.scale, weight)]
    by_torch, by_sternway = (functools.partial(layer, f) for f in (dequantize_by_torch, dequantize_by_sternway))
    forwards = ways(size, by_torch, by_sternway, values.q, *leaves)
    contestants = {name: by_gradient(f, leaves, dy) for name, f in forwards.items()}

    def reference() -> Any:
        wide = [wider(leaf.detach()).requires_grad_() for leaf in leaves]
        return torch.autograd.grad(by_torch(values.q, *wide), wide, wider(dy))

    return Step(contestants, lambda them: against(reference(), them, size.dtype, tokens))


CASES = (
    StepCase(
        f"fake quantize + linear, {LAYERS} layers", fake_quantized_linear,
        Size((64, 32), "float32"),
        (Size((1024, 256), "float32", True), Size((1024, 256), "bfloat16")),
        (Size((16384, 2048), "bfloat16", True),),
    ),
    StepCase(
        "dequantize + linear", dequantized_linear,
        Size((64, 32, 16), "float32"),
        (Size((2048, 1024, 256), "float32", True),),
        (Size((16384, 8192, 1024), "bfloat16", True),),
    ),
)  # fmt: skip
