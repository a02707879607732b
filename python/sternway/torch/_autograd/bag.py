"""The operation of embedding_bag: its autograd function, and its forward and gradients as operators of torch."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ..._arrays import device_of, dtype_name
from ..._embedding_bag import embedding_bag_backward, embedding_bag_per_sample_weights_backward
from ..._embedding_bag_forward import _forward_plan
from ...errors import Error, make
from .bag_problem import MODES, NAME, Options, check_offsets
from .calls import resolve
from .dispatch import run_operator
from .eager import is_eager, is_plain
from .operators import (
    Gradients,
    apply,
    differentiable,
    is_distributed,
    is_exporting,
    is_intercepted,
    recorded_call,
    traceable,
    vmap_by_loop,
)
from .sparse_rows import Leaf, leaf_of, sparse_gradient, sparse_operator
from .tangents import Inputs


def flat(indices: Tensor, offsets: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Indices of rank 1, their offsets, and weights of rank 1. Without offsets, each row of the indices is a bag."""
    if offsets is not None:
        return indices, offsets, weights
    offsets = torch.arange(indices.shape[0], dtype=indices.dtype, device=indices.device) * indices.shape[1]
    return indices.reshape(-1), offsets, None if weights is None else weights.reshape(-1)


def _weight_gradient(
    dy: Tensor, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None, max_indices: Tensor | None,
    num_embeddings: int, mode: str, padding_idx: int | None, include_last_offset: bool, scale_grad_by_freq: bool,
) -> Tensor:  # fmt: skip
    reduction: Any = mode  # a schema of torch has no Literal
    return embedding_bag_backward(
        dy, indices, offsets, num_embeddings=num_embeddings, mode=reduction, padding_idx=padding_idx,
        per_sample_weights=None if per_sample_weights is None else resolve(per_sample_weights),
        include_last_offset=include_last_offset, scale_grad_by_freq=scale_grad_by_freq, max_indices=max_indices,
    )  # fmt: skip


def _sample_gradient(
    dy: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, padding_idx: int | None, include_last_offset: bool
) -> Tensor:
    return embedding_bag_per_sample_weights_backward(
        resolve(dy),
        resolve(weight),
        indices,
        offsets,
        padding_idx=padding_idx,
        include_last_offset=include_last_offset,
    )


# The two where torch has to see them; others call them past torch. Without offsets, each row of the indices is a bag: shards of
# a DTensor are rows, and their offsets would differ.


@torch.library.custom_op("sternway::embedding_bag_backward", mutates_args=())
def _weight_operator(
    dy: Tensor, indices: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None, max_indices: Tensor | None,
    num_embeddings: int, mode: str, padding_idx: int | None, include_last_offset: bool, scale_grad_by_freq: bool,
) -> Tensor:  # fmt: skip
    """The gradient of the table as an operator."""
    indices, offsets, weights = flat(indices, offsets, per_sample_weights)
    options = num_embeddings, mode, padding_idx, include_last_offset, scale_grad_by_freq
    return _weight_gradient(dy, indices, offsets, weights, max_indices, *options)


@torch.library.custom_op("sternway::embedding_bag_per_sample_weights_backward", mutates_args=())
def _sample_operator(
    dy: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor | None, padding_idx: int | None, include_last_offset: bool
) -> Tensor:
    """The gradient of the weights of samples as an operator."""
    positions, offsets, _ = flat(indices, offsets, None)
    return _sample_gradient(dy, weight, positions, offsets, padding_idx, include_last_offset).view(indices.shape)


@_weight_operator.register_fake
def _(dy: Tensor, *inputs: Any) -> Tensor:
    return dy.new_empty((inputs[4], dy.shape[1]))


