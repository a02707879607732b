"""What only a CUDA device can show: streams, graphs, no synchronization, no allocation, other threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conformance import same_bits
from families import FAMILIES, Family, make
from families.lerp import LERP
from support import F32

import sternway as sw

pytestmark = pytest.mark.gpu
SHAPES = ((6, 37), (3, 2**20), (2**20, 3))
OF_ALL: dict[str, Any] = {  # options with one parameter for all elements, whose gradient is a sum over them
    "lerp": {"a_shape": (), "weight_shape": (1,)},
    "dequantize": {"granularity": "tensor"},
    "fake_quantize": {"granularity": "tensor"},
}
LONG = 100_000_000  # clock cycles, longer than a call takes while other processes share the device


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def problems(request: pytest.FixtureRequest) -> list[Any]:
    """Small, and with sums that need a workspace."""
    return problems_on("cuda:0", request.param)


def problems_on(device: str, family: Family) -> list[Any]:
    return [make(family, shape, F32, device, **OF_ALL.get(family.name, {})) for shape in SHAPES]


@contextmanager
def no_synchronization() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def bare_outputs(problem: Any) -> dict[str, torch.Tensor]:
    return {name: out.tensor for name, out in problem.outputs().items()}


class StreamOf:
    """The protocol of cuda.core: __cuda_stream__ gives (version, handle)."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream.cuda_stream


def forms(stream: torch.cuda.Stream) -> list[Any]:
    return [stream, stream.cuda_stream, SimpleNamespace(ptr=stream.cuda_stream), StreamOf(stream)]


def test_stream_forms(problems: list[Any]) -> None:
    """The work is on the stream given: it waits behind a long kernel there, and the default stream does not see it."""
    stream = torch.cuda.Stream()
    for problem in problems:
        plan, expected = problem.plan(), problem.run()
        for form in forms(stream):
            outputs = problem.outputs()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(LONG)
            plan.run(**problem.inputs, **{name: out.tensor for name, out in outputs.items()}, stream=form)
            torch.cuda.current_stream().synchronize()
            assert all((out.buffer == -1).all() for out in outputs.values()), "ran on another stream"
            stream.synchronize()
            assert same_bits({name: out.take() for name, out in outputs.items()}, expected)


def test_current_stream_is_the_default(problems: list[Any]) -> None:
    stream = torch.cuda.Stream()
    for problem in problems:
        plan, expected, outputs = problem.plan(), problem.run(), problem.outputs()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
            plan.run(**problem.inputs, **{name: out.tensor for name, out in outputs.items()})
        torch.cuda.current_stream().synchronize()
        assert all((out.buffer == -1).all() for out in outputs.values())
        stream.synchronize()
        assert same_bits({name: out.take() for name, out in outputs.items()}, expected)


@pytest.mark.parametrize("caller_gives_workspace", [False, True])
def test_graph_capture(problems: list[Any], caller_gives_workspace: bool) -> None:
    """A run is captured, and replays with other data."""
    for problem in problems:
        plan, outputs = problem.plan(), bare_outputs(problem)
        how = {}
        if caller_gives_workspace:
            how["workspace"] = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plan.run(**problem.inputs, **outputs, **how)
        problem.floating.neg_()
        graph.replay()
        torch.cuda.synchronize()
        truth = problem.family.truth(problem.descriptor, problem.inputs)
        type(problem)(problem.family, problem.descriptor, problem.inputs, truth).check(outputs)


