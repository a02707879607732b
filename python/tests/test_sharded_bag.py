"""ShardedEmbeddingBag gives each rank the results and gradients of one process with the whole table and all bags."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from ranks import Ranks, default_device, seeded, world
from support import BF16, F32, F64, FLOATS, Truth, check
from torch import Tensor, nn

import sternway as sw
import sternway.torch as st
import sternway.torch.distributed as std
from sternway._cases.case import roundings

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

SHARDINGS = "row", "column"
ROWS, DIM = 11, 6
SHAPES = (ROWS, DIM), (1, 3), (3, 1), (8, 4)  # blocks that are uneven, empty, of one row or column, and equal
LENGTHS = 3, 0, 1, 5, 0, 2, 1  # of bags, which repeat
BAGS = (4, 0, 3, 1), (0, 2, 0, 0), (1, 1, 1, 5)  # of each rank


class Batch(NamedTuple):
    """The bags of all ranks, and their upstream gradient."""

    indices: Tensor
    offsets: Tensor
    weights: Tensor
    dy: Tensor
    bags: list[int]  # of each rank

    def part(self, rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Indices, offsets, weights and dy of a rank."""
        first = sum(self.bags[:rank])
        last = first + self.bags[rank]
        ends = [*self.offsets.tolist(), len(self.indices)]
        here = slice(ends[first], ends[last])
        return self.indices[here], self.offsets[first:last] - ends[first], self.weights[here], self.dy[first:last]


def me() -> int:
    return torch.distributed.get_rank()


def batch(rows: int, dim: int, bags: tuple[int, ...], dtype: torch.dtype = F64, index: torch.dtype = torch.int64) -> Batch:
    generator, device = torch.Generator().manual_seed(3), default_device()
    count = sum(bags[: world()])
    lengths = torch.tensor([LENGTHS[k % len(LENGTHS)] for k in range(count)], dtype=torch.int64, device="cpu")
    total = int(lengths.sum())
    indices = torch.randint(rows, (total,), generator=generator, device="cpu")
    floats = [torch.randn(s, generator=generator, dtype=F64, device="cpu").to(dtype) for s in ((total,), (count, dim))]
    tensors = (indices.to(index), (lengths.cumsum(0) - lengths).to(index), *floats)
    return Batch(*(x.to(device) for x in tensors), list(bags[: world()]))


def tables(rows: int, dim: int, dtype: torch.dtype, sharding: str, **options: Any) -> tuple[Any, Any, Any]:
    """The sharded module, one of sternway and one of torch in float64, with equal tables."""
    torch.manual_seed(1)
    sharded = std.ShardedEmbeddingBag(rows, dim, sharding=sharding, dtype=dtype, **options)
    state = sharded.state_dict()
    single = st.EmbeddingBag(rows, dim, dtype=dtype, **options)
    options.pop("scale_grad_by_freq", None)  # which torch 2.11 computes wrongly on the CPU: compare() divides by itself
    wide = nn.EmbeddingBag(rows, dim, dtype=F64, **options)
    single.load_state_dict(state)
    wide.load_state_dict(state)
    return sharded, single, wide


def of(whole: Tensor, sharding: str) -> Tensor:
    """This rank's part of a table: that of torch.chunk."""
    dim = SHARDINGS.index(sharding)
    parts = whole.chunk(world(), dim)
    return parts[me()] if me() < len(parts) else whole.narrow(dim, 0, 0)


def leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


# --- Values and gradients ---------------------------------------------------------------------------------------------


def squares(b: Batch, wide: Any, factors: Tensor) -> tuple[Tensor, Tensor]:
    """The 2-norms of the terms of y and of dweight, for bags that sum rows with these factors."""
    table = leaf(wide.weight**2)
    y = nn.functional.embedding_bag(
        b.indices, table, b.offsets, mode="sum", per_sample_weights=factors**2, padding_idx=wide.padding_idx
    )
    y.backward(b.dy.to(F64) ** 2)
    return y.detach().sqrt(), table.grad.sqrt()  # type: ignore[union-attr]


def factors_of(b: Batch, wide: Any, weighted: bool) -> Tensor:
    """The factor by which each position enters its bag."""
    if weighted:
        return b.weights.to(F64)
    counted = (torch.ones_like(b.indices) if wide.padding_idx is None else b.indices != wide.padding_idx).to(F64)
    bags = torch.searchsorted(b.offsets, torch.arange(len(b.indices), dtype=b.offsets.dtype), right=True) - 1
    counts = torch.zeros(len(b.offsets), dtype=F64).index_add_(0, bags, counted).clamp(min=1)
    return 1 / counts[bags] if wide.mode == "mean" else torch.ones(len(b.indices), dtype=F64)


