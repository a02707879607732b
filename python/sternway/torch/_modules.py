"""The classes of our modules, as torch.ao.quantization sees them."""

from __future__ import annotations

from typing import Any


class StandsFor(type):
    """The class of a module class that equals one of torch, its first base, where classes are looked up in dictionaries.

    torch.ao.quantization finds the configuration of a module by its exact type, and skips any other in silence. A class that
    is derived from such a class stands for itself.
    """

    def __eq__(cls, other: object) -> bool:
        return _torchs(cls) is (_torchs(other) if isinstance(other, StandsFor) else other)

    def __hash__(cls) -> int:
        return type.__hash__(_torchs(cls))


def _torchs(cls: type) -> type:
    return cls.__bases__[0] if "qconfig" in vars(cls) else cls


class Configuration:
    """The attribute ``qconfig`` of a module, by which torch.ao.quantization marks what it will quantize.

    The module becomes torch's own with the mark: the quantized modules are made from that class alone.
    """

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        try:
            return vars(module)["qconfig"]
        except KeyError:
            raise AttributeError(f"'{type(module).__name__}' object has no attribute 'qconfig'") from None

    def __set__(self, module: Any, value: Any) -> None:
        vars(module)["qconfig"] = value
        if value is not None:
            module.__class__ = type(module).__bases__[0]

    def __delete__(self, module: Any) -> None:
        vars(module).pop("qconfig", None)
