"""sternway.torch.embedding and Embedding, and torch's own inside accelerate()."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import pytest
import torch
from support import BF16, F16, F32, F64, gradcheck, gradgradcheck, is_ours
from torch.testing._internal.common_methods_invocations import op_db

import sternway as sw
import sternway.torch as st

BY_TORCH = torch.nn.functional.embedding
INDICES = [[1, 4, 0], [4, 4, 2]]
# Options of a call, all of which torch has.
OPTIONS = {
    "plain": {},
    "padding": {"padding_idx": 4},
    "padding from the end": {"padding_idx": -2},
    "by frequency": {"scale_grad_by_freq": True},
    "both": {"scale_grad_by_freq": True, "padding_idx": 0},
}
EACH = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())

pytestmark = pytest.mark.filterwarnings("ignore:.*sparse invariant", "ignore:There is a performance drop")


def table(device: str, dtype: torch.dtype = F64, columns: int = 3) -> torch.Tensor:
    return torch.randn(6, columns, dtype=dtype, device=device, requires_grad=True)


def indices_on(device: str, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(INDICES, dtype=dtype, device=device)


@EACH
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=str)
def test_gradient_is_torchs(dtype: torch.dtype, index: torch.dtype, options: Any, device: str) -> None:
    """For indices of every rank, contiguous or not; the gradient is compared with torch's in float64."""
    weight, indices = table(device, dtype), indices_on(device, index)
    for at in (indices, indices.T, indices[0], indices[0, 1], indices[:0], indices[:, ::2]):
        ours, theirs = (f(at, weight, **options) for f in (st.embedding, BY_TORCH))
        assert torch.equal(ours, theirs)
        assert ours.dtype == dtype
        dy = torch.randn_like(ours)
        (got,) = torch.autograd.grad(ours, weight, dy)
        if at.numel() == 0:  # on CUDA torch's own gradient fails there
            assert not got.any()
            continue
        wide = weight.detach().double().requires_grad_()
        (want,) = torch.autograd.grad(BY_TORCH(at, wide, **options), wide, dy.double())
        torch.testing.assert_close(got, want.to(dtype))


def test_samples_of_torch(device: str) -> None:
    """Every sample that PyTorch tests its own embedding with."""
    (op,) = [info for info in op_db if info.name == "nn.functional.embedding"]
    tested = 0
    for sample in op.sample_inputs(device.split(":")[0], F64, requires_grad=True):
        weight, (indices,), named = sample.input, sample.args, sample.kwargs
        ours, theirs = (f(indices, w, **named) for f, w in ((st.embedding, weight), (BY_TORCH, weight)))
        assert torch.equal(ours, theirs)
        if "max_norm" in named:
            continue  # torch's samples modify the table in place
        dy = torch.randn_like(ours)
        got, want = (torch.autograd.grad(y, weight, dy)[0] for y in (ours, theirs))
        torch.testing.assert_close(*(d.to_dense() for d in (got, want)))
        tested += 1
    assert tested >= 3


@EACH
def test_gradcheck(options: Any, device: str) -> None:
    """The gradient of a padding row is zero by definition, so its function holds that row constant."""
    weight, indices = table(device), indices_on(device)
    scale = torch.ones(6, 1, dtype=F64, device=device)
    if "padding_idx" in options:
        scale[options["padding_idx"]] = 0
    if options.get("scale_grad_by_freq"):
        scale /= torch.bincount(indices.flatten(), minlength=6).clamp(min=1)[:, None]

    def ours(weight: torch.Tensor) -> torch.Tensor:
        return st.embedding(indices, weight, **options)

    def plain(weight: torch.Tensor) -> torch.Tensor:
        return torch.embedding(weight * scale + (weight * (1 - scale)).detach(), indices)

    if not options:
        assert gradcheck(ours, (weight,), check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(ours, (weight,), check_batched_grad=True)
    for f in (lambda w: w.sin() * w, torch.exp):
        seconds = []
        for call in (ours, plain):
            (first,) = torch.autograd.grad(f(call(weight)).sum(), weight, create_graph=True)
            seconds.append((first, *torch.autograd.grad(first.square().sum(), weight)))
        for got, want in zip(*seconds, strict=True):
            torch.testing.assert_close(got, want)


@EACH
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend: str, dynamic: bool | None, options: Any, device: str) -> None:
    """Without a graph break, with torch's gradient."""
    torch.compiler.reset()
    compiled = torch.compile(lambda w, i: st.embedding(i, w, **options).sin(), fullgraph=True, backend=backend, dynamic=dynamic)
    weight = table(device)
    for indices in (indices_on(device), indices_on(device)[:, :2].contiguous()):
        got, want = (f(weight, indices) for f in (compiled, lambda w, i: BY_TORCH(i, w, **options).sin()))
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), weight)[0] for y in (got, want)))


