"""fake quantize per token: rounding, bounds, zero points, against torch's learnable kernel and a straight-through composite."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from conformance import Conformance
from families import make
from families.dequantize import INTEGERS, ZERO_POINTS
from families.fake_quantize import FAKE_QUANTIZE, FAKE_QUANTIZE_FORWARD
from support import BF16, F16, F32, F64

import sternway as sw
import sternway.torch as st

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

    @pytest.mark.parametrize("zero", [0.0, -0.0])
    @pytest.mark.parametrize("length", [1, 7, 64, 300])
    def test_a_scale_of_zero_is_the_limit_of_small_ones(
        self, length: int, zero: float, dtype: torch.dtype, device: str
    ) -> None:
        """x / 0 is infinite with the sign of x, whatever that of the 0; 0 / 0 is 0, so a row of zeros is inside."""
        values = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, torch.finfo(dtype).tiny], dtype=dtype, device=device)
        x = values[:, None].expand(7, length)
        scale = torch.full((7,), zero, dtype=dtype, device=device)
        for z in (None, torch.full((7,), 2, device=device), torch.full((7,), 2.0, dtype=dtype, device=device)):
            dx, dscale, dz = backward(torch.ones_like(x), x, scale, z)
            shift = 0 if z is None else 2
            level = torch.tensor([0, 0, 7 - shift, -8 - shift, 7 - shift, -8 - shift, 7 - shift], device=device)
            assert torch.equal(dx, torch.tensor([1, 1, 0, 0, 0, 0, 0], device=device)[:, None].expand(7, length).to(dtype))
            assert torch.equal(dscale, (level * length).to(dtype))
            assert dz is None or not dz.any()
        only_above = backward(torch.ones_like(x), x, scale, low=3, high=5)
        assert not only_above[0].any()  # 0 is below the bounds then

    def test_nan_beside_a_scale_of_zero(self, dtype: torch.dtype, device: str) -> None:
        x = torch.tensor([[math.nan, 0.0]], dtype=dtype, device=device)
        dx, dscale, _ = backward(torch.ones_like(x), x, torch.zeros(1, dtype=dtype, device=device))
        assert dx.tolist() == [[0, 1]]
        assert dscale.isnan().all()

    @pytest.mark.parametrize("length", [5, 200])
    def test_scales_that_are_no_normal_numbers(self, length: int, dtype: torch.dtype, device: str) -> None:
        """The least scale: 3 steps of it are inside, 1 / scale may overflow and is outside. Nothing is taken for 0."""
        info = torch.finfo(dtype)
        least = info.tiny * info.eps
        x = torch.tensor([3 * least, -9 * least, 1.0, 0.0], dtype=dtype, device=device)[:, None].expand(4, length)
        dx, dscale, _ = backward(torch.ones_like(x), x, torch.full((4,), least, dtype=dtype, device=device))
        assert dx[:, 0].tolist() == [1, 0, 0, 1]
        assert dscale.tolist() == [0, -8 * length, 7 * length, 0]

    def test_float32_decides_the_level(self, device: str) -> None:
        """As in a forward in float32: half-way quotients are those that float32 division rounds to a half."""
        generator = torch.Generator().manual_seed(0)
        scale = torch.rand(400, generator=generator).add(0.01).to(device)
        halves = torch.arange(-12, 12, device=device) + 0.5
        x = scale[:, None] * halves
        level = (x / scale[:, None]).round()
        assert (level != (x.double() / scale[:, None].double()).round()).any()  # else nothing is tested
        dx, dscale, _ = backward(torch.ones_like(x), x, scale)
        inside = (level >= -8) & (level <= 7)
        assert torch.equal(dx, inside.float())
        residual = torch.where(inside, level - x.double() / scale[:, None].double(), level.clamp(-8, 7)).sum(1)
        torch.testing.assert_close(dscale.double(), residual, rtol=1e-6, atol=1e-5)

    def test_wide_bounds_and_zero_points(self, device: str) -> None:
        """Levels beyond the integers of float32: t is rounded to float32, its distance from zero_point is not."""
        x, scale = torch.tensor([[5.3, -7.7, 1e12, 0.0]], device=device), torch.tensor([1.0], device=device)
        z = torch.tensor([2**30], device=device)
        dx, dscale, _ = backward(torch.ones_like(x), x, scale, z, -(2**31), 2**31 - 1)
        assert dx.tolist() == [[1, 1, 0, 1]]
        torch.testing.assert_close(dscale.item(), 2.0**30 + (5 - 5.3) + (-8 + 7.7), rtol=1e-7, atol=0)


EDGES = (0.0, -0.0, 1e-45, 1e-40, 1e-30, 0.1, 0.5, 1.5, 2.5, 7.5, 8.0, 1e30, 3e38, math.inf, math.nan)


def composite(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, low: int, high: int) -> torch.Tensor:
    """The definition in torch's operations, in float32 or wider; a divisor of 1 stands in for a scale of 0."""
    wide = torch.promote_types(x.dtype, F32)
    s, zero = scale[..., None].to(wide), torch.zeros((), dtype=wide, device=x.device)
    if zero_point is not None:
        zero = zero_point[..., None].to(wide)
        if zero_point.is_floating_point():
            zero = zero.round().clamp(low, high)
    t = (x.to(wide) / s.masked_fill(s == 0, 1.0)).round() + zero
    return ((t.clamp(low, high) - zero) * s).to(x.dtype)


