"""Cases of the five scans, backward and forward; k and i are positions along the scanned dimension.

cumsum dx[k] = sum_{i>=k} dy[i];  cumprod dx[k] = sum_{i>=k} dy[i] y[i] / x[k] where no x is 0;  cummax, cummin dx[k] = sum of
dy over the run that k won;  logcumsumexp dx[k] = sum_{i>=k} dy[i] exp(x[k] - y[i]).

y[k] of a forward is the sum, product, maximum, minimum or logarithm of the sum of exponentials of x[i], i <= k.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from .._arrays import Array
from .._kinds import KINDS, ScanKind
from .._scan import ScanBackwardDescriptor, ScanBackwardPlan
from .._scan_forward import ScanDescriptor, ScanPlan
from .case import Case, Output, Shape, Truth, Values, library, roundings
from .source import Source

ROWS, COLUMNS = -1, 0

# ---------------------------------------------------------------------- definitions, along the last dimension


def flipped(x: Array) -> Array:
    """The elements from the last position to the first."""
    return library(x).flip(x, (-1,))


def split(x: Array) -> tuple[Array, Array]:
    """Multiples of 2^-20, which add without error up to 2^33, and the rest, which is small."""
    high = (x * 2**20).round() / 2**20
    return high, x - high


def prefixes(x: Array) -> Array:
    """Accurate cumulative sums: in NumPy's longdouble, or of two parts in float64."""
    lib = library(x)
    if lib.__name__ == "numpy" or not lib.isfinite(x).all():
        return lib.cumsum(x, -1)
    high, low = split(x)
    return lib.cumsum(high, -1) + lib.cumsum(low, -1)


def suffixes(x: Array) -> Array:
    """sum_{i>=k} x[i]."""
    return flipped(prefixes(flipped(x)))


def running(x: Array) -> Array:
    """The cumulative maximum, which NaN ends."""
    lib = library(x)
    return lib.cummax(x, -1).values if hasattr(lib, "cummax") else lib.maximum.accumulate(x, -1)


def cumsum(dy: Array, _x: Array, _tie: str = "last") -> tuple[Array, Array]:
    """The gradient of cumsum by definition, and the 2-norms of the terms of each sum."""
    return suffixes(dy), suffixes(dy * dy) ** 0.5


def cut(a: Array, b: Array) -> Array:
    """A product in which zero cuts infinity, but not NaN."""
    lib, product = library(a), a * b
    return lib.where(lib.isnan(product) & ~lib.isnan(a) & ~lib.isnan(b), 0.0, product)


def cumprod(dy: Array, x: Array, _tie: str = "last") -> tuple[Array, Array]:
    """The gradient of cumprod by definition: dx[k] = L[k] R[k], L[k] = prod_{i<k} x[i], R[k] = dy[k] + x[k+1] R[k+1]."""
    lib, n = library(x), x.shape[-1]
    if lib.isfinite(x).all() and (x != 0).all() and lib.isfinite(dy).all():
        y = lib.cumprod(x, -1)
        return suffixes(dy * y) / x, suffixes((dy * y) ** 2) ** 0.5 / abs(x)
    left, right, squares = lib.ones_like(x), 1 * dy, dy**2
    for k in range(1, n):
        left[..., k] = cut(left[..., k - 1], x[..., k - 1])
    for k in range(n - 2, -1, -1):
        right[..., k] = dy[..., k] + cut(x[..., k + 1], right[..., k + 1])
        squares[..., k] = dy[..., k] ** 2 + cut(x[..., k + 1] ** 2, squares[..., k + 1])
    return cut(left, right), cut(abs(left), squares**0.5)


def extremum(sign: int, dy: Array, x: Array, tie: str = "last") -> tuple[Array, Array]:
    """The gradient of cummax by definition: sums of dy between one winner and the next, and the 2-norms of their terms.

    A position wins over the best before it; the first of a row always. NaN beats everything.
    """
    lib, unknown = library(x), library(x).isnan(x)
    v = lib.where(unknown, -math.inf, sign * x)
    best, seen = running(v)[..., :-1], running(unknown * 1)[..., :-1] > 0
    later, nan = v[..., 1:], unknown[..., 1:]
    wins = lib.ones_like(unknown)
    wins[..., 1:] = lib.where(nan, ~seen, ~seen & (later > best)) if tie == "first" else nan | ~seen & (later >= best)
    return sums_of_runs(dy, wins), abs(sums_of_runs(dy * dy, wins)) ** 0.5


