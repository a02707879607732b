"""Rotary position embedding of one input, or of queries and keys by tables."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._rope_options import OP, extents, options_of
from .._types import Angle, Columns, Layout, Pairing
from ..errors import make, reported_as
from ._autograd.calls import require_tensors
from ._autograd.operators import is_distributed
from ._autograd.overrides import handed_on, is_overridden
from ._autograd.rope import rotated, rotated_by_heads
from ._autograd.rope_operands import arranged, floating, heads_in_tables, laid_out, require_columns, tables_of

__all__ = ["apply_rotary_pos_emb", "rope"]


@reported_as("sternway.torch.rope", {"dy": "x", "dtype": "x"})
def rope(
    x: Tensor,
    positions: Tensor | None = None,
    *,
    base: float = 10000.0,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    pairing: Pairing = "interleaved",
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    angle: Angle = "float64",
    layout: Layout = "bhsd",
    columns: Columns | None = None,
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
    if is_overridden((x, positions, cos, sin)):
        named = {"base": base, "cos": cos, "sin": sin, "pairing": pairing, "rotary_dim": rotary_dim}
        others = {"rotary_start": rotary_start, "angle": angle, "layout": layout, "columns": columns}
        return handed_on(rope, (x, positions), named | others)  # type: ignore[no-any-return]
    given = {"positions": positions, "cos": cos, "sin": sin}
    require_tensors("rope", x=x, **{name: t for name, t in given.items() if t is not None})
    options = options_of(base, pairing, rotary_dim, rotary_start, angle, layout)
    require_columns(columns)
    batch, heads, _, head_dim = extents(x.shape, layout)
    if cos is None or sin is None:
        if cos is None and sin is None and positions is not None and positions.is_floating_point():
            if is_distributed(x, positions):
                wanted, hint = (
                    "int32 or int64 where operands are DTensors",
                    "pass cos and sin, or redistribute and use to_local()",
                )
                raise make("unsupported", OP, "positions", wanted, "floating positions", hint)
            cos, sin, positions = *tables_of(positions, x, options), None
        return rotated([x], positions, cos, sin, options)[0]  # type: ignore[no-any-return]
    pairs = (head_dim if rotary_dim is None else rotary_dim) // 2
    cos, sin = (arranged(floating(name, t, x), pairs, columns, pairing) for name, t in (("cos", cos), ("sin", sin)))
    if not heads_in_tables(cos.shape, batch, heads):
        return rotated([x], positions, cos, sin, options)[0]  # type: ignore[no-any-return]
    return rotated_by_heads([x], positions, cos, sin, options)[0]


@reported_as("sternway.torch.apply_rotary_pos_emb", {"dy": "q", "dy_k": "k", "dtype": "q"})
def apply_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    unsqueeze_dim: int = 1,
    *,
    pairing: Pairing = "half",
    rotary_dim: int | None = None,
    columns: Columns = "halves",
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
    if is_overridden((q, k, cos, sin)):
        options = {"pairing": pairing, "rotary_dim": rotary_dim, "columns": columns}
        return handed_on(apply_rotary_pos_emb, (q, k, cos, sin, unsqueeze_dim), options)  # type: ignore[no-any-return]
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
    rotation = rotated if cos.dim() == 3 else rotated_by_heads
    outputs = rotation(four, None, cos, sin, options)
    return list(outputs) if q.dim() == 4 else [y[0] for y in outputs]


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
