"""Sparse gradients: their rows, steps of optimizers, the mark that they are coalesced, CUDA graphs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from support import F64

import sternway.torch as st

OPTIMIZERS = ("SGD", "SparseAdam", "Adagrad")
MODULES: dict[str, Any] = {
    "bags": lambda home, padding, device: home.EmbeddingBag(
        40, 5, mode="sum", sparse=True, padding_idx=padding, device=device, dtype=F64
    ),
    "embedding": lambda home, padding, device: home.Embedding(
        40, 5, sparse=True, padding_idx=padding, device=device, dtype=F64
    ),
}
EACH = pytest.mark.parametrize("kind", MODULES)
PADDINGS = pytest.mark.parametrize("padding", [None, 4, -1])

pytestmark = pytest.mark.filterwarnings("ignore:.*sparse invariant")


def step(module: torch.nn.Module, indices: torch.Tensor) -> torch.Tensor:
    """The gradient of the table, accumulated."""
    module(indices).square().sum().backward()
    return module.weight.grad


def counted(indices: torch.Tensor, padding: int | None) -> list[int]:
    return sorted(set(indices.flatten().tolist()) - {None if padding is None else padding % 40})


@EACH
@PADDINGS
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer: str, padding: int | None, kind: str, device: str) -> None:
    """Three steps are torch's; rows that no index names stay as they are."""
    lists = [torch.randint(0, n, (7, 9), device=device) for n in (40, 5, 30)]
    results = []
    for home in (st, torch.nn):
        torch.manual_seed(0)
        module = MODULES[kind](home, padding, device)
        stepper = getattr(torch.optim, optimizer)(module.parameters(), lr=0.1)
        for indices in lists:
            stepper.zero_grad()
            step(module, indices)
            stepper.step()
        results.append(module.weight.detach())
    torch.testing.assert_close(*results)


@EACH
@PADDINGS
def test_rows(padding: int | None, kind: str, device: str) -> None:
    """The gradient has the rows that occur and no other, in order, and says that it is coalesced, in ``.grad`` too."""
    module = MODULES[kind](st, padding, device)
    for indices in (torch.randint(0, 40, (7, 9), device=device), torch.randint(2, 6, (3, 50), device=device)):
        module.zero_grad()
        grad = step(module, indices)
        want = counted(indices, padding)
        assert grad.coalesce().indices()[0].tolist() == want
        (alone,) = torch.autograd.grad(module(indices).square().sum(), module.weight)
        torch.testing.assert_close(alone.to_dense(), grad.to_dense())
        for d in (alone, grad):
            assert d.is_coalesced()
            assert d._indices()[0].tolist() == want


@EACH
def test_nothing_counts(kind: str, device: str) -> None:
    """No index, and padding alone: no step of an optimizer moves any row."""
    for indices in (torch.zeros(3, 0, dtype=torch.int64, device=device), torch.full((3, 4), 4, device=device)):
        for optimizer in OPTIMIZERS:
            module = MODULES[kind](st, 4, device)
            before = module.weight.detach().clone()
            stepper = getattr(torch.optim, optimizer)(module.parameters(), lr=0.1)
            for _ in range(2):
                stepper.zero_grad()
                assert not step(module, indices).to_dense().any()
                stepper.step()
            assert torch.equal(module.weight, before)


@EACH
def test_flag_is_of_the_whole_gradient(kind: str, device: str) -> None:
    """A sum of gradients is not marked unless torch marks it, nor is a gradient that a hook put in its place."""
    indices = torch.randint(0, 40, (7, 9), device=device)
    module = MODULES[kind](st, None, device)
    once = step(module, indices).to_dense()
    twice = step(module, indices)
    torch.testing.assert_close(twice.to_dense(), 2 * once)
    assert not twice.is_coalesced() or len(twice._indices()[0].unique()) == twice._nnz()
    module = MODULES[kind](st, None, device)
    module.load_state_dict(module.state_dict())
    shared = module.weight
    (shared.sum() * 0 + module(indices).square().sum()).backward()
    assert shared.grad.layout is torch.strided
    module.zero_grad()
    other = torch.sparse_coo_tensor([[1, 1]], torch.ones(2, 5, dtype=F64), (40, 5), device=device)
    hook = module.weight.register_hook(lambda _: other)
    assert not step(module, indices).is_coalesced()
    hook.remove()


@EACH
@pytest.mark.parametrize("hooked", [False, True])
def test_flag_does_not_change_after_the_first_hook(hooked: bool, kind: str, device: str) -> None:
    """DistributedDataParallel hands ``.grad`` to a thread that reads the flag, in a hook of the node."""
    module = MODULES[kind](st, None, device)
    seen: list[bool] = []
    if hooked:
        module.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.is_coalesced()))
    node = module.weight.view_as(module.weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: seen.append(module.weight.grad.is_coalesced()))
    hooks = dict(module.weight._post_accumulate_grad_hooks or {})
    indices = torch.randint(0, 40, (7, 9), device=device)
    last = step(module, indices).is_coalesced()
    assert last or hooked
    assert seen == [last] * (1 + hooked)
    torch.autograd.grad(module(indices).sum(), module.weight)
    assert dict(module.weight._post_accumulate_grad_hooks or {}) == hooks


@EACH
def test_the_table_is_not_kept(kind: str, device: str) -> None:
    module = MODULES[kind](st, None, device)
    reference = weakref.ref(module.weight)
    y = module(torch.tensor([[1, 2]], device=device))
    y.sum().backward()
    del module, y
    gc.collect()
    assert reference() is None


@EACH
def test_gradients_of_one_forward_twice(kind: str, device: str) -> None:
    """With retain_graph, the second gradient has the bits of the first."""
    module = MODULES[kind](st, 3, device)
    y = module(torch.randint(0, 40, (7, 9), device=device)).square().sum()
    a, b = (torch.autograd.grad(y, module.weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(a.to_dense(), b.to_dense())


@pytest.mark.gpu
@EACH
@PADDINGS
def test_a_step_in_a_cuda_graph(padding: int | None, kind: str) -> None:
    """Forward, backward and SGD in one graph; each replay is the eager step for the indices that it finds."""
    ours, eager = (MODULES[kind](st, padding, "cuda") for _ in range(2))
    eager.load_state_dict(ours.state_dict())
    indices = torch.randint(0, 40, (7, 9), device="cuda")

    def sgd(module: torch.nn.Module) -> None:
        (grad,) = torch.autograd.grad(module(indices).square().sum(), module.weight)
        with torch.no_grad():
            module.weight.add_(grad, alpha=-0.1)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        sgd(ours)
    torch.cuda.current_stream().wait_stream(stream)
    sgd(eager)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sgd(ours)
    for high in (40, 3, 40):
        indices.copy_(torch.randint(0, high, (7, 9), device="cuda"))
        graph.replay()
        sgd(eager)
        torch.testing.assert_close(ours.weight, eager.weight)
