"""Converts operands, arrays of any library, to objects that the native library can read."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

from . import errors
from ._arrays import _libraries, library_of, require_plain
from ._dtypes import DTYPES
from ._lent import Lent, is_jax, lend, speaks_dlpack

_increment: Callable[[Any], None]
"""torch's increment_version, which tells autograd that saved tensors were overwritten; set when torch is met."""


def store_torch(operands: Iterable[Any], library: Any) -> Callable[..., int] | None:
    """At the first tensor of torch, give the native library the functions by which it queries plain tensors.

    Returns:
        the native library's fast path of a run, if it has one. None: torch was met before, or is not among the operands.
    """
    global _increment
    torch = sys.modules.get("torch")
    if "_increment" in globals() or torch is None or not any(isinstance(x, torch.Tensor) for x in operands):
        return None
    increment = torch.autograd.graph.increment_version
    run = None
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        words: list[Any] = [  # in the order of the enum in pybind/pytensor/fast_path.c
            torch.Tensor,
            torch.nn.Parameter,
            "requires_grad",
            torch.Tensor.untyped_storage,
            torch.Tensor.storage_offset,
            torch.Tensor.is_neg,
            getattr(torch._C, "_increment_version", increment),
            torch.is_grad_enabled,
            vars(torch.autograd.forward_ad),
            "_current_level",
        ]
        run = words[-1] if library.pybind_StoreTorch(id(words)) else None
    _increment = increment
    return run


def count_writes(outputs: Iterable[Any]) -> None:
    """Raise the version counters of tensors of torch, so that autograd notices that they were overwritten."""
    torch = sys.modules.get("torch")
    if torch is not None:
        tensors = [x for x in outputs if isinstance(x, torch.Tensor) and not x.is_inference()]
        if tensors:
            _increment(tensors)


def borrow(op: str, device: str, name: str, x: Any, out: bool, stream: int | None) -> Any:
    """The object through which the native library reads an operand: a tensor of torch, a capsule, or a Lent."""
    kind = type(x)
    if kind is Lent:
        return x.item
    library = _libraries.get(kind) or library_of(x)
    if library == "numpy":
        return _borrow_numpy(op, name, x)
    if library == "torch":
        torch = sys.modules["torch"]
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise errors.make("unsupported", op, name, "a strided tensor with memory of its own", kind.__name__)
        x = torch._C._functorch.unwrap_if_dead(x)  # what a transform of torch.func wrapped that has ended
        refuse_recorded(op, name, x, out)
        _check_torch(torch, op, name, x)
        if hasattr(kind, "__dlpack_c_exchange_api__"):
            return x
        x = x.detach()
    elif out and is_jax(x) and speaks_dlpack(x):
        raise errors.make("invalid_problem", op, name, "writable", "a JAX array, which is immutable")
    return lend(op, name, x, stream if device != "cpu" else None)


_WITHOUT_DROP_IN = ("unique_rows",)
"""Operations on integers, which have no derivative."""

_MODULES = {"embedding_bags": "EmbeddingBags"}
"""Operations whose drop-in is a module."""


def refuse_recorded(op: str, name: str, x: Any, out: bool = False) -> None:
    """Refuse a tensor of torch whose derivative would be lost in silence, as torch does for ``numpy()`` and its own ``out=``.

    A plan is not recorded. Inside an autograd function or an operator torch has disabled recording, so plans run there.

    Args:
        op: of the plan. The drop-in of its operation is the way out.
        x: an array of any library.
        out: whether x is an output, which requires no grad even where nothing is recorded.

    Raises:
        InvalidProblemError: autograd records operations on x, or x has a tangent of forward-mode AD.
        UnsupportedError: a transform of torch.func wraps x.
    """
    if library_of(x) != "torch":
        return
    torch = sys.modules["torch"]
    operation = op.partition("(")[2].removesuffix(")") or op.removesuffix("_backward")
    drop_in = "" if op in _WITHOUT_DROP_IN else f"use sternway.torch.{_MODULES.get(operation, operation)}"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        raise errors.make("unsupported", op, name, "a tensor with values", "one that torch.func transforms", drop_in)
    if x.requires_grad and (out or torch.is_grad_enabled()):
        got = "a tensor that requires grad"
    elif torch._C._is_fwd_grad_enabled() and torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
        got = "a tensor with a tangent"
    else:
        return
    hint = f"{drop_in} for gradients, or pass {name}.detach()" if drop_in and not out else f"pass {name}.detach()"
    raise errors.make("invalid_problem", op, name, "free of autograd", got, hint)


