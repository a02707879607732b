"""embedding_backward: options, hot rows, small vocabularies, wide rows, leading dimensions, indices out of range."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from conformance import Conformance, same_bits
from families import make
from families.embedding import EMBEDDING
from support import BF16, F32, F64, FLOATS, Snapshot, name_of

import sternway as sw

INTEGERS = (torch.int32, torch.int64)
OPTIONS = {
    "plain": {},
    "padding": {"padding": 3},
    "padding from the end": {"padding": -1, "by_frequency": True},
    "by frequency": {"by_frequency": True},
    "one row": {"rows": 1},
    "nothing counts": {"rows": 1, "padding": 0},
    "more rows than positions": {"rows": 5000},
}


def each_kernel(d: sw.EmbeddingBackwardDescriptor, device: str) -> list[sw.EmbeddingBackwardPlan]:
    """A plan for each kernel that takes a problem: on CUDA "single_launch" takes what "sorted" sorts in one block."""
    names = ("single_launch", "sorted") if device != "cpu" and 0 < d.num_indices <= 2048 else ("sorted",)
    return [sw.EmbeddingBackwardPlan.select(d, device, sw.PlanPreference(kernel=name)) for name in names]


def defined(dy: torch.Tensor, indices: torch.Tensor, rows: int) -> torch.Tensor:
    """dweight in float64 by torch."""
    return torch.zeros(rows, dy.shape[-1], dtype=F64, device=dy.device).index_add_(0, indices.long(), dy.double())


class TestEmbedding(Conformance):
    family = EMBEDDING
    reducing: ClassVar = {"rows": 1}

    @pytest.mark.parametrize("chosen", OPTIONS.values(), ids=OPTIONS.keys())
    def test_options(self, chosen: Any, dtype: torch.dtype, device: str) -> None:
        for shape, index in itertools.product(((37, 16), (300, 33), (2500, 5), (1, 1)), INTEGERS):
            problem = make(EMBEDDING, shape, dtype, device, index=index, **chosen)
            for plan in each_kernel(problem.descriptor, device):
                problem.check(problem.run(plan=plan), rival=True)
            problem.check(problem.call())

    @pytest.mark.parametrize("by_frequency", [False, True])
    @pytest.mark.parametrize("shape", [(2048, 96), (9000, 64), (60000, 8), (2100, 1024)], ids=str)
    def test_hot_rows(self, shape: Any, by_frequency: bool, dtype: torch.dtype, device: str) -> None:
        """Rows with thousands of positions beside rows with one, and the same bits in 20 runs."""
        problem = make(EMBEDDING, shape, dtype, device, rows=700, by_frequency=by_frequency)
        weights = 1 / torch.arange(1, 701, dtype=F64)
        drawn = torch.multinomial(weights, shape[0], replacement=True, generator=torch.Generator().manual_seed(1))
        problem.inputs["indices"].copy_(drawn)
        problem.truth.update(EMBEDDING.truth(problem.descriptor, problem.inputs))
        for plan in each_kernel(problem.descriptor, device):
            first = problem.run(plan=plan)
            problem.check(first)
            assert all(same_bits(problem.run(plan=plan), first) for _ in range(20))

    @pytest.mark.parametrize("rows", [1, 2, 7, 256], ids=lambda rows: f"{rows} rows")
    def test_small_vocabularies(self, rows: int, device: str) -> None:
        """Every row is long: chunks of entries, and of chunks; a padding row among them."""
        for total, dim, padding in ((5000, 96, None), (33000, 16, 0), (70000, 3, -1)):
            problem = make(EMBEDDING, (total, dim), F32, device, rows=rows, padding=padding)
            for plan in each_kernel(problem.descriptor, device):
                problem.check(problem.run(plan=plan))

    @pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
    @pytest.mark.parametrize("dim", [1023, 1024, 2056, 4096])
    def test_wide_rows(self, dim: int, dtype: torch.dtype, device: str) -> None:
        """Rows that several groups of threads share, with and without 16-byte accesses."""
        for total, rows in ((40, 50), (2500, 90), (2500, 3)):
            problem = make(EMBEDDING, (total, dim), dtype, device, rows=rows)
            for plan in each_kernel(problem.descriptor, device):
                problem.check(problem.run(plan=plan))

    def test_every_size_of_the_sort(self, device: str) -> None:
        """Around a tile of 2048 entries and a chunk of 32, one digit to three, and no index."""
        for total in (0, 1, 31, 32, 33, 1023, 1025, 2047, 2048, 2049, 4097, 33000):
            for rows in (1, 255, 256, 70000):
                indices = torch.randint(0, rows, (total,), generator=torch.Generator().manual_seed(total)).to(device)
                dy = torch.randn(total, 4, device=device)
                want = defined(dy, indices, rows)
                for plan in each_kernel(sw.EmbeddingBackwardDescriptor(rows, 4, total, F32), device):
                    got = torch.full((rows, 4), math.nan, device=device)
                    plan.run(dy=dy, indices=indices, dweight=got)
                    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))

    def test_it_is_the_bag_of_one(self, dtype: torch.dtype, device: str) -> None:
        """The bits of embedding_bag_backward with a bag for each position."""
        for total, dim, rows in ((300, 8, 20), (5000, 64, 9), (9000, 300, 1000)):
            problem = make(EMBEDDING, (total, dim), dtype, device, rows=rows)
            dy, indices = problem.inputs["dy"], problem.inputs["indices"]
            offsets = torch.arange(total, device=device)
            bags = sw.embedding_bag_backward(dy, indices, offsets, num_embeddings=rows)
            assert same_bits(problem.call(), {"dweight": bags})

    def test_leading_dimensions(self, dtype: torch.dtype, device: str) -> None:
        """Any number of them; permuted, expanded and gapped ones of dy, and of indices."""
        dy = torch.randn(3, 4, 5, 8, device=device).to(dtype)
        indices = torch.randint(0, 9, (3, 4, 5), device=device)
        for change in (
            lambda x: x, lambda x: x[0], lambda x: x[0, 0], lambda x: x[0, 0, 0], lambda x: x[:0], lambda x: x[:, ::2],
            lambda x: x.transpose(0, 1), lambda x: x.permute(2, 0, 1, *range(3, x.dim())),
            lambda x: x[:1].expand(3, *x.shape[1:]), lambda x: x[:, :, :1].transpose(0, 2).expand(6, -1, -1, *x.shape[3:]),
        ):  # fmt: skip
            some, at = change(dy), change(indices)
            want = defined(some.reshape(-1, 8), at.reshape(-1), 9)
            for where in (at, at.clone(memory_format=torch.contiguous_format)):
                got = sw.embedding_backward(some, where, num_embeddings=9)
                torch.testing.assert_close(got.double(), want, rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=0.05)

    def test_an_expanded_gradient_is_not_copied(self, device: str) -> None:
        """Along some leading dimensions: bags of the positions that share a row of dy."""
        from sternway._embedding import _as_bags, _expanded

        row = torch.randn(3, 1, 4, 1, 8, device=device, dtype=F64)
        dy, indices = row.expand(3, 5, 4, 2, 8), torch.randint(0, 9, (3, 5, 4, 2), device=device)
        for view, at in ((dy, indices), (dy.permute(1, 2, 0, 3, 4), indices.permute(1, 2, 0, 3))):
            bags, where = _as_bags(view, at, _expanded(view, at))
            assert bags.shape == (12, 8)
            assert where.shape == (12, 10)
            assert view is not dy or bags.data_ptr() == row.data_ptr()
            for options in ({}, {"padding_idx": 2}, {"scale_grad_by_freq": True}):
                got = sw.embedding_backward(view, at, num_embeddings=9, **options)
                want = sw.embedding_backward(view.contiguous(), at, num_embeddings=9, **options)
                torch.testing.assert_close(got, want)
        with pytest.raises(sw.InvalidProblemError, match=r"^embedding_backward: out must be of shape"):
            sw.embedding_backward(dy, indices, num_embeddings=9, out=torch.empty(9, 7, dtype=F64, device=device))

    def test_a_permuted_gradient_is_not_copied(self, device: str) -> None:
        from sternway._embedding import _rows

        dy, indices = torch.randn(4, 3, 8, device=device).transpose(0, 1), torch.arange(12, device=device).view(3, 4)
        rows, flat = _rows(dy, indices)
        assert rows.data_ptr() == dy.data_ptr()
        assert torch.equal(rows[flat == 7], dy[1, 3][None])


@pytest.mark.gpu
@pytest.mark.parametrize("ids", ["uniform", "one row", "few rows", "every row"])
def test_a_vocabulary_of_a_language_model(ids: str) -> None:
    """151936 x 4096 in bfloat16 with 32768 ids, against sums in float32, a slice of columns at a time."""
    rows, dim, total = 151_936, 4096, 32_768
    drawn = {
        "uniform": lambda: torch.randint(0, rows, (total,), device="cuda"),
        "one row": lambda: torch.full((total,), rows - 1, device="cuda"),
        "few rows": lambda: torch.randint(5, 9, (total,), device="cuda"),
        "every row": lambda: torch.arange(total, device="cuda").flip(0),
    }[ids]()
    dy = torch.randn(total, dim, device="cuda").to(BF16)
    got = torch.full((rows, dim), math.nan, dtype=BF16, device="cuda")
    sw.embedding_backward(dy, drawn, num_embeddings=rows, out=got)
    for first in range(0, dim, 512):
        part = slice(first, first + 512)
        want = defined(dy[:, part], drawn, rows)
        assert ((got[:, part].double() - want).abs() <= 2**-8 * want.abs() + 1e-3).all()
    again = sw.embedding_backward(dy, drawn, num_embeddings=rows)
    assert torch.equal(got, again)


# --- indices out of range, errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", INTEGERS, ids=name_of)
@pytest.mark.parametrize(("values", "got"), [([0, 3, 1], "3 at position 1"), ([0, 1, -1], "-1 at position 2")])
def test_indices_out_of_range(values: list[int], got: str, index: torch.dtype) -> None:
    """On the CPU, an error that names the first bad position, and nothing written."""
    out = torch.full((3, 4), 7.0)
    before = Snapshot({"out": out})
    with pytest.raises(sw.InvalidProblemError, match=got) as caught:
        sw.embedding_backward(torch.ones(3, 4), torch.tensor(values, dtype=index), num_embeddings=3, out=out)
    assert caught.value.operand == "indices"
    before.check()


@pytest.mark.gpu
@pytest.mark.parametrize("index", INTEGERS, ids=name_of)
def test_indices_out_of_range_on_a_gpu(index: torch.dtype) -> None:
    """They contribute nothing and touch no memory; the others count, in either kernel."""
    for total in (40, 5000):
        values = torch.arange(total) % 3
        values[1], values[7], values[11] = 3, -1, torch.iinfo(index).max
        want = torch.bincount(values[(values >= 0) & (values < 3)], minlength=3).float()
        ones, out = torch.ones(total, 4, device="cuda"), torch.empty(3, 4, device="cuda")
        for plan in each_kernel(sw.EmbeddingBackwardDescriptor(3, 4, total, F32, index), "cuda"):
            plan.run(dy=ones, indices=values.to("cuda", index), dweight=out.fill_(math.nan))
            assert torch.equal(out.cpu(), want[:, None].expand(3, 4))


@pytest.mark.gpu
def test_check_names_the_position_on_a_gpu() -> None:
    """STERNWAY_CHECK=1: the error of the CPU, before anything is written."""
    from interpreter import python

    python("""
