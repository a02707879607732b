"""sternway.jax: values and gradients in every dtype, under jit, vmap and grad; errors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from jax_cases import CASES, JaxCase, Operands, rounded, widened  # noqa: E402

import sternway as sw  # noqa: E402
import sternway.jax as sj  # noqa: E402

# JAX 0.6 has it among its experiments.
ENABLE_X64 = jax.enable_x64 if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental").enable_x64
TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "float16": 1.5e-3, "bfloat16": 1.2e-2}
"""Relative to the largest element of a result."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        devices = jax.local_devices(backend=request.param)
    except RuntimeError:
        pytest.skip("JAX has no CUDA device")
    with jax.default_device(devices[0]):
        yield request.param


@pytest.fixture
def x64() -> Iterator[None]:
    with ENABLE_X64(True):
        yield


def operands_of(case: JaxCase, dtype: Any = "float32", seed: int = 0) -> Operands:
    return rounded(case.make(np.random.default_rng(seed)), case.floats, dtype)


def loss(function: Callable[..., Any], others: Operands, weights: Any) -> Callable[[Operands], Any]:
    """A scalar function of the operands that get gradients."""
    return lambda floats: (function(**{**others, **floats}).astype(weights.dtype) * weights).sum()


def close(got: Any, want: Any, dtype: str) -> None:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[dtype] * max(np.abs(want).max(initial=0), 1e-3))


OTHERS = ("float64", "float16", "bfloat16")
VALUES = [
    (case, dtype)
    for k, case in enumerate(CASES)
    for dtype in (("float32", *OTHERS)[k % 4 : k % 4 + 1] if "cum" in case.name else ("float32", OTHERS[k % 3]))
]
"""Cases with dtypes. The scans, which have ten cases, take turns."""


@pytest.mark.parametrize(("case", "dtype"), VALUES, ids=str)
def test_values_and_gradients(case: JaxCase, dtype: str, device: str, x64: None) -> None:
    """One program computes the value and the gradients, which are compared with those of the definition in float64."""
    given = operands_of(case, dtype)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=jax.eval_shape(lambda: case.call(**given)).shape), dtype)

    def both(function: Callable[..., Any], given: Operands, weights: Any) -> Any:
        def evaluate(floats: Operands) -> Any:
            return function(**{**given, **floats}), jax.grad(loss(function, given, weights))(floats)

        return jax.jit(evaluate)({name: given[name] for name in case.floats})

    y, gradients = both(case.call, given, weights)
    truth, truths = both(case.define, widened(given), weights.astype("float64"))
    assert y.dtype == jnp.dtype(dtype)
    close(y, truth, dtype)
    for name in case.floats:
        assert gradients[name].dtype == jnp.dtype(dtype)
        close(gradients[name], truths[name], dtype)


OF_EACH_KIND = [
    case for case in CASES if case.name.endswith(("axis -1, reverse True", "axis 1, reverse True")) or "cum" not in case.name
]


@pytest.mark.parametrize("case", OF_EACH_KIND, ids=repr)
def test_vmap(case: JaxCase) -> None:
    """Each operand batched in turn, at the axis 1, and all of them: examples as without vmap, forward and backward."""
    examples = [operands_of(case, seed=seed) for seed in range(2)]
    weights = jnp.asarray(np.random.default_rng(1).normal(size=case.call(**examples[0]).shape), "float32")

    def both(operands: Operands) -> Any:
        floats = {name: operands[name] for name in case.floats}
        return case.call(**operands), jax.grad(loss(case.call, operands, weights))(floats)

    alone = jax.jit(both)
    names = [name for name in examples[0] if name not in case.unbatched]
    for batched in ([names[0]], [names[-1]], names):
        axes = {name: int(name == names[0]) if name in batched else None for name in examples[0]}
        own = [{name: example[name] if name in batched else examples[0][name] for name in example} for example in examples]
        stacked = {name: jnp.stack([o[name] for o in own], axes[name]) if name in batched else own[0][name] for name in own[0]}
        found = jax.jit(jax.vmap(both, in_axes=(axes,)))(stacked)
        for k, example in enumerate(own):
            jax.tree.map(lambda got, want: close(got[k], want, "float32"), found, alone(example))  # noqa: B023


