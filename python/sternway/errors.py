"""The errors that sternway raises.

Each says what was asked of which operand, and reads as one sentence:
``lerp_backward: weight must be float32 like dy, got float64; convert it with weight.to(dy.dtype)``.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


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
    _got_text: str = ""


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


def one_line(text: str, limit: int) -> str:
    """Text of any origin as part of one readable line: control characters are escaped, and what is too long is cut."""
    if len(text) <= limit and text.isprintable():
        return text
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: limit + 1])
    return line if len(line) <= limit else line[:limit] + "..."


def shown(value: Any) -> str:
    """A value that came from outside, as a message shows it: a name as it is, other text quoted, anything by its repr."""
    try:
        if isinstance(value, str):
            return one_line(str.__str__(value) if value.isidentifier() else str.__repr__(value[:200]), 80)
        return one_line(repr(value), 80)
    except Exception:  # a repr that raises, as that of an integer of many digits or of a list in lists without end
        return f"an object of type {type(value).__name__}"


def reason(error: BaseException) -> str:
    """The first line of what an error of another library says."""
    try:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    except Exception:  # its __str__ raised
        return type(error).__name__


def _sentence(error: Error) -> str:
    hint = f"; {error.hint}" if error.hint else ""
    return f"{error.op}: {error.operand} must be {error.wanted}, got {error._got_text}{hint}"


def make(kind: str, op: str, operand: str, wanted: str, got: str, hint: str = "") -> Error:
    """An error of a kind, in the words that the core uses. Every part is made one line, and text of others is cut."""
    error = _CLASSES.get(kind, Error)()
    error.op, error.operand, error.got = one_line(op, 80), one_line(operand, 80), one_line(got, 160)
    error.wanted, error.hint = one_line(wanted, 300), one_line(hint, 300)
    error._got_text = error.got
    error.args = (_sentence(error),)
    return error


def renamed(error: Error, op: str, operands: Mapping[str, str] | None = None) -> Error:
    """The error in the words of the function that the user called.

    Args:
        error: raised by the plan that the function runs.
        op: the name of the function, such as ``cumprod_backward`` or ``sternway.torch.lerp``.
        operands: what the function calls an operand, by the plan's name for it. Names are replaced in all parts of the
            sentence except what was got.
    """
    names = operands or {}
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b") if names else None

    def in_its_words(text: str) -> str:
        return pattern.sub(lambda name: names[name[0]], text) if pattern else text

    error.op, error.operand = op, in_its_words(error.operand)
    error.wanted, error.hint = in_its_words(error.wanted), in_its_words(error.hint)
    error.args = (_sentence(error),)
    return error


def reported_as(op: str, operands: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Decorate a public function: errors of the plan that it runs name the function and its own operands.

    Args:
        op, operands: as for :func:`renamed`.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def reporting(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Error as error:
                raise renamed(error, op, operands) from error.__cause__

        return cast(F, reporting)

    return decorate


def native_error(text: str) -> Error:
    """The error that the core wrote as JSON."""
    try:
        fields = json.loads(text)
    except ValueError:
        return Error(one_line(text, 300))
    error = make(fields["kind"], *(fields[name] for name in ("op", "operand", "wanted", "got", "hint")))
    if isinstance(error, _SizeError):
        error.needed, error.got = fields["needed"], fields["got_bytes"]
    if isinstance(error, DeviceError):
        error.status = fields["status"]
    return error