import torch, sternway as sw
out = torch.full((3, 4), 7.0, device="cuda")
try:
    sw.embedding_backward(torch.ones(3, 4, device="cuda"), torch.tensor([0, 3, 1], device="cuda"), num_embeddings=3, out=out)
    raise SystemExit("not refused")
except sw.InvalidProblemError as error:
    assert "3 at position 1" in str(error), error
assert (out == 7).all()
""", STERNWAY_CHECK="1")  # fmt: skip


@pytest.mark.gpu
def test_counts_of_a_gpu() -> None:
    """What its kernels cannot number is refused before anything is launched."""
    base = {"num_embeddings": 5, "embedding_dim": 1, "num_indices": 1, "dtype": F32}
    for name in ("num_embeddings", "embedding_dim", "num_indices"):
        descriptor = sw.EmbeddingBackwardDescriptor(**{**base, name: 2**31 - 1})
        with pytest.raises(sw.UnsupportedError, match=f"{name} must be less than 2147483647 on a GPU"):
            sw.EmbeddingBackwardPlan.select(descriptor, "cuda")


def test_errors_name_the_function_and_its_operands() -> None:
    dy, indices = torch.ones(2, 3), torch.tensor([1, 2])
    for operand, args, named in (
        ("out", (dy, indices), {"num_embeddings": 5, "out": torch.empty(5, 2)}),
        ("out", (dy, indices), {"num_embeddings": 5, "out": torch.empty(5, 3, dtype=F64)}),
        ("dy", (dy.int(), indices), {"num_embeddings": 5}),
        ("dy", (dy[0, 0], indices), {"num_embeddings": 5}),
        ("indices", (dy, indices.double()), {"num_embeddings": 5}),
        ("indices", (dy, indices[:1]), {"num_embeddings": 5}),
        ("indices", (dy, indices[:, None]), {"num_embeddings": 5}),
        ("indices", (dy, indices + 3), {"num_embeddings": 5}),
        *(("num_embeddings", (dy, indices), {"num_embeddings": n}) for n in ([5], "5", 2**70, 1.5, -1)),
        *(("padding_idx", (dy, indices), {"num_embeddings": 5, "padding_idx": n}) for n in (5, -6, 2**63, {}, "1")),
        *(("scale_grad_by_freq", (dy, indices), {"num_embeddings": 5, "scale_grad_by_freq": n}) for n in (1, None, "no")),
    ):
        with pytest.raises(sw.Error) as caught:
            sw.embedding_backward(*args, **named)
        assert (caught.value.op, caught.value.operand) == ("embedding_backward", operand), caught.value
        assert str(caught.value).startswith(f"embedding_backward: {operand} must be ")


def test_options_of_numpy() -> None:
    """Scalars of NumPy are options like those of Python."""
    dy, indices = np.arange(12.0).reshape(4, 3), np.array([1, 2, 1, 4])
    want = sw.embedding_backward(dy, indices, num_embeddings=5, padding_idx=2, scale_grad_by_freq=True)
    options = {"num_embeddings": np.int64(5), "padding_idx": np.int8(-3), "scale_grad_by_freq": np.True_}
    assert (sw.embedding_backward(dy, indices, **options) == want).all()
    assert want.tolist() == [[0, 0, 0], [3, 4, 5], [0, 0, 0], [0, 0, 0], [9, 10, 11]]


def test_any_library_in_leading_dimensions() -> None:
    """Arrays of the array API standard, and views of them that cannot be merged are refused by name."""
    xp = pytest.importorskip("array_api_strict")
    dy, indices = np.arange(24.0).reshape(2, 3, 4), np.array([[0, 1, 1], [2, 0, 1]])
    want = sw.embedding_backward(dy, indices, num_embeddings=3)
    got = sw.embedding_backward(xp.asarray(dy), xp.asarray(indices), num_embeddings=3)
    assert (np.from_dlpack(got) == want).all()
    with pytest.raises(sw.UnsupportedError, match="contiguous in its leading dimensions"):
        sw.embedding_backward(xp.asarray(dy)[:, ::2, :], xp.asarray(indices[:, ::2].copy()), num_embeddings=3)