def test_vmap_of_vmap_and_gradient_of_a_shared_operand() -> None:
    case = next(case for case in CASES if case.name == "embedding, padding_idx 2")
    given = operands_of(case)
    indices = jnp.stack([jnp.stack([given["indices"]] * 2), jnp.stack([given["indices"][::-1]] * 2)])

    def total(weight: Any) -> Any:
        return jax.vmap(jax.vmap(lambda i: case.call(i, weight)))(indices).sum()

    want = jax.grad(lambda weight: case.call(indices, weight).sum())(given["weight"])
    np.testing.assert_allclose(jax.grad(total)(given["weight"]), want)


@pytest.mark.parametrize("case", [case for case in OF_EACH_KIND if not case.name.startswith("fake quantize")], ids=repr)
def test_second_derivatives(case: JaxCase, x64: None) -> None:
    """The gradient of a function of the gradient."""
    given = operands_of(case, "float64")
    weights = jnp.asarray(np.random.default_rng(1).normal(size=case.call(**given).shape))
    floats = {name: given[name] for name in case.floats}

    def second(function: Callable[..., Any]) -> Any:
        def inner(floats: Operands) -> Any:
            gradients = jax.grad(loss(lambda **o: function(**o) ** 2, given, weights))(floats)
            return sum((g**2).sum() for g in jax.tree.leaves(gradients))

        return jax.jit(jax.grad(inner))(floats)

    found, truths = second(case.call), second(case.define)
    for name in case.floats:
        np.testing.assert_allclose(found[name], truths[name], rtol=1e-9, atol=1e-9)


def test_second_derivatives_of_fake_quantize(x64: None) -> None:
    """The rounding is constant: the gradient of scale is the sum of ``dy * (round(x / scale) - x / scale)`` inside."""
    x, scale, dy = jnp.array([[0.6, 3.8, -100.0]]), jnp.array([0.5]), jnp.array([[1.0, 2.0, 3.0]])
    dscale = jax.grad(lambda x, s: (sj.fake_quantize_per_token(x, s, quant_min=-8, quant_max=7) * dy).sum(), argnums=1)
    by_x, by_scale = jax.jacrev(dscale, argnums=(0, 1))(x, scale)
    np.testing.assert_allclose(by_x, [[[-2.0, 0.0, 0.0]]])  # 3.8 and -100 are outside
    np.testing.assert_allclose(by_scale, [[0.6 / 0.25]])


def test_jacobian(x64: None) -> None:
    x = jnp.array([0.3, -0.2, 0.9])
    np.testing.assert_allclose(jax.jacrev(sj.cumsum)(x), np.tril(np.ones((3, 3))))
    lower = jax.jacrev(jax.jacrev(lambda x: sj.cumprod(x)[-1]))(x)
    np.testing.assert_allclose(lower, [[0, 0.9, -0.2], [0.9, 0, 0.3], [-0.2, 0.3, 0]], atol=1e-15)


# What JAX's own gradients get wrong, or leave open.


def test_cumprod_that_overflows() -> None:
    x, dy = jnp.array([1e30, 1e30, 1e-30]), jnp.array([1.0, 0.0, 0.0])
    _, vjp = jax.vjp(sj.cumprod, x)
    assert vjp(dy)[0].tolist() == [1.0, 0.0, 0.0]
    assert sj.cumprod(x).tolist() == [jnp.float32(1e30), np.inf, jnp.float32(1e30)]


def test_logcumsumexp_that_begins_with_minus_infinity() -> None:
    x = jnp.array([-jnp.inf, -jnp.inf, 1.0, 1.0])
    assert jax.grad(lambda x: sj.logcumsumexp(x)[-1])(x).tolist() == [0, 0, 0.5, 0.5]
    assert sj.cumlogsumexp is sj.logcumsumexp


