"""Does a recommendation model learn the same with its tables cut over processes as with whole tables in one process?

    torchrun --nproc-per-node 2 examples/sharded_dlrm.py

It trains a small DLRM (Naumov et al., arXiv:1906.00091) on synthetic clicks. The dense layers are replicated and trained by
DistributedDataParallel; the tables are ``ShardedEmbeddingBag``, one cut by columns and the others by rows, so that each process
has a part of each table, and its own part of each batch. With NCCL if each process has a GPU of its own, else with gloo on
the CPU.

It prints the loss of each step, that of a single process with whole tables on the same data beside it, and the bytes of the
tables of a process. It ends with

    ok: the losses and tables are those of a single process

or with exit code 1 if a loss or a table differs by more than TOLERANCE, relative to its size.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

import sternway.torch as st
import sternway.torch.distributed as std

Cut = Literal["row", "column"]
TABLES: tuple[tuple[int, Cut], ...] = ((5000, "row"), (999, "row"), (3, "row"), (2000, "column"))  # by number of rows
WIDTH, FEATURES = 16, 13  # columns of a table, dense features
BATCH, STEPS, RATE = 512, 20, 1.0  # BATCH: samples of all processes together
LONGEST = 6  # indices of a bag
TOLERANCE = 1e-5  # float32: the single process sums the same numbers in another order, in every step


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers = [(nn.Linear(before, after), nn.ReLU()) for before, after in itertools.pairwise(widths)]
    return nn.Sequential(*itertools.chain(*layers))[:-1]


class Dense(nn.Module):
    """The layers below and above the products of all pairs of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        vectors = len(TABLES) + 1
        self.bottom = mlp(FEATURES, 32, WIDTH)
        self.top = mlp(WIDTH + vectors * (vectors - 1) // 2, 64, 1)

    def forward(self, features: Tensor, embeddings: Sequence[Tensor]) -> Tensor:
        """Return the logits of clicks [samples]."""
        below = self.bottom(features)
        vectors = torch.stack([below, *embeddings], 1)
        products = vectors @ vectors.mT
        count = products.shape[1]
        first, second = torch.tril_indices(count, count, -1, device=products.device)
        return self.top(torch.cat([below, products[:, first, second]], 1))[:, 0]


class Batch:
    """Samples with dense features, a bag of indices for each table, and a click that depends on both."""

    def __init__(self, step: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(step)
        features = torch.randn(BATCH, FEATURES, generator=generator)
        self.lengths = torch.randint(LONGEST + 1, (BATCH,), generator=generator)
        count = int(self.lengths.sum())
        # small indices are frequent, as popular items are
        indices = [(torch.rand(count, generator=generator) ** 3 * rows).long() for rows, _ in TABLES]
        liked = torch.zeros(BATCH).index_add_(
            0, torch.arange(BATCH).repeat_interleave(self.lengths), (indices[0] % 2) * 2.0 - 1
        )
        self.clicks = (2 * features[:, 0] + liked > 0).float().to(device)
        self.features, self.indices = features.to(device), [i.to(device) for i in indices]
        self.device = device

    def part(self, rank: int, ranks: int) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
        """The samples of a process: features, indices by table, offsets of bags, clicks."""
        first, last = (BATCH * k // ranks for k in (rank, rank + 1))
        ends = [0, *self.lengths.cumsum(0).tolist()]
        offsets = torch.tensor(ends[first:last], device=self.device) - ends[first]
        indices = [i[ends[first] : ends[last]] for i in self.indices]
        return self.features[first:last], indices, offsets, self.clicks[first:last]


def loss_of(dense: nn.Module, tables: nn.ModuleList, part: tuple[Tensor, list[Tensor], Tensor, Tensor]) -> Tensor:
    """The sum of the losses of some samples, divided by the size of the whole batch."""
    features, indices, offsets, clicks = part
    embeddings = [table(i, offsets) for table, i in zip(tables, indices, strict=True)]
    logits = dense(features, embeddings)
    return nn.functional.binary_cross_entropy_with_logits(logits, clicks, reduction="sum") / BATCH


def optimizer_of(dense: nn.Module, tables: nn.ModuleList) -> torch.optim.Optimizer:
    """SGD, which shows a gradient of a wrong scale where Adam would hide it. Any optimizer works on shards."""
    return torch.optim.SGD([*dense.parameters(), *tables.parameters()], lr=RATE)


def train_sharded(device: torch.device, start: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor], int]:
    """Train with all processes. Returns the losses of the batches, the whole tables, and the bytes of this rank's shards."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dense = nn.parallel.DistributedDataParallel(Dense().to(device))  # the tables are outside: they are not replicated
    tables = nn.ModuleList(
        std.ShardedEmbeddingBag(rows, WIDTH, sharding=sharding, mode="sum", device=device) for rows, sharding in TABLES
    )
    tables.load_state_dict(start)
    optimizer, losses = optimizer_of(dense, tables), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(dense, tables, Batch(step, device).part(rank, ranks))
        loss.backward()
        for parameter in dense.parameters():  # DDP took the mean over the processes, and the losses of the parts are summed
            if parameter.grad is not None:
                parameter.grad *= ranks
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(float(whole))
    return losses, tables.state_dict(), sum(p.nbytes for p in tables.parameters())


def train_single(device: torch.device, start: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor], int]:
    """Train with whole tables and whole batches in this process. Returns the same as train_sharded."""
    torch.manual_seed(0)
    dense = Dense().to(device)
    tables = nn.ModuleList(st.EmbeddingBag(rows, WIDTH, mode="sum", device=device) for rows, _ in TABLES)
    tables.load_state_dict(start)
    optimizer, losses = optimizer_of(dense, tables), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(dense, tables, Batch(step, device).part(0, 1))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, tables.state_dict(), sum(p.nbytes for p in tables.parameters())


def main() -> int:
    """Train both ways and compare. Returns the exit code, the same on every process."""
    local, processes = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    on_gpus = torch.cuda.device_count() >= processes and dist.is_nccl_available()
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    try:
        generator = torch.Generator().manual_seed(1)
        start = {f"{k}.weight": torch.randn(rows, WIDTH, generator=generator) / 4 for k, (rows, _) in enumerate(TABLES)}
        sharded, tables, mine = train_sharded(device, start)
        single, truth, all_of_them = train_single(device, start)  # on every process, so that all return the same code
    finally:
        dist.destroy_process_group()
    difference = max(abs(a - b) / b for a, b in zip(sharded, single, strict=True))
    apart = max(float((tables[name] - truth[name]).norm() / truth[name].norm()) for name in truth)
    if int(os.environ["RANK"]) == 0:
        print(
            f"{os.environ['WORLD_SIZE']} processes on {device.type}; tables {mine} of {all_of_them} bytes on the first process"
        )
        print("step  loss, tables cut  loss, single process")
        for step, pair in enumerate(zip(sharded, single, strict=True)):
            print(f"{step:4}  {pair[0]:16.6f}  {pair[1]:20.6f}")
        print(f"largest relative difference: losses {difference:.1e}, tables {apart:.1e}; tolerance {TOLERANCE:.0e}")
    if not max(difference, apart) <= TOLERANCE:
        return 1
    if int(os.environ["RANK"]) == 0:
        print("ok: the losses and tables are those of a single process")
    return 0


if __name__ == "__main__":
    sys.exit(main())
