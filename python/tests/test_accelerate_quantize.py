"""torch's fake quantizations inside st.accelerate(): torch's numbers, and the gradients of the forward that ran."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import BF16, F16, F32, F64, INPUT_LAYOUTS, Subclass, arrange, check, is_ours, pairwise, refusal, summed
from torch import Tensor, nn

import sternway.torch as st

I32, I64 = torch.int32, torch.int64
LOW, HIGH = -40, 50
AXES = {"per tensor": None, "numbers": None, "axis 0": 0, "axis 1": 1, "axis 2": 2}
LEARNABLE = {"learnable": None, "learnable 0": 0, "learnable 1": 1}
FORMS = (*AXES, *LEARNABLE)
SUBSETS = ((True, True, True), (False, True, False), (False, False, True), (True, False, True))


class Case:
    """A fake quantization of some form, in a call of torch.

    The elements of x are levels and half levels times the scale, times 1 within 1e-7: near these the quotients differ.
    """

    def __init__(self, form: str, dtype: torch.dtype, device: str, shape: tuple[int, ...] = (12, 6, 10)) -> None:
        draw = torch.Generator().manual_seed(3)
        self.form, self.learnable = form, form in LEARNABLE
        self.axis = {**AXES, **LEARNABLE}[form]
        count = 1 if self.axis is None else shape[self.axis]
        self.blocks = [count if d == self.axis else 1 for d in range(len(shape))]
        scale = torch.rand(count, generator=draw) / 10 + 0.01
        halves = torch.randint(-130, 130, shape, generator=draw).to(F64) / 2
        near = 1 + 1e-7 * torch.randn(shape, generator=draw, dtype=F64)
        self.x = (halves * scale.reshape(self.blocks) * near).to(device, dtype)
        self.scale = scale.to(device)
        if self.learnable:  # of both signs, integers and halves
            self.zero_point = torch.arange(count, device=device) / 2 - 1.5
        else:
            self.zero_point = torch.randint(-9, 9, (count,), generator=draw, dtype=I32).to(device)

    def call(self, x: Tensor, scale: Any = None, zero_point: Any = None, grad_factor: float = 0.25) -> Tensor:
        scale = self.scale if scale is None else scale
        zero_point = self.zero_point if zero_point is None else zero_point
        bounds = (LOW, HIGH)
        if self.form == "numbers":
            return torch.fake_quantize_per_tensor_affine(x, self.scale.item(), int(self.zero_point), *bounds)
        if self.learnable and self.axis is None:
            return torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, *bounds, grad_factor)
        if self.learnable:
            name = "_fake_quantize_learnable_per_channel_affine"
            return getattr(torch, name)(x, scale, zero_point, self.axis, *bounds, grad_factor=grad_factor)
        if self.axis is None:
            return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, *bounds)
        return torch.fake_quantize_per_channel_affine(x, scale, zero_point, self.axis, *bounds)

    def levels(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of torch's rule: the quotient, the level before and after it is clamped, both less the zero point; whether inside."""
        shift = self.zero_point.reshape(self.blocks).to(F32)
        shift = shift.round().clamp(LOW, HIGH)
        ratio = self.x.to(F32) * (1 / self.scale.reshape(self.blocks))
        level = ratio.round() + shift
        return ratio, level - shift, level.clamp(LOW, HIGH) - shift, (level >= LOW) & (level <= HIGH)


@pytest.mark.parametrize(("form", "element", "layout"), pairwise(FORMS, (F32, F16, BF16), INPUT_LAYOUTS[:-1]), ids=str)
def test_the_numbers_of_torch(form: str, element: torch.dtype, layout: str, device: str) -> None:
    """Finds a quotient, rounding, bound, channel or layout that is not torch's, with and without a graph."""
    case = Case(form, element, device)
    case.x = arrange(case.x, layout)
    want = case.call(case.x)
    for forward in (True, False):
        with st.accelerate(forward=forward):
            got = case.call(case.x)
            recorded = case.call(case.x.clone(memory_format=torch.preserve_format).requires_grad_())
            with torch.no_grad():
                unrecorded = case.call(case.x)
        assert is_ours(recorded) == (not case.learnable or element is not F16), "torch has no gradient of this one"
        for y in (got, recorded, unrecorded):
            assert torch.equal(y, want)
            assert y.stride() == want.stride()


