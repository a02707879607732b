"""Any object as any argument of any function, plan or descriptor: a result, a typed error or a TypeError, in one line."""

from __future__ import annotations

import array
import ctypes
import dataclasses
import decimal
import fractions
import functools
import inspect
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import array_api_strict
import ml_dtypes
import numpy as np
import pytest
import torch
from families import FAMILIES, Problem, make
from forged import Lender
from hypothesis import given, settings
from hypothesis import strategies as hs
from support import refusal

import sternway as sw
from sternway._kinds import KINDS


class Hostile:
    """An object that raises whatever it is asked."""

    def __repr__(self) -> str:
        raise OSError("no repr")

    __str__ = __repr__

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)

    def __index__(self) -> int:
        raise OSError("no index")

    def __float__(self) -> float:
        raise OSError("no float")

    def __len__(self) -> int:
        raise OSError("no length")

    def __bool__(self) -> bool:
        raise OSError("no truth")

    def __iter__(self) -> Any:
        raise OSError("no items")


class Nameless(type):
    """The class of classes without a module or a name, as some of ctypes are."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__dict__", "__dlpack__"):
            raise AttributeError(name)
        return super().__getattribute__(name)


class OfNoModule(metaclass=Nameless):
    """An object whose class has no module."""


class Named:
    """An object whose attributes are those of a dtype, a device, a stream and an array, of the wrong kinds."""

    name = __name__ = "x" * 5000
    type = index = ptr = cuda_stream = shape = dtype = device = "\n"

    def __dlpack__(self, **_: Any) -> Any:
        return 3


def endless() -> list[Any]:
    x: list[Any] = []
    x.append(x)
    return x


@functools.cache
def nested(depth: int) -> list[Any]:
    x: list[Any] = []
    for _ in range(depth):
        x = [x]
    return x


F = np.ones((2, 3), np.float32)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(2**63) - 1, 2**70, 10**5000, 3.0, 0.5, -0.0, float("nan"),
    float("inf"), 1e308, 1j, "", " ", "cumsum", "cpu", "cuda", "cuda:99999999999999999999", "cuda:0x1", "x" * 10_000,
    "\0", "\ud800", "a\nb", "float32\n", "torch.", "{}", b"", b"ab", bytearray(b"ab"), memoryview(b"ab"), [], [2, 3],
    [2.0, 3], ["2", "3"], [None], (), (2, 3), (2, -3), (2**70,), (True, 3), {}, {2: 3}, set(), {2, 3}, frozenset(),
    range(3), range(10**12), deque([2, 3]), OrderedDict({2: 3}), {2: 3}.keys(), slice(3), Ellipsis, NotImplemented,
    object(), object, int, float, type, lambda: None, len, np, torch, np.ndarray, torch.Tensor, torch.float32,
    np.dtype("int8"), np.float32, torch.device("cpu"), torch.device("meta"), torch.strided, torch.Size((2, 3)),
    ml_dtypes.bfloat16, array_api_strict.float32, Path("float32"), fractions.Fraction(1, 3), decimal.Decimal("0.5"),
    decimal.Decimal("NaN"), np.bool_(True), np.int64(1), np.int8(-1), np.uint64(2**63), np.float16(3),
    np.float64("nan"), np.longdouble(1) / 3, np.complex64(1j), np.str_("cumsum"), np.bytes_(b"x"),
    np.datetime64("2020-01-01"), np.void(b"abc"), np.array([2, 3]), np.array(0), np.array(0.5),
    np.array([], np.float32), np.float32([[2]]), F, F.astype("f8"), F.astype(">f4"), F > 0, F + 1j, F.astype(object),
    F.astype("U"), F.astype("M8[s]"), np.zeros((2, 3), [("x", "f4")]), np.matrix(F), np.ma.masked_array(F),
    np.ma.masked, F.astype(ml_dtypes.bfloat16), F.astype(ml_dtypes.float8_e5m2), np.broadcast_to(F[:1], (2, 3)),
    np.rec.array(F), F.astype("q"), F.astype("b"), torch.ones(2, 3), torch.ones(2, 3).double(),
    torch.ones(2, 3).bfloat16(), torch.arange(3), torch.ones(()), torch.ones(2, 3, device="meta"),
    torch.ones(2, 3).to_sparse(), torch.ones(2, 3, requires_grad=True), torch.ones(2, 3).cfloat(),
    torch.ones(2, 3)._neg_view(), torch.ones(3).expand(2, 3), torch.ones(2, 3) > 0,
    torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8), array_api_strict.asarray(F),
    torch.nn.Parameter(torch.ones(2, 3)), SimpleNamespace(type="cpu", index=None),
    SimpleNamespace(type="cuda", index="\n"), SimpleNamespace(cuda_stream=2**70), SimpleNamespace(ptr=-1),
    SimpleNamespace(shape=(2, 3), dtype="float32"), sw.PlanPreference(),
    sw.ScanBackwardDescriptor("cumsum", (2, 3), "float32"), sw.Error, sw.Error("x"), Hostile(), Hostile, Named(),
    Named,
)  # fmt: skip
MAKERS: tuple[Callable[[], Any], ...] = (  # of what can be used up
    endless, lambda: nested(50_000), lambda: nested(500), lambda: iter([2, 3]), lambda: (n for n in (2, 3)),
    lambda: (ctypes.c_float * 3)(), lambda: ctypes.c_float * 3, lambda: ctypes.c_float(1), lambda: array.array("f", [2, 3]),
    lambda: memoryview(array.array("f", [2, 3])), lambda: eval("(c * 3)()", {"c": ctypes.c_float}), OfNoModule,
    lambda: OfNoModule, lambda: mock.Mock(), lambda: mock.NonCallableMagicMock(), lambda: mock.create_autospec(np.ndarray),
    lambda: itertools.count(), lambda: mock.MagicMock(), lambda: mock.Mock(spec=torch.Tensor), lambda: Lender(F),
    lambda: Lender(F, ndim=-1), lambda: Lender(F, strides=(-(2**63), 1)),
    lambda: type("Liar", (str,), {"__eq__": lambda a, b: True, "__hash__": lambda a: 0})("x"),
    lambda: type("x\n" * 99, (), {})(),
)  # fmt: skip
JUNK = (*((lambda value=value: value) for value in VALUES), *MAKERS)

X, IDS = torch.ones(2, 3), torch.tensor([[0, 1], [1, 2]])
PROBLEMS = {family: make(family, (2, 3), torch.float32, "cpu") for family in reversed(FAMILIES)}


def arguments(op: str, problem: Problem) -> dict[str, Any]:
    """The arguments of a call of the function: the inputs, the options of the descriptor, and all outputs."""
    known = {**vars(problem.descriptor), **problem.inputs, "needs": tuple(problem.truth)}
    known["dtype"] = None  # that of the inputs
    return {name: known[name] for name in inspect.signature(getattr(sw, op)).parameters if known.get(name) is not None}


FUNCTIONS: dict[str, dict[str, Any]] = {
    **{name: {"x": X} for name in KINDS},
    **{f"{name}_backward": {"dy": X, **dict.fromkeys(kind.operands[:1], X)} for name, kind in KINDS.items()},
    **{family.op: arguments(family.op, problem) for family, problem in PROBLEMS.items() if hasattr(sw, family.op)},
    "cummin_backward": {"dy": X, "indices": torch.zeros(2, 3, dtype=torch.int64), "x": None},
    "embedding_bag_backward": {"dy": X, "indices": IDS, "num_embeddings": 3},
    "embedding_bag_per_sample_weights_backward": {"dy": X, "weight": X.new_ones(3, 3), "indices": IDS},
    "unique_rows": {"indices": IDS[0], "num_rows": 3},
}
DESCRIPTORS: dict[str, dict[str, Any]] = {
    **{type(p.descriptor).__name__.removesuffix("Descriptor"): vars(p.descriptor) for p in PROBLEMS.values()},
    "UniqueRows": {"num_rows": 3, "total": 2},
}
SCAN = sw.ScanBackwardDescriptor("cumprod", (2, 3), "float32")
PLAN = sw.ScanBackwardPlan.select(SCAN)
OPERANDS = {"dy": X, "x": X, "dx": torch.empty(2, 3)}


def select(name: str, **fields: Any) -> Any:
    descriptor = getattr(sw, f"{name}Descriptor")(**fields)
    hash(descriptor)
    assert type(descriptor).from_json(descriptor.to_json()) == descriptor
    return getattr(sw, f"{name}Plan").select(descriptor)


def one_field(name: str, known: dict[str, Any], field: str, value: Any) -> Any:
    return select(name, **{**known, field: value})


def slots() -> dict[str, Callable[[Any], Any]]:
    """Every argument of everything public, as a function of that argument."""
    found: dict[str, Callable[[Any], Any]] = {}
    for name, known in FUNCTIONS.items():
        function = getattr(sw, name)
        for argument in inspect.signature(function).parameters:
            found[f"{name}({argument})"] = lambda x, f=function, known=known, a=argument: f(**{**known, a: x})
            if argument == "axis":
                found[f"{name}(dim beside axis)"] = lambda x, f=function, known=known: f(**{**known, "dim": x, "axis": 0})
    for name, fields in DESCRIPTORS.items():
        for field in dataclasses.fields(getattr(sw, f"{name}Descriptor")):
            found[f"{name}Descriptor({field.name})"] = lambda x, n=name, known=fields, f=field.name: select(
                n, **{**known, f: x}
            )
        found[f"{name}Descriptor.from_json"] = getattr(sw, f"{name}Descriptor").from_json
        found[f"{name}Plan.select"] = getattr(sw, f"{name}Plan").select
    for field in dataclasses.fields(sw.PlanPreference):
        found[f"PlanPreference({field.name})"] = lambda x, f=field.name: sw.ScanBackwardPlan.select(
            SCAN, preference=sw.PlanPreference(**{f: x})
        )
    for argument in ("device", "preference"):
        found[f"select({argument})"] = lambda x, a=argument: sw.ScanBackwardPlan.select(SCAN, **{a: x})
    for operand in (*OPERANDS, "indices", "workspace", "surprise", "\n" * 300, "stream"):
        found[f"run({operand!r:.20})"] = lambda x, o=operand: PLAN.run(**{**OPERANDS, o: x})
        found[f"can_implement({operand!r:.20})"] = lambda x, o=operand: PLAN.can_implement(**{**OPERANDS, o: x})
    return found


SLOTS = slots()


def one_line_or_result(call: Callable[[], Any]) -> None:
    """The call returns, or raises one error of ours; memory that is not there is the library's own error."""
    try:
        error = refusal((sw.Error, TypeError), call)
    except RuntimeError as failure:
        if isinstance(failure, sw.Error) or "can't allocate memory" not in str(failure):
            raise
        return
    if isinstance(error, sw.Error):
        assert "\n" not in str(error)
        assert len(str(error)) < 600
        assert str(error).startswith(error.op)
        assert error.op


