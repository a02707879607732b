"""The gradients of y = a + w (b - a)."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from support import Maker, Truth, wide

import sternway as sw
from sternway._cases.case import Values
from sternway._cases.lerp import GRADIENTS

from .base import Family, Problem, Tensors, truths

SHAPES = ("a_shape", "b_shape", "weight_shape")


def build(
    shape: tuple[int, ...],
    maker: Maker,
    *,
    weight: float | None = None,
    a_shape: tuple[int, ...] | None = None,
    b_shape: tuple[int, ...] | None = None,
    weight_shape: tuple[int, ...] | None = None,
) -> tuple[dict[str, Any], Tensors]:
    given = dict(zip(SHAPES, (a_shape, b_shape, weight_shape), strict=True))
    fields = {name: narrow for name, narrow in given.items() if narrow is not None}
    wide = [shape if narrow is None else narrow for narrow in given.values()]
    inputs = {"dy": maker.floats(shape), "a": maker.floats(wide[0]), "b": maker.floats(wide[1])}
    if weight is None:
        inputs["weight"] = maker.floats(wide[2])
    else:
        fields["weight"] = weight
    return fields, inputs


def truth(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    values = Values(**{"weight": descriptor.weight, **{name: wide(x) for name, x in inputs.items()}})
    return truths(GRADIENTS, inputs, values, inputs["dy"].dtype)


def by_torch(descriptor: Any, inputs: Tensors) -> Tensors:
    a, b = (inputs[name].detach().clone().requires_grad_() for name in ("a", "b"))
    dy, weight = inputs["dy"], descriptor.weight
    leaves = {"da": a, "db": b}
    if "weight" in inputs:
        weight = leaves["dweight"] = inputs["weight"].detach().clone().requires_grad_()
    y = torch.lerp(a, b, weight)
    if y.shape != dy.shape:  # every operand was broadcast further than torch would
        y = y.expand(dy.shape)
    return dict(zip(leaves, torch.autograd.grad(y, tuple(leaves.values()), dy), strict=True))


def reads(wanted: Any, _inputs: Tensors) -> set[str]:
    return {"dy", "a", "b", "weight"} if "dweight" in wanted else {"dy", "weight"}


def call(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    given = problem.inputs_for(wanted)
    weight = given.get("weight", problem.descriptor.weight)
    shapes = {"a_shape": tuple(problem.inputs["a"].shape), "b_shape": tuple(problem.inputs["b"].shape)}
    results = sw.lerp_backward(given["dy"], weight, given.get("a"), given.get("b"), **shapes, needs=wanted, out=out)
    return dict(zip(wanted, results, strict=True))


@st.composite
def narrowed(draw: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape that broadcasts to `shape`: some extents 1, some leading dims gone."""
    kept = tuple(draw(st.sampled_from((extent, extent, 1))) for extent in shape)
    return kept[draw(st.integers(0, len(shape))) if draw(st.booleans()) else 0 :]


def options(draw: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    drawn = {name: draw(narrowed(shape)) for name in SHAPES}
    if draw(st.booleans()):
        return drawn
    weight = draw(st.sampled_from((0.0, 1.0, 0.5, -0.3, 1.7, 1e-3)))
    return {"a_shape": drawn["a_shape"], "b_shape": drawn["b_shape"], "weight": weight}


LERP = Family(
    "lerp", "lerp_backward", sw.LerpBackwardDescriptor, sw.LerpBackwardPlan,
    build, truth, by_torch, reads, call, options,
    in_place=("da", "db"),
)  # fmt: skip

FAMILIES = (LERP,)
