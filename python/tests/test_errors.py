"""Broken calls: each raises its class, names the operand, reads as one sentence, and leaves every tensor as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from families import Family, make
from families.dequantize import DEQUANTIZE
from families.fake_quantize import FAKE_QUANTIZE
from families.lerp import LERP
from interpreter import python
from support import F32, Snapshot, one_sentence

import sternway as sw
import sternway.torch as st
from sternway import errors
from sternway._kinds import KINDS

UNSUPPORTED, INVALID = sw.UnsupportedError, sw.InvalidProblemError
EITHER = (UNSUPPORTED, INVALID)  # the documents put the case into neither class
DROP = object()
SHAPE = (4, 6)


class Bad(NamedTuple):
    """Operands of a valid run of `family`, one of them replaced: `edit` maps all of them to the replacements."""

    name: str
    family: Family
    edit: Callable[[dict[str, Any]], dict[str, Any]]
    error: Any
    operand: str
    words: tuple[str, ...]


def operands_of(family: Family) -> tuple[Any, dict[str, Any]]:
    problem = make(family, SHAPE, F32, "cpu")
    return problem.plan(), {**problem.inputs, **{name: out.tensor for name, out in problem.outputs().items()}}


def conjugate_half(t: torch.Tensor) -> torch.Tensor:
    """Make a view whose values are minus those in memory: the neg bit of an imaginary part."""
    return torch.complex(t, t).conj().imag


def shrunk(t: torch.Tensor, size: int = 8) -> torch.Tensor:
    """Resize the storage under the view."""
    t = t.clone()
    t.untyped_storage().resize_(size)
    return t


def bytewise(t: torch.Tensor, offset: int = 1) -> torch.Tensor:
    """Copy to an address that is no multiple of the element size."""
    buffer = bytearray(t.numel() * t.element_size() + offset)
    view = torch.frombuffer(buffer, dtype=t.dtype, offset=offset).view(t.shape)
    return view.copy_(t)


def read_only(t: torch.Tensor) -> np.ndarray:
    array = np.zeros(t.shape, np.float32)
    array.flags.writeable = False
    return array


def fake(t: torch.Tensor) -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(t)


def base(t: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape or t.shape, dtype=t.dtype)


def overlapping(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of a's shape, one shifted by one element."""
    buffer = torch.zeros(a.numel() + 1)
    return buffer[:-1].view(a.shape), buffer[1:].view(a.shape)


