"""Producers of DLPack that describe their memory as a test says: the structures of its binary interface, made by ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    """A tensor with its owner, version and flags."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    ]


class Unversioned(ctypes.Structure):
    """A tensor with its owner, from before version 1.0."""

    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


# A function of its own: JAX sets other types of arguments on ctypes.pythonapi.PyCapsule_New, which is one for all modules.
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)

ROOM = 8  # extents and strides that are there, whatever ndim says
CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}


def longs(numbers: Any) -> Any:
    """Numbers as int64, behind a pointer that keeps them; None: a null pointer."""
    if numbers is None:
        return None
    padded = [*numbers, *(0,) * (ROOM - len(numbers))]
    return ctypes.cast((ctypes.c_int64 * len(padded))(*padded), ctypes.POINTER(ctypes.c_int64))


def describe(array: np.ndarray) -> DLTensor:
    """The description of an array on the host, with strides."""
    kind, bits = array.dtype.name.rstrip("0123456789"), 8 * array.itemsize
    strides = [step // array.itemsize for step in array.strides]
    return DLTensor(array.ctypes.data, 1, 0, array.ndim, CODES[kind], bits, 1, longs(array.shape), longs(strides), 0)


class Lender:
    """An array that has `__dlpack__` and `__dlpack_device__` alone, and lends one capsule, once.

    Args:
        fields: of the DLTensor, in place of those that describe the array; tuples become arrays of int64.
        flags, version: of a versioned capsule; flags None: an unversioned one.
        name: of the capsule; None: the right one.
    """

    def __init__(
        self,
        array: np.ndarray,
        flags: int | None = 0,
        version: tuple[int, int] = (1, 1),
        name: bytes | None = None,
        **fields: Any,
    ) -> None:
        self.array, self.taken = array, False
        tensor = describe(array)
        for field, value in fields.items():
            setattr(tensor, field, longs(value) if isinstance(value, tuple) else value)
        if flags is None:
            self.managed: Any = Unversioned(tensor)
        else:
            self.managed = Managed(*version, None, None, flags, tensor)
        self.name = name or (b"dltensor" if flags is None else b"dltensor_versioned")

    def __dlpack__(self, **_: Any) -> Any:
        if self.taken:
            raise BufferError("lent already")
        self.taken = True
        return new_capsule(ctypes.addressof(self.managed), self.name, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.managed.dl_tensor.device_type, self.managed.dl_tensor.device_id
