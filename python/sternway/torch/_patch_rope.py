"""``patch_rope``: sternway's rotation in models of transformers, in place of the functions of Python modules that they call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from .._arrays import device_name
from .._rope import RopeBackwardDescriptor, RopeBackwardPlan
from ..errors import Error, make, renamed
from ._autograd.calls import FLOATS
from ._rope_conventions import Convention, Key, find, key_of, turned
from ._rope_models import Place, Rotation, has_tables, original_of, places, places_in, widths_of_tables

__all__ = ["patch_rope"]

_NAME = "sternway.torch.patch_rope"
_lock = threading.RLock()


class _Slot:
    """One function that is replaced in a namespace, for as long as at least one patch holds it."""

    def __init__(self, space: dict[str, Any], name: str, rotation: Rotation) -> None:
        self.space, self.name, self.original, self.holders = space, name, rotation.function, 0
        self.replacement = self._replacement(rotation)
        self.replacement._sternway_slot = self  # type: ignore[attr-defined]

    def _replacement(self, rotation: Rotation) -> Callable[..., Any]:
        original, known = self.original, dict[Key, Convention | None]()

        def look_up(key: Key) -> Convention | None:
            """The convention of calls of a key, found when the first comes."""
            if key not in known:
                known[key] = find(rotation, key)
            return known[key]

        convention: Any = torch.compiler.assume_constant_result(look_up)  # type: ignore[no-untyped-call]

        @functools.wraps(original, updated=())
        def rotary(*args: Any, **kwargs: Any) -> Any:
            call = rotation.bind(args, kwargs) if self.holders else None
            found = None if call is None else convention(key_of(call))
            return original(*args, **kwargs) if call is None or found is None else turned(found, call)

        return rotary

    def hold(self) -> None:
        self.holders += 1
        self.space[self.name] = self.replacement

    def release(self) -> None:
        """Drop one holder. Without holders the replacement calls the model's function, wherever a reference to it was kept."""
        self.holders -= 1
        if not self.holders and self.space.get(self.name) is self.replacement:
            self.space[self.name] = self.original


class RopePatch:
    """The handle that :func:`patch_rope` returns. The patch lasts until ``undo`` is called or the ``with`` block ends.

    Attributes:
        functions: the names of the functions that were replaced, with their modules.
    """

    functions: tuple[str, ...]

    def __init__(self, slots: list[_Slot]) -> None:
        self._slots = slots
        self.functions = tuple(f"{slot.space.get('__name__', 'an attribute')}.{slot.name}" for slot in slots)
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
        with _lock:
            while self._slots:
                self._slots.pop().release()

    def __enter__(self) -> RopePatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<RopePatch of {', '.join(self.functions)}{'' if self._slots else ', undone'}>"


def patch_rope(model: torch.nn.Module) -> RopePatch:
    """Replace the functions by which a model of transformers applies rotary embeddings with sternway's rotation.

    It looks for the functions with parameters ``cos`` and ``sin`` that the classes of the model call, such as
    ``apply_rotary_pos_emb``. It compares each with sternway's rotation on small inputs, values and gradients, to find the
    pairing, the order of columns and the width that it uses, and then replaces it. Results have the dtypes that the model's
    function returns. A call whose arguments the comparison did not cover goes to the model's own function.

    The functions belong to Python modules, so every model of the architecture uses the replacement meanwhile; it computes the
    same.

    Args:
        model: a model of transformers, or a part of one.

    Returns:
        a handle with ``undo()`` that is also a context manager. Several models may be patched and undone in any order.

    Raises:
        UnsupportedError: a function whose rotation sternway cannot reproduce, a model that calls no such function (complex
            tables, rotations written in methods), or a parameter on a device without kernels. Nothing was changed.
        TypeError: model is no torch.nn.Module.

    Example:
        >>> import torch, sternway.torch as st
        >>> from transformers import CohereConfig, CohereModel  # pairs of neighbours, in tables of neighbours
        >>> sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
        >>> model, tokens = CohereModel(CohereConfig(**sizes, pad_token_id=0)), torch.tensor([[1, 2, 3]])
        >>> theirs = model(tokens).last_hidden_state
        >>> with st.patch_rope(model):
        ...     ours = model(tokens).last_hidden_state
        >>> torch.allclose(ours, theirs, atol=1e-5)
        True
    """
    if not isinstance(model, torch.nn.Module):
        raise make("type", _NAME, "model", "a torch.nn.Module", type(model).__name__)
    _require_kernels(model)
    with _lock:
        waiting, slots = places(model), list[_Slot]()
        if not waiting:
            raise make("unsupported", _NAME, "model", "one that calls a function with cos and sin", type(model).__name__)
        widths = widths_of_tables(model)
        met = {(id(space), name) for space, name in waiting}
        while waiting:
            space, name = place = waiting.pop(0)
            slot = _slot(place, widths)
            if slot is not None:
                slots.append(slot)
                continue
            inner = places_in(original_of(space[name]))  # it may leave the rotation to another function
            if not inner:
                wanted, got = "one whose rotation ours can reproduce", f"{name} of {space.get('__name__', 'a module')}"
                raise make("unsupported", _NAME, "model", wanted, got, "patch a part of the model that does not call it")
            waiting += [(other, n) for other, n in inner if (id(other), n) not in met]
            met |= {(id(other), n) for other, n in inner}
        return RopePatch(slots)


def _slot(place: Place, widths: list[int]) -> _Slot | None:
    """The slot of a function that is replaced or will be. None: its rotation cannot be reproduced."""
    space, name = place
    value = space[name]
    known: _Slot | None = getattr(value, "_sternway_slot", None)
    if known is not None and known.holders:
        return known
    if not has_tables(original_of(value)):
        return None
    rotation = Rotation(original_of(value))
    return _Slot(space, name, rotation) if rotation.is_known(widths) else None


def _require_kernels(model: torch.nn.Module) -> None:
    """Raise UnsupportedError if a parameter is on a device without kernels."""
    for device, dtype in {(p.device, p.dtype) for p in model.parameters() if p.device.type not in ("cpu", "meta")}:
        if device.type != "cuda":
            raise make("unsupported", _NAME, "model", "on the CPU or a CUDA device", f"a parameter on {device}")
        descriptor = RopeBackwardDescriptor(1, 1, 1, 2, dtype if dtype in FLOATS else torch.float32)
        try:
            RopeBackwardPlan.select(descriptor, device_name(device))
        except Error as error:
            raise renamed(error, _NAME) from None
