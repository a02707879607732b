"""Who does a call is decided before its forward: accelerate() leaves to torch what no plan can do, a drop-in refuses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import F32, F64, Subclass, is_ours, refusal, values_of

import sternway as sw
import sternway.torch as st
from sternway._kinds import EXTREMA, KINDS

bag = torch.nn.functional.embedding_bag
INDICES, OFFSETS = torch.tensor([1, 0, 3, 1]), torch.tensor([0, 2])

# Each an operation of torch and ours of that name, as functions of x [n, n, ...].
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{k: tuple(lambda x, home=home, k=k: getattr(home, k)(x, 0) for home in (torch, st)) for k in KINDS},
    "lerp": (lambda x: torch.lerp(x, x.detach() * 2, 0.25), lambda x: st.lerp(x, x.detach() * 2, 0.25)),
    "lerp with a tensor": tuple(lambda x, f=f: f(x, x.detach() * 2, x.detach() / 4) for f in (torch.lerp, st.lerp)),
}
NAMED = pytest.mark.parametrize("name", OPERATIONS)


def gradient(operation: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().clone().requires_grad_()
    y = values_of(operation(leaf))
    return torch.autograd.grad(y, leaf, torch.ones_like(y))[0]


def of_rank(rank: int) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, 2**rank).view([2] * rank)


STRANGE = {
    "rank 9": lambda: of_rank(9),
    "rank 12": lambda: of_rank(12),
    "complex": lambda: torch.complex(of_rank(2), of_rank(2)),
    "meta": lambda: of_rank(2).to("meta"),
    "a subclass": lambda: of_rank(2).as_subclass(Subclass),
}


@pytest.mark.parametrize("strange", STRANGE)
@NAMED
def test_accelerate_leaves_to_torch_what_no_plan_does(name: str, strange: str) -> None:
    """The result, its type and the gradient are torch's; what torch refuses stays refused as torch does it."""
    theirs, _ = OPERATIONS[name]
    x = STRANGE[strange]()

    def attempt() -> Any:
        leaf = x.detach().clone().requires_grad_()
        y = theirs(leaf)
        assert not is_ours(y)
        return type(y), values_of(y).detach(), torch.autograd.grad(values_of(y).abs().sum(), leaf)[0]

    refused = refusal((RuntimeError, TypeError), attempt)
    if refused:
        with st.accelerate(), pytest.raises(type(refused)):
            attempt()
        return
    want = attempt()
    with st.accelerate():
        got = attempt()
    assert got[0] is want[0]
    for ours, other in zip(got[1:], want[1:], strict=True):
        assert type(ours) is type(other)
        if strange == "meta":
            assert (ours.shape, ours.device) == (other.shape, other.device)
        else:
            torch.testing.assert_close(ours, other, rtol=0, atol=0, equal_nan=True)


REFUSED = {
    "rank 9": (lambda: of_rank(9), "rank 0 to 8, got rank 9"),
    "sparse": (lambda: of_rank(2).to_sparse(), "a strided tensor, got a torch.sparse_coo tensor"),
    "csr": (lambda: of_rank(2).to_sparse_csr(), "a strided tensor, got a torch.sparse_csr tensor"),
    "mkldnn": (lambda: of_rank(2).to_mkldnn(), "a strided tensor, got a torch._mkldnn tensor"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a strided tensor, got a nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "a strided tensor, got a nested tensor",
    ),
    "meta of rank 9": (lambda: of_rank(9).to("meta"), "rank 0 to 8, got rank 9"),
}


