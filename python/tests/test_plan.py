"""The contract of plans, the same for every family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conformance import same_bits
from families import FAMILIES, Family, make
from families.lerp import LERP
from support import BITS, F32, F64, refusal

import sternway as sw

SHAPE = (6, 37)


def problem_of(family: Family, device: str = "cpu", shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = F32) -> Any:
    return make(family, shape, dtype, device)


@pytest.fixture
def problem(family: Family, device: str) -> Any:
    return problem_of(family, device)


# --- Selecting --------------------------------------------------------------------------------------------------------


def test_device_spellings(problem: Any, device: str) -> None:
    kind, _, index = device.partition(":")
    spelled = [device, torch.device(device), SimpleNamespace(type=kind, index=int(index) if index else None)]
    if kind == "cuda":
        spelled += ["cuda", torch.device("cuda")]
    expected = problem.run()
    for spelling in spelled:
        plan = problem.family.plan.select(problem.descriptor, device=spelling)
        assert same_bits(problem.run(plan=plan), expected)


def test_sku_and_guarantee(problem: Any, device: str) -> None:
    plan = problem.plan()
    sku, guarantee = plan.sku, plan.precision_guarantee
    assert [f.name for f in dataclasses.fields(sku)] == [
        "category", "op", "element", "aux_element", "arch", "backend", "kernel", "precision_guarantee",
    ]  # fmt: skip
    assert [f.name for f in dataclasses.fields(guarantee)] == [
        "math_precision", "accumulator", "bit_stable_on_same_hardware", "deterministic",
    ]  # fmt: skip
    assert type(sku) is sw.KernelSku
    assert type(guarantee) is sw.PrecisionGuarantee
    assert sku.precision_guarantee == guarantee
    assert (sku.element, sku.backend) == ("float32", device.split(":")[0])
    assert sku.op
    assert sku.kernel
    assert guarantee.accumulator in ("float32", "float64")
    assert guarantee.deterministic is True
    assert guarantee.bit_stable_on_same_hardware is True
    for value in (sku, guarantee):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, "other")


def test_accumulator_is_double_for_double(family: Family, device: str) -> None:
    assert problem_of(family, device, dtype=F64).plan().precision_guarantee.accumulator == "float64"


def test_plan_is_immutable_and_hashable(problem: Any) -> None:
    plan, again = problem.plan(), problem.plan()
    assert plan == again
    assert hash(plan) == hash(again)
    assert len({plan, again}) == 1
    other = problem.family.plan.select(dataclasses.replace(problem.descriptor, dtype="float64"), device=problem.device)
    assert plan != other
    for name in ("workspace_size", "sku", "surprise"):
        with pytest.raises(AttributeError):
            setattr(plan, name, 1)
    assert isinstance(plan.workspace_size, int)
    assert plan.workspace_size >= 0


def test_plan_shows_itself(problem: Any, device: str) -> None:
    plan = problem.plan()
    bundle = plan._repr_mimebundle_()
    assert {"text/plain", "text/html"} <= set(bundle)
    assert "<script" not in bundle["text/html"]
    for text in (repr(plan), *bundle.values()):
        for word in (problem.family.name.split("_")[0], "float32", str(problem.main.shape[-1]), device.split(":")[0]):
            assert word in text
        for word in (plan.sku.kernel, "geometry", "bytes moved", "workspace", "guarantee"):
            assert word in text
    assert plan._repr_mimebundle_(include=None, exclude=None) == bundle


def test_preference(problem: Any) -> None:
    default = sw.PlanPreference()
    assert (default.deterministic, default.max_workspace, default.kernel) == (True, None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        default.kernel = "other"
    expected, plan = problem.run(), problem.plan()
    named = problem.plan(preference=sw.PlanPreference(kernel=plan.sku.kernel))
    assert named.sku == plan.sku
    for preference in (default, sw.PlanPreference(deterministic=False), sw.PlanPreference(max_workspace=1 << 40)):
        assert problem.run(plan=problem.plan(preference=preference)).keys() == expected.keys()


def test_preference_for_little_workspace(problem: Any) -> None:
    """Within the limit, or refused: never a plan that needs more."""
    large = make(problem.family, (3, 2**17), F32, problem.device)
    for limit in {0, max(large.plan().workspace_size - 1, 0)}:
        preference = sw.PlanPreference(max_workspace=limit)
        if refused := refusal(sw.Error, lambda preference=preference: large.plan(preference=preference)):
            assert "workspace" in str(refused)
        else:
            plan = large.plan(preference=preference)
            assert plan.workspace_size <= limit
            large.check(large.run(plan=plan))


# --- Running ----------------------------------------------------------------------------------------------------------


def test_can_implement(problem: Any) -> None:
    """None for what run takes; and nothing is written."""
    outputs = problem.outputs()
    plan = problem.plan()
    assert plan.can_implement(**problem.inputs, **{name: out.tensor for name, out in outputs.items()}) is None
    assert all((out.buffer == -1).all() for out in outputs.values())
    assert plan.run(**problem.inputs, **{name: out.tensor for name, out in outputs.items()}) is None


def test_none_is_absent(problem: Any) -> None:
    """An optional operand given as None is one not given."""
    wanted = problem.family.required or (next(iter(problem.truth)),)
    outputs = problem.outputs(wanted)
    absent = dict.fromkeys(problem.truth.keys() - set(wanted))
    problem.plan().run(**problem.inputs_for(wanted), **{name: out.tensor for name, out in outputs.items()}, **absent)
    problem.check({name: out.take() for name, out in outputs.items()})


def aligned(nbytes: int, device: str, offset: int = 0) -> torch.Tensor:
    """Bytes whose address is `offset` past a multiple of 256."""
    buffer = torch.full((nbytes + 1024,), 255, dtype=torch.uint8, device=device)
    start = -buffer.data_ptr() % 256 + 256 + offset
    return buffer[start : start + nbytes]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_workspace_of_the_caller(family: Family, device: str) -> None:
    """Poisoned beforehand: the result does not depend on what was in it. On the CPU no plan needs one, whatever the length."""
    long = 2**12 if device == "cpu" else 2**20
    for shape in (SHAPE, (2, long), (long, 2)):
        problem = problem_of(family, device, shape)
        plan = problem.plan()
        assert device != "cpu" or plan.workspace_size == 0
        expected = problem.run(plan=plan)
        for extra in (0, 256):
            workspace = aligned(plan.workspace_size + extra, device)
            assert same_bits(problem.run(plan=plan, workspace=workspace), expected)


def test_version_counter(problem: Any) -> None:
    """Autograd learns of the write, through a plan and through out=; inputs keep their version."""
    outputs = {
        name: torch.empty(out.tensor.shape, dtype=out.tensor.dtype, device=problem.device)
        for name, out in problem.outputs().items()
    }
    inputs = {name: tensor._version for name, tensor in problem.inputs.items()}
    before = {name: out._version for name, out in outputs.items()}
    problem.plan().run(**problem.inputs, **outputs)
    assert all(out._version > before[name] for name, out in outputs.items())
    before = {name: out._version for name, out in outputs.items()}
    problem.call(out=tuple(outputs.values()))
    assert all(out._version > before[name] for name, out in outputs.items())
    assert {name: tensor._version for name, tensor in problem.inputs.items()} == inputs


def test_stale_saved_tensor_is_noticed(problem: Any) -> None:
    """A tensor that autograd saved and a plan overwrote makes backward raise."""
    name = (*problem.family.required, *problem.truth)[0]
    shape = problem.truth[name].value.shape
    x, saved = torch.ones(shape, device=problem.device, requires_grad=True), torch.ones(shape, device=problem.device)
    y = x * saved
    problem.plan().run(**problem.inputs_for((name,)), **{name: saved})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_one_plan_from_many_threads(problem: Any) -> None:
    plan, expected = problem.plan(), problem.run()

    def work(_: int) -> bool:
        return all(same_bits(problem.run(plan=plan), expected) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_numpy_workspace_and_operands(family: Family) -> None:
    problem = problem_of(family)
    plan = problem.plan()
    outputs = {
        name: np.full(out.tensor.shape, np.nan, str(out.tensor.numpy().dtype)) for name, out in problem.outputs().items()
    }
    plan.run(
        **{name: tensor.numpy() for name, tensor in problem.inputs.items()},
        **outputs,
        workspace=aligned(plan.workspace_size, "cpu").numpy(),
    )
    problem.check({name: torch.from_numpy(out) for name, out in outputs.items()})


def test_operands_of_two_producers(family: Family) -> None:
    """Torch in, NumPy out."""
    problem = problem_of(family)
    outputs = {name: np.full(out.tensor.shape, np.nan, np.float32) for name, out in problem.outputs().items()}
    problem.plan().run(**problem.inputs, **outputs)
    problem.check({name: torch.from_numpy(out) for name, out in outputs.items()})


class Producer:
    """An array of a foreign library: __dlpack__ and __dlpack_device__, nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


