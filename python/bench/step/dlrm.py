"""The step of a recommendation model, DLRM (Naumov et al., arXiv:1906.00091), with its optimizer."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Sequence
from typing import Any

from ..._cases import TorchSource
from ..._cases.embedding_bag import zipf
from .case import OURS, TORCH, Contestant, Size, Step, StepCase
from .check import against

TABLES, FEATURES = 8, 13
BOTTOM, TOP = (512, 256), (1024, 1024, 512, 256, 1)  # widths of the layers, those of MLPerf's DLRM
RATE = 1e-3


def mlp(widths: Sequence[int], activation: str = "ReLU") -> Any:
    """Linear layers with an activation of torch.nn between them."""
    from torch import nn

    layers: list[Any] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), getattr(nn, activation)()]
    return nn.Sequential(*layers[:-1])


def model(bag: Any, rows: int, width: int, device: str, *, sparse: bool) -> Any:
    """The model with tables of a class: torch.nn.EmbeddingBag, or one like it. Equal weights for equal arguments."""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(bag(rows, width, mode="sum", sparse=sparse, device=device) for _ in range(TABLES))
            self.bottom = mlp((FEATURES, *BOTTOM, width)).to(device)
            pairs = TABLES * (TABLES + 1) // 2
            self.top = mlp((width + pairs, *TOP)).to(device)
            self.places = torch.tril_indices(TABLES + 1, TABLES + 1, -1, device=device)

        def forward(self, dense: Any, indices: Sequence[Any], offsets: Any, clicked: Any) -> Any:
            """The loss: products of all pairs of embeddings, beside the dense features."""
            below = self.bottom(dense)
            rows = [table(i, offsets) for table, i in zip(self.tables, indices, strict=True)]
            all_of_them = torch.stack([below, *rows], 1)
            products = (all_of_them @ all_of_them.mT)[:, self.places[0], self.places[1]]
            y = self.top(torch.cat([below, products], 1))[:, 0]
            return nn.functional.binary_cross_entropy_with_logits(y, clicked)

    torch.manual_seed(0)
    return Model()


def optimizers(net: Any, name: str) -> list[Any]:
    """SGD of everything; or SparseAdam of the tables and Adam of the rest."""
    import torch

    if name == "SGD":
        return [torch.optim.SGD(net.parameters(), lr=RATE)]
    tables = list(net.tables.parameters())
    others = [*net.bottom.parameters(), *net.top.parameters()]
    return [torch.optim.SparseAdam(tables, lr=RATE), torch.optim.Adam(others, lr=RATE)]


def contestant(net: Any, inputs: tuple[Any, ...], optimizer: str) -> Contestant:
    """The step of a model and its optimizers."""
    steppers = optimizers(net, optimizer)

    def gradients() -> list[Any]:
        net.zero_grad(set_to_none=True)
        net(*inputs).backward()
        return [parameter.grad for parameter in net.parameters()]

    def step() -> None:
        gradients()
        for stepper in steppers:
            stepper.step()
        net.zero_grad(set_to_none=True)

    return Contestant(lambda: net(*inputs), step, gradients)


def dlrm(optimizer: str, sparse: bool, device: str, size: Size) -> Step:
    """A shape is (rows of a table, width, batch, indices of a bag). Indices follow Zipf's law. All in float32."""
    import torch

    import sternway.torch as st

    rows, width, batch, bag = size.shape
    source = TorchSource(device)
    dense = source.cast(source.normal((batch, FEATURES)), size.dtype)
    clicked = source.cast(source.normal((batch,)) > 0, size.dtype)
    indices = [zipf(source, rows, batch * bag) for _ in range(TABLES)]
    offsets = torch.arange(0, batch * bag, bag, device=device)
    inputs = (dense, indices, offsets, clicked)
    nets = {
        name: model(cls, rows, width, device, sparse=sparse)
        for name, cls in ((TORCH, torch.nn.EmbeddingBag), (OURS, st.EmbeddingBag))
    }
    contestants = {name: contestant(net, inputs, optimizer) for name, net in nets.items()}

    def reference() -> list[Any]:
        wide = copy.deepcopy(nets[TORCH]).double()
        wide(dense.double(), indices, offsets, clicked.double()).backward()
        return [parameter.grad for parameter in wide.parameters()]

    return Step(contestants, lambda them: against(reference(), them, size.dtype, batch * bag))


QUICK, CPU, CUDA = (Size(s, "float32") for s in ((100, 16, 32, 4), (20_000, 64, 512, 10), (1 << 20, 128, 8192, 20)))

CASES = tuple(
    StepCase(
        f"DLRM, {TABLES} {'sparse' if sparse else 'dense'} gradients, {optimizer}",
        functools.partial(dlrm, optimizer, sparse), QUICK, (CPU,), (CUDA,),
    )
    for optimizer, sparse in (("SGD", True), ("SparseAdam", True), ("SGD", False))
)  # fmt: skip