@pytest.mark.parametrize("form", FORMS)
def test_whose_forward_runs(form: str) -> None:
    """Finds one of ours with forward=False: on the CPU NaN gives NaN here, and a bound in torch."""
    case = Case(form, F32, "cpu")
    case.x.fill_(torch.nan)
    for forward in (True, False):
        with st.accelerate(forward=forward):
            results = [case.call(case.x), case.call(case.x.clone().requires_grad_())]
            with torch.no_grad():
                results.append(case.call(case.x))
        for y in results:
            assert y.isnan().all() if forward else not y.isnan().any()


@pytest.mark.parametrize("form", AXES)
@pytest.mark.parametrize("element", [F32, F16, BF16], ids=str)
def test_the_mask_of_torch(form: str, element: torch.dtype, device: str) -> None:
    """Finds an element at a bound that one of the two counts as outside; and a dx in another layout than x."""
    case = Case(form, element, device)
    x = case.x.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    dy = torch.randn(case.x.shape, device=device).to(element)
    want = torch.autograd.grad(case.call(x), x, dy)[0]
    for forward in (True, False):
        with st.accelerate(forward=forward):
            y = case.call(x)
        got = torch.autograd.grad(y, x, dy)[0]
        assert torch.equal(got, want)
        assert got.stride() == x.stride()
    assert 0 < int((want == 0).sum()) < want.numel()


@pytest.mark.parametrize("form", LEARNABLE)
@pytest.mark.parametrize("element", [F32, BF16], ids=str)
@pytest.mark.parametrize("needed", SUBSETS, ids=str)
def test_learned_numbers(form: str, element: torch.dtype, needed: tuple[bool, ...], device: str) -> None:
    """Finds gradients of a zero point that the forward did not use, as torch's are of some, and a lost grad_factor."""
    case = Case(form, element, device)
    inputs = [t.clone().requires_grad_(need) for t, need in zip((case.x, case.scale, case.zero_point), needed, strict=True)]
    dy = torch.randn(case.x.shape, device=device).to(element)
    with st.accelerate():
        y = case.call(*inputs)
    assert is_ours(y)
    grads = iter(torch.autograd.grad(y, [t for t in inputs if t.requires_grad], dy))
    ratio, free, clamped, inside = case.levels()
    wide = dy.to(F64)
    if needed[0]:
        assert torch.equal(next(grads), torch.where(inside, dy, 0.0))
    terms = (
        0.25 * wide * torch.where(inside, free.to(F64) - ratio.to(F64), clamped.to(F64)),
        0.25 * wide * torch.where(inside, 0.0, -case.scale.reshape(case.blocks).to(F64)),
    )
    for name, term, value in zip(("dscale", "dzero_point"), terms, inputs[1:], strict=True):
        if value.requires_grad:
            got = next(grads)
            assert got.shape == value.shape
            check(name, got.reshape(case.blocks), summed(term, case.blocks, F32))


