"""sternway.torch: the forward and the arguments of torch, our backward."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import torch
from families import make
from families.dequantize import DEQUANTIZE
from families.fake_quantize import FAKE_QUANTIZE
from interpreter import python
from support import F16, F32, F64, check, gradcheck, gradgradcheck, refusal, summed, values_of
from torch.autograd.gradcheck import GradcheckError

import sternway as sw
import sternway.torch as st
from sternway._kinds import KINDS


def leaves_of(dtype: torch.dtype, device: str, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=F64).to(device, dtype).requires_grad_() for shape in shapes]


LERP_SHAPES = {
    "equal": ((4, 5), (4, 5), (4, 5)),
    "0-d weight": ((4, 5), (4, 5), ()),
    "columns": ((5,), (4, 5), (4, 1)),
    "outer product": ((4, 1), (5,), (3, 1, 1)),
    "all 0-d": ((), (), ()),
    "empty": ((0, 5), (5,), (1, 1)),
}


def test_import_calls_and_accelerate_import_no_slow_module() -> None:
    """They take longer to import than everything else in sternway.torch: a first call, or accelerate(), would wait for them."""
    python("""
        import doctest, sys, torch
        slow = {"torch._dynamo", "sympy"} - sys.modules.keys()  # that torch does not import
        import sternway.torch as st
        called = set()
        for name in st.__all__:
            for test in doctest.DocTestFinder(recurse=False).find(getattr(st, name), name):
                code = "".join(example.source for example in test.examples)
                if "optim" in code or "transformers" in code:
                    continue  # an optimizer of torch and transformers import torch._dynamo
                assert not doctest.DocTestRunner().run(test).failed, name
                assert not slow & sys.modules.keys(), (name, slow & sys.modules.keys())
                called.add(name)
        assert {"cumsum", "linear_recurrence", "selective_scan", "embedding_bag", "rope"} <= called, called
        x = torch.ones(3, requires_grad=True)
        st.linear_recurrence(x, x).sum().backward()
        with st.accelerate():
            torch.cumsum(x, 0).sum().backward()
        assert not slow & sys.modules.keys(), slow & sys.modules.keys()
    """)


# --- lerp -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", LERP_SHAPES.values(), ids=LERP_SHAPES.keys())
def test_lerp_is_torchs(shapes: Any, dtype: torch.dtype, device: str) -> None:
    """The value bit for bit; each gradient in its input's shape and dtype."""
    leaves = leaves_of(dtype, device, *shapes)
    y, want = st.lerp(*leaves), torch.lerp(*leaves)
    assert torch.equal(y, want)
    dy = torch.randn_like(y)
    ours, theirs = torch.autograd.grad(y, leaves, dy), torch.autograd.grad(want, leaves, dy)
    a, b, w, g = (t.detach().to(F64) for t in (*leaves, dy))
    for name, out, rival, leaf, terms in zip(
        ("a", "b", "weight"), ours, theirs, leaves, ((1 - w) * g, w * g, g * (b - a)), strict=True
    ):
        check(f"torch.lerp d{name}", out, summed(terms, leaf.shape, dtype), rival)


@pytest.mark.parametrize("weight", [0.3, 0, 1, -0.7, 2.5, float("inf")])
def test_lerp_with_a_number(weight: float, dtype: torch.dtype, device: str) -> None:
    a, b = leaves_of(dtype, device, (4, 1), (5,))
    y, want = st.lerp(a, b, weight), torch.lerp(a, b, weight)
    torch.testing.assert_close(y, want, rtol=0, atol=0, equal_nan=True)
    dy = torch.rand_like(y) + 0.5
    for out, rival in zip(torch.autograd.grad(y, (a, b), dy), torch.autograd.grad(want, (a, b), dy), strict=True):
        torch.testing.assert_close(out, rival, equal_nan=True)


