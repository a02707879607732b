"""Rotary position embedding: forward and backward are sternway's, each the transpose of the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import Error, make, renamed
from ..rope import Options, rotate
from ._calls import require_tensors
from ._operators import Gradients, apply, differentiable, each, intercepted, traced, way
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
    """The rotation where torch has to see it; others call it past torch. Without x_k its result is empty."""
    options = (base, pairing, rotary_dim, rotary_start, angle, layout)
    y, *y_k = rotate(direction, x, x_k, positions, cos, sin, options)
    return y, y_k[0] if y_k else x.new_empty(0)


@_operator.register_fake
def _(x: Tensor, x_k: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0) if x_k is None else torch.empty_like(x_k)


_operator.register_vmap(each("rope", _operator))

_TRANSPOSE = {"forward": "backward", "backward": "forward"}


def _transposed(inputs: Inputs, grads: tuple[Tensor, ...], _: Any) -> Gradients:
    """The gradient of a rotation: the same one in the other direction, and so on."""
    _, x_k, *how, direction = inputs
    dx, dx_k = apply(_GRADIENT.function, grads[0], None if x_k is None else grads[1], *how, _TRANSPOSE[direction])
    return dx, None if x_k is None else dx_k, *[None] * 10


_GRADIENT = differentiable(_operator, _transposed, linear=(0, 1))


class _Rope(torch.autograd.Function):
    """One rotation of x, or of x and x_k, which have the same positions and tables."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, x_k: Tensor | None, positions: Tensor | None, cos: Tensor | None, sin: Tensor | None, options: Options
    ) -> tuple[Tensor, ...]:
        if traced() or intercepted(x):
            y, y_k = _operator(x, x_k, positions, cos, sin, *options, "forward")
            return (y,) if x_k is None else (y, y_k)
        try:
            return rotate("forward", x, x_k, positions, cos, sin, options)
        except Error as error:
            op, names = ("rope", {"dy": "x"}) if x_k is None else ("apply_rotary_pos_emb", {"dy": "q", "dy_k": "k"})
            raise renamed(error, f"sternway.torch.{op}", names) from None

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, _, positions, cos, sin, ctx.options = inputs
        ctx.save_for_backward(positions, cos, sin)
        ctx.strides = [y.stride() for y in output]  # as x's, where those are dense
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        given = [g for g in grads if g is not None]
        nothing = (None,) * 4
        if not given:
            return None, None, *nothing
        results: Any
        positions, cos, sin = ctx.saved_tensors
        if call := way(given[0], _GRADIENT):
            results = call(given[0], given[1] if len(given) == 2 else None, positions, cos, sin, *ctx.options, "backward")
        else:
            given = [g.resolve_neg() for g in given]
            strides = [s for s, g in zip(ctx.strides, grads, strict=True) if g is not None]
            out = tuple(g.new_empty_strided(g.shape, s) for g, s in zip(given, strides, strict=True))
            x_k = given[1] if len(given) == 2 else None
            results = rotate("backward", given[0], x_k, positions, cos, sin, ctx.options, out)
        found = iter(results)
        dx = [None if g is None else next(found) for g in grads]
        return dx[0], dx[1] if len(dx) == 2 else None, *nothing


def _table(op: str, name: str, table: Tensor | None, x: Tensor) -> Tensor | None:
    """A table in a dtype that the kernels read beside x."""
    if table is None:
        return None
    if table.requires_grad and torch.is_grad_enabled():
        raise make(
            "unsupported",
            f"sternway.torch.{op}",
            name,
            "a constant",
            "a tensor that requires grad",
            f"pass {name}.detach(); no gradient flows to the tables",
        )
    return table if table.dtype in (x.dtype, torch.float32, torch.float64) else table.float()


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
) -> Tensor:
    """Rotary position embedding of x (Su et al., arXiv 2104.09864).

    ``y_i = c_i x_i - s_i x_j`` and ``y_j = c_j x_j + s_j x_i`` for each pair (i, j) of the rotated part, with the cosines and
    sines of :func:`sternway.rope_backward`, which is the gradient. Any order of derivative is the same kernel.

    Args:
        x: [B, H, S, D] in the layout "bhsd", [B, S, H, D] in "bshd", [tokens, H, D] in "thd"; float32, float64, float16 or
            bfloat16; any strides. Under autocast x keeps its dtype.
        positions: [S] or [B, S], int32 or int64; None: 0 .. S-1.
        base: of the frequencies ``base ** (-2 k / rotary_dim)``, in radians for each position.
        cos, sin: tables [P, rotary_dim / 2] or [P, rotary_dim], or with a leading batch, of which position p takes row p.
        pairing: "interleaved" (2k, 2k + 1), or "half" (k, k + rotary_dim / 2).
        rotary_dim, rotary_start: the rotated part; None: all of D.
        angle: "float64", or "float32" as a torch forward forms it.
        layout: of x.

    Returns:
        y, like x.

    Raises:
        InvalidProblemError: shapes or options that contradict each other, positions outside the tables (on the CPU).
        UnsupportedError: a dtype, pairing, layout or device without a kernel, tables that require grad.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]], requires_grad=True)  # two tokens, one pair
        >>> st.rope(x).detach().round(decimals=3).tolist()
        [[[[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]]]
    """
    require_tensors("rope", x=x)
    options = (base, pairing, rotary_dim, rotary_start, angle, layout)
    tables = _table("rope", "cos", cos, x), _table("rope", "sin", sin, x)
    return apply(_Rope, x, None, positions, *tables, options)[0]  # type: ignore[no-any-return]


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys in one launch, forward and backward: the function of that name in transformers' Llama.

    Args:
        q, k: [B, H, S, D] with unsqueeze_dim 1, [B, S, H, D] with 2; the numbers of heads may differ; any strides.
        cos, sin: [B, S, R] or [1, S, R], the two halves one after the other, R <= D. Elements from R on are copied.
        unsqueeze_dim: where q and k have their heads.

    Returns:
        q and k rotated, each like its input (torch would promote to the dtype of the tables).

    Raises:
        InvalidProblemError: shapes that do not fit each other.
        UnsupportedError: another unsqueeze_dim; tables that require grad.
    """
    name = "apply_rotary_pos_emb"
    layout = {1: "bhsd", 2: "bshd", -3: "bhsd", -2: "bshd"}.get(unsqueeze_dim)
    if layout is None:
        raise make("unsupported", f"sternway.torch.{name}", "unsqueeze_dim", "1 or 2", str(unsqueeze_dim))
    require_tensors(name, q=q, k=k, cos=cos, sin=sin)
    options = (10000.0, "half", cos.shape[-1], 0, "float64", layout)
    tables = _table(name, "cos", cos, q), _table(name, "sin", sin, q)
    return apply(_Rope, q, k, None, *tables, options)  # type: ignore[no-any-return]