def test_runs_that_follow_each_other(problems: list[Any]) -> None:
    """On one stream, on buffers that come and go, on two streams by turns: all write what the first run did."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    for problem in problems:
        plan, expected = problem.plan(), problem.run()
        torch.cuda.synchronize()
        order = [streams[0]] * 4 + [streams[1]] * 3 + streams * 3
        outputs = [bare_outputs(problem) for _ in order]
        for k, stream in enumerate(order):
            inputs = {name: x.clone() if k % 3 == 1 else x for name, x in problem.inputs.items()}
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                for _ in range(2):
                    plan.run(**inputs, **outputs[k])
        torch.cuda.synchronize()
        assert all(same_bits(found, expected) for found in outputs)


def test_capture_after_runs_on_the_stream(problems: list[Any]) -> None:
    """What the driver holds ready for a stream is not for its capture; runs go on as before when that has ended."""
    stream = torch.cuda.Stream()
    for problem in problems:
        plan, expected, outputs = problem.plan(), problem.run(), bare_outputs(problem)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(3):
                plan.run(**problem.inputs, **outputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            plan.run(**problem.inputs, **outputs)
        for again in (graph.replay, lambda plan=plan, problem=problem, outputs=outputs: plan.run(**problem.inputs, **outputs)):
            for out in outputs.values():
                out.fill_(float("nan"))
            again()
            torch.cuda.synchronize()
            assert same_bits(outputs, expected)


def test_runs_while_another_thread_captures(problems: list[Any]) -> None:
    """What the driver is asked for a run on another stream must not end a capture."""
    for problem in problems:
        plan, other = problem.plan(), problem.plan()
        expected, outputs, beside = problem.run(), bare_outputs(problem), bare_outputs(problem)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        workspace = [torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda") for _ in range(2)]

        def work(plan=other, problem=problem, outputs=beside, workspace=workspace[1], handle=stream.cuda_stream) -> None:
            for _ in range(3):
                plan.run(**problem.inputs, **outputs, workspace=workspace, stream=handle)

        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            plan.run(**problem.inputs, **outputs, workspace=workspace[0])
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(outputs, expected)
        assert same_bits(beside, expected)


@pytest.mark.parametrize("own_streams", [False, True])
def test_threads_share_a_plan(problems: list[Any], own_streams: bool) -> None:
    for problem in problems:
        plan, expected = problem.plan(), problem.run()
        results = [bare_outputs(problem) for _ in range(6)]
        torch.cuda.synchronize()

        def work(outputs: Any, plan=plan, problem=problem) -> None:
            with torch.cuda.stream(torch.cuda.Stream() if own_streams else torch.cuda.default_stream()):
                for _ in range(50):
                    plan.run(**problem.inputs, **outputs)

        threads = [threading.Thread(target=work, args=(outputs,)) for outputs in results]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        assert all(same_bits(found, expected) for found in results)


def test_function_in_a_graph(problems: list[Any]) -> None:
    for problem in problems:
        problem.call()  # selects the plan outside the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = problem.call()
        graph.replay()
        torch.cuda.synchronize()
        problem.check(outputs)


def test_no_synchronization(problems: list[Any]) -> None:
    for problem in problems:
        plan, outputs = problem.plan(), bare_outputs(problem)
        with no_synchronization():
            plan.run(**problem.inputs, **outputs)
            problem.call()
            for family in FAMILIES:
                family.plan.select(make_descriptor(family), device="cuda:0")
        problem.check(outputs)


def make_descriptor(family: Family) -> Any:
    return make(family, (6, 37), F32, "cpu").descriptor


@pytest.mark.alone  # other processes change the free memory of the device
def test_run_allocates_no_device_memory(problems: list[Any]) -> None:
    """With the caller's workspace torch's allocator is not touched, and neither is the device's free memory."""
    for problem in problems:
        plan, outputs = problem.plan(), bare_outputs(problem)
        workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
        plan.run(**problem.inputs, **outputs, workspace=workspace)
        torch.cuda.synchronize()
        allocations = torch.cuda.memory_stats()["allocation.all.allocated"]
        free = torch.cuda.mem_get_info()[0]
        for _ in range(100):
            plan.run(**problem.inputs, **outputs, workspace=workspace)
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocations
        assert torch.cuda.mem_get_info()[0] == free


def test_fresh_thread_without_a_context(problems: list[Any]) -> None:
    """Autograd's threads have no current context when they first call."""
    for problem in problems:
        plan, expected, results = problem.plan(), problem.run(), {}
        outputs = bare_outputs(problem)

        def work(plan=plan, problem=problem, outputs=outputs, results=results) -> None:
            plan.run(**problem.inputs, **outputs, stream=0)
            results.update(outputs)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert same_bits(results, expected)


