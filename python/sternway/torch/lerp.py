"""``torch.lerp`` with sternway's backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..lerp import lerp_backward


def _reference(input: Tensor, end: Tensor, weight: Tensor | float, dy: Tensor, needs: tuple[bool, ...]) -> list[Tensor | None]:
    """The gradients in torch operations, for a backward that is itself differentiated."""
    values = ((1 - weight) * dy, weight * dy, dy * (end - input))
    operands = (input, end, weight)
    return [v.sum_to_size(x.shape).to(x.dtype) if need and isinstance(x, Tensor) else None
            for v, x, need in zip(values, operands, needs)]


class _Lerp(torch.autograd.Function):
    @staticmethod
    def forward(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
        return torch.lerp(input, end, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, end, weight = inputs
        ctx.shapes = input.shape, end.shape
        ctx.weight = None if isinstance(weight, Tensor) else weight
        ends = (input, end) if ctx.needs_input_grad[2] or ctx.weight is None else (None, None)
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
        if torch.is_grad_enabled():  # create_graph=True
            if input is None:
                input, end = dy.new_empty(ctx.shapes[0]), dy.new_empty(ctx.shapes[1])
            return tuple(_reference(input, end, weight, dy, needs))
        names = [name for name, need in zip(("da", "db", "dweight"), needs) if need]
        ends = {"a": input, "b": end} if needs[2] else {"a_shape": ctx.shapes[0], "b_shape": ctx.shapes[1]}
        grads = dict(zip(names, lerp_backward(dy, weight, needs=names, **ends)))
        return tuple(grads.get(name) for name in ("da", "db", "dweight"))


def lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """``input + weight * (end - input)``, with broadcasting: :func:`torch.lerp`.

    The backward is :func:`sternway.lerp_backward`: one kernel for all the gradients that are needed, sums over broadcast
    dimensions included. It can be differentiated again.

    Args:
        input, end: tensors whose shapes broadcast; float32, float64, float16 or bfloat16, on the CPU or CUDA.
        weight: a number or a tensor that broadcasts; a 0-d tensor on the CPU goes with data on CUDA.

    Raises:
        RuntimeError: what torch.lerp itself refuses, such as mixed dtypes.
    """
    return _Lerp.apply(input, end, weight)  # type: ignore[no-any-return]