def test_any_producer(problem: Any) -> None:
    outputs = problem.outputs()
    inputs = {name: Producer(tensor) for name, tensor in problem.inputs.items()}
    plan = problem.plan()
    plan.run(
        **inputs,
        **{name: Producer(out.tensor) for name, out in outputs.items()},
        workspace=aligned(plan.workspace_size, problem.device),
    )
    problem.check({name: out.take() for name, out in outputs.items()})


def test_workspace_of_a_producer_that_makes_none(problem: Any) -> None:
    """Where no library of the operands is known, the workspace comes from one that is here."""
    inputs = {name: Producer(tensor) for name, tensor in problem.inputs.items()}
    outputs = problem.outputs()
    problem.plan().run(**inputs, **{name: Producer(out.tensor) for name, out in outputs.items()})
    problem.check({name: out.take() for name, out in outputs.items()})


FUNCTIONS: dict[str, Callable[[Callable[[torch.Tensor], Any]], Any]] = {
    "cumprod": lambda p: sw.cumprod_backward(p(T), p(T + 1)),
    "cummax by indices": lambda p: sw.cummax_backward(p(T), indices=p(torch.tensor([[0, 1, 2], [0, 1, 2]]))),
    "lerp": lambda p: sw.lerp_backward(p(T), p(T), p(T), p(T + 1), needs=("da", "dweight")),
    "dequantize": lambda p: sw.dequantize_per_token_backward(p(T), p(T[:, 0]), q=p(T.to(torch.int8)), zero_point=p(T[:, 1])),
    "fake quantize": lambda p: sw.fake_quantize_per_token_backward(
        p(T), p(T), p(T[:, 1]), p(T[:, 0]), quant_min=-4, quant_max=3
    ),
    "rope": lambda p: sw.rope_backward(p(T[None, None, :, :2]), p(torch.tensor([3, 4]))),
    "bags": lambda p: sw.embedding_bag_backward(p(T), p(IDS), p(IDS), num_embeddings=3, per_sample_weights=p(T[0, :2])),
    "embedding": lambda p: sw.embedding_backward(p(T[None]), p(IDS[None]), num_embeddings=3),
    "weights": lambda p: sw.embedding_bag_per_sample_weights_backward(p(T), p(T), p(IDS), p(IDS)),
}
T, IDS = torch.arange(1.0, 7).view(2, 3), torch.tensor([0, 1])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_whatever_speaks_dlpack(name: str) -> None:
    """Also what tells neither its shape nor its dtype; the results are then arrays of torch."""
    got, want = (tuple(FUNCTIONS[name](p)) for p in (Producer, lambda x: x))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_stream_is_ignored_on_the_cpu(family: Family) -> None:
    problem = problem_of(family)
    for stream in (None, 0, 12345, -1, 2**70, SimpleNamespace(ptr=3), SimpleNamespace(cuda_stream=3)):
        problem.check(problem.run(stream=stream))


