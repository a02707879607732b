"""The scans and their gradients by definition, along the last dimension.

Each returns its result and the size of the terms, to which errors are relative. Names are those of a gradient: dx of dy and x;
y[i] is the result of the forward, and k and i are positions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from .._arrays import Array
from .case import library, roundings


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


def forward_cumsum(x: Array) -> tuple[Array, Array]:
    """The cumulative sum, and the 2-norms of its terms."""
    return prefixes(x), prefixes(x * x) ** 0.5


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


class Definition(NamedTuple):
    """A kind of scan by definition."""

    gradient: Callable[..., tuple[Array, Array]]
    """dx of dy, x and the winner among equal values, ``last`` or ``first``."""
    forward: Callable[[Array], tuple[Array, Array]]
    """y of x."""
    growth: Callable[[int], float] = roundings
    """The roundings of the accumulator that a result may carry after n > 0 terms."""


DEFINITIONS = {
    "cumsum": Definition(cumsum, forward_cumsum),
    "cumprod": Definition(cumprod, forward_cumprod, lambda n: 4 + 1.5 * n**0.5),
    "cummax": Definition(functools.partial(extremum, 1), functools.partial(forward_extremum, 1)),
    "cummin": Definition(functools.partial(extremum, -1), functools.partial(forward_extremum, -1)),
    "logcumsumexp": Definition(logcumsumexp, forward_logcumsumexp, lambda n: 8 + 2 * math.log2(n)),
}
