"""Preferences that guide ``Plan.select``, the kernel that it selected, and how a plan is displayed."""

from __future__ import annotations

import dataclasses
from typing import Any

from ._descriptor import normalize_fields
from ._show import Shown

__all__ = ["KernelSku", "PlanPreference", "PrecisionGuarantee"]


@dataclasses.dataclass(frozen=True)
class PlanPreference(Shown):
    """Limits and wishes for ``Plan.select``.

    Args:
        deterministic: for compatibility, without effect: the results of every kernel have the same bits in every run.
        max_workspace: the largest workspace in bytes; ``select`` stays within it or raises UnsupportedError. None: no limit.
        kernel: the name of one kernel, as ``plan.sku.kernel`` shows it, for tests and tuning. None: ``select`` chooses.

    Raises:
        InvalidProblemError: a field of another type, or an empty name.

    Example:
        >>> import sternway as sw
        >>> descriptor = sw.ScanBackwardDescriptor("cumsum", shape=(8, 1024), dtype="float32")
        >>> plan = sw.ScanBackwardPlan.select(descriptor, "cpu", sw.PlanPreference(max_workspace=0))
        >>> plan.workspace_size
        0
    """

    deterministic: bool = True
    max_workspace: int | None = None
    kernel: str | None = None

    def __post_init__(self) -> None:
        normalize_fields("PlanPreference", self)


@dataclasses.dataclass(frozen=True)
class PrecisionGuarantee(Shown):
    """What the results of a plan can be relied on for. It is ``plan.precision_guarantee``.

    Attributes:
        math_precision: the dtype of the operands of each operation, by name, such as ``"float32"``.
        accumulator: the dtype of sums and products that run over many elements.
        bit_stable_on_same_hardware: True: the same operands give the same bits on the same device.
        deterministic: True: the order of every sum is fixed.

    Example:
        >>> import sternway as sw
        >>> descriptor = sw.ScanBackwardDescriptor("cumsum", shape=(8, 1024), dtype="float32")
        >>> guarantee = sw.ScanBackwardPlan.select(descriptor, "cpu").precision_guarantee
        >>> guarantee.accumulator, guarantee.deterministic
        ('float64', True)
    """

    math_precision: str
    accumulator: str
    bit_stable_on_same_hardware: bool
    deterministic: bool


@dataclasses.dataclass(frozen=True)
class KernelSku(Shown):
    """The kernel that ``Plan.select`` selected. It is ``plan.sku``.

    Attributes:
        category: the kind of operation, such as ``"scan"`` or ``"elementwise"``.
        op: the operation, such as ``"scan_backward(cumsum)"``.
        element: the dtype of the main operand by name.
        aux_element: the dtype of the second kind of operand, such as indices or quantized values; empty where there is none.
        arch: the architecture of the device, such as ``"sm_90"`` or ``"amd64"``.
        backend: ``"cuda"`` or ``"cpu"``.
        kernel: the name of the kernel; :class:`PlanPreference` takes it.
        precision_guarantee: a :class:`PrecisionGuarantee`.

    Example:
        >>> import sternway as sw
        >>> descriptor = sw.ScanBackwardDescriptor("cumsum", shape=(8, 1024), dtype="float32")
        >>> sku = sw.ScanBackwardPlan.select(descriptor, "cpu").sku
        >>> sku.op, sku.element, sku.backend
        ('scan_backward(cumsum)', 'float32', 'cpu')
    """

    category: str
    op: str
    element: str
    aux_element: str
    arch: str
    backend: str
    kernel: str
    precision_guarantee: PrecisionGuarantee


def rows_of(plan: Any) -> dict[str, str]:
    """The facts that a plan displays, by title."""
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
