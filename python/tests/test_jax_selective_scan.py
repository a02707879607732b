"""sternway.jax.selective_scan beside its definition in float64: chunks, forms of factors, batches; test_jax.py has more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from jax_selective_scan import defined  # noqa: E402
from support import pairwise  # noqa: E402
from test_jax import ENABLE_X64  # noqa: E402

import sternway.jax as sj  # noqa: E402

BF16 = jnp.bfloat16
TOLERANCES = {"float64": 1e-11, "float32": 3e-5, "float16": 4e-3, "bfloat16": 3e-2}
BOUNDS = {"one": None, "packed": [0, 2, 2, 5, 256, 300, 300], "nothing": [0, 0]}
FORMS = ("shared", "one group", "two groups", "constant")
HAS = [("D", "z", "delta_bias"), (), ("z",), ("D", "delta_bias")]
BOOLS = (False, True)
Operands = dict[str, Any]


def problem(
    dtype: Any = "float32", length: int = 5, b: str = "shared", c: str = "shared", has: tuple[str, ...] = HAS[0], seed: int = 0
) -> Operands:
    """Operands of two batches, four channels and three states."""
    random, wide = np.random.default_rng(seed), "float64" if dtype == "float64" else "float32"
    if "two groups" in (b, c):
        b, c = (form if form == "constant" else "two groups" for form in (b, c))

    def factor(form: str) -> Any:
        groups = {"shared": (), "one group": (1,), "two groups": (2,)}
        shape = (4, 3) if form == "constant" else (2, *groups[form], 3, length)
        return jnp.asarray(random.normal(size=shape), wide if form == "constant" else dtype)

    x = {name: jnp.asarray(random.normal(size=(2, 4, length)), dtype) for name in ("u", "delta", "z")}
    x |= {"A": jnp.asarray(-random.uniform(0, 2, (4, 3)), wide), "B": factor(b), "C": factor(c)}
    x |= {name: jnp.asarray(random.normal(size=4), wide) for name in ("D", "delta_bias")}
    return {name: v for name, v in x.items() if name in has or name not in HAS[0]}


def close(name: str, got: Any, want: Any) -> None:
    got, want, tolerance = (np.asarray(got, "float64"), np.asarray(want, "float64"), TOLERANCES[got.dtype.name])
    atol = tolerance * max(np.abs(want).max(initial=0), 1e-3)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=atol, err_msg=name)


PROBLEMS = pairwise(TOLERANCES, BOUNDS, FORMS, FORMS, HAS, BOOLS)


@pytest.mark.parametrize(("dtype", "bounds", "b", "c", "has", "has_initial"), PROBLEMS)
def test_against_the_definition(dtype: str, bounds: str, b: str, c: str, has: tuple[str, ...], has_initial: bool) -> None:
    """It alone finds operands, chunk states or gradients that a call takes for others, when some of them are missing."""
    with ENABLE_X64(True):
        edges = BOUNDS[bounds] or [0, 300]
        x = problem(dtype, edges[-1], b, c, has)
        wide = x["A"].dtype
        states = (2, len(edges) - 1, 4, 3)
        if has_initial:
            x["initial_state"] = jnp.asarray(np.random.default_rng(1).normal(size=states), wide)
        packed = None if BOUNDS[bounds] is None else jnp.array(edges)

        def ours(x: Operands) -> Any:
            state = x.get("initial_state")
            own = {"initial_state": state[:, 0] if state is not None and packed is None else state, "cu_seqlens": packed}
            y, last = sj.selective_scan(**{**x, **own}, delta_softplus=True, return_last_state=True)
            return y, last.reshape(states)

        def truth(x: Operands) -> Any:
            every = {**dict.fromkeys(HAS[0]), **x}
            return defined(state=every.pop("initial_state", None), bounds=edges, softplus=True, **every)

        def both(function: Any, x: Operands, upstream: Any) -> Any:
            found, pull = jax.vjp(function, x)
            return found, pull(upstream)[0]

        upstream = tuple(jnp.asarray(np.random.default_rng(2).normal(size=v.shape), v.dtype) for v in jax.eval_shape(ours, x))
        (y, last), grads = jax.jit(lambda *o: both(ours, *o))(x, upstream)
        widened = jax.tree.map(lambda v: v.astype("float64"), (x, upstream))
        (true_y, true_last), true = jax.jit(lambda *o: both(truth, *o))(*widened)
        assert (y.dtype, last.dtype) == (dtype, wide)
        assert {name: g.dtype for name, g in grads.items()} == {name: v.dtype for name, v in x.items()}
        close("y", y, true_y)
        close("last", last, true_last)
        for name, want in true.items():
            close(name, grads[name], want)


@pytest.mark.parametrize("form", FORMS)
def test_examples_of_a_batch_are_apart(form: str) -> None:
    """NaN in one example changes no bit of another: it alone finds a batch whose examples share channels, factors or sums.

    A batch of no examples has results without elements.
    """
    examples = [{**problem(b=form, c=form, seed=k), "initial_state": jnp.full((2, 4, 3), float(k))} for k in range(3)]
    examples[1] = jax.tree.map(lambda v: v * jnp.nan, examples[1])

    def both(x: Operands) -> Any:
        def results(x: Operands) -> Any:
            return sj.selective_scan(**x, return_last_state=True)

        found, pull = jax.vjp(results, x)
        return found, pull(found)

    found = jax.jit(jax.vmap(both, -1, 1))(jax.tree.map(lambda *v: jnp.stack(v, -1), *examples))
    for k in (0, 2):
        want = jax.jit(both)(examples[k])
        jax.tree.map(lambda v, w: np.testing.assert_array_equal(v[:, k], w), found, want)  # noqa: B023
    assert not jax.vmap(both)(jax.tree.map(lambda v: v[None][:0], examples[0]))[0][0].size


def test_a_batch_of_bounds() -> None:
    """Each example has sequences of its own."""
    x, bounds = problem(), jnp.array([[0, 2, 5], [0, 0, 5]])

    def loss(u: Any, bounds: Any) -> Any:
        y, last = sj.selective_scan(**{**x, "u": u}, cu_seqlens=bounds, return_last_state=True)
        return (y**2).sum() + (last**2).sum()

    found = jax.vmap(jax.grad(loss), (None, 0))(x["u"], bounds)
    for k in range(2):
        np.testing.assert_allclose(found[k], jax.grad(loss)(x["u"], bounds[k]), rtol=1e-5)


def test_no_positions_channels_or_batches() -> None:
    """States pass through, differentiated twice. It alone finds a gradient that looks for a first position or channel."""

    def loss(state: Any, batch: int, dim: int) -> Any:
        row, factor = jnp.ones((batch, dim, 0)), jnp.ones((batch, 3, 0))
        A = -jnp.ones((dim, 3))
        return (
            sj.selective_scan(row, row, A, factor, factor, None, None, None, False, True, initial_state=state)[1] ** 2
        ).sum()

    for batch, dim in ((2, 4), (0, 4), (2, 0)):
        state = jnp.full((batch, dim, 3), 3.0)
        assert (jax.grad(loss)(state, batch, dim) == 6).all()
    assert (jax.grad(lambda s: jax.grad(loss)(s, 2, 4).sum())(jnp.ones((2, 4, 3))) == 2).all()


def test_only_needed_results_are_computed() -> None:
    """A program without a gradient keeps no chunk states, and one of the gradient of A has no other gradient."""
    x = problem()
    call = jax.jit(lambda A: sj.selective_scan(**{**x, "A": A}).sum())
    assert "chunk_states" not in call.lower(x["A"]).as_text()
    text = jax.jit(jax.grad(call)).lower(x["A"]).as_text()
    assert text.count(r"\22chunk_states\22") == 2
    assert r"\22dA\22" in text
    for name in ("du", "ddelta", "dB", "dD", "dlast_state"):
        assert rf"\22{name}\22" not in text


def test_the_second_gradient_reads_the_first_result() -> None:
    """A gradient of y times its own gradient: it alone finds residuals through which no derivative goes."""
    with ENABLE_X64(True):
        x = problem("float64")

        def product(function: Any, u: Any) -> Any:
            y, pull = jax.vjp(function, u)
            return (y * pull(jnp.cos(y))[0]).sum()

        ours = jax.grad(lambda u: product(lambda u: sj.selective_scan(**{**x, "u": u}), u))(x["u"])
        want = {**x, "state": None, "bounds": [0, 5], "softplus": False}
        truth = jax.grad(lambda u: product(lambda u: defined(**{**want, "u": u})[0], u))(x["u"])
        np.testing.assert_allclose(ours, truth, rtol=1e-10, atol=1e-10)


def test_weakly_typed_arrays_take_the_dtype_beside_u() -> None:
    """As numbers do in JAX, while bounds stay integers."""
    row, factor, numbers = jnp.ones((1, 2, 3), BF16), jnp.full((1, 1, 3), 1), jnp.full((2, 1), 0)
    assert factor.weak_type
    y = sj.selective_scan(row, jnp.full(row.shape, 1.0), numbers, factor, numbers + 1, cu_seqlens=jnp.full(2, 0).at[1].set(3))
    assert (y.dtype, y.tolist()) == (BF16, [[[1, 2, 3]] * 2])


@pytest.mark.parametrize("bounds", [[0, 3], [1, 5], [0, 3, 2, 5]])
def test_bounds_that_do_not_rise(bounds: list[int]) -> None:
    """They are known when the program runs, on the CPU."""
    wanted = "cu_seqlens must be bounds that rise from 0 to 5"
    on_cpu = jax.default_device(jax.devices("cpu")[0])
    with on_cpu, pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=wanted):
        jax.block_until_ready(sj.selective_scan(**problem(), cu_seqlens=jnp.array(bounds)))
