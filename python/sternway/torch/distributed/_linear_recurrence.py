"""Linear recurrences along a dimension that the ranks of a group share: each rank has a contiguous part, in rank order.

The part of a rank maps the state that enters it to the one that leaves it, ``h -> A h + B``, where A is the product of its
factors and B its final state without an initial one. The ranks gather these maps, and each runs its part from the state after
those before it. The gradient does the same in the other direction, with the same A: the gradient that leaves a part at its
beginning is that of its initial state.
"""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Shard

from ..._linear_recurrence import broadcast
from ...errors import make
from .._autograd.calls import FLOATS, flag, integer
from .._autograd.dispatch import with_public_names
from .._autograd.linear_recurrence import GRADIENT, OPERANDS, alike, own_extents, run, select_or_raise
from ._bounds import check_bounds, options_of, own_bounds
from ._cuts import Cut, Shifted
from ._exchange import all_gather
from ._local import from_local, to_local
from ._parts import part_of, summary
from ._placements import require_fit, require_mesh
from ._rules import linear_recurrence as linear_rules
from ._scans import MAX_RANK, Call, agreed, shard_lengths

__all__ = ["linear_recurrence"]

_OP = "sternway.torch.distributed.linear_recurrence"


def _power_of_two(exponent: Tensor) -> Tensor:
    """2 to integers in float64, the nearest that is a normal number."""
    return ((exponent.clamp(-1022, 1023).long() + 1023) << 52).view(torch.float64)


def summarized(a: Tensor, b: Tensor, part: Cut) -> Tensor:
    """The map of this rank's part, float64 [..., numbers]: A, of float64 as mantissa and exponent, and B.

    States of other dtypes are of float32, so that A in float64 has range enough: where it leaves that, A times a state leaves
    float32.
    """
    with torch.no_grad():
        term = run(a, b, None, None, part.dim, part.reverse)[1].double()
        plan = part_of(a, "cumprod", part)
        mantissa, exponent = summary(a, plan).unbind(-1)
        mantissa = mantissa.masked_fill((a == 0).any(part.dim), 0)  # also beside infinity and NaN
        factor = (mantissa, exponent) if a.dtype == torch.float64 else (mantissa * _power_of_two(exponent),)
        return torch.stack([*(x.expand_as(term) for x in factor), term], -1)


def _after(maps: Tensor, ranks: list[int]) -> Tensor | None:
    """The state after the parts of some ranks in this order, of which the first has no initial state. None: of no ranks."""
    if not ranks:
        return None
    *factor, term = torch.stack([maps[rank] for rank in ranks]).unbind(-1)
    steps = [factor[0]]
    if len(factor) > 1:  # in three steps, which reach from the smallest number to the largest
        steps, left = [], factor[1]
        for _ in range(3):
            steps.append(_power_of_two(left))
            left = left - left.clamp(-1022, 1023)
        steps[0] = steps[0] * factor[0]
    terms = [torch.zeros_like(term)] * (len(steps) - 1) + [term]
    states: Tensor = run(torch.stack(steps, 1).flatten(0, 1), torch.stack(terms, 1).flatten(0, 1), None, None, 0, False)[1]
    return states


