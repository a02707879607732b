"""A checked call of embedding, and the plans of its backward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..._embedding import EmbeddingBackwardPlan
from .calls import require_order, require_tensors
from .dispatch import refuse_distributed, require_strided
from .embedding import look_up
from .embedding_learning import learn
from .embedding_problem import Options, options, select_or_raise
from .learning import NO_LEARNER, Kind, Learner


class PreparedCall(NamedTuple):
    """A checked call of embedding whose backward has plans."""

    input: Tensor
    weight: Tensor
    options: Options
    plan: EmbeddingBackwardPlan | None


def prepare(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, scale_grad_by_freq: bool = False, sparse: bool = False,
    kind: Kind = NO_LEARNER,
) -> PreparedCall:  # fmt: skip
    """Check a call of embedding, and select the plans of its backward.

    Args:
        kind: of the learner that updates the table, or of none.

    Raises:
        Error: there is no plan, or an option of a wrong type.
        ValueError, RuntimeError: arguments that torch refuses.
    """
    require_tensors("embedding", input=input, weight=weight)
    require_order("embedding", input, weight)
    require_strided("embedding", input=input, weight=weight)
    if weight.dim() != 2:
        raise ValueError(f"embedding: weight must be 2D, got {weight.dim()}D")
    o = options(padding_idx, scale_grad_by_freq, sparse, weight.shape[0])
    if o.sparse:
        refuse_distributed("embedding", "sparse", input, weight)
    return PreparedCall(input, weight, o, select_or_raise(input, weight, o, kind))


def run_prepared(c: PreparedCall, max_norm: float | None, norm_type: float, learner: Learner | None = None) -> Tensor:
    """Run a prepared call.

    Args:
        learner: updates the table in the backward; None: the backward has a gradient.
    """
    if max_norm is not None:
        refuse_distributed("embedding", "max_norm", c.weight, c.input)
        with torch.no_grad():
            torch.embedding_renorm_(c.weight.detach(), c.input.contiguous(), max_norm, norm_type)
    if learner is not None:
        return learn(c.weight, c.input, c.plan, c.options, learner)
    return look_up(c.weight, c.input, c.options, c.plan)