@pytest.mark.parametrize("slot", SLOTS)
def test_any_object_as_any_argument(slot: str) -> None:
    for new in JUNK:
        one_line_or_result(lambda new=new: SLOTS[slot](new()))


@settings(max_examples=200)
@given(data=hs.data())
def test_several_at_once(data: hs.DataObject) -> None:
    """Two or three arguments of a function at a time, and texts and trees that nobody thought of."""
    anything = hs.one_of(
        hs.sampled_from(JUNK).map(lambda make: make()),
        hs.text(),
        hs.recursive(
            hs.none() | hs.integers() | hs.floats() | hs.text(), lambda x: hs.lists(x) | hs.dictionaries(hs.text(), x)
        ),
    )
    name = data.draw(hs.sampled_from(sorted(FUNCTIONS)))
    function = getattr(sw, name)
    arguments = sorted(inspect.signature(function).parameters)
    chosen = data.draw(hs.lists(hs.sampled_from(arguments), min_size=1, max_size=3, unique=True))
    given = {**FUNCTIONS[name], **{argument: data.draw(anything) for argument in chosen}}
    one_line_or_result(lambda: function(**given))


def test_streams_of_a_gpu_are_checked_without_one() -> None:
    """The handle of a stream, which a run on the CPU ignores."""
    from sternway._operands import stream_handle

    for new in JUNK:
        one_line_or_result(lambda new=new: stream_handle("lerp_backward", new()))
    assert [stream_handle("op", s) for s in (0, 7, np.int64(9), SimpleNamespace(ptr=3), SimpleNamespace(cuda_stream=4))] == [
        0,
        7,
        9,
        3,
        4,
    ]
    assert stream_handle("op", SimpleNamespace(__cuda_stream__=lambda: (0, 5))) == 5
    for wrong in (2**70, 2**63, -1, SimpleNamespace(cuda_stream=-2)):
        with pytest.raises(sw.InvalidProblemError, match="stream must be a handle"):
            stream_handle("op", wrong)
    for wrong in ("main", 1.5, SimpleNamespace(ptr="x"), Hostile()):
        with pytest.raises(TypeError, match="stream must be"):
            stream_handle("op", wrong)
