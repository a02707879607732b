"""Where the positions of sharded embedding bags go: the cut of a table, the check of a call, and the splits of its messages.

A rank sends each owner of a shard its positions in segments. A segment is the positions of one bag that go to one owner, which
reduces it to one row. With a table cut by columns, every owner gets all bags. With mode "max" and a table cut by rows, each
position is a segment, so that the owner returns the rows themselves.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..._arrays import device_of
from ..._embedding_bag import _embedding_bag_plan
from ...errors import Error as SternwayError
from ...errors import make, renamed
from .._autograd.learning import NO_LEARNER, Kind, Learner, require_recording, require_table
from .._autograd.operators import PLAIN
from ._exchange import gathered

OP = "sternway.torch.distributed.ShardedEmbeddingBag"
Sharding = Literal["row", "column"]
SHARDINGS = get_args(Sharding)
LEARNED = ("weight", "per_sample_weights")
LIMIT = 2**31 - 1  # positions that a rank receives: the plans on a GPU and the lengths of segments count in 32 bits


class Cut(NamedTuple):
    """How the ranks share a table [rows, dim]: by the rule of torch.chunk, so that the last blocks may be shorter or empty."""

    sharding: str
    rows: int
    dim: int
    ranks: int

    @property
    def block(self) -> int:
        """The number of rows or columns of a full block."""
        return -(-(self.rows if self.sharding == "row" else self.dim) // self.ranks)

    def part(self, rank: int) -> slice:
        """The rows or columns of a rank."""
        extent = self.rows if self.sharding == "row" else self.dim
        return slice(min(rank * self.block, extent), min((rank + 1) * self.block, extent))

    def size(self, rank: int) -> int:
        """The number of rows or columns of a rank."""
        part = self.part(rank)
        return int(part.stop - part.start)

    def shape(self, rank: int) -> tuple[int, int]:
        """The shape of the shard of a rank."""
        return (self.size(rank), self.dim) if self.sharding == "row" else (self.rows, self.size(rank))

    def of(self, table: Tensor, rank: int) -> Tensor:
        """The shard of a rank in a whole table."""
        return table[self.part(rank)] if self.sharding == "row" else table[:, self.part(rank)]


class Reduction(NamedTuple):
    """The options of a module."""

    mode: str
    padding: int | None  # not negative
    last: bool  # include_last_offset
    by_frequency: bool


class Splits(NamedTuple):
    """The parts of a message: what this rank sends to every rank, and what it receives from every rank."""

    sent: list[int]
    received: list[int]

    def back(self) -> Splits:
        """The splits of the answer."""
        return Splits(self.received, self.sent)


class Bags(NamedTuple):
    """The checked bags of this rank, and its messages to the owners."""

    positions: Tensor  # [sent] int64: the positions that are sent, by owner and then in their order
    rows: Tensor  # [sent]: the row of each in the shard of its owner
    lengths: Tensor  # [segments] int32: positions of each segment
    bags: Tensor  # [segments] int64: the bag of which each segment is a part
    offsets: Tensor  # [bags] int64: the first position of each bag
    total: int  # positions, sent or not
    sent: list[int]  # positions to each owner
    segments: list[int]  # segments to each owner


class Call(NamedTuple):
    """A call on which the ranks have agreed."""

    bags: Bags
    positions: Splits
    segments: Splits
    cut: Cut
    rank: int
    reduction: Reduction
    group: Any
    needs: tuple[bool, bool]  # whether any gradient is needed: of the table, of the weights of samples
    learner: Learner | None  # updates the shard of this rank in the backward; None: it has a gradient


def agreed(
    input: Tensor, offsets: Tensor | None, weights: Tensor | None, weight: Tensor, cut: Cut, reduction: Reduction, group: Any,
    learner: Learner | None,
) -> Call:  # fmt: skip
    """Check the call of this rank, and exchange with the others how much each sends to whom.

    Args:
        learner: updates the shard in the backward; None: it has a gradient.

    Raises:
        Error: on every rank, if the call of one is wrong.
    """
    mine: list[Bags] = []

    def find() -> tuple[list[int], list[int], tuple[Any, ...]]:
        kind = NO_LEARNER if learner is None else learner.kind
        _check_table(weight, cut, torch.distributed.get_rank(group), reduction, kind)
        if learner is not None:
            require_table(learner, weight)
            require_recording(learner, weight, input, offsets, weights)
        indices, starts, end = _flat(input, offsets, weights, weight, reduction)
        bags = (_by_rows if cut.sharding == "row" else _by_columns)(indices, starts, end, cut, reduction)
        mine.append(bags)
        recorded = torch.is_grad_enabled()
        needs = recorded and weight.requires_grad, recorded and weights is not None and weights.requires_grad
        return bags.sent, bags.segments, (tuple(cut), str(weight.dtype), weights is not None, *needs)

    calls = gathered(OP, group, find)
    rank = torch.distributed.get_rank(group)
    same = [call[2] for call in calls]
    names = "the table", "weight.dtype", "whether per_sample_weights are given", *(f"{x}.requires_grad" for x in LEARNED)
    for name, values in zip(names, zip(*same, strict=True), strict=True):
        if len(set(values)) > 1:
            raise make("invalid_problem", OP, name, "the same on every rank", ", ".join(map(str, values)))
    if (most := max(map(sum, zip(*(sent for sent, _, _ in calls), strict=True)))) >= LIMIT:
        raise make("unsupported", OP, "the positions for one shard", f"fewer than {LIMIT}", str(most))
    (bags,) = mine
    positions = Splits(bags.sent, [sent[rank] for sent, _, _ in calls])
    segments = Splits(bags.segments, [sent[rank] for _, sent, _ in calls])
    return Call(bags, positions, segments, cut, rank, reduction, group, same[0][-2:], learner)


def _check_table(weight: Tensor, cut: Cut, rank: int, reduction: Reduction, kind: Kind) -> None:
    """Raise an error unless weight is the shard of this rank, and the backward has a plan for it. kind: of its learner."""
    if type(weight) not in PLAIN or weight.layout is not torch.strided or weight.is_meta:
        hint = "keep it out of FSDP, and materialize it before the call"
        raise make("unsupported", OP, "weight", "a strided tensor with memory", _kind(weight), hint)
    if weight.shape != cut.shape(rank):
        wanted = f"the shard {list(cut.shape(rank))} of this rank"
        raise make("invalid_problem", OP, "weight", wanted, f"shape {list(weight.shape)}")
    o, int32, device = reduction, torch.int32, device_of(weight)
    try:
        _embedding_bag_plan(
            *weight.shape, 1, 1, weight.dtype, o.mode, int32, torch.int64, None, False, False, device, True, *kind
        )
    except SternwayError as error:
        raise renamed(error, OP, {"dtype": "weight", "num_embeddings": "weight", "embedding_dim": "weight"}) from None


def _kind(x: Any) -> str:
    if not isinstance(x, Tensor):
        return type(x).__name__
    if x.is_meta:
        return "a meta tensor"
    return f"a {x.layout} tensor" if x.layout is not torch.strided or type(x) in PLAIN else type(x).__name__


def _check_operand(name: str, x: Any, weight: Tensor, integral: bool) -> None:
    """Raise an error unless an operand is a plain tensor beside the table, with integers or numbers of the table's dtype."""
    if not isinstance(x, Tensor):
        raise make("type", OP, name, "a torch.Tensor", type(x).__name__)
    if x.is_nested or x.layout is not torch.strided or type(x) not in PLAIN:
        raise make("unsupported", OP, name, "a strided tensor", "a nested tensor" if x.is_nested else _kind(x))
    if x.device != weight.device:
        raise make("invalid_problem", OP, name, f"on {weight.device} like weight", str(x.device))
    if integral and x.dtype not in (torch.int32, torch.int64):
        raise make("invalid_problem", OP, name, "int32 or int64", str(x.dtype).removeprefix("torch."))
    if not integral and x.dtype != weight.dtype:
        wanted, got = (str(t).removeprefix("torch.") for t in (weight.dtype, x.dtype))
        raise make("invalid_problem", OP, name, f"{wanted} like weight", got, f"convert it with {name}.to(weight.dtype)")


