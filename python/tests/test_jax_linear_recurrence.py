"""sternway.jax.linear_recurrence: zeros, range, states, bounds, numbers as factors; test_jax.py has values and derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from jax_cases import CASES, rounded  # noqa: E402

import sternway.jax as sj  # noqa: E402
from sternway.jax import _call  # noqa: E402

BF16 = jnp.bfloat16


def test_a_zero_cuts_exactly() -> None:
    """It alone finds a first decay that is applied, and a factor of 0 that lets NaN through, in either direction."""
    a, b = jnp.array([jnp.nan, jnp.inf, 0.0, 2.0]), jnp.array([1.0, jnp.nan, 3.0, 4.0])
    h, vjp = jax.vjp(sj.linear_recurrence, a, b)
    assert [h[0], *h[2:]] == [1, 3, 10]
    da, db = vjp(jnp.array([1.0, 1.0, jnp.inf, 1.0]))
    assert (da[0], db[1]) == (0, 1)


def test_products_that_leave_the_range() -> None:
    """The product of 4000 factors of 1.1 is no number of float32."""
    b = jnp.zeros(4000).at[3900].set(1)
    h, vjp = jax.vjp(sj.linear_recurrence, jnp.full(4000, 1.1), b)
    assert jnp.isfinite(h).all()
    assert jnp.isfinite(vjp(jnp.zeros(4000).at[50].set(1))[1]).all()


def test_a_number_keeps_its_precision() -> None:
    """0.999 is no bfloat16: eager, traced, and as one of a batch. It alone finds a number, or its gradient, in 16 bits."""

    def last(a: Any, dtype: Any = BF16) -> Any:
        return sj.linear_recurrence(a, jnp.ones(1000, dtype), output_final_state=True)[1]

    value, slope = jax.value_and_grad(last)(0.999, jnp.float32)
    batch = jnp.full(2, 0.999)
    assert batch.weak_type
    eager, (traced, gradient), each = last(0.999), jax.value_and_grad(last)(0.999), jax.vmap(jax.value_and_grad(last))(batch)
    for found in (eager, traced, each[0][1]):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, value, rtol=1e-5)
    for found in (gradient, each[1][1]):
        np.testing.assert_allclose(found, slope, rtol=4e-3)  # h is in 16 bits


def test_a_chunked_sequence_is_the_whole() -> None:
    """States keep the width of the accumulator."""
    random = np.random.default_rng(0)
    a, b = jnp.asarray(random.uniform(size=(4, 100)), BF16), jnp.asarray(random.normal(size=(4, 100)), BF16)
    first, state = sj.linear_recurrence(a[:, :37], b[:, :37], output_final_state=True)
    assert state.dtype == jnp.float32
    second = sj.linear_recurrence(a[:, 37:], b[:, 37:], initial_state=state)
    np.testing.assert_array_equal(jnp.concatenate([first, second], 1), sj.linear_recurrence(a, b))


def test_a_batch_of_bounds() -> None:
    """Each example has sequences of its own, also of integers that vmap batches beside a shared operand."""
    a, b, state = jnp.full(6, 0.5), jnp.arange(12.0).reshape(2, 6), jnp.array([[1.0, 2.0], [3.0, 4.0]])
    bounds = jnp.array([[0, 2, 6], [0, 0, 6]])

    def both(b: Any, state: Any, bounds: Any) -> Any:
        def loss(b: Any, state: Any) -> Any:
            h, final = sj.linear_recurrence(a, b, initial_state=state, cu_seqlens=bounds, output_final_state=True)
            return (h**2).sum() + (final**2).sum()

        return jax.value_and_grad(loss, (0, 1))(b, state)

    found = jax.jit(jax.vmap(both))(b, state, bounds)
    for k in range(2):
        want = both(b[k], state[k], bounds[k])
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x[k], y, rtol=1e-6), found, want)  # noqa: B023


def test_states_of_no_positions() -> None:
    """They pass through, differentiated twice. It alone finds a gradient that looks for a first position."""

    def loss(state: Any) -> Any:
        return (sj.linear_recurrence(jnp.ones((2, 0)), 1.0, initial_state=state, output_final_state=True)[1] ** 2).sum()

    state = jnp.array([1.0, 3.0])
    assert jax.grad(loss)(state).tolist() == [2, 6]
    assert jax.grad(lambda s: jax.grad(loss)(s).sum())(state).tolist() == [2, 2]
    assert sj.linear_recurrence(jnp.ones((0, 3)), 1.0, output_final_state=True)[1].shape == (0,)


def test_numbers_and_promotion() -> None:
    """A number is a row of length 1, whose first decay is not applied. Numbers take the dtype of arrays."""
    assert sj.linear_recurrence(0.5, 3.0) == 3
    assert sj.linear_recurrence(jnp.float32(0.5), 3.0, initial_state=2.0, reverse=True) == 4
    h = sj.linear_recurrence(jnp.full(3, 0.5, BF16), 1)
    assert (h.dtype, h.tolist()) == (BF16, [1, 1.5, 1.75])
    assert jax.vmap(lambda b: sj.linear_recurrence(0.5, b))(jnp.ones(2)).tolist() == [1, 1]


def test_only_needed_gradients_are_computed() -> None:
    a, b = jnp.ones((3, 5)), jnp.ones((3, 5))
    text = jax.jit(jax.grad(lambda b: sj.linear_recurrence(a, b).sum())).lower(b).as_text()
    assert r"\22db\22" in text
    assert r"\22da\22" not in text
    assert r"\22dfinal_state\22" not in text


@pytest.mark.parametrize("bounds", [[0, 3], [1, 4], [0, 3, 2, 4]])
def test_bounds_that_do_not_rise(bounds: list[int]) -> None:
    """They are known when the program runs, on the CPU."""
    on_cpu = jax.default_device(jax.devices("cpu")[0])
    with (
        on_cpu,
        pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="cu_seqlens must be bounds that rise from 0 to 4"),
    ):
        jax.block_until_ready(sj.linear_recurrence(0.5, jnp.ones(4), cu_seqlens=jnp.array(bounds)))


@pytest.mark.parametrize("case", [case for case in CASES if case.name.startswith("linear")], ids=repr)
def test_operands_for_cuda(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if JAX had a CUDA device, whose plans take no broadcast operands: the same values and gradients, for 16 bits too."""
    given = rounded(case.make(np.random.default_rng(0)), case.floats, BF16)

    def both() -> Any:
        y = case.call(**given)
        return y, jax.grad(lambda given: case.call(**given).astype("float32").sum())(given)

    want = both()
    jax.clear_caches()
    monkeypatch.setattr(_call, "_cuda_devices", lambda: ("cuda:0",))
    monkeypatch.setattr(_call, "_selectable", lambda *_: False)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x.astype("float32"), y.astype("float32"), rtol=1e-2), both(), want)
    a, b = jnp.ones((2, 0)), jnp.ones((2, 0))
    state = jnp.array([1.0, 3.0])

    def final(state: Any) -> Any:
        return sj.linear_recurrence(a, b, initial_state=state, output_final_state=True)[1].sum()

    assert jax.value_and_grad(final)(state)[0] == 4
    assert jax.grad(final)(state).tolist() == [1, 1]
    b16 = jnp.ones(4, BF16)
    assert sj.linear_recurrence(0.5, b16).tolist() == [1, 1.5, 1.75, 1.875]
    jax.clear_caches()