@pytest.mark.filterwarnings("ignore:.*prototype", "ignore:.*beta state")
@pytest.mark.parametrize("requires_grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("strange", REFUSED)
@pytest.mark.parametrize("name", [*KINDS, "lerp"])
def test_a_drop_in_refuses_it_in_the_forward(name: str, strange: str, requires_grad: bool) -> None:
    """In its own words, whether a gradient is asked for or not."""
    make, text = REFUSED[strange]
    x = make().detach().requires_grad_(requires_grad)
    with pytest.raises(sw.UnsupportedError, match=rf"^sternway\.torch\.{name}: ") as caught:
        st.lerp(x, x, 0.25) if name == "lerp" else getattr(st, name)(x, 0)
    assert text in str(caught.value)
    assert caught.value.op == f"sternway.torch.{name}"


def quantized(name: str, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """One of QUANTIZED, with a scale of any shape."""
    return (
        st.dequantize_per_token(x, scale) if name == "dequantize_per_token" else st.fake_quantize_per_token(x, scale, **BOUNDS)
    )


BOUNDS = {"quant_min": -8, "quant_max": 7}
QUANTIZED = ("dequantize_per_token", "fake_quantize_per_token")
QUANTIZED_NAMES = pytest.mark.parametrize("name", QUANTIZED)


@pytest.mark.filterwarnings("ignore:.*prototype", "ignore:.*beta state")
@pytest.mark.parametrize("requires_grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("strange", REFUSED)
@QUANTIZED_NAMES
def test_quantization_refuses_it_in_the_forward(name: str, strange: str, requires_grad: bool) -> None:
    if name == "dequantize_per_token" and strange == "mkldnn":
        strange = "sparse"  # MKL-DNN has no int8
    make, text = REFUSED[strange]
    x = make().detach()
    x = x.to(torch.int8) if name == "dequantize_per_token" else x.requires_grad_(requires_grad)
    scale = torch.ones((2,) * 8 if "rank" in strange else 2, device=x.device, requires_grad=requires_grad)
    with pytest.raises(
        sw.UnsupportedError, match=rf"^sternway\.torch\.{name}: {'q' if x.dtype == torch.int8 else 'x'} must be "
    ) as caught:
        quantized(name, x, scale)
    assert text in str(caught.value)
    with pytest.raises(
        sw.UnsupportedError, match=rf"^sternway\.torch\.{name}: scale must be a strided tensor, got a torch.sparse"
    ):
        quantized(name, torch.ones(2, 3).to(x.dtype), torch.ones(2).to_sparse())


@QUANTIZED_NAMES
def test_quantization_of_rank_9_is_refused_where_it_is_traced(name: str) -> None:
    x = torch.ones((1,) * 9, dtype=torch.int8 if name == "dequantize_per_token" else F32)
    scale = torch.ones((1,) * 8, requires_grad=True)
    torch.compiler.reset()
    compiled = torch.compile(quantized, backend="aot_eager")
    batched = torch.vmap(lambda x, scale: quantized(name, x, scale))
    for call in (lambda: compiled(name, x, scale), lambda: batched(x[None], scale[None])):
        with pytest.raises(sw.UnsupportedError, match=rf"sternway\.torch\.{name}: .* rank 0 to 8, got rank 9"):
            call()


@QUANTIZED_NAMES
def test_vmap_of_quantization_of_rank_8(name: str) -> None:
    """The batch makes it rank 9, which no plan has: each of the batch is a call."""
    x = (torch.arange(2**9, dtype=torch.int8) % 20).view([2] * 9)
    x = x if name == "dequantize_per_token" else x.float() / 4
    scale, zero_point = torch.rand([2] * 8) + 0.1, torch.rand([2] * 8)

    def slope(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        def total(scale: torch.Tensor, zero_point: torch.Tensor | None) -> torch.Tensor:
            if name == "dequantize_per_token":
                return st.dequantize_per_token(x, scale, zero_point).square().sum()
            return st.fake_quantize_per_token(x, scale, zero_point, **BOUNDS).square().sum()

        learned = (0,) if zero_point is None else (0, 1)
        return torch.func.grad(total, argnums=learned)(scale, zero_point)

    for zero in (None, zero_point):
        got = torch.vmap(slope, (0, 0, None if zero is None else 0))(x, scale, zero)
        rows = [slope(row, scale[i], None if zero is None else zero[i]) for i, row in enumerate(x)]
        for batch, each in zip(got, zip(*rows, strict=True), strict=True):
            torch.testing.assert_close(batch, torch.stack(each))


def test_accelerate_leaves_bags_to_torch() -> None:
    """Of meta tensors, jagged ones, and with indices behind the last offset, which ours refuses."""
    weight = torch.randn(5, 3)
    with st.accelerate():
        meta = bag(INDICES.to("meta"), weight.to("meta").requires_grad_(), OFFSETS.to("meta"))
        assert not is_ours(meta)
        jagged = torch.nested.nested_tensor([INDICES[:1], INDICES[1:]], layout=torch.jagged)
        leaf = weight.clone().requires_grad_()
        y = bag(jagged, leaf, mode="sum")
        assert not is_ours(y)
    for mode in ("sum", "mean", "max"):
        for options in ({"include_last_offset": True}, {"offsets": torch.tensor([0, 3, 2]), "padding_idx": 0}):
            arguments = {"offsets": torch.tensor([0, 1, 3]), "mode": mode, **options}
            want = bag(INDICES, leaf, **arguments)
            with st.accelerate():
                got = bag(INDICES, leaf, **arguments)
            assert not is_ours(got)
            assert torch.equal(got, want)
            with pytest.raises(sw.InvalidProblemError, match=r"^sternway\.torch\.embedding_bag: offsets must be"):
                st.embedding_bag(INDICES, leaf, **arguments)


@pytest.mark.parametrize("length", [4, 200])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_decreasing_offsets_are_refused_in_the_forward(mode: str, length: int) -> None:
    indices = torch.arange(length) % 5
    rising = torch.arange(length)
    for offsets in ([0, 3, 2], [0, 3, 1, 4], [0, 9, 2], [*range(length - 1), 0]):
        for options in ({}, {"padding_idx": 0}, {"padding_idx": -1}, {"sparse": mode != "max"}):
            weight = torch.randn(5, 3, requires_grad=True)
            with pytest.raises(sw.InvalidProblemError, match=r"offsets must be in rising order, got .* at position"):
                st.embedding_bag(indices, weight, torch.tensor(offsets), mode=mode, **options)
    assert st.embedding_bag(indices, weight, rising, mode=mode).shape == (length, 3)


PLANS = {
    "scan": sw.ScanBackwardPlan,
    "lerp": sw.LerpBackwardPlan,
    "embedding_bag": sw.EmbeddingBagBackwardPlan,
    "dequantize": sw.DequantizePerTokenBackwardPlan,
    "fake_quantize": sw.FakeQuantizePerTokenBackwardPlan,
}


@pytest.mark.parametrize("kind", ["unsupported", "device"])
def test_a_device_without_a_kernel(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever error of ours a selection ends in: accelerate() leaves the call to torch, a drop-in refuses it at once."""

    def refuse(cls: Any, *_: Any) -> Any:
        raise sw.errors.make(kind, "a family", "device", "one with a kernel image for its architecture", "sm_75")

    for plan in PLANS.values():
        monkeypatch.setattr(plan, "select", classmethod(refuse))
    size = 17 if kind == "device" else 19  # a shape of which no plan is kept
    x = torch.rand(size, size) + 0.5
    for name, (theirs, ours) in OPERATIONS.items():
        want = gradient(theirs, x)
        with st.accelerate():
            assert not is_ours(theirs(x.clone().requires_grad_()))
            torch.testing.assert_close(gradient(theirs, x), want, rtol=0, atol=0)
        for leaf in (x, x.clone().requires_grad_()):
            with pytest.raises(sw.Error, match=rf"^sternway\.torch\.{name.split()[0]}: device must be .* got sm_75"):
                ours(leaf)
    for name in QUANTIZED:
        data = x.to(torch.int8) if name == "dequantize_per_token" else x
        for scale in (torch.ones(size), torch.ones(size, requires_grad=True)):
            with pytest.raises(sw.Error, match=rf"^sternway\.torch\.{name}: device must be .* got sm_75"):
                quantized(name, data, scale)
    for sparse in (False, True):
        leaf = x.clone().requires_grad_()
        with st.accelerate():
            y = bag(INDICES, leaf, OFFSETS, mode="sum", sparse=sparse)
            assert not is_ours(y)
            y.sum().backward()
        with pytest.raises(sw.Error, match=r"^sternway\.torch\.embedding_bag: device must be .* got sm_75"):
            st.embedding_bag(INDICES, leaf, OFFSETS, mode="sum", sparse=sparse)


@pytest.mark.gpu
def test_a_hidden_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on a GPU that STERNWAY_BACKEND=cpu hides."""
    monkeypatch.setenv("STERNWAY_BACKEND", "cpu")
    x = torch.rand(23, 29, device="cuda") + 0.5
    for theirs, ours in OPERATIONS.values():
        with st.accelerate():
            assert not is_ours(theirs(x.clone().requires_grad_()))
        with pytest.raises(sw.UnsupportedError, match="STERNWAY_BACKEND"):
            ours(x)


@pytest.mark.parametrize("name", ["cumsum", "lerp"])
def test_compiled(name: str) -> None:
    """Inside accelerate() torch's own operation is compiled; a drop-in refuses when the graph is left for its error."""
    torch.compiler.reset()
    theirs, ours = OPERATIONS[name]
    x = of_rank(9)
    compiled = torch.compile(st.accelerate()(theirs), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled, x), gradient(theirs, x))
    with pytest.raises(sw.UnsupportedError, match=rf"sternway\.torch\.{name}: .* rank 9"):
        torch.compile(ours, backend="aot_eager")(x)


@NAMED
def test_vmap_of_rank_8(name: str) -> None:
    """The batch makes it rank 9, which no plan has: each of the batch is a call."""
    _, ours = OPERATIONS[name]
    x = torch.stack([of_rank(8), of_rank(8).flip(0) + 1])
    slope = torch.func.grad(lambda x: values_of(ours(x)).square().sum())
    torch.testing.assert_close(torch.vmap(slope)(x), torch.stack([slope(row) for row in x]))


def test_tensors_of_several_processes(tmp_path: Path) -> None:
    """accelerate() leaves a DTensor to torch. A call by name of one that no rule takes raises in the forward."""
    distributed = pytest.importorskip("torch.distributed.tensor")
    if not torch.distributed.is_available() or torch.distributed.is_initialized():
        pytest.skip("torch.distributed is not available, or in use")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cpu", (1,))
        x = distributed.distribute_tensor(torch.ones(4, 3), mesh, [distributed.Shard(0)]).requires_grad_()
        assert st.cumsum(x, 0).to_local().tolist() == torch.ones(4, 3).cumsum(0).tolist()
        indices = distributed.distribute_tensor(torch.tensor([1]), mesh, [distributed.Replicate()])
        with pytest.raises(sw.UnsupportedError, match=r"weight must be .*; use weight\.redistribute"):
            st.embedding(indices, x)
        with st.accelerate():
            torch.lerp(x, 3 * x, 0.5).sum().backward()
        assert x.grad.to_local().tolist() == [[2.0] * 3] * 4
    finally:
        torch.distributed.destroy_process_group()


# --- what becomes of dy and of the inputs until the backward ----------------------------------------------------------

ROWS = torch.tensor([[0, 3], [1, 1], [2, 0], [3, 2]])
DROP_INS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{k: lambda x, k=k: values_of(getattr(st, k)(x, 0)) for k in KINDS},
    "lerp": lambda x: st.lerp(x, x * 2, x / 4),
    "embedding_bag": lambda x: st.embedding_bag(ROWS.to(x.device), x, mode="sum"),
    "embedding": lambda x: st.embedding(ROWS[:, 0].to(x.device), x),
    "embedding_bag max": lambda x: st.embedding_bag(ROWS.to(x.device), x, mode="max"),
    "per_sample_weights": lambda x: st.embedding_bag(
        ROWS[:, :1].to(x.device), torch.ones(4, 3, device=x.device), mode="sum", per_sample_weights=x[:, :1]
    ),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", DROP_INS)
def test_gradients_without_storage_are_zeros(name: str, create_graph: bool, device: str) -> None:
    x = torch.rand(4, 3, device=device, requires_grad=True)
    y = DROP_INS[name](x)
    zeros = torch._efficientzerotensor(y.shape, device=device)
    (dx,) = torch.autograd.grad(y, x, zeros, create_graph=create_graph)
    assert torch.equal(dx, torch.zeros_like(x))


@pytest.mark.parametrize("name", DROP_INS)
def test_gradients_of_other_layouts(name: str) -> None:
    """Sparse, negated, expanded: the numbers of a dense dy."""
    x = torch.rand(4, 3, requires_grad=True)
    y = DROP_INS[name](x)
    dy = torch.arange(12.0).view(4, 3) % 4
    (want,) = torch.autograd.grad(y, x, dy, retain_graph=True)
    for other in (dy.to_sparse(), (-dy)._neg_view(), dy.T.contiguous().T):
        torch.testing.assert_close(torch.autograd.grad(y, x, other, retain_graph=True)[0], want)
    (want,) = torch.autograd.grad(y, x, torch.full((4, 3), 2.0), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y, x, torch.tensor(2.0).expand(4, 3))[0], want)


@pytest.mark.parametrize("name", DROP_INS)
def test_negated_inputs(name: str) -> None:
    """A lazily negated leaf is saved as it is, and read by the backward."""
    x = torch.rand(4, 3) + 0.5
    negated = (-x)._neg_view().requires_grad_()
    assert negated.is_neg()
    y = DROP_INS[name](negated)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), negated)[0], gradient(DROP_INS[name], x))


