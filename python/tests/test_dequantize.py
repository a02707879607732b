"""dequantise per token: dtypes of q, scale and zero_point, both shapes of the per-row operands."""

from __future__ import annotations

import itertools

import pytest
import torch
from conformance import Conformance
from families import DEQUANTIZE, make
from families.dequantize import INTEGERS, ZERO_POINTS
from support import F16, F32, F64

import sternway as sw


class TestDequantize(Conformance):
    family = DEQUANTIZE

    @pytest.mark.parametrize("zero_point", ZERO_POINTS, ids=str)
    @pytest.mark.parametrize("qdtype", [torch.int8, torch.uint8], ids=str)
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


@pytest.mark.gpu
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
