"""``patch_recurrence``: sternway's recurrences in models of transformers, in place of their loops over tokens."""

from __future__ import annotations

import torch

from ..errors import make
from ._patches import Patch, Slot, lock, name_of, original_of, require_kernels, require_module, slot_of
from ._recurrence_models import RECURRENCES, Place, places

__all__ = ["patch_recurrence"]

_NAME = "sternway.torch.patch_recurrence"


def patch_recurrence(model: torch.nn.Module) -> Patch:
    """Replace the functions by which layers of a model of transformers run a recurrence in Python with sternway's.

    It knows two loops over tokens: the method ``_rnn_scan`` of RecurrentGemma, which it computes by :func:`linear_recurrence`,
    and the function ``mamba_selective_scan`` of Mamba, FalconMamba, Jamba and Zamba, which it computes by
    :func:`selective_scan`. It compares the model's function with ours on small inputs, values and gradients, and then replaces
    it. Resets, dtypes of results and the state that a cache keeps are as in the model. Sums are rounded in another order, and
    a selective scan beside 16 bits takes its steps in float32, where the model rounds them. Decoding of one token, and a call
    that ours cannot reproduce, goes to the model's own function; the handle lists such calls as ``left``.

    The functions belong to classes and Python modules, so every model of the architecture uses the replacement meanwhile; it
    computes the same.

    Args:
        model: a model of transformers, or a part of one.

    Returns:
        a handle with ``undo()`` that is also a context manager. Several models may be patched and undone in any order.

    Raises:
        UnsupportedError: a recurrence that sternway cannot reproduce, a model without one that it knows, or a parameter on a
            device without kernels. Nothing was changed.
        TypeError: model is no torch.nn.Module.

    Example:
        >>> import torch, sternway.torch as st
        >>> from transformers import RecurrentGemmaConfig, RecurrentGemmaModel
        >>> sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
        >>> model, tokens = RecurrentGemmaModel(RecurrentGemmaConfig(**sizes)), torch.tensor([[1, 2, 3]])
        >>> theirs = model(tokens, use_cache=False).last_hidden_state
        >>> with st.patch_recurrence(model) as patch:
        ...     ours = model(tokens, use_cache=False).last_hidden_state
        >>> torch.allclose(ours, theirs, atol=1e-5), patch.left[0]
        (True, 'decoding of one token')
    """
    require_module(_NAME, model)
    with lock:
        found = places(model)
        if not found:
            names = ", ".join(recurrence.name for recurrence in RECURRENCES)
            raise make("unsupported", _NAME, "model", f"one whose layers call {names}", type(model).__name__)
        for place in found:
            require_kernels(_NAME, model, place.recurrence.select)
        slots = [_slot(place) for place in found]
        left = dict.fromkeys(text for place in found for text in place.recurrence.left)
        return Patch(slots, left)


def _slot(place: Place) -> Slot:
    """The slot of a function that is replaced or will be.

    Raises:
        UnsupportedError: the recurrence cannot be reproduced.
    """
    known = slot_of(place.function)
    if known is not None and known.holders:
        return known
    if not place.is_known():
        wanted, got = "one whose recurrence ours can reproduce", f"{place.recurrence.name} of {name_of(place.owner)}"
        raise make("unsupported", _NAME, "model", wanted, got, "patch a part of the model that does not call it")
    return Slot(place.owner, place.recurrence.name, original_of(place.function), place.ours())
