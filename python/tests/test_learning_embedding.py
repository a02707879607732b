"""Tables that learn in the backward: st.EmbeddingBag and st.Embedding with an optimizer, beside torch's sparse optimizers."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import BF16, F16, F32, F64
from torch import Tensor, nn

import sternway as sw
import sternway.torch as st

ROWS, DIM = 40, 6
TORCHS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.SparseAdam,
}
NAMES = (*TORCHS, "rowwise_adagrad")
OPTIMIZERS = pytest.mark.parametrize("name", NAMES)
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adagrad": {"eps": 1e-3, "initial_accumulator_value": 0.5},
    "adam": {"eps": 1e-3, "betas": (0.8, 0.95)},
}
STATES = {"sgd": (), "adagrad": ("sum",), "rowwise_adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq")}
TOLERANCE = {F32: 2e-5, F64: 1e-13}
BAGS = torch.tensor([[1, 2], [3, 3]])

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*[Ss]parse invariant", "ignore:.*prototype stage", "ignore:Using backward.. with create_graph"
)


def table(device: str, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(ROWS, DIM, dtype=F64, generator=torch.Generator().manual_seed(1)).to(device, dtype)


def module(weight: Tensor, name: str, kind: Any = st.EmbeddingBag, lr: Any = 0.1, **arguments: Any) -> Any:
    """A module that learns from a copy of the table."""
    if kind is st.EmbeddingBag:
        arguments.setdefault("mode", "sum")
    return kind.from_pretrained(weight.clone(), freeze=False, optimizer=name, lr=lr, **arguments)


def state_of(module: Any) -> dict[str, Tensor]:
    """The arrays of the state of a module's optimizer."""
    return {name: module.optimizer.state[module.weight][name] for name in STATES[module.optimizer.name]}


def snapshot(module: Any) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in {"weight": module.weight, **state_of(module)}.items()}


def require_same(module: Any, before: dict[str, Tensor]) -> None:
    for name, x in snapshot(module).items():
        assert torch.equal(x, before[name]), name


def random_bags(step: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Indices, offsets with an empty bag, weights of samples, and an upstream gradient."""
    draw = torch.Generator().manual_seed(step)
    indices = torch.randint(ROWS // 2, (24,), generator=draw)
    offsets = torch.tensor([0, 7, 7, 8, 20])
    weights, dy = torch.rand(24, dtype=F64, generator=draw), torch.randn(5, DIM, dtype=F64, generator=draw)
    return indices.to(device), offsets.to(device), weights.to(device, dtype), dy.to(device, dtype)


MODES: dict[str, dict[str, Any]] = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean", "padding_idx": 3},
    "by frequency": {"mode": "sum", "scale_grad_by_freq": True},
    "weighted": {"mode": "sum"},
    "last offset": {"mode": "mean", "include_last_offset": True},
    "max_norm": {"mode": "sum", "max_norm": 1.5},
}


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("case", MODES)
@pytest.mark.parametrize("name", TORCHS)
def test_steps_of_torch(name: str, case: str, dtype: torch.dtype, device: str) -> None:
    """Alone finds a rule, an option or a reduction that is not torch's, over 100 steps, in the table or its state."""
    weight, options = table(device, dtype), MODES[case]
    ours = module(weight, name, optimizer_options=OPTIONS[name], **options)
    reference = st if case == "by frequency" else nn  # torch has no sparse gradient of it
    theirs = reference.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, sparse=True, **options)
    optimizer = TORCHS[name]([theirs.weight], lr=0.1, **OPTIONS[name])
    for step in range(100):
        indices, offsets, weights, dy = random_bags(step, device, dtype)
        if case == "last offset":
            offsets = torch.cat([offsets, offsets.new_tensor([24])])
        samples = {"per_sample_weights": weights} if case == "weighted" else {}
        y = ours(indices, offsets, **samples)
        optimizer.zero_grad()
        want = theirs(indices, offsets, **samples)
        want.backward(dy)
        y.backward(dy)
        optimizer.step()
        assert ours.weight.grad is None
    near = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(ours.weight, theirs.weight, **near)
    other = optimizer.state_dict()["state"].get(0, {})
    state = ours.optimizer.state_dict()["state"][0]
    for key in STATES[name]:
        torch.testing.assert_close(state[key], other[key], **near)
    if name != "sgd":
        assert type(state["step"]) is type(other["step"])
        assert state["step"] == other["step"] == 100


@pytest.mark.parametrize("name", TORCHS)
def test_embedding(name: str, device: str) -> None:
    """Alone finds a wrong order of positions where the upstream gradient is permuted or expanded in memory."""
    weight = table(device, F64)
    ours = module(weight, name, st.Embedding, padding_idx=2)
    theirs = nn.Embedding.from_pretrained(weight.clone(), freeze=False, sparse=True, padding_idx=2)
    optimizer = TORCHS[name]([theirs.weight], lr=0.1)
    losses: list[Callable[[Tensor], Tensor]] = [
        lambda y: y.square().sum(),
        lambda y: y.mean(1).square().sum(),
        lambda y: (y.transpose(0, 1) * torch.arange(5.0, dtype=F64, device=device)[:, None, None]).sum(),
        lambda y: y.sum(),
        lambda y: y[0, 0].sum(),
    ]
    for step in range(15):
        indices = random_bags(step, device, F64)[0][:20].view(4, 5)
        optimizer.zero_grad()
        for each in (theirs, ours):
            losses[step % len(losses)](each(indices)).backward()
        optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-13, atol=1e-13)


