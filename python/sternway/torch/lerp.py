"""``torch.lerp`` with sternway's backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._arrays import device_of
from ..lerp import lerp_backward, lerp_plan, split_weight
from ._calls import FLOATS, by_dispatcher, empty_gradient, refuse_vmap, require_tensors, strides_like


def _reference(input: Tensor, end: Tensor, weight: Tensor | float, dy: Tensor, needs: tuple[bool, ...]) -> list[Tensor | None]:
    """The gradients in torch operations, for a backward that is itself differentiated."""
    values = ((1 - weight) * dy, weight * dy, dy * (end - input))
    operands = (input, end, weight)
    return [
        v.sum_to_size(x.shape).to(x.dtype) if need and isinstance(x, Tensor) else None
        for v, x, need in zip(values, operands, needs, strict=True)
    ]


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
) -> list[Tensor]:
    """lerp_backward as torch.compile sees it; eager calls go past it."""
    ends = {"a": a, "b": b} if "dweight" in needs else {"a_shape": a_shape, "b_shape": b_shape}
    return list(lerp_backward(dy, number if weight is None else weight, needs=needs.split(), **ends))


@_operator.register_fake
def _(
    dy: Tensor,
    weight: Tensor | None,
    number: float,
    a: Tensor | None,
    b: Tensor | None,
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    needs: str,
) -> list[Tensor]:
    shapes = {"da": a_shape, "db": b_shape, "dweight": () if weight is None else weight.shape}
    return [
        torch.empty_like(dy) if tuple(shapes[name]) == tuple(dy.shape) else dy.new_empty(shapes[name]) for name in needs.split()
    ]


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
        dispatched = by_dispatcher(dy)
        if torch.is_grad_enabled() and not dispatched:  # create_graph=True
            if input is None:
                input, end = dy.new_empty(ctx.shapes[0]), dy.new_empty(ctx.shapes[1])
            da, db, dweight = _reference(input, end, weight, dy, needs)
            return da, db, dweight if dweight is None else dweight.to(home)
        names = [name for name, need in zip(("da", "db", "dweight"), needs, strict=True) if need]
        if dispatched:
            number = float(weight) if ctx.weight is not None else 0.0
            found = _operator(
                dy,
                weight if ctx.weight is None else None,
                number,
                input if needs[2] else None,
                end if needs[2] else None,
                ctx.shapes[0],
                ctx.shapes[1],
                " ".join(names),
            )
            grads = dict(zip(names, found, strict=True))
        else:
            grads = _run(dy.resolve_neg(), weight, input, end, ctx.shapes, ctx.strides, names)
        dweight = grads.get("dweight")
        return grads.get("da"), grads.get("db"), dweight if dweight is None else dweight.to(home)

    vmap = refuse_vmap("lerp")


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
    return _Lerp.apply(input, end, weight)  # type: ignore[no-any-return]
