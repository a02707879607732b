"""The operation of embedding: its autograd function, and its forward and gradient as operators of torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..embedding import EmbeddingBackwardPlan, _expanded, _rows, embedding_backward
from ..errors import make
from ._calls import materialized
from ._dispatch import reach_plans
from ._operators import Gradients, apply, differentiable, each, exporting, intercepted, way
from ._tangents import Inputs
from .sparse_rows import Leaf, leaf_of, sparse_embedding_gradient, sparse_embedding_operator

NAME = "sternway.torch.embedding"


class Options(NamedTuple):
    """How positions count, and the form of the gradient."""

    padding: int | None  # not negative
    by_frequency: bool
    sparse: bool


def _weight_gradient(
    dy: Tensor, indices: Tensor, num_embeddings: int, padding_idx: int | None, scale_grad_by_freq: bool
) -> Tensor:
    return embedding_backward(  # type: ignore[no-any-return]
        dy, indices, num_embeddings=num_embeddings, padding_idx=padding_idx, scale_grad_by_freq=scale_grad_by_freq
    )


# For torch where it has to see the gradient; others call the function past torch.
_weight_operator = torch.library.custom_op("sternway::embedding_backward", _weight_gradient, mutates_args=())


@_weight_operator.register_fake
def _(dy: Tensor, _indices: Tensor, num_embeddings: int, *_: Any) -> Tensor:
    return dy.new_empty((num_embeddings, dy.shape[-1]))


_weight_operator.register_vmap(each("embedding", _weight_operator))


def _weight_backward(inputs: Inputs, grads: tuple[Tensor, ...], needs: tuple[bool, ...]) -> Gradients:
    """dweight is linear in dy. The gradient gathers rows, and is zero at positions that do not count."""
    _, indices, _, padding, by_frequency = inputs
    (g,) = grads
    if not needs[0]:
        return (None,) * 5
    if by_frequency:
        ones = torch.ones(indices.numel(), dtype=g.dtype, device=g.device)
        g = g / g.new_zeros(len(g)).index_add(0, indices.reshape(-1), ones).clamp(min=1)[:, None]
    ddy = apply(_Embedding, g, indices, Options(None, by_frequency=False, sparse=False), None)
    if padding is not None:
        ddy = ddy.masked_fill((indices == padding)[..., None], 0)
    return ddy, None, None, None, None


_WEIGHT_GRADIENT = differentiable(_weight_operator, _weight_backward, linear=(0,))


def _vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    """One lookup for the whole batch if the table is shared, else one for each element."""
    weight, indices, o, _ = inputs
    if in_dims[0] is None:
        return _Embedding.apply(weight, indices.movedim(in_dims[1], 0), o, None), 0
    return each("embedding", lambda *inputs: _Embedding.apply(*inputs))(info, in_dims, *inputs)


class _Embedding(torch.autograd.Function):
    """The autograd function. The plan is that of the backward; None: the backward looks it up."""

    @staticmethod
    def forward(weight: Tensor, indices: Tensor, o: Options, plan: EmbeddingBackwardPlan | None) -> Tensor:
        return torch.embedding(weight, indices)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _save(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        return _gradients(ctx, dy)

    vmap = staticmethod(_vmap)


class _EagerEmbedding(torch.autograd.Function):
    """The same where nothing but autograd sees the call. torch binds the signature of a forward without ctx in Python."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, o: Options, plan: EmbeddingBackwardPlan | None) -> Tensor:
        _save(ctx, weight, indices, o, plan)
        return torch.embedding(weight, indices)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        return _gradients(ctx, dy)


def _save(ctx: Any, weight: Tensor, indices: Tensor, o: Options, plan: EmbeddingBackwardPlan | None) -> None:
    ctx.options, ctx.plan, ctx.rows, ctx.leaf = o, plan, weight.shape[0], leaf_of(weight) if o.sparse else None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(indices)


def _gradients(ctx: Any, dy: Tensor | None) -> Gradients:
    if dy is None or not ctx.needs_input_grad[0]:
        return None, None, None, None
    (indices,), o, rows = ctx.saved_tensors, ctx.options, ctx.rows
    dy = materialized(dy)
    if o.sparse:
        dweight = _sparse(dy, indices, rows, ctx.leaf, o)
    elif call := way(dy, _WEIGHT_GRADIENT):
        dweight = call(dy, indices, rows, o.padding, o.by_frequency)
    elif ctx.plan is not None and not _expanded(dy, indices):
        dweight = dy.new_empty((rows, dy.shape[-1]))
        dy, indices = _rows(dy, indices)
        ctx.plan.run(dy=dy, indices=indices, dweight=dweight)
    else:
        dweight = _weight_gradient(dy, indices, rows, o.padding, o.by_frequency)
    return dweight, None, None, None


def _sparse(dy: Tensor, indices: Tensor, rows: int, leaf: Leaf | None, o: Options) -> Tensor:
    """The gradient of the table as a sparse tensor."""
    if torch.compiler.is_compiling() or intercepted(dy):
        return sparse_embedding_operator(dy, indices, rows, *o[:2])  # type: ignore[no-any-return]
    if torch.is_grad_enabled():
        got, hint = "create_graph=True", "with sparse=False it can be"
        raise make("unsupported", NAME, "the gradient", "differentiated once", got, hint)
    return sparse_embedding_gradient(dy, indices, rows, *o[:2], leaf)


@torch.library.custom_op("sternway::embedding", mutates_args=())
def _operator(weight: Tensor, indices: Tensor, padding: int | None, by_frequency: bool, sparse: bool) -> Tensor:
    """The forward as an operator that has its gradient: for torch.export, and for torch.compile with a sparse gradient."""
    return torch.embedding(weight, indices)


@_operator.register_fake
def _(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return torch.embedding(weight, indices)


_operator.register_vmap(each("embedding", _operator))


def _set_up_operator(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _Embedding.setup_context(ctx, (*inputs[:2], Options(*inputs[2:]), None), output)


_operator.register_autograd(lambda ctx, dy: (*_Embedding.backward(ctx, dy), None), setup_context=_set_up_operator)


def look_up(weight: Tensor, indices: Tensor, o: Options, plan: EmbeddingBackwardPlan | None) -> Tensor:
    """Rows of weight, with the gradient of this file."""
    if exporting() or (o.sparse and torch.compiler.is_compiling()):  # a trace of the function would hold sparse tensors
        return _operator(weight, indices, *o)  # type: ignore[no-any-return]
    if forward_ad._current_level < 0 and reach_plans(weight, indices):
        return _EagerEmbedding.apply(weight, indices, o, plan)  # type: ignore[no-any-return]
    return apply(_Embedding, weight, indices, o, plan)  # type: ignore[no-any-return]
