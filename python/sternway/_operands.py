"""How arrays of any library become operands that the native library can read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from . import errors
from ._arrays import device_of

_increment: Callable[[Any], None]
"""torch's increment_version, which tells autograd that saved tensors were overwritten; set when torch is met."""


def meet_torch(operands: Iterable[Any], library: Any) -> Callable[..., int] | None:
    """The first time that a tensor of torch comes by, tell the native library what it asks plain tensors with.

    Return its quick way of a run then, if there is one.
    """
    global _increment
    torch = sys.modules.get("torch")
    if "_increment" in globals() or torch is None or not any(isinstance(x, torch.Tensor) for x in operands):
        return None
    increment = torch.autograd.graph.increment_version
    run = None
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        words: list[Any] = [  # in the order of the enum in pybind/pytensor/usual.c
            torch.Tensor,
            torch.nn.Parameter,
            "requires_grad",
            torch.Tensor.untyped_storage,
            torch.Tensor.storage_offset,
            torch.Tensor.is_neg,
            getattr(torch._C, "_increment_version", increment),
        ]
        run = words[-1] if library.pybind_MeetTorch(id(words)) else None
    _increment = increment
    return run


def count_writes(outputs: Iterable[Any]) -> None:
    """Tell autograd that these were overwritten, as far as they are tensors of torch that have a version."""
    torch = sys.modules.get("torch")
    if torch is not None:
        tensors = [x for x in outputs if isinstance(x, torch.Tensor) and not x.is_inference()]
        if tensors:
            _increment(tensors)


def borrow(op: str, device: str, name: str, x: Any, out: bool, stream: int | None) -> Any:
    """x itself where its type has the DLPack exchange API, otherwise a DLPack capsule of it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise errors.make("unsupported", op, name, "a strided tensor with memory of its own", type(x).__name__)
        x = torch._C._functorch.unwrap_if_dead(x)  # what a transform of torch.func wrapped that has ended
        _check_torch(torch, op, name, x, out)
        if hasattr(type(x), "__dlpack_c_exchange_api__"):
            return x
        x = x.detach()
    if isinstance(x, type) or not hasattr(x, "__dlpack__"):
        if hasattr(type(x), "__dlpack_c_exchange_api__"):
            return x
        raise errors.make("type", op, name, "an array that speaks DLPack", type(x).__name__)
    if out and type(x).__module__.startswith("jax"):
        raise errors.make("invalid_problem", op, name, "writable", "a JAX array, which is immutable")
    options: dict[str, Any] = {}
    if device != "cpu" and device_of(x) != "cpu":
        options["stream"] = stream if stream is not None and stream > 0 else 1  # 1 is the legacy default stream
    try:
        try:
            return x.__dlpack__(max_version=(1, 1), **options)
        except TypeError:  # a producer from before DLPack 1.0
            return x.__dlpack__(**options)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise errors.make("unsupported", op, name, "an array that its library can lend", reason) from None


def _check_torch(torch: Any, op: str, name: str, x: Any, out: bool) -> None:
    """Refuse what the exchange API lends without a word: autograd outputs, lazy negation, a storage that shrank."""
    if out and x.requires_grad:
        raise errors.make(
            "invalid_problem", op, name, "free of autograd", "a tensor that requires grad", f"pass {name}.detach()"
        )
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


def stream_handle(stream: Any) -> int:
    """The handle of an int, or of an object with .cuda_stream (torch), .ptr (CuPy) or __cuda_stream__ (cuda.core)."""
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    if isinstance(stream, int) and stream >= 0:
        return stream
    raise TypeError(f"a stream is None, a handle, or has .cuda_stream, .ptr or __cuda_stream__, not {stream!r}")
