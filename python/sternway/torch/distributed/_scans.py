"""Scans along a dimension that the ranks of a group share: each rank has a contiguous part, in rank order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from ..._kinds import EXTREMA, KINDS, ScanKind
from ...errors import Error, make, renamed
from .._autograd.calls import FLOATS, flag, integer
from ._bounds import check_bounds, options_of, own_bounds
from ._cuts import Cut, Shifted
from ._exchange import gathered
from ._local import from_local, to_local
from ._parts import part_of, scan_part, summary

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"]

MAX_RANK = 7
"""The number of dimensions of x, at most. A carry operand has a dimension more."""

Call = tuple[str, tuple[tuple[int, ...], str, str, int, bool, str], int]
"""A call of a rank: its function; shape of the rows, dtype, type of device, dimension, direction and options; its length."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _scan(kind: ScanKind, x: Tensor, dim: int, group: Any, reverse: bool, exclusive: bool, cu_seqlens: Tensor | None) -> Any:
    op = f"sternway.torch.distributed.{kind}"
    found: list[Tensor] = []

    def find() -> Call:
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
        options = options_of(op, x, cu_seqlens, flag(f"distributed.{kind}", "exclusive", exclusive))
        try:
            part = part_of(x, kind, Cut(along, backward, group, ()), cu_seqlens)
            if not options:
                found.append(summary(x, part))  # a GPU computes it meanwhile
        except Error as error:
            raise renamed(error, op, {"shape": "x", "num_sequences": "cu_seqlens"}) from None
        rows = *x.shape[:along], *x.shape[along + 1 :]
        return kind, (rows, str(x.dtype), x.device.type, along, backward, options), x.shape[along]

    calls = agreed(op, group, find)
    _, (_, _, _, along, backward, _), _ = calls[0]
    cut = Cut(along, backward, group, tuple(length for *_, length in calls))
    check_bounds(op, cu_seqlens, cut.edges[-1])
    return scan_cut(x, kind, cut, exclusive, cu_seqlens, *found)


def scan_cut(x: Tensor, kind: ScanKind, cut: Cut, exclusive: bool, cu_seqlens: Tensor | None, *own: Tensor) -> Any:
    """This rank's part of a scan. own: its state (:func:`summary`), if it is known already.

    An exclusive scan is an inclusive one whose results move by a position. Nothing depends on the last x of a sequence then.
    """
    if exclusive:
        x = x.masked_fill(cut.opposite.first_positions(x, cu_seqlens), 1)
    part = part_of(x, kind, cut, cu_seqlens)
    y = scan_part(x, own[0] if own else summary(x, part), part)
    if not exclusive:
        return y
    empty = {"cumsum": 0.0, "cumprod": 1.0, "logcumsumexp": -math.inf}[kind]
    return Shifted.apply(y, cut).masked_fill(cut.first_positions(y, cu_seqlens), empty)


def agreed(op: str, group: Any, find: Callable[[], Call]) -> list[Call]:
    """The calls of all ranks, which differ in the length of their parts alone.

    Raises:
        InvalidProblemError: they do not fit each other.
        Exception: as :func:`gathered`.
    """
    calls = gathered(op, group, find)
    for rank, (other, call, _) in enumerate(calls):
        if (other, call) != calls[0][:2]:
            wanted = f"like that of rank 0, {calls[0][0]} of {_shown(*calls[0][1])}"
            raise make("invalid_problem", op, f"the call of rank {rank}", wanted, f"{other} of {_shown(*call)}")
    return calls


def scan_sharded(
    x: DTensor, kind: ScanKind, dim: int, reverse: bool, exclusive: bool = False, cu_seqlens: Tensor | None = None
) -> Any:
    """A scan of a DTensor along a sharded dimension, with the placements of x; None: the dimension is not sharded.

    Nothing is exchanged but the states: that a call is the same on every rank is what a DTensor assumes.

    Raises:
        UnsupportedError: several dimensions of the mesh share the scanned dimension, x is a Partial that the scan does not
            keep, x has more than 7 dimensions, or cu_seqlens is not replicated.
        Error: no plan has x's shape or dtype, or its device.
    """
    dim %= max(x.dim(), 1)
    along = [k for k, placement in enumerate(x.placements) if isinstance(placement, Shard) and placement.dim == dim]
    if not along:
        return None
    op, linear = f"sternway.torch.{kind}", KINDS[kind].is_linear
    others = [p for k, p in enumerate(x.placements) if k != along[0] and not p.is_replicate()]
    wrong = [p for p in others if not (isinstance(p, Shard) and p.dim != dim) and not (linear and p.is_partial("sum"))]
    if wrong or type(x.placements[along[0]]) is not Shard:
        wanted = f"placed with one Shard(dim={dim}) and without other placements that the scan does not keep"
        raise make("unsupported", op, "x", wanted, str(x.placements), "use x.redistribute(placements=...)")
    if x.dim() > MAX_RANK:
        raise make("unsupported", op, "x", f"of at most {MAX_RANK} dimensions along a sharded one", f"{x.dim()}")
    bounds = own_bounds(op, cu_seqlens, x.shape[dim], x.device_mesh)
    return _scan_shards(x, kind, dim, reverse, exclusive, bounds, along[0])


