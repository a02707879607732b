"""The forward and backward of sharded embedding bags: messages between the ranks, and the sums of segments by their owners.

A shard with an optimizer is updated at the end of the backward, when no rank waits for this one any more.

What is summed keeps its order: positions of a segment in their order, segments of a bag in the order of the ranks that own
them, and a row of the gradient in the order of the ranks and of their positions, which is that of the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..._arrays import device_of
from ..._embedding_bag import _embedding_bag_plan, embedding_bag_backward, embedding_bag_per_sample_weights_backward
from ...errors import make
from .._autograd.bag_problem import MODES
from .._autograd.calls import resolve
from .._autograd.learning import reaches_table, update
from ._bag_routes import OP, Call, Cut, Splits

Gradients = tuple[Tensor | None, Tensor | None, None]


def as_bytes(x: Tensor) -> Tensor:
    """A contiguous tensor [n, ...] as bytes [n, bytes of an element], as not every backend sends every dtype."""
    return x.reshape(len(x), x.shape[1:].numel()).view(torch.uint8)


def exchanged(x: Tensor, splits: Splits, group: Any) -> Tensor:
    """The parts of x, along its first dimension, that the other ranks sent to this one, in rank order."""
    x = x.contiguous()
    y = x.new_empty((sum(splits.received), *x.shape[1:]))
    dist.all_to_all_single(as_bytes(y), as_bytes(x), splits.received, splits.sent, group=group)
    return y


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of partial results: that of the accumulator."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def bag(
    table: Tensor, rows: Tensor, offsets: Tensor, mode: str, weights: Tensor | None = None, padding: int | None = None
) -> tuple[Tensor, Tensor]:
    """torch's forward of bags: the result, and the ``max_indices`` of mode "max"."""
    y, _, _, max_indices = torch.embedding_bag(
        table, rows, offsets.to(rows.dtype), False, MODES.index(mode), False, weights, False, padding
    )  # fmt: skip
    return y, max_indices


