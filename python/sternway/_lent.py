"""Arrays of unknown libraries, read through the DLPack capsule or the C exchange API that they offer.

Such a producer may describe its memory in any way: the native library alone reads the description, and checks it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import struct
from typing import Any

from . import _library, errors
from ._dtypes import DTYPES

HOST, CUDA = (1, 3), (2, 13)
"""DLPack's device types of memory that the host and a CUDA device reads: the memory itself, and pinned or managed memory."""

_LEGACY_STREAM = 1
"""The legacy default stream of CUDA, as ``__dlpack__`` takes it."""


def device_text(kind: int, index: int) -> str:
    """The name of a device of DLPack: ``"cpu"`` or ``"cuda:N"``."""
    return f"cuda:{index}" if kind in CUDA else "cpu" if kind in HOST else f"DLPack device {kind}:{index}"


def package_of(x: Any) -> str:
    """The top package of the class of x; empty for a class without a module, such as some of ctypes."""
    module = getattr(type(x), "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def is_jax(x: Any) -> bool:
    """Whether x is an array of JAX, which is immutable, or one of its tracers."""
    return package_of(x) in ("jax", "jaxlib")


def speaks_dlpack(x: Any) -> bool:
    """Whether x has ``__dlpack__``, or its type the exchange API. An attribute lookup that raises counts as no."""
    try:
        return not isinstance(x, type) and (hasattr(type(x), "__dlpack_c_exchange_api__") or hasattr(x, "__dlpack__"))
    except Exception:  # an attribute that raises something else than AttributeError
        return False


def lend(op: str, operand: str, x: Any, stream: int | None = None) -> tuple[Any, ...]:
    """The object through which the native library reads an array (read_lent in pybind/pytensor/pytensor.c).

    Args:
        stream: the handle of a CUDA stream that the array shall be ready on; None, 0 and -1: the legacy default stream.

    Raises:
        TypeError: x is no array.
        UnsupportedError: a tracer of JAX; a library that cannot lend this array.
    """
    if is_jax(x) and any("Tracer" in base.__name__ for base in type(x).__mro__):
        hint = "inside jax.jit, jax.grad and jax.vmap use the functions of sternway.jax"
        raise errors.make("unsupported", op, operand, "an array with values", f"a JAX tracer ({type(x).__name__})", hint)
    if not speaks_dlpack(x):
        hint = "convert it with torch.as_tensor or numpy.asarray"
        raise errors.make("type", op, operand, "an array of a library with DLPack", type(x).__name__, hint)
    if hasattr(type(x), "__dlpack_c_exchange_api__"):
        return (x,)
    try:
        return capsule_of(x, stream), None
    except Exception as error:  # of the other library
        got = errors.reason(error)
        raise errors.make("unsupported", op, operand, "an array that its library can lend", got) from None


def capsule_of(x: Any, stream: int | None) -> Any:
    """The result of ``x.__dlpack__``, which may be any object."""
    options: dict[str, Any] = {}
    if hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] in CUDA:
        options["stream"] = stream if stream is not None and stream > 0 else _LEGACY_STREAM
    try:
        return x.__dlpack__(max_version=(1, 1), **options)
    except TypeError:  # a producer from before DLPack 1.0
        return x.__dlpack__(**options)


_FORMATS = {0: {1: "b", 4: "i", 8: "q"}, 1: {1: "B"}, 2: {2: "e", 4: "f", 8: "d"}}
"""Formats of struct by DLPack's code and the bytes of an element."""


