"""The scales of torchao with st.fake_quantize: the same values, losses and gradients, and where they differ."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import sternway.torch as st

INT4, INT8 = (-8, 7), (-128, 127)
GROUP = 32
Quantizer = Callable[..., torch.Tensor]


def symmetric(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points of groups in int4, as torchao 0.18 chooses them."""
    low, high = INT4
    scale = x.detach().unflatten(-1, (-1, GROUP)).abs().amax(-1) / ((high - low) / 2)
    return scale.clamp(min=torch.finfo(x.dtype).tiny), torch.zeros_like(scale)


def asymmetric(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points of tokens in int8, as torchao 0.18 chooses them."""
    low, high = INT8
    least, most = x.detach().amin(-1, keepdim=True).clamp(max=0), x.detach().amax(-1, keepdim=True).clamp(min=0)
    scale = ((most - least) / (high - low)).clamp(min=torch.finfo(x.dtype).tiny)
    return scale, (low - torch.round(least / scale)).clamp(low, high)


class Round(torch.autograd.Function):
    """Rounding whose gradient is 1."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return dy


class Clamp(torch.autograd.Function):
    """torch.clamp whose gradient on the bounds is 1; that of torch 2.15 is 0."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, low: float, high: float) -> torch.Tensor:
        ctx.save_for_backward((x >= low) & (x <= high))
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (inside,) = ctx.saved_tensors
        return dy * inside, None, None


def ours(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, low: int, high: int) -> torch.Tensor:
    return st.fake_quantize(x, scale, zero, quant_min=low, quant_max=high)


def formula(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """torchao/quantization/quant_primitives.py, `_quantize_affine_no_dtype_cast` and `_dequantize_affine_no_dtype_check`."""
    blocks = x.unflatten(-1, (scale.shape[-1], -1))
    scale, zero = scale[..., None], zero[..., None]
    q = Clamp.apply(Round.apply(blocks * (1.0 / scale)) + zero, low, high)
    return ((q - zero) * scale).view(x.shape)


def by_division(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """The formula with a quotient."""
    blocks = x.unflatten(-1, (scale.shape[-1], -1))
    scale, zero = scale[..., None], zero[..., None]
    q = Clamp.apply(Round.apply(blocks / scale) + zero, low, high)
    return ((q - zero) * scale).view(x.shape)


def losses(weights: Quantizer, activations: Quantizer) -> list[float]:
    """20 steps of two layers, whose scales are powers of two, next to torchao's: products with 1 / scale are exact."""
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(96, 64, generator=generator) / 8, torch.randn(10, 96, generator=generator) / 10]
    parameters = [weight.requires_grad_() for weight in layers]
    optimizer, found = torch.optim.SGD(parameters, lr=0.1), []
    for _ in range(20):
        x, target = torch.randn(32, 64, generator=generator), torch.randint(10, (32,), generator=generator)
        for weight in parameters:
            scale, zero = asymmetric(x)
            x = activations(x, scale.log2().ceil().exp2(), zero, *INT8)
            scale, zero = symmetric(weight)
            x = torch.nn.functional.linear(x, weights(weight, scale.log2().ceil().exp2(), zero, *INT4))
            x = x.relu() if weight is parameters[0] else x
        loss = torch.nn.functional.cross_entropy(x, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_losses_of_the_formula() -> None:
    """Bit for bit: values, the gradient at levels on a bound, no gradient beyond. torch.clamp of torch 2.15 gives others."""
    assert losses(ours, ours) == losses(formula, formula)


def test_values_by_division() -> None:
    """With torchao's scales: the values of a quotient, and dx = dy, where the formula has dy scale / scale."""
    x, dy = torch.randn(2, 512, 512, generator=torch.Generator().manual_seed(0))
    for choose, bounds in ((symmetric, INT4), (asymmetric, INT8)):
        leaf = x.clone().requires_grad_()
        mine, theirs = (rule(leaf, *choose(x), *bounds) for rule in (ours, by_division))
        assert torch.equal(mine, theirs)
        ours_dx, their_dx = (torch.autograd.grad(y, leaf, dy)[0] for y in (mine, theirs))
        torch.testing.assert_close(ours_dx, their_dx, rtol=3 * 2.0**-24, atol=0)


def nearly_halves(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Whether a quotient lies within its roundings, three of float32, of a number and a half."""
    blocks = x.unflatten(-1, (scale.shape[-1], -1)).double()
    quotient = (blocks / scale[..., None].double()).view(x.shape)
    return ((quotient - quotient.floor()) - 0.5).abs() <= 3 * 2.0**-24 * quotient.abs()


def test_where_the_formula_differs() -> None:
    """By one level, near halves alone, which the largest of a group with torchao's scale is; one in twelve of them differs."""
    x = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
    for choose, bounds in ((symmetric, INT4), (asymmetric, INT8)):
        scale, zero = choose(x)
        mine, theirs = ours(x, scale, zero, *bounds), formula(x, scale, zero, *bounds)
        differ = mine != theirs
        assert nearly_halves(x, scale)[differ].all()
        steps = scale.repeat_interleave(x.shape[1] // scale.shape[1], 1)
        torch.testing.assert_close((mine - theirs).abs()[differ], steps[differ])
        if bounds == INT4:
            assert differ.sum().item() / scale.numel() == pytest.approx(1 / 12, rel=0.1)
    scale, zero = symmetric(x)
    scale = scale * 7.5 / 7
    assert torch.equal(ours(x, scale, zero, *INT4), formula(x, scale, zero, *INT4))


# ------------------------------------------------------------------------------------------------------------ with torchao


@pytest.fixture
def qat() -> Any:
    """torchao.quantization.qat."""
    pytest.importorskip("torchao", reason="torchao is not installed; test_losses_of_the_formula has its formula")
    return importlib.import_module("torchao.quantization.qat")


def quantizers(qat: Any, dynamic: bool) -> tuple[Any, Any]:
    """torchao's modules of weights in groups of 4 bits and of tokens in 8 bits. dynamic: they choose scales of their own."""
    weights = qat.IntxFakeQuantizeConfig(torch.int4, group_size=GROUP, is_dynamic=dynamic)
    activations = qat.IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False, is_dynamic=dynamic)
    return qat.IntxFakeQuantizer(weights), qat.IntxFakeQuantizer(activations)


def test_scales_of_torchao(qat: Any) -> None:
    """The scales above are those of torchao, and torchao's values are those of the formula."""
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
    for module, choose, bounds in zip(quantizers(qat, True), (symmetric, asymmetric), (INT4, INT8), strict=True):
        found, (scale, zero) = module(x), choose(x)
        assert torch.equal(module.scale.view(scale.shape), scale)
        assert torch.equal(module.zero_point.view(zero.shape).float(), zero)
        assert torch.equal(found, formula(x, scale, zero, *bounds))


def test_losses_of_torchao(qat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 steps, bit for bit, with a clamp of gradient 1 on its bounds."""

    def given(module: Any) -> Quantizer:
        def quantize(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, *_: int) -> torch.Tensor:
            module.scale, module.zero_point = (numbers.squeeze(1) for numbers in (scale, zero))
            return module(x)

        return quantize

    weights, activations = (given(module) for module in quantizers(qat, False))
    mine = losses(ours, ours)
    monkeypatch.setattr(torch, "clamp", lambda x, low, high: Clamp.apply(x, low, high))
    assert losses(weights, activations) == mine
