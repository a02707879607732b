"""dequantize per token: dtypes of q, scale and zero_point, both shapes of the per-row operands."""

from __future__ import annotations

import io
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from conformance import Conformance
from families import make
from families.dequantize import DEQUANTIZE, DEQUANTIZE_FORWARD, INTEGERS, QDTYPES, ZERO_POINTS
from support import BF16, F16, F32, F64

import sternway as sw
import sternway.torch as st


class TestDequantize(Conformance):
    family = DEQUANTIZE

    @pytest.mark.parametrize("zero_point", ZERO_POINTS, ids=str)
    @pytest.mark.parametrize("qdtype", QDTYPES, ids=str)
    @pytest.mark.parametrize("scale_dtype", [None, F32], ids=["scale of dy", "scale float32"])
    def test_dtypes(
        self,
        scale_dtype: torch.dtype | None,
        qdtype: torch.dtype,
        zero_point: torch.dtype | None,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        for shape, trailing in itertools.product(((7, 129), (3, 2, 33)), (False, True)):
            problem = make(
                DEQUANTIZE, shape, dtype, device,
                scale_dtype=scale_dtype, qdtype=qdtype, zero_point=zero_point, trailing=trailing,
            )  # fmt: skip
            problem.check(problem.run(), rival=True)
            problem.check(problem.call())

    @pytest.mark.parametrize("trailing", [False, True])
    def test_zero_point_in_the_other_shape(self, trailing: bool, device: str) -> None:
        problem = make(DEQUANTIZE, (7, 33), F32, device, trailing=trailing, trailing_zero_point=not trailing)
        problem.check(problem.run())

    def test_all_values_of_q(self, device: str) -> None:
        """One row for each byte: dscale = sum of dy times (byte - zero_point), exact in float32."""
        for qdtype in (torch.int8, torch.uint8):
            bytes_ = torch.arange(256, dtype=torch.uint8, device=device).view(qdtype)
            q = bytes_[:, None].repeat(1, 5)
            dy, scale = torch.ones(256, 5, device=device), torch.ones(256, device=device)
            _, dscale = sw.dequantize_per_token_backward(dy, scale, q=q)
            assert torch.equal(dscale, 5.0 * bytes_.float())

    def test_function_returns_what_it_was_given_for(self, device: str) -> None:
        """dx; with q also dscale; with a floating zero_point also dzero_point."""
        dy, scale = torch.ones(3, 4, device=device), torch.full((3,), 2.0, device=device)
        q = torch.ones(3, 4, dtype=torch.int8, device=device)
        assert torch.equal(sw.dequantize_per_token_backward(dy, scale), 2 * dy)
        assert len(sw.dequantize_per_token_backward(dy, scale, q=q)) == 2
        for dtype in INTEGERS:
            assert (
                len(sw.dequantize_per_token_backward(dy, scale, q=q, zero_point=torch.ones(3, dtype=dtype, device=device))) == 2
            )
        dx, dscale, dz = sw.dequantize_per_token_backward(dy, scale, q=q, zero_point=torch.zeros(3, dtype=F64, device=device))
        assert (dx == 2).all()
        assert (dscale == 4).all()
        assert (dz == -8).all()
        assert dz.dtype == F64

    def test_zero_point_alone(self, dtype: torch.dtype, device: str) -> None:
        """dzero_point needs no q."""
        problem = make(DEQUANTIZE, (7, 129), dtype, device)
        assert "q" not in problem.inputs_for(("dx", "dzero_point"))
        problem.check(problem.run(("dx", "dzero_point")))

    @pytest.mark.parametrize("scale", [0.0, -1.5, float("inf"), float("nan"), 1e-30])
    def test_any_scale(self, scale: float, dtype: torch.dtype, device: str) -> None:
        problem = make(DEQUANTIZE, (3, 33), dtype, device)
        problem.inputs["scale"].fill_(scale)
        truth = DEQUANTIZE.truth(problem.descriptor, problem.inputs)
        type(problem)(DEQUANTIZE, problem.descriptor, problem.inputs, truth).check(problem.run())


class TestForward(Conformance):
    family = DEQUANTIZE_FORWARD

    @pytest.mark.parametrize("zero_point", ZERO_POINTS, ids=str)
    @pytest.mark.parametrize("qdtype", QDTYPES, ids=str)
    @pytest.mark.parametrize("scale_dtype", [None, F32], ids=["scale of y", "scale float32"])
    def test_dtypes(
        self,
        scale_dtype: torch.dtype | None,
        qdtype: torch.dtype,
        zero_point: torch.dtype | None,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        for shape, trailing in itertools.product(((7, 129), (3, 2, 33)), (False, True)):
            problem = make(
                DEQUANTIZE_FORWARD, shape, dtype, device,
                scale_dtype=scale_dtype, qdtype=qdtype, zero_point=zero_point, trailing=trailing,
            )  # fmt: skip
            problem.check(problem.run())
            problem.check(problem.call())

    @pytest.mark.parametrize("zero_point", INTEGERS, ids=str)
    def test_extremes_of_zero_points(self, zero_point: torch.dtype, dtype: torch.dtype, device: str) -> None:
        """Every byte less the least and the greatest number, in float32 or wider: an exact difference where it fits."""
        info = torch.iinfo(zero_point)
        z = torch.tensor([info.min, info.max, 0], dtype=zero_point, device=device)
        scale = torch.tensor([0.25, -0.5, 3.0], device=device).to(dtype)
        for qdtype in (torch.int8, torch.uint8):
            q = torch.arange(256, dtype=torch.uint8, device=device).view(qdtype).repeat(3, 1)
            wide = torch.promote_types(dtype, F32)
            want = ((q.to(wide) - z[:, None].to(wide)) * scale[:, None].to(wide)).to(dtype)
            assert torch.equal(sw.dequantize_per_token(q, scale, z), want)

    def test_rounded_once(self, dtype: torch.dtype, device: str) -> None:
        """Every byte by scales of y's dtype: the product is exact in float64, and y is its rounding."""
        q = torch.arange(256, dtype=torch.uint8, device=device).view(torch.int8).repeat(500, 1)
        scale, z = torch.randn(500, dtype=F64).to(device, dtype), torch.arange(500, device=device) % 7
        exact = (q.to(F64) - z[:, None]) * scale[:, None].to(F64)
        assert torch.equal(sw.dequantize_per_token(q, scale, z), exact.to(dtype))

    @pytest.mark.parametrize("number", [0.0, -0.0, -1.5, float("inf"), float("-inf"), float("nan"), 1e-40])
    def test_any_scale_and_zero_point(self, number: float, dtype: torch.dtype, device: str) -> None:
        """By the formula: 0 times infinity is NaN."""
        q = torch.tensor([[-128, -1, 0, 1, 127]], dtype=torch.int8, device=device)
        x = torch.tensor([number], dtype=F64).to(device, dtype)
        wide = torch.promote_types(dtype, F32)
        for scale, z in ((x, None), (torch.ones_like(x), x), (x, x)):
            want = (q.to(wide) - (0 if z is None else z.to(wide))) * scale.to(wide)
            got = sw.dequantize_per_token(q, scale, z)
            torch.testing.assert_close(got, want.to(dtype), rtol=0, atol=0, equal_nan=True)
            assert torch.equal(got.signbit() & (got == 0), want.to(dtype).signbit() & (want.to(dtype) == 0))

    def test_dtype_of_the_result(self, device: str) -> None:
        """That of scale; another one by name or by torch's dtype, with a scale in float32."""
        q, scale = torch.ones(2, 3, dtype=torch.int8, device=device), torch.full((2,), 0.5, device=device)
        assert sw.dequantize_per_token(q, scale).dtype == F32
        assert sw.dequantize_per_token(q, scale.to(BF16)).dtype == BF16
        for dtype in (F16, "float16", np.dtype("float16")):
            assert sw.dequantize_per_token(q, scale, dtype=dtype).dtype == F16
        with pytest.raises(sw.UnsupportedError, match=r"^dequantize_per_token: scale must be float32, got float16"):
            sw.dequantize_per_token(q, scale.to(F16), dtype=F32)
        with pytest.raises(sw.UnsupportedError, match=r"^dequantize_per_token: dtype must be float32, .*, got int8"):
            sw.dequantize_per_token(q, scale, dtype=torch.int8)
        with pytest.raises(sw.UnsupportedError, match=r"^dequantize_per_token: scale must be float32, .*, got int64"):
            sw.dequantize_per_token(q, scale.long())
        with pytest.raises(sw.UnsupportedError, match=r"^dequantize_per_token: q must be int8, uint8, .*, got float32"):
            sw.dequantize_per_token(q.float(), scale)

    def test_layout_of_q(self, dtype: torch.dtype, device: str) -> None:
        """A permuted q gives a y of its strides, and the bits of a contiguous one."""
        q = torch.randint(-128, 128, (4, 5, 6), dtype=torch.int8, device=device).permute(1, 2, 0)
        scale = torch.rand(5, 6, device=device)
        y = sw.dequantize_per_token(q, scale, dtype=dtype)
        assert y.stride() == q.stride()
        assert torch.equal(y, sw.dequantize_per_token(q.contiguous(), scale, dtype=dtype))

    def test_y_is_not_written_over_q(self, device: str) -> None:
        bytes_ = torch.zeros(64, dtype=torch.int8, device=device)
        q, y = bytes_[:16].view(4, 4), bytes_.view(F32).view(4, 4)
        with pytest.raises(sw.InvalidProblemError, match="y must be disjoint from q"):
            sw.dequantize_per_token(q, torch.ones(4, device=device), out=y)

    def test_the_drop_in_agrees(self, dtype: torch.dtype, device: str) -> None:
        problem = make(DEQUANTIZE_FORWARD, (9, 130), dtype, device, zero_point=torch.int32)
        assert torch.equal(problem.call()["y"], st.dequantize_per_token(*problem.inputs.values()))


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.slow
def test_more_than_2_to_the_31_elements() -> None:
    """2^31 + 2^15 elements, expanded dy and q: dx of every row, and the sums."""
    rows, n = 2**16 + 1, 2**15
    dy = torch.ones((), device="cuda", dtype=F16).expand(rows, n)
    q = torch.full((), 3, device="cuda", dtype=torch.int8).expand(rows, n)
    scale = torch.arange(rows, device="cuda", dtype=F32).remainder(1024)
    dx, dscale, dz = sw.dequantize_per_token_backward(dy, scale, q=q, zero_point=torch.ones(rows, device="cuda"))
    assert all(
        torch.equal(part, s[:, None].expand_as(part).to(F16)) for part, s in zip(dx.split(4096), scale.split(4096), strict=True)
    )
    assert (dscale == 2 * n).all()
    assert torch.equal(dz, -scale * n)


# --- sternway.torch.dequantize_per_token ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64, "float32", np.float32], ids=str)
def test_the_result_is_floating(dtype: Any, device: str) -> None:
    """An integer result would be cut off."""
    with pytest.raises(
        sw.UnsupportedError, match=r"^sternway\.torch\.dequantize_per_token: dtype must be one of float32, .*got "
    ):
        st.dequantize_per_token(torch.ones(2, 3, dtype=torch.int8, device=device), torch.ones(2, device=device), dtype=dtype)


def test_what_the_backward_refuses_is_refused_before_the_forward(device: str) -> None:
    """In the words of the drop-in, whether a gradient is asked for or not."""
    q, scale = torch.ones([1] * 9, dtype=torch.int8, device=device), torch.rand([1] * 8, device=device)
    for given in (scale, scale.clone().requires_grad_()):
        with pytest.raises(sw.Error, match=r"^sternway\.torch\.dequantize_per_token: q must be ") as caught:
            st.dequantize_per_token(q, given)
        assert "dy" not in str(caught.value)


def test_functions_name_their_own_operands(device: str) -> None:
    dy, scale = torch.ones(2, 3, device=device), torch.ones(2, device=device)
    for wrong, operand in (
        ({"dy": dy.int()}, "dy"),
        ({"dy": torch.ones([1] * 9, device=device)}, "dy"),
        ({"q": dy}, "q"),
        ({"scale": scale.int()}, "scale"),
    ):
        with pytest.raises(sw.Error, match=rf"^dequantize_per_token_backward: {operand} must be "):
            sw.dequantize_per_token_backward(**{"dy": dy, "scale": scale, **wrong})


def test_a_scale_of_another_dtype_is_read_as_the_forward_reads_it() -> None:
    """Beside a 16-bit result the forward multiplies by it in float32, and so does the backward."""
    q, scale = torch.ones(3, 4, dtype=torch.int8), torch.tensor([0.1, 0.7, 1.3], dtype=F16)
    z = torch.zeros(3, dtype=F32, requires_grad=True)
    y = st.dequantize_per_token(q, scale, z, dtype=BF16)
    assert torch.equal(torch.autograd.grad(y.sum(), z)[0], -4 * scale.float())


class Dequantized(torch.nn.Module):
    """A layer that learns its scale and its zero point."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.register_buffer("q", torch.arange(-32, 32, dtype=torch.int8, device=device).reshape(4, 16))
        self.scale = torch.nn.Parameter(torch.rand(4, 1, device=device).add(0.1))
        self.zero_point = torch.nn.Parameter(torch.rand(4, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * st.dequantize_per_token(self.q, self.scale, self.zero_point)


@pytest.mark.parametrize("strict", [False, True], ids=["not strict", "strict"])
def test_an_exported_module_trains(strict: bool, device: str) -> None:
    """With our gradient, also after a round trip through a file."""
    module, x = Dequantized(device), torch.randn(4, 16, device=device)
    want = torch.autograd.grad(module(x).square().sum(), (module.scale, module.zero_point))
    program = torch.export.export(module, (x,), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for exported in (program, torch.export.load(file), program.run_decompositions()):
        assert "sternway.dequantize." in exported.graph_module.code
        ran = exported.module()
        parameters = dict(ran.named_parameters())
        grads = torch.autograd.grad(ran(x).square().sum(), (parameters["scale"], parameters["zero_point"]))
        for ours, eager in zip(grads, want, strict=True):
            torch.testing.assert_close(ours, eager)


def test_the_operator_of_the_forward(device: str) -> None:
    q, scale = torch.ones(5, 3, dtype=torch.int8, device=device).T, torch.rand(3, device=device).requires_grad_()
    torch.library.opcheck(torch.ops.sternway.dequantize.default, (q, scale, None, F16))
