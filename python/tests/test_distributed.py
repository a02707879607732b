"""DistributedDataParallel and FSDP2 train models with every function of sternway.torch as one process does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ranks import Ranks, default_device, seeded, world
from support import BF16, F32, F64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sternway as sw
import sternway.torch as st
import sternway.torch.distributed as std

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

ROWS, WIDTH, TOKENS, BATCH = 12, 8, 6, 4
STEPS = 3


class Scans(nn.Module):
    """The five cumulative operations along the tokens, mixed by a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.mix(x))
        y = st.cumsum(x, 1) / TOKENS + st.cumprod(1 + x / 4, 1) + st.logcumsumexp(x, -2, reverse=True)
        return torch.tanh((y + st.cummax(x, 1).values + st.cummin(x, 1, reverse=True).values) / 8)


class Quantized(nn.Module):
    """Learned quantization of activations, and a layer whose weight is stored in int8."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.shift = nn.Parameter(torch.tensor([0.1])), nn.Parameter(torch.tensor([0.3]))
        self.scale = nn.Parameter(torch.linspace(0.01, 0.02, WIDTH))
        self.register_buffer("levels", torch.arange(WIDTH * WIDTH, dtype=torch.int8).view(WIDTH, WIDTH) - 30)

    def forward(self, x: Tensor) -> Tensor:
        step, shift = (p.expand(x.shape[:-1]) for p in (self.step, self.shift))
        x = st.fake_quantize_per_token(x, step, shift, quant_min=-3, quant_max=3)
        return torch.tanh(x @ st.dequantize_per_token(self.levels, self.scale))


class Interpolated(nn.Module):
    """A rotation, then a learned interpolation between it and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.2, 0.8, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return st.lerp(x, st.rope(x[:, None], pairing="half")[:, 0], self.weight)


class Model(nn.Module):
    """All of them between two tables."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.table, self.bag = st.Embedding(ROWS, WIDTH, padding_idx=0), st.EmbeddingBag(ROWS, WIDTH, mode="sum")
        self.blocks = nn.ModuleList([Interpolated(), Scans(), Quantized(), Scans()])
        self.checkpointed = checkpointed

    def forward(self, tokens: Tensor, bags: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x.sum(1) + self.bag(bags)


def model(dtype: torch.dtype, checkpointed: bool = False) -> Model:
    torch.manual_seed(0)
    return Model(checkpointed).to(dtype)


def batch() -> tuple[Tensor, Tensor]:
    generator = seeded(1)
    return torch.randint(ROWS, (BATCH, TOKENS), generator=generator), torch.randint(ROWS, (BATCH, 3), generator=generator)


def part(rank: int) -> tuple[Tensor, ...]:
    """The part of the batch that a rank has."""
    return tuple(x.chunk(world())[rank] for x in batch())


def loss_of(y: Tensor) -> Tensor:
    return y.float().square().mean() if y.dtype == BF16 else y.square().mean()


def whole(x: Any) -> Tensor:
    """A parameter or gradient with the shards of all ranks."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def train(net: nn.Module, single: nn.Module, gradients: Callable[[nn.Module], None]) -> None:
    """Train both; the shared one on the part of this rank, the single one with these gradients. Compare each step.

    gradients: computes the gradients of the single one for the whole batch.
    """
    optimizers = [torch.optim.SGD(m.parameters(), lr=5e-4) for m in (net, single)]
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(net(*part(torch.distributed.get_rank()))).backward()
        gradients(single)
        shared = [p.grad for p in net.parameters()]
        for (name, p), gradient in zip(single.named_parameters(), shared, strict=True):
            assert p.grad.count_nonzero(), name
            torch.testing.assert_close(whole(gradient), p.grad, msg=lambda text, name=name: f"{name}: {text}")
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(net.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(whole(p), q)


def of_the_batch(single: nn.Module) -> None:
    loss_of(single(*batch())).backward()


def in_bfloat16(single: nn.Module) -> None:
    """The mean over the parts of the batch of the gradients of a copy in bfloat16, as mixed precision has it."""
    low = copy.deepcopy(single).to(BF16)
    for rank in range(world()):
        low.zero_grad()
        loss_of(low(*part(rank))).backward()
        for p, q in zip(single.parameters(), low.parameters(), strict=True):
            assert q.grad is not None
            p.grad = q.grad.float() / world() if rank == 0 else p.grad + q.grad.float() / world()  # type: ignore[operator]


def shard(net: Model, **options: Any) -> Model:
    """Give each block and table shards of its parameters, and the model those that are left."""
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.init_device_mesh(default_device(), (world(),))
    for module in (*net.blocks, net.table, net.bag):
        fully_shard(module, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def data_parallel(checkpointed: bool) -> None:
    net = nn.parallel.DistributedDataParallel(model(F64, checkpointed))
    train(net, model(F64), of_the_batch)


def data_parallel_with_sparse_gradients() -> None:
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(nn.Sequential(st.Embedding(ROWS, WIDTH, sparse=True), nn.Flatten(), nn.Linear(TOKENS * WIDTH, 2)).double())
    shared = nn.parallel.DistributedDataParallel(nets[0])
    shared(part(torch.distributed.get_rank())[0]).square().mean().backward()
    nets[1](batch()[0]).square().mean().backward()
    assert nets[0][0].weight.grad.is_sparse
    torch.testing.assert_close(nets[0][0].weight.grad.to_dense(), nets[1][0].weight.grad.to_dense())


def fully_sharded(checkpointed: bool) -> None:
    train(shard(model(F64, checkpointed)), model(F64), of_the_batch)


def mixed_precision(checkpointed: bool) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=F32)
    train(shard(model(F32, checkpointed), mp_policy=policy), model(F32), in_bfloat16)


@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "with activation checkpointing"])
@pytest.mark.parametrize("way", [data_parallel, fully_sharded, mixed_precision], ids=lambda way: way.__name__)
def test_training(way: Callable[[bool], None], checkpointed: bool, ranks: Ranks) -> None:
    ranks.run(way, checkpointed)


