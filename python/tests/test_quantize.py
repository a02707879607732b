"""dequantize and fake quantize by blocks of every shape: plans, functions and drop-ins; test_dequantize.py and
test_fake_quantize.py have the numbers of each element, which tokens share with blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import ml_dtypes
import pytest
import torch
from conformance import Conformance
from families import Family, Problem, make
from families.dequantize import (
    DEQUANTIZE_BLOCKS,
    DEQUANTIZE_BLOCKS_FORWARD,
    DEQUANTIZE_FLOAT8,
    DEQUANTIZE_INT4,
    FLOAT8,
    PACKED,
    QDTYPES,
    stated,
    unpacked,
)
from families.fake_quantize import FAKE_QUANTIZE_BLOCKS, FAKE_QUANTIZE_BLOCKS_FORWARD
from support import BF16, F16, F32, F64, FLOATS, arrange, bits, check, gradcheck, one_sentence, pairwise

import sternway as sw
import sternway.torch as st

BOUNDS: dict[str, Any] = {"quant_min": -8, "quant_max": 7}
SHAPES = (
    *(((6, 8, 12), scale) for scale in (
        (), (1, 1, 1), (6, 8, 1), (6, 1, 12), (1, 1, 12), (6, 1, 1), (6, 8, 3), (3, 4, 12), (1, 4, 3), (2, 2, 2), (6, 8, 12),
    )),
    ((5, 96), (5, 3)), ((5, 96), (1, 96)), ((48, 64), (3, 2)), ((7,), (7,)), ((12,), (4,)), ((), ()),
    ((0, 4), ()), ((0, 4), (1, 4)), ((0, 4), (0, 2)), ((4, 0), (2, 5)),
)  # fmt: skip
"""Shapes of x and of a scale for its blocks. 0 divides 0, and everything divides it."""
ZERO_POINTS = (None, torch.int8, F32)
EVEN_SHAPES = (((6, 8, 12), (6, 8, 4)), *(shapes for shapes in SHAPES if shapes[0] and shapes[0][-1] % 2 == 0))
"""Those whose rows fill bytes of two values. A block of three values begins inside a byte."""


def named(value: Any) -> str:
    """The text of a parameter."""
    return getattr(value, "name", str(value))


class Blocks:
    """Tests of blocks of every shape."""

    family: ClassVar[Family]

    @pytest.mark.parametrize(
        ("shapes", "element", "scale_dtype", "zero_point", "layout"),
        pairwise(SHAPES, FLOATS, (None, F32), ZERO_POINTS, ("contiguous", "transposed", "stepped", "expanded")),
        ids=str,
    )
    def test_blocks(
        self,
        shapes: tuple[tuple[int, ...], tuple[int, ...]],
        element: torch.dtype,
        scale_dtype: torch.dtype | None,
        zero_point: torch.dtype | None,
        layout: str,
        device: str,
    ) -> None:
        """A number that is read for, or a sum that is added to, the wrong block, in some layout of all operands."""
        options = {"scale_shape": shapes[1], "scale_dtype": scale_dtype, "zero_point": zero_point}
        problem = make(self.family, shapes[0], element, device, layouts=layout, **options)
        written = "contiguous" if layout == "expanded" else layout
        planned = problem.run(layout=written)
        problem.check(planned)
        for name, result in problem.call().items():
            assert torch.equal(bits(result.contiguous()), bits(planned[name])), name

    def test_the_grid_of_large_tensors(self, dtype: torch.dtype, device: str) -> None:
        """A part of a block that none of several tasks or CTAs adds to its sum, or two of them."""
        for shape, scale_shape in (((96, 4096), (3, 32)), ((4096, 96), (1, 96)), ((512, 512), ()), ((64, 3, 1024), (64, 1, 8))):
            problem = make(self.family, shape, dtype, device, scale_shape=scale_shape)
            problem.check(problem.run())


class TestDequantize(Blocks, Conformance):
    family = DEQUANTIZE_BLOCKS
    reducing: ClassVar[dict[str, Any]] = {"granularity": "tensor"}


class TestFakeQuantize(Blocks, Conformance):
    family = FAKE_QUANTIZE_BLOCKS
    reducing: ClassVar[dict[str, Any]] = {"granularity": "tensor"}


class TestDequantizeForward(Blocks):
    """The tokens' forward, whose kernels these are, has all tests of a family."""

    family = DEQUANTIZE_BLOCKS_FORWARD
    test_random = Conformance.test_random


class TestFakeQuantizeForward(Blocks):
    family = FAKE_QUANTIZE_BLOCKS_FORWARD
    test_in_place = Conformance.test_in_place
    test_random = Conformance.test_random