@pytest.mark.parametrize(("tie", "want"), [("last", [0, 2, 1]), ("first", [0, 3, 0])])
def test_ties(tie: str, want: list[float]) -> None:
    x = jnp.array([1.0, 3.0, 3.0])
    dx = jax.grad(lambda x: (sj.cummax(x, tie=tie) * jnp.array([0.0, 2.0, 1.0])).sum())(x)
    assert dx.tolist() == want


def test_indices_of_extrema() -> None:
    x = jnp.array([[1.0, 3.0], [3.0, 1.0], [3.0, 5.0]])
    y, indices = sj.cummax(x, 0, return_indices=True)
    assert (y.tolist(), indices.tolist()) == ([[1, 3], [3, 3], [3, 5]], [[0, 0], [1, 0], [2, 2]])
    assert indices.dtype == jnp.int32
    (dx,) = jax.vjp(lambda x: sj.cummax(x, 0, return_indices=True)[0], x)[1](jnp.ones_like(x))
    assert dx.tolist() == [[1, 2], [1, 0], [1, 1]]
    with ENABLE_X64(True):
        assert sj.cummin(x, reverse=True, return_indices=True)[1].dtype == jnp.int64


# Shapes, gradients of integers, errors.


def test_empty_and_odd_shapes() -> None:
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 3), (1,), (1, 1, 1, 1, 1, 1, 1, 1, 2, 3)):
        x = jnp.ones(shape)
        for axis in (0, -1):
            np.testing.assert_array_equal(sj.cumsum(x, axis), np.cumsum(x, axis))
            dx = jax.grad(lambda x, axis=axis: sj.cumprod(x, axis).sum())(x)
            assert dx.shape == shape
    assert sj.dequantize_per_token(jnp.ones((0, 4), jnp.int8), jnp.ones(0)).shape == (0, 4)
    weight = jnp.ones((3, 2))
    assert jax.grad(lambda w: sj.embedding(jnp.zeros((0,), jnp.int32), w).sum())(weight).tolist() == [[0, 0]] * 3
    assert sj.embedding_bag(jnp.zeros(0, jnp.int32), weight, jnp.zeros(2, jnp.int32), mode="max").tolist() == [[0, 0]] * 2
    assert sj.lerp(jnp.float32(1), jnp.float32(3), 0.5) == 2


@pytest.mark.parametrize("pool", [False, True])
def test_empty_tables(pool: bool) -> None:
    """Tables without columns have gradients without elements. Every index is outside of a table without rows."""
    call = sj.embedding_bag if pool else sj.embedding
    indices = jnp.array([[0, 1], [2, 0]])
    gradient = jax.grad(lambda w: call(indices, w).sum())
    assert gradient(jnp.ones((3, 0))).shape == (3, 0)
    assert jax.vmap(gradient)(jnp.ones((2, 3, 0))).shape == (2, 3, 0)
    assert jnp.isnan(call(indices, jnp.ones((0, 4)))).all()
    assert jax.grad(lambda w: call(indices[:0], w).sum())(jnp.ones((0, 4))).shape == (0, 4)


@pytest.mark.parametrize(("mode", "by_frequency"), [("sum", True), ("mean", True), ("mean", False), ("max", False)])
def test_gradients_of_bags_are_linear(mode: str, by_frequency: bool) -> None:
    """The gradient h(dy) is that of a plan, and its own gradient, by JAX, is the transpose: <h'(u), dy> is <u, h(dy)>.

    Two positions are behind the last offset, and one is of the padding row; they count nowhere.
    """
    random = np.random.default_rng(0)
    indices, offsets = jnp.array([0, 0, 1, 2, 0, 0, 0]), jnp.array([0, 2, 2, 5])
    weight, u, dy = (jnp.asarray(random.normal(size=shape), "float32") for shape in ((3, 2), (3, 2), (3, 2)))

    def call(weight: Any) -> Any:
        return sj.embedding_bag(
            indices, weight, offsets, mode=mode, padding_idx=1, include_last_offset=True, scale_grad_by_freq=by_frequency
        )

    @jax.jit
    def both(dy: Any) -> Any:
        return jax.value_and_grad(lambda dy: (jax.vjp(call, weight)[1](dy)[0] * u).sum())(dy)

    value, gradient = both(dy)
    np.testing.assert_allclose((gradient * dy).sum(), value, rtol=1e-5)


