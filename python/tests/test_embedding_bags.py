"""st.EmbeddingBags, many tables at once, beside one nn.EmbeddingBag for each table."""

from __future__ import annotations

import contextlib
import copy
import io
import operator
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import BF16, F16, F32, F64
from torch import Tensor, nn
from torch.autograd import forward_ad

import sternway as sw
import sternway.torch as st

SHAPES = [(7, 4), (5, 3), (0, 2), (9, 8), (3, 1)]
ALIGNED = [(7, 8), (5, 8), (16, 8)]  # without gaps in float32
BATCH = 4
TORCHS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.SparseAdam,
}
STATES = {"sgd": (), "adagrad": ("sum",), "rowwise_adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq")}
TOLERANCE = {F64: 1e-13, F32: 2e-5, F16: 2e-3, BF16: 2e-2}

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*[Ss]parse invariant", "ignore:.*prototype stage", "ignore:Using backward.. with create_graph"
)


def bags_of(shapes: list[tuple[int, int]] = SHAPES, device: str = "cpu", dtype: torch.dtype = F32, **arguments: Any) -> Any:
    """A module with numbers that do not depend on device and dtype."""
    module = st.EmbeddingBags(shapes, device=device, dtype=dtype, **arguments)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in module.weights:
            weight.copy_(torch.randn(weight.shape, dtype=F64, generator=draw))
    return module


def batch_of(
    shapes: list[tuple[int, int]] = SHAPES, step: int = 0, device: str = "cpu", index: torch.dtype = torch.int64
) -> tuple[Tensor, Tensor]:
    """Indices and offsets, with empty bags."""
    draw = torch.Generator().manual_seed(step)
    lengths = torch.randint(0, 4, (len(shapes), BATCH), generator=draw)
    lengths[[rows == 0 for rows, _ in shapes]] = 0
    indices = [torch.randint(rows or 1, (int(n.sum()),), generator=draw) for (rows, _), n in zip(shapes, lengths, strict=True)]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    return torch.cat(indices).to(device, index), offsets.to(device, index)


