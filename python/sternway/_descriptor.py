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


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """One problem of a family. Fields are normalised: shapes to tuples of int, dtypes to names.

    Raises:
        TypeError: a field that is of no such kind at all. What the values mean is checked by ``Plan.select``.
    """

    family: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name.endswith("shape"):
                value = tuple(operator.index(n) for n in value)
            elif field.name.endswith("dtype"):
                value = dtype_name(value)
            elif field.type in ("float", "float | None"):
                value = float(value)
            object.__setattr__(self, field.name, value)

    def to_json(self) -> str:
        """A JSON object with the fields and ``"family"``; NaN and infinities are the strings "nan", "inf" and "-inf"."""
        fields = {"family": self.family}
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
            number_fields = {f.name for f in dataclasses.fields(cls) if f.type in ("float", "float | None")}
            if family == cls.family:
                return cls(**{k: _WORDS.get(v, v) if k in number_fields else v for k, v in fields.items()})
            got = f"family {family!r}"
        except (AttributeError, TypeError, ValueError) as error:
            got = str(error)
        raise errors.make("invalid_problem", cls.family, "descriptor", f"the JSON of a {cls.__name__}", got)
