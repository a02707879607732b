"""The scans along one dimension. The truth is NumPy's longdouble, as in scan.py."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, F64, Maker, Truth

import sternway as sw
from sternway._cases.scan import FORWARDS, GROWTH
from sternway._kinds import EXTREMA

from .base import Family, Problem, Tensors
from .scan import Rows, back, numbers, rows_of, settle


def places(sign: int, x: Rows, tie: str) -> Any:
    """The positions of the running maxima of sign * x, in scan order. NaN beats everything."""
    found = np.zeros(x.shape, np.int64)
    for row, to in zip(sign * x, found, strict=True):
        best = 0
        for k, v in enumerate(row):
            b, newer_nan, older_nan = row[best], np.isnan(v), np.isnan(row[best])
            if (newer_nan and (tie == "last" or not older_nan)) or v > b or (tie == "last" and v == b):
                best = k
            to[k] = best
    return found


def truth(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    """The values; the tests of extrema compare indices with `places`."""
    x, dim, reverse = inputs["x"], descriptor.dim, descriptor.reverse
    rows = rows_of(x, dim, reverse)
    if x.numel() == 0:
        value = size = torch.zeros(x.shape, dtype=F64, device=x.device)
    else:
        with np.errstate(all="ignore"):
            value, size = (back(found, x, dim, reverse) for found in FORWARDS[descriptor.kind](rows))
    size = torch.maximum(size, value.abs())
    return {"y": Truth(value, size, x.dtype, ACCUMULATOR[x.dtype], GROWTH[descriptor.kind](rows.shape[1]))}


def build(
    kind: str, shape: tuple[int, ...], maker: Maker, *, dim: int = -1, reverse: bool = False, tie: str = "last"
) -> tuple[dict[str, Any], Tensors]:
    x = maker.floats(shape) if kind == "cumsum" else numbers(kind, shape, maker, dim)
    return {"kind": kind, "dim": dim, "reverse": reverse, "tie": tie}, {"x": x}


def by_torch(descriptor: Any, inputs: Tensors) -> Tensors:
    x, dim = inputs["x"], descriptor.dim
    y = getattr(torch, descriptor.kind)(x.flip(dim) if descriptor.reverse else x, dim)
    y = y.values if descriptor.kind in EXTREMA else y
    return {"y": y.flip(dim) if descriptor.reverse else y}


def call(problem: Problem, _wanted: tuple[str, ...], out: Any = None) -> Tensors:
    """Through the function. An extremum returns its values alone if out has one array."""
    d = problem.descriptor
    options = {"dim": d.dim, "reverse": d.reverse, "out": out}
    if d.kind in EXTREMA:
        options["tie"] = d.tie
    y = getattr(sw, d.kind)(problem.inputs["x"], **options)
    return {"y": y[0] if isinstance(y, tuple) else y}


def options(kind: str, draw: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    rank = max(len(shape), 1)
    drawn = {"dim": draw(st.integers(-rank, rank - 1)), "reverse": draw(st.booleans())}
    if kind in EXTREMA:
        drawn["tie"] = draw(st.sampled_from(("last", "first")))
    return drawn


def family(kind: str, **more: Any) -> Family:
    return Family(
        name=f"{kind}_forward",
        op=f"scan({kind})",
        descriptor=sw.ScanDescriptor,
        plan=sw.ScanPlan,
        build=functools.partial(build, kind),
        truth=truth,
        torch=by_torch,
        reads=lambda _wanted, inputs: set(inputs),
        call=call,
        options=functools.partial(options, kind),
        required=("y",),
        **more,
    )


CUMSUM_FORWARD, CUMPROD_FORWARD = family("cumsum"), family("cumprod", settle=settle)
CUMMAX_FORWARD, CUMMIN_FORWARD = family("cummax"), family("cummin")
LOGCUMSUMEXP_FORWARD = family("logcumsumexp")
FORWARD_SCANS = (CUMSUM_FORWARD, CUMPROD_FORWARD, CUMMAX_FORWARD, CUMMIN_FORWARD, LOGCUMSUMEXP_FORWARD)