def by_table(indices: Tensor, offsets: Tensor, tables: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The positions and the offsets of each table."""
    batch = (len(offsets) - 1) // tables
    for t in range(tables):
        own = offsets[t * batch : (t + 1) * batch + 1].long()
        yield torch.arange(int(own[0]), int(own[-1]), device=indices.device), own - own[0]


def loop(weights: list[Tensor], indices: Tensor, offsets: Tensor, mode: str, samples: Tensor | None, **options: Any) -> Tensor:
    """The bags of tables, one call of torch for each."""
    found = []
    for weight, (positions, starts) in zip(weights, by_table(indices, offsets, len(weights)), strict=True):
        if not len(positions):
            found.append(weight.new_zeros(len(starts) - 1, weight.shape[1]) + 0 * weight.sum())
            continue
        own = None if samples is None else samples[positions]
        rows = indices[positions].long()
        found.append(
            nn.functional.embedding_bag(
                rows, weight, starts, mode=mode, per_sample_weights=own, include_last_offset=True, **options
            )
        )
    return torch.cat(found, 1)


def leaves(module: Any) -> list[Tensor]:
    return [weight.detach().clone().requires_grad_() for weight in module.weights]


def state_of(module: Any) -> list[Tensor]:
    return [module.optimizer.state[w][name] for w in module.weights for name in STATES[module.optimizer.name]]


def snapshot(module: Any) -> list[Tensor]:
    state = [] if module.optimizer is None else state_of(module)
    return [x.detach().clone() for x in (*module.weights, *state)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    ("mode", "dtype", "index", "shapes"),
    [
        ("sum", F32, torch.int64, ALIGNED),
        ("weighted", F32, torch.int32, SHAPES),
        ("weighted", F64, torch.int64, ALIGNED),
        ("mean", F64, torch.int32, SHAPES),
        ("mean", BF16, torch.int64, ALIGNED),
        ("max", F32, torch.int32, SHAPES),
        ("max", F64, torch.int64, ALIGNED),
        ("sum", F16, torch.int64, SHAPES),
    ],
)
def test_values_and_gradients(
    mode: str, dtype: torch.dtype, index: torch.dtype, shapes: list[tuple[int, int]], device: str
) -> None:
    """Alone finds a table, a column, a bag or a gradient that is in another's place, or in a gap between two tables."""
    torch.manual_seed(5)
    reduction = "sum" if mode == "weighted" else mode
    ours = bags_of(shapes, device, dtype, mode=reduction)
    theirs = [w.detach().double().requires_grad_() for w in ours.weights]
    indices, offsets = batch_of(shapes, 3, device, index)
    samples = [torch.rand(len(indices), dtype=F64, device=device).to(dtype)] if mode == "weighted" else []
    for x in samples:
        x.requires_grad_()
    exact = [x.detach().double().requires_grad_() for x in samples]
    y = ours(indices, offsets, *samples)
    want = loop(theirs, indices, offsets, reduction, *(exact or [None]))
    near = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(y.double(), want, **near)
    assert y.dtype is dtype
    dy = torch.randn(want.shape, dtype=F64, device=device).to(dtype)
    y.backward(dy)
    want.backward(dy.double())
    for weight, other in zip(ours.weights, theirs, strict=True):
        torch.testing.assert_close(weight.grad.double(), other.grad, **near)
    for x, other in zip(samples, exact, strict=True):
        torch.testing.assert_close(x.grad.double(), other.grad, **near)
    frozen = [x.detach().clone().requires_grad_() for x in samples]
    ours.requires_grad_(False)
    for x, other in zip(frozen, exact, strict=True):
        ours(indices, offsets, x).backward(dy)
        torch.testing.assert_close(x.grad.double(), other.grad, **near)
    assert ours(indices, offsets).requires_grad is False


@pytest.mark.parametrize("name", TORCHS)
def test_steps_of_torch(name: str, device: str) -> None:
    """Alone finds a table whose rows or state are updated as another's, and a state dict that torch cannot load, or from it."""
    modules = [bags_of(device=device, dtype=F64, optimizer=name, lr=0.1) for _ in range(2)]
    theirs = nn.ParameterList(leaves(modules[0]))
    optimizer = TORCHS[name](list(theirs), lr=0.1)

    def steps(ours: Any, numbers: range) -> None:
        for step in numbers:
            indices, offsets = batch_of(step=step, device=device)
            optimizer.zero_grad()
            dy = torch.randn(BATCH, 18, dtype=F64, generator=torch.Generator().manual_seed(step)).to(device)
            ours(indices, offsets).backward(dy)
            loop(list(theirs), indices, offsets, "sum", None, sparse=True).backward(dy)
            for weight in theirs:  # the table without rows, whose gradient the loop made dense
                weight.grad = weight.grad.to_sparse(1) if weight.grad.layout is torch.strided else weight.grad
            optimizer.step()

    steps(modules[0], range(6))
    modules[1].load_state_dict(modules[0].state_dict())
    modules[1].optimizer.load_state_dict(optimizer.state_dict())
    steps(modules[1], range(6, 12))
    saved = copy.deepcopy(modules[1].optimizer.state_dict())
    optimizer = TORCHS[name](list(theirs), lr=7.0)
    optimizer.load_state_dict(saved)
    steps(modules[1], range(12, 18))
    for weight, other in zip(modules[1].weights, theirs, strict=True):
        torch.testing.assert_close(weight.detach(), other.detach(), rtol=1e-13, atol=1e-13)
        assert weight.grad is None
    ours = modules[1].optimizer.state_dict()
    if name != "sgd":
        assert [float(state["step"]) for state in ours["state"].values()] == [18.0] * len(SHAPES)
    assert list(modules[1].state_dict()) == [f"weights.{t}" for t in range(len(SHAPES))]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_as_modules_of_one_table(mode: str, device: str) -> None:
    """Alone finds an update that is not the one of st.EmbeddingBag, in mode max too, and numbers at the start of a module."""
    torch.manual_seed(3)
    ours = st.EmbeddingBags(ALIGNED, mode, optimizer="rowwise_adagrad", lr=0.1, device=device)
    torch.manual_seed(3)
    options: dict[str, Any] = {"mode": mode, "include_last_offset": True, "optimizer": "rowwise_adagrad", "lr": 0.1}
    singles = [st.EmbeddingBag(*shape, device=device, **options) for shape in ALIGNED]
    assert same(list(ours.weights), [single.weight for single in singles])
    for step in range(5):
        indices, offsets = batch_of(ALIGNED, step, device)
        want = torch.cat([
            single(indices[positions], starts)
            for single, (positions, starts) in zip(singles, by_table(indices, offsets, len(ALIGNED)), strict=True)
        ], 1)  # fmt: skip
        y = ours(indices, offsets)
        torch.testing.assert_close(y, want)
        for each in (y, want):
            each.square().sum().backward()
    for weight, single in zip(ours.weights, singles, strict=True):
        torch.testing.assert_close(weight, single.weight)
        torch.testing.assert_close(ours.optimizer.state[weight]["sum"], single.optimizer.state[single.weight]["sum"])


def test_narrow_tables(device: str) -> None:
    """Alone finds state of 16 bits, sample weights of float32 that are refused, and rounding at random that does not repeat."""
    options = {"stochastic_rounding": True, "seed": 3}
    modules = [bags_of(ALIGNED, device, BF16, optimizer="adam", lr=1e-3, optimizer_options=options) for _ in range(2)]
    indices, offsets = batch_of(ALIGNED, 0, device)
    samples = torch.rand(len(indices), device=device, requires_grad=True)
    for module in modules:
        for _ in range(3):
            module(indices, offsets, samples).sum().backward()
    assert samples.grad.dtype is F32
    assert {x.dtype for x in state_of(modules[0])} == {F32}
    assert same(snapshot(modules[0]), snapshot(modules[1]))
    assert modules[0].optimizer.state_dict()["state"][2]["draw"] == 3


def test_each_use_is_an_update(device: str) -> None:
    """Alone finds uses that are summed into one update, versions that are not raised, and a gradient that reads new rows."""
    ours, steps = (bags_of(device=device, optimizer="adagrad", lr=0.1) for _ in range(2))
    indices, offsets = batch_of(device=device)
    versions = [weight._version for weight in ours.weights]
    (ours(indices, offsets) + ours(indices, offsets)).sum().backward()
    assert all(weight._version > before + 1 for weight, before in zip(ours.weights, versions, strict=True))
    for _ in range(2):
        steps(indices, offsets).sum().backward()
    assert same(snapshot(ours), snapshot(steps))
    samples = torch.rand(len(indices), device=device, requires_grad=True)
    first, second = (ours(indices, offsets, samples).sum() for _ in range(2))
    plain, before = bags_of(device=device), snapshot(ours)
    plain.load_state_dict(ours.state_dict())
    (want,) = torch.autograd.grad(plain(indices, offsets, samples).sum(), samples)
    (gradient,) = torch.autograd.grad(first, samples, retain_graph=True)
    torch.testing.assert_close(gradient, want)
    assert same(snapshot(ours), before)
    second.backward()
    torch.testing.assert_close(samples.grad, want)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.backward()
    y = plain(indices, offsets, samples).sum()
    with torch.no_grad():
        plain.weights[3].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_what_stops_learning(device: str) -> None:
    """Alone finds tables that learn although they are frozen or not in the backward, and some that are frozen in silence."""
    ours = bags_of(device=device, optimizer="sgd")
    indices, offsets = batch_of(device=device)
    before, x = snapshot(ours), torch.ones(BATCH, 18, device=device, requires_grad=True)
    with torch.no_grad():
        ours(indices, offsets)
    (ours(indices, offsets) * x).sum().backward(inputs=[x])
    y = ours(indices, offsets).sum()
    ours.requires_grad_(False)
    y.backward()
    assert not ours(indices, offsets).requires_grad
    ours.weights[1].requires_grad_(True)
    with pytest.raises(sw.UnsupportedError, match="weights must be all frozen or none"):
        ours(indices, offsets)
    ours.requires_grad_(True)
    y = ours(indices, offsets).sum()
    ours.weights[1].requires_grad_(False)
    with pytest.raises(sw.UnsupportedError, match="weights must be all frozen or none"):
        y.backward()
    ours.requires_grad_(True)
    assert same(snapshot(ours), before)
    (ours.eval()(indices, offsets) * x).sum().backward(inputs=[x, *ours.parameters()])
    assert not same(snapshot(ours), before)


def test_batches_without_bags_or_indices(device: str) -> None:
    """Alone finds an empty batch that is refused, or is no step of Adam."""
    for ours in (bags_of(device=device, optimizer="adam"), bags_of(device=device)):
        before = snapshot(ours)
        for batch in (0, 2):
            offsets = torch.zeros(len(SHAPES) * batch + 1, dtype=torch.int64, device=device)
            y = ours(torch.empty(0, dtype=torch.int64, device=device), offsets)
            assert torch.equal(y, torch.zeros(batch, 18, device=device))
            y.sum().backward()
        assert same(snapshot(ours), before)
        if ours.optimizer is not None:
            assert ours.optimizer.state_dict()["state"][1]["step"] == 2
        else:
            assert all(weight.grad.shape == weight.shape and not weight.grad.any() for weight in ours.weights)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_second_derivatives(mode: str, device: str) -> None:
    """Alone finds a gradient of the gradients that is not that of torch, or that is lost in silence."""
    ours = bags_of(device=device, dtype=F64, mode=mode)
    indices, offsets = batch_of(step=5, device=device)
    theirs, results = leaves(ours), []
    for weights, y in (
        (list(ours.weights), ours(indices, offsets)),
        (theirs, torch.cat([
            torch.stack([
                _reduce(weight[indices[positions][a:b]], mode)
                for a, b in zip(starts.tolist(), starts.tolist()[1:], strict=False)
            ])
            for weight, (positions, starts) in zip(theirs, by_table(indices, offsets, len(SHAPES)), strict=True)
        ], 1)),
    ):  # fmt: skip
        first = torch.autograd.grad(y.sin().sum(), weights, create_graph=True)
        sum(((g**3).sum() for g in first), torch.zeros((), device=device)).backward()
        results.append([weight.grad for weight in weights])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    if mode == "sum":
        samples = torch.rand(len(indices), dtype=F64, device=device, requires_grad=True)
        with pytest.raises(sw.UnsupportedError, match="per_sample_weights must be differentiated once"):
            ours(indices, offsets, samples).sum().backward(create_graph=True)


def _reduce(rows: Tensor, mode: str) -> Tensor:
    if not len(rows):
        return rows.sum(0)
    return rows.amax(0) if mode == "max" else rows.sum(0) / (len(rows) if mode == "mean" else 1)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "shared": lambda m: copy.deepcopy(m).share_memory(),
}