def test_second_derivatives_of_bags_without_elements() -> None:
    """There is no bag, or no position, or no column."""
    for bags, width, dim in ((0, 2, 3), (2, 0, 3), (2, 2, 0)):
        indices, weight, samples = jnp.zeros((bags, width), jnp.int32), jnp.ones((4, dim)), jnp.ones((bags, width))
        for mode in ("sum", "max"):

            def pooled(weight: Any, samples: Any, mode: str = mode, indices: Any = indices) -> Any:
                return sj.embedding_bag(indices, weight, mode=mode, per_sample_weights=samples if mode == "sum" else None).sum()

            def total(weight: Any, samples: Any, pooled: Any = pooled) -> Any:
                return sum((g**2).sum() for g in jax.grad(pooled, argnums=(0, 1))(weight, samples))

            found = jax.jit(jax.grad(total, argnums=(0, 1)))(weight, samples)
            assert [g.shape for g in found] == [weight.shape, samples.shape]
            assert not any(g.any() for g in found)


def test_arrays_of_64_bits_where_jax_has_no_such_types() -> None:
    """Arrays that were made under jax_enable_x64 are rounded when it is off, as by every function of JAX."""
    with ENABLE_X64(True):
        x, indices, weight = jnp.arange(1.0, 5.0), jnp.array([[0, 1]]), jnp.ones((2, 2))
    assert (x.dtype, indices.dtype) == (jnp.float64, jnp.int64)
    assert jax.grad(lambda x: sj.cumprod(x).sum())(x).tolist() == [33, 16, 10, 6]
    assert sj.cummax(x, return_indices=True)[1].dtype == jnp.int32
    for call in (sj.embedding, sj.embedding_bag):
        gradient = jax.grad(lambda w, call=call: call(indices, w).sum())(weight)
        assert gradient.tolist() == [[1, 1], [1, 1]]


def test_python_numbers_take_the_dtype_of_arrays() -> None:
    x = jnp.ones(2, jnp.bfloat16)
    for y in (sj.lerp(x, 3.0, 0.5), sj.lerp(3, x, 0.5), sj.lerp(x, 3.0, np.float64(0.5)), sj.lerp(x, 3.0, jnp.asarray(0.5))):
        assert (y.dtype, y.tolist()) == (jnp.bfloat16, [2, 2])
    gradients = jax.grad(lambda a, b, w: sj.lerp(a, b, w).astype("float32").sum(), argnums=(0, 1, 2))(x, 3.0, 0.5)
    assert [g.dtype for g in gradients] == [jnp.bfloat16, jnp.float32, jnp.float32]
    assert jax.tree.map(lambda g: g.sum().item(), gradients) == (1, 1, 4)


def test_integers_get_float0() -> None:
    weight, indices = jnp.ones((3, 2)), jnp.array([0, 2])
    found = jax.grad(lambda i, w: sj.embedding(i, w).sum(), argnums=(0, 1), allow_int=True)(indices, weight)
    assert found[0].dtype == jax.dtypes.float0
    assert found[1].tolist() == [[1, 1], [0, 0], [1, 1]]


def test_only_needed_gradients_are_computed() -> None:
    """The program of one gradient of lerp has one output of the call, and none of its own for the others."""
    a, b, weight = jnp.ones((4, 8)), jnp.ones((4, 8)), jnp.ones((8,))
    text = jax.jit(jax.grad(lambda b: sj.lerp(a, b, weight).sum())).lower(b).as_text()
    assert r"\22db\22" in text
    assert r"\22da\22" not in text
    assert r"\22dweight\22" not in text