@pytest.mark.parametrize("padding", [None, 4])
@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (None, 1), (0, 0)], ids=str)
def test_vmap(in_dims: tuple[int | None, int | None], padding: int | None, device: str) -> None:
    """Batches of tables, of indices and of both; the gradient for each sample, and of the whole batch.

    Against a loop, as the gradients of torch's vmap hold the padding row constant in the first sample alone.
    """
    weight, indices = torch.randn(6, 3, dtype=F64, device=device), indices_on(device)
    w = weight if in_dims[0] is None else torch.stack([weight, 2 * weight, -weight], in_dims[0])
    i = indices if in_dims[1] is None else torch.stack([indices, indices.flip(0), indices.flip(1)], in_dims[1])

    def loss(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return st.embedding(i, w, padding).sin().sum()

    def theirs(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return BY_TORCH(i, w, padding).sin().sum()

    samples = [tuple(x if d is None else x.select(d, k) for x, d in zip((w, i), in_dims, strict=True)) for k in range(3)]
    looped = torch.stack([torch.func.grad(theirs)(*sample) for sample in samples])
    torch.testing.assert_close(torch.vmap(loss, in_dims)(w, i), torch.stack([theirs(*sample) for sample in samples]))
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss), in_dims)(w, i), looped)
    whole = torch.func.grad(lambda w: torch.vmap(loss, in_dims)(w, i).sum())(w)
    torch.testing.assert_close(whole, looped.sum(0) if in_dims[0] is None else looped)


@pytest.mark.parametrize("sparse", [False, True])
def test_opcheck(sparse: bool, device: str) -> None:
    weight, indices = table(device), indices_on(device)
    ops = torch.ops.sternway
    torch.library.opcheck(
        ops.embedding_backward.default,
        (torch.randn(2, 3, 4, dtype=F64, device=device, requires_grad=True), indices, 6, 2, True),
    )
    if not sparse:  # torch's checks compare strides, which sparse tensors have none of
        torch.library.opcheck(ops.embedding.default, (weight, indices, 1, False, False))
    torch.library.opcheck(ops.embedding.default, (weight.detach(), indices, None, False, sparse))


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
@pytest.mark.parametrize("sparse", [False, True])
def test_export(sparse: bool, strict: bool, device: str) -> None:
    """The program has the operator, whose gradient is the eager one."""
    module = st.Embedding(6, 3, padding_idx=1, sparse=sparse, device=device)
    indices = indices_on(device)
    program = torch.export.export(module, (indices,), strict=strict)
    assert any("sternway.embedding" in str(node.target) for node in program.graph.nodes)
    graph = program.module()
    graph(indices).sin().sum().backward()
    module(indices).sin().sum().backward()
    ours, eager = graph.weight.grad, module.weight.grad
    assert ours.layout == eager.layout == (torch.sparse_coo if sparse else torch.strided)
    assert torch.equal(ours.to_dense(), eager.to_dense())


def test_autocast(device: str) -> None:
    """As torch's, it keeps the dtype of the table."""
    weight, indices = table(device, F32), indices_on(device)
    with torch.autocast(device.split(":")[0], dtype=BF16):
        y = st.embedding(indices, weight)
        z = y @ torch.ones(3, 2, device=device)
    assert (y.dtype, z.dtype) == (F32, BF16)
    z.sum().backward()
    assert weight.grad.dtype == F32


def test_max_norm(device: str) -> None:
    """The rows that are read, and no others, are brought to the norm, in place, as torch does."""
    for norm_type in (2.0, 1.0):
        ours, indices = table(device), indices_on(device)
        theirs = ours.detach().clone().requires_grad_()
        a, b = (f(indices, w, None, 0.5, norm_type) for f, w in ((st.embedding, ours), (BY_TORCH, theirs)))
        assert torch.equal(a, b)
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), w)[0] for y, w in ((a, ours), (b, theirs))))