def test_names_and_order_of_arguments() -> None:
    assert list(inspect.signature(st.lerp).parameters) == ["input", "end", "weight"]
    dequantize = inspect.signature(st.dequantize_per_token).parameters
    assert list(dequantize) == ["q", "scale", "zero_point", "dtype"]
    assert dequantize["zero_point"].default is None
    assert dequantize["dtype"].default is None
    fake = inspect.signature(st.fake_quantize_per_token).parameters
    rope = inspect.signature(st.rope).parameters
    assert list(rope)[:2] == ["x", "positions"]
    assert [p.default for p in rope.values()][1:] == [
        None, 10000.0, None, None, "interleaved", None, 0, "float64", "bhsd", None,
    ]  # fmt: skip
    assert list(inspect.signature(st.apply_rotary_pos_emb).parameters) == [
        "q", "k", "cos", "sin", "unsqueeze_dim", "pairing", "rotary_dim", "columns",
    ]  # fmt: skip
    assert list(fake) == ["x", "scale", "zero_point", "quant_min", "quant_max"]
    assert fake["quant_min"].kind is fake["quant_max"].kind is inspect.Parameter.KEYWORD_ONLY
    a, b = leaves_of(F32, "cpu", (3,), (3,))
    assert torch.equal(st.lerp(input=a, end=b, weight=0.3), torch.lerp(input=a, end=b, weight=0.3))


@pytest.mark.parametrize("shapes", LERP_SHAPES.values(), ids=LERP_SHAPES.keys())
def test_lerp_gradcheck(shapes: Any, device: str) -> None:
    leaves = leaves_of(F64, device, *shapes)
    assert gradcheck(st.lerp, leaves)
    assert gradgradcheck(st.lerp, leaves)
    assert gradcheck(lambda a, b: st.lerp(a, b, 0.3), leaves[:2])
    assert gradgradcheck(lambda a, b: st.lerp(a, b, 0.3), leaves[:2])


@pytest.mark.parametrize(
    "dtypes", [(F32, F64, F64), (F16, F32, F32), (torch.bfloat16, torch.bfloat16, F32), (F64, F64, F32)], ids=str
)
def test_lerp_promotes_like_torch(dtypes: Any, device: str) -> None:
    """What torch takes, we take, and the gradient has its input's dtype; what torch refuses, we refuse."""
    leaves = [
        t.detach().to(dtype).requires_grad_()
        for t, dtype in zip(leaves_of(F64, device, (4, 5), (5,), (4, 1)), dtypes, strict=True)
    ]
    if refusal(RuntimeError, lambda: torch.lerp(*leaves)):
        with pytest.raises((RuntimeError, ValueError, NotImplementedError)):
            st.lerp(*leaves)
        return
    y, want = st.lerp(*leaves), torch.lerp(*leaves)
    torch.testing.assert_close(y, want, rtol=0, atol=0)
    dy = torch.randn_like(y)
    for out, rival, leaf in zip(torch.autograd.grad(y, leaves, dy), torch.autograd.grad(want, leaves, dy), leaves, strict=True):
        assert out.dtype == leaf.dtype
        torch.testing.assert_close(out, rival)


@pytest.mark.parametrize("weight", [F16, F32, F64], ids=str)
def test_lerp_takes_a_weight_of_another_dtype(weight: torch.dtype, device: str) -> None:
    """Of rank 0, as torch does."""
    a, b = leaves_of(F32, device, (4, 5), (5,))
    w = torch.tensor(0.25, dtype=weight, device=device, requires_grad=True)
    for needed in (a, b), (a, b, w):
        ours, theirs = (torch.autograd.grad(f(a, b, w).sum(), needed) for f in (st.lerp, torch.lerp))
        for out, rival, leaf in zip(ours, theirs, needed, strict=True):
            assert out.dtype == leaf.dtype
            torch.testing.assert_close(out, rival)


WIDER = [(torch.bfloat16, F32), (F16, F32), (F32, F64), (torch.bfloat16, F64)]