def sums_of_runs(terms: Array, wins: Array) -> Array:
    """At each winner the sum from there to the next; 0 elsewhere."""
    lib, n = library(terms), terms.shape[-1]
    if lib.__name__ == "numpy":
        starts, sums = lib.flatnonzero(wins), lib.zeros(terms.size, terms.dtype)
        sums[starts] = lib.add.reduceat(terms.ravel(), starts)
        return sums.reshape(terms.shape)
    value = lib.zeros_like(terms)
    place = lib.cumsum(value + 1, -1) - 1
    later = -flipped(running(flipped(-lib.where(wins, place, value + n))))  # the first winner at k or behind it
    later = lib.concatenate((later[..., 1:], 0 * later[..., :1] + n), -1).long()
    for part in split(terms):  # differences of the sums of the first are exact
        sums = lib.concatenate((suffixes(part), 0 * part[..., :1]), -1)
        value = value + lib.where(wins, sums[..., :-1] - lib.take_along_dim(sums, later, -1), 0.0)
    return value


def logcumsumexp(dy: Array, x: Array, _tie: str = "last") -> tuple[Array, Array]:
    """dx[k] = sum_{i>=k} dy[i] exp(x[k] - y[i]), for finite x whose spread is within the range of exp."""
    lib = library(x)
    if lib.isnan(x).any() or (x == math.inf).any():
        return special_logcumsumexp(dy, x)
    top = lib.amax(x, -1)[..., None]
    e = lib.exp(x - lib.where(top == -math.inf, 0.0, top))
    total = prefixes(e)
    terms = lib.where(total == 0, 0.0, dy / lib.where(total == 0, 1.0, total))
    return e * suffixes(terms), e * suffixes(terms * terms) ** 0.5


def special_logcumsumexp(dy: Array, x: Array) -> tuple[Array, Array]:
    """Take each prefix by itself: with +inf its softmax is shared by the infinities, with NaN it is NaN everywhere."""
    lib, shape = library(x), x.shape
    x, dy = (a.reshape(-1, shape[-1]) for a in (x, dy))
    dx = lib.zeros_like(x)
    for row, terms, out in zip(x, dy, dx, strict=True):
        for i in range(len(row)):
            prefix = row[: i + 1]
            if lib.isnan(prefix).any():
                out[: i + 1] += math.nan
                continue
            top = prefix.max()
            finite = 0 if abs(top) == math.inf else top
            e = (prefix == top) * lib.ones_like(prefix) if top == math.inf else lib.exp(prefix - finite)
            if e.sum():
                out[: i + 1] += terms[i] * e / e.sum()
    return dx.reshape(shape), abs(dx).reshape(shape)


DEFINITIONS: dict[str, Callable[..., tuple[Array, Array]]] = {
    "cumsum": cumsum,
    "cumprod": cumprod,
    "cummax": functools.partial(extremum, 1),
    "cummin": functools.partial(extremum, -1),
    "logcumsumexp": logcumsumexp,
}
"""By kind: dx, and the size of its terms, of dy, x and the winner among equal values, ``last`` or ``first``."""


def forward_cumprod(x: Array) -> tuple[Array, Array]:
    """The cumulative product; zero ends infinity."""
    lib, y = library(x), 1 * x
    if lib.isfinite(x).all():
        y = lib.cumprod(x, -1)
    else:
        for k in range(1, x.shape[-1]):
            y[..., k] = cut(y[..., k - 1], x[..., k])
    return y, abs(y)


def forward_extremum(sign: int, x: Array) -> tuple[Array, Array]:
    """The cumulative maximum of sign * x, which is exact."""
    y = sign * running(sign * x)
    return y, abs(y)


def forward_logcumsumexp(x: Array) -> tuple[Array, Array]:
    """For finite x whose spread is within the range of exp."""
    lib, top = library(x), running(x)
    finite = lib.isfinite(top)
    largest = lib.amax(lib.where(finite, top, -math.inf), -1)[..., None]
    largest = lib.where(lib.isfinite(largest), largest, 0.0)
    y = largest + lib.log(prefixes(lib.exp(lib.where(x == math.inf, -math.inf, x) - largest)))
    y = lib.where(top == math.inf, math.inf, y)
    return y, lib.where(finite, lib.maximum(abs(y), abs(top)), abs(y))


