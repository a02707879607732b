"""Array libraries: their dtype names, devices and allocation. This module imports none of them."""

from __future__ import annotations

import re
import sys
from typing import Any, Protocol

from . import errors
from ._dtypes import BEYOND_NUMPY
from ._lent import Lent, describe, device_text, is_jax, package_of

Array = Any
"""Any array that speaks DLPack: torch.Tensor, numpy.ndarray, cupy.ndarray, jax.Array (as an input), ..."""

_DTYPE_TEXT = re.compile(r"[A-Za-z_][\w.]*\.((?:b?float|complex|u?int|bool)\d*)")
"""The text of a dtype with its library, such as ``array_api_strict.float32``."""


def dtype_name(dtype: Any) -> str:
    """The name, such as ``"float32"``, of a dtype given by name or by torch, NumPy or the array API standard.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(dtype, str):
        return dtype.removeprefix("torch.")
    try:
        text = str(dtype)
        if text.startswith("torch."):
            return text.removeprefix("torch.")
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
        if isinstance(name, str):
            return name
        spelled = _DTYPE_TEXT.fullmatch(text)
    except Exception:  # of a class that cannot be asked
        spelled = None
    if spelled:
        return spelled[1]
    raise TypeError(f"a dtype is a name, a torch.dtype or a numpy.dtype, not {errors.shown(dtype)}")


def device_name(device: Any) -> str:
    """The name ``"cpu"`` or ``"cuda:N"`` of a device: a name, or an object with ``.type`` and ``.index``.

    ``"cuda"`` is the current device of torch where torch is loaded, otherwise the first.

    Raises:
        TypeError: neither of them.
        UnsupportedError: text that is no plain ASCII.
    """
    if not isinstance(device, str):
        try:
            kind, index = device.type, getattr(device, "index", None)
            named = kind if index is None else f"{kind}:{index}"
        except Exception:  # no such attribute, or one that raises
            kind = named = None
        if not isinstance(kind, str):
            wanted = "a name, or an object with .type and .index such as a torch.device"
            raise errors.make("type", "select", "device", wanted, errors.shown(device))
        device = named
    if not (device.isascii() and device.isprintable()):
        raise errors.make("unsupported", "select", "device", "cpu or cuda:N", errors.shown(device))
    if device == "cuda":
        torch = sys.modules.get("torch")
        ready = torch is not None and torch.cuda.is_available()
        return f"cuda:{torch.cuda.current_device()}" if torch and ready else "cuda:0"
    return "cpu" if device == "cpu:0" else device


_devices: dict[Any, str] = {"cpu": "cpu"}
"""Cached names of devices: NumPy's, and those of torch tensors seen so far, which always have an index."""


def device_of(x: Array) -> str:
    """The device of an array, from its attributes or by DLPack."""
    device = getattr(x, "device", None)
    try:
        return _devices[device]
    except (KeyError, TypeError):
        pass
    if type(x) is Lent:
        return x.device
    if hasattr(device, "type"):
        return _devices.setdefault(device, device_name(device))
    return device_text(*x.__dlpack_device__())


_libraries: dict[type, str] = {}


def library_of(x: Any) -> str | None:
    """The library that made an array, ``"torch"``, ``"numpy"`` or ``"cupy"``; None: another one, or no array."""
    kind = type(x)
    known = _libraries.get(kind)
    if known is not None:
        return known
    for name, base in (("torch", "Tensor"), ("numpy", "ndarray"), ("cupy", "ndarray")):
        module = sys.modules.get(name)
        if module is not None and issubclass(kind, getattr(module, base)):
            return _libraries.setdefault(kind, name)
    return None


_MEANING_BESIDE_NUMBERS = ("mask", "unit", "units")
"""Attributes of subclasses of numpy.ndarray that change the meaning of the numbers."""


def require_plain(op: str, operand: str, x: Any) -> None:
    """Refuse an array of NumPy that is masked, has units, is structured, or holds objects, text or dates.

    Raises:
        UnsupportedError: it is such an array.
    """
    dtype = x.dtype
    if not (dtype.kind in "fiubc" and dtype.isnative) and dtype.name not in BEYOND_NUMPY:
        got = f"one of {'another byte order' if dtype.kind in 'fiuc' else f'dtype {dtype}'}"
        raise errors.make("unsupported", op, operand, "a plain numeric array", got)
    if type(x) is not sys.modules["numpy"].ndarray:
        beside = next((name for name in _MEANING_BESIDE_NUMBERS if hasattr(x, name)), None)
        if beside is not None:
            hint = f"pass {operand}.filled(value)" if beside == "mask" else "pass its numbers as a plain array"
            got = f"a {type(x).__name__}, whose {beside} would be lost"
            raise errors.make("unsupported", op, operand, "a plain numeric array", got, hint)


def require_array(op: str, operand: str, x: Any) -> Array:
    """Return x if it is an array of torch, NumPy or CuPy; for any other library, the array that its DLPack capsule describes.

    Returns:
        an array with ``.shape``, ``.dtype`` and ``.reshape(-1)``.

    Raises:
        TypeError: x is no array.
        UnsupportedError: a tensor of torch without strides, such as a nested one, or one that make_fx traces, whose graph would
            keep the numbers of this run; an array of NumPy that is no plain one; an array that its library cannot lend.
        InvalidProblemError: an array that its library describes in a way that no memory can have.
    """
    library = _libraries.get(type(x)) or library_of(x)
    if library == "torch":
        torch = sys.modules["torch"]
        if x.is_nested or x.layout != torch.strided:
            layout = "nested" if x.is_nested else x.layout
            raise errors.make("unsupported", op, operand, "a strided tensor", f"a {layout} tensor")
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY):
            hint = "use sternway.torch, whose operators graphs contain"
            raise errors.make("unsupported", op, operand, "a tensor with values", "one that is traced", hint)
    elif library == "numpy":
        require_plain(op, operand, x)
    elif library is None and type(x) is not Lent:
        return describe(op, operand, x)
    return x