def test_gradient_of_a_mean(device: str) -> None:
    """It is expanded along the positions that the mean is taken of."""
    weight, indices = table(device), indices_on(device)
    for dims in (0, 1, (0, 1)):
        ours, theirs = (
            torch.autograd.grad(f(indices, weight, 4).mean(dims).sin().sum(), weight)[0] for f in (st.embedding, BY_TORCH)
        )
        torch.testing.assert_close(ours, theirs)
    sparse = torch.autograd.grad(st.embedding(indices, weight, 4, sparse=True).mean(1).sin().sum(), weight)[0]
    want = torch.autograd.grad(BY_TORCH(indices, weight, 4).mean(1).sin().sum(), weight)[0]
    torch.testing.assert_close(sparse.to_dense(), want)


def test_module(device: str) -> None:
    """State dicts go both ways, and a step of training is torch's."""
    ours = st.Embedding(10, 5, padding_idx=2, max_norm=1.0, device=device)
    theirs = torch.nn.Embedding(10, 5, padding_idx=2, max_norm=1.0, device=device)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    for module in (ours, theirs):
        module(indices_on(device)).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    assert torch.equal(ours.weight, theirs.weight)
    assert st.Embedding.from_pretrained(torch.ones(4, 2)).weight.requires_grad is False


@pytest.mark.parametrize("padding", [None, 4, -1])
@pytest.mark.parametrize("optimizer", ["SGD", "SparseAdam", "Adagrad"])
def test_sparse(optimizer: str, padding: int | None, device: str) -> None:
    """Coalesced, of the rows that occur; steps of optimizers are torch's."""
    indices = torch.randint(0, 40, (7, 30), device=device)
    results = []
    for kind in (st.Embedding, torch.nn.Embedding):
        torch.manual_seed(0)
        module = kind(40, 5, padding_idx=padding, sparse=True, device=device, dtype=F64)
        step = getattr(torch.optim, optimizer)(module.parameters(), lr=0.1)
        for _ in range(3):
            step.zero_grad()
            module(indices).square().sum().backward()
            if kind is st.Embedding:
                grad = module.weight.grad.coalesce()
                assert set(grad.indices()[0].tolist()) == set(indices.flatten().tolist()) - {
                    padding if padding is None else padding % 40
                }
            step.step()
        results.append(module.weight.detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_sparse_compiled(backend: str, device: str) -> None:
    torch.compiler.reset()
    weight = table(device)
    compiled = torch.compile(lambda w, i: st.embedding(i, w, 4, sparse=True).sin(), fullgraph=True, backend=backend)
    for indices in (indices_on(device), 5 - indices_on(device)):
        got = torch.autograd.grad(compiled(weight, indices).sum(), weight)[0]
        want = torch.autograd.grad(BY_TORCH(indices, weight, 4).sin().sum(), weight)[0]
        assert got.is_coalesced()
        torch.testing.assert_close(got.to_dense(), want)


def test_sparse_gradients_are_differentiated_once(device: str) -> None:
    weight = table(device)
    y = st.embedding(indices_on(device), weight, sparse=True)
    with pytest.raises(sw.UnsupportedError, match=r"embedding: the gradient must be differentiated once.*sparse=False"):
        torch.autograd.grad(y.sum(), weight, create_graph=True)


def test_no_indices(device: str) -> None:
    """No position at all, padding alone, and a table without columns."""
    for sparse in (False, True):
        for indices, padding, columns in (([], None, 3), ([[], []], 1, 3), ([2, 2], 2, 3), ([2, 1], None, 0)):
            weight = table(device, columns=columns)
            at = torch.tensor(indices, dtype=torch.int64, device=device)
            y = st.embedding(at, weight, padding, sparse=sparse)
            assert y.shape == (*at.shape, columns)
            y.sum().backward()
            assert torch.equal(weight.grad.to_dense(), torch.zeros_like(weight))


# --- inside accelerate() ----------------------------------------------------------------------------------------------

CALLS = {
    "functional": lambda i, w: torch.nn.functional.embedding(i, w),
    "padding": lambda i, w: torch.nn.functional.embedding(i, w, 2),
    "keywords": lambda i, w: torch.nn.functional.embedding(input=i, weight=w, padding_idx=-1, scale_grad_by_freq=True),
    "max_norm": lambda i, w: torch.nn.functional.embedding(i, w, max_norm=2.5, norm_type=1.0),
    "sparse": lambda i, w: torch.nn.functional.embedding(i, w, sparse=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_accelerate(name: str, device: str) -> None:
    """The same values, our node in the graph, torch's gradient; torch's own node outside."""
    weight, indices = table(device), indices_on(device)
    twin = weight.detach().clone().requires_grad_()
    with st.accelerate():
        got = CALLS[name](indices, weight)
    want = CALLS[name](indices, twin)
    assert is_ours(got)
    assert not is_ours(want)
    assert torch.equal(got, want)
    grads = (torch.autograd.grad(y.sin().sum(), w)[0].to_dense() for y, w in ((got, weight), (want, twin)))
    torch.testing.assert_close(*grads)


def test_accelerate_modules(device: str) -> None:
    module, indices = torch.nn.Embedding(6, 3, padding_idx=1, device=device), indices_on(device)
    with st.accelerate():
        assert is_ours(module(indices))
    assert not is_ours(module(indices))
    compiled = torch.compile(st.accelerate()(module.forward), fullgraph=True, backend="aot_eager")
    compiled(indices).sin().sum().backward()
    got, module.weight.grad = module.weight.grad, None
    module(indices).sin().sum().backward()
    torch.testing.assert_close(got, module.weight.grad)


def test_accelerate_leaves_what_no_plan_does(device: str) -> None:
    """With torch's result, or torch's error."""
    indices = indices_on(device)
    for dtype in (torch.complex64, torch.int64):
        weight = torch.arange(18, device=device).view(6, 3).to(dtype)
        with st.accelerate():
            got = BY_TORCH(indices, weight)
        assert torch.equal(got, BY_TORCH(indices, weight))
        assert not is_ours(got)
    with st.accelerate(), torch.no_grad():
        assert BY_TORCH(indices, table(device)).grad_fn is None
    for call in (lambda: BY_TORCH(indices, table(device), padding_idx=6), lambda: BY_TORCH(indices, table(device)[0]),
                 lambda: BY_TORCH(indices.double(), table(device))):  # fmt: skip
        errors = []
        for context in (st.accelerate(), torch.enable_grad()):
            with pytest.raises(Exception) as caught, context:  # noqa: PT011 - whichever torch raises
                call()
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]


def test_nested_indices_stay_with_torch(device: str) -> None:
    nested = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], layout=torch.jagged, device=device)
    weight = table(device)
    with st.accelerate():
        y = BY_TORCH(nested, weight)
    assert torch.equal(y.values(), weight[[1, 2, 3]])
    with pytest.raises(sw.UnsupportedError, match=r"^sternway\.torch\.embedding: input must be a strided tensor, got a nested"):
        st.embedding(nested, weight)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_swapped_arguments() -> None:
    """A table in place of its indices. It alone finds an error that does not say what the order is."""
    indices, weight = torch.tensor([[0, 1], [2, 0]]), torch.ones(3, 2)
    for call, name in (
        (lambda: st.embedding(weight, indices), "embedding"),
        (lambda: st.embedding(weight[0], indices), "embedding"),
        (lambda: st.embedding_bag(weight, indices), "embedding_bag"),
        (lambda: st.embedding_bag(weight, indices[0], torch.tensor([0])), "embedding_bag"),
    ):
        with pytest.raises(sw.InvalidProblemError, match=rf"input must be integer indices.*{name}\(input, weight\)"):
            call()


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_an_index_out_of_range_is_named(dtype: torch.dtype, requires_grad: bool) -> None:
    """It alone finds torch's "index out of range in self", which names neither the index nor the number of rows."""
    weight = torch.ones(5, 3, requires_grad=requires_grad)
    for wrong in (7, -1):
        for indices, place in ((torch.tensor([1, wrong, 9]), "position 1"), (torch.tensor([[1, 2], [3, wrong]]), r"\[1, 1\]")):
            with pytest.raises(IndexError, match=rf"index out of range: .* \[0, 5\), .*got {wrong} at {place}$"):
                st.embedding(indices.to(dtype), weight)
            with pytest.raises(IndexError, match=rf"got {wrong} at {place}$"):
                st.embedding(indices.to(dtype), weight, max_norm=100.0)


