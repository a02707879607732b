"""sternway.jax: values and gradients in every dtype, under jit, vmap and grad."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from jax_cases import CASES, JaxCase, Operands, rounded, widened  # noqa: E402

import sternway.jax as sj  # noqa: E402

TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "float16": 1.5e-3, "bfloat16": 1.2e-2}
"""Relative to the largest element of a result."""

HAS_GPU = "cuda" in sj._call.__dict__ and bool(sj._call._cuda_devices())
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cuda" and not sj._call._cuda_devices():
        pytest.skip("JAX sees no CUDA device")
    with jax.default_device(jax.local_devices(backend=request.param)[0]):
        yield request.param


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def operands_of(case: JaxCase, dtype: Any = "float32", seed: int = 0) -> Operands:
    return rounded(case.make(np.random.default_rng(seed)), case.floats, dtype)


def loss(function: Any, case: JaxCase, others: Operands, weights: Any) -> Any:
    """A scalar function of the operands that get gradients."""

    def evaluate(floats: Operands) -> Any:
        y = function(**{**others, **floats})
        return (y.astype(weights.dtype) * weights).sum()

    return evaluate


def close(got: Any, want: Any, dtype: str) -> None:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[dtype] * max(np.abs(want).max(initial=0), 1e-3))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_values_and_gradients(case: JaxCase, dtype: str, device: str, x64: None) -> None:
    """One program computes the value and the gradients, which are compared with those of the definition in float64."""
    given = operands_of(case, dtype)
    floats = {name: given[name] for name in case.floats}
    y = case.define(**widened(given))
    weights = jnp.asarray(np.random.default_rng(1).normal(size=y.shape), dtype)
    found, gradients = jax.jit(lambda floats: (case.call(**{**given, **floats}), jax.grad(ours)(floats)))(floats) if (
        ours := loss(case.call, case, given, weights)
    ) else (None, {})
    truths = jax.grad(loss(case.define, case, widened(given), weights.astype("float64")))(widened(floats))
    assert found.dtype == jnp.dtype(dtype)
    close(found, y, dtype)
    for name in case.floats:
        assert gradients[name].dtype == jnp.dtype(dtype)
        close(gradients[name], truths[name], dtype)