@pytest.mark.parametrize("kind", COPIES)
def test_copies(kind: str, device: str) -> None:
    """Alone finds a copy that learns into the tables or the state of the original, or loses its own."""
    ours = bags_of(device=device, optimizer="adam")
    indices, offsets = batch_of(device=device)
    ours(indices, offsets).sin().sum().backward()
    other, before = COPIES[kind](ours), snapshot(ours)
    other(indices, offsets).sin().sum().backward()
    assert same(snapshot(ours), before)
    ours(indices, offsets).sin().sum().backward()
    assert same(snapshot(ours), snapshot(other))
    assert all(map(operator.is_, other.optimizer.weights, other.weights))
    if kind == "shared":
        assert all(x.is_shared() for x in (*other.weights, *state_of(other)))
        learned, before = pickle.loads(pickle.dumps(other)), snapshot(other)
        assert same(snapshot(learned), before)


def test_one_table_is_saved_alone() -> None:
    """Alone finds a table whose pickle has the memory of all tables."""
    ours = bags_of([(1000, 8)] * 8, optimizer="adagrad")
    for x in (ours.weights[2], ours.optimizer.state[ours.weights[2]]["sum"]):
        file = io.BytesIO()
        torch.save(x, file)
        assert file.tell() < 2 * x.nbytes
        assert len(pickle.dumps(x)) < 2 * x.nbytes


