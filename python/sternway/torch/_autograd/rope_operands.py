"""Brings tables and positions of RoPE into the forms that the kernels read, as views, or as copies smaller than x."""

from __future__ import annotations

import decimal
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from ..._rope_options import OP, Options, extents, refuse_complex
from ..._types import Columns
from ...errors import make
from .constants import constant

_COLUMNS = get_args(Columns)


def floating(name: str, table: Tensor, x: Tensor) -> Tensor:
    """A table in a dtype that the kernels accept with x.

    Raises:
        InvalidProblemError: the table holds complex numbers, integers or bools.
    """
    if table.dtype in (torch.float32, torch.float64, x.dtype):
        return table
    if table.is_floating_point():
        return table.float()
    refuse_complex(name, table)
    got = str(table.dtype).removeprefix("torch.")
    raise make("invalid_problem", OP, name, "of a floating dtype", got, f"convert it with {name}.float()")


def require_columns(columns: Any) -> None:
    """Raise UnsupportedError for an unknown order of columns."""
    if columns is not None and columns not in _COLUMNS:
        raise make("unsupported", OP, "columns", "halves or neighbours", f"{columns!r:.80}")


def arranged(table: Tensor, pairs: int, columns: str | None, pairing: str) -> Tensor:
    """A table with the columns in the order that the kernels of a pairing read.

    Args:
        columns: "halves": columns k and k + pairs belong to pair k; "neighbours": columns 2k and 2k + 1; None: as the kernels
            have it. A table with one column for each pair has one order alone.
    """
    read = "halves" if pairing == "half" else "neighbours"
    if columns in (None, read) or pairs == 0 or table.shape[-1] != 2 * pairs:
        return table
    grid = (2, pairs) if columns == "halves" else (pairs, 2)
    return table.reshape(*table.shape[:-1], *grid).transpose(-1, -2).flatten(-2)


def laid_out(inputs: list[Tensor], cos: Tensor, sin: Tensor, unsqueeze_dim: Any) -> tuple[str, Tensor, Tensor]:
    """The layout of inputs that unsqueeze_dim implies, and tables [B or 1, S, R], or [B or 1, H, S, R] where heads differ.

    After unsqueeze the tables broadcast to the inputs. The dimension in which they have an extent of 1 is that of the heads;
    where they have none, the first of the two is, and the layout is "bhsd".

    Args:
        inputs: q, or q and k.

    Raises:
        InvalidProblemError: other ranks, an unsqueeze_dim outside the tables, tables that do not broadcast.
    """
    q, rank = inputs[0], inputs[0].dim()
    if rank not in (3, 4):
        raise make("invalid_problem", OP, "dy", "of rank 3 or 4", f"rank {rank}")
    if inputs[-1].dim() != rank:
        raise make("invalid_problem", OP, "dy_k", f"of rank {rank} like dy", f"rank {inputs[-1].dim()}")
    if sin.shape != cos.shape:
        raise make("invalid_problem", OP, "sin", f"of the shape {list(cos.shape)} of cos", str(list(sin.shape)))
    at = inserted(unsqueeze_dim, cos.dim())
    if rank == 4 and cos.dim() == 3 and at in (1, 2) and cos.shape[1] == q.shape[3 - at] and cos.shape[0] in (1, q.shape[0]):
        return ("bhsd" if at == 1 else "bshd"), cos, sin  # as most models call it
    shape, heads = _aligned(rank, tuple(cos.shape), at)
    for name, x in zip(("dy", "dy_k"), inputs, strict=False):
        if any(n not in (1, m) for n, m in zip(shape[:-1], x.shape[:-1], strict=True)):
            wanted = f"broadcastable to {name} of shape {list(x.shape)} after unsqueeze({unsqueeze_dim})"
            hint = "tables of each head need as many heads in dy_k as in dy" if name == "dy_k" else ""
            raise make("invalid_problem", OP, "cos", wanted, str(list(cos.shape)), hint)
    extra = 4 - rank  # where the inputs have no batch
    shape, heads = (*(1,) * extra, *shape), heads + extra
    if heads not in (1, 2) or shape[heads] != 1:
        heads = 1 if shape[1] == 1 or shape[2] != 1 else 2
    full = [t.reshape(shape) for t in (cos, sin)]
    if shape[heads] != 1:
        return "bhsd", full[0], full[1]
    tokens = q.shape[3 - heads - extra]
    cos, sin = (t.select(heads, 0).expand(-1, tokens, -1) for t in full)
    return "bhsd" if heads == 1 else "bshd", cos, sin


