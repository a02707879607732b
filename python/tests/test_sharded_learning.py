"""ShardedEmbeddingBag with an optimizer learns as one process with the whole table and all bags."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Ranks, default_device, world
from support import BF16, F64
from test_sharded_bag import BAGS, SHAPES, SHARDINGS, Scorer, batch, leaf, me, of
from torch import Tensor, nn

import sternway as sw
import sternway.torch as st
import sternway.torch.distributed as std

NEAR: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
EVEN = 12  # rows and columns that 2, 3 and 4 ranks share equally
OPTIONS = {"adam": {"eps": 1e-3}, "sgd": {"weight_decay": 0.1}}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"mode": "sum", "padding_idx": 0}),
    ("adagrad", {"mode": "mean", "padding_idx": 0}),
    ("rowwise_adagrad", {"mode": "sum"}),
    ("adam", {"mode": "sum", "scale_grad_by_freq": True}),
    ("adam", {"mode": "mean"}),
    ("adagrad", {"mode": "max"}),
]


def pair(shape: tuple[int, int], sharding: str, name: str, dtype: torch.dtype = F64, **options: Any) -> tuple[Any, Any]:
    """The sharded module and one of the whole table, which is the same on every rank."""
    options = {"optimizer": name, "lr": 0.1, "optimizer_options": OPTIONS.get(name), "mode": "sum", **options}
    sharded = std.ShardedEmbeddingBag(*shape, sharding=sharding, dtype=dtype, **options)
    single = st.EmbeddingBag(*shape, dtype=dtype, **options)
    single.load_state_dict(sharded.state_dict())
    return sharded, single


def arrays(module: Any) -> dict[str, Tensor]:
    """The table and its state."""
    found = {"weight": module.weight.detach(), **module.optimizer.state_dict()["state"][0]}
    return {name: x.clone() for name, x in found.items() if isinstance(x, Tensor)}


def backward(module: Any, bags: tuple[Tensor, Tensor, Tensor, Tensor], weighted: bool) -> Tensor | None:
    """One step. Returns the gradient of the weights of samples."""
    indices, offsets, weights, dy = bags
    samples = leaf(weights) if weighted else None
    module(indices, offsets, samples).backward(dy)
    assert module.weight.grad is None
    return None if samples is None else samples.grad


def steps(sharding: str) -> None:
    for name, options in CASES:
        if (name, sharding) == ("rowwise_adagrad", "column"):
            continue
        for shape in SHAPES[:3]:  # uneven shards, and empty ones
            sharded, single = pair(shape, sharding, name, **options)
            again = copy.deepcopy(sharded)
            weighted = options["mode"] == "sum"
            for bags in (*BAGS, BAGS[0]):
                b = batch(*shape, bags)
                found = backward(sharded, b.part(me()), weighted)
                backward(again, b.part(me()), weighted)
                want = backward(single, (b.indices, b.offsets, b.weights, b.dy), weighted)
                if found is not None and want is not None:
                    ends, first = [*b.offsets.tolist(), len(b.indices)], sum(b.bags[: me()])
                    torch.testing.assert_close(found, want[ends[first] : ends[first + b.bags[me()]]], **NEAR)
            ours, truth = arrays(sharded), arrays(single)
            assert list(ours) == list(truth)
            for key, x in truth.items():
                assert torch.equal(ours[key], arrays(again)[key]), (name, key)
                torch.testing.assert_close(ours[key], of(x, sharding) if x.dim() else x, **NEAR, msg=f"{name} {options} {key}")


def parallel_models(sharding: str) -> None:
    """DDP and FSDP2 around a model that has the shard as an ignored parameter; torch.compile with a graph break."""
    from torch.distributed.fsdp import fully_shard

    replicate = nn.parallel.DistributedDataParallel
    for wrapper in ("DDP", "FSDP2"):
        sharded, single = pair((EVEN, 6), sharding, "adagrad")
        net, whole = Scorer(sharded), Scorer(single)
        if wrapper == "DDP":
            replicate._set_params_and_buffers_to_ignore_for_model(net, ["bag.weight"])
            shared: Any = replicate(net)
        else:
            mesh = torch.distributed.init_device_mesh(default_device(), (world(),))
            shared = fully_shard(net, mesh=mesh, ignored_params={sharded.weight})
        rates = torch.optim.SGD(net.parameters(), lr=0.01 * world()), torch.optim.SGD(whole.parameters(), lr=0.01)
        for bags in BAGS:  # the ranks' mean is the sum divided by their number, which the rate undoes
            b = batch(EVEN, 6, bags)
            for model, operands, optimizer in ((shared, b.part(me())[:3], rates[0]), (whole, b[:3], rates[1])):
                optimizer.zero_grad()
                model(*operands).sum().backward()
                optimizer.step()
        torch.testing.assert_close(sharded.weight, of(single.weight, sharding), **NEAR)
    compiled, b = torch.compile(sharded, backend="eager"), batch(EVEN, 6, BAGS[0])
    compiled(*b.part(me())[:2]).sum().backward()
    single(*b[:2]).sum().backward()
    torch.testing.assert_close(sharded.weight, of(single.weight, sharding), **NEAR)
    sharded, _ = pair((EVEN, EVEN), sharding, "sgd")
    replicated = replicate(nn.Sequential(sharded))
    with pytest.raises(sw.UnsupportedError, match="one that DistributedDataParallel replicates"):
        replicated(torch.tensor([[1, 2]]))


def states(sharding: str, folder: str) -> None:
    """Each rank saves and loads the state of its shard, rounding at random included: the bits are those of one run."""
    rounding = {"stochastic_rounding": True, "seed": 2**32 - 1}
    b = batch(EVEN, 6, BAGS[0], BF16)
    module, _ = pair((EVEN, 6), sharding, "adagrad", BF16, optimizer_options=rounding)
    assert module.optimizer.param_groups[0]["seed"] == (2**32 - 1 + me()) % 2**32
    backward(module, b.part(me()), False)
    whole = module.state_dict()
    assert list(whole) == ["weight"]
    torch.save(module.optimizer.state_dict(), f"{folder}/{sharding}{me()}.pt")
    resumed, _ = pair((EVEN, 6), sharding, "adagrad", BF16, optimizer_options={"stochastic_rounding": True})
    resumed.load_state_dict(whole)
    resumed.optimizer.load_state_dict(torch.load(f"{folder}/{sharding}{me()}.pt", weights_only=True))
    for each in (module, resumed):
        backward(each, b.part(me()), False)
    for key, x in arrays(module).items():
        assert torch.equal(arrays(resumed)[key], x), key
    other, _ = pair((2 * EVEN, 12), sharding, "adagrad", BF16, optimizer_options=rounding)
    with pytest.raises(sw.InvalidProblemError, match=r"ShardedEmbeddingBag\.optimizer: sum must be of shape"):
        other.optimizer.load_state_dict(module.optimizer.state_dict())


def refusals(sharding: str) -> None:
    """A refusal is one of every rank, updates nothing, and lets the next call be right."""
    right: dict[str, Any] = {"sharding": sharding, "mode": "sum", "optimizer": "sgd", "dtype": F64}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": "lamb"}, "optimizer must be sgd, .* or None, got lamb"),
        ({"lr": -1.0}, "lr must be a number of at least 0"),
        ({"optimizer_options": {"eps": 1.0}}, "optimizer_options must be of sgd"),
        ({"optimizer": None, "optimizer_options": {}}, "optimizer_options must be left out without an optimizer"),
    ]
    for arguments, message in wrong:
        match = message if me() == 1 else f"the call of rank 1 must be a correct one, got .*{message[:20]}"
        with pytest.raises(sw.Error, match=match):
            std.ShardedEmbeddingBag(5, 4, **{**right, **(arguments if me() == 1 else {})})
    for arguments in ({"lr": 0.5}, {"optimizer": "adam"}, {"optimizer": None}):
        with pytest.raises(sw.InvalidProblemError, match="optimizer must be the same on every rank, got"):
            std.ShardedEmbeddingBag(5, 4, **{**right, **(arguments if me() == 1 else {})})
    if sharding == "column":
        with pytest.raises(sw.UnsupportedError, match="optimizer must be another one with sharding 'column', got 'rowwise_ada"):
            std.ShardedEmbeddingBag(5, 4, **{**right, "optimizer": "rowwise_adagrad"})
    module = std.ShardedEmbeddingBag(1, 1, **right)  # all ranks but the first have an empty shard
    assert "mode='sum', optimizer='sgd'" in repr(module)
    indices, weights, before = torch.tensor([[0, 0]]), torch.ones(1, 2, dtype=F64), module.weight.detach().clone()

    def grad_of_weight(**options: Any) -> None:
        torch.autograd.grad(module(indices).sum(), module.weight, **options)

    calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (grad_of_weight, sw.UnsupportedError, "weight must be left to its optimizer"),
        (lambda: grad_of_weight(create_graph=True), sw.UnsupportedError, "the gradient must be differentiated once"),
        (
            lambda: torch.func.functional_call(module, {"weight": leaf(before)}, (indices,)),
            sw.UnsupportedError, "weight must be the module's own parameter",
        ),
    ]  # fmt: skip
    for call, kind, match in calls:
        with pytest.raises(kind, match=match):
            call()
    with torch.no_grad():
        module(indices)
    samples = leaf(weights)
    module(indices, per_sample_weights=samples).sum().backward(inputs=[samples])
    assert samples.grad is not None
    assert torch.equal(module.weight, before)
    # the second backward would read rows that the first has updated: no rank may go on to the exchange
    twice = module(indices, per_sample_weights=samples).sum() + module(indices, per_sample_weights=samples).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        twice.backward()
    module(indices).sum().backward()
    torch.testing.assert_close(module.weight, before - 0.01 * 4 * world())


@pytest.mark.parametrize("body", [steps, parallel_models, refusals], ids=lambda body: body.__name__)
@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_learning(sharding: str, body: Callable[[str], None], ranks: Ranks) -> None:
    """Alone finds an update by the bags of one rank, an order of ranks, and a refusal that lets other ranks wait."""
    ranks.run(body, sharding)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_states(sharding: str, ranks: Ranks, tmp_path: Any) -> None:
    """Alone finds state that is not the shard's, and ranks that round by the same random numbers."""
    ranks.run(states, sharding, str(tmp_path))