def _flat(
    input: Tensor, offsets: Tensor | None, weights: Tensor | None, weight: Tensor, o: Reduction
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Indices [positions], the first position of each bag, and with include_last_offset the end of the last bag; all int64.

    Raises:
        Error: operands whose types, dtypes, devices or shapes are wrong.
    """
    _check_operand("input", input, weight, True)
    if input.dim() not in (1, 2):
        raise make("invalid_problem", OP, "input", "of rank 1 or 2", f"rank {input.dim()}")
    if weights is not None:
        if o.mode != "sum":
            raise make("unsupported", OP, "per_sample_weights", "left out unless mode is 'sum'", f"mode {o.mode!r}")
        _check_operand("per_sample_weights", weights, weight, False)
        if weights.shape != input.shape:
            wanted = f"of the shape {list(input.shape)} of input"
            raise make("invalid_problem", OP, "per_sample_weights", wanted, str(list(weights.shape)))
    if input.dim() == 2:
        if offsets is not None:
            raise make("invalid_problem", OP, "offsets", "left out for input of rank 2, whose rows are bags", "an operand")
        count, width = input.shape
        return input.reshape(-1).long(), torch.arange(count, device=input.device) * width, None
    if offsets is None:
        raise make("invalid_problem", OP, "offsets", "given for input of rank 1", "nothing")
    _check_operand("offsets", offsets, weight, True)
    if offsets.dim() != 1 or len(offsets) < o.last:
        wanted = "of rank 1 with at least one element, the end of the last bag" if o.last else "of rank 1"
        raise make("invalid_problem", OP, "offsets", wanted, f"shape {list(offsets.shape)}")
    indices, offsets = input.long(), offsets.long()
    if o.last:
        return indices, offsets[:-1], offsets[-1:]
    return indices if len(offsets) else indices[:0], offsets, None


def _faults(indices: Tensor, starts: Tensor, end: Tensor | None, rows: int) -> Tensor:
    """Whether an index is out of range, offsets are out of order, and their last one is not the end: 3 integers."""
    count = len(indices)
    known = starts.new_full((1,), count) if end is None else end
    edges = torch.cat([starts.new_zeros(1), starts, known])
    outside = ((indices < 0) | (indices >= rows)).any()
    unordered = (edges[1] != 0) | (edges[1:] < edges[:-1]).any()
    return torch.stack([outside, unordered, (known != count).any()]).long()


def _refuse(faults: list[int], indices: Tensor, starts: Tensor, end: Tensor | None, rows: int) -> None:
    """Raise InvalidProblemError for the first of the faults that a call has."""
    outside, unordered, short = faults
    count = len(indices)
    if unordered:
        offsets = (starts if end is None else torch.cat([starts, end])).tolist()
        if offsets[0] != 0:
            raise make("invalid_problem", OP, "offsets", "0 at position 0", str(offsets[0]))
        edges = [*offsets, count]
        k = next(k for k in range(1, len(edges)) if edges[k] < edges[k - 1])
        if k == len(offsets):
            raise make("invalid_problem", OP, "offsets", f"at most {count}, the length of input", str(offsets[-1]))
        got = f"{offsets[k]} after {offsets[k - 1]} at position {k}"
        raise make("invalid_problem", OP, "offsets", "in rising order", got)
    if short:
        assert end is not None
        wanted, got = f"up to the end of input, {count}", f"{int(end)} as the last one"
        raise make("invalid_problem", OP, "offsets", wanted, got, "shorten input")
    if outside:
        k = int(((indices < 0) | (indices >= rows)).nonzero()[0])
        raise make("invalid_problem", OP, "input", f"in [0, {rows})", f"{int(indices[k])} at position {k}")


def _by_rows(indices: Tensor, starts: Tensor, end: Tensor | None, cut: Cut, o: Reduction) -> Bags:
    """The positions by owner of their row. Those of padding_idx are not sent. The host waits for the device once."""
    count, device = len(indices), indices.device
    owners = indices // cut.block
    if o.padding is not None:
        owners = owners.masked_fill(indices == o.padding, cut.ranks)
    owners, order = torch.sort(owners, stable=True)
    bags = torch.searchsorted(starts, order, right=True) - 1
    begins = torch.ones_like(order, dtype=torch.bool)  # a segment
    if o.mode != "max":
        begins[1:] = (owners[1:] != owners[:-1]) | (bags[1:] != bags[:-1])
    begun = torch.nn.functional.pad(begins.cumsum(0), (1, 0))
    ends = torch.searchsorted(owners, torch.arange(cut.ranks, dtype=owners.dtype, device=device), right=True)
    read = torch.cat([_faults(indices, starts, end, cut.rows), ends, begun[ends]]).tolist()
    _refuse(read[:3], indices, starts, end, cut.rows)
    sent, segments = (_differences(read[k : k + cut.ranks]) for k in (3, 3 + cut.ranks))
    total, order = sum(sent), order[: sum(sent)]
    firsts = torch.searchsorted(begun[1:], torch.arange(1, sum(segments) + 1, device=device))
    lengths = torch.diff(firsts, append=firsts.new_full((1,), total)).int()
    rows = indices[order] - owners[:total] * cut.block
    return Bags(order, rows.to(_row_dtype(cut)), lengths, bags[firsts], starts, count, sent, segments)


def _by_columns(indices: Tensor, starts: Tensor, end: Tensor | None, cut: Cut, o: Reduction) -> Bags:
    """All positions to every owner, each bag as one segment. The host waits for the device once."""
    count, ranks = len(indices), cut.ranks
    _refuse(_faults(indices, starts, end, cut.rows).tolist(), indices, starts, end, cut.rows)
    lengths = torch.diff(starts, append=starts.new_full((1,), count)).int()
    numbers, bags = (torch.arange(n, device=indices.device).repeat(ranks) for n in (count, len(starts)))
    sent, segments = [count] * ranks, [len(starts)] * ranks
    return Bags(numbers, indices.to(_row_dtype(cut)).repeat(ranks), lengths.repeat(ranks), bags, starts, count, sent, segments)


def _differences(sums: list[int]) -> list[int]:
    return [b - a for a, b in zip([0, *sums], sums, strict=False)]


def _row_dtype(cut: Cut) -> torch.dtype:
    """The dtype in which the rows of a shard are named."""
    return torch.int32 if cut.shape(0)[0] <= LIMIT else torch.int64
