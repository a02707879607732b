"""The errors that sternway raises.

Each is one sentence with the call, the operand, the value wanted and the value got:
``lerp_backward: weight must be float32 like dy, got float64; convert it with weight.to(dy.dtype)``.

An object that is no array at all raises an :class:`OperandTypeError`, an :class:`Error` that is also a ``TypeError``.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

__all__ = [
    "BufferTooSmallError",
    "DeviceError",
    "Error",
    "InvalidProblemError",
    "MisalignedOperandError",
    "UnsupportedError",
    "WorkspaceTooSmallError",
]

F = TypeVar("F", bound=Callable[..., Any])


class Error(Exception):
    """Base class of every error of sternway.

    Its subclasses are also of a class of Python, so that ``except ValueError`` and the like keep working.

    Attributes:
        op: the name of the function, drop-in or plan that was called, such as ``"lerp_backward"``.
        operand: the name of the operand or option that was refused.
        wanted: a description of the valid values.
        got: a description of the value given; for the errors about sizes, a number of bytes.
        hint: advice for a fix; empty if there is none.

    Example:
        >>> import numpy as np, sternway as sw
        >>> try:
        ...     sw.cumprod_backward(np.ones(3, np.float32), np.ones(3, np.float64))
        ... except sw.Error as error:
        ...     print(error)
        ...     print([error.op, error.operand, error.wanted, error.got])
        cumprod_backward: x must be float32 like dy, got float64; convert it with x.astype(dy.dtype)
        ['cumprod_backward', 'x', 'float32 like dy', 'float64']
    """

    op: str = ""
    operand: str = ""
    wanted: str = ""
    got: Any = ""
    hint: str = ""
    _got_text: str = ""


class UnsupportedError(Error, NotImplementedError):
    """No kernel has this dtype, device, memory layout, number of dimensions or option. Also a ``NotImplementedError``.

    Attributes: the attributes of :class:`Error`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.lerp_backward(np.ones(3, np.int64), 0.5)
        Traceback (most recent call last):
        sternway.errors.UnsupportedError: lerp_backward: dy must be float32, float64, float16 or bfloat16, got int64
    """


class InvalidProblemError(Error, ValueError):
    """A descriptor or an operand contradicts itself or the others. Also a ``ValueError``.

    Raised for a wrong shape, dtype or device of an operand, a missing or unexpected operand, an output that overlaps another
    operand or is read-only, and, on the CPU or under STERNWAY_CHECK=1, an index out of range. Functions of arrays and plans
    raise it for a tensor of torch that autograd records, since its gradient would be lost.

    Attributes: the attributes of :class:`Error`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> sw.cumsum_backward(np.ones(3), dim=1)
        Traceback (most recent call last):
        sternway.errors.InvalidProblemError: cumsum_backward: dim must be between -1 and 0, got 1
    """


class SizeError(Error, ValueError):
    """Base class of the errors about numbers of bytes."""

    needed: int = 0
    """Bytes that are needed."""


class BufferTooSmallError(SizeError):
    """A view reaches outside the storage that its library says it has. Also a ``ValueError``.

    Attributes:
        needed: bytes from the start of the storage to the end of the view.
        got: bytes of the storage.

    It also has the attributes of :class:`Error`.

    Example:
        >>> import torch, sternway as sw
        >>> dy = torch.ones(4)
        >>> _ = dy.untyped_storage().resize_(8)  # bytes, half of what dy needs
        >>> try:
        ...     sw.cumsum_backward(dy)
        ... except sw.BufferTooSmallError as error:
        ...     print(error.operand, error.needed, error.got)
        dy 16 8
    """


class WorkspaceTooSmallError(SizeError):
    """The workspace has fewer bytes than the operands of this run need. Also a ``ValueError``.

    Attributes:
        needed: ``plan.workspace_size``, the bytes that suffice for every run.
        got: bytes of the workspace that was given.

    It also has the attributes of :class:`Error`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> plan = sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor((3,), "float32", weight=0.5))
        >>> dy, da, workspace = np.ones(3, np.float32), np.empty(3, np.float32), None
        >>> try:
        ...     plan.run(dy=dy, da=da, workspace=workspace)
        ... except sw.WorkspaceTooSmallError as error:
        ...     workspace = np.empty(error.needed, np.uint8)
        >>> da
        array([0.5, 0.5, 0.5], dtype=float32)
    """


class MisalignedOperandError(Error, ValueError):
    """An address is no multiple of the element size in bytes, or of 256 bytes for a workspace. Also a ``ValueError``.

    Attributes: the attributes of :class:`Error`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> buffer = np.zeros(13, np.uint8)
        >>> sw.cumsum_backward(buffer[1:].view(np.float32))
        Traceback (most recent call last):
        sternway.errors.MisalignedOperandError: cumsum_backward: dy must be at an address that is a multiple of 4, got 0x...
    """


class DeviceError(Error, RuntimeError):
    """The CUDA driver reported an error. Also a ``RuntimeError``.

    The outputs of the call may be partly written. After an error such as ``CUDA_ERROR_ILLEGAL_ADDRESS`` the CUDA context of the
    process is lost, and only a new process can use the device again.

    Attributes:
        status: the driver's name of the error, such as ``"CUDA_ERROR_OUT_OF_MEMORY"``.

    It also has the attributes of :class:`Error`.

    Example:
        >>> import numpy as np, sternway as sw
        >>> try:
        ...     sw.cumsum_backward(np.ones(3))
        ... except sw.DeviceError as error:  # never on the CPU
        ...     print(error.status, error.hint)
        array([3., 2., 1.])
    """

    status: str = ""


class OperandTypeError(Error, TypeError):
    """An operand is no array at all, or is given by position where operands have names. Also a ``TypeError``."""


class VersionError(UnsupportedError, ImportError):
    """Another library is too old for the module that was imported. Also an ``ImportError``."""


_CLASSES: dict[str, type[Error]] = {
    "unsupported": UnsupportedError,
    "invalid_problem": InvalidProblemError,
    "buffer_too_small": BufferTooSmallError,
    "misaligned": MisalignedOperandError,
    "workspace_too_small": WorkspaceTooSmallError,
    "device": DeviceError,
    "type": OperandTypeError,
    "version": VersionError,
}


def one_line(text: str, limit: int) -> str:
    """Text of any origin for a one-line message: control characters are escaped, and long text is cut."""
    if len(text) <= limit and text.isprintable():
        return text
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: limit + 1])
    return line if len(line) <= limit else line[:limit] + "..."


def shown(value: Any) -> str:
    """A foreign value for a message: an identifier as it is, other text quoted, any other object by its repr."""
    try:
        if isinstance(value, str):
            return one_line(str.__str__(value) if value.isidentifier() else str.__repr__(value[:200]), 80)
        return one_line(repr(value), 80)
    except Exception:  # a repr that raises, as that of an integer of many digits or of a list in lists without end
        return f"an object of type {type(value).__name__}"


def reason(error: BaseException) -> str:
    """The first line of the message of another library's error."""
    try:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    except Exception:  # its __str__ raised
        return type(error).__name__


