"""The functions of torch that accelerate() serves: one entry for each, which tells how we do a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import Error
from . import _lerp, _scan
from ._calls import FLOATS
from ._dispatch import all_plain
from ._scan_gradient import FORWARDS
from .embedding import call as call_embedding
from .embedding import embedding
from .embedding import prepare as prepare_embedding
from .embedding_bag import call as call_embedding_bag
from .embedding_bag import embedding_bag
from .embedding_bag import prepare as prepare_embedding_bag
from .lerp import number_of

Arguments = dict[str, Any]
Prepared = tuple[Callable[..., Any], Iterable[Any]]
"""A function of ours that does a call, and its arguments."""


class Served(NamedTuple):
    """A function of torch that accelerate() serves, under one name in several places.

    Our side must not call it by its attribute, which is replaced meanwhile, but by a reference taken at import.
    """

    name: str
    homes: tuple[Any, ...]  # the modules and classes whose attribute it is
    names: tuple[str, ...]  # of its arguments
    required: int  # how many arguments have no default: the first ones
    prepare: Callable[[Arguments, bool], Prepared | None]
    """Prepares our call of arguments by name, with our own forward if the flag says so; None or an error of a plan, or of torch
    for wrong arguments: torch does it."""
    eager: Callable[..., Any] | None = None
    """Does an ordinary eager call of the required arguments and the flag; None: prepare is asked."""
    has_forward: bool = False
    """Whether we have a forward, too: calls that record no gradient are then ours as well, unless the flag is off."""


def _scan_of(kind: str) -> Served:
    def prepare(given: Arguments, own: bool) -> Prepared | None:
        x = given["input"]
        dim = _scan.dim_of(x, given["dim"]) if isinstance(x, Tensor) else None
        if dim is None or x.dtype not in FLOATS:
            return None
        return _scan.call, (x, kind, dim, False, _scan.ask(x, kind, dim, False))

    def eager(x: Any, dim: Any, own: bool) -> Any:
        return _scan.eager(x, kind, dim, False, own)

    return Served(kind, (torch, torch.Tensor), ("input", "dim"), 2, prepare, eager, True)


def _prepare_lerp(given: Arguments, own: bool) -> Prepared | None:
    input, end, weight = given["input"], given["end"], number_of(given["weight"])
    if not _lerp.is_ours(input, end, weight):
        return None
    return _lerp.call, (input, end, weight, _lerp.ask(input, end, weight))


def _eager_lerp(input: Any, end: Any, weight: Any, own: bool) -> Any:
    return _lerp.eager(input, end, weight)


def _prepare_embedding_bag(given: Arguments, own: bool) -> Prepared | None:
    given = {**_DEFAULTS, **given}
    max_norm, norm_type = given.pop("max_norm"), given.pop("norm_type")
    return call_embedding_bag, (prepare_embedding_bag(**given), max_norm, norm_type)


def _prepare_embedding(given: Arguments, own: bool) -> Prepared | None:
    given = {"max_norm": None, "norm_type": 2.0, **given}
    max_norm, norm_type = given.pop("max_norm"), given.pop("norm_type")
    return call_embedding, (prepare_embedding(**given), max_norm, norm_type)


_BAG = inspect.signature(embedding_bag).parameters
_DEFAULTS = {name: p.default for name, p in _BAG.items() if p.default is not p.empty}

SERVED = (
    *map(_scan_of, FORWARDS),
    Served("lerp", (torch, torch.Tensor), ("input", "end", "weight"), 3, _prepare_lerp, _eager_lerp),
    Served("embedding_bag", (torch.nn.functional,), tuple(_BAG), 2, _prepare_embedding_bag),
    Served("embedding", (torch.nn.functional,), tuple(inspect.signature(embedding).parameters), 2, _prepare_embedding),
)


def bound(served: Served, args: tuple[Any, ...], kwargs: Arguments) -> Arguments | None:
    """The arguments of a call by name; None: torch has it, or it has others, such as out."""
    names = served.names
    if len(args) > len(names):
        return None
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        name = "dim" if name == "axis" and "dim" in names else name
        if value is None and name in ("out", "dtype"):
            continue
        if name not in names or name in given:
            return None
        given[name] = value
    return given if all(name in given for name in names[: served.required]) else None


def in_order(served: Served, given: Arguments) -> list[Any] | None:
    """The arguments of an ordinary call, the required ones; None: it has others."""
    return [given[name] for name in served.names[: served.required]] if len(given) == served.required else None


def prepared(served: Served, given: Arguments, own: bool) -> Prepared | None:
    """How we do a call of torch; None: it stays with torch."""
    if forward_ad._current_level >= 0 or not all_plain(given.values()):
        return None
    try:
        return served.prepare(given, own)
    except (Error, ValueError, RuntimeError):  # no plan does it, or arguments that torch refuses as well
        return None