def compare(
    shape: tuple[int, int], bags: tuple[int, ...], dtype: torch.dtype, index: torch.dtype, sharding: str, weighted: bool,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Check y, the gradient of the shard and that of the weights of samples against float64 and the bits of a second run."""
    sharded, single, wide = tables(*shape, dtype, sharding, **options)
    b = batch(*shape, bags, dtype, index)
    mine = b.part(me())
    runs = []
    for _ in range(2):
        weights = leaf(mine[2]) if weighted else None
        sharded.zero_grad()
        y = sharded(mine[0], mine[1], weights)
        y.backward(mine[3])
        runs.append([y.detach(), sharded.weight.grad, *([] if weights is None else [weights.grad])])
    assert all(map(torch.equal, *runs))
    ours = runs[0]
    truths = []
    for module, dy in ((wide, b.dy.to(F64)), (single, b.dy)):
        weights = leaf(b.weights.to(dy.dtype)) if weighted else None
        y = module(b.indices, b.offsets, weights)
        y.backward(dy)
        truths.append([y.detach(), module.weight.grad, *([] if weights is None else [weights.grad])])
    size_y, size_dweight = squares(b, wide, factors_of(b, wide, weighted))
    first, ends = sum(b.bags[: me()]), [*b.offsets.tolist(), len(b.indices)]
    rows = slice(first, first + b.bags[me()])
    here = slice(ends[rows.start], ends[rows.stop])
    if options.get("scale_grad_by_freq"):
        frequency = torch.bincount(b.indices, minlength=shape[0]).clamp(min=1)[:, None]
        truths[0][1], size_dweight = truths[0][1] / frequency, size_dweight / frequency
    if options["mode"] == "max":
        assert torch.equal(ours[0], truths[1][0][rows])
        size_y = truths[0][0].abs()
        size_dweight = torch.full_like(truths[0][1], float(b.dy.abs().max()) if b.dy.numel() else 1.0)
    cut: list[Callable[[Tensor], Tensor]] = [lambda x: x[rows], lambda x: of(x, sharding), lambda x: x[here]]
    sizes = [size_y, size_dweight]
    if weighted:
        sizes.append(truths[0][2].abs().clamp(min=float(truths[0][2].abs().max()) if len(b.indices) else 1.0))
    names, carried = ("y", "dweight", "dweights")[: len(ours)], F64 if dtype == F64 else F32
    for name, got, want, size, part, single_result in zip(names, ours, truths[0], sizes, cut, truths[1], strict=False):
        truth = Truth(part(want), torch.maximum(part(size), part(want).abs()), dtype, carried, roundings(64))
        check(f"sharded bag {name}", got, truth, part(single_result))


OPTIONS: list[tuple[bool, dict[str, Any]]] = [
    (False, {"mode": "sum"}),
    (True, {"mode": "sum", "padding_idx": 1}),
    (True, {"mode": "sum"}),
    (False, {"mode": "mean", "padding_idx": -2}),
    (False, {"mode": "max"}),
    (False, {"mode": "max", "padding_idx": 0}),
    (False, {"mode": "sum", "scale_grad_by_freq": True}),
    (False, {"mode": "mean", "scale_grad_by_freq": True}),
]


def options_and_dtypes(sharding: str) -> None:
    for weighted, options in OPTIONS:
        for dtype in FLOATS:
            compare((ROWS, DIM), BAGS[0], dtype, torch.int64, sharding, weighted, options)


def shapes_and_parts(sharding: str) -> None:
    for shape in SHAPES:
        for bags in BAGS:
            for mode in ("sum", "mean", "max"):
                compare(shape, bags, F64, torch.int32, sharding, mode == "sum", {"mode": mode})


@pytest.mark.parametrize("body", [options_and_dtypes, shapes_and_parts], ids=lambda body: body.__name__)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_values_and_gradients(sharding: str, body: Callable[[str], None], ranks: Ranks) -> None:
    ranks.run(body, sharding)


def forms_of_input(sharding: str) -> None:
    """Rows as bags, include_last_offset, mixed integers, and expanded gradients, which the sum of y has."""
    sharded, single, _ = tables(ROWS, DIM, F64, sharding, mode="mean")
    last, _, _ = tables(ROWS, DIM, F64, sharding, mode="mean", include_last_offset=True)
    for width in (3, 0):
        indices = torch.randint(ROWS, (me() + 1, width), generator=seeded(me()))
        offsets = torch.arange(me() + 1) * width
        end = torch.cat([offsets, torch.tensor([indices.numel()])])
        for module, call in (
            (sharded, (indices,)),
            (sharded, (indices.T.contiguous().T, None)),
            (sharded, (indices.flatten().int(), offsets)),
            (last, (indices.flatten(), end.int())),
        ):
            module.zero_grad()
            y = module(*call)
            torch.testing.assert_close(y, single(indices))
            y.sum().backward()
            occurrences = torch.zeros(ROWS, dtype=F64)
            for rank in range(world()):
                drawn = torch.randint(ROWS, (rank + 1, width), generator=seeded(rank))
                occurrences += torch.bincount(drawn.flatten(), minlength=ROWS).double() / max(width, 1)
            torch.testing.assert_close(module.weight.grad, of(occurrences[:, None].expand(ROWS, DIM), sharding))
    empty = torch.empty(0, dtype=torch.int64)
    assert sharded(empty, empty).shape == (0, DIM)
    assert sharded(torch.tensor([1, 2]), empty).shape == (0, DIM)  # no bag holds a position
    assert last(empty, torch.tensor([0])).shape == (0, DIM)


def special_values(sharding: str) -> None:
    """NaN, infinities, signed zeros and equal rows: the winner of max is that of one process, as are sums."""
    inf, nan = float("inf"), float("nan")
    values = [[1.0, nan], [inf, 2.0], [-inf, 2.0], [1.0, -0.0], [0.0, 0.0], [1.0, 3.0], [nan, 3.0], [-0.0, -inf]]
    table = torch.tensor(values, dtype=F32)
    bags = [[0, 3, 5], [3, 0, 6], [6, 1], [1, 6, 2], [1, 2], [4, 7], [7, 4], [5, 6], [2], [3, 5, 3]]
    flat = torch.tensor([i for k in range(world()) for bag in bags[k:] for i in bag])
    lengths = torch.tensor([len(bag) for k in range(world()) for bag in bags[k:]])
    dy = torch.arange(1.0, 1 + 2 * len(lengths)).view(-1, 2)
    counts = [len(bags) - k for k in range(world())]
    b = Batch(flat, lengths.cumsum(0) - lengths, torch.ones(len(flat)), dy, counts)
    indices, offsets, _, dy = b.part(me())
    first = sum(counts[: me()])
    for mode in ("max", "sum", "mean"):
        sharded, single, _ = tables(8, 2, F32, sharding, mode=mode)
        sharded.load_state_dict({"weight": table})
        single.load_state_dict({"weight": table})
        y, want = sharded(indices, offsets), single(b.indices, b.offsets)
        rtol = 0 if mode == "max" else 1e-6
        torch.testing.assert_close(y, want[first : first + counts[me()]], rtol=rtol, atol=0, equal_nan=True)
        y.backward(dy)
        want.backward(b.dy)
        torch.testing.assert_close(sharded.weight.grad, of(single.weight.grad, sharding), rtol=1e-6, atol=0)


def upstream_gradients(sharding: str) -> None:
    """Special values in dy and in weights of samples; a padded position has a gradient of zero."""
    sharded, single, _ = tables(4, 2, F32, sharding, mode="sum", padding_idx=2)
    indices, offsets = torch.tensor([0, 2, 3, 1]), torch.tensor([0, 2])
    factors = torch.tensor([float("inf"), float("nan"), 0.0, -0.0])
    dy = torch.tensor([[1.0, -2.0], [float("nan"), 0.5]])
    ours, theirs = leaf(factors), leaf(factors)
    sharded(indices, offsets, ours).backward(dy)
    for _ in range(world()):
        single(indices, offsets, theirs).backward(dy)
    torch.testing.assert_close(sharded.weight.grad, of(single.weight.grad, sharding), equal_nan=True)
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad / world(), equal_nan=True)
    assert ours.grad is not None
    assert ours.grad[1] == 0


@pytest.mark.parametrize("body", [forms_of_input, special_values, upstream_gradients], ids=lambda body: body.__name__)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_operands(sharding: str, body: Callable[[str], None], ranks: Ranks) -> None:
    ranks.run(body, sharding)


def training(sharding: str) -> None:
    """Adam on the shards, a copy of the module, torch.compile with a graph break, and a frozen table."""
    sharded, single, _ = tables(ROWS, DIM, F64, sharding, mode="sum")
    b = batch(ROWS, DIM, BAGS[0])
    indices, offsets, weights, dy = b.part(me())
    compiled = torch.compile(sharded, backend="eager")
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (sharded, single)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (compiled if step == 1 else sharded)(indices, offsets, weights).mul(dy).square().sum().backward()
        single(b.indices, b.offsets, b.weights).mul(b.dy).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(sharded.state_dict()["weight"], single.weight.detach())
    twin = copy.deepcopy(sharded)
    with torch.no_grad():
        sharded.weight.zero_()
        assert not sharded(indices, offsets).requires_grad
    torch.testing.assert_close(twin(indices, offsets), single(b.indices, b.offsets)[sum(b.bags[: me()]) :][: b.bags[me()]])
    twin.weight.requires_grad_(False)
    learned = leaf(weights)
    twin(indices, offsets, learned).backward(dy)
    theirs = leaf(b.weights)
    single(b.indices, b.offsets, theirs).backward(b.dy)
    first = int(b.offsets[sum(b.bags[: me()])]) if sum(b.bags[: me()]) < len(b.offsets) else len(b.indices)
    assert theirs.grad is not None
    torch.testing.assert_close(learned.grad, theirs.grad[first : first + len(indices)])
    assert twin.weight.grad is None


class Scorer(nn.Module):
    """A sharded bag and a layer."""

    def __init__(self, bag: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.bag, self.layer = bag, nn.Linear(DIM, 1, dtype=F64)

    def forward(self, *bags: Tensor) -> Tensor:
        return self.layer(self.bag(*bags)).square()


def in_parallel_models(sharding: str) -> None:
    """DDP and FSDP2 leave out an ignored parameter: they do not broadcast or cut it, and its gradient is a sum already."""
    from torch.distributed.fsdp import fully_shard

    b = batch(ROWS, DIM, BAGS[0])
    for wrapper in ("DDP", "FSDP2"):
        sharded, single, _ = tables(ROWS, DIM, F64, sharding, mode="sum")
        net, whole = Scorer(sharded), Scorer(single)
        before = sharded.weight.clone()
        if wrapper == "DDP":
            nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["bag.weight"])
            shared: Any = nn.parallel.DistributedDataParallel(net)
        else:
            mesh = torch.distributed.init_device_mesh(default_device(), (world(),))
            shared = fully_shard(net, mesh=mesh, ignored_params={sharded.weight})
        assert torch.equal(sharded.weight, before)
        shared(*b.part(me())[:3]).sum().backward()
        whole(b.indices, b.offsets, b.weights).sum().backward()
        torch.testing.assert_close(sharded.weight.grad, of(single.weight.grad, sharding))
        mean: Any = net.layer.weight.grad
        mean = mean.full_tensor() if wrapper == "FSDP2" else mean
        torch.testing.assert_close(mean, whole.layer.weight.grad / world())


def subgroups(sharding: str) -> None:
    """A group of one rank for each rank: each has a whole table."""
    groups = [torch.distributed.new_group([k]) for k in range(world())]
    module = std.ShardedEmbeddingBag(3, 2, groups[me()], sharding=sharding, mode="sum", dtype=F64)
    assert module.weight.shape == (3, 2)
    indices = torch.tensor([[me() % 3, 2]])
    torch.testing.assert_close(module(indices)[0], module.weight[me() % 3] + module.weight[2])
    with pytest.raises(sw.InvalidProblemError, match="group must be a group of which this process is a member"):
        std.ShardedEmbeddingBag(3, 2, groups[me() - 1])


@pytest.mark.parametrize("body", [training, in_parallel_models, subgroups], ids=lambda body: body.__name__)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_modules(sharding: str, body: Callable[[str], None], ranks: Ranks) -> None:
    ranks.run(body, sharding)


# --- Bytes ------------------------------------------------------------------------------------------------------------


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes of each message of an all-to-all that leave this rank; and a check of the size of the facts."""
    sent: list[int] = []
    all_to_all, gather = torch.distributed.all_to_all_single, torch.distributed.all_gather_object

    def counting(output: Tensor, input: Tensor, received: list[int], splits: list[int], **options: Any) -> Any:
        size = input[0].numel() * input.element_size() if len(input) else 0
        sent.append(size * sum(n for rank, n in enumerate(splits) if rank != me()))
        return all_to_all(output, input, received, splits, **options)

    def gathering(answers: Any, facts: Any, **options: Any) -> Any:
        assert len(pickle.dumps(facts)) <= 1024
        return gather(answers, facts, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch.distributed, "all_to_all_single", counting)
        patch.setattr(torch.distributed, "all_gather_object", gathering)
        yield sent


def bytes_of_messages(sharding: str) -> None:
    """The sums over all ranks are those of docs/distributed.md."""
    monkeypatch = pytest.MonkeyPatch()
    rows, dim = 10, 8
    for dtype, e, a in ((F64, 8, 8), (F32, 4, 4), (BF16, 2, 4)):
        for mode, weighted in (("sum", False), ("sum", True), ("mean", False), ("max", False)):
            module, _, _ = tables(rows, dim, dtype, sharding, mode=mode)
            b = batch(rows, dim, BAGS[0], dtype)
            indices, offsets, weights, dy = b.part(me())
            with counted(monkeypatch) as sent:
                y = module(indices, offsets, leaf(weights) if weighted else None)
                forward = sum(sent)
                y.backward(dy)
            found = torch.tensor([forward, sum(sent) - forward])
            torch.distributed.all_reduce(found)
            away, segments, block = 0, set(), -(-rows // world())
            for rank in range(world()):
                theirs, starts, *_ = b.part(rank)
                for k, index in enumerate(theirs.tolist()):
                    owner, bag = index // block, int((starts <= k).sum()) - 1
                    away += owner != rank
                    segments |= {(rank, owner, bag)} if owner != rank else set()
            p, s, bags, others = away, len(segments), sum(b.bags), world() - 1
            if sharding == "column":
                n, block = len(b.indices), -(-dim // world())
                width = sum(b.bags[r] * (dim - min(block, max(dim - r * block, 0))) for r in range(world()))
                want = [others * (4 * n + 4 * bags + weighted * e * n) + e * width, e * width + weighted * others * a * n]
            elif mode == "max":
                want = [p * (4 + e * dim), p * e * dim]
            else:
                mean = a if mode == "mean" else 0
                want = [p * (4 + weighted * e) + s * (4 + a * dim), s * (e * dim + mean) + weighted * p * e]
            assert found.tolist() == want, (dtype, mode, weighted)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_bytes(sharding: str, ranks: Ranks) -> None:
    ranks.run(bytes_of_messages, sharding)


# --- State and initial values -----------------------------------------------------------------------------------------


def states(sharding: str, folder: str) -> None:
    """The state of a plain module, as a part of a model, from torch.distributed.checkpoint, and of a wrong shape."""
    for rows, dim in SHAPES:
        for dtype in (F32, BF16):
            plain = nn.EmbeddingBag(rows, dim, dtype=dtype)
            with torch.no_grad():
                plain.weight.copy_(torch.arange(rows * dim).view(rows, dim))
            model = nn.ModuleDict({"bag": std.ShardedEmbeddingBag(rows, dim, sharding=sharding, dtype=dtype)})
            for assign in (False, True):
                model.load_state_dict({"bag.weight": plain.weight}, assign=assign)
                assert torch.equal(model["bag"].weight, of(plain.weight, sharding))
                assert isinstance(model["bag"].weight, nn.Parameter)
            state = model.state_dict()
            assert list(state) == ["bag.weight"]
            assert torch.equal(state["bag.weight"], plain.weight)
            assert not state["bag.weight"].requires_grad
            assert nn.ModuleDict({"bag": plain}).load_state_dict(state).missing_keys == []
    assert model.load_state_dict({}, strict=False).missing_keys == ["bag.weight"]
    with pytest.raises(RuntimeError, match=r"bag.weight must be the whole table \[8, 4\], got shape \[8, 3\]"):
        model.load_state_dict({"bag.weight": torch.ones(8, 3)})
    from torch.distributed import checkpoint

    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
    before = model["bag"].weight.clone()
    model["bag"].reset_parameters()
    assert not torch.equal(model["bag"].weight, before) or not before.numel()
    state = {"model": model.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    assert torch.equal(model["bag"].weight, before)


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_state(sharding: str, ranks: Ranks, tmp_path: Any) -> None:
    ranks.run(states, sharding, str(tmp_path))


def initial_values() -> None:
    """Equal for each sharding and number of ranks, and for seeds that differ on the other ranks; normal; 0 for padding."""
    rows, dim = 9000, 5
    alone = [torch.distributed.new_group([k]) for k in range(world())][me()]
    found = []
    for sharding in SHARDINGS:
        for group in (None, alone):
            torch.manual_seed(7 + (me() if group is None else 0))
            module = std.ShardedEmbeddingBag(rows, dim, group, sharding=sharding, padding_idx=-1)
            found.append(module.state_dict()["weight"])
    for other in found[1:]:
        assert torch.equal(other, found[0])
    counted = found[0][:-1]
    assert not found[0][-1].any()
    assert abs(counted.mean()) < 4 / (rows * dim) ** 0.5
    assert abs(counted.std() - 1) < 4 / (rows * dim) ** 0.5
    assert len(counted.unique()) > 0.99 * counted.numel()
    blank = std.ShardedEmbeddingBag(rows, dim, device="meta", dtype=BF16)
    assert blank.weight.is_meta
    with pytest.raises(sw.UnsupportedError, match="weight must be a strided tensor with memory, got a meta tensor"):
        blank(torch.tensor([[1]]))


def test_initial_values(ranks: Ranks) -> None:
    ranks.run(initial_values)


# --- Wrong calls ------------------------------------------------------------------------------------------------------


def wrong_calls(sharding: str) -> None:
    """A wrong call on one rank is an error on all, of a class of sternway, and the next call is right."""
    module, single, _ = tables(ROWS, DIM, F32, sharding, mode="sum")
    last, _, _ = tables(ROWS, DIM, F32, sharding, mode="sum", include_last_offset=True)
    mean, _, _ = tables(ROWS, DIM, F32, sharding, mode="mean")
    other = std.ShardedEmbeddingBag(ROWS + 1, DIM, sharding=sharding, mode="sum")
    indices, offsets, ones = torch.tensor([1, 2, 3]), torch.tensor([0, 2]), torch.ones(3)
    nested = torch.nested.nested_tensor([indices, indices])
    calls: list[tuple[Any, tuple[Any, ...], str]] = [
        (module, ([1, 2], offsets), "input must be a torch.Tensor, got list"),
        (module, (indices.float(), offsets), "input must be int32 or int64, got float32"),
        (module, (indices,), "offsets must be given for input of rank 1"),
        (module, (indices[None], offsets), "offsets must be left out for input of rank 2"),
        (module, (indices[None, None],), "input must be of rank 1 or 2, got rank 3"),
        (module, (nested,), "input must be a strided tensor, got a nested tensor"),
        (module, (indices, offsets[None]), "offsets must be of rank 1, got shape"),
        (module, (indices, offsets.float()), "offsets must be int32 or int64"),
        (module, (torch.tensor([1, ROWS, 3]), offsets), rf"input must be in \[0, {ROWS}\), got {ROWS} at position 1"),
        (module, (torch.tensor([1, 2, -1]), offsets), r"input must be in .*, got -1 at position 2"),
        (module, (indices, torch.tensor([1, 2])), "offsets must be 0 at position 0, got 1"),
        (module, (indices, torch.tensor([0, 2, 1])), "offsets must be in rising order, got 1 after 2 at position 2"),
        (module, (indices, torch.tensor([0, 4])), "offsets must be at most 3, the length of input, got 4"),
        (module, (indices, torch.tensor([0, -(2**62)])), "offsets must be in rising order"),
        (last, (indices, torch.tensor([0, 2])), "offsets must be up to the end of input, 3, got 2 as the last one"),
        (last, (indices, offsets[:0]), "offsets must be of rank 1 with at least one element"),
        (module, (indices, offsets, ones[:2]), "per_sample_weights must be of the shape .* of input"),
        (module, (indices, offsets, ones.double()), "per_sample_weights must be float32 like weight, got float64"),
        (mean, (indices, offsets, ones), "per_sample_weights must be left out unless mode is 'sum'"),
    ]
    if default_device() == "cuda":
        calls.append((module, (indices.cpu(), offsets), "input must be on cuda:. like weight, got cpu"))
    for wrong in {0, world() - 1}:
        for called, arguments, message in calls:
            right = (indices, torch.tensor([0, 3])) if called is last else (indices, offsets)
            right = (*right, ones) if len(arguments) == 3 and called is module else right
            match = message if me() == wrong else rf"the call of rank {wrong} must be a correct one, got .*{message[:30]}"
            with pytest.raises(sw.Error, match=match):
                called(*(arguments if me() == wrong else right))
    torch.testing.assert_close(module(indices, offsets), single(indices, offsets))
    agreement: list[tuple[str, Callable[[], Any]]] = [
        ("whether per_sample_weights are given", lambda: module(indices, offsets, ones if me() == 0 else None)),
        ("per_sample_weights.requires_grad", lambda: module(indices, offsets, leaf(ones) if me() == 0 else ones)),
    ]
    for name, call in agreement:
        with pytest.raises(sw.InvalidProblemError, match=f"{name} must be the same on every rank, got True, False"):
            call()
    with pytest.raises(sw.UnsupportedError, match=r"the gradient must be differentiated once, got create_graph=True"):
        torch.autograd.grad(module(indices, offsets).sum(), module.weight, create_graph=True)
    if me() == 0:
        module.double()
    with pytest.raises(sw.InvalidProblemError, match=r"weight.dtype must be the same on every rank, got torch.float64, torch"):
        module(indices, offsets)
    module.float()
    with pytest.raises(sw.InvalidProblemError, match="the table must be the same on every rank"):
        (module if me() == 0 else other)(indices, offsets)
    torch.testing.assert_close(module(indices, offsets), single(indices, offsets))


def wrong_modules(sharding: str) -> None:
    """An argument that is wrong on one rank, or differs, is an error on all ranks when the module is made."""
    invalid: list[tuple[dict[str, Any], str]] = [
        ({"num_embeddings": 0}, "num_embeddings must be at least 1, got 0"),
        ({"embedding_dim": 2.0}, "embedding_dim must be an integer"),
        ({"sharding": "table"}, "sharding must be 'row' or 'column', got 'table'"),
        ({"mode": "min"}, "mode must be 'sum', 'mean' or 'max', got 'min'"),
        ({"padding_idx": 3}, r"padding_idx must be in \[-3, 3\), got 3"),
        ({"mode": "max", "scale_grad_by_freq": True}, "scale_grad_by_freq must be False with mode 'max'"),
        ({"include_last_offset": 1}, "include_last_offset must be True or False"),
        ({"device": "nowhere"}, "the table must be of a device and dtype that torch has"),
        ({"dtype": torch.int32}, "dtype must be float32, float64, float16 or bfloat16, got int32"),
        ({"dtype": torch.float8_e4m3fn}, "dtype must be float32, float64, float16 or bfloat16, got float8"),
        ({"max_norm": 1.0}, "max_norm must be None"),
        ({"sparse": True}, "sparse must be False"),
    ]
    right = {"num_embeddings": 3, "embedding_dim": 2, "sharding": sharding}
    for arguments, message in invalid:
        match = message if me() == 1 else f"the call of rank 1 must be a correct one, got .*{message[:20]}"
        with pytest.raises(sw.Error, match=match):
            std.ShardedEmbeddingBag(**{**right, **(arguments if me() == 1 else {})})
    for arguments in ({"embedding_dim": 3}, {"mode": "sum"}, {"dtype": F64}):
        with pytest.raises(sw.InvalidProblemError, match="must be the same on every rank, got"):
            std.ShardedEmbeddingBag(**{**right, **(arguments if me() == 1 else {})})
    for options in ({"max_norm": 1.0}, {"sparse": True}):
        with pytest.raises(sw.UnsupportedError):
            std.ShardedEmbeddingBag(3, 2, sharding=sharding, **options)
    module = std.ShardedEmbeddingBag(5, 4, sharding=sharding, padding_idx=-1)
    assert "mode='mean', padding_idx=4" in repr(module)
    assert f"5, 4, {sharding}s " in repr(module)


@pytest.mark.parametrize("body", [wrong_calls, wrong_modules], ids=lambda body: body.__name__)
@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.filterwarnings("ignore:.*prototype stage")
def test_wrong_calls(sharding: str, body: Callable[[str], None], ranks: Ranks) -> None:
    ranks.run(body, sharding)


def test_without_a_group() -> None:
    with pytest.raises(sw.InvalidProblemError, match="group must be a process group, got none, as none is initialized"):
        std.ShardedEmbeddingBag(3, 2)
