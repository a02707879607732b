"""The scans along one dimension, and their gradients.

The truth is NumPy's longdouble, whose 64 bits and range of 2^+-16384 leave nothing to the order of operations.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, F64, Maker, Truth, values_of

import sternway as sw
from sternway._cases.scan_definitions import DEFINITIONS
from sternway._kinds import EXTREMA, KINDS

from .base import Family, Problem, Tensors

Rows = Any
"""A longdouble array [rows, n], positions in scan order."""


def by_indices(dy: Rows, indices: Any) -> tuple[Rows, Rows]:
    dx, size = np.zeros_like(dy), np.zeros_like(dy)
    rows = np.arange(len(dy))[:, None]
    np.add.at(dx, (rows, indices), dy)
    np.add.at(size, (rows, indices), dy * dy)
    return dx, np.sqrt(size)


def rows_of(tensor: torch.Tensor, dim: int, reverse: bool) -> Any:
    """[rows, n] in scan order."""
    array = tensor.detach().cpu()
    array = array.movedim(dim, -1) if array.dim() else array.reshape(1)
    array = array.flip(-1) if reverse else array
    n = array.shape[-1]
    wide = array.numpy() if array.dtype == torch.int64 else array.to(F64).numpy().astype(np.longdouble)
    return wide.reshape(-1, n) if n else wide.reshape(0, 1)


def back(rows: Rows, like: torch.Tensor, dim: int, reverse: bool) -> torch.Tensor:
    """The inverse of rows_of, in float64."""
    values = torch.from_numpy(rows.astype(np.float64))
    if like.dim() == 0:
        return values.reshape(()).to(like.device)
    shape = list(like.shape)
    shape.append(shape.pop(dim))
    values = values.reshape(shape)
    return (values.flip(-1) if reverse else values).movedim(-1, dim).to(like.device)


def truth(descriptor: Any, inputs: Tensors) -> dict[str, Truth]:
    """The gradient, or the values of a scan; the tests of extrema compare indices with `places`."""
    (first, x), kind, dim, reverse = next(iter(inputs.items())), descriptor.kind, descriptor.dim, descriptor.reverse
    rows = {name: rows_of(tensor, dim, reverse) for name, tensor in inputs.items()}
    n = rows[first].shape[1]
    with np.errstate(all="ignore"):
        if x.numel() == 0:
            found = (np.zeros(0),) * 2
        elif first == "x":
            found = DEFINITIONS[kind].forward(rows["x"])
        elif "indices" in rows:
            found = by_indices(rows["dy"], n - 1 - rows["indices"] if reverse else rows["indices"])
        else:
            found = DEFINITIONS[kind].gradient(rows["dy"], rows.get("x"), descriptor.tie)
    value, size = (back(part, x, dim, reverse) for part in found)
    known = Truth(value, torch.maximum(size, value.abs()), x.dtype, ACCUMULATOR[x.dtype], DEFINITIONS[kind].growth(n))
    return {"y" if first == "x" else "dx": known}


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


def numbers(kind: str, shape: tuple[int, ...], maker: Maker, dim: int) -> torch.Tensor:
    """Draw x: with ties for an extremum; for a product r[k] / r[k-1] of both signs, so that products stay near 1."""
    if kind in EXTREMA:
        return maker.integers(-4, 4, shape, F64).to(maker.dtype)
    if kind == "logcumsumexp":
        return 3 * maker.floats(shape)
    if kind != "cumprod":
        return maker.floats(shape)
    r = torch.randn(shape, dtype=F64, generator=maker.generator) / 8
    x = torch.exp2(r - r.roll(1, dim) if shape else r) * (1 - 2 * (r > 0.2).to(F64))
    return x.to(maker.device, maker.dtype)


def build(
    kind: str,
    forward: bool,
    shape: tuple[int, ...],
    maker: Maker,
    *,
    dim: int = -1,
    reverse: bool = False,
    tie: str = "last",
    indices: bool = False,
) -> tuple[dict[str, Any], Tensors]:
    """indices: a gradient is by the indices of torch's scan."""
    inputs = {} if forward else {"dy": maker.floats(shape)}
    fields = {"kind": kind, "dim": dim, "reverse": reverse, "tie": tie}
    if not forward and not KINDS[kind].operands:
        return fields, inputs
    x = inputs["x"] = numbers(kind, shape, maker, dim)
    if indices:
        found = getattr(torch, kind)(x.flip(dim) if reverse else x, dim).indices
        last = x.size(dim) - 1 if x.dim() else 0
        inputs["indices"] = (last - found.flip(dim) if reverse else found).contiguous()
        del inputs["x"]
    return fields, inputs