def put(**tensors: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Each operand becomes f(itself), or the constant."""
    return lambda ops: {n: f(ops[n]) if callable(f) else f for n, f in tensors.items()}


def shifted(source: str, target: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda ops: dict(zip((source, target), overlapping(ops[source]), strict=True))


def over(first: str, second: str, view: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Put the second operand into the memory of a fresh first."""

    def edit(operands: dict[str, Any]) -> dict[str, Any]:
        memory = base(operands[first])
        return {first: memory, second: view(memory)}

    return edit


def workspace(offset: int) -> torch.Tensor:
    """Bytes so far behind a multiple of 256."""
    memory = torch.zeros(1024, dtype=torch.uint8)
    start = -memory.data_ptr() % 256 + offset
    return memory[start : start + 256]


def same(source: str, *targets: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda ops: dict.fromkeys(targets, ops[source])


RUNS = (
    # missing and unexpected operands
    Bad("dy missing", LERP, put(dy=DROP), INVALID, "dy", ("given",)),
    Bad("dy is None", LERP, put(dy=None), INVALID, "dy", ("given",)),
    Bad("weight missing", LERP, put(weight=DROP), INVALID, "weight", ("given",)),
    Bad("a missing for dweight", LERP, put(a=DROP), INVALID, "a", ("given", "dweight")),
    Bad("b missing for dweight", LERP, put(b=DROP), INVALID, "b", ("given", "dweight")),
    Bad("no output at all", LERP, put(da=DROP, db=DROP, dweight=DROP), INVALID, "", ("da", "db", "dweight")),
    Bad("scale missing", DEQUANTIZE, put(scale=DROP), INVALID, "scale", ("given",)),
    Bad("q missing for dscale", DEQUANTIZE, put(q=DROP), INVALID, "q", ("given", "dscale")),
    Bad("zero_point missing", DEQUANTIZE, put(zero_point=DROP), INVALID, "zero_point", ("dzero_point",)),
    Bad("dx missing", DEQUANTIZE, put(dx=DROP), INVALID, "dx", ("given",)),
    Bad("x missing", FAKE_QUANTIZE, put(x=DROP), INVALID, "x", ("given",)),
    Bad("an operand of another family", LERP, put(positions=torch.zeros(3)), INVALID, "positions", ("dy", "weight")),
    Bad("a misspelt operand", FAKE_QUANTIZE, put(zero_points=torch.zeros(4)), INVALID, "zero_points", ("zero_point",)),
    # shapes
    Bad("dy of another shape", LERP, put(dy=lambda t: base(t, 6, 4)), INVALID, "dy", ("[4, 6]", "[6, 4]")),
    Bad("dy of another rank", DEQUANTIZE, put(dy=lambda t: base(t, 24)), INVALID, "dy", ("[4, 6]", "[24]")),
    Bad("a broadcasts, unannounced", LERP, put(a=lambda t: base(t, 6)), INVALID, "a", ("[4, 6]", "[6]")),
    Bad("da of another shape", LERP, put(da=lambda t: base(t, 1, 6)), INVALID, "da", ("[4, 6]", "[1, 6]")),
    Bad("dweight 0-d", LERP, put(dweight=torch.zeros(())), INVALID, "dweight", ("[4, 6]", "[]")),
    Bad("scale for each element", DEQUANTIZE, put(scale=lambda t: base(t, 4, 6)), INVALID, "scale", ("[4]", "[4, 6]")),
    Bad("scale per column", FAKE_QUANTIZE, put(scale=lambda t: base(t, 6)), INVALID, "scale", ("[4]", "[6]")),
    Bad("q of another shape", DEQUANTIZE, put(q=lambda t: base(t, 4, 7)), INVALID, "q", ("[4, 6]", "[4, 7]")),
    Bad("zero_point for 5 rows", FAKE_QUANTIZE, put(zero_point=lambda t: base(t, 5)), INVALID, "zero_point", ("[4]", "[5]")),
    Bad("dscale of another shape", DEQUANTIZE, put(dscale=lambda t: base(t, 6)), INVALID, "dscale", ("[4]", "[6]")),
    # dtypes
    Bad("dy in float64", LERP, put(dy=torch.Tensor.double), INVALID, "dy", ("float32", "float64")),
    Bad("x in float64", FAKE_QUANTIZE, put(x=torch.Tensor.double), INVALID, "x", ("float32", "float64")),
    Bad("weight in float16", LERP, put(weight=torch.Tensor.half), INVALID, "weight", ("float32", "float16")),
    Bad("da in bfloat16", LERP, put(da=torch.Tensor.bfloat16), INVALID, "da", ("float32", "bfloat16")),
    Bad("dy in bool", LERP, put(dy=torch.Tensor.bool), INVALID, "dy", ("float32", "bool")),
    Bad("dy in complex64", LERP, put(dy=lambda t: t.to(torch.complex64)), INVALID, "dy", ("float32", "complex64")),
    Bad("q in uint8 for int8", DEQUANTIZE, put(q=lambda t: t.view(torch.uint8)), INVALID, "q", ("int8", "uint8")),
    Bad("q in float", DEQUANTIZE, put(q=torch.Tensor.float), INVALID, "q", ("int8", "float32")),
    Bad("zero_point in int16", DEQUANTIZE, put(zero_point=torch.Tensor.short, dzero_point=DROP), EITHER, "zero_point", ("16",)),
    Bad("bool zero_point", DEQUANTIZE, put(zero_point=torch.Tensor.bool, dzero_point=DROP), EITHER, "zero_point", ("bool",)),
    Bad("zero_point not floating", DEQUANTIZE, put(zero_point=torch.Tensor.int), INVALID, "", ("zero_point", "int32")),
    Bad("dscale in float64", FAKE_QUANTIZE, put(dscale=torch.Tensor.double), INVALID, "dscale", ("float32", "float64")),
    Bad("dzero_point in double", DEQUANTIZE, put(dzero_point=torch.Tensor.double), INVALID, "dzero_point", ("float64",)),
    # memory that cannot be read or written
    Bad("meta tensor", LERP, put(dy=lambda t: t.to("meta")), EITHER, "dy", ("meta",)),
    Bad("sparse tensor", LERP, put(a=torch.Tensor.to_sparse), EITHER, "a", ("sparse",)),
    Bad("FakeTensor", LERP, put(dy=fake), EITHER, "dy", ("FakeTensor",)),
    Bad("neg bit", LERP, put(a=conjugate_half), EITHER, "a", ("resolve_neg",)),
    Bad("neg bit of a whole storage", LERP, put(dy=torch.Tensor._neg_view), EITHER, "dy", ("resolve_neg",)),
    Bad("output wants grad", LERP, put(da=lambda t: t.clone().requires_grad_()), EITHER, "da", ("requires grad", "detach")),
    Bad("output in a graph", LERP, put(da=torch.ones(4, 6, requires_grad=True) * 2), EITHER, "da", ("requires grad",)),
    Bad("read-only output", LERP, put(db=read_only), INVALID, "db", ("read-only",)),
    Bad("expanded output", LERP, put(da=torch.zeros(6).expand(4, 6)), EITHER, "da", ("stride",)),
    Bad("output over itself", LERP, put(da=torch.zeros(20).as_strided((4, 6), (3, 1))), INVALID, "da", ("repeated",)),
    Bad("storage too small", LERP, put(dy=shrunk), sw.BufferTooSmallError, "dy", ("96", "8")),
    Bad("storage of nothing", LERP, put(dy=lambda t: shrunk(t, 0)), sw.BufferTooSmallError, "dy", ("96", "0")),
    Bad("storage of dscale", DEQUANTIZE, put(dscale=lambda t: shrunk(base(t))), sw.BufferTooSmallError, "dscale", ("16", "8")),
    Bad("odd address", LERP, put(dy=bytewise), sw.MisalignedOperandError, "dy", ("4",)),
    Bad("odd address of dx", FAKE_QUANTIZE, put(dx=lambda t: bytewise(base(t), 2)), sw.MisalignedOperandError, "dx", ("4",)),
    Bad("odd address in NumPy", LERP, put(b=lambda t: bytewise(t, 3).numpy()), sw.MisalignedOperandError, "b", ("4",)),
    # overlaps
    Bad("da shifted into dy", LERP, shifted("dy", "da"), INVALID, "da", ("disjoint", "dy")),
    Bad("db shifted into a", LERP, shifted("a", "db"), INVALID, "db", ("disjoint", "a")),
    Bad("two outputs in one place", LERP, over("da", "db", lambda t: t), INVALID, "", ("disjoint", "da", "db")),
    Bad("dscale is scale", DEQUANTIZE, same("scale", "dscale"), INVALID, "dscale", ("disjoint", "scale")),
    Bad("dx over q", DEQUANTIZE, over("dx", "q", lambda t: t.view(torch.int8)[:, :6]), INVALID, "dx", ("disjoint", "q")),
    Bad("dx is x turned", FAKE_QUANTIZE, over("x", "dx", lambda t: t.view(6, 4).T), INVALID, "dx", ("disjoint", "x")),
    # no arrays
    Bad("a number", LERP, put(dy=3.0), TypeError, "dy", ("float",)),
    Bad("a string", LERP, put(a="text"), TypeError, "a", ("str",)),
    Bad("a list", DEQUANTIZE, put(scale=[1.0, 2.0, 3.0, 4.0]), TypeError, "scale", ("list",)),
    Bad("the class", LERP, lambda _: {"da": torch.Tensor}, TypeError, "da", ()),
    Bad("odd workspace", LERP, put(workspace=workspace(1)), sw.MisalignedOperandError, "workspace", ("256",)),
    Bad("workspace of floats", LERP, put(workspace=workspace(0).view(F32)), INVALID, "workspace", ("uint8", "float32")),
    Bad("workspace in two dims", LERP, put(workspace=workspace(0).view(2, 128)), EITHER, "workspace", ("uint8",)),
    Bad("a workspace that is no array", LERP, put(workspace=b"bytes"), TypeError, "workspace", ("bytes",)),
)  # fmt: skip


def memory_of(operands: dict[str, Any]) -> Snapshot:
    """Every operand that has memory of its own to watch."""
    watched = {}
    for name, value in operands.items():
        if isinstance(value, np.ndarray) and value.flags.writeable:
            value = torch.from_numpy(value)
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided:
            watched[name] = value.detach()
    return Snapshot(watched)


@pytest.mark.parametrize("method", ["run", "can_implement"])
@pytest.mark.parametrize("row", RUNS, ids=lambda row: row.name)
def test_run(row: Bad, method: str) -> None:
    plan, operands = operands_of(row.family)
    if method == "can_implement" and row.operand == "workspace":
        method = "run"  # can_implement takes no workspace
    operands.update(row.edit(operands))
    operands = {name: value for name, value in operands.items() if value is not DROP}
    before = memory_of(operands)
    with pytest.raises(row.error) as caught:
        getattr(plan, method)(**operands)
    before.check()
    one_sentence(caught.value, row.operand, row.words)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad], ids=lambda f: f.__name__)