def same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits; any NaN equals any other."""
    return bool(((a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()).all())


def forward(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None = None, low: int = -8, high: int = 7):
    return sw.fake_quantize_per_token(x, scale, zero_point, quant_min=low, quant_max=high)


class TestForward(Conformance):
    family = FAKE_QUANTIZE_FORWARD

    @pytest.mark.parametrize("zero_point", ZERO_POINTS, ids=str)
    @pytest.mark.parametrize("scale_dtype", [None, F32], ids=["scale of x", "scale float32"])
    def test_dtypes(
        self, scale_dtype: torch.dtype | None, zero_point: torch.dtype | None, dtype: torch.dtype, device: str
    ) -> None:
        for shape, trailing in itertools.product(((7, 129), (3, 2, 33)), (False, True)):
            problem = make(
                FAKE_QUANTIZE_FORWARD, shape, dtype, device, scale_dtype=scale_dtype, zero_point=zero_point, trailing=trailing
            )
            problem.check(problem.run())
            problem.check(problem.call())

    @pytest.mark.parametrize(("low", "high"), RANGES)
    def test_ranges(self, low: int, high: int, dtype: torch.dtype, device: str) -> None:
        problem = make(FAKE_QUANTIZE_FORWARD, (7, 129), dtype, device, quant_min=low, quant_max=high)
        problem.check(problem.run())

    @pytest.mark.parametrize("zero_point", ZERO_POINTS, ids=str)
    def test_composite_of_torch(self, zero_point: torch.dtype | None, dtype: torch.dtype, device: str) -> None:
        """Bit for bit, at every scale, with x on ties, half of it one unit in the last place beside them."""
        scale = torch.tensor([s for e in EDGES for s in (e, -e)], dtype=F64).to(device, dtype)
        ties = torch.arange(-40, 40, dtype=F64, device=device) + 0.5
        x = torch.cat([scale[:, None].to(F64) * ties, torch.randn(len(scale), 50, dtype=F64, device=device)], 1).to(dtype)
        x[:, ::4] = torch.nextafter(x[:, ::4].float(), torch.tensor(math.inf, device=device)).to(dtype)
        x = torch.cat([x, torch.tensor(EDGES, dtype=F64).to(device, dtype).repeat(len(scale), 1)], 1)
        z = None if zero_point is None else (torch.randn(len(scale), device=device) * 9).to(zero_point)
        for low, high in RANGES:
            assert same_numbers(forward(x, scale, z, low, high), composite(x, scale, z, low, high)), (low, high)

    @pytest.mark.parametrize("zero_point", INTEGERS, ids=str)
    def test_extremes_of_zero_points(self, zero_point: torch.dtype, dtype: torch.dtype, device: str) -> None:
        info = torch.iinfo(zero_point)
        z = torch.tensor([info.min, info.max, 1], dtype=zero_point, device=device)
        x, scale = torch.randn(3, 99, device=device).to(dtype), torch.rand(3, device=device).to(dtype)
        for low, high in RANGES:
            assert same_numbers(forward(x, scale, z, low, high), composite(x, scale, z, low, high))

    def test_ties_go_to_even(self, dtype: torch.dtype, device: str) -> None:
        x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5]], device=device, dtype=dtype)
        assert forward(x, torch.ones(1, device=device)).tolist() == [[0.0, 2.0, 2.0, 0.0, -2.0, -2.0]]

    def test_a_row_of_padding(self, dtype: torch.dtype, device: str) -> None:
        """Zeros with a scale of 0 stay zeros, and NaN of one row stays in it."""
        x = torch.tensor([[0.0, 0.0, 3.0], [torch.nan, 1.0, torch.inf]], device=device, dtype=dtype)
        y = forward(x, torch.tensor([0.0, 0.5], device=device))
        assert y[0].tolist() == [0.0, 0.0, 0.0]
        assert y[1, 0].isnan()
        assert y[1, 1:].tolist() == [1.0, 3.5]

    @pytest.mark.parametrize("zero_point", [math.nan, math.inf, -math.inf, 2.5, -99.0])
    def test_floating_zero_points(self, zero_point: float, dtype: torch.dtype, device: str) -> None:
        """Rounded to even and clamped; NaN gives NaN."""
        x, scale = torch.randn(4, 33, device=device).to(dtype), torch.full((4,), 0.25, device=device)
        z = torch.full((4,), zero_point, device=device, dtype=dtype)
        assert same_numbers(forward(x, scale, z), composite(x, scale, z, -8, 7))

    def test_in_place(self, dtype: torch.dtype, device: str) -> None:
        """y may be x, in any layout."""
        for shape, order in (((6, 1037), (0, 1)), ((5, 6, 7), (2, 0, 1))):
            x = torch.randn(shape, device=device).to(dtype).permute(order)
            scale = torch.rand(x.shape[:-1], device=device)
            want = forward(x, scale)
            assert sw.fake_quantize_per_token(x, scale, quant_min=-8, quant_max=7, out=x) is x
            assert torch.equal(x, want)

    def test_the_drop_in_agrees(self, dtype: torch.dtype, device: str) -> None:
        problem = make(FAKE_QUANTIZE_FORWARD, (9, 130), dtype, device, zero_point=torch.int32)
        y = st.fake_quantize_per_token(*problem.inputs.values(), quant_min=-8, quant_max=7)
        assert torch.equal(problem.call()["y"], y)

    def test_refusals_name_their_own_operands(self, device: str) -> None:
        x, scale = torch.ones(2, 3, device=device), torch.ones(2, device=device)
        for wrong, operand in (
            ({"x": x.int()}, "x"),
            ({"x": torch.ones([1] * 9, device=device)}, "x"),
            ({"scale": scale.double()}, "scale"),
            ({"scale": scale[:1]}, "scale"),
            ({"zero_point": torch.ones(3, device=device)}, "zero_point"),
            ({"quant_min": 9}, "quant_min"),
        ):
            with pytest.raises(sw.Error) as caught:
                sw.fake_quantize_per_token(**{"x": x, "scale": scale, "quant_min": -8, "quant_max": 7, **wrong})
            assert (caught.value.op, caught.value.operand) == ("fake_quantize_per_token", operand)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.slow
def test_a_forward_of_more_than_2_to_the_31_elements() -> None:
    rows, n = 2**16 + 1, 2**15
    x = torch.full((), 2.1, device="cuda", dtype=F16).expand(rows, n)
    scale = torch.where(torch.arange(rows, device="cuda") % 2 == 1, 0.25, 1.0)
    y = forward(x, scale)
    want = torch.where(scale == 1, 2.0, 1.75).to(F16)
    assert all(bool((a == b[:, None]).all()) for a, b in zip(y.split(4096), want.split(4096), strict=True))


@pytest.mark.gpu
@pytest.mark.alone
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


# --- sternway.torch.fake_quantize_per_token ---------------------------------------------------------------------------

BOUNDS = {"quant_min": -8, "quant_max": 7}


def padded(device: str, dtype: torch.dtype = F32) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of which one is padding, and the scale that the README makes of them."""
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    x[2] = 0
    return x, x.abs().amax(1) / 7


