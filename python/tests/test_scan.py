"""The gradients of scans: lengths, special values, ties, indices, PyTorch's samples, properties that tie runs to each other."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from conformance import Conformance, same_bits
from families import Family, Problem, make
from families.scan import SCANS
from hypothesis import given
from hypothesis import strategies as st
from support import BF16, DIRECTIONS, F16, F32, F64, Maker, Snapshot, bits, check
from torch.testing._internal.common_methods_invocations import op_db

import sternway as sw
from sternway._kinds import EXTREMA, KINDS

INF, NAN = math.inf, math.nan
# One and two; around a warp and a group of lanes; a tile and a half; rows that a block holds; rows that are cut into parts.
LENGTHS = (1, 2, 31, 32, 33, 100, 1000, 8192, 16384, 65536)
EACH_SCAN = pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)


def takes_x(family: Family) -> bool:
    return "x" in KINDS[family.name].operands


def problem_of(family: Family, inputs: dict[str, torch.Tensor], **fields: Any) -> Problem:
    """A problem of given operands."""
    dy = inputs["dy"]
    descriptor = sw.ScanBackwardDescriptor(family.name, dy.shape, dy.dtype, **fields)
    return Problem(family, descriptor, inputs, family.truth(descriptor, inputs))


def of_rows(family: Family, dy: Any, x: Any, dtype: torch.dtype, device: str, **fields: Any) -> Problem:
    """A problem of numbers; dy may be one number for all."""
    x = torch.tensor(x, dtype=F64)
    dy = torch.as_tensor(dy, dtype=F64).expand(x.shape).contiguous()
    inputs = {"dy": dy.to(device, dtype), "x": x.to(device, dtype)}
    if not takes_x(family):
        del inputs["x"]
    return problem_of(family, inputs, **fields)


class Scans(Conformance):
    """What every kind must hold besides."""

    @DIRECTIONS
    @pytest.mark.parametrize("n", LENGTHS)
    def test_length(self, n: int, reverse: bool, dtype: torch.dtype, device: str) -> None:
        """The scanned dimension last, first and in the middle."""
        rows = 5 if n < 8192 else 2
        for shape, dim in (((rows, n), 1), ((n, rows), 0), ((2, n, 3), 1), ((1, n), -1)):
            problem = make(self.family, shape, dtype, device, dim=dim, reverse=reverse)
            problem.check(problem.run(), rival=not reverse and n <= 1000)

    def test_tall_and_narrow(self, dtype: torch.dtype, device: str) -> None:
        for shape in ((2**17, 2), (2, 2**17), (2**16, 1), (40000, 3)):
            problem = make(self.family, shape, dtype, device, dim=0)
            problem.check(problem.run())

    def test_short_and_wide(self, dtype: torch.dtype, device: str) -> None:
        """More columns side by side than a small block has threads."""
        problem = make(self.family, (16, 40000), dtype, device, dim=0)
        problem.check(problem.run())

    @DIRECTIONS
    @pytest.mark.parametrize(
        ("shape", "dim"),
        [((128, 4096), 0), ((1100, 520), 0), ((5, 1024, 328), 1), ((9000, 128), 0), ((3, 130, 2048), 1)],
        ids=str,
    )
    def test_long_columns(self, shape: tuple[int, ...], dim: int, reverse: bool, dtype: torch.dtype, device: str) -> None:
        """Tiles that are full and some that are not, the last columns too; one tile, several, and parts of a column."""
        problem = make(self.family, shape, dtype, device, dim=dim, reverse=reverse)
        problem.check(problem.run(), rival=False)

    @pytest.mark.parametrize(
        ("shape", "layout"),
        [
            pytest.param((400, 1300), "transposed", id="columns"),
            pytest.param((6, 120000), "contiguous", id="parts of rows"),
            pytest.param((300, 18000), "contiguous", id="rows", marks=pytest.mark.gpu),  # a block for each
        ],
    )
    def test_special_values_in_long_rows(self, shape: tuple[int, int], layout: str, dtype: torch.dtype, device: str) -> None:
        """Some rows need all the care there is, and the ones beside them do not."""
        problem = make(self.family, shape, dtype, device, dim=1, layouts=layout)
        changed = problem.inputs["x" if takes_x(self.family) else "dy"]
        n = shape[1]
        for row, place, special in (
            (0, 0, -INF),
            (1, n // 2, INF),
            (2, n - 1, NAN),
            (-1, n // 2 - 7, 0),
            (-2, 3, 0),
            (-3, 3, 4e3),
        ):
            if special < INF or self.family.name != "logcumsumexp":  # whose truth takes hours then
                changed[row, place] = special
        problem = problem_of(self.family, problem.inputs, dim=1)
        problem.check(problem.run(layout=layout))

    @pytest.mark.parametrize("layout", ["transposed", "rotated", "stepped", "pitched", "offset", "expanded", "inner_expanded"])
    @pytest.mark.parametrize("dim", [0, 1, 2])
    def test_dim_and_layout(self, dim: int, layout: str, device: str) -> None:
        for reverse in (False, True):
            problem = make(self.family, (6, 70, 35), F32, device, dim=dim, reverse=reverse, layouts=layout)
            problem.check(problem.run(layout="pitched"))

    def test_reverse_is_a_mirror(self, dtype: torch.dtype, device: str) -> None:
        """The bits of the mirrored problem, mirrored. Rows are whole shares of threads, so that the same elements meet."""
        for shape, dim in (((7, 320), 1), ((300, 7), 0), ((5000,), 0)):
            problem = make(self.family, shape, dtype, device, dim=dim)
            mirrored = {name: tensor.flip(dim) for name, tensor in problem.inputs.items()}
            there = problem_of(self.family, mirrored, dim=dim, reverse=True).run()["dx"]
            assert torch.equal(bits(there.flip(dim)), bits(problem.run()["dx"]))

    def test_linear_in_dy(self, device: str) -> None:
        """The gradient for a dy1 + b dy2 is that of each, added: exactly so for numbers that leave room for all sums."""
        problem = make(self.family, (9, 257), F64, device)
        one, two = (torch.randint(-64, 64, (9, 257)).to(device, F64) for _ in range(2))
        results = [problem_of(self.family, {**problem.inputs, "dy": dy}).run()["dx"] for dy in (one, two, 3 * one - 2 * two)]
        torch.testing.assert_close(results[2], 3 * results[0] - 2 * results[1], rtol=1e-12, atol=1e-10)

    def test_denormal_numbers_are_numbers(self, dtype: torch.dtype, device: str) -> None:
        """Subnormal dy: nothing is flushed to zero."""
        least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        dy = torch.full((3, 40), least, dtype=F64)
        problem = of_rows(self.family, dy, torch.ones(3, 40).tolist(), dtype, device)
        dx = problem.run()["dx"]
        problem.check({"dx": dx})
        assert torch.equal(dx[:, -1], problem.truth["dx"].value[:, -1].to(dtype))

    def test_more_rows_than_a_grid(self, device: str) -> None:
        problem = make(self.family, (70000, 3), F32, device)
        problem.check(problem.run())


class TestCumsum(Scans):
    family = SCANS["cumsum"]

    def test_16_bit_sums_of_ones(self, device: str) -> None:
        """65536 ones: a sum that is carried in 16 bits stops at 256 or 2048."""
        n = 65536
        want = torch.arange(n, 0, -1, dtype=F64)
        for dtype in (BF16, F16):
            dx = sw.cumsum_backward(torch.ones(n, dtype=dtype, device=device))
            assert torch.equal(dx.cpu(), want.to(dtype))

    @given(parts=st.lists(st.integers(1, 200), min_size=2, max_size=4), seed=st.integers(0, 99))
    def test_concatenation_carries(self, parts: list[int], seed: int) -> None:
        """The sums of a whole are those of its parts, each plus what stands behind it. Integers: no rounding."""
        dy = torch.randint(-99, 99, (3, sum(parts)), generator=torch.Generator().manual_seed(seed)).to(F32)
        pieces = dy.split(parts, 1)
        behind = [dy[:, sum(parts[: i + 1]) :].sum(1, keepdim=True) for i in range(len(parts))]
        want = torch.cat([sw.cumsum_backward(piece) + rest for piece, rest in zip(pieces, behind, strict=True)], 1)
        assert torch.equal(sw.cumsum_backward(dy), want)

    def test_reverse_twice(self, device: str) -> None:
        """A sum from the right of one from the left, for dy = e_k: the numbers k + 1 .. 1 and 1 .. n - k meet."""
        dy = torch.zeros(100, device=device)
        dy[40] = 1
        twice = sw.cumsum_backward(sw.cumsum_backward(dy), reverse=True)
        assert twice.tolist() == [*range(1, 42), *[41] * 59]

    def test_infinities_meet(self, dtype: torch.dtype, device: str) -> None:
        problem = of_rows(
            self.family, [[1.0, -INF, INF, 2.0], [1.0, INF, 1.0, 1.0], [NAN, 1.0, 1.0, 1.0]], [[0.0] * 4] * 3, dtype, device
        )
        problem.check(problem.run())


# x, dy and what is wanted
PRODUCTS = {
    "one zero": ([2, 0, 3, 4], 1, [1, 32, 0, 0]),
    "two zeros": ([0, 2, 0, 5], 1, [3, 0, 0, 0]),
    "all zeros": ([0, 0, 0], 1, [1, 0, 0]),
    "zero first": ([0, 2, 3], 1, [9, 0, 0]),
    "zero last": ([2, 3, 0], 1, [4, 2, 6]),
    "zero alone": ([0], 5, [5]),
    "negative zero": ([2, -0.0, 3], 1, [1, 8, 0]),
    "beyond float32": ([1e30, 1e30, 1e-30], [1, 0, 0], [1, 0, 0]),
    "zero cuts infinity": ([2, 0, INF, 4], 1, [1, INF, 0, 0]),
    "zero cuts an infinite dy": ([2, 0, 3], [1, 1, INF], [1, INF, 0]),
    "zero does not cut NaN": ([2, 0, NAN], 1, [NAN, NAN, 0]),
    "NaN": ([2, NAN, 3], [1, 0, 0], [NAN, 0, NAN]),
}


class TestCumprod(Scans):
    family = SCANS["cumprod"]

    @DIRECTIONS
    @pytest.mark.parametrize(("x", "dy", "want"), PRODUCTS.values(), ids=PRODUCTS.keys())
    def test_values(self, x: Any, dy: Any, want: Any, reverse: bool, device: str) -> None:
        for dtype in (F32, F64):
            dy = torch.as_tensor(dy, dtype=dtype).expand(len(x))
            operands = [t.flip(0) if reverse else t for t in (dy, torch.tensor(x, dtype=dtype))]
            dx = sw.cumprod_backward(*(t.to(device) for t in operands), reverse=reverse).cpu()
            torch.testing.assert_close(dx.flip(0) if reverse else dx, torch.tensor(want, dtype=dtype), equal_nan=True)

    @pytest.mark.parametrize("n", [5, 33, 100, 1000, 5000])
    def test_zero_patterns(self, n: int, dtype: torch.dtype, device: str) -> None:
        """Zeros at the ends, at borders of tiles, in pairs, nearly everywhere."""
        base = make(self.family, (1, n), dtype, device)
        for places in ((0,), (n - 1,), (n // 2,), (0, n - 1), (1, 2), (n // 3, 2 * n // 3), range(0, n, 7), range(n)):
            inputs = {name: tensor.clone() for name, tensor in base.inputs.items()}
            inputs["x"][0, [p for p in places if p < n]] = 0
            problem = problem_of(self.family, inputs)
            problem.check(problem.run())

    @pytest.mark.parametrize("n", [8, 64, 1000, 4096])
    def test_products_beyond_the_range(self, n: int, device: str) -> None:
        """Factors 1e30, 1e30, 1e-30, 1e-30: a product carried in float32 would overflow and come back as NaN."""
        x = torch.tensor([1e30, 1e30, 1e-30, 1e-30] * (n // 4), dtype=F32, device=device)[None]
        dy = torch.zeros_like(x)
        dy[0, ::4] = 1e-30
        dy[0, -1] = 1
        problem = problem_of(self.family, {"dy": dy, "x": x})
        problem.check(problem.run())

    @pytest.mark.parametrize("every", [3, 40, 1000])
    @pytest.mark.parametrize("n", [40, 1000, 20000])
    def test_infinite_factors(self, n: int, every: int, dtype: torch.dtype, device: str) -> None:
        """An infinite factor makes -inf, 0 or inf of all that is behind it, whatever parts a row is cut into.

        Ones of both signs, so that sums are exact and often 0; zeros and infinities among the factors, then among dy as well.
        """
        for shape, dim in (((3, n), 1), ((n, 3), 0)):
            generator = torch.Generator().manual_seed(n + every)

            def pick(*values: float, shape: Any = shape, generator: Any = generator) -> torch.Tensor:
                return torch.tensor(values, dtype=F64)[torch.randint(len(values), shape, generator=generator)]

            seldom = (1.0, *[0.0] * (every - 1))
            x = torch.where(pick(*seldom) != 0, pick(0, INF, -INF), pick(1, -1))
            dy = pick(1, -1, 0, 0)
            for upstream in (dy, torch.where(pick(*seldom) != 0, pick(INF, -INF), dy)):
                problem = problem_of(self.family, {"dy": upstream.to(device, dtype), "x": x.to(device, dtype)}, dim=dim)
                problem.check(problem.run())

    @pytest.mark.parametrize("n", [40, 1000, 20000])
    def test_zero_cuts_what_is_beyond_the_range(self, n: int, device: str) -> None:
        """Behind a zero a product may be beyond every range: it goes no further."""
        x = torch.tensor([1e30, -1e30], dtype=F32).repeat(n // 2)
        x[: n // 4] = 1
        x[n // 4] = 0
        dy = torch.tensor([1, 1, -1], dtype=F32).repeat(n)[:n]
        for shape, dim in (((1, n), 1), ((n, 1), 0)):
            problem = problem_of(self.family, {"dy": dy.view(shape).to(device), "x": x.view(shape).to(device)}, dim=dim)
            problem.check(problem.run())

    @given(data=st.data())
    def test_against_all_pairs(self, data: st.DataObject, device: str) -> None:
        """dx[k] is the sum over i >= k of dy[i] times the product of all x[j], j <= i, j != k: no recurrence at all."""
        n = data.draw(st.integers(1, 12))
        factors = st.sampled_from((0.0, 1.0, -1.0, 2.0, -0.5, 3.0))
        x = torch.tensor(data.draw(st.lists(factors, min_size=n, max_size=n)), dtype=F64)
        dy = torch.tensor(data.draw(st.lists(factors, min_size=n, max_size=n)), dtype=F64)
        want = [
            sum(dy[i] * torch.cat((x[:k], x[k + 1 : i + 1])).prod() for i in range(k, n)) + torch.zeros((), dtype=F64)
            for k in range(n)
        ]
        torch.testing.assert_close(sw.cumprod_backward(dy.to(device), x.to(device)).cpu(), torch.stack(want))


# kind, tie, x, dx for dy = 1
TIES = {
    "the last": ("cummax", "last", [1, 3, 2, 3, 0], [1, 2, 0, 2, 0]),
    "the first": ("cummax", "first", [1, 3, 2, 3, 0], [1, 4, 0, 0, 0]),
    "the last minimum": ("cummin", "last", [2, 1, 1, 5], [1, 1, 2, 0]),
    "the first minimum": ("cummin", "first", [2, 1, 1, 5], [1, 3, 0, 0]),
    "all equal": ("cummax", "last", [7] * 5, [1] * 5),
    "all equal, the first": ("cummax", "first", [7] * 5, [5, 0, 0, 0, 0]),
    "zeros of both signs": ("cummax", "last", [0.0, -0.0, 0.0], [1, 1, 1]),
    "zeros of both signs, the first": ("cummax", "first", [-0.0, 0.0], [2, 0]),
    "NaN, the last": ("cummax", "last", [1, NAN, 5, NAN, INF], [1, 2, 0, 2, 0]),
    "NaN, the first": ("cummax", "first", [1, NAN, 5, NAN, INF], [1, 4, 0, 0, 0]),
    "NaN beats minima": ("cummin", "first", [1, NAN, -INF, NAN], [1, 3, 0, 0]),
    "NaN at once": ("cummin", "first", [NAN, 1, NAN], [3, 0, 0]),
    "-inf alone": ("cummax", "first", [-INF, -INF, 1], [2, 0, 1]),
    "-inf alone, the last": ("cummax", "last", [-INF, -INF], [1, 1]),
    "inf for minima": ("cummin", "last", [INF, INF, 1], [1, 1, 1]),
}


class Extrema(Scans):
    @DIRECTIONS
    def test_ties(self, reverse: bool, dtype: torch.dtype, device: str) -> None:
        for kind, tie, x, want in TIES.values():
            if kind == self.family.name:
                mirror = slice(None, None, -1) if reverse else slice(None)
                row = torch.tensor(x[mirror], dtype=dtype, device=device)
                dx = getattr(sw, f"{kind}_backward")(torch.ones_like(row), row, reverse=reverse, tie=tie)
                assert dx.tolist()[mirror] == want, (tie, x)

    @pytest.mark.parametrize("tie", ["last", "first"])
    @pytest.mark.parametrize("n", [7, 33, 100, 1000, 5000])
    def test_special_values_anywhere(self, n: int, tie: str, dtype: torch.dtype, device: str) -> None:
        base = make(self.family, (3, n), dtype, device)
        for special in (NAN, INF, -INF):
            for place in (0, 1, n // 2, n - 1):
                inputs = {name: tensor.clone() for name, tensor in base.inputs.items()}
                inputs["x"][1, place] = inputs["x"][2, place // 2] = special
                problem = problem_of(self.family, inputs, tie=tie)
                problem.check(problem.run())

    def test_a_run_keeps_its_infinities(self, dtype: torch.dtype, device: str) -> None:
        sign = 1 if self.family.name == "cummax" else -1
        x = [[sign * v for v in (1, 0, 2, 3)]] * 2
        problem = of_rows(self.family, [[1, 1, INF, 1], [1, NAN, 1, 1]], x, dtype, device)
        problem.check(problem.run())

    @pytest.mark.parametrize("n", LENGTHS)
    @DIRECTIONS
    def test_indices_of_the_forward(self, n: int, reverse: bool, dtype: torch.dtype, device: str) -> None:
        """The result by x, whose last winner the indices name."""
        for shape, dim in (((4, n), 1), ((n, 4), 0)):
            options = {"dim": dim, "reverse": reverse}
            by_x = make(self.family, shape, dtype, device, **options)
            by_indices = make(self.family, shape, dtype, device, indices=True, **options)
            results = by_indices.run()
            by_indices.check(results)
            torch.testing.assert_close(results["dx"], by_x.run()["dx"])

    # On the CPU rows of up to 16 are added to as they lie, 256 numbers together; 70000 are cut into parts.
    @pytest.mark.parametrize("shape", [(7,), (4, 100), (40, 16), (40, 17), (3, 5000), (200, 3), (1, 70000)], ids=str)
    @pytest.mark.parametrize("apart", [False, True], ids=["adjacent rows", "rows apart"])
    def test_any_indices(self, shape: tuple[int, ...], apart: bool, dtype: torch.dtype, device: str) -> None:
        """Valid positions in any order, and all of them the same."""

        def laid(x: torch.Tensor) -> torch.Tensor:
            return torch.cat((x, x), -1)[..., : x.shape[-1]] if apart else x

        dy = laid(make(self.family, shape, dtype, device).inputs["dy"])
        for dim in range(len(shape)):
            anywhere = torch.randint(0, shape[dim], shape, generator=torch.Generator().manual_seed(1)).to(device)
            for indices in (anywhere, torch.zeros_like(anywhere), torch.full_like(anywhere, shape[dim] - 1)):
                for reverse in (False, True):
                    problem = problem_of(self.family, {"dy": dy, "indices": laid(indices)}, dim=dim, reverse=reverse)
                    problem.check(problem.run())

    @pytest.mark.parametrize("bad", [-1, 40, 2**62, -(2**63)])
    def test_indices_out_of_range_are_refused(self, bad: int) -> None:
        """On the CPU, by position, with dx untouched; can_implement says the same."""
        problem = make(self.family, (6, 40), F32, "cpu", indices=True)
        problem.inputs["indices"][3, 17] = problem.inputs["indices"][5, 2] = bad
        dx = torch.full((6, 40), NAN)
        plan, before = problem.plan(), Snapshot({"dx": dx})
        for call in (plan.run, plan.can_implement):
            with pytest.raises(sw.InvalidProblemError, match=rf"{bad} at position 17 of row 3") as caught:
                call(**problem.inputs, dx=dx)
            assert caught.value.operand == "indices"
            before.check()

    def test_a_bad_number_between_the_indices_is_nobodys(self) -> None:
        """Every second column of a larger tensor: what lies between is not looked at."""
        problem = make(self.family, (6, 40), F32, "cpu", indices=True)
        wide = torch.full((6, 80), -1)
        wide[:, ::2] = problem.inputs["indices"]
        again = problem_of(self.family, {"dy": problem.inputs["dy"], "indices": wide[:, ::2]})
        assert same_bits(again.run(), problem.run())

    @pytest.mark.gpu
    def test_indices_out_of_range_contribute_nothing(self) -> None:
        problem = make(self.family, (6, 40), F32, "cuda:0", indices=True)
        good = problem.inputs["indices"].clone()
        for bad in (-1, 40, 2**62, -(2**63)):
            problem.inputs["indices"].copy_(good)
            problem.inputs["indices"][3, 17] = bad
            dy = problem.inputs["dy"].clone()
            dy[3, 17] = 0
            want = problem_of(self.family, {"dy": dy, "indices": good})
            want.check(problem.run())

    def test_exactly_one_of_x_and_indices(self) -> None:
        problem = make(self.family, (6,), F32, "cpu")
        function = getattr(sw, f"{self.family.name}_backward")
        dy, x = problem.inputs["dy"], problem.inputs["x"]
        for inputs in ({}, {"x": x, "indices": torch.zeros(6, dtype=torch.int64)}):
            with pytest.raises(sw.InvalidProblemError) as caught:
                function(dy, **inputs)
            assert caught.value.operand == "x or indices"

    @given(data=st.data())
    def test_runs(self, data: st.DataObject, device: str) -> None:
        """dx is dy summed over equal indices of torch's forward, whatever the ties."""
        n = data.draw(st.integers(1, 80))
        values = st.sampled_from((-INF, -1.0, 0.0, 1.0, 2.0, INF, NAN))
        x = torch.tensor(data.draw(st.lists(values, min_size=n, max_size=n)))
        indices = getattr(torch, self.family.name)(x, 0).indices
        dy = torch.arange(1.0, n + 1)
        want = torch.zeros(n).index_add(0, indices, dy)
        assert torch.equal(getattr(sw, f"{self.family.name}_backward")(dy.to(device), x.to(device)).cpu(), want)


