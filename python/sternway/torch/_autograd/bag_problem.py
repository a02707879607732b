"""The problem of embedding_bag: its options, their checks, and the plans of its backward."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from ..._arrays import device_of, dtype_name
from ..._embedding_bag import EmbeddingBagBackwardPlan, _embedding_bag_plan
from ..._types import BagMode
from ..._unique_rows import _unique_rows_plan
from ...errors import make
from .calls import FLOATS, flag, integer
from .constants import constant
from .dispatch import ErrorParts, device_to_ask, require, require_strided, runs_plan_directly, selection_error
from .learning import NO_LEARNER, Kind
from .operators import is_intercepted
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
    kind: Kind = NO_LEARNER,
) -> EmbeddingBagBackwardPlan | None:
    """Select the plans of the backward. Returns that of a dense gradient, or of an update of the table.

    Args:
        kind: of the learner that updates the table, or of none.

    Raises:
        Error: there is no plan.
    """
    (rows, dim), padding = table, o.padding
    if o.sparse:  # how many rows the gradient has is known in the backward; here, the most
        _unique_rows_plan(rows, total, index, padding, device)
        rows, index, padding = most_rows(rows, total, padding), torch.int32, None if padding is None else 0
    last = o.last and device == "cpu"  # as the backward has it
    plan = _embedding_bag_plan(
        rows, dim, bags, total, dtype, o.mode, index, offset, padding, last, o.by_frequency, device, True, *kind
    )  # fmt: skip
    return None if o.sparse else plan


def unreadable(offsets: Tensor) -> bool:
    """Whether the values of offsets cannot be read during a call, as when it is traced or batched."""
    return torch.compiler.is_compiling() or is_intercepted(offsets) or torch._C._functorch.is_batchedtensor(offsets)


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


def check_shapes(input: Tensor, weight: Tensor, offsets: Tensor | None, weights: Tensor | None) -> None:
    """Raise the errors that torch.nn.functional.embedding_bag raises for these shapes."""
    if weights is not None and input.shape != weights.shape:
        raise ValueError(
            f"embedding_bag: per_sample_weights {tuple(weights.shape)} must have the shape of input {tuple(input.shape)}"
        )
    if weight.dim() != 2:
        raise ValueError(f"embedding_bag: weight must be 2D, got {weight.dim()}D")
    if input.dim() not in (1, 2):
        raise ValueError(f"embedding_bag: input must be 1D or 2D, got {input.dim()}D")
    if (input.dim() == 2) != (offsets is None):
        raise ValueError("embedding_bag: offsets must be None for 2D input, whose rows are bags, and a 1D tensor for 1D input")
    if offsets is not None and offsets.dim() != 1:
        raise ValueError(f"embedding_bag: offsets must be 1D, got {offsets.dim()}D")


def _probe(dtype: torch.dtype, mode: str, index: torch.dtype, offset: torch.dtype, sparse: bool, device: str) -> None:
    """Select the plans of a small bag with these dtypes."""
    if sparse:
        _unique_rows_plan(1, 1, index, None, device)
        index = torch.int32
    _embedding_bag_plan(1, 1, 1, 1, dtype, mode, index, offset, None, False, False, device, True)


@constant
def _probed(
    dtype: torch.dtype, mode: str, index: torch.dtype, offset: torch.dtype, sparse: bool, device: torch.device
) -> ErrorParts | None:
    return selection_error(_probe, dtype, mode, index, offset, sparse, str(device))


def select_or_raise(
    input: Tensor, weight: Tensor, offsets: Tensor | None, weights: Tensor | None, o: Options,
    kind: Kind = NO_LEARNER,
) -> EmbeddingBagBackwardPlan | None:  # fmt: skip
    """Select the plans of the backward, or those of a small bag if the call is traced.

    Args:
        kind: of the learner that updates the table, or of none.

    Returns:
        the plan of a dense gradient, or of an update of the table; None: the gradient is sparse, or the call is traced.

    Raises:
        Error: there is no plan.
    """
    if weights is not None and weights.is_complex():
        raise make("unsupported", "embedding_bag", "per_sample_weights", "real like weight", "complex numbers")
    if weights is not None and weights.dtype != weight.dtype and weight.dtype in FLOATS:  # torch's forward refuses it
        wanted, hint = f"{dtype_name(weight.dtype)} like weight", "convert it with per_sample_weights.to(weight.dtype)"
        raise make("invalid_problem", "embedding_bag", "per_sample_weights", wanted, dtype_name(weights.dtype), hint)
    if offsets is None or (kind[0] is None and not runs_plan_directly(input, weight, offsets, weights)):
        require_strided("embedding_bag", input=input, weight=weight, offsets=offsets, per_sample_weights=weights)
        offset = input.dtype if offsets is None else offsets.dtype
        require("embedding_bag", _probed(weight.dtype, o.mode, input.dtype, offset, o.sparse, device_to_ask(weight)))
        return None
    bags = max(len(offsets) - o.last, 0)
    return select(weight.shape, bags, len(input), weight.dtype, input.dtype, offsets.dtype, o, device_of(weight), kind)


def _rows(nested: Tensor) -> tuple[Tensor, Tensor]:
    """The values of a nested tensor [bags, positions], and the start of each bag; if jagged, also the end of the last."""
    if nested.dim() != 2:
        raise make("invalid_problem", NAME, "input", "of rank 2, [bags, positions], where it is nested", f"rank {nested.dim()}")
    if nested.layout is torch.jagged:
        parts: Any = nested
        parts = parts if parts.lengths() is None else parts.contiguous()
        return parts.values(), parts.offsets()
    rows = nested.unbind()
    starts = [0, *itertools.accumulate(len(row) for row in rows)][: len(rows)]
    numbers = torch.cat(rows) if rows else torch.empty(0, dtype=nested.dtype, device=nested.device)
    return numbers, torch.tensor(starts, dtype=torch.int64, device=nested.device)


def flat_nested(input: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, int | None]:
    """Nested bags as indices, offsets, per-sample weights and the number of bags to return.

    Numbers behind the last bag of a jagged tensor are a bag more, which is not returned: no value has to be read for that.
    """
    indices, offsets = _rows(input)
    if weights is not None:
        if not weights.is_nested:
            raise make("invalid_problem", NAME, "per_sample_weights", "nested like input", "a tensor that is not", "nest it")
        weights, others = _rows(weights)
        same = others is offsets or (offsets.shape == others.shape and (unreadable(offsets) or torch.equal(offsets, others)))
        if weights.shape != indices.shape or not same:
            raise make("invalid_problem", NAME, "per_sample_weights", "of the shape of input", "other lengths of bags")
    return indices, offsets, weights, len(offsets) - 1 if input.layout is torch.jagged else None
