"""A checked call of embedding_bag: indices of rank 1 with offsets, and the plans of its backward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..._embedding_bag import EmbeddingBagBackwardPlan
from .bag import bags
from .bag_eager import Steps, learn
from .bag_problem import Options, check_offsets, check_shapes, flat_nested, options, select_or_raise
from .calls import require_order, require_tensors
from .dispatch import refuse_distributed
from .learning import NO_LEARNER, Kind, Learner
from .operators import is_distributed


class PreparedCall(NamedTuple):
    """A checked call of embedding_bag whose backward has plans."""

    input: Tensor
    weight: Tensor
    offsets: Tensor | None  # None: DTensors whose rows are bags
    weights: Tensor | None
    options: Options
    bags: int | None  # how many of the bags are returned; None: all
    plan: EmbeddingBagBackwardPlan | None  # of a dense gradient, or of an update of the table, where there is one


def prepare(
    input: Tensor, weight: Tensor, offsets: Tensor | None, scale_grad_by_freq: bool, mode: str, sparse: bool,
    per_sample_weights: Tensor | None, include_last_offset: bool, padding_idx: int | None,
    kind: Kind = NO_LEARNER,
) -> PreparedCall:  # fmt: skip
    """Check a call of embedding_bag, convert it to indices of rank 1 with offsets, and select the plans of its backward.

    Args:
        kind: of the learner that updates the table, or of none.

    Raises:
        Error: there is no plan, or the arguments contradict each other.
        ValueError, NotImplementedError, RuntimeError: arguments that torch refuses.
    """
    others = {"offsets": offsets, "per_sample_weights": per_sample_weights}
    require_tensors("embedding_bag", input=input, weight=weight, **{k: x for k, x in others.items() if x is not None})
    require_order("embedding_bag", input, weight)
    nested, given = None, None
    weights = per_sample_weights
    if input.is_nested:
        if offsets is not None:
            raise ValueError("embedding_bag: offsets must be None for nested input, whose rows are bags")
        input, given, weights, nested = flat_nested(input, weights)
    check_shapes(input, weight, given if offsets is None else offsets, weights)
    o = options(mode, padding_idx, include_last_offset, scale_grad_by_freq, sparse, weights is not None, weight.shape[0])
    if o.sparse:
        refuse_distributed("embedding_bag", "sparse", input, weight, weights)
    if offsets is None:
        o = o._replace(last=False)
        if is_distributed(input, weight, weights):
            select_or_raise(input, weight, given, weights, o)
            return PreparedCall(input, weight, given, weights, o, nested, None)
        if given is None:
            count, width = input.shape
            given = torch.arange(count, dtype=input.dtype, device=input.device) * width
            input = input.reshape(-1)
            weights = None if weights is None else weights.reshape(-1)
        plan = select_or_raise(input, weight, given, weights, o, kind)
        return PreparedCall(input, weight, given, weights, o, nested, plan)
    plan = select_or_raise(input, weight, offsets, weights, o, kind)
    check_offsets(input, offsets, o)
    if not offsets.shape[0]:  # no bag holds a position; torch's forward would read beyond offsets
        input, weights = input[:0], None if weights is None else weights[:0]
        plan = plan if plan is None else select_or_raise(input, weight, offsets, weights, o, kind)
    return PreparedCall(input, weight, offsets, weights, o, nested, plan)


def run_prepared(c: PreparedCall, max_norm: float | None, norm_type: float, learner: Learner | None = None) -> Tensor:
    """Run a prepared call.

    Args:
        learner: updates the table in the backward; None: the backward has gradients.
    """
    if max_norm is not None:
        refuse_distributed("embedding_bag", "max_norm", c.weight, c.input)
        with torch.no_grad():
            torch.embedding_renorm_(c.weight.detach(), c.input.contiguous(), max_norm, norm_type)
    if learner is None:
        y = bags(c.input, c.weight, c.offsets, c.weights, c.options)
    else:
        assert c.offsets is not None
        y = learn(c.weight, c.weights, c.input, c.offsets, Steps(c.options, c.plan), learner)
    return y if c.bags is None else y[: c.bags]
