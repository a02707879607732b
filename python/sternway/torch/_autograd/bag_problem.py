"""The problem of embedding_bag: its options, their checks, and the plans of its backward."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from ..._embedding_bag import EmbeddingBagBackwardPlan, _embedding_bag_plan
from ..._types import BagMode
from ..._unique_rows import _unique_rows_plan
from ...errors import make
from .calls import flag, integer
from .operators import intercepted
from .sparse_rows import most_rows

MODES = get_args(BagMode)
NAME = "sternway.torch.embedding_bag"


class Options(NamedTuple):
    """The reduction of the bags, and the form of their gradient."""

    mode: str
    padding: int | None  # not negative
    last: bool
    by_frequency: bool
    sparse: bool


def options(mode: str, padding: Any, last: Any, by_frequency: Any, sparse: Any, weights: bool, rows: int) -> Options:
    """The options of a call, with padding_idx counted from the start.

    Raises:
        InvalidProblemError: an option of a wrong type.
        ValueError, NotImplementedError, RuntimeError: options that torch refuses.
    """
    flags = {"include_last_offset": last, "scale_grad_by_freq": by_frequency, "sparse": sparse}
    last, by_frequency, sparse = (flag("embedding_bag", option, value) for option, value in flags.items())
    if mode not in MODES:
        raise ValueError(f"embedding_bag: mode must be sum, mean or max, got {mode!r:.80}")
    if mode == "max" and (by_frequency or sparse):
        raise ValueError("embedding_bag: mode max takes neither scale_grad_by_freq nor sparse")
    if mode != "sum" and weights:
        raise NotImplementedError(f"embedding_bag: per_sample_weights go with mode sum, not {mode}")
    if padding is not None:
        padding = integer("embedding_bag", "padding_idx", padding)
        if not -rows <= padding < rows:
            raise RuntimeError(f"embedding_bag: padding_idx must be in [{-rows}, {rows}), got {padding}")
        padding %= rows
    return Options(str(mode), padding, last, by_frequency, sparse)


def select(
    table: torch.Size,
    bags: int,
    total: int,
    dtype: torch.dtype,
    index: torch.dtype,
    offset: torch.dtype,
    o: Options,
    device: str,
) -> EmbeddingBagBackwardPlan | None:
    """Select the plans of the backward. Returns that of a dense gradient.

    Raises:
        Error: there is no plan.
    """
    (rows, dim), padding = table, o.padding
    if o.sparse:  # how many rows the gradient has is known in the backward; here, the most
        _unique_rows_plan(rows, total, index, padding, device)
        rows, index, padding = most_rows(rows, total, padding), torch.int32, None if padding is None else 0
    last = o.last and device == "cpu"  # as the backward has it
    plan = _embedding_bag_plan(
        rows, dim, bags, total, dtype, o.mode, index, offset, padding, last, o.by_frequency, device, True
    )  # fmt: skip
    return None if o.sparse else plan


def unreadable(offsets: Tensor) -> bool:
    """Whether the values of offsets cannot be read during a call, as when it is traced or batched."""
    return torch.compiler.is_compiling() or intercepted(offsets) or torch._C._functorch.is_batchedtensor(offsets)


def check_offsets(indices: Tensor, offsets: Tensor, o: Options) -> None:
    """Refuse, on the CPU, offsets that torch's forward accepts and the backward refuses.

    Raises:
        InvalidProblemError: indices behind the last offset, about which the modes of torch's forward disagree; offsets that
            decrease, of which torch takes some in mode "max" and with a padding_idx.
    """
    if offsets.is_cuda or unreadable(offsets) or not len(offsets):
        return
    if o.last and (end := int(offsets[-1])) != len(indices):
        wanted, got = f"up to the end of input, {len(indices)}", f"{end} as the last one"
        raise make("invalid_problem", NAME, "offsets", wanted, got, "shorten input")
    if _decrease(offsets):
        first = int((offsets[1:] < offsets[:-1]).nonzero()[0]) + 1
        got = f"{int(offsets[first])} after {int(offsets[first - 1])} at position {first}"
        raise make("invalid_problem", NAME, "offsets", "in rising order", got)


def _decrease(offsets: Tensor) -> bool:
    if len(offsets) <= 64:  # quicker than a call of torch
        values = offsets.tolist()
        return bool(values != sorted(values))
    return bool((offsets[1:] < offsets[:-1]).any())