@pytest.mark.parametrize("zero", [None, torch.int32], ids=str)
def test_a_row_of_padding(zero: torch.dtype | None, dtype: torch.dtype, device: str) -> None:
    """y is torch's, and 0 in the row; every gradient, and the gradient of that, is finite."""
    x, scale = (t.requires_grad_() for t in padded(device, dtype))
    z = None if zero is None else torch.full((4,), 3, dtype=zero, device=device)
    y = st.fake_quantize_per_token(x, scale, z, **BOUNDS)
    assert not y[2].any()
    if dtype == F32:
        theirs = torch.zeros(4, dtype=torch.int32, device=device) if z is None else z
        want = torch.fake_quantize_per_channel_affine(x.detach(), scale.detach(), theirs, 0, -8, 7)
        torch.testing.assert_close(y.detach(), want, rtol=1e-6, atol=1e-6)
    grads = torch.autograd.grad(y.square().sum() + y.sum(), (x, scale), create_graph=True)
    assert (grads[0][2] == 1).all()
    assert all(g.isfinite().all() for g in grads)
    assert all(g.isfinite().all() for g in torch.autograd.grad(sum(g.sum() for g in grads), (x, scale)))


def test_a_row_of_padding_compiled_and_batched(device: str) -> None:
    x, scale = padded(device)

    def gradients(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.func.grad(lambda x, s: st.fake_quantize_per_token(x, s, **BOUNDS).square().sum(), argnums=(0, 1))(x, scale)

    want = gradients(x, scale)
    assert all(g.isfinite().all() for g in want)
    batched = torch.func.vmap(gradients)(x.expand(3, 4, 16), scale.expand(3, 4))
    leaves = x.clone().requires_grad_(), scale.clone().requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(lambda x, s: st.fake_quantize_per_token(x, s, **BOUNDS), fullgraph=True, backend="aot_eager")
    traced = torch.autograd.grad(compiled(*leaves).square().sum(), leaves)
    for g, rows, other in zip(want, batched, traced, strict=True):
        torch.testing.assert_close(rows, g.expand_as(rows))
        torch.testing.assert_close(other, g)


def test_the_formula_is_the_operator_at_a_scale_of_zero(device: str) -> None:
    """What is differentiated again says the same as the kernel."""
    from sternway.torch._autograd.fake_quantize import formula

    x = torch.tensor([[0.0, -0.0, 1.0, -1.0, math.inf, -math.inf]] * 3, device=device)
    scale, z = torch.tensor([0.0, -0.0, 0.5], device=device), torch.tensor([2.0, -3.0, 0.0], device=device)
    ours = torch.ops.sternway.fake_quantize_backward(torch.ones_like(x), x, scale, z, -8, 7)
    for a, b in zip(ours, formula(torch.ones_like(x), x, scale, z, -8, 7), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.complex64], ids=str)
