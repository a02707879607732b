"""What a plan may be chosen from, what was chosen, and how that is shown."""

from __future__ import annotations

import dataclasses
import html
from typing import Any

from ._descriptor import normalise_fields


@dataclasses.dataclass(frozen=True)
class PlanPreference:
    """What ``Plan.select`` may choose from.

    Args:
        deterministic: False lets a family pick an atomic kernel where that is faster.
        max_workspace: bytes; select chooses within it or raises. None: no limit.
        kernel: one variant by name, for tests and tuning. None: select chooses.

    Raises:
        InvalidProblemError: a field of another kind, or a kernel without a name.
    """

    deterministic: bool = True
    max_workspace: int | None = None
    kernel: str | None = None

    def __post_init__(self) -> None:
        normalise_fields("PlanPreference", self)


@dataclasses.dataclass(frozen=True)
class PrecisionGuarantee:
    """What a plan promises of its numbers: dtypes by name, and whether bits repeat."""

    math_precision: str
    accumulator: str
    bit_stable_on_same_hardware: bool
    deterministic: bool


@dataclasses.dataclass(frozen=True)
class KernelSku:
    """What ``Plan.select`` chose."""

    category: str
    op: str
    element: str
    aux_element: str
    arch: str
    backend: str
    kernel: str
    precision_guarantee: PrecisionGuarantee


def rows_of(plan: Any) -> dict[str, str]:
    """What there is to say of a plan."""
    sku, facts = plan.sku, plan._facts
    return {
        "op": sku.op,
        "dtype": sku.element + (f", {sku.aux_element}" if sku.aux_element else ""),
        "shape": str(list(getattr(plan.descriptor, "shape", ()))),
        "device": f"{plan.device} ({sku.arch})",
        "kernel": sku.kernel,
        "geometry": facts["geometry"],
        "bytes moved": f"{facts['bytes']:,}",
        "workspace": f"{plan.workspace_size:,} bytes",
        "guarantee": f"{sku.precision_guarantee.accumulator} sums, "
        + ("same bits every run" if plan.precision_guarantee.deterministic else "bits may differ between runs"),
    }


def table(rows: dict[str, str]) -> str:
    """HTML of two columns."""
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(k)}</th><td style="text-align:left">{html.escape(v)}</td></tr>'
        for k, v in rows.items()
    )
    return f"<table>{cells}</table>"