@pytest.mark.parametrize("operand", ["dy", "da"])
def test_run_under_a_transform(operand: str, transform: Any) -> None:
    """A tensor that functorch wrapped has no memory of its own."""
    plan, operands = operands_of(LERP)

    def body(wrapped: torch.Tensor) -> torch.Tensor:
        plan.run(**{**operands, operand: wrapped})
        return wrapped.sum()

    before = memory_of(operands)
    with pytest.raises(EITHER) as caught:
        transform(body)(torch.zeros((1, *SHAPE) if transform is torch.vmap else SHAPE))
    before.check()
    one_sentence(caught.value, operand, ())


def test_the_unbroken_calls_work() -> None:
    """What the rows of the table break is whole before."""
    for family in (LERP, DEQUANTIZE, FAKE_QUANTIZE):
        plan, operands = operands_of(family)
        plan.run(**operands)


@pytest.mark.parametrize("kind", ["nested", "jagged", "sparse", "mkldnn"])
def test_functions_refuse_what_has_no_strides(kind: str) -> None:
    rows = [torch.ones(2), torch.ones(3)]
    dy = {
        "nested": lambda: torch.nested.nested_tensor(rows),
        "jagged": lambda: torch.nested.nested_tensor(rows, layout=torch.jagged),
        "sparse": lambda: torch.ones(2, 3).to_sparse(),
        "mkldnn": lambda: torch.ones(2, 3).to_mkldnn(),
    }[kind]()
    for call in (sw.cumsum_backward, lambda x: sw.lerp_backward(x, 0.5), sw.rope_backward):
        with pytest.raises(sw.UnsupportedError) as caught:
            call(dy)
        one_sentence(caught.value, "dy", ("strided",))