def test_refusals() -> None:
    indices, weight = indices_on("cpu"), table("cpu")
    for error, call, text in (
        (TypeError, lambda: st.embedding([1], weight), "input must be a torch.Tensor, got list"),
        (TypeError, lambda: st.embedding(indices, weight.detach().numpy()), "weight must be a torch.Tensor"),
        (ValueError, lambda: st.embedding(indices, weight[0]), "weight must be 2D"),
        (RuntimeError, lambda: st.embedding(indices, weight, 6), "padding_idx"),
        (IndexError, lambda: st.embedding(indices + 2, weight), "index out of range"),
        (
            sw.InvalidProblemError,
            lambda: st.embedding(indices, weight, 1.5),
            r"^sternway\.torch\.embedding: padding_idx must be an",
        ),
        (sw.InvalidProblemError, lambda: st.embedding(indices, weight, sparse=1), "sparse must be True or False"),
        (sw.InvalidProblemError, lambda: st.embedding(indices, weight, scale_grad_by_freq=None), "scale_grad_by_freq must be"),
        (
            sw.UnsupportedError,
            lambda: st.embedding(indices.double(), weight),
            r"^sternway\.torch\.embedding: input must be int32",
        ),
        (sw.UnsupportedError, lambda: st.embedding(indices, weight.to(torch.complex64)), "weight must be float32"),
        (sw.UnsupportedError, lambda: st.embedding(indices, weight.detach().to_sparse()), "weight must be a strided tensor"),
    ):
        with pytest.raises(error, match=text):
            call()


