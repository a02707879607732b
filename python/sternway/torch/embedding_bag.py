"""``torch.nn.functional.embedding_bag`` and ``torch.nn.EmbeddingBag`` with sternway's backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..embedding_bag import embedding_bag_backward, embedding_bag_per_sample_weights_backward
from ..errors import make
from ._calls import require_tensors
from ._operators import Gradients, apply, differentiable, each, intercepted, way
from ._tangents import Inputs
from .sparse_rows import sparse_gradient

_MODES = ("sum", "mean", "max")
_NAME = "sternway.torch.embedding_bag"


class _Options(NamedTuple):
    mode: str
    padding: int | None  # not negative
    last: bool
    by_frequency: bool
    sparse: bool


def _weight_gradient(
    dy: Tensor, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None, max_indices: Tensor | None,
    num_embeddings: int, mode: str, padding_idx: int | None, include_last_offset: bool, scale_grad_by_freq: bool,
) -> Tensor:  # fmt: skip
    return embedding_bag_backward(  # type: ignore[no-any-return]
        dy.resolve_neg(), indices, offsets, num_embeddings=num_embeddings, mode=mode, padding_idx=padding_idx,
        per_sample_weights=per_sample_weights, include_last_offset=include_last_offset,
        scale_grad_by_freq=scale_grad_by_freq, max_indices=max_indices,
    )  # fmt: skip


def _sample_gradient(
    dy: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, padding_idx: int | None, include_last_offset: bool
) -> Tensor:
    return embedding_bag_per_sample_weights_backward(  # type: ignore[no-any-return]
        dy.resolve_neg(), weight, indices, offsets, padding_idx=padding_idx, include_last_offset=include_last_offset
    )


# The two where torch has to see them; others call them past torch.
_weight_operator = torch.library.custom_op("sternway::embedding_bag_backward", _weight_gradient, mutates_args=())
_sample_operator = torch.library.custom_op(
    "sternway::embedding_bag_per_sample_weights_backward", _sample_gradient, mutates_args=()
)


@_weight_operator.register_fake
def _(dy: Tensor, *inputs: Any) -> Tensor:
    return dy.new_empty((inputs[4], dy.shape[1]))


@_sample_operator.register_fake
def _(dy: Tensor, weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return dy.new_empty(indices.shape)


_weight_operator.register_vmap(each("embedding_bag", _weight_operator))
_sample_operator.register_vmap(each("embedding_bag", _sample_operator))


def _weight_backward(inputs: Inputs, grads: tuple[Tensor, ...], needs: tuple[bool, ...]) -> Gradients:
    """dweight is linear in dy and in the weights of samples; both gradients gather bags."""
    dy, indices, offsets, weights, winners, _, mode, padding, last, by_frequency = inputs
    (g,) = grads
    o = _Options(mode, padding, last, by_frequency=False, sparse=False)
    ddy = dweights = None
    if by_frequency:
        counted = torch.ones_like(indices, dtype=g.dtype)
        if last:
            counted[offsets[-1] :] = 0
        frequency = g.new_zeros(len(g)).index_add(0, indices, counted)
        g = g / frequency.clamp(min=1)[:, None]
    if needs[0] and winners is not None:
        ddy = g.gather(0, winners.long().clamp(min=0)).masked_fill(_without_winner(winners, indices, offsets, len(g), o), 0)
    elif needs[0]:
        ddy = _apply(indices, g, offsets, weights, o)
    if needs[3]:
        dweights = apply(_SAMPLE_GRADIENT.function, dy, g, indices, offsets, padding, last)
    return ddy, None, None, dweights, *[None] * 6


def _sample_backward(inputs: Inputs, grads: tuple[Tensor, ...], needs: tuple[bool, ...]) -> Gradients:
    """The gradient of the weights of samples is linear in dy and in weight."""
    dy, weight, indices, offsets, padding, last = inputs
    (g,) = grads
    o = _Options("sum", padding, last, by_frequency=False, sparse=False)
    ddy = _apply(indices, weight, offsets, g, o) if needs[0] else None
    dweight = apply(_WEIGHT_GRADIENT.function, dy, indices, offsets, g, None, len(weight), *o[:4]) if needs[1] else None
    return ddy, dweight, None, None, None, None


_WEIGHT_GRADIENT = differentiable(_weight_operator, _weight_backward)
_SAMPLE_GRADIENT = differentiable(_sample_operator, _sample_backward)


class _EmbeddingBag(torch.autograd.Function):
    """The operation itself; indices of rank 1, and offsets as the forward of this device takes them."""

    @staticmethod
    def forward(weight: Tensor, weights: Tensor | None, indices: Tensor, offsets: Tensor, o: _Options) -> tuple[Tensor, Tensor]:
        y, _, _, winners = torch.embedding_bag(
            weight, indices, offsets, o.by_frequency, _MODES.index(o.mode), o.sparse, weights, o.last,
            o.padding,
        )  # fmt: skip
        return y, winners if o.mode == "max" else indices.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        weight, weights, indices, offsets, ctx.options = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.rows = weight.shape[0]
        table = weight if weights is not None and ctx.needs_input_grad[1] else None
        ctx.save_for_backward(table, weights, indices, offsets, output[1] if ctx.options.mode == "max" else None)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, _: Tensor | None) -> Any:
        if dy is None:
            return (None,) * 5
        weight, weights, indices, offsets, winners = ctx.saved_tensors
        o: _Options = ctx.options
        if o.last and dy.is_cuda:  # torch's forward there runs the last bag to the end of the indices
            offsets, o = offsets[:-1], o._replace(last=False)
        dweight = dweights = None
        if ctx.needs_input_grad[0] and o.sparse:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                raise make(
                    "unsupported",
                    _NAME,
                    "the gradient",
                    "differentiated once",
                    "create_graph=True",
                    "with sparse=False it can be",
                )
            dweight = sparse_gradient(
                dy.resolve_neg(), indices, offsets, ctx.rows, padding_idx=o.padding, mode=o.mode, per_sample_weights=weights,
                include_last_offset=o.last, scale_grad_by_freq=o.by_frequency,
            )  # fmt: skip
        elif ctx.needs_input_grad[0]:
            dweight = (way(dy, _WEIGHT_GRADIENT) or _weight_gradient)(dy, indices, offsets, weights, winners, ctx.rows, *o[:4])
        if ctx.needs_input_grad[1]:
            dweights = (way(dy, _SAMPLE_GRADIENT) or _sample_gradient)(dy, weight, indices, offsets, o.padding, o.last)
        return dweight, dweights, None, None, None

    vmap = staticmethod(each("embedding_bag", lambda *inputs: _EmbeddingBag.apply(*inputs)))


def _without_winner(winners: Tensor, indices: Tensor, offsets: Tensor, rows: int, o: _Options) -> Tensor:
    """Where no position won: torch's CPU forward leaves row 0 in a bag without one."""
    ones = torch.ones(rows, 1, device=indices.device)
    counted = torch.embedding_bag(ones, indices, offsets, False, 0, False, None, o.last, o.padding)
    return (winners < 0) | (counted[0] == 0)


