"""The operations of sternway.jax, each with its definition in operations of JAX, for the tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_selective_scan import defined, together, with_float32

import sternway.jax as sj

Operands = dict[str, Any]


@dataclass(frozen=True)
class JaxCase:
    """One way to call an operation.

    make: operands by name, in float64 and integers, by a random generator.
    call: the operation, of these operands.
    define: the same in float64 by the definition, differentiable by JAX.
    floats: the operands that get gradients.
    """

    name: str
    make: Callable[[np.random.Generator], Operands]
    call: Callable[..., Any]
    define: Callable[..., Any]
    floats: tuple[str, ...] = ("x",)
    unbatched: tuple[str, ...] = field(default=())  # operands that all examples of a vmap share

    def __repr__(self) -> str:
        return self.name


def rounded(operands: Operands, floats: tuple[str, ...], dtype: Any) -> Operands:
    """The operands with the floating ones in a dtype."""
    return {name: jnp.asarray(x, dtype) if name in floats else jnp.asarray(x) for name, x in operands.items()}


def widened(operands: Operands) -> Operands:
    """The operands with the floating ones in float64."""
    return {name: jnp.asarray(x, jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x for name, x in operands.items()}


# Definitions, in float64.


def prefixes(x: Any, axis: int, reverse: bool, of: Callable[[Any], Any]) -> Any:
    """A function of each prefix in scan order, stacked along the axis."""
    x = jnp.moveaxis(x, axis, -1)
    x = x[..., ::-1] if reverse else x
    y = jnp.stack([of(x[..., : i + 1]) for i in range(x.shape[-1])], -1)
    return jnp.moveaxis(y[..., ::-1] if reverse else y, -1, axis)


OF_PREFIX: dict[str, Callable[[Any], Any]] = {
    "cumsum": lambda p: p.sum(-1),
    "cumprod": lambda p: p.prod(-1),
    "cummax": lambda p: p.max(-1),
    "cummin": lambda p: p.min(-1),
    "cumlogsumexp": lambda p: jax.nn.logsumexp(p, -1),
}


def rotated(x: Any, positions: Any, cos: Any, sin: Any, pairing: str) -> Any:
    """A rotation of [B, H, S, D] by tables of D / 2 columns."""
    c, s = (jnp.asarray(t)[positions] for t in (cos, sin))
    c, s = (t[:, None] if t.ndim == 3 else t for t in (c, s))
    if pairing == "half":
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * c - b * s, b * c + a * s], -1)
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * c - b * s, b * c + a * s], -1).reshape(x.shape)


def angles(positions: Any, dim: int, base: float = 10000.0) -> Any:
    return np.arange(positions)[:, None] * base ** (-2 * np.arange(dim // 2) / dim)


def fake_quantized(x: Any, scale: Any, zero_point: Any) -> Any:
    """With rounding that is the identity for gradients, to integers from -8 to 7."""
    ratio = x / scale[..., None]
    offset = zero_point[..., None]
    shifted = ratio + jax.lax.stop_gradient(jnp.round(ratio) - ratio) + offset
    return (jnp.where(shifted < -8, -8, jnp.where(shifted > 7, 7, shifted)) - offset) * scale[..., None]


def of_elements(value: Any) -> Any:
    """The numbers of blocks of 2 x 2."""
    return value[:, jnp.arange(4) // 2][:, :, jnp.arange(6) // 2]


def pooled(indices: Any, weight: Any, samples: Any, offsets: list[int], mode: str, padding: int | None) -> Any:
    rows, indices = [], np.asarray(indices)
    for begin, end in itertools.pairwise(offsets):
        kept = [i for i in range(begin, end) if padding is None or indices[i] != padding]
        bag = [weight[indices[i]] * (1 if samples is None else samples[i]) for i in kept]
        if not bag:
            rows.append(jnp.zeros(weight.shape[1], weight.dtype))
        elif mode == "max":
            rows.append(jnp.stack(bag).max(0))
        else:
            rows.append(sum(bag[1:], bag[0]) / (len(bag) if mode == "mean" else 1))
    return jnp.stack(rows)


def recurrence(a: Any, b: Any, state: Any, bounds: list[int], axis: int, reverse: bool) -> Any:
    """A linear recurrence, with its final states behind it. state: of each sequence, with them in the place of the axis."""
    a, b = (jnp.moveaxis(x, axis, 0) for x in jnp.broadcast_arrays(a, b))
    h, final = [jnp.zeros_like(b[0])] * len(b), []
    for k, (begin, end) in enumerate(itertools.pairwise(bounds)):
        last = None if state is None else jnp.take(state, k, axis)
        for t in reversed(range(begin, end)) if reverse else range(begin, end):
            h[t] = last = b[t] if last is None else a[t] * last + b[t]
        final.append(jnp.zeros_like(b[0]) if last is None else last)
    return jnp.moveaxis(jnp.stack(h + final), 0, axis)


def with_final_state(outputs: tuple[Any, Any], axis: int, is_packed: bool) -> Any:
    """h with the final states behind it."""
    h, final = outputs
    return jnp.concatenate([h, (final if is_packed else jnp.expand_dims(final, axis)).astype(h.dtype)], axis)


# Cases.


def scans() -> Iterator[JaxCase]:
    for k, (kind, of) in enumerate(OF_PREFIX.items()):
        share = 0.2 if kind == "cumprod" else 0  # of zeros
        for axis, reverse in ((-1, bool(k % 2)), (1, not k % 2)):
            yield JaxCase(
                f"{kind}, axis {axis}, reverse {reverse}",
                lambda random, share=share: {"x": np.where(random.random((3, 5, 4)) < share, 0, random.normal(size=(3, 5, 4)))},
                lambda x, kind=kind, axis=axis, reverse=reverse: getattr(sj, kind)(x, axis, reverse),
                lambda x, of=of, axis=axis, reverse=reverse: prefixes(x, axis, reverse, of),
            )


def ropes() -> Iterator[JaxCase]:
    table = angles(9, 6)
    for layout, axes in (("bhsd", (0, 1, 2, 3)), ("bshd", (0, 2, 1, 3))):
        yield JaxCase(
            f"rope of angles, {layout}",
            lambda random, axes=axes: {"x": random.normal(size=(2, 3, 5, 6)).transpose(axes)},
            lambda x, layout=layout: sj.rope(x, layout=layout),
            lambda x, axes=axes: rotated(
                x.transpose(axes), jnp.arange(5), np.cos(table), np.sin(table), "interleaved"
            ).transpose(axes),
        )
    yield JaxCase(
        "rope of tables",
        lambda random: {
            "x": random.normal(size=(2, 3, 5, 6)), "positions": random.integers(0, 9, (2, 5)).astype(np.int32),
            "cos": random.normal(size=(9, 3)), "sin": random.normal(size=(9, 3)),
        },
        lambda x, positions, cos, sin: sj.rope(x, positions, cos=cos, sin=sin, pairing="half"),
        lambda x, positions, cos, sin: rotated(x, positions, cos, sin, "half"),
        ("x", "cos", "sin"),
    )  # fmt: skip
    yield JaxCase(
        "rope of tokens",
        lambda random: {"x": random.normal(size=(5, 3, 6)), "positions": random.integers(0, 9, 5).astype(np.int32)},
        lambda x, positions: sj.rope(x, positions, layout="thd"),
        lambda x, positions: rotated(
            x.swapaxes(0, 1)[None], positions, np.cos(table), np.sin(table), "interleaved"
        )[0].swapaxes(0, 1),
    )  # fmt: skip


def quantizations() -> Iterator[JaxCase]:
    yield JaxCase(
        "dequantize",
        lambda random: {
            "q": random.integers(-128, 128, (2, 3, 8)).astype(np.int8), "scale": random.uniform(0.5, 2, (2, 3)),
            "zero_point": random.normal(size=(2, 3)),
        },
        lambda q, scale, zero_point: sj.dequantize_per_token(q, scale, zero_point),
        lambda q, scale, zero_point: (q - zero_point[..., None]) * scale[..., None],
        ("scale", "zero_point"),
    )  # fmt: skip
    yield JaxCase(
        "fake quantize",
        lambda random: {
            "x": random.normal(size=(2, 3, 8)) * 4, "scale": random.uniform(0.25, 1, (2, 3)),
            "zero_point": random.integers(-2, 3, (2, 3)).astype(np.int8),
        },
        lambda x, scale, zero_point: sj.fake_quantize_per_token(x, scale, zero_point, quant_min=-8, quant_max=7),
        fake_quantized,
        ("x", "scale"),
    )  # fmt: skip


def quantizations_by_blocks() -> Iterator[JaxCase]:
    yield JaxCase(
        "dequantize by blocks",
        lambda random: {
            "q": random.integers(-128, 128, (2, 4, 6)).astype(np.int8), "scale": random.uniform(0.5, 2, (1, 2, 3)),
            "zero_point": random.normal(size=(1, 2, 3)),
        },
        lambda q, scale, zero_point: sj.dequantize(q, scale, zero_point),
        lambda q, scale, zero_point: (q - of_elements(zero_point)) * of_elements(scale),
        ("scale", "zero_point"),
    )  # fmt: skip
    yield JaxCase(
        "fake quantize per tensor",
        lambda random: {
            "x": random.normal(size=(2, 3, 8)) * 4, "scale": random.uniform(0.25, 1), "zero_point": random.integers(-2, 3),
        },
        lambda x, scale, zero_point: sj.fake_quantize(x, scale, zero_point, quant_min=-8, quant_max=7),
        fake_quantized,
        ("x", "scale"),
    )  # fmt: skip


def low_precision() -> Iterator[JaxCase]:
    yield JaxCase(
        "dequantize packed values",
        lambda random: {
            "q": random.integers(0, 256, (2, 4, 3)).astype(np.uint8), "scale": random.uniform(0.5, 2, (1, 2, 3)),
            "zero_point": random.normal(size=(1, 2, 3)),
        },
        lambda q, scale, zero_point: sj.dequantize(q, scale, zero_point, qdtype="int4"),
        lambda q, scale, zero_point: (
            (jnp.stack([q % 16, q // 16], -1).reshape(2, 4, 6).astype(jnp.int8) + 8) % 16 - 8 - of_elements(zero_point)
        ) * of_elements(scale),
        ("scale", "zero_point"),
    )  # fmt: skip
    yield JaxCase(
        "dequantize float8",
        lambda random: {
            "q": random.normal(size=(2, 4, 6)).astype(jnp.float8_e5m2), "scale": random.uniform(0.5, 2, (1, 2, 3)),
        },
        sj.dequantize,
        lambda q, scale: q.astype(scale.dtype) * of_elements(scale),
        ("scale",),
    )  # fmt: skip


def lerps() -> Iterator[JaxCase]:
    yield JaxCase(
        "lerp by a number",
        lambda random: {"a": random.normal(size=(3, 4)), "b": random.normal(size=(4,))},
        lambda a, b: sj.lerp(a, b, 0.25),
        lambda a, b: a + 0.25 * (b - a),
        ("a", "b"),
    )
    yield JaxCase(
        "lerp by an array",
        lambda random: {
            "a": random.normal(size=(3, 1, 4)), "b": random.normal(size=(2, 1)), "weight": random.normal(size=(1, 4)),
        },
        sj.lerp,
        lambda a, b, weight: a + weight * (b - a),
        ("a", "b", "weight"),
    )  # fmt: skip


def recurrences() -> Iterator[JaxCase]:
    def combined(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    yield JaxCase(
        "linear recurrence",
        lambda random: {"a": random.normal(size=(3, 5, 4)), "b": random.normal(size=(3, 5, 4))},
        lambda a, b: sj.linear_recurrence(a, b, 1),
        lambda a, b: jax.lax.associative_scan(combined, (a, b), axis=1)[1],
        ("a", "b"),
    )
    yield JaxCase(
        "linear recurrence of broadcast operands with states",
        lambda random: {
            "a": random.normal(size=(5, 1)),
            "b": random.normal(size=(3, 1, 4)),
            "state": random.normal(size=(3, 4)),
        },
        lambda a, b, state: with_final_state(
            sj.linear_recurrence(a, b, -2, initial_state=state, reverse=True, output_final_state=True), 1, False
        ),
        lambda a, b, state: recurrence(a, b, state[:, None], [0, 5], 1, True),
        ("a", "b", "state"),
    )  # fmt: skip
    bounds = [0, 2, 2, 5]
    for reverse in (False, True):
        yield JaxCase(
            f"linear recurrence of packed sequences, reverse {reverse}",
            lambda random: {
                "a": random.normal(size=(3, 5)), "b": random.normal(size=(3, 5)), "state": random.normal(size=(3, 3)),
            },
            lambda a, b, state, reverse=reverse: with_final_state(
                sj.linear_recurrence(
                    a, b, initial_state=state, reverse=reverse, cu_seqlens=jnp.array(bounds), output_final_state=True
                ),
                1, True,
            ),
            lambda a, b, state, reverse=reverse: recurrence(a, b, state, bounds, 1, reverse),
            ("a", "b", "state"),
        )  # fmt: skip


def selective_scans() -> Iterator[JaxCase]:
    def operands(random: np.random.Generator, shapes: dict[str, tuple[int, ...]]) -> Operands:
        found = {name: random.normal(size=shape) for name, shape in shapes.items()}
        return {**found, "A": -np.abs(found["A"])}

    row, numbers, factor = (2, 4, 5), (4, 3), (2, 3, 5)
    shapes = {"u": row, "delta": row, "A": numbers, "B": factor, "C": factor, "D": (4,), "z": row, "delta_bias": (4,)}
    yield JaxCase(
        "selective scan",
        lambda random: operands(random, shapes),
        lambda **x: together(with_float32(**x, delta_softplus=True)),
        lambda **x: together(defined(**x, state=None, bounds=[0, 5], softplus=True)),
        tuple(shapes),
    )
    packed, bounds = {**shapes, "B": (2, 2, 3, 5), "C": numbers, "initial_state": (2, 3, 4, 3)}, [0, 2, 2, 5]
    yield JaxCase(
        "selective scan of packed sequences with states",
        lambda random: operands(random, packed),
        lambda **x: together(with_float32(**x, cu_seqlens=jnp.array(bounds))),
        lambda initial_state, **x: together(defined(**x, state=initial_state, bounds=bounds, softplus=False)),
        tuple(packed),
    )


def embeddings() -> Iterator[JaxCase]:
    for padding in (None, 2):
        yield JaxCase(
            f"embedding, padding_idx {padding}",
            lambda random: {"indices": random.integers(0, 5, (3, 4)).astype(np.int32), "weight": random.normal(size=(5, 6))},
            lambda indices, weight, padding=padding: sj.embedding(indices, weight, padding_idx=padding),
            lambda indices, weight, padding=padding: jnp.where(
                (indices == (-1 if padding is None else padding))[..., None],
                jax.lax.stop_gradient(weight[indices]),
                weight[indices],
            ),
            ("weight",),
        )
    offsets = [0, 3, 3, 7]
    for mode, padding in (("sum", 1), ("mean", None), ("mean", 1), ("max", None)):
        yield JaxCase(
            f"embedding bag, {mode}, padding_idx {padding}",
            lambda random: {"indices": random.integers(0, 5, 7).astype(np.int32), "weight": random.normal(size=(5, 6))},
            lambda indices, weight, mode=mode, padding=padding: sj.embedding_bag(
                indices, weight, jnp.array(offsets[:-1]), mode=mode, padding_idx=padding
            ),
            lambda indices, weight, mode=mode, padding=padding: pooled(indices, weight, None, offsets, mode, padding),
            ("weight",),
            ("indices",) if padding is not None else (),
        )
    yield JaxCase(
        "embedding bag with sample weights",
        lambda random: {
            "indices": random.integers(0, 5, (3, 4)).astype(np.int32), "weight": random.normal(size=(5, 6)),
            "samples": random.normal(size=(3, 4)),
        },
        lambda indices, weight, samples: sj.embedding_bag(indices, weight, per_sample_weights=samples),
        lambda indices, weight, samples: (weight[indices] * samples[..., None]).sum(1),
        ("weight", "samples"),
    )  # fmt: skip


CASES = (
    *scans(), *ropes(), *quantizations(), *quantizations_by_blocks(), *low_precision(), *lerps(), *recurrences(),
    *selective_scans(), *embeddings(),
)  # fmt: skip
