"""Plans: the one way from Python to the native library. This is the only module that imports ``_native``."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from . import errors
from ._arrays import Array, device_name, device_of, producer
from ._descriptor import Descriptor

D = TypeVar("D", bound=Descriptor)
P = TypeVar("P", bound="Plan[Any]")

_log = logging.getLogger("sternway")
_log_runs = False


@functools.cache
def _native() -> Any:
    """The native library, loaded at first use: a process that only imports sternway can fork."""
    global _call, _log_runs
    from . import _native as library

    if os.environ.get("STERNWAY_CHECK") == "1":
        library.pybind_SetCheck(1)
    level = os.environ.get("STERNWAY_LOG", "").upper()
    if level in ("INFO", "DEBUG"):
        _log.setLevel(level)
        _log_runs = level == "DEBUG"
        if not logging.getLogger().handlers and not _log.handlers:
            _log.addHandler(logging.StreamHandler())
    os.register_at_fork(after_in_child=_after_fork)
    _call = library.pybind_Run
    return library


def _first_call(*args: int) -> int:
    _native()
    return _call(*args)


_call: Callable[..., int] = _first_call


def _after_fork() -> None:
    """The Go runtime has one thread left in a forked child and would hang: say so instead."""
    global _native, _call

    def refuse(*_: Any) -> NoReturn:
        raise errors.make(
            "unsupported",
            "sternway",
            "the process",
            "the one that loaded the library",
            "a fork of it",
            'start workers with the "spawn" or "forkserver" method of multiprocessing',
        )

    _native = _call = refuse  # type: ignore[assignment]


def _raise(error: Exception) -> NoReturn:
    try:
        if type(error) is RuntimeError:  # the native library knows no other class
            errors.raise_native(str(error))
        raise error
    finally:
        del error


@dataclasses.dataclass(frozen=True)
class PlanPreference:
    """What ``Plan.select`` may choose from.

    Args:
        deterministic: False lets a family pick an atomic kernel where that is faster.
        max_workspace: bytes; select chooses within it or raises. None: no limit.
        kernel: one variant by name, for tests and tuning. None: select chooses.
    """

    deterministic: bool = True
    max_workspace: int | None = None
    kernel: str | None = None


@dataclasses.dataclass(frozen=True)
class PrecisionGuarantee:
    """What a plan promises of its numbers: dtypes by name, and whether bits repeat."""

    math_precision: str
    accumulator: str
    bit_stable_on_same_hardware: bool
    deterministic: bool


@dataclasses.dataclass(frozen=True)
class KernelSku:
    """What ``Plan.select`` chose."""

    category: str
    op: str
    element: str
    aux_element: str
    arch: str
    backend: str
    kernel: str
    precision_guarantee: PrecisionGuarantee


class Plan(Generic[D]):
    """A kernel selected for one descriptor on one device: immutable, hashable, safe to run from many threads at once.

    Made by ``select``. Attributes: ``descriptor``, ``device``, ``preference``, ``workspace_size`` (bytes), ``sku``,
    ``precision_guarantee``.
    """

    descriptor_type: ClassVar[type[Descriptor]]

    descriptor: D
    device: str
    preference: PlanPreference
    workspace_size: int
    sku: KernelSku
    precision_guarantee: PrecisionGuarantee
    _handle: int
    _slots: tuple[tuple[str, bool, int], ...]
    _facts: dict[str, Any]

    @classmethod
    def select(cls: type[P], descriptor: Descriptor, device: Any = "cpu", preference: PlanPreference | None = None) -> P:
        """Check a descriptor and choose a kernel. May be slow; run is quick.

        Args:
            descriptor: of this plan's family.
            device: "cpu", "cuda", "cuda:N", or anything with .type and .index, such as a torch.device.
            preference: None: a deterministic kernel with any workspace.

        Raises:
            InvalidProblemError: a descriptor that contradicts itself.
            UnsupportedError: a dtype, option or preference without a kernel, or a device that is not there.
        """
        if not isinstance(descriptor, cls.descriptor_type):
            raise TypeError(f"{cls.__name__} takes a {cls.descriptor_type.__name__}, not a {type(descriptor).__name__}")
        preference = preference or PlanPreference()
        where = device_name(device)
        if where != "cpu" and os.environ.get("STERNWAY_BACKEND") == "cpu":
            raise errors.make("unsupported", descriptor.family, "device", "cpu, as STERNWAY_BACKEND=cpu hides the GPU", where)
        chosen = json.dumps({**dataclasses.asdict(preference), "kernel": preference.kernel or ""})
        library = _native()
        try:
            handle = library.pybind_Select(descriptor.to_json(), where, chosen)
            facts = json.loads(library.pybind_Describe(handle))
        except RuntimeError as error:
            _raise(error)
        guarantee = PrecisionGuarantee(**facts["sku"].pop("precision_guarantee"))
        plan = cls.__new__(cls)
        plan.__dict__.update(
            descriptor=descriptor,
            device=facts["device"],
            preference=preference,
            workspace_size=facts["workspace_size"],
            sku=KernelSku(**facts["sku"], precision_guarantee=guarantee),
            precision_guarantee=guarantee,
            _handle=handle,
            _slots=tuple((o["name"], o["out"], o["bytes"]) for o in facts["operands"]),
            _facts=facts,
        )
        _log.info("selected %r", plan)
        return plan

    def __init__(self) -> None:
        raise TypeError(f"use {type(self).__name__}.select")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __del__(self) -> None:
        if "_handle" in self.__dict__ and _call is not _first_call and sys is not None and not sys.is_finalizing():
            try:
                _native().pybind_Release(self._handle)
            except errors.Error:
                return  # a fork: the child has no plan to release

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self.descriptor)

    def _key(self) -> tuple[Any, ...]:
        return self.descriptor, self.device, self.preference

    def __reduce__(self) -> Any:
        return type(self).select, (self.descriptor, self.device, self.preference)

    def can_implement(self, *, workspace: Array | None = None, **operands: Array | None) -> None:
        """Return None, or raise the error that ``run`` would raise for these operands. A workspace need not be given."""
        items, _ = self._items(operands, workspace, None)
        if workspace is None and self.workspace_size:
            items[0] = self._workspace(items)
        held = tuple(items)
        try:
            _native().pybind_CanImplement(self._handle, id(held))
        except RuntimeError as error:
            _raise(error)

    def run(self, *, workspace: Array | None = None, stream: Any = None, **operands: Array | None) -> None:
        """Check the operands and launch. Nothing is allocated on the device unless a workspace is needed and not given.

        Args:
            workspace: uint8, at least ``workspace_size`` bytes on the plan's device, 256-byte aligned. None: taken from the
                producer of the first operand.
            stream: None: the producer's current stream; or a handle, or an object with .cuda_stream, .ptr or
                __cuda_stream__. Ignored on the CPU, where the run has finished when this returns.
            operands: by name, see the class; outputs are written completely.

        Raises:
            Error: of the class that says what is wrong; nothing has been written then, unless it is a DeviceError.
        """
        handle = -1 if stream is None else _stream_handle(stream)
        items, written = self._items(operands, workspace, handle)
        if workspace is None and self.workspace_size:
            items[0] = self._workspace(items, stream)
        held = tuple(items)
        if _log_runs:
            _log.debug("run %s on %s", self.sku.op, self.device)
        try:
            _call(self._handle, id(held), handle)
        except RuntimeError as error:
            _raise(error)
        if written:
            _bump(written)

    def _items(
        self, operands: dict[str, Array | None], workspace: Array | None, stream: int | None
    ) -> tuple[list[Any], list[Any]]:
        """The workspace and the operands in the plan's order, as the native library can read them; and the outputs of torch."""
        items: list[Any] = [workspace if workspace is None else _readable(self, "workspace", workspace, True, stream)]
        written = []
        left = len(operands)
        try:
            for name, out, size in self._slots:
                x = operands.get(name)
                if x is not None:
                    left -= 1
                    if type(x) not in _torch_types:
                        x = _readable(self, name, x, out, stream)
                    # The usual tensor, quickly: it fills a storage of its own. A lazily negated one lies in a complex storage.
                    elif x.untyped_storage().nbytes() != size or x.storage_offset() or (out and x.requires_grad):
                        _check_torch(self, name, x, out)
                    if out and type(x) in _torch_types:
                        written.append(x)
                items.append(x)
        except (NotImplementedError, RuntimeError) as error:  # torch has no storage to show
            if isinstance(error, errors.Error):
                raise
            _check_torch(self, name, x, out)
            raise
        if left:
            names = [name for name, _, _ in self._slots]
            for name in operands:
                if name not in names:
                    raise errors.make(
                        "invalid_problem", self.sku.op, name, "one of " + ", ".join(names), "an unexpected operand"
                    )
        return items, written

    def _workspace(self, items: list[Any], stream: Any = None) -> Array:
        """A workspace of the library that made the first operand."""
        first = next((x for x in items if hasattr(x, "__dlpack__")), None)
        if first is None:  # capsules: the operands came from no library that lends memory
            raise errors.make(
                "workspace_too_small", self.sku.op, "workspace", f"at least {self.workspace_size} bytes", "nothing"
            )
        workspace = producer(first, self.sku.op).empty((self.workspace_size,), "uint8", self.device)
        if stream is not None and self.device != "cpu" and type(workspace) in _torch_types:
            torch = sys.modules["torch"]
            workspace.record_stream(torch.cuda.ExternalStream(_stream_handle(stream), device=self.device))
        return workspace

    def _rows(self) -> dict[str, str]:
        sku, facts = self.sku, self._facts
        return {
            "op": sku.op,
            "dtype": sku.element + (f", {sku.aux_element}" if sku.aux_element else ""),
            "shape": str(list(getattr(self.descriptor, "shape", ()))),
            "device": f"{self.device} ({sku.arch})",
            "kernel": sku.kernel,
            "geometry": facts["geometry"],
            "bytes moved": f"{facts['bytes']:,}",
            "workspace": f"{self.workspace_size:,} bytes",
            "guarantee": f"{sku.precision_guarantee.accumulator} sums, "
            + ("same bits every run" if self.precision_guarantee.deterministic else "bits may differ between runs"),
        }

    def __repr__(self) -> str:
        rows = self._rows()
        return (
            f"<{type(self).__name__} {rows['op']} {rows['dtype']} {rows['shape']} on {rows['device']}: kernel {rows['kernel']}>"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        cells = "".join(
            f'<tr><th style="text-align:left">{html.escape(k)}</th><td style="text-align:left">{html.escape(v)}</td></tr>'
            for k, v in self._rows().items()
        )
        return {"text/plain": repr(self), "text/html": f"<table>{cells}</table>"}


_torch_types: set[type] = set()
"""torch.Tensor and torch.nn.Parameter, once a tensor has come by and this torch has the DLPack exchange API."""

_bump: Callable[[Any], None]
"""torch's increment_version, which tells autograd that saved tensors were overwritten."""


def _check_torch(plan: Plan[Any], name: str, x: Any, out: bool) -> None:
    """Refuse what the exchange API lends without a word: autograd outputs, lazy negation, a storage that shrank."""
    if out and x.requires_grad:
        raise errors.make(
            "invalid_problem", plan.sku.op, name, "free of autograd", "a tensor that requires grad", f"pass {name}.detach()"
        )
    try:
        if x.is_neg():
            raise errors.make(
                "unsupported", plan.sku.op, name, "plain memory", "a lazily negated view", f"pass {name}.resolve_neg()"
            )
        storage = x.untyped_storage().nbytes()
        if storage == x.nbytes and not x.storage_offset():
            return
        reach = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + x.storage_offset() + 1
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, errors.Error):
            raise
        got = str(error).partition("\n")[0] if x.layout is _strided else f"a {x.layout} tensor"
        raise errors.make("unsupported", plan.sku.op, name, "a strided tensor with memory of its own", got) from None
    if reach * x.itemsize > storage > 0 and x.numel():
        refusal = errors.make(
            "buffer_too_small",
            plan.sku.op,
            name,
            f"inside its storage: {reach * x.itemsize} bytes",
            f"{storage} bytes",
            "the storage was resized after the view was made",
        )
        refusal.needed, refusal.got = reach * x.itemsize, storage  # type: ignore[attr-defined]
        raise refusal


