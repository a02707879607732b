"""RoPE, and its gradient."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, F32, F64, Maker, Truth

import sternway as sw
from sternway._cases.rope import factors, rotated, shaped
from sternway._cases.rope import truth as definition

from .base import Family, Problem, Tensors


def describe(shape: tuple[int, ...], dtype: Any, **fields: Any) -> sw.RopeBackwardDescriptor:
    b, h, s, d = shaped(shape)
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
    b, _, s, d = shaped(shape)
    r = d if rotary_dim is None else rotary_dim
    inputs = {"dy": maker.floats(shaped(shape))}
    if positions:
        inputs["positions"] = maker.integers(0, furthest, (s,) if positions == "S" else (b, s), torch.int64)
    if table:
        rows = max(furthest + 1, s)
        size = ((b,) if table[0] == "B" else ()) + (rows, r if table.endswith("full") else r // 2)
        inputs["cos"], inputs["sin"] = (maker.floats(size, table_dtype) for _ in range(2))
    fields = {"pairing": pairing, "rotary_dim": rotary_dim, "rotary_start": rotary_start, "angle": angle, "base": base}
    return fields, inputs


def factors_of(d: Any, inputs: Tensors) -> tuple[torch.Tensor, ...]:
    """c_i, s_i, c_j, s_j in float64."""
    x, *_ = inputs.values()
    tables = {name: inputs[name].to(F64) for name in ("cos", "sin") if name in inputs}
    return factors(d, x, inputs.get("positions"), **tables)


def truth(d: Any, inputs: Tensors) -> dict[str, Truth]:
    x = next(iter(inputs.values()))
    found = definition(d, x.to(F64), *factors_of(d, inputs))
    name = "dx" if "dy" in inputs else "y"
    return {name: Truth(found.value, found.size, x.dtype, ACCUMULATOR[x.dtype], found.roundings)}


def by_torch(d: Any, inputs: Tensors) -> Tensors:
    """Autograd of what models write, with tables in the accumulator's dtype."""
    dy = inputs["dy"]
    x = torch.zeros_like(dy).requires_grad_()
    y = rotated(d, x, *(t.to(ACCUMULATOR[dy.dtype]).to(dy.dtype) for t in factors_of(d, inputs)))
    return {"dx": torch.autograd.grad(y, x, dy)[0]}


def call(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    d, inputs = problem.descriptor, problem.inputs
    given = {name: inputs.get(name) for name in ("positions", "cos", "sin")}
    options = {name: getattr(d, name) for name in ("base", "pairing", "rotary_dim", "rotary_start", "angle")}
    return {"dx": sw.rope_backward(inputs["dy"], **given, **options, out=out)}


def options(draw: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    d = shaped(shape)[-1]
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
    b, h, s, d = shaped(shape)
    return sw.RopeDescriptor(b, h, s, d, dtype, **fields)


def build_forward(shape: tuple[int, ...], maker: Maker, **options: Any) -> tuple[dict[str, Any], Tensors]:
    fields, inputs = build(shape, maker, **options)
    return fields, {"x": inputs.pop("dy"), **inputs}


def forward_by_torch(d: Any, inputs: Tensors) -> Tensors:
    """What models write, with tables in the accumulator's dtype."""
    x = inputs["x"]
    return {"y": rotated(d, x, *(t.to(ACCUMULATOR[x.dtype]).to(x.dtype) for t in factors_of(d, inputs)))}


def call_forward(problem: Problem, wanted: tuple[str, ...], out: Any = None) -> Tensors:
    d, inputs = problem.descriptor, problem.inputs
    given = {name: inputs.get(name) for name in ("positions", "cos", "sin")}
    options = {name: getattr(d, name) for name in ("base", "pairing", "rotary_dim", "rotary_start", "angle")}
    return {"y": sw.rope(inputs["x"], **given, **options, out=out)}


ROPE_FORWARD = Family(
    "rope_forward", "rope", describe_forward, sw.RopePlan,
    build_forward, truth, forward_by_torch, lambda wanted, inputs: set(inputs), call_forward, options,
    required=("y",), workspace=False, in_place=("y",),
)  # fmt: skip

FAMILIES = (ROPE, ROPE_FORWARD)