def test_x_is_floating(dtype: torch.dtype, device: str) -> None:
    """Integers would be cut off to integers; a complex number has no level."""
    with pytest.raises(sw.UnsupportedError, match=r"^sternway\.torch\.fake_quantize_per_token: x must be one of float32"):
        st.fake_quantize_per_token(torch.ones(2, 3, dtype=dtype, device=device), torch.ones(2, device=device), **BOUNDS)


@pytest.mark.parametrize("kind", [int, np.int8, np.int64, float, np.float64], ids=lambda k: k.__name__)
def test_bounds_are_what_descriptors_take(kind: type) -> None:
    x, scale = torch.randn(2, 4), torch.rand(2)
    want = st.fake_quantize_per_token(x, scale, **BOUNDS)
    assert torch.equal(st.fake_quantize_per_token(x, scale, quant_min=kind(-8), quant_max=kind(7)), want)


@pytest.mark.parametrize("bound", [0.5, math.inf, "7", None, np.True_, 1j, "x" * 1000], ids=lambda b: repr(b)[:9])
def test_bounds_that_are_no_integers(bound: Any) -> None:
    with pytest.raises(sw.InvalidProblemError, match=r"fake_quantize_per_token: quant_max must be an integer, got ") as caught:
        st.fake_quantize_per_token(torch.ones(2, 4), torch.ones(2), quant_min=-8, quant_max=bound)
    assert len(str(caught.value)) < 250


