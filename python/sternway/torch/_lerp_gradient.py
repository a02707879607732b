"""The gradient of lerp as an operator of torch, and the derivative of that gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..lerp import lerp_backward
from ._operators import MAX_RANK, by_formula, differentiable, each, in_front

NAMES = ("da", "db", "dweight")


@torch.library.custom_op("sternway::lerp_backward", mutates_args=())
def _operator(
    dy: Tensor,
    weight: Tensor | None,
    number: float,
    a: Tensor | None,
    b: Tensor | None,
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    needs: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """lerp_backward as an operator, for calls that torch must see. Outputs that are not needed are empty."""
    ends = {"a": a, "b": b} if "dweight" in needs else {"a_shape": a_shape, "b_shape": b_shape}
    names = needs.split()
    grads = dict(zip(names, lerp_backward(dy, number if weight is None else weight, needs=names, **ends), strict=True))
    da, db, dweight = (grads[name] if name in grads else dy.new_empty(0) for name in NAMES)
    return da, db, dweight


@_operator.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    dy, weight, _, _, _, a_shape, b_shape, needs = inputs
    shapes = a_shape, b_shape, () if weight is None else weight.shape
    return tuple(
        dy.new_empty(0) if name not in needs else torch.empty_like(dy) if list(shape) == list(dy.shape) else dy.new_empty(shape)
        for name, shape in zip(NAMES, shapes, strict=True)
    )


@_operator.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    dy, weight, number, a, b, a_shape, b_shape, needs = in_front(info, in_dims, inputs)
    if dy.dim() > MAX_RANK:
        return each("lerp", _operator)(info, in_dims, *inputs)  # type: ignore[no-any-return]
    if in_dims[1] is None and "dweight" not in needs:
        weight = inputs[1]  # perhaps a number on the CPU
    n, rank = info.batch_size, dy.dim() - 1

    def long(shape: Sequence[int]) -> list[int]:
        """A shape behind the batch, as long as dy's, so that it broadcasts."""
        return [n, *[1] * (rank - len(shape)), *shape]

    factor, *ends = (x if x is None or x is inputs[1] else x.reshape(long(x.shape[1:])) for x in (weight, a, b))
    grads = _operator(dy, factor, number, *ends, long(a_shape), long(b_shape), needs)
    shapes = a_shape, b_shape, () if weight is None else weight.shape[1:]
    return tuple(
        g.reshape(n, *shape) if name in needs else g.expand(n, 0) for name, g, shape in zip(NAMES, grads, shapes, strict=True)
    ), (0, 0, 0)


def _formula(*inputs: Any) -> tuple[Tensor, ...]:
    dy, weight, number, a, b, a_shape, b_shape, needs = inputs
    wide = torch.promote_types(dy.dtype, torch.float32)
    g, w = dy.to(wide), number if weight is None else weight.to(wide)
    formulas: dict[str, Callable[[], Tensor]] = {
        "da": lambda: (1 - w) * g,
        "db": lambda: w * g,
        "dweight": lambda: g * (b.to(wide) - a),
    }
    shapes = a_shape, b_shape, () if weight is None else weight.shape
    return tuple(
        formula().sum_to_size(shape).to(dy.dtype) if name in needs else dy.new_empty(0)
        for (name, formula), shape in zip(formulas.items(), shapes, strict=True)
    )


GRADIENT = differentiable(_operator, by_formula(_formula))
