"""Functions of models that are replaced for a while, and the handle of a patch: ``patch_rope``, ``patch_recurrence``."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from .._arrays import device_name
from ..errors import Error, make, renamed
from ._autograd.calls import FLOATS

lock = threading.RLock()
"""Held while functions are replaced or restored."""

Owner = dict[str, Any] | type
"""The namespace of a Python module or of an object, or a class, in which a function has a name."""


class Slot:
    """One function that is replaced where it has its name, for as long as at least one patch holds it."""

    def __init__(self, owner: Owner, name: str, original: Callable[..., Any], ours: Callable[..., Any]) -> None:
        """Replace nothing yet.

        Args:
            ours: computes a call. It returns None to leave it to the original.
        """
        self.owner, self.name, self.original, self.holders = owner, name, original, 0

        @functools.wraps(original, updated=())
        def replacement(*args: Any, **kwargs: Any) -> Any:
            result = ours(*args, **kwargs) if self.holders else None
            return original(*args, **kwargs) if result is None else result

        replacement._sternway_slot = self  # type: ignore[attr-defined]
        self.replacement = replacement

    def hold(self) -> None:
        self.holders += 1
        self._put(self.replacement)

    def release(self) -> None:
        """Drop one holder. Without holders the replacement calls the model's function, wherever a reference to it was kept."""
        self.holders -= 1
        space = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        if not self.holders and space.get(self.name) is self.replacement:
            self._put(self.original)

    def _put(self, function: Callable[..., Any]) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.name] = function
        else:
            setattr(self.owner, self.name, function)

    def __str__(self) -> str:
        return f"{name_of(self.owner)}.{self.name}"


class Patch:
    """The handle of a patch, which lasts until ``undo`` is called or the ``with`` block ends.

    Attributes:
        functions: the names of the functions that were replaced, with their modules.
        left: the calls of these functions that the model's own functions still answer, in words.
    """

    functions: tuple[str, ...]
    left: tuple[str, ...]

    def __init__(self, slots: list[Slot], left: Iterable[str]) -> None:
        self._slots = slots
        self.functions, self.left = tuple(map(str, slots)), tuple(left)
        for slot in slots:
            slot.hold()

    def undo(self) -> None:
        """Restore the model's own functions, except those that another patch still replaces. A second call does nothing.

        Example:
            >>> import torch, sternway.torch as st
            >>> from transformers import LlamaConfig, LlamaModel
            >>> sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
            >>> patch = st.patch_rope(LlamaModel(LlamaConfig(**sizes)))
            >>> patch.functions
            ('transformers.models.llama.modeling_llama.apply_rotary_pos_emb',)
            >>> patch.undo()
        """
        with lock:
            while self._slots:
                self._slots.pop().release()

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = f"; left to the model: {', '.join(self.left)}" if self._slots else ", undone"
        return f"<Patch of {', '.join(self.functions)}{state}>"


def name_of(owner: Owner) -> str:
    """The name of a Python module or a class, for messages."""
    if isinstance(owner, dict):
        return str(owner.get("__name__", "an attribute"))
    return f"{owner.__module__}.{owner.__qualname__}"


def slot_of(function: Any) -> Slot | None:
    """The slot of a function that is a replacement. A wrapper of one, which may have its attributes, is none."""
    slot: Slot | None = getattr(function, "_sternway_slot", None)
    return slot if slot is not None and slot.replacement is function else None


def original_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The model's own function; the argument may be its replacement."""
    slot = slot_of(function)
    return function if slot is None else slot.original


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function or of a module's forward by name; none if they are unknown."""
    try:
        return dict(inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function).parameters)
    except (TypeError, ValueError):
        return {}


def is_readable(x: Any) -> bool:
    """Whether x is a tensor that the kernels read; a subclass may behave differently."""
    if not isinstance(x, Tensor) or x.dtype not in FLOATS or x.dim() == 0 or x.numel() == 0:
        return False
    if torch.compiler.is_compiling():
        return True
    return type(x) in (Tensor, torch.nn.Parameter) and x.device.type in ("cpu", "cuda") and not x.is_neg()


def methods(model: torch.nn.Module) -> Iterator[FunctionType]:
    """The methods of the classes of a model, without those of torch."""
    classes = dict.fromkeys(base for module in model.modules() for base in type(module).__mro__)
    for cls in classes:
        if cls.__module__.partition(".")[0] in ("torch", "builtins", "abc"):
            continue
        for value in vars(cls).values():
            function = (
                inspect.unwrap(getattr(value, "__func__", value)) if callable(getattr(value, "__func__", value)) else None
            )
            if isinstance(function, FunctionType):
                yield function


def names_in(function: FunctionType) -> set[str]:
    """The global names and attributes that a function uses, those of nested functions included."""
    names, codes = set[str](), [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes.extend(c for c in code.co_consts if isinstance(c, CodeType))
    return names


def require_module(operation: str, model: Any) -> None:
    """Raise TypeError if a model is no module of torch."""
    if not isinstance(model, torch.nn.Module):
        raise make("type", operation, "model", "a torch.nn.Module", type(model).__name__)


def require_kernels(operation: str, model: torch.nn.Module, select: Callable[[torch.dtype, str], object]) -> None:
    """Raise UnsupportedError if a parameter is on a device without kernels.

    Args:
        select: selects a plan for a dtype and a device.
    """
    for device, dtype in {(p.device, p.dtype) for p in model.parameters() if p.device.type not in ("cpu", "meta")}:
        if device.type != "cuda":
            raise make("unsupported", operation, "model", "on the CPU or a CUDA device", f"a parameter on {device}")
        try:
            select(dtype if dtype in FLOATS else torch.float32, device_name(device))
        except Error as error:
            raise renamed(error, operation) from None
