"""Forward-mode derivatives of every function whose backward can be differentiated."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import make
from .constants import constant

Inputs = tuple[Any, ...]


@constant
def count_jvps() -> int:
    """The number of active jvp transforms of torch.func, read off its stack: compiled graphs do not raise Python's count."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack)


def has_tangents() -> bool:
    """Whether tensors may have tangents: in a level of dual tensors, or inside a jvp."""
    return forward_ad._current_level >= 0 or count_jvps() > 0


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
        self.saved_tensors: tuple[Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materializes = value

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        pass


class _Part:
    """A ctx whose saved tensors are a part of those of another, with the attributes of that one."""

    def __init__(self, ctx: Any, saved: tuple[Tensor | None, ...] = ()) -> None:
        vars(self).update(ctx=ctx, saved_tensors=saved)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.ctx, name, value)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        vars(self)["saved_tensors"] = tensors


def _transposed(function: Any, inputs: Inputs, output: Any, tangents: tuple[Tensor | None, ...]) -> Any:
    """Tangents of the outputs, by the transpose of the backward: ``backward(dy) . tangents = dy . result``."""
    # Floats of 8 bits are quantized values, which have no gradient, but torch makes tangents of zeros for them.
    tangents = tuple(None if t is None or t.element_size() == 1 else t for t in tangents)
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
            part = _Part(ctx)
            function.setup_context(part, inputs, output)
            one = isinstance(output, Tensor)
            both = *inputs, *((output,) if one else output)
            every = _Context((True,) * len(inputs))
            function.setup_context(every, inputs, output)
            read = *part.saved_tensors, *every.saved_tensors
            # A backward reads no others, so zeros stand for these: their values may change in place afterwards.
            tensors = (x if any(x is r for r in read) else torch.zeros_like(x) for x in both if isinstance(x, Tensor))
            saved = *part.saved_tensors, *(next(tensors) if isinstance(x, Tensor) else None for x in both)
            # The same list twice: torch's vmap rule (2.15) records the batched dimensions of only one of them.
            ctx.save_for_backward(*saved)
            ctx.save_for_forward(*saved)
            constants = [None if isinstance(x, Tensor) else x for x in both]
            ctx.with_tangents = one, len(part.saved_tensors), constants

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            return function.backward(_Part(ctx, ctx.saved_tensors[: ctx.with_tangents[1]]), *grads)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
            one, first, constants = ctx.with_tangents
            with forward_ad._set_fwd_grad_enabled(False):  # copies without the tangents, which have no part in the backward
                saved = [x if x is None else x.clone() for x in ctx.saved_tensors[first:]]
            both = tuple(other if x is None else x for x, other in zip(saved, constants, strict=True))
            inputs, outputs = both[: len(tangents)], both[len(tangents) :]
            return _transposed(function, inputs, outputs[0] if one else outputs, tangents)

    return WithTangents


def apply_with_tangents(function: Any, *inputs: Any) -> Any:
    """function.apply, where some of the inputs may have tangents.

    Raises:
        UnsupportedError: under a jvp of a jvp, where torch (2.11) takes the derivative of a custom jvp for 0.
    """
    if count_jvps() > 1:
        hint = "use jvp of grad, as torch.func.hessian does"
        raise make("unsupported", "sternway.torch", "a function", "differentiated forward once", "jvp of jvp", hint)
    if function.generate_vmap_rule:
        inputs = tuple(_Whole(x) if isinstance(x, (tuple, list)) else x for x in inputs)
    return _with_tangents(function).apply(*inputs)
