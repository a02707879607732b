"""The types of public arguments, for type checkers: the names that options take, dtypes, and arrays of any library.

The names that the Go core takes are generated, in _choices.py and _kinds.py; tables of names are derived from such types by
:func:`typing.get_args`. No array library is imported, so the types of their objects are protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from ._choices import Angle as Angle
from ._choices import BagMode as BagMode
from ._choices import FloatName as FloatName
from ._choices import IndexName as IndexName
from ._choices import Layout as Layout
from ._choices import Optimizer as Optimizer
from ._choices import Pairing as Pairing
from ._choices import QuantizedName as QuantizedName
from ._choices import Tie as Tie
from ._kinds import ScanKind as ScanKind

if TYPE_CHECKING:
    from numpy import dtype

Columns = Literal["halves", "neighbours"]
LerpGradient = Literal["da", "db", "dweight"]
LinearGradient = Literal["da", "db", "dinitial_state"]
SelectiveGradient = Literal["du", "ddelta", "dA", "dB", "dC", "dD", "dz", "ddelta_bias", "dinitial_state"]


class _TorchDType(Protocol):
    """A torch.dtype. The members of this name of a tensor are methods."""

    @property
    def is_signed(self) -> bool: ...
    @property
    def is_complex(self) -> bool: ...


class _NumPyDType(Protocol):
    """A numpy.dtype, which JAX and CuPy have too."""

    @property
    def name(self) -> str: ...
    @property
    def isnative(self) -> bool: ...


class _NumPyScalar(Protocol):
    """A number of NumPy, whose class, such as numpy.float32, is taken for its dtype."""

    @property
    def dtype(self) -> Any: ...


DTypeObject = _TorchDType | _NumPyDType | type[_NumPyScalar]
FloatDType = FloatName | DTypeObject
IndexDType = IndexName | DTypeObject
QuantizedDType = QuantizedName | DTypeObject


class DLPackArray(Protocol):
    """An array of any library that speaks DLPack. The stubs of JAX have no ``__dlpack_device__``, so it is not asked for."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=DLPackArray)
"""The array that a function is given, of whose type the result is."""

ShapeT = TypeVar("ShapeT", bound=tuple[Any, ...])
DTypeT = TypeVar("DTypeT", bound="dtype[Any]")
"""Shape and dtype of a numpy.ndarray, where a result has the one of an operand and not the other."""