def require_learns(module: Any, device: str) -> None:
    """A step of a module is that of a new one with its tables and its state."""
    indices, offsets = batch_of(device=device)
    new = bags_of(device=device, dtype=module.weights[0].dtype, optimizer=module.optimizer.name)
    new.load_state_dict(module.state_dict())
    new.optimizer.load_state_dict(module.optimizer.state_dict())
    assert torch.equal(module(indices, offsets), new(indices, offsets))
    for each in (module, new):
        each(indices, offsets).sum().backward()
    assert same(snapshot(module), snapshot(new))


def test_tables_with_other_memory(device: str) -> None:
    """Alone finds a table, or its state, whose memory the plan does not read or write after the table was moved or replaced."""
    ours = bags_of(optimizer="adam").to(device)
    require_learns(ours, device)
    for change in (nn.Module.half, nn.Module.double, nn.Module.float):
        change(ours)
        require_learns(ours, device)
    ours.weights[1].data = torch.ones(5, 3, device=device)
    require_learns(ours, device)
    assert (ours.weights[1] != 1).any()
    ours.weights[3] = nn.Parameter(torch.zeros(9, 8, device=device))
    assert ours.optimizer.param_groups[0]["params"][3] is ours.weights[3]
    require_learns(ours, device)
    ours.weights[0], ours.weights[0].data = nn.Parameter(ours.weights[0].detach()), torch.ones(7, 4, device=device)
    require_learns(ours, device)
    for assign in (False, True):
        late = st.EmbeddingBags(SHAPES, device="meta", optimizer="adagrad")
        with pytest.raises(sw.UnsupportedError, match="without values"):
            late(torch.zeros(1, dtype=torch.int64), torch.zeros(6, dtype=torch.int64))
        if not assign:
            late.to_empty(device=device)
        late.load_state_dict(ours.state_dict(), assign=assign)
        require_learns(late, device)
    indices, offsets = batch_of(device=device)
    y = ours(indices, offsets).sum()
    ours.weights[1].data = torch.full((5, 3), 2.0, device=device)  # between forward and backward
    y.backward()
    assert (ours.weights[1] != 2).any()
    before = snapshot(ours)
    y = ours(indices, offsets).sum()
    ours.weights[1] = nn.Parameter(ours.weights[1].detach().clone())
    with pytest.raises(sw.UnsupportedError, match="other tensors since the forward"):
        y.backward()
    assert same(snapshot(ours), before)
    for replace, text in (
        (lambda: ours.weights.__setitem__(1, nn.Parameter(torch.ones(2, 3))), r"weights\[1\] must be of shape \[5, 3\]"),
        (lambda: ours.weights.append(nn.Parameter(torch.ones(2, 3))), "weights must be of 5 tables"),
    ):
        with pytest.raises(sw.InvalidProblemError, match=text):
            replace()
        assert len(ours.weights) == len(list(ours.weights)) == 5
    mixed = bags_of(device=device)
    mixed.weights[2] = nn.Parameter(torch.zeros(0, 2, dtype=F64, device=device))
    with pytest.raises(sw.InvalidProblemError, match=r"weights\[2\] must be float32"):
        mixed(indices, offsets)
    parametrized = bags_of(device=device)
    nn.utils.parametrize.register_parametrization(parametrized.weights, "1", nn.Identity())
    with pytest.raises(sw.InvalidProblemError, match="weights must be of 5 tables, got 4 parameters"):
        parametrized(indices, offsets)


