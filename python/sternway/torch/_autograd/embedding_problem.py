"""The problem of embedding: its options, their checks, and the plans of its backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_of
from ..._embedding import EmbeddingBackwardPlan, _embedding_plan
from ..._unique_rows import _unique_rows_plan
from .calls import flag, integer
from .constants import constant
from .dispatch import ErrorParts, device_to_ask, require, require_strided, runs_plan_directly, selection_error
from .learning import NO_LEARNER, Kind
from .sparse_rows import most_rows

NAME = "sternway.torch.embedding"


class Options(NamedTuple):
    """How positions count, and the form of the gradient."""

    padding: int | None  # not negative
    by_frequency: bool
    sparse: bool


def options(padding: Any, by_frequency: Any, sparse: Any, rows: int) -> Options:
    """The options of a call, with padding_idx counted from the start.

    Raises:
        InvalidProblemError: an option of a wrong type.
        RuntimeError: padding_idx is outside the table.
    """
    by_frequency = flag("embedding", "scale_grad_by_freq", by_frequency)
    sparse = flag("embedding", "sparse", sparse)
    if padding is not None:
        padding = integer("embedding", "padding_idx", padding)
        if not -rows <= padding < rows:
            raise RuntimeError(f"embedding: padding_idx must be in [{-rows}, {rows}), got {padding}")
        padding %= rows
    return Options(padding, by_frequency, sparse)


def select(
    table: torch.Size, total: int, dtype: torch.dtype, index: torch.dtype, o: Options, device: str,
    kind: Kind = NO_LEARNER,
) -> EmbeddingBackwardPlan | None:  # fmt: skip
    """Select the plans of the backward of a lookup of so many indices. Returns that of a dense gradient, or of an update.

    Args:
        kind: of the learner that updates the table, or of none.

    Raises:
        Error: there is no plan.
    """
    rows, dim = table
    if not o.sparse:
        return _embedding_plan(rows, dim, total, dtype, index, o.padding, o.by_frequency, device, *kind)
    # How many rows the gradient has is known in the backward; here, the most.
    _unique_rows_plan(rows, total, index, o.padding, device)
    most, padding = most_rows(rows, total, o.padding), None if o.padding is None else 0
    _embedding_plan(most, dim, total, dtype, torch.int32, padding, o.by_frequency, device)
    return None


def _probe(dtype: torch.dtype, index: torch.dtype, sparse: bool, device: str) -> None:
    """Select the plans of a small table with these dtypes."""
    if sparse:
        _unique_rows_plan(1, 1, index, None, device)
        index = torch.int32
    _embedding_plan(1, 1, 1, dtype, index, None, False, device)


@constant
def _probed(dtype: torch.dtype, index: torch.dtype, sparse: bool, device: torch.device) -> ErrorParts | None:
    return selection_error(_probe, dtype, index, sparse, str(device))


def select_or_raise(input: Tensor, weight: Tensor, o: Options, kind: Kind = NO_LEARNER) -> EmbeddingBackwardPlan | None:
    """Select the plans of the backward, or those of a small table if the call is traced. Returns that of a dense gradient.

    Args:
        kind: of the learner that updates the table, whose plan is returned; or of none.

    Raises:
        Error: there is no plan.
    """
    if kind[0] is None and not runs_plan_directly(input, weight):
        require_strided("embedding", input=input, weight=weight)
        require("embedding", _probed(weight.dtype, input.dtype, o.sparse, device_to_ask(weight)))
        return None
    return select(weight.shape, input.numel(), weight.dtype, input.dtype, o, device_of(weight), kind)