def _aligned(rank: int, table: tuple[int, ...], at: int) -> tuple[tuple[int, ...], int]:
    """The shape of a table after unsqueeze, with as many dimensions as an input has, and the one that was inserted."""
    if len(table) == rank == 4:
        return table, 1
    if not 2 <= len(table) < rank:
        wanted = "of rank 2, 3 or 4" if rank == 4 else "of rank 2 where dy has rank 3"
        raise make("invalid_problem", OP, "cos", wanted, f"rank {len(table)}")
    missing = rank - 1 - len(table)
    return (*(1,) * missing, *table[:at], 1, *table[at:]), at + missing


def inserted(unsqueeze_dim: Any, rank: int) -> int:
    """The dimension that ``unsqueeze`` inserts into tables of a rank, before their columns.

    Raises:
        InvalidProblemError: no integer, or another dimension.
    """
    try:
        at = operator.index(unsqueeze_dim)
    except TypeError:
        at = rank
    at += rank + 1 if at < 0 else 0
    if not 0 <= at < max(rank, 1):
        wanted = f"an integer from {-rank - 1} to {rank - 1}, other than -1, where tables have rank {rank}"
        raise make("invalid_problem", OP, "unsqueeze_dim", wanted, f"{unsqueeze_dim!r:.80}")
    return at


class Folded(NamedTuple):
    """Operands whose tables do not differ by head, and the conversion of a result back to the shape of its input."""

    inputs: list[Tensor]
    positions: Tensor | None
    cos: Tensor
    sin: Tensor
    layout: str
    unfold: Callable[[Tensor], Tensor]


def heads_in_tables(shape: tuple[int, ...], batch: int, heads: int) -> bool:
    """Whether a table has rows for each head: [B or 1, H or 1, P, columns], or [H, P, columns] where H is no batch."""
    return len(shape) == 4 or (len(shape) == 3 and shape[0] == heads and shape[0] not in (1, batch))


def folded(inputs: list[Tensor], positions: Tensor | None, cos: Tensor, sin: Tensor, layout: str) -> Folded:
    """Fold heads with their own tables into the batch, as the kernels take tables per batch but not per head.

    Args:
        inputs: one or two, of the same extents, in the layout.
        cos, sin: [B or 1, H or 1, P, columns], or [H, P, columns].

    Raises:
        InvalidProblemError: tables of other shapes.
    """
    batch, heads, *_ = extents(tuple(inputs[0].shape), layout)
    if cos.dim() == 3:
        cos, sin = cos[None], sin[None]
    if cos.shape[0] not in (1, batch) or cos.shape[1] not in (1, heads):
        wanted = f"of shape [{batch} or 1, {heads} or 1, n, columns], where each head has its own"
        raise make("invalid_problem", OP, "cos", wanted, str(list(cos.shape)))
    if cos.shape[1] == 1:
        return Folded(inputs, positions, cos.squeeze(1), sin.squeeze(1), layout, lambda y: y)
    four = [x.transpose(0, 1)[None] if layout == "thd" else x.transpose(1, 2) if layout == "bshd" else x for x in inputs]

    def in_layout(y: Tensor) -> Tensor:
        """[B, H, S, D] in the layout of the inputs."""
        return y[0].transpose(0, 1) if layout == "thd" else y.transpose(1, 2) if layout == "bshd" else y

    if cos.shape[0] == 1 and (positions is None or positions.dim() == 1 or positions.shape[0] == 1):
        # batches share the tables: heads are the batches, and batches the heads; no copy
        views = [x.transpose(0, 1) for x in four]
        return Folded(views, positions, cos[0], sin[0], "bhsd", lambda y: in_layout(y.transpose(0, 1)))
    if positions is not None and positions.dim() == 2:
        positions = positions.expand(batch, -1)[:, None].expand(-1, heads, -1).flatten(0, 1)
    cos, sin = (t.expand(batch, heads, -1, -1).flatten(0, 1) for t in (cos, sin))
    rows = [x.flatten(0, 1).unsqueeze(1) for x in four]
    unfold = lambda y: in_layout(y.squeeze(1).unflatten(0, (batch, heads)))  # noqa: E731 - beside the other
    return Folded(rows, positions, cos, sin, "bhsd", unfold)