_strided: Any = None


def _readable(plan: Plan[Any], name: str, x: Any, out: bool, stream: int | None) -> Any:
    """x itself where its type has the DLPack exchange API, otherwise a DLPack capsule."""
    op = plan.sku.op
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        _meet(torch)
        if type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise errors.make("unsupported", op, name, "a strided tensor with memory of its own", f"a {type(x).__name__}")
        _check_torch(plan, name, x, out)
        if hasattr(type(x), "__dlpack_c_exchange_api__"):
            return x
        x = x.detach()
    if isinstance(x, type) or not hasattr(x, "__dlpack__"):
        raise errors.make("type", op, name, "an array that speaks DLPack", f"a {type(x).__name__}")
    if out and type(x).__module__.startswith("jax"):
        raise errors.make("invalid_problem", op, name, "writable", "a JAX array, which is immutable")
    options: dict[str, Any] = {}
    if plan.device != "cpu" and device_of(x) != "cpu":
        options["stream"] = stream if stream is not None and stream > 0 else 1  # 1 is the legacy default stream
    try:
        try:
            return x.__dlpack__(max_version=(1, 1), **options)
        except TypeError:  # a producer from before DLPack 1.0
            return x.__dlpack__(**options)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise errors.make("unsupported", op, name, "an array that its library can lend", reason) from None