def test_rowwise_adagrad(device: str) -> None:
    """Alone finds a state of rows that is not the mean of the squares, or a decay that is not of the rows."""
    options = {"eps": 1e-3, "weight_decay": 0.1, "initial_accumulator_value": 0.2}
    ours = module(table(device, F64), "rowwise_adagrad", optimizer_options=options)
    weight, total = table(device, F64), torch.full((ROWS,), 0.2, dtype=F64, device=device)
    for step in range(10):
        indices, offsets, _, dy = random_bags(step, device, F64)
        ours(indices, offsets).backward(dy)
        bag = torch.bucketize(torch.arange(24, device=device), offsets, right=True) - 1
        g = torch.zeros_like(weight).index_add(0, indices, dy[bag])
        used = torch.zeros(ROWS, dtype=torch.bool, device=device).index_fill(0, indices, True)
        g = torch.where(used[:, None], g + 0.1 * weight, 0)
        total = total + g.square().mean(1)
        weight = weight - 0.1 * g / (total.sqrt() + 1e-3)[:, None]
    torch.testing.assert_close(ours.weight.detach(), weight, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state_of(ours)["sum"], total, rtol=1e-13, atol=1e-13)


def test_mode_max(device: str) -> None:
    """Alone finds an update of rows that did not win."""
    ours = module(table(device), "adagrad", mode="max")
    theirs = nn.EmbeddingBag.from_pretrained(table(device), freeze=False, mode="max")
    optimizer = torch.optim.Adagrad([theirs.weight], lr=0.1)  # whose dense gradients of 0 change nothing
    for step in range(20):
        indices, offsets, _, dy = random_bags(step, device, F32)
        optimizer.zero_grad()
        for each in (theirs, ours):
            each(indices, offsets).backward(dy)
        optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=["jagged", "strided"])
def test_nested_bags(layout: torch.layout, device: str) -> None:
    """Alone finds nested bags that take another way than to the optimizer."""
    rows = [torch.tensor(row, device=device) for row in ([1, 2], [3, 3, 4], [5])]
    bags = torch.nested.nested_tensor(rows, layout=layout)
    ours, flat = (module(table(device), "adam") for _ in range(2))
    for _ in range(3):
        ours(bags).sin().sum().backward()
        flat(torch.cat(rows), torch.tensor([0, 2, 5], device=device)).sin().sum().backward()
    assert torch.equal(ours.weight, flat.weight)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["float16", "bfloat16"])
@OPTIMIZERS
def test_state_of_narrow_tables(name: str, dtype: torch.dtype, device: str) -> None:
    """Alone finds state of 16 bits, and a gradient that is rounded to 16 bits before the update."""
    ours, exact = module(table(device, dtype), name), module(table(device, dtype).float(), name)
    indices, offsets, _, dy = random_bags(0, device, dtype)
    for each in (ours, exact):
        each(indices, offsets).backward(dy.to(each.weight.dtype))
    assert all(x.dtype is F32 for x in state_of(ours).values())
    for key, x in state_of(exact).items():
        torch.testing.assert_close(state_of(ours)[key], x)
    torch.testing.assert_close(ours.weight, exact.weight.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)


def test_stochastic_rounding(device: str) -> None:
    """Alone finds rounding at random that has a bias, does not depend on the seed, or is not repeated from a state dict."""
    rows, steps = 20000, 20
    weight = torch.ones(rows, 1, dtype=BF16, device=device)
    indices = torch.arange(rows, device=device)[:, None]

    def learned(seed: int) -> Any:
        return module(weight, "sgd", lr=2.0**-11, optimizer_options={"stochastic_rounding": True, "seed": seed})

    def run(m: Any, count: int) -> None:
        for _ in range(count):
            m(indices).sum().backward()

    first, again, other = learned(1), learned(1), learned(2)
    run(first, 1)
    # a number is rounded down by 2^-8 with a chance of 1/8, else not at all; the mean is within 5 deviations
    deviation = 2.0**-8 * (7 / 64 / rows) ** 0.5
    assert abs(first.weight.double().mean().item() - (1 - 2.0**-11)) < 5 * deviation
    run(first, steps - 1)  # the random numbers of steps are independent, or the deviation of their sum is another
    assert abs(first.weight.double().mean().item() - (1 - steps * 2.0**-11)) < 5 * deviation * steps**0.5
    for each in (again, other):
        run(each, steps)
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)
    resumed = learned(5)
    resumed.load_state_dict(first.state_dict())
    saved = io.BytesIO()
    torch.save(first.optimizer.state_dict(), saved)
    saved.seek(0)
    resumed.optimizer.load_state_dict(torch.load(saved, weights_only=True))
    for each in (first, resumed):
        run(each, 3)
    assert torch.equal(first.weight, resumed.weight)
    assert first.optimizer.state_dict()["state"][0]["draw"] == steps + 3


