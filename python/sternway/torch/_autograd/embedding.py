"""The operation of embedding: its autograd function, and its forward and gradient as operators of torch."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_name
from ..._embedding import EmbeddingBackwardPlan, _expanded, _rows, embedding_backward
from ...errors import make
from .calls import resolve
from .dispatch import run_operator
from .eager import apply_in_c, is_eager, is_plain, needs_no_graph
from .embedding_learning import learn
from .embedding_problem import NAME, Options, options, select
from .learning import NO_LEARNER, Kind, Learner
from .operators import (
    Gradients,
    differentiable,
    is_distributed,
    is_exporting,
    is_intercepted,
    recorded_call,
    traceable,
    vmap_by_loop,
)
from .sparse_rows import Leaf, leaf_of, sparse_embedding_gradient, sparse_embedding_operator
from .tangents import Inputs


def _weight_gradient(
    dy: Tensor, indices: Tensor, num_embeddings: int, padding_idx: int | None, scale_grad_by_freq: bool
) -> Tensor:
    return embedding_backward(
        dy, indices, num_embeddings=num_embeddings, padding_idx=padding_idx, scale_grad_by_freq=scale_grad_by_freq
    )


# For torch where it has to see the gradient; others call the function past torch.
_weight_operator = torch.library.custom_op("sternway::embedding_backward", _weight_gradient, mutates_args=())


@_weight_operator.register_fake
def _(dy: Tensor, _indices: Tensor, num_embeddings: int, *_: Any) -> Tensor:
    return dy.new_empty((num_embeddings, dy.shape[-1]))


_weight_operator.register_vmap(vmap_by_loop("embedding", _weight_operator))


def _weight_backward(inputs: Inputs, grads: tuple[Tensor, ...], needs: tuple[bool, ...]) -> Gradients:
    """dweight is linear in dy. The gradient gathers rows, and is zero at positions that do not count."""
    _, indices, _, padding, by_frequency = inputs
    (g,) = grads
    if not needs[0]:
        return (None,) * 5
    if by_frequency:
        ones = torch.ones(indices.numel(), dtype=g.dtype, device=g.device)
        g = g / g.new_zeros(len(g)).index_add(0, indices.reshape(-1), ones).clamp(min=1)[:, None]
    ddy = _embedding(g, indices, Options(None, by_frequency=False, sparse=False), None)
    if padding is not None:
        ddy = ddy.masked_fill((indices == padding)[..., None], 0)
    return ddy, None, None, None, None


_WEIGHT_GRADIENT = differentiable(_weight_operator, _weight_backward, linear=(0,))


def _vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    """One lookup for the whole batch if the table is shared, else one for each element."""
    weight, indices, o, _ = inputs
    if in_dims[0] is None:
        return _Embedding.apply(weight, indices.movedim(in_dims[1], 0), o, None), 0
    return vmap_by_loop("embedding", lambda *inputs: _Embedding.apply(*inputs))(info, in_dims, *inputs)


class _Embedding(torch.autograd.Function):
    """The autograd function of all other calls. The plan is that of the backward; None: the backward looks it up."""

    @staticmethod
    def forward(weight: Tensor, indices: Tensor, o: Options, plan: EmbeddingBackwardPlan | None) -> Tensor:
        return torch.embedding(weight, indices)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weight, indices, ctx.options, ctx.plan = inputs
        ctx.rows, ctx.leaf = weight.shape[0], leaf_of(weight) if ctx.options.sparse else None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(indices)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        if dy is None or not ctx.needs_input_grad[0]:
            return None, None, None, None
        (indices,) = ctx.saved_tensors
        return _gradient(dy, indices, ctx.rows, ctx.options, ctx.plan, ctx.leaf), None, None, None

    vmap = staticmethod(_vmap)


_embedding = traceable(_Embedding)


class Steps(NamedTuple):
    """The backward of a lookup in a table of this shape."""

    options: Options
    table: torch.Size
    plan: EmbeddingBackwardPlan | None  # None: the gradient is sparse


@functools.lru_cache(maxsize=1024)
def _steps(
    indices: torch.Size, table: torch.Size, dtype: torch.dtype, index: torch.dtype, padding: int | None, by_frequency: bool,
    sparse: bool, device: torch.device, kind: Kind,
) -> Steps:  # fmt: skip
    """The steps of a lookup, from a cache.

    Args:
        kind: of the learner that updates the table, or of none.

    Raises:
        Error, RuntimeError, ValueError: there is no plan, or torch refuses the arguments.
    """
    o = options(padding, by_frequency, sparse, table[0])
    return Steps(o, table, select(table, indices.numel(), dtype, index, o, device_name(device), kind))


def run_eager(
    input: Any, weight: Any, padding: Any, max_norm: Any, norm_type: Any, by_frequency: Any, sparse: Any,
    learner: Learner | None = None,
) -> Tensor | None:  # fmt: skip
    """Look rows up as an ordinary eager call; None: nothing was done, and the call takes the general way or is wrong.

    Args:
        learner: updates the table in the backward; the call is recorded for it. None: the backward has a gradient.
    """
    if not (max_norm is None and is_eager(weight) and is_plain(input) and input.device == weight.device):
        return None
    if not (type(by_frequency) is type(sparse) is bool and (padding is None or type(padding) is int)):
        return None
    try:
        steps = _steps(
            input.shape, weight.shape, weight.dtype, input.dtype, padding, by_frequency, sparse, weight.device,
            NO_LEARNER if learner is None else learner.kind,
        )  # fmt: skip
    except (RuntimeError, ValueError, IndexError):  # errors of plans; a nested tensor, which has no shape; a rank but 2
        return None
    if learner is not None:
        return learn(weight, input, steps.plan, steps.options, learner)
    if weight.requires_grad and torch.is_grad_enabled():
        return _apply(weight, input, steps)  # type: ignore[no-any-return]
    return torch.embedding(weight, input)


class _EagerEmbedding(torch.autograd.Function):
    """The autograd function of ordinary eager calls."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, steps: Steps) -> Tensor:
        ctx.steps, ctx.leaf = steps, leaf_of(weight) if steps.plan is None else None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(indices)
        return torch.embedding(weight, indices)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Gradients:
        if dy is None:
            return None, None, None
        o, table, plan = ctx.steps
        (indices,) = ctx.saved_tensors
        if plan is not None and needs_no_graph(dy) and dy.is_contiguous():
            dweight = dy.new_empty(table)
            rows = dy if dy.dim() == 2 else dy.reshape(indices.numel(), table[1])
            if plan._run_plain({"dy": rows, "indices": indices.reshape(-1), "dweight": dweight}):
                return dweight, None, None
        return _gradient(dy, indices, table[0], o, plan, ctx.leaf), None, None


