"""One measured row of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table and of the CSV.

    Times are in milliseconds, and medians unless the name says best; errors are in units in the last place.
    """

    op: str
    outputs: str
    shape: str
    dtype: str
    device: str
    kernel: str  # the kernel that ran; several, joined by "+", if a step runs several plans
    bytes: int
    ms: float
    best_ms: float
    new_outputs_ms: float | None  # with outputs allocated in the call, as autograd allocates them; on the CPU
    copy_ms: float
    share_of_copy: float
    replayed_share: float | None  # share_of_copy in replays of CUDA graphs
    torch_ms: float
    torch_best_ms: float
    ratio: float
    error: float
    torch_error: float
    torch_way: str
    others: float  # processors that other programs kept busy meanwhile, on the CPU