@pytest.mark.parametrize(
    ("element", "shapes", "qdtype", "family", "zero_point", "layout"),
    pairwise(
        FLOATS, EVEN_SHAPES, (*FLOAT8, *PACKED), (DEQUANTIZE_BLOCKS, DEQUANTIZE_BLOCKS_FORWARD), (*ZERO_POINTS, torch.uint8),
        ("contiguous", "offset", "pitched", "transposed"),
    ),
    ids=named,
)  # fmt: skip
def test_dtypes_of_q(
    element: torch.dtype, shapes: Any, qdtype: Any, family: Family, zero_point: torch.dtype | None, layout: str, device: str
) -> None:
    """A value read from the other half of its byte, or from a byte of another row, or a float that is decoded as another."""
    options = {"scale_shape": shapes[1], "qdtype": qdtype, "zero_point": zero_point}
    problem = make(family, shapes[0], element, device, layouts={"q": layout}, **options)
    found = problem.call()  # which copies bytes that are not adjacent
    problem.check(found)
    q = problem.inputs["q"]
    if qdtype in PACKED and q.shape[-1] > 1 and q.stride(-1) != 1:
        with pytest.raises(UNSUPPORTED, match=f"q must be of stride 1 along the last dimension for {qdtype}"):
            problem.run()
        return
    for name, result in problem.run().items():
        assert torch.equal(bits(result), bits(found[name].contiguous())), name


@pytest.mark.parametrize("qdtype", [*QDTYPES, *PACKED], ids=str)
def test_every_code(qdtype: Any, dtype: torch.dtype, device: str) -> None:
    """One byte of 256 that is decoded wrongly, forward or backward; random numbers meet no NaN and few subnormals."""
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(16, 16)
    q, packed = (codes, {"qdtype": qdtype}) if qdtype in PACKED else (codes.view(qdtype), {})
    values = unpacked(q, str(qdtype)).to(F64)
    zero_point = torch.full((16, 1), 2, dtype=torch.int32, device=device)
    y = sw.dequantize(q, torch.full((16, 1), 0.5, dtype=dtype, device=device), zero_point, **packed)
    torch.testing.assert_close(y, ((values - 2) / 2).to(dtype), rtol=0, atol=0, equal_nan=True)
    ones = torch.ones_like(values, dtype=dtype)
    _, dscale = sw.dequantize_backward(ones, ones, q=q, **packed)  # a block for each value
    torch.testing.assert_close(dscale, values.to(dtype), rtol=0, atol=0, equal_nan=True)
    if dtype == F32 and device == "cpu":
        array = codes.numpy().view(getattr(ml_dtypes, str(qdtype).removeprefix("torch."))) if qdtype in FLOAT8 else q.numpy()
        from_numpy = sw.dequantize(array, torch.full((16, 1), 0.5).numpy(), zero_point.numpy(), **packed)
        torch.testing.assert_close(torch.from_numpy(from_numpy), y, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("family", "shape", "scale_shape"),
    [
        *((family, *shapes) for family in (DEQUANTIZE_BLOCKS, FAKE_QUANTIZE_BLOCKS) for shapes in SHAPES),
        *((DEQUANTIZE_INT4, *shapes) for shapes in EVEN_SHAPES),
    ],
    ids=named,
)
def test_gradients_are_those_of_autograd(
    family: Family, shape: tuple[int, ...], scale_shape: tuple[int, ...], device: str
) -> None:
    """A mistake in the formulas themselves: torch differentiates the straight-through definition in float64."""
    problem = make(family, shape, F64, device, scale_shape=scale_shape, zero_point=F64)
    theirs = family.torch(problem.descriptor, problem.inputs)
    for name, out in problem.run().items():
        torch.testing.assert_close(out, theirs[name], rtol=1e-12, atol=1e-12)


# --- Drop-ins -----------------------------------------------------------------------------------------------------------


def floating(problem: Problem) -> list[str]:
    """The inputs of a drop-in that have gradients, in the order of these."""
    return [n for n in ("x", "scale", "zero_point") if n in problem.inputs and problem.inputs[n].is_floating_point()]


def leaves_of(problem: Problem) -> dict[str, torch.Tensor]:
    """These inputs as leaves, by the name of the gradient."""
    return {f"d{name}": problem.inputs[name].detach().requires_grad_() for name in floating(problem)}


def drop_in(problem: Problem, *given: torch.Tensor) -> torch.Tensor:
    """The drop-in of a problem. given: in the place of the leaves, in order."""
    inputs = {**problem.inputs, **dict(zip(floating(problem), given, strict=True))}
    scale, zero_point = inputs["scale"], inputs.get("zero_point")
    if "q" in inputs:
        return st.dequantize(inputs["q"], scale, zero_point, problem.main.dtype, **stated(problem.descriptor))
    return st.fake_quantize(inputs["x"], scale, zero_point, **BOUNDS)


