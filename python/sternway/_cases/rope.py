"""Cases of RoPE for each pair (i, j).

y_i = c_i x_i - s_i x_j,  y_j = c_j x_j + s_j x_i;  dx_i = c_i dy_i + s_j dy_j,  dx_j = c_j dy_j - s_i dy_i.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import math
import operator
from typing import Any

from .._rope import RopeBackwardDescriptor, RopeBackwardPlan, RopeDescriptor, RopePlan
from .._types import Layout, Pairing
from .case import Case, Output, Shape, Truth, Values, library, numbers, on, roundings
from .source import Source


def shaped(shape: Shape) -> Shape:
    """[B, H, S, D] with an even D, of any shape."""
    four = (*(1,) * (4 - len(shape)), *shape)
    return (math.prod(four[:-3]), *four[-3:-1], four[-1] + four[-1] % 2)


def members(x: Any, pairing: str) -> tuple[Any, Any]:
    """The first and the second member of each pair."""
    half = x.shape[-1] // 2
    return (x[..., :half], x[..., half:]) if pairing == "half" else (x[..., ::2], x[..., 1::2])


def joined(i: Any, j: Any, pairing: str) -> Any:
    """The inverse of members."""
    lib = library(i)
    if pairing == "half":
        return lib.concatenate((i, j), -1)
    return lib.stack((i, j), -1).reshape((*i.shape[:-1], 2 * i.shape[-1]))


def rotated(d: RopeDescriptor | RopeBackwardDescriptor, x: Any, ci: Any, si: Any, cj: Any, sj: Any) -> Any:
    """y of x [..., D]; elements outside of the rotated part are copied."""
    first, end = d.rotary_start, d.rotary_start + rotary_dim(d)
    i, j = members(x[..., first:end], d.pairing)
    turned = joined(ci * i - si * j, cj * j + sj * i, d.pairing)
    return library(x).concatenate((x[..., :first], turned, x[..., end:]), -1)


def truth(d: RopeDescriptor | RopeBackwardDescriptor, x: Any, ci: Any, si: Any, cj: Any, sj: Any) -> Truth:
    """y of x, or dx of dy, the transpose."""
    if isinstance(d, RopeBackwardDescriptor):
        si, sj = -sj, -si
    size = rotated(d, abs(x), abs(ci), -abs(si), abs(cj), abs(sj))
    return Truth(rotated(d, x, ci, si, cj, sj), size, roundings(2))


def rotary_dim(d: RopeDescriptor | RopeBackwardDescriptor) -> int:
    """The number of rotated elements of a head."""
    return d.head_dim if d.rotary_dim is None else d.rotary_dim


def factors(
    d: RopeDescriptor | RopeBackwardDescriptor, like: Any, positions: Any = None, cos: Any = None, sin: Any = None
) -> tuple[Any, Any, Any, Any]:
    """c_i, s_i, c_j, s_j of every token [S, r/2] or [B, 1, S, r/2], of angles formed in float64 of the nearest frequencies."""
    lib, r = library(like), rotary_dim(d)
    positions = numbers(like, d.seq_len) if positions is None else positions

    def heads(x: Any) -> Any:
        return x[:, None] if x.ndim == 3 else x

    if cos is not None:
        c, s = (heads(look_up(table, positions)) for table in (cos, sin))
        if c.shape[-1] == r // 2:
            return c, s, c, s
        (ci, cj), (si, sj) = members(c, d.pairing), members(s, d.pairing)
        return ci, si, cj, sj
    frequency = lib.asarray(frequencies(r, d.base), dtype=lib.float64, **on(like))
    if d.angle == "float32":
        theta = lib.asarray(positions, dtype=lib.float32)[..., None] * lib.asarray(frequency, dtype=lib.float32)
        theta = lib.asarray(theta, dtype=lib.float64)
    else:
        theta = lib.asarray(positions, dtype=lib.float64)[..., None] * frequency
    c, s = lib.cos(heads(theta)), lib.sin(heads(theta))
    return c, s, c, s


def look_up(table: Any, positions: Any) -> Any:
    """The rows of a table [P, ...] or of one for each batch [B, P, ...], for positions [S] or [B, S]."""
    if table.ndim == 2:
        return table[positions]
    batch = numbers(table, table.shape[0])[:, None]
    return table[batch, positions if positions.ndim == 2 else positions[None]]


@functools.lru_cache(maxsize=64)
def frequencies(r: int, base: float = 10000.0) -> tuple[float, ...]:
    """base ** (-2 k / r), each rounded to the nearest float64, as positions multiply its error."""
    with decimal.localcontext() as context:
        context.prec = 50
        root = (-2 * decimal.Decimal(base).ln() / max(r, 1)).exp()
        powers = itertools.accumulate(itertools.repeat(root, max(r // 2 - 1, 0)), operator.mul, initial=decimal.Decimal(1))
        return tuple(map(float, itertools.islice(powers, r // 2)))


def case(
    name: str,
    pairing: Pairing,
    *,
    rotary: float = 1.0,
    tables: bool = False,
    thd: bool = False,
    forward: bool = False,
    **options: Any,
) -> Case:
    """A row of the table. rotary: the share of a head that is rotated; tables: cos and sin are given, as transformers does.

    thd: arrays are [B S, H, D], tokens of one sequence. forward: the case is the rotation of x, not its gradient.
    """
    layout: Layout = "thd" if thd else "bhsd"

    def inputs(source: Source, shape: Shape, dtype: str) -> Values:
        b, h, s, d = shaped(shape)
        dy, x = (source.cast(source.normal((b * s, h, d) if thd else (b, h, s, d)), dtype) for _ in range(2))
        values = Values(dy=dy, x=x)
        if tables:
            single, lib = "float64" if dtype == "float64" else "float32", library(dy)
            cos, sin, *_ = factors(describe(values), dy)
            values.cos, values.sin = (source.cast(lib.concatenate((t, t), -1), single) for t in (cos, sin))
        return values

    def describe(v: Values, dtype: Any = None) -> RopeDescriptor | RopeBackwardDescriptor:
        b, h, s, d = (1, *heads_first(v.dy).shape) if thd else v.dy.shape
        kind = RopeDescriptor if forward else RopeBackwardDescriptor
        return kind(b, h, s, d, dtype or v.dy.dtype, pairing=pairing, rotary_dim=int(d * rotary) // 2 * 2, layout=layout)

    def heads_first(x: Any) -> Any:
        """[..., H, S, D], or back."""
        return library(x).moveaxis(x, 0, 1) if thd else x

    def given(v: Values) -> dict[str, Any]:
        return {"cos": v.cos, "sin": v.sin} if tables else {}

    def truth_of(v: Values) -> Truth:
        d, x = describe(v, "float64"), heads_first(v.x if forward else v.dy)
        found = truth(d, x, *factors(d, x, **given(v)))
        return Truth(heads_first(found.value), heads_first(found.size), found.roundings)

    def by_torch(v: Values) -> Any:
        """What models write, with tables that are made once, in float32 where x is no float64."""
        import torch

        d = describe(v)
        r = rotary_dim(d)
        i, j = members(v.x[..., :r], pairing)
        if not hasattr(v, "made"):
            single = torch.promote_types(v.x.dtype, torch.float32)
            found = (t[:, None] if thd else t for t in factors(d, v.x, **given(v))[:2])
            v.made = tuple(t.to(single).to(v.x.dtype) for t in found)
        cos, sin = v.made
        if pairing == "half":
            cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
            turned = v.x[..., :r] * cos + torch.cat((-j, i), -1) * sin
        else:
            turned = torch.stack((i * cos - j * sin, i * sin + j * cos), -1).flatten(-2)
        return turned if r == v.x.shape[-1] else torch.cat((turned, v.x[..., r:]), -1)

    def drop_in(v: Values) -> Any:
        """sternway.torch.rope."""
        import sternway.torch

        return sternway.torch.rope(v.x, pairing=pairing, rotary_dim=rotary_dim(describe(v)), layout=layout, **given(v))

    if forward:
        return Case(
            "rope", name, RopePlan, inputs, describe, {"y": Output("x", truth_of)}, by_torch,
            "the rotation with tables at hand", reads=("x", "cos", "sin"), **options,
        )  # fmt: skip
    reads = ("dy", "cos", "sin") if tables else ("dy",)
    return Case(
        "rope", name, RopeBackwardPlan, inputs, describe, {"dx": Output("x", truth_of)}, by_torch,
        "autograd of the rotation with tables at hand", reads=reads, drop_in=drop_in, **options,
    )  # fmt: skip


SHAPES: dict[str, Any] = {
    "demo": (4, 8, 256, 64),
    "cpu": ((1, 4, 128, 128), (2, 16, 512, 64), (4, 32, 512, 128)),
}
LARGE = (4, 32, 4096, 128)

CASES = (
    case("dx interleaved", "interleaved", cuda=(LARGE, (64, 32, 1, 128), (1, 32, 65536, 128), (1, 1, 1 << 20, 128)), **SHAPES),
    case("dx half", "half", cuda=(LARGE, (64, 32, 1, 128), (1, 32, 65536, 128), (1, 1, 1 << 20, 128)), **SHAPES),
    case("dx half, tables", "half", tables=True, cpu=SHAPES["cpu"], cuda=(LARGE,)),
    case("dx half, thd", "half", thd=True, cpu=SHAPES["cpu"][:2], cuda=((1, 32, 65536, 128),)),
    case("dx half of a part", "half", rotary=0.5, cpu=SHAPES["cpu"][:2], cuda=(LARGE,)),
    case("y interleaved", "interleaved", forward=True, cuda=(LARGE,), **SHAPES),
    case("y half, tables", "half", tables=True, forward=True, cpu=SHAPES["cpu"], cuda=(LARGE,)),
)