def test_a_part_of_the_gradients_of_torch(device: str) -> None:
    """Finds a sign or factor that the formula of the test above has wrong: torch's gradients, where its zero point agrees."""
    for form in LEARNABLE:
        case = Case(form, F32, device)
        case.x *= 0.971  # not near half levels, where torch adds the zero point before it rounds
        case.zero_point = torch.arange(1.0, 1 + len(case.scale), device=device)
        inputs = [t.clone().requires_grad_() for t in (case.x, case.scale, case.zero_point)]
        want = torch.autograd.grad(case.call(*inputs).sum(), inputs)
        with st.accelerate():
            y = case.call(*inputs)
        got = torch.autograd.grad(y.sum(), inputs)
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_gradients(form: str, device: str) -> None:
    """Finds a backward in torch's operations that differs from the plan, that is cut off, or that vmap cannot batch."""
    case = Case(form, F32, device)
    inputs = [t.clone().requires_grad_(t is case.x or case.learnable) for t in (case.x, case.scale, case.zero_point)]
    inputs = [*inputs[:1], *(t for t in inputs[1:] if case.learnable)]
    dy = torch.randn(2, *case.x.shape, device=device)
    with st.accelerate():
        y = case.call(*inputs)
    differentiated = [t for t in inputs if t.requires_grad]
    plain = [torch.autograd.grad(y, differentiated, row, retain_graph=True) for row in dy]
    batched = torch.autograd.grad(y, differentiated, dy, retain_graph=True, is_grads_batched=True)
    first = torch.autograd.grad((y * y).sum() / 2, differentiated, create_graph=True)
    again = torch.autograd.grad(y, differentiated, y.detach(), retain_graph=True)
    for k, row in enumerate(plain):
        for ours, theirs in zip(row, batched, strict=True):
            torch.testing.assert_close(ours, theirs[k], rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(first, again, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    inside = case.levels()[3]
    assert torch.equal(torch.autograd.grad(first[0].sum(), inputs[0])[0] != 0, inside)


# Calls of x [4, 3] on the CPU that torch does, or refuses.
LEFT: dict[str, Callable[[Tensor], Tensor]] = {
    "float64": lambda x: torch.fake_quantize_per_tensor_affine(x.to(F64), 0.5, 1, -8, 7),
    "integers": lambda x: torch.fake_quantize_per_tensor_affine(x.int(), 0.5, 1, -8, 7),
    "no elements": lambda x: torch.fake_quantize_per_tensor_affine(x[:0], 0.5, 1, -8, 7),
    "a number and a tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, torch.tensor(1), -8, 7),
    "bounds the wrong way round": lambda x: torch.fake_quantize_per_tensor_affine(
        x, torch.full((1,), 0.5), torch.ones(1, dtype=I32), 7, -8
    ),
    "a scale beyond float32": lambda x: torch.fake_quantize_per_tensor_affine(x, 1e39, 1, -8, 7).isnan(),
    "a zero point beyond int32": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 2**31, -8, 2**40),
    "a zero point out of bounds": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 9, -8, 7),
    "a float as a bound": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 1, -8.0, 7),
    "two scales": lambda x: torch.fake_quantize_per_tensor_affine(x, torch.ones(2), torch.zeros(1, dtype=I32), -8, 7),
    "a scale in float64": lambda x: torch.fake_quantize_per_tensor_affine(
        x, torch.ones(1, dtype=F64), torch.zeros(1, dtype=I32), -8, 7
    ),
    "a scale that requires grad": lambda x: torch.fake_quantize_per_tensor_affine(
        x, torch.ones(1, requires_grad=True), torch.zeros(1, dtype=I32), -8, 7
    ),
    "a subclass": lambda x: torch.fake_quantize_per_tensor_affine(x.as_subclass(Subclass), 0.5, 1, -8, 7),
    "vmap": torch.vmap(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 1, -8, 7)),
    "floating zero points": lambda x: torch.fake_quantize_per_channel_affine(x, torch.ones(3), torch.full((3,), 0.3), 1, -8, 7),
    "zero points out of bounds": lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.ones(3), torch.full((3,), 9, dtype=I32), 1, -8, 7
    ),
    "zero points in int64": lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.ones(3), torch.zeros(3, dtype=I64), 1, -8, 7
    ),
    "a negative axis": lambda x: torch.fake_quantize_per_channel_affine(x, torch.ones(3), torch.zeros(3, dtype=I32), -1, -8, 7),
    "an axis that is not there": lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.ones(1), torch.zeros(1, dtype=I32), 2, -8, 7
    ),
    "another number of channels": lambda x: torch.fake_quantize_per_channel_affine(
        x, torch.ones(4), torch.zeros(4, dtype=I32), 1, -8, 7
    ),
    "no channels": lambda x: torch.fake_quantize_per_channel_affine(
        x[:, :0], torch.ones(0), torch.zeros(0, dtype=I32), 1, -8, 7
    ),
    "the first of two scales": lambda x: torch._fake_quantize_learnable_per_tensor_affine(
        x, torch.ones(2), torch.ones(1), -8, 7
    ),
    "a scale of rank 0": lambda x: torch._fake_quantize_learnable_per_tensor_affine(x, torch.tensor(1.0), torch.ones(1), -8, 7),
    "an integer zero point": lambda x: torch._fake_quantize_learnable_per_tensor_affine(
        x, torch.ones(1), torch.ones(1, dtype=I32), -8, 7
    ),
    "another operation": lambda x: torch.fused_moving_avg_obs_fake_quant(
        x, *torch.ones(2, 1, dtype=I64), *torch.tensor([[-1.0], [1], [1]]), torch.ones(1, dtype=I32), 0.1, -8, 7, 0
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", LEFT)
def test_left(name: str) -> None:
    """Finds a call that torch does in another way, or an error of torch's that is lost."""
    x = torch.linspace(-5, 5, 12).reshape(4, 3).requires_grad_()
    error = refusal(Exception, lambda: LEFT[name](x))
    with st.accelerate():
        if error is not None:
            with pytest.raises(type(error)) as raised:
                LEFT[name](x)
            assert str(raised.value).split("\n")[0] == str(error).split("\n")[0]
            return
        got = LEFT[name](x)
    want = LEFT[name](x)
    assert not is_ours(got)
    assert type(got) is type(want)
    assert torch.equal(got, want)


def test_integers_of_64_bits_and_shapes_of_one_number() -> None:
    """Finds one that the CPU does with torch and refuses here."""
    x = torch.linspace(-5, 5, 12).reshape(4, 3).requires_grad_()
    for shape in ((), (1,), (1, 1), (1, 1, 1)):
        for dtype in (I32, I64):
            numbers = torch.full(shape, 0.3), torch.full((1,), 2, dtype=dtype), -8, 7
            want = torch.fake_quantize_per_tensor_affine(x, *numbers)
            with st.accelerate():
                got = torch.fake_quantize_per_tensor_affine(x, *numbers)
            assert is_ours(got)
            assert torch.equal(got, want)


def test_numbers_that_change_before_the_backward(device: str) -> None:
    """Finds a scale or zero point that is read again in the backward, after an observer wrote to it."""
    for form in ("per tensor", "axis 1"):
        case = Case(form, F32, device)
        x = case.x.requires_grad_()
        want = torch.autograd.grad(case.call(x).sum(), x)[0]
        with st.accelerate():
            y = case.call(x)
        case.scale.mul_(3)
        case.zero_point.add_(1)
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], want)


