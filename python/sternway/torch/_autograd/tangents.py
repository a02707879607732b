"""Forward-mode derivatives of every function whose backward can be differentiated."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

from ...errors import make

Inputs = tuple[Any, ...]


class _Whole:
    """Wraps a sequence, which torch.vmap would otherwise take for several inputs."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _bare(inputs: Inputs) -> Inputs:
    return tuple(x.value if isinstance(x, _Whole) else x for x in inputs)


class _Context:
    """Stands for ctx when a backward is called as a plain function."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.materializes = True  # tangents that are not there as zeros

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materializes = value

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        pass


def _transposed(function: Any, inputs: Inputs, output: Any, tangents: tuple[Tensor | None, ...]) -> Any:
    """Tangents of the outputs, by the transpose of the backward: ``backward(dy) . tangents = dy . result``."""
    context = _Context(tuple(t is not None for t in tangents))
    function.setup_context(context, inputs, output)
    outputs = (output,) if isinstance(output, Tensor) else output
    floating = [y for y in outputs if y.is_floating_point()]

    def product(*dy: Tensor) -> Any:
        given = iter(dy)
        grads = function.backward(context, *(next(given) if y.is_floating_point() else None for y in outputs))
        pairs = [(g, t) for g, t in zip(grads, tangents, strict=True) if t is not None]
        if not context.materializes and any(g is None for g, _ in pairs):
            raise make("unsupported", "sternway.torch", "a tangent", "of an input that has a gradient", "one of a constant")
        return sum((g * t).sum() for g, t in pairs if g is not None)

    found = iter(torch.func.grad(product, tuple(range(len(floating))))(*map(torch.zeros_like, floating)))
    results = tuple(next(found) if y.is_floating_point() else None for y in outputs)
    return results[0] if isinstance(output, Tensor) else results


@functools.cache
def _with_tangents(function: Any) -> Any:
    """The function with a jvp. It is a separate class, as torch.compile (2.11) cannot trace a function that has a jvp."""

    class WithTangents(function):  # type: ignore[misc]
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return function.forward(*_bare(inputs))

        @staticmethod
        def setup_context(ctx: Any, inputs: Inputs, output: Any) -> None:
            inputs = _bare(inputs)
            function.setup_context(ctx, inputs, output)
            ctx.one = isinstance(output, Tensor)
            both = *inputs, *((output,) if ctx.one else output)
            ctx.save_for_forward(*(x if isinstance(x, Tensor) else None for x in both))
            ctx.constants = [None if isinstance(x, Tensor) else x for x in both]

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
            with forward_ad._set_fwd_grad_enabled(False):  # copies without the tangents, which have no part in the backward
                saved = [x if x is None else x.clone() for x in ctx.saved_tensors]
            both = tuple(other if x is None else x for x, other in zip(saved, ctx.constants, strict=True))
            inputs, outputs = both[: len(tangents)], both[len(tangents) :]
            return _transposed(function, inputs, outputs[0] if ctx.one else outputs, tangents)

    return WithTangents


def apply_with_tangents(function: Any, *inputs: Any) -> Any:
    """function.apply, where some of the inputs may have tangents.

    Raises:
        UnsupportedError: under a jvp of a jvp, where torch (2.11) takes the derivative of a custom jvp for 0.
    """
    if eager_transforms.JVP_NESTING > 1:
        hint = "use jvp of grad, as torch.func.hessian does"
        raise make("unsupported", "sternway.torch", "a function", "differentiated forward once", "jvp of jvp", hint)
    if function.generate_vmap_rule:
        inputs = tuple(_Whole(x) if isinstance(x, (tuple, list)) else x for x in inputs)
    return _with_tangents(function).apply(*inputs)
