"""Tables that lie in one allocation, so that one plan reads all of them, as parameters of a module."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils import dlpack

from ..._arrays import dtype_name
from ...errors import Error, make
from .operators import is_distributed

OP = "sternway.torch.EmbeddingBags"
_ALIGNMENT = 64  # elements: 128 bytes or more for every dtype


class Layout:
    """Where arrays of some shapes lie in one vector.

    Attributes:
        shapes: of the arrays.
        starts: the first element of each array.
        size: elements of the vector.
    """

    def __init__(self, shapes: Iterable[tuple[int, ...]], alignment: int = 1) -> None:
        """Put arrays end to end, each from a multiple of `alignment` elements on."""
        self.shapes = tuple(shapes)
        self.starts: list[int] = []
        self.size = 0
        for shape in self.shapes:
            self.starts.append(-(-self.size // alignment) * alignment)
            self.size = self.starts[-1] + math.prod(shape)
        strides = [(*shape[1:], 1) for shape in self.shapes]  # of rank 1 or 2
        self._places = list(zip(self.shapes, strides, self.starts, strict=True))
        has_gaps = self.size != sum(map(math.prod, self.shapes))
        widths = {shape[-1] for shape in self.shapes if len(shape) == 2}
        self._width = widths.pop() if len(widths) == 1 and not has_gaps else 0  # of all, if they are matrices without gaps
        self._rows = [shape[0] for shape in self.shapes]

    def views(self, whole: Tensor) -> Sequence[Tensor]:
        """The arrays in a vector, as views of it."""
        if self._width:
            return torch.split_with_sizes(whole.view(-1, self._width), self._rows)
        first = whole.storage_offset()
        return [whole.as_strided(shape, stride, first + start) for shape, stride, start in self._places]

    def split(self, whole: Tensor) -> list[Tensor]:
        """The arrays in a vector, as tensors whose storage is their part of its memory.

        A pickle of one then has that part alone. Tensors in shared memory are views, as their storage is what is shared.
        """
        views = self.views(whole)
        is_shared = whole.is_cpu and whole.is_shared()  # type: ignore[no-untyped-call]
        if is_shared or type(whole) is not Tensor or whole.device.type not in ("cpu", "cuda"):
            return [view.data for view in views]
        return [dlpack.from_dlpack(dlpack.to_dlpack(view)) for view in views]  # type: ignore[attr-defined]

    def join(self, arrays: Sequence[Tensor]) -> Tensor:
        """The vector whose views some arrays are, or a new one with their values."""
        whole = self._storage_of(arrays)
        if whole is None:
            whole = arrays[0].detach().new_empty(self.size)
            for view, array in zip(self.views(whole), arrays, strict=True):
                view.copy_(array.detach())
        return whole

    def _storage_of(self, arrays: Sequence[Tensor]) -> Tensor | None:
        """The vector whose views some arrays are; None: they are not."""
        storage, first = arrays[0].untyped_storage(), arrays[0].storage_offset()
        for array, start in zip(arrays, self.starts, strict=True):
            place = array.untyped_storage()._cdata, array.storage_offset()
            if place != (storage._cdata, first + start) or not array.is_contiguous():
                return None
        if (first + self.size) * arrays[0].element_size() > storage.nbytes():
            return None
        return arrays[0].detach().new_empty(0).set_(storage, first, (self.size,))  # type: ignore[call-overload,no-any-return]


class Counts(NamedTuple):
    """The fields of a descriptor of many tables that no batch changes."""

    tables: int
    rows: int
    elements: int
    columns: int
    widest: int  # columns of the widest table


class TableLayout(Layout):
    """Where tables lie in one vector, and in the columns of the result.

    Attributes:
        rows: of the state that has one number for each row.
        columns: of the result.
        counts: the fields of a descriptor.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]]) -> None:
        super().__init__(shapes, _ALIGNMENT)
        self.rows = Layout([(rows,) for rows, _ in shapes])
        widths = [width for _, width in shapes]
        self.columns = sum(widths)
        self.counts = Counts(len(shapes), self.rows.size, self.size, self.columns, max(widths))
        self._bounds = list(zip(
            [*self.rows.starts, self.rows.size], [*self.starts, self.size], [0, *itertools.accumulate(widths)], strict=True
        ))  # fmt: skip

    def is_aligned(self, dtype: torch.dtype) -> bool:
        """Whether every width is a multiple of 16 bytes, as every start is."""
        return all(width * dtype.itemsize % 16 == 0 for _, width in self.shapes)

    def bounds(self, device: torch.device) -> Tensor:
        """The operand ``tables`` of the plans."""
        return torch.tensor(self._bounds, dtype=torch.int64, device=device)


class Packed(NamedTuple):
    """Tables and the vector that they lie in.

    Attributes:
        whole: the operand ``weight`` of the plans.
        bounds: the operand ``tables``.
        tables: the parameters.
        pointers: the addresses of the tables.
        is_aligned: as of the descriptor.
    """

    whole: Tensor
    bounds: Tensor
    tables: tuple[Parameter, ...]
    pointers: list[int]
    is_aligned: bool