def by_function(problem: Problem) -> torch.Tensor:
    """The result of a drop-in by the function of sternway."""
    inputs = problem.inputs
    if "q" in inputs:
        options = stated(problem.descriptor)
        return sw.dequantize(inputs["q"], inputs["scale"], inputs.get("zero_point"), problem.main.dtype, **options)
    return sw.fake_quantize(inputs["x"], inputs["scale"], inputs.get("zero_point"), **BOUNDS)


def gradients(problem: Problem, function: Callable[..., torch.Tensor] | None = None) -> tuple[torch.Tensor, ...]:
    """The result of a drop-in and its gradients of the inputs. function: of the leaves; None: the drop-in itself."""
    leaves = tuple(leaves_of(problem).values())
    y = drop_in(problem, *leaves) if function is None else function(*leaves)
    return y, *torch.autograd.grad(y, leaves, problem.main)


FAMILIES = (DEQUANTIZE_BLOCKS, FAKE_QUANTIZE_BLOCKS)
BOTH = pytest.mark.parametrize("family", FAMILIES, ids=named)
EACH = pytest.mark.parametrize("family", [*FAMILIES, DEQUANTIZE_INT4, DEQUANTIZE_FLOAT8], ids=named)
SOME = ((), (1, 1, 12), (6, 8, 3), (2, 2, 2), (6, 8, 1))  # scales of a tensor of shape (6, 8, 12)


@pytest.mark.parametrize(
    ("shapes", "family", "dtype", "scale_dtype", "zero_point", "layout"),
    [
        *pairwise(SHAPES, FAMILIES, FLOATS, (None, F32, F64), ZERO_POINTS, ("contiguous", "transposed", "stepped")),
        *pairwise(EVEN_SHAPES, (DEQUANTIZE_INT4,), FLOATS, (F64,), (F32,), ("contiguous", "transposed", "stepped")),
    ],
    ids=named,
)
def test_drop_ins(
    shapes: Any,
    family: Family,
    dtype: torch.dtype,
    scale_dtype: torch.dtype | None,
    zero_point: torch.dtype | None,
    layout: str,
    device: str,
) -> None:
    """A drop-in that takes another plan than its operands need, or loses the shape or dtype of a gradient."""
    options = {"scale_shape": shapes[1], "zero_point": zero_point, "layouts": layout}
    read = None if scale_dtype == F64 else scale_dtype  # a scale in float64 beside another dtype is read in float32 or wider
    problem = make(family, shapes[0], dtype, device, scale_dtype=read, **options)
    if scale_dtype == F64 and dtype != F64:
        problem.inputs["scale"] = problem.inputs["scale"].to(F64)
    y, *grads = gradients(problem)
    assert y.dtype == dtype
    for (name, leaf), grad in zip(leaves_of(problem).items(), grads, strict=True):
        assert (grad.shape, grad.dtype) == (leaf.shape, leaf.dtype)
        check(f"torch.{family.name} {name}", grad.to(problem.truth[name].dtype), problem.truth[name])
    if scale_dtype != F64:
        want = by_function(problem)
        assert torch.equal(y.detach(), want)
        assert y.stride() == want.stride()


@BOTH
def test_tokens_are_blocks(family: Family, dtype: torch.dtype, device: str) -> None:
    """Different bits for a scale [..., 1] and for the same scale of the per-token drop-ins, [...]."""
    problem = make(family, (6, 8, 130), dtype, device, scale_shape=(6, 8, 1))
    per_token = st.dequantize_per_token if "q" in problem.inputs else st.fake_quantize_per_token
    options = {"dtype": dtype} if "q" in problem.inputs else BOUNDS
    data = problem.inputs["q" if "q" in problem.inputs else "x"]

    def by_token(*leaves: torch.Tensor) -> torch.Tensor:
        *x, scale, zero_point = leaves
        return per_token(*(x or [data]), scale.squeeze(-1), zero_point.squeeze(-1), **options)

    for ours, theirs in zip(gradients(problem), gradients(problem, by_token), strict=True):
        assert torch.equal(ours, theirs)


