"""Cases of the selective scan of Mamba, with every optional operand but states, and of its gradient."""

from __future__ import annotations

import functools
import math
from typing import Any

from .._arrays import Array
from .._dtypes import ACCUMULATORS
from .._selective_scan import SelectiveScanDescriptor, SelectiveScanPlan
from .._selective_scan_backward import SelectiveScanBackwardDescriptor, SelectiveScanBackwardPlan
from .case import Case, Output, Shape, Truth, Values, library
from .linear_recurrence import after, before, from_the_end, growth, recurrence
from .source import Source

STATES = 4
READS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


def definition(v: Values, softplus: bool = True, is_size: bool = False) -> dict[str, Array]:
    """The results by name, as Gu and Dao (2023) define them; is_size: the sums of absolute values that errors are relative to.

    A rounded exponent changes its decay by as many roundings as the exponent is large; sizes have a tenth of it, since an error
    may be 20 roundings. Without dy among the values the results are those of the forward.
    """
    lib, size = library(v.u), abs if is_size else lambda value: value
    raw = v.delta + v.delta_bias[:, None]
    step = lib.logaddexp(0 * raw, raw) if softplus else raw
    slope = 1 / (1 + lib.exp(-raw)) if softplus else 1 + 0 * raw
    exponent = step[:, :, None] * v.A[:, :, None]
    a, errors = lib.exp(exponent), (1 + abs(exponent)) * lib.exp(exponent) / 10
    u, b, c = size(v.u), size(v.B)[:, None], size(v.C)[:, None]
    h = recurrence(a, (size(step) * u)[:, :, None] * b)
    if is_size:
        h = h + recurrence(a, errors * before(h))
    y = (c * h).sum(2) + size(v.D)[:, None] * u
    gate, slope_of_gate = 1 + 0 * raw, 0 * raw
    if hasattr(v, "z"):
        sigmoid = 1 / (1 + lib.exp(-v.z))
        gate, slope_of_gate = size(v.z * sigmoid), size(sigmoid * (1 + v.z * (1 - sigmoid)))
    if not hasattr(v, "dy"):
        return {"y": y * gate, "last_state": h[..., -1] if h.shape[-1] else h.sum(-1)}
    dout = size(v.dy) * gate
    g = from_the_end(a, c * dout[:, :, None])
    if is_size:
        g = g + from_the_end(a, after(errors * g))
    through = g * a * before(h)
    of_b = (g * b).sum(2)
    ddelta = (u * of_b + (through * size(v.A)[:, :, None]).sum(2)) * slope
    found = {
        "du": size(step) * of_b + size(v.D)[:, None] * dout, "ddelta": ddelta,
        "dA": (through * size(step)[:, :, None]).sum((0, 3)), "dB": (g * (size(step) * u)[:, :, None]).sum(1),
        "dC": (h * dout[:, :, None]).sum(1), "dD": (dout * u).sum((0, 2)), "ddelta_bias": ddelta.sum((0, 2)),
    }  # fmt: skip
    return found | ({"dz": size(v.dy) * y * slope_of_gate} if hasattr(v, "z") else {})


def inputs(source: Source, shape: Shape, dtype: str, states: int = STATES) -> Values:
    """Normal numbers, and negative rates of decay. A shape is that of u; one without batches has one."""
    batch, dim, length = math.prod(shape[:-2]), shape[-2], shape[-1]
    rows, factors, wide = (batch, dim, length), (batch, states, length), ACCUMULATORS[dtype]
    v = Values(**{name: source.cast(source.normal(rows), dtype) for name in ("dy", "u", "delta", "z")})
    v.B, v.C = (source.cast(source.normal(factors), dtype) for _ in range(2))
    v.A = source.cast(-abs(source.normal((dim, states))), wide)
    v.D, v.delta_bias = (source.cast(source.normal((dim,)), wide) for _ in range(2))
    return v


def roundings(length: int) -> float:
    """The roundings of the accumulator that a result may be off by, relative to its size, over so many positions."""
    return 20 + growth(length)


def truth(name: str, v: Values) -> Truth:
    """A result by definition; errors are relative to the largest size of a row. All gradients come from one computation."""
    if name == "y":
        v = Values(**{key: value for key, value in vars(v).items() if key != "dy"})
    if not hasattr(v, "defined"):
        v.defined = definition(v), definition(v, is_size=True)
    values, sizes = v.defined
    return Truth(values[name], sizes[name], roundings(v.u.shape[-1]))


def by_loop(v: Values) -> Any:
    """The operation on tensors by a loop over the positions, as models without a kernel have it."""
    import torch
    from torch.nn import functional

    step = functional.softplus(v.delta + v.delta_bias[:, None])
    decays = (step[..., None] * v.A[:, None]).exp()
    terms = step[..., None] * v.B.mT[:, None] * v.u[..., None]
    h, outputs = torch.zeros_like(terms[:, :, 0]), []
    for decay, term, factor in zip(decays.unbind(2), terms.unbind(2), v.C.unbind(-1), strict=True):
        h = decay * h + term
        outputs.append((h * factor[:, None]).sum(-1))
    y = torch.stack(outputs, -1) + v.D[:, None] * v.u
    return (y * functional.silu(v.z)).to(v.u.dtype)


def drop_in(v: Values) -> Any:
    """The operation by sternway.torch."""
    import sternway.torch

    operands: Any = {name: getattr(v, name) for name in READS}
    return sternway.torch.selective_scan(**operands, delta_softplus=True)


def fields(v: Values) -> dict[str, Any]:
    """The fields of both descriptors."""
    batch, dim, length = v.u.shape
    has = dict.fromkeys(("has_d", "has_z", "has_bias", "delta_softplus"), True)
    return {"batch": batch, "dim": dim, "length": length, "n": v.A.shape[-1], "dtype": v.u.dtype, **has}


OPTIONS: dict[str, Any] = {
    "family": "selective_scan", "name": "all operands", "inputs": inputs, "torch": by_loop, "rival": "a loop",
    "drop_in": drop_in, "demo": (64, 256),
}  # fmt: skip

CASES = (
    Case(
        plan=SelectiveScanBackwardPlan, reads=("dy", *READS), **OPTIONS,
        describe=lambda v: SelectiveScanBackwardDescriptor(**fields(v)),
        outputs={
            f"d{name}": Output(name, functools.partial(truth, f"d{name}")) for name in READS
        },
    ),
    Case(
        plan=SelectiveScanPlan, reads=READS, **OPTIONS, describe=lambda v: SelectiveScanDescriptor(**fields(v)),
        outputs={"y": Output("u", functools.partial(truth, "y"))},
    ),
)  # fmt: skip