def _apply(indices: Tensor, weight: Tensor, offsets: Tensor, weights: Tensor | None, o: _Options) -> Tensor:
    y: Tensor = apply(_EmbeddingBag, weight, weights, indices, offsets, o)[0]
    return y


def _unreadable(offsets: Tensor) -> bool:
    return torch.compiler.is_compiling() or intercepted(offsets) or torch._C._functorch.is_batchedtensor(offsets)


def _check(input: Tensor, weight: Tensor, offsets: Tensor | None, weights: Tensor | None) -> None:
    """Refuse what torch.nn.functional.embedding_bag refuses, as it does."""
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


def _options(
    mode: str, padding: int | None, last: bool, by_frequency: bool, sparse: bool, weights: bool, rows: int
) -> _Options:
    """The options, with padding_idx counted from the start."""
    if mode not in _MODES:
        raise ValueError(f"embedding_bag: mode must be sum, mean or max, got {mode!r}")
    if mode == "max" and (by_frequency or sparse):
        raise ValueError("embedding_bag: mode max takes neither scale_grad_by_freq nor sparse")
    if mode != "sum" and weights:
        raise NotImplementedError(f"embedding_bag: per_sample_weights go with mode sum, not {mode}")
    if padding is not None:
        if not -rows <= padding < rows:
            raise RuntimeError(f"embedding_bag: padding_idx must be in [{-rows}, {rows}), got {padding}")
        padding %= rows
    return _Options(mode, padding, last, by_frequency, sparse)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of rows of weight, a bag of them at a time: :func:`torch.nn.functional.embedding_bag`.

    The backward is :func:`sternway.embedding_bag_backward`: each row of the gradient is written once, summed in the order of
    positions, so that the bits repeat. With ``sparse=True`` the gradient is coalesced: a row for each index that occurs.
    A dense gradient can be differentiated again.

    Args:
        input: [positions] with offsets, or [bags, positions of a bag]; int32 or int64.
        weight: [V, D]; float32, float64, float16 or bfloat16, on the CPU or CUDA.
        offsets: [bags], or [bags + 1] with include_last_offset; where each bag begins.
        max_norm, norm_type: rows that are read are first, in place, brought to at most this norm.
        scale_grad_by_freq: divide the gradient of a row by the number of its positions.
        mode: "sum", "mean" or "max".
        sparse: make a sparse gradient.
        per_sample_weights: a factor for each position, in mode "sum"; it has a gradient, too.
        include_last_offset: the last offset says where the last bag ends: at the end of input, on the CPU; torch's forward
            on CUDA takes it so whatever its value.
        padding_idx: a row that counts nowhere.

    Returns:
        [bags, D].

    Raises:
        ValueError, NotImplementedError, RuntimeError: what torch refuses.
        InvalidProblemError: on the CPU, input behind the last offset, about which the modes of torch's forward disagree.
    """
    require_tensors("embedding_bag", input=input, weight=weight)
    _check(input, weight, offsets, per_sample_weights)
    o = _options(
        mode, padding_idx, include_last_offset, scale_grad_by_freq, sparse, per_sample_weights is not None, weight.shape[0]
    )
    if offsets is None:
        bags, width = input.shape
        offsets = torch.arange(bags, dtype=input.dtype, device=input.device) * width
        o = o._replace(last=False)
        input = input.reshape(-1)
        per_sample_weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    elif include_last_offset and not input.is_cuda and not _unreadable(offsets):
        end = int(offsets[-1]) if len(offsets) else len(input)
        if end != len(input):
            wanted, got = f"up to the end of input, {len(input)}", f"{end} as the last one"
            raise make("invalid_problem", _NAME, "offsets", wanted, got, "shorten input")
    if max_norm is not None:
        with torch.no_grad():
            torch.embedding_renorm_(weight.detach(), input.contiguous(), max_norm, norm_type)
    if not offsets.shape[0]:  # no bag holds a position; torch's forward would read beyond offsets
        input, per_sample_weights = input[:0], None if per_sample_weights is None else per_sample_weights[:0]
    return _apply(input, weight, offsets, per_sample_weights, o)


class EmbeddingBag(torch.nn.EmbeddingBag):
    """:class:`torch.nn.EmbeddingBag` with the backward of :func:`sternway.torch.embedding_bag`: same arguments, same state."""

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return the reduced bags, [bags, D]; see :func:`sternway.torch.embedding_bag`."""
        return embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse,
            per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip
