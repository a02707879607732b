"""How the native module reads operands: DLPack capsules, the C exchange API of forged and real producers, what it refuses.

The raw module takes the id() of a tuple. A plan of lerp_backward with the weight 0.25 shows what was read: db = dy / 4.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from forged import DLTensor, Managed, describe, longs, new_capsule
from interpreter import python
from support import Subclass

import sternway as sw
from sternway import _library
from sternway._library import NOT_RUN, RAN, RAN_UNCOUNTED

native = importlib.import_module("sternway._native")

SHAPE = (2, 3)
READ_ONLY, IS_COPIED = 1, 2


def select(shape: tuple[int, ...] = SHAPE) -> int:
    descriptor = {"family": "lerp_backward", "shape": shape, "dtype": "float32", "weight": 0.25}
    return native.pybind_Select(json.dumps(descriptor), "cpu", "{}")


@pytest.fixture
def plan() -> Iterator[int]:
    handle = select()
    yield handle
    assert native.pybind_Release(handle) == 1


def operands(dy: Any, db: Any) -> tuple[Any, ...]:
    return (None, dy, None, None, None, None, db, None)  # workspace, dy, weight, a, b -> da, db, dweight


def run(plan: int, dy: Any, db: Any, stream: int = -1) -> None:
    items = operands(dy, db)
    native.pybind_Run(plan, id(items), stream)


def refusal(plan: int, items: tuple[Any, ...]) -> dict[str, Any]:
    """What Run and CanImplement say about operands that both refuse."""
    messages = []
    for call in (lambda: native.pybind_Run(plan, id(items), -1), lambda: native.pybind_CanImplement(plan, id(items))):
        with pytest.raises(RuntimeError) as caught:
            call()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    return json.loads(messages[0])


def capsule(array: np.ndarray, versioned: bool = True) -> Any:
    return array.__dlpack__(max_version=(1, 1)) if versioned else array.__dlpack__()


def iota() -> np.ndarray:
    return np.arange(6, dtype=np.float32).reshape(SHAPE) + 1


# --- Capsules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versioned", [True, False])
def test_capsules_are_read_and_not_consumed(plan: int, versioned: bool) -> None:
    dy, db = iota(), np.full(SHAPE, np.nan, np.float32)
    given = capsule(dy, versioned)
    for _ in range(2):
        run(plan, given, capsule(db, versioned))
        np.testing.assert_array_equal(db, dy / 4)
        assert ('"dltensor_versioned"' if versioned else '"dltensor"') in repr(given)


def test_strided_and_offset_views(plan: int) -> None:
    base = np.arange(64, dtype=np.float32).reshape(8, 8)
    dy, db = base[1:5:2, 2:8:2], np.full((3, 5), np.nan, np.float32).T[1:3]
    run(plan, capsule(dy), capsule(db))
    np.testing.assert_array_equal(db, dy / 4)


def test_a_read_only_capsule_is_an_input_only(plan: int) -> None:
    frozen, db = iota(), np.empty(SHAPE, np.float32)
    frozen.flags.writeable = False
    run(plan, capsule(frozen), capsule(db))
    np.testing.assert_array_equal(db, frozen / 4)
    error = refusal(plan, operands(capsule(db), capsule(frozen)))
    assert (error["kind"], error["operand"], error["wanted"]) == ("invalid_problem", "db", "writable")


def test_a_consumed_capsule_is_no_tensor(plan: int) -> None:
    given = capsule(iota())
    torch.from_dlpack(Lender(given))
    error = refusal(plan, operands(given, torch.empty(SHAPE)))
    assert (error["kind"], error["operand"], error["got"]) == ("type", "dy", "a capsule named used_dltensor_versioned")


class Lender:
    """An array of a capsule."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def __dlpack__(self, **_: Any) -> Any:
        return self.given

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


# --- Plain tensors of torch, by name ----------------------------------------------------------------------------------

NAMES = ("dy", "weight", "a", "b", "da", "db", "dweight", "workspace")


def run_fast_path(plan: int, **given: Any) -> int:
    return _library.run_fast_path(plan, NAMES, 4, False, given, -1)


@pytest.fixture
def met() -> None:
    """The native library has met torch."""
    sw.lerp_backward(torch.zeros(2, 3), 0.5)


def dy_and_db() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(1.0, 7).reshape(SHAPE), torch.full(SHAPE, torch.nan)


