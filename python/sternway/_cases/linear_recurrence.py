"""h[t] = a[t] h[t-1] + b[t] in scan order, and its gradients."""

from __future__ import annotations

import functools
import math
from typing import Any

from .._arrays import Array
from .._linear_recurrence import LinearRecurrenceDescriptor, LinearRecurrencePlan
from .._linear_recurrence_backward import LinearRecurrenceBackwardDescriptor, LinearRecurrenceBackwardPlan
from .case import Case, Output, Shape, Truth, Values, library, wide
from .source import Source

ROWS, COLUMNS = -1, 0


def recurrence(a: Array, b: Array) -> Array:
    """h along the last dimension, from 0, by doubling (Hillis and Steele 1986); a factor of 0 cuts off NaN."""
    lib, step = library(b), 1
    while step < b.shape[-1]:
        zero = a[..., step:] == 0
        h = b[..., step:] + lib.where(zero, 0, a[..., step:] * b[..., :-step])
        decay = lib.where(zero, 0, a[..., step:] * a[..., :-step])
        a, b = (lib.concatenate([old[..., :step], new], -1) for old, new in ((a, decay), (b, h)))
        step *= 2
    return b


def before(x: Array) -> Array:
    """The value before each position, and 0 before the first."""
    lib = library(x)
    return lib.concatenate([lib.zeros_like(x[..., :1]), x[..., :-1]], -1)


def after(x: Array) -> Array:
    """The value after each position, and 0 after the last."""
    lib = library(x)
    return lib.concatenate([x[..., 1:], lib.zeros_like(x[..., :1])], -1)


def from_the_end(a: Array, dh: Array) -> Array:
    """g[t] = dh[t] + a[t + 1] g[t + 1] along the last dimension."""
    flip = library(dh).flip
    return flip(recurrence(flip(after(a), (-1,)), flip(dh, (-1,))), (-1,))


def gradients(dh: Array, a: Array, h: Array) -> tuple[Array, Array]:
    """da and db along the last dimension; a factor of 0 cuts off NaN."""
    g = from_the_end(a, dh)
    return g * before(h), g


def growth(n: int) -> float:
    """The roundings of the accumulator that a recurrence of n positions may carry, relative to that of absolute values."""
    return 4 + 2 * math.log2(max(n, 1))


def forward_definition(a: Array, b: Array) -> tuple[Array, Array, float]:
    """h, the size that its errors scale with, and the roundings."""
    return recurrence(a, b), recurrence(abs(a), abs(b)), growth(b.shape[-1])


def gradient_definitions(dh: Array, a: Array, h: Array) -> dict[str, tuple[Array, Array, float]]:
    """The same of da and db."""
    values, sizes = gradients(dh, a, h), gradients(abs(dh), abs(a), abs(h))
    n = growth(dh.shape[-1])
    return {name: (value, size, n) for name, value, size in zip(("da", "db"), values, sizes, strict=True)}


def inputs(dim: int, source: Source, shape: Shape, dtype: str) -> Values:
    """Factors near 1, as decays are, and normal numbers."""
    decay = 1 / (1 + abs(source.normal(shape)) / 16)
    b, dy = source.cast(source.normal(shape), dtype), source.cast(source.normal(shape), dtype)
    return Values(dy=dy, a=source.cast(decay, dtype), b=b)


def with_states(dim: int, source: Source, shape: Shape, dtype: str) -> Values:
    """The operands of the gradient: dh is dy, and h the result of the forward."""
    values = inputs(dim, source, shape, dtype)
    lib = library(values.b)
    a, b = (lib.moveaxis(wide(x), dim, -1) for x in (values.a, values.b))
    values.dh, values.h = values.dy, source.cast(lib.moveaxis(recurrence(a, b), -1, dim), dtype)
    return values


def of_rows(dim: int, found: tuple[Array, Array, float]) -> Truth:
    """What is true of rows, with the dimension where it was; errors are relative to the largest of a row."""
    value, size, n = found
    lib = library(value)
    size = 0 * size + lib.amax(lib.maximum(size, abs(value)), -1)[..., None]
    return Truth(lib.moveaxis(value, -1, dim), lib.moveaxis(size, -1, dim), n)


def forward_truth(dim: int, v: Values) -> Truth:
    """h by definition."""
    return of_rows(dim, forward_definition(*(library(v.b).moveaxis(x, dim, -1) for x in (v.a, v.b))))


def gradient_truth(dim: int, name: str, v: Values) -> Truth:
    """da or db by definition."""
    rows = (library(v.dy).moveaxis(x, dim, -1) for x in (v.dh, v.a, v.h))
    return of_rows(dim, gradient_definitions(*rows)[name])


def by_loop(a: Any, b: Any, dim: int, reverse: bool = False) -> Any:
    """The recurrence of tensors by a loop."""
    import torch

    pairs = list(zip(a.unbind(dim), b.unbind(dim), strict=True))
    states: list[Any] = []
    for decay, term in reversed(pairs) if reverse else pairs:
        states.append(decay * states[-1] + term if states else term)
    return torch.stack(states[::-1] if reverse else states, dim)


def by_torch(dim: int, v: Values) -> Any:
    """The operation by a loop."""
    return by_loop(v.a, v.b, dim)


def drop_in(dim: int, v: Values) -> Any:
    """The operation by sternway.torch."""
    import sternway.torch

    return sternway.torch.linear_recurrence(v.a, v.b, dim)


def describe(dim: int, v: Values) -> LinearRecurrenceDescriptor:
    """The descriptor of these operands."""
    return LinearRecurrenceDescriptor(v.b.shape, v.b.dtype, dim)


def describe_backward(dim: int, v: Values) -> LinearRecurrenceBackwardDescriptor:
    """The descriptor of the gradient."""
    return LinearRecurrenceBackwardDescriptor(v.dy.shape, v.dy.dtype, dim)


SHAPES: dict[str, Any] = {"cpu": ((64, 2048), (8, 1024)), "cuda": ((8192, 8192),)}


def cases(name: str, dim: int) -> tuple[Case, Case]:
    """The gradient and the recurrence along a dimension."""
    truth, options = functools.partial(gradient_truth, dim), {**SHAPES, "demo": (256, 256) if dim == ROWS else None}
    outputs = {
        grad: Output(of, functools.partial(truth, grad)) for grad, of in (("da", "a"), ("db", "b"))
    }  # fmt: skip
    by = functools.partial(by_torch, dim)
    return (
        Case(
            "linear_recurrence", name, LinearRecurrenceBackwardPlan, functools.partial(with_states, dim),
            functools.partial(describe_backward, dim), outputs, by, "a loop", reads=("dh", "a", "h"),
            drop_in=functools.partial(drop_in, dim), **options,
        ),
        Case(
            "linear_recurrence", name, LinearRecurrencePlan, functools.partial(inputs, dim), functools.partial(describe, dim),
            {"h": Output("b", functools.partial(forward_truth, dim))}, by, "a loop", reads=("a", "b"), **options,
        ),
    )  # fmt: skip


CASES = (*cases("dim -1", ROWS), *cases("dim 0", COLUMNS))