FORWARDS: dict[str, Callable[[Array], tuple[Array, Array]]] = {
    "cumsum": lambda x: (prefixes(x), prefixes(x * x) ** 0.5),
    "cumprod": forward_cumprod,
    "cummax": functools.partial(forward_extremum, 1),
    "cummin": functools.partial(forward_extremum, -1),
    "logcumsumexp": forward_logcumsumexp,
}
"""By kind: y, and the size of its terms, of x."""
GROWTH: dict[str, Callable[[int], float]] = {
    **dict.fromkeys(("cumsum", "cummax", "cummin"), roundings),
    "cumprod": lambda n: 4 + 1.5 * n**0.5,
    "logcumsumexp": lambda n: 8 + 2 * math.log2(n),
}
"""By kind: the roundings of the accumulator that a result may carry after n > 0 terms."""


def along(dim: int, kind: str, v: Values) -> Truth:
    """A gradient along a dimension; errors are relative to the largest element of a row."""
    lib = library(v.dy)
    value, size = DEFINITIONS[kind](lib.moveaxis(v.dy, dim, -1), lib.moveaxis(v.x, dim, -1))
    return of_rows(dim, kind, value, size)


def forward_along(dim: int, kind: str, v: Values) -> Truth:
    """A scan along a dimension; errors are relative to the largest element of a row."""
    return of_rows(dim, kind, *FORWARDS[kind](library(v.x).moveaxis(v.x, dim, -1)))


def of_rows(dim: int, kind: str, value: Array, size: Array) -> Truth:
    """What is true of rows, with the scanned dimension where it was."""
    lib = library(value)
    size = 0 * size + lib.amax(lib.maximum(size, abs(value)), -1)[..., None]
    return Truth(lib.moveaxis(value, -1, dim), lib.moveaxis(size, -1, dim), GROWTH[kind](value.shape[-1]))


# ------------------------------------------------------------------------------------------------------------ the table


def inputs(kind: str, dim: int, source: Source, shape: Shape, dtype: str) -> Values:
    """Normal numbers; for products, ratios of neighbours of a series near 1, so that no product leaves the range of 16 bits."""
    x = source.normal(shape)
    if kind == "cumprod":
        x = 2 ** ((x - library(x).roll(x, 1, dim)) / 8)
    return Values(dy=source.cast(source.normal(shape), dtype), x=source.cast(x, dtype))


def far(kind: str, dim: int, source: Source, shape: Shape, dtype: str) -> Values:
    """Numbers whose products leave the range, as in survival models, and logits that are far apart."""
    x = source.normal(shape)
    x = 2 ** -abs(x) if kind == "cumprod" else 10 * x
    return Values(dy=source.cast(source.normal(shape), dtype), x=source.cast(x, dtype))


def normal(kind: str, dim: int, source: Source, shape: Shape, dtype: str) -> Values:
    """Normal numbers, whose products soon underflow; none is 0 in 16 bits."""
    x = source.normal(shape)
    x = library(x).where(abs(x) < 2**-10, 0 * x + 2**-10, x)
    return Values(dy=source.cast(source.normal(shape), dtype), x=source.cast(x, dtype))


def with_indices(kind: str, dim: int, source: Source, shape: Shape, dtype: str) -> Values:
    """The inputs and the indices that torch's forward returned."""
    values = inputs(kind, dim, source, shape, dtype)
    lib, x = library(values.x), values.x
    place = lib.cumsum(0 * source.normal(shape) + 1, dim) - 1
    wins = x >= lib.moveaxis(running(lib.moveaxis(x, dim, -1)), -1, dim)
    found = lib.moveaxis(running(lib.moveaxis(lib.where(wins, place, 0 * place), dim, -1)), -1, dim)
    values.indices = source.cast(found, "int64")
    return values


def describe(kind: ScanKind, dim: int, v: Values) -> ScanBackwardDescriptor:
    """The descriptor of these operands."""
    return ScanBackwardDescriptor(kind, v.dy.shape, v.dy.dtype, dim)


