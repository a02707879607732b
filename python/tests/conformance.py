"""What every family must hold. A family's test file derives from `Conformance` and adds the cases of its own."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from families import Family, Problem, make
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support import F16, F32, F64, FLOATS, INPUT_LAYOUTS, OUTPUT_LAYOUTS, Snapshot, bits, refusal

import sternway as sw

# Around a warp (32), a vector (4, 8, 16), a block (1024), a chunk (4096), 2^16; odd and prime; one and two.
SIZES = (1, 2, 3, 7, 8, 31, 32, 33, 127, 1000, 1023, 1024, 1025, 4097, 65537)
EMPTY = ((0,), (3, 0), (0, 4), (2, 0, 3), (0, 0), (4, 1, 0))
RANKS = (
    (),
    (5,),
    (3, 4),
    (2, 3, 4),
    (2, 3, 1, 4),
    (2, 1, 3, 2, 2),
    (2, 1, 2, 1, 3, 2),
    (1, 2, 1, 2, 2, 1, 3),
    (2, 1, 2, 1, 2, 1, 2, 3),
)


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(bits(a[name]), bits(b[name])) for name in a)


def subsets(problem: Problem) -> list[tuple[str, ...]]:
    """Every choice of outputs that a run may be asked for."""
    names = tuple(problem.truth)
    every = (chosen for n in range(1, len(names) + 1) for chosen in itertools.combinations(names, n))
    return [chosen for chosen in every if set(problem.family.required) <= set(chosen)]


class Conformance:
    family: ClassVar[Family]
    reducing: ClassVar[dict[str, Any]] = {}  # options under which a problem of shape (rows, n) sums as much as it can

    @pytest.mark.parametrize("n", SIZES)
    def test_size(self, n: int, dtype: torch.dtype, device: str) -> None:
        for shape in ((n,), (3, n), (n, 3)):
            problem = make(self.family, shape, dtype, device, **self.reducing)
            problem.check(problem.run(), rival=True)

    @pytest.mark.parametrize("shape", RANKS, ids=len)
    def test_rank(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        problem = make(self.family, shape, dtype, device)
        problem.check(problem.run())

    @pytest.mark.parametrize("shape", EMPTY, ids=str)
    def test_empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        """Outputs of the right shape; a sum over nothing is 0."""
        problem = make(self.family, shape, dtype, device, **self.reducing)
        for results in (problem.run(), problem.call()):
            problem.check(results)
            assert all(not out.any() for out in results.values())

    @pytest.mark.parametrize("layout", INPUT_LAYOUTS)
    def test_input_layout(self, layout: str, dtype: torch.dtype, device: str) -> None:
        for shape in ((5, 3, 34), (67,)):
            problem = make(self.family, shape, dtype, device, layouts=layout)
            problem.check(problem.run())

    @pytest.mark.parametrize("layout", INPUT_LAYOUTS)
    def test_one_input_in_another_layout(self, layout: str, device: str) -> None:
        for name in make(self.family, (1,), F32, device).inputs:
            problem = make(self.family, (5, 3, 34), F32, device, layouts={name: layout})
            problem.check(problem.run())

    @pytest.mark.parametrize("layout", OUTPUT_LAYOUTS)
    def test_output_layout(self, layout: str, dtype: torch.dtype, device: str) -> None:
        for shape in ((5, 3, 34), (67,)):
            problem = make(self.family, shape, dtype, device, **(self.reducing if len(shape) == 1 else {}))
            problem.check(problem.run(layout=layout))

    def test_any_subset_of_the_outputs(self, dtype: torch.dtype, device: str) -> None:
        problem = make(self.family, (6, 37), dtype, device, **self.reducing)
        everything = problem.run()
        for wanted in subsets(problem):
            assert same_bits(problem.run(wanted), {name: everything[name] for name in wanted})

    def test_long_sums_are_blocked(self, dtype: torch.dtype, device: str) -> None:
        """A plain sequential float32 sum of 2^17 positive numbers is off by some hundred roundings; 21 are allowed."""
        for shape in ((2, 2**17), (2**17, 2)):
            problem = make(self.family, shape, dtype, device, positive=True, **self.reducing)
            problem.check(problem.run())

    @pytest.mark.parametrize("shape", [(3, 100), (100, 3), (3, 4097), (4097, 3), (65537,), (2, 2**17), (2**17, 2)], ids=str)
    def test_sums_of_equal_terms(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        """Equal terms round the same way: a sequential run of m is off by up to m roundings, and 4 + log2 m are allowed."""
        for seed in range(4):
            problem = make(self.family, shape, dtype, device, seed=seed, positive=True, layouts="constant", **self.reducing)
            problem.check(problem.run(), rival=True)

    def test_in_place(self, dtype: torch.dtype, device: str) -> None:
        """Where an output may be dy or x itself, it is right; everywhere else it is right or refused with dy intact."""
        for name in make(self.family, (4, 33), dtype, device).truth:
            problem = make(self.family, (4, 33), dtype, device)
            main = problem.main
            if problem.truth[name].value.shape != main.shape or problem.truth[name].dtype != main.dtype:
                continue
            wanted = {name, *self.family.required}
            others = {n: out.tensor for n, out in problem.outputs(wanted - {name}).items()}
            before = Snapshot({problem.first: main})
            plan, operands = problem.plan(), {**problem.inputs_for(wanted), **others, name: main}
            if refused := refusal(sw.InvalidProblemError, lambda plan=plan, operands=operands: plan.run(**operands)):
                assert name not in self.family.in_place, refused
                before.check()
            else:
                problem.check({name: main})

    def test_twenty_runs_give_the_same_bits(self, dtype: torch.dtype, device: str) -> None:
        for shape in ((65, 1025), (4097,)):
            problem = make(self.family, shape, dtype, device, **self.reducing)
            plan, first = problem.plan(), problem.run()
            assert all(same_bits(problem.run(plan=plan), first) for _ in range(20))

    @pytest.mark.usefixtures("threads")
    def test_threads_do_not_change_the_bits(self, dtype: torch.dtype) -> None:
        for shape in ((7, 65537), (65537, 7), (2**19 + 1,)):
            problem = make(self.family, shape, dtype, "cpu", **self.reducing)
            results = []
            for n in (1, 2, 3, 8):
                sw.set_num_threads(n)
                results.append(problem.run())
            assert all(same_bits(other, results[0]) for other in results[1:])

    def test_function_is_the_plan(self, dtype: torch.dtype, device: str) -> None:
        """The same bits through the function; dx in memory of torch's; `out` is written, and returned."""
        for options in ({}, self.reducing):
            problem = make(self.family, (6, 37), dtype, device, **options)
            planned = problem.run()
            called = problem.call()
            assert same_bits(called, planned)
            given = problem.outputs()
            returned = problem.call(out=tuple(out.tensor for out in given.values()))
            assert all(returned[name] is out.tensor for name, out in given.items())
            assert same_bits({name: out.take() for name, out in given.items()}, planned)

    def test_out_is_a_tensor_where_there_is_one(self, device: str) -> None:
        for name in self.family.in_place:
            problem = make(self.family, (6, 37), F32, device)
            given = problem.outputs((name,))[name]
            assert problem.call((name,), out=given.tensor)[name] is given.tensor
            problem.check({name: given.take()})

    @pytest.mark.parametrize("dtype", [F32, F64, F16], ids=str)
    def test_numpy(self, dtype: torch.dtype) -> None:
        """NumPy in, NumPy out, and the bits of torch."""
        problem = make(self.family, (6, 37), dtype, "cpu", **self.reducing)
        arrays = {name: tensor.numpy() for name, tensor in problem.inputs.items()}
        results = dataclasses.replace(problem, inputs=arrays).call()
        assert all(type(out) is np.ndarray for out in results.values())
        assert same_bits({name: torch.from_numpy(out) for name, out in results.items()}, problem.call())

    def test_negative_strides(self) -> None:
        """Right, or refused by the operand's name."""
        problem = make(self.family, (6, 37), F32, "cpu")
        inputs = {name: tensor.numpy() for name, tensor in problem.inputs.items()}
        for flipped in inputs:
            backwards = inputs[flipped][..., ::-1].copy()[..., ::-1]
            outputs = {name: out.tensor for name, out in problem.outputs().items()}
            plan, operands = problem.plan(), {**inputs, **outputs, flipped: backwards}
            if refused := refusal(sw.Error, lambda plan=plan, operands=operands: plan.run(**operands)):
                assert refused.operand == flipped, refused
            else:
                problem.check(outputs)

    @settings(suppress_health_check=[HealthCheck.differing_executors])
    @given(data=st.data())
    def test_random(self, data: st.DataObject, device: str) -> None:
        """Any shape, layout, dtype and option: right, inside its guards, the same through the function."""
        draw = data.draw
        extents = st.one_of(st.integers(0, 9), st.sampled_from((16, 33, 65)))
        shape = tuple(draw(st.lists(extents, min_size=self.family.least_rank, max_size=4)))
        assume(math.prod(shape) < 100_000)  # many small ones: the tests of each kernel have large ones
        options = self.family.options(draw, shape)
        names = make(self.family, (1,), F32, "cpu").inputs
        layouts = {name: draw(st.sampled_from(INPUT_LAYOUTS)) for name in names}
        problem = make(
            self.family, shape, draw(st.sampled_from(FLOATS)), device,
            seed=draw(st.integers(0, 99)), layouts=layouts, **options,
        )  # fmt: skip
        wanted = draw(st.sampled_from(subsets(problem)))
        results = problem.run(wanted, draw(st.sampled_from(OUTPUT_LAYOUTS)))
        problem.check(results, rival=True)
