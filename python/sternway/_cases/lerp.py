"""y = a + w (b - a):  da = (1 - w) dy,  db = w dy,  dw = dy (b - a), each summed over the dims that were broadcast."""

from __future__ import annotations

from typing import Any

from .._lerp import LerpBackwardDescriptor, LerpBackwardPlan
from .case import Case, Output, Shape, Values, summed
from .source import Source

DA = Output("a", lambda v: summed((1 - v.weight) * v.dy, v.a))
DB = Output("b", lambda v: summed(v.weight * v.dy, v.b))
DWEIGHT = Output("weight", lambda v: summed(v.dy * (v.b - v.a), v.weight))
GRADIENTS = {"da": DA, "db": DB, "dweight": DWEIGHT}


def number(source: Source, shape: Shape, dtype: str) -> Values:
    """Operands of one shape, and a weight that is a number."""
    dy, a, b = (source.cast(source.normal(shape), dtype) for _ in range(3))
    return Values(dy=dy, a=a, b=b, weight=0.3)


def row_vector(source: Source, shape: Shape, dtype: str) -> Values:
    """b is a row vector, which is broadcast."""
    values = number(source, shape, dtype)
    values.b = source.cast(source.normal(shape[-1:]), dtype)
    return values


def weight_per_row(source: Source, shape: Shape, dtype: str) -> Values:
    """One weight for each row, in [0, 1)."""
    values, x = number(source, shape, dtype), abs(source.normal((*shape[:-1], 1)))
    values.weight = source.cast(x / (1 + x), dtype)
    return values


def describe(v: Values) -> LerpBackwardDescriptor:
    """The descriptor of these operands."""
    given: dict[str, Any] = {"weight": v.weight} if isinstance(v.weight, float) else {"weight_shape": v.weight.shape}
    return LerpBackwardDescriptor(v.dy.shape, v.dy.dtype, a_shape=v.a.shape, b_shape=v.b.shape, **given)


def by_torch(v: Values) -> Any:
    """The operation by torch.lerp."""
    import torch

    return torch.lerp(v.a, v.b, v.weight)


def drop_in(v: Values) -> Any:
    """The operation by sternway.torch.lerp."""
    import sternway.torch

    return sternway.torch.lerp(v.a, v.b, v.weight)


def case(name: str, inputs: Any, outputs: dict[str, Output], **options: Any) -> Case:
    """A case of lerp."""
    return Case("lerp", name, LerpBackwardPlan, inputs, describe, outputs, by_torch, "torch.lerp", drop_in=drop_in, **options)


SQUARES = ((256, 256), (1024, 1024), (4096, 4096))

CASES = (
    case(
        "da, db", number, {"da": DA, "db": DB}, reads=("dy",),
        demo=(1 << 20,), cpu=((1 << 16,), (1 << 20,), (1 << 24,)), cuda=((1 << 27,),),
    ),
    case(
        "da, db of a row vector", row_vector, {"da": DA, "db": DB}, reads=("dy",),
        demo=(1024, 1024), cpu=SQUARES, cuda=((16384, 8192),),
    ),
    case(
        "da, db, dweight per row", weight_per_row, GRADIENTS,
        demo=(1024, 1024), cpu=SQUARES, cuda=((16384, 8192),),
    ),
)  # fmt: skip
