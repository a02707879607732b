"""Plans: a kernel selected for a descriptor on a device, and its runs."""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from . import _library, errors
from ._arrays import Array, device_name, producer
from ._descriptor import Descriptor
from ._hints import hint_of
from ._lent import is_jax, speaks_dlpack
from ._operands import borrow, count_writes, store_torch, stream_handle
from ._show import table
from ._sku import KernelSku, PlanPreference, PrecisionGuarantee, rows_of
from ._types import DLPackArray

D = TypeVar("D", bound=Descriptor)
P = TypeVar("P", bound="Plan[Any]")

_is_contiguous: Callable[[Any], bool] = operator.methodcaller("is_contiguous")  # of a tensor of torch


def cached(find: Callable[..., P], *fields: Any) -> P:
    """The plan of some fields from a cache. A field without a hash goes past the cache, to the descriptor, which refuses it.

    Args:
        find: a function with functools.lru_cache.
    """
    try:
        return find(*fields)
    except (TypeError, ValueError) as error:  # of a hash, that of a memoryview among them; or the error of the plan
        if isinstance(error, errors.Error):
            raise
        return find.__wrapped__(*fields)  # type: ignore[attr-defined,no-any-return]


class Plan(Generic[D]):
    """A kernel selected for one descriptor on one device. ``select`` makes a plan.

    A plan is immutable, hashable and equal by its descriptor, device and preference. Any number of threads may run it at once.

    Attributes:
        descriptor: the problem.
        device: the name of the device, ``"cpu"`` or ``"cuda:N"``.
        preference: the :class:`PlanPreference` that it was selected with.
        workspace_size: bytes of scratch memory that suffice for every run.
        sku: the selected kernel, a :class:`KernelSku`.
        precision_guarantee: a :class:`PrecisionGuarantee`.
    """

    descriptor_type: ClassVar[type[Descriptor]]
    _required: ClassVar[tuple[str, ...]] = ()  # operands that run requires, although the kernel can do without

    descriptor: D
    device: str
    preference: PlanPreference
    workspace_size: int
    sku: KernelSku
    precision_guarantee: PrecisionGuarantee
    _handle: int
    _names: tuple[str, ...]  # of the operands, in order, and the workspace
    _inputs: int  # how many of them are: the first ones
    _outputs: tuple[str, ...]
    _needs: dict[tuple[str, ...], tuple[int, int]]  # what _workspace_needs found
    _facts: dict[str, Any]

    @classmethod
    def select(cls: type[P], descriptor: D, device: Any = "cpu", preference: PlanPreference | None = None) -> P:
        """Check a descriptor and select a kernel. This may be slow (loading kernels, reading the device); ``run`` is quick.

        Args:
            descriptor: a problem of this plan's family.
            device: ``"cpu"``, ``"cuda"``, ``"cuda:N"``, or an object with ``.type`` and ``.index``, such as a torch.device.
            preference: None: a deterministic kernel with a workspace of any size.

        Returns:
            a plan of this class.

        Raises:
            InvalidProblemError: a descriptor that contradicts itself.
            UnsupportedError: a dtype, option or preference that no kernel has, or a device that is not there; the message says
                whether the driver, the device or a kernel image for its architecture is missing.
            DeviceError: the CUDA driver reported an error.
            TypeError: a descriptor of another family, or a preference of another class.

        Example:
            >>> import sternway as sw
            >>> descriptor = sw.LerpBackwardDescriptor(shape=(4, 8), dtype="float32", weight=0.5)
            >>> sw.LerpBackwardPlan.select(descriptor, device="cpu").device
            'cpu'
        """
        if not isinstance(descriptor, cls.descriptor_type):
            raise TypeError(f"{cls.__name__} takes a {cls.descriptor_type.__name__}, not a {type(descriptor).__name__}")
        if preference is None:
            preference = PlanPreference()
        elif not isinstance(preference, PlanPreference):
            raise TypeError(f"a preference is a PlanPreference or None, not a {type(preference).__name__}")
        try:
            where = device_name(device)
        except errors.Error as error:
            raise errors.renamed(error, descriptor.family) from None
        if where != "cpu" and os.environ.get("STERNWAY_BACKEND") == "cpu":
            raise errors.make("unsupported", descriptor.family, "device", "cpu, as STERNWAY_BACKEND=cpu hides the GPU", where)
        chosen = json.dumps({**dataclasses.asdict(preference), "kernel": preference.kernel or ""})
        library = _library.load()
        try:
            handle = library.pybind_Select(descriptor.to_json(), where, chosen)
            facts = json.loads(library.pybind_Describe(handle))
        except RuntimeError as error:
            _library.raise_error(error, descriptor.family)
        guarantee = PrecisionGuarantee(**facts["sku"].pop("precision_guarantee"))
        names = tuple(sys.intern(name) for name in (*(o["name"] for o in facts["operands"]), "workspace"))
        plan = cls.__new__(cls)
        plan.__dict__.update(
            descriptor=descriptor,
            device=facts["device"],
            preference=preference,
            workspace_size=facts["workspace_size"],
            _needs={},
            sku=KernelSku(**facts["sku"], precision_guarantee=guarantee),
            precision_guarantee=guarantee,
            _handle=handle,
            _names=names,
            _inputs=sum(not o["out"] for o in facts["operands"]),
            _outputs=tuple(o["name"] for o in facts["operands"] if o["out"]),
            _facts=facts,
        )
        _library.log.info("selected %r", plan)
        return plan

    def __init__(self) -> None:
        raise TypeError(f"use {type(self).__name__}.select")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __del__(self) -> None:
        if "_handle" in self.__dict__ and sys is not None and not sys.is_finalizing():
            try:
                _library.load().pybind_Release(self._handle)
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

    def can_implement(
        self, *_positional: NoReturn, workspace: DLPackArray | None = None, **operands: DLPackArray | None
    ) -> None:
        """Raise the error that ``run`` would raise for these operands; launch nothing.

        Args:
            workspace: as for ``run``; None: one is allocated, too.
            **operands: arrays by name, as for ``run``.

        Returns:
            None: ``run`` accepts these operands.

        Raises:
            Error: of the class and with the message of the error that ``run`` would raise.

        Example:
            >>> import numpy as np, sternway as sw
            >>> plan = sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor((3,), "float32", weight=0.5))
            >>> plan.can_implement(dy=np.ones(3, np.float32), da=np.empty(4, np.float32))
            Traceback (most recent call last):
            sternway.errors.InvalidProblemError: lerp_backward: da must be of shape [3], got [4]
        """
        if _positional:
            self._refuse_positions(len(_positional))
        self._require(operands)
        if workspace is None and (size := self._workspace_bytes(operands)):
            workspace = self._new_workspace(size, operands, None)
        operands["workspace"] = workspace
        held = self._held(operands, None)
        try:
            _library.load().pybind_CanImplement(self._handle, id(held))
        except RuntimeError as error:
            _library.raise_error(error, hint_of=hint_of(operands))

    def run(
        self, *_positional: NoReturn, workspace: DLPackArray | None = None, stream: Any = None, **operands: DLPackArray | None
    ) -> None:
        """Check the operands and launch the kernel. Every element of each output is overwritten; a plan with an optimizer
        updates its outputs in place.

        Nothing is allocated on the device but a workspace, if ``workspace_size`` is not 0 and none is given. On a GPU the
        launch is asynchronous and can be captured in a CUDA graph.

        Args:
            workspace: a uint8 array of ``workspace_size`` bytes or more on the plan's device, aligned to 256 bytes. None: one
                is allocated by the library of the first operand (not JAX), unless no layout of these operands needs it.
            stream: a CUDA stream: an integer handle, or an object with ``.cuda_stream``, ``.ptr`` or ``__cuda_stream__``. None:
                the current stream of the operands' library. Ignored on the CPU, where the run has finished when this returns.
            **operands: arrays by name, which the class of the plan lists; of any library that exports DLPack and, for outputs,
                can be written to.

        Raises:
            InvalidProblemError: a missing, unexpected or overlapping operand, or one of another shape, dtype or device; an
                operand that requires grad or has a tangent, where torch records; on the CPU also an index out of range.
            UnsupportedError: an array that is not plain numbers in strides, or has too many dimensions.
            BufferTooSmallError: a view that reaches outside its storage.
            MisalignedOperandError: an address that is no multiple of the element size, or a workspace not aligned to 256 bytes.
            WorkspaceTooSmallError: a workspace of fewer bytes than these operands need; ``workspace_size`` is always enough.
            DeviceError: the CUDA driver reported an error; outputs may be partly written. No other error writes any output.
            TypeError: an operand that is no array, or that is given by position.

        Example:
            >>> import numpy as np, sternway as sw
            >>> plan = sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor((3,), "float32", weight=0.25))
            >>> dy, da = np.ones(3, np.float32), np.empty(3, np.float32)
            >>> plan.run(dy=dy, da=da)
            >>> da
            array([0.75, 0.75, 0.75], dtype=float32)
        """
        if _positional:
            self._refuse_positions(len(_positional))
        if self._required:
            self._require(operands)
        handle = -1 if stream is None or self.device == "cpu" else stream_handle(self.sku.op, stream)
        if _library.log_runs:
            _library.log.debug("run %s on %s", self.sku.op, self.device)
        if workspace is None and self.workspace_size and (size := self._workspace_bytes(operands)):
            workspace = self._new_workspace(size, operands, stream)
        if workspace is not None:
            operands["workspace"] = workspace
        outcome = _library.run_fast_path(self._handle, self._names, self._inputs, False, operands, handle)
        if outcome == _library.RAN:
            return
        if outcome == _library.NOT_RUN:
            held = self._held(operands, handle)
            try:
                _library.run(self._handle, id(held), handle)
            except RuntimeError as error:
                _library.raise_error(error, hint_of=hint_of(operands))
        count_writes(operands.get(name) for name in self._outputs)

    def _refuse_positions(self, count: int) -> NoReturn:
        """Raise OperandTypeError for operands that were given by position."""
        known, hint = ", ".join(self._names[:-1]), f"write {self._names[0]}=..., {self._outputs[0]}=..."
        raise errors.make("type", self.sku.op, "operands", f"given by name: {known}", f"{count} by position", hint)

    def _require(self, operands: dict[str, Any]) -> None:
        """Raise InvalidProblemError if an operand of ``_required`` is not given."""
        for name in self._required:
            if operands.get(name) is None:
                raise errors.make("invalid_problem", self.sku.op, name, "given", "nothing")

    def _run_plain(self, operands: dict[str, Any]) -> bool:
        """Run on plain tensors of torch, given by name, on torch's current stream; for callers that count microseconds.

        The dict may get a workspace. Inputs may require grad, as the callers are autograd functions, which torch records.

        Returns:
            whether it ran. False: nothing was written, and ``run`` takes these operands or says what is wrong with them.
        """
        if _library.log_runs:
            return False
        if size := self._workspace_bytes(operands, _is_contiguous):
            operands["workspace"] = operands[self._names[0]].new_empty(size, dtype=sys.modules["torch"].uint8)
        outcome = _library.run_fast_path(self._handle, self._names, self._inputs, True, operands, -1)
        if outcome == _library.NOT_RUN:
            return False
        if outcome != _library.RAN:
            count_writes(operands.get(name) for name in self._outputs)
        return True

    def _held(self, operands: dict[str, Any], stream: int | None) -> tuple[Any, ...]:
        """The workspace and the operands in the plan's order, as objects that the native library can read."""
        for name in operands:
            if type(name) is not str or name not in self._names:  # a subclass of str may equal many names
                known, shown = ", ".join(self._names[:-1]), errors.shown(name)
                got = "an unexpected operand" if type(name) is str else f"a name of the class {type(name).__name__}"
                raise errors.make("invalid_problem", self.sku.op, shown, f"one of {known}", got)
        _library.run_fast_path = store_torch(operands.values(), _library.load()) or _library.run_fast_path

        def readable(name: str) -> Any:
            x = operands.get(name)
            written = name in self._outputs or name == "workspace"
            return x if x is None else borrow(self.sku.op, self.device, name, x, written, stream)

        *read, workspace = map(readable, self._names)  # an error names an operand of the caller first
        return workspace, *read

    def _workspace_bytes(self, operands: Mapping[str, Any], is_contiguous: Callable[[Any], bool] | None = None) -> int:
        """How many bytes of workspace a run needs.

        Args:
            operands: of the run, by name; None counts as left out.
            is_contiguous: tells whether an operand is contiguous. None: unknown, so the answer suffices for all layouts.
        """
        if not self.workspace_size:
            return 0
        given = tuple([name for name, x in operands.items() if x is not None])
        needs = self._needs.get(given)
        if needs is None:
            needs = self._needs[given] = self._workspace_needs(given)
        always, if_contiguous = needs
        if always == if_contiguous or not is_contiguous:
            return always
        return if_contiguous if all(is_contiguous(operands[name]) for name in given) else always

    def _workspace_needs(self, given: Iterable[str]) -> tuple[int, int]:
        """Bytes of workspace that suffice for operands of any layout and for contiguous ones. Unknown names are ignored."""
        bits = sum(1 << self._names.index(name) for name in given if name in self._names)
        need = _library.load().pybind_WorkspaceNeed
        return need(self._handle, bits, 0), need(self._handle, bits, 1)

    def _new_workspace(self, size: int, operands: dict[str, Any], stream: Any) -> Array | None:
        """A workspace of ``size`` bytes by the library of the first operand that can make one; None: no operand can."""
        given = (operands.get(name) for name in self._names)
        first = next((x for x in given if speaks_dlpack(x) and not is_jax(x)), None)
        if first is None:
            return None
        workspace = producer(first, self.sku.op).empty((size,), "uint8", self.device)
        if stream is not None and self.device != "cpu" and hasattr(workspace, "record_stream"):
            torch = sys.modules["torch"]
            handle = stream_handle(self.sku.op, stream)
            workspace.record_stream(torch.cuda.ExternalStream(handle, device=self.device))
        return workspace

    def __repr__(self) -> str:
        rows = rows_of(self)
        op, dtype, shape, device = (rows.pop(name) for name in ("op", "dtype", "shape", "device"))
        return f"<{type(self).__name__} {op} {dtype} {shape} on {device}: {'; '.join(f'{k} {v}' for k, v in rows.items())}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": table(rows_of(self))}