class Hands(torch.autograd.Function):
    """A sum that hands back the gradient that it is given."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, dy: Tensor) -> Tensor:
        ctx.dy = dy
        return y.sum()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        return ctx.dy, None


@pytest.mark.parametrize("kind", [st.EmbeddingBag, st.Embedding])
def test_upstream_gradients(kind: Any, device: str) -> None:
    """Alone finds an upstream gradient that is read as if it were contiguous, strided and resolved."""
    bags = BAGS.to(device) if kind is st.EmbeddingBag else BAGS.to(device)[0]
    plain = torch.arange(2.0 * DIM, device=device).view(2, DIM)
    zero = torch._efficientzerotensor((2, DIM), device=device)
    for dy, value in (
        (plain.T.contiguous().T, plain),
        (plain[:1].expand(2, DIM), plain[:1].repeat(2, 1)),
        (torch.complex(plain, -plain).conj().imag, plain),
        (plain.to_sparse(), plain),
        (zero, torch.zeros_like(plain)),
    ):
        ours, want = (module(table(device), "adagrad", kind) for _ in range(2))
        Hands.apply(ours(bags), dy).backward()
        want(bags).backward(value)
        require_same(ours, snapshot(want))


@OPTIMIZERS
def test_rows_that_are_not_used(name: str, device: str) -> None:
    """Alone finds a row, or its state, that changes without being used; padding is not used. Bits repeat."""
    options = {"weight_decay": 0.1, **({"eps": 0.0} if name != "sgd" else {})}
    modules = [module(table(device), name, padding_idx=5, optimizer_options=options) for _ in range(2)]
    before = snapshot(modules[0])
    indices = torch.tensor([[5, 7, 9], [7, 7, 5]], device=device)
    for each in modules:
        for _ in range(3):
            each(indices).sin().sum().backward()
    require_same(modules[1], snapshot(modules[0]))
    used = torch.zeros(ROWS, dtype=torch.bool, device=device)
    used[[7, 9]] = True
    for key, x in snapshot(modules[0]).items():
        assert torch.equal(x[~used], before[key][~used]), key
        assert (x[used] != before[key][used]).all(), key


def test_each_use_is_an_update(device: str) -> None:
    """Alone finds uses that are summed into one update, a retained graph that updates once, a version that is not raised."""
    ours, steps = (module(table(device), "adagrad") for _ in range(2))
    bags, dy = BAGS.to(device), torch.ones(2, DIM, device=device)
    version = ours.weight._version
    (ours(bags) + ours(bags)).backward(dy)
    assert ours.weight._version == version + 2
    y = ours(bags)
    y.backward(dy, retain_graph=True)
    y.backward(dy)
    for _ in range(4):
        steps(bags).backward(dy)
    assert torch.equal(ours.weight, steps.weight)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward(dy)
    require_same(ours, snapshot(steps))


def test_gradient_of_weights_of_samples(device: str) -> None:
    """Alone finds a gradient that reads the table after its update, at once or in the backward of another use."""
    weight, bags = table(device), BAGS.to(device)
    ours, samples = module(weight, "sgd"), torch.rand(2, 2, device=device, requires_grad=True)
    plain = samples.detach().clone().requires_grad_()
    st.embedding_bag(bags, weight, mode="sum", per_sample_weights=plain).sin().sum().backward()
    ours(bags, per_sample_weights=samples).sin().sum().backward()
    assert torch.equal(samples.grad, plain.grad)
    assert not torch.equal(ours.weight, weight)
    first, second = (ours(bags, per_sample_weights=samples).sum() for _ in range(2))
    before = snapshot(ours)
    (gradient,) = torch.autograd.grad(first, samples, retain_graph=True)
    assert gradient.shape == samples.shape
    require_same(ours, before)
    second.backward()
    after = snapshot(ours)
    with pytest.raises(RuntimeError, match="gradient of per_sample_weights must be of the table of the forward"):
        first.backward()
    require_same(ours, after)


@pytest.mark.parametrize("kind", [st.EmbeddingBag, st.Embedding])
def test_empty_batches(kind: Any, device: str) -> None:
    """Alone finds a batch without indices that is not counted as a step, or that is refused."""
    ours = module(table(device), "adam", kind)
    before = snapshot(ours)
    for indices in (torch.empty(0, 3), torch.empty(3, 0)):
        ours(indices.to(device, torch.int64)).sum().backward()
    assert ours.optimizer.state_dict()["state"][0]["step"] == 2
    require_same(ours, before)


def test_what_stops_learning(device: str) -> None:
    """Alone finds a table that learns although it is frozen or not an input of the backward, or not in eval()."""
    ours, bags = module(table(device), "sgd"), BAGS.to(device)
    before = snapshot(ours)
    x = torch.ones(2, DIM, device=device, requires_grad=True)
    for guard in (torch.no_grad, torch.inference_mode):
        with guard():
            ours(bags)
    (ours(bags) * x).sum().backward(inputs=[x])
    torch.autograd.grad((ours(bags) * x).sum(), x)
    ours.weight.requires_grad_(False)
    assert not ours(bags).requires_grad
    require_same(ours, before)
    ours.weight.requires_grad_(True)
    y = ours(bags).sum()
    ours.weight.requires_grad_(False)
    y.backward()
    require_same(ours, before)
    ours.weight.requires_grad_(True)
    (ours(bags) * x).sum().backward(inputs=[x, ours.weight])
    assert not torch.equal(ours.weight, before["weight"])
    before = snapshot(ours)
    ours.eval()(bags).sum().backward()
    assert not torch.equal(ours.weight, before["weight"])
    frozen = st.EmbeddingBag.from_pretrained(before["weight"], optimizer="sgd")
    assert not frozen(bags).requires_grad


def test_numbers_of_the_group(device: str) -> None:
    """Alone finds a learning rate, an option or a scale that is read once, or a tensor that is read when it is stored."""
    ours = module(table(device, F64), "adam")
    theirs = nn.EmbeddingBag.from_pretrained(table(device, F64), freeze=False, sparse=True, mode="sum")
    optimizer = torch.optim.SparseAdam([theirs.weight], lr=0.1)
    rate, scale = (torch.tensor(number, device=device) for number in (0.25, 8.0))
    changes: list[dict[str, Any]] = [{"lr": 0.5}, {"eps": 0.5}, {"betas": (0.5, 0.6)}, {"lr": rate}, {"lr": rate}, {"lr": 1}]
    group = ours.optimizer.param_groups[0]
    for step, change in enumerate(changes):
        indices, offsets, _, dy = random_bags(step, device, F64)
        if step == 4:
            rate.fill_(0.125)
        group.update(change, grad_scale=scale if step % 2 else 4.0)
        optimizer.param_groups[0].update({key: float(x) if key == "lr" else x for key, x in change.items()})
        optimizer.zero_grad()
        ours(indices, offsets).backward(dy * float(group["grad_scale"]))
        theirs(indices, offsets).backward(dy)
        optimizer.step()
        torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-13, atol=1e-13)
    before = snapshot(ours)
    for change in ({"lr": -1.0}, {"lr": "x"}, {"lr": 0.1, "grad_scale": 0.0}):
        group.update(change)
        with pytest.raises(sw.InvalidProblemError, match=list(change)[-1]):
            ours(indices, offsets).backward(dy)
        require_same(ours, before)


def test_grad_scaler(device: str) -> None:
    """Alone finds a scale of GradScaler that reaches the table."""
    ours, want, bags = module(table(device), "adagrad"), module(table(device), "adagrad"), BAGS.to(device)
    scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=1024.0)
    linear = nn.Linear(DIM, 1).to(device)
    other = torch.optim.SGD(linear.parameters(), lr=0.1)
    reference = copy.deepcopy(linear)
    ours.optimizer.param_groups[0]["grad_scale"] = scaler.get_scale()
    scaler.scale(linear(ours(bags)).sum()).backward()
    scaler.step(other)
    scaler.update()
    reference(want(bags)).sum().backward()
    torch.testing.assert_close(ours.weight, want.weight)


def test_schedulers(device: str) -> None:
    """Alone finds a warning of a scheduler in a loop that does not call step, and a step that is none of an optimizer."""
    ours, bags = module(table(device), "sgd", lr=1.0), BAGS.to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = torch.optim.lr_scheduler.StepLR(ours.optimizer, step_size=2, gamma=0.5)
        for _ in range(4):
            ours(bags).sum().backward()
            schedule.step()
        assert ours.optimizer.param_groups[0]["lr"] == 0.25
        warm = torch.optim.lr_scheduler.LinearLR(ours.optimizer, 0.1, total_iters=4)
        ours.optimizer.zero_grad()
        assert ours.optimizer.step() is None
        assert ours.optimizer.step(lambda: 3) == 3
        warm.step()
    assert isinstance(ours.optimizer, torch.optim.Optimizer)
    assert "optimizer='sgd'" in repr(ours)


@pytest.mark.parametrize("name", TORCHS)
def test_state_dicts_of_torch(name: str, device: str) -> None:
    """Alone finds a state dict that torch's optimizer of the same rule cannot load, or the other way round."""
    weight = table(device)
    modules = [module(weight, name, optimizer_options=OPTIONS[name]) for _ in range(2)]
    theirs = nn.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, sparse=True, mode="sum")
    optimizer = TORCHS[name]([theirs.weight], lr=0.1, **OPTIONS[name])

    def both(m: Any, steps: range) -> None:
        for step in steps:
            indices, offsets, _, dy = random_bags(step, device, F32)
            optimizer.zero_grad()
            for each in (m, theirs):
                each(indices, offsets).backward(dy)
            optimizer.step()

    both(modules[0], range(4))
    modules[1].load_state_dict(theirs.state_dict())
    modules[1].optimizer.load_state_dict(optimizer.state_dict())  # which copies the state; torch's takes it over
    both(modules[1], range(4, 8))
    torch.testing.assert_close(modules[1].weight, theirs.weight, rtol=2e-5, atol=2e-5)
    theirs.load_state_dict(modules[1].state_dict())
    optimizer = TORCHS[name]([theirs.weight], lr=7.0)
    optimizer.load_state_dict(copy.deepcopy(modules[1].optimizer.state_dict()))
    both(modules[1], range(8, 12))
    torch.testing.assert_close(modules[1].weight, theirs.weight, rtol=2e-5, atol=2e-5)
    assert list(modules[0].state_dict()) == list(theirs.state_dict()) == ["weight"]