# --- Functions: their own names, and those of their arguments ---------------------------------------------------------

X = torch.ones(2, 3)
BAD_CALLS: dict[str, tuple[Callable[[], Any], Any, str, str]] = {
    "cumprod's x": (lambda: sw.cumprod_backward(X, X.double()), INVALID, "cumprod_backward", "x"),
    "cumprod's out": (lambda: sw.cumprod_backward(X, X, out=X.clone().half()), INVALID, "cumprod_backward", "out"),
    "cumprod in place": (lambda: sw.cumprod_backward(X, X, out=X), INVALID, "cumprod_backward", "out"),
    "cumsum's dim": (lambda: sw.cumsum_backward(X, 5), INVALID, "cumsum_backward", "dim"),
    "cumsum's dtype": (lambda: sw.cumsum_backward(X.int()), UNSUPPORTED, "cumsum_backward", "dy"),
    "cummax's tie": (lambda: sw.cummax_backward(X, X, tie="middle"), UNSUPPORTED, "cummax_backward", "tie"),
    "cummin's both": (lambda: sw.cummin_backward(X, X, indices=X), INVALID, "cummin_backward", "x or indices"),
    "cummax's index": (lambda: sw.cummax_backward(X, indices=X.long() * 7), INVALID, "cummax_backward", "indices"),
    "logcumsumexp's reverse": (
        lambda: sw.logcumsumexp_backward(X, X, reverse="no"),
        INVALID,
        "logcumsumexp_backward",
        "reverse",
    ),
    "no array": (lambda: sw.cumsum_backward([1.0]), TypeError, "cumsum_backward", "dy"),
    "lerp's weight": (lambda: sw.lerp_backward(X, X.double()), INVALID, "lerp_backward", "weight"),
    "lerp's number": (lambda: sw.lerp_backward(X, 10**400), INVALID, "lerp_backward", "weight"),
    "lerp's long number": (lambda: sw.lerp_backward(X, -(10**5000)), INVALID, "lerp_backward", "weight"),
    "lerp's complex number": (lambda: sw.lerp_backward(X, np.complex64(1j)), INVALID, "lerp_backward", "weight"),
    "lerp's a_shape": (lambda: sw.lerp_backward(X, 0.5, a_shape="23"), INVALID, "lerp_backward", "a_shape"),
    "lerp's b_shape": (lambda: sw.lerp_backward(X, 0.5, b_shape=(7,)), INVALID, "lerp_backward", "b_shape"),
    "lerp's b": (lambda: sw.lerp_backward(X, 0.5, b=X, b_shape=(3,)), INVALID, "lerp_backward", "b"),
    "lerp's needs": (lambda: sw.lerp_backward(X, 0.5, needs="da"), INVALID, "lerp_backward", "needs"),
    "unique_rows' dtype": (lambda: sw.unique_rows(X[0], 5), UNSUPPORTED, "unique_rows", "indices"),
    "unique_rows' rank": (lambda: sw.unique_rows(X.long(), 5), INVALID, "unique_rows", "indices"),
    "unique_rows' rows": (lambda: sw.unique_rows(torch.tensor([0]), "x"), INVALID, "unique_rows", "num_rows"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_functions_speak_of_themselves(name: str) -> None:
    call, error, function, operand = BAD_CALLS[name]
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, sw.Error)
    one_sentence(caught.value, operand, ())
    assert caught.value.op == function
    assert "dx" not in str(caught.value)
    assert "scan_backward" not in str(caught.value)


# --- Advice that works ------------------------------------------------------------------------------------------------


def unaligned(x: np.ndarray) -> np.ndarray:
    """A copy one byte behind an aligned address."""
    return np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)


