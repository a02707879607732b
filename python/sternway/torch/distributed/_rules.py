"""Sharding rules: for each operator, the ways in which it runs on shards without communication.

A rule is written for one dimension of a device mesh; torch combines them where a mesh has more. It returns pairs of lists: the
placements of the outputs, and those of the tensors among the inputs, which are the first arguments of every operator. An absent
tensor is None there, and an output that is not computed is empty and replicated. All replicated comes first, as torch takes the
first of equal costs.

The tensors that a rule gets are DTensors, or the specs by which torch plans a call: both have ``shape`` and ``ndim``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from ..._kinds import EXTREMA
from ..._quantize import extents_of, unpacked_shape
from .._autograd.scan_gradient import NEEDS_X

Placements = list[Placement | None]
Rule = tuple[Placements, Placements]
Rules = list[Rule]
WHOLE, SUM = Replicate(), Partial()


def rule(outputs: Sequence[Placement], *inputs: Placement | None) -> Rule:
    """The placements of the outputs, and of the inputs that are tensors."""
    return list(outputs), list(inputs)


def given(x: Any, placement: Placement) -> Placement | None:
    """The placement of an optional input: None if it is absent."""
    return None if x is None else placement


def made(is_made: bool, placement: Placement) -> Placement:
    """The placement of an output that is computed or empty."""
    return placement if is_made else WHOLE


def whole(outputs: int, *inputs: Any) -> Rule:
    """Everything replicated, which every operator takes."""
    return rule([WHOLE] * outputs, *(given(x, WHOLE) for x in inputs))


def linear(outputs: Sequence[bool], *inputs: Any) -> Rule:
    """An operator that is linear in its first input: parts of a sum make parts of a sum. The other inputs are replicated.

    outputs: whether each output is computed.
    """
    return rule([made(is_made, SUM) for is_made in outputs], SUM, *(given(x, WHOLE) for x in inputs[1:]))


def is_floating(x: Any) -> bool:
    """Whether an optional tensor has a floating dtype, and so a gradient."""
    return x is not None and bool(getattr(x, "tensor_meta", x).dtype.is_floating_point)


# --- Scans ------------------------------------------------------------------------------------------------------------


def scan(x: Any, dim: int, kind: str, reverse: bool) -> Rules:
    """Every dimension but the scanned one. The second output is the indices."""
    has_indices = kind in EXTREMA
    rules = [whole(2, x)]
    rules += [rule([Shard(d), made(has_indices, Shard(d))], Shard(d)) for d in others(x.ndim, dim)]
    return [*rules, linear((True, False), x)] if kind not in NEEDS_X else rules


def scan_backward(dy: Any, x: Any, dim: int, kind: str, reverse: bool) -> Rules:
    """Every dimension but the scanned one."""
    shards = [rule([Shard(d)], Shard(d), given(x, Shard(d))) for d in others(dy.ndim, dim)]
    return [whole(1, dy, x), *shards, linear((True,), dy, x)]


def packed_scan(x: Any, cu_seqlens: Any, dim: int, kind: str, reverse: bool, exclusive: bool) -> Rules:
    """Every dimension but the scanned one. The bounds of sequences are those of every row."""
    has_indices, bounds = kind in EXTREMA, given(cu_seqlens, WHOLE)
    rules = [whole(2, x, cu_seqlens)]
    rules += [rule([Shard(d), made(has_indices, Shard(d))], Shard(d), bounds) for d in others(x.ndim, dim)]
    return [*rules, linear((True, False), x, cu_seqlens)] if kind not in NEEDS_X else rules


def packed_scan_backward(
    dy: Any, x: Any, indices: Any, cu_seqlens: Any, dim: int, kind: str, reverse: bool, exclusive: bool
) -> Rules:
    """Every dimension but the scanned one."""
    inputs = dy, x, indices, cu_seqlens
    shards = [
        rule([Shard(d)], *(given(t, Shard(d)) for t in inputs[:3]), given(cu_seqlens, WHOLE)) for d in others(dy.ndim, dim)
    ]
    return [whole(1, *inputs), *shards, linear((True,), *inputs)]


def others(rank: int, dim: int) -> list[int]:
    """The dimensions of a tensor except one."""
    return [d for d in range(rank) if d != dim % max(rank, 1)]


# --- Linear recurrences ------------------------------------------------------------------------------------------------


def linear_recurrence(a: Any, b: Any, state: Any, bounds: Any, dim: int, reverse: bool) -> Rules:
    """Every dimension but the scanned one, with broadcasting. The recurrence is linear in b and the initial state."""
    shape: torch.Size = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    rules = [whole(2, a, b, state, bounds)]
    for d in others(len(shape), dim):
        of_state = shard_of_state(d, dim % len(shape), bounds)
        inputs = [shard_of(x, d, shape) or WHOLE for x in (a, b)]
        rules.append(rule([Shard(d), of_state], *inputs, given(state, of_state), given(bounds, WHOLE)))
    return [*rules, rule([SUM, SUM], WHOLE, SUM, given(state, SUM), given(bounds, WHOLE))]


def linear_recurrence_backward(
    dh: Any, dfinal: Any, a: Any, h: Any, state: Any, bounds: Any, extents: list[int], dim: int, reverse: bool, needs: int
) -> Rules:
    """The gradient of an operand that is broadcast along the sharded dimension is a sum over processes."""
    needed = [bool(needs >> k & 1) for k in range(3)]
    rules = [whole(3, dh, dfinal, a, h, state, bounds)]
    for d in others(dh.ndim, dim):
        of_state, own = shard_of_state(d, dim % dh.ndim, bounds), d - (dh.ndim - len(extents))
        of_a, of_b = shard_of(a, d, dh.shape), Shard(own) if own >= 0 and extents[own] == -1 else None
        outputs = [made(need, p) for need, p in zip(needed, (of_a or SUM, of_b or SUM, of_state), strict=True)]
        others_placed = of_a or WHOLE, Shard(d), given(state, of_state), given(bounds, WHOLE)
        rules.append(rule(outputs, Shard(d), given(dfinal, of_state), *others_placed))
    sums, of_h = [made(need, SUM) for need in needed], WHOLE if needed[0] else SUM  # da alone reads h
    return [*rules, rule(sums, SUM, given(dfinal, SUM), WHOLE, of_h, given(state, WHOLE), given(bounds, WHOLE))]


def shard_of_state(d: int, dim: int, bounds: Any) -> Shard:
    """The placement of states where h is sharded along d: they have the scanned dimension if there are bounds of sequences."""
    return Shard(d if bounds is not None or d < dim else d - 1)


# --- Lerp -------------------------------------------------------------------------------------------------------------


def lerp(input: Any, end: Any, weight: Any, number: float) -> Rules:
    """Every dimension of the broadcast shape. An operand that is broadcast along it is replicated."""
    operands = input, end, weight
    shape: torch.Size = torch.broadcast_shapes(*(x.shape for x in operands if x is not None))  # type: ignore[no-untyped-call]
    rules = [whole(1, *operands)]
    for d in range(len(shape)):
        rules.append(rule([Shard(d)], *(None if x is None else shard_of(x, d, shape) or WHOLE for x in operands)))
    return rules


def lerp_backward(dy: Any, weight: Any, a: Any, b: Any, needs: int, *_: Any) -> Rules:
    """The gradient of an operand that is broadcast along the sharded dimension is a sum over processes."""
    needed = [bool(needs >> k & 1) for k in range(3)]
    rules = [whole(3, dy, weight, a, b)]
    if a is not None and b is not None:  # otherwise their shapes are arguments, which are those of the whole
        for d in range(dy.ndim):
            shards = [None if x is None else shard_of(x, d, dy.shape) for x in (weight, a, b)]
            inputs = [given(x, shard or WHOLE) for x, shard in zip((weight, a, b), shards, strict=True)]
            grads = (*shards[1:], shards[0])
            outputs = [made(need, shard or SUM) for need, shard in zip(needed, grads, strict=True)]
            rules.append(rule(outputs, Shard(d), *inputs))
    return [*rules, linear(needed, dy, weight, a, b)]


def shard_of(x: Any, dim: int, shape: Sequence[int]) -> Shard | None:
    """The placement of an operand where its broadcast shape is sharded along dim; None: the operand is broadcast along it."""
    own = dim - (len(shape) - x.ndim)
    return Shard(own) if own >= 0 and x.shape[own] == shape[dim] else None


# --- Quantization -----------------------------------------------------------------------------------------------------


def fake_quantize(x: Any, scale: Any, zero_point: Any, *_: Any) -> Rules:
    """Every dimension along which no shard ends inside a block."""
    return quantize(x, scale, zero_point, None)


def dequantize(q: Any, scale: Any, zero_point: Any, dtype: Any, packed: str | None = None) -> Rules:
    """Every dimension along which no shard ends inside a block. packed: the dtype of the values, if q has two in a byte."""
    return quantize(q, scale, zero_point, packed)


def quantize(x: Any, scale: Any, zero_point: Any, packed: str | None) -> Rules:
    """Both of them."""
    rules = [whole(1, x, scale, zero_point)]
    rules += [rule([Shard(d)], Shard(d), *placed) for d, placed in of_blocks(x, scale, zero_point, packed)]
    return rules


def dequantize_backward(dy: Any, scale: Any, q: Any, zero_point: Any, packed: str | None = None) -> Rules:
    """:func:`fake_quantize_backward` with its inputs in another order."""
    rules = quantize_backward(dy, q, scale, zero_point, packed)
    return [(outputs, [of_dy, of_scale, of_q, *rest]) for outputs, (of_dy, of_q, of_scale, *rest) in rules]


def fake_quantize_backward(dy: Any, x: Any, scale: Any, zero_point: Any, *_: Any) -> Rules:
    """Where the shards share values of scale and zero point, the gradients of these are sums over processes."""
    return quantize_backward(dy, x, scale, zero_point, None)


def quantize_backward(dy: Any, x: Any, scale: Any, zero_point: Any, packed: str | None) -> Rules:
    """Both of them. packed: the dtype of the values, if x has two in a byte."""
    outputs = True, True, is_floating(zero_point)
    rules = [whole(3, dy, x, scale, zero_point)]
    for d, placed in of_blocks(x, scale, zero_point, packed):
        sums = [SUM if p == WHOLE else p for p in placed if p is not None]
        grads = sums[0], made(outputs[2], sums[-1])
        rules.append(rule([Shard(d), *grads], Shard(d), Shard(d), *placed))
    return [*rules, linear(outputs, dy, x, scale, zero_point)]


def of_blocks(x: Any, scale: Any, zero_point: Any, packed: str | None) -> Iterator[tuple[int, list[Placement | None]]]:
    """The dimensions along which x may be sharded, each with the placements of scale and zero point.

    A value is replicated where its extent is 1. Otherwise it is sharded with x, if it has a number for each index, or if its
    blocks can be dealt out evenly. So must bytes be that are packed, as torch deals out the elements of the result.
    """
    shape = unpacked_shape("sternway", x.shape, packed)
    for d, n in enumerate(shape):
        if packed is not None and d == len(shape) - 1 and x.shape[d] % x.device_mesh.size():
            continue
        values = [(v, 1 if v is None else extents_of(shape, v.shape)[d]) for v in (scale, zero_point)]
        if all(e in (1, n) or e % x.device_mesh.size() == 0 for _, e in values):
            yield d, [given(v, WHOLE if e == 1 and (n != 1 or v.ndim <= d) else Shard(d)) for v, e in values]


# --- RoPE -------------------------------------------------------------------------------------------------------------

_DIMENSIONS = {"bhsd": (0, 1, 2), "bshd": (0, 2, 1), "thd": (None, 1, 0)}
"""The dimensions of batch, heads and tokens in each layout."""


def rope(x: Any, x_k: Any, positions: Any, cos: Any, sin: Any, *options: Any) -> Rules:
    """Batch and heads; tokens, where positions or the rows of the tables are sharded with them."""
    batch, heads, tokens = _DIMENSIONS[options[-2]]
    tensors, outputs = (positions, cos, sin), (True, x_k is not None)
    rules = [whole(2, x, x_k, *tensors)]

    def add(dim: int, *placed: Placement | None) -> None:
        rules.append(rule([Shard(dim), made(outputs[1], Shard(dim))], Shard(dim), given(x_k, Shard(dim)), *placed))

    if batch is not None:
        count = x.shape[batch]
        add(batch, row_of(positions, 2, count), row_of(cos, 3, count), row_of(sin, 3, count))
    fixed = [given(t, WHOLE) for t in tensors]
    add(heads, *fixed)
    if x_k is not None:  # which may have fewer heads, and then be replicated
        rules.append(rule([Shard(heads), WHOLE], Shard(heads), WHOLE, *fixed))
    if positions is not None:
        add(tokens, Shard(positions.ndim - 1), *fixed[1:])
    elif cos is not None and sin is not None and cos.shape[-2] == sin.shape[-2] == x.shape[tokens]:
        add(tokens, None, Shard(cos.ndim - 2), Shard(sin.ndim - 2))
    return [*rules, rule([made(is_made, SUM) for is_made in outputs], SUM, given(x_k, SUM), *fixed)]


def rope_table_gradients(x: Any, dy: Any, x_k: Any, dy_k: Any, positions: Any, cos: Any, sin: Any, *options: Any) -> Rules:
    """Sums over batches, heads and tokens, except where a table has a row for each of what is sharded."""
    batch, heads, tokens = _DIMENSIONS[options[-1]]
    rules = [whole(2, x, dy, x_k, dy_k, positions, cos, sin)]

    def add(dim: int, of_positions: Placement, *tables: Placement) -> None:
        inputs = [Shard(dim), Shard(dim), given(x_k, Shard(dim)), given(dy_k, Shard(dim)), given(positions, of_positions)]
        rules.append(rule([SUM if t == WHOLE else t for t in tables], *inputs, *tables))

    if batch is not None:
        count = x.shape[batch]
        add(batch, row_of(positions, 2, count) or WHOLE, *(row_of(t, 3, count) or WHOLE for t in (cos, sin)))
    add(heads, WHOLE, WHOLE, WHOLE)
    if positions is not None:
        add(tokens, Shard(positions.ndim - 1), WHOLE, WHOLE)
    elif cos.shape[-2] == sin.shape[-2] == x.shape[tokens]:
        add(tokens, WHOLE, Shard(cos.ndim - 2), Shard(sin.ndim - 2))
    return rules


def row_of(x: Any, rank: int, count: int) -> Placement | None:
    """The placement of positions or a table where the batch is sharded: with it, if they have a row for each of it."""
    return None if x is None else Shard(0) if x.ndim == rank and x.shape[0] == count else WHOLE


# --- Embeddings -------------------------------------------------------------------------------------------------------
#
# A table is sharded by columns, or the positions are. By rows it is not: a row is looked up by the process that has it.
# With scale_grad_by_freq the gradient of a row is divided by its frequency among all positions, so these are not sharded.


def embedding(weight: Any, indices: Any, padding: int | None, by_frequency: bool, sparse: bool) -> Rules:
    """Columns of the table, or any dimension of the positions."""
    positions = [] if by_frequency else [rule([Shard(d)], WHOLE, Shard(d)) for d in range(indices.ndim)]
    return [whole(1, weight, indices), rule([Shard(indices.ndim)], Shard(1), WHOLE), *positions]


def embedding_backward(dy: Any, indices: Any, num_embeddings: int, padding: int | None, by_frequency: bool) -> Rules:
    """Columns of the table, or positions, which make parts of a sum."""
    positions = [] if by_frequency else [rule([SUM], Shard(d), Shard(d)) for d in range(indices.ndim)]
    columns = rule([Shard(1)], Shard(indices.ndim), WHOLE)
    return [whole(1, dy, indices), columns, *positions, linear((True,), dy, indices)]


def embedding_bag(
    weight: Any, weights: Any, indices: Any, offsets: Any, padding: int | None, mode: str, last: bool, by_frequency: bool,
    sparse: bool,
) -> Rules:  # fmt: skip
    """The second output is the indices of mode max. Bags are sharded where they are the rows of indices, without offsets."""
    is_max = mode == "max"
    rules = [whole(2, weight, weights, indices, offsets)]
    rules.append(rule([Shard(1), made(is_max, Shard(1))], Shard(1), given(weights, WHOLE), WHOLE, given(offsets, WHOLE)))
    if offsets is None and not by_frequency:
        rules.append(rule([Shard(0), made(is_max, Shard(0))], WHOLE, given(weights, Shard(0)), Shard(0), None))
    return rules


def embedding_bag_backward(
    dy: Any, indices: Any, offsets: Any, weights: Any, max_indices: Any, num_embeddings: int, mode: str, padding: int | None,
    last: bool, by_frequency: bool,
) -> Rules:  # fmt: skip
    """Columns of the table, or bags, which make parts of a sum."""
    rules = [whole(1, dy, indices, offsets, weights, max_indices)]
    columns = Shard(1), WHOLE, given(offsets, WHOLE), given(weights, WHOLE), given(max_indices, Shard(1))
    rules.append(rule([Shard(1)], *columns))
    if offsets is None and not by_frequency:
        rules.append(rule([SUM], Shard(0), Shard(0), None, given(weights, Shard(0)), given(max_indices, Shard(0))))
    return [*rules, linear((True,), dy, indices, offsets, weights, max_indices)]


def per_sample_weights_backward(dy: Any, weight: Any, indices: Any, offsets: Any, padding: int | None, last: bool) -> Rules:
    """Columns of the table, which make parts of a sum, or bags."""
    rules = [whole(1, dy, weight, indices, offsets), rule([SUM], Shard(1), Shard(1), WHOLE, given(offsets, WHOLE))]
    if offsets is None:
        rules.append(rule([Shard(0)], Shard(0), WHOLE, Shard(0), None))
    return [*rules, linear((True,), dy, weight, indices, offsets)]


RULES: dict[str, Callable[..., Rules]] = {
    "scan": scan,
    "scan_backward": scan_backward,
    "packed_scan": packed_scan,
    "packed_scan_backward": packed_scan_backward,
    "linear_recurrence": linear_recurrence,
    "linear_recurrence_backward": linear_recurrence_backward,
    "lerp": lerp,
    "lerp_backward": lerp_backward,
    "dequantize": dequantize,
    "dequantize_backward": dequantize_backward,
    "fake_quantize": fake_quantize,
    "fake_quantize_backward": fake_quantize_backward,
    "rope": rope,
    "rope_table_gradients": rope_table_gradients,
    "embedding": embedding,
    "embedding_backward": embedding_backward,
    "embedding_bag": embedding_bag,
    "embedding_bag_backward": embedding_bag_backward,
    "embedding_bag_per_sample_weights_backward": per_sample_weights_backward,
}
"""By name of the operator in the namespace sternway."""
