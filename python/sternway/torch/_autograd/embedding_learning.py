"""The autograd function of an embedding whose table learns in the backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_of
from ..._embedding import EmbeddingBackwardPlan, _as_bags, _expanded, _rows
from ..._embedding_bag import _embedding_bag_plan
from .calls import resolve
from .eager import apply_in_c
from .learning import Learner, reaches_table, update
from .operators import Gradients


class Options(NamedTuple):
    """How positions count, and the form of the gradient."""

    padding: int | None  # not negative
    by_frequency: bool
    sparse: bool


class _LearningEmbedding(torch.autograd.Function):
    """The autograd function of a table that learns."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, plan: EmbeddingBackwardPlan, o: Options, learner: Learner) -> Tensor:
        ctx.table, ctx.plan, ctx.options, ctx.learner = weight, plan, o, learner
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(indices)
        return torch.embedding(weight, indices)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Gradients:
        if dy is not None and reaches_table(ctx, ctx.learner):
            (indices,) = ctx.saved_tensors
            _update(dy, indices, ctx.table, ctx.plan, ctx.options, ctx.learner)
        return None, None, None, None, None


def _update(dy: Tensor, indices: Tensor, table: Tensor, plan: EmbeddingBackwardPlan, o: Options, learner: Learner) -> None:
    """Update the rows of a table that indices name."""
    operands: dict[str, Tensor | None]
    dy = resolve(dy)
    if not dy.is_contiguous() and (expanded := _expanded(dy, indices)):  # positions that share a row are a bag
        rows, bags = _as_bags(dy, indices, expanded)
        count, width = bags.shape
        offsets = torch.arange(count, dtype=indices.dtype, device=indices.device) * width
        operands = {"dy": rows, "indices": bags.reshape(-1), "offsets": offsets}
        of_bags = _embedding_bag_plan(
            *table.shape, count, count * width, dy.dtype, "sum", indices.dtype, indices.dtype, o.padding, False,
            o.by_frequency, device_of(dy), True, *learner.kind,
        )  # fmt: skip
        update(of_bags, learner, table, operands)
        return
    flat_dy, flat = _rows(dy, indices)
    update(plan, learner, table, {"dy": flat_dy, "indices": flat.reshape(-1)})


_apply_learning = apply_in_c(_LearningEmbedding)


def learn(weight: Tensor, indices: Tensor, plan: EmbeddingBackwardPlan | None, o: Options, learner: Learner) -> Tensor:
    """Rows of weight, which the backward updates by the plan."""
    return _apply_learning(weight, indices, plan, o, learner)  # type: ignore[no-any-return]