FLOAT, INT = jnp.ones((2, 3)), jnp.ones((2, 3), jnp.int32)
ROW, SQUARE = jnp.ones((1, 2, 3)), jnp.ones((1, 3, 3))
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "dtype": (lambda: sj.cumsum(INT), sw.UnsupportedError, r"sternway\.jax\.cumsum: x must be .*, got int32"),
    "axis": (lambda: sj.cummax(FLOAT, 2), sw.InvalidProblemError, r"sternway\.jax\.cummax: axis must be .*, got 2"),
    "axis of a number": (lambda: sj.cumprod(jnp.float32(1), 1), sw.InvalidProblemError, "axis must be"),
    "tie": (lambda: sj.cummax(FLOAT, tie="middle"), sw.UnsupportedError, "tie must be .*middle"),
    "rank of rope": (lambda: sj.rope(FLOAT), sw.InvalidProblemError, r"sternway\.jax\.rope: x must be of rank 4"),
    "positions": (
        lambda: sj.rope(jnp.ones((1, 1, 2, 4)), jnp.ones(3, jnp.int32)), sw.InvalidProblemError, "positions must be of shape",
    ),
    "one table": (lambda: sj.rope(jnp.ones((1, 1, 2, 4)), cos=jnp.ones((2, 2))), sw.InvalidProblemError, "sin must be given"),
    "dtype of q": (lambda: sj.dequantize_per_token(INT, jnp.ones(2)), sw.UnsupportedError, "q must be int8, uint8"),
    "scale": (
        lambda: sj.fake_quantize_per_token(FLOAT, jnp.ones(3), quant_min=0, quant_max=1), sw.InvalidProblemError,
        r"sternway\.jax\.fake_quantize_per_token: scale must be of shape \[2\] or \[2, 1\], got \[3\]",
    ),
    "scale of blocks": (
        lambda: sj.dequantize(INT, jnp.ones((1, 2))), sw.InvalidProblemError,
        r"^sternway\.jax\.dequantize: scale must be of extents that divide those of q \(\[2, 3\]\), got \[1, 2\]",
    ),
    "zero point of blocks": (
        lambda: sj.fake_quantize(FLOAT, jnp.ones((1, 3)), jnp.ones((2, 3)), quant_min=0, quant_max=1), sw.InvalidProblemError,
        r"^sternway\.jax\.fake_quantize: zero_point must be of shape \[1, 3\], as scale, got \[2, 3\]",
    ),
    "dtype that is stated": (
        lambda: sj.dequantize(INT.astype(jnp.int8), jnp.ones(()), qdtype="uint8"), sw.InvalidProblemError,
        r"^sternway\.jax\.dequantize: qdtype must be int8, the dtype of q, got uint8",
    ),
    "packed values": (
        lambda: sj.dequantize(INT.astype(jnp.uint8), jnp.ones((2, 4)), qdtype="int4"), sw.InvalidProblemError,
        r"^sternway\.jax\.dequantize: scale must be of extents that divide those of the values of q \(\[2, 6\]\), got \[2, 4\]",
    ),
    "integers of 4 bits of JAX": (
        lambda: sj.dequantize(INT.astype(jnp.int4), jnp.ones(())), sw.UnsupportedError,
        r"^sternway\.jax\.dequantize: q must be uint8, two values in a byte, with qdtype='int4', got int4",
    ),
    "bounds": (
        lambda: sj.fake_quantize_per_token(FLOAT, jnp.ones(2), quant_min=1, quant_max=0), sw.InvalidProblemError, "quant_m",
    ),
    "dtypes of lerp": (
        lambda: sj.lerp(FLOAT, FLOAT.astype("float16"), 0.5), sw.InvalidProblemError, "b must be float32 like a, got float16",
    ),
    "shapes of lerp": (lambda: sj.lerp(FLOAT, jnp.ones(2), 0.5), sw.InvalidProblemError, r"broadcast, got a \[2, 3\], b \[2\]"),
    "integers of lerp": (lambda: sj.lerp(INT, INT, 0.5), sw.UnsupportedError, "a must be"),
    "table": (lambda: sj.embedding(INT, jnp.ones(3)), sw.InvalidProblemError, "weight must be of rank 2"),
    "floating indices": (lambda: sj.embedding(FLOAT, FLOAT), sw.UnsupportedError, "indices must be int32 or int64"),
    "padding_idx": (lambda: sj.embedding(INT, FLOAT, padding_idx=5), sw.InvalidProblemError, "padding_idx"),
    "mode": (lambda: sj.embedding_bag(INT, FLOAT, mode="product"), sw.UnsupportedError, "mode must be"),
    "offsets": (lambda: sj.embedding_bag(INT[0], FLOAT), sw.InvalidProblemError, "offsets must be given"),
    "sample weights": (
        lambda: sj.embedding_bag(INT, FLOAT, per_sample_weights=FLOAT, mode="mean"), sw.Error, "per_sample_weights",
    ),
    "offsets of no bag": (
        lambda: sj.embedding_bag(INT[0], FLOAT, jnp.zeros(0, jnp.int32), include_last_offset=True), sw.InvalidProblemError,
        "offsets must be of one element or more",
    ),
    "kind of tie": (lambda: sj.cummax(FLOAT, tie=["last"]), sw.InvalidProblemError, "tie must be a name, got"),  # type: ignore[arg-type]
    "no weight": (lambda: sj.lerp(FLOAT, FLOAT, None), sw.InvalidProblemError, "weight must be a number or an array, got None"),
    "large weight": (lambda: sj.lerp(FLOAT, FLOAT, 10**400), sw.InvalidProblemError, "weight must be within the range"),
    "dtypes of a recurrence": (
        lambda: sj.linear_recurrence(FLOAT.astype("bfloat16"), FLOAT), sw.InvalidProblemError,
        r"sternway\.jax\.linear_recurrence: a must be float32 like b, got bfloat16",
    ),
    "integers of a recurrence": (lambda: sj.linear_recurrence(0.5, INT), sw.UnsupportedError, "b must be .*, got int32"),
    "shapes of a recurrence": (lambda: sj.linear_recurrence(FLOAT, jnp.ones(2)), sw.InvalidProblemError, "b must be of a"),
    "axis of a recurrence": (lambda: sj.linear_recurrence(0.5, FLOAT, 2), sw.InvalidProblemError, "axis must be .*, got 2"),
    "initial state": (
        lambda: sj.linear_recurrence(0.5, FLOAT, initial_state=jnp.ones(3)), sw.InvalidProblemError,
        r"initial_state must be of shape \[2\], got \[3\]",
    ),
    "bounds of two dimensions": (
        lambda: sj.linear_recurrence(0.5, FLOAT, cu_seqlens=INT), sw.InvalidProblemError, "cu_seqlens must be of one dimension",
    ),
    "floating bounds": (
        lambda: sj.linear_recurrence(0.5, FLOAT, cu_seqlens=jnp.ones(2)), sw.InvalidProblemError, "cu_seqlens must be int32 or",
    ),
    "complex rates of a selective scan": (
        lambda: sj.selective_scan(ROW, ROW, -ROW[0] * 1j, ROW, ROW), sw.UnsupportedError,
        r"sternway\.jax\.selective_scan: A must be real, got complex64",
    ),
    "rank of a selective scan": (
        lambda: sj.selective_scan(FLOAT, FLOAT, FLOAT, FLOAT, FLOAT), sw.InvalidProblemError, "u must be of 3 dimensions",
    ),
    "dtype of a selective scan": (
        lambda: sj.selective_scan(INT[None], ROW, ROW[0], ROW, ROW), sw.UnsupportedError,
        r"sternway\.jax\.selective_scan: u must be .*, got int32",
    ),
    "dtypes of a selective scan": (
        lambda: sj.selective_scan(ROW, ROW, ROW[0].astype("bfloat16"), ROW, ROW), sw.InvalidProblemError,
        "A must be float32 beside float32, got bfloat16",
    ),
    "groups of a selective scan": (
        lambda: sj.selective_scan(ROW, ROW, ROW[0], jnp.ones((1, 3, 3, 3)), ROW), sw.InvalidProblemError,
        "the groups of B and C must be a divisor of the number of channels, 2, got 3",
    ),
    "states of a selective scan": (
        lambda: sj.selective_scan(ROW, ROW, jnp.ones((2, 257)), ROW, ROW), sw.UnsupportedError,
        "the number of states in A must be at most 256, got 257",
    ),
    "initial state of a selective scan": (
        lambda: sj.selective_scan(ROW, ROW, ROW[0], SQUARE, SQUARE, initial_state=ROW[0]), sw.InvalidProblemError,
        r"initial_state must be of shape \[1, 2, 3\], got \[2, 3\]",
    ),
    "text": (lambda: sj.cumsum("text"), TypeError, "text|str"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_errors(wrong: str) -> None:
    call, kind, message = WRONG[wrong]
    with pytest.raises(kind, match=message):
        call()
    with pytest.raises(kind, match=message):
        jax.eval_shape(call)


FLAGS: dict[Callable[..., Any], tuple[str, ...]] = {
    **{lambda scan=scan, **options: scan(FLOAT, **options): ("reverse", "exclusive") for scan in (sj.cumsum, sj.logcumsumexp)},
    lambda **options: sj.cummax(FLOAT, **options): ("reverse", "exclusive", "return_indices"),
    lambda **options: sj.linear_recurrence(0.5, FLOAT, **options): ("reverse", "output_final_state"),
    lambda **options: sj.selective_scan(ROW, ROW, ROW[0], SQUARE, SQUARE, **options): ("delta_softplus", "return_last_state"),
    lambda **options: sj.embedding(INT, FLOAT, **options): ("scale_grad_by_freq",),
    lambda **options: sj.embedding_bag(INT, FLOAT, **options): ("scale_grad_by_freq", "include_last_offset"),
}
INTEGERS: dict[Callable[..., Any], tuple[str, ...]] = {
    lambda **options: sj.cumprod(FLOAT, **options): ("axis",),
    lambda **options: sj.linear_recurrence(0.5, FLOAT, **options): ("axis",),
    lambda **options: sj.embedding(INT, FLOAT, **options): ("padding_idx",),
    lambda **options: sj.embedding_bag(INT, FLOAT, **options): ("padding_idx",),
    lambda **options: sj.fake_quantize_per_token(FLOAT, FLOAT[:, 0], **{"quant_max": 5, **options}): ("quant_min",),
}


def test_options_of_another_kind_are_refused() -> None:
    """It alone finds that "no" counts as True, or True as 1, while scalars of NumPy are options."""
    for calls, wanted, good, wrong in (
        (FLAGS, "True or False", np.False_, ("no", 0, 1, 1.0, None, jnp.array(True))),
        (INTEGERS, "an integer", np.int8(0), (True, np.False_, 0.5, "0")),
    ):
        for call, names in calls.items():
            for name in names:
                call(**{name: good})
                for value in wrong:
                    with pytest.raises(sw.InvalidProblemError, match=f"^sternway.jax.*: {name} must be {wanted}"):
                        call(**{name: value})


def test_errors_of_a_run_are_those_of_jax() -> None:
    """An index out of range is found when the gradient runs, on the CPU. The forward gives NaN.

    JAX raises ValueError where it runs the program in the thread that calls, and JaxRuntimeError otherwise.
    """
    weight = jnp.ones((3, 2))
    for index in (3, -1):
        indices = jnp.array([0, index])
        assert jnp.isnan(sj.embedding(indices, weight)).any(1).tolist() == [False, True]
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"embedding_backward: indices must be .*"):
            jax.block_until_ready(jax.grad(lambda w, i=indices: sj.embedding(i, w).sum())(weight))


