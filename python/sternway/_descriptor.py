"""Descriptors: frozen statements of a problem, equal by value, that travel as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from typing import Any, ClassVar, TypeVar

from . import errors
from ._arrays import dtype_name

D = TypeVar("D", bound="Descriptor")

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

_MEANING = {
    "shape": "a sequence of integers",
    "dtype": "a name, a torch.dtype or a numpy.dtype",
    "float": "a number",
    "int": "an integer of 64 bits",
    "bool": "True or False",
    "str": "a name",
}


def _kind(field: dataclasses.Field[Any]) -> str:
    """What a field holds, a key of _MEANING."""
    for suffix in ("shape", "dtype"):
        if field.name.endswith(suffix):
            return suffix
    return str(field.type).partition(" ")[0]


def _normalised(field: dataclasses.Field[Any], value: Any) -> Any:
    """value in the one form that compares, hashes and travels well."""
    kind = _kind(field)
    if kind == "shape":
        return tuple(operator.index(n) for n in value)
    if kind == "dtype":
        return dtype_name(value)
    if kind == "float":
        if isinstance(value, str):
            raise TypeError
        return math.nan if value != value else float(value)  # one NaN, so that a descriptor equals its copy
    if kind == "int":
        value = operator.index(int(value) if isinstance(value, float) and value.is_integer() else value)
        if not -(2**63) <= value < 2**63:
            raise OverflowError
    elif not isinstance(value, {"bool": bool, "str": str}[kind]):
        raise TypeError
    return value


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """One problem of a family. Fields are normalised: shapes to tuples of int, dtypes to names.

    Raises:
        InvalidProblemError: a field of another kind. What the values mean is checked by ``Plan.select``.
    """

    family: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            try:
                value = _normalised(field, value)
            except (TypeError, ValueError, OverflowError) as error:
                raise errors.make(
                    "invalid_problem", self.family, field.name, _MEANING[_kind(field)], f"{value!r:.80}"
                ) from error
            object.__setattr__(self, field.name, value)

    def __reduce__(self) -> Any:
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def to_json(self) -> str:
        """A JSON object with the fields and ``"family"``; NaN and infinities are the strings "nan", "inf" and "-inf"."""
        fields: dict[str, Any] = {"family": self.family}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            finite = not isinstance(value, float) or math.isfinite(value)
            fields[field.name] = value if finite else str(value)
        return json.dumps(fields)

    @classmethod
    def from_json(cls: type[D], text: str) -> D:
        """The descriptor that ``to_json`` wrote.

        Raises:
            InvalidProblemError: text that is no such object, or names an unknown field or another family.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            family = fields.pop("family", cls.family)
            number_fields = {f.name for f in dataclasses.fields(cls) if _kind(f) == "float"}
            if family == cls.family:
                return cls(**{k: _WORDS.get(v, v) if k in number_fields else v for k, v in fields.items()})
            got = f"family {family!r}"
        except (AttributeError, TypeError, ValueError) as error:
            got = str(error)
        raise errors.make("invalid_problem", cls.family, "descriptor", f"the JSON of a {cls.__name__}", got)
