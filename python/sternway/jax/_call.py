"""Plans as calls in programs of XLA.

A call names a target that :func:`register` gave to XLA, and has one attribute: the problem and the names of its buffers as
JSON. The native library selects the plan when it first meets the attribute on a device (pybind/xla), so that a compiled program
may be stored and run by another process. Plans that are selected here check operands and give the size of the workspace.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import sternway

from .. import _library, errors
from .._hints import in_code
from .._plan import Plan
from ._mesh import axes_of, varying

Array = Any
"""An array of JAX, or a tracer."""

PlanType = Any
"""A class of plans."""

Shaped = tuple[tuple[int, ...], Any]
"""The shape and the dtype of an output."""

Struct: Any = jax.ShapeDtypeStruct
"""A shape and a dtype as JAX states them."""


class _Operand(NamedTuple):
    """An input or output of a plan."""

    name: str
    shape: tuple[int, ...]
    dtype: Any  # of NumPy; that of an output may be one that JAX does not have, int64


TARGET = "sternway"

_SPARE_WORKSPACE = 256
"""Bytes by which a workspace is larger than its plan needs, as XLA aligns buffers to less than the 256 bytes of a workspace."""


@functools.cache
def register() -> None:
    """Give XLA the handlers of the native library."""
    library = _library.load()
    for platform in ("cpu", "CUDA"):
        address = library.pybind_XLAHandler(platform, _minor_version())
        stages = ("execute",) if platform == "cpu" else ("initialize", "execute")  # initialize loads the kernels
        handlers = {stage: jax.ffi.pycapsule(address) for stage in stages}  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(TARGET, handlers, platform=platform)


def _minor_version() -> int:
    """The minor version of the foreign function interface of this jaxlib, from its header; the newest if it has none."""
    header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h")
    found = re.search(r"^#define XLA_FFI_API_MINOR (\d+)", header.read_text(), re.MULTILINE) if header.exists() else None
    return int(found[1]) if found else 1 << 30


def run(plan_type: PlanType, descriptor: Any, inputs: Mapping[str, Array | None], outputs: Mapping[str, Shaped]) -> Any:
    """Run a plan on arrays of JAX.

    Args:
        inputs: by the plan's names; None is left out.
        outputs: the outputs to compute.

    Returns:
        a tuple of the outputs; int64 as int32 unless JAX has 64-bit types.

    Raises:
        Error: of the plan, for operands of another shape or dtype; this is known when the call is traced.
    """
    given = {name: x for name, x in inputs.items() if x is not None}
    arrays = tuple(given.values())
    results = tuple(_Operand(name, tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in outputs.items())
    returned = tuple(jax.dtypes.canonicalize_dtype(result.dtype) for result in results)
    operands = tuple(_Operand(name, tuple(x.shape), x.dtype) for name, x in given.items())
    problem = descriptor.to_json()
    _check(plan_type, problem, operands + results)

    def by_handler(*arrays: Array, devices: tuple[str, ...]) -> tuple[Array, ...]:
        names = (*given, *outputs)
        size = max(_workspace(plan_type, problem, names, device) for device in devices)
        scratch = [Struct((size + _SPARE_WORKSPACE,), np.uint8)] if size else []
        call = jax.ffi.ffi_call(TARGET, [*(Struct(result.shape, result.dtype) for result in results), *scratch])
        text = _text(problem, (*names, "workspace") if size else names)
        found = call(*arrays, call=text)[: len(results)]
        return tuple(map(jax.lax.convert_element_type, found, returned))

    def by_callback(*arrays: Array) -> tuple[Array, ...]:
        types = [Struct(result.shape, dtype) for result, dtype in zip(results, returned, strict=True)]
        on_host = functools.partial(_on_host, plan_type, problem, tuple(given), results, returned)
        return tuple(jax.pure_callback(on_host, types, *arrays))

    def on_mesh(found: tuple[Array, ...]) -> tuple[Array, ...]:
        axes = axes_of(*map(jax.typeof, arrays))  # of the mesh of jax.shard_map, which ffi_call drops
        return tuple(varying(x, axes) for x in found)

    register()
    on_cpu = functools.partial(by_handler, devices=("cpu",))
    devices, on_cuda = _cuda_devices(), by_callback
    if not devices and jax.default_backend() == "cpu":
        return on_mesh(on_cpu(*arrays))
    if devices and _selectable(plan_type, problem, devices):
        on_cuda = functools.partial(by_handler, devices=devices)
    return on_mesh(jax.lax.platform_dependent(*arrays, cpu=on_cpu, cuda=on_cuda, default=by_callback))


def check(plan_type: PlanType, descriptor: Any, operands: Mapping[str, Shaped]) -> None:
    """Raise the error that a run of a plan would raise for operands of these shapes and dtypes, by name."""
    listed = tuple(_Operand(name, tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in operands.items())
    _check(plan_type, descriptor.to_json(), listed)


@functools.lru_cache(maxsize=1024)
def _plan(plan_type: PlanType, problem: str, device: str) -> Plan[Any]:
    plan: Plan[Any] = plan_type.select(plan_type.descriptor_type.from_json(problem), device)
    return plan


@functools.lru_cache(maxsize=4096)
def _check(plan_type: PlanType, problem: str, operands: tuple[_Operand, ...]) -> None:
    """Raise the error that a run of the plan would raise for operands of these shapes and dtypes."""
    plan = _plan(plan_type, problem, "cpu")
    text = json.dumps({name: [dtype.name, shape] for name, shape, dtype in operands})
    try:
        _library.load().pybind_CheckShapes(plan._handle, text)
    except RuntimeError as error:
        _library.raise_error(error, plan.sku.op, functools.partial(in_code, library_of=lambda _: "jax"))


def _workspace(plan_type: PlanType, problem: str, buffers: tuple[str, ...], device: str) -> int:
    """Bytes of workspace for a run with these operands, which are contiguous, as the buffers of XLA are."""
    plan = _plan(plan_type, problem, device)
    return plan._workspace_bytes(dict.fromkeys(buffers, True), is_contiguous=lambda _: True)


@functools.lru_cache(maxsize=4096)
def _text(problem: str, buffers: tuple[str, ...]) -> str:
    """The attribute of a call. The version, which nobody reads, keeps the programs of versions apart in caches."""
    call = {"version": sternway.__version__, "operands": buffers, "descriptor": json.loads(problem)}
    return json.dumps(call)


@functools.cache
def _cuda_devices() -> tuple[str, ...]:
    """The CUDA devices of JAX in this process."""
    try:
        return tuple(f"cuda:{device.local_hardware_id}" for device in jax.local_devices(backend="cuda"))
    except RuntimeError:  # JAX has no such backend
        return ()


@functools.lru_cache(maxsize=1024)
def _selectable(plan_type: PlanType, problem: str, devices: tuple[str, ...]) -> bool:
    """Whether every device has kernels. Where one has none, runs on CUDA devices go through the host, with a warning."""
    if os.environ.get("STERNWAY_BACKEND") == "cpu":
        return False
    try:
        for device in devices:
            _plan(plan_type, problem, device)
    except errors.UnsupportedError as error:
        _library.log.warning("calls on CUDA devices of JAX are computed on the host: %s", error)
        return False
    return True


def _on_host(
    plan_type: PlanType,
    problem: str,
    names: tuple[str, ...],
    results: tuple[_Operand, ...],
    returned: tuple[Any, ...],
    *arrays: Any,
) -> tuple[Any, ...]:
    """Run a plan of the CPU on arrays of any device of JAX.

    Args:
        names: of the arrays in the plan.
        results: the outputs of the plan.
        returned: the dtypes to which they are converted, one for each.
    """
    operands = dict(zip(names, map(np.asarray, arrays), strict=True))
    outputs = {name: np.empty(shape, dtype) for name, shape, dtype in results}
    _plan(plan_type, problem, "cpu").run(**operands, **outputs)
    return tuple(x.astype(dtype, copy=False) for x, dtype in zip(outputs.values(), returned, strict=True))