@pytest.mark.parametrize(("dtype", "wide"), WIDER, ids=str)
@pytest.mark.parametrize("learned", [False, True])
def test_a_weight_of_a_wider_dtype_is_not_rounded(dtype: torch.dtype, wide: torch.dtype, learned: bool, device: str) -> None:
    """Alone finds 1 - weight formed of a weight that was rounded to the dtype of the ends: near 1, da is then 0."""
    number = 1 - 2.0**-12 if dtype != F32 else 1 - 2.0**-30

    def gradients(lerp: Any) -> list[torch.Tensor]:
        a, b = (torch.full((4,), x, dtype=dtype, device=device, requires_grad=True) for x in (1.0, 3.0))
        w = torch.tensor(number, dtype=wide, device=device, requires_grad=learned)
        y = lerp(a, b, w)
        return list(torch.autograd.grad(y, (a, b, w)[: 2 + learned], torch.ones_like(y)))

    ends = [torch.full((4,), x, dtype=dtype, device=device) for x in (1.0, 3.0)]
    w = torch.tensor(number, dtype=wide, device=device)
    by_transform = torch.func.grad(lambda a, b: st.lerp(a, b, w).float().sum(), (0, 1))(*ends)
    torch.compiler.reset()
    for found in (
        gradients(st.lerp),
        gradients(st.accelerate()(torch.lerp)),
        gradients(torch.compile(st.lerp, backend="aot_eager")),
        list(by_transform),
    ):
        want = [torch.full((4,), 1 - number, dtype=F64), torch.full((4,), number, dtype=F64), torch.tensor(8.0, dtype=F64)]
        for ours, exact, home in zip(found, want, (dtype, dtype, wide), strict=False):
            assert ours.dtype is home
            assert torch.equal(ours.cpu(), exact.to(home))


def test_the_fake_of_lerp_lays_out_as_it_does(device: str) -> None:
    dy = torch.randn(4, 3, device=device).T
    arguments = dy, None, None, None, 0b011, 0.3, [3, 4], [4]  # da and db
    torch.library.opcheck(torch.ops.sternway.lerp_backward.default, arguments)


def test_the_fake_of_dequantize_lays_out_as_it_does(device: str) -> None:
    scale, zero_point = (torch.rand(3, 2, device=device).T for _ in range(2))
    q = torch.ones(2, 3, 5, dtype=torch.int8, device=device)
    arguments = torch.randn(2, 3, 5, device=device), scale, q, zero_point
    torch.library.opcheck(torch.ops.sternway.dequantize_backward.default, arguments)


@pytest.mark.parametrize("needed", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 0, 0)], ids=str)
def test_lerp_computes_what_is_needed(needed: tuple[int, ...], device: str) -> None:
    leaves = [
        t.detach().requires_grad_(bool(want))
        for t, want in zip(leaves_of(F32, device, (4, 5), (5,), (4, 1)), needed, strict=True)
    ]
    y = st.lerp(*leaves)
    assert y.requires_grad == any(needed)
    if not any(needed):
        return
    y.sum().backward()
    copies = [t.detach().requires_grad_(t.requires_grad) for t in leaves]
    torch.lerp(*copies).sum().backward()
    for leaf, copy in zip(leaves, copies, strict=True):
        assert (leaf.grad is None) == (copy.grad is None)
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad, copy.grad)


@pytest.mark.gpu
def test_weight_on_the_cpu_with_data_on_the_gpu() -> None:
    """A 0-d weight may stay on the CPU; its gradient comes back there."""
    a, b = leaves_of(F32, "cuda:0", (4, 5), (4, 5))
    weight = torch.tensor(0.3, requires_grad=True)
    y = st.lerp(a, b, weight)
    y.sum().backward()
    assert weight.grad.device.type == "cpu"
    torch.testing.assert_close(weight.grad, (b - a).sum().detach().cpu())
    torch.testing.assert_close(a.grad, torch.full_like(a, 0.7))


# --- dequantize and fake quantize -------------------------------------------------------------------------------------


@pytest.mark.parametrize("trailing", [False, True])
@pytest.mark.parametrize("zero_point", [None, torch.int32, F32, F64], ids=str)
def test_dequantize(trailing: bool, zero_point: Any, dtype: torch.dtype, device: str) -> None:
    """(q - zero_point) * scale, and the sums as gradients."""
    problem = make(DEQUANTIZE, (6, 37), dtype, device, trailing=trailing, zero_point=zero_point)
    q, scale, z = (problem.inputs.get(name) for name in ("q", "scale", "zero_point"))
    leaves = [t.requires_grad_() for t in (scale, z) if t is not None and t.is_floating_point()]
    y = st.dequantize_per_token(q, scale, z)
    assert y.dtype == scale.dtype
    row = (6, 1)
    shift = 0 if z is None else z.detach().to(F64).reshape(row)
    torch.testing.assert_close(y.detach(), ((q.to(F64) - shift) * scale.detach().to(F64).reshape(row)).to(dtype))
    grads = torch.autograd.grad(y, leaves, problem.inputs["dy"])
    for name, out in zip(("dscale", "dzero_point"), grads, strict=False):
        check(f"torch.dequantize {name}", out, problem.truth[name])


