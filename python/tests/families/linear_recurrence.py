"""Linear recurrences and their gradients. The truth is NumPy's longdouble, as of the scans."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, Maker, Truth

import sternway as sw
from sternway._cases.linear_recurrence import forward_definition, gradient_definitions

from .base import Family, Problem, Tensors
from .scan import back, rows_of


def build(
    forward: bool, shape: tuple[int, ...], maker: Maker, *, dim: int = -1, reverse: bool = False
) -> tuple[dict[str, Any], Tensors]:
    x = maker.floats(shape)
    inputs = {"b": maker.floats(shape)} if forward else {"dh": maker.floats(shape), "h": maker.floats(shape)}
    return {"dim": dim, "reverse": reverse}, {**inputs, "a": x / (1 + x.abs())}


def truth(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    like = next(iter(inputs.values()))
    rows = {name: rows_of(x, descriptor.dim, descriptor.reverse) for name, x in inputs.items()}
    with np.errstate(all="ignore"):
        if "b" in rows:
            found = {"h": forward_definition(rows["a"], rows["b"])}
        else:
            found = gradient_definitions(rows["dh"], rows["a"], rows["h"])
    known = {}
    for name, (value, size, growth) in found.items():
        if like.numel() == 0:
            value, size = np.zeros(0), np.zeros(0)
        value, size = (back(part, like, descriptor.dim, descriptor.reverse) for part in (value, size))
        known[name] = Truth(value, torch.maximum(size, value.abs()), like.dtype, ACCUMULATOR[like.dtype], growth)
    return known


def call(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    d, x = problem.descriptor, problem.inputs
    if "b" in x:
        return {"h": sw.linear_recurrence(x["a"], x["b"], d.dim, reverse=d.reverse, out=out)}
    results = sw.linear_recurrence_backward(x["dh"], x["a"], x["h"], d.dim, reverse=d.reverse, needs=wanted, out=out)
    return dict(zip(wanted, results, strict=True))


def options(draw: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    rank = max(len(shape), 1)
    return {"dim": draw(st.integers(-rank, rank - 1)), "reverse": draw(st.booleans())}


def family(forward: bool) -> Family:
    name = "linear_recurrence" if forward else "linear_recurrence_backward"
    return Family(
        name, name,
        sw.LinearRecurrenceDescriptor if forward else sw.LinearRecurrenceBackwardDescriptor,
        sw.LinearRecurrencePlan if forward else sw.LinearRecurrenceBackwardPlan,
        functools.partial(build, forward), truth, lambda _descriptor, _inputs: {}, lambda _wanted, inputs: set(inputs),
        call, options, required=("h",) if forward else (),
    )  # fmt: skip


LINEAR, LINEAR_BACKWARD = family(True), family(False)
FAMILIES = (LINEAR, LINEAR_BACKWARD)
