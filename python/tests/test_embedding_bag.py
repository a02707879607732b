"""embedding_bag: modes, options, ragged bags, hot rows, PyTorch's own samples, values out of range, the drop-in."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from conformance import Conformance, same_bits
from families import make
from families.embedding_bag import EMBEDDING_BAG, MODES
from hypothesis import given
from hypothesis import strategies as hs
from support import F32, F64, FLOATS, Snapshot, free_memory, gradcheck, gradgradcheck, name_of
from torch.testing._internal.common_methods_invocations import op_db

import sternway as sw
import sternway.torch as st

INTEGERS = (torch.int32, torch.int64)
BY_TORCH = torch.nn.functional.embedding_bag
# What a call may ask for, beside the mode.
OPTIONS = {
    "plain": {"weighted": False},
    "weighted": {},
    "weights in float32": {"single": True, "padding": 2},
    "padding": {"padding": 3},
    "padding from the end": {"padding": -1, "weighted": False},
    "last offset": {"last": True},
    "by frequency": {"by_frequency": True, "weighted": False},
    "long bags": {"longest": 100, "weighted": False},
    "one row": {"rows": 1, "weighted": False},
    "nothing counts": {"rows": 1, "padding": 0},
    "more rows than positions": {"rows": 5000, "weighted": False},
    "everything": {"padding": -2, "last": True, "by_frequency": True, "longest": 9},
}


def zipf(rows: int, total: int, device: str) -> torch.Tensor:
    """Indices of which the first rows have most: harmonic frequencies."""
    generator = torch.Generator().manual_seed(1)
    weights = 1 / torch.arange(1, rows + 1, dtype=F64)
    return torch.multinomial(weights, total, replacement=True, generator=generator).to(device)


def each_kernel(d: sw.EmbeddingBagBackwardDescriptor, device: str) -> list[sw.EmbeddingBagBackwardPlan]:
    """A plan for each kernel that takes a problem: on CUDA "single_launch" takes what "sorted" sorts in one block."""
    names = ("single_launch", "sorted") if device != "cpu" and 0 < d.total_indices <= 2048 else ("sorted",)
    return [sw.EmbeddingBagBackwardPlan.select(d, device, sw.PlanPreference(kernel=name)) for name in names]


class TestEmbeddingBag(Conformance):
    family = EMBEDDING_BAG
    reducing: ClassVar = {"rows": 1, "weighted": False}

    @pytest.mark.parametrize("chosen", OPTIONS.values(), ids=OPTIONS.keys())
    @pytest.mark.parametrize("mode", MODES)
    def test_options(self, mode: str, chosen: Any, dtype: torch.dtype, device: str) -> None:
        """In each mode, with int32 and int64 in every pairing."""
        chosen = {**chosen, "by_frequency": mode != "max" and chosen.get("by_frequency", False)}
        pairs = ((a, b) for a in INTEGERS for b in INTEGERS)
        for shape, (index, offset) in zip(((37, 16), (9, 33), (400, 5), (1, 1)), pairs, strict=True):
            problem = make(EMBEDDING_BAG, shape, dtype, device, mode=mode, index=index, offset=offset, **chosen)
            for plan in each_kernel(problem.descriptor, device):
                problem.check(problem.run(plan=plan), rival=True)
            problem.check(problem.call())

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("shape", [(70, 96), (300, 64), (2500, 8), (60, 300)], ids=str)
    def test_hot_rows(self, shape: Any, mode: str, dtype: torch.dtype, device: str) -> None:
        """Rows with thousands of positions beside rows with one, and the same bits in 20 runs."""
        problem = make(EMBEDDING_BAG, shape, dtype, device, mode=mode, rows=700, longest=40, weighted=False)
        indices = problem.inputs["indices"]
        indices.copy_(zipf(700, len(indices), device))
        if mode == "max":  # the first position of each bag wins everything
            offsets = problem.inputs["offsets"]
            first = indices[offsets.clamp(max=len(indices) - 1)]
            problem.inputs["max_indices"].copy_(first[:, None].expand(shape))
        problem.truth.update(EMBEDDING_BAG.truth(problem.descriptor, problem.inputs))
        for plan in each_kernel(problem.descriptor, device):
            first = problem.run(plan=plan)
            problem.check(first)
            assert all(same_bits(problem.run(plan=plan), first) for _ in range(20))

    @pytest.mark.parametrize("mode", ["sum", "max"])
    @pytest.mark.parametrize("columns", [1, 2, 3, 4, 8, 64, 260])
    def test_equal_terms(self, columns: int, mode: str, device: str) -> None:
        """Equal terms round the same way: a sequential sum of 61 is off by up to 16 roundings, and 5 + log2 n are allowed.

        In mode sum of one bag; in mode max of a bag for each, whose gradient may be one number for all columns.
        """
        for n in (31, 61, 95, 1000):
            bags = n if mode == "max" else 1
            indices = torch.zeros(n, dtype=torch.int64, device=device)
            descriptor = sw.EmbeddingBagBackwardDescriptor(1, columns, bags, n, F32, mode)
            won = torch.zeros(bags, columns, dtype=torch.int64, device=device) if mode == "max" else None
            dy = torch.full((bags, columns), 1.9397392, device=device)
            dweight, exact = torch.empty_like(dy[:1]), n * dy[:1].double()
            for plan, terms in itertools.product(each_kernel(descriptor, device), (dy, dy[:, :1].expand(bags, columns))):
                offsets = torch.arange(bags, device=device)
                plan.run(dy=terms, indices=indices, offsets=offsets, max_indices=won, dweight=dweight.fill_(math.nan))
                assert ((dweight.double() - exact).abs() <= (5 + math.log2(n)) * 2**-24 * exact).all(), (n, dweight, exact)

    @given(data=hs.data())
    def test_ragged(self, data: hs.DataObject) -> None:
        """Any lengths of bags, in every mode, with duplicates, against the definition."""
        mode, rows = data.draw(hs.sampled_from(MODES)), data.draw(hs.integers(1, 9))
        problem = make(
            EMBEDDING_BAG, (data.draw(hs.integers(0, 9)), data.draw(hs.integers(1, 40))),
            data.draw(hs.sampled_from(FLOATS)), "cpu",
            mode=mode, rows=rows, longest=data.draw(hs.integers(0, 30)),
            last=data.draw(hs.booleans()), single=data.draw(hs.booleans()),
            padding=data.draw(hs.one_of(hs.none(), hs.integers(-rows, rows - 1))), seed=data.draw(hs.integers(0, 99)),
        )  # fmt: skip
        problem.check(problem.run())

    def test_every_size_of_the_sort(self, device: str) -> None:
        """Around a tile of 2048 entries and a chunk of 32, one digit to three; no bag at all; positions that no bag has."""
        for total in (31, 32, 33, 1023, 1025, 2047, 2048, 2049, 4097, 33000):
            for rows in (1, 255, 256, 70000):
                indices = torch.randint(0, rows, (total,), generator=torch.Generator().manual_seed(total)).to(device)
                offsets = torch.arange(0, total, 7, device=device)
                dy = torch.randn(len(offsets), 4, device=device)
                bag = torch.arange(total, device=device) // 7
                want = torch.zeros(rows, 4, dtype=F64, device=device).index_add(0, indices, dy.double()[bag])
                for plan in each_kernel(sw.EmbeddingBagBackwardDescriptor(rows, 4, len(offsets), total, F32), device):
                    got = torch.full((rows, 4), math.nan, device=device)
                    plan.run(dy=dy, indices=indices, offsets=offsets, dweight=got)
                    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        dy = torch.empty(0, 5, device=device)
        assert not sw.embedding_bag_backward(dy, nothing, nothing, num_embeddings=3).any()
        assert not sw.embedding_bag_backward(dy, torch.tensor([1, 2], device=device), nothing, num_embeddings=3).any()

    def test_rows_of_rank_2(self, device: str) -> None:
        """Each row of indices is a bag; a transposed one, too. The gradient of the weights has its shape."""
        indices = torch.tensor([[1, 0], [2, 2], [0, 1]], device=device).T
        dy, weight, weights = (
            torch.randn(2, 3, device=device),
            torch.randn(3, 3, device=device),
            torch.rand(2, 3, device=device),
        )
        got = sw.embedding_bag_backward(dy, indices, num_embeddings=3, per_sample_weights=weights)
        want = torch.zeros(3, 3, device=device)
        for b in range(2):
            for i in range(3):
                want[indices[b, i]] += weights[b, i] * dy[b]
        torch.testing.assert_close(got, want)
        dots = sw.embedding_bag_per_sample_weights_backward(dy, weight, indices)
        torch.testing.assert_close(dots, (dy[:, None] * weight[indices]).sum(2))
        out = torch.empty(2, 3, device=device)
        assert sw.embedding_bag_per_sample_weights_backward(dy, weight, indices, out=out).data_ptr() == out.data_ptr()
        assert torch.equal(out, dots)

    @pytest.mark.parametrize("sample", [None, F32], ids=str)
    def test_layouts_of_the_gradient_of_weights(self, sample: torch.dtype | None, dtype: torch.dtype, device: str) -> None:
        """Of rank 2, or of rank 1, written where it lies, and nowhere else; expanded it is refused."""
        for bags, width in ((4, 7), (1, 5), (5, 1), (70, 33)):
            indices = torch.arange(bags * width, device=device).reshape(bags, width) % 6
            dy, weight = (torch.randn(n, 12, device=device).to(dtype) for n in (bags, 6))
            want = (dy.double()[:, None] * weight.double()[indices]).sum(2)

            def memory(*shape: int) -> torch.Tensor:
                return torch.full(shape, 77.0, dtype=sample or dtype, device=device)

            for whole, out in (
                *((m, m) for m in (memory(bags, width),)),
                *((m, m.T) for m in (memory(width, bags),)),
                *((m, m[:, :width]) for m in (memory(bags, width + 3),)),
                *((m, m[1:, 1::2]) for m in (memory(bags + 1, 2 * width + 1),)),
                *((m, m[..., 0].T) for m in (memory(width, bags, 2),)),
            ):
                assert sw.embedding_bag_per_sample_weights_backward(dy, weight, indices, out=out) is out
                torch.testing.assert_close(
                    out.double(), want.to(out.dtype).double(), rtol=1e-2 if dtype != F32 else 1e-5, atol=1e-4
                )
                kept = out.clone()
                out.fill_(77)
                assert (whole == 77).all(), "written outside"
                offsets = torch.arange(bags, device=device) * width
                line = memory(2 * bags * width)[::2]
                sw.embedding_bag_per_sample_weights_backward(dy, weight, indices.reshape(-1), offsets, out=line)
                assert torch.equal(line.reshape(bags, width), kept)
            if bags * width > 1:
                with pytest.raises(sw.InvalidProblemError, match="repeated") as caught:
                    sw.embedding_bag_per_sample_weights_backward(dy, weight, indices, out=memory(1, 1).expand(bags, width))
                assert caught.value.operand == "out"
        with pytest.raises(sw.InvalidProblemError, match="like indices"):
            sw.embedding_bag_per_sample_weights_backward(dy, weight, indices, out=memory(bags * width))

    @pytest.mark.parametrize("mode", MODES)
    def test_samples_of_torch(self, mode: str, device: str) -> None:
        """Every sample that PyTorch tests its own embedding_bag with, through the drop-in."""
        (op,) = [info for info in op_db if info.name == "nn.functional.embedding_bag"]
        tested = 0
        for sample in op.sample_inputs(device.split(":")[0], F64, requires_grad=True):
            if sample.kwargs.get("mode", "mean") != mode:
                continue
            weight, args, named = sample.input, sample.args, dict(sample.kwargs)
            leaves = [t for t in (weight, named.get("per_sample_weights")) if t is not None]
            ours = st.embedding_bag(args[0], weight, *args[1:], **named)
            theirs = BY_TORCH(args[0], weight, *args[1:], **named)
            torch.testing.assert_close(ours, theirs)
            dy = torch.randn_like(ours)
            got, want = torch.autograd.grad(ours, leaves, dy), torch.autograd.grad(theirs, leaves, dy)
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b)
            tested += 1
        assert tested >= 5


# --- values out of range ----------------------------------------------------------------------------------------------

BROKEN = {
    "index at the end": ({"indices": [0, 3, 1]}, "indices", "3 at position 1"),
    "negative index": ({"indices": [0, 1, -1]}, "indices", "-1 at position 2"),
    "first offset": ({"offsets": [1, 2]}, "offsets", "1 at bag 0"),
    "offsets that fall": ({"offsets": [0, 2], "more": [1]}, "offsets", "1 at bag 2"),
    "offset behind the indices": ({"offsets": [0, 9]}, "offsets", "9 at bag 1"),
}


@pytest.mark.parametrize("index", INTEGERS, ids=name_of)
@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN.keys())
def test_values_out_of_range(case: Any, index: torch.dtype) -> None:
    """On the CPU, an error that names the first bad position, and nothing written."""
    values, operand, got = case
    indices = torch.tensor(values.get("indices", [0, 1, 2]), dtype=index)
    offsets = torch.tensor([*values.get("offsets", [0, 2]), *values.get("more", [])])
    dy, out = torch.ones(len(offsets), 4), torch.full((3, 4), 7.0)
    before = Snapshot({"out": out})
    with pytest.raises(sw.InvalidProblemError, match=got) as caught:
        sw.embedding_bag_backward(dy, indices, offsets, num_embeddings=3, out=out)
    assert caught.value.operand == operand
    before.check()


def test_max_indices_out_of_range() -> None:
    max_indices = torch.tensor([[0, 5]])
    with pytest.raises(sw.InvalidProblemError, match=r"5 at \[0, 1\]"):
        sw.embedding_bag_backward(
            torch.ones(1, 2), torch.tensor([0, 1]), torch.tensor([0]), num_embeddings=3, mode="max", max_indices=max_indices
        )


def test_max_indices_of_bags_without_a_counted_position() -> None:
    """They are not looked at: a bag that is empty, and one of padding alone."""
    max_indices = torch.tensor([[0, 1], [7, 7], [7, -9]])
    dweight = sw.embedding_bag_backward(
        torch.ones(3, 2), torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2]), num_embeddings=3, mode="max", padding_idx=2,
        max_indices=max_indices,
    )  # fmt: skip
    assert dweight.tolist() == [[1, 0], [0, 1], [0, 0]]


def test_rows_as_bags_have_no_last_offset() -> None:
    """As in torch, include_last_offset says nothing of indices of rank 2."""
    dy, weight, indices = torch.rand(2, 3), torch.rand(2, 3), torch.tensor([[0, 1], [1, 0]])
    table = [sw.embedding_bag_backward(dy, indices, num_embeddings=2, include_last_offset=last) for last in (False, True)]
    samples = [
        sw.embedding_bag_per_sample_weights_backward(dy, weight, indices, include_last_offset=last) for last in (False, True)
    ]
    assert torch.equal(*table)
    assert torch.equal(*samples)


@pytest.mark.gpu
@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN.keys())
def test_values_out_of_range_on_a_gpu(case: Any) -> None:
    """They contribute nothing and touch no memory; what is right is counted."""
    values, _, _ = case
    indices = torch.tensor(values.get("indices", [0, 1, 2]), device="cuda")
    offsets = torch.tensor([*values.get("offsets", [0, 2]), *values.get("more", [])], device="cuda")
    ones, out = torch.ones(len(offsets), 4, device="cuda"), torch.empty(3, 4, device="cuda")
    plans = each_kernel(sw.EmbeddingBagBackwardDescriptor(3, 4, len(offsets), 3, F32), "cuda")
    for weights, plan in itertools.product((None, torch.ones(3, device="cuda")), plans):
        plan.run(dy=ones, indices=indices, offsets=offsets, per_sample_weights=weights, dweight=out.fill_(math.nan))
        if "indices" in values:
            right = [i for i in values["indices"] if 0 <= i < 3]
            want = torch.bincount(torch.tensor(right), minlength=3).float()
            assert torch.equal(out.cpu(), want[:, None].expand(3, 4))
        assert out.isfinite().all()


@pytest.mark.gpu
def test_check_names_the_position_on_a_gpu() -> None:
    """STERNWAY_CHECK=1: the error of the CPU, before anything is written."""
    from interpreter import python

    python("""
