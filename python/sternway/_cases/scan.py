"""Cases of the scans, backward and forward."""

from __future__ import annotations

import functools
from typing import Any

from .._arrays import Array
from .._kinds import KINDS, ScanKind
from .._scan import ScanBackwardDescriptor, ScanBackwardPlan
from .._scan_forward import ScanDescriptor, ScanPlan
from .case import Case, Output, Shape, Truth, Values, library
from .scan_definitions import DEFINITIONS, running
from .source import Source

ROWS, COLUMNS = -1, 0


def along(dim: int, kind: str, v: Values) -> Truth:
    """A gradient along a dimension; errors are relative to the largest element of a row."""
    lib = library(v.dy)
    value, size = DEFINITIONS[kind].gradient(lib.moveaxis(v.dy, dim, -1), lib.moveaxis(v.x, dim, -1))
    return of_rows(dim, kind, value, size)


def forward_along(dim: int, kind: str, v: Values) -> Truth:
    """A scan along a dimension; errors are relative to the largest element of a row."""
    return of_rows(dim, kind, *DEFINITIONS[kind].forward(library(v.x).moveaxis(v.x, dim, -1)))


def of_rows(dim: int, kind: str, value: Array, size: Array) -> Truth:
    """What is true of rows, with the scanned dimension where it was."""
    lib = library(value)
    size = 0 * size + lib.amax(lib.maximum(size, abs(value)), -1)[..., None]
    return Truth(lib.moveaxis(value, -1, dim), lib.moveaxis(size, -1, dim), DEFINITIONS[kind].growth(value.shape[-1]))


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
