"""fake quantise per token: rounding, bounds, zero points, against torch's learnable kernel and a straight-through composite."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from conformance import Conformance
from families import FAKE_QUANTIZE, make
from families.dequantize import ZERO_POINTS
from support import F16, F32, F64

import sternway as sw

RANGES = ((-8, 7), (-128, 127), (0, 255), (0, 1), (3, 3), (-32768, 32767))


def backward(
    dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None = None, low: int = -8, high: int = 7
):
    return sw.fake_quantize_per_token_backward(dy, x, scale, zero_point, quant_min=low, quant_max=high)


class TestFakeQuantize(Conformance):
    family = FAKE_QUANTIZE

    @pytest.mark.parametrize("zero_point", ZERO_POINTS, ids=str)
    @pytest.mark.parametrize("scale_dtype", [None, F32], ids=["scale of dy", "scale float32"])
    def test_dtypes(
        self, scale_dtype: torch.dtype | None, zero_point: torch.dtype | None, dtype: torch.dtype, device: str
    ) -> None:
        for shape, trailing in itertools.product(((7, 129), (3, 2, 33)), (False, True)):
            problem = make(
                FAKE_QUANTIZE, shape, dtype, device, scale_dtype=scale_dtype, zero_point=zero_point, trailing=trailing
            )
            problem.check(problem.run(), rival=True)
            problem.check(problem.call())

    @pytest.mark.parametrize(("low", "high"), RANGES)
    def test_ranges(self, low: int, high: int, dtype: torch.dtype, device: str) -> None:
        problem = make(FAKE_QUANTIZE, (7, 129), dtype, device, quant_min=low, quant_max=high)
        problem.check(problem.run())

    def test_straight_through_composite(self, device: str) -> None:
        """The definition through torch.autograd in float64, which knows none of our formulas."""
        problem = make(FAKE_QUANTIZE, (5, 200), F64, device, zero_point=F64)
        theirs = FAKE_QUANTIZE.torch(problem.descriptor, problem.inputs)
        for name, out in problem.run().items():
            torch.testing.assert_close(out, theirs[name], rtol=1e-12, atol=1e-12)

    def test_learnable_kernel_of_torch(self, device: str) -> None:
        """ATen's LSQ backward, per channel with one channel for each token, grad_factor 1."""
        problem = make(FAKE_QUANTIZE, (9, 500), F32, device)
        dy, x, scale, z = (problem.inputs[name] for name in ("dy", "x", "scale", "zero_point"))
        leaves = [t.detach().clone().requires_grad_() for t in (x, scale, z)]
        y = torch._fake_quantize_learnable_per_channel_affine(*leaves, 0, -8, 7, 1.0)
        theirs = torch.autograd.grad(y, leaves, dy)
        for out, want in zip(backward(dy, x, scale, z), theirs, strict=True):
            torch.testing.assert_close(out, want, rtol=2e-5, atol=2e-5)

    def test_ties_go_to_even(self, dtype: torch.dtype, device: str) -> None:
        """X / scale exactly on a half, in each dtype: q is the even neighbour, seen in dscale = dy (q - x / scale)."""
        halves = torch.arange(-13, 14, 2, device=device, dtype=dtype) / 2  # -6.5 .. 6.5
        scale = torch.full((len(halves),), 0.25, dtype=dtype, device=device)
        x = (halves * 0.25)[:, None]
        dx, dscale, dz = backward(torch.ones_like(x), x, scale)
        assert (dx == 1).all()
        assert torch.equal(dscale, halves.round() - halves)
        assert dz is None

    def test_bounds_count_as_inside(self, dtype: torch.dtype, device: str) -> None:
        """T on quant_min or quant_max passes dy; one step further does not. -8.5 rounds to -8, 7.5 to 8."""
        steps = torch.tensor([[-9.0, -8.5, -8.0, -7.5, 7.0, 7.5, 8.0]], dtype=dtype, device=device)
        dx, dscale, _ = backward(torch.ones_like(steps), steps * 0.5, torch.full((1,), 0.5, dtype=dtype, device=device))
        assert dx.tolist() == [[0, 1, 1, 1, 1, 0, 0]]
        assert dscale.tolist() == [-8 + 0.5 + 0 - 0.5 + 0 + 7 + 7]

    def test_a_floating_zero_point_is_rounded_and_clamped(self, dtype: torch.dtype, device: str) -> None:
        """2.5 -> 2, 3.5 -> 4, 100 -> 7, -100 -> -8; the gradient has the dtype and the shape of what was given."""
        given = torch.tensor([2.5, 3.5, 100.0, -100.0], dtype=dtype, device=device)
        rounded = torch.tensor([2, 4, 7, -8], device=device)
        x = torch.linspace(-4, 4, 64, dtype=F32, device=device).to(dtype).expand(4, 64)
        scale = torch.full((4,), 0.5, dtype=dtype, device=device)
        dx, dscale, dz = backward(torch.ones_like(x), x, scale, given)
        same_dx, same_dscale, none = backward(torch.ones_like(x), x, scale, rounded)
        assert none is None
        assert torch.equal(dx, same_dx)
        assert torch.equal(dscale, same_dscale)
        assert torch.equal(dz, (-0.5 * (64 - dx.to(F32).sum(1))).to(dtype))

    def test_an_integer_zero_point_is_used_as_it_is(self, device: str) -> None:
        """Outside [quant_min, quant_max]: not clamped, so x = 0 is outside and q - zero_point is 7 - 20."""
        x, scale = torch.zeros(1, 3, device=device), torch.ones(1, device=device)
        dx, dscale, dz = backward(torch.ones_like(x), x, scale, torch.tensor([20], device=device))
        assert dx.tolist() == [[0, 0, 0]]
        assert dscale.tolist() == [3 * (7 - 20)]
        assert dz is None

    def test_nan_and_infinity(self, dtype: torch.dtype, device: str) -> None:
        """NaN in x gives dx = 0; infinities are outside, at their bound."""
        x = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [-math.inf, 1.0]], dtype=dtype, device=device)
        scale = torch.ones(3, dtype=dtype, device=device)
        dx, dscale, _ = backward(torch.ones_like(x), x, scale)
        assert dx.tolist() == [[0, 1]] * 3
        assert dscale.tolist()[1:] == [7, -8]

    def test_dx_is_dy_bit_for_bit(self, dtype: torch.dtype, device: str) -> None:
        """The scale does not multiply dx: inside, dy passes as it is, subnormals and NaN too."""
        info = torch.finfo(dtype)
        dy = torch.tensor([[info.tiny * info.eps, -info.max, math.inf, math.nan, -0.0]], dtype=dtype, device=device)
        dx, _, _ = backward(dy, torch.zeros_like(dy), torch.full((1,), 0.3, dtype=dtype, device=device))
        torch.testing.assert_close(dx, dy, rtol=0, atol=0, equal_nan=True)

    def test_everything_outside(self, device: str) -> None:
        """Dx = 0, and the sums are those of the bound."""
        x, scale = torch.full((2, 5), 100.0, device=device), torch.tensor([1.0, 2.0], device=device)
        dx, dscale, dz = backward(torch.ones_like(x), x, scale, torch.tensor([0.0, 3.0], device=device))
        assert not dx.any()
        assert dscale.tolist() == [5 * 7, 5 * (7 - 3)]
        assert dz.tolist() == [-5, -10]


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_to_the_31_elements() -> None:
    """2^31 + 2^15 elements, expanded dy and x; odd rows have a scale that puts them outside."""
    rows, n = 2**16 + 1, 2**15
    dy = torch.ones((), device="cuda", dtype=F16).expand(rows, n)
    x = torch.full((), 4.0, device="cuda", dtype=F16).expand(rows, n)
    odd = torch.arange(rows, device="cuda") % 2 == 1
    scale = torch.where(odd, 0.25, 1.0)
    dx, dscale, dz = backward(dy, x, scale, torch.zeros(rows, device="cuda"))
    assert all(torch.equal(part.any(1), ~o) for part, o in zip(dx.split(4096), odd.split(4096), strict=True))
    assert torch.equal(dscale, torch.where(odd, 7.0 * n, 0.0))
    assert torch.equal(dz, torch.where(odd, -0.25 * n, 0.0))


def test_absent_zero_point_is_zero(device: str) -> None:
    """Also where 0 lies outside the bounds, to which only a floating zero point is clamped."""
    x = torch.tensor([[0.0, 3.0, 4.0, 20.0]], device=device)
    _, dscale, _ = sw.fake_quantize_per_token_backward(
        torch.ones_like(x), x, torch.ones(1, device=device), quant_min=3, quant_max=12
    )
    assert dscale.item() == 3.0 + 12.0  # the levels of 0 and 20; 3 and 4 are exact


def test_results_are_taken_as_out(device: str) -> None:
    """Also with the None that stands for the gradient of an integer zero point."""
    x, bounds = torch.rand(3, 4, device=device), {"quant_min": -8, "quant_max": 7}
    given = x, x, torch.rand(3, device=device)
    first = sw.fake_quantize_per_token_backward(*given, **bounds)
    second = sw.fake_quantize_per_token_backward(
        *given, **bounds, out=tuple(t if t is None else torch.empty_like(t) for t in first)
    )
    assert second[2] is None
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