@pytest.mark.parametrize("scale_dtype", [F32, F64], ids=str)
def test_dequantize_to_a_dtype(scale_dtype: torch.dtype, dtype: torch.dtype, device: str) -> None:
    """`dtype` is that of the result; the gradient of scale stays in scale's."""
    if scale_dtype not in (F32, dtype):
        scale_dtype = dtype
    q = torch.arange(-10, 10, dtype=torch.int8, device=device).reshape(4, 5)
    scale = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=scale_dtype, device=device, requires_grad=True)
    y = st.dequantize_per_token(q, scale, dtype=dtype)
    assert y.dtype == dtype
    y.sum().backward()
    assert scale.grad.dtype == scale_dtype
    assert torch.equal(scale.grad, q.sum(1).to(scale_dtype))


def test_dequantize_gradcheck(device: str) -> None:
    q = torch.randint(-128, 128, (3, 7), dtype=torch.int8, device=device)
    scale, z = leaves_of(F64, device, (3,), (3, 1))
    assert gradcheck(lambda s, z: st.dequantize_per_token(q, s, z), (scale, z))
    assert gradcheck(lambda s: st.dequantize_per_token(q, s), (scale,))
    double_backward("dequantize", lambda s, z: st.dequantize_per_token(q, s, z), (scale, z))


