"""Arrays of NumPy, the array API standard, ml_dtypes and JAX: plain arrays of numbers work, others are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import array_api_strict as xp
import ml_dtypes
import numpy as np
import pytest
import torch
from interpreter import python

import sternway as sw

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
IDS = np.array([0, 1])
ONES = np.ones(2, np.float32)
BITS = {"quant_min": -4, "quant_max": 3}
BF16 = ml_dtypes.bfloat16

# Each operand of each function, given an array like the sample.
OPERANDS: dict[str, tuple[np.ndarray, Callable[[Any], Any]]] = {
    "cumsum_backward dy": (X, sw.cumsum_backward),
    "cumsum_backward out": (X, lambda a: sw.cumsum_backward(X, out=a)),
    "cumprod_backward x": (X, lambda a: sw.cumprod_backward(X, a)),
    "cummax_backward indices": (X.astype(int) % 3, lambda a: sw.cummax_backward(X, indices=a)),
    "logcumsumexp_backward dy": (X, lambda a: sw.logcumsumexp_backward(a, X)),
    "lerp_backward dy": (X, lambda a: sw.lerp_backward(a, 0.5)),
    "lerp_backward weight": (X, lambda a: sw.lerp_backward(X, a)),
    "lerp_backward a": (X, lambda a: sw.lerp_backward(X, X, a, X, needs=("dweight",))),
    "rope_backward dy": (X.reshape(1, 1, 3, 2), sw.rope_backward),
    "rope_backward positions": (IDS, lambda a: sw.rope_backward(np.ones((1, 1, 2, 2)), a)),
    "rope_backward cos": (X[:, :1], lambda a: sw.rope_backward(np.ones((1, 1, 2, 2), np.float32), cos=a, sin=X[:, :1])),
    "dequantize_per_token_backward scale": (ONES, lambda a: sw.dequantize_per_token_backward(X, a)),
    "dequantize_per_token_backward q": (X.astype(np.int8), lambda a: sw.dequantize_per_token_backward(X, ONES, q=a)),
    "fake_quantize_per_token_backward x": (X, lambda a: sw.fake_quantize_per_token_backward(X, a, ONES, **BITS)),
    "fake_quantize_per_token_backward zero_point": (ONES, lambda a: sw.fake_quantize_per_token_backward(X, X, ONES, a, **BITS)),
    "embedding_bag_backward indices": (IDS, lambda a: sw.embedding_bag_backward(X, a, IDS, num_embeddings=3)),
    "embedding_bag_backward offsets": (IDS, lambda a: sw.embedding_bag_backward(X, IDS, a, num_embeddings=3)),
    "embedding_bag_backward per_sample_weights": (
        ONES, lambda a: sw.embedding_bag_backward(X, IDS, IDS, num_embeddings=3, per_sample_weights=a),
    ),
    "embedding_bag_per_sample_weights_backward weight": (
        X, lambda a: sw.embedding_bag_per_sample_weights_backward(X, a, IDS, IDS),
    ),
    "embedding_backward dy": (X[None], lambda a: sw.embedding_backward(a, IDS[None], num_embeddings=3)),
    "embedding_backward indices": (IDS, lambda a: sw.embedding_backward(X, a, num_embeddings=3)),
    "unique_rows indices": (IDS, lambda a: sw.unique_rows(a, 3)),
}  # fmt: skip


class Masked(np.ndarray):
    """Another library's masked array."""

    mask = np.False_


class Metres(np.ndarray):
    """An array with a unit."""

    unit = "m"


class Plain(np.ndarray):
    """A subclass that adds nothing to the numbers."""


NOT_PLAIN: dict[str, Callable[[np.ndarray], Any]] = {
    "masked": lambda a: np.ma.masked_array(a, mask=a == a.flat[0]),
    "masked nowhere": lambda a: np.ma.masked_array(a),
    "mask of a foreign class": lambda a: a.view(Masked),
    "unit": lambda a: a.view(Metres),
    "structured": lambda a: np.zeros(a.shape, [("x", a.dtype)]),
    "record": lambda a: np.zeros(a.shape, [("x", a.dtype)]).view(np.recarray),
    "object": lambda a: a.astype(object),
    "text": lambda a: a.astype("U8"),
    "bytes": lambda a: a.astype("S8"),
    "date": lambda a: a.astype(int).astype("M8[s]"),
    "duration": lambda a: a.astype(int).astype("m8[s]"),
    "void": lambda a: np.zeros(a.shape, "V4"),
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()) if a.itemsize > 1 else a.astype(">f4"),
    "float8 of no operand": lambda a: a.astype(ml_dtypes.float8_e4m3b11fnuz),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
