"""Backwards as operators of torch, which torch.compile traces, autograd differentiates again and vmap batches."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import make
from .constants import constant
from .sharding import sharding
from .tangents import Inputs, apply_with_tangents, has_tangents

PLAIN = (Tensor, torch.nn.Parameter)
MAX_RANK = 8  # of an operand of a plan; vmap adds a dimension
Gradients = tuple[Tensor | None, ...]
Backward = Callable[[Inputs, tuple[Tensor, ...], tuple[bool, ...]], Gradients]
"""Takes the inputs of an operator, the gradients of its outputs, and which inputs need one; returns one for each input."""


def is_distributed(*values: Any) -> bool:
    """Whether one of some values is a DTensor. It does not import torch.distributed.tensor, which is slow."""
    tensors = [x for x in values if isinstance(x, Tensor) and type(x) not in PLAIN]
    module = sys.modules.get("torch.distributed.tensor") if tensors else None
    return module is not None and any(isinstance(x, module.DTensor) for x in tensors)


class DoubleBackward(NamedTuple):
    """A backward that can be differentiated again, in two forms; transforms of torch.func (2.11) accept only the second."""

    operator: Callable[..., Any]
    function: type[torch.autograd.Function]


def differentiable(
    operator: Any, backward: Backward, linear: tuple[int, ...] | Callable[[Any, Inputs], tuple[int, ...]] = ()
) -> DoubleBackward:
    """Give an operator a gradient.

    Args:
        operator: a custom operator of torch.
        backward: computes the gradients of its inputs.
        linear: indices of the inputs that the operator is linear in, or a function of ctx and the inputs that returns them.
            They are not saved: in their place backward gets True, or None if the input was None.
    """

    class Gradient(torch.autograd.Function):
        generate_vmap_rule = True  # the operator's

        @staticmethod
        def forward(*inputs: Any) -> Any:
            return operator(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: Inputs, output: Any) -> None:
            unsaved = linear(ctx, inputs) if callable(linear) else linear
            saved = [x if isinstance(x, Tensor) and i not in unsaved else None for i, x in enumerate(inputs)]
            ctx.save_for_backward(*saved)
            ctx.others = [True if isinstance(x, Tensor) else x for x in inputs]

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Gradients:
            saved = map(_unwrapped, ctx.saved_tensors)
            inputs = tuple(other if x is None else x for x, other in zip(saved, ctx.others, strict=True))
            return backward(inputs, _distributed_alike(grads), tuple(ctx.needs_input_grad))

    operator.register_autograd(Gradient.backward, setup_context=Gradient.setup_context)
    return DoubleBackward(operator, Gradient)


def _distributed_alike(grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gradients, all DTensors if one is: torch makes local zeros of the whole shape for an output without a gradient."""
    shared: Any = next((g for g in grads if is_distributed(g)), None)
    if shared is None:
        return grads
    replicated = sharding().replicated
    return tuple(g if is_distributed(g) else replicated(g, shared) for g in grads)


def by_formula(formula: Callable[..., Any], name: str | None = None) -> Backward:
    """A Backward that differentiates a formula, which computes the same outputs as the operator in torch operations.

    name: of the operator, if DTensors are differentiated on their shards; None: torch finds the placements of each operation.
    """

    def backward(inputs: Inputs, grads: tuple[Tensor, ...], needs: tuple[bool, ...]) -> Gradients:
        if name is not None and is_distributed(*inputs):
            return sharding().gradients(name, backward, inputs, grads, needs)
        where = [i for i, need in enumerate(needs) if need]

        def function(*needed: Tensor) -> Any:
            given = dict(zip(where, needed, strict=True))
            return formula(*(given.get(i, x) for i, x in enumerate(inputs)))

        with_pullback: Any = torch.func.vjp(function, *(inputs[i] for i in where))
        outputs, pull = with_pullback
        found = iter(pull(grads[0] if isinstance(outputs, Tensor) else grads))
        return tuple(next(found) if need else None for need in needs)

    return backward


def is_traced() -> bool:
    """Whether torch.compile or a transform of torch.func is active: values are unknown, and torch decides the layout."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def is_jit_tracing() -> bool:
    """Whether torch.jit.trace is active, whose traces hold torch's operations alone."""
    return not torch.compiler.is_dynamo_compiling() and torch._C._is_tracing()


