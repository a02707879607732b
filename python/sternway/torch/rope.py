"""Rotary position embedding: forward and backward are sternway's, each the transpose of the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import make, reported_as
from ..rope import Options, extents, options_of, rotate
from ._calls import materialized, require_tensors
from ._operators import Gradients, apply, differentiable, each, exporting, intercepted, traced, way
from ._rope_operands import (
    OP,
    arranged,
    floating,
    folded,
    heads_in_tables,
    laid_out,
    require_columns,
    table_gradients,
    tables_of,
)
from ._tangents import Inputs


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


_operator.register_vmap(each("rope", _operator))

_TRANSPOSE = {"forward": "backward", "backward": "forward"}


def _transposed(inputs: Inputs, grads: tuple[Tensor, ...], needs: tuple[bool, ...]) -> Gradients:
    """The gradient of a rotation: the rotation in the other direction. That of the tables is in torch operations."""
    x, x_k, positions, cos, sin, *options, direction = inputs
    dy = grads[0], None if x_k is None else grads[1]
    dx, dx_k = apply(_GRADIENT.function, *dy, positions, cos, sin, *options, _TRANSPOSE[direction])
    dcos = dsin = None
    if needs[3] or needs[4]:
        rotations = [(a, b) if direction == "forward" else (b, a) for a, b in zip((x, x_k), dy, strict=True) if b is not None]
        dcos, dsin = table_gradients(rotations, positions, cos, sin, tuple(options))
    return dx, None if x_k is None else dx_k, None, dcos, dsin, *[None] * 7


_GRADIENT = differentiable(_operator, _transposed)


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
        if traced() or intercepted(x):
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
        given = [materialized(g) for g in grads if g is not None]
        if not given:
            return nothing
        results: Any
        positions, cos, sin, *saved = ctx.saved_tensors
        if call := way(given[0], _GRADIENT):
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


def _rotated(inputs: list[Tensor], positions: Tensor | None, cos: Tensor | None, sin: Tensor | None, options: Options) -> Any:
    """Rotate one or two inputs, with gradients."""
    x, x_k = inputs[0], inputs[1] if len(inputs) == 2 else None
    if exporting():  # which would drop the backward of a Function
        return _operator(x, x_k, positions, cos, sin, *options, "forward")[: len(inputs)]
    learned = cos is not None and sin is not None and _learned(cos, sin)
    return apply(_Rope, x, x_k, positions, cos, sin, options, learned)


def _learned(cos: Tensor, sin: Tensor) -> bool:
    """Whether gradients of the tables may be needed. torch.compile does not see this inside a transform."""
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad)


@reported_as("sternway.torch.rope", {"dy": "x"})
def rope(
    x: Tensor,
    positions: Tensor | None = None,
    *,
    base: float = 10000.0,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    pairing: str = "interleaved",
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    angle: str = "float64",
    layout: str = "bhsd",
    columns: str | None = None,
) -> Tensor:
    """Rotary position embedding of x (Su et al., arXiv:2104.09864).

    ``y_i = c_i x_i - s_i x_j`` and ``y_j = c_j x_j + s_j x_i`` for each pair (i, j) of the rotated part, with the cosines and
    sines of :func:`sternway.rope_backward`, which is the gradient. Derivatives of every order run the same kernel.

    Args:
        x: [B, H, S, D] in the layout "bhsd", [B, S, H, D] in "bshd", [tokens, H, D] in "thd"; float32, float64, float16 or
            bfloat16; any strides. Under autocast x keeps its dtype.
        positions: [S] or [B, S], int32 or int64; None: 0 .. S-1. Without tables also floating, such as times or coordinates.
        base: the base of the frequencies ``base ** (-2 k / rotary_dim)``, in radians for each position.
        cos, sin: tables of a floating dtype, [P, columns], [B, P, columns], or, if heads differ, [B, H, P, columns] and
            [H, P, columns] in every layout of x; an extent of 1 is broadcast. Row p belongs to position p. They have rotary_dim
            / 2 columns, one for each pair, or rotary_dim columns. Tables that require grad get their gradients.
        pairing: "interleaved" (elements 2k and 2k + 1 are a pair), or "half" (k and k + rotary_dim / 2).
        rotary_dim, rotary_start: the number of rotated elements, even (None: all of D), and the first of them.
        angle: "float64", or "float32" to form angles as the usual torch forward does.
        layout: the order of the dimensions of x: "bhsd", "bshd" or "thd".
        columns: the columns of pair k in tables of rotary_dim columns. "halves": k and k + rotary_dim / 2; "neighbours": 2k and
            2k + 1. None: "halves" for the pairing "half", "neighbours" for "interleaved".

    Returns:
        y, of x's shape and dtype.

    Raises:
        InvalidProblemError: shapes or options that contradict each other; tables that are complex, integers or bools; positions
            outside the tables (on the CPU), or floating positions with tables.
        UnsupportedError: a dtype, pairing, layout or device without a kernel.
        TypeError: an operand that is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]], requires_grad=True)  # two tokens, one pair
        >>> st.rope(x).detach().round(decimals=3).tolist()
        [[[[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]]]
    """
    given = {"positions": positions, "cos": cos, "sin": sin}
    require_tensors("rope", x=x, **{name: t for name, t in given.items() if t is not None})
    options = options_of(base, pairing, rotary_dim, rotary_start, angle, layout)
    require_columns(columns)
    batch, heads, _, head_dim = extents(x.shape, layout)
    if cos is None or sin is None:
        if cos is None and sin is None and positions is not None and positions.is_floating_point():
            cos, sin, positions = *tables_of(positions, x, options), None
        return _rotated([x], positions, cos, sin, options)[0]  # type: ignore[no-any-return]
    pairs = (head_dim if rotary_dim is None else rotary_dim) // 2
    cos, sin = (arranged(floating(name, t, x), pairs, columns, pairing) for name, t in (("cos", cos), ("sin", sin)))
    if not heads_in_tables(cos.shape, batch, heads):
        return _rotated([x], positions, cos, sin, options)[0]  # type: ignore[no-any-return]
    return _by_heads([x], positions, cos, sin, options)[0]


def _by_heads(inputs: list[Tensor], positions: Tensor | None, cos: Tensor, sin: Tensor, options: Options) -> list[Tensor]:
    """Rotate inputs by tables that differ by head."""
    if cos.shape != sin.shape:
        raise make("invalid_problem", OP, "sin", "of the shape of cos", str(list(sin.shape)))
    f = folded(inputs, positions, cos, sin, options[-1])
    return [f.unfold(y) for y in _rotated(f.inputs, f.positions, f.cos, f.sin, (*options[:-1], f.layout))]


@reported_as("sternway.torch.apply_rotary_pos_emb", {"dy": "q", "dy_k": "k"})
def apply_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    unsqueeze_dim: int = 1,
    *,
    pairing: str = "half",
    rotary_dim: int | None = None,
    columns: str = "halves",
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys in one launch, forward and backward: the function of this name in transformers' Llama.

    The rotation is that of :func:`rope` with tables (Su et al., arXiv:2104.09864).

    **Other models of transformers have another function under this name.** Some pair neighbours (Cohere, GLM, Ernie 4.5,
    Helium, Moonshine), and shapes do not show it: used in place of their function without ``pairing`` and ``columns``, this one
    rotates differently from how the model was trained. :func:`patch_rope` finds the options of a model and replaces its
    function.

    ==========================  ============================================================
    models                      options
    ==========================  ============================================================
    Llama, Mistral, Qwen        none
    GPT-NeoX, Phi-3 (partial)   ``rotary_dim=cos.shape[-1]``
    GLM, Ernie 4.5, Helium      ``pairing="interleaved"``, and ``rotary_dim`` if it is partial
    Cohere                      ``pairing="interleaved", columns="neighbours"``
    GPT-OSS                     ``rotary_dim=q.shape[-1]``, twice the width of the tables
    ==========================  ============================================================

    Args:
        q, k: [B, H, S, D] with unsqueeze_dim 1, [B, S, H, D] with 2; without a batch [S, H, D] with -2, [H, S, D] with 0. The
            numbers of heads may differ; any strides; float32, float64, float16 or bfloat16.
        cos, sin: tables of a floating dtype whose rows belong to the tokens: [B, S, R], [1, S, R] or [S, R], which broadcast to
            q and k after ``unsqueeze(unsqueeze_dim)``. Tables of rank 4 have rows for each head, in the layout of q, and are
            not unsqueezed. Tables that require grad get their gradients.
        unsqueeze_dim: the dimension of the heads of q and k.
        pairing: "half" (elements k and k + rotary_dim / 2 are a pair), or "interleaved" (2k and 2k + 1).
        rotary_dim: the number of rotated elements, the first ones of D; others are copied. It must be given if R < D: R for two
            columns a pair, or 2 R for one column a pair.
        columns: the columns of pair k: "halves": k and k + R / 2; "neighbours": 2k and 2k + 1.

    Returns:
        q and k rotated, each of its input's shape and dtype (torch would promote to the dtype of the tables).

    Raises:
        InvalidProblemError: shapes that do not fit each other; tables narrower than D without rotary_dim; q and k of different
            dtypes; tables that are complex, integers or bools.
        UnsupportedError: a dtype, pairing, columns or device without a kernel.
        TypeError: an operand that is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> q, k, angles = torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8), torch.rand(1, 3, 4)  # two heads of q share one of k
        >>> q, k = st.apply_rotary_pos_emb(q, k, angles.cos(), angles.sin(), rotary_dim=8)
        >>> q.shape, k.shape
        (torch.Size([1, 4, 3, 8]), torch.Size([1, 2, 3, 8]))
    """
    require_tensors("apply_rotary_pos_emb", q=q, k=k, cos=cos, sin=sin)
    width = _rotary_dim(q.shape[-1], cos.shape[-1], rotary_dim) if q.dim() and cos.dim() else 0
    y_q, y_k = rotate_by_tables([q, k], cos, sin, unsqueeze_dim, pairing, width, 0, columns)
    return y_q, y_k


def rotate_by_tables(
    inputs: list[Tensor],
    cos: Tensor,
    sin: Tensor,
    unsqueeze_dim: int,
    pairing: str,
    rotary_dim: int,
    rotary_start: int,
    columns: str,
) -> list[Tensor]:
    """Rotate one or two inputs by tables that broadcast to them after ``unsqueeze(unsqueeze_dim)``."""
    q = inputs[0]
    require_columns(columns)
    cos, sin = floating("cos", cos, q), floating("sin", sin, q)
    layout, cos, sin = laid_out(inputs, cos, sin, unsqueeze_dim)
    options = options_of(10000.0, pairing, rotary_dim, rotary_start, "float64", layout)
    cos, sin = (arranged(t, rotary_dim // 2, columns, pairing) for t in (cos, sin))
    four = inputs if q.dim() == 4 else [x[None] for x in inputs]
    rotated = _rotated(four, None, cos, sin, options) if cos.dim() == 3 else _by_heads(four, None, cos, sin, options)
    return list(rotated) if q.dim() == 4 else [y[0] for y in rotated]


def _rotary_dim(head_dim: int, width: int, rotary_dim: Any) -> int:
    """The number of elements that tables of a width rotate."""
    if rotary_dim is None and width == head_dim:
        return head_dim
    known = (width, 2 * width) if width < head_dim else (head_dim,)
    if rotary_dim is not None:
        _, _, rotary_dim, *_ = options_of(1.0, "", rotary_dim, 0, "", "")
    if width <= head_dim and rotary_dim in known and rotary_dim <= head_dim:
        return rotary_dim  # type: ignore[no-any-return]
    if width > head_dim:
        raise make("invalid_problem", OP, "cos", f"of at most {head_dim} columns, the last extent of q", str(width))
    choices = " or ".join(str(n) for n in known if n <= head_dim)
    wanted = f"{choices} where tables have {width} columns and q has a last extent of {head_dim}"
    hint = f"{width}: two columns a pair, {2 * width}: one column a pair" if width < head_dim else ""
    raise make("invalid_problem", OP, "rotary_dim", wanted, str(rotary_dim), hint)