def _meet(torch: Any) -> None:
    """Remember torch's types the first time that a tensor comes by."""
    global _bump, _strided
    if _strided is not None:
        return
    _strided, increment = torch.strided, torch.autograd.graph.increment_version

    def bump(written: list[Any]) -> None:
        try:
            increment(written)
        except RuntimeError:  # some are inference tensors, which have no version
            increment([x for x in written if not x.is_inference()])

    _bump = bump
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        _torch_types.update((torch.Tensor, torch.nn.Parameter))


def _stream_handle(stream: Any) -> int:
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


def outputs(plan: Plan[Any], dy: Array, rows: Sequence[tuple[str, tuple[int, ...], str | None]], out: Any) -> dict[str, Array]:
    """The outputs of a function by name: those that the caller gave, or new ones of dy's library.

    rows: name, shape and dtype of each (None: dy's dtype).
    """
    if out is not None:
        given = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        if len(given) != len(rows):
            names = ", ".join(name for name, _, _ in rows)
            raise errors.make("invalid_problem", plan.sku.op, "out", f"{len(rows)} arrays ({names})", str(len(given)))
        return {name: x for (name, _, _), x in zip(rows, given, strict=True)}
    library = producer(dy, plan.sku.op)
    shape = tuple(dy.shape)
    return {
        name: library.empty_like(dy)
        if size == shape and dtype is None
        else library.empty(size, dtype or plan.sku.element, plan.device)
        for name, size, dtype in rows
    }


def info() -> dict[str, Any]:
    """What is here: versions, backends, devices, the kernel image (architectures, hashes, nvcc) and the number of threads."""
    facts: dict[str, Any] = json.loads(_native().pybind_Info())
    facts["python"] = sys.version.split()[0]
    facts["torch"] = getattr(sys.modules.get("torch"), "__version__", None)
    if os.environ.get("STERNWAY_BACKEND") == "cpu":
        facts.update(backends=["cpu"], devices=[], driver="hidden by STERNWAY_BACKEND=cpu")
    return facts


def set_num_threads(n: int) -> None:
    """Set how many threads one run on the CPU may use. Results do not depend on it.

    Raises:
        InvalidProblemError: n < 1.
    """
    try:
        _native().pybind_SetNumThreads(n)
    except RuntimeError as error:
        _raise(error)


def get_num_threads() -> int:
    """How many threads one run on the CPU may use: by default the CPUs of this process, or STERNWAY_NUM_THREADS."""
    return int(_native().pybind_GetNumThreads())