@pytest.mark.parametrize("operand", OPERANDS)
def test_what_is_no_plain_array_is_refused_by_name(operand: str, name: str) -> None:
    sample, call = OPERANDS[operand]
    function, _, argument = operand.partition(" ")
    given = NOT_PLAIN[name](sample)
    before = given.tobytes() if name != "object" else given.tolist()
    with pytest.raises(sw.UnsupportedError, match=f"{argument} must be a plain numeric array") as caught:
        call(given)
    assert caught.value.operand == argument
    assert str(caught.value).startswith(function.partition("_per_sample")[0])
    assert before == (given.tobytes() if name != "object" else given.tolist())


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_plans_refuse_it_too(name: str) -> None:
    """As inputs and outputs, and as a workspace."""
    plan = sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor(X.shape, "float32", 0.5))
    odd, out = NOT_PLAIN[name](X), np.full(X.shape, np.nan, np.float32)
    for method in (plan.run, plan.can_implement):
        for operands in ({"dy": odd, "db": out}, {"dy": X, "db": odd}, {"dy": torch.from_numpy(X), "db": out, "da": odd}):
            with pytest.raises(sw.UnsupportedError, match="plain numeric array"):
                method(**operands)
        with pytest.raises(sw.UnsupportedError, match="workspace must be a plain"):
            method(dy=X, db=out, workspace=NOT_PLAIN[name](np.zeros(256, np.uint8)))
    assert np.isnan(out).all()


@pytest.mark.parametrize("dtype", [np.complex64, np.bool_, np.int32])
@pytest.mark.parametrize("operand", [o for o in OPERANDS if o.endswith((" dy", " x", " weight", " out"))])
def test_numbers_of_another_kind_are_refused_by_name(operand: str, dtype: Any) -> None:
    sample, call = OPERANDS[operand]
    with pytest.raises(sw.Error, match=np.dtype(dtype).name) as caught:
        call(sample.astype(dtype))
    assert caught.value.operand in (operand.split()[1], "dtype", "x", "out")


@pytest.mark.parametrize("kind", [Plain, np.matrix, np.recarray, np.memmap], ids=lambda kind: kind.__name__)
def test_subclasses_that_add_nothing_work(kind: type[np.ndarray], tmp_path: Path) -> None:
    if kind is np.memmap:
        given: Any = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
        given[:] = X
        given.flush()
        out = np.memmap(tmp_path / "y", np.float32, "w+", shape=X.shape)
        frozen = np.memmap(tmp_path / "x", np.float32, "r", shape=X.shape)
        with pytest.raises(sw.InvalidProblemError, match="writable"):
            sw.cumsum_backward(X, out=frozen)
        assert np.array_equal(sw.cumsum_backward(frozen), sw.cumsum_backward(X))
    else:
        given, out = X.view(kind), np.empty_like(X).view(kind)
    expected = sw.cumprod_backward(X, X)
    assert np.array_equal(sw.cumprod_backward(given, given), expected)
    assert sw.cumprod_backward(given, X, out=out) is out
    assert np.array_equal(out, expected)


# --- The array API standard -------------------------------------------------------------------------------------------


def strict(x: Any) -> Any:
    """Arrays as arrays of the standard, other values as they are."""
    return xp.asarray(x, copy=True) if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize("operand", OPERANDS)
def test_arrays_of_the_standard_are_operands(operand: str) -> None:
    sample, call = OPERANDS[operand]
    got, expected = call(strict(sample)), call(sample.copy())
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, expected)), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b)) if b is not None else a is None


