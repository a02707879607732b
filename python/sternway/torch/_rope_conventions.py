"""Finds how a model's rotation pairs elements and reads its tables, by comparing it with sternway's on a small input."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._comparison import apart, derived, near
from ._rope import rotate_by_tables


class Convention(NamedTuple):
    """How a rotation treats one or two operands and tables of R columns: pairing, order of columns, width and result dtypes."""

    unsqueeze_dim: int | None  # None: tables broadcast as they are
    pairing: str
    table: str  # "halves", "neighbours": two columns a pair; "pairs": one; "first": the first R / 2, one a pair
    at_end: bool  # the rotated part is the last of the head, else the first
    clockwise: bool  # rotates by the negative angle
    sorted: bool  # pairs of neighbours come out as halves
    outputs: tuple[torch.dtype | None, ...] | torch.dtype  # of what is returned, a tuple or one tensor; None where None is


class Call(NamedTuple):
    """The arguments of a call of a rotation."""

    inputs: list[Tensor]
    cos: Tensor
    sin: Tensor
    unsqueeze_dim: int | None  # None: not given, and no default


Key = tuple[Any, ...]
"""What a convention may depend on: extents as far as they are equal or 1, widths, dtypes and unsqueeze_dim."""


def key_of(call: Call) -> Key:
    """Extents but the last are numbered as they come by comparison alone, so that torch.compile does not fix their values."""
    met: list[int] = []
    shapes = []
    for x in (*call.inputs, call.cos, call.sin):
        shape = []
        for n in x.shape[:-1]:
            if n == 1:
                shape.append(1)
                continue
            place = 0
            while place < len(met) and met[place] != n:
                place += 1
            if place == len(met):
                met.append(n)
            shape.append(place + 2)
        shapes.append((*shape, x.shape[-1], x.dtype))
    return (*shapes, call.unsqueeze_dim)


def turned(c: Convention, call: Call) -> Any:
    """The result of sternway's rotation for a call, in the form that the model's function returns."""
    outputs = [c.outputs] if isinstance(c.outputs, torch.dtype) else [dtype for dtype in c.outputs if dtype is not None]
    cos, sin, head_dim = call.cos, -call.sin if c.clockwise else call.sin, call.inputs[0].shape[-1]
    rotary_dim = cos.shape[-1]
    if c.table == "first":
        cos, sin = (t[..., : rotary_dim // 2] for t in (cos, sin))
    elif c.table == "pairs":
        rotary_dim *= 2
    dim = c.unsqueeze_dim
    if dim is None:
        dim = 0
        if cos.dim() == call.inputs[0].dim() == 3:
            cos, sin = cos[None], sin[None]

    inputs = [x.to(torch.promote_types(x.dtype, dtype)) for x, dtype in zip(call.inputs, outputs, strict=True)]
    if c.sorted:
        inputs = [torch.cat((x[..., ::2], x[..., 1::2]), -1) for x in inputs]
    batched = cos.dim() == 4 and inputs[0].dim() == 3
    inputs = [x[None] for x in inputs] if batched else inputs
    columns = "neighbours" if c.table == "neighbours" else "halves"
    arguments = (cos, sin, dim, c.pairing, rotary_dim, head_dim - rotary_dim if c.at_end else 0, columns)
    if len(inputs) == 2 and inputs[0].dtype == inputs[1].dtype:
        results = rotate_by_tables(inputs, *arguments)
    else:
        results = [rotate_by_tables([x], *arguments)[0] for x in inputs]
    results = [(y[0] if batched else y).to(dtype) for y, dtype in zip(results, outputs, strict=True)]
    if isinstance(c.outputs, torch.dtype):
        return results[0]
    left = iter(results)
    return tuple(None if dtype is None else next(left) for dtype in c.outputs)


Function = Callable[[Call], Any]
"""A rotation of a model, as a function of a call."""


def find(function: Function, key: Key, likely: Convention | None = None) -> Convention | None:
    """The convention of a function for calls of a key. None: the function fails, or no convention reproduces it.

    Values and gradients of all operands are compared in float64, and dtypes of results found in the dtypes of the key.

    Args:
        likely: a convention to begin with.
    """
    with apart():
        outputs, wide = (_dtypes(function, _call_of(key, wide)) for wide in (False, True))
        truth = _derived(function, _call_of(key, wide=True))
        if outputs is None or wide is None or truth is None:
            return None
        first = [] if likely is None else [likely._replace(outputs=wide)]
        for convention in itertools.chain(first, _candidates(key, wide)):
            ours = _derived(functools.partial(turned, convention), _call_of(key, wide=True))
            if ours is not None and all(map(near, ours, truth)):
                return convention._replace(outputs=outputs)
    return None


def accepts(function: Function, key: Key) -> bool:
    """Whether a function accepts calls of a key and returns results with the shapes of its operands."""
    with apart():
        return _dtypes(function, _call_of(key, wide=True)) is not None


def _call_of(key: Key, wide: bool) -> Call:
    """A call of a key with random values, in float64 with gradients or in the dtypes of the key."""
    random = torch.Generator("cpu").manual_seed(0)  # the generators of the caller stay as they are
    tensors = []
    for *shape, dtype in key[:-1]:
        values = torch.randn(shape, generator=random, dtype=torch.float64, device="cpu")
        tensors.append(values.requires_grad_() if wide else values.to(dtype))
    return Call(tensors[:-2], tensors[-2], tensors[-1], key[-1])


def _dtypes(function: Function, call: Call) -> Any:
    """The dtypes of the results. None: the function fails, or a result has another shape than its operand."""
    try:
        result = function(call)
    except Exception:
        return None  # it is the model's, and refuses as it likes
    whole = (result,) if isinstance(result, Tensor) else result
    if not isinstance(whole, tuple) or not all(y is None or isinstance(y, Tensor) for y in whole):
        return None
    if [y.shape for y in whole if y is not None] != [x.shape for x in call.inputs]:
        return None
    return result.dtype if isinstance(result, Tensor) else tuple(None if y is None else y.dtype for y in whole)


def _derived(function: Function, call: Call) -> list[Tensor] | None:
    """The results of a call and its gradients with respect to all operands. None: the call fails."""
    return derived(lambda: function(call), (*call.inputs, call.cos, call.sin))


def _candidates(key: Key, outputs: Any) -> Iterator[Convention]:
    """Every convention that the extents of a key allow, common ones first."""
    *head, head_dim, _ = key[0]
    *table, width, _ = key[-3]
    dims: list[int | None] = [key[-1]]
    if key[-1] is None and len(table) < len(head):
        dims = [*range(len(table), -1, -1)]
    tables = ["pairs"] if 2 * width <= head_dim else []
    if width <= head_dim:
        tables = ["halves", "neighbours", "first", *tables]
    for dim, table_, pairing, clockwise in itertools.product(dims, tables, ("half", "interleaved"), (False, True)):
        rotary_dim = width if table_ != "pairs" else 2 * width
        for at_end in (False, True) if rotary_dim < head_dim else (False,):
            yield Convention(dim, pairing, table_, at_end, clockwise, False, outputs)
        if pairing == "half" and rotary_dim == head_dim:
            yield Convention(dim, pairing, table_, False, clockwise, True, outputs)
