"""``patch_rope``: sternway's rotation in models of transformers, in place of the functions of Python modules that they call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._rope import RopeBackwardDescriptor, RopeBackwardPlan
from ..errors import make
from ._patches import Patch, Slot, lock, original_of, require_kernels, require_module, slot_of
from ._rope_conventions import Convention, Key, find, key_of, turned
from ._rope_models import Place, Rotation, has_tables, places, places_in, widths_of_tables

__all__ = ["patch_rope"]

_NAME = "sternway.torch.patch_rope"
_LEFT = "calls whose arguments the comparison did not cover"


def patch_rope(model: torch.nn.Module) -> Patch:
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
    require_module(_NAME, model)
    require_kernels(_NAME, model, _select)
    with lock:
        waiting, slots = places(model), list[Slot]()
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
        return Patch(slots, [_LEFT])


def _slot(place: Place, widths: list[int]) -> Slot | None:
    """The slot of a function that is replaced or will be. None: its rotation cannot be reproduced."""
    space, name = place
    known = slot_of(space[name])
    if known is not None and known.holders:
        return known
    original = original_of(space[name])
    if not has_tables(original):
        return None
    rotation = Rotation(original)
    return Slot(space, name, original, _ours(rotation)) if rotation.is_known(widths) else None


def _ours(rotation: Rotation) -> Callable[..., Any]:
    """Sternway's rotation for calls of a model's function; None for a call that no convention covers."""
    known = dict[Key, Convention | None]()

    def look_up(key: Key) -> Convention | None:
        """The convention of calls of a key, found when the first comes."""
        if key not in known:
            known[key] = find(rotation, key)
        return known[key]

    convention: Any = torch.compiler.assume_constant_result(look_up)  # type: ignore[no-untyped-call]

    def rotary(*args: Any, **kwargs: Any) -> Any:
        call = rotation.bind(args, kwargs)
        found = None if call is None else convention(key_of(call))
        return None if call is None or found is None else turned(found, call)

    return rotary


def _select(dtype: torch.dtype, device: str) -> object:
    return RopeBackwardPlan.select(RopeBackwardDescriptor(1, 1, 1, 2, dtype), device)
