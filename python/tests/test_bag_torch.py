"""embedding_bag of sternway.torch: nested bags, sparse gradients that are compiled, weights of samples of another dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import BF16, F16, F32, F64, name_of

import sternway as sw
import sternway.torch as st

MODES = pytest.mark.parametrize("mode", ["sum", "mean", "max"])
LAYOUTS = pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=["jagged", "strided"])
ROWS = ([1, 2], [3, 3, 4], [], [5], [])
nested_tensor = torch.nested.nested_tensor

pytestmark = pytest.mark.filterwarnings("ignore:.*prototype stage", "ignore:.*sparse invariant")


def nested(rows: Any, layout: torch.layout, device: str, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return nested_tensor([torch.tensor(row, dtype=dtype, device=device) for row in rows], layout=layout)


def flat(rows: Any, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices of rows, and where each begins."""
    starts = [sum(map(len, rows[:i])) for i in range(len(rows))]
    return torch.tensor([i for row in rows for i in row], device=device), torch.tensor(starts, device=device)


def gradient(y: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dy = torch.arange(y.numel(), dtype=y.dtype, device=y.device).view(y.shape)
    return torch.autograd.grad(y, inputs, dy)


@MODES
@LAYOUTS
@pytest.mark.parametrize("accelerated", [False, True])
def test_nested_bags(accelerated: bool, layout: torch.layout, mode: str, device: str) -> None:
    """The rows are the bags, empty ones too; the module's include_last_offset is about offsets, which there are none."""
    for options in ({}, {"padding_idx": 3}, {"include_last_offset": True}, {"scale_grad_by_freq": mode != "max"}):
        module = st.EmbeddingBag(6, 3, mode=mode, device=device, dtype=F64, **options)
        indices, offsets = flat(ROWS, device)
        options.pop("include_last_offset", None)
        want = st.embedding_bag(indices, module.weight, offsets, mode=mode, **options)
        bags = nested(ROWS, layout, device)
        if accelerated:
            with st.accelerate():
                got = module(bags)
        else:
            got = module(bags)
        assert torch.equal(got, want)
        assert torch.equal(*(gradient(y, module.weight)[0] for y in (got, want)))


@LAYOUTS
def test_nested_weights_of_samples(layout: torch.layout, device: str) -> None:
    weight = torch.randn(6, 3, dtype=F64, device=device, requires_grad=True)
    indices, offsets = flat(ROWS, device)
    numbers = torch.rand(len(indices), dtype=F64, device=device, requires_grad=True)
    want = st.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=numbers)
    bags, parts = nested(ROWS, layout, device), numbers.split([len(row) for row in ROWS])
    weights = torch.nested.as_nested_tensor(list(parts), layout=layout)
    got = st.embedding_bag(bags, weight, mode="sum", per_sample_weights=weights)
    assert torch.equal(got, want)
    for ours, other in zip(gradient(got, weight, numbers), gradient(want, weight, numbers), strict=True):
        assert torch.equal(ours, other)
    if layout is torch.jagged:  # of the very offsets
        shared = torch.nested.nested_tensor_from_jagged(numbers, bags.offsets())
        assert torch.equal(st.embedding_bag(bags, weight, mode="sum", per_sample_weights=shared), want)


def test_parts_of_jagged_bags(device: str) -> None:
    """Rows that end before the next begins, and numbers behind the last row."""
    table = torch.arange(20, device=device).view(4, 5)
    starts, lengths = torch.tensor([0, 1, 2, 0], device=device), torch.tensor([2, 3, 1, 0], device=device)
    part = torch.nested.narrow(table, 1, starts, lengths, layout=torch.jagged)
    numbers, ends = (torch.tensor(v, device=device) for v in ([1, 2, 3, 9, 9], [0, 1, 3]))
    longer = torch.nested.nested_tensor_from_jagged(numbers, ends)
    for bags, rows in ((part, ([0, 1], [6, 7, 8], [12], [])), (longer, ([1], [2, 3]))):
        for mode in ("sum", "mean", "max"):
            weight = torch.randn(20, 3, dtype=F64, device=device, requires_grad=True)
            indices, offsets = flat(rows, device)
            want = st.embedding_bag(indices, weight, offsets, mode=mode)
            got = st.embedding_bag(bags, weight, mode=mode)
            assert torch.equal(got, want)
            assert torch.equal(*(gradient(y, weight)[0] for y in (got, want)))