def test_sparse_gradients(ranks: Ranks) -> None:
    if ranks.device == "cuda":
        pytest.skip("torch's NCCL group adds no sparse tensors")
    ranks.run(data_parallel_with_sparse_gradients)


# --- Positions --------------------------------------------------------------------------------------------------------


def contiguous_positions() -> None:
    rank = torch.distributed.get_rank()
    for cycle in ((3, 5), (0, 4), (4, 0), (0, 0), (1, 2, 3)):
        lengths = [cycle[k % len(cycle)] for k in range(world())]
        first = sum(lengths[:rank])
        found = std.positions(lengths[rank])
        assert found.dtype == torch.int64
        assert found.tolist() == list(range(first, first + lengths[rank]))
    assert std.positions(2, device="cpu").device.type == "cpu"


def zigzag_positions() -> None:
    """Rank 0 has the first and the last chunk of three tokens. RoPE of the parts is RoPE of the whole."""
    rank, chunks = torch.distributed.get_rank(), torch.arange(6 * world()).chunk(2 * world())
    found = std.positions(6, order="zigzag")
    assert found.tolist() == [*chunks[rank].tolist(), *chunks[-1 - rank].tolist()]
    assert std.positions(0, order="zigzag").tolist() == []
    x = torch.linspace(-1, 1, 6 * world() * WIDTH).view(1, 1, -1, WIDTH)
    torch.testing.assert_close(st.rope(x[:, :, found], found), st.rope(x)[:, :, found])


def wrong_positions() -> None:
    """A wrong call on one rank is an error on all, and the group goes on."""
    rank = torch.distributed.get_rank()
    calls: list[tuple[Any, str, str]] = [
        (-1, "contiguous", "local_len must be a number of tokens, got -1"),
        (2.0, "contiguous", "local_len must be an integer"),
        (True, "contiguous", "local_len must be an integer"),
        (2, "reversed", "order must be 'contiguous' or 'zigzag'"),
        (3, "zigzag", "local_len must be even"),
        (-(10**5000), "contiguous", ""),  # an integer that Python does not print
        (2, np.array(["contiguous", "zigzag"]), "order must be 'contiguous' or 'zigzag'"),
    ]
    for wrong in range(world()):
        for length, order, message in calls:
            match = message if rank == wrong else f"the call of rank {wrong} must be a correct one, got .*{message}"
            with pytest.raises((sw.InvalidProblemError, ValueError), match=match):
                std.positions(length if rank == wrong else 2, order=order if rank == wrong else "contiguous")
        with pytest.raises(sw.InvalidProblemError, match="device must be a device that torch has, got 'nowhere'"):
            std.positions(2, device="nowhere" if rank == wrong else None)
    with pytest.raises(sw.InvalidProblemError, match="local_len must be the same on every rank for order='zigzag', got 2, 4"):
        std.positions(2 + 2 * rank, order="zigzag")
    with pytest.raises(sw.InvalidProblemError, match="order must be the same on every rank"):
        std.positions(2, order="zigzag" if rank else "contiguous")
    groups = [torch.distributed.new_group([k]) for k in range(world())]
    assert std.positions(3, groups[rank]).tolist() == [0, 1, 2]
    with pytest.raises(sw.InvalidProblemError, match="group must be a group of which this process is a member"):
        std.positions(3, groups[rank - 1])


@pytest.mark.parametrize("body", [contiguous_positions, zigzag_positions, wrong_positions], ids=lambda body: body.__name__)
def test_positions(body: Callable[[], None], ranks: Ranks) -> None:
    ranks.run(body)


def test_positions_without_a_group() -> None:
    with pytest.raises(sw.InvalidProblemError, match="group must be a process group, got none, as none is initialized"):
        std.positions(3)