@EACH
@pytest.mark.parametrize(("scale_shape", "dynamic"), [((), False), ((6, 8, 3), True), ((2, 2, 2), True)], ids=str)
def test_compiled(family: Family, scale_shape: tuple[int, ...], dynamic: bool, device: str) -> None:
    """A graph break, or a sum over blocks that a trace writes differently; also where extents are symbols."""
    problem = make(family, (6, 8, 12), F32, device, scale_shape=scale_shape)
    torch.compiler.reset()
    compiled = torch.compile(lambda *x: drop_in(problem, *x), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for ours, theirs in zip(gradients(problem, compiled), gradients(problem), strict=True):
        torch.testing.assert_close(ours, theirs)


@EACH
@pytest.mark.parametrize("scale_shape", SOME, ids=str)
def test_vmap(family: Family, scale_shape: tuple[int, ...], device: str) -> None:
    """A batch that becomes a part of the wrong dimension: of all operands, and of each with the others shared."""
    problems = [make(family, (6, 8, 12), F64, device, scale_shape=scale_shape, zero_point=F64, seed=k) for k in range(3)]
    first, dy = problems[0], problems[0].main

    def slopes(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.func.vjp(lambda *x: drop_in(first, *x), *leaves)[1](dy)

    rows = [tuple(problem.inputs[name] for name in floating(problem)) for problem in problems]
    places = [min(1, x.dim()) for x in rows[0]]  # of the batch
    for batched in [range(len(places)), *([k] for k in range(len(places)))]:
        given = [tuple(row[k] if k in batched else x for k, x in enumerate(rows[0])) for row in rows]
        stacked = [torch.stack([row[k] for row in given], d) if k in batched else given[0][k] for k, d in enumerate(places)]
        found = torch.func.vmap(slopes, tuple(d if k in batched else None for k, d in enumerate(places)))(*stacked)
        for got, *want in zip(found, *(slopes(*row) for row in given), strict=True):
            torch.testing.assert_close(got, torch.stack(want))


@pytest.mark.parametrize("scale_shape", SOME, ids=str)
def test_vmap_of_packed_values(scale_shape: tuple[int, ...], device: str) -> None:
    """A batch of bytes whose examples have the values of another, in the result or in a gradient."""
    problems = [make(DEQUANTIZE_INT4, (6, 8, 12), F64, device, scale_shape=scale_shape, seed=k) for k in range(3)]
    dy, leaves = problems[0].main, tuple(problems[0].inputs[name] for name in floating(problems[0]))

    def both(q: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, pull = torch.func.vjp(lambda *x: st.dequantize(q, *x, F64, qdtype="int4"), *leaves)
        return y, *pull(dy)

    bytes_of = [problem.inputs["q"] for problem in problems]
    for got, *want in zip(torch.func.vmap(both, 1)(torch.stack(bytes_of, 1)), *map(both, bytes_of), strict=True):
        torch.testing.assert_close(got, torch.stack(want))


@BOTH
def test_vmap_beyond_the_rank_of_plans(family: Family, device: str) -> None:
    """A batch of 5 dimensions, which are 8 to the kernels, as each divided one is two: it is done one by one."""
    problem = make(family, (2, 2, 6, 8, 12), F64, device, scale_shape=(2, 2, 2, 2, 2))
    leaves = tuple(x.detach() for x in leaves_of(problem).values())

    def slopes(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.func.vjp(lambda *x: drop_in(problem, *x), *leaves)[1](problem.main)

    batch = torch.func.vmap(slopes)(*(torch.stack([x, x]) for x in leaves))
    for got, want in zip(batch, slopes(*leaves), strict=True):
        torch.testing.assert_close(got, torch.stack([want, want]))


@EACH
@pytest.mark.parametrize("scale_shape", SOME, ids=str)
def test_double_backward(family: Family, scale_shape: tuple[int, ...], device: str) -> None:
    """A formula of the second derivative that adds up, or spreads, other blocks than the kernel."""
    problem = make(family, (6, 8, 12), F64, device, scale_shape=scale_shape, zero_point=F64)
    leaves = tuple(leaves_of(problem).values())
    y = drop_in(problem, *leaves)

    def first(dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(y, leaves, dy, create_graph=True)

    assert gradcheck(first, (problem.main.detach().requires_grad_(),))
    plain = gradients(problem)[1:]
    for ours, theirs in zip(first(problem.main.detach().requires_grad_()), plain, strict=True):
        assert torch.equal(ours, theirs)


def test_a_block_of_padding(dtype: torch.dtype, device: str) -> None:
    """NaN of a scale of 0 in a group of zeros, or of another group in which there is one."""
    x = torch.zeros(2, 6, dtype=dtype, device=device)
    x[0, 3:] = 1.0
    scale = torch.tensor([[0.0, 0.5], [0.0, 0.0]], dtype=dtype, device=device)
    leaves = x.requires_grad_(), scale.requires_grad_()
    y = st.fake_quantize(*leaves, **BOUNDS)
    assert torch.equal(y, x)
    dx, dscale = torch.autograd.grad(y, leaves, torch.ones_like(y))
    assert (dx == 1).all()
    assert not dscale.any()


def test_a_dtype_that_is_stated(device: str) -> None:
    """A ``qdtype`` that is ignored: it may state q's dtype, in any spelling, and no other."""
    q, scale = torch.ones(2, 4, dtype=torch.int8, device=device), torch.full((2, 2), 0.5, device=device)
    for same in ("int8", torch.int8):
        assert torch.equal(sw.dequantize(q, scale, qdtype=same), st.dequantize(q, scale, qdtype=same))
        assert len(sw.dequantize_backward(q.float(), scale, q=q, qdtype=same)) == 2
        assert sw.dequantize_backward(q.float(), scale, qdtype=same).shape == q.shape
    torch.compiler.reset()
    compiled = torch.compile(lambda q: st.dequantize(q, scale, qdtype="int8"), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), st.dequantize(q, scale))


@pytest.mark.parametrize("per_token", [False, True])
def test_floats_of_8_bits_have_no_gradient(per_token: bool, device: str) -> None:
    """A result that requires grad because q does, in some ways of calling, or a tangent of q that torch cannot multiply."""
    q, scale = torch.ones(2, 4, device=device).to(FLOAT8[0]).requires_grad_(), torch.ones(2, 1, device=device)
    function = st.dequantize_per_token if per_token else st.dequantize
    torch.compiler.reset()
    for call in (function, torch.compile(function, backend="aot_eager"), lambda q, s: torch.vmap(function)(q[None], s[None])):
        assert not call(q, scale).requires_grad

    def loss(scale: torch.Tensor) -> torch.Tensor:
        return function(q.detach(), scale).pow(3).sum()

    assert torch.equal(torch.func.hessian(loss)(scale).view(2, 2), 24 * torch.eye(2, device=device))


# --- Errors ---------------------------------------------------------------------------------------------------------------

X, Q = torch.ones(4, 6), torch.ones(4, 6, dtype=torch.int8)
INVALID, UNSUPPORTED = sw.InvalidProblemError, sw.UnsupportedError
SCALES = {
    "scale must be of extents that divide those of {x} ([4, 6]), got [4, 4]": (torch.ones(4, 4), None),
    "scale must be of extents that divide those of {x} ([4, 6]), got [8, 6]": (torch.ones(8, 6), None),
    "scale must be of extents that divide those of {x} ([4, 6]), got [0, 6]": (torch.ones(0, 6), None),
    "scale must be of rank 2, as {x}, or of rank 0, got [4]; scale[:, None] has a number for each row": (torch.ones(4), None),
    "scale must be of rank 2, as {x}, or of rank 0, got [1, 4, 6]": (torch.ones(1, 4, 6), None),
}


def functions(scale: torch.Tensor, zero_point: torch.Tensor | None, x: Any = X, q: Any = Q, **bounds: int) -> dict[str, Any]:
    """Each function of these operands by the name of its operation, with its name for x."""
    bounds = {**BOUNDS, **bounds}
    return {
        "fake_quantize x": lambda: sw.fake_quantize(x, scale, zero_point, **bounds),
        "fake_quantize_backward dy": lambda: sw.fake_quantize_backward(x, x, scale, zero_point, **bounds),
        "dequantize q": lambda: sw.dequantize(q, scale, zero_point),
        "dequantize_backward dy": lambda: sw.dequantize_backward(x, scale, q=q, zero_point=zero_point),
        "sternway.torch.fake_quantize x": lambda: st.fake_quantize(x, scale, zero_point, **bounds),
        "sternway.torch.dequantize q": lambda: st.dequantize(q, scale, zero_point),
    }


@pytest.mark.parametrize("text", SCALES)
def test_a_scale_of_another_shape(text: str, device: str) -> None:
    """A scale whose blocks would be rounded, or broadcast, in silence; the sentence is the same everywhere."""
    scale, zero_point = SCALES[text]
    for name, call in functions(scale.to(device), zero_point, X.to(device), Q.to(device)).items():
        op, x = name.split()
        with pytest.raises(INVALID) as caught:
            call()
        assert str(caught.value) == f"{op}: {text.format(x=x)}"
        one_sentence(caught.value, "scale", ())


def test_a_scale_of_another_shape_in_a_trace() -> None:
    """A refusal that comes only where a plan runs, so that a compiled or batched call computes with other blocks."""
    scale = torch.ones(4, 4)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: st.fake_quantize(x, scale, **BOUNDS), backend="aot_eager")
    batched = torch.func.vmap(lambda x: st.fake_quantize(x, scale, **BOUNDS))
    for call in (lambda: compiled(X), lambda: batched(X[None])):
        with pytest.raises(INVALID, match=r"scale must be of extents that divide those of x \(\[4, 6\]\), got \[4, 4\]"):
            call()


def test_a_zero_point_of_another_shape(device: str) -> None:
    """A zero point that would be broadcast, as those of tokens [...] and [..., 1] are read alike, and blocks are not."""
    scale = torch.ones(4, 3, device=device)
    for shape in ((4,), (4, 1), (4, 6), ()):
        for name, call in functions(scale, torch.ones(shape, device=device), X.to(device), Q.to(device)).items():
            op = name.split()[0]
            with pytest.raises(INVALID) as caught:
                call()
            assert str(caught.value).startswith(f"{op}: zero_point must be of shape [4, 3]"), caught.value
            assert str(caught.value).endswith(f"got {list(shape)}"), caught.value


ONE_OF = "must be one of float32, float64, float16, bfloat16"
ANY_OF = "must be float32, float64, float16 or bfloat16"
OF_TOKENS = "scale must be of shape [4] or [4, 1], got [4, 3]"
OF_8_BITS = "q must be int8, uint8, float8_e4m3fn or float8_e5m2, got"
OF_QDTYPE = "qdtype must be int8, uint8, float8_e4m3fn, float8_e5m2, int4 or uint4, got"
OF_BYTES = "qdtype must be uint8, the dtype of q, int4 or uint4, got"
BYTES = "q must be uint8, two values in a byte, for"
PAIRS = "two values in a byte"
VALUES = "the values of q"
U = torch.ones(4, 6, dtype=torch.uint8)
QDTYPE = "qdtype must be int8, the dtype of q, got"
INTEGERS = "int8, uint8, int32, int64"
ORDER = "quant_min must be at most quant_max"
OTHER = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: st.dequantize_per_token(Q, OTHER), INVALID, f"st.dequantize_per_token: {OF_TOKENS}"),
        (lambda: st.fake_quantize_per_token(X, OTHER, **BOUNDS), INVALID, f"st.fake_quantize_per_token: {OF_TOKENS}"),
        (lambda: sw.fake_quantize_per_token(X, OTHER, **BOUNDS), INVALID, f"fake_quantize_per_token: {OF_TOKENS}"),
        (lambda: st.fake_quantize(X.int(), X, **BOUNDS), UNSUPPORTED, f"st.fake_quantize: x {ONE_OF}, got int32"),
        (lambda: st.dequantize(X, X), UNSUPPORTED, f"st.dequantize: {OF_8_BITS} float32"),
        (lambda: sw.dequantize(X, X), UNSUPPORTED, f"dequantize: {OF_8_BITS} float32"),
        (lambda: sw.dequantize_backward(X, X, q=X), UNSUPPORTED, f"dequantize_backward: {OF_8_BITS} float32"),
        (lambda: sw.dequantize(Q, X, qdtype="int4"), INVALID, f"dequantize: {BYTES} int4, got int8"),
        (lambda: st.dequantize(Q, X, qdtype="uint4"), INVALID, f"st.dequantize: {BYTES} uint4, got int8"),
        *(
            (lambda name=name: st.dequantize(U, X, qdtype=name), INVALID, f"st.dequantize: {OF_BYTES} {name}")
            for name in ("int2", "fp8", "INT4")
        ),
        *(
            (call, UNSUPPORTED, f"{name}: q must be uint8, {PAIRS}, with qdtype='int4', got int4")
            for name, call in {
                "dequantize": lambda: sw.dequantize(Q.numpy().astype(ml_dtypes.int4), X.numpy()),
                "dequantize_backward": lambda: sw.dequantize_backward(X, X, q=Q.numpy().astype(ml_dtypes.int4)),
            }.items()
        ),
        (
            lambda: sw.dequantize(U[0, 0], X[0, 0], qdtype="int4"),
            INVALID,
            f"dequantize: q must be of rank 1 or more for int4, which has {PAIRS}, got rank 0",
        ),
        (
            lambda: st.dequantize(U[0, 0], X[0, 0], qdtype="int4"),
            INVALID,
            f"st.dequantize: q must be of rank 1 or more for int4, which has {PAIRS}, got rank 0",
        ),
        (
            lambda: sw.dequantize(U, torch.ones(4, 9), qdtype="int4"),
            INVALID,
            f"dequantize: scale must be of extents that divide those of {VALUES} ([4, 12]), got [4, 9]",
        ),
        (
            lambda: st.dequantize(U, torch.ones(4, 9), qdtype="int4"),
            INVALID,
            f"st.dequantize: scale must be of extents that divide those of {VALUES} ([4, 12]), got [4, 9]",
        ),
        (
            lambda: st.dequantize(U, torch.ones(12), qdtype="int4"),
            INVALID,
            f"st.dequantize: scale must be of rank 2, as {VALUES}, or of rank 0, got [12]",
        ),
        (
            lambda: sw.dequantize_backward(X, X, q=U, qdtype="int4"),
            INVALID,
            "dequantize_backward: q must be of shape [4, 3], got [4, 6]",
        ),
        (
            lambda: sw.dequantize_backward(torch.ones(2, 3), torch.ones(()), qdtype="int4"),
            INVALID,
            "dequantize_backward: dy must be with an even last extent for int4, which has two numbers in a byte, got [2, 3]",
        ),
        (
            lambda: st.dequantize(torch.empty(4, 6, dtype=torch.uint4), X),
            UNSUPPORTED,
            f"st.dequantize: q must be uint8, {PAIRS}, with qdtype='uint4', got uint4",
        ),
        (lambda: st.dequantize(Q, Q), UNSUPPORTED, f"st.dequantize: scale {ONE_OF}, got int8"),
        (lambda: st.dequantize(Q, X, X.short()), UNSUPPORTED, f"st.dequantize: zero_point {ONE_OF}, {INTEGERS}, got int16"),
        (lambda: sw.fake_quantize(X, X.double(), **BOUNDS), UNSUPPORTED, "fake_quantize: scale must be float32, got float64"),
        (
            lambda: sw.fake_quantize_backward(X, X, Q, **BOUNDS),
            UNSUPPORTED,
            f"fake_quantize_backward: scale {ANY_OF}, got int8",
        ),
        (lambda: sw.dequantize(Q, X, dtype="int8"), UNSUPPORTED, f"dequantize: dtype {ANY_OF}, got int8"),
        (lambda: st.dequantize(Q, X, dtype=torch.int8), UNSUPPORTED, f"st.dequantize: dtype {ONE_OF}, got int8"),
        (lambda: sw.dequantize(Q, X, qdtype="uint8"), INVALID, f"dequantize: {QDTYPE} uint8"),
        (lambda: st.dequantize(Q, X, qdtype=torch.uint8), INVALID, f"st.dequantize: {QDTYPE} uint8"),
        (lambda: sw.dequantize_backward(X, X, q=Q, qdtype="int4"), INVALID, f"dequantize_backward: {BYTES} int4, got int8"),
        (lambda: sw.dequantize_backward(X, X, qdtype="int16"), UNSUPPORTED, f"dequantize_backward: {OF_QDTYPE} int16"),
        (lambda: sw.fake_quantize(X, X, quant_min=3, quant_max=2), INVALID, f"fake_quantize: {ORDER} = 2, got 3"),
        (lambda: st.fake_quantize(X, X, quant_min=3, quant_max=2), INVALID, f"st.fake_quantize: {ORDER}, got 3 and 2"),
        (
            lambda: st.fake_quantize(X, 0.5, **BOUNDS),
            TypeError,
            "st.fake_quantize: scale must be a torch.Tensor, got float; torch.tensor(0.5) is one",
        ),
    ],
)
def test_wrong_operands(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    """An error of a general function that names the field of a descriptor, or another function."""
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).replace("sternway.torch.", "st.") == text


