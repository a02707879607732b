"""The forward scans: lengths, special values, products that leave the range, ties, indices, outputs of functions."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
import torch
from conformance import Conformance
from families import Family, Problem, make
from families.scan import FORWARD_SCANS, back, places, rows_of
from support import (
    BF16,
    DIRECTIONS,
    F16,
    F32,
    F64,
    FLOATS,
    INPUT_LAYOUTS,
    OUTPUT_LAYOUTS,
    Guarded,
    Maker,
    Snapshot,
    arrange,
    pairwise,
)

import sternway as sw
from sternway._kinds import EXTREMA

INF, NAN = math.inf, math.nan
# One and two; around a warp and a group of lanes; where rows need no tiles; rows that are cut into parts.
LENGTHS = (1, 2, 31, 32, 33, 100, 130, 1000, 8192, 65536)
# Vectors of four, full or not; where sums in float64 are compensated; where rows need no transposition.
SHORT_LENGTHS = (1, 3, 4, 5, 8, 16, 17, 127, 128)
NAME = operator.attrgetter("name")
EACH_SCAN = pytest.mark.parametrize("scan", FORWARD_SCANS.values(), ids=NAME)


def problem_of(family: Family, x: torch.Tensor, **fields: Any) -> Problem:
    """A problem of a given x."""
    descriptor = sw.ScanDescriptor(family.name.removesuffix("_forward"), x.shape, x.dtype, **fields)
    return Problem(family, descriptor, {"x": x}, family.truth(descriptor, {"x": x}))


def scanned(kind: str, x: list[float], dtype: torch.dtype, device: str, reverse: bool, pad: float | None) -> torch.Tensor:
    """y of one row, by a plan, over NaN: alone, and with a pad as the end of a row that is cut into parts."""
    row = torch.tensor(x, dtype=F64)
    if pad is not None:
        row = torch.cat((torch.full((3000,), pad, dtype=F64), row))
    row = (row.flip(0) if reverse else row).to(device, dtype)
    plan = sw.ScanPlan.select(sw.ScanDescriptor(kind, row.shape, dtype, reverse=reverse), device)
    out = Guarded(row.shape, dtype, device)
    plan.run(x=row, y=out.tensor)
    y = out.take().cpu()
    return (y.flip(0) if reverse else y)[-len(x) :]


class Scans(Conformance):
    """What every kind must hold besides."""

    @DIRECTIONS
    @pytest.mark.parametrize("n", LENGTHS)
    def test_length(self, n: int, reverse: bool, dtype: torch.dtype, device: str) -> None:
        """The scanned dimension last, first and in the middle; two and four rows that alternate."""
        rows = 5 if n < 8192 else 2
        for shape, dim in (((rows, n), 1), ((n, rows), 0), ((2, n, 3), 1), ((1, n), -1), ((n, 4), 0), ((2, n, 2), 1)):
            problem = make(self.family, shape, dtype, device, dim=dim, reverse=reverse)
            problem.check(problem.run(), rival=not reverse and n <= 1000)

    @DIRECTIONS
    @pytest.mark.parametrize("n", SHORT_LENGTHS)
    def test_many_short_rows(self, n: int, reverse: bool, dtype: torch.dtype, device: str) -> None:
        """Eight rows, and thirteen, of which the last eight overlap the first, on the CPU; with special values in some."""
        for rows in (8, 13):
            problem = make(self.family, (rows, n), dtype, device, reverse=reverse)
            problem.check(problem.run(), rival=not reverse)
            for special in (NAN, INF, -INF, 0.0, -0.0):
                x = problem.inputs["x"].clone()
                x[1, 0] = x[4, n // 2] = x[7, n - 1] = x[rows - 1, n // 3] = special
                other = problem_of(self.family, x, reverse=reverse)
                other.check(other.run())
        for layout in INPUT_LAYOUTS:
            problem = make(self.family, (13, n), dtype, device, reverse=reverse, layouts=layout)
            for out in OUTPUT_LAYOUTS:
                problem.check(problem.run(layout=out))

    @DIRECTIONS
    def test_layouts_of_rows_that_alternate(self, reverse: bool, dtype: torch.dtype, device: str) -> None:
        shapes = ((300, 4), (300, 2), (300, 3), (3, 200))
        for shape, layout, out in pairwise(shapes, INPUT_LAYOUTS, OUTPUT_LAYOUTS):
            problem = make(self.family, shape, dtype, device, dim=0, reverse=reverse, layouts=layout)
            problem.check(problem.run(layout=out))

    def test_special_values_anywhere(self, dtype: torch.dtype, device: str) -> None:
        for n, special, place, dim in pairwise((40, 1000, 5000), (NAN, INF, -INF, 0.0), (0, 1, 0.5, -1), (0, 1)):
            x = make(self.family, (3, n), dtype, device).inputs["x"]
            at = n // 2 if place == 0.5 else place % n
            x[1, at] = x[2, at // 2] = special
            problem = problem_of(self.family, x if dim else x.T.contiguous(), dim=dim)
            problem.check(problem.run())


class TestCumsum(Scans):
    family = FORWARD_SCANS["cumsum"]

    def test_16_bit_sums_are_carried_in_float32(self, device: str) -> None:
        """8192 terms in bfloat16, of which a sum in bfloat16 loses 4 percent; and 65536 ones."""
        x = torch.rand(4, 8192, generator=torch.Generator().manual_seed(0)).to(device, BF16)
        problem = problem_of(self.family, x)
        problem.check(problem.run())
        for shape, dim in (((65536,), 0), ((65536, 4), 0), ((2, 65536), 1)):
            y = sw.cumsum(torch.ones(shape, dtype=BF16, device=device), dim).double().cpu().movedim(dim, -1)
            want = torch.arange(1, 65537, dtype=F64).to(BF16).double().expand(y.shape)
            assert torch.equal(y, want)

    @DIRECTIONS
    def test_ones_that_float32_loses(self, reverse: bool) -> None:
        """Two ones behind 2^24, each of which a sum in float32 loses, are there together. A GPU sums in float32."""
        for pad in (None, 0.0):
            y = scanned("cumsum", [2.0**24, 1, 1], F32, "cpu", reverse, pad)
            assert y.tolist() == [2.0**24, 2.0**24, 2.0**24 + 2]

    @DIRECTIONS
    def test_infinities(self, reverse: bool, dtype: torch.dtype, device: str) -> None:
        for pad in (None, 0.0):
            y = scanned("cumsum", [1, INF, 2, -INF, 3], dtype, device, reverse, pad)
            assert y.tolist()[:3] == [1, INF, INF]
            assert y[3:].isnan().all()


# x, y, and the dtypes whose range the numbers are about
PRODUCTS: dict[str, tuple[list[float], list[float], tuple[torch.dtype, ...]]] = {
    "above and back": ([1e30, 1e30, 1e-30], [1e30, INF, 1e30], (F32, BF16)),
    "below and back": ([1e-30, 1e-30, 1e30], [1e-30, 0, 1e-30], (F32, BF16)),
    "above and back in 16 bits": ([2.0**10, 2.0**10, 2.0**-10], [2.0**10, INF, 2.0**10], (F16,)),
    "above and back in 64 bits": ([1e200, 1e200, 1e-200], [1e200, INF, 1e200], (F64,)),
    "below and back in 64 bits": ([2.0**-1000, 2.0**-1000, 2.0**1000], [2.0**-1000, 0, 2.0**-1000], (F64,)),
    "far beyond float64": ([2.0**100] * 30 + [2.0**-100] * 30, [2.0**100] + [INF] * 57 + [2.0**100, 1], (F32, BF16)),
    "subnormal": ([2.0**-1000, 1.5 * 2.0**-70, 0.125], [2.0**-1000, 1.5 * 2.0**-1070, 1.5 * 2.0**-1073], (F64,)),
    "subnormal in float32": ([2.0**-100, 2.0**-49, 0.5, 2.0**50], [2.0**-100, 2.0**-149, 0, 2.0**-100], (F32,)),
    "infinity ended by zero": ([INF, 0], [INF, 0], FLOATS),
    "a zero stays": ([2, 0, INF, 3], [2, 0, 0, 0], FLOATS),
    "NaN stays": ([2, 0, NAN, 0], [2, 0, NAN, NAN], FLOATS),
    "NaN and infinity": ([NAN, 0, INF], [NAN, NAN, NAN], FLOATS),
    "subnormal factors": (
        [2.0**-1074, 2.0**1000, 2.0**-1074, 2.0**1023, 2.0**100], [2.0**-1074, 2.0**-74, 0, 2.0**-125, 2.0**-25], (F64,)
    ),
    "signs of zero": ([-1, 0, -2, 3], [-1, -0.0, 0, 0], FLOATS),
    "signs": ([-1, 2, -INF, -1], [-1, -2, INF, -INF], FLOATS),
}  # fmt: skip


class TestCumprod(Scans):
    family = FORWARD_SCANS["cumprod"]

    @DIRECTIONS
    @pytest.mark.parametrize(
        ("x", "want", "dtype"),
        [pytest.param(*row[:2], dtype, id=f"{name} {dtype}") for name, row in PRODUCTS.items() for dtype in row[2]],
    )
    def test_values(self, x: Any, want: Any, dtype: torch.dtype, reverse: bool, device: str) -> None:
        want = torch.tensor(want, dtype=F64).to(dtype)
        for pad in (None, 1.0):
            y = scanned("cumprod", x, dtype, device, reverse, pad)
            torch.testing.assert_close(y, want, rtol=2 * torch.finfo(dtype).eps, atol=0, equal_nan=True)
            if device == "cpu":  # a GPU adds the rounding error of a product, 0, to a zero
                assert torch.equal(y.signbit()[want == 0], want.signbit()[want == 0])
        rows = torch.ones(13, len(x), dtype=F64)
        rows[2] = rows[7] = rows[12] = torch.tensor(x, dtype=F64)
        rows = (rows.flip(1) if reverse else rows).to(device, dtype)
        y = sw.cumprod(rows, reverse=reverse).cpu()
        y = y.flip(1) if reverse else y
        for k in range(13):
            expected = want if k in (2, 7, 12) else torch.ones(len(x), dtype=dtype)
            torch.testing.assert_close(y[k], expected, rtol=2 * torch.finfo(dtype).eps, atol=0, equal_nan=True)

    def test_random_walks_out_of_the_range(self, dtype: torch.dtype, device: str) -> None:
        """Products of normal numbers underflow and come back when the row is mirrored by its reciprocals."""
        g = torch.Generator().manual_seed(3)
        half = torch.exp2(torch.randint(-3, 4, (5, 1500), generator=g).double() - 1)
        walk = torch.cat((half, half.flip(1).reciprocal(), half), 1)
        for shape, dim in ((walk.shape, 1), (walk.T.shape, 0)):
            x = (walk if dim else walk.T).contiguous().to(device, dtype)
            assert x.shape == shape
            problem = problem_of(self.family, x, dim=dim)
            problem.check(problem.run())

    def test_gradual_underflow(self, dtype: torch.dtype, device: str) -> None:
        x = torch.full((3, 4000), 0.71875)
        x[1] = -0.5
        problem = problem_of(self.family, x.to(device, dtype))
        problem.check(problem.run())


# kind, tie, x, indices
TIES: dict[str, tuple[str, str, list[float], list[int]]] = {
    "the last": ("cummax", "last", [1, 3, 2, 3, 0], [0, 1, 1, 3, 3]),
    "the first": ("cummax", "first", [1, 3, 2, 3, 0], [0, 1, 1, 1, 1]),
    "the last minimum": ("cummin", "last", [2, 1, 1, 5], [0, 1, 2, 2]),
    "the first minimum": ("cummin", "first", [2, 1, 1, 5], [0, 1, 1, 1]),
    "zeros of both signs": ("cummax", "last", [0.0, -0.0, 0.0], [0, 1, 2]),
    "zeros of both signs, the first": ("cummax", "first", [-0.0, 0.0], [0, 0]),
    "NaN, the last": ("cummax", "last", [1, NAN, 5, NAN, INF], [0, 1, 1, 3, 3]),
    "NaN, the first": ("cummax", "first", [1, NAN, 5, NAN, INF], [0, 1, 1, 1, 1]),
    "NaN beats minima": ("cummin", "first", [1, NAN, -INF, NAN], [0, 1, 1, 1]),
    "-inf alone": ("cummax", "first", [-INF, -INF, 1], [0, 0, 2]),
    "-inf alone, the last": ("cummax", "last", [-INF, -INF], [0, 1]),
    "inf for minima": ("cummin", "last", [INF, INF, 1], [0, 1, 2]),
}


class Extrema(Scans):
    def compare(self, x: torch.Tensor, dim: int, reverse: bool, tie: str, layout: str = "contiguous") -> None:
        """A run of a plan with indices, against the positions by definition; values are x there, bit for bit."""
        problem = problem_of(self.family, x, dim=dim, reverse=reverse, tie=tie)
        y = Guarded(x.shape, x.dtype, str(x.device), layout)
        indices = Guarded(x.shape, torch.int64, str(x.device), layout)
        before = Snapshot({"x": x})
        problem.plan().run(x=x, y=y.tensor, indices=indices.tensor)
        before.check()
        values, found = y.take(), indices.take()
        rows, sign = rows_of(x, dim, reverse), 1 if self.family is FORWARD_SCANS["cummax"] else -1
        want = back(places(sign, rows, tie), x, dim, reverse).long()
        n = x.shape[dim]
        want = n - 1 - want if reverse else want
        assert torch.equal(found, want)
        taken = x.gather(dim, want)
        assert torch.equal(values.isnan(), taken.isnan())
        numbers = ~taken.isnan()
        assert torch.equal(values[numbers], taken[numbers])
        assert torch.equal(values[numbers].signbit(), taken[numbers].signbit())
        alone = problem.run()["y"]
        assert torch.equal(alone.nan_to_num(7.0), values.nan_to_num(7.0))

    @DIRECTIONS
    def test_ties(self, reverse: bool, dtype: torch.dtype, device: str) -> None:
        for kind, tie, row, want in TIES.values():
            if self.family is FORWARD_SCANS[kind]:
                x = torch.tensor(row, dtype=dtype, device=device)
                x = x.flip(0) if reverse else x
                indices = getattr(sw, kind)(x, reverse=reverse, tie=tie)[1].tolist()
                assert (indices[::-1] if reverse else indices) == [len(row) - 1 - k if reverse else k for k in want], (tie, row)

    @DIRECTIONS
    @pytest.mark.parametrize("tie", ["last", "first"])
    @pytest.mark.parametrize("n", [1, 7, 33, 130, 1000, 2500])
    def test_indices(self, n: int, tie: str, reverse: bool, dtype: torch.dtype, device: str) -> None:
        """Many ties, zeros of both signs and NaN; rows, columns, rows that alternate, and every layout of outputs."""
        g = torch.Generator().manual_seed(n)
        for shape, dim in (((3, n), 1), ((13, n), 1), ((n, 3), 0), ((n, 4), 0), ((2, n, 2), 1)):
            x = torch.randint(-3, 4, shape, generator=g).double() * torch.where(torch.rand(shape, generator=g) < 0.5, 1.0, -1.0)
            self.compare(x.to(device, dtype), dim, reverse, tie)
            x[torch.rand(shape, generator=g) < 1 / (n + 3)] = NAN
            x[torch.rand(shape, generator=g) < 1 / (n + 3)] = -INF
            self.compare(x.to(device, dtype), dim, reverse, tie)

    @pytest.mark.parametrize("layout", OUTPUT_LAYOUTS)
    def test_layout_of_the_indices(self, layout: str, device: str) -> None:
        for shape in ((5, 3, 34), (4, 200)):
            x = make(self.family, shape, F32, device).inputs["x"]
            for dim in range(len(shape)):
                self.compare(x, dim, False, "last", layout)

    @pytest.mark.parametrize("layout", INPUT_LAYOUTS)
    def test_indices_of_any_layout(self, layout: str, device: str) -> None:
        x = arrange(make(self.family, (6, 5, 40), F32, device).inputs["x"], layout)
        for dim in range(3):
            for reverse in (False, True):
                self.compare(x, dim, reverse, "last")

    def test_torch(self, dtype: torch.dtype, device: str) -> None:
        """Values and indices of torch's own operation."""
        kind = self.family.name.removesuffix("_forward")
        for shape, dim in (((), 0), ((0, 3), 0), ((5, 700), 1), ((700, 5), 0), ((70000,), 0)):
            x = make(self.family, shape, dtype, device).inputs["x"]
            values, indices = getattr(sw, kind)(x, dim)
            want = getattr(torch, kind)(x, dim)
            assert torch.equal(values, want.values)
            assert torch.equal(indices, want.indices)

    def test_outputs_of_the_function(self, device: str) -> None:
        kind = getattr(sw, self.family.name.removesuffix("_forward"))
        x = make(self.family, (6, 37), F32, device).inputs["x"]
        values, indices = kind(x, 0)
        y, found = torch.full_like(x, NAN), torch.full_like(indices, -1)
        pair = kind(x, 0, out=(y, found))
        assert pair[0] is y
        assert pair[1] is found
        assert torch.equal(y, values)
        assert torch.equal(found, indices)
        for out in (torch.full_like(x, NAN), (torch.full_like(x, NAN),), (torch.full_like(x, NAN), None)):
            alone = kind(x, 0, out=out)
            assert alone is (out[0] if isinstance(out, tuple) else out)
            assert torch.equal(alone, values)
        for out in ((y, found, y), (None, found), ()):
            with pytest.raises(sw.InvalidProblemError) as caught:
                kind(x, 0, out=out)
            assert caught.value.operand == "out"

    def test_numpy_pair(self) -> None:
        x = np.array([[2.0, 1.0, 3.0]])
        values, indices = getattr(sw, self.family.name.removesuffix("_forward"))(x)
        assert type(values) is type(indices) is np.ndarray
        assert indices.dtype == np.int64


