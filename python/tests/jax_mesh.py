"""Gradients on two devices of the CPU, for test_jax_mesh.py, which runs this in a process of its own.

Each case gets two examples that differ in the first operand, and shares its other operands. The gradients of both must be those
of a program for one device, where the gradients of a shared operand are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_cases import CASES, JaxCase, Operands, rounded

import sternway as sw
import sternway.jax as sj

AXIS = "devices"


ONE_OF_EACH_RULE = (
    "cumprod, axis -1, reverse True",
    "rope of tables",
    "dequantize",
    "dequantize packed values",
    "fake quantize",
    "lerp by an array",
    "linear recurrence of broadcast operands with states",
    "selective scan of packed sequences with states",
    "embedding, padding_idx None",
    "embedding bag, max, padding_idx None",
    "embedding bag with sample weights",
)


def compare(case: JaxCase) -> None:
    examples = [rounded(case.make(np.random.default_rng(seed)), case.floats, "float32") for seed in range(2)]
    first, *others = examples[0]
    shared = {name: examples[0][name] for name in others}
    split = jnp.stack([example[first] for example in examples])
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(2, *case.call(**examples[0]).shape)), "float32")

    def on_one(shared: Operands, split: Any) -> Any:
        return jnp.stack([case.call(**{first: x}, **shared) for x in split])

    def gradients(function: Callable[..., Any], split: Any = split) -> Any:
        floats = {name: x for name, x in {first: split, **shared}.items() if name in case.floats}

        def loss(floats: Operands) -> Any:
            operands = {**shared, **floats}
            return (function(operands, operands.pop(first, split)) * weights).sum()

        return jax.jit(jax.grad(loss))(floats)

    def close(got: Any, want: Any) -> None:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=case.name)

    want = gradients(on_one)
    mesh = jax.make_mesh((2,), (AXIS,), axis_types=(AxisType.Auto,))
    for check in (True, False) if case.name == "lerp by an array" else (True,):
        mapped = jax.shard_map(on_one, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P(AXIS), check_vma=check)
        jax.tree.map(close, gradients(mapped), want)


def compare_explicit(case: JaxCase) -> None:
    """A dimension of each operand is sharded by an explicit axis."""
    given = rounded(case.make(np.random.default_rng(0)), case.floats, "float32")

    def gradients(operands: Operands) -> Any:
        return jax.jit(jax.grad(lambda floats: case.call(**{**operands, **floats}).sum()))(
            {k: operands[k] for k in case.floats}
        )

    def placed(x: Any) -> Any:
        even = next((k for k, n in enumerate(x.shape) if n % 2 == 0), None)
        return jax.device_put(x, NamedSharding(mesh, P(*(AXIS if k == even else None for k in range(x.ndim)))))

    want = gradients(given)
    mesh = jax.make_mesh((2,), (AXIS,), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        jax.tree.map(np.testing.assert_array_equal, gradients({name: placed(x) for name, x in given.items()}), want)


def vmap_over_an_explicit_axis() -> None:
    mesh = jax.make_mesh((2,), (AXIS,), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = jax.device_put(jnp.ones((2, 3)), NamedSharding(mesh, P(AXIS)))
        with pytest.raises(sw.UnsupportedError, match=r"got explicit axes; use jax\.shard_map"):
            jax.vmap(sj.cumsum)(rows)


if __name__ == "__main__":
    cases = {case.name: case for case in CASES}
    for name in ONE_OF_EACH_RULE:
        compare(cases[name])
    for name in ONE_OF_EACH_RULE[:3]:
        compare_explicit(cases[name])
    vmap_over_an_explicit_axis()
    print("done")
