"""Functions of arrays and plans, given what autograd records: an error that names the way out, in place of a lost gradient.

These tests alone would find an operation, an operand or a kind of tensor whose gradient gets lost in silence, and an internal
call of a plan that is refused although torch records it as a whole.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, Problem, make
from families.base import Tensors
from families.rope import ROPE, ROPE_FORWARD
from support import F32, Subclass
from torch.autograd import forward_ad

import sternway as sw
import sternway.torch as st
from sternway._cases import Case, TorchSource, embedding_bags
from sternway._cases import Problem as CaseProblem
from sternway._lerp import split_weight

RECORDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "leaf": lambda x: x.clone().requires_grad_(),
    "parameter": lambda x: torch.nn.Parameter(x.clone()),
    "result": lambda x: x.clone().requires_grad_() * 1,
    "view": lambda x: x.clone().requires_grad_().view(x.shape),
    "subclass": lambda x: x.clone().as_subclass(Subclass).requires_grad_(),
}


def problem_of(family: Family, device: str) -> Problem:
    """A small problem with every floating operand that its family can have."""
    tables = {"table": "half"} if family in (ROPE, ROPE_FORWARD) else {}
    return make(family, (2, 4), F32, device, **tables)


def choices(problem: Problem) -> Iterator[tuple[str, ...]]:
    """The outputs of a run, each alone and all."""
    names, required = tuple(problem.truth), problem.family.required
    yield from {tuple(n for n in names if n in chosen or n in required): None for chosen in (*((n,) for n in names), names)}


def exchanged(problem: Problem, wanted: tuple[str, ...], change: Any) -> Iterator[tuple[str, Problem]]:
    """The problem with one floating input changed, for each that these outputs need."""
    for name, x in problem.inputs_for(wanted).items():
        if x.is_floating_point():
            yield name, dataclasses.replace(problem, inputs={**problem.inputs, name: change(x)})


def ways(problem: Problem, wanted: tuple[str, ...], functions: bool = True) -> dict[str, Callable[[], Tensors | None]]:
    """The ways to compute these outputs. Some functions always compute all."""
    plan = problem.plan()

    def run(method: Any) -> Tensors:
        outputs = {name: out.tensor for name, out in problem.outputs(wanted).items()}
        try:
            method(**problem.inputs_for(wanted), **outputs)
        except sw.Error:
            assert all(bool((out != out).all()) for out in outputs.values() if out.is_floating_point())
            raise
        return outputs

    def into_outputs() -> Tensors:
        outputs = tuple(out.tensor for out in problem.outputs(wanted).values())
        return problem.call(wanted, outputs if len(outputs) > 1 else outputs[0])

    found = {"run": lambda: run(plan.run), "can_implement": lambda: run(plan.can_implement) and None}
    if functions:
        found |= {"function": lambda: problem.call(wanted), "function with out": into_outputs}
    return found


def same(results: Tensors | None, expected: Tensors) -> bool:
    return results is None or all(torch.equal(x.as_subclass(torch.Tensor), expected[name]) for name, x in results.items())


def refused(call: Callable[[], Any], operands: tuple[str, ...], family: Family, kind: type[sw.Error]) -> None:
    """The call raises an error that names one of some operands and a drop-in that exists."""
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert error.operand in operands
    name = error.hint.partition("sternway.torch.")[2].partition(" ")[0].rstrip(",")
    assert name in family.name
    assert callable(getattr(st, name))
    if kind is sw.InvalidProblemError:
        assert f"pass {error.operand}.detach()" in error.hint


@pytest.mark.parametrize("kind", RECORDED)
def test_recorded_inputs_are_refused(family: Family, kind: str, device: str) -> None:
    """By each operand that is read; where nothing is recorded the call is that with the detached tensor."""
    plain = problem_of(family, device)
    for wanted in choices(plain):
        expected = plain.call(wanted)  # and perhaps others
        for operand, problem in exchanged(plain, wanted, RECORDED[kind]):
            for call in ways(problem, wanted, expected.keys() == set(wanted)).values():
                refused(call, (operand,), family, sw.InvalidProblemError)
                with torch.no_grad():
                    assert same(call(), expected)
                with torch.inference_mode():
                    assert same(call(), expected)


def test_the_families_call_every_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that no family calls would not be tested here. unique_rows takes integers alone.

    The plans of many tables have no function, and a test below.
    """
    every = [name for name in sw.__all__ if inspect.isfunction(getattr(sw, name))]
    functions = {name for name in every if "out" in inspect.signature(getattr(sw, name)).parameters}
    called = set()

    def noted(name: str, function: Any) -> Any:
        return lambda *args, **kwargs: called.add(name) or function(*args, **kwargs)

    for name in functions:
        monkeypatch.setattr(sw, name, noted(name, getattr(sw, name)))
    for family in FAMILIES:
        problem_of(family, "cpu").call()
    assert called == functions
    plans = {getattr(sw, name) for name in sw.__all__ if name.endswith("Plan")}
    without_function = {sw.UniqueRowsPlan, sw.EmbeddingBagsPlan, sw.EmbeddingBagsBackwardPlan}
    assert plans == {family.plan for family in FAMILIES} | without_function


