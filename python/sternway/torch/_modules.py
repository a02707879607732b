"""How torch.ao.quantization finds st.Embedding and st.EmbeddingBag, although it looks modules up by their exact class."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch.nn.utils import parametrize

from ..errors import make

Classes = Callable[[Any], type]


def _torchs(kind: type) -> type:
    """The class of torch that a module class of ours stands for; any other class, derived ones among them, as it is."""
    return kind.__bases__[0] if isinstance(vars(kind).get("qconfig"), Configuration) else kind


class Configuration:
    """The attribute ``qconfig`` of a module, by which torch.ao.quantization marks what it will quantize.

    With the mark the module becomes torch's own, as torch makes quantized modules from that class alone.
    """

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        try:
            return vars(module)["qconfig"]
        except KeyError:
            raise AttributeError(f"'{type(module).__name__}' object has no attribute 'qconfig'") from None

    def __set__(self, module: Any, value: Any) -> None:
        if value is not None and (learner := getattr(module, "optimizer", None)) is not None:
            got, hint = "a configuration", "a module without an optimizer can be quantized"
            raise make("unsupported", learner.op, "qconfig", "None where the table has an optimizer", got, hint)
        vars(module)["qconfig"] = value
        if value is not None and (kind := _torchs(type(module))) is not type(module):
            module.__class__ = kind

    def __delete__(self, module: Any) -> None:
        vars(module).pop("qconfig", None)


def let_quantization_find_modules() -> None:
    """Replace the function by which torch.ao.quantization asks for the class of a module by one that knows ours."""
    original: Classes | None = getattr(parametrize, "type_before_parametrizations", None)
    if original is None:
        return
    ask = original

    @functools.wraps(original)
    def class_of(module: Any) -> type:
        return _torchs(ask(module))

    for name, module in list(sys.modules.items()):
        space = getattr(module, "__dict__", {}) if name.startswith("torch.") else {}
        if space.get("type_before_parametrizations") is original:
            space["type_before_parametrizations"] = class_of