class TableList(torch.nn.ParameterList):
    """The parameters of tables, which lie in one allocation.

    A conversion of the module (``_apply``) converts the allocation. Where a table has got other memory, as by an assignment,
    the tables are copied into a new allocation at the next use.
    """

    layout: TableLayout | None = None
    _packed: Packed | None = None
    _known: tuple[Parameter, ...] = ()  # the module's own parameters

    @classmethod
    def of(cls, layout: TableLayout, dtype: torch.dtype | None, device: Any) -> TableList:
        """New tables with undefined values."""
        whole = torch.empty(layout.size, dtype=dtype, device=device)
        tables = cls([Parameter(table) for table in layout.split(whole)])
        tables.layout, tables._known = layout, tables._current()
        tables._packed = tables._packed_of(whole)
        return tables

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter, as where a table is replaced."""
        if self.layout is not None and param is not None:
            place = int(name) if name.isdecimal() else len(self.layout.shapes)
            wanted = self.layout.shapes[place] if place < len(self.layout.shapes) else None
            if wanted is None:
                count = self._size = len(self.layout.shapes)  # which append() has raised
                raise make("invalid_problem", OP, "weights", f"of {count} tables", "another one", "make a new module")
            if tuple(param.shape) != wanted:
                got, hint = str(list(param.shape)), "make a new module"
                raise make("invalid_problem", OP, f"weights[{place}]", f"of shape {list(wanted)}", got, hint)
        super().register_parameter(name, param)
        if self.layout is not None:
            self._known, self._packed = self._current(), None

    def __getstate__(self) -> dict[str, Any]:
        return {key: x for key, x in self.__dict__.items() if key not in ("_packed", "_known")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._known = self._current()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        if self.layout is None or not self.are_own():
            return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        try:
            packed = self.find()
        except Error:  # tables that no vector holds are converted one by one
            done = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            self._known, self._packed = self._current(), None
            return done
        layout, places = self.layout, {id(x): i for i, x in enumerate(self._known)}
        whole: Tensor = fn(packed.whole)
        parts = layout.split(whole)

        def part(x: Tensor) -> Tensor:
            return parts[places[id(x)]] if id(x) in places else fn(x)  # a gradient

        done = super()._apply(part, recurse)  # type: ignore[no-untyped-call]
        self._known = self._current()
        self._packed = self._packed_of(whole)
        return done

    def find(self) -> Packed:
        """The tables and their vector. Tables that are in place for the time of a call are copied into one for this call.

        Raises:
            UnsupportedError: a table is a DTensor.
            InvalidProblemError: the tables have different dtypes or devices, or one has lost its shape.
        """
        packed = self._packed
        if not self.are_own():
            others = self._current()
            self._check(others)
            assert self.layout is not None
            with torch.no_grad():
                return self._packed_of(self.layout.join(others), others)
        if packed is None or self._pointers() != packed.pointers:
            packed = self._pack()
        return packed

    def are_own(self) -> bool:
        """Whether the tables are the module's own parameters, and not others in their place for the time of a call."""
        return len(self._parameters) == len(self._known) and all(map(operator.is_, self._parameters.values(), self._known))

    def _current(self) -> tuple[Parameter, ...]:
        current: Any = self._parameters or getattr(self, "_former_parameters", {})  # the latter in a replica of DataParallel
        return tuple(current.values())

    def _pointers(self) -> list[int]:
        """The addresses of the tables; none of tensors without memory."""
        return list(map(Tensor.data_ptr, self._known)) if type(self._known[0]) is Parameter else []

    def _check(self, tables: Sequence[Tensor]) -> None:
        """Refuse tables that no vector holds, or that are one."""
        assert self.layout is not None
        if len(set(map(id, tables))) < len(tables):
            got, hint = "one parameter in two places", "use one table, and its indices twice"
            raise make("unsupported", OP, "weights", "different parameters", got, hint)
        if len(tables) != len(self.layout.shapes):
            wanted, got = f"of {len(self.layout.shapes)} tables", f"{len(tables)} parameters"
            raise make("invalid_problem", OP, "weights", wanted, got, "parametrizations take parameters away")
        first = tables[0]
        for i, (table, shape) in enumerate(zip(tables, self.layout.shapes, strict=True)):
            if is_distributed(table):
                hint = "keep the module out of the mesh, or use sternway.torch.distributed.ShardedEmbeddingBag"
                raise make("unsupported", OP, f"weights[{i}]", "a plain tensor", "a DTensor", hint)
            if tuple(table.shape) != shape:
                raise make("invalid_problem", OP, f"weights[{i}]", f"of shape {list(shape)}", str(list(table.shape)))
            if (table.dtype, table.device) != (first.dtype, first.device):
                wanted, got = (f"{dtype_name(x.dtype)} on {x.device}" for x in (first, table))
                raise make("invalid_problem", OP, f"weights[{i}]", f"{wanted} like weights[0]", got)

    def _pack(self) -> Packed:
        """Copy the tables into one vector, unless they lie in one."""
        self._check(self._known)
        assert self.layout is not None
        with torch.inference_mode(False), torch.no_grad():
            whole = self.layout.join([table.data for table in self._known])
            for table, part in zip(self._known, self.layout.split(whole), strict=True):
                table.data = part
        self._packed = self._packed_of(whole)
        return self._packed

    def _packed_of(self, whole: Tensor, tables: tuple[Parameter, ...] | None = None) -> Packed:
        assert self.layout is not None
        old = self._packed
        bounds = old.bounds if old is not None and old.bounds.device == whole.device else self.layout.bounds(whole.device)
        is_aligned = self.layout.is_aligned(whole.dtype)
        return Packed(whole, bounds, self._known if tables is None else tables, self._pointers(), is_aligned)
