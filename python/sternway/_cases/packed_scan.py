"""Cases of a cumulative product of packed sequences, one of which is empty, and of its gradient."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from .._arrays import Array
from .._kinds import ScanKind
from .._scan import ScanBackwardDescriptor, ScanBackwardPlan
from .._scan_forward import ScanDescriptor, ScanPlan
from . import scan
from .case import Case, Output, Shape, Truth, Values, library
from .scan_definitions import DEFINITIONS
from .source import Source

KIND: ScanKind = "cumprod"
ROWS = scan.ROWS


def bounds(n: int) -> tuple[int, ...]:
    """Where the sequences of a row of n elements begin, and the end of the last."""
    return 0, n // 3, n // 3, n


def apart(function: Callable[..., Any], *rows: Array) -> Any:
    """The results of a function of rows, for each sequence that is not empty."""
    found = bounds(rows[0].shape[-1])
    return [function(*(x[..., start:end] for x in rows)) for start, end in itertools.pairwise(found) if start < end]


def inputs(source: Source, shape: Shape, dtype: str) -> Values:
    """Those of a scan of whole rows, and the bounds."""
    values = scan.inputs(KIND, ROWS, source, shape, dtype)
    numbers = 0 * source.normal((len(bounds(0)),))
    for k, bound in enumerate(bounds(shape[-1])):
        numbers[k] = bound
    values.cu_seqlens = source.cast(numbers, "int32")
    return values


def truth(function: Callable[..., tuple[Array, Array]], *rows: Array) -> Truth:
    """The results of a definition, sequence by sequence."""
    lib = library(rows[0])
    value, size = (lib.concatenate(parts, -1) for parts in zip(*apart(function, *rows), strict=True))
    return scan.of_rows(ROWS, KIND, value, size)


def by_torch(v: Values) -> Any:
    """The operation by torch, sequence by sequence."""
    import torch

    return torch.cat(apart(functools.partial(torch.cumprod, dim=ROWS), v.x), ROWS)


def drop_in(v: Values) -> Any:
    """The operation by sternway.torch."""
    import sternway.torch

    return sternway.torch.cumprod(v.x, ROWS, cu_seqlens=v.cu_seqlens)


OPTIONS: dict[str, Any] = {
    "family": "scan", "name": f"{KIND}, packed", "inputs": inputs, "torch": by_torch, "rival": f"torch.{KIND} of each",
    "drop_in": drop_in, "demo": (1024, 1024),
}  # fmt: skip
SEQUENCES = len(bounds(0)) - 1

CASES = (
    Case(
        plan=ScanBackwardPlan, reads=("dy", "x", "cu_seqlens"), **OPTIONS,
        describe=lambda v: ScanBackwardDescriptor(KIND, v.dy.shape, v.dy.dtype, ROWS, num_sequences=SEQUENCES),
        outputs={"dx": Output("x", lambda v: truth(DEFINITIONS[KIND].gradient, v.dy, v.x))},
    ),
    Case(
        plan=ScanPlan, reads=("x", "cu_seqlens"), **OPTIONS,
        describe=lambda v: ScanDescriptor(KIND, v.x.shape, v.x.dtype, ROWS, num_sequences=SEQUENCES),
        outputs={"y": Output("x", lambda v: truth(DEFINITIONS[KIND].forward, v.x))},
    ),
)  # fmt: skip