@pytest.mark.usefixtures("met")
def test_plain_tensors_by_name(plan: int) -> None:
    dy, db = dy_and_db()
    wide = torch.full((4, 5), torch.nan)
    for out in (db, wide[1:3, 1:4], wide.T[2:4, 1:4]):
        version = out._version
        assert run_fast_path(plan, db=out, **{"".join(("d", "y")): dy}, a=None) == RAN
        assert torch.equal(out, dy / 4)
        assert out._version == version + 1
    assert dy._version == 0


def shrunk(x: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().resize_(8)
    return x


def negated(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, x).conj().imag


@pytest.mark.usefixtures("met")
@pytest.mark.parametrize(
    "given",
    [
        {"dy": lambda x: x.numpy()},
        {"dy": shrunk},
        {"dy": lambda x: shrunk(torch.zeros(9)[3:].reshape(SHAPE))},
        {"dy": negated},
        {"dy": torch.Tensor._neg_view},  # which fills its storage
        {"dy": lambda x: x.to_sparse()},
        {"dy": lambda x: x.as_subclass(Subclass)},
        {"dy": lambda x: 3},
        {"db": lambda x: x.requires_grad_()},
        {"db": lambda x: x.numpy()},
        {"dz": lambda x: torch.zeros(SHAPE)},
    ],
    ids=[
        "array",
        "shrunk",
        "shrunk view",
        "negated",
        "negated whole",
        "sparse",
        "subclass",
        "number",
        "recorded",
        "array out",
        "unknown",
    ],
)
def test_the_unusual_is_left_to_the_general_way(plan: int, given: dict[str, Any]) -> None:
    operands = dict(zip(("dy", "db"), dy_and_db(), strict=True))
    db = operands["db"]
    operands.update({name: make(operands.get(name)) for name, make in given.items()})
    assert run_fast_path(plan, **operands) == NOT_RUN
    assert db.isnan().all()


class Name(str):
    """A keyword that equals no other, so that a dict holds it as often as one likes."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Alias(str):
    """A keyword that equals the text of another, with another hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        return id(self)


@pytest.mark.usefixtures("met")
@pytest.mark.parametrize("kind", [Name, Alias])
def test_names_of_a_subclass_of_str_are_refused(plan: int, kind: type[str]) -> None:
    dy, db = dy_and_db()
    many = [db.clone() for _ in range(40)]
    assert run_fast_path(plan, dy=dy, **{kind("db"): out for out in many}) == NOT_RUN
    assert run_fast_path(plan, db=db, **{kind("dy"): dy}) == NOT_RUN
    whole = sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor(SHAPE, "float32", 0.25))
    for method in (whole.run, whole.can_implement):
        for operands in ({"dy": dy, "db": db, kind("db"): many[0]}, {"db": db, kind("dy"): dy}, {"dy": dy, kind("db"): db}):
            with pytest.raises(sw.InvalidProblemError, match="class"):
                method(**operands)
    assert all(out.isnan().all() for out in (db, *many))


def test_thousands_of_names_end_no_process() -> None:
    """In a process of its own, since counting them in an array would end it."""
    python("""
        import torch, sternway as sw
        class Name(str):
            __hash__ = object.__hash__
            __eq__ = object.__eq__
        plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cumsum", (3,), "float32"))
        dy = torch.ones(3)
        plan.run(dy=dy, dx=torch.empty(3))
        for name in ("dx", "dy", "workspace"):
            for count in (2, 17, 5000):
                try:
                    plan.run(dy=dy, **{Name(name): torch.empty(3) for _ in range(count)})
                except (sw.Error, TypeError):
                    continue
                raise AssertionError(name)
    """)


@pytest.mark.usefixtures("met")
def test_inference_tensors_have_no_version_to_count(plan: int) -> None:
    with torch.inference_mode():
        dy, db = dy_and_db()
    assert run_fast_path(plan, dy=dy, db=db) in (RAN, RAN_UNCOUNTED)  # some versions of torch refuse to count
    assert torch.equal(db, dy / 4)
    kept, lost = dy_and_db()[1], db
    both = sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor(SHAPE, "float32", 0.25))
    both.run(dy=dy, da=kept, db=lost)
    assert kept._version == 1


# --- Forged producers: every branch of the exchange API ----------------------------------------------------------------