# x and y
SOFTS: dict[str, tuple[list[float], list[float]]] = {
    "all -inf": ([-INF, -INF], [-INF, -INF]),
    "-inf first": ([-INF, 0, -INF], [-INF, 0, 0]),
    "infinities": ([1, INF, INF, -INF], [1, INF, INF, INF]),
    "NaN stays": ([1, NAN, INF, -INF], [1, NAN, NAN, NAN]),
    "NaN after -inf": ([-INF, NAN], [-INF, NAN]),
    "far apart": ([-1e4, 1e4, -1e4], [-1e4, 1e4, 1e4]),
    "equal": ([0, 0], [0, math.log(2)]),
}


class TestLogcumsumexp(Scans):
    family = FORWARD_SCANS["logcumsumexp"]

    @DIRECTIONS
    @pytest.mark.parametrize(("x", "want"), SOFTS.values(), ids=SOFTS.keys())
    def test_values(self, x: Any, want: Any, reverse: bool, dtype: torch.dtype, device: str) -> None:
        for pad in (None, -INF):
            y = scanned("logcumsumexp", x, dtype, device, reverse, pad)
            torch.testing.assert_close(
                y, torch.tensor(want, dtype=F64).to(dtype), rtol=torch.finfo(dtype).eps, atol=0, equal_nan=True
            )

    @pytest.mark.parametrize(("dtype", "offset"), [(BF16, 30.0), (F16, 30.0), (F32, 1e6), (F64, 1e12), (F32, -1e6)], ids=str)
    def test_offsets(self, dtype: torch.dtype, offset: float, device: str) -> None:
        for n in (40, 1000, 5000):
            x = make(self.family, (3, n), dtype, device).inputs["x"] + offset
            problem = problem_of(self.family, x)
            problem.check(problem.run())

    def test_a_small_term_beside_zero(self, device: str) -> None:
        """y is log(1 + e^-40), which a sum that is rounded to 1 loses."""
        for dtype in (F32, F64):
            y = sw.logcumsumexp(torch.tensor([0.0, -40.0], dtype=dtype, device=device)).cpu()
            torch.testing.assert_close(y[1].double(), torch.tensor(-40.0, dtype=F64).exp(), rtol=1e-6, atol=0)