def any_of(names: Sequence[str]) -> str:
    """Names as in "a, b or c"."""
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _sentence(error: Error) -> str:
    hint = f"; {error.hint}" if error.hint else ""
    return f"{error.op}: {error.operand} must be {error.wanted}, got {error._got_text}{hint}"


def make(kind: str, op: str, operand: str, wanted: str, got: str, hint: str = "") -> Error:
    """Make an error of a kind of the Go core, with its sentence. Every part is reduced to one line, and long text is cut."""
    error = _CLASSES.get(kind, Error)()
    error.op, error.operand, error.got = one_line(op, 80), one_line(operand, 80), one_line(got, 160)
    error.wanted, error.hint = one_line(wanted, 300), one_line(hint, 300)
    error._got_text = error.got
    error.args = (_sentence(error),)
    return error


_PLAIN_WORDS = frozenset(("dtype", "shape", "total"))
"""Fields of descriptors that are also words of sentences, so that they are renamed only where they are the operand."""


def _words(names: Iterable[str]) -> re.Pattern[str]:
    """Finds names, but no attributes, as in ``dy.dtype``."""
    return re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, names)) + r")\b")


def renamed(error: Error, op: str, operands: Mapping[str, str] | None = None) -> Error:
    """The error with the names of the function that the user called, and of its operands.

    Args:
        error: raised by the plan that the function runs.
        op: the name of the function, such as ``cumprod_backward`` or ``sternway.torch.lerp``.
        operands: what the function calls an operand, by the plan's name for it, or for the field of a descriptor that was read
            off it. Names are replaced in all parts of the sentence except what was got.
    """
    error.op = op
    if names := dict(operands or {}):
        error.operand = _words(names).sub(lambda name: names[name[0]], error.operand)
    if names := {ours: theirs for ours, theirs in names.items() if ours not in _PLAIN_WORDS}:
        pattern = _words(names)
        error.wanted, error.hint = (pattern.sub(lambda name: names[name[0]], text) for text in (error.wanted, error.hint))
    error.args = (_sentence(error),)
    return error


def reported_as(op: str, operands: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Decorate a public function: errors of the plan that it runs name the function and its operands.

    Args:
        op, operands: as for :func:`renamed`.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def reporting(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Error as error:
                renamed(error, op, operands)
                raise

        return cast(F, reporting)

    return decorate


HintOf = Callable[[Mapping[str, str], str], "str | None"]
"""The hint that replaces that of the Go core, from the core's fix and the name of the operand; None: the core's stays."""


def native_error(text: str, hint_of: HintOf | None = None) -> Error:
    """The error for a message of the Go core, which is JSON.

    Args:
        text: the message.
        hint_of: writes the hint of a fix; None: the core's own hint stays.
    """
    try:
        fields = json.loads(text)
    except ValueError:
        return Error(one_line(text, 300))
    if hint_of and "fix" in fields:
        fields["hint"] = hint_of(fields["fix"], fields["operand"]) or fields["hint"]
    error = make(fields["kind"], *(fields[name] for name in ("op", "operand", "wanted", "got", "hint")))
    if isinstance(error, SizeError):
        error.needed, error.got = fields["needed"], fields["got_bytes"]
    if isinstance(error, DeviceError):
        error.status = fields["status"]
    return error
