"""embedding_bag, one table and many: options, ties and NaN, long bags, tables of several widths, bad integers, refusals."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from conformance import Conformance, same_bits
from families import make
from families.embedding_bag_forward import EMBEDDING_BAG_FORWARD
from support import F32, F64, FLOATS, name_of
from torch import Tensor

import sternway as sw

INTEGERS = (torch.int32, torch.int64)
MODES = ("sum", "mean", "max")
OPTIONS = {
    "plain": {"weighted": False},
    "weighted": {},
    "weights in float32": {"single": True, "padding": 2},
    "padding": {"padding": 3},
    "padding from the end": {"padding": -1, "weighted": False},
    "last offset": {"last": True},
    "long bags": {"longest": 300},
    "nothing counts": {"rows": 1, "padding": 0},
    "everything": {"padding": -2, "last": True, "longest": 9, "single": True},
}


class TestEmbeddingBagForward(Conformance):
    family = EMBEDDING_BAG_FORWARD
    reducing: ClassVar = {"weighted": False, "one_bag": True}

    @pytest.mark.parametrize("chosen", OPTIONS.values(), ids=OPTIONS.keys())
    @pytest.mark.parametrize("mode", MODES)
    def test_options(self, mode: str, chosen: Any, dtype: torch.dtype, device: str) -> None:
        """A mode that ignores an option; int32 and int64 in every pairing, where integers of a wrong width would be read."""
        pairs = ((a, b) for a in INTEGERS for b in INTEGERS)
        for shape, (index, offset) in zip(((37, 16), (9, 33), (400, 5), (1, 1)), pairs, strict=True):
            problem = make(EMBEDDING_BAG_FORWARD, shape, dtype, device, mode=mode, index=index, offset=offset, **chosen)
            problem.check(problem.run(), rival=True)
            problem.check(problem.call())

    @pytest.mark.parametrize("columns", [1, 2, 4, 8, 12, 16, 20, 32, 60, 64, 100, 128, 130, 256, 260, 1000, 1024])
    @pytest.mark.parametrize("mode", MODES)
    def test_widths(self, columns: int, mode: str, dtype: torch.dtype, device: str) -> None:
        """Each division of columns among threads: a group of another size, or a last slice, could leave columns out."""
        for longest in (3, 70):
            problem = make(EMBEDDING_BAG_FORWARD, (21, columns), dtype, device, mode=mode, rows=90, longest=longest)
            first = problem.run()
            problem.check(first)
            assert all(same_bits(problem.run(), first) for _ in range(3))

    def test_maximum_of_ties_and_nan(self, dtype: torch.dtype, device: str) -> None:
        """As torch has it on the CPU: the first of equal rows, and a NaN only where it comes first."""
        n = math.nan
        table = torch.tensor([[n, 1, -0.0, 2], [1, n, 0.0, 2], [2, 3, -1, 2], [2, 3, -math.inf, 2]]).repeat(1, 9)
        for indices in itertools.permutations(range(4), 3):
            rows, start = torch.tensor(indices), torch.tensor([0])
            want = torch.embedding_bag(table, rows, start, False, 2)
            y, argmax = sw.embedding_bag(*(x.to(device) for x in (table.to(dtype), rows, start)), mode="max")
            torch.testing.assert_close(y.cpu().float(), want[0], equal_nan=True, rtol=0, atol=0)
            assert torch.equal(argmax.cpu(), want[3])

    def test_maximum_that_is_not_positive(self, device: str) -> None:
        """A maximum that starts from 0 would hide negative rows; an infinity is a value like others."""
        table = torch.tensor([[-3.0, -math.inf], [-2.0, -math.inf]], device=device)
        rows, start = torch.tensor([0, 1], device=device), torch.tensor([0, 2], device=device)
        y, argmax = sw.embedding_bag(table, rows, start, mode="max")
        assert y.tolist() == [[-2, -math.inf], [0, 0]]
        assert argmax.tolist() == [[1, 0], [-1, -1]]

    def test_y_alone_in_mode_max(self, device: str) -> None:
        """max_indices may be left out, and may be int64 beside int32 indices."""
        problem = make(EMBEDDING_BAG_FORWARD, (9, 24), F32, device, mode="max", index=torch.int32)
        both = problem.run()
        assert same_bits(problem.run(("y",)), {"y": both["y"]})
        wide = torch.empty(9, 24, dtype=torch.int64, device=device)
        problem.plan().run(**problem.inputs, y=torch.empty(9, 24, device=device), max_indices=wide)
        assert torch.equal(wide.int(), both["max_indices"])

    @pytest.mark.parametrize("mode", MODES)
    def test_rank_2(self, mode: Any, device: str) -> None:
        """Each row of indices is a bag."""
        table, indices = torch.randn(9, 12, device=device), torch.randint(0, 9, (5, 3), device=device)
        starts = torch.arange(0, 15, 3, device=device)
        got, want = (sw.embedding_bag(table, *x, mode=mode) for x in ((indices,), (indices.reshape(-1), starts)))
        if mode != "max":
            got, want = (got,), (want,)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))

    def test_gradient_takes_the_maximum(self, device: str) -> None:
        """max_indices mean the same to the backward, -1 included."""
        table = torch.randn(30, 8, device=device)
        rows, starts = torch.randint(0, 30, (50,), device=device), torch.tensor([0, 0, 7, 30, 30], device=device)
        y, argmax = sw.embedding_bag(table, rows, starts, mode="max", padding_idx=4)
        dweight = sw.embedding_bag_backward(
            torch.ones_like(y), rows, starts, num_embeddings=30, mode="max", padding_idx=4, max_indices=argmax
        )
        counts = torch.zeros(30, 8, device=device)
        for b in (1, 2, 4):
            counts.scatter_add_(0, argmax[b][None].long(), torch.ones(1, 8, device=device))
        assert torch.equal(dweight, counts)


# --- many tables ------------------------------------------------------------------------------------------------------


class Tables:
    """Tables end to end, with gaps between them that hold NaN, and bags for each."""

    def __init__(
        self, sizes: Sequence[tuple[int, int]], bags: int, longest: int, dtype: torch.dtype, device: str, *,
        mode: Any = "sum", index: torch.dtype = torch.int64, sample: torch.dtype | None = None, multiple: int = 1,
    ) -> None:  # fmt: skip
        """multiple: each table begins at a multiple of so many elements."""
        generator = torch.Generator().manual_seed(len(sizes) + bags)
        self.sizes, self.bags, self.mode, self.dtype, self.device = sizes, bags, mode, dtype, device
        self.tables = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
        rows, parts = [[0, 0, 0]], []
        for k, table in enumerate(self.tables):
            gap = -table.numel() % multiple + multiple * (k % 2)
            parts += [table.flatten(), torch.full((gap,), math.nan, dtype=dtype)]
            rows.append([rows[-1][0] + len(table), rows[-1][1] + table.numel() + gap, rows[-1][2] + table.shape[1]])
        lengths = torch.randint(0, longest + 1, (len(sizes) * bags,), generator=generator)
        self.offsets = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
        ends = self.offsets[::bags].tolist() if bags else [0] * (len(sizes) + 1)
        bounds = zip(sizes, ends, ends[1:], strict=False)
        drawn = [torch.randint(0, n, (end - first,), generator=generator) for (n, _), first, end in bounds]
        self.indices, total = torch.cat([*drawn, torch.zeros(0, dtype=torch.int64)]), ends[-1]
        inputs = {"weight": torch.cat(parts) if parts else torch.empty(0, dtype=dtype), "indices": self.indices.to(index)}
        inputs |= {"offsets": self.offsets, "tables": torch.tensor(rows)}
        if sample is not None:
            inputs["per_sample_weights"] = torch.randn(total, generator=generator).to(sample)
        self.inputs = {name: x.to(device) for name, x in inputs.items()}
        self.columns = rows[-1][2]
        self.descriptor = sw.EmbeddingBagsDescriptor(
            len(sizes), bags, rows[-1][0], len(inputs["weight"]), self.columns, max((d for _, d in sizes), default=0), total,
            dtype, mode, index, torch.int64, is_aligned=multiple > 1,
        )  # fmt: skip

    def run(self, y: Tensor | None = None, **change: Any) -> dict[str, Tensor]:
        """Run the plan into NaN-poisoned outputs."""
        shape = (self.bags, self.columns)
        outputs = {"y": torch.full(shape, math.nan, dtype=self.dtype, device=self.device) if y is None else y}
        if self.mode == "max":
            outputs["max_indices"] = torch.full(shape, -7, device=self.device)
        sw.EmbeddingBagsPlan.select(self.descriptor, self.device).run(**{**self.inputs, **change}, **outputs)
        return outputs

    def each(self) -> dict[str, Tensor]:
        """The outputs of a plan of one table for each table."""
        found, ends = [], self.offsets[:: self.bags].tolist()
        for k, table in enumerate(self.tables):
            some, bounds = slice(ends[k], ends[k + 1]), self.offsets[k * self.bags : (k + 1) * self.bags + 1] - ends[k]
            samples = self.inputs.get("per_sample_weights")
            found.append(
                sw.embedding_bag(
                    table.to(self.device), self.indices[some].to(self.device), bounds.to(self.device), mode=self.mode,
                    per_sample_weights=None if samples is None else samples[some], include_last_offset=True,
                )
            )  # fmt: skip
        columns = zip(*found, strict=True) if self.mode == "max" else (found,)
        return {name: torch.cat(list(x), 1) for name, x in zip(("y", "max_indices"), columns, strict=False)}


SIZES = {
    "1 table": [(50, 64)],
    "26 tables": [(10 + 7 * k, 16 * (1 + k % 8)) for k in range(26)],
    "odd widths": [(5, 3), (1, 1), (40, 77), (9, 130), (3, 0), (8, 260)],
    "wide ones": [(20, 8), (4, 1024), (7, 512)],
}


class TestManyTables:
    @pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
    @pytest.mark.parametrize("mode", MODES)
    def test_it_is_each_table(self, mode: Any, sizes: Any, dtype: torch.dtype, device: str) -> None:
        """The bits of one table after the other: a row, an offset or a column of another table would be in them."""
        multiple = 16 if all(d % 8 == 0 for _, d in sizes) else 1
        for index, sample, bags in ((torch.int32, None, 5), (torch.int64, dtype, 70), (torch.int64, F32, 1)):
            sample = sample if mode == "sum" else None
            tables = Tables(sizes, bags, 11, dtype, device, mode=mode, index=index, sample=sample, multiple=multiple)
            got = tables.run()
            assert same_bits(got, tables.each())
            assert same_bits(tables.run(), got)

    def test_layouts(self, device: str) -> None:
        """Operands with strides; y in a wider matrix, and transposed."""
        tables = Tables(SIZES["26 tables"], 9, 5, F32, device, multiple=16, sample=F32)
        want = tables.each()["y"]
        names = ("indices", "offsets", "per_sample_weights")
        spread = {name: torch.stack([tables.inputs[name]] * 2, 1)[:, 0] for name in names}
        shape = (9, tables.columns)
        for y in (torch.empty(9, tables.columns + 1, device=device)[:, 1:], torch.empty(shape[::-1], device=device).t()):
            assert torch.equal(tables.run(y.fill_(math.nan), **spread)["y"], want)

    def test_nothing(self, device: str) -> None:
        """No table, no bag, no position, no row."""
        assert not len(Tables([], 3, 2, F32, device).run()["y"].flatten())
        assert not len(Tables([(3, 4)], 0, 2, F32, device).run()["y"].flatten())
        for mode in MODES:
            outputs = Tables([(3, 8), (5, 4)], 6, 0, F32, device, mode=mode).run()
            assert not outputs["y"].any()
            assert mode != "max" or (outputs["max_indices"] == -1).all()

    @pytest.mark.gpu
    @pytest.mark.parametrize("mode", MODES)
    def test_bad_integers_on_a_gpu(self, mode: Any) -> None:
        """A bad index contributes nothing, a bag with a bad bound is empty, and the other tables are right."""
        tables = Tables([(5, 16), (4, 8), (7, 32)], 3, 6, F32, "cuda", mode=mode, multiple=4)
        want, start = tables.each(), tables.offsets[3].item()
        for name, at, values in (("indices", start, (-1, 4, 2**40)), ("offsets", 4, (-1, 2**40, -(2**50)))):
            for value in values:
                changed = tables.inputs[name].clone()
                changed[at] = value
                got = tables.run(**{name: changed})["y"]
                assert got.isfinite().all()
                assert torch.equal(got[:, :16], want["y"][:, :16])
                assert torch.equal(got[:, 24:], want["y"][:, 24:])
                if name == "offsets":
                    assert not got[:2, 16:24].any()

    def test_table_behind_2_to_the_31_bytes(self) -> None:
        """Elements of a table are counted in 64 bits."""
        first, width = 2**29 + 8, 8
        weight = torch.empty(first + 2 * width)  # pages that nobody touches take no memory
        weight[first:] = torch.arange(2.0 * width)
        tables = torch.tensor([[0, 0, 0], [0, first, 0], [2, first + 2 * width, width]])
        d = sw.EmbeddingBagsDescriptor(2, 1, 2, len(weight), width, width, 1, F32)
        y = torch.empty(1, width)
        sw.EmbeddingBagsPlan.select(d).run(
            weight=weight, indices=torch.tensor([1]), offsets=torch.tensor([0, 0, 1]), tables=tables, y=y
        )
        assert y[0].tolist() == list(range(width, 2 * width))


# --- bad integers, refusals -------------------------------------------------------------------------------------------


BAD = {
    "index at the end": ([0, 3, 1], [0, 1], "indices must be in [0, 3), the rows of the table, got 3 at position 1"),
    "negative index": ([0, 1, -1], [0, 1], "got -1 at position 2"),
    "first offset": ([0, 1, 2], [1, 2], "offsets must be in order, from 0 to at most 3 indices, got 1 at bag 0"),
    "falling offset": ([0, 1, 2], [0, -1], "got -1 at bag 1"),
    "offset behind the end": ([0, 1, 2], [0, 4], "got 4 at bag 1"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("mode", MODES)
def test_bad_integers(mode: Any, case: Any) -> None:
    """Refused on the CPU before anything is written."""
    indices, offsets, text = case
    out = torch.full((2, 4), 7.0)
    given = (out, torch.full((2, 4), 7)) if mode == "max" else out
    with pytest.raises(sw.InvalidProblemError, match=re.escape(text)):
        sw.embedding_bag(torch.ones(3, 4), torch.tensor(indices), torch.tensor(offsets), mode=mode, out=given)
    assert (out == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_integers_on_a_gpu(case: Any) -> None:
    """They contribute nothing: a bag has the sum of its valid rows, or is empty where a bound is bad."""
    indices, offsets, _ = case
    rows, starts = torch.tensor(indices, device="cuda"), torch.tensor(offsets, device="cuda")
    y = sw.embedding_bag(torch.ones(3, 4, device="cuda"), rows, starts, out=torch.full((2, 4), math.nan, device="cuda"))
    bounds = zip(offsets, [*offsets[1:], 3], strict=True)
    want = [sum(0 <= i < 3 for i in indices[a:b]) if 0 <= a <= b <= 3 else 0 for a, b in bounds]
    assert y[:, 0].tolist() == want


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"weight": torch.ones(3)}, "weight must be of rank 2"),
        ({"offsets": None}, "offsets must be given for indices of rank 1"),
        ({"offsets": torch.tensor([[0]])}, "offsets must be of rank 1"),
        ({"indices": torch.tensor([[0]])}, "offsets must be left out for indices of rank 2"),
        ({"indices": torch.tensor([0.0])}, "index_dtype|indices must be int32 or int64"),
        ({"mode": "mean", "per_sample_weights": torch.ones(3)}, "per_sample_weights must be left out in mode mean"),
        ({"mode": "max", "per_sample_weights": torch.ones(3)}, "per_sample_weights must be left out in mode max"),
        ({"per_sample_weights": torch.ones(2)}, r"per_sample_weights must be of shape \[3\] like indices"),
        ({"per_sample_weights": torch.ones(3, dtype=F64)}, "per_sample_weights must be float32 like weight"),
        ({"mode": "min"}, "mode must be sum, mean or max"),
        ({"padding_idx": 3}, r"padding_idx must be in \[-3, 3\)"),
        ({"include_last_offset": 1}, "include_last_offset must be True or False"),
        ({"include_last_offset": True, "offsets": torch.empty(0, dtype=torch.int64)}, "of at least one element"),
        ({"mode": "max", "out": torch.empty(2, 4)}, "out must be 2 arrays"),
        ({"out": torch.empty(2, 5)}, r"out must be of shape \[2, 4\]"),
        ({"weight": torch.ones(3, 4, dtype=torch.int32)}, "weight must be float32, float64, float16 or bfloat16"),
    ],
)  # fmt: skip
def test_refusals(change: Any, text: str) -> None:
    """Each by the name of the argument."""
    call = {"weight": torch.ones(3, 4), "indices": torch.tensor([0, 1, 2]), "offsets": torch.tensor([0, 2])}
    with pytest.raises(sw.Error, match=text):
        sw.embedding_bag(**{**call, **change})


@pytest.mark.gpu
def test_check_names_the_position_on_a_gpu() -> None:
    """STERNWAY_CHECK=1: the error of the CPU, for `tables` as well, before anything is written."""
    from interpreter import python

    python("""