@pytest.mark.parametrize("zero_dtype", [torch.int8, F32])
def test_a_learned_scale_of_long_channels(zero_dtype: torch.dtype, device: str) -> None:
    """The gradient of a scale alone, beside zero points of channels that are read in place: the loops have no such pair."""
    q = torch.arange(-256, 256, device=device).view(4, 128).clamp(-128, 127).to(torch.int8)
    scale = torch.ones(1, 128, device=device, requires_grad=True)
    zero = torch.arange(128, device=device).to(zero_dtype).view(1, 128)
    y = st.dequantize(q, scale, zero)
    (dscale,) = torch.autograd.grad(y, scale, torch.ones_like(y))
    assert torch.equal(dscale, (q.float() - zero.float()).sum(0, keepdim=True))


def test_a_scale_for_each_element_of_a_tensor_of_many_dimensions(device: str) -> None:
    """To a plan a scale that is broadcast nowhere has one more dimension: a rank of 8 in vmap, and 7 of them outside."""
    x, scale = torch.randn(2, *[2] * 7, device=device), torch.rand(2, *[2] * 7, device=device) + 0.1
    call = functools.partial(st.fake_quantize, quant_min=-8, quant_max=7)
    together = torch.func.vmap(torch.func.grad(lambda x, s: call(x, s).sum(), argnums=1))(x, scale)
    alone = torch.stack([torch.func.grad(lambda s, x=x: call(x, s).sum())(s) for x, s in zip(x, scale, strict=True)])
    assert torch.equal(together, alone)
    rank_8 = torch.randn([1] * 7 + [4], device=device)
    assert call(rank_8, rank_8.abs() + 1).shape == rank_8.shape


