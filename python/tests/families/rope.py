"""y_i = c_i x_i - s_i x_j,  y_j = c_j x_j + s_j x_i,

dx_i = c_i dy_i + s_j dy_j,  dx_j = c_j dy_j - s_i dy_i for each pair (i, j); other elements are copied."""

from __future__ import annotations

import decimal
import functools
import itertools
import math
import operator
from typing import Any

import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, F32, F64, Maker, Truth

import sternway as sw
from sternway._cases.case import roundings

from .base import Family, Problem, Tensors


def four(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Make [B, H, S, D] of any shape; D even, and a shape of four stays as it is."""
    padded = (*(1,) * (4 - len(shape)), *shape)
    return (math.prod(padded[:-3]), *padded[-3:-1], padded[-1] + padded[-1] % 2)


def describe(shape: tuple[int, ...], dtype: Any, **fields: Any) -> sw.RopeBackwardDescriptor:
    b, h, s, d = four(shape)
    return sw.RopeBackwardDescriptor(b, h, s, d, dtype, **fields)


def build(
    shape: tuple[int, ...],
    maker: Maker,
    *,
    pairing: str = "half",
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    angle: str = "float64",
    base: float = 10000.0,
    positions: str = "",
    table: str = "",
    table_dtype: torch.dtype = F32,
    furthest: int = 9,
) -> tuple[dict[str, Any], Tensors]:
    """positions: "", "S" or "BS"; table: "", "half", "full", or with a "B" in front."""
    b, _, s, d = four(shape)
    r = d if rotary_dim is None else rotary_dim
    inputs = {"dy": maker.floats(four(shape))}
    if positions:
        inputs["positions"] = maker.integers(0, furthest, (s,) if positions == "S" else (b, s), torch.int64)
    if table:
        rows = max(furthest + 1, s)
        size = ((b,) if table[0] == "B" else ()) + (rows, r if table.endswith("full") else r // 2)
        inputs["cos"], inputs["sin"] = (maker.floats(size, table_dtype) for _ in range(2))
    fields = {"pairing": pairing, "rotary_dim": rotary_dim, "rotary_start": rotary_start, "angle": angle, "base": base}
    return fields, inputs


def members(x: torch.Tensor, pairing: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the second member of each pair."""
    return x.chunk(2, -1) if pairing == "half" else (x[..., ::2], x[..., 1::2])


def joined(i: torch.Tensor, j: torch.Tensor, pairing: str) -> torch.Tensor:
    return torch.cat((i, j), -1) if pairing == "half" else torch.stack((i, j), -1).flatten(-2)


def factors(d: Any, inputs: Tensors) -> tuple[torch.Tensor, ...]:
    """c_i, s_i, c_j, s_j as [B or 1, 1, S, r/2] in float64, of angles formed in float64 of the nearest frequencies."""
    dy = next(iter(inputs.values()))
    r = d.head_dim if d.rotary_dim is None else d.rotary_dim
    positions = inputs.get("positions", torch.arange(d.seq_len, device=dy.device))
    positions = positions if positions.ndim == 2 else positions[None]
    if "cos" in inputs:
        c, s = (look_up(inputs[name].to(F64), positions)[:, None] for name in ("cos", "sin"))
        if c.shape[-1] == r // 2:
            return c, s, c, s
        (ci, cj), (si, sj) = members(c, d.pairing), members(s, d.pairing)
        return ci, si, cj, sj
    frequency = torch.tensor(frequencies(d.base, r // 2), dtype=F64, device=dy.device)
    if d.angle == "float32":
        theta = (positions.float()[..., None] * frequency.float()).to(F64)[:, None]
    else:
        theta = positions.to(F64)[:, None, :, None] * frequency
    return theta.cos(), theta.sin(), theta.cos(), theta.sin()


@functools.lru_cache(maxsize=64)
def frequencies(base: float, pairs: int) -> tuple[float, ...]:
    """base ** (-k / pairs), each the nearest float64: an error of one place would be multiplied by the position."""
    with decimal.localcontext() as context:
        context.prec = 50
        root = (-decimal.Decimal(base).ln() / max(pairs, 1)).exp()
        powers = itertools.accumulate(itertools.repeat(root, max(pairs - 1, 0)), operator.mul, initial=decimal.Decimal(1))
        return tuple(map(float, itertools.islice(powers, pairs)))


def look_up(table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    if table.ndim == 2:
        return table[positions]
    batch = torch.arange(table.shape[0], device=table.device)[:, None]
    return table[batch, positions.expand(table.shape[0], -1)]


def truth(d: Any, inputs: Tensors) -> dict[str, Truth]:
    dy = inputs["dy"].to(F64)
    r = d.head_dim if d.rotary_dim is None else d.rotary_dim
    before, turned, after = dy.split((d.rotary_start, r, d.head_dim - d.rotary_start - r), -1)
    i, j = members(turned, d.pairing)
    ci, si, cj, sj = factors(d, inputs)
    value = joined(ci * i + sj * j, cj * j - si * i, d.pairing)
    size = joined((ci * i).abs() + (sj * j).abs(), (cj * j).abs() + (si * i).abs(), d.pairing)
    whole = torch.cat((before, value, after), -1)
    dtype = inputs["dy"].dtype
    return {"dx": Truth(whole, torch.cat((before.abs(), size, after.abs()), -1), dtype, ACCUMULATOR[dtype], roundings(2))}


def by_torch(d: Any, inputs: Tensors) -> Tensors:
    """Autograd of what models write, with tables in the accumulator's dtype."""
    dy = inputs["dy"]
    x = torch.zeros_like(dy).requires_grad_()
    r = d.head_dim if d.rotary_dim is None else d.rotary_dim
    before, turned, after = x.split((d.rotary_start, r, d.head_dim - d.rotary_start - r), -1)
    i, j = members(turned, d.pairing)
    ci, si, cj, sj = (t.to(ACCUMULATOR[dy.dtype]).to(dy.dtype) for t in factors(d, inputs))
    y = torch.cat((before, joined(ci * i - si * j, cj * j + sj * i, d.pairing), after), -1)
    return {"dx": torch.autograd.grad(y, x, dy)[0]}


def call(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    d, inputs = problem.descriptor, problem.inputs
    given = {name: inputs.get(name) for name in ("positions", "cos", "sin")}
    options = {name: getattr(d, name) for name in ("base", "pairing", "rotary_dim", "rotary_start", "angle")}
    return {"dx": sw.rope_backward(inputs["dy"], **given, **options, out=out)}


def options(draw: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    d = four(shape)[-1]
    r = draw(st.integers(0, d // 2)) * 2
    return {
        "pairing": draw(st.sampled_from(("half", "interleaved"))),
        "rotary_dim": r,
        "rotary_start": draw(st.integers(0, d - r)),
        "angle": draw(st.sampled_from(("float64", "float32"))),
        "base": draw(st.sampled_from((10000.0, 500000.0, 2.0))),
        "positions": draw(st.sampled_from(("", "S", "BS"))),
        "table": draw(st.sampled_from(("", "", "half", "full", "Bhalf", "Bfull"))),
        "table_dtype": draw(st.sampled_from((F32, F64))),
    }


ROPE = Family(
    "rope", "rope_backward", describe, sw.RopeBackwardPlan,
    build, truth, by_torch, lambda wanted, inputs: set(inputs), call, options,
    required=("dx",), workspace=False, in_place=("dx",),
)  # fmt: skip


# --- The forward ------------------------------------------------------------------------------------------------------


def describe_forward(shape: tuple[int, ...], dtype: Any, **fields: Any) -> sw.RopeDescriptor:
    b, h, s, d = four(shape)
    return sw.RopeDescriptor(b, h, s, d, dtype, **fields)


def build_forward(shape: tuple[int, ...], maker: Maker, **options: Any) -> tuple[dict[str, Any], Tensors]:
    fields, inputs = build(shape, maker, **options)
    return fields, {"x": inputs.pop("dy"), **inputs}


def rotated(d: Any, x: torch.Tensor, ci: Any, si: Any, cj: Any, sj: Any) -> torch.Tensor:
    r = d.head_dim if d.rotary_dim is None else d.rotary_dim
    before, turned, after = x.split((d.rotary_start, r, d.head_dim - d.rotary_start - r), -1)
    i, j = members(turned, d.pairing)
    return torch.cat((before, joined(ci * i - si * j, cj * j + sj * i, d.pairing), after), -1)


def truth_forward(d: Any, inputs: Tensors) -> dict[str, Truth]:
    x, dtype, (ci, si, cj, sj) = inputs["x"].to(F64), inputs["x"].dtype, factors(d, inputs)
    value = rotated(d, x, ci, si, cj, sj)
    size = rotated(d, x.abs(), ci.abs(), -si.abs(), cj.abs(), sj.abs())
    return {"y": Truth(value, size, dtype, ACCUMULATOR[dtype], roundings(2))}


def forward_by_torch(d: Any, inputs: Tensors) -> Tensors:
    """What models write, with tables in the accumulator's dtype."""
    x = inputs["x"]
    return {"y": rotated(d, x, *(t.to(ACCUMULATOR[x.dtype]).to(x.dtype) for t in factors(d, inputs)))}


def call_forward(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    d, inputs = problem.descriptor, problem.inputs
    given = {name: inputs.get(name) for name in ("positions", "cos", "sin")}
    options = {name: getattr(d, name) for name in ("base", "pairing", "rotary_dim", "rotary_start", "angle")}
    return {"y": sw.rope(inputs["x"], **given, **options, out=out)}


ROPE_FORWARD = Family(
    "rope_forward", "rope", describe_forward, sw.RopePlan,
    build_forward, truth_forward, forward_by_torch, lambda wanted, inputs: set(inputs), call_forward, options,
    required=("y",), workspace=False, in_place=("y",),
)  # fmt: skip