def test_results_are_arrays_of_the_standard() -> None:
    """In the library, on the device and in the dtype of dy."""
    for dtype in (xp.float32, xp.float64):
        for device in (xp.Device("CPU_DEVICE"), xp.Device("device1")):
            dy = xp.asarray(X.tolist(), dtype=dtype, device=device)
            calls = (
                lambda dy=dy: sw.cumsum_backward(dy),
                lambda dy=dy: sw.cumprod_backward(dy, X.astype(str(dy.dtype).rpartition(".")[2])),
                lambda dy=dy: sw.lerp_backward(dy, 0.5, b_shape=(3,)),
                lambda dy=dy: sw.embedding_bag_backward(dy, np.array([[0, 1], [1, 2]]), num_embeddings=3),
                lambda dy=dy: sw.embedding_backward(dy, np.array([0, 1]), num_embeddings=3),
                lambda dy=dy: sw.embedding_bag_per_sample_weights_backward(dy, dy, np.array([[0, 1], [1, 1]])),
            )
            for call in calls:
                result = call()
                for array in result if isinstance(result, tuple) else (result,):
                    assert isinstance(array, type(dy))
                    assert (array.dtype, array.device) == (dtype, device)
    assert isinstance(sw.unique_rows(xp.asarray(IDS), 3)[0], type(dy))


class Half:
    """An array of the standard of a dtype that its library does not name."""

    def __init__(self) -> None:
        self.array, self.device = X.astype(np.float16), xp.Device("CPU_DEVICE")

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __array_namespace__(self) -> ModuleType:
        return xp


def test_a_dtype_that_the_library_has_not() -> None:
    with pytest.raises(sw.UnsupportedError, match="array_api_strict has no float16") as caught:
        sw.cumsum_backward(Half())
    assert caught.value.operand == "out"
    assert sw.cumsum_backward(Half(), out=np.empty((2, 3), np.float16)).tolist() == sw.cumsum_backward(X).tolist()


def test_plans_take_arrays_of_the_standard() -> None:
    dx = xp.zeros((2, 3), dtype=xp.float32)
    plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cumprod", X.shape, xp.float32))
    plan.can_implement(dy=xp.asarray(X), x=xp.asarray(X), dx=dx)
    plan.run(dy=xp.asarray(X), x=X, dx=dx)
    assert np.array_equal(np.asarray(dx), sw.cumprod_backward(X, X))


def test_dtypes_of_libraries() -> None:
    spelled = {"bfloat16": [BF16, np.dtype(BF16), torch.bfloat16], "float32": [xp.float32, np.float32, "torch.float32"]}
    for name, dtypes in spelled.items():
        for dtype in dtypes:
            assert sw.ScanBackwardDescriptor("cumsum", (3,), dtype).dtype == name


# --- bfloat16 of ml_dtypes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "reversed", "stepped", "expanded", "read-only"])
def test_numpy_arrays_of_bfloat16(layout: str) -> None:
    """In and out, in any layout; the bits are those of torch."""
    base = np.arange(1, 25).astype(BF16).reshape(4, 6)
    given = {
        "contiguous": base, "transposed": base.T, "reversed": base[::-1, ::-1], "stepped": base[::2, 1::2],
        "expanded": np.broadcast_to(base[:1], (4, 6)), "read-only": base.copy(),
    }[layout]  # fmt: skip
    given.flags.writeable = given.flags.writeable and layout != "read-only"
    twin = torch.tensor(given.astype(np.float32)).bfloat16()
    expected = sw.cumsum_backward(twin)
    result = sw.cumsum_backward(given)
    assert result.dtype == BF16
    assert np.array_equal(result.view(np.uint16), expected.view(torch.uint16).numpy())
    out = np.zeros((8, 12), BF16)[::2, ::2][: given.shape[0], : given.shape[1]]
    if out.shape == given.shape:
        assert sw.cumsum_backward(given, out=out) is out
        assert np.array_equal(out.astype(np.float32), expected.float().numpy())
    if layout == "read-only":
        with pytest.raises(sw.InvalidProblemError, match="writable"):
            sw.cumsum_backward(base, out=given)