def replaced(module: Any, weight: Tensor, operands: tuple[Tensor, Tensor]) -> Any:
    return torch.func.functional_call(module, {"weights.3": weight}, operands)


def test_tables_in_place_for_a_call(device: str) -> None:
    """Alone finds a functional_call that reads the module's own tables, or moves tensors that are not its."""
    ours, operands = bags_of(device=device), batch_of(device=device)
    weight = torch.randn(9, 8, device=device, requires_grad=True)
    pointer, before = weight.data_ptr(), snapshot(ours)
    for x in (weight, weight * 2):
        tables = list(ours.weights)
        tables[3] = x
        want = loop(tables, *operands, "sum", None)
        y = replaced(ours, x, operands)
        torch.testing.assert_close(y, want)
        found, other = (torch.autograd.grad(z.square().sum(), weight, retain_graph=True) for z in (y, want))
        torch.testing.assert_close(found, other)
    assert weight.data_ptr() == pointer
    assert same(snapshot(ours), before)


REFUSED: dict[str, tuple[Callable[[Any, tuple[Tensor, Tensor]], Any], str]] = {
    "grad": (lambda m, x: torch.autograd.grad(m(*x).sum(), m.weights[0]), "weight must be left to its optimizer"),
    "create_graph": (lambda m, x: m(*x).sum().backward(create_graph=True), "got create_graph=True"),
    "parameter": (lambda m, x: replaced(m, nn.Parameter(m.weights[3].detach()), x), "the module's own parameters"),
    "func.grad": (
        lambda m, x: torch.func.grad(lambda z: (m(*x) * z).sum())(torch.ones(4, 18, device=x[0].device)),
        "torch.func",
    ),
    "vmap": (lambda m, x: torch.vmap(lambda i: m(i, x[1]))(x[0][None]), "torch.func"),
    "export": (lambda m, x: torch.export.export(m, x), "torch.export"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_derivatives(case: str, device: str) -> None:
    """Alone finds a derivative that the tables do not have, and that is answered in silence, or after an update."""
    ours, (call, text) = bags_of(device=device, optimizer="adagrad"), REFUSED[case]
    before = snapshot(ours)
    with pytest.raises(sw.UnsupportedError, match=rf"^sternway\.torch\.EmbeddingBags: .*{text}"):
        call(ours, batch_of(device=device))
    assert same(snapshot(ours), before)


@pytest.mark.parametrize("case", ["func.grad", "vmap", "export", "dual"])
def test_refused_without_an_optimizer(case: str, device: str) -> None:
    """Alone finds a transform that the bags do not have, and that drops a derivative in silence."""
    ours, operands = bags_of(device=device), batch_of(device=device)
    level = forward_ad.dual_level() if case == "dual" else contextlib.nullcontext()
    call = ours if case == "dual" else lambda *x: REFUSED[case][0](ours, x)
    with level, pytest.raises(sw.UnsupportedError, match=r"^sternway\.torch\.EmbeddingBags: the call must be"):
        call(*operands)


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_refused_batches_of_upstream_gradients(optimizer: Any, device: str) -> None:
    """Alone finds upstream gradients of is_grads_batched, which no plan reads, that are refused as another operation's."""
    ours, (indices, offsets) = bags_of(device=device, optimizer=optimizer), batch_of(device=device)
    samples = torch.rand(len(indices), device=device, requires_grad=True)
    y = ours(indices, offsets, samples)
    with pytest.raises(sw.UnsupportedError, match=r"^sternway\.torch\.EmbeddingBags: the upstream gradient .*is_grads_batched"):
        torch.autograd.grad(y, samples, torch.ones(2, *y.shape, device=device), is_grads_batched=True)


def test_gradient_of_another_table(device: str) -> None:
    """Alone finds an update by torch.autograd.grad of a table that does not stand for all."""
    ours = bags_of(device=device, optimizer="adagrad")
    before = snapshot(ours)
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(ours(*batch_of(device=device)).sum(), ours.weights[3])
    assert same(snapshot(ours), before)


def test_refused_operands(device: str) -> None:
    """Alone finds an operand that is taken although it does not fit, or a failed call that has written a table or a count."""
    indices, offsets = batch_of(device=device)
    decreasing = offsets.clone()
    decreasing[10] = 0
    bad: list[tuple[Any, Any, str]] = [
        ((indices, offsets[:-1]), sw.InvalidProblemError, r"offsets must be of shape \[5 \* batch \+ 1\]"),
        ((indices, offsets[:0]), sw.InvalidProblemError, "offsets must be of shape"),
        ((indices, offsets[None]), sw.InvalidProblemError, "offsets must be of shape"),
        ((indices[None], offsets), sw.InvalidProblemError, "indices must be of rank 1"),
        ((indices.float(), offsets), sw.UnsupportedError, "index_dtype|indices"),
        ((indices.tolist(), offsets), TypeError, "indices must be a torch.Tensor"),
        ((indices, None), TypeError, "offsets must be a torch.Tensor"),
        ((indices.to_sparse(), offsets), sw.UnsupportedError, "indices must be a strided tensor"),
        ((indices, offsets, torch.ones(3, device=device)), sw.InvalidProblemError, "per_sample_weights must be of shape"),
        ((indices, offsets, indices), sw.InvalidProblemError, "per_sample_weights must be float32"),
    ]
    if device == "cpu":
        over = torch.cat([offsets[:-1], offsets[-1:] - 1])
        bad += [
            ((indices, over), sw.InvalidProblemError, "offsets must be in order"),
            ((indices, decreasing), sw.InvalidProblemError, "offsets must be in order"),
            ((indices + 9, offsets), sw.InvalidProblemError, "indices must be in"),
            ((indices - 9, offsets), sw.InvalidProblemError, "indices must be in"),
        ]
    for ours in (bags_of(device=device, optimizer="adam"), bags_of(device=device)):
        before = snapshot(ours)
        for operands, error, text in bad:
            with pytest.raises(error, match=rf"^sternway\.torch\.EmbeddingBags: ({text})"):
                ours(*operands)
        y = ours(indices, offsets).sum()
        if device == "cpu":
            indices.data.add_(100)  # unknown to autograd
            with pytest.raises(sw.InvalidProblemError, match="indices must be in"):
                y.backward()
            indices.data.sub_(100)
        assert same(snapshot(ours), before)
    with pytest.raises(NotImplementedError, match="mode sum, not mean"):
        bags_of(device=device, mode="mean")(indices, offsets, torch.ones(len(indices), device=device))


@pytest.mark.gpu
def test_bad_integers_on_cuda() -> None:
    """Alone finds a bad offset or index on a GPU that reaches memory, or changes rows of other bags."""
    device = "cuda:0"
    ours, want = (bags_of(ALIGNED, device, optimizer="adagrad") for _ in range(2))
    indices, offsets = batch_of(ALIGNED, 0, device)
    bad = torch.cat([indices, indices.new_tensor([1, 2])])  # which no bag has
    torch.testing.assert_close(ours(bad, offsets), want(indices, offsets))
    outside = indices.clone()
    outside[0] = 10**9
    for module, x in ((ours, bad), (want, indices), (ours, outside), (want, indices[1:])):
        starts = offsets if len(x) >= len(indices) else (offsets - 1).clamp(min=0)
        module(x, starts).sum().backward()
    assert same(snapshot(ours), snapshot(want))


def test_refused_modules() -> None:
    """Alone finds an argument that is taken although it has no meaning."""
    for tables, arguments, error, text in (
        ([], {}, sw.InvalidProblemError, "tables must be a list of pairs"),
        ([(3,)], {}, sw.InvalidProblemError, "tables must be"),
        ([(3, -1)], {}, sw.InvalidProblemError, "tables must be"),
        ((3, 2), {}, sw.InvalidProblemError, "tables must be"),
        ([(3, 2.5)], {}, sw.InvalidProblemError, "tables must be"),
        ([(3, 2)], {"mode": "median"}, sw.UnsupportedError, "mode must be sum, mean or max"),
        ([(3, 2)], {"dtype": torch.int64}, sw.UnsupportedError, "dtype must be"),
        ([(3, 2)], {"optimizer": "lion"}, sw.UnsupportedError, "optimizer must be sgd"),
        ([(3, 2)], {"optimizer_options": {}}, sw.InvalidProblemError, "optimizer_options must be left out"),
    ):
        with pytest.raises(error, match=rf"^sternway\.torch\.EmbeddingBags: {text}"):
            st.EmbeddingBags(tables, **arguments)
    ours = bags_of(optimizer="adam")
    state = ours.optimizer.state_dict()
    state["state"][1]["step"] = 3
    with pytest.raises(sw.UnsupportedError, match="step must be the same for all tables"):
        ours.optimizer.load_state_dict(state)
    state["param_groups"][0]["params"] = [0]
    with pytest.raises(sw.InvalidProblemError, match="one group with 5 parameters"):
        ours.optimizer.load_state_dict(state)
    assert "5 tables, 24 rows, 18 columns, mode='sum', optimizer='adam'" in repr(ours)


def test_compiled(device: str) -> None:
    """Alone finds a compiled model whose tables do not learn, learn twice, or have no gradient without an optimizer."""
    torch.compiler.reset()
    operands = batch_of(device=device)
    for options in ({"optimizer": "adam"}, {}):
        ours, want = (bags_of(device=device, **options) for _ in range(2))
        model = torch.compile(lambda *x, m=ours: m(*x).tanh(), backend="aot_eager")
        for _ in range(2):
            model(*operands).sum().backward()
            want(*operands).tanh().sum().backward()
        assert same(snapshot(ours), snapshot(want))
        for weight, other in zip(ours.weights, want.weights, strict=True):
            assert (weight.grad is None) == (other.grad is None) == bool(options)
            assert weight.grad is None or torch.equal(weight.grad, other.grad)


@pytest.mark.gpu
def test_cuda_graph() -> None:
    """Alone finds a wait for the device, or a copy from the host, in a step."""
    device, rate = "cuda:0", torch.tensor(0.1, device="cuda:0")
    ours, eager = (bags_of(ALIGNED, device, optimizer="adam", lr=lr) for lr in (rate, 0.1))
    operands = batch_of(ALIGNED, 0, device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            ours(*operands).sin().sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours(*operands).sin().sum().backward()
    for _ in range(3):
        graph.replay()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            eager(*operands).sin().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(snapshot(ours), snapshot(eager), strict=True):
        torch.testing.assert_close(one, other)


class Model(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bags, self.linear = bags_of(ALIGNED, **options), nn.Linear(24, 1)
        for parameter in self.linear.parameters():
            nn.init.constant_(parameter, 0.1)

    def forward(self, *operands: Tensor) -> Tensor:
        return self.linear(self.bags(*operands))


def sharded(model: Model) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def distributed(model: Model) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module

    return distribute_module(model, init_device_mesh("cpu", (1,)))


@pytest.mark.usefixtures("group")
def test_several_processes() -> None:
    """Alone finds tables that each rank updates on its own, and gradients or steps that DDP and FSDP do not see."""
    operands = batch_of(ALIGNED)
    for wrap, text in (
        (nn.parallel.DistributedDataParallel, "DistributedDataParallel"),
        (sharded, "FSDP"),
        (distributed, "DTensor"),
    ):
        with pytest.raises(sw.UnsupportedError, match=rf"^sternway\.torch\.EmbeddingBags: weight.*{text}"):
            wrap(Model(optimizer="sgd"))(*operands)
    plain = Model()
    models = {"plain": plain, "ddp": nn.parallel.DistributedDataParallel(Model()), "fsdp": sharded(Model())}
    for model in models.values():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(*operands).square().sum().backward()
            optimizer.step()
    for model in (models["ddp"].module, models["fsdp"]):
        for weight, want in zip(model.bags.weights, plain.bags.weights, strict=True):
            weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            torch.testing.assert_close(weight.detach(), want.detach())


def test_a_parameter_in_two_places(device: str) -> None:
    """Alone finds tables that are one parameter, of which one place would read and write memory of its own."""
    bags = st.EmbeddingBags([(2, 1), (2, 1)], device=device)
    bags.weights[1] = bags.weights[0]
    with pytest.raises(sw.UnsupportedError, match="one parameter in two places"):
        bags(torch.tensor([0, 1], device=device), torch.tensor([0, 1, 2], device=device))


def test_replicas_of_data_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone finds a replica that reads, or updates, the tables of the module on another device in place of its own."""
    from importlib import import_module

    def copies(tensors: Any, devices: list[int], detach: bool = False) -> list[list[Tensor]]:
        return [[x.clone() for x in tensors] for _ in devices]

    replication = import_module("torch.nn.parallel.replicate")
    monkeypatch.setattr(replication, "_broadcast_coalesced_reshape", copies)  # which no CPU has
    ours, operands = bags_of(), batch_of()
    replica = replication.replicate(ours, [0])[0]
    with torch.no_grad():
        for weight in replica.weights._former_parameters.values():
            weight.mul_(2)
    y, want = replica(*operands), ours(*operands)
    torch.testing.assert_close(y, 2 * want)
    y.sum().backward()
    own = [weight.grad.clone() for weight in ours.weights]
    ours.zero_grad()
    want.sum().backward()
    assert same(own, [weight.grad for weight in ours.weights])
    learning = bags_of(optimizer="sgd")
    before = snapshot(learning)
    with pytest.raises(sw.UnsupportedError, match="DataParallel"):
        replication.replicate(learning, [0])[0](*operands)
    assert same(snapshot(learning), before)