def test_ends_that_a_number_widens() -> None:
    """Of rank 0 alone, as torch's promotion has it: dy is wider than the ends."""
    a, b, w = (torch.tensor(v, dtype=d, requires_grad=True) for v, d in ((1.0, F32), (3.0, F32), (0.5, F64)))
    ours, theirs = (torch.autograd.grad(f(a, b, w), (a, b, w)) for f in (st.lerp, torch.lerp))
    assert [g.dtype for g in ours] == [F32, F32, F64]
    assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


def test_weights_of_another_kind() -> None:
    """torch's forward takes a complex weight of real ends, and its backward refuses it."""
    a = torch.ones(3, requires_grad=True)
    with pytest.raises(sw.UnsupportedError, match=r"^sternway\.torch\.lerp: weight must be real like input, got complex64"):
        st.lerp(a, a, torch.tensor(0.5j))
    with st.accelerate():
        assert not is_ours(torch.lerp(a, a, torch.tensor(0.5j)))
    for wrong in ({"offsets": [0, 2]}, {"offsets": OFFSETS, "per_sample_weights": [1.0] * 4, "mode": "sum"}):
        with pytest.raises(TypeError, match=r"^sternway\.torch\.embedding_bag: \w+ must be a torch.Tensor, got list"):
            st.embedding_bag(INDICES, torch.ones(4, 3), **wrong)
    with pytest.raises(sw.UnsupportedError, match="per_sample_weights must be real"):
        st.embedding_bag(INDICES, torch.ones(4, 3), OFFSETS, mode="sum", per_sample_weights=torch.ones(4) * 1j)


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_keywords_of_torch(kind: str) -> None:
    ours, theirs = getattr(st, kind), getattr(torch, kind)
    x = torch.randn(3, 4, requires_grad=True)
    for kwargs in ({"input": x, "dim": 0}, {"input": x, "axis": -1}, {"x": x, "axis": 1}, {"input": x, "dim": 1, "out": None}):
        as_torch = {"input": x, **{name: v for name, v in kwargs.items() if name != "x"}}
        got, want = ours(**kwargs), theirs(**as_torch)
        assert is_ours(got)
        assert type(got) is type(want)
        assert torch.equal(values_of(got), values_of(want))
    assert torch.equal(values_of(ours(x, axis=np.int64(0))), values_of(theirs(x, 0)))
    with st.accelerate():
        assert is_ours(getattr(torch, kind)(x, np.int64(0)))
    for wrong in ({"input": x, "dim": 0}, {"axis": 0, "dim": 0}):
        with pytest.raises(TypeError):
            ours(x, **wrong)
    with pytest.raises(TypeError):
        ours(x, True)
    with pytest.raises(TypeError):
        ours(x, 0, other=1)