def test_nested_bags_that_are_refused() -> None:
    weight = torch.randn(6, 3)
    bags, other = nested(ROWS, torch.jagged, "cpu"), nested([[1.0], [2.0]], torch.jagged, "cpu", F32)
    deep = nested_tensor([torch.ones(2, 2, dtype=torch.int64)] * 2, layout=torch.jagged)
    for call, text in (
        (lambda: st.embedding_bag(bags, weight, torch.tensor([0])), "offsets must be None"),
        (lambda: st.embedding_bag(deep, weight), r"input must be of rank 2, .* got rank 3"),
        (
            lambda: st.embedding_bag(bags, weight, mode="sum", per_sample_weights=torch.ones(6)),
            "per_sample_weights must be nested",
        ),
        (
            lambda: st.embedding_bag(bags, weight, mode="sum", per_sample_weights=other),
            "per_sample_weights must be of the shape",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(sw.UnsupportedError, match=r"^sternway\.torch\.embedding_bag: weight must be a strided tensor"):
        st.embedding_bag(torch.tensor([[1]]), weight.to_sparse())


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_sparse_compiled(mode: str, backend: str, dynamic: bool | None, device: str) -> None:
    """Without a graph break; the gradient is the eager one: sparse, coalesced, of the rows that occur in that call."""
    torch.compiler.reset()
    for options in ({}, {"padding_idx": 3}, {"scale_grad_by_freq": True}):

        def bags(weight: torch.Tensor, indices: torch.Tensor, options: Any = options) -> torch.Tensor:
            offsets = torch.tensor([0, 2, 2], device=device)
            return st.embedding_bag(indices, weight, offsets, mode=mode, sparse=True, **options).sin()

        compiled = torch.compile(bags, fullgraph=True, backend=backend, dynamic=dynamic)
        for rows in ([1, 2, 4, 5, 4], [3, 3, 3, 3, 3], [0, 9, 9, 3, 0]):
            weight = torch.randn(10, 3, device=device, requires_grad=True)
            indices = torch.tensor(rows, device=device)
            got, want = (torch.autograd.grad(f(weight, indices).sum(), weight)[0] for f in (compiled, bags))
            assert got.layout == want.layout == torch.sparse_coo
            assert got.is_coalesced()
            assert torch.equal(got.indices(), want.indices())
            torch.testing.assert_close(got.values(), want.values())


def test_sparse_compiled_with_weights_of_samples(device: str) -> None:
    torch.compiler.reset()
    indices, offsets = torch.tensor([1, 2, 4, 2], device=device), torch.tensor([0, 1], device=device)
    inputs = torch.randn(6, 3, device=device, requires_grad=True), torch.rand(4, device=device, requires_grad=True)

    def bags(weight: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return st.embedding_bag(indices, weight, offsets, mode="sum", sparse=True, per_sample_weights=weights)

    compiled = torch.compile(bags, fullgraph=True, backend="aot_eager")
    got, want = (torch.autograd.grad(f(*inputs).square().sum(), inputs) for f in (compiled, bags))
    for ours, eager in zip(got, want, strict=True):
        torch.testing.assert_close(ours.to_dense(), eager.to_dense())


@pytest.mark.parametrize(
    ("table", "numbers"), [(F16, F32), (BF16, F32), (BF16, F16), (F32, F64), (F32, F16), (F64, F32)], ids=str
)
def test_weights_of_samples_have_the_dtype_of_the_table(table: torch.dtype, numbers: torch.dtype, device: str) -> None:
    """Others are refused, as torch refuses them, and not rounded."""
    indices, offsets = torch.tensor([1, 2, 4, 2], device=device), torch.tensor([0, 1], device=device)
    weight = torch.randn(6, 3, device=device).to(table).requires_grad_()
    weights = torch.rand(4, device=device).to(numbers).requires_grad_()
    arguments = {"offsets": offsets, "mode": "sum", "per_sample_weights": weights}
    wanted = (
        rf"^sternway\.torch\.embedding_bag: per_sample_weights must be {name_of(table)} like weight, got {name_of(numbers)}"
    )
    with pytest.raises(sw.InvalidProblemError, match=wanted):
        st.embedding_bag(indices, weight, **arguments)
    with pytest.raises(sw.InvalidProblemError, match=wanted):
        torch.compile(st.embedding_bag, backend="eager")(indices, weight, **arguments)
    with pytest.raises(RuntimeError, match=r"per_sample_weights|expected scalar type"), st.accelerate():
        torch.nn.functional.embedding_bag(indices, weight, **arguments)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_index_out_of_range_is_named(mode: str) -> None:
    """Alone finds an error of torch's forward that names an index without the number of rows, as that of mode "max"."""
    weight = torch.rand(5, 3, requires_grad=True)
    for indices in (torch.tensor([[1, 7]]), torch.tensor([[-1, 2]])):
        with pytest.raises(RuntimeError, match=r"(value|got) (7|-1).*|\[0, 5\)") as refused:
            st.embedding_bag(indices, weight, mode=mode)
        assert "[0, 5)" in str(refused.value)
