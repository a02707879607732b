"""Cases of RoPE for each pair (i, j).

y_i = c_i x_i - s_i x_j,  y_j = c_j x_j + s_j x_i;  dx_i = c_i dy_i + s_j dy_j,  dx_j = c_j dy_j - s_i dy_i.
"""

from __future__ import annotations

import decimal
import functools
import math
from typing import Any

from .._rope import RopeBackwardDescriptor, RopeBackwardPlan, RopeDescriptor, RopePlan
from .._types import Layout, Pairing
from .case import Case, Output, Shape, Truth, Values, library
from .source import Source


def shaped(shape: Shape) -> Shape:
    """[B, H, S, D] with an even D, of any shape."""
    four = (*(1,) * (4 - len(shape)), *shape)
    return (math.prod(four[:-3]), *four[-3:-1], four[-1] + four[-1] % 2)


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

    def extent(d: int) -> int:
        return int(d * rotary) // 2 * 2

    layout: Layout = "thd" if thd else "bhsd"

    def inputs(source: Source, shape: Shape, dtype: str) -> Values:
        b, h, s, d = shaped(shape)
        dy, x = (source.cast(source.normal((b * s, h, d) if thd else (b, h, s, d)), dtype) for _ in range(2))
        cos, sin = halves(heads_first(dy), extent(d))
        values = Values(dy=dy, x=x)
        if tables:
            single = "float64" if dtype == "float64" else "float32"
            values.cos, values.sin = (source.cast(library(dy).concatenate((t, t), -1), single) for t in (cos, sin))
        return values

    def describe(v: Values) -> RopeDescriptor | RopeBackwardDescriptor:
        b, h, s, d = (1, *heads_first(v.dy).shape) if thd else v.dy.shape
        kind = RopeDescriptor if forward else RopeBackwardDescriptor
        return kind(b, h, s, d, v.dy.dtype, pairing=pairing, rotary_dim=extent(d), layout=layout)

    def heads_first(x: Any) -> Any:
        """[..., H, S, D], or back."""
        return library(x).moveaxis(x, 0, 1) if thd else x

    def truth(v: Values) -> Truth:
        given = v.x if forward else v.dy
        r, lib = extent(given.shape[-1]), library(given)
        cos, sin = factors(v, given, r)
        if forward:  # the transpose
            sin = -sin
        i, j = split(given[..., :r])
        rest = given[..., r:]
        value = lib.concatenate((*joined(cos * i + sin * j, cos * j - sin * i), rest), -1)
        size = lib.concatenate((*joined(abs(cos * i) + abs(sin * j), abs(cos * j) + abs(sin * i)), abs(rest)), -1)
        return Truth(value, size, 5)

    def factors(v: Values, x: Any, r: int) -> tuple[Any, ...]:
        """Of every token, where they meet its heads."""
        cos, sin = (v.cos[..., : r // 2], v.sin[..., : r // 2]) if tables else halves(heads_first(x), r)
        return (cos[:, None], sin[:, None]) if thd else (cos, sin)

    def split(x: Any) -> tuple[Any, Any]:
        half = x.shape[-1] // 2
        return (x[..., :half], x[..., half:]) if pairing == "half" else (x[..., ::2], x[..., 1::2])

    def joined(i: Any, j: Any) -> tuple[Any, ...]:
        if pairing == "half":
            return i, j
        stacked = library(i).stack((i, j), -1)
        return (stacked.reshape((*i.shape[:-1], 2 * i.shape[-1])),)

    def by_torch(v: Values) -> Any:
        """What models write, with tables that are made once."""
        import torch

        r = extent(v.x.shape[-1])
        i, j = split(v.x[..., :r])
        if not hasattr(v, "made"):
            v.made = tables_of_models(v, r)
        cos, sin = v.made
        if pairing == "half":
            cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
            turned = v.x[..., :r] * cos + torch.cat((-j, i), -1) * sin
        else:
            turned = torch.stack((i * cos - j * sin, i * sin + j * cos), -1).flatten(-2)
        return turned if r == v.x.shape[-1] else torch.cat((turned, v.x[..., r:]), -1)

    def tables_of_models(v: Values, r: int) -> tuple[Any, ...]:
        """Cosines and sines of x's dtype, made in float32 where x is no float64."""
        import torch

        single = torch.promote_types(v.x.dtype, torch.float32)
        return tuple(t.to(single).to(v.x.dtype) for t in factors(v, v.x, r))

    def drop_in(v: Values) -> Any:
        """sternway.torch.rope."""
        import sternway.torch

        given = {"cos": v.cos, "sin": v.sin} if tables else {}
        return sternway.torch.rope(v.x, pairing=pairing, rotary_dim=extent(v.x.shape[-1]), layout=layout, **given)

    if forward:
        return Case(
            "rope", name, RopePlan, inputs, describe, {"y": Output("x", truth)}, by_torch,
            "the rotation with tables at hand", reads=("x", "cos", "sin"), **options,
        )  # fmt: skip
    reads = ("dy", "cos", "sin") if tables else ("dy",)
    return Case(
        "rope", name, RopeBackwardPlan, inputs, describe, {"dx": Output("x", truth)}, by_torch,
        "autograd of the rotation with tables at hand", reads=reads, drop_in=drop_in, **options,
    )  # fmt: skip


def halves(like: Any, r: int) -> tuple[Any, Any]:
    """Cosines and sines [S, r/2] in float64, for positions 0 .. S-1."""
    lib = library(like)
    where = {"device": like.device} if hasattr(like, "is_cuda") else {}
    positions = lib.arange(like.shape[-2], dtype=lib.float64, **where)
    angles = positions[:, None] * lib.asarray(frequencies(r), dtype=lib.float64, **where)
    return lib.cos(angles), lib.sin(angles)


@functools.lru_cache(maxsize=64)
def frequencies(r: int) -> tuple[float, ...]:
    """10000 ** (-2 k / r), each rounded to the nearest float64, as positions multiply its error."""
    with decimal.localcontext() as context:
        context.prec = 40
        step = -2 * decimal.Decimal(10000).ln() / max(r, 1)
        return tuple(float((k * step).exp()) for k in range(r // 2))


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