def reshaped(x: Array, shape: tuple[int, ...]) -> Array:
    """x in another shape. Arrays of the array API standard have no method reshape, only a function."""
    return x.reshape(shape) if hasattr(x, "reshape") else x.__array_namespace__().reshape(x, shape)


class Producer(Protocol):
    """Allocation of new arrays by the library of an operand."""

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Array: ...
    def empty_like(self, x: Array, dtype: str | None = None) -> Array: ...
    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Array: ...
    def multiples(self, count: int, of: int, device: str) -> Array: ...


class _Torch:
    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Array:
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype), device=device)

    def empty_like(self, x: Array, dtype: str | None = None) -> Array:
        return self.torch.empty_like(x) if dtype is None else self.torch.empty_like(x, dtype=getattr(self.torch, dtype))

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Array:
        return self.torch.full(shape, value, dtype=getattr(self.torch, dtype), device=device)

    def multiples(self, count: int, of: int, device: str) -> Array:
        """``[0, of, 2 * of, ...]`` with `count` elements, int64."""
        return self.torch.arange(count, device=device) * of


class _NumPyLike:
    """Allocation by NumPy or CuPy, on the current device."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def _dtype(self, dtype: str) -> Any:
        """A dtype by name.

        Raises:
            UnsupportedError: it is one that NumPy has from ml_dtypes, such as bfloat16, and ml_dtypes is not imported.
        """
        if dtype not in BEYOND_NUMPY:
            return dtype
        types = sys.modules.get("ml_dtypes")
        if types is None:
            hint = "import ml_dtypes, or give an output"
            raise errors.make("unsupported", "sternway", "out", f"given, as NumPy alone has no {dtype}", "nothing", hint)
        return getattr(types, dtype)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Array:
        return self.module.empty(shape, dtype=self._dtype(dtype))

    def empty_like(self, x: Array, dtype: str | None = None) -> Array:
        return self.module.empty_like(x) if dtype is None else self.module.empty_like(x, dtype=self._dtype(dtype))

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Array:
        return self.module.full(shape, value, dtype=self._dtype(dtype))

    def multiples(self, count: int, of: int, device: str) -> Array:
        """``[0, of, 2 * of, ...]`` with `count` elements, int64."""
        return self.module.arange(count, dtype="int64") * of


class _ArrayAPI:
    """Allocation by a library of the array API standard whose arrays can be written to through DLPack."""

    def __init__(self, x: Array) -> None:
        self.module, self.device = x.__array_namespace__(), x.device

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Array:
        return self.module.empty(shape, dtype=self._dtype(dtype), device=self.device)

    def empty_like(self, x: Array, dtype: str | None = None) -> Array:
        return self.module.empty_like(x) if dtype is None else self.module.empty_like(x, dtype=self._dtype(dtype))

    def full(self, shape: tuple[int, ...], value: float, dtype: str, device: str) -> Array:
        return self.module.full(shape, value, dtype=self._dtype(dtype), device=self.device)

    def _dtype(self, dtype: str) -> Any:
        """A dtype by name.

        Raises:
            UnsupportedError: the library has none of this name.
        """
        known = getattr(self.module, dtype, None)
        if known is None:
            got = f"nothing, and {self.module.__name__} has no {dtype}"
            raise errors.make("unsupported", "sternway", "out", "given", got)
        return known

    def multiples(self, count: int, of: int, device: str) -> Array:
        """``[0, of, 2 * of, ...]`` with `count` elements, int64."""
        return self.module.arange(count, dtype=self.module.int64, device=self.device) * of


_producers: dict[type, Producer] = {}


def producer(x: Array, op: str) -> Producer:
    """The allocator of the library that made x. For an unknown library it is torch, or NumPy if torch is not imported.

    Raises:
        UnsupportedError: for a library whose arrays cannot be written into, such as JAX.
    """
    known = _producers.get(type(x))
    if known is not None:
        return known
    library = library_of(x)
    if library is not None:
        known_library = sys.modules[library]
        return _producers.setdefault(type(x), _Torch(known_library) if library == "torch" else _NumPyLike(known_library))
    owner = x.owner if type(x) is Lent else x
    if not is_jax(owner):
        if hasattr(owner, "__array_namespace__"):
            return _ArrayAPI(owner)
        on_host = device_of(x) == "cpu"
        for name in ("torch", "numpy" if on_host else "cupy"):
            module = sys.modules.get(name)
            if module is not None:
                return _Torch(module) if name == "torch" else _NumPyLike(module)
    raise errors.make(
        "unsupported",
        op,
        "out",
        f"given, as no output can be made in {'jax' if is_jax(owner) else package_of(owner) or 'its library'}",
        "nothing",
        f"{'use sternway.jax, or ' if is_jax(owner) else ''}give tensors of torch or arrays of NumPy or CuPy to write into",
    )
