"""What the package needs to know of array libraries: dtype names, devices, allocation. None of them is imported here."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from . import errors

Array = Any
"""Any array that speaks DLPack: torch.Tensor, numpy.ndarray, cupy.ndarray, jax.Array (as an input), ..."""


def dtype_name(dtype: Any) -> str:
    """``"float32"`` of a name, a ``torch.dtype``, a ``numpy.dtype`` or a NumPy scalar type.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(dtype, str):
        return dtype.removeprefix("torch.")
    text = str(dtype)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    if isinstance(name, str):
        return name
    raise TypeError(f"a dtype is a name, a torch.dtype or a numpy.dtype, not {dtype!r}")


def device_name(device: Any) -> str:
    """``"cpu"`` or ``"cuda:N"`` of a name, or of anything with ``.type`` and ``.index``, such as a ``torch.device``.

    ``"cuda"`` is the current device of torch where torch is loaded, otherwise the first.
    """
    if not isinstance(device, str):
        kind, index = getattr(device, "type", None), getattr(device, "index", None)
        if not isinstance(kind, str):
            raise TypeError(f"a device is a name or has .type and .index, not {device!r}")
        device = kind if index is None else f"{kind}:{index}"
    if device == "cuda":
        torch = sys.modules.get("torch")
        ready = torch is not None and torch.cuda.is_available()
        return f"cuda:{torch.cuda.current_device()}" if torch and ready else "cuda:0"
    return "cpu" if device == "cpu:0" else device


_devices: dict[Any, str] = {}
"""Names of torch's devices that tensors were met on; such a device always has an index."""


def device_of(x: Array) -> str:
    """The device of an array, by DLPack."""
    device = getattr(x, "device", None)
    try:
        return _devices[device]
    except (KeyError, TypeError):
        pass
    if hasattr(device, "type"):
        return _devices.setdefault(device, device_name(device))
    kind, index = x.__dlpack_device__()
    return f"cuda:{index}" if kind in (2, 13) else "cpu" if kind in (1, 3) else f"DLPack device {kind}:{index}"


def require_array(op: str, operand: str, x: Any) -> Array:
    """x, or a view of it by torch or NumPy where it speaks DLPack but tells neither its shape nor its dtype.

    Raises:
        TypeError: x is no array.
        UnsupportedError: a tensor of torch without strides, such as a nested one, or one that make_fx traces, whose graph would
            keep the numbers of this run; an array that nobody here can view.
    """
    if isinstance(x, type) or not hasattr(x, "__dlpack__"):
        raise errors.make("type", op, operand, "an array that speaks DLPack", type(x).__name__)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if x.is_nested or x.layout != torch.strided:
            layout = "nested" if x.is_nested else x.layout
            raise errors.make("unsupported", op, operand, "a strided tensor", f"a {layout} tensor")
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY):
            hint = "use sternway.torch, whose operators graphs contain"
            raise errors.make("unsupported", op, operand, "a tensor with values", "one that is traced", hint)
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return x
    for name in ("torch", "numpy"):
        try:
            return sys.modules[name].from_dlpack(x)
        except (KeyError, AttributeError, BufferError, RuntimeError, TypeError, ValueError):
            continue
    raise errors.make("unsupported", op, operand, "an array with .shape and .dtype", type(x).__name__)


class Producer(Protocol):
    """How the library of an operand makes new arrays."""

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Array: ...
    def empty_like(self, x: Array) -> Array: ...
    def multiples(self, count: int, of: int, device: str) -> Array: ...


class _Torch:
    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Array:
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype), device=device)

    def empty_like(self, x: Array) -> Array:
        return self.torch.empty_like(x)

    def multiples(self, count: int, of: int, device: str) -> Array:
        """0, of, 2 of, ... in int64."""
        return self.torch.arange(count, device=device) * of


class _NumPyLike:
    """NumPy and CuPy: a module with empty and empty_like, whose current device is the operand's."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Array:
        return self.module.empty(shape, dtype=dtype)

    def empty_like(self, x: Array) -> Array:
        return self.module.empty_like(x)

    def multiples(self, count: int, of: int, device: str) -> Array:
        """0, of, 2 of, ... in int64."""
        return self.module.arange(count, dtype="int64") * of


_producers: dict[type, Producer] = {}


def producer(x: Array, op: str) -> Producer:
    """The library that made x.

    Raises:
        UnsupportedError: for a library whose arrays cannot be written into, such as JAX.
    """
    known = _producers.get(type(x))
    if known is not None:
        return known
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _producers.setdefault(type(x), _Torch(torch))
    for name in ("numpy", "cupy"):
        module = sys.modules.get(name)
        if module is not None and isinstance(x, module.ndarray):
            return _producers.setdefault(type(x), _NumPyLike(module))
    owner = type(x).__module__.partition(".")[0]
    raise errors.make(
        "unsupported",
        op,
        "out",
        f"given, as no output can be made in {owner}",
        "nothing",
        "give tensors of torch or arrays of NumPy or CuPy to write into",
    )
