"""Selective scans and their gradients, with every option that changes the arithmetic.

The truth is NumPy's longdouble of float64, and float64 of others, which takes a third of the time.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, Maker, Truth

import sternway as sw
from sternway._cases.case import Values
from sternway._cases.selective_scan import definition

from .base import Family, Problem, Tensors

STATES = 3
NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


def build(forward: bool, shape: tuple[int, ...], maker: Maker, *, gated: bool = True, softplus: bool = True) -> Any:
    """A shape is that of [batch, channels, positions], with all dimensions before the last two as batches."""
    shape = (1,) * (3 - len(shape)) + shape
    batch, dim, length = math.prod(shape[:-2]), shape[-2], shape[-1]
    rows, wide = (batch, dim, length), ACCUMULATOR[maker.dtype]
    inputs = {} if forward else {"dy": maker.floats(rows)}
    inputs |= {"u": maker.floats(rows), "delta": maker.floats(rows) if softplus else maker.floats(rows).abs()}
    inputs["A"] = -maker.floats((dim, STATES), wide).abs()
    inputs |= {name: maker.floats((batch, STATES, length)) for name in ("B", "C")}
    inputs["D"] = maker.floats((dim,), wide)
    if gated:
        inputs["z"] = maker.floats(rows)
    inputs["delta_bias"] = maker.floats((dim,), wide) if softplus else maker.floats((dim,), wide).abs()
    fields = {"batch": batch, "dim": dim, "length": length, "n": STATES, "has_d": True, "has_z": gated, "has_bias": True}
    return {**fields, "delta_softplus": softplus}, inputs


def truth(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    """Errors are relative to sums of absolute values; an exponent of -|x| has an error of |x| roundings."""
    precise = np.longdouble if inputs["u"].dtype == torch.float64 else np.float64
    wide = Values(**{name: x.detach().cpu().double().numpy().astype(precise) for name, x in inputs.items()})
    with np.errstate(all="ignore"):
        values, sizes = (definition(wide, descriptor.delta_softplus, is_size) for is_size in (False, True))
    like, known = inputs["u"], {}
    roundings = 20 + 2 * math.log2(max(descriptor.length, 1))
    for name, value in values.items():
        value, size = (torch.from_numpy(np.array(v, np.float64)).to(like.device) for v in (value, sizes[name]))
        of = inputs.get(name[1:])
        dtype = (like.dtype if name == "y" else ACCUMULATOR[like.dtype]) if of is None else of.dtype
        known[name] = Truth(value, torch.maximum(size, value.abs()), dtype, ACCUMULATOR[like.dtype], roundings)
    return known


def call(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    x, softplus = problem.inputs, problem.descriptor.delta_softplus
    operands = {name: x[name] for name in NAMES if name in x}
    if "dy" in x:
        results = sw.selective_scan_backward(x["dy"], **operands, delta_softplus=softplus, needs=wanted, out=out)
        return dict(zip(wanted, results, strict=True))
    wants_state = "last_state" in wanted
    found = sw.selective_scan(**operands, delta_softplus=softplus, return_last_state=wants_state, out=out)
    return dict(zip(wanted, found if wants_state else (found,), strict=True))


def options(draw: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"gated": draw(st.booleans()), "softplus": draw(st.booleans())}


def family(forward: bool) -> Family:
    name = "selective_scan" if forward else "selective_scan_backward"
    return Family(
        name, name,
        sw.SelectiveScanDescriptor if forward else sw.SelectiveScanBackwardDescriptor,
        sw.SelectiveScanPlan if forward else sw.SelectiveScanBackwardPlan,
        functools.partial(build, forward), truth, lambda _descriptor, _inputs: {}, lambda _wanted, inputs: set(inputs),
        call, options, required=("y",) if forward else (), workspace=not forward,
    )  # fmt: skip


SELECTIVE, SELECTIVE_BACKWARD = family(True), family(False)
FAMILIES = (SELECTIVE, SELECTIVE_BACKWARD)