# x, and dx for dy = 1
SOFTS = {
    "an infinity takes all": ([1, INF, 2], [1, 2, 0]),
    "infinities share": ([INF, INF], [1.5, 0.5]),
    "all -inf": ([-INF, -INF], [0, 0]),
    "-inf first": ([-INF, 0, -INF, 0], [0, 2.5, 0, 0.5]),
    "far apart": ([-1e4, 1e4], [1, 1]),
    "NaN": ([0, NAN, 0], [NAN, NAN, NAN]),
    "NaN last": ([0, 0, NAN], [NAN, NAN, NAN]),
}


class TestLogcumsumexp(Scans):
    family = SCANS["logcumsumexp"]
    reducing: ClassVar[dict[str, Any]] = {}

    @pytest.mark.parametrize(("x", "want"), SOFTS.values(), ids=SOFTS.keys())
    def test_values(self, x: Any, want: Any, dtype: torch.dtype, device: str) -> None:
        row = torch.tensor(x, dtype=F64).to(device, dtype)
        dx = sw.logcumsumexp_backward(torch.ones_like(row), row)
        torch.testing.assert_close(dx.cpu(), torch.tensor(want, dtype=dtype), equal_nan=True)

    @pytest.mark.parametrize(("dtype", "offset"), [(BF16, 30.0), (F16, 30.0), (F32, 1e6), (F64, 1e12), (F32, -1e6)], ids=str)
    def test_offsets(self, dtype: torch.dtype, offset: float, device: str) -> None:
        """An offset of x changes nothing but x itself: no digit of the gradient is lost."""
        for n in (40, 1000, 5000):
            base = make(self.family, (3, n), dtype, device)
            problem = problem_of(self.family, {"dy": base.inputs["dy"], "x": base.inputs["x"] + offset})
            problem.check(problem.run())

    @pytest.mark.parametrize("apart", [10.0, 30.0, 100.0])
    def test_values_far_apart(self, apart: float, device: str) -> None:
        """Also what is far below the largest x is right to its own last places."""
        for shape, dim in (((1000, 3), 0), ((1000, 1), 0), ((3, 1000), 0), ((3, 1000), 1), ((20000, 2), 0)):
            maker = Maker(F64, device)
            problem = problem_of(self.family, {"dy": maker.floats(shape), "x": apart * maker.floats(shape)}, dim=dim)
            problem.check(problem.run())

    @pytest.mark.parametrize("n", [40, 100, 1500])
    def test_infinite_prefixes(self, n: int, dtype: torch.dtype, device: str) -> None:
        base = make(self.family, (1, n), dtype, device)
        for length in (1, n // 2, n - 1, n):
            inputs = {name: tensor.clone() for name, tensor in base.inputs.items()}
            inputs["x"][0, :length] = -INF
            problem = problem_of(self.family, inputs)
            problem.check(problem.run())

    def test_infinities_anywhere(self, dtype: torch.dtype, device: str) -> None:
        base = make(self.family, (1, 150), dtype, device)
        for special in (INF, -INF, NAN):
            for places in ((0,), (70,), (149,), (3, 80)):
                inputs = {name: tensor.clone() for name, tensor in base.inputs.items()}
                inputs["x"][0, list(places)] = special
                problem = problem_of(self.family, inputs)
                problem.check(problem.run())

    def test_shares_add_up(self, device: str) -> None:
        """With dy = e_i the gradient is the softmax of the prefix: its sum is 1."""
        x = make(self.family, (1, 500), F64, device).inputs["x"].expand(500, 500)
        dx = sw.logcumsumexp_backward(torch.eye(500, dtype=F64, device=device), x)
        torch.testing.assert_close(dx.sum(1), torch.ones(500, dtype=F64, device=device))
        torch.testing.assert_close(dx, torch.tril(torch.stack([torch.softmax(x[0, : i + 1], 0).new_zeros(500).index_copy(
            0, torch.arange(i + 1, device=device), torch.softmax(x[0, : i + 1], 0)) for i in range(500)])))  # fmt: skip


# A kind that has no class above runs the tests of all kinds.
for _kind, _scan in SCANS.items():
    _name, _base = f"Test{_kind.title()}", Extrema if _kind in EXTREMA else Scans
    globals().setdefault(_name, type(_name, (_base,), {"family": _scan}))


@EACH_SCAN
@pytest.mark.parametrize("dtype", [F32, F64, BF16, F16], ids=str)
def test_samples_of_torch(scan: Family, dtype: torch.dtype, device: str) -> None:
    """Every sample that PyTorch tests its own operation with."""
    (op,) = [info for info in op_db if info.name == scan.name]
    if dtype not in op.supported_backward_dtypes(device.split(":")[0]):
        pytest.skip(f"torch has no {scan.name} in {dtype} here")
    tested = 0
    for sample in op.sample_inputs(device.split(":")[0], dtype, requires_grad=True):
        x, dim = sample.input, sample.kwargs.get("dim", sample.args[0] if sample.args else None)
        if "dtype" in sample.kwargs:
            continue  # not offered
        y = op(x, dim)
        y = y if isinstance(y, torch.Tensor) else y[0]
        dy = torch.randn_like(y)
        rival = torch.autograd.grad(y, x, dy)[0]
        inputs = {"dy": dy, **({"x": x.detach()} if takes_x(scan) else {})}
        problem = problem_of(scan, inputs, dim=dim)
        for results in (problem.run(), problem.call()):
            check(f"{scan.name} dx", results["dx"], problem.truth["dx"], rival)
        tested += 1
    assert tested >= 3


@EACH_SCAN
def test_dim_out_of_range(scan: Family) -> None:
    for shape, dims in (((), (-2, 1)), ((3, 4), (-3, 2, 2**40))):
        for dim in dims:
            with pytest.raises(sw.InvalidProblemError, match="dim must be between") as caught:
                sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor(scan.name, shape, F32, dim), "cpu")
            assert caught.value.op == scan.op


