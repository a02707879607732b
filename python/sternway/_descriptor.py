"""Descriptors: frozen dataclasses that state a problem, are equal by value, and can be written as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import operator
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from . import errors
from ._arrays import dtype_name
from ._choices import CHOICES
from ._show import Shown

D = TypeVar("D", bound="Descriptor")

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

_MEANING = {
    "shape": "a sequence of integers of 64 bits",
    "dtype": "a name, a torch.dtype or a numpy.dtype",
    "float": "a number",
    "int": "an integer of 64 bits",
    "bool": "True or False",
    "str": "a name",
}

_NUMPY_BOOLS = ("bool", "bool_")
"""NumPy's names of the type of a truth value: of NumPy 2, and before."""

_LONGEST_SHAPE = 64
"""Extents of a shape that is looked at; the native library says how many dimensions there may be."""


def is_numpy_bool(value: Any) -> bool:
    """Whether a value is a truth value of NumPy."""
    return getattr(type(value), "__module__", None) == "numpy" and type(value).__name__ in _NUMPY_BOOLS


class _Required:
    """The default of a required field that follows a field with a default."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED: Any = _Required()


def _kind(field: dataclasses.Field[Any]) -> str:
    """The type of a field, as a key of _MEANING. A type that is none of them is a Literal of names."""
    for suffix in ("shape", "dtype"):
        if field.name.endswith(suffix):
            return suffix
    kind = str(field.type).partition(" ")[0]
    return kind if kind in _MEANING else "str"


def _integer(value: Any) -> int:
    if isinstance(value, bool) or is_numpy_bool(value):
        raise TypeError
    value = operator.index(int(value) if isinstance(value, float) and value.is_integer() else value)
    if not -(2**63) <= value < 2**63:
        raise OverflowError
    return int(value)


def _shape(value: Any) -> tuple[int, ...]:
    """The extents of a shape: a list, tuple, torch.Size or array of rank 1; not text, a mapping, a set or an iterator."""
    is_sequence = hasattr(value, "__len__") and hasattr(value, "__getitem__") and not hasattr(value, "keys")
    if not is_sequence or isinstance(value, (str, bytes, bytearray, memoryview)) or len(value) > _LONGEST_SHAPE:
        raise TypeError
    return tuple(_integer(operator.index(n)) for n in value)


def _number(value: Any) -> float:
    if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
        raise TypeError
    if not isinstance(value, numbers.Real) and not hasattr(type(value), "__float__"):  # text, and bytes, which float would take
        raise TypeError
    return math.nan if value != value else float(value)  # one NaN, so that a descriptor equals its copy


def _boolean(value: Any) -> bool:
    if is_numpy_bool(value):
        value = bool(value)
    if not isinstance(value, bool):
        raise TypeError
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return str.__str__(value)


def _dtype(value: Any) -> str:
    return _name(dtype_name(value))


_NORMALISERS: dict[str, Callable[[Any], Any]] = {
    "shape": _shape, "dtype": _dtype, "float": _number, "int": _integer, "bool": _boolean, "str": _name,
}  # fmt: skip


def normalized(op: str, operand: str, kind: str, value: Any) -> Any:
    """Convert a value to the one form in which it is compared, hashed and written as JSON.

    Args:
        op, operand: the names in an error.
        kind: a key of _MEANING.

    Raises:
        InvalidProblemError: a value of another kind.
    """
    try:
        return _NORMALISERS[kind](value)
    except Exception as error:  # of a value of any class
        raise errors.make("invalid_problem", op, operand, _MEANING[kind], errors.shown(value)) from error


def normalize_fields(op: str, instance: Any) -> None:
    """Normalize the fields of a frozen dataclass. A default of None is kept.

    Raises:
        InvalidProblemError: a field of another kind.
        TypeError: a required field that was not given.
    """
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if value is REQUIRED:
            raise TypeError(f"{type(instance).__name__}() missing a required argument: {field.name!r}")
        if value is None and field.default is None:
            continue
        object.__setattr__(instance, field.name, normalized(op, field.name, _kind(field), value))


@dataclasses.dataclass(frozen=True)
class Descriptor(Shown):
    """Base class of the descriptors. Fields are converted when it is made: shapes to tuples of int, dtypes to names.

    An operation and its backward have the same fields, which a common base class declares. Neither descriptor derives from the
    other: a plan takes instances of its own descriptor only.

    Raises:
        InvalidProblemError: a field of another type. ``Plan.select`` checks numbers and shapes.
        UnsupportedError: a name that is none of those that the field takes.
        TypeError: a required field is missing.
    """

    family: ClassVar[str]

    def __post_init__(self) -> None:
        normalize_fields(self.family, self)
        for field, names in CHOICES.get(self.family, {}).items():
            value = getattr(self, field)
            if value is not None and value not in names:
                raise errors.make("unsupported", self.family, field, errors.any_of(names), errors.shown(value))

    def __reduce__(self) -> Any:
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def to_json(self) -> str:
        """Write the descriptor as JSON.

        Returns:
            the text of a JSON object with the fields and ``"family"``. NaN and infinities are the strings "nan", "inf" and
            "-inf".

        Example:
            >>> import sternway as sw
            >>> sw.UniqueRowsDescriptor(num_rows=9, total=5).to_json()
            '{"family": "unique_rows", "num_rows": 9, "total": 5, "index_dtype": "int64", "padding_idx": null}'
        """
        fields: dict[str, Any] = {"family": self.family}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            finite = not isinstance(value, float) or math.isfinite(value)
            fields[field.name] = value if finite else str(value)
        return json.dumps(fields)

    @classmethod
    def from_json(cls: type[D], text: str) -> D:
        """Read a descriptor from JSON.

        Args:
            text: the result of ``to_json``; a field that is left out has its default.

        Returns:
            a descriptor of this class.

        Raises:
            InvalidProblemError: text that is not such an object, or that names an unknown field or another family.

        Example:
            >>> import sternway as sw
            >>> sw.UniqueRowsDescriptor.from_json('{"num_rows": 9, "total": 5}').num_rows
            9
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            family = fields.pop("family", cls.family)
            number_fields = {f.name for f in dataclasses.fields(cls) if _kind(f) == "float"}
            if family == cls.family:
                return cls(**{k: _WORDS.get(v, v) if k in number_fields else v for k, v in fields.items()})
            got = f"family {errors.shown(family)}"
        except (AttributeError, RecursionError, TypeError, ValueError) as error:
            got = errors.reason(error)
        raise errors.make("invalid_problem", cls.family, "descriptor", f"the JSON of a {cls.__name__}", got)