# A kind that has no class above runs the tests of all kinds.
for _kind, _scan in FORWARD_SCANS.items():
    _name, _base = f"Test{_kind.title()}", Extrema if _kind in EXTREMA else Scans
    globals().setdefault(_name, type(_name, (_base,), {"family": _scan}))


@EACH_SCAN
def test_wrong_calls(scan: Family) -> None:
    kind = scan.name.removesuffix("_forward")
    function, x = getattr(sw, kind), torch.ones(3, 4)
    for dim in (-3, 2, 2**40):
        with pytest.raises(sw.InvalidProblemError, match=rf"^{kind}: dim must be between -2 and 1"):
            function(x, dim)
    with pytest.raises(sw.InvalidProblemError, match=rf"^{kind}: out must be disjoint from x, got the same memory"):
        function(x, out=x)
    with pytest.raises(sw.InvalidProblemError, match=rf"^{kind}: out must be of shape \[3, 4\]"):
        function(x, out=torch.ones(4, 3))
    with pytest.raises(sw.InvalidProblemError, match=rf"^{kind}: out must be float32"):
        function(x, out=x.double())
    with pytest.raises(sw.UnsupportedError, match=rf"^{kind}: x must be float32"):
        function(x.int())
    with pytest.raises(TypeError):
        function([1.0, 2.0])
    assert torch.equal(x, torch.ones(3, 4))


