"""embedding_bag as an ordinary eager call: its plans from a cache of its own, and its autograd function."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_name
from ..._embedding_bag import EmbeddingBagBackwardPlan
from .bag import gradients, reduced, sample_gradient, save
from .bag_problem import Options, check_offsets, options, select
from .calls import resolve
from .eager import apply_in_c, is_eager, is_plain, needs_no_graph
from .learning import NO_LEARNER, Kind, Learner, reaches_table, require_versions, update, versions
from .operators import Gradients


class Steps(NamedTuple):
    """The backward of bags with these options."""

    options: Options
    plan: EmbeddingBagBackwardPlan | None  # None: the gradient is sparse


@functools.lru_cache(maxsize=1024)
def _steps(
    indices: torch.Size, table: torch.Size, offsets: torch.Size | None, weights: torch.Size | None, dtype: torch.dtype,
    index: torch.dtype, offset: torch.dtype, mode: str, padding: int | None, last: bool, by_frequency: bool, sparse: bool,
    device: torch.device, kind: Kind,
) -> Steps | None:  # fmt: skip
    """The steps of a call, from a cache; None: it takes the general way.

    Args:
        offsets: the shape of offsets; None: each row of indices of rank 2 is a bag.
        weights: the shape of the per-sample weights, or None.
        offset: the dtype of offsets.
        kind: of the learner that updates the table, or of none.

    Raises:
        Error, RuntimeError, ValueError: there is no plan, or torch refuses the arguments.
    """
    flat = offsets is not None and len(offsets) == len(indices) == 1
    if len(table) != 2 or not (flat or (offsets is None and len(indices) == 2)) or weights not in (None, indices):
        return None
    if not indices.numel() or offsets == (0,):
        return None
    o = options(mode, padding, last and offsets is not None, by_frequency, sparse, weights is not None, table[0])
    bags = indices[0] if offsets is None else offsets[0] - o.last
    return Steps(o, select(table, bags, indices.numel(), dtype, index, offset, o, device_name(device), kind))


def run_eager(
    input: Any, weight: Any, offsets: Any, max_norm: Any, norm_type: Any, by_frequency: Any, mode: Any, sparse: Any,
    weights: Any, last: Any, padding: Any, learner: Learner | None = None,
) -> Tensor | None:  # fmt: skip
    """Reduce bags as an ordinary eager call; None: nothing was done, and the call takes the general way or is wrong.

    Args:
        learner: updates the table in the backward; the call is recorded for it. None: the backward has gradients.
    """
    if not (max_norm is None and is_eager(weight) and is_plain(input) and input.device == weight.device):
        return None
    if not (type(by_frequency) is type(sparse) is type(last) is bool and (padding is None or type(padding) is int)):
        return None
    dtype, index, given = weight.dtype, input.dtype, [x for x in (offsets, weights) if x is not None]
    if not all(is_plain(x) and x.device == weight.device for x in given):
        return None
    if weights is not None and weights.dtype is not dtype:
        return None
    try:
        steps = _steps(
            input.shape, weight.shape, None if offsets is None else offsets.shape, None if weights is None else weights.shape,
            dtype, index, index if offsets is None else offsets.dtype, mode, padding, last, by_frequency, sparse, weight.device,
            NO_LEARNER if learner is None else learner.kind,
        )  # fmt: skip
        if steps is None:
            return None
        if offsets is not None:
            check_offsets(input, offsets, steps.options)
    except (RuntimeError, ValueError, TypeError):  # errors of plans; a nested tensor, which has no shape; a mode without hash
        return None
    if offsets is None:
        offsets = torch.arange(0, input.numel(), input.shape[1], dtype=index, device=input.device)
        input, weights = input.reshape(-1), None if weights is None else weights.reshape(-1)
    if learner is not None:
        return learn(weight, weights, input, offsets, steps, learner)
    if torch.is_grad_enabled() and (weight.requires_grad or (weights is not None and weights.requires_grad)):
        return _apply(weight, weights, input, offsets, steps)  # type: ignore[no-any-return]
    return reduced(weight, weights, input, offsets, steps.options)[0]


class _EagerBag(torch.autograd.Function):
    """The autograd function of ordinary eager calls."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, weights: Tensor | None, indices: Tensor, offsets: Tensor, steps: Steps) -> Tensor:
        o = steps.options
        y, max_indices = reduced(weight, weights, indices, offsets, o)
        ctx.plan = steps.plan
        save(ctx, weight, weights, indices, offsets, o, max_indices)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        if dy is not None and ctx.plan is not None and ctx.needs_input_grad[:2] == (True, False) and needs_no_graph(dy):
            _, weights, indices, offsets, max_indices = ctx.saved_tensors
            if ctx.options.last and dy.is_cuda:
                offsets = offsets[:-1]
            dweight = dy.new_empty((ctx.rows, dy.shape[1]))
            operands = {"dy": dy, "indices": indices, "offsets": offsets, "dweight": dweight}
            if ctx.plan._run_plain({**operands, "per_sample_weights": weights, "max_indices": max_indices}):
                return dweight, None, None, None, None
        return gradients(ctx, dy)


_apply = apply_in_c(_EagerBag)


class _LearningBag(torch.autograd.Function):
    """The autograd function of a table that learns.

    Where the weights of samples have a gradient, a backward that would read a row after another one has updated it is
    refused.
    """

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, weights: Tensor | None, indices: Tensor, offsets: Tensor, steps: Steps, learner: Learner
    ) -> Tensor:
        y, max_indices = reduced(weight, weights, indices, offsets, steps.options)
        ctx.plan, ctx.learner, ctx.table = steps.plan, learner, weight
        ctx.versions = versions([weight]) if ctx.needs_input_grad[1] else None
        save(ctx, weight, weights, indices, offsets, steps.options, max_indices)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Gradients:
        if dy is None:
            return (None,) * 6
        is_update = reaches_table(ctx, ctx.learner)
        require_versions(ctx.learner, [ctx.table], ctx.versions)
        if not is_update:
            return None, _sample_gradient_of(ctx, dy), None, None, None, None
        _, weights, indices, offsets, max_indices = ctx.saved_tensors
        if ctx.options.last and dy.is_cuda:
            offsets = offsets[:-1]
        dweights = torch.empty_like(weights, memory_format=torch.contiguous_format) if ctx.needs_input_grad[1] else None
        operands = {"dy": resolve(dy), "indices": indices, "offsets": offsets}
        operands |= {"per_sample_weights": weights, "max_indices": max_indices}
        update(ctx.plan, ctx.learner, ctx.table, {**operands, "d_per_sample_weights": dweights})
        return None, dweights, None, None, None, None


def _sample_gradient_of(ctx: Any, dy: Tensor) -> Tensor | None:
    """The gradient of the weights of samples alone."""
    if not ctx.needs_input_grad[1]:
        return None
    weight, _, indices, offsets, _ = ctx.saved_tensors
    o: Options = ctx.options
    if o.last and dy.is_cuda:
        offsets, o = offsets[:-1], o._replace(last=False)
    return sample_gradient(dy, weight, indices, offsets, o)


_apply_learning = apply_in_c(_LearningBag)


def learn(weight: Tensor, weights: Tensor | None, indices: Tensor, offsets: Tensor, steps: Steps, learner: Learner) -> Tensor:
    """Bags of rows of weight, which the backward updates by the plan of the steps."""
    return _apply_learning(weight, weights, indices, offsets, steps, learner)  # type: ignore[no-any-return]