def by_torch(kind: str, dim: int, v: Values) -> Any:
    """The operation by torch."""
    import torch

    y = getattr(torch, kind)(v.x, dim)
    return y if hasattr(y, "shape") else y.values


def drop_in(kind: str, dim: int, v: Values) -> Any:
    """The operation by sternway.torch."""
    import sternway.torch

    y = getattr(sternway.torch, kind)(v.x, dim)
    return y if hasattr(y, "shape") else y.values


def case(kind: ScanKind, name: str, dim: int, reads: tuple[str, ...], **options: Any) -> Case:
    """A case of a scan."""
    make = options.pop("make", with_indices if "indices" in reads else inputs)
    return Case(
        "scan", f"{kind}, {name}", ScanBackwardPlan, functools.partial(make, kind, dim), functools.partial(describe, kind, dim),
        {"dx": Output("x", functools.partial(along, dim, kind))}, functools.partial(by_torch, kind, dim), f"torch.{kind}",
        reads=reads, drop_in=functools.partial(drop_in, kind, dim), **options,
    )  # fmt: skip


def describe_forward(kind: ScanKind, dim: int, v: Values) -> ScanDescriptor:
    """The descriptor of the operation itself."""
    return ScanDescriptor(kind, v.x.shape, v.x.dtype, dim)


def forward_case(kind: ScanKind, name: str, dim: int, **options: Any) -> Case:
    """A case of a scan itself. Extrema compute values alone; torch computes their indices, too."""
    return Case(
        "scan", f"{kind}, {name}", ScanPlan, functools.partial(options.pop("make", inputs), kind, dim),
        functools.partial(describe_forward, kind, dim), {"y": Output("x", functools.partial(forward_along, dim, kind))},
        functools.partial(by_torch, kind, dim), f"torch.{kind}", reads=("x",), **options,
    )  # fmt: skip


ON_ROWS: dict[str, Any] = {
    "cpu": ((256, 256), (65536, 16), (1024, 1024), (1, 1 << 20)),
    "cuda": (
        (8192, 8192),
        (1, 1 << 26),
        (1 << 21, 32),
        (671088, 100),
        (67108, 1000),
        (67041, 1001),
        (1335, 50257),
        (1024, 65536),
    ),
    "demo": (1024, 1024),
}
ON_COLUMNS: dict[str, Any] = {
    "cpu": ((256, 256), (1024, 1024), (2, 1 << 19), (1 << 19, 2)),
    "cuda": ((8192, 8192), (1 << 20, 2)),
}


def read(kind: ScanKind) -> tuple[str, ...]:
    """The operands of the gradient, by x where there are indices as well."""
    return ("dy", *KINDS[kind].operands[:1])


CASES = (
    *(case(kind, "dim -1", ROWS, read(kind), **ON_ROWS) for kind in KINDS),
    *(case(kind, "dim 0", COLUMNS, read(kind), **ON_COLUMNS) for kind in KINDS),
    *(case(kind, "dim 1", 1, read(kind), cuda=((4096, 128, 128),)) for kind in KINDS),
    *(
        case(kind, f"dim {dim}, far", dim, ("dy", "x"), make=far, cuda=((8192, 8192),))
        for kind in ("cumprod", "logcumsumexp")
        for dim in (ROWS, COLUMNS)
    ),
    *(
        case("cumprod", f"dim {dim}, normal", dim, ("dy", "x"), make=normal, cuda=shapes)
        for dim, shapes in ((ROWS, ((8192, 8192), (1, 1 << 26))), (COLUMNS, ((8192, 8192),)))
    ),
    case("cummax", "by indices", ROWS, ("dy", "indices"), **{**ON_ROWS, "demo": None}),
    case("cummax", "by indices, dim 0", COLUMNS, ("dy", "indices"), cpu=ON_COLUMNS["cpu"]),
    *(forward_case(kind, "dim -1", ROWS, **ON_ROWS) for kind in KINDS),
    *(forward_case(kind, "dim 0", COLUMNS, **ON_COLUMNS) for kind in KINDS),
    *(forward_case(kind, "dim 1", 1, cuda=((4096, 128, 128),)) for kind in KINDS),
)