def jax_array(x: np.ndarray) -> Any:
    return pytest.importorskip("jax", reason="JAX is not installed").numpy.asarray(x)


LIBRARIES: dict[str, Callable[[np.ndarray], Any]] = {"numpy": np.asarray, "torch": torch.from_numpy, "jax": jax_array}
ADVICE: dict[str, tuple[Callable[..., Any], str, np.ndarray]] = {
    "a dtype like dy": (lambda x, dy: sw.cumprod_backward(dy, x), "x", np.ones(4, np.float16)),
    "indices of a maximum": (
        lambda indices, dy: sw.cummax_backward(dy, indices=indices),
        "indices",
        np.arange(4, dtype=np.int32),
    ),
}


@pytest.mark.parametrize("of_dy", LIBRARIES)
@pytest.mark.parametrize("of_x", LIBRARIES)
@pytest.mark.parametrize("name", ["a dtype like dy", "indices of a maximum"])
def test_advice_about_a_dtype_can_be_followed(name: str, of_x: str, of_dy: str) -> None:
    """The hint is code of the library of the operand: the call works with it. It alone finds ``.to`` for an array of NumPy."""
    call, operand, wrong = ADVICE[name]
    dy = np.ones(4, np.float32)
    if of_dy == "jax" or (of_x == "jax" and name != "a dtype like dy"):
        pytest.skip("JAX makes no output, and no int64 unless it is asked")
    names = {operand: LIBRARIES[of_x](wrong), "dy": LIBRARIES[of_dy](dy)}
    error = refused(lambda: call(names[operand], names["dy"]))
    assert error.operand == operand
    code = error.hint.removeprefix("convert it with ")
    call(eval(code, {"torch": torch, "np": np}, names), names["dy"])