def settle(inputs: Tensors) -> None:
    """Make factors that a stride of 0 repeats 1 or -1: their powers would leave every range."""
    x = inputs["x"]
    if any(stride == 0 and extent > 1 for stride, extent in zip(x.stride(), x.shape, strict=True)):
        base = x
        for dim, stride in enumerate(x.stride()):
            base = base.narrow(dim, 0, min(1, x.shape[dim])) if stride == 0 else base
        base.copy_(base.sign())


def forward_by_torch(descriptor: Any, x: torch.Tensor) -> torch.Tensor:
    dim, reverse = descriptor.dim, descriptor.reverse
    y = values_of(getattr(torch, descriptor.kind)(x.flip(dim) if reverse else x, dim))
    return y.flip(dim) if reverse else y


def by_torch(descriptor: Any, inputs: Tensors) -> Tensors:
    """torch's own scan, or its gradient; it knows neither that of the first of equal values nor one by given indices."""
    if "dy" not in inputs:
        return {"y": forward_by_torch(descriptor, inputs["x"])}
    if "indices" in inputs or descriptor.tie == "first":
        return {}
    x = inputs.get("x", inputs["dy"]).detach().clone().requires_grad_()
    return {"dx": torch.autograd.grad(forward_by_torch(descriptor, x), x, inputs["dy"])[0]}


def call(problem: Problem, _wanted: tuple[str, ...], out: Any = None) -> Tensors:
    """Through the function. An extremum returns its values alone if out has one array."""
    d, inputs = problem.descriptor, problem.inputs
    options = {"dim": d.dim, "reverse": d.reverse, "out": out}
    if d.kind in EXTREMA:
        options["tie"] = d.tie
    if "dy" not in inputs:
        return {"y": values_of(getattr(sw, d.kind)(inputs["x"], **options))}
    if d.kind in EXTREMA:
        options["indices"] = inputs.get("indices")
    arrays = [inputs["dy"], inputs.get("x")] if KINDS[d.kind].operands else [inputs["dy"]]
    return {"dx": getattr(sw, f"{d.kind}_backward")(*arrays, **options)}


def options(kind: str, forward: bool, draw: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    rank = max(len(shape), 1)
    drawn = {"dim": draw(st.integers(-rank, rank - 1)), "reverse": draw(st.booleans())}
    if kind in EXTREMA:
        drawn["tie"] = draw(st.sampled_from(("last", "first")))
        if not forward:
            drawn["indices"] = draw(st.booleans())
    return drawn


def family(kind: str, forward: bool) -> Family:
    return Family(
        name=f"{kind}_forward" if forward else kind,
        op=f"scan({kind})" if forward else f"scan_backward({kind})",
        descriptor=sw.ScanDescriptor if forward else sw.ScanBackwardDescriptor,
        plan=sw.ScanPlan if forward else sw.ScanBackwardPlan,
        build=functools.partial(build, kind, forward),
        truth=truth,
        torch=by_torch,
        reads=lambda _wanted, inputs: set(inputs),
        call=call,
        options=functools.partial(options, kind, forward),
        required=("y" if forward else "dx",),
        **({"settle": settle} if kind == "cumprod" else {}),
    )


SCANS = {kind: family(kind, False) for kind in KINDS}
"""The gradients, by kind."""
FORWARD_SCANS = {kind: family(kind, True) for kind in KINDS}
FAMILIES = (*SCANS.values(), *FORWARD_SCANS.values())