class _Recurrence(torch.autograd.Function):
    """The recurrence of this rank's part."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, own: Tensor, part: Cut) -> Tensor:
        maps = all_gather(own, part.group)
        state = _after(maps, part.before())
        state = None if state is None else state.to(torch.promote_types(b.dtype, torch.float32))
        h: Tensor = run(a, b, state, None, part.dim, part.reverse)[0]
        ctx.part, ctx.b_shape = part, b.shape
        ctx.save_for_backward(a, h, state, maps)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        a, h, state, maps = ctx.saved_tensors
        part: Cut = ctx.part
        needs = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled() and (dh.requires_grad or h.requires_grad):
            return (*_gradient(dh, a, h, ctx.b_shape, part), None, None)
        extents = own_extents(ctx.b_shape, dh.shape)

        def gradients(dfinal: Tensor | None, needs: int) -> Any:
            return GRADIENT.operator(dh, dfinal, a, h, state, None, extents, part.dim, part.reverse, needs)

        own = maps.new_zeros(maps.shape[1:-1]) if state is None else gradients(None, 4)[2].double()
        back = torch.cat([maps[..., :-1], all_gather(own, part.group).unsqueeze(-1)], -1)
        dfinal = _after(back, part.opposite.before())
        dfinal = None if dfinal is None else dfinal.to(torch.promote_types(dh.dtype, torch.float32))
        da, db, _ = gradients(dfinal, needs[0] + 2 * needs[1])
        return da if needs[0] else None, db if needs[1] else None, None, None


def _gradient(dh: Tensor, a: Tensor, h: Tensor, b_shape: torch.Size, part: Cut) -> tuple[Tensor, Tensor]:
    """The gradients by a recurrence in the other direction, for derivatives of the gradient."""
    following = Shifted.apply(a.expand_as(h), part.opposite)
    g = recurrence(following, dh, part.opposite)
    return (g * Shifted.apply(h, part)).sum_to_size(a.shape), g.sum_to_size(b_shape)


def recurrence(a: Tensor, b: Tensor, part: Cut, cu_seqlens: Tensor | None = None, *own: Tensor) -> Tensor:
    """This rank's part of a recurrence. a and b have the rank of h, and its extent along the dimension.

    own: the map of this part (:func:`summarized`), if it is known already. Packed sequences are kept apart by factors of 0.
    """
    if cu_seqlens is not None:
        a = a.masked_fill(part.first_positions(a, cu_seqlens), 0)
    return _Recurrence.apply(a, b, own[0] if own else summarized(a, b, part), part)  # type: ignore[no-any-return]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def linear_recurrence(
    a: Tensor, b: Tensor, dim: int, group: Any = None, *, reverse: bool = False, cu_seqlens: Tensor | None = None
) -> Tensor:
    """Linear recurrence along a dimension that the ranks of a group share, ``h[t] = a[t] * h[t-1] + b[t]``.

    It is :func:`sternway.torch.linear_recurrence` of the whole tensors: the first decay of the whole is not applied, and a
    factor of 0 cuts off whatever came before, on other ranks too. a and b are this rank's contiguous parts; parts are in rank
    order, may differ in length along ``dim``, and may be empty. Every rank of the group calls it, and runs the backward if any
    does. A rank sends for each row 16 bytes forward and 8 backward, 24 and 8 in float64, whatever the length.

    Derivatives of any order are computed in this way: those of the gradient also send one element of each row at the ends of
    parts.

    Args:
        a: the factors, of b's extent along ``dim``; other dimensions broadcast with b.
        b: the terms. Dtypes of a and b promote as in torch, to float32, float64, float16 or bfloat16. The broadcast shape has 1
            to 7 dimensions; all but ``dim``, and the dtype, are the same on every rank.
        dim: the dimension of the broadcast shape along which states follow each other, the same on every rank; a negative one
            counts from the end.
        group: the process group; None: that of all processes. With NCCL, each rank calls ``torch.cuda.set_device`` before.
        reverse: True: from the last position of the last rank to the first of rank 0; the same on every rank.
        cu_seqlens: the bounds of sequences that are packed along ``dim``, as of :func:`cumsum`. The first decay of each is not
            applied.

    Returns:
        this rank's part of h, of the broadcast shape, contiguous.

    Raises:
        InvalidProblemError: on every rank, if an argument of one rank is invalid, or if calls do not fit each other; on this
            rank, if no process group is initialized or this process is not in the group.
        UnsupportedError: a dtype, number of dimensions or device without a kernel; on the other ranks InvalidProblemError.
        TypeError: b is no plain tensor; on the other ranks InvalidProblemError.

    Example:
        >>> import torch
        >>> import sternway.torch.distributed as std
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # one process; torchrun starts more
        >>> std.linear_recurrence(torch.full((3,), 0.5), torch.ones(3), 0)
        tensor([1.0000, 1.5000, 1.7500])
        >>> torch.distributed.destroy_process_group()
    """
    found: list[Tensor] = []

    def find() -> Call:
        factors, terms, along, backward = checked(_OP, a, b, dim, reverse)
        part = Cut(along, backward, group, ())
        with_public_names(_OP, OPERANDS, select_or_raise, factors, terms, None, None, along, backward)
        options = options_of(_OP, terms, cu_seqlens)
        found.extend((factors, terms))
        if not options:
            found.append(summarized(factors, terms, part))  # a GPU computes it meanwhile
        shape = torch.broadcast_shapes(factors.shape, terms.shape)  # type: ignore[no-untyped-call]
        rows = *shape[:along], *shape[along + 1 :]
        return "linear_recurrence", (rows, str(terms.dtype), terms.device.type, along, backward, options), shape[along]

    calls = agreed(_OP, group, find)
    factors, terms, *own = found
    _, (_, _, _, along, backward, _), _ = calls[0]
    part = Cut(along, backward, group, tuple(length for *_, length in calls))
    check_bounds(_OP, cu_seqlens, part.edges[-1])
    return recurrence(factors, terms, part, cu_seqlens, *own)


def checked(op: str, a: Any, b: Any, dim: Any, reverse: Any) -> tuple[Tensor, Tensor, int, bool]:
    """Factors and terms of one dtype and rank, the dimension from the front, and the direction.

    Raises:
        InvalidProblemError, UnsupportedError, TypeError: as of :func:`linear_recurrence`.
    """
    if not isinstance(b, Tensor) or isinstance(b, DTensor):
        raise make("type", op, "b", "a torch.Tensor of this rank", type(b).__name__)
    a = torch.tensor(a) if isinstance(a, numbers.Number) else a
    if not isinstance(a, Tensor) or isinstance(a, DTensor):
        raise make("type", op, "a", "a torch.Tensor of this rank", type(a).__name__)
    if a.device != b.device and a.dim():
        raise make("invalid_problem", op, "a", f"on {b.device} like b", str(a.device))
    rank = len(broadcast(op, tuple(a.shape), tuple(b.shape)))
    if not 1 <= rank <= MAX_RANK:
        raise make("unsupported", op, "the broadcast shape", f"of 1 to {MAX_RANK} dimensions", f"{rank}")
    along = integer("distributed.linear_recurrence", "dim", dim)
    if not -rank <= along < rank:
        raise make("invalid_problem", op, "dim", f"between {-rank} and {rank - 1}", f"{along}")
    along %= rank
    backward = flag("distributed.linear_recurrence", "reverse", reverse)
    a, b = (x.reshape((1,) * (rank - x.dim()) + tuple(x.shape)) for x in (a, b))
    require_same_extent(op, a.shape[along], b.shape[along])
    a, b = alike(a, b)
    if b.dtype not in FLOATS:
        raise make("unsupported", op, "b", "float32, float64, float16 or bfloat16", str(b.dtype).removeprefix("torch."))
    return a, b, along, backward


def require_same_extent(op: str, of_a: int, of_b: int) -> None:
    """Raise InvalidProblemError unless a and b have the same extent along the dimension that ranks share."""
    if of_a != of_b:
        hint = "expand the one of extent 1 on each rank"
        raise make("invalid_problem", op, "a", f"of b's extent along dim, {of_b}", f"{of_a}", hint)


def recurrence_sharded(
    a: Any, b: Any, initial_state: Any, cu_seqlens: Any, dim: int, reverse: bool, wants_state: bool
) -> DTensor | None:
    """A recurrence of DTensors along a sharded dimension; None: the dimension is not sharded. a and b are of one dtype.

    Nothing is exchanged but the maps of parts: that a call is the same on every rank is what a DTensor assumes.

    Raises:
        InvalidProblemError: a and b differ in their extent along the dimension.
        UnsupportedError: a state; placements that have no rule; bounds of sequences that are not replicated; or more than 7
            dimensions.
    """
    op, operands = "linear_recurrence", ("a", "b")
    shape = broadcast(op, tuple(a.shape), tuple(b.shape))
    dim %= max(len(shape), 1)
    own = [dim - (len(shape) - x.dim()) for x in (a, b)]
    placed = [x.placements if isinstance(x, DTensor) else () for x in (a, b)]
    along = [k for ps, d in zip(placed, own, strict=True) for k, p in enumerate(ps) if isinstance(p, Shard) and p.dim == d]
    if not along:
        return None
    public = f"sternway.torch.{op}"
    options = {"initial_state": initial_state, "output_final_state": wants_state or None}
    for name in (name for name, x in options.items() if x is not None):
        raise make("unsupported", public, name, "left out along a sharded dimension", "an option", "use redistribute()")
    if len(shape) > MAX_RANK:
        wanted = f"of at most {MAX_RANK} dimensions along a sharded one"
        raise make("unsupported", public, "the broadcast shape", wanted, f"{len(shape)}")
    mesh = require_mesh(op, operands, (a, b))
    require_same_extent(public, *(x.shape[d] if d >= 0 else 1 for x, d in zip((a, b), own, strict=True)))
    of_rows = {tuple(wanted[:2]): made[0] for made, wanted in linear_rules(a, b, None, None, dim, reverse)}
    placements: list[Any] = []  # of h and of the operands, for each dimension of the mesh
    for k in range(mesh.ndim):
        rules = {(Shard(own[0]), Shard(own[1])): Shard(dim)} if k == along[0] else of_rows
        keeping = {wanted: made for wanted, made in rules.items() if Partial() not in wanted}
        fitting = tuple(require_fit(op, operands, [x.placements[k] for x in (a, b)], list(map(list, keeping))))
        placements.append((keeping[fitting], *fitting))
    bounds = own_bounds(public, cu_seqlens, shape[dim], mesh)
    h: DTensor = _of_shards(a, b, list(zip(*placements, strict=True)), shape, dim, reverse, bounds, along[0])
    return h


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _of_shards(
    a: DTensor,
    b: DTensor,
    placements: list[Any],
    shape: tuple[int, ...],
    dim: int,
    reverse: bool,
    bounds: Tensor | None,
    along: int,
) -> DTensor:
    """The recurrence of DTensors, placed as h and its operands are to be, along a dimension of the mesh."""
    of_h, *of_operands = placements
    mesh = a.device_mesh

    def local(x: DTensor, placed: Any) -> Tensor:
        grads = [Partial() if h.is_shard() and p.is_replicate() else p for h, p in zip(of_h, placed, strict=True)]
        own = to_local(x, placed, grads)
        return own.reshape((1,) * (len(shape) - own.dim()) + tuple(own.shape))

    part = Cut(dim, reverse, mesh.get_group(along), shard_lengths(shape[dim], mesh.size(along)))
    h = recurrence(local(a, of_operands[0]), local(b, of_operands[1]), part, bounds)
    return from_local(h, mesh, of_h, torch.Size(shape))