def double_backward(op: str, function: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    """Check the second derivative: right, or an error that names the op."""
    if refused := refusal(RuntimeError, lambda: gradgradcheck(function, inputs)):
        assert not isinstance(refused, GradcheckError), refused
        assert op in str(refused), refused


@pytest.mark.parametrize("zero_point", [None, torch.int32, F32], ids=str)
def test_fake_quantize(zero_point: Any, dtype: torch.dtype, device: str) -> None:
    problem = make(FAKE_QUANTIZE, (6, 37), dtype, device, zero_point=zero_point)
    x, scale, z = (problem.inputs.get(name) for name in ("x", "scale", "zero_point"))
    leaves = [t.requires_grad_() for t in (x, scale, z) if t is not None and t.is_floating_point()]
    y = st.fake_quantize_per_token(x, scale, z, quant_min=-8, quant_max=7)
    assert y.dtype == dtype
    s = scale.detach().to(F64)[:, None]
    shift = 0.0 if z is None else z.detach().to(F64).round().clamp(-8, 7)[:, None]
    q = ((x.detach().to(F64) / s).round() + shift).clamp(-8, 7)
    torch.testing.assert_close(y.detach(), ((q - shift) * s).to(dtype))
    grads = torch.autograd.grad(y, leaves, problem.inputs["dy"])
    for name, out in zip(("dx", "dscale", "dzero_point"), grads, strict=False):
        check(f"torch.fake_quantize {name}", out, problem.truth[name])


def test_fake_quantize_gradcheck_outside(device: str) -> None:
    """Clamped values are the part that has a derivative in the usual sense: 0 for x, the bound for scale."""
    x = torch.tensor([[30.0, -40.0, 50.0]], dtype=F64, device=device, requires_grad=True)
    scale = torch.tensor([1.5], dtype=F64, device=device, requires_grad=True)
    zero = torch.tensor([2], device=device)

    def f(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return st.fake_quantize_per_token(x, s, zero, quant_min=-8, quant_max=7)

    assert gradcheck(f, (x, scale))
    double_backward("fake_quantize", f, (x, scale))


# --- all of them ------------------------------------------------------------------------------------------------------


def calls(device: str) -> dict[str, Any]:
    """One call of each, as a function of its differentiable inputs, with those inputs."""
    a, b, w = leaves_of(F32, device, (6, 37), (6, 37), (37,))
    q = make(DEQUANTIZE, (6, 37), F32, device).inputs
    f = make(FAKE_QUANTIZE, (6, 37), F32, device).inputs
    positions = torch.tensor([3, 1, 4, 1, 5, 9], device=device)
    cos, sin = st.rope_tables({"head_dim": 38}, positions[None])
    indices, offsets = (torch.tensor(x, device=device) for x in ([3, 0, 9, 3, 3, 1], [0, 2, 2, 3]))
    packed: Any = {"cu_seqlens": torch.tensor([0, 2, 5], device=device)}
    small = leaves_of(F32, device, (3, 5))
    wide = torch.ones(1, device=device)  # the rates of a selective scan are float32 beside 16 bits
    return {
        "lerp": (st.lerp, (a, b, w)),
        "dequantize": (
            lambda s, z: st.dequantize_per_token(q["q"], s, z),
            (q["scale"].requires_grad_(), q["zero_point"].requires_grad_()),
        ),
        "fake_quantize": (
            lambda x, s, z: st.fake_quantize_per_token(x, s, z, quant_min=-8, quant_max=7),
            tuple(f[name].requires_grad_() for name in ("x", "scale", "zero_point")),
        ),
        "rope": (lambda x: st.rope(x[None, None], positions, pairing="half")[0, 0], (leaves_of(F32, device, (6, 38))[0],)),
        "apply_rotary_pos_emb": (
            lambda q, k: torch.cat(st.apply_rotary_pos_emb(q[None, None], k[None, None], cos, sin), -1)[0, 0],
            tuple(leaves_of(F32, device, (6, 38), (6, 38))),
        ),
        **{  # cumprod along the short dimension: torch differentiates it twice by a loop, which takes the compiler a minute
            kind: (lambda x, kind=kind, k=k: values_of(getattr(st, kind)(x, (k + 1) % 2, reverse=k % 4 > 1)), (a,))
            for k, kind in enumerate(KINDS)
        },
        "embedding_bag": (
            lambda weight, weights: st.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=weights),
            tuple(leaves_of(F32, device, (10, 7), (6,))),
        ),
        "embedding": (
            lambda weight: st.embedding(indices, weight),
            (leaves_of(F32, device, (10, 7))[0],),
        ),
        "linear_recurrence": (
            lambda a, b, state: st.linear_recurrence(a, b, initial_state=state, **packed),
            tuple(leaves_of(F32, device, (5,), (3, 5), (3, 2))),
        ),
        "selective_scan": (
            lambda u, delta, a, b, c, z: st.selective_scan(
                u[None], delta[None], a * wide, b[None], c[None], z=z[None], delta_softplus=True
            )[0],
            tuple(leaves_of(F32, device, (3, 5), (3, 5), (3, 2), (2, 5), (2, 5), (3, 5))),
        ),
        "packed_cumsum": (lambda x: st.cumsum(x, 1, exclusive=True, **packed), small),
        "packed_cumprod": (lambda x: st.cumprod(x, 1, exclusive=True, **packed), small),
        "packed_cummax": (lambda x: st.cummax(x, 1, **packed).values, small),
    }


READING_NONE = ("rope", "apply_rotary_pos_emb", "cumsum", "embedding", "packed_cumsum", "packed_cummax")
"""Their backward reads no differentiable input."""
SAVING = (
    *("lerp", "dequantize", "fake_quantize", "embedding_bag", "linear_recurrence", "selective_scan", "packed_cumprod"),
    *(kind.name for kind in KINDS.values() if kind.operands),
)
NAMES = (*SAVING, *READING_NONE)
OPERATORS = ("linear_recurrence", "selective_scan", "packed_cumsum", "packed_cumprod", "packed_cummax")
"""Operations that torch has none for, so that traces of torch.jit hold our operators, and cannot be saved."""


@pytest.mark.parametrize("name", NAMES)
def test_gradient_of_a_sum(name: str, device: str) -> None:
    """Dy is then expanded, all strides 0: the same gradient as from ones in memory."""
    function, inputs = calls(device)[name]
    y = function(*inputs)
    expanded = torch.autograd.grad(y.sum(), inputs, retain_graph=True)
    dense = torch.autograd.grad(y, inputs, torch.ones_like(y))
    assert all(torch.equal(a, b) for a, b in zip(expanded, dense, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_create_graph_keeps_the_gradient(name: str, device: str) -> None:
    """What is to be differentiated again has the bits that it has otherwise."""
    function, inputs = calls(device)[name]
    y = function(*inputs)
    dy = torch.randn_like(y)
    once, again = (torch.autograd.grad(y, inputs, dy, retain_graph=True, create_graph=create) for create in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_negated_gradient(name: str, device: str) -> None:
    """Autograd hands on lazily negated views, as of an imaginary part of a conjugate."""
    function, inputs = calls(device)[name]
    y = function(*inputs)
    dy = torch.randn_like(y)
    ours = torch.autograd.grad(y, inputs, dy._neg_view(), retain_graph=True)
    for a, b in zip(ours, torch.autograd.grad(y, inputs, -dy), strict=True):
        assert torch.equal(a, b)


NO_TENSORS = {
    "cumsum": lambda x: st.cumsum([1.0], 0),
    "cummax": lambda x: st.cummax(x.detach().numpy(), 0),
    "lerp": lambda x: st.lerp(x, 1.0, 0.5),
    "dequantize_per_token": lambda x: st.dequantize_per_token([1], x),
    "fake_quantize_per_token": lambda x: st.fake_quantize_per_token(x, None, quant_min=0, quant_max=3),
    "embedding_bag": lambda x: st.embedding_bag([[1]], x[None]),
    "embedding": lambda x: st.embedding([1], x[None]),
    "rope": lambda x: st.rope([x]),
    "apply_rotary_pos_emb": lambda x: st.apply_rotary_pos_emb(x, [x], x, x),
}


@pytest.mark.parametrize("name", NO_TENSORS)
def test_what_is_no_tensor(name: str) -> None:
    with pytest.raises(TypeError, match=rf"sternway\.torch\.{name}: \w+ must be a torch.Tensor, got \w+"):
        NO_TENSORS[name](torch.rand(3))


dequantized, INVALID, UNSUPPORTED = st.dequantize_per_token, sw.InvalidProblemError, sw.UnsupportedError


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda q, x, s: dequantized(x, s), UNSUPPORTED, "q must be int8, uint8, .* got float32"),
        (lambda q, x, s: dequantized(q, s[:1]), INVALID, r"scale must be of shape \[3\] or \[3, 1\], got \[1\]"),
        (lambda q, x, s: dequantized(q, s.expand(2, 3)), INVALID, r"scale must .* got \[2, 3\]"),
        (lambda q, x, s: dequantized(q, s.int()), UNSUPPORTED, "scale must be one of float32, .* got int32"),
        (lambda q, x, s: dequantized(q, s, s.short()), UNSUPPORTED, "zero_point must .* int64, got int16"),
        (lambda q, x, s: dequantized(q, s, s[:2]), INVALID, r"zero_point must be of shape .* got \[2\]"),
        (lambda q, x, s: dequantized(q, s, 3), TypeError, "zero_point must be a torch.Tensor, got int"),
        (lambda q, x, s: quantized(x, x, 0, 3), INVALID, r"scale must .* got \[3, 4\]"),
        (lambda q, x, s: quantized(x, s, 0.5, 3), INVALID, "quant_min must be an integer, got 0.5"),
        (lambda q, x, s: quantized(x, s, 5, 3), INVALID, "quant_min must be at most quant_max, got 5 and 3"),
    ],
)  # fmt: skip
def test_what_the_backward_cannot_do_is_refused_in_the_forward(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(torch.ones(3, 4, dtype=torch.int8), torch.rand(3, 4), torch.rand(3))


def quantized(x: torch.Tensor, scale: torch.Tensor, low: Any, high: int) -> torch.Tensor:
    return st.fake_quantize_per_token(x, scale, quant_min=low, quant_max=high)


def test_complex_numbers_stay_with_torch() -> None:
    a, b = (torch.randn(5, dtype=torch.complex64, requires_grad=True) for _ in range(2))
    ours, theirs = (torch.autograd.grad(f(a, b, 0.25).abs().sum(), (a, b)) for f in (st.lerp, torch.lerp))
    assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


def test_gradients_of_lerp_lie_as_its_inputs_do(device: str) -> None:
    """Whatever the layout of dy."""
    base = torch.randn(3, 4, 3, device=device)
    inputs = [t.requires_grad_() for t in (base[0].T, base[1].T.contiguous(), base[2].T)]
    y = st.lerp(*inputs)
    for dy in (torch.randn(3, 4, device=device), torch.randn(4, 3, device=device).T):
        got = torch.autograd.grad(y, inputs, dy, retain_graph=True)
        want = torch.autograd.grad(torch.lerp(*inputs), inputs, dy)
        assert [g.stride() for g in got] == [torch.empty_like(x).stride() for x in inputs]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


def test_fake_quantize_keeps_the_layout_of_x(device: str) -> None:
    x = torch.randn(4, 3, device=device).T.requires_grad_()
    y = st.fake_quantize_per_token(x, torch.ones(3, device=device), quant_min=-8, quant_max=7)
    (dx,) = torch.autograd.grad(y, x, torch.ones(3, 4, device=device))
    assert dx.stride() == x.stride()


@pytest.mark.parametrize("name", NAMES)
def test_transposed_gradient(name: str, device: str) -> None:
    function, inputs = calls(device)[name]
    y = function(*inputs)
    dy = torch.randn(y.shape[::-1], device=device).mT
    ours = torch.autograd.grad(y, inputs, dy, retain_graph=True)
    dense = torch.autograd.grad(y, inputs, dy.contiguous())
    for a, b in zip(ours, dense, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_backward_from_other_threads(name: str, device: str) -> None:
    function, inputs = calls(device)[name]
    want = torch.autograd.grad(function(*inputs).sum(), inputs)
    results: list[bool] = []

    def work() -> None:
        for _ in range(20):
            got = torch.autograd.grad(function(*inputs).sum(), inputs)
            results.append(all(torch.equal(a, b) for a, b in zip(got, want, strict=True)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    assert all(results)


@pytest.mark.parametrize("name", NAMES)
def test_accumulates_and_respects_no_grad(name: str, device: str) -> None:
    function, inputs = calls(device)[name]
    with torch.no_grad():
        assert not function(*inputs).requires_grad
    function(*inputs).sum().backward()
    first = [t.grad.clone() for t in inputs]
    function(*inputs).sum().backward()
    for leaf, once in zip(inputs, first, strict=True):
        assert torch.equal(leaf.grad, 2 * once)


@pytest.mark.parametrize("name", SAVING)
def test_changed_input_is_noticed(name: str, device: str) -> None:
    """An input that backward needs, overwritten in between, is an error and no wrong gradient."""
    function, inputs = calls(device)[name]
    y = function(*inputs)
    with torch.no_grad():
        for leaf in inputs:
            leaf.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


DESCRIPTOR = sw.ScanDescriptor("cumsum", (2, 3), "float32")
PLAN = sw.ScanPlan.select(DESCRIPTOR)
FUNCTIONS = {
    "cumsum": lambda x: sw.cumsum(x),
    "dequantize_per_token_backward": lambda x: sw.dequantize_per_token_backward(x, x[..., 0]),
    "Plan.select": lambda _: sw.ScanPlan.select(DESCRIPTOR),
    "Plan.run": lambda x: PLAN.run(x=x, y=x.clone()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fullgraph_names_the_way_out(name: str) -> None:
    """It alone finds an error of torch.compile about the inside of a function, which says nothing of the drop-ins."""
    with pytest.raises(Exception, match=r"sternway\.torch"):
        torch.compile(FUNCTIONS[name], fullgraph=True)(torch.ones(2, 3))


def test_functions_break_a_graph() -> None:
    """It alone finds a function that torch.compile cannot step over without fullgraph."""
    compiled = torch.compile(lambda x: sw.cumsum(2 * x) + 1, backend="eager")
    assert compiled(torch.ones(3)).tolist() == [3.0, 5.0, 7.0]