def test_options_of_numpy() -> None:
    weight, indices = table("cpu"), indices_on("cpu")
    options = {"padding_idx": np.int64(-2), "scale_grad_by_freq": np.True_, "max_norm": np.float32(9.0), "sparse": np.False_}
    ours, plain = (st.embedding(indices, weight, **kw) for kw in (options, {name: v.item() for name, v in options.items()}))
    assert torch.equal(*(torch.autograd.grad(y.sum(), weight)[0] for y in (ours, plain)))


def test_gradients_without_storage_and_negated(device: str) -> None:
    weight = table(device)
    y = st.embedding(indices_on(device), weight)
    zeros = torch._efficientzerotensor(y.shape, dtype=F64, device=device)
    assert not torch.autograd.grad(y, weight, zeros, retain_graph=True)[0].any()
    dy = torch.randn_like(y)
    a, b = (torch.autograd.grad(y, weight, g, retain_graph=True)[0] for g in (dy._neg_view(), -dy))
    assert torch.equal(a, b)
    expanded, dense = (
        torch.autograd.grad(y, weight, g, retain_graph=True)[0]
        for g in (dy[:1, :1, :1].expand_as(dy), dy[:1, :1, :1].expand_as(dy).clone())
    )
    assert torch.equal(expanded, dense)


@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:.*torch.ao")
def test_dynamic_quantization_finds_the_modules() -> None:
    """Alone finds modules that torch.ao.quantization, which looks up exact types, leaves as they are without a word."""
    quantization = pytest.importorskip("torch.ao.quantization", reason="this PyTorch has no torch.ao.quantization")
    configuration = quantization.float_qparams_weight_only_qconfig
    model = torch.nn.ModuleDict(
        {"table": st.Embedding(10, 12), "bag": st.EmbeddingBag(10, 12, mode="sum", include_last_offset=True)}
    )
    linear = quantization.quantize_dynamic(model, {torch.nn.Linear})
    assert [type(m) for m in linear.values()] == [st.Embedding, st.EmbeddingBag]
    assert all(type(m).forward is not type(m).__bases__[0].forward for m in linear.values())
    quantized = quantization.quantize_dynamic(model, {torch.nn.Embedding: configuration, torch.nn.EmbeddingBag: configuration})
    assert ["quantized" in type(m).__module__ for m in quantized.values()] == [True, True]
    assert torch.allclose(quantized["table"](torch.tensor([3])), model["table"](torch.tensor([3])), atol=0.05)


@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:.*torch.ao")
def test_quantization_changes_no_class_but_ours() -> None:
    """Alone finds that what lets torch.ao.quantization find our modules reaches other classes, or their users elsewhere."""
    quantization = pytest.importorskip("torch.ao.quantization", reason="this PyTorch has no torch.ao.quantization")

    class Scaled(st.Embedding, abc.ABC):
        """A class of its own, which torch.ao.quantization does not know."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 10 * super().forward(input)

    assert len({torch.nn.Embedding, st.Embedding, Scaled}) == 3  # dictionaries by class, as FSDP2 keeps one
    model, indices = torch.nn.Sequential(Scaled(4, 3)), torch.tensor([1, 2])
    want = model(indices)
    model.qconfig = quantization.default_qconfig
    assert torch.equal(quantization.prepare(model.eval())(indices), want)
    assert type(model[0]) is Scaled
