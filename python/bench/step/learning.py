"""Steps of a model whose tables learn in the backward, beside torch's sparse optimizers and beside tables that do not learn."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from ..._cases import TorchSource
from ..._cases.case import wide
from ..._cases.embedding_bag import uniform
from .. import updates
from .case import OURS, TORCH, Checked, Contestant, Size, Step, StepCase
from .check import SLACK, require, roundings
from .dlrm import mlp

FROZEN, TOGETHER = "frozen", "EmbeddingBags"
LAYERS = (512, 256, 1)  # widths of the layers above the tables
ACTIVATION = "SiLU"  # smooth: a unit of ReLU that a rounding turns on or off would change the gradients of its sample
RATE = 1e-3  # of the layers


def tables_of(contestant: str, rule: str, size: Size, device: str) -> Any:
    """The tables of a contestant: a module of indices [tables, positions] and the offsets of one table, with the results of
    the bags of all tables side by side. Equal tables for equal sizes.
    """
    import torch
    from torch import nn

    import sternway.torch as st

    count, rows, width, batch, bag = size.shape
    place: dict[str, Any] = {"mode": "sum", "device": device}
    learning: dict[str, Any] = {"optimizer": rule, "lr": updates.RATES[rule], "optimizer_options": updates.options(rule)}

    class Apart(nn.Module):
        def __init__(self, bags: Callable[[], Any]) -> None:
            super().__init__()
            self.bags = nn.ModuleList(bags() for _ in range(count))

        def weights(self) -> list[Any]:
            return [each.weight for each in self.bags]

        def forward(self, indices: Any, offsets: Any) -> Any:
            return torch.cat([each(i, offsets) for each, i in zip(self.bags, indices, strict=True)], 1)

    class Together(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            bags: Any = getattr(st, TOGETHER)
            self.bags = bags([(rows, width)] * count, **place, **learning)
            self.offsets = torch.arange(0, count * batch * bag + 1, bag, device=device)

        def weights(self) -> list[Any]:
            return list(self.bags.weights)

        def forward(self, indices: Any, offsets: Any) -> Any:
            return self.bags(indices.view(-1), self.offsets)

    made: dict[str, Callable[[], Any]] = {
        TORCH: lambda: Apart(lambda: nn.EmbeddingBag(rows, width, sparse=True, **place)),
        OURS: lambda: Apart(lambda: st.EmbeddingBag(rows, width, **place, **learning)),
        TOGETHER: Together,
        FROZEN: lambda: Apart(lambda: nn.EmbeddingBag(rows, width, **place).requires_grad_(False)),
    }
    tables = made[contestant]()
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in tables.weights():
            weight.normal_()
    return tables


class Model:
    """Tables of a contestant, layers above them, and their optimizers."""

    def __init__(self, contestant: str, rule: str, size: Size, device: str, inputs: tuple[Any, Any, Any]) -> None:
        import torch

        self.tables = tables_of(contestant, rule, size, device)
        count, _, width, batch, _ = size.shape
        self.top = mlp((count * width, *LAYERS), ACTIVATION).to(device)
        self.indices, self.offsets, self.clicked = inputs
        self.optimizers = [torch.optim.SGD(self.top.parameters(), lr=RATE / batch)]
        if contestant == TORCH:
            self.optimizers.append(updates.by_torch(rule, self.tables.weights()))

    def loss(self, embeddings: Any) -> Any:
        """The sum over the batch, in the dtype of the embeddings."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        top = self.top if embeddings.dtype == self.clicked.dtype else copy.deepcopy(self.top).to(embeddings.dtype)
        y = top(embeddings)[:, 0]
        return binary_cross_entropy_with_logits(y, self.clicked.to(y.dtype), reduction="sum")

    def forward(self) -> Any:
        """The loss of the batch."""
        return self.loss(self.tables(self.indices, self.offsets))

    def step(self) -> None:
        """A training step. A backward that updates tables has no other step for them."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.forward().backward()
        for optimizer in self.optimizers:
            optimizer.step()


def learning(rule: str, device: str, size: Size) -> Step:
    """A shape is (tables, rows of a table, width, batch, indices of a bag). Indices are uniform. All in float32."""
    import torch

    import sternway.torch as st

    count, rows, _, batch, bag = size.shape
    source = TorchSource(device)
    indices = torch.stack([uniform(source, rows, batch * bag) for _ in range(count)])
    clicked = source.cast(source.normal((batch,)) > 0, size.dtype)
    inputs = indices, torch.arange(0, batch * bag, bag, device=device), clicked

    def model(contestant: str) -> Model:
        return Model(contestant, rule, size, device, inputs)

    names, left_out = [TORCH, OURS, FROZEN], {}
    if hasattr(st, TOGETHER):
        names.append(TOGETHER)
    else:
        left_out[TOGETHER] = "left out: this version of sternway.torch has none"
    models = {name: model(name) for name in names}
    contestants = {name: Contestant(each.forward, each.step) for name, each in models.items()}

    def check(them: Mapping[str, Contestant]) -> dict[str, Checked]:
        """Compare the used rows of the first table after the first step of new models with float64."""
        found = {name: Checked(deviation(model(name), rule_of(name, rule), bag)) for name in them if name != FROZEN}
        allowed = roundings(size.dtype, 8 + math.log2(batch * bag))
        for name in found.keys() - {TORCH}:
            require(f"a table of {name}", found[name].error, allowed, SLACK * found[TORCH].error)
        return found

    return Step(contestants, check, left_out)


def rule_of(contestant: str, rule: str) -> str:
    """The optimizer of the tables of a contestant: torch has no "rowwise_adagrad"."""
    return updates.of_torch(rule) if contestant == TORCH else rule


def deviation(model: Model, rule: str, bag: int) -> float:
    """The error of the used rows of the first table after a step, relative to their norm."""
    import torch

    tables = [weight.detach() for weight in model.tables.weights()]
    bags = [wide(x[i]).view(-1, bag, x.shape[1]).sum(1) for x, i in zip(tables, model.indices, strict=True)]
    embeddings = torch.cat(bags, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(model.loss(embeddings), embeddings)
    rows, sums = updates.of_rows(gradient[:, : tables[0].shape[1]], model.indices[0], bag)
    truth = updates.first_update(rule, wide(tables[0][rows]), sums)
    model.step()
    return updates.deviation(model.tables.weights()[0].detach()[rows], truth)


QUICK, CPU, *CUDA = (
    Size(shape, "float32")
    for shape in (
        (3, 100, 16, 32, 4),
        (8, 20_000, 64, 512, 10),
        (8, 1_000_000, 128, 8192, 20),
        (26, 200_000, 64, 4096, 1),
        (100, 100_000, 64, 2048, 10),
    )
)

CASES = tuple(
    StepCase(f"learning tables, {rule}", functools.partial(learning, rule), QUICK, (CPU,), tuple(CUDA))
    for rule in updates.RULES
)
"""The steps of the benchmark, in the order in which they run."""