def partial_sums(table: Tensor, rows: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    """The sums of segments, in the dtype of the accumulator. Rows of 16 bits are gathered and widened first."""
    dtype = wide(table.dtype)
    if table.dtype != dtype:
        table, rows = table[rows].to(dtype), torch.arange(len(rows), device=rows.device)
        weights = None if weights is None else weights.to(dtype)
    return bag(table, rows, offsets, "sum", weights)[0]


def once(dy: Tensor) -> Tensor:
    """An upstream gradient with its values in memory.

    Raises:
        UnsupportedError: the backward is differentiated.
    """
    if torch.is_grad_enabled():
        raise make("unsupported", OP, "the gradient", "differentiated once", "create_graph=True")
    return resolve(dy)


def received(call: Call, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The segments that this rank owns: rows of its shard, the first position of each segment, and factors of positions."""
    bags, group = call.bags, call.group
    rows = exchanged(bags.rows, call.positions, group)
    if call.cut.sharding == "row" and call.reduction.mode == "max":  # each position is a segment
        offsets = torch.arange(len(rows), device=rows.device)
    else:
        lengths = exchanged(bags.lengths, call.segments, group).long()
        offsets = lengths.cumsum(0) - lengths
    return rows, offsets, None if weights is None else exchanged(weights[bags.positions], call.positions, group)


def begin(ctx: Any, weight: Tensor, call: Call) -> None:
    """Keep what the backward needs to know of the shard."""
    ctx.call, ctx.rows = call, len(weight)
    ctx.table = None if call.learner is None else weight


def uses_table(ctx: Any) -> bool:
    """Whether the backward has a gradient of the shard, or updates it.

    Raises:
        UnsupportedError: the gradient of a shard with an optimizer is asked for.
    """
    call: Call = ctx.call
    return call.needs[0] if call.learner is None else reaches_table(ctx, call.learner)


def hand_to_table(
    ctx: Any, dy: Tensor, rows: Tensor, offsets: Tensor, *, mode: Any = "sum", padding_idx: int | None = None,
    per_sample_weights: Tensor | None = None, max_indices: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """The gradient of the shard; or None, after its optimizer has updated it."""
    learner, by_frequency = ctx.call.learner, ctx.call.reduction.by_frequency
    if learner is None:
        return embedding_bag_backward(
            dy, rows, offsets, num_embeddings=ctx.rows, mode=mode, padding_idx=padding_idx,
            per_sample_weights=per_sample_weights, scale_grad_by_freq=by_frequency, max_indices=max_indices,
        )  # fmt: skip
    plan = _embedding_bag_plan(
        *ctx.table.shape, len(dy), len(rows), dy.dtype, mode, rows.dtype, offsets.dtype, padding_idx, False, by_frequency,
        device_of(dy), True, *learner.kind,
    )  # fmt: skip
    operands: dict[str, Tensor | None] = {"dy": dy, "indices": rows, "offsets": offsets}
    update(plan, learner, ctx.table, {**operands, "per_sample_weights": per_sample_weights, "max_indices": max_indices})
    return None


class _SumsOfRows(torch.autograd.Function):
    """Modes "sum" and "mean" with a table cut by rows: the owner of a segment returns its sum."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, sample_weights: Tensor | None, call: Call) -> Tensor:
        bags = call.bags
        flat = None if sample_weights is None else sample_weights.detach().reshape(-1)
        rows, offsets, weights = received(call, flat)
        parts = exchanged(partial_sums(weight, rows, offsets, weights), call.segments.back(), call.group)
        in_bags, order = torch.sort(bags.bags, stable=True)
        numbers = torch.arange(len(bags.offsets), device=order.device)
        y, _ = bag(parts, order, torch.searchsorted(in_bags, numbers), "sum")
        inverse = None
        if call.reduction.mode == "mean":
            counted = torch.zeros_like(bags.offsets).index_add_(0, bags.bags, bags.lengths.long())
            y /= counted.clamp(min=1)[:, None]
            inverse = counted.clamp(min=1).to(y.dtype).reciprocal()
        begin(ctx, weight, call)
        ctx.shape = None if sample_weights is None else sample_weights.shape
        ctx.save_for_backward(weight if call.needs[1] else None, rows, offsets, weights, inverse)
        return y.to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        dy, call, is_used = once(dy), ctx.call, uses_table(ctx)
        weight, rows, offsets, weights, inverse = ctx.saved_tensors
        bags, group = call.bags, call.group
        parts = exchanged(dy.index_select(0, bags.bags), call.segments, group)
        dweight = dweights = None
        if call.needs[1]:
            products = embedding_bag_per_sample_weights_backward(parts, weight, rows, offsets)
            products = exchanged(products, call.positions.back(), group)
            dweights = dy.new_zeros(ctx.shape)
            dweights.view(-1).index_copy_(0, bags.positions, products)
        if is_used:
            if inverse is not None:
                factors = exchanged(inverse[bags.bags], call.segments, group)
                lengths = torch.diff(offsets, append=offsets.new_full((1,), len(rows)))
                weights = factors.repeat_interleave(lengths, output_size=len(rows))
            dweight = hand_to_table(ctx, parts, rows, offsets, per_sample_weights=weights)
        return dweight, dweights, None


class _MaximaOfRows(torch.autograd.Function):
    """Mode "max" with a table cut by rows: the owners return the rows, as which of equal or NaN rows wins depends on all."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, sample_weights: Tensor | None, call: Call) -> Tensor:
        bags = call.bags
        rows, starts, _ = received(call, None)
        table = exchanged(weight.detach()[rows], call.positions.back(), call.group)
        positions, order = torch.sort(bags.positions)
        offsets = torch.searchsorted(positions, bags.offsets)
        y, max_indices = bag(table, order, offsets, "max")
        begin(ctx, weight, call)
        ctx.save_for_backward(rows, starts, order, offsets, max_indices)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        dy, call, is_used = once(dy), ctx.call, uses_table(ctx)
        rows, starts, order, offsets, max_indices = ctx.saved_tensors
        dtable = embedding_bag_backward(
            dy, order, offsets, num_embeddings=len(order), mode="max", max_indices=max_indices
        )  # fmt: skip
        parts = exchanged(dtable, call.positions, call.group)
        return hand_to_table(ctx, parts, rows, starts) if is_used else None, None, None


class _BagsOfColumns(torch.autograd.Function):
    """All modes with a table cut by columns: each rank reduces the bags of all ranks over its columns."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, sample_weights: Tensor | None, call: Call) -> Tensor:
        o, (_, width), count = call.reduction, weight.shape, len(call.bags.offsets)
        flat = None if sample_weights is None else sample_weights.detach().reshape(-1)
        rows, offsets, weights = received(call, flat)
        parts, max_indices = weight.new_empty(len(offsets), 0), rows.new_empty(len(offsets), 0)
        if width:
            parts, max_indices = bag(weight, rows, offsets, o.mode, weights, o.padding)
        widths = [call.cut.size(rank) for rank in range(call.cut.ranks)]
        splits = Splits([width * n for n in call.segments.received], [w * count for w in widths])
        answers = torch.split(exchanged(parts.reshape(-1), splits, call.group), splits.received)
        begin(ctx, weight, call)
        ctx.splits = splits
        ctx.shape = None if sample_weights is None else sample_weights.shape
        ctx.save_for_backward(
            weight if call.needs[1] else None, rows, offsets, weights, max_indices if o.mode == "max" else None
        )  # fmt: skip
        return torch.cat([answer.view(count, w) for answer, w in zip(answers, widths, strict=True)], 1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        dy, call, o, is_used = once(dy), ctx.call, ctx.call.reduction, uses_table(ctx)
        weight, rows, offsets, weights, max_indices = ctx.saved_tensors
        columns = torch.cat([call.cut.of(dy, rank).reshape(-1) for rank in range(call.cut.ranks)])
        parts = exchanged(columns, ctx.splits.back(), call.group).view(len(offsets), call.cut.size(call.rank))
        dweight = dweights = None
        if call.needs[1]:
            products = parts.new_empty(len(rows), dtype=wide(parts.dtype))
            embedding_bag_per_sample_weights_backward(parts, weight, rows, offsets, padding_idx=o.padding, out=products)
            products = exchanged(products, call.positions.back(), call.group).view(call.cut.ranks, call.bags.total)
            dweights = dy.new_zeros(ctx.shape)
            dweights.view(-1)[: call.bags.total] = products.sum(0)
        if is_used:
            dweight = hand_to_table(
                ctx, parts, rows, offsets, mode=o.mode, padding_idx=o.padding, per_sample_weights=weights,
                max_indices=max_indices,
            )  # fmt: skip
        return dweight, dweights, None


def bags(weight: Tensor, sample_weights: Tensor | None, call: Call) -> Tensor:
    """The bags of this rank, with their gradients."""
    function: Any = _BagsOfColumns
    if call.cut.sharding == "row":
        function = _MaximaOfRows if call.reduction.mode == "max" else _SumsOfRows
    return function.apply(weight, sample_weights, call)  # type: ignore[no-any-return]


def whole(shard: Tensor, cut: Cut, group: Any) -> Tensor:
    """The whole table, from the shards of all ranks. Shorter shards travel padded to the block of the first rank."""
    by_rows = cut.sharding == "row"
    shard = shard if by_rows else shard.T
    block = shard.new_zeros(cut.block, shard.shape[1])
    block[: len(shard)] = shard
    blocks = block.new_empty(cut.ranks * cut.block, shard.shape[1])
    dist.all_gather_into_tensor(as_bytes(blocks), as_bytes(block), group=group)
    return blocks[: cut.rows] if by_rows else blocks[: cut.dim].T.contiguous()
