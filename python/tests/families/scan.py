"""The gradients of the scans along one dimension.

The truth is NumPy's longdouble, whose 64 bits and range of 2^+-16384 leave nothing to the order of operations.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from support import ACCUMULATOR, F64, Maker, Truth

import sternway as sw
from sternway._cases.scan import DEFINITIONS, GROWTH
from sternway._kinds import EXTREMA

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
    dy, dim, reverse = inputs["dy"], descriptor.dim, descriptor.reverse
    rows = {name: rows_of(tensor, dim, reverse) for name, tensor in inputs.items()}
    n = rows["dy"].shape[1]
    with np.errstate(all="ignore"):
        if dy.numel() == 0:
            value = size = torch.zeros(dy.shape, dtype=F64, device=dy.device)
        elif "indices" in rows:
            indices = n - 1 - rows["indices"] if reverse else rows["indices"]
            value, size = (back(x, dy, dim, reverse) for x in by_indices(rows["dy"], indices))
        else:
            found = DEFINITIONS[descriptor.kind](rows["dy"], rows.get("x"), descriptor.tie)
            value, size = (back(x, dy, dim, reverse) for x in found)
    size = torch.maximum(size, value.abs())
    return {"dx": Truth(value, size, dy.dtype, ACCUMULATOR[dy.dtype], GROWTH[descriptor.kind](n))}


def numbers(kind: str, shape: tuple[int, ...], maker: Maker, dim: int) -> torch.Tensor:
    """Draw x: with ties for an extremum; for a product r[k] / r[k-1] of both signs, so that products stay near 1."""
    if kind in EXTREMA:
        return maker.integers(-4, 4, shape, F64).to(maker.dtype)
    if kind == "logcumsumexp":
        return 3 * maker.floats(shape)
    r = torch.randn(shape, dtype=F64, generator=maker.generator) / 8
    x = torch.exp2(r - r.roll(1, dim) if shape else r) * (1 - 2 * (r > 0.2).to(F64))
    return x.to(maker.device, maker.dtype)


def build(
    kind: str,
    shape: tuple[int, ...],
    maker: Maker,
    *,
    dim: int = -1,
    reverse: bool = False,
    tie: str = "last",
    indices: bool = False,
) -> tuple[dict[str, Any], Tensors]:
    inputs = {"dy": maker.floats(shape)}
    fields = {"kind": kind, "dim": dim, "reverse": reverse, "tie": tie}
    if kind == "cumsum":
        return fields, inputs
    x = numbers(kind, shape, maker, dim)
    inputs["x"] = x
    if indices:
        scanned = x.flip(dim) if reverse else x
        found = getattr(torch, kind)(scanned, dim).indices
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


def by_torch(descriptor: Any, inputs: Tensors) -> Tensors:
    """Differentiate torch's own scan; it knows neither the first of equal values nor a scan by given indices."""
    dy, dim, reverse = inputs["dy"], descriptor.dim, descriptor.reverse
    if "indices" in inputs or descriptor.tie == "first":
        return {}
    x = inputs.get("x", dy).detach().clone().requires_grad_()
    y = getattr(torch, descriptor.kind)(x.flip(dim) if reverse else x, dim)
    y = y.values if descriptor.kind in EXTREMA else y
    return dict(zip(("dx",), torch.autograd.grad(y.flip(dim) if reverse else y, x, dy), strict=True))


def call(problem: Problem, _wanted: tuple[str, ...], out: Any = None) -> Tensors:
    d, inputs = problem.descriptor, problem.inputs
    options = {"dim": d.dim, "reverse": d.reverse, "out": out}
    if d.kind in EXTREMA:
        options.update(tie=d.tie, indices=inputs.get("indices"))
    arrays = [inputs["dy"]] if d.kind == "cumsum" else [inputs["dy"], inputs.get("x")]
    return {"dx": getattr(sw, f"{d.kind}_backward")(*arrays, **options)}


def options(kind: str, draw: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    rank = max(len(shape), 1)
    drawn = {"dim": draw(st.integers(-rank, rank - 1)), "reverse": draw(st.booleans())}
    if kind in EXTREMA:
        drawn.update(tie=draw(st.sampled_from(("last", "first"))), indices=draw(st.booleans()))
    return drawn


def family(kind: str, **more: Any) -> Family:
    return Family(
        name=kind,
        op=f"scan_backward({kind})",
        descriptor=sw.ScanBackwardDescriptor,
        plan=sw.ScanBackwardPlan,
        build=functools.partial(build, kind),
        truth=truth,
        torch=by_torch,
        reads=lambda _wanted, inputs: set(inputs),
        call=call,
        options=functools.partial(options, kind),
        required=("dx",),
        **more,
    )


CUMSUM, CUMPROD = family("cumsum"), family("cumprod", settle=settle)
CUMMAX, CUMMIN = family("cummax"), family("cummin")
LOGCUMSUMEXP = family("logcumsumexp")
SCANS = (CUMSUM, CUMPROD, CUMMAX, CUMMIN, LOGCUMSUMEXP)