@_sample_operator.register_fake
def _(dy: Tensor, weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return dy.new_empty(indices.shape)


_weight_operator.register_vmap(vmap_by_loop("embedding_bag", _weight_operator))
_sample_operator.register_vmap(vmap_by_loop("embedding_bag", _sample_operator))


def _weight_backward(inputs: Inputs, grads: tuple[Tensor, ...], needs: tuple[bool, ...]) -> Gradients:
    """dweight is linear in dy and in the weights of samples; both gradients gather bags."""
    dy, indices, offsets, weights, max_indices, _, mode, padding, last, by_frequency = inputs
    (g,) = grads
    _refuse_distributed(dy)
    o = Options(mode, padding, last, by_frequency=False, sparse=False)
    ddy = dweights = None
    if by_frequency:
        counted = torch.ones_like(indices, dtype=g.dtype)
        if last:
            counted[offsets[-1] :] = 0
        frequency = g.new_zeros(len(g)).index_add(0, indices, counted)
        g = g / frequency.clamp(min=1)[:, None]
    if needs[0] and max_indices is not None:
        ddy = g.gather(0, max_indices.long().clamp(min=0)).masked_fill(
            _without_maximum(max_indices, indices, offsets, len(g), o), 0
        )
    elif needs[0]:
        ddy = _apply(indices, g, offsets, weights, o)
    if needs[3]:
        dweights = apply(_SAMPLE_GRADIENT.function, dy, g, indices, offsets, padding, last)
    return ddy, None, None, dweights, *[None] * 6


def _refuse_distributed(dy: Tensor) -> None:
    """Raise UnsupportedError for a second derivative of DTensors, whose rows are not flattened as shards."""
    if is_distributed(dy):
        got, hint = "create_graph=True of DTensors", "redistribute them and use to_local()"
        raise make("unsupported", NAME, "the gradient", "differentiated once", got, hint)


def _sample_backward(inputs: Inputs, grads: tuple[Tensor, ...], needs: tuple[bool, ...]) -> Gradients:
    """The gradient of the weights of samples is linear in dy and in weight."""
    dy, weight, indices, offsets, padding, last = inputs
    (g,) = grads
    _refuse_distributed(dy)
    o = Options("sum", padding, last, by_frequency=False, sparse=False)
    ddy = _apply(indices, weight, offsets, g, o) if needs[0] else None
    dweight = apply(_WEIGHT_GRADIENT.function, dy, indices, offsets, g, None, len(weight), *o[:4]) if needs[1] else None
    return ddy, dweight, None, None, None, None


_WEIGHT_GRADIENT = differentiable(_weight_operator, _weight_backward)
_SAMPLE_GRADIENT = differentiable(_sample_operator, _sample_backward)


def _is_faster(weight: Tensor, mode: str, positions: int) -> bool:
    """Whether the forward of sternway is faster than that of torch for this table and mode."""
    if weight.is_cuda:
        # A plan costs the host more than torch's operator; what it gains on the device makes up for that in large calls.
        return positions * weight.shape[-1] >= 1 << 23
    # torch has vectorized loops for sums and means of float32 and 16-bit tables alone: maxima take 2 to 20 times as long.
    return mode == "max" or weight.dtype is torch.float64


def _reduced_by_plan(
    weight: Tensor, weights: Tensor | None, indices: Tensor, offsets: Tensor, o: Options
) -> tuple[Tensor, Tensor] | None:
    """What :func:`reduced` returns, by a plan; None: torch takes the call, or says what is wrong with it."""
    if not (is_eager(weight) and all(x is None or is_plain(x) for x in (weights, indices, offsets))):
        return None
    if o.last and weight.is_cuda:  # torch's forward there runs the last bag to the end of the indices
        offsets, o = offsets[:-1], o._replace(last=False)
    (rows, dim), bags = weight.shape, len(offsets) - o.last
    if not dim or bags < 0 or (weights is not None and weights.dtype is not weight.dtype):
        return None  # which torch refuses
    try:
        plan = _forward_plan(
            rows, dim, bags, len(indices), dtype_name(weight.dtype), cast(Any, o.mode), cast(Any, dtype_name(indices.dtype)),
            cast(Any, dtype_name(offsets.dtype)), o.padding, o.last, device_of(weight),
        )  # fmt: skip
    except Error:
        return None
    y, max_indices = weight.new_empty((bags, dim)), indices.new_empty((bags, dim) if o.mode == "max" else 0)
    operands = {"weight": weight, "indices": indices, "offsets": offsets, "per_sample_weights": weights, "y": y}
    if o.mode == "max":
        operands["max_indices"] = max_indices
    return (y, max_indices) if plan._run_plain(operands) else None


def reduced(weight: Tensor, weights: Tensor | None, indices: Tensor, offsets: Tensor, o: Options) -> tuple[Tensor, Tensor]:
    """The bags, and in mode "max" the row of weight that each element is of."""
    if _is_faster(weight, o.mode, len(indices)):
        found = _reduced_by_plan(weight, weights, indices, offsets, o)
        if found is not None:
            return found
    mode = MODES.index(o.mode)
    y, _, _, max_indices = torch.embedding_bag(
        weight, indices, offsets, o.by_frequency, mode, o.sparse, weights, o.last, o.padding
    )  # fmt: skip
    return y, max_indices


class _EmbeddingBag(torch.autograd.Function):
    """The autograd function of all calls but ordinary eager ones.

    Indices have rank 1, and offsets are as the forward on this device takes them.
    """

    @staticmethod
    def forward(weight: Tensor, weights: Tensor | None, indices: Tensor, offsets: Tensor, o: Options) -> tuple[Tensor, Tensor]:
        y, max_indices = reduced(weight, weights, indices, offsets, o)
        return y, max_indices if o.mode == "max" else indices.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        weight, weights, indices, offsets, o = inputs
        ctx.mark_non_differentiable(output[1])
        save(ctx, weight, weights, indices, offsets, o, output[1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, _: Tensor | None) -> Any:
        return gradients(ctx, dy)

    vmap = staticmethod(vmap_by_loop("embedding_bag", lambda *inputs: _EmbeddingBag.apply(*inputs)))


_embedding_bag = traceable(_EmbeddingBag)


def save(
    ctx: Any, weight: Tensor, weights: Tensor | None, indices: Tensor, offsets: Tensor, o: Options, max_indices: Tensor
) -> None:
    ctx.set_materialize_grads(False)
    ctx.options, ctx.rows, ctx.leaf = o, weight.shape[0], leaf_of(weight) if o.sparse else None
    table = weight if weights is not None and ctx.needs_input_grad[1] else None
    ctx.save_for_backward(table, weights, indices, offsets, max_indices if o.mode == "max" else None)


def gradients(ctx: Any, dy: Tensor | None) -> Gradients:
    if dy is None:
        return (None,) * 5
    weight, weights, indices, offsets, max_indices = ctx.saved_tensors
    o: Options = ctx.options
    if o.last and dy.is_cuda:  # torch's forward there runs the last bag to the end of the indices
        offsets, o = offsets[:-1], o._replace(last=False)
    dy = resolve(dy)
    dweight = dweights = None
    if ctx.needs_input_grad[0] and o.sparse:
        dweight = _sparse(dy, indices, offsets, weights, ctx.rows, ctx.leaf, o)
    elif ctx.needs_input_grad[0]:
        gradient = recorded_call(dy, _WEIGHT_GRADIENT) or _weight_gradient
        dweight = gradient(dy, indices, offsets, weights, max_indices, ctx.rows, *o[:4])
    if ctx.needs_input_grad[1]:
        dweights = sample_gradient(dy, weight, indices, offsets, o)
    return dweight, dweights, None, None, None


def sample_gradient(dy: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, o: Options) -> Tensor:
    """The gradient of the weights of samples, which torch records where it is differentiated again."""
    call = recorded_call(dy, _SAMPLE_GRADIENT) or _sample_gradient
    return call(dy, weight, indices, offsets, o.padding, o.last)


def _without_maximum(max_indices: Tensor, indices: Tensor, offsets: Tensor, rows: int, o: Options) -> Tensor:
    """Elements of bags without a counted position, in which torch's CPU forward leaves row 0."""
    ones = torch.ones(rows, 1, device=indices.device)
    counted = torch.embedding_bag(ones, indices, offsets, False, 0, False, None, o.last, o.padding)
    return (max_indices < 0) | (counted[0] == 0)


def _sparse(
    dy: Tensor, indices: Tensor, offsets: Tensor, weights: Tensor | None, rows: int, leaf: Leaf | None, o: Options
) -> Tensor:
    """The gradient of the table as a sparse tensor."""
    if torch.compiler.is_compiling() or is_intercepted(dy):
        return sparse_operator(dy, indices, offsets, weights, rows, *o[:4])  # type: ignore[no-any-return]
    if torch.is_grad_enabled():
        got, hint = "create_graph=True", "with sparse=False it can be"
        raise make("unsupported", NAME, "the gradient", "differentiated once", got, hint)
    return sparse_gradient(dy, indices, offsets, weights, rows, *o[:4], leaf)


@torch.library.custom_op("sternway::embedding_bag", mutates_args=())
def _operator(
    weight: Tensor, weights: Tensor | None, indices: Tensor, offsets: Tensor | None,
    padding: int | None, mode: str, last: bool, by_frequency: bool, sparse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The forward as an operator that has its gradient: for torch.export, DTensors, and torch.compile with a sparse gradient.

    The sharding cache of DTensor keeps what follows the first integer, so padding comes before mode.
    """
    o = Options(mode, padding, last, by_frequency, sparse)
    indices, offsets, weights = flat(indices, offsets, weights)
    check_offsets(indices, offsets, o)
    return _EmbeddingBag.forward(weight, weights, indices, offsets, o)


@_operator.register_fake
def _(
    weight: Tensor, weights: Tensor | None, indices: Tensor, offsets: Tensor | None, padding: int | None, mode: str, *o: Any
) -> tuple[Tensor, Tensor]:
    indices, offsets, weights = flat(indices, offsets, weights)
    return _EmbeddingBag.forward(weight, weights, indices, offsets, Options(mode, padding, *o))


_operator.register_vmap(vmap_by_loop("embedding_bag", _operator))


def _set_up_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, padding, mode, last, by_frequency, sparse = inputs
    _EmbeddingBag.setup_context(ctx, (*tensors, Options(mode, padding, last, by_frequency, sparse)), output)


_operator.register_autograd(
    lambda ctx, *grads: (*_EmbeddingBag.backward(ctx, *grads), *[None] * 4), setup_context=_set_up_operator
)


def bags(indices: Tensor, weight: Tensor, offsets: Tensor | None, weights: Tensor | None, o: Options) -> Tensor:
    """Bags of rows of weight, with the gradients of this file.

    offsets: None where operands are DTensors and each row of the indices is a bag.
    """
    tensors = weight, weights, indices, offsets
    traced = is_exporting() or (o.sparse and torch.compiler.is_compiling())  # a trace of the function would hold sparse tensors
    if offsets is None or traced or is_distributed(*tensors):
        operands = "weight", "per_sample_weights", "input", "offsets"
        y, _ = run_operator("embedding_bag", "embedding_bag", operands, *tensors, o.padding, o.mode, *o[2:])
        return y  # type: ignore[no-any-return]
    return _apply(indices, weight, offsets, weights, o)


def _apply(indices: Tensor, weight: Tensor, offsets: Tensor, weights: Tensor | None, o: Options) -> Tensor:
    o = Options(*o)  # Dynamo (2.11) can hand on a tuple that it has made, but none that _replace has
    y: Tensor = _embedding_bag(weight, weights, indices, offsets, o)[0]
    return y
