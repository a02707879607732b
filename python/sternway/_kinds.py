"""The scans: their operands and the sizes of their carries.

core/internal/generate writes this file from the tables of the Go core: run ``make generate``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

ScanKind = Literal["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]


class Kind(NamedTuple):
    """A scan with its gradient."""

    name: ScanKind
    operands: tuple[str, ...]
    """Of the gradient, beside dy. Of several, a call has exactly one."""
    carry_size: int
    """Numbers of the carry of a row."""
    gradient_carry_size: int
    """Numbers of the carry of a row in the gradient."""
    gradient_carry_size_float64: int

    @property
    def has_indices(self) -> bool:
        """Whether the scan returns indices, by which its gradient can be computed."""
        return "indices" in self.operands


KINDS = {
    kind.name: kind
    for kind in (
        Kind("cumsum", (), 1, 1, 1),
        Kind("cumprod", ("x",), 2, 2, 4),
        Kind("cummax", ("x", "indices"), 3, 2, 2),
        Kind("cummin", ("x", "indices"), 3, 2, 2),
        Kind("logcumsumexp", ("x",), 2, 2, 2),
    )
}
"""By name, in the order of the documents."""

EXTREMA = tuple(name for name, kind in KINDS.items() if kind.has_indices)
"""The scans that return indices beside values."""

WITH_KERNELS: tuple[ScanKind, ...] = ("cumsum", "cumprod", "cummax", "logcumsumexp")
"""The scans that have CUDA kernels of their own."""