def test_dtype_and_out_are_torchs_operation() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    for kind in ("cumsum", "cumprod"):
        ours, theirs = getattr(st, kind), getattr(torch, kind)
        y = ours(x, 0, dtype=F64)
        assert y.dtype == F64
        assert not is_ours(y)
        assert torch.equal(y, theirs(x, 0, dtype=F64))
        assert torch.equal(ours(x, 0, dtype=F64, reverse=True), theirs(x.flip(0), 0, dtype=F64).flip(0))
    for kind in KINDS:
        plain, ours = x.detach(), getattr(st, kind)
        out: Any = torch.empty(3, 4)
        out = (out, torch.empty(3, 4, dtype=torch.int64)) if kind in EXTREMA else out
        y = ours(plain, 1, out=out)
        assert values_of(y).data_ptr() == values_of(out).data_ptr()
        assert torch.equal(values_of(out), values_of(getattr(torch, kind)(plain, 1)))
        with pytest.raises(sw.UnsupportedError, match=rf"^sternway\.torch\.{kind}: out must be left out with reverse=True"):
            ours(plain, 1, reverse=True, out=out)
        if kind not in ("cumsum", "cumprod"):
            with pytest.raises(TypeError):  # as torch has it
                ours(plain, 1, dtype=F64)
    a, b, out = torch.randn(3, 4), torch.randn(4), torch.empty(3, 4)
    assert st.lerp(a, b, 0.25, out=out) is out
    assert torch.equal(out, torch.lerp(a, b, 0.25))