def test_bits_repeat_while_the_device_is_busy(problems: list[Any]) -> None:
    busy, stream = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()
    for problem in problems:
        plan, expected = problem.plan(), problem.run()
        for _ in range(20):
            with torch.cuda.stream(stream):
                busy @ busy
            assert same_bits(problem.run(plan=plan), expected)


def test_blocks_that_wait_for_each_other_on_two_streams() -> None:
    """A long row takes all blocks of the device, and more work comes from other streams meanwhile."""
    rows = [torch.randn(1, 2**22, device="cuda") for _ in range(2)]
    busy, streams = torch.randn(2048, 2048, device="cuda"), [torch.cuda.Stream() for _ in range(3)]
    expected = [sw.logcumsumexp_backward(x, x) for x in rows]
    torch.cuda.synchronize()
    for _ in range(50):
        with torch.cuda.stream(streams[2]):
            busy @ busy
        results = []
        for x, stream in zip(rows, streams, strict=False):
            with torch.cuda.stream(stream):
                results.append(sw.logcumsumexp_backward(x, x))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_operand_on_another_device() -> None:
    problem = make(LERP, (6, 37), F32, "cuda:0")
    outputs = bare_outputs(problem)
    with pytest.raises(sw.InvalidProblemError) as caught:
        problem.plan().run(**{**problem.inputs, "dy": problem.inputs["dy"].cpu()}, **outputs)
    assert caught.value.operand == "dy"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_second_device(problems: list[Any]) -> None:
    """Selected and run on cuda:1 while cuda:0 is current."""
    for problem, other in zip(problems, problems_on("cuda:1", problems[0].family), strict=True):
        assert same_bits({n: t.cpu() for n, t in other.run().items()}, {n: t.cpu() for n, t in problem.run().items()})
    assert torch.cuda.current_device() == 0


def workspace_need(problem: Any) -> int:
    """The bytes of workspace of a run on contiguous operands, which may be fewer than suffice for every run."""
    return int(problem.plan()._workspace_bytes({**problem.inputs, **bare_outputs(problem)}, torch.Tensor.is_contiguous))


def test_wrong_workspace(problems: list[Any]) -> None:
    """Too small, too small by one byte, at an odd address, on the host: refused before the launch."""
    wanting = [problem for problem in problems if workspace_need(problem)]
    assert bool(wanting) == problems[0].family.workspace, "families with sums need a workspace, and no others"
    for problem in wanting:
        plan, outputs = problem.plan(), problem.outputs()
        operands = {**problem.inputs, **{name: out.tensor for name, out in outputs.items()}}
        size, need = plan.workspace_size, workspace_need(problem)
        bytes_ = torch.empty(size + 256, dtype=torch.uint8, device="cuda")
        wrong = (
            (bytes_[:0], sw.WorkspaceTooSmallError),
            (bytes_[: need - 1], sw.WorkspaceTooSmallError),
            (bytes_[128:], sw.MisalignedOperandError),
            (torch.empty(size, dtype=torch.uint8), sw.InvalidProblemError),
        )
        for workspace, error in wrong:
            with pytest.raises(error) as caught:
                plan.run(**operands, workspace=workspace)
            assert caught.value.operand == "workspace"
            if error is sw.WorkspaceTooSmallError:
                assert (caught.value.needed, caught.value.got) == (size, len(workspace))
        assert all((out.buffer == -1).all() for out in outputs.values())
        plan.run(**operands, workspace=bytes_[:need])
        problem.check({name: out.take() for name, out in outputs.items()})


def test_output_inside_the_workspace(problems: list[Any]) -> None:
    for problem in problems:
        plan, operands = problem.plan(), {**problem.inputs, **bare_outputs(problem)}
        name = next(iter(problem.truth))
        shape = operands[name].shape
        workspace = torch.empty(plan.workspace_size + 4 * shape.numel(), dtype=torch.uint8, device="cuda")
        operands[name] = workspace[: 4 * shape.numel()].view(F32).view(shape)
        if plan.workspace_size:
            with pytest.raises(sw.InvalidProblemError, match="workspace"):
                plan.run(**operands, workspace=workspace)


def test_no_such_ordinal() -> None:
    with pytest.raises(sw.UnsupportedError, match="99"):
        LERP.plan.select(make_descriptor(LERP), device="cuda:99")