class ExchangeAPI(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("borrow", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    ]


TAKE_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
TAKE_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
DELETE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class Forge:
    """A producer of one array: builds a type with an exchange API that does as it is told."""

    def __init__(self, array: np.ndarray, **fields: Any) -> None:
        self.kept: list[Any] = [array]
        self.deleted = 0
        self.streams: list[tuple[int, int]] = []
        self.tensor = describe(array)
        for name, value in fields.items():
            setattr(self.tensor, name, value)

    def keep(self, function: Any) -> Any:
        self.kept.append(function)
        return ctypes.cast(function, ctypes.c_void_p)

    def borrow(self, _: int, out: int) -> int:
        ctypes.memmove(out, ctypes.byref(self.tensor), ctypes.sizeof(DLTensor))
        return 0

    def stream(self, device_type: int, device_id: int, out: Any) -> int:
        self.streams.append((device_type, device_id))
        out[0] = 0x5EA
        return 0

    def delete(self, _: int) -> None:
        self.deleted += 1

    def api(self, major: int = 1, flags: int | None = None, prev: ExchangeAPI | None = None) -> ExchangeAPI:
        """A table that borrows, or with flags one that only lends managed tensors with those flags."""
        table = ExchangeAPI(major=major, minor=3, current_work_stream=self.keep(TAKE_STREAM(self.stream)))
        if prev is not None:
            table.prev_api = ctypes.addressof(prev)
        if flags is None:
            table.borrow = self.keep(TAKE_OBJECT(self.borrow))
        else:
            self.managed = Managed(1, 3, None, self.keep(DELETE(self.delete)), flags, self.tensor)

            def lend(_: int, out: int) -> int:
                ctypes.c_void_p.from_address(out).value = ctypes.addressof(self.managed)
                return 0

            table.managed_from_object = self.keep(TAKE_OBJECT(lend))
        self.kept.append(table)
        return table

    def object(self, table: ExchangeAPI, name: bytes = b"dlpack_exchange_api") -> Any:
        self.kept.append(name)
        attribute = new_capsule(ctypes.addressof(table), name, None)
        return type("Forged", (), {"__dlpack_c_exchange_api__": attribute})()


KEPT: list[Forge] = []


def forge(array: np.ndarray, **fields: Any) -> Forge:
    """A forge that lives as long as the process, as the library may expect of a producer's table."""
    KEPT.append(Forge(array, **fields))
    return KEPT[-1]


def test_exchange_api_borrows(plan: int) -> None:
    dy, db = forge(iota()), torch.full(SHAPE, torch.nan)
    run(plan, dy.object(dy.api()), db)
    torch.testing.assert_close(db, torch.from_numpy(iota()) / 4, rtol=0, atol=0)


def test_null_strides_are_compact_and_the_offset_is_added(plan: int) -> None:
    flat = np.arange(8, dtype=np.float32)
    dy = forge(flat)
    dy.tensor.ndim, dy.tensor.shape, dy.tensor.strides, dy.tensor.byte_offset = 2, longs(SHAPE), None, 8
    db = torch.full(SHAPE, torch.nan)
    run(plan, dy.object(dy.api()), db)
    np.testing.assert_array_equal(db.numpy(), flat[2:].reshape(SHAPE) / 4)


def test_managed_tensors_are_returned_once(plan: int) -> None:
    dy, db = forge(iota()), torch.full(SHAPE, torch.nan)
    run(plan, dy.object(dy.api(flags=0)), db)
    np.testing.assert_array_equal(db.numpy(), iota() / 4)
    assert dy.deleted == 1


def test_managed_read_only_and_copied(plan: int) -> None:
    frozen = forge(iota())
    error = refusal(plan, operands(torch.ones(SHAPE), frozen.object(frozen.api(flags=READ_ONLY))))
    assert (error["operand"], error["wanted"]) == ("db", "writable")
    copied = forge(iota())
    error = refusal(plan, operands(copied.object(copied.api(flags=IS_COPIED)), torch.ones(SHAPE)))
    assert (error["kind"], error["operand"]) == ("unsupported", "dy")
    assert frozen.deleted == copied.deleted == 2  # Run and CanImplement


def test_an_older_table_is_found_behind_a_newer_one(plan: int) -> None:
    dy, db = forge(iota()), torch.full(SHAPE, torch.nan)
    run(plan, dy.object(dy.api(major=2, prev=dy.api())), db)
    np.testing.assert_array_equal(db.numpy(), iota() / 4)


@pytest.mark.parametrize(
    ("fields", "kind", "got"),
    [
        ({"ndim": 9}, "unsupported", "9"),
        ({"ndim": -1}, "invalid_problem", "no shape"),
        ({"shape": None}, "invalid_problem", "no shape"),
        ({"shape": (2, -3)}, "invalid_problem", "a negative extent"),
        ({"shape": (2**40, 2**40), "strides": None}, "invalid_problem", "more elements than an address space holds"),
        ({"data": None}, "invalid_problem", "a null pointer"),
        ({"data": None, "byte_offset": 256}, "invalid_problem", "a null pointer"),
        ({"code": 4, "bits": 16}, "invalid_problem", "bfloat16"),
        ({"lanes": 2}, "invalid_problem", "float32x2"),
        ({"byte_offset": 1}, "misaligned", None),
        ({"device_type": 2, "device_id": 3}, "invalid_problem", "cuda:3"),
    ],
)
def test_odd_descriptions_are_refused(plan: int, fields: dict[str, Any], kind: str, got: str) -> None:
    dy = forge(iota())
    for name, value in fields.items():
        setattr(dy.tensor, name, longs(value) if isinstance(value, tuple) else value)
    error = refusal(plan, operands(dy.object(dy.api()), torch.ones(SHAPE)))
    assert (error["kind"], error["op"], error["operand"]) == (kind, "lerp_backward", "dy")
    assert got is None or error["got"] == got


def test_tables_that_cannot_be_used(plan: int) -> None:
    dy = forge(iota())
    newer = refusal(plan, operands(dy.object(dy.api(major=2)), torch.ones(SHAPE)))
    assert (newer["kind"], newer["got"]) == ("type", "Forged")
    misnamed = refusal(plan, operands(dy.object(dy.api(), b"something_else"), torch.ones(SHAPE)))
    assert (misnamed["kind"], misnamed["operand"]) == ("unsupported", "dy")
    assert "incorrect name" in misnamed["got"]


def test_addresses_of_what_is_not_trusted_are_checked(plan: int) -> None:
    """A tuple stands for an array of an unknown library: memory that is not mapped is found before it is read."""
    for fields in ({"byte_offset": 1 << 44}, {"strides": (1 << 42, 1)}, {"strides": (-(1 << 63), 1)}, {"data": 1 << 63}):
        dy = forge(iota())
        for name, value in fields.items():
            setattr(dy.tensor, name, longs(value) if isinstance(value, tuple) else value)
        error = refusal(plan, operands((dy.object(dy.api()),), torch.ones(SHAPE)))
        assert (error["kind"], error["operand"]) == ("invalid_problem", "dy"), fields


def test_flags_come_from_managed_tensors(plan: int) -> None:
    """A table that lends both ways is asked for flags where the producer is not known."""
    frozen = forge(iota())
    table = frozen.api(flags=READ_ONLY)
    table.borrow = frozen.api().borrow
    error = refusal(plan, operands(torch.ones(SHAPE), (frozen.object(table),)))
    assert (error["operand"], error["wanted"]) == ("db", "writable")


def test_a_table_without_functions(plan: int) -> None:
    dy = forge(iota())
    table = ExchangeAPI(major=1, minor=3)
    dy.kept.append(table)
    error = refusal(plan, operands(dy.object(table), torch.ones(SHAPE)))
    assert (error["kind"], error["operand"]) == ("unsupported", "dy")


def test_managed_tensors_of_another_version(plan: int) -> None:
    dy = forge(iota())
    table = dy.api(flags=0)
    dy.managed.major = 2
    error = refusal(plan, operands(dy.object(table), torch.ones(SHAPE)))
    assert (error["kind"], error["operand"]) == ("unsupported", "dy")
    assert dy.deleted == 2


@pytest.mark.parametrize("given", [None, 3, "x", [], np.ones(3), torch.ones(SHAPE)], ids=lambda x: type(x).__name__)
def test_what_dlpack_returned_must_be_a_capsule(plan: int, given: Any) -> None:
    error = refusal(plan, operands((given, None), torch.ones(SHAPE)))
    assert (error["kind"], error["operand"], error["got"]) == ("type", "dy", type(given).__name__)


def test_a_view_of_a_capsule(plan: int) -> None:
    db, flat = torch.empty(SHAPE), np.arange(1, 13, dtype=np.float32)
    run(plan, (capsule(flat), None, SHAPE, (6, 2)), db)
    np.testing.assert_array_equal(db.numpy(), flat.reshape(2, 6)[:, ::2] / 4)
    for view in (((2, 3), (1,)), ((1,) * 9, (1,) * 9), ((2, "x"), (1, 1)), (3, 4), ((2, 2**63), (1, 1))):
        assert refusal(plan, operands((capsule(flat), None, *view), db))["kind"] == "invalid_problem"


def test_inspect(plan: int) -> None:
    array = np.arange(12, dtype=np.float64).reshape(3, 4)[::-1, ::2]
    array.flags.writeable = False
    items = (capsule(array),)
    facts = json.loads(native.pybind_Inspect(id(items)))
    assert facts == {
        "shape": [3, 2], "strides": [-4, 2], "dtype": "float64", "device": [1, 0], "itemsize": 8,
        "data": array.ctypes.data, "read_only": True,
    }  # fmt: skip
    for wrong in ((), (None,), items * 2, (3,), items * 17):
        with pytest.raises(RuntimeError):
            native.pybind_Inspect(id(wrong))


# --- The stream -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stream", "asked"), [(-1, [(2, 1)]), (0, []), (7, [])])
def test_the_producer_of_the_first_cuda_tensor_tells_its_stream(plan: int, stream: int, asked: list[tuple[int, int]]) -> None:
    first, second = forge(iota(), device_type=2, device_id=1), forge(iota(), device_type=2, device_id=0)
    with pytest.raises(RuntimeError, match="cuda:1"):  # the plan is for the host
        run(plan, first.object(first.api()), second.object(second.api()), stream)
    assert first.streams == asked
    assert second.streams == []


# --- What is no tensor ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "name"), [(3, "int"), ("x", "str"), ([1.0], "list"), (torch.Tensor, "_TensorMeta"), (iota(), "ndarray")]
)
def test_no_tensor(plan: int, item: Any, name: str) -> None:
    error = refusal(plan, operands(torch.ones(SHAPE), item))
    assert (error["kind"], error["operand"], error["got"]) == ("type", "db", name)


