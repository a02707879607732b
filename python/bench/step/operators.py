"""Steps of one operation: the scans and lerp, with the inputs and definitions of ``sternway._cases``."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Mapping
from typing import Any

from ..._cases import CASES, Problem, TorchSource, Truth, error
from ..._cases.case import wide
from ..._cases.scan_definitions import DEFINITIONS
from ..._kinds import KINDS
from .case import COMPILE, OURS, TORCH, Checked, Contestant, Size, Step, StepCase, by_gradient, ways
from .check import WrongResultError, deviation, require, roundings

NOT_COMPILED = {"cumprod": "torch 2.11 traces the backward position by position, which takes minutes"}
"""Kinds that torch.compile does not take part in, each with the reason."""

NAMED = {(case.op, case.name): case for case in CASES}


def values_of(y: Any) -> Any:
    """The tensor that gradients flow from: y, or its values where y has indices too."""
    return y if hasattr(y, "shape") else y.values


def scan(kind: str, dim: int, device: str, size: Size) -> Step:
    """A scan and its gradient. The forward of cummax and cummin computes the indices, as torch's does."""
    import torch

    import sternway.torch

    name = f"{kind}, dim {dim if dim == 0 else -1}"
    problem = Problem(NAMED["scan_backward", name], TorchSource(device), size.shape, size.dtype)
    theirs, ours = getattr(torch, kind), getattr(sternway.torch, kind)

    def by_torch(x: Any) -> Any:
        return values_of(theirs(x, dim))

    def by_sternway(x: Any) -> Any:
        return values_of(ours(x, dim))

    left_out = size.compiled and kind in NOT_COMPILED
    if left_out:
        size = dataclasses.replace(size, compiled=False)
    step = operation(problem, size, {"x": "dx"}, by_torch, by_sternway, DEFINITIONS[kind].growth(size.shape[dim]))
    if left_out:
        step.left_out[COMPILE] = NOT_COMPILED[kind]
    add_triton(step, kind, dim, problem)
    return step


def lerp(device: str, size: Size) -> Step:
    """torch.lerp of two tensors by a number, and both gradients."""
    import torch

    import sternway.torch as st

    problem = Problem(NAMED["lerp_backward", "da, db"], TorchSource(device), size.shape, size.dtype)

    def by_torch(a: Any, b: Any) -> Any:
        return torch.lerp(a, b, 0.3)

    def by_sternway(a: Any, b: Any) -> Any:
        return st.lerp(a, b, 0.3)

    return operation(problem, size, {"a": "da", "b": "db"}, by_torch, by_sternway, 4)


def operation(problem: Problem, size: Size, inputs: dict[str, str], by_torch: Any, by_sternway: Any, terms: float) -> Step:
    """The step of one operation.

    Args:
        inputs: the names of its inputs in the problem, in order, each with the name of its gradient.
        terms: the roundings of the accumulator that an element of the result may have.
    """
    leaves = tuple(getattr(problem.values, name).detach().requires_grad_() for name in inputs)
    forwards = ways(size, by_torch, by_sternway, *leaves)
    contestants = {name: by_gradient(forward, leaves, problem.values.dy) for name, forward in forwards.items()}
    return Step(contestants, functools.partial(checked, problem, tuple(inputs.values()), by_torch, leaves, terms))


def checked(
    problem: Problem, outputs: tuple[str, ...], by_torch: Any, leaves: tuple[Any, ...], terms: float,
    contestants: Mapping[str, Contestant],
) -> dict[str, Checked]:  # fmt: skip
    """The largest norm-wise error of the values and gradients of each contestant.

    Raises:
        WrongResultError: values or gradients of sternway that are further from float64 than the roundings allow, and than
            those of torch. Gradients are compared element by element, as the tests of the package do, values by their norm.
    """
    import torch

    with torch.no_grad():
        y = by_torch(*map(wide, leaves))
    truth = Truth(y, abs(y), terms)
    values = {name: deviation(contestant.forward().detach(), truth) for name, contestant in contestants.items()}
    del y, truth
    require("the result", values[OURS], roundings(problem.dtype, terms), values[TORCH])
    worst = dict(values)
    truths = problem.truths()
    elements: dict[str, dict[str, float]] = {}
    for name, contestant in contestants.items():
        if contestant.step is not None:
            gradients = dict(zip(outputs, contestant.step(), strict=True))
            worst[name] = max(worst[name], *(deviation(gradients[of], truths[of]) for of in outputs))
            elements[name] = {of: error(gradients[of], truths[of]) for of in outputs}
    for of in outputs:
        allowed, ours, theirs = problem.allowed(of, truths[of]), elements[OURS][of], elements[TORCH][of]
        if not ours <= max(allowed, theirs):
            raise WrongResultError(f"{of} is {ours:.3g} ulp from float64, allowed are {allowed:.3g}, torch has {theirs:.3g}")
    return {name: Checked(found) for name, found in worst.items()}


def add_triton(step: Step, kind: str, dim: int, problem: Problem) -> None:
    """Let the plain Triton program take part in the forward, where it has one for these rows."""
    if dim != 1 or problem.source.device == "cpu":
        return
    if importlib.util.find_spec("triton") is None:
        step.left_out["triton"] = "triton is not installed"
        return
    from . import triton_rows

    if triton_rows.takes(kind, problem.shape[1]):
        x = problem.values.x.detach()
        step.contestants["triton"] = Contestant(lambda: values_of(triton_rows.scan(kind, x)), None)


# ------------------------------------------------------------------------------------------------------------ the table


def in_float32(*shapes: tuple[int, ...]) -> tuple[Size, ...]:
    """Sizes of these shapes in float32."""
    return tuple(Size(shape, "float32") for shape in shapes)


def squares(n: int, *, compiled: bool = False) -> tuple[Size, ...]:
    """n x n in float32 and bfloat16."""
    return tuple(Size((n, n), dtype, compiled) for dtype in ("float32", "bfloat16"))


SMALL = in_float32((64, 100))  # the host takes longer than the device

ROWS_ON_CPU = (*SMALL, *squares(1024), *in_float32((1, 1 << 20), (10_000, 100)))
ROWS_ON_CUDA = (*SMALL, *squares(8192, compiled=True), *in_float32((1, 1 << 26), (671_088, 100)))
COLUMNS_ON_CPU = (*squares(1024), *in_float32((1 << 19, 2)))
COLUMNS_ON_CUDA = (*squares(8192), *in_float32((1 << 20, 2)))
SCANS = tuple(
    StepCase(f"{kind}, dim {dim}", functools.partial(scan, kind, dim), SMALL[0], cpu, cuda)
    for dim, cpu, cuda in ((1, ROWS_ON_CPU, ROWS_ON_CUDA), (0, COLUMNS_ON_CPU, COLUMNS_ON_CUDA))
    for kind in KINDS
)
LERP = StepCase(
    "lerp", lerp, SMALL[0],
    (*SMALL, Size((1 << 20,), "float32", True), Size((1 << 20,), "bfloat16")),
    (*SMALL, Size((1 << 27,), "float32", True), Size((1 << 27,), "bfloat16", True)),
)  # fmt: skip
