"""RoPE: every convention of the field, positions far out, tables of every kind, the formulas that models use."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from conformance import Conformance
from families import make
from families.rope import ROPE, ROPE_FORWARD
from support import BF16, F16, F32, F64, FLOATS, check, gradcheck, gradgradcheck, name_of, refusal

import sternway as sw
import sternway.torch as st
from sternway._cases.rope import joined, members

PAIRINGS = ("interleaved", "half")
CONVENTIONS: dict[str, dict[str, Any]] = {
    "positions [S]": {"positions": "S"},
    "positions [B, S]": {"positions": "BS"},
    "float32 angle": {"angle": "float32", "positions": "BS", "furthest": 2**20},
    "another base": {"base": 500000.0, "positions": "S", "furthest": 10**6},
    "first part": {"rotary_dim": 16},
    "last part": {"rotary_dim": 16, "rotary_start": 18},
    "odd start": {"rotary_dim": 10, "rotary_start": 3},
    "nothing rotated": {"rotary_dim": 0},
    "half tables": {"table": "half"},
    "full tables, halves differ": {"table": "full", "positions": "S"},
    "tables of each batch": {"table": "Bhalf", "positions": "BS"},
    "full tables of each batch": {"table": "Bfull", "positions": "S", "rotary_dim": 24, "rotary_start": 4},
    "float64 tables": {"table": "full", "table_dtype": F64},
}


@pytest.fixture(params=PAIRINGS)
def pairing(request: pytest.FixtureRequest) -> str:
    return request.param


class TestRope(Conformance):
    family = ROPE
    reducing: ClassVar = {"positions": "S", "table": "full", "pairing": "interleaved"}

    @pytest.mark.parametrize("options", CONVENTIONS.values(), ids=CONVENTIONS.keys())
    def test_convention(self, options: dict[str, Any], pairing: str, dtype: torch.dtype, device: str) -> None:
        problem = make(ROPE, (2, 3, 5, 34), dtype, device, pairing=pairing, **options)
        problem.check(problem.run())
        problem.check(problem.call())

    @pytest.mark.parametrize("head_dim", [2, 6, 64, 72, 80, 96, 128, 256, 4096, 2**15 + 2])
    def test_head_dim(self, head_dim: int, pairing: str, dtype: torch.dtype, device: str) -> None:
        problem = make(ROPE, (2, 3, 5, head_dim), dtype, device, pairing=pairing, positions="S")
        problem.check(problem.run())

    @pytest.mark.parametrize("furthest", [10**3, 10**4, 10**5, 10**6, 2**20, 2**31])
    def test_far_positions(self, furthest: int, pairing: str, dtype: torch.dtype, device: str) -> None:
        problem = make(ROPE, (2, 3, 50, 128), dtype, device, pairing=pairing, positions="BS", furthest=furthest)
        problem.check(problem.run())

    @pytest.mark.parametrize("head_dim", [256, 1032])
    @pytest.mark.parametrize("base", [10000.0, 500000.0])
    def test_frequencies_of_wide_heads(self, base: float, head_dim: int, pairing: str, device: str) -> None:
        """Kernels make those of more than 64 pairs as products; far positions show an error of their last place."""
        problem = make(ROPE, (1, 2, 300, head_dim), F64, device, pairing=pairing, positions="S", furthest=2**20, base=base)
        problem.check(problem.run())

    @pytest.mark.parametrize("table", ["half", "full", "Bfull"])
    def test_tables_of_dys_dtype(self, table: str, pairing: str, dtype: torch.dtype, device: str) -> None:
        problem = make(ROPE, (2, 3, 5, 32), dtype, device, pairing=pairing, table=table, table_dtype=dtype)
        problem.check(problem.run())

    @pytest.mark.parametrize(("heads", "head_dim", "positions"), [(1, 128, ""), (3, 96, "S")])
    def test_few_rows_of_many_tokens(
        self, heads: int, head_dim: int, positions: str, pairing: str, dtype: torch.dtype, device: str
    ) -> None:
        """The bits of more rows, which share angles. GPUs have a kernel for few, where a thread goes through several tokens."""
        problem = make(ROPE, (1, heads, 20_011, head_dim), dtype, device, pairing=pairing, positions=positions, furthest=2**30)
        results = problem.run()
        problem.check(results, rival=False)
        more = sw.rope_backward(problem.inputs["dy"].repeat(1, 4, 1, 1), problem.inputs.get("positions"), pairing=pairing)
        assert torch.equal(more[:, :heads], results["dx"])

    @pytest.mark.parametrize("shape", [(64, 8, 1, 128), (1, 1, 999, 64), (1, 40, 1, 96), (3, 17, 70, 80)], ids=str)
    def test_shapes_of_models(self, shape: tuple[int, ...], pairing: str, dtype: torch.dtype, device: str) -> None:
        problem = make(ROPE, shape, dtype, device, pairing=pairing, positions="BS", furthest=4095)
        problem.check(problem.run(), rival=False)

    def test_seeds(self, dtype: torch.dtype, device: str) -> None:
        """The convention of the seeds: interleaved, BHSD, positions [S] in int64, outer axes with any strides."""
        dy = torch.randn(3, 40, 4, 64, dtype=F64).to(device, dtype)[:, ::2].permute(0, 2, 1, 3)
        positions = torch.arange(7, 27, device=device)
        dx = torch.empty(2 * 3, 4, 20, 70, dtype=dtype, device=device)[::2, :, :, 3:67]
        descriptor = sw.RopeBackwardDescriptor(3, 4, 20, 64, dtype, 10000.0)
        sw.RopeBackwardPlan.select(descriptor, device).run(dy=dy, positions=positions, dx=dx)
        check("rope seeds", dx.contiguous(), ROPE.truth(descriptor, {"dy": dy, "positions": positions})["dx"])

    @pytest.mark.parametrize("layout", ["bshd", "thd"])
    def test_layout(self, layout: str, pairing: str, dtype: torch.dtype, device: str) -> None:
        """The bits of bhsd, of a view; nothing is copied, so the result has its layout too."""
        shape = (3, 20, 4, 64) if layout == "bshd" else (20, 4, 64)
        dy = torch.randn(shape, dtype=F64).to(device, dtype)
        positions = torch.randint(0, 99, shape[:-2], device=device, dtype=torch.int32)
        dx = sw.rope_backward(dy, positions, pairing=pairing, layout=layout)
        four = dy if layout == "bshd" else dy[None]
        want = sw.rope_backward(four.transpose(1, 2), positions.reshape(-1, 20), pairing=pairing).transpose(1, 2)
        assert torch.equal(dx, want.reshape(shape))
        assert dx.stride() == dy.stride()

    def test_transposed_gradient_is_not_copied(self, dtype: torch.dtype, device: str) -> None:
        """The gradient of scaled_dot_product_attention is a view of [B, S, H, D]."""
        dy = torch.randn(2, 9, 4, 64, dtype=F64).to(device, dtype).transpose(1, 2)
        dx = sw.rope_backward(dy)
        assert dx.stride() == dy.stride()
        assert torch.equal(dx, sw.rope_backward(dy.contiguous()))

    def test_large_head(self, pairing: str, device: str) -> None:
        problem = make(ROPE, (1, 2, 2, 2**20), F32, device, pairing=pairing)
        problem.check(problem.run())
        with pytest.raises(sw.UnsupportedError, match="head_dim"):
            make(ROPE, (1, 1, 1, 2**20 + 2), F32, device).plan()

    def test_keys_and_queries_in_one_run(self, pairing: str, dtype: torch.dtype, device: str) -> None:
        """The bits of two runs."""
        q, k = (torch.randn(2, h, 5, 32, dtype=F64).to(device, dtype) for h in (6, 2))
        descriptor = sw.RopeBackwardDescriptor(2, 6, 5, 32, dtype, pairing=pairing, num_key_heads=2)
        dq, dk = torch.full_like(q, torch.nan), torch.full_like(k, torch.nan)
        sw.RopeBackwardPlan.select(descriptor, device).run(dy=q, dy_k=k, dx=dq, dx_k=dk)
        assert torch.equal(dq, sw.rope_backward(q, pairing=pairing))
        assert torch.equal(dk, sw.rope_backward(k, pairing=pairing))

    def test_zero_angle_is_the_identity(self, pairing: str, dtype: torch.dtype, device: str) -> None:
        dy = torch.randn(2, 3, 1, 64, dtype=F64).to(device, dtype)
        assert torch.equal(sw.rope_backward(dy, pairing=pairing), dy)

    def test_what_is_not_rotated_keeps_its_bits(self, dtype: torch.dtype, device: str) -> None:
        """NaN and infinity outside the rotated part stay there, and those inside spread no further than their pair."""
        dy = torch.ones(1, 1, 4, 16, dtype=dtype, device=device)
        dy[..., 0], dy[..., 5], dy[..., 15] = torch.nan, torch.inf, -torch.inf
        dx = sw.rope_backward(dy, rotary_dim=8, rotary_start=4)
        outside = [0, 1, 2, 3, 12, 13, 14, 15]
        torch.testing.assert_close(dx[..., outside], dy[..., outside], rtol=0, atol=0, equal_nan=True)
        assert dx[..., 6:12].isfinite().all()

    def test_position_outside_the_tables(self, dtype: torch.dtype, device: str) -> None:
        """Refused on the CPU; a copy of the token on a GPU."""
        dy = torch.randn(1, 2, 4, 16, dtype=F64).to(device, dtype)
        cos, sin = torch.randn(2, 5, 8, device=device)
        positions, dx = torch.tensor([0, 5, -1, 4], device=device), torch.full_like(dy, torch.nan)

        def run() -> Any:
            return sw.rope_backward(dy, positions, cos=cos, sin=sin, out=dx)

        if refused := refusal(sw.InvalidProblemError, run):
            assert device == "cpu"
            assert "positions[1] = 5" in str(refused)
            assert dx.isnan().all()
            return
        assert device != "cpu"
        assert torch.equal(dx[:, :, 1:3], dy[:, :, 1:3])
        assert torch.equal(dx[:, :, 3:], sw.rope_backward(dy[:, :, 3:], positions[3:], cos=cos, sin=sin))


class TestForward(Conformance):
    family = ROPE_FORWARD
    reducing: ClassVar = {"positions": "S", "table": "full", "pairing": "interleaved"}

    @pytest.mark.parametrize("options", CONVENTIONS.values(), ids=CONVENTIONS.keys())
    def test_convention(self, options: dict[str, Any], pairing: str, dtype: torch.dtype, device: str) -> None:
        problem = make(ROPE_FORWARD, (2, 3, 5, 34), dtype, device, pairing=pairing, **options)
        problem.check(problem.run())
        problem.check(problem.call())

    @pytest.mark.parametrize("options", CONVENTIONS.values(), ids=CONVENTIONS.keys())
    def test_the_backward_is_the_transpose(self, options: dict[str, Any], pairing: str, device: str) -> None:
        """<g, rope x> = <rope_backward g, x>, under every convention."""
        problem = make(ROPE_FORWARD, (2, 3, 5, 34), F64, device, pairing=pairing, **options)
        x, y = problem.main, problem.call()["y"]
        g = torch.randn_like(y)
        back = make(ROPE, (2, 3, 5, 34), F64, device, pairing=pairing, **options)
        back.inputs["dy"].copy_(g)
        back.inputs.update({name: t for name, t in problem.inputs.items() if name != "x"})
        torch.testing.assert_close((g * y).sum(), (back.call()["dx"] * x).sum())

    @pytest.mark.parametrize("head_dim", [2, 6, 64, 72, 80, 96, 128, 256, 4096])
    def test_head_dim(self, head_dim: int, pairing: str, dtype: torch.dtype, device: str) -> None:
        problem = make(ROPE_FORWARD, (2, 3, 5, head_dim), dtype, device, pairing=pairing, positions="S")
        problem.check(problem.run())

    @pytest.mark.parametrize("furthest", [10**4, 10**6, 2**31])
    def test_far_positions(self, furthest: int, pairing: str, dtype: torch.dtype, device: str) -> None:
        problem = make(ROPE_FORWARD, (2, 3, 50, 128), dtype, device, pairing=pairing, positions="BS", furthest=furthest)
        problem.check(problem.run())

    @pytest.mark.parametrize("table", ["half", "full", "Bfull"])
    def test_tables_of_the_dtype_of_x(self, table: str, pairing: str, dtype: torch.dtype, device: str) -> None:
        problem = make(ROPE_FORWARD, (2, 3, 5, 32), dtype, device, pairing=pairing, table=table, table_dtype=dtype)
        problem.check(problem.run())

    @pytest.mark.parametrize("heads", [1, 3])
    def test_few_rows_of_many_tokens(self, heads: int, pairing: str, dtype: torch.dtype, device: str) -> None:
        problem = make(ROPE_FORWARD, (1, heads, 20_011, 64), dtype, device, pairing=pairing, positions="S", furthest=2**30)
        problem.check(problem.run(), rival=False)

    @pytest.mark.parametrize("layout", ["bshd", "thd"])
    def test_layout(self, layout: str, pairing: str, dtype: torch.dtype, device: str) -> None:
        """The bits of bhsd, of a view, in the layout of x."""
        shape = (3, 20, 4, 64) if layout == "bshd" else (20, 4, 64)
        x = torch.randn(shape, dtype=F64).to(device, dtype)
        positions = torch.randint(0, 99, shape[:-2], device=device, dtype=torch.int32)
        y = sw.rope(x, positions, pairing=pairing, layout=layout)
        four = x if layout == "bshd" else x[None]
        want = sw.rope(four.transpose(1, 2), positions.reshape(-1, 20), pairing=pairing).transpose(1, 2)
        assert torch.equal(y, want.reshape(shape))
        assert y.stride() == x.stride()

    def test_keys_and_queries_in_one_run(self, pairing: str, dtype: torch.dtype, device: str) -> None:
        """The bits of two runs."""
        q, k = (torch.randn(2, h, 5, 32, dtype=F64).to(device, dtype) for h in (6, 2))
        y_q, y_k = torch.full_like(q, torch.nan), torch.full_like(k, torch.nan)
        descriptor = sw.RopeDescriptor(2, 6, 5, 32, dtype, pairing=pairing, num_key_heads=2)
        sw.RopePlan.select(descriptor, device).run(x=q, x_k=k, y=y_q, y_k=y_k)
        assert torch.equal(y_q, sw.rope(q, pairing=pairing))
        assert torch.equal(y_k, sw.rope(k, pairing=pairing))

    def test_the_drop_in_is_the_plan(self, pairing: str, dtype: torch.dtype, device: str) -> None:
        x = torch.randn(2, 3, 5, 32, dtype=F64).to(device, dtype)
        assert torch.equal(sw.rope(x, pairing=pairing), st.rope(x, pairing=pairing))

    def test_refusals_name_their_own_operands(self) -> None:
        x, cos = torch.ones(1, 2, 3, 8), torch.ones(3, 4)
        for wrong, operand in (
            ({"x": x[0]}, "x"),
            ({"x": x.int()}, "x"),
            ({"cos": cos}, "sin"),
            ({"cos": cos, "sin": cos[:2]}, "sin"),
            ({"cos": cos.cfloat(), "sin": cos}, "cos"),
            ({"positions": torch.ones(3)}, "positions"),
            ({"positions": torch.tensor([0, 1, 3]), "cos": cos, "sin": cos}, "positions"),
            ({"out": x[..., :4]}, "y"),
            ({"layout": "sbhd"}, "layout"),
            ({"base": "x"}, "base"),
        ):
            with pytest.raises(sw.Error) as caught:
                sw.rope(**{"x": x, **wrong})
            assert (caught.value.op, caught.value.operand) == ("rope", operand), caught.value
            assert "dy" not in str(caught.value)
            assert "dx" not in str(caught.value)


@pytest.mark.parametrize("call", [sw.rope, sw.rope_backward, st.rope], ids=["rope", "rope_backward", "st.rope"])
def test_a_rank_of_another_layout_names_it(call: Any) -> None:
    """It alone finds an error about a tensor without a batch that does not say which layout takes it."""
    for layout in ("bhsd", "bshd"):
        with pytest.raises(sw.InvalidProblemError, match='layout="thd" takes rank 3'):
            call(torch.ones(3, 2, 4), layout=layout)
    with pytest.raises(sw.InvalidProblemError, match='layout="bhsd" takes rank 4'):
        call(torch.ones(1, 3, 2, 4), layout="thd")


# --- The formulas of others --------------------------------------------------------------------------------------------


def transformers_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """What Llama, Mistral and Qwen compute: x cos + (-second half, first half) sin, full-width tables."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def flash_attention_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [B, S, H, D], tables [S, r/2], as flash-attention's reference; what is behind r stays."""
    r = 2 * cos.shape[-1]
    pairing = "interleaved" if interleaved else "half"
    i, j = members(x[..., :r], pairing)
    c, s = cos[:, None], sin[:, None]
    return torch.cat((joined(i * c - j * s, i * s + j * c, pairing), x[..., r:]), -1)