def test_refused_state_dicts(device: str) -> None:
    """Alone finds a state dict of another rule or shape that is loaded, in part or in silence."""
    ours = module(table(device), "adagrad")
    ours(BAGS.to(device)).sum().backward()
    before, good = snapshot(ours), ours.optimizer.state_dict()
    group, state = good["param_groups"][0], good["state"][0]
    for change, of_state, text in (
        ({"lr_decay": 0.1}, {}, "lr_decay"),
        ({"betas": (0.9, 0.99)}, {}, "betas"),
        ({"lr": -1.0}, {}, "lr"),
        ({"stochastic_rounding": True}, {}, "stochastic_rounding"),
        ({}, {"exp_avg": state["sum"]}, "exp_avg"),
        ({}, {"sum": state["sum"][1:]}, "sum"),
        ({"params": [0, 1]}, {}, "state_dict"),
    ):
        bad = {"param_groups": [{**group, "lr": 3.0, **change}], "state": {0: {**state, "sum": state["sum"] + 1, **of_state}}}
        with pytest.raises(sw.Error, match=text):
            ours.optimizer.load_state_dict(bad)
        require_same(ours, before)
        assert ours.optimizer.param_groups[0]["lr"] == 0.1
    for name, maker, text in (
        ("adam", torch.optim.AdamW, "decoupled_weight_decay"),
        ("adam", torch.optim.SGD, "without betas"),
        ("adagrad", torch.optim.SGD, "without initial_accumulator_value"),
    ):
        other: Any = maker([nn.Parameter(torch.ones(ROWS, DIM))])
        ours = module(table(device), name)
        before = snapshot(ours)
        with pytest.raises(sw.UnsupportedError, match=text):
            ours.optimizer.load_state_dict(other.state_dict())
        require_same(ours, before)
    with pytest.raises(sw.UnsupportedError, match="param_groups"):
        ours.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "shared": lambda m: copy.deepcopy(m).share_memory(),
}


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("name", ["adam", "adagrad"])
def test_copies(name: str, kind: str, device: str) -> None:
    """Alone finds a copy of a module that learns into the state of the original, or loses its own."""
    ours, bags = module(table(device), name), BAGS.to(device)
    ours(bags).sin().sum().backward()
    other = COPIES[kind](ours)
    assert other.optimizer.weight is other.weight
    before = snapshot(ours)
    other(bags).sin().sum().backward()
    require_same(ours, before)
    ours(bags).sin().sum().backward()
    require_same(ours, snapshot(other))
    assert other.optimizer.state_dict()["state"][0]["step"] == 2
    if kind == "shared":
        assert all(x.is_shared() for x in state_of(other).values())