def test_an_input_that_changes_before_the_backward(device: str) -> None:
    """Finds a wrong gradient, in the place of the error, of an x that changed in place."""
    case = Case("per tensor", F32, device)
    x = case.x.requires_grad_() * 1
    with st.accelerate():
        y = case.call(x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_number_made_in_inference_mode() -> None:
    """Finds a cached tensor of a Python number that autograd refuses to save."""
    with st.accelerate():
        with torch.inference_mode():
            torch.fake_quantize_per_tensor_affine(torch.ones(3), 0.37512, 3, -8, 7)
        x = torch.ones(3, requires_grad=True)
        torch.fake_quantize_per_tensor_affine(x, 0.37512, 3, -8, 7).sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_without_waiting_for_the_gpu(form: str) -> None:
    """Finds a number that is read back from the GPU, as torch reads some."""
    case = Case(form, F32, "cuda:0")
    inputs = float(case.scale.flatten()[0]), int(case.zero_point.flatten()[0])

    def call(x: Tensor) -> Tensor:
        if form == "numbers":
            return torch.fake_quantize_per_tensor_affine(x, *inputs, LOW, HIGH)
        return case.call(x)

    x = case.x.requires_grad_()
    with st.accelerate():
        call(x).sum().backward()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            call(x).sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


# --- torch.ao ---------------------------------------------------------------------------------------------------------

AO = ("ignore:.*deprecated", "ignore:.*torch.ao", "ignore:.*reduce_range", "ignore:must run observer")


def quantized(device: str, qconfig: Callable[[Any], Any]) -> nn.Module:
    """A small network whose modules torch.ao.quantization replaced for training."""
    quantization = pytest.importorskip("torch.ao.quantization", reason="this PyTorch has no torch.ao.quantization")
    torch.manual_seed(0)
    network = nn.Sequential(
        quantization.QuantStub(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 5)
    )
    network.qconfig = qconfig(quantization)
    return quantization.prepare_qat(network.train()).to(device)


def observed(quantization: Any) -> Any:
    activations = quantization.FakeQuantize.with_args(
        observer=quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255
    )
    return quantization.QConfig(activation=activations, weight=quantization.default_per_channel_weight_fake_quant)


def learned(quantization: Any) -> Any:
    from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize as Learnable

    activations = Learnable.with_args(
        observer=quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255, scale=0.05, zero_point=90.0,
        use_grad_scaling=True, dtype=torch.quint8,
    )  # fmt: skip
    weights = Learnable.with_args(
        observer=quantization.MinMaxObserver, quant_min=-128, quant_max=127, scale=0.01, dtype=torch.qint8,
        qscheme=torch.per_tensor_symmetric,
    )  # fmt: skip
    return quantization.QConfig(activation=activations, weight=weights)


def losses(network: nn.Module) -> Iterator[float]:
    """Three steps of training, in which some modules run twice before the backward."""
    device = next(network.parameters()).device
    draw = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for _ in range(3):
        x, label = torch.randn(2, 6, 3, 5, 5, generator=draw).to(device), torch.randint(5, (2, 6), generator=draw).to(device)
        optimizer.zero_grad()
        with torch.backends.cudnn.flags(deterministic=True, allow_tf32=False):
            outputs = [network(half) for half in x]
            loss = sum(nn.functional.cross_entropy(y, wanted) for y, wanted in zip(outputs, label, strict=True))
            loss.backward()
        optimizer.step()
        yield loss.item()


def is_fake_quantized_by_us(network: nn.Module) -> bool:
    """Whether the weights of the last layer are."""
    layer: Any = network[-1]
    return is_ours(copy.deepcopy(layer).weight_fake_quant(layer.weight))


@pytest.mark.filterwarnings(*AO)
def test_training_with_observers(device: str) -> None:
    """Finds a module of torch.ao that raises or trains in another way: the losses are the same numbers."""
    network = quantized(device, observed)
    same = copy.deepcopy(network)
    want = list(losses(network))
    with st.accelerate():
        assert is_fake_quantized_by_us(same)
        got = list(losses(same))
    assert got == want
    for ours, theirs in zip(same.parameters(), network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings(*AO)
def test_training_of_scales(device: str) -> None:
    """Finds a learnable module that trains in another way. Its zero points are not negative, where torch's backward differs."""
    network = quantized(device, learned)
    for module in network.modules():
        if hasattr(module, "enable_param_learning"):
            module.enable_param_learning()
    same = copy.deepcopy(network)
    want = list(losses(network))
    with st.accelerate():
        assert is_fake_quantized_by_us(same)
        got = list(losses(same))
    assert got == pytest.approx(want, rel=1e-5)
    for ours, theirs in zip(same.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