def test_transformers_formula(dtype: torch.dtype, device: str) -> None:
    x = torch.randn(2, 4, 9, 64, dtype=F64).to(device, dtype).requires_grad_()
    cos, sin = (t.to(dtype) for t in st.rope_tables({"head_dim": 64}, torch.arange(9, device=device)))
    dy = torch.randn_like(x)
    y, want = st.rope(x, cos=cos, sin=sin, pairing="half"), transformers_rope(*(t.to(F64) for t in (x, cos, sin)))
    torch.testing.assert_close(y, want.to(dtype))
    torch.testing.assert_close(torch.autograd.grad(y, x, dy), torch.autograd.grad(want, x, dy.to(F64)))


@pytest.mark.parametrize("interleaved", [False, True])
def test_flash_attention_formula(interleaved: bool, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(2, 9, 4, 64, dtype=F64).to(device, dtype).requires_grad_()
    cos, sin = torch.randn(2, 9, 24, dtype=F64).to(device, dtype)
    dy = torch.randn_like(x)
    how = {"pairing": "interleaved" if interleaved else "half", "rotary_dim": 48, "layout": "bshd"}
    y, want = st.rope(x, cos=cos, sin=sin, **how), flash_attention_rope(*(t.to(F64) for t in (x, cos, sin)), interleaved)
    torch.testing.assert_close(y, want.to(dtype))
    torch.testing.assert_close(torch.autograd.grad(y, x, dy), torch.autograd.grad(want, x, dy.to(F64)))


def test_the_backward_is_the_transpose(pairing: str, device: str) -> None:
    """<y, rope x> = <rope_backward y, x> with scaled tables whose halves differ: no rotation, but its transpose."""
    x, y = torch.randn(2, 1, 2, 7, 16, dtype=F64, device=device)
    cos, sin = torch.randn(2, 7, 16, dtype=F64, device=device)
    forward = st.rope(x, cos=cos, sin=sin, pairing=pairing)
    torch.testing.assert_close((y * forward).sum(), (sw.rope_backward(y, cos=cos, sin=sin, pairing=pairing) * x).sum())


@pytest.mark.parametrize("options", [{}, {"pairing": "half", "rotary_dim": 4, "rotary_start": 2}, {"layout": "bshd"}], ids=str)
def test_gradcheck(options: dict[str, Any], device: str) -> None:
    x = torch.randn(2, 3, 3, 8, dtype=F64, device=device, requires_grad=True)
    positions = torch.tensor([5, 0, 77], device=device)
    assert gradcheck(lambda t: st.rope(t, positions, **options), x)
    assert gradgradcheck(lambda t: st.rope(t, positions, **options), x)


def test_apply_gradcheck(device: str) -> None:
    q, k = (torch.randn(2, h, 3, 6, dtype=F64, device=device, requires_grad=True) for h in (4, 2))
    cos, sin = torch.randn(2, 2, 3, 6, dtype=F64, device=device)
    assert gradcheck(lambda q, k: st.apply_rotary_pos_emb(q, k, cos, sin), (q, k))
    assert gradgradcheck(lambda q, k: st.apply_rotary_pos_emb(q, k, cos, sin), (q, k))


@pytest.mark.parametrize(
    ("call", "op", "operand", "wanted"),
    [
        (lambda x: st.rope(x[0]), "rope", "x", "of rank 4"),
        (lambda x: st.rope(x, torch.arange(3)), "rope", "positions", "of shape [2] or [1, 2]"),
        (lambda x: st.rope(x.int()), "rope", "x", "float32"),
        (lambda x: st.apply_rotary_pos_emb(x[0, 0], x, x[0], x[0]), "apply_rotary_pos_emb", "q", "of rank 3 or 4"),
        (lambda x: st.apply_rotary_pos_emb(x[0], x, x[0], x[0]), "apply_rotary_pos_emb", "k", "of rank 3 like q"),
        (lambda x: st.apply_rotary_pos_emb(x, x[:, :, 1:], x[0], x[0]), "apply_rotary_pos_emb", "k", "of shape"),
    ],
)
def test_refusals_name_what_the_forward_was_given(call: Any, op: str, operand: str, wanted: str) -> None:
    with pytest.raises(sw.Error) as refused:
        call(torch.ones(1, 1, 2, 4))
    error = refused.value
    assert (error.op, error.operand) == (f"sternway.torch.{op}", operand)
    assert str(error).startswith(f"{error.op}: {operand} must be {wanted}")


def test_one_of_two_gradients(device: str) -> None:
    """Only q, or only k, goes into the loss."""
    q, k = (torch.randn(1, h, 3, 8, device=device, requires_grad=True) for h in (4, 2))
    cos, sin = st.rope_tables({"head_dim": 8}, torch.arange(3, device=device)[None])
    for chosen, leaf in enumerate((q, k)):
        y = st.apply_rotary_pos_emb(q, k, cos, sin)[chosen]
        (grad,) = torch.autograd.grad(y.square().sum(), leaf)
        torch.testing.assert_close(grad, 2 * leaf, rtol=1e-4, atol=1e-5)


# --- transformers itself -----------------------------------------------------------------------------------------------


def test_llama_with_our_rotation(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Transformers' Llama with grouped queries: the same loss and gradients with apply_rotary_pos_emb swapped."""
    pytest.importorskip("transformers", reason="transformers is not installed: its Llama cannot be run")
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    model = LlamaForCausalLM(config).to(device)
    tokens = torch.randint(0, 64, (2, 33), device=device)
    grads = []
    for swapped in (False, True):
        if swapped:
            monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", st.apply_rotary_pos_emb)
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        grads.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for theirs, ours in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtypes", [(F16, BF16), (F32, F16), (BF16, F32), (F64, F32)], ids=str)
def test_tables_of_another_dtype(dtypes: tuple[torch.dtype, ...], device: str) -> None:
    """As under autocast: the result keeps x's dtype."""
    x = torch.randn(1, 2, 3, 8, device=device).to(dtypes[0])
    cos, sin = (t.to(dtypes[1]) for t in st.rope_tables({"head_dim": 8}, torch.arange(3, device=device)))
    y = st.rope(x, cos=cos, sin=sin, pairing="half")
    assert y.dtype == dtypes[0]
    wide = transformers_rope(x.double(), cos.double(), sin.double())
    torch.testing.assert_close(y, wide.to(dtypes[0]))


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_gradient_has_the_layout_of_x(dtype: torch.dtype, device: str) -> None:
    x = torch.randn(2, 5, 3, 8, device=device).to(dtype).transpose(1, 2).requires_grad_()
    y = st.rope(x)
    assert y.stride() == x.stride()
    (dx,) = torch.autograd.grad(y, x, torch.ones(y.shape, dtype=dtype, device=device))
    assert dx.stride() == x.stride()