def test_the_producers_word_is_one_line(plan: int) -> None:
    error = refusal(plan, operands(torch.ones(SHAPE).to_sparse(), torch.ones(SHAPE)))
    assert (error["kind"], error["operand"]) == ("unsupported", "dy")
    assert "storage" in error["got"]
    assert "\n" not in error["got"]


@pytest.mark.parametrize("count", [0, 1, 7, 9, 16, 17, 1000])
def test_tuples_of_another_length(plan: int, count: int) -> None:
    assert refusal(plan, (None,) * count)["kind"] in ("invalid_problem", "internal")


def test_handles(plan: int) -> None:
    other = select()
    assert other > plan
    assert native.pybind_Release(other) == 1
    assert native.pybind_Release(other) == 0
    for call in (native.pybind_Describe, lambda handle: native.pybind_Run(handle, id(()), 0)):
        with pytest.raises(RuntimeError, match="not selected or was released"):
            call(other)
    names = [operand["name"] for operand in json.loads(native.pybind_Describe(plan))["operands"]]
    assert names == ["dy", "weight", "a", "b", "da", "db", "dweight"]


# --- What stays behind ------------------------------------------------------------------------------------------------


def test_more_types_than_the_cache_holds(plan: int) -> None:
    for i in range(40):
        subclass = type(f"Subclass{i}", (torch.Tensor,), {})
        dy, db = torch.full(SHAPE, float(i)).as_subclass(subclass), torch.empty(SHAPE)
        run(plan, dy, db)
        assert db.unique().tolist() == [i / 4]


def test_no_reference_is_kept_or_lost(plan: int) -> None:
    dy, db, given = torch.ones(SHAPE), torch.ones(SHAPE), capsule(iota())
    run(plan, dy, db)
    gc.collect()
    objects = (dy, db, given, None, type(given))
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(1000):
        run(plan, dy, db)
        run(plan, given, db)
        with pytest.raises(RuntimeError):
            run(plan, 3, db)
    after = [sys.getrefcount(o) for o in objects]
    assert [abs(a - b) < 20 for a, b in zip(after, before, strict=True)] == [True] * len(objects), (before, after)
