"""DistributedDataParallel and FSDP2 train models with every function of sternway.torch as one process does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from ranks import WORLD, Ranks, started
from support import BF16, F32, F64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sternway.torch as st

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

ROWS, WIDTH, TOKENS, BATCH = 12, 8, 6, 4
STEPS = 3


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with started(tmp_path_factory.mktemp("ranks")) as both:
        yield both


class Scans(nn.Module):
    """The five cumulative operations along the tokens, mixed by a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.mix(x))
        y = st.cumsum(x, 1) / TOKENS + st.cumprod(1 + x / 4, 1) + st.logcumsumexp(x, -2, reverse=True)
        return torch.tanh((y + st.cummax(x, 1).values + st.cummin(x, 1, reverse=True).values) / 8)


class Quantised(nn.Module):
    """Learned quantisation of activations, and a layer whose weight is stored in int8."""

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
        self.blocks = nn.ModuleList([Interpolated(), Scans(), Quantised(), Scans()])
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
    generator = torch.Generator().manual_seed(1)
    return torch.randint(ROWS, (BATCH, TOKENS), generator=generator), torch.randint(ROWS, (BATCH, 3), generator=generator)


def part(rank: int) -> tuple[Tensor, ...]:
    """The part of the batch that a rank has."""
    return tuple(x.chunk(WORLD)[rank] for x in batch())


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
    for rank in range(WORLD):
        low.zero_grad()
        loss_of(low(*part(rank))).backward()
        for p, q in zip(single.parameters(), low.parameters(), strict=True):
            assert q.grad is not None
            p.grad = q.grad.float() / WORLD if rank == 0 else p.grad + q.grad.float() / WORLD  # type: ignore[operator]


def shard(net: Model, **options: Any) -> Model:
    """Give each block and table shards of its parameters, and the model those that are left."""
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.init_device_mesh("cpu", (WORLD,))
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
    ranks.run(data_parallel_with_sparse_gradients)