@pytest.mark.parametrize("reverse", [0, 1, None, "no", 1.0, torch.tensor(True)], ids=repr)
def test_an_option_that_is_no_bool_is_refused_in_the_forward(reverse: Any) -> None:
    for kind in KINDS:
        with pytest.raises(sw.InvalidProblemError, match=rf"^sternway\.torch\.{kind}: reverse must be True or False, got "):
            getattr(st, kind)(torch.ones(3, requires_grad=True), 0, reverse=reverse)
        with pytest.raises(sw.InvalidProblemError, match=rf"^sternway\.torch\.{kind}: exclusive must be True or False, got "):
            getattr(st, kind)(torch.ones(3), 0, exclusive=reverse)
    for option in ("reverse", "output_final_state"):
        wanted = rf"^sternway\.torch\.linear_recurrence: {option} must be True or False"
        with pytest.raises(sw.InvalidProblemError, match=wanted):
            st.linear_recurrence(0.5, torch.ones(3), **{option: reverse})
    for option in ("sparse", "scale_grad_by_freq", "include_last_offset"):
        with pytest.raises(sw.InvalidProblemError, match=rf"^sternway\.torch\.embedding_bag: {option} must be True or False"):
            st.embedding_bag(INDICES, torch.ones(4, 3), OFFSETS, **{option: reverse})