def test_more_divided_dimensions_than_kernels_have() -> None:
    """A call that is refused in the backward, or in a trace by another sentence: 8 dimensions, of which one is divided."""
    x, scale = torch.ones([2] * 7 + [4]), torch.ones([1] * 7 + [2]).requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(lambda x: st.fake_quantize(x, scale, **BOUNDS), backend="aot_eager")
    eager = lambda: st.fake_quantize(x, scale, **BOUNDS)  # noqa: E731
    for call in (eager, lambda: compiled(x), lambda: torch.func.vmap(lambda x: st.fake_quantize(x, scale, **BOUNDS))(x[None])):
        with pytest.raises(UNSUPPORTED, match=r"sternway\.torch\.fake_quantize: scale must be .* 8 dimensions: .* got 9"):
            call()


def test_the_operators(device: str) -> None:
    """A layout or shape that the fakes of the operators do not promise."""
    x = arrange(torch.randn(4, 6, device=device), "transposed").requires_grad_()
    scale = torch.rand(2, 3, device=device).add(0.1).requires_grad_()
    q = Q.to(device)
    torch.library.opcheck(torch.ops.sternway.fake_quantize.default, (x, scale, None, -8, 7))
    torch.library.opcheck(torch.ops.sternway.fake_quantize_backward.default, (torch.ones_like(x), x, scale, scale, -8, 7))
    torch.library.opcheck(torch.ops.sternway.dequantize.default, (q, scale, scale, F16))
    torch.library.opcheck(torch.ops.sternway.dequantize_backward.default, (torch.ones_like(x), scale, q, None))
    rows = torch.ones(6, 2, dtype=torch.uint8, device=device).T
    torch.library.opcheck(torch.ops.sternway.dequantize.default, (rows, scale, scale, F16, "int4"))
    dy = torch.ones(2, 12, device=device)
    torch.library.opcheck(torch.ops.sternway.dequantize_backward.default, (dy, scale, rows, scale, "uint4"))


