"""``torch.lerp`` with sternway's backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._arrays import device_of
from ..lerp import lerp_backward, lerp_plan, split_weight
from ._calls import FLOATS, empty_gradient, require_tensors, strides_like
from ._operators import apply, by_formula, differentiable, in_front, way

_NAMES = ("da", "db", "dweight")


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
    """lerp_backward where torch has to see it; others call it past torch. What is not needed is empty."""
    ends = {"a": a, "b": b} if "dweight" in needs else {"a_shape": a_shape, "b_shape": b_shape}
    names = needs.split()
    grads = dict(zip(names, lerp_backward(dy, number if weight is None else weight, needs=names, **ends), strict=True))
    da, db, dweight = (grads[name] if name in grads else dy.new_empty(0) for name in _NAMES)
    return da, db, dweight


@_operator.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    dy, weight, _, _, _, a_shape, b_shape, needs = inputs
    shapes = a_shape, b_shape, () if weight is None else weight.shape
    return tuple(
        dy.new_empty(0) if name not in needs else torch.empty_like(dy) if list(shape) == list(dy.shape) else dy.new_empty(shape)
        for name, shape in zip(_NAMES, shapes, strict=True)
    )


@_operator.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    dy, weight, number, a, b, a_shape, b_shape, needs = in_front(info, in_dims, inputs)
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
        g.reshape(n, *shape) if name in needs else g.expand(n, 0) for name, g, shape in zip(_NAMES, grads, shapes, strict=True)
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


_GRADIENT = differentiable(_operator, by_formula(_formula))


def _run(
    dy: Tensor,
    weight: Tensor | float,
    a: Tensor | None,
    b: Tensor | None,
    shapes: tuple[torch.Size, torch.Size],
    strides: tuple[Any, Any],
    names: list[str],
) -> dict[str, Tensor]:
    """Some of the gradients by name, laid out as a and b, which are given for dweight alone, and the weight."""
    device = device_of(dy)
    number, factor = split_weight(weight, device)
    lies = {"da": (shapes[0], strides[0]), "db": (shapes[1], strides[1])}
    if factor is not None:
        lies["dweight"] = factor.shape, strides_like(factor)
    grads = {name: empty_gradient(dy, *lies[name]) for name in names}
    plan = lerp_plan(dy.shape, dy.dtype, number, *shapes, None if factor is None else factor.shape, device)
    plan.run(dy=dy, weight=factor, a=a, b=b, **grads)
    return grads


class _Lerp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
        return torch.lerp(input, end, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, end, weight = inputs
        ctx.shapes = input.shape, end.shape
        ctx.strides = strides_like(input), strides_like(end)
        ctx.weight = None if isinstance(weight, Tensor) else weight
        ends = (input, end) if ctx.needs_input_grad[2] else (None, None)
        ctx.save_for_backward(*ends, weight if ctx.weight is None else None)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        if dy is None:
            return None, None, None
        needs = ctx.needs_input_grad
        input, end, weight = ctx.saved_tensors
        if weight is None:
            weight = ctx.weight
        home = weight if isinstance(weight, Tensor) else dy
        if home.dtype != dy.dtype or (home.device != dy.device and needs[2]):  # of a 0-d weight
            weight = home.to(dy)
        names = [name for name, need in zip(_NAMES, needs, strict=True) if need]
        if call := way(dy, _GRADIENT):
            factor, number = (weight, 0.0) if ctx.weight is None else (None, float(weight))
            ends = (input, end) if needs[2] else (None, None)
            da, db, dweight = call(dy, factor, number, *ends, *ctx.shapes, " ".join(names))
            grads = {"da": da, "db": db, "dweight": dweight}
        else:
            grads = _run(dy.resolve_neg(), weight, input, end, ctx.shapes, ctx.strides, names)
        da, db, dweight = (grads[name] if need else None for name, need in zip(_NAMES, needs, strict=True))
        return da, db, dweight if dweight is None else dweight.to(home)


def lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """``input + weight * (end - input)``, with broadcasting: :func:`torch.lerp`.

    The backward is :func:`sternway.lerp_backward`: one kernel for all the gradients that are needed, sums over broadcast
    dimensions included. It can be differentiated again.

    Args:
        input, end: tensors whose shapes broadcast; float32, float64, float16 or bfloat16, on the CPU or CUDA. Others stay with
            torch.
        weight: a number or a tensor that broadcasts; a 0-d tensor on the CPU goes with data on CUDA.

    Raises:
        RuntimeError: what torch.lerp itself refuses, such as mixed dtypes.
    """
    require_tensors("lerp", input=input, end=end)
    if input.dtype not in FLOATS:  # complex ones stay with torch
        return torch.lerp(input, end, weight)
    return apply(_Lerp, input, end, weight)  # type: ignore[no-any-return]