def test_state_follows_the_table(device: str) -> None:
    """Alone finds state that stays behind when the table is moved, converted, made from a meta device or assigned."""
    ours, bags = module(table("cpu"), "adam").to(device), BAGS.to(device)
    ours(bags).sum().backward()
    assert all(x.device == ours.weight.device for x in state_of(ours).values())
    for convert, wide in ((nn.Module.half, F32), (nn.Module.double, F64), (nn.Module.float, F32)):
        before = state_of(ours)["exp_avg"].double()
        convert(ours)
        assert torch.equal(state_of(ours)["exp_avg"].double(), before)
        assert {x.dtype for x in state_of(ours).values()} == {wide}
        ours(bags).sum().backward()
    assert ours.optimizer.state_dict()["state"][0]["step"] == 4
    for assign in (False, True):
        late = st.EmbeddingBag(ROWS, DIM, mode="sum", device="meta", optimizer="adagrad", optimizer_options=OPTIONS["adagrad"])
        if not assign:
            late.to_empty(device=device)
        late.load_state_dict(ours.state_dict(), assign=assign)
        assert (state_of(late)["sum"] == 0.5).all()
        late(bags).sum().backward()
        assert not torch.equal(late.weight, ours.weight) or assign
    late = st.EmbeddingBag(ROWS, DIM, device="meta", optimizer="adam")
    assert late.optimizer.state_dict()["state"][0]["step"] == 0
    with pytest.raises(sw.InvalidProblemError, match="weight must be of shape"):
        ours.weight = nn.Parameter(torch.ones(3, DIM, device=device))
    assert ours.weight.shape == (ROWS, DIM)