@pytest.mark.parametrize("of_x", ["numpy", "torch"])
def test_advice_about_an_address_can_be_followed(of_x: str) -> None:
    """It alone finds ``clone()`` for an array of NumPy, which has ``copy()``."""
    x = np.ones(4, np.float32)
    x = unaligned(x) if of_x == "numpy" else bytewise(torch.from_numpy(x))  # type: ignore[assignment]
    error = refused(lambda: sw.cumsum(x))
    assert isinstance(error, sw.MisalignedOperandError)
    sw.cumsum(eval(error.hint.removeprefix("copy it with "), {}, {"x": x}))


@pytest.mark.parametrize("of_out", ["numpy", "torch"])
def test_advice_about_an_expanded_output_can_be_followed(of_out: str) -> None:
    """It alone finds ``contiguous()`` for an array of NumPy."""
    x = np.ones((2, 3), np.float32)
    out: Any = np.lib.stride_tricks.as_strided(np.ones(3, np.float32), (2, 3), (0, 4), writeable=True)
    out = out if of_out == "numpy" else torch.ones(3).expand(2, 3)
    error = refused(lambda: sw.cumsum(x, out=out))
    sw.cumsum(x, out=eval(error.hint.partition(" with ")[2], {}, {"out": out}))


def test_no_advice_to_convert_an_output() -> None:
    """It alone finds the advice to write into a converted copy, where nobody would see the result."""
    assert refused(lambda: sw.cumsum(X, out=X.double())).hint == ""


def test_advice_keeps_attributes() -> None:
    """It alone finds ``weight.weight``: operands are renamed, and attributes of the same name are not."""
    weight, samples = torch.ones(5, 3), torch.ones(2, 2).double()
    error = refused(lambda: st.embedding_bag(torch.ones(2, 2).long(), weight, per_sample_weights=samples, mode="sum"))
    assert error.hint == "convert it with per_sample_weights.to(weight.dtype)"
    error = errors.renamed(
        errors.make("type", "op", "x", "of a dtype like dy", "", "use dy.dtype"), "f", {"dtype": "x", "dy": "q"}
    )
    assert (error.wanted, error.hint) == ("of a dtype like q", "use q.dtype")


# --- Names ------------------------------------------------------------------------------------------------------------


def refused(call: Callable[[], Any]) -> sw.Error:
    with pytest.raises(sw.Error) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("name", sorted(errors._CLASSES))
def test_classes_have_public_names(name: str) -> None:
    """It alone finds ``sternway.errors._OperandTypeError`` as the first word of a traceback."""
    kind = errors._CLASSES[name]
    assert all(not base.__name__.startswith("_") for base in kind.__mro__)
    assert getattr(errors, kind.__name__) is kind
    assert kind.__doc__


INTEGERS = np.ones((1, 1, 2, 2), np.int64)
ROW = np.ones((2, 2))


def gradient_of(kind: str) -> Callable[[Any], Any]:
    """The gradient of a scan of one array, which is x, too."""
    return lambda x: getattr(sw, f"{kind}_backward")(*((x, x) if KINDS[kind].operands else (x,)))