_apply = apply_in_c(_EagerEmbedding)


def _gradient(
    dy: Tensor, indices: Tensor, rows: int, o: Options, plan: EmbeddingBackwardPlan | None, leaf: Leaf | None
) -> Tensor:
    """The gradient of a table. leaf: the table itself, for the ``.grad`` of a sparse gradient."""
    dy = resolve(dy)
    if o.sparse:
        return _sparse(dy, indices, rows, leaf, o)
    if call := recorded_call(dy, _WEIGHT_GRADIENT):
        return call(dy, indices, rows, o.padding, o.by_frequency)  # type: ignore[no-any-return]
    if plan is None or _expanded(dy, indices):
        return _weight_gradient(dy, indices, rows, o.padding, o.by_frequency)
    dweight = dy.new_empty((rows, dy.shape[-1]))
    dy, indices = _rows(dy, indices)
    plan.run(dy=dy, indices=indices, dweight=dweight)
    return dweight


def _sparse(dy: Tensor, indices: Tensor, rows: int, leaf: Leaf | None, o: Options) -> Tensor:
    """The gradient of the table as a sparse tensor."""
    if torch.compiler.is_compiling() or is_intercepted(dy):
        return sparse_embedding_operator(dy, indices, rows, *o[:2])  # type: ignore[no-any-return]
    if torch.is_grad_enabled():
        got, hint = "create_graph=True", "with sparse=False it can be"
        raise make("unsupported", NAME, "the gradient", "differentiated once", got, hint)
    return sparse_embedding_gradient(dy, indices, rows, *o[:2], leaf)


@torch.library.custom_op("sternway::embedding", mutates_args=())
def _operator(weight: Tensor, indices: Tensor, padding: int | None, by_frequency: bool, sparse: bool) -> Tensor:
    """The forward as an operator with its gradient: for torch.export, DTensors, and torch.compile with a sparse gradient."""
    return torch.embedding(weight, indices)


@_operator.register_fake
def _(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return torch.embedding(weight, indices)


_operator.register_vmap(vmap_by_loop("embedding", _operator))


def _set_up_operator(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _Embedding.setup_context(ctx, (*inputs[:2], Options(*inputs[2:]), None), output)


_operator.register_autograd(lambda ctx, dy: (*_Embedding.backward(ctx, dy), None), setup_context=_set_up_operator)


def look_up(weight: Tensor, indices: Tensor, o: Options, plan: EmbeddingBackwardPlan | None) -> Tensor:
    """Rows of weight, with the gradient of this file."""
    traced = is_exporting() or (o.sparse and torch.compiler.is_compiling())  # a trace of the function would hold sparse tensors
    if traced or is_distributed(weight, indices):
        return run_operator("embedding", "embedding", ("weight", "input"), weight, indices, *o)  # type: ignore[no-any-return]
    return _embedding(weight, indices, o, plan)  # type: ignore[no-any-return]