@dataclasses.dataclass(slots=True)
class Lent:
    """An array of an unknown library whose DLPack description has been read and checked.

    A producer may hand out a capsule only once, so that this keeps it for the run.

    Attributes:
        owner: the array itself.
        item: what the native library reads.
        dtype, device: by name.
        shape, steps: extents, and strides in elements.
        itemsize: in bytes.
        address: of the first element.
    """

    owner: Any
    item: tuple[Any, ...]
    dtype: str
    device: str
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    itemsize: int
    address: int

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in bytes, as in NumPy."""
        return tuple(step * self.itemsize for step in self.steps)

    def __dlpack__(self, **_: Any) -> Any:
        """The DLPack capsule of the array."""
        return self.item[0]

    def reshape(self, *shape: Any) -> Any:
        """A view of rank 1 for -1; for such a view, the shape of its owner gives the owner back.

        Raises:
            UnsupportedError: another shape, or elements that are not one stride apart.
        """
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if wanted == self.shape or (wanted == (-1,) and self.ndim == 1):
            return self
        if len(self.item) == _VIEW and wanted != (-1,):
            return self.owner
        step = _merged(self.shape, self.steps)
        if wanted != (-1,) or step is None:
            raise self._uneven("contiguous where it is of rank 2")
        return self._view((math.prod(self.shape),), (step,))

    def rows(self) -> Lent:
        """A view of rank 2, with all dimensions but the last merged.

        Raises:
            UnsupportedError: these dimensions are not one stride apart.
        """
        step = _merged(self.shape[:-1], self.steps[:-1])
        if step is None:
            raise self._uneven("contiguous in its leading dimensions")
        return self._view((math.prod(self.shape[:-1]), self.shape[-1]), (step, self.steps[-1]))

    def _view(self, shape: tuple[int, ...], steps: tuple[int, ...]) -> Lent:
        item = (self.item[0], *(self.item[1:2] or (None,)), shape, steps)
        return dataclasses.replace(self, item=item, shape=shape, steps=steps)

    def _uneven(self, wanted: str) -> errors.Error:
        got = f"strides {list(self.steps)} for shape {list(self.shape)}"
        return errors.make("unsupported", "sternway", "an operand", wanted, got)

    def __float__(self) -> float:
        """The only element of an array on the host.

        Raises:
            TypeError: another array.
        """
        import ctypes  # which takes a while

        if self.shape or self.device != "cpu" or self.dtype not in DTYPES:
            raise TypeError("only an array of rank 0 on the CPU is a number")
        code, data = DTYPES[self.dtype].code, ctypes.string_at(self.address, self.itemsize)
        if self.dtype == "bfloat16":  # the upper half of a float32
            return float(struct.unpack("=f", b"\0\0" + data)[0])
        return float(struct.unpack(f"={_FORMATS[code][self.itemsize]}", data)[0])


def _merged(shape: tuple[int, ...], steps: tuple[int, ...]) -> int | None:
    """The stride of some dimensions as one; None: they cannot be merged."""
    wide = [(n, step) for n, step in zip(shape, steps, strict=True) if n != 1]
    even = all(step == n * inner for (_, step), (n, inner) in itertools.pairwise(wide))
    return (wide[-1][1] if wide else 1) if even else None


_VIEW = 4
"""Parts of an item that is a view of what its capsule holds."""


def describe(op: str, operand: str, x: Any) -> Lent:
    """An array of an unknown library, with its description read by the native library.

    Raises:
        TypeError: x is no array.
        UnsupportedError: a library that cannot lend this array, or more dimensions than an operand may have.
        InvalidProblemError: a description that no memory can have.
    """
    item = lend(op, operand, x)
    held = (item,)
    library = _library.load()
    try:
        facts = json.loads(library.pybind_Inspect(id(held)))
    except RuntimeError as error:
        refusal = errors.native_error(str(error))
        refusal.operand = operand
        raise errors.renamed(refusal, op) from None
    if not facts["data"] and math.prod(facts["shape"]):
        raise errors.make("invalid_problem", op, operand, "backed by memory", "a null pointer")
    device = device_text(*facts["device"])
    shape, steps = tuple(facts["shape"]), tuple(facts["strides"])
    itemsize = max(facts["itemsize"], 1)  # a dtype of less than 8 bits is one that no operand may have
    return Lent(x, item, facts["dtype"], device, shape, steps, itemsize, facts["data"])
