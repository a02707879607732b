"""Updates of the table of embedding bags by an optimizer, in the backward. Shapes are those of the gradients.

Rows of the table and of its states without a position must keep their bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from .._arrays import Array
from .._dtypes import ACCUMULATORS
from .._embedding_bag import EmbeddingBagBackwardDescriptor, EmbeddingBagBackwardPlan
from .._types import Optimizer
from .case import Case, Output, Shape, Truth, Values, copied, library, roundings, whole
from .embedding_bag import LARGE, ON_CPU, SMALL, TALL, Draw, dweight, uniform, zipf
from .embedding_bag import inputs as of_bags
from .embedding_bag_forward import used_rows
from .source import Source

STATES: dict[Optimizer, tuple[str, ...]] = {
    "sgd": (), "adagrad": ("sum",), "rowwise_adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq"),
}  # fmt: skip
OPTIONS = {
    "lr": 0.1, "eps": 1e-3, "weight_decay": 0.01, "beta1": 0.5, "beta2": 0.75, "grad_scale": 2.0, "step": 3.0,
    "step_size": 0.0, "seed": 7.0, "draw": 5.0,
}  # fmt: skip
"""The operand ``options`` of each case, in order. Powers of these betas have no rounding errors."""
STEP = OPTIONS["step"] + 1
STEP_SIZE = OPTIONS["lr"] * (math.sqrt(1 - OPTIONS["beta2"] ** STEP) / (1 - OPTIONS["beta1"] ** STEP))
AFTER = {**OPTIONS, "step": STEP, "step_size": STEP_SIZE, "draw": OPTIONS["draw"] + 1}


def inputs(source: Source, shape: Shape, dtype: str, *, optimizer: Optimizer, draw: Draw = zipf) -> Values:
    """Bags, and the states of a table after some runs."""
    return with_states(of_bags(source, shape, dtype, draw=draw), source, dtype, optimizer)


def with_states(v: Values, source: Source, dtype: str, optimizer: Optimizer) -> Values:
    """The values with the numbers and the positive states of an optimizer."""
    v.optimizer, v.options, v.options_after = optimizer, floats(source, OPTIONS.values()), floats(source, AFTER.values())
    for name in STATES[optimizer]:
        shape = tuple(v.weight.shape)[: 1 if optimizer == "rowwise_adagrad" else None]
        setattr(v, name, source.cast(abs(source.normal(shape)) + 0.1, ACCUMULATORS[dtype]))
    return v


def floats(source: Source, numbers: Any) -> Array:
    """Given numbers in float64."""
    array = 0 * source.normal((len(numbers),))
    for k, number in enumerate(numbers):
        array[k] = number
    return array


def describe(v: Values) -> EmbeddingBagBackwardDescriptor:
    """The descriptor of these operands."""
    rows, dim = v.weight.shape
    return EmbeddingBagBackwardDescriptor(
        rows, dim, v.dy.shape[0], v.indices.shape[0], v.dy.dtype, v.mode, optimizer=v.optimizer
    )


def updated(optimizer: Optimizer, weight: Array, g: Array, states: Sequence[Array]) -> tuple[Array, ...]:
    """Rows of the table and of its states after a run. g: the sums of their gradients, divided by grad_scale."""
    lr, eps, decay, beta1, beta2 = list(OPTIONS.values())[:5]
    g = g + decay * weight
    if optimizer == "sgd":
        return (weight - lr * g,)
    if optimizer == "adam":
        mean, square = states
        mean, square = mean + (1 - beta1) * (g - mean), square + (1 - beta2) * (g * g - square)
        return weight - STEP_SIZE * mean / (square**0.5 + eps), mean, square
    by_row = optimizer == "rowwise_adagrad"
    total = states[0] + ((g * g).mean(1) if by_row else g * g)
    root = total**0.5 + eps
    return weight - lr * g / (root[:, None] if by_row else root), total


def truth(v: Values, name: str) -> Truth:
    """The table or a state after the run, by definition.

    Rounding errors scale with the numbers, and with the derivative by the gradient times the size of the gradient's errors.
    """
    lib, names, small = library(v.weight), ("weight", *STATES[v.optimizer]), 2.0**-10
    gradient, place = dweight(v), names.index(name)
    rows = lib.where(lib.bincount(whole(v.indices), minlength=v.weight.shape[0]) > 0)[0]
    g, size = (x[rows] / OPTIONS["grad_scale"] for x in (gradient.value, gradient.size))
    weight, *states = (getattr(v, table)[rows] for table in names)
    old, new, other = (
        tables[place]
        for tables in (
            (weight, *states),
            updated(v.optimizer, weight, g, states),
            updated(v.optimizer, weight, g + small * lib.sign(g) * size, states),
        )
    )
    value, exact = copied(getattr(v, name)), getattr(v, name) == getattr(v, name)
    scale = abs(value)
    value[rows], exact[rows] = new, False
    scale[rows] = lib.maximum(lib.maximum(abs(old), abs(new)), abs(other - new) / small)
    allowed = gradient.roundings + roundings(weight.shape[1] if v.optimizer == "rowwise_adagrad" else 1)
    return Truth(value, scale, allowed, exact)


def options_truth(v: Values) -> Truth:
    """The numbers after the run; all but step_size are exact."""
    exact = v.options_after == v.options_after
    exact[list(OPTIONS).index("step_size")] = False
    return Truth(v.options_after, abs(v.options_after), 0, exact)


def by_torch(v: Values) -> tuple[Any, ...]:
    """The update of the rows of a sparse gradient, as by torch.optim, with a state that is at least float32.

    The numbers of ``options`` are counted on the host.
    """
    import torch

    terms = v.dy.repeat_interleave(v.indices.shape[0] // v.dy.shape[0], 0)
    gradient = torch.sparse_coo_tensor(v.indices[None], terms, v.weight.shape, check_invariants=False).coalesce()
    rows, tables = gradient.indices()[0], [v.weight, *(getattr(v, name) for name in STATES[v.optimizer])]
    wide = getattr(torch, ACCUMULATORS[str(v.weight.dtype).removeprefix("torch.")])
    weight, *states = (table[rows].to(wide) for table in tables)
    g = gradient.values().to(wide) / OPTIONS["grad_scale"]
    for table, new in zip(tables, updated(v.optimizer, weight, g, states), strict=True):
        table.index_copy_(0, rows, new.to(table.dtype))
    return v.weight, v.options_after, *tables[1:]


RIVAL = "the coalesced sparse gradient, in the dtype of the table, and the rule of the optimizer on its rows"


def moved(v: Values) -> dict[str, int]:
    """The elements of the rows that are used."""
    rows = used_rows(v)
    return {name: rows * math.prod(getattr(v, name).shape[1:]) for name in ("weight", *STATES[v.optimizer])}


def outputs(optimizer: Optimizer, of_table: Any = truth) -> dict[str, Output]:
    """The table, the numbers and the states, all in place."""
    found = {"weight": Output("weight", functools.partial(of_table, name="weight"), in_place=True)}
    found["options"] = Output("options", options_truth, in_place=True)
    return found | {name: Output(name, functools.partial(of_table, name=name), in_place=True) for name in STATES[optimizer]}


def case(optimizer: Optimizer, *cuda: Shape, draw: Draw = zipf, name: str = "zipf", **options: Any) -> Case:
    """A case of an optimizer."""
    return Case(
        "embedding_bag", f"{optimizer}, {name}", EmbeddingBagBackwardPlan,
        functools.partial(inputs, optimizer=optimizer, draw=draw), describe, outputs(optimizer), by_torch, RIVAL,
        reads=("dy", "indices", "offsets", "weight", "options", *STATES[optimizer]), cpu=ON_CPU, cuda=cuda, moved=moved,
        **options,
    )  # fmt: skip


CASES = (
    case("sgd", LARGE, demo=(10_000, 64, 2048, 20)),
    case("adagrad", LARGE, TALL, SMALL),
    case("adagrad", LARGE, draw=uniform, name="uniform"),
    case("rowwise_adagrad", LARGE),
    case("adam", LARGE),
)