@pytest.mark.parametrize("scan", [scan for kind, scan in FORWARD_SCANS.items() if kind not in EXTREMA], ids=NAME)
def test_indices_of_a_kind_without(scan: Family) -> None:
    problem = make(scan, (5,), F32, "cpu")
    with pytest.raises(sw.InvalidProblemError, match="only cummax and cummin have indices") as caught:
        problem.plan().run(**problem.inputs, y=torch.empty(5), indices=torch.zeros(5, dtype=torch.int64))
    assert caught.value.operand == "indices"


def test_unknown_kind_and_tie() -> None:
    with pytest.raises(sw.UnsupportedError, match="scan: kind must be cumsum"):
        sw.ScanPlan.select(sw.ScanDescriptor("cumall", (3,), F32), "cpu")
    with pytest.raises(sw.UnsupportedError, match="cummax: tie must be last or first"):
        sw.cummax(torch.ones(3), tie="middle")


@pytest.mark.slow
def test_one_row_of_2_to_the_26_elements(device: str) -> None:
    """A sum of ones in float32, exact at every position up to 2^24, and one rounding from it beyond."""
    n = 2**26
    y = sw.cumsum(torch.ones(1, n, device=device)).cpu()
    assert torch.equal(y[0], torch.arange(1, n + 1, dtype=F64).to(F32))


def test_layout_of_new_outputs(device: str) -> None:
    """New outputs have x's strides."""
    x = Maker(F32, device).floats((6, 5)).T
    for y in (sw.cumsum(x), *sw.cummax(x)):
        assert y.stride() == x.stride()