def test_scalars_of_numpy_are_options() -> None:
    x = torch.rand(3, 4, requires_grad=True)
    for kind in KINDS:
        ours = getattr(st, kind)
        got, want = ours(x, np.int64(1), reverse=np.True_), ours(x, 1, reverse=True)
        assert torch.equal(values_of(got), values_of(want))
        pair = (torch.autograd.grad(values_of(y).sum(), x)[0] for y in (got, want))
        assert torch.equal(*pair)
    for weight in (np.float64(0.25), np.float32(0.25), np.float16(0.25), np.int32(2), np.True_, True, 2):
        got, want = st.lerp(x, x * 2, weight), torch.lerp(x, x * 2, float(weight))
        assert is_ours(got)
        assert torch.equal(got, want)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, want)))
        with st.accelerate():
            assert is_ours(torch.lerp(x, x * 2, weight))
    arguments = {
        "mode": np.str_("sum"), "padding_idx": np.int64(-1), "sparse": np.False_, "include_last_offset": np.bool_(0),
        "scale_grad_by_freq": np.True_, "max_norm": np.float32(9.0),
    }  # fmt: skip
    plain = {name: v.item() for name, v in arguments.items()}
    got, want = (st.embedding_bag(INDICES % 3, x, torch.tensor([0]), **options) for options in (arguments, plain))
    assert torch.equal(got, want)
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, want)))