@pytest.mark.parametrize("case", embedding_bags.CASES, ids=lambda case: case.op)
def test_plans_of_many_tables(case: Case, device: str) -> None:
    """Alone finds an operand of many tables whose gradient is lost, or an error that names a drop-in that does not exist."""
    problem = CaseProblem(case, TorchSource(device), (3, 16), "float32")
    for name in [name for name, x in problem.operands().items() if x.is_floating_point()]:
        operands = problem.operands()
        operands[name] = operands[name].clone().requires_grad_()
        with pytest.raises(sw.InvalidProblemError, match=f"pass {name}.detach") as caught:
            problem.plan.run(**operands)
        way_out = f"use sternway.torch.{st.EmbeddingBags.__name__} for gradients"
        assert name in case.outputs or way_out in caught.value.hint


class _Twice(torch.autograd.Function):
    """Does a call in the forward and in the backward, with the first input and what it saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: Callable[[torch.Tensor], None]) -> torch.Tensor:
        call(x)
        ctx.call = call
        ctx.save_for_backward(x)
        return x.sum()

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        ctx.call(x)
        return dy.expand_as(x), None


def test_autograd_functions_may_call_them(family: Family, device: str) -> None:
    """In the forward and the backward of one that its user wrote; not in a backward that is itself differentiated."""
    plain = problem_of(family, device)
    wanted, calls = tuple(plain.truth), []
    expected = plain.call(wanted)
    for operand, x in plain.inputs_for(wanted).items():
        if not x.is_floating_point():
            continue

        def call(x: torch.Tensor, operand: str = operand) -> None:
            problem = dataclasses.replace(plain, inputs={**plain.inputs, operand: x})
            for way in ways(problem, wanted).values():
                calls.append(x.requires_grad)
                assert same(way(), expected)

        leaf = x.clone().requires_grad_()
        _Twice.apply(leaf, call).backward()
        assert all(calls)
        again = _Twice.apply(leaf, call)
        refused(
            lambda y=again, x=leaf: torch.autograd.grad(y, x, create_graph=True), (operand,), family, sw.InvalidProblemError
        )


def test_tangents_are_refused(family: Family, device: str) -> None:
    """Dual tensors of forward-mode AD; detach() takes the tangent off."""
    plain = problem_of(family, device)
    wanted = tuple(plain.truth)
    expected = plain.call(wanted)
    with forward_ad.dual_level():
        for operand, problem in exchanged(plain, wanted, lambda x: forward_ad.make_dual(x, torch.ones_like(x))):
            for call in ways(problem, wanted).values():
                refused(call, (operand,), family, sw.InvalidProblemError)
        for _, problem in exchanged(plain, wanted, lambda x: forward_ad.make_dual(x, torch.ones_like(x)).detach()):
            assert all(same(call(), expected) for call in ways(problem, wanted).values())


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "functionalize"])
def test_transforms_are_refused(family: Family, transform: str, device: str) -> None:
    """torch.func hands functions wrapped tensors, which have no memory; outputs that are made there are wrapped, too."""
    plain = problem_of(family, device)
    wanted = tuple(plain.truth)
    for operand, x in plain.inputs_for(wanted).items():
        if not x.is_floating_point():
            continue
        for way in ("run", "can_implement", "function"):

            def call(x: torch.Tensor, operand: str = operand, way: str = way) -> torch.Tensor:
                problem = dataclasses.replace(plain, inputs={**plain.inputs, operand: x})
                return next(iter(ways(problem, wanted)[way]().values()))  # type: ignore[union-attr]

            transformed: dict[str, Callable[[], Any]] = {
                "grad": lambda call=call, x=x: torch.func.grad(lambda x: call(x).sum())(x),
                "vmap": lambda call=call, x=x: torch.vmap(call)(x[None]),
                "jvp": lambda call=call, x=x: torch.func.jvp(call, (x,), (x,)),
                "functionalize": lambda call=call, x=x: torch.func.functionalize(call)(x),
            }
            refused(transformed[transform], (operand, "out"), family, sw.UnsupportedError)


def test_a_weight_that_is_read_as_a_number() -> None:
    """A 0-d weight on the CPU beside operands on CUDA is no operand of the plan."""
    weight = torch.tensor(0.25, requires_grad=True)
    with pytest.raises(sw.InvalidProblemError, match=r"use sternway\.torch\.lerp for gradients, or pass weight\.detach\(\)"):
        split_weight(weight, "cuda:0")
    with torch.no_grad():
        assert split_weight(weight, "cuda:0") == (0.25, None)


def test_an_expanded_gradient_of_an_embedding() -> None:
    """Its positions are summed as bags, and the error still names the embedding."""
    dy, indices = torch.ones(2, 1, 3, requires_grad=True).expand(2, 5, 3), torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(sw.InvalidProblemError, match=r"^embedding_backward: dy .* use sternway\.torch\.embedding for"):
        sw.embedding_backward(dy, indices, num_embeddings=2)