def test_refused_modules() -> None:
    """Alone finds an argument that is taken although the optimizer does not have it, or it has no meaning."""
    for arguments, error, text in (
        ({"optimizer": "lion"}, sw.UnsupportedError, "optimizer must be sgd, adagrad"),
        ({"optimizer": 3}, sw.UnsupportedError, "optimizer must be"),
        ({"optimizer": torch.optim.SparseAdam}, sw.UnsupportedError, '.*write optimizer="adam"'),
        ({"optimizer": "sgd", "sparse": True}, sw.UnsupportedError, "sparse must be False"),
        ({"optimizer": "sgd", "lr": -0.1}, sw.InvalidProblemError, "lr must be a number of at least 0"),
        ({"optimizer": "sgd", "lr": torch.ones(2)}, sw.InvalidProblemError, "lr must be"),
        ({"optimizer": "sgd", "dtype": torch.complex64}, sw.UnsupportedError, "dtype must be"),
        ({"optimizer_options": {}}, sw.InvalidProblemError, "optimizer_options must be left out"),
        *(
            ({"optimizer": name, "optimizer_options": options}, error, text)
            for name, options, error, text in (
                ("sgd", {"eps": 1e-3}, sw.UnsupportedError, "optimizer_options must be of sgd: weight_decay"),
                ("adagrad", {"betas": (0.9, 0.9)}, sw.UnsupportedError, "got betas"),
                ("adam", {"momentum": 0.9}, sw.UnsupportedError, "got momentum"),
                ("adam", {"betas": (0.9, 1.0)}, sw.InvalidProblemError, r"betas\[1\] must be"),
                ("adam", {"betas": 0.9}, sw.InvalidProblemError, "betas must be two numbers"),
                ("adam", {"eps": -1e-3}, sw.InvalidProblemError, "eps must be"),
                ("sgd", {"weight_decay": "much"}, sw.InvalidProblemError, "weight_decay must be"),
                ("sgd", {"stochastic_rounding": True}, sw.UnsupportedError, "stochastic_rounding must be False for a table of"),
                ("sgd", {"seed": 1}, sw.UnsupportedError, "seed must be left out"),
                ("sgd", {"stochastic_rounding": True, "seed": -1}, sw.InvalidProblemError, "seed must be"),
                ("sgd", [("eps", 1)], sw.InvalidProblemError, "optimizer_options must be a dict"),
            )
        ),
    ):
        for kind in (st.EmbeddingBag, st.Embedding):
            with pytest.raises(error, match=rf"^sternway\.torch\.{kind.__name__}: {'.*' * text.startswith('got')}{text}"):
                kind(4, 2, **arguments)
    quantized = st.EmbeddingBag(4, 2, optimizer="sgd")
    quantized.qconfig = None
    with pytest.raises(sw.UnsupportedError, match="qconfig must be None"):
        quantized.qconfig = object()


def replaced(m: Any, weight: Tensor, bags: Tensor) -> Any:
    return torch.func.functional_call(m, {"weight": weight}, (bags,))


REFUSED: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "grad": (lambda m, i: torch.autograd.grad(m(i).sum(), m.weight), "weight must be left to its optimizer"),
    "create_graph": (lambda m, i: m(i).sum().backward(create_graph=True), "got create_graph=True"),
    "parameter": (lambda m, i: replaced(m, nn.Parameter(m.weight.detach()), i), "the module's own parameter"),
    "computed": (lambda m, i: replaced(m, m.weight * 1, i), "the module's own parameter"),
    "func.grad": (lambda m, i: torch.func.grad(lambda x: (m(i) * x).sum())(torch.ones(2, DIM, device=i.device)), "torch.func"),
    "vmap": (lambda m, i: torch.vmap(m)(i[None]), "torch.func"),
    "replaced later": (lambda m, i: exchange_weight(m, m(i)), "another tensor since the forward"),
}


def exchange_weight(m: Any, y: Tensor) -> None:
    m.weight = nn.Parameter(m.weight.detach().clone())
    y.sum().backward()


@pytest.mark.parametrize("kind", [st.EmbeddingBag, st.Embedding])
@pytest.mark.parametrize("case", REFUSED)
def test_refused_calls(case: str, kind: Any, device: str) -> None:
    """Alone finds a derivative that the table does not have, and that is answered in silence, or after an update."""
    ours, (call, text) = module(table(device), "adagrad", kind), REFUSED[case]
    before = snapshot(ours)
    with pytest.raises(sw.UnsupportedError, match=rf"^sternway\.torch\.{kind.__name__}: .*{text}"):
        call(ours, BAGS.to(device)[0] if kind is st.Embedding else BAGS.to(device))
    require_same(ours, before)


