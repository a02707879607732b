"""The autograd functions of RoPE: forward and backward are sternway's, each the transpose of the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._rope import rotate
from ..._rope_options import OP, Options
from ...errors import make
from .calls import resolve
from .dispatch import run_operator
from .eager import apply_in_c, is_eager, is_plain
from .operators import (
    Gradients,
    apply,
    differentiable,
    is_distributed,
    is_exporting,
    is_intercepted,
    is_jit_tracing,
    is_traced,
    recorded_call,
    traceable,
    vmap_by_loop,
)
from .rope_operands import folded, rotated_by_torch, table_gradients
from .tangents import Inputs, has_tangents


@torch.library.custom_op("sternway::rope", mutates_args=())
def _operator(
    x: Tensor,
    x_k: Tensor | None,
    positions: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    base: float,
    pairing: str,
    rotary_dim: int | None,
    rotary_start: int,
    angle: str,
    layout: str,
    direction: str,
) -> tuple[Tensor, Tensor]:
    """The rotation as an operator, for calls that torch must see. Without x_k its second result is empty."""
    options = (base, pairing, rotary_dim, rotary_start, angle, layout)
    y, *y_k = rotate(direction, x, x_k, positions, cos, sin, options)
    return y, y_k[0] if y_k else x.new_empty(0)


@_operator.register_fake
def _(x: Tensor, x_k: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0) if x_k is None else torch.empty_like(x_k)


_operator.register_vmap(vmap_by_loop("rope", _operator))

_TRANSPOSE = {"forward": "backward", "backward": "forward"}


def _transposed(inputs: Inputs, grads: tuple[Tensor, ...], needs: tuple[bool, ...]) -> Gradients:
    """The gradient of a rotation: the rotation in the other direction. That of the tables is in torch operations."""
    x, x_k, positions, cos, sin, *options, direction = inputs
    dy = grads[0], None if x_k is None else grads[1]
    dx, dx_k = apply(_GRADIENT.function, *dy, positions, cos, sin, *options, _TRANSPOSE[direction])
    dcos = dsin = None
    if needs[3] or needs[4]:
        rotations = [(a, b) if direction == "forward" else (b, a) for a, b in zip((x, x_k), dy, strict=True) if b is not None]
        gradients = _sharded_table_gradients if is_distributed(x) else table_gradients
        dcos, dsin = gradients(rotations, positions, cos, sin, tuple(options))
    return dx, None if x_k is None else dx_k, None, dcos, dsin, *[None] * 7


def _linear(ctx: Any, inputs: Inputs) -> tuple[int, ...]:
    """x and x_k, where no table needs a gradient. Only calls with DTensors, which are not traced, tell that for certain."""
    return () if ctx.needs_input_grad[3] or ctx.needs_input_grad[4] or not is_distributed(inputs[0]) else (0, 1)


_GRADIENT = differentiable(_operator, _transposed, _linear)


@torch.library.custom_op("sternway::rope_table_gradients", mutates_args=())
def _table_operator(
    x: Tensor,
    dy: Tensor,
    x_k: Tensor | None,
    dy_k: Tensor | None,
    positions: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    rotary_dim: int | None,
    rotary_start: int,
    pairing: str,
    layout: str,
) -> tuple[Tensor, Tensor]:
    """The gradients of the tables as an operator, for DTensors, which have sharding rules for operators."""
    rotations = [(x, dy)] if x_k is None or dy_k is None else [(x, dy), (x_k, dy_k)]
    return table_gradients(rotations, positions, cos, sin, (0.0, pairing, rotary_dim, rotary_start, "", layout))


@_table_operator.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(inputs[5]), torch.empty_like(inputs[6])


def _refuse_second(ctx: Any, *grads: Tensor) -> Any:
    got, hint = "create_graph=True of DTensors", "redistribute them and use to_local()"
    raise make("unsupported", "sternway.torch.rope", "the gradient of a table", "differentiated once", got, hint)


_table_operator.register_autograd(_refuse_second)


def _sharded_table_gradients(
    rotations: list[tuple[Tensor, Tensor]], positions: Tensor | None, cos: Tensor, sin: Tensor, options: tuple[Any, ...]
) -> tuple[Tensor, Tensor]:
    """:func:`table_gradients` of DTensors."""
    _, pairing, rotary_dim, start, _, layout = options
    (x, dy), (x_k, dy_k) = (*rotations, (None, None))[:2]
    found: tuple[Tensor, Tensor] = _table_operator(x, dy, x_k, dy_k, positions, cos, sin, rotary_dim, start, pairing, layout)
    return found


class _Rope(torch.autograd.Function):
    """The rotation of x, or of x and x_k with the same positions and tables.

    learned: whether the tables may need a gradient, for which x is kept.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        x_k: Tensor | None,
        positions: Tensor | None,
        cos: Tensor | None,
        sin: Tensor | None,
        options: Options,
        learned: bool,
    ) -> tuple[Tensor, ...]:
        if is_traced() or is_intercepted(x):
            y, y_k = _operator(x, x_k, positions, cos, sin, *options, "forward")
            return (y,) if x_k is None else (y, y_k)
        return rotate("forward", x, x_k, positions, cos, sin, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, x_k, positions, cos, sin, ctx.options, ctx.learned = inputs
        ctx.save_for_backward(positions, cos, sin, *((x, x_k) if ctx.learned else ()))
        ctx.strides = [y.stride() for y in output]  # as x's, where those are dense
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        nothing = (None,) * 7
        given = [resolve(g) for g in grads if g is not None]
        if not given:
            return nothing
        results: Any
        positions, cos, sin, *saved = ctx.saved_tensors
        if call := recorded_call(given[0], _GRADIENT):
            results = call(given[0], given[1] if len(given) == 2 else None, positions, cos, sin, *ctx.options, "backward")
        else:
            strides = [s for s, g in zip(ctx.strides, grads, strict=True) if g is not None]
            out = tuple(g.new_empty_strided(g.shape, s) for g, s in zip(given, strides, strict=True))
            x_k = given[1] if len(given) == 2 else None
            results = rotate("backward", given[0], x_k, positions, cos, sin, ctx.options, out)
        dcos = dsin = None
        if ctx.learned and (ctx.needs_input_grad[3] or ctx.needs_input_grad[4]):
            inputs = [x for x, g in zip(saved, grads, strict=False) if g is not None]
            dcos, dsin = table_gradients(list(zip(inputs, given, strict=True)), positions, cos, sin, ctx.options)
        found = iter(results)
        dx = [None if g is None else next(found) for g in grads]
        return dx[0], dx[1] if len(dx) == 2 else None, None, dcos, dsin, None, None


_rope = traceable(_Rope)


class _RopeEager(torch.autograd.Function):
    """_Rope for ordinary eager calls."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        x, x_k, positions, cos, sin, options, _ = inputs
        outputs = rotate("forward", x, x_k, positions, cos, sin, options)
        _Rope.setup_context(ctx, inputs, outputs)
        return outputs

    backward = _Rope.backward


_apply_eager = apply_in_c(_RopeEager)


_OPERANDS = ("dy", "dy_k", "positions", "cos", "sin")  # as the plans name them, which the drop-ins replace in errors


def rotated(inputs: list[Tensor], positions: Tensor | None, cos: Tensor | None, sin: Tensor | None, options: Options) -> Any:
    """Rotate one or two inputs, with gradients."""
    x, x_k = inputs[0], inputs[1] if len(inputs) == 2 else None
    tensors = x, x_k, positions, cos, sin
    if is_exporting() or is_distributed(*tensors):  # torch.export would drop the backward of a Function
        return run_operator("rope", "rope", _OPERANDS, *tensors, *options, "forward")[: len(inputs)]
    learned = cos is not None and sin is not None and _learned(cos, sin)
    if is_eager(x) and not x.is_meta and all(t is None or is_plain(t) for t in (x_k, positions, cos, sin)):
        return _apply_eager(x, x_k, positions, cos, sin, options, learned)
    if is_jit_tracing():
        return tuple(rotated_by_torch(x, positions, cos, sin, options) for x in inputs)
    return _rope(x, x_k, positions, cos, sin, options, learned)


def _learned(cos: Tensor, sin: Tensor) -> bool:
    """Whether gradients of the tables may be needed. torch.compile does not see this inside a transform."""
    if torch.compiler.is_compiling() or has_tangents():
        return True
    return torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad)


def rotated_by_heads(
    inputs: list[Tensor], positions: Tensor | None, cos: Tensor, sin: Tensor, options: Options
) -> list[Tensor]:
    """Rotate inputs by tables that differ by head."""
    if cos.shape != sin.shape:
        raise make("invalid_problem", OP, "sin", "of the shape of cos", str(list(sin.shape)))
    f = folded(inputs, positions, cos, sin, options[-1])
    return [f.unfold(y) for y in rotated(f.inputs, f.positions, f.cos, f.sin, (*options[:-1], f.layout))]
