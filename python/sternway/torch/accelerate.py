"""``accelerate()``: sternway's backward inside torch's own operations, for code that is not edited."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from ..errors import Error
from ._calls import FLOATS
from ._dispatch import all_plain
from ._scan import ask as ask_scan
from ._scan import call as call_scan
from ._scan import dim_of
from .embedding import call as call_embedding
from .embedding import embedding
from .embedding import prepare as prepare_embedding
from .embedding_bag import call as call_embedding_bag
from .embedding_bag import embedding_bag
from .embedding_bag import prepare as prepare_embedding_bag
from .lerp import ask as ask_lerp
from .lerp import call as call_lerp
from .lerp import is_ours, number_of

Arguments = dict[str, Any]
Prepared = tuple[Callable[..., Any], Iterable[Any]]
"""A function of ours that does a call, and its arguments."""


def _scan(kind: str) -> Callable[[Arguments], Prepared | None]:
    def prepare(given: Arguments) -> Prepared | None:
        x = given["input"]
        dim = dim_of(x, given["dim"])
        if dim is None or x.dtype not in FLOATS:
            return None
        return call_scan, (x, kind, dim, False, ask_scan(x, kind, dim, False))

    return prepare


def _lerp(given: Arguments) -> Prepared | None:
    input, end, weight = given["input"], given["end"], number_of(given["weight"])
    if not is_ours(input, end, weight):
        return None
    return call_lerp, (input, end, weight, ask_lerp(input, end, weight))


def _embedding_bag(given: Arguments) -> Prepared | None:
    given = {**_DEFAULTS, **given}
    max_norm, norm_type = given.pop("max_norm"), given.pop("norm_type")
    return call_embedding_bag, (prepare_embedding_bag(**given), max_norm, norm_type)


def _embedding(given: Arguments) -> Prepared | None:
    given = {"max_norm": None, "norm_type": 2.0, **given}
    max_norm, norm_type = given.pop("max_norm"), given.pop("norm_type")
    return call_embedding, (prepare_embedding(**given), max_norm, norm_type)


_BAG = inspect.signature(embedding_bag).parameters
_DEFAULTS = {name: p.default for name, p in _BAG.items() if p.default is not p.empty}
_SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
_OURS: dict[Any, tuple[Callable[[Arguments], Prepared | None], tuple[str, ...], int]] = {
    **{getattr(home, kind): (_scan(kind), ("input", "dim"), 2) for kind in _SCANS for home in (torch, torch.Tensor)},
    **{home.lerp: (_lerp, ("input", "end", "weight"), 3) for home in (torch, torch.Tensor)},
    torch.nn.functional.embedding_bag: (_embedding_bag, tuple(_BAG), 2),
    torch.nn.functional.embedding: (_embedding, tuple(inspect.signature(embedding).parameters), 2),
}
"""By operation of torch: the function that prepares our call, the names of its arguments, and how many have no default."""


def _bound(names: tuple[str, ...], required: int, args: tuple[Any, ...], kwargs: Arguments) -> Arguments | None:
    """The arguments of a call by name; None: torch has it, or it has others, such as out."""
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
    return given if all(name in given for name in names[:required]) else None


def _prepared(func: Any, args: tuple[Any, ...], kwargs: Arguments) -> Prepared | None:
    """How we do a call of torch; None: it stays with torch."""
    ours = _OURS.get(func)
    if ours is None or not torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return None
    if not (all_plain(args) and all_plain(kwargs.values())):
        return None
    prepare, names, required = ours
    given = _bound(names, required, args, kwargs)
    if given is None:
        return None
    try:
        return prepare(given)
    except (Error, ValueError, RuntimeError):  # no plan does it, or arguments that torch refuses as well
        return None


class _Accelerate(contextlib.ContextDecorator, TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        prepared = _prepared(func, args, kwargs)
        if prepared is None:
            return func(*args, **kwargs)
        ours, arguments = prepared
        return ours(*arguments)


def accelerate() -> contextlib.AbstractContextManager[Any]:
    """Give torch's own operations sternway's backward, inside a ``with`` block or a function that this decorates.

    The operations are cumsum, cumprod, cummax, cummin, logcumsumexp and lerp, as functions and as methods of tensors, and
    torch.nn.functional.embedding_bag and embedding, which torch.nn.EmbeddingBag and Embedding call. Each call is decided
    before its forward runs: a call that no plan can do stays with torch, such as one with another dtype, rank or layout, a
    device without a kernel, or tensors without values or of a subclass. Calls with ``out=`` or ``dtype=``, in-place calls,
    calls under no_grad and calls inside forward-mode derivatives stay with torch too.

    It applies to the thread that entered it, and costs every call of torch there about a microsecond. A function that
    torch.utils.checkpoint runs again, perhaps on another thread, must be decorated itself.

    Returns:
        a context manager that is also a decorator. It raises nothing of its own: code that runs without it runs inside it.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([2.0, 0.0, 3.0, 4.0], requires_grad=True)
        >>> with st.accelerate():
        ...     y = x.cumprod(0)
        >>> y.sum().backward()
        >>> x.grad
        tensor([ 1., 32.,  0.,  0.])
    """
    return _Accelerate()