def test_bad_operands_change_nothing(device: str) -> None:
    """Alone finds a call or a backward that fails after it has written the table, its state, or a count."""
    ours = module(table(device), "adam")
    indices, offsets, weights, _ = random_bags(0, device, F32)
    before = snapshot(ours)
    calls: list[Callable[[], Any]] = [
        lambda: ours(indices.float(), offsets),
        lambda: ours(indices, offsets, per_sample_weights=weights.double()),
    ]
    if device == "cpu":  # elsewhere their values are not read before the run, and bad ones contribute nothing
        calls += [lambda: ours(indices, offsets.flip(0)), lambda: ours(indices + ROWS, offsets)]
    for call in calls:
        with pytest.raises((sw.Error, RuntimeError, ValueError)):
            call().sum().backward()
    y = ours(indices, offsets).sum()
    ours.half()
    with pytest.raises(sw.InvalidProblemError, match="weight must be float32"):
        y.backward()
    require_same(ours.float(), {**before, "weight": before["weight"].half().float()})
    assert ours.optimizer.state_dict()["state"][0]["step"] == 0


def test_compiled(device: str) -> None:
    """Alone finds a compiled model whose table has a gradient in place of updates, or that runs twice."""
    torch.compiler.reset()
    ours, want, bags = module(table(device), "adam"), module(table(device), "adam"), BAGS.to(device)
    model = torch.compile(nn.Sequential(ours, nn.Tanh()), backend="aot_eager")
    for _ in range(3):
        model(bags).sum().backward()
        want(bags).tanh().sum().backward()
    torch.testing.assert_close(ours.weight, want.weight)
    assert ours.weight.grad is None
    assert ours.optimizer.state_dict()["state"][0]["step"] == 3
    exported = torch.export.export(want, (bags,))  # without the optimizer
    assert torch.equal(exported.module()(bags), want(bags))


@pytest.mark.gpu
@OPTIMIZERS
def test_cuda_graph(name: str) -> None:
    """Alone finds a learning rate or a count of steps that a graph keeps from its capture, and a number that it overwrites."""
    device, rate = "cuda:0", torch.tensor(0.1, device="cuda:0")
    ours, eager = module(table(device), name, lr=rate), module(table(device), name)
    bags = BAGS.to(device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            ours(bags).sin().sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours(bags).sin().sum().backward()
    rates = [0.1, 0.1, 0.1, 0.05, 0.2, 0.3]
    for step, number in enumerate(rates):
        if step >= 2:
            rate.fill_(number)
        if step == 4:
            ours.optimizer.param_groups[0]["lr"] = number
            ours(bags).sin().sum().backward()
        elif step >= 2:
            graph.replay()
        eager.optimizer.param_groups[0]["lr"] = number
        eager(bags).sin().sum().backward()
    torch.testing.assert_close(ours.weight, eager.weight)
    if name != "sgd":
        assert ours.optimizer.state_dict()["state"][0]["step"] == len(rates)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.linear = module(table("cpu"), "adagrad"), nn.Linear(DIM, 1)

    def forward(self, bags: Tensor) -> Tensor:
        return self.linear(self.bag(bags))


def sharded(model: Model, **options: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)), **options)


def distributed(model: Model) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module

    return distribute_module(model, init_device_mesh("cpu", (1,)))