def test_an_index_out_of_range_of_one_example() -> None:
    """It does not become an index of the next example's table."""
    gradient = jax.vmap(jax.grad(lambda w, i: sj.embedding(i, w).sum()))
    for index in (3, -1):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="indices must be"):
            jax.block_until_ready(gradient(jnp.ones((3, 3, 2)), jnp.array([[0, 1], [0, index], [0, 2]])))


@pytest.mark.parametrize("index", [3, -1])
def test_what_jax_computes_of_an_index_out_of_range(index: int) -> None:
    """Gradients in operations of JAX, where the plan that would refuse the index is not needed: it contributes nothing."""
    indices, weight, v = jnp.array([0, 0, index]), jnp.ones((3, 2)), jnp.arange(1.0, 7.0).reshape(3, 2)
    for by_frequency in (False, True):
        for call, count in ((sj.embedding, 3), (lambda i, w, **options: sj.embedding_bag(i[None], w, **options), 1)):

            def of_dy(dy: Any, call: Any = call, by_frequency: bool = by_frequency) -> Any:
                dweight = jax.vjp(lambda w: call(indices, w, scale_grad_by_freq=by_frequency), weight)[1](dy)[0]
                return (dweight * v).sum()

            share = 2 if by_frequency else 1
            want = {3: [[1 / share, 2 / share]] * 2 + [[0, 0]], 1: [[2 / share, 4 / share]]}[count]
            np.testing.assert_allclose(jax.jit(jax.grad(of_dy))(jnp.ones((count, 2))), want)
    x, table = jnp.ones((1, 1, 3, 2)), jnp.ones((3, 1))
    of_table = jax.jit(jax.grad(lambda cos: sj.rope(x, indices, cos=cos, sin=table).sum()))
    assert of_table(table).tolist() == [[4], [0], [0]]