def test_unknown_kind_and_tie() -> None:
    with pytest.raises(sw.UnsupportedError, match="kind must be cumsum"):
        sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cumall", (3,), F32), "cpu")
    with pytest.raises(sw.UnsupportedError, match="tie must be last or first"):
        sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cummax", (3,), F32, tie="middle"), "cpu")


@EACH_SCAN
def test_operands_that_the_kind_does_not_have(scan: Family) -> None:
    problem = make(scan, (5,), F32, "cpu")
    extra = {"indices": torch.zeros(5, dtype=torch.int64)} if takes_x(scan) else {"x": torch.ones(5)}
    plan, dx = problem.plan(), torch.empty(5)
    with pytest.raises(sw.InvalidProblemError) as caught:
        plan.run(**problem.inputs, **extra, dx=dx)
    assert caught.value.operand in ("x", "indices", "x or indices")
    if takes_x(scan):
        with pytest.raises(sw.InvalidProblemError):
            plan.run(dy=problem.inputs["dy"], dx=dx)


@pytest.mark.slow
def test_one_row_of_2_to_the_26_elements(device: str) -> None:
    """A sum of ones in float32, exact at every position up to 2^24, and one rounding from it beyond."""
    n = 2**26
    dx = sw.cumsum_backward(torch.ones(1, n, device=device)).cpu()
    assert torch.equal(dx[0], torch.arange(n, 0, -1, dtype=F64).to(F32))


@pytest.mark.parametrize("name", [*KINDS, *(f"{name}_backward" for name in KINDS)])
def test_axis_is_dim(name: str) -> None:
    """NumPy's name of the dimension. It alone finds a scan that does not take it, or that ignores one of two."""
    scan, x = getattr(sw, name), torch.tensor([[3.0, 1.0, 2.0], [1.0, 5.0, 4.0]])
    forward = name in KINDS
    operands = (x,) if forward or not KINDS[name.removesuffix("_backward")].operands else (x, x)

    def arrays(result: Any) -> tuple[Any, ...]:
        return result if isinstance(result, tuple) else (result,)

    for dim in (0, 1, -2):
        for mine, want in zip(arrays(scan(*operands, axis=dim)), arrays(scan(*operands, dim)), strict=True):
            assert torch.equal(mine, want)
    assert torch.equal(arrays(scan(*operands, axis=None))[0], arrays(scan(*operands))[0])
    for both in (lambda: scan(*operands, 0, axis=0), lambda: scan(*operands, dim=1, axis=0)):
        with pytest.raises(TypeError, match=rf"^{name}: axis must be left out where dim is given"):
            both()