def test_what_the_backward_refuses_is_refused_before_the_forward(device: str) -> None:
    """In the words of the drop-in, whether a gradient is asked for or not."""
    x, scale = torch.rand([1] * 8 + [2], device=device), torch.rand([1] * 8, device=device)
    for leaves in ((), (x,), (scale,)):
        for leaf in leaves:
            leaf.requires_grad_()
        with pytest.raises(sw.Error, match=r"^sternway\.torch\.fake_quantize_per_token: x must be ") as caught:
            st.fake_quantize_per_token(x, scale, **BOUNDS)
        assert "dy" not in str(caught.value)
        for leaf in leaves:
            leaf.requires_grad_(False)


def test_bounds_of_more_than_64_bits() -> None:
    """In a trace, too, where no plan is selected for them."""
    x, scale = torch.ones(2, 4), torch.ones(2)
    traced = torch.vmap(lambda x: st.fake_quantize_per_token(x, scale, quant_min=0, quant_max=2**63))
    for call in (lambda: st.fake_quantize_per_token(x, scale, quant_min=0, quant_max=2**63), lambda: traced(x[None])):
        with pytest.raises(sw.InvalidProblemError, match="quant_max must be an integer of 64 bits, got 9223372036854775808"):
            call()


def test_a_scale_of_another_dtype_is_read_as_the_forward_reads_it() -> None:
    """Beside 16-bit data the forward divides by it in float32, and so does the backward."""
    g = torch.Generator().manual_seed(0)
    x, scale = torch.randn(64, 32, generator=g).to(BF16).requires_grad_(), torch.rand(64, generator=g, dtype=F64) / 8
    level = (x.detach().float() / scale.float()[:, None]).round()
    dx = torch.autograd.grad(st.fake_quantize_per_token(x, scale, **BOUNDS).sum(), x)[0]
    assert torch.equal(dx, ((level >= -8) & (level <= 7)).to(BF16))


class Quantized(torch.nn.Module):
    """A layer that learns its scale and its zero point."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((4, 1), 0.1, device=device))
        self.zero_point = torch.nn.Parameter(torch.tensor([0.0, 1.0, -2.0, 3.0], device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return st.fake_quantize_per_token(x.relu(), self.scale, self.zero_point, **BOUNDS)


def gradients(module: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = module(x)
    leaves = [x, *(p for _, p in sorted(module.named_parameters()))]
    first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
    return y, *first, *torch.autograd.grad(first[1].square().sum(), leaves[:2])


@pytest.mark.parametrize("strict", [False, True], ids=["not strict", "strict"])
def test_an_exported_module_trains(strict: bool, device: str) -> None:
    """torch.export drops the backward of an autograd.Function, and that of round is 0. Also after a trip through a file."""
    module, x = Quantized(device), torch.randn(4, 16, device=device, requires_grad=True)
    want = gradients(module, x)
    assert all(g.any() for g in want)
    program = torch.export.export(module, (x,), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for exported in (program, torch.export.load(file), program.run_decompositions()):
        for ours, eager in zip(gradients(exported.module(), x), want, strict=True):
            torch.testing.assert_close(ours, eager)


def test_a_module_exported_without_gradients_is_torchs_own_operations(device: str) -> None:
    """So that what reads graphs of torch alone can read it."""
    with torch.no_grad():
        program = torch.export.export(Quantized(device), (torch.randn(4, 16, device=device),))
    assert "sternway" not in program.graph_module.code


def test_the_operator_of_the_forward(device: str) -> None:
    x, scale = torch.randn(5, 3, device=device).T.requires_grad_(), torch.rand(3, device=device).add(0.1).requires_grad_()
    torch.library.opcheck(torch.ops.sternway.fake_quantize.default, (x, scale, None, -8, 7))
    rows = torch.func.vmap(lambda x: torch.ops.sternway.fake_quantize(x, scale, None, -8, 7))(x.expand(2, 3, 5))
    assert torch.equal(rows[1], st.fake_quantize_per_token(x, scale, **BOUNDS))