def _borrow_numpy(op: str, name: str, x: Any) -> Any:
    """A capsule by NumPy's own method, whatever a subclass overrides. Types of ml_dtypes, which it refuses, go as bits."""
    require_plain(op, name, x)
    numpy = sys.modules["numpy"]
    try:
        if x.dtype.isbuiltin == 2:  # a type of another package; its kind may be that of NumPy's floats, and its name is slow
            dtype = DTYPES[x.dtype.name]
            return _numpy_capsule(numpy, numpy.ndarray.view(x, f"uint{8 * dtype.itemsize}")), dtype.code
        return _numpy_capsule(numpy, x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        got = errors.reason(error)
        raise errors.make("unsupported", op, name, "an array that its library can lend", got) from None


def _numpy_capsule(numpy: Any, x: Any) -> Any:
    try:
        return numpy.ndarray.__dlpack__(x, max_version=(1, 1))
    except TypeError:  # NumPy before 2.1
        return numpy.ndarray.__dlpack__(x)


def _check_torch(torch: Any, op: str, name: str, x: Any) -> None:
    """Refuse a tensor that the exchange API would export although its memory is not what the tensor says.

    Such a tensor is a lazily negated view, or a view of a storage that was shrunk.
    """
    try:
        if x.is_neg():
            raise errors.make("unsupported", op, name, "plain memory", "a lazily negated view", f"pass {name}.resolve_neg()")
        storage = x.untyped_storage().nbytes()
        if storage == x.nbytes and not x.storage_offset():
            return
        reach = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + x.storage_offset() + 1
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, errors.Error):
            raise
        got = str(error).partition("\n")[0] if x.layout is torch.strided else f"a {x.layout} tensor"
        raise errors.make("unsupported", op, name, "a strided tensor with memory of its own", got) from None
    if reach * x.itemsize > storage and x.numel():
        refusal = errors.make(
            "buffer_too_small",
            op,
            name,
            f"inside its storage: {reach * x.itemsize} bytes",
            f"{storage} bytes",
            "the storage was resized after the view was made",
        )
        refusal.needed, refusal.got = reach * x.itemsize, storage  # type: ignore[attr-defined]
        raise refusal


def stream_handle(op: str, stream: Any) -> int:
    """The handle of an int, or of an object with .cuda_stream (torch), .ptr (CuPy) or __cuda_stream__ (cuda.core).

    Raises:
        TypeError: none of them.
        InvalidProblemError: a number that is no handle.
    """
    try:
        if hasattr(stream, "cuda_stream"):
            handle = operator.index(stream.cuda_stream)
        elif hasattr(stream, "ptr"):
            handle = operator.index(stream.ptr)
        elif hasattr(stream, "__cuda_stream__"):
            protocol = stream.__cuda_stream__
            handle = operator.index((protocol() if callable(protocol) else protocol)[1])
        else:
            handle = operator.index(stream)
    except Exception:  # no integer, or an attribute that raises
        wanted = "None, a handle, or an object with .cuda_stream, .ptr or __cuda_stream__"
        raise errors.make("type", op, "stream", wanted, errors.shown(stream)) from None
    if not 0 <= handle < 1 << 63:
        raise errors.make("invalid_problem", op, "stream", "a handle of at least 0 and below 2^63", errors.shown(handle))
    return handle