def tables_of(positions: Tensor, x: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [S, r/2] or [B, S, r/2], of positions that are not integers.

    The angles are formed in float64, or by the float32 recipe of the option ``angle``. Positions that require grad get one.

    Raises:
        InvalidProblemError: positions of another shape.
    """
    base, _, rotary_dim, _, angle, layout = options
    batch, _, tokens, head_dim = extents(tuple(x.shape), layout)
    shape = tuple(positions.shape)
    if shape not in ((tokens,), (1, tokens), (batch, tokens)):
        wanted = f"of shape [{tokens}] or [{batch}, {tokens}]"
        raise make("invalid_problem", OP, "positions", wanted, str(list(shape)))
    pairs = int(head_dim if rotary_dim is None else rotary_dim) // 2  # torch.jit.trace makes tensors of extents
    if not (base > 0 and pairs >= 0):
        return positions.new_zeros(0, 0), positions.new_zeros(0, 0)  # the plan says what is wrong with the option
    frequencies = torch.tensor(_frequencies(base, pairs), dtype=torch.float64, device=positions.device)
    if angle == "float32":
        angles = (positions.float()[..., None] * frequencies.float()).double()
    else:
        angles = positions.double()[..., None] * frequencies
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated_by_torch(x: Tensor, positions: Tensor | None, cos: Tensor | None, sin: Tensor | None, options: Options) -> Tensor:
    """The rotation in torch's operations, for a trace of torch.jit, which can save nothing else."""
    base, pairing, rotary_dim, start, angle, layout = options
    tokens = x.shape[-2 if layout == "bhsd" else -3]
    r = int(x.shape[-1]) if rotary_dim is None else rotary_dim
    options = base, pairing, r, start, angle, layout
    if cos is None or sin is None:
        cos, sin = tables_of(torch.arange(tokens, device=x.device) if positions is None else positions, x, options)
    elif positions is None:
        cos, sin = cos[..., :tokens, :], sin[..., :tokens, :]
    elif cos.dim() == 2:
        cos, sin = cos[positions], sin[positions]
    else:
        at = positions.expand(cos.shape[0], tokens)[..., None].expand(-1, -1, cos.shape[-1])
        cos, sin = cos.gather(1, at), sin.gather(1, at)
    heads = -3 if layout == "bhsd" else -2
    wide = functools.reduce(torch.promote_types, (cos.dtype, x.dtype), torch.float32)
    part = x.narrow(-1, start, r).to(wide)
    xi, xj = halves(part, pairing)
    cos, sin = (t.unsqueeze(heads).to(wide) for t in (cos, sin))
    (ci, cj), (si, sj) = (halves(t, pairing) if t.shape[-1] == r else (t, t) for t in (cos, sin))
    yi, yj = ci * xi - si * xj, cj * xj + sj * xi
    y = torch.cat((yi, yj), -1) if pairing == "half" else torch.stack((yi, yj), -1).flatten(-2)
    return torch.cat((x[..., :start], y.to(x.dtype), x[..., start + r :]), -1)


@functools.lru_cache(maxsize=64)
def frequencies(base: float, pairs: int) -> tuple[float, ...]:
    """``base ** (-k / pairs)`` for each pair k, rounded to the nearest float64, as positions multiply its error."""
    with decimal.localcontext() as context:
        context.prec = 40
        root = (-decimal.Decimal(base).ln() / max(pairs, 1)).exp()
        powers = [decimal.Decimal(1)]
        for _ in range(pairs - 1):
            powers.append(powers[-1] * root)
        return tuple(map(float, powers[:pairs]))


@constant
def _frequencies(base: float, pairs: int) -> tuple[float, ...]:
    """The frequencies, computed without decimal for torch.compile, which cannot trace it."""
    return frequencies(base, pairs)


def table_gradients(
    rotations: list[tuple[Tensor, Tensor]],
    positions: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    options: tuple[Any, ...],
) -> tuple[Tensor, Tensor]:
    """The gradients of cos and sin, each in its own shape and dtype.

    With ``y_i = c_i x_i - s_i x_j`` and ``y_j = c_j x_j + s_j x_i``: ``dc = dy x`` for each element, ``ds_i = -dy_i x_j`` and
    ``ds_j = dy_j x_i``. Columns that both members of a pair share get the sum of the two; rows get the sum over heads, over
    batches that share the table, and over tokens of the same position. All of it is torch's, so it can be differentiated again.

    Args:
        rotations: x and dy of each rotation by these tables, in the layout of the options. The transpose of a rotation has
            the same gradients with x and dy exchanged.
        positions, cos, sin: as the kernels read them.
    """
    _, pairing, rotary_dim, start, _, layout = options
    r = rotations[0][0].shape[-1] if rotary_dim is None else rotary_dim
    wide = functools.reduce(torch.promote_types, (cos.dtype, sin.dtype, rotations[0][0].dtype), torch.float32)
    dcos: Any = 0
    dsin: Any = 0
    for x, dy in rotations:
        (xi, xj), (gi, gj) = (_members(t.narrow(-1, start, r).to(wide), pairing, layout) for t in (x, dy))
        c, s = (gi * xi, gj * xj), (-gi * xj, gj * xi)
        dcos, dsin = dcos + _columns(c, cos, r, pairing), dsin + _columns(s, sin, r, pairing)
    return tuple(_rows(d, t.shape, positions).to(t.dtype) for d, t in ((dcos, cos), (dsin, sin)))  # type: ignore[return-value]


def _members(x: Tensor, pairing: str, layout: str) -> tuple[Tensor, Tensor]:
    """The first and the second members of all pairs, as [B, H, S, r/2]."""
    return halves(x.transpose(0, 1)[None] if layout == "thd" else x.transpose(1, 2) if layout == "bshd" else x, pairing)


def halves(x: Tensor, pairing: str) -> tuple[Tensor, Tensor]:
    """The first and the second members of the pairs along the last dimension."""
    half = x.shape[-1] // 2
    return (x[..., :half], x[..., half:]) if pairing == "half" else (x[..., ::2], x[..., 1::2])


def _columns(members: tuple[Tensor, Tensor], table: Tensor, r: int, pairing: str) -> Tensor:
    """The gradients of both members, summed over heads, in the columns of a table: [B, S, columns]."""
    i, j = (m.sum(1) for m in members)
    if table.shape[-1] != r:
        return i + j
    return torch.cat((i, j), -1) if pairing == "half" else torch.stack((i, j), -1).reshape(*i.shape[:-1], r)


def _rows(d: Tensor, shape: torch.Size, positions: Tensor | None) -> Tensor:
    """The gradients of tokens, [B, S, columns], summed into the rows of a table of a shape."""
    batch, tokens = d.shape[:2]
    tables = shape[0] if len(shape) == 3 else 1
    rows = shape[-2]
    if positions is None:
        d = d if tables == batch else d.sum(0, keepdim=True)
        return torch.nn.functional.pad(d, (0, 0, 0, rows - tokens)).reshape(shape)
    at = positions.long().expand(batch, tokens)
    inside = (at >= 0) & (at < rows)  # others are not rotated
    if tables == batch:
        at = at + rows * torch.arange(batch, device=at.device)[:, None]
    at, d = torch.where(inside, at, 0).reshape(-1), torch.where(inside[..., None], d, 0).reshape(batch * tokens, d.shape[-1])
    total = d.new_zeros(tables * rows, d.shape[-1])
    # Each device has one of the two whose order of summation is fixed. A table without rows takes nothing.
    if rows:
        total = total.index_put((at,), d, accumulate=True) if total.is_cuda else total.index_add(0, at, d)
    return total.reshape(shape)
