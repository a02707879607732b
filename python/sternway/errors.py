"""The errors that sternway raises.

Each says what was asked of which operand, and reads as one sentence:
``lerp_backward: weight must be float32 like dy, got float64; convert it with weight.to(dy.dtype)``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn


class Error(Exception):
    """Base of every error of sternway.

    Attributes:
        op: the operation, such as ``lerp_backward``.
        operand: the operand or option that was refused.
        wanted: what it must be.
        got: what it was.
        hint: what to do about it; may be empty.
    """

    op: str = ""
    operand: str = ""
    wanted: str = ""
    got: Any = ""
    hint: str = ""


class UnsupportedError(Error, NotImplementedError):
    """A dtype, device, layout or option that no kernel has."""


class InvalidProblemError(Error, ValueError):
    """A descriptor or operand that contradicts itself or the descriptor."""


class _SizeError(Error, ValueError):
    needed: int = 0
    """Bytes that are needed."""


class BufferTooSmallError(_SizeError):
    """A view that reaches outside its storage. ``needed`` and ``got`` are in bytes."""


class WorkspaceTooSmallError(_SizeError):
    """A workspace of fewer bytes than ``plan.workspace_size``. ``needed`` and ``got`` are in bytes."""


class MisalignedOperandError(Error, ValueError):
    """An address that is no multiple of the element size, or of 256 for a workspace."""


class DeviceError(Error, RuntimeError):
    """The CUDA driver refused. ``status`` is its name of the refusal, such as ``CUDA_ERROR_ILLEGAL_ADDRESS``."""

    status: str = ""


class _OperandTypeError(Error, TypeError):
    """An object that is no array at all."""


_CLASSES: dict[str, type[Error]] = {
    "unsupported": UnsupportedError,
    "invalid_problem": InvalidProblemError,
    "buffer_too_small": BufferTooSmallError,
    "misaligned": MisalignedOperandError,
    "workspace_too_small": WorkspaceTooSmallError,
    "device": DeviceError,
    "type": _OperandTypeError,
}


def make(kind: str, op: str, operand: str, wanted: str, got: str, hint: str = "") -> Error:
    """An error of a kind, in the words that the core uses."""
    message = f"{op}: {operand} must be {wanted}, got {got}" + (f"; {hint}" if hint else "")
    error = _CLASSES.get(kind, Error)(message)
    error.op, error.operand, error.wanted, error.got, error.hint = op, operand, wanted, got, hint
    return error


def renamed(error: Error, op: str, operands: Mapping[str, str]) -> Error:
    """The error in the words of a function that calls the operation, and what it is given, by other names."""
    said = f"{error.op}: {error.operand} "
    error.op, error.operand = op, operands.get(error.operand, error.operand)
    error.args = (str(error).replace(said, f"{error.op}: {error.operand} ", 1),)
    return error


def raise_native(text: str) -> NoReturn:
    """Raise the error that the core wrote as JSON."""
    try:
        fields = json.loads(text)
    except ValueError:
        raise Error(text) from None
    error = make(fields["kind"], *(fields[name] for name in ("op", "operand", "wanted", "got", "hint")))
    if isinstance(error, _SizeError):
        error.needed, error.got = fields["needed"], fields["got_bytes"]
    if isinstance(error, DeviceError):
        error.status = fields["status"]
    try:
        raise error from None
    finally:
        del error  # no cycle through the traceback, which would keep the operands alive
