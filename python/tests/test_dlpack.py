"""Arrays of libraries that nobody here knows, by forged DLPack capsules: read where they are right, refused where they are not.

Whatever a producer says of its memory, a call ends with a result or a typed error.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from forged import Lender
from hypothesis import given, settings
from hypothesis import strategies as hs
from support import refusal

import sternway as sw

INVALID, UNSUPPORTED = sw.InvalidProblemError, sw.UnsupportedError
READ_ONLY, IS_COPIED = 1, 2
X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
IDS = np.array([[0, 2], [1, 2]])
PLAN = sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor(X.shape, "float32", 0.25))

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], np.ndarray, str]] = {
    "cumsum": (sw.cumsum_backward, X, "dy"),
    "cumprod": (lambda p: sw.cumprod_backward(torch.ones(2, 3), p), X, "x"),
    "cummax": (lambda p: sw.cummax_backward(torch.ones(2, 2), indices=p), IDS % 2, "indices"),
    "lerp": (lambda p: sw.lerp_backward(p, 0.25), X, "dy"),
    "lerp's weight": (lambda p: sw.lerp_backward(torch.ones(2, 3), p), X, "weight"),
    "rope": (lambda p: sw.rope_backward(torch.ones(1, 2, 2, 2), p), IDS[:1], "positions"),
    "dequantize": (lambda p: sw.dequantize_per_token_backward(p, torch.ones(2)), X, "dy"),
    "fake quantize": (
        lambda p: sw.fake_quantize_per_token_backward(torch.ones(2, 3), p, torch.ones(2), quant_min=-4, quant_max=3)[0], X, "x",
    ),
    "bags": (lambda p: sw.embedding_bag_backward(torch.ones(2, 3), p, num_embeddings=3), IDS, "indices"),
    "embedding": (lambda p: sw.embedding_backward(torch.ones(2, 2, 3), p, num_embeddings=3), IDS, "indices"),
    "unique rows": (lambda p: sw.unique_rows(p, 3)[1], IDS[0], "indices"),
}  # fmt: skip


def text_of(result: Any) -> str:
    return str([np.asarray(x).tolist() for x in (result if isinstance(result, tuple) else (result,))])


# --- What is right ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [0, READ_ONLY, IS_COPIED, None], ids=["", "read-only", "copied", "unversioned"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_a_capsule_that_is_lent_once(name: str, flags: int | None) -> None:
    function, array, _ = FUNCTIONS[name]
    lender = Lender(array, flags)
    assert text_of(function(lender)) == text_of(function(torch.from_numpy(array)))
    assert lender.taken


@pytest.mark.parametrize("strides", ["null", "reversed", "apart", "transposed"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_dtypes_and_layouts(dtype: str, strides: str) -> None:
    """Null strides are compact; an offset counts in bytes; bfloat16 is lent by libraries that NumPy cannot read."""
    base = np.arange(1, 65).astype(dtype if dtype != "bfloat16" else ml_dtypes.bfloat16).reshape(8, 8)
    array = {"null": base, "reversed": base[::-1, ::-1], "apart": base[1::3, 2::2], "transposed": base.T}[strides]
    fields = {"strides": None} if strides == "null" else {}
    expected = torch.from_numpy(array.astype(np.float64)).flip(1).cumsum(1).flip(1).to(getattr(torch, dtype))
    assert torch.equal(sw.cumsum_backward(Lender(array, **fields)), expected)
    plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cumsum", array.shape, dtype))
    dx = torch.empty(array.shape, dtype=getattr(torch, dtype))
    plan.run(dy=Lender(array, **fields), dx=dx)
    assert torch.equal(dx, expected)
    offset = {"shape": (7, 8), "byte_offset": 8 * base.itemsize, "strides": None}
    if strides == "null":
        assert torch.equal(sw.cumsum_backward(Lender(base, **offset)), expected[1:])


def test_outputs_and_numbers() -> None:
    """Lent arrays are written to; one of rank 0 is a number where a function wants one."""
    dx = np.full((2, 3), np.nan, np.float32)
    out = Lender(dx)
    assert sw.cumsum_backward(X, out=out) is out
    np.testing.assert_array_equal(dx, [[6, 5, 3], [15, 11, 6]])
    for dtype in ("float32", "float64", "float16", ml_dtypes.bfloat16, "int8", "int64"):
        from sternway._lent import describe

        assert float(describe("op", "x", Lender(np.array(-3, dtype)))) == -3
    with pytest.raises(TypeError):
        float(describe("op", "x", Lender(X)))


def test_indices_of_rank_2_lie_apart() -> None:
    """Rows of indices whose elements are evenly apart are one row; others are refused, since a view cannot be."""
    wide = np.zeros((2, 4), np.int64)
    wide[:, ::2] = IDS
    expected = sw.embedding_bag_backward(X, IDS, num_embeddings=3)
    assert np.array_equal(sw.embedding_bag_backward(X, Lender(wide[:, ::2]), num_embeddings=3), expected)
    with pytest.raises(UNSUPPORTED, match="contiguous"):
        sw.embedding_bag_backward(X, Lender(wide[:, :2]), num_embeddings=3)


# --- What is wrong ----------------------------------------------------------------------------------------------------

MALFORMED: dict[str, tuple[dict[str, Any], Any]] = {
    "ndim -1": ({"ndim": -1}, INVALID),
    "ndim -2^31": ({"ndim": -(2**31)}, INVALID),
    "ndim 9": ({"ndim": 9}, UNSUPPORTED),
    "ndim 2^31 - 1": ({"ndim": 2**31 - 1}, UNSUPPORTED),
    "null shape": ({"shape": None}, INVALID),
    "negative extent": ({"shape": (2, -3)}, INVALID),
    "extents that overflow": ({"shape": (2**40, 2**40), "strides": None}, INVALID),
    "bytes that overflow": ({"shape": (2**31, 2**30), "strides": (2**31, 1)}, INVALID),
    "stride -2^63": ({"strides": (-(2**63), 1)}, INVALID),
    "stride 2^63 - 1": ({"strides": (2**63 - 1, 1)}, INVALID),
    "stride that leaves what is mapped": ({"strides": (2**41, 1)}, INVALID),
    "offset that wraps": ({"byte_offset": 2**64 - 4}, INVALID),
    "offset 2^63": ({"byte_offset": 2**63}, INVALID),
    "offset beyond what is mapped": ({"byte_offset": 2**43}, INVALID),
    "null data": ({"data": None}, INVALID),
    "null data and an offset": ({"data": None, "byte_offset": 64}, INVALID),
    "data of 4": ({"data": 4}, INVALID),
    "data in the kernel": ({"data": 2**64 - 4096}, INVALID),
    "odd address": ({"byte_offset": 2}, sw.MisalignedOperandError),
    "two lanes": ({"lanes": 2}, (INVALID, UNSUPPORTED)),
    "no lanes": ({"lanes": 0}, (INVALID, UNSUPPORTED)),
    "no bits": ({"bits": 0}, (INVALID, UNSUPPORTED)),
    "one bit": ({"bits": 1}, (INVALID, UNSUPPORTED)),
    "unknown code": ({"code": 77}, (INVALID, UNSUPPORTED)),
    "complex": ({"code": 5, "bits": 64}, (INVALID, UNSUPPORTED)),
    "bool": ({"code": 6, "bits": 8}, (INVALID, UNSUPPORTED)),
    "opaque handle": ({"code": 3, "bits": 64}, (INVALID, UNSUPPORTED)),
    "Vulkan": ({"device_type": 7}, (INVALID, UNSUPPORTED)),
    "no device": ({"device_type": 0}, (INVALID, UNSUPPORTED)),
    "device type -1": ({"device_type": -1}, (INVALID, UNSUPPORTED)),
    "device -1 of CUDA": ({"device_type": 2, "device_id": -1}, (INVALID, UNSUPPORTED)),
    "version 2": ({"version": (2, 0)}, UNSUPPORTED),
    "version 0": ({"version": (0, 8)}, UNSUPPORTED),
    "another capsule": ({"name": b"used_dltensor"}, TypeError),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_descriptions(name: str) -> None:
    """In functions, in both methods of plans and as an output."""
    fields, error = MALFORMED[name]
    db, dy = np.full(X.shape, np.nan, np.float32), X.copy()
    calls = {
        "dy": [
            lambda: PLAN.run(dy=Lender(dy, **fields), db=db),
            lambda: PLAN.can_implement(dy=Lender(dy, **fields), db=db),
            lambda: sw.cumsum_backward(Lender(dy, **fields)),
            lambda: sw.lerp_backward(Lender(dy, **fields), 0.5, out=(db, db)),
        ],
        "db": [lambda: PLAN.run(dy=dy, db=Lender(db, **fields))],
        "out": [
            lambda: sw.cumsum_backward(dy, out=Lender(db, **fields)),
            lambda: sw.embedding_bag_per_sample_weights_backward(dy, X, IDS % 2, out=Lender(db[:, :2].copy(), **fields)),
        ],
        "weight": [lambda: sw.lerp_backward(dy, Lender(X, **fields))],
    }
    for operand, attempts in calls.items():
        for call in attempts:
            with pytest.raises(error) as caught:
                call()
            assert isinstance(caught.value, sw.Error)
            assert "\n" not in str(caught.value)
            assert caught.value.operand in (operand, "dtype", "device", "d_per_sample_weights"), str(caught.value)
    assert np.isnan(db).all()
    assert np.array_equal(dy, X)


def test_memory_that_was_given_back() -> None:
    """A dangling pointer to pages that are no longer mapped."""
    gone = mmap.mmap(-1, 1 << 20)
    address = np.frombuffer(gone, np.float32).ctypes.data
    del gone
    for call in (lambda: sw.cumsum_backward(Lender(X, data=address)), lambda: PLAN.run(dy=X, db=Lender(X, data=address))):
        with pytest.raises(INVALID, match="not mapped"):
            call()


@pytest.mark.parametrize("flags", [READ_ONLY, IS_COPIED, READ_ONLY | IS_COPIED])
def test_read_only_memory_is_not_written(flags: int) -> None:
    kept = X.copy()
    for call in (
        lambda: sw.cumsum_backward(X, out=Lender(kept, flags)),
        lambda: PLAN.run(dy=X, db=Lender(kept, flags)),
        lambda: PLAN.can_implement(dy=X, db=Lender(kept, flags)),
    ):
        with pytest.raises(INVALID, match="writable") as caught:
            call()
        assert caught.value.operand in ("out", "db")
    assert np.array_equal(kept, X)


class Odd:
    """An object whose __dlpack__ does what a test says, with the attributes of an array or without."""

    def __init__(self, lend: Callable[[], Any], **attributes: Any) -> None:
        self.lend = lend
        self.__dict__.update(attributes)

    def __dlpack__(self, **_: Any) -> Any:
        return self.lend()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Unasked:
    """A producer that raises when it is asked for anything."""

    @property
    def __dlpack__(self) -> Any:
        raise OSError("not today")


def fail(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("returned", [None, 0, "capsule", (), X, torch.ones(2), Odd, object()], ids=lambda x: type(x).__name__)
def test_dlpack_that_returns_no_capsule(name: str, returned: Any) -> None:
    """None is an error that names the operand, not an operand that was left out."""
    function, array, operand = FUNCTIONS[name]
    for attributes in ({}, {"shape": array.shape, "dtype": array.dtype, "device": torch.device("cpu")}):
        with pytest.raises(TypeError, match="capsule") as caught:
            function(Odd(lambda: returned, **attributes))
        assert isinstance(caught.value, sw.Error)
        assert caught.value.operand == operand


@pytest.mark.parametrize("error", [AttributeError, BufferError, KeyError, MemoryError, OSError, RecursionError, StopIteration])
def test_what_a_producer_raises(error: type[Exception]) -> None:
    for odd in (Odd(lambda: fail(error("first\nsecond"))), Odd(lambda: fail(error()), shape=(2, 3), dtype="float32")):
        for call in (lambda odd=odd: sw.cumsum_backward(odd), lambda odd=odd: PLAN.run(dy=X, db=odd)):
            with pytest.raises(UNSUPPORTED) as caught:
                call()
            assert "\n" not in str(caught.value)
    for call in (sw.cumsum_backward, lambda odd: PLAN.run(dy=odd, db=X.copy())):
        with pytest.raises((UNSUPPORTED, TypeError)) as caught:
            call(Unasked())
        assert isinstance(caught.value, sw.Error)


# --- Whatever a producer says -----------------------------------------------------------------------------------------

# Memory between pages that nothing else uses, so that a description that is wrong by a little stays inside.
ARENA = np.frombuffer(mmap.mmap(-1, 1 << 20), np.float32).reshape(-1)
MIDDLE = ARENA[ARENA.size // 2 :][:6].reshape(2, 3)
HUGE = (2**31, 2**40, 2**62, 2**63 - 1, -1, -(2**31), -(2**63))
# A forged tensor on a device that is there would be read by a kernel, whose fault ends the device for this process.
DEVICES = (0, 1, 1, 1, 3, 4, 7, 10, 13, -1, 2**31 - 1) + (() if torch.cuda.is_available() else (2, 13))


def rarely(usual: Any, *odd: Any) -> hs.SearchStrategy[Any]:
    return hs.integers(0, 7).flatmap(lambda k: hs.sampled_from(odd) if k == 0 else hs.just(usual))


def numbers(*usual: int) -> hs.SearchStrategy[int]:
    return hs.integers(0, 15).flatmap(lambda k: hs.sampled_from(HUGE) if k == 0 else hs.sampled_from(usual))


LENDERS = hs.fixed_dictionaries(
    {
        "ndim": rarely(2, 0, 1, 3, 8, 9, 64, -1, -(2**31), 2**31 - 1),
        "shape": hs.one_of(hs.just((2, 3)), hs.none(), hs.tuples(*[numbers(0, 1, 2, 3)] * 8)),
        "strides": hs.one_of(hs.none(), hs.just((3, 1)), hs.tuples(*[numbers(0, 1, 3, 9, -1, -3)] * 8)),
        "data": rarely(MIDDLE.ctypes.data, None, 1, 4096, 2**47, 2**63, 2**64 - 4),
        "byte_offset": rarely(0, 1, 4, 8, 64, 2**40, 2**63, 2**64 - 4, 2**64 - 2**20),
        "code": rarely(2, *range(20), 255),
        "bits": rarely(32, 0, 1, 8, 16, 64, 128, 255),
        "lanes": rarely(1, 0, 2, 4, 65535),
        "device_type": hs.sampled_from(DEVICES),
        "device_id": rarely(0, 1, -1, 2**31 - 1),
        "flags": rarely(0, 1, 2, 3, 2**63, None),
        "version": rarely((1, 1), (0, 0), (1, 99), (2, 0), (2**32 - 1, 0)),
        "name": rarely(None, b"dltensor", b"used_dltensor", b""),
    }
)


def lender(fields: dict[str, Any]) -> Lender:
    """A lender of these fields, but for lies that nobody can see and for tensors that are right and larger than a machine."""
    fields = dict(fields)
    if fields["name"] == b"dltensor":  # names what the capsule holds
        fields.update(name=None, flags=None)
    if fields["shape"] and fields["strides"] and max(fields["shape"]) > 2**30:  # an expanded one
        fields["strides"] = tuple(step or 1 for step in fields["strides"])
    return Lender(MIDDLE, **fields)


CALLS: list[Callable[[Lender], Any]] = [
    sw.cumsum_backward,
    lambda x: sw.cumprod_backward(x, MIDDLE),
    lambda x: sw.cummax_backward(MIDDLE, x),
    lambda x: sw.cummin_backward(MIDDLE, indices=x),
    lambda x: sw.cumsum_backward(X, out=x),
    lambda x: sw.lerp_backward(x, 0.5),
    lambda x: sw.lerp_backward(X, x),
    lambda x: sw.lerp_backward(X, 0.5, X, x, needs=("da", "dweight")),
    lambda x: sw.rope_backward(X.reshape(1, 1, 3, 2), x),
    lambda x: sw.rope_backward(X.reshape(1, 1, 3, 2), cos=x, sin=x),
    lambda x: sw.dequantize_per_token_backward(X, x),
    lambda x: sw.dequantize_per_token_backward(X, np.ones(2, np.float32), q=x),
    lambda x: sw.fake_quantize_per_token_backward(X, X, np.ones(2, np.float32), x, quant_min=-1, quant_max=1),
    lambda x: sw.embedding_bag_backward(X, x, num_embeddings=3),
    lambda x: sw.embedding_bag_backward(X, IDS, num_embeddings=3, per_sample_weights=x),
    lambda x: sw.embedding_bag_per_sample_weights_backward(X, x, IDS),
    lambda x: sw.embedding_bag_per_sample_weights_backward(X, X, IDS, out=x),
    lambda x: sw.embedding_backward(x, IDS[0], num_embeddings=3),
    lambda x: sw.embedding_backward(X, x, num_embeddings=3),
    lambda x: sw.unique_rows(x, 3),
    lambda x: PLAN.run(dy=x, db=np.empty_like(X)),
    lambda x: PLAN.run(dy=X, db=x),
    lambda x: PLAN.can_implement(dy=X, db=x),
    lambda x: PLAN.run(dy=X, db=np.empty_like(X), workspace=x),
]


@settings(max_examples=int(os.environ.get("STERNWAY_TEST_EXAMPLES", "300")))
@given(fields=LENDERS, call=hs.sampled_from(CALLS))
def test_any_description_ends_in_a_result_or_a_typed_error(fields: dict[str, Any], call: Callable[[Lender], Any]) -> None:
    error = refusal(sw.Error, lambda: call(lender(fields)))
    assert error is None or ("\n" not in str(error) and len(str(error)) < 600)