def test_the_quick_run_of_drop_ins(family: Family, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs plain tensors of torch, workspace included, and leaves all others, and runs that are logged, to run."""
    problem = problem_of(family, device)
    problem.check(problem.run())
    outputs = problem.outputs()
    given = {**problem.inputs_for(outputs), **{name: out.tensor for name, out in outputs.items()}}
    plan = problem.plan()
    assert plan._run_plain(dict(given))
    problem.check({name: out.take() for name, out in outputs.items()})
    first = next(iter(given))
    assert not plan._run_plain({**given, first: given[first].as_subclass(type("Mine", (torch.Tensor,), {}))})
    assert not plan._run_plain({**given, "nobody": given[first]})
    monkeypatch.setattr(sw._library, "log_runs", True)
    assert not plan._run_plain(dict(given))


@pytest.mark.parametrize(
    ("given", "needs", "is_contiguous", "needed"),
    [
        ({"dy": T, "x": None, "dx": T}, (0, 0), None, 0),
        ({"dy": T, "x": T, "dx": T}, (512, 512), torch.Tensor.is_contiguous, 512),
        ({"dy": T, "x": T, "dx": T}, (512, 0), None, 512),  # the layouts are unknown
        ({"dy": T, "x": T, "dx": T}, (512, 0), torch.Tensor.is_contiguous, 0),
        ({"dy": T.T, "x": T, "dx": T}, (512, 0), torch.Tensor.is_contiguous, 512),
    ],
)
def test_bytes_of_workspace(given: dict[str, Any], needs: tuple[int, int], is_contiguous: Any, needed: int) -> None:
    """Plans of the CPU have no workspace, so this one is made by hand."""
    names = tuple(name for name, x in given.items() if x is not None)
    plan = object.__new__(sw.ScanBackwardPlan)
    plan.__dict__.update(workspace_size=512, _needs={names: needs})
    assert plan._workspace_bytes(given, is_contiguous) == needed
    plan.__dict__.update(workspace_size=0)
    assert plan._workspace_bytes(given, is_contiguous) == 0


def test_needs_of_workspace() -> None:
    """The native library takes operands by their bits, and every plan of the CPU needs nothing."""
    plan = problem_of(LERP).plan()
    assert plan._workspace_needs(plan._names) == (0, 0)


def test_guards_catch_a_stray_write() -> None:
    """The proof that the guards of these tests are no decoration."""
    (problem,) = [problem_of(LERP)]
    out = problem.outputs(("da",))["da"]
    out.buffer[0] = 7
    with pytest.raises(AssertionError, match="outside the output"):
        out.take()
    assert out.buffer.dtype == BITS[4]