@pytest.mark.usefixtures("group")
def test_replicas_are_refused() -> None:
    """Alone finds a table that each rank of DDP, FSDP or a mesh updates on its own; one that is left out of them learns."""
    parallel, bags = nn.parallel.DistributedDataParallel, BAGS
    for wrap, text in ((parallel, "DistributedDataParallel"), (sharded, "FSDP"), (distributed, "DTensor")):
        wrapped = wrap(Model())
        with pytest.raises(sw.UnsupportedError, match=rf"^sternway\.torch\.EmbeddingBag: weight .*{text}"):
            wrapped(bags)
    models = [Model() for _ in range(2)]
    parallel._set_params_and_buffers_to_ignore_for_model(models[0], ["bag.weight"])
    wrapped = [parallel(models[0]), sharded(models[1], ignored_params={models[1].bag.weight})]
    for model, outer in zip(models, wrapped, strict=True):
        before = snapshot(model.bag)
        for _ in range(2):
            outer(bags).sum().backward()
        assert not torch.equal(model.bag.weight, before["weight"])


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
@pytest.mark.parametrize("counts", [(40, 24), (33, 31, 1, 63), (1, 64, 2000, 5)])
def test_long_rows_beside_others(optimizer: str, counts: tuple[int, ...]) -> None:
    """Alone finds a row after a long one, in the units of a large problem, that is updated from the values of the long one.

    As many positions as make a thread group of an H200 take 64 entries, the most; rows of 32 to 63 entries lie within them.
    """
    dim, total = 128, 600_000
    repeats = total // sum(counts)
    indices = torch.arange(repeats * len(counts)).repeat_interleave(torch.tensor(counts).repeat(repeats))
    generator = torch.Generator().manual_seed(0)
    indices = indices[torch.randperm(len(indices), generator=generator)]
    weight = torch.randn(repeats * len(counts), dim, generator=generator)
    dy = torch.randint(-3, 4, (len(indices), dim), generator=generator).float()  # whose sums are exact in any order
    tables = []
    for device in ("cpu", "cuda"):
        ours = module(weight.to(device), optimizer, st.Embedding, lr=0.1)
        ours(indices.to(device)).backward(dy.to(device))
        tables.append(ours.weight.detach().cpu())
    torch.testing.assert_close(*tables, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("many", [False, True])
def test_gradients_of_sample_weights_read_the_table_of_the_forward(many: bool, device: str) -> None:
    """Alone finds a gradient of sample weights of rows that have changed, and one whose own gradient is lost or is split."""
    tables = st.EmbeddingBags([(ROWS, 4)], optimizer="sgd", device=device) if many else None
    one = module(torch.ones(ROWS, 4, device=device), "sgd") if tables is None else tables
    indices = torch.tensor([1, 2, 2, 3], device=device)
    offsets = torch.tensor([0, 2, 4] if many else [0, 2], device=device)
    weights = torch.rand(4, device=device, requires_grad=True)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        first, second = (one(indices, offsets, per_sample_weights=weights).square().sum() for _ in range(2))
        first.backward()
        before = [x.detach().clone() for x in one.parameters()]
        with pytest.raises(sw.UnsupportedError, match="gradient of per_sample_weights"):
            second.backward()
    with pytest.raises(sw.UnsupportedError, match="create_graph=True"):
        torch.autograd.grad(one(indices, offsets, per_sample_weights=weights).square().sum(), weights, create_graph=True)
    assert all(map(torch.equal, before, one.parameters()))


@pytest.mark.parametrize(
    ("name", "value"), [("betas", (0.9, 1.5)), ("betas", (0.9, 0.99, 0.9)), ("eps", -1.0), ("weight_decay", "x"), ("lr", -1.0)]
)
def test_numbers_are_checked_where_a_backward_reads_them(name: str, value: Any, device: str) -> None:
    """Alone finds a number that was set after the module was made, and that is used unchecked."""
    ours = module(table(device), "adam")
    before = snapshot(ours)
    ours.optimizer.param_groups[0][name] = value
    with pytest.raises(sw.InvalidProblemError, match=name):
        ours(BAGS.to(device)).sum().backward()
    require_same(ours, before)


@pytest.mark.parametrize("name", ["betas", "lr", "weight_decay"])
def test_numbers_that_change_in_place_are_read(name: str, device: str) -> None:
    """Alone finds betas in a list, as a loaded state dict has them, or an array or a tensor, whose change is not seen."""
    np = pytest.importorskip("numpy")
    held: Any = {"betas": [0.9, 0.5], "lr": np.array(0.5), "weight_decay": torch.tensor(0.5)}[name]
    changed, fresh = (module(table(device), "adam") for _ in range(2))
    changed.optimizer.param_groups[0][name] = held
    for number in (0.5, 0.25):
        held[1 if name == "betas" else ()] = number
        fresh.optimizer.param_groups[0][name] = (0.9, number) if name == "betas" else number
        for each in (changed, fresh):
            each(BAGS.to(device)).square().sum().backward()
    require_same(changed, snapshot(fresh))


@pytest.mark.parametrize("state", [{"step": -1}, {"step": "x"}, {"exp_avg": None}, {"exp_avg_sq": [1.0]}])
def test_a_refused_state_dict_changes_nothing(state: dict[str, Any], device: str) -> None:
    """Alone finds a state that is taken in part before the rest of it is refused."""
    ours = module(table(device), "adam")
    ours(BAGS.to(device)).sum().backward()
    before, saved = snapshot(ours), ours.optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 9.0
    saved["state"][0] = {**saved["state"][0], **state}
    with pytest.raises(sw.Error, match=next(iter(state))):
        ours.optimizer.load_state_dict(saved)
    assert ours.optimizer.param_groups[0]["lr"] != 9.0
    require_same(ours, before)


def test_a_table_with_gaps_is_refused_by_name(device: str) -> None:
    """Alone finds a table that no plan updates, and whose module refuses only the backward."""
    with pytest.raises(sw.UnsupportedError, match="EmbeddingBag: weight must be contiguous"):
        st.EmbeddingBag.from_pretrained(torch.ones(2, 5, device=device).T, freeze=False, optimizer="adam")


@pytest.mark.parametrize("kind", [st.EmbeddingBag, st.Embedding])
def test_operands_that_are_no_tensors(kind: Any, device: str) -> None:
    """Alone finds an operand of another type whose error names another cause, as a list was called a class of its own."""
    ours = module(table(device), "sgd", kind)
    for operand in ([[1, 2]], None):
        with pytest.raises(TypeError, match=r"input must be a torch\.Tensor"):
            ours(operand)
