"""RoPE by tables of every kind: columns, widths, tables of heads, learned tables; floating positions; what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from support import BF16, F16, F32, F64, gradcheck, gradgradcheck, refusal
from torch import Tensor

import sternway as sw
import sternway.torch as st
from sternway._cases.rope import joined, members

PAIRINGS = ("half", "interleaved")
COLUMNS = ("halves", "neighbours")
TOLERANCE = {F64: (1e-12, 1e-12), F32: (1e-5, 1e-5), F16: (1e-2, 1e-2), BF16: (5e-2, 5e-2)}


def definition(x: Tensor, cos: Tensor, sin: Tensor, pairing: str, columns: str, rotary_dim: int, start: int = 0) -> Tensor:
    """The formulas of SEMANTICS, of tables that broadcast to x and have one or two columns a pair, in float64."""
    x, cos, sin = x.to(F64), cos.to(F64), sin.to(F64)
    order = "half" if columns == "halves" else "interleaved"
    (ci, cj), (si, sj) = (members(t, order) if t.shape[-1] == rotary_dim else (t, t) for t in (cos, sin))
    before, turned, after = x.split((start, rotary_dim, x.shape[-1] - start - rotary_dim), -1)
    i, j = members(turned, pairing)
    return torch.cat((before, joined(ci * i - si * j, cj * j + sj * i, pairing), after), -1)


def normal(*shape: int, dtype: torch.dtype = F64, device: str = "cpu") -> Tensor:
    return torch.randn(shape, dtype=F64).to(device, dtype)


def near(ours: Tensor, truth: Tensor) -> None:
    rtol, atol = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.to(F64), truth, rtol=rtol, atol=atol)


# --- apply_rotary_pos_emb ---------------------------------------------------------------------------------------------

CALLS = {  # shapes of q, k and tables without their last extents, unsqueeze_dim
    "heads first": ((2, 3, 5), (2, 4, 5), (2, 5), 1),
    "tables of one batch": ((2, 3, 5), (2, 4, 5), (1, 5), -3),
    "tokens first": ((2, 5, 3), (2, 5, 4), (2, 5), 2),
    "tokens first, one batch": ((2, 5, 3), (2, 5, 4), (1, 5), -2),
    "vision": ((5, 3), (5, 4), (5,), -2),
    "vision, as many tokens as heads": ((5, 5), (5, 5), (5,), 1),
    "heads first without a batch": ((3, 5), (4, 5), (5,), 0),
    "tables without a batch": ((2, 3, 5), (2, 4, 5), (5,), 0),
    "tables of heads": ((2, 3, 5), (2, 3, 5), (3, 5), 0),
    "tables of heads and batches": ((2, 3, 5), (2, 3, 5), (2, 3, 5), 1),
    "tables of heads, tokens first": ((2, 5, 3), (2, 5, 3), (2, 5, 3), 2),
    "tables of rank 4 for all heads": ((2, 3, 5), (2, 4, 5), (2, 1, 5), 1),
    "a table of one row": ((2, 3, 5), (2, 4, 5), (2, 1), 1),
    "one token": ((2, 3, 1), (2, 4, 1), (1, 1), 1),
    "one of each": ((1, 1, 1), (1, 1, 1), (1, 1), 1),
}
WIDTHS = {  # columns of the tables and rotary_dim, of 12 elements
    "whole": (12, None),
    "whole, said": (12, 12),
    "part": (8, 8),
    "one column a pair": (6, 12),
    "part, one column a pair": (4, 8),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("call", CALLS)
def test_apply_rotary_pos_emb(call: str, width: str, device: str) -> None:
    """Both members of a pair have cosines and sines of their own where there are two columns, in the order that is said."""
    q_shape, k_shape, table_shape, dim = CALLS[call]
    columns_, rotary_dim = WIDTHS[width]
    q, k = normal(*q_shape, 12, device=device).requires_grad_(), normal(*k_shape, 12, device=device).requires_grad_()
    cos, sin = (normal(*table_shape, columns_, device=device).requires_grad_() for _ in range(2))
    tables = (cos, sin) if cos.dim() == 4 else (cos.unsqueeze(dim), sin.unsqueeze(dim))
    for pairing, columns in itertools.product(PAIRINGS, COLUMNS):
        ours = st.apply_rotary_pos_emb(q, k, cos, sin, dim, pairing=pairing, rotary_dim=rotary_dim, columns=columns)
        want = [definition(x, *tables, pairing, columns, rotary_dim or 12) for x in (q, k)]
        dy = [torch.randn_like(y) for y in ours]
        found, truth = (torch.autograd.grad(y, (q, k, cos, sin), dy) for y in (ours, want))
        for a, b in zip((*ours, *found), (*want, *truth), strict=True):
            near(a, b)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("table_dtype", [F32, F64, F16, BF16], ids=str)
def test_dtypes(dtype: torch.dtype, table_dtype: torch.dtype, device: str) -> None:
    """Results like q and k, gradients of tables in their dtype."""
    q, k = (normal(2, h, 5, 8, dtype=dtype, device=device).requires_grad_() for h in (3, 2))
    cos, sin = (normal(1, 5, 8, dtype=table_dtype, device=device).requires_grad_() for _ in range(2))
    ours = st.apply_rotary_pos_emb(q, k, cos, sin, pairing="interleaved")
    want = [definition(x, cos[:, None], sin[:, None], "interleaved", "halves", 8) for x in (q, k)]
    dy = [torch.randn_like(y) for y in ours]
    found = torch.autograd.grad(ours, (q, k, cos, sin), dy)
    truth = torch.autograd.grad(want, (q, k, cos, sin), [g.to(F64) for g in dy])
    for a, b in zip((*ours, *found), (*want, *truth), strict=True):
        near(a, b.to(F64))
    assert [t.dtype for t in (*ours, *found)] == [dtype, dtype, dtype, dtype, table_dtype, table_dtype]


Q = torch.ones(1, 2, 3, 8)
T = torch.ones(1, 3, 8)
T2 = T.expand(2, 3, 8)
REFUSED: dict[str, tuple[Any, str, str]] = {  # a call, the operand that it names, what the sentence contains
    "narrow tables": (lambda: st.apply_rotary_pos_emb(Q, Q, T[..., :4], T[..., :4]), "rotary_dim", "4 or 8"),
    "another width": (lambda: st.apply_rotary_pos_emb(Q, Q, T[..., :4], T[..., :4], rotary_dim=6), "rotary_dim", "got 6"),
    "too wide a part": (lambda: st.apply_rotary_pos_emb(Q, Q, T[..., :6], T[..., :6], rotary_dim=12), "rotary_dim", "got 12"),
    "part of full tables": (lambda: st.apply_rotary_pos_emb(Q, Q, T, T, rotary_dim=4), "rotary_dim", "must be 8"),
    "wide tables": (lambda: st.apply_rotary_pos_emb(Q[..., :4], Q[..., :4], T, T), "cos", "at most 4 columns"),
    "no integer": (lambda: st.apply_rotary_pos_emb(Q, Q, T[..., :4], T[..., :4], rotary_dim="8"), "rotary_dim", "an integer"),
    "columns": (lambda: st.apply_rotary_pos_emb(Q, Q, T, T, columns="both"), "columns", "neighbours"),
    "pairing": (lambda: st.apply_rotary_pos_emb(Q, Q, T, T, pairing="thirds"), "pairing", "interleaved"),
    "no word": (lambda: st.apply_rotary_pos_emb(Q, Q, T, T, pairing=["half"]), "pairing", "a word"),
    "unsqueeze_dim": (lambda: st.apply_rotary_pos_emb(Q, Q, T, T, 3), "unsqueeze_dim", "got 3"),
    "columns unsqueezed": (lambda: st.apply_rotary_pos_emb(Q, Q, T, T, -1), "unsqueeze_dim", "other than -1"),
    "unsqueeze_dim, no integer": (lambda: st.apply_rotary_pos_emb(Q, Q, T, T, 1.5), "unsqueeze_dim", "an integer"),
    "rank 2": (lambda: st.apply_rotary_pos_emb(Q[0, 0], Q[0, 0], T, T), "q", "of rank 3 or 4"),
    "ranks that differ": (lambda: st.apply_rotary_pos_emb(Q, Q[0], T, T), "k", "of rank 4 like q"),
    "dtypes that differ": (lambda: st.apply_rotary_pos_emb(Q.bfloat16(), Q, T, T), "k", "bfloat16 like q"),
    "tokens that differ": (lambda: st.apply_rotary_pos_emb(Q, Q[:, :, :2], T, T), "k", "of shape"),
    "more rows than tokens": (lambda: st.apply_rotary_pos_emb(Q[:, :, :2], Q[:, :, :2], T, T), "cos", "broadcastable to q"),
    "tables of another batch": (lambda: st.apply_rotary_pos_emb(Q, Q, T2, T2), "cos", "broadcast"),
    "heads of k": (
        lambda: st.apply_rotary_pos_emb(Q, Q[:, :1], T2, T2, 0), "cos", "as many heads in k as in q",
    ),
    "a sine of another shape": (lambda: st.apply_rotary_pos_emb(Q, Q, T, T[..., :4]), "sin", "of cos"),
    "complex": (lambda: st.apply_rotary_pos_emb(Q, Q, T + 0j, T + 0j), "cos", "cos=cos.real and sin=cos.imag"),
    "bools": (lambda: st.apply_rotary_pos_emb(Q, Q, T.bool(), T.bool()), "cos", "floating"),
    "an integer sine": (lambda: st.apply_rotary_pos_emb(Q, Q, T, T.int()), "sin", "floating"),
    "integers": (lambda: st.apply_rotary_pos_emb(Q.int(), Q.int(), T, T), "q", "float32"),
    "another device": (lambda: st.apply_rotary_pos_emb(Q, Q, T.to("meta"), T.to("meta")), "cos", "meta"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_apply_rotary_pos_emb_refuses(name: str) -> None:
    call, operand, text = REFUSED[name]
    with pytest.raises(sw.Error) as refused:
        call()
    error = refused.value
    assert (error.op, error.operand) == ("sternway.torch.apply_rotary_pos_emb", operand)
    assert text in str(error)
    assert "dy" not in str(error)


# --- rope ---------------------------------------------------------------------------------------------------------------

FORMS = {  # extents of tables before their rows, of 2 batches and 3 heads
    "[P]": (), "[1, P]": (1,), "[B, P]": (2,), "[H, P]": (3,), "[1, H, P]": (1, 3), "[B, H, P]": (2, 3), "[B, 1, P]": (2, 1),
}  # fmt: skip


def rows(table: Tensor, positions: Tensor | None, b: int, h: int, s: int) -> Tensor:
    """The row of a table for each token, [B, H, S, columns]."""
    if table.dim() == 3:
        table = table[None] if table.shape[0] == h and b != h and h != 1 else table[:, None]
    table = table.expand(b, h, -1, -1)
    at = torch.arange(s, device=table.device) if positions is None else positions
    at = at.expand(b, s)[:, None, :, None]
    return table.gather(2, at.expand(b, h, s, table.shape[-1]))


def heads_first(x: Tensor, layout: str) -> Tensor:
    """[B, H, S, D] of a layout, or back."""
    return x.transpose(1, 2) if layout == "bshd" else x


@pytest.mark.parametrize("positions", ["", "S", "BS"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "thd"])
@pytest.mark.parametrize("form", FORMS)
def test_tables(form: str, layout: str, positions: str, device: str) -> None:
    """Values and gradients of x and the tables, with both widths, pairings, and orders of columns."""
    b, h, s, rows_ = 1 if layout == "thd" else 2, 3, 4, 5
    lead = tuple(min(n, b) if i == 0 and n == 2 else n for i, n in enumerate(FORMS[form]))
    at = {"": None, "S": torch.tensor([3, 0, 4, 3], device=device), "BS": torch.randint(0, rows_, (b, s), device=device)}[
        positions
    ]
    x = normal(b, h, s, 8, device=device)
    x = x[0].transpose(0, 1) if layout == "thd" else heads_first(x, layout)
    x = x.contiguous().requires_grad_()
    for pairing, columns, width in itertools.product(PAIRINGS, (None, *COLUMNS), (3, 6)):
        cos, sin = (normal(*lead, rows_, width, device=device).requires_grad_() for _ in range(2))
        how = {"pairing": pairing, "rotary_dim": 6, "rotary_start": 1, "layout": layout, "columns": columns}
        y = st.rope(x, at, cos=cos, sin=sin, **how)
        four = x.transpose(0, 1)[None] if layout == "thd" else heads_first(x, layout)
        tables = (rows(t, at, b, h, s) for t in (cos, sin))
        order = columns or ("halves" if pairing == "half" else "neighbours")
        want = definition(four, *tables, pairing, order, 6, 1)
        want = want[0].transpose(0, 1) if layout == "thd" else heads_first(want, layout)
        dy = torch.randn_like(y)
        found, truth = (torch.autograd.grad(z, (x, cos, sin), dy) for z in (y, want))
        for a, b_ in zip((y, *found), (want, *truth), strict=True):
            near(a, b_)


@pytest.mark.parametrize("options", [{}, {"columns": "halves", "pairing": "interleaved"}, {"layout": "bshd"}], ids=str)
@pytest.mark.parametrize("form", ["[P]", "[B, P]", "[B, H, P]"])
def test_learned_tables_gradcheck(form: str, options: dict[str, Any], device: str) -> None:
    """Of first and second order, in forward mode and of several at once."""
    x = normal(2, 3, 3, 4, device=device).requires_grad_()
    cos, sin = (normal(*FORMS[form], 5, 4, device=device).requires_grad_() for _ in range(2))
    positions = torch.tensor([4, 1, 1], device=device)

    def function(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return st.rope(x, positions, cos=cos, sin=sin, **options)

    assert gradcheck(function, (x, cos, sin), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, (x, cos, sin))


def test_learned_frequencies(device: str) -> None:
    """A module learns them: the gradient of angles that are made of parameters; x alone, and one table alone."""
    x, frequencies = normal(2, 3, 6, 8, dtype=F32, device=device), torch.rand(4, device=device)
    dy = torch.randn_like(x)

    def gradient(dtype: torch.dtype, ours: bool) -> Tensor:
        f = frequencies.to(dtype).requires_grad_()
        angles = torch.outer(torch.arange(6, dtype=dtype, device=device), f)
        y = (
            st.rope(x.to(dtype), cos=angles.cos(), sin=angles.sin(), pairing="half")
            if ours
            else definition(x, angles.cos(), angles.sin(), "half", "halves", 8)
        )
        return torch.autograd.grad(y, f, dy.to(y.dtype))[0]

    torch.testing.assert_close(gradient(F32, True).to(F64), gradient(F64, False), rtol=1e-5, atol=1e-4)
    cos, sin = torch.rand(2, 6, 4, device=device)
    for learned in (cos, sin):
        learned.requires_grad_()
        (grad,) = torch.autograd.grad(st.rope(x, cos=cos, sin=sin), learned, dy)
        want = definition(x, cos, sin, "interleaved", "halves", 8)
        near(grad, torch.autograd.grad(want, learned, dy.to(F64))[0].to(F64))
        learned.requires_grad_(False)


def test_learned_tables_keep_their_rows_outside(device: str) -> None:
    """Rows that no token has get zeros. On a GPU a position outside the tables rotates nothing and has no gradient."""
    x, cos, sin = normal(1, 2, 3, 4, device=device), *(normal(6, 2, device=device).requires_grad_() for _ in range(2))
    positions = torch.tensor([5, 2, 5], device=device)
    dcos, dsin = torch.autograd.grad(st.rope(x, positions, cos=cos, sin=sin).square().sum(), (cos, sin))
    for grad in (dcos, dsin):
        assert (grad[[0, 1, 3, 4]] == 0).all()
        assert (grad[[2, 5]] != 0).all()
    if device != "cpu":
        positions[1] = 6
        outside = torch.autograd.grad(st.rope(x, positions, cos=cos, sin=sin).square().sum(), (cos, sin))
        assert all((grad[[0, 1, 2, 3, 4]] == 0).all() for grad in outside)


def test_constant_tables_keep_nothing_of_x(device: str) -> None:
    """What learned tables need is not paid for constant ones, nor where no gradient is recorded."""
    x = normal(1, 2, 3, 4, device=device).requires_grad_()
    cos, sin = torch.ones(2, 3, 4, dtype=F64, device=device)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        st.rope(x, cos=cos, sin=sin)
        assert sorted(t.shape for t in kept) == [cos.shape, sin.shape]
        with torch.no_grad():
            assert not st.rope(x, cos=cos.clone().requires_grad_(), sin=sin).requires_grad


def test_learned_tables_of_one_of_two(device: str) -> None:
    """Only q, or only k, goes into the loss."""
    q, k = (normal(1, h, 3, 8, device=device) for h in (4, 2))
    cos, sin = (normal(1, 3, 8, device=device).requires_grad_() for _ in range(2))
    for chosen, x in enumerate((q, k)):
        y = st.apply_rotary_pos_emb(q, k, cos, sin)[chosen]
        want = definition(x, cos[:, None], sin[:, None], "half", "halves", 8)
        for a, b in zip(*(torch.autograd.grad(z.square().sum(), (cos, sin)) for z in (y, want)), strict=True):
            near(a, b)


TRANSFORMED: dict[str, Any] = {
    "shared": (lambda x, c, s: st.rope(x, cos=c, sin=s, pairing="half"), (2, 3, 4, 8), (4, 8)),
    "positions": (
        lambda x, c, s: st.rope(x, torch.tensor([3, 1, 0, 1], device=x.device), cos=c, sin=s), (2, 3, 4, 8), (5, 4),
    ),
    "heads": (lambda x, c, s: st.rope(x, cos=c, sin=s, pairing="half"), (2, 3, 4, 8), (2, 3, 4, 4)),
    "columns": (lambda x, c, s: st.rope(x, cos=c, sin=s, columns="halves"), (2, 3, 4, 8), (4, 8)),
    "both": (
        lambda x, c, s: torch.cat(st.apply_rotary_pos_emb(x, x[:, :2], c, s, pairing="interleaved", rotary_dim=4), 1),
        (2, 3, 4, 8), (1, 4, 4),
    ),
    "vision": (lambda x, c, s: torch.cat(st.apply_rotary_pos_emb(x, x[:, :1], c, s, -2), 1), (4, 3, 8), (4, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_of_learned_tables(name: str, device: str) -> None:
    """torch.compile, torch.export, torch.func.vjp, vmap of grad: the gradients of x and of the tables."""
    function, shape, table = TRANSFORMED[name]
    inputs = tuple(normal(*s, device=device) for s in (shape, table, table))
    leaves = tuple(t.clone().requires_grad_() for t in inputs)
    y = function(*leaves)
    dy = torch.randn_like(y)
    want = torch.autograd.grad(y, leaves, dy)
    torch._dynamo.reset()
    module = type("Module", (torch.nn.Module,), {"forward": lambda self, *xs: function(*xs)})()
    for other in (torch.compile(function, fullgraph=True, backend="aot_eager"), torch.export.export(module, leaves).module()):
        torch.testing.assert_close(torch.autograd.grad(other(*leaves), leaves, dy), want)
    torch.testing.assert_close(torch.func.vjp(function, *inputs)[1](dy), want)
    stacked = tuple(torch.stack((t, 2 * t)) for t in inputs)
    found = torch.vmap(torch.func.grad(lambda *xs: (function(*xs) * dy).sum(), argnums=(0, 1, 2)))(*stacked)
    for i in range(2):
        one = tuple(t[i].clone().requires_grad_() for t in stacked)
        torch.testing.assert_close(tuple(t[i] for t in found), torch.autograd.grad(function(*one), one, dy))


# --- positions that are no integers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "thd"])
@pytest.mark.parametrize("form", ["S", "1S", "BS"])
def test_floating_positions(form: str, layout: str, dtype: torch.dtype, device: str) -> None:
    b = 1 if layout == "thd" else 2
    positions = torch.rand((4,) if form == "S" else (1, 4) if form == "1S" else (b, 4), dtype=F64, device=device) * 1000 - 300
    x = normal(b, 3, 4, 10, dtype=dtype, device=device)
    angles = (
        positions.expand(b, 4)[:, None, :, None]
        * torch.tensor([500.0 ** (-2 * k / 6) for k in range(3)], device=device).double()
    )
    given = x[0].transpose(0, 1) if layout == "thd" else heads_first(x, layout)
    y = st.rope(given, positions, base=500.0, pairing="half", rotary_dim=6, rotary_start=2, layout=layout)
    y = y.transpose(0, 1)[None] if layout == "thd" else heads_first(y, layout)
    rtol, atol = TOLERANCE[dtype] if dtype != F64 else (1e-9, 1e-4)  # the angles above are those of float32 frequencies
    want = definition(x, angles.cos(), angles.sin(), "half", "halves", 6, 2)
    torch.testing.assert_close(y.to(F64), want, rtol=max(rtol, 1e-4), atol=max(atol, 1e-4))


@pytest.mark.parametrize("angle", ["float64", "float32"])
def test_whole_numbers_in_floats(angle: str, dtype: torch.dtype, device: str) -> None:
    """The same as integers, within a rounding of the tables; far out too."""
    x, positions = normal(1, 2, 5, 64, dtype=dtype, device=device), torch.tensor([0, 3, 77, 2**20, 123457], device=device)
    ours, want = st.rope(x, positions.double(), angle=angle), st.rope(x, positions, angle=angle)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(ours, want, rtol=4 * eps, atol=8 * max(eps, 1e-9 if dtype == F64 else 0))


def test_learned_positions(device: str) -> None:
    x, positions = normal(1, 2, 3, 4, device=device).requires_grad_(), torch.rand(3, dtype=F64, device=device).requires_grad_()
    assert gradcheck(st.rope, (x, positions))
    assert gradgradcheck(st.rope, (x, positions))


@pytest.mark.parametrize(
    ("positions", "more", "operand"),
    [
        (torch.ones(3, dtype=torch.bool), {}, "positions"),
        (torch.ones(3) + 0j, {}, "positions"),
        (torch.ones(2), {}, "positions"),
        (torch.ones(1, 1, 3), {}, "positions"),
        (torch.ones(3), {"cos": torch.ones(3, 2), "sin": torch.ones(3, 2)}, "positions"),
        (torch.ones(3), {"base": -1.0}, "base"),
        (torch.ones(3), {"rotary_dim": 3}, "rotary_dim"),
        (torch.ones(3), {"layout": "sbhd"}, "layout"),
        (torch.ones(3), {"angle": "float16"}, "angle"),
    ],
)
def test_positions_that_are_refused(positions: Tensor, more: dict[str, Any], operand: str) -> None:
    with pytest.raises(sw.Error) as refused:
        st.rope(torch.ones(1, 2, 3, 4), positions, **more)
    assert (refused.value.op, refused.value.operand) == ("sternway.torch.rope", operand)


# --- errors of rope and rope_backward ---------------------------------------------------------------------------------

X = torch.ones(1, 2, 3, 4)
C = torch.ones(3, 2)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "complex": ({"cos": C + 0j, "sin": C + 0j}, "cos"),
    "a complex sine": ({"cos": C, "sin": C + 0j}, "sin"),
    "bools": ({"cos": C.bool(), "sin": C}, "cos"),
    "integers": ({"cos": C, "sin": C.int()}, "sin"),
    "cos alone": ({"cos": C}, "sin"),
    "sin alone": ({"sin": C}, "cos"),
    "two shapes": ({"cos": C, "sin": C[:, :1]}, "sin"),
    "few rows": ({"cos": C[:2], "sin": C[:2]}, "cos"),
    "another width": ({"cos": torch.ones(3, 3), "sin": torch.ones(3, 3)}, "cos"),
    "base": ({"base": "10000"}, "base"),
    "rotary_dim": ({"rotary_dim": 2.5}, "rotary_dim"),
    "rotary_start": ({"rotary_start": None}, "rotary_start"),
    "pairing": ({"pairing": None}, "pairing"),
    "layout": ({"layout": ["bhsd"]}, "layout"),
    "angle": ({"angle": 64}, "angle"),
}
WRONG_FORWARD: dict[str, tuple[dict[str, Any], str]] = {
    "tables of other heads": ({"cos": torch.ones(1, 5, 3, 2), "sin": torch.ones(1, 5, 3, 2)}, "cos"),
    "tables of other batches": ({"cos": torch.ones(3, 2, 3, 2), "sin": torch.ones(3, 2, 3, 2)}, "cos"),
    "tables of rank 5": ({"cos": torch.ones(1, 1, 1, 3, 2), "sin": torch.ones(1, 1, 1, 3, 2)}, "cos"),
    "a sine of another rank": ({"cos": torch.ones(1, 2, 3, 2), "sin": C}, "sin"),
    "columns": ({"columns": "pairs"}, "columns"),
}


@pytest.mark.parametrize("name", [*WRONG, *WRONG_FORWARD])
def test_rope_refuses(name: str) -> None:
    given, operand = {**WRONG, **WRONG_FORWARD}[name]
    with pytest.raises(sw.Error) as refused:
        st.rope(X, **given)
    assert (refused.value.op, refused.value.operand) == ("sternway.torch.rope", operand)
    assert "dy" not in str(refused.value)


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_rope_backward_refuses(name: str, library: str) -> None:
    given, operand = WRONG[name]
    if library == "numpy":
        given = {key: value.numpy() if isinstance(value, Tensor) else value for key, value in given.items()}
    with pytest.raises(sw.Error) as refused:
        sw.rope_backward(X if library == "torch" else X.numpy(), **given)
    assert (refused.value.op, refused.value.operand) == ("rope_backward", operand)


def test_a_complex_table_has_a_hint() -> None:
    table = C + 0j
    for call in (lambda: st.rope(X, cos=table, sin=table), lambda: sw.rope_backward(X, cos=table, sin=table)):
        refused = refusal(sw.InvalidProblemError, call)
        assert refused is not None
        assert "pass cos=cos.real and sin=cos.imag" in str(refused)


def test_options_of_numpy() -> None:
    """Scalars of NumPy are those of Python, in functions, drop-ins and under torch.compile."""
    numpys = {"base": np.float32(500.0), "rotary_dim": np.int64(2), "rotary_start": np.uint8(2)}
    pythons = {"base": 500.0, "rotary_dim": 2, "rotary_start": 2}
    assert torch.equal(st.rope(X, **numpys), st.rope(X, **pythons))
    assert torch.equal(sw.rope_backward(X, **numpys), sw.rope_backward(X, **pythons))
    q, t = torch.ones(1, 2, 3, 4), torch.ones(1, 3, 2)
    ours = st.apply_rotary_pos_emb(q, q, t, t, np.int64(1), rotary_dim=np.int64(4))
    assert torch.equal(ours[0], st.apply_rotary_pos_emb(q, q, t, t, rotary_dim=4)[0])


class Handing(torch.autograd.Function):
    """An identity whose backward hands on a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, grad: Tensor) -> Tensor:
        ctx.grad = grad
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return ctx.grad, None


@pytest.mark.parametrize("lazy", ["negated", "sparse", "without storage"])
def test_gradients_without_plain_memory(lazy: str, device: str) -> None:
    """The backward takes what autograd may hand it."""
    x, dy = (normal(1, 2, 3, 4, device=device) for _ in range(2))
    given, want = {
        "negated": (dy._neg_view(), -dy),
        "sparse": (dy.to_sparse(), dy),
        "without storage": (torch._efficientzerotensor(dy.shape, dtype=F64, device=device), torch.zeros_like(dy)),
    }[lazy]
    (found,) = torch.autograd.grad(Handing.apply(st.rope(x.requires_grad_()), given).sum(), x)
    torch.testing.assert_close(found, sw.rope_backward(want))
