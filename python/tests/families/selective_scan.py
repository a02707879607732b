"""Selective scans and their gradients, with every option that changes the arithmetic. The truth is NumPy's longdouble."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, Maker, Truth

import sternway as sw

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


def recurrence(a: Any, x: Any) -> Any:
    """h[t] = a[t] h[t-1] + x[t] along the last dimension, by doubling."""
    a, h, step = a.copy(), x.copy(), 1
    while step < a.shape[-1]:
        h[..., step:] = h[..., step:] + a[..., step:] * h[..., :-step]
        a[..., step:] = a[..., step:] * a[..., :-step]
        step *= 2
    return h


def before(x: Any) -> Any:
    """What comes before each position: 0 before the first."""
    return np.concatenate([np.zeros_like(x[..., :1]), x[..., :-1]], -1)


def with_decays(h: Any, a: Any, is_size: bool) -> Any:
    """The sizes of states with the errors of a sequential recurrence, whose decays are rounded: a tenth of 20 roundings."""
    if not is_size:
        return h
    exponents = np.abs(np.log(np.maximum(a, np.finfo(a.dtype).tiny)))
    return h + recurrence(a, (1 + exponents) * a * before(h)) / 10


def definition(descriptor: Any, x: dict[str, Any], is_size: bool = False) -> dict[str, Any]:
    """The outputs by name; is_size: the sums of absolute values that errors are relative to."""
    size = np.abs if is_size else (lambda value: value)
    raw = x["delta"] + x["delta_bias"][:, None]
    step = np.logaddexp(0, raw) if descriptor.delta_softplus else raw
    slope = 1 / (1 + np.exp(-raw)) if descriptor.delta_softplus else np.ones_like(raw)
    a = np.exp(step[:, :, None] * x["A"][:, :, None])
    u, b, c = size(x["u"]), size(x["B"])[:, None], size(x["C"])[:, None]
    h = with_decays(recurrence(a, (size(step) * u)[:, :, None] * b), a, is_size)
    y = (c * h).sum(2) + size(x["D"])[:, None] * u
    gate, slope_of_gate = np.ones_like(raw), np.zeros_like(raw)
    if "z" in x:
        sigmoid = 1 / (1 + np.exp(-x["z"]))
        gate, slope_of_gate = size(x["z"] * sigmoid), size(sigmoid * (1 + x["z"] * (1 - sigmoid)))
    if "dy" not in x:
        return {"y": y * gate, "last_state": h[..., -1] if h.shape[-1] else np.zeros(h.shape[:-1])}
    dout = size(x["dy"]) * gate
    following = np.concatenate([a[..., 1:], np.zeros_like(a[..., :1])], -1)
    g = recurrence(following[..., ::-1], (c * dout[:, :, None])[..., ::-1])
    g = with_decays(g, following[..., ::-1], is_size)[..., ::-1]
    through = g * a * before(h)
    of_b = (g * b).sum(2)
    ddelta = (u * of_b + (through * size(x["A"])[:, :, None]).sum(2)) * slope
    found = {
        "du": size(step) * of_b + size(x["D"])[:, None] * dout, "ddelta": ddelta,
        "dA": (through * size(step)[:, :, None]).sum((0, 3)), "dB": (g * (size(step) * u)[:, :, None]).sum(1),
        "dC": (h * dout[:, :, None]).sum(1), "dD": (dout * u).sum((0, 2)), "ddelta_bias": ddelta.sum((0, 2)),
    }  # fmt: skip
    return found | ({"dz": size(x["dy"]) * y * slope_of_gate} if "z" in x else {})


def truth(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    """Errors are relative to sums of absolute values; an exponent of -|x| has an error of |x| roundings."""
    wide = {name: x.detach().cpu().double().numpy().astype(np.longdouble) for name, x in inputs.items()}
    with np.errstate(all="ignore"):
        values, sizes = definition(descriptor, wide), definition(descriptor, wide, True)
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
        call, options, required=("y",) if forward else (),
    )  # fmt: skip


SELECTIVE, SELECTIVE_BACKWARD = family(True), family(False)
FAMILIES = (SELECTIVE, SELECTIVE_BACKWARD)