def test_sums_are_scaled_after_they_are_complete(device: str) -> None:
    """Finds terms that are scaled by themselves: they overflow, and their sum, which is 0, would be NaN."""
    dy = torch.zeros(2, 32, device=device)
    dy[:, 0], dy[:, 4] = 2, -2
    scale, zero_point = torch.full((2, 1), 3e38, device=device), torch.zeros(2, 1, device=device)
    q = torch.zeros(2, 32, dtype=torch.int8, device=device)
    _, _, dzero_point = sw.dequantize_backward(dy, scale, q=q, zero_point=zero_point)
    assert dzero_point.tolist() == [[0], [0]]


def test_reciprocal_of_a_negative_zero() -> None:
    """Finds the reciprocal of a scale of -0, whose sign would turn that of the level."""
    for shape in ((1, 1), (1, 2)):
        descriptor = sw.FakeQuantizeBackwardDescriptor((1, 2), "float32", -8, 7, shape, reciprocal=True)
        ones, dx, dscale = torch.ones(1, 2), torch.empty(1, 2), torch.empty(shape)
        plan = sw.FakeQuantizeBackwardPlan.select(descriptor)
        plan.run(dy=ones, x=ones, scale=torch.full(shape, -0.0), dx=dx, dscale=dscale)
        assert dscale.sum() == 14  # 7 for each, as for small positive scales


@pytest.mark.parametrize("dtype", [F32, F64, BF16])
def test_sums_of_groups_of_a_few_vectors(dtype: torch.dtype, device: str) -> None:
    """Finds a thread without a vector of its group that stores a sum, and one that reads the scale of another group."""
    torch.manual_seed(0)
    for vectors in range(1, 18):
        group = vectors * 16 // dtype.itemsize
        dy = torch.randn(7, 3 * group, device=device).to(dtype)
        q = torch.randint(-8, 8, dy.shape, dtype=torch.int8, device=device)
        scale, zero_point = (torch.rand(7, 3, device=device).to(dtype) + shift for shift in (0.5, 2))
        _, dscale, dzero_point = sw.dequantize_backward(dy, scale, q=q, zero_point=zero_point)
        wide, s, z = (t.double().unflatten(1, (3, -1)) for t in (dy, scale, zero_point))
        terms = wide * (q.double().unflatten(1, (3, -1)) - z)
        for got, want, size in ((dscale, terms, terms), (dzero_point, -s * wide, s * wide)):
            error = (got.double() - want.sum(-1)).abs() / size.abs().sum(-1)
            assert error.max() < 2 * torch.finfo(dtype).eps, (vectors, error)