OF_INTEGERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    **{name: (getattr(sw, name), "x") for name in (*KINDS, "rope")},
    **{f"{name}_backward": (gradient_of(name), "dy") for name in KINDS},
    "rope_backward": (sw.rope_backward, "dy"),
    "lerp_backward": (lambda x: sw.lerp_backward(x, 0.5), "dy"),
    "dequantize_per_token": (lambda x: sw.dequantize_per_token(x, ROW[None]), "q"),
    "dequantize_per_token's scale": (lambda x: sw.dequantize_per_token(x.astype("b"), x[..., 0]), "scale"),
    "dequantize_per_token_backward": (lambda x: sw.dequantize_per_token_backward(x, ROW[None]), "dy"),
    "dequantize_per_token_backward's q": (lambda x: sw.dequantize_per_token_backward(x * 1.0, ROW[None], q=x), "q"),
    "fake_quantize_per_token": (lambda x: sw.fake_quantize_per_token(x, ROW[None], quant_min=0, quant_max=1), "x"),
    "fake_quantize_per_token_backward": (
        lambda x: sw.fake_quantize_per_token_backward(x, x, ROW[None], quant_min=0, quant_max=1), "dy",
    ),
    "embedding_backward": (lambda x: sw.embedding_backward(x, x[..., 0], num_embeddings=3), "dy"),
    "embedding_backward's indices": (lambda x: sw.embedding_backward(x * 1.0, x[..., 0] * 1.0, num_embeddings=3), "indices"),
    "embedding_bag_backward": (lambda x: sw.embedding_bag_backward(x[0, 0], x[0, 0], num_embeddings=3), "dy"),
    "embedding_bag_backward's indices": (lambda x: sw.embedding_bag_backward(ROW, x[0, 0] * 1.0, num_embeddings=3), "indices"),
    "embedding_bag_backward's offsets": (
        lambda x: sw.embedding_bag_backward(ROW, x[0, 0, 0], x[0, 0, 0] * 1.0, num_embeddings=3), "offsets",
    ),
    "embedding_bag_per_sample_weights_backward": (
        lambda x: sw.embedding_bag_per_sample_weights_backward(x[0, 0], ROW, x[0, 0]), "dy",
    ),
    "unique_rows": (lambda x: sw.unique_rows(x[0, 0, 0] * 1.0, 3), "indices"),
    "st.rope": (lambda x: st.rope(torch.from_numpy(x)), "x"),
    "st.apply_rotary_pos_emb": (lambda x: st.apply_rotary_pos_emb(*[torch.from_numpy(x)] * 2, *[torch.ones(1, 2, 2)] * 2), "q"),
    "st.dequantize_per_token": (lambda x: st.dequantize_per_token(*[torch.from_numpy(x)] * 2), "q"),
    "st.fake_quantize_per_token": (
        lambda x: st.fake_quantize_per_token(*[torch.from_numpy(x)] * 2, quant_min=0, quant_max=1), "x",
    ),
    "st.embedding": (lambda x: st.embedding(torch.zeros(1).long(), torch.from_numpy(x[0, 0])), "weight"),
    "st.embedding_bag": (lambda x: st.embedding_bag(torch.zeros(1, 1).long(), torch.from_numpy(x[0, 0])), "weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_a_wrong_dtype_names_the_operand(name: str) -> None:
    """A function has no field ``dtype``. It alone finds "dtype must be float32" of a call that has no such argument."""
    call, operand = OF_INTEGERS[name]
    error = refused(lambda: call(INTEGERS))
    assert isinstance(error, sw.UnsupportedError)
    one_sentence(error, operand, ())


def test_operands_by_position() -> None:
    """It alone finds Python's "takes 1 positional argument", which does not say that operands have names."""
    plan, operands = operands_of(LERP)
    for method in (plan.run, plan.can_implement):
        error = refused(lambda method=method: method(*operands.values()))  # type: ignore[misc]
        assert isinstance(error, TypeError)
        one_sentence(error, "operands", ("by name", *operands, "dy=..."))


OUTS: dict[str, Callable[[], Any]] = {
    "none": list,
    "two": lambda: (torch.empty(2, 3), torch.empty(2, 3)),
    "None in front": lambda: (None, torch.empty(2, 3)),
    "only None": lambda: [None],
    "text": lambda: "out",
    "generator": lambda: (torch.empty(2, 3) for _ in range(1)),
    "dict": lambda: {"dx": torch.empty(2, 3)},
    "set": lambda: {torch.empty(2, 3)},
    "class": lambda: torch.Tensor,
    "list in a list": lambda: [[torch.empty(2, 3)]],
    "other shape": lambda: torch.empty(3, 2),
    "other dtype": lambda: torch.empty(2, 3, dtype=torch.float64),
    "expanded": lambda: torch.empty(1, 3).expand(2, 3),
    "requires grad": lambda: torch.empty(2, 3, requires_grad=True),
}


@pytest.mark.parametrize("name", OUTS)
def test_wrong_outputs(name: str) -> None:
    for call in (lambda out: sw.cumsum_backward(X, out=out), lambda out: sw.lerp_backward(X, 0.5, needs=("da",), out=out)):
        with pytest.raises((sw.Error, TypeError)) as caught:
            call(OUTS[name]())
        assert isinstance(caught.value, sw.Error)
        one_sentence(caught.value, "", ())
        assert caught.value.operand in ("out", "da")


def test_outputs_of_several() -> None:
    """As many arrays as gradients; a None behind the last one is one that is not there."""
    given = [torch.empty(2, 3), torch.empty(2, 3)]
    for out in (given, tuple(given), [*given, None]):
        da, db = sw.lerp_backward(X, 0.25, out=out)
        assert da is given[0]
        assert db is given[1]
    for wrong in (given[:1], given * 2, given[0], [None, *given], [given[0], None, given[1]], []):
        with pytest.raises(INVALID, match=r"2 arrays \(da, db\)") as caught:
            sw.lerp_backward(X, 0.25, out=wrong)
        assert caught.value.operand == "out"


@pytest.mark.parametrize("name", ["\n", "x" * 10_000, "a b", "dy\0", "\ud800", "\u2028", "dx ", "surprise", "Dy", "", "δy"])
def test_keywords_that_no_operand_has(name: str) -> None:
    """The name is quoted where it is no plain word, and cut where it is long."""
    plan, operands = operands_of(LERP)
    for method in (plan.run, plan.can_implement):
        with pytest.raises(INVALID, match="an unexpected operand") as caught:
            method(**operands, **{name: X})
        one_sentence(caught.value, "", ("dy", "weight"))
        assert caught.value.operand == (name if name.isidentifier() and len(name) < 80 else caught.value.operand)
        assert str(caught.value).isprintable()


def test_an_operand_that_cannot_be_made() -> None:
    """An output like an operand whose extents no array has, found before the plan looks at that operand."""
    x = np.ones((2, 3), np.float32)
    for shape in ((2**44,), (2**31, 2**20)):
        zero_point = np.lib.stride_tricks.as_strided(x, shape, (0,) * len(shape))
        with pytest.raises(INVALID):
            sw.fake_quantize_per_token_backward(x, x, x[:, 0].copy(), zero_point, quant_min=0, quant_max=1)
        zeros = torch.zeros(1).expand(shape)
        with pytest.raises(INVALID):
            sw.fake_quantize_per_token_backward(X, X, X[:, 0], zeros, quant_min=0, quant_max=1)


@pytest.mark.gpu
def test_after_a_kernel_of_somebody_else_failed() -> None:
    """A device-side assertion ends the context for the process: the error says so, and not that this call was wrong."""
    python("""
        import torch, sternway as sw
        dy, dx = torch.ones(64, device="cuda"), torch.empty(64, device="cuda")
        plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cumsum", (64,), "float32"), device="cuda")
        plan.run(dy=dy, dx=dx)
        torch.cuda.synchronize()
        try:
            torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")]
            torch.cuda.synchronize()
        except RuntimeError:
            pass
        else:
            raise AssertionError("the assertion did not fail")
        for _ in range(2):
            try:
                plan.run(dy=dy, dx=dx)
            except sw.DeviceError as error:
                assert error.status.startswith("CUDA_ERROR_"), error.status
                assert "earlier kernel" in error.hint and "restart the process" in error.hint, error
                assert str(error).startswith("scan_backward(cumsum): "), error
            else:
                raise AssertionError("a run in a broken context")
    """, timeout=300)  # fmt: skip
