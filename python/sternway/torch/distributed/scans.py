"""Scans along a dimension that the ranks of a group share: each rank has a contiguous part, in rank order.

Each rank computes the state of its part (a carry of :class:`sternway.ScanPlan`), the ranks gather the states of all, and each
scans its part from the states of those before it in scan order. The backward does the same in the other direction.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from ..._arrays import device_name
from ...errors import Error, make, renamed
from ...scan import ScanBackwardPlan, scan_plan
from ...scan_forward import ScanPlan, forward_scan_plan
from .._calls import FLOATS, flag, integer, materialized
from .._scan_gradient import PAIRS
from .exchange import all_gather, gathered
from .whole import whole_gradient

MAX_RANK = 7
"""The number of dimensions of x, at most. A carry operand has a dimension more."""

EXTREMUM_SENT = 2
"""Of the three numbers of a carry of cummax and cummin, the boundary is known to every rank and not sent."""

NUMBERS = {"cumsum": 1, "cumprod": 2, "logcumsumexp": 2, "cummax": 3, "cummin": 3}
"""The numbers of a row's carry."""


class Part(NamedTuple):
    """The part of this rank, and how it is scanned."""

    kind: str
    dim: int
    reverse: bool
    group: Any
    lengths: tuple[int, ...]  # of the parts of all ranks
    forward: ScanPlan
    backward: ScanBackwardPlan

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return dist.get_rank(self.group)

    def before(self, states: Tensor) -> Tensor:
        """The states of the parts before this one in scan order, in that order."""
        return states[self.rank + 1 :].flip(0) if self.reverse else states[: self.rank]

    def after(self, states: Tensor) -> Tensor:
        """The states of the parts after this one in scan order, in that order."""
        return states[: self.rank].flip(0) if self.reverse else states[self.rank + 1 :]


def part_of(x: Tensor, kind: str, dim: int, reverse: bool, group: Any, lengths: tuple[int, ...]) -> Part:
    """The part x of a scan whose ranks have parts of these lengths.

    Raises:
        Error: no plan has x's shape or dtype, or its device.
    """
    how = kind, tuple(x.shape), x.dtype, dim, reverse, "last", device_name(x.device), True
    return Part(kind, dim, reverse, group, lengths, forward_scan_plan(*how), scan_plan(*how))


def _empty_state(x: Tensor, dim: int, numbers: int) -> Tensor:
    rows = [extent for d, extent in enumerate(x.shape) if d != dim]
    return torch.empty(*rows, numbers, dtype=torch.float64, device=x.device)


def _run(plan: Any, **operands: Tensor | None) -> None:
    """Run a plan on plain tensors."""
    if not plan._run_plain(operands):
        plan.run(**operands)


def summary(x: Tensor, part: Part) -> Tensor:
    """The state of this rank's part, [..., numbers]. Indices of cummax and cummin count from the beginning of the part."""
    state = _empty_state(x, part.dim, NUMBERS[part.kind])
    _run(part.forward, x=materialized(x.detach()), carry_out=state)
    return state[..., :EXTREMUM_SENT]


def _carry_in(state: Tensor, part: Part) -> Tensor | None:
    """The states of the parts before this one, [parts, ..., numbers], from the state of each rank; None: it needs none."""
    states = all_gather(state, part.group)
    if part.kind not in PAIRS:
        return part.before(states)
    starts = [0, *itertools.accumulate(part.lengths)]
    states[..., 1] += _offsets(tuple(starts[:-1]), state.dim(), state.device)
    boundary = starts[part.rank + part.reverse]  # between this part and the one before it in scan order
    carry = torch.nn.functional.pad(part.before(states), (0, 1), value=float(boundary))
    if carry.shape[0] or not boundary:
        return carry
    nothing = carry.new_empty(1, *carry.shape[1:])
    nothing[..., 1], nothing[..., 2] = torch.nan, boundary
    return nothing


