"""Does a recommendation model learn the same with its tables cut over processes as with whole tables in one process?

    torchrun --nproc-per-node 2 examples/sharded_dlrm.py
    torchrun --nproc-per-node 2 examples/sharded_dlrm.py --optimizer adam

It trains a small DLRM (Naumov et al., arXiv:1906.00091) on synthetic clicks, in three ways:

- cut: the tables are ``ShardedEmbeddingBag``, one cut by columns and the others by rows, so that each process has a part of
  each table, and its own part of each batch. Their optimizer updates the rows that were used in the backward. The dense layers
  are replicated and trained by DistributedDataParallel.
- whole: each process has ``st.EmbeddingBag`` with the same optimizer, and all data.
- torch: ``torch.nn.EmbeddingBag`` with sparse gradients, and torch's optimizer of the same rule.

With NCCL if each process has a GPU of its own, else with gloo on the CPU.

It prints the loss of each step, the median time of a step, and the bytes of the tables of a process. It ends with

    ok: the losses and tables are those of a single process with torch's optimizer

or with exit code 1 if a loss or a table differs by more than TOLERANCE, relative to its size.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

import sternway.torch as st
import sternway.torch.distributed as std

Cut = Literal["row", "column"]
TABLES: tuple[tuple[int, Cut], ...] = ((5000, "row"), (999, "row"), (3, "row"), (2000, "column"))  # by number of rows
WIDTH, FEATURES = 16, 13  # columns of a table, dense features
BATCH, STEPS, RATE = 512, 20, 1.0  # BATCH: samples of all processes together; RATE: of the dense layers
LONGEST = 6  # indices of a bag
Rule = Literal["sgd", "adagrad", "adam"]
RATES: dict[Rule, float] = {"sgd": 1.0, "adagrad": 0.1, "adam": 0.01}  # of the tables
# where the first squares of gradients were divided by themselves, roundings of tiny gradients would grow to whole steps
OPTIONS: dict[Rule, dict[str, Any]] = {"sgd": {}, "adagrad": {"initial_accumulator_value": 1e-3}, "adam": {"eps": 1e-3}}
OF_TORCH: dict[Rule, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.SparseAdam,
}
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


class Trained(NamedTuple):
    """The losses of the batches, seconds of each step, the whole tables, and the bytes of the tables of this process."""

    losses: list[float]
    seconds: list[float]
    tables: dict[str, Tensor]
    table_bytes: int


def train(
    dense: nn.Module, tables: nn.ModuleList, optimizers: Sequence[torch.optim.Optimizer], start: dict[str, Tensor], ranks: int
) -> Trained:
    """Train on the batches, of which each of the ranks has a part."""
    tables.load_state_dict(start)
    device, losses, seconds = next(dense.parameters()).device, [], []
    for step in range(STEPS):
        part = Batch(step, device).part(dist.get_rank() if ranks > 1 else 0, ranks)
        if device.type == "cuda":
            torch.cuda.synchronize()
        before = time.perf_counter()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(dense, tables, part)
        loss.backward()  # which updates tables that have an optimizer
        for parameter in dense.parameters():  # DDP took the mean over the processes, and the losses of the parts are summed
            if parameter.grad is not None:
                parameter.grad *= ranks
        for optimizer in optimizers:
            optimizer.step()
        whole = loss.detach().clone()
        if ranks > 1:
            dist.all_reduce(whole)
        losses.append(float(whole))  # waits for the device
        seconds.append(time.perf_counter() - before)
    return Trained(losses, seconds, tables.state_dict(), sum(p.nbytes for p in tables.parameters()))


def train_cut(device: torch.device, start: dict[str, Tensor], rule: Rule) -> Trained:
    """Train with all processes."""
    torch.manual_seed(0)
    dense = nn.parallel.DistributedDataParallel(Dense().to(device))  # the tables are outside: they are not replicated
    learning: dict[str, Any] = {"optimizer": rule, "lr": RATES[rule], "optimizer_options": OPTIONS[rule]}
    tables = nn.ModuleList(
        std.ShardedEmbeddingBag(rows, WIDTH, sharding=sharding, mode="sum", device=device, **learning)
        for rows, sharding in TABLES
    )
    return train(dense, tables, [torch.optim.SGD(dense.parameters(), lr=RATE)], start, dist.get_world_size())


def train_whole(device: torch.device, start: dict[str, Tensor], rule: Rule, *, by_torch: bool) -> Trained:
    """Train with whole tables and whole batches in this process."""
    torch.manual_seed(0)
    dense = Dense().to(device)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(dense.parameters(), lr=RATE)]
    if by_torch:
        tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True, device=device) for rows, _ in TABLES)
        optimizers.append(OF_TORCH[rule](list(tables.parameters()), lr=RATES[rule], **OPTIONS[rule]))
    else:
        learning: dict[str, Any] = {"optimizer": rule, "lr": RATES[rule], "optimizer_options": OPTIONS[rule]}
        tables = nn.ModuleList(st.EmbeddingBag(rows, WIDTH, mode="sum", device=device, **learning) for rows, _ in TABLES)
    return train(dense, tables, optimizers, start, 1)


def report(cut: Trained, whole: Trained, by_torch: Trained) -> float:
    """Print the losses and times on the first process. Returns the largest relative difference from torch."""
    others = cut, whole
    difference = max(abs(a - b) / b for way in others for a, b in zip(way.losses, by_torch.losses, strict=True))
    apart = max(float((way.tables[name] - x).norm() / x.norm()) for way in others for name, x in by_torch.tables.items())
    if int(os.environ["RANK"]) == 0:
        device = next(iter(cut.tables.values())).device.type
        size = f"tables {cut.table_bytes} of {whole.table_bytes} bytes on the first process"
        print(f"{os.environ['WORLD_SIZE']} processes on {device}; {size}")
        print("step  loss, cut     whole     torch")
        for step, losses in enumerate(zip(cut.losses, whole.losses, by_torch.losses, strict=True)):
            print(f"{step:4}" + "".join(f"{loss:{width}.6f}" for loss, width in zip(losses, (11, 10, 10), strict=True)))
        times = [f"{1e3 * statistics.median(way.seconds[1:]):.1f}" for way in (cut, whole, by_torch)]
        print("median of a step: cut {} ms, whole {} ms, torch {} ms".format(*times))
        print(f"largest relative difference: losses {difference:.1e}, tables {apart:.1e}; tolerance {TOLERANCE:.0e}")
    return max(difference, apart)


def main() -> int:
    """Train in the three ways and compare. Returns the exit code, the same on every process."""
    parser = argparse.ArgumentParser(description="a recommendation model whose tables are cut over processes")
    parser.add_argument("--optimizer", choices=list(RATES), default="adagrad", help="of the tables")
    rule: Rule = parser.parse_args().optimizer
    local, processes = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    on_gpus = torch.cuda.device_count() >= processes and dist.is_nccl_available()
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    try:
        generator = torch.Generator().manual_seed(1)
        start = {f"{k}.weight": torch.randn(rows, WIDTH, generator=generator) / 4 for k, (rows, _) in enumerate(TABLES)}
        cut = train_cut(device, start, rule)  # the others on every process too, so that all return the same code
        whole, by_torch = (train_whole(device, start, rule, by_torch=by_torch) for by_torch in (False, True))
    finally:
        dist.destroy_process_group()
    if not report(cut, whole, by_torch) <= TOLERANCE:
        return 1
    if int(os.environ["RANK"]) == 0:
        print("ok: the losses and tables are those of a single process with torch's optimizer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