import torch, sternway as sw
on = dict(device="cuda")
plan = sw.EmbeddingBagsPlan.select(sw.EmbeddingBagsDescriptor(2, 1, 5, 20, 8, 4, 3, "float32"), "cuda")
good = dict(weight=torch.ones(20, **on), indices=torch.tensor([0, 1, 2], **on), offsets=torch.tensor([0, 2, 3], **on),
            tables=torch.tensor([[0, 0, 0], [2, 8, 4], [5, 20, 8]], **on))
y = torch.full((1, 8), 7.0, **on)
for name, at, value, text in (("indices", 1, 2, "2 at position 1, of table 0"), ("offsets", 2, 2, "2 at position 2"),
                              ("tables", 4, 7, "7 at [1, 1]")):
    bad = good[name].clone()
    bad.view(-1)[at] = value
    try:
        plan.run(**{**good, name: bad}, y=y)
        raise SystemExit("not refused")
    except sw.InvalidProblemError as error:
        assert text in str(error), error
assert (y == 7).all()
plan.run(**good, y=y)
assert y.tolist() == [[2, 2, 2, 2, 1, 1, 1, 1]]
""", STERNWAY_CHECK="1")  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_numpy_out(dtype: torch.dtype) -> None:
    """Arrays of NumPy in and out, with the bits of torch."""
    if dtype is torch.bfloat16:
        dtype = F64
    table, rows, starts = torch.randn(9, 5).to(dtype), torch.randint(0, 9, (20,)), torch.tensor([0, 3, 3])
    for mode in MODES:
        want = sw.embedding_bag(table, rows, starts, mode=mode)  # type: ignore[call-overload]
        got = sw.embedding_bag(table.numpy(), rows.numpy(), starts.numpy(), mode=mode)  # type: ignore[call-overload]
        for a, b in zip(*((x if mode == "max" else (x,)) for x in (got, want)), strict=True):
            assert type(a) is np.ndarray
            assert np.array_equal(a, b.numpy())