def shard_lengths(extent: int, size: int) -> tuple[int, ...]:
    """The lengths of the shards of a dimension."""
    longest = -(-extent // size)
    return tuple(min(longest, max(extent - rank * longest, 0)) for rank in range(size))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _scan_shards(
    x: DTensor, kind: ScanKind, dim: int, reverse: bool, exclusive: bool, cu_seqlens: Tensor | None, along: int
) -> Any:
    """The scan of a DTensor whose scanned dimension is cut along a dimension of the mesh, by the rule of torch.chunk."""
    mesh = x.device_mesh
    cut = Cut(dim, reverse, mesh.get_group(along), shard_lengths(x.shape[dim], mesh.size(along)))
    y = scan_cut(to_local(x, x.placements), kind, cut, exclusive, cu_seqlens)

    def whole(part: Tensor) -> DTensor:
        return from_local(part, mesh, x.placements, x.shape)

    return type(y)(map(whole, y)) if kind in EXTREMA else whole(y)


def _shown(rows: tuple[int, ...], dtype: str, device: str, dim: int, reverse: bool, options: str) -> str:
    shape = [*map(str, rows[:dim]), "n", *map(str, rows[dim:])]
    return f"{dtype} [{', '.join(shape)}] on {device} along dim {dim}{', reversed' if reverse else ''}{options}"


def cumsum(
    x: Tensor, dim: int, group: Any = None, *, reverse: bool = False, exclusive: bool = False, cu_seqlens: Tensor | None = None
) -> Tensor:
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
        exclusive: True: each position gets the scan of those before it in its sequence, as of
            :func:`sternway.torch.cumsum`. A rank also sends one element of each row at the end of its part.
        cu_seqlens: the bounds of sequences that are packed along ``dim`` and scanned apart, int32 or int64 [N + 1], rising
            from 0 to the extent of the whole, on x's device; the same on every rank. Ranks may cut sequences anywhere.
            None: one sequence.

    Returns:
        this rank's part of the whole scan, of x's shape and dtype, contiguous.

    Raises:
        InvalidProblemError: on every rank, if dim, reverse or cu_seqlens of one rank is invalid, or if calls do not fit each
            other (values of cu_seqlens are compared and checked on the CPU, and on CUDA with STERNWAY_CHECK=1); on this rank,
            if no process group is initialized or this process is not in the group.
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
    return _scan("cumsum", x, dim, group, reverse, exclusive, cu_seqlens)  # type: ignore[no-any-return]


def cumprod(
    x: Tensor, dim: int, group: Any = None, *, reverse: bool = False, exclusive: bool = False, cu_seqlens: Tensor | None = None
) -> Tensor:
    """Cumulative product along a dimension that the ranks of a group share: :func:`sternway.torch.cumprod` of the whole tensor.

    A product that leaves the range of the dtype on one rank and comes back on another is right again.

    Args:
        x, dim, group, reverse, exclusive, cu_seqlens: as for :func:`cumsum`.

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
    return _scan("cumprod", x, dim, group, reverse, exclusive, cu_seqlens)  # type: ignore[no-any-return]


def logcumsumexp(
    x: Tensor, dim: int, group: Any = None, *, reverse: bool = False, exclusive: bool = False, cu_seqlens: Tensor | None = None
) -> Tensor:
    """``log(cumsum(exp(x)))`` along a dimension that the ranks of a group share: :func:`sternway.torch.logcumsumexp`.

    Args:
        x, dim, group, reverse, exclusive, cu_seqlens: as for :func:`cumsum`.

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
    return _scan("logcumsumexp", x, dim, group, reverse, exclusive, cu_seqlens)  # type: ignore[no-any-return]


def cummax(
    x: Tensor, dim: int, group: Any = None, *, reverse: bool = False, cu_seqlens: Tensor | None = None
) -> torch.return_types.cummax:
    """Cumulative maximum along a dimension that the ranks of a group share: :func:`sternway.torch.cummax` of the whole tensor.

    Args:
        x, dim, group, reverse, cu_seqlens: as for :func:`cumsum`.

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
    return _scan("cummax", x, dim, group, reverse, False, cu_seqlens)  # type: ignore[no-any-return]


def cummin(
    x: Tensor, dim: int, group: Any = None, *, reverse: bool = False, cu_seqlens: Tensor | None = None
) -> torch.return_types.cummin:
    """Cumulative minimum along a dimension that the ranks of a group share: :func:`sternway.torch.cummin` of the whole tensor.

    Args:
        x, dim, group, reverse, cu_seqlens: as for :func:`cumsum`.

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
    return _scan("cummin", x, dim, group, reverse, False, cu_seqlens)  # type: ignore[no-any-return]
