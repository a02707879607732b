"""The functions of torch that accelerate() serves: one entry for each, which tells how we do a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import Error
from ._autograd import bag_eager, scan, torch_fake_quantize
from ._autograd import embedding as embedding_autograd
from ._autograd import lerp as lerp_autograd
from ._autograd.calls import FLOATS
from ._autograd.dispatch import all_plain
from ._autograd.operators import is_jit_tracing
from ._autograd.overrides import is_overridden
from ._autograd.prepared_bag import prepare as prepare_embedding_bag
from ._autograd.prepared_bag import run_prepared as call_embedding_bag
from ._autograd.prepared_embedding import prepare as prepare_embedding
from ._autograd.prepared_embedding import run_prepared as call_embedding
from ._autograd.scan_gradient import FORWARDS
from ._autograd.tangents import count_jvps, has_tangents
from ._embedding import embedding
from ._embedding_bag import embedding_bag
from ._lerp import number_of

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
    defaults: tuple[Any, ...]  # of the last arguments; the others are required
    prepare: Callable[[Arguments, bool], Prepared | None]
    """Prepares our call of arguments by name, with our own forward if the flag says so; None or an error of a plan, or of torch
    for wrong arguments: torch does it."""
    run_eager: Callable[..., Any]
    """Does an ordinary eager call of all arguments in order, and the flag. Returns None if prepare has to be asked."""
    has_forward: bool = False
    """Whether we have a forward, too: calls that record no gradient are then ours as well, unless the flag is off."""


def _scan_of(kind: str) -> Served:
    def prepare(given: Arguments, use_our_forward: bool) -> Prepared | None:
        x = given["input"]
        dim = scan.dim_of(x, given["dim"]) if isinstance(x, Tensor) else None
        if dim is None or x.dtype not in FLOATS:
            return None
        scan.select_or_raise(x, kind, dim, False)
        return scan.run_general, (x, kind, dim, False)

    def run_eager(x: Any, dim: Any, use_our_forward: bool) -> Any:
        return scan.run_eager(x, kind, dim, False, use_our_forward)

    return Served(kind, (torch, torch.Tensor), ("input", "dim"), (), prepare, run_eager, True)


def _prepare_lerp(given: Arguments, use_our_forward: bool) -> Prepared | None:
    input, end, weight = given["input"], given["end"], number_of(given["weight"])
    if not lerp_autograd.is_ours(input, end, weight):
        return None
    return lerp_autograd.run_general, (input, end, weight, lerp_autograd.select_or_raise(input, end, weight))


def _prepare_embedding_bag(given: Arguments, use_our_forward: bool) -> Prepared | None:
    max_norm, norm_type = given.pop("max_norm"), given.pop("norm_type")
    return call_embedding_bag, (prepare_embedding_bag(**given), max_norm, norm_type)


def _prepare_embedding(given: Arguments, use_our_forward: bool) -> Prepared | None:
    max_norm, norm_type = given.pop("max_norm"), given.pop("norm_type")
    return call_embedding, (prepare_embedding(**given), max_norm, norm_type)


def _without_flag(run_eager: Callable[..., Any]) -> Callable[..., Any]:
    """An eager call of an operation whose forward is torch's in any case."""
    return lambda *arguments: run_eager(*arguments[:-1])


def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The names of a function's parameters, and the defaults of those that have one."""
    parameters = inspect.signature(function).parameters
    return tuple(parameters), tuple(p.default for p in parameters.values() if p.default is not p.empty)


def _fake_quantize(
    name: str,
    numbers: tuple[str, ...],
    run_eager: Callable[..., Any],
    options: tuple[str, ...] = (),
    defaults: tuple[Any, ...] = (),
) -> Served:
    """A fake quantization. All calls but eager ones stay with torch.

    Args:
        numbers: the names of the arguments between input and the bounds.
        options: the names of those after them, which have these defaults.
    """
    names = "input", *numbers, "quant_min", "quant_max", *options
    return Served(name, (torch,), names, defaults, lambda given, use_our_forward: None, run_eager, True)


_FUNCTIONAL = (torch.nn.functional,)
_PER_TENSOR, _PER_CHANNEL = ("scale", "zero_point"), ("scale", "zero_point", "axis")
_LEARNABLE = ("grad_factor",), (1.0,)

SERVED = (
    *map(_scan_of, FORWARDS),
    Served(
        "lerp", (torch, torch.Tensor), ("input", "end", "weight"), (), _prepare_lerp, _without_flag(lerp_autograd.run_eager)
    ),
    Served(
        "embedding_bag", _FUNCTIONAL, *_parameters(embedding_bag), _prepare_embedding_bag, _without_flag(bag_eager.run_eager)
    ),
    Served("embedding", _FUNCTIONAL, *_parameters(embedding), _prepare_embedding, _without_flag(embedding_autograd.run_eager)),
    _fake_quantize("fake_quantize_per_tensor_affine", _PER_TENSOR, torch_fake_quantize.run_per_tensor),
    _fake_quantize("fake_quantize_per_channel_affine", _PER_CHANNEL, torch_fake_quantize.run_per_channel),
    _fake_quantize(
        "_fake_quantize_learnable_per_tensor_affine", _PER_TENSOR, torch_fake_quantize.run_learnable_per_tensor, *_LEARNABLE
    ),
    _fake_quantize(
        "_fake_quantize_learnable_per_channel_affine", _PER_CHANNEL, torch_fake_quantize.run_learnable_per_channel, *_LEARNABLE
    ),
)


def bound(served: Served, args: tuple[Any, ...], kwargs: Arguments) -> Arguments | None:
    """All arguments of a call by name, with their defaults; None: torch has it, or it has others, such as out."""
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
    if served.defaults and len(given) < len(names):
        given = {**dict(zip(names[-len(served.defaults) :], served.defaults, strict=True)), **given}
    return given if len(given) == len(names) else None


def _has_other_tangents(served: Served) -> bool:
    """Whether forward-mode AD is active in a way that a function of ours does not support as torch's does.

    Scans and lerp do in one jvp, but not in a jvp of a jvp or in a level of dual tensors. Embeddings do not: the tangent of
    torch's ignores padding_idx.
    """
    return has_tangents() and not (torch in served.homes and count_jvps() == 1)


def prepared(served: Served, given: Arguments, use_our_forward: bool) -> Prepared | None:
    """How we do a call of torch; None: it stays with torch."""
    values = tuple(given.values())
    if _has_other_tangents(served) or is_jit_tracing() or not all_plain(values) or is_overridden(values):
        return None
    try:
        return served.prepare(given, use_our_forward)
    except (Error, ValueError, RuntimeError):  # no plan does it, or arguments that torch refuses as well
        return None
