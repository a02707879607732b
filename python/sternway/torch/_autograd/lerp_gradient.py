"""The gradient of lerp as an operator of torch, and the derivative of that gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._lerp import OUTPUTS, lerp_backward
from ..._types import LerpGradient
from .operators import MAX_RANK, batch_first, by_formula, differentiable, vmap_by_loop


def needed(needs: int) -> list[LerpGradient]:
    """The gradients that the argument needs of the operator names."""
    return [name for k, name in enumerate(OUTPUTS) if needs >> k & 1]


@torch.library.custom_op("sternway::lerp_backward", mutates_args=())
def _operator(
    dy: Tensor,
    weight: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    needs: int,
    number: float,
    a_shape: Sequence[int],
    b_shape: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """lerp_backward as an operator, for calls that torch must see. Outputs that are not needed are empty.

    Args:
        a, b: the ends, for dweight, and where the operator runs on shards, whose shapes a_shape and b_shape do not tell.
        needs: 1 for da, 2 for db and 4 for dweight, added. The sharding cache of DTensor keeps what follows the first integer.
    """
    ends = {"a_shape": a_shape, "b_shape": b_shape} if a is None or b is None else {"a": a, "b": b}
    names = needed(needs)
    grads = dict(zip(names, lerp_backward(dy, number if weight is None else weight, needs=names, **ends), strict=True))
    da, db, dweight = (grads[name] if name in grads else dy.new_empty(0) for name in OUTPUTS)
    return da, db, dweight


@_operator.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    dy, weight, a, b, needs, _, a_shape, b_shape = inputs
    ends = (a_shape, b_shape) if a is None or b is None else (a.shape, b.shape)
    shapes = *ends, () if weight is None else weight.shape
    names = needed(needs)
    return tuple(
        dy.new_empty(0) if name not in names else torch.empty_like(dy) if list(shape) == list(dy.shape) else dy.new_empty(shape)
        for name, shape in zip(OUTPUTS, shapes, strict=True)
    )


@_operator.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    dy, weight, a, b, needs, number, a_shape, b_shape = batch_first(info, in_dims, inputs)
    if dy.dim() > MAX_RANK:
        return vmap_by_loop("lerp", _operator)(info, in_dims, *inputs)  # type: ignore[no-any-return]
    if in_dims[1] is None and "dweight" not in needed(needs):
        weight = inputs[1]  # perhaps a number on the CPU
    n, rank = info.batch_size, dy.dim() - 1

    def long(shape: Sequence[int]) -> list[int]:
        """A shape behind the batch, as long as dy's, so that it broadcasts."""
        return [n, *[1] * (rank - len(shape)), *shape]

    factor, *ends = (x if x is None or x is inputs[1] else x.reshape(long(x.shape[1:])) for x in (weight, a, b))
    grads = _operator(dy, factor, *ends, needs, number, long(a_shape), long(b_shape))
    shapes, names = (a_shape, b_shape, () if weight is None else weight.shape[1:]), needed(needs)
    return tuple(
        g.reshape(n, *shape) if name in names else g.expand(n, 0) for name, g, shape in zip(OUTPUTS, grads, shapes, strict=True)
    ), (0, 0, 0)


def _formula(*inputs: Any) -> tuple[Tensor, ...]:
    dy, weight, a, b, needs, number, a_shape, b_shape = inputs
    wide = torch.promote_types(dy.dtype, torch.float32 if weight is None else torch.promote_types(torch.float32, weight.dtype))
    g, w = dy.to(wide), number if weight is None else weight.to(wide)
    formulas: dict[str, Callable[[], Tensor]] = {
        "da": lambda: (1 - w) * g,
        "db": lambda: w * g,
        "dweight": lambda: g * (b.to(wide) - a),
    }
    shapes = a_shape, b_shape, () if weight is None else weight.shape
    return tuple(
        formula().sum_to_size(shape).to(dy.dtype) if name in needed(needs) else dy.new_empty(0)
        for (name, formula), shape in zip(formulas.items(), shapes, strict=True)
    )


GRADIENT = differentiable(_operator, by_formula(_formula))