def is_exporting() -> bool:
    """Whether torch.export is active. It keeps operators and their gradients, but drops the backward of an autograd.Function.

    A model of ONNX has no backward, and knows torch's own operations alone.
    """
    # torch.compiler.is_exporting() is True in all that torch.compile (2.11) traces
    return torch.compiler._is_exporting_flag and not torch.onnx.is_in_onnx_export()


def is_intercepted(x: Tensor) -> bool:
    """Whether a dispatch mode or a subclass must see operations on x, as for make_fx, or x has no values."""
    return type(x) not in PLAIN or x.is_meta or torch._C._len_torch_dispatch_stack() > 0


def recorded_call(dy: Tensor, gradient: DoubleBackward) -> Callable[..., Any] | None:
    """The callable by which a backward must be called so that torch records it. None: torch need not see the call."""
    if torch.compiler.is_dynamo_compiling():
        return gradient.operator
    if torch._C._functorch.is_legacy_batchedtensor(dy):  # by is_grads_batched
        return gradient.operator
    recorded = torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()  # the former by create_graph
    if recorded or has_tangents():
        return functools.partial(apply, gradient.function)
    return gradient.operator if is_intercepted(dy) else None


def _unwrapped(x: Any) -> Any:
    """x without the wrappers of transforms of torch.func that have ended."""
    while isinstance(x, Tensor) and (inner := torch._C._functorch.unwrap_if_dead(x)) is not x:
        x = inner
    return x


def apply(function: Any, *inputs: Any) -> Any:
    """Call function.apply, with a jvp in forward-mode AD."""
    if torch._C._are_functorch_transforms_active():  # torch unwraps the tensors only where none is
        inputs = tuple(map(_unwrapped, inputs))
    return apply_with_tangents(function, *inputs) if has_tangents() else function.apply(*inputs)


_in_graph: list[Callable[..., Any]] = []


@constant
def _is_transformed() -> bool:
    """Whether a transform of torch.func is active in the code that Dynamo traces. If so, it lets our calls be graph nodes."""
    if not torch._C._are_functorch_transforms_active():
        return False
    for call in _in_graph:
        torch._dynamo.allow_in_graph(call)  # type: ignore[no-untyped-call]
    return True


@constant
def _is_jvp_in_two_vmaps() -> bool:
    """Whether Dynamo traces inside a jvp that is inside two vmaps, as ``vmap(hessian(f))`` has it.

    Dynamo (2.15) cannot trace derivatives there, of torch's own functions either. The error leaves the state of the thread
    wrong for the eager call that follows; a graph break before it does not.
    """
    kinds = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
    jvps = [i for i, kind in enumerate(kinds) if kind == torch._C._functorch.TransformType.Jvp]
    return bool(jvps) and kinds[: jvps[-1]].count(torch._C._functorch.TransformType.Vmap) > 1


def traceable(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """:func:`apply` of an autograd function, for calls that Dynamo, the front end of torch.compile, may trace.

    Dynamo turns an autograd function into an operator with one derivative: it takes the second for 0, and knows neither
    tangents nor vmap. So inside transforms of torch.func the call is one node of its graph, which runs under these transforms
    as an eager call does.
    """

    def node(*inputs: Any) -> Any:
        return apply(function, *inputs)

    def call(*inputs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            if not _is_transformed():
                return function.apply(*inputs)
            if _is_jvp_in_two_vmaps():
                torch._dynamo.graph_break()
            return node(*inputs)
        return apply(function, *inputs)

    _in_graph.append(node)
    return call


def batch_first(info: Any, in_dims: tuple[Any, ...], inputs: Inputs) -> Inputs:
    """The inputs of an operator with the dimension that vmap batches moved to the front."""

    def moved(x: Any, where: int | None) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.expand(info.batch_size, *x.shape) if where is None else x.movedim(where, 0)

    return tuple(map(moved, inputs, in_dims))


def vmap_by_loop(name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
    """A vmap rule that calls the operator once for each element of the batch."""

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        if info.batch_size == 0:
            raise make("unsupported", f"sternway.torch.{name}", "the batch", "of one or more under vmap", "0")
        calls = [
            operator(*(x.select(where, i) if isinstance(where, int) else x for x, where in zip(inputs, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if isinstance(calls[0], Tensor):
            return torch.stack(calls), 0
        return tuple(map(torch.stack, zip(*calls, strict=True))), (0,) * len(calls[0])

    return rule