def test_tracers_are_pointed_here() -> None:
    plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("cumsum", (3,), "float32"))
    for call in (sw.cumsum, lambda x: plan.run(dy=x, dx=np.empty(3, np.float32))):
        with pytest.raises(sw.UnsupportedError, match=r"sternway\.jax"):
            jax.jit(call)(jnp.ones(3))
    with pytest.raises(sw.UnsupportedError, match=r"use sternway\.jax"):
        sw.cumsum(jnp.ones(3))


def test_a_traced_number_is_not_rounded_before_lerp_subtracts_it() -> None:
    """Alone finds 1 - weight formed after a number of float32 was rounded to bfloat16: the gradient of a is then 0."""
    a, b, weight = jnp.ones(4, jnp.bfloat16), jnp.full(4, 3, jnp.bfloat16), 1 - 2.0**-12

    def gradients(a: Any, b: Any, w: Any) -> Any:
        return jax.grad(lambda a, b, w: sj.lerp(a, b, w).astype(jnp.float32).sum(), (0, 1))(a, b, w)

    want = [np.full(4, 2.0**-12), np.full(4, 1.0)]
    for found in (gradients(a, b, weight), jax.jit(gradients)(a, b, weight), gradients(a, b, np.float32(weight))):
        for ours, exact in zip(found, want, strict=True):
            assert ours.dtype == jnp.bfloat16
            np.testing.assert_array_equal(np.asarray(ours, np.float64), exact)
    dweight = jax.grad(lambda w: sj.lerp(a, b, w).astype(jnp.float32).sum())(weight)
    assert (dweight.dtype, float(dweight)) == (jnp.float32, 8.0)


@pytest.mark.parametrize("kind", [name for name in sj.__all__ if name.startswith("cum")])
def test_scan_of_a_number(kind: str) -> None:
    """A row of length 1, also under jit, vmap and grad. It alone finds a scan that takes arrays of rank 1 or more alone."""
    scan, x = getattr(sj, kind), jnp.float32(3.0)
    for call in (scan, jax.jit(scan), lambda x: scan(x, axis=0), lambda x: scan(x, -1, True)):
        y = call(x)
        assert (y.shape, float(y)) == ((), 3.0)
        assert float(jax.grad(call)(x)) == 1.0
    batch = jnp.array([3.0, 2.0])
    assert jax.vmap(scan)(batch).tolist() == [3.0, 2.0]
    assert jax.vmap(jax.grad(scan))(batch).tolist() == [1.0, 1.0]
    if kind in ("cummax", "cummin"):
        y, index = scan(x, return_indices=True)
        assert (y.shape, index.shape, int(index)) == ((), (), 0)
    with pytest.raises(sw.InvalidProblemError, match="axis must be"):
        scan(x, axis=1)
