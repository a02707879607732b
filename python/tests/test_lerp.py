"""lerp: broadcasting, weights as numbers and as tensors, PyTorch's own samples, more than 2^31 elements."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from conformance import Conformance
from families import make
from families.lerp import LERP
from support import F16, F32, F64, FLOATS, check, free_memory, name_of, summed
from torch.testing._internal.common_methods_invocations import op_db

import sternway as sw

# shape of dy, then of a, b and weight (None: the same)
BROADCAST = {
    "none": ((5, 7), None, None, None),
    "leading": ((5, 7), (7,), (1, 7), (7,)),
    "inner": ((5, 7), (5, 1), None, (5, 1)),
    "middle": ((3, 4, 5), (3, 1, 5), None, (3, 1, 5)),
    "outer and inner": ((3, 4, 5), (1, 4, 1), (4, 1), (1, 4, 1)),
    "alternate": ((2, 3, 4, 5), (2, 1, 4, 1), (1, 3, 1, 5), (3, 1, 5)),
    "alternate from one": ((2, 3, 4, 5), (1, 3, 1, 5), (2, 1, 4, 1), (4, 1)),
    "each another dim": ((6, 7, 8), (1, 7, 8), (6, 1, 8), (6, 7, 1)),
    "all but one dim": ((6, 7, 8), (6, 1, 1), (7, 1), (8,)),
    "0-d": ((5, 7), (), (), ()),
    "0-d weight": ((5, 7), None, None, ()),
    "0-d everything": ((), (), (), ()),
    "ones for 0-d": ((5, 7), (1, 1), (1,), (1, 1)),
    "extents of one": ((1, 7, 1), (7, 1), (1, 1, 1), (1, 7, 1)),
    "rank 8": ((2, 3, 2, 1, 2, 3, 2, 2), (2, 1, 2, 1, 2, 1, 2, 1), (3, 1, 1, 1, 3, 1, 2), (2, 1, 1, 1, 1, 3, 1, 1)),
    "rank 8, last two": ((2, 2, 2, 2, 2, 2, 3, 5), (3, 5), (5,), (3, 1)),
    "long rows": ((33, 4097), (33, 1), (4097,), (33, 1)),
    "one long row": ((1, 70001), (), (1,), (1, 1)),
    "many short rows": ((4099, 3), (4099, 1), None, (4099, 1)),
    "tall columns": ((4097, 33), (33,), None, (1, 33)),
    "one tall column": ((70001, 1), (1,), (1, 1), ()),
    "few wide columns": ((3, 5001), (5001,), (1, 5001), (5001,)),
    "channels": ((4, 5, 17, 19), (5, 1, 1), None, (1, 5, 1, 1)),
    "inner and outer of 67600 terms": ((65, 65, 4, 16), (4, 1), (65, 1, 1, 16), (4, 1)),
    "empty, summed": ((0, 7), (7,), (1, 7), ()),
    "empty inner, summed": ((7, 0), (7, 1), (1, 1), (7, 1)),
}
NUMBERS = (0.0, 1.0, 0.5, -0.3, 1.7, 1e-3, -0.0, 2**-30, 1e4, 3, math.inf, -math.inf, math.nan)
BROADCAST_CASES = [pytest.param(*row, id=name) for name, row in BROADCAST.items()]


class TestLerp(Conformance):
    family = LERP
    reducing: ClassVar = {"a_shape": (), "weight_shape": (1,)}

    @pytest.mark.parametrize(("shape", "a", "b", "w"), BROADCAST_CASES)
    def test_broadcast(self, shape: Any, a: Any, b: Any, w: Any, dtype: torch.dtype, device: str) -> None:
        problem = make(LERP, shape, dtype, device, a_shape=a, b_shape=b, weight_shape=w)
        problem.check(problem.run(), rival=True)

    @pytest.mark.parametrize(("shape", "a", "b", "w"), BROADCAST_CASES)
    def test_broadcast_with_a_number(self, shape: Any, a: Any, b: Any, w: Any, device: str) -> None:
        """The shapes of a and b alone, and those of weight and a in their place."""
        for narrow in ((a, b), (w, a)):
            problem = make(LERP, shape, F32, device, a_shape=narrow[0], b_shape=narrow[1], weight=0.3)
            problem.check(problem.run(), rival=True)

    @pytest.mark.parametrize("layout", ["transposed", "rotated", "stepped", "expanded", "inner_expanded", "constant"])
    @pytest.mark.parametrize(("shape", "a", "b", "w"), BROADCAST_CASES)
    def test_broadcast_in_another_layout(self, shape: Any, a: Any, b: Any, w: Any, layout: str, device: str) -> None:
        problem = make(LERP, shape, F32, device, a_shape=a, b_shape=b, weight_shape=w, layouts=layout)
        problem.check(problem.run(layout="rotated"))

    @pytest.mark.parametrize("weight", NUMBERS, ids=str)
    def test_number(self, weight: float, dtype: torch.dtype, device: str) -> None:
        problem = make(LERP, (5, 33), dtype, device, weight=weight, b_shape=(33,))
        problem.check(problem.run())
        problem.check(problem.call())

    @pytest.mark.parametrize("weight", NUMBERS, ids=str)
    @pytest.mark.parametrize("shape", [(), (1, 33), (5, 1), (5, 33)], ids=str)
    def test_number_in_a_tensor(self, weight: float, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        """A 16-bit or float32 weight is the number rounded; inf and NaN follow the formula."""
        problem = make(LERP, (5, 33), dtype, device, weight_shape=shape)
        problem.inputs["weight"].fill_(weight)
        truth = LERP.truth(problem.descriptor, problem.inputs)
        for name, out in problem.run().items():
            check(f"lerp {name}", out, truth[name])

    def test_mixed_special_values(self, dtype: torch.dtype, device: str) -> None:
        """NaN and infinity in one place spread no further than the formula takes them."""
        problem = make(LERP, (6, 40), dtype, device, weight_shape=(6, 1))
        specials = (math.nan, math.inf, -math.inf, 0.0, -0.0)
        for i, name in enumerate(("dy", "a", "b", "weight")):
            problem.inputs[name][i, 0] = specials[i]
        truth = LERP.truth(problem.descriptor, problem.inputs)
        for name, out in problem.run().items():
            check(f"lerp {name}", out, truth[name])

    def test_one_minus_w_is_not_formed_in_16_bits(self, device: str) -> None:
        """bfloat16: 1 - 2^-9 would round to 1, and the sum 1 + 1.5/256 to 1.0078125; the true 1.00389 rounds to 1."""
        dy = torch.tensor([[1.0], [1.5 / 256]], dtype=torch.bfloat16, device=device)
        weight = torch.full((1,), 2**-9, dtype=torch.bfloat16, device=device)
        for w in (weight, 2**-9):
            (da,) = sw.lerp_backward(dy, w, a_shape=(1,), needs=("da",))
            assert da.item() == 1.0

    def test_a_number_stays_double(self, device: str) -> None:
        """float64 data with w = 0.1: a weight that went through float32 is off by 1e-8."""
        dy = torch.ones(3, dtype=F64, device=device)
        da, db = sw.lerp_backward(dy, 0.1)
        assert (da == 1 - 0.1).all()
        assert (db == 0.1).all()

    def test_needs_gives_the_order(self, dtype: torch.dtype, device: str) -> None:
        problem = make(LERP, (5, 33), dtype, device, weight_shape=(33,))
        dy, weight, a, b = (problem.inputs[name] for name in ("dy", "weight", "a", "b"))
        everything = problem.run()
        for needs in (("dweight", "da"), ("db", "dweight", "da"), ("db",)):
            results = sw.lerp_backward(dy, weight, a, b, needs=needs)
            assert isinstance(results, tuple)
            assert all(torch.equal(out, everything[name]) for name, out in zip(needs, results, strict=True))

    @pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
    def test_samples_of_torch(self, dtype: torch.dtype, device: str) -> None:
        """Every sample that PyTorch tests its own lerp with."""
        (op,) = [info for info in op_db if info.name == "lerp"]
        tested = 0
        for sample in op.sample_inputs(device.split(":")[0], dtype, requires_grad=True):
            a, (b, weight) = sample.input, sample.args
            if isinstance(weight, complex):
                continue
            leaves = [t for t in (a, b, weight) if isinstance(t, torch.Tensor)]
            y = torch.lerp(a, b, weight)
            dy = torch.randn_like(y)
            theirs = torch.autograd.grad(y, leaves, dy)
            wide, g = [t.detach().to(F64) for t in leaves], dy.to(F64)
            w = wide[2] if len(wide) == 3 else weight
            terms = ((1 - w) * g, w * g, g * (wide[1] - wide[0]))
            needs = ("da", "db", "dweight")[: len(leaves)]
            a, b, *tensor_weight = (t.detach() for t in leaves)
            ours = sw.lerp_backward(dy, *(tensor_weight or [weight]), a, b, a_shape=a.shape, b_shape=b.shape, needs=needs)
            for name, out, rival, leaf, term in zip(needs, ours, theirs, leaves, terms, strict=False):
                check(f"lerp {name}", out, summed(term, leaf.shape, dtype), rival)
            tested += 1
        assert tested >= 10


@pytest.mark.alone
@pytest.mark.slow
def test_more_than_2_to_the_31_elements(device: str) -> None:
    """Offsets of 64 bits: an expanded dy of 2^31 + 2^20 elements, float16, every element of the result."""
    rows, n = 2**11 + 1, 2**20
    need = 3 * 2 * rows * n
    if device == "cpu" and free_memory() < need:
        pytest.skip(f"needs {need >> 30} GiB of free memory")
    dy = torch.arange(1, n + 1, device=device).remainder(2048).to(F16).expand(rows, n)
    (da,) = sw.lerp_backward(dy, 0.25, needs=("da",))
    want = dy[0] * 0.75
    assert all(torch.equal(da[row], want) for row in range(rows))


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("kept", [(2**11 + 1, 1), (2**20,), ()], ids=["rows", "columns", "everything"])
def test_sums_over_more_than_2_to_the_31_elements(kept: tuple[int, ...]) -> None:
    """Ones: each sum is the number of its terms."""
    shape = (2**11 + 1, 2**20)
    dy = torch.ones((), device="cuda", dtype=F32).expand(shape)
    (da,) = sw.lerp_backward(dy, 0.0, a_shape=kept, needs=("da",))
    terms = shape[0] * shape[1] / da.numel()
    torch.testing.assert_close(da, torch.full_like(da, terms), rtol=1e-6, atol=0)


def test_an_end_that_is_not_of_the_shape_given() -> None:
    with pytest.raises(sw.InvalidProblemError, match=r"a must be of a_shape, \[3, 1\], got \[4\]"):
        sw.lerp_backward(torch.ones(3, 4), 0.5, torch.ones(4), a_shape=(3, 1))


def test_a_weight_of_minus_zero_is_not_zero() -> None:
    """Whichever came first."""
    dy = torch.ones(1)
    for weight in (0.0, -0.0, 0.0):
        (db,) = sw.lerp_backward(dy, weight, needs=("db",))
        assert math.copysign(1, db.item()) == math.copysign(1, weight)
