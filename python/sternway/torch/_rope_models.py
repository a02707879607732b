"""Finds the functions by which models of transformers rotate queries and keys, and the form of their calls."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ._patches import is_readable, methods, names_in, original_of, parameters_of
from ._rope_conventions import Call, Key, accepts, find

_ROTATION = re.compile(r"rot|rope", re.IGNORECASE)
_APPLIES = re.compile(r"apply\w*(rot|rope)", re.IGNORECASE)

Place = tuple[dict[str, Any], str]
"""A namespace, of a Python module or of an object, and the name of a function in it."""


class Rotation:
    """A function of a model that rotates one or two operands by tables, with the :class:`Call` of its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        parameters = parameters_of(function)
        self.names = [name for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD]
        self.defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
        first = min(self.names.index("cos"), self.names.index("sin"))
        self.operands = self.names[:first]
        others = [name for name in self.names[first:] if name not in ("cos", "sin", "unsqueeze_dim")]
        self.needed = [name for name in others if name not in self.defaults]
        self.others = [name for name in others if name in self.defaults]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """The arguments of a call. None: no convention covers a call of this form."""
        if len(args) > len(self.names) or any(name not in self.names for name in kwargs):
            return None
        given = {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}
        if any(given[name] is not self.defaults[name] for name in self.others):
            return None
        inputs = [given.get(name) for name in self.operands]
        while len(inputs) > 1 and inputs[-1] is None:
            inputs.pop()
        dim = given.get("unsqueeze_dim")
        call = Call(inputs, given.get("cos"), given.get("sin"), dim)  # type: ignore[arg-type]
        tensors = (*inputs, call.cos, call.sin)
        if not all(map(is_readable, tensors)) or not (dim is None or isinstance(dim, int)):
            return None
        return call if all(t.device == call.cos.device for t in tensors) else None  # type: ignore[union-attr]

    def __call__(self, call: Call) -> Any:
        """The result of the function itself."""
        given: dict[str, Any] = dict.fromkeys(self.operands)
        given.update(zip(self.operands, call.inputs, strict=False))
        if call.unsqueeze_dim is not None:
            given["unsqueeze_dim"] = call.unsqueeze_dim
        return self.function(**given, cos=call.cos, sin=call.sin)

    def trials(self, widths: list[int]) -> Iterator[Key]:
        """Keys of calls as models make them: batched or not, heads first or tokens first, the whole head or a part of it."""
        default = self.defaults.get("unsqueeze_dim")
        dims = [default] if default is None else [default, *(d for d in (1, 2, -2, 0) if d != default)]
        b, h, h_k, s = 2, 3, 4, 5  # batches, heads of q and of k, tokens
        forms: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
            ((b, h, s), (b, h_k, s), (b, s)),
            ((b, h, s), (b, h_k, s), (1, s)),
            ((b, s, h), (b, s, h_k), (b, s)),
            ((s, h), (s, h_k), (s,)),
            ((b, h, s), (b, h_k, s), (s,)),
            ((b, h, s), (b, h_k, s), (b, 1, s)),
            # more tokens than rows, of which some may stay as they are
            ((b, h, 7), (b, h_k, 7), (b, s)),
            ((b, h, 7), (b, h_k, 7), (s,)),
            ((b, h, 7), (b, h_k, 7), (b, 1, s)),
            ((b, h, s), (b, h_k, 7), (b, 7)),
        ]
        for width in widths:
            for (q, k, table), dim, times in ((f, d, t) for f in forms for d in dims for t in (1, 2, 4)):
                inputs = [(*shape, times * width, torch.float32) for shape in (q, k)[: len(self.operands)]]
                tables = [(*table, width, torch.float32)] * 2
                yield (*inputs, *tables, dim)
                if len(self.operands) == 2 and self.operands[1] in self.defaults:
                    yield (inputs[0], *tables, dim)

    def is_known(self, widths: list[int]) -> bool:
        """Whether the function accepts some trials and has a convention for each trial that it accepts.

        Args:
            widths: numbers of columns of tables.
        """
        if self.needed or not 1 <= len(self.operands) <= 2:
            return False
        found = None
        for key in self.trials(widths):
            if accepts(self, key):
                found = find(self, key, found)
                if found is None:
                    return False
        return found is not None


def places(model: torch.nn.Module) -> list[Place]:
    """The namespaces and names under which the classes and modules of a model find functions that rotate."""
    found: dict[tuple[int, str], Place] = {}
    for function in methods(model):
        found.update({(id(space), name): (space, name) for space, name in places_in(function)})
    for module in model.modules():
        space = vars(module)
        found.update({(id(space), name): (space, name) for name in space if _rotates(name, space[name])})
    return list(found.values())


def places_in(function: Any) -> list[Place]:
    """The namespaces and names under which a function finds others that rotate."""
    function = inspect.unwrap(function.forward if isinstance(function, torch.nn.Module) else function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return []
    space = function.__globals__
    return [(space, name) for name in sorted(names_in(function)) if name in space and _rotates(name, space[name])]


def _rotates(name: str, value: Any) -> bool:
    """Whether a value is a function that rotates by tables, or its name says that it rotates by something else."""
    if not _ROTATION.search(name) or not callable(value) or isinstance(value, type):
        return False
    return has_tables(original_of(value)) or bool(_APPLIES.search(name))


def has_tables(function: Callable[..., Any]) -> bool:
    """Whether a function has parameters for cosines and sines."""
    return {"cos", "sin"} <= parameters_of(function).keys()


@torch.no_grad()
def widths_of_tables(model: torch.nn.Module) -> list[int]:
    """The numbers of columns of a model's tables, from its rotary modules that take positions; 8 if there are none."""
    widths: list[int] = []
    for module in model.modules():
        if _ROTATION.search(type(module).__name__) and not widths:
            with contextlib.suppress(Exception):  # modules of tables have no interface in common
                own = copy.deepcopy(module).to("cpu")  # some keep the longest sequence that they met
                tables = own(torch.zeros(1, 1), torch.arange(2)[None])
                widths += [t.shape[-1] for t in tables[:1] if isinstance(t, Tensor) and t.is_floating_point()]
    return widths or [8]