def test_bfloat16_in_every_function() -> None:
    dy = X.astype(BF16)
    twin = torch.from_numpy(X).bfloat16()
    for call in (
        lambda dy, one: sw.lerp_backward(dy, 0.5, b_shape=(3,))[1],
        lambda dy, one: sw.lerp_backward(dy, dy[0, 0])[1] if dy is twin else sw.lerp_backward(dy, dy[0, :1].reshape(()))[1],
        lambda dy, one: sw.dequantize_per_token_backward(dy, one),
        lambda dy, one: sw.fake_quantize_per_token_backward(dy, dy, one, **BITS)[1],
        lambda dy, one: sw.embedding_bag_backward(dy, IDS, IDS, num_embeddings=2),
        lambda dy, one: sw.embedding_backward(dy, IDS, num_embeddings=2),
        lambda dy, one: sw.rope_backward(dy.reshape(1, 1, 3, 2)),
    ):
        got, want = call(dy, ONES.astype(BF16)), call(twin, torch.ones(2).bfloat16())
        assert got.dtype == BF16
        assert np.array_equal(got.astype(np.float32), want.float().numpy())


# --- JAX --------------------------------------------------------------------------------------------------------------


def tracer() -> Any:
    """What jax.jit hands to the function that it traces: it says that it has every attribute of an array, and raises."""

    class Tracer:
        __module__ = "jax._src.core"
        shape, dtype = (2, 3), np.dtype("float32")

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"traced array has no attribute {name}\nand more lines")

    class DynamicJaxprTracer(Tracer):
        __module__ = "jax._src.interpreters.partial_eval"

    return DynamicJaxprTracer()


@pytest.mark.parametrize("operand", [o for o in OPERANDS if not o.endswith("out")])
def test_tracers_of_jax_are_pointed_to_sternway_jax(operand: str) -> None:
    _, call = OPERANDS[operand]
    with pytest.raises(sw.UnsupportedError, match=r"sternway\.jax") as caught:
        call(tracer())
    assert caught.value.operand == operand.split()[1]


def test_plans_and_outputs_refuse_tracers() -> None:
    plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cumsum", X.shape, "float32"))
    for call in (
        lambda: plan.run(dy=tracer(), dx=X.copy()),
        lambda: plan.can_implement(dy=tracer(), dx=X.copy()),
        lambda: plan.run(dy=X, dx=tracer()),
        lambda: sw.cumsum_backward(X, out=tracer()),
    ):
        with pytest.raises(sw.UnsupportedError, match=r"sternway\.jax"):
            call()


def test_arrays_of_jax_are_inputs_alone() -> None:
    """By a stand-in: they lend memory that must not be written, whatever flags they give."""

    class Array:
        __module__ = "jaxlib._jax"

        def __dlpack__(self, **options: Any) -> Any:
            return X.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __array_namespace__(self) -> ModuleType:
            raise AssertionError("an output of JAX cannot be written")

    out = np.empty_like(X)
    assert sw.cumsum_backward(Array(), out=out) is out
    assert np.array_equal(out, sw.cumsum_backward(X))
    with pytest.raises(sw.UnsupportedError, match=r"out must be given, as no output can be made in jax\b"):
        sw.cumsum_backward(Array())
    with pytest.raises(sw.InvalidProblemError, match="immutable"):
        sw.cumsum_backward(X, out=Array())


# --- Libraries that are not there -------------------------------------------------------------------------------------


def test_bfloat16_without_torch() -> None:
    """The results are arrays of NumPy; without ml_dtypes the error says what to import."""
    python(f"""
        import sys
        sys.modules["torch"] = None
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import numpy as np, sternway as sw
        from forged import Lender
        bits = np.array([0x3F80, 0x4000, 0x4040], np.uint16)  # 1, 2, 3
        lent = lambda: Lender(bits, code=4)
        try:
            sw.cumsum_backward(lent())
        except sw.UnsupportedError as error:
            assert "ml_dtypes" in str(error), error
        else:
            raise AssertionError
        import ml_dtypes
        assert sw.cumsum_backward(lent()).tolist() == [6, 5, 3]
        assert sw.cumsum_backward(Lender(np.ones(2))).tolist() == [2, 1]
    """)


def test_a_device_of_a_foreign_class() -> None:
    for device in (SimpleNamespace(type="cpu", index=0), SimpleNamespace(type="cpu"), "cpu:0"):
        sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cumsum", (3,), "float32"), device=device)