@functools.lru_cache(maxsize=64)
def _offsets(starts: tuple[int, ...], dims: int, device: torch.device) -> Tensor:
    """The index at which each rank's part begins, to be added to its rows, of ``dims`` - 1 dimensions."""
    return torch.tensor(starts, dtype=torch.float64, device=device).view(-1, *[1] * (dims - 1))


class _Scan(torch.autograd.Function):
    """The scan of this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor, part: Part) -> Any:
        source, carry = materialized(x.detach()), _carry_in(state, part)
        outputs = {"y": torch.empty_like(x, memory_format=torch.contiguous_format)}
        if part.kind in PAIRS:
            outputs["indices"] = torch.empty_like(outputs["y"], dtype=torch.int64)
        _run(part.forward, x=source, carry_in=carry, **outputs)
        ctx.part = part
        if part.kind == "cumsum":
            ctx.save_for_backward(None, None)
        else:
            ctx.save_for_backward(x, carry)
        if part.kind not in PAIRS:
            return outputs["y"]
        ctx.mark_non_differentiable(outputs["indices"])
        return tuple(outputs.values())

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        part: Part = ctx.part
        x, carry = ctx.saved_tensors
        if part.kind == "cumsum":
            back = part_of(dy, "cumsum", part.dim, not part.reverse, part.group, part.lengths)
            return _Scan.apply(dy, summary(dy, back), back), None, None
        if torch.is_grad_enabled() and (dy.requires_grad or x.requires_grad):
            return whole_gradient(dy, x, part.kind, part.dim, part.reverse, part.group, part.lengths), None, None
        dy = materialized(dy)
        operands = {"dy": dy, "x": materialized(x.detach()), "carry_in": carry}
        wide = part.kind == "cumprod" and dy.dtype == torch.float64
        state = _empty_state(dy, part.dim, 4 if wide else 2)
        _run(part.backward, **operands, dcarry_in=state)
        dx = torch.empty_like(x)
        _run(part.backward, **operands, dcarry_out=part.after(all_gather(state, part.group)), dx=dx)
        return dx, None, None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def scan_part(x: Tensor, state: Tensor, part: Part) -> Any:
    """This rank's part of the scan, with torch's return type. state: that of this part (:func:`summary`)."""
    y = _Scan.apply(x, state, part)
    return getattr(torch.return_types, part.kind)(y) if part.kind in PAIRS else y


def _scan(kind: str, x: Tensor, dim: int, group: Any, reverse: bool) -> Any:
    op = f"sternway.torch.distributed.{kind}"
    found: list[Tensor] = []

    def find() -> tuple[Any, ...]:
        if not isinstance(x, Tensor) or isinstance(x, DTensor):
            raise make("type", op, "x", "a torch.Tensor of this rank", type(x).__name__)
        if x.dtype not in FLOATS:
            raise make("unsupported", op, "x", "float32, float64, float16 or bfloat16", str(x.dtype).removeprefix("torch."))
        if not 1 <= x.dim() <= MAX_RANK:
            raise make("unsupported", op, "x", f"of 1 to {MAX_RANK} dimensions", f"{x.dim()}")
        along = integer(f"distributed.{kind}", "dim", dim)
        if not -x.dim() <= along < x.dim():
            raise make("invalid_problem", op, "dim", f"between {-x.dim()} and {x.dim() - 1}", f"{along}")
        along %= x.dim()
        backward = flag(f"distributed.{kind}", "reverse", reverse)
        try:
            found.append(summary(x, part_of(x, kind, along, backward, group, ())))  # a GPU computes it meanwhile
        except Error as error:
            raise renamed(error, op, {"shape": "x"}) from None
        rows = *x.shape[:along], *x.shape[along + 1 :]
        return kind, (rows, str(x.dtype), x.device.type, along, backward), x.shape[along]

    calls = gathered(op, group, find)
    for rank, (other, call, _) in enumerate(calls):
        if (other, call) != calls[0][:2]:
            wanted = f"like that of rank 0, {calls[0][0]} of {_shown(*calls[0][1])}"
            raise make("invalid_problem", op, f"the call of rank {rank}", wanted, f"{other} of {_shown(*call)}")
    _, (_, _, _, along, backward), _ = calls[0]
    return scan_part(x, found[0], part_of(x, kind, along, backward, group, tuple(length for *_, length in calls)))


def scan_sharded(x: DTensor, kind: str, dim: int, reverse: bool) -> Any:
    """A scan of a DTensor along a sharded dimension, with the placements of x; None: the dimension is not sharded.

    Nothing is exchanged but the states: that a call is the same on every rank is what a DTensor assumes.

    Raises:
        UnsupportedError: several dimensions of the mesh share the scanned dimension, or x is a Partial that the scan does not
            keep.
        Error: no plan has x's shape or dtype, or its device.
    """
    dim %= x.dim()
    along = [k for k, placement in enumerate(x.placements) if isinstance(placement, Shard) and placement.dim == dim]
    if not along:
        return None
    op, linear = f"sternway.torch.{kind}", kind == "cumsum"
    others = [p for k, p in enumerate(x.placements) if k != along[0] and not p.is_replicate()]
    wrong = [p for p in others if not (isinstance(p, Shard) and p.dim != dim) and not (linear and p.is_partial("sum"))]
    if wrong or type(x.placements[along[0]]) is not Shard:
        wanted = f"placed with one Shard(dim={dim}) and without other placements that the scan does not keep"
        raise make("unsupported", op, "x", wanted, str(x.placements), "use x.redistribute(placements=...)")
    mesh, size = x.device_mesh, x.device_mesh.size(along[0])
    longest = -(-x.shape[dim] // size)
    lengths = tuple(min(longest, max(x.shape[dim] - rank * longest, 0)) for rank in range(size))
    local = x.to_local()
    part = part_of(local, kind, dim, reverse, mesh.get_group(along[0]), lengths)
    y = scan_part(local, summary(local, part), part)
    strides = torch.empty(x.shape, device="meta").stride()

    def whole(part: Tensor) -> DTensor:
        return DTensor.from_local(part, mesh, x.placements, run_check=False, shape=x.shape, stride=strides)

    return type(y)(map(whole, y)) if kind in PAIRS else whole(y)


def _shown(rows: tuple[int, ...], dtype: str, device: str, dim: int, reverse: bool) -> str:
    shape = [*map(str, rows[:dim]), "n", *map(str, rows[dim:])]
    return f"{dtype} [{', '.join(shape)}] on {device} along dim {dim}{', reversed' if reverse else ''}"


def cumsum(x: Tensor, dim: int, group: Any = None, *, reverse: bool = False) -> Tensor:
    """Cumulative sum along a dimension that the ranks of a group share: :func:`sternway.torch.cumsum` of the whole tensor.

    x is this rank's contiguous part of the whole tensor; parts are in rank order, may differ in length along ``dim``, and may
    be empty. Every rank of the group calls it, and runs the backward if any does. Each way, a rank sends at most 16 bytes for
    each row (32 in float64), whatever the length, and reads its part twice. States are combined in rank order, so that results
    do not depend on timing; their last bits depend on how the whole is cut.

    Derivatives of cumsum of any order are computed in this way. The second derivatives of the other scans gather the whole
    tensor.

    Args:
        x: a tensor of 1 to 7 dimensions; float32, float64, float16 or bfloat16, on the CPU or CUDA. All dimensions but
            ``dim``, and the dtype, are the same on every rank.
        dim: the scanned dimension, the same on every rank; a negative one counts from the end.
        group: the process group; None: that of all processes. With NCCL, each rank calls ``torch.cuda.set_device`` before.
        reverse: True: scan from the last position of the last rank to the first of rank 0; the same on every rank.

    Returns:
        this rank's part of the whole scan, of x's shape and dtype, contiguous.

    Raises:
        InvalidProblemError: on every rank, if dim or reverse of one rank is invalid, or if calls do not fit each other; on this
            rank, if no process group is initialised or this process is not in the group.
        UnsupportedError: a dtype, number of dimensions or device without a kernel; on the other ranks InvalidProblemError.
        TypeError: x is no plain tensor; on the other ranks InvalidProblemError.

    Example:
        >>> import torch
        >>> import sternway.torch.distributed as std
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # one process; torchrun starts more
        >>> std.cumsum(torch.tensor([1.0, 2.0, 3.0]), 0)
        tensor([1., 3., 6.])
        >>> torch.distributed.destroy_process_group()
    """
    return _scan("cumsum", x, dim, group, reverse)  # type: ignore[no-any-return]


def cumprod(x: Tensor, dim: int, group: Any = None, *, reverse: bool = False) -> Tensor:
    """Cumulative product along a dimension that the ranks of a group share: :func:`sternway.torch.cumprod` of the whole tensor.

    A product that leaves the range of the dtype on one rank and comes back on another is right again.

    Args:
        x, dim, group, reverse: as for :func:`cumsum`.

    Returns:
        this rank's part of the whole scan, of x's shape and dtype, contiguous.

    Raises:
        Error: as for :func:`cumsum`.

    Example:
        >>> import torch
        >>> import sternway.torch.distributed as std
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # one process; torchrun starts more
        >>> std.cumprod(torch.tensor([1.0, 2.0, 3.0]), 0)
        tensor([1., 2., 6.])
        >>> torch.distributed.destroy_process_group()
    """
    return _scan("cumprod", x, dim, group, reverse)  # type: ignore[no-any-return]


def logcumsumexp(x: Tensor, dim: int, group: Any = None, *, reverse: bool = False) -> Tensor:
    """``log(cumsum(exp(x)))`` along a dimension that the ranks of a group share: :func:`sternway.torch.logcumsumexp`.

    Args:
        x, dim, group, reverse: as for :func:`cumsum`.

    Returns:
        this rank's part of the whole scan, of x's shape and dtype, contiguous.

    Raises:
        Error: as for :func:`cumsum`.

    Example:
        >>> import torch
        >>> import sternway.torch.distributed as std
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # one process; torchrun starts more
        >>> std.logcumsumexp(torch.zeros(2), 0)
        tensor([0.0000, 0.6931])
        >>> torch.distributed.destroy_process_group()
    """
    return _scan("logcumsumexp", x, dim, group, reverse)  # type: ignore[no-any-return]


def cummax(x: Tensor, dim: int, group: Any = None, *, reverse: bool = False) -> torch.return_types.cummax:
    """Cumulative maximum along a dimension that the ranks of a group share: :func:`sternway.torch.cummax` of the whole tensor.

    Args:
        x, dim, group, reverse: as for :func:`cumsum`.

    Returns:
        (values, indices), a named tuple: this rank's part. Indices are int64 positions in the whole tensor along dim.

    Raises:
        Error: as for :func:`cumsum`.

    Example:
        >>> import torch
        >>> import sternway.torch.distributed as std
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # one process; torchrun starts more
        >>> std.cummax(torch.tensor([1.0, 3.0, 2.0]), 0).indices
        tensor([0, 1, 1])
        >>> torch.distributed.destroy_process_group()
    """
    return _scan("cummax", x, dim, group, reverse)  # type: ignore[no-any-return]


def cummin(x: Tensor, dim: int, group: Any = None, *, reverse: bool = False) -> torch.return_types.cummin:
    """Cumulative minimum along a dimension that the ranks of a group share: :func:`sternway.torch.cummin` of the whole tensor.

    Args:
        x, dim, group, reverse: as for :func:`cumsum`.

    Returns:
        (values, indices), a named tuple, as for :func:`cummax`.

    Raises:
        Error: as for :func:`cumsum`.

    Example:
        >>> import torch
        >>> import sternway.torch.distributed as std
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # one process; torchrun starts more
        >>> std.cummin(torch.tensor([2.0, 1.0, 3.0]), 0).values
        tensor([2., 1., 1.])
        >>> torch.distributed.destroy_process_group()
    """
    return _scan("cummin", x, dim, group, reverse)  # type: ignore[no-any-return]
