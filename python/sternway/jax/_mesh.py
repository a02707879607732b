"""Operands on a mesh of devices: the axes along which they vary under ``jax.shard_map``, and explicit shardings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Array = Any


def arrays(*operands: Any, optional: tuple[Any, ...] = ()) -> list[Any]:
    """The operands of a function as arrays with one type on the mesh; an optional None stays.

    The rules for gradients need one type. Under ``jax.shard_map`` an operand that the devices share is cast to vary as the
    others do, and the transpose of this cast adds up the gradients of the devices. On a mesh with explicit axes the operands
    are gathered.
    """
    found = [*map(jnp.asarray, operands), *(None if x is None else jnp.asarray(x) for x in optional)]
    axes = axes_of(*(jax.typeof(x) for x in found if x is not None))
    return [None if x is None else varying(_gathered(x), axes) for x in found]


def axes_of(*types: Any) -> tuple[Any, ...]:
    """The axes of the mesh along which values of any of these types vary under ``jax.shard_map``."""
    found: dict[Any, None] = {}
    for kind in types:
        axes = kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else getattr(kind, "vma", ())
        found.update(dict.fromkeys(sorted(axes, key=str)))
    return tuple(found)


def varying(x: Array, axes: tuple[Any, ...]) -> Array:
    """The array as one that varies along these axes too."""
    missing = tuple(axis for axis in axes if axis not in axes_of(jax.typeof(x)))
    if not missing:
        return x
    lax: Any = jax.lax  # older versions of JAX have pvary instead of pcast
    return lax.pcast(x, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, missing)


def is_explicit(x: Array) -> bool:
    """Whether an explicit axis of the mesh shards a dimension of the array."""
    sharding = getattr(jax.typeof(x), "sharding", None)
    return sharding is not None and any(axes is not None for axes in sharding.spec)


def _gathered(x: Array) -> Array:
    if not is_explicit(x):
        return x
    reshard: Any = getattr(jax, "reshard", None) or jax.sharding.reshard
    replicated = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    return reshard(x, jax.sharding.NamedSharding(jax.typeof(x).sharding.mesh, replicated))