import torch, sternway as sw
dy, offsets = torch.ones(2, 4, device="cuda"), torch.tensor([0, 2], device="cuda")
out = torch.full((3, 4), 7.0, device="cuda")
for indices, wrong in (([0, 3, 1], "3 at position 1"), ([0, 1, -1], "-1 at position 2")):
    try:
        sw.embedding_bag_backward(dy, torch.tensor(indices, device="cuda"), offsets, num_embeddings=3, out=out)
        raise SystemExit("not refused")
    except sw.InvalidProblemError as error:
        assert wrong in str(error), error
assert (out == 7).all()
try:
    sw.embedding_bag_backward(dy, torch.tensor([0, 1], device="cuda"), offsets + 1, num_embeddings=3, out=out)
    raise SystemExit("not refused")
except sw.InvalidProblemError as error:
    assert "1 at bag 0" in str(error), error
sw.embedding_bag_backward(dy, torch.tensor([0, 1, 1], device="cuda"), offsets, num_embeddings=3, out=out)
assert out[:, 0].tolist() == [1, 2, 0]
""", STERNWAY_CHECK="1")  # fmt: skip


# --- options, errors, extents -----------------------------------------------------------------------------------------


def test_options_of_numpy() -> None:
    """Scalars of NumPy are options like those of Python; what merely equals True is none."""
    dy, indices, offsets = np.ones((2, 3)), np.array([1, 2, 1, 0]), np.array([0, 2, 4])
    options = {"num_embeddings": 5, "padding_idx": 2, "include_last_offset": True, "scale_grad_by_freq": True}
    numpy = {
        "num_embeddings": np.int64(5),
        "padding_idx": np.int8(-3),
        "include_last_offset": np.True_,
        "scale_grad_by_freq": np.True_,
    }
    want = sw.embedding_bag_backward(dy, indices, offsets, **options)
    assert (sw.embedding_bag_backward(dy, indices, offsets, deterministic=np.False_, **numpy) == want).all()
    for name, wrong in (
        ("num_embeddings", [5]), ("num_embeddings", "5"), ("num_embeddings", 2**70), ("num_embeddings", 1.5),
        ("num_embeddings", -1),
        ("padding_idx", 2**63), ("padding_idx", -(2**63)), ("padding_idx", 5), ("padding_idx", {}), ("padding_idx", "1"),
        ("include_last_offset", 1), ("include_last_offset", "yes"), ("include_last_offset", None), ("scale_grad_by_freq", 1),
        ("deterministic", "no"), ("mode", ""), ("mode", ["sum"]), ("mode", None), ("mode", "SUM"), ("mode", b"sum"),
    ):  # fmt: skip
        with pytest.raises(sw.Error) as caught:
            sw.embedding_bag_backward(dy, indices, offsets, **{**options, name: wrong})
        assert caught.value.op == "embedding_bag_backward"
        assert caught.value.operand == name


def test_errors_name_the_function_and_its_operands() -> None:
    dy, weight, flat, offsets = torch.ones(2, 3), torch.ones(5, 3), torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2])
    table, half = flat.reshape(2, 2), dy.half()
    backward, samples = sw.embedding_bag_backward, sw.embedding_bag_per_sample_weights_backward
    for operand, function, args, named in (
        ("out", backward, (dy, flat, offsets), {"num_embeddings": 5, "out": torch.empty(5, 2)}),
        ("out", backward, (dy, table), {"num_embeddings": 5, "out": torch.empty(5, 3, dtype=F64)}),
        ("dy", backward, (dy.int(), table), {"num_embeddings": 5}),
        ("indices", backward, (dy, table.double()), {"num_embeddings": 5}),
        ("indices", backward, (dy[:1], table), {"num_embeddings": 5}),
        ("offsets", backward, (dy, flat, offsets.double()), {"num_embeddings": 5}),
        ("offsets", backward, (dy, flat, offsets[:1]), {"num_embeddings": 5}),
        ("per_sample_weights", backward, (half, table), {"num_embeddings": 5, "per_sample_weights": table.double()}),
        ("per_sample_weights", backward, (half, table), {"num_embeddings": 5, "per_sample_weights": table.bfloat16()}),
        ("per_sample_weights", backward, (dy, table), {"num_embeddings": 5, "per_sample_weights": table.half()}),
        ("out", samples, (dy, weight, table), {"out": torch.empty(4)}),
        ("out", samples, (dy, weight, table), {"out": torch.empty(2, 2, dtype=F64)}),
        ("out", samples, (dy, weight, flat, offsets), {"out": dy.reshape(-1)[:4]}),
        ("weight", samples, (dy, weight[0], table), {}),
        ("weight", samples, (dy, weight.double(), table), {}),
        ("indices", samples, (dy, weight, table + 1), {}),
    ):  # fmt: skip
        with pytest.raises(sw.Error) as caught:
            function(*args, **named)
        assert (caught.value.op, caught.value.operand) == (function.__name__, operand), caught.value
        assert str(caught.value).startswith(f"{function.__name__}: {operand} must be ")
        assert not re.search(r"dweight|d_per_sample_weights|embedding_dim|num_bags", str(caught.value))


@hs.composite
def calls(draw: Any) -> dict[str, Any]:
    """Arguments of the two functions: any values of indices and offsets, right or wrong, and any layout."""
    rows, dim, bags = draw(hs.integers(1, 6)), draw(hs.integers(0, 5)), draw(hs.integers(0, 5))
    total = draw(hs.integers(0, 12))
    random = np.random.default_rng(draw(hs.integers(0, 9999)))
    wrong = draw(hs.integers(0, 7))
    dtype = draw(hs.sampled_from(("float16", "float32", "float64")))
    table = draw(hs.booleans())
    if table:
        total = bags * draw(hs.integers(0, 4))
    indices = random.integers(0, rows, total)
    last = draw(hs.booleans()) and not table
    ends = np.sort(random.integers(0, total + 1, bags + last))
    ends[: 1 if bags else 0] = 0
    if wrong == 0 and total:
        indices[random.integers(total)] = random.choice([-1, rows, -rows, 2**31 - 1, -(2**31)])
    if wrong == 1 and len(ends):
        ends[random.integers(len(ends))] += random.choice([-1, 1, total])
    return {
        "rows": rows, "dim": dim, "bags": bags, "dtype": dtype, "last": last, "table": table, "random": random,
        "indices": indices.astype(draw(hs.sampled_from(("int32", "int64")))),
        "offsets": ends.astype(draw(hs.sampled_from(("int32", "int64")))),
        "padding": draw(hs.one_of(hs.none(), hs.integers(-rows, rows - 1))), "by_frequency": draw(hs.booleans()),
        "mode": draw(hs.sampled_from(MODES)), "sample": draw(hs.sampled_from((None, dtype, "float32"))),
        "winner": draw(hs.sampled_from(("same", "int64"))), "expanded": draw(hs.sampled_from((None, 0, 1))),
        "steps": draw(hs.sampled_from((1, 2, -1))),
    }  # fmt: skip


def laid_out(x: np.ndarray, step: int) -> np.ndarray:
    """The same numbers, the last dimension with a stride."""
    memory = np.zeros((*x.shape[:-1], max(1, x.shape[-1]) * abs(step)), x.dtype)[..., ::step][..., : x.shape[-1]]
    memory[...] = x
    return memory


def defined(c: dict[str, Any], dy: np.ndarray, weight: np.ndarray, weights: np.ndarray, max_indices: np.ndarray) -> Any:
    """dweight and the gradient of weights by definition, in float64; None where a value is out of range."""
    indices, offsets, bags, total = c["indices"].astype(int), c["offsets"].astype(int), c["bags"], len(c["indices"])
    if c["table"]:
        offsets = np.arange(bags) * (total // max(bags, 1))
    if len(offsets) and (offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] > total):
        return None
    if ((indices < 0) | (indices >= c["rows"])).any():
        return None
    ends = offsets if c["last"] else np.append(offsets, total)
    padding = -1 if c["padding"] is None else c["padding"] % c["rows"]
    dweight, dots, frequency = np.zeros((c["rows"], c["dim"])), np.zeros(total), np.zeros(c["rows"])
    for b in range(bags):
        inside = [i for i in range(ends[b], ends[b + 1]) if indices[i] != padding]
        for i in inside:
            v = indices[i]
            frequency[v] += 1
            dots[i] = dy[b].astype(float) @ weight[v].astype(float)
            if c["mode"] != "max":
                dweight[v] += dy[b].astype(float) * (weights[i] if c["mode"] == "sum" else 1 / len(inside))
        if c["mode"] == "max" and inside:
            for d in range(c["dim"]):
                if 0 <= max_indices[b, d] != padding:
                    dweight[max_indices[b, d], d] += dy[b, d]
    if c["by_frequency"] and c["mode"] != "max":
        dweight /= np.maximum(frequency, 1)[:, None]
    return dweight, dots


@given(c=calls())
def test_any_call(c: dict[str, Any]) -> None:
    """The functions against the definition: modes, options, values in and out of range, strides, both dtypes of weights."""
    random, (bags, dim, rows), total = c["random"], (c["bags"], c["dim"], c["rows"]), len(c["indices"])
    dy = (random.standard_normal((bags, dim)) * 4).astype(c["dtype"])
    if c["expanded"] is not None and dy.size:
        dy = np.broadcast_to(dy[:1] if c["expanded"] == 0 else dy[:, :1], dy.shape)
    weight = random.standard_normal((rows, dim)).astype(c["dtype"])
    weights = np.ones(total) if c["sample"] is None else random.standard_normal(total).astype(c["sample"])
    max_indices = random.integers(-1, rows, (bags, dim)).astype("int64" if c["winner"] == "int64" else c["indices"].dtype)
    want = defined(c, dy, weight, weights.astype(float), max_indices)
    shape = (bags, total // max(bags, 1)) if c["table"] else (total,)
    indices = laid_out(c["indices"].reshape(shape), c["steps"])
    where = (indices,) if c["table"] else (indices, laid_out(c["offsets"], c["steps"]))
    common = {"padding_idx": c["padding"], "include_last_offset": c["last"]}
    given = None if c["sample"] is None or c["mode"] != "sum" else laid_out(weights.reshape(shape), c["steps"])
    dweight = laid_out(np.full((rows, dim), np.nan, c["dtype"]), c["steps"])
    dots = laid_out(np.full(shape, np.nan, c["sample"] or c["dtype"]), c["steps"])
    runs = (
        lambda: sw.embedding_bag_backward(
            dy, *where, num_embeddings=rows, mode=c["mode"], per_sample_weights=given, out=dweight,
            scale_grad_by_freq=c["by_frequency"] and c["mode"] != "max", **common,
            max_indices=laid_out(max_indices, c["steps"]) if c["mode"] == "max" else None,
        ),
        lambda: sw.embedding_bag_per_sample_weights_backward(dy, weight, *where, out=dots, **common),
    )  # fmt: skip
    if want is None:
        for run, out in zip(runs, (dweight, dots), strict=True):
            with pytest.raises(sw.InvalidProblemError):
                run()
            assert np.isnan(out).all()
        return
    if c["sample"] is None:
        want = defined(c, dy, weight, np.ones(total), max_indices)
    for run, value in zip(runs, want, strict=True):
        got = run()
        unit = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[str(got.dtype)]
        np.testing.assert_allclose(got.astype(float), value.reshape(got.shape), rtol=unit, atol=100 * unit)


def require_memory(gib: float) -> None:
    if (free := free_memory() / 2**30) < gib:
        pytest.skip(f"{gib} GiB are needed, {free:.1f} are free")


@pytest.mark.gpu
def test_counts_of_a_gpu() -> None:
    """What its kernels cannot number is refused before anything is launched."""
    base = {"num_embeddings": 5, "embedding_dim": 1, "num_bags": 1, "total_indices": 1, "dtype": F32}
    for name in ("num_embeddings", "embedding_dim", "num_bags", "total_indices"):
        descriptor = sw.EmbeddingBagBackwardDescriptor(**{**base, name: 2**31 - 1})
        with pytest.raises(sw.UnsupportedError, match=f"{name} must be less than 2147483647 on a GPU"):
            sw.EmbeddingBagBackwardPlan.select(descriptor, "cuda")


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [2**31 + 5, pytest.param(2**32 + 5, marks=pytest.mark.nightly)])
def test_more_rows_than_32_bits(rows: int, mode: str) -> None:
    """A table of float16 with one column; 2^32 + 5 rows are numbered in 64 bits."""
    require_memory(rows * 2 / 2**30 + 3)
    indices = torch.tensor([rows - 1, 0, 2**31 - 1, 2**31, rows - 1, 7, 2**31 + 1])
    offsets, dy = torch.tensor([0, 3, 4]), torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float16)
    won = torch.tensor([[rows - 1], [2**31], [rows - 1]])
    out = torch.full((rows, 1), math.nan, dtype=torch.float16)
    sw.embedding_bag_backward(
        dy, indices, offsets, num_embeddings=rows, mode=mode, out=out, max_indices=won if mode == "max" else None, padding_idx=7
    )
    share = 1 / torch.tensor([3, 1, 2]) if mode == "mean" else torch.ones(3)
    want: dict[int, float] = {}
    for bag, row in zip((0, 0, 0, 1, 2, 2), (rows - 1, 0, 2**31 - 1, 2**31, rows - 1, 2**31 + 1), strict=True):
        if mode != "max" or int(won[bag]) == row:
            want[row] = want.get(row, 0) + float(dy[bag]) * float(share[bag])
    for row, value in want.items():
        assert abs(float(out[row]) - value) < 1e-3 * value, row
        out[row] = 0
    assert not any(out[first : first + 2**26].any() for first in range(0, rows, 2**26)), "other rows are zeros"


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("total", [2**31 + 5, pytest.param(2**32 + 5, marks=pytest.mark.nightly)])
def test_more_positions_than_32_bits(total: int) -> None:
    """Expanded indices and weights: the gradient of the weights, and that of a table of padding alone."""
    require_memory(total * 2 / 2**30 + 3)
    indices, starts = torch.ones(1, dtype=torch.int64).expand(total), torch.tensor([0, 5, 2**31 - 1, 2**31 + 1, total - 2])
    dy = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]], dtype=torch.float16)
    weight = torch.tensor([[1.0], [2.0]], dtype=torch.float16)
    out = torch.full((total,), math.nan, dtype=torch.float16)
    sw.embedding_bag_per_sample_weights_backward(dy, weight, indices, starts, out=out)
    for bag, end in enumerate([*starts[1:].tolist(), total]):
        for first in range(int(starts[bag]), end, 2**26):
            assert (out[first : min(first + 2**26, end)] == 2 * dy[bag]).all(), bag
    del out
    dweight = sw.embedding_bag_backward(dy, indices, starts, num_embeddings=2, padding_idx=1)
    assert not dweight.any()


# --- the drop-in ------------------------------------------------------------------------------------------------------

INDICES, OFFSETS = [1, 2, 4, 5, 4, 3, 2, 9, 1], [0, 3, 3, 7]


def bags(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(INDICES, device=device), torch.tensor(OFFSETS, device=device)


def leaves_of(mode: str, device: str, dtype: torch.dtype = F64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((10, 5), (9,)) if mode == "sum" else ((10, 5),)
    return [torch.randn(shape, generator=generator, dtype=F64).to(device, dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("padding", [None, 4, -1])
@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode: str, padding: int | None, device: str) -> None:
    """Those of torch, gradcheck, and the second derivative."""
    indices, offsets = bags(device)
    leaves = leaves_of(mode, device)

    def function(weight: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        return st.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=padding, per_sample_weights=weights)

    y = function(*leaves)
    want = BY_TORCH(indices, leaves[0], offsets, mode=mode, padding_idx=padding, per_sample_weights=[*leaves, None][1])
    torch.testing.assert_close(y, want)
    dy = torch.randn_like(y)
    for a, b in zip(torch.autograd.grad(y, leaves, dy), torch.autograd.grad(want, leaves, dy), strict=True):
        torch.testing.assert_close(a, b)
    assert gradcheck(function, leaves)
    assert gradgradcheck(function, leaves)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_by_frequency_and_twice(mode: str, device: str) -> None:
    """What gradgradcheck cannot see, as the scaled gradient is no gradient: <g, d(dweight)/d(dy) v> both ways."""
    indices, offsets = bags(device)
    (weight,) = leaves_of("mean", device)
    y = st.embedding_bag(indices, weight, offsets, mode=mode, scale_grad_by_freq=True)
    dy, g = torch.randn_like(y).requires_grad_(), torch.randn_like(weight)
    (dweight,) = torch.autograd.grad(y, weight, dy, create_graph=True)
    (plain,) = torch.autograd.grad(BY_TORCH(indices, weight, offsets, mode=mode), weight, dy.detach())
    torch.testing.assert_close(dweight, plain / indices.bincount(minlength=len(weight)).clamp(min=1)[:, None])
    (ddy,) = torch.autograd.grad(dweight, dy, g)
    torch.testing.assert_close((ddy * dy).sum(), (dweight * g).sum())


@pytest.mark.parametrize("padding", [None, 4])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_sparse(mode: str, padding: int | None, device: str) -> None:
    """Coalesced: a row for each index that counts. SparseAdam takes it."""
    indices, offsets = bags(device)
    ours, theirs = leaves_of("mean", device)[0], leaves_of("mean", device)[0]
    for step in range(3):
        for leaf, function in ((ours, st.embedding_bag), (theirs, BY_TORCH)):
            leaf.grad = None
            function(indices, leaf, offsets, mode=mode, padding_idx=padding, sparse=True).square().sum().backward()
        assert ours.grad._indices()[0].tolist() == sorted(set(INDICES) - {padding})
        torch.testing.assert_close(ours.grad.to_dense(), theirs.grad.to_dense())
        if step == 0:
            optimizers = [torch.optim.SparseAdam([leaf]) for leaf in (ours, theirs)]
        for optimizer in optimizers:
            optimizer.step()
        torch.testing.assert_close(ours, theirs)
    y = st.embedding_bag(indices, ours, offsets, mode=mode, sparse=True)
    assert torch.autograd.grad(y.sum(), ours, retain_graph=True)[0].is_coalesced()
    with pytest.raises(sw.UnsupportedError, match="differentiated once"):
        torch.autograd.grad(y.sum(), ours, create_graph=True)


@pytest.mark.parametrize("padding", [None, 5, -1])
def test_sparse_rows_change(padding: int | None, device: str) -> None:
    """Another number of rows in each step, around the numbers that plans are made for: torch's gradient, by few plans."""
    from sternway._embedding_bag import _embedding_bag_plan

    rows, bags = 900, 70
    offsets = torch.arange(bags, device=device) * 10
    weights = torch.rand(10 * bags, device=device, dtype=F64)
    before = _embedding_bag_plan.cache_info().misses
    for n in (1, 2, 15, 16, 17, 31, 32, 33, 34, 63, 65, 127, 128, *range(400, 432)):
        indices = (torch.arange(10 * bags, device=device) % n) * (rows // n)
        weight = torch.randn(rows, 6, dtype=F64, device=device, requires_grad=True)
        ours, theirs = (
            torch.autograd.grad(
                f(indices, weight, offsets, mode="sum", sparse=True, padding_idx=padding, per_sample_weights=weights)
                .square().sum(), weight,
            )[0]
            for f in (st.embedding_bag, BY_TORCH)
        )  # fmt: skip
        assert ours.is_coalesced()
        assert ours._indices().shape[1] == len(set(indices.tolist()) - {padding if padding is None else padding % rows})
        assert ours._values().shape[0] == ours._indices().shape[1]
        torch.testing.assert_close(ours.to_dense(), theirs.to_dense())
    assert _embedding_bag_plan.cache_info().misses - before <= 13 + 4, "from 400 to 431 by 16"


def test_rounded_rows() -> None:
    """Never fewer, and at most 1/16 more."""
    from sternway.torch._autograd.sparse_rows import _rounded

    for n in (*range(2000), *(base + k for base in (1 << 20, 1 << 30) for k in range(-40, 40))):
        assert n <= _rounded(n) <= n + n // 16
    assert _rounded(31) == 31
    assert {_rounded(n) for n in range(1025, 1089)} == {1088}


def test_module(device: str) -> None:
    """State dicts go both ways, and a step of training is torch's."""
    ours = st.EmbeddingBag(10, 5, mode="sum", padding_idx=2, device=device)
    theirs = torch.nn.EmbeddingBag(10, 5, mode="sum", padding_idx=2, device=device)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    table = torch.tensor(INDICES, device=device).reshape(3, 3)
    for module in (ours, theirs):
        module(table).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    assert st.EmbeddingBag.from_pretrained(torch.ones(4, 2)).weight.requires_grad is False


def test_max_norm(device: str) -> None:
    """The rows that are read, and no others, are brought to the norm, in place, as torch does."""
    indices, offsets = bags(device)
    ours, theirs = leaves_of("mean", device)[0], leaves_of("mean", device)[0]
    got, want = st.embedding_bag(indices, ours, offsets, 1.0, 2.0), BY_TORCH(indices, theirs, offsets, 1.0, 2.0)
    torch.testing.assert_close(got, want)
    assert torch.equal(ours, theirs)


def test_last_offset(device: str) -> None:
    """With every index in a bag, torch's gradient; with some behind, that of the forward that ran."""
    indices, offsets = bags(device)
    (weight,) = leaves_of("mean", device)
    whole = torch.cat((offsets, offsets.new_tensor([len(indices)])))
    ours, theirs = (
        torch.autograd.grad(f(indices, weight, whole, mode="sum", include_last_offset=True).square().sum(), weight)[0]
        for f in (st.embedding_bag, BY_TORCH)
    )
    torch.testing.assert_close(ours, theirs)
    whole[-1] -= 2
    if device == "cpu":
        with pytest.raises(sw.InvalidProblemError, match="offsets"):
            st.embedding_bag(indices, weight, whole, include_last_offset=True)
        with pytest.raises(sw.InvalidProblemError, match="offsets"):
            torch.func.grad(lambda w: st.embedding_bag(indices, w, whole, include_last_offset=True).sum())(weight.detach())
        return
    assert gradcheck(lambda w: st.embedding_bag(indices, w, whole, mode="sum", include_last_offset=True), (weight,))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_no_bags(mode: str, dtype: torch.dtype, device: str) -> None:
    """Positions in no bag count nowhere: torch's own forward on the CPU reads beyond such offsets and may crash."""
    indices, _ = bags(device)
    weight = torch.ones(10, 2, dtype=dtype, device=device, requires_grad=True)
    weights = torch.ones(len(indices), dtype=dtype, device=device, requires_grad=True) if mode == "sum" else None
    y = st.embedding_bag(indices, weight, indices[:0], mode=mode, per_sample_weights=weights)
    y.sum().backward()
    assert y.shape == (0, 2)
    for leaf in (weight, weights):
        assert leaf is None or torch.equal(leaf.grad, torch.zeros_like(leaf))
    if device == "cpu":  # where the last offset has to be there; torch's forward on CUDA reads none
        with pytest.raises(RuntimeError, match="offset"):
            st.embedding_bag(indices, weight, indices[:0], mode=mode, include_last_offset=True)


def test_refusals_of_the_drop_in() -> None:
    indices, offsets = bags("cpu")
    weight = torch.ones(10, 2)
    for error, call in (
        (ValueError, lambda: st.embedding_bag(indices, weight)),
        (ValueError, lambda: st.embedding_bag(indices.reshape(3, 3), weight, offsets)),
        (ValueError, lambda: st.embedding_bag(indices, weight, offsets, mode="min")),
        (ValueError, lambda: st.embedding_bag(indices, weight, offsets, mode="max", sparse=True)),
        (ValueError, lambda: st.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=torch.ones(3))),
        (
            NotImplementedError,
            lambda: st.embedding_bag(indices, weight, offsets, mode="mean", per_sample_weights=torch.ones(9)),
        ),
        (RuntimeError, lambda: st.embedding_bag(indices, weight, offsets, padding_idx=10)),
    ):
        with pytest.raises(error):
            call()


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.slow
def test_more_than_2_to_the_31_elements() -> None:
    """V * D and L * D beyond 2^31: every row against counts."""
    rows, dim, total = 2**21 + 3, 1024, 2**21 + 7
    indices = torch.randint(0, rows, (total,), device="cuda")
    offsets = torch.arange(0, total, 16, device="cuda")
    dy = torch.ones((), device="cuda", dtype=torch.float16).expand(len(offsets), dim)
    got = sw.embedding_bag_backward(dy, indices, offsets, num_embeddings=rows)
    count = torch.bincount(indices, minlength=rows).to(torch.float16)
    for start in range(0, rows, 2**18):
        assert (got[start : start + 2**18] == count[start : start + 2**18, None]).all()
    del got
    wide = sw.embedding_bag_backward(dy.to(F32), indices, offsets, num_embeddings=rows, mode="mean")
    assert wide[-1].isfinite().all()
