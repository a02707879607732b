"""``python -m sternway bench host``: host time of a call, on tensors so small that the kernel takes no time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from .. import _library
from .._cases import CASES, Case, Problem, TorchSource
from .._cases.progress import Progress
from .._cases.table import Table, time_text
from .kernels import kernels_of
from .report import NewCsv, machine
from .timing import host, paused

SHAPE = (4, 8)
PAUSE = 200e-6  # seconds


Times = tuple[float, ...]
"""Seconds of a call: of calls in a row, and after a pause where it was measured."""


def bench_host(device: str, new_csv: NewCsv, quiet: bool) -> int:
    """Print host times: of a run and its parts compared with torch.neg(out=), then of steps by both libraries.

    Those of steps are of calls in a row, and of calls that each follow a pause.
    """
    import torch

    def synchronize() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    print(f"{machine(device)}\n")
    with (
        new_csv(("call", "kernel", "us", "ratio", "paused_us", "paused_ratio")) as file,
        Progress("bench host", 2 + len(differentiable()), quiet=quiet) as progress,
    ):
        table = Table(progress, call=96, time=-8, ratio=-6, after_a_pause=-13, its_ratio=-9)
        table.head()

        def show(name: str, kernel: str, times: Times, against: Times) -> None:
            """Times and their ratios to those of another call: of calls in a row, and after a pause where it was measured."""
            cells, values = list[str](), list[float]()
            for seconds, other in zip(times, against, strict=True):
                cells += [time_text(seconds), f"{seconds / other:.2f}"]
                values += [seconds * 1e6, seconds / other]
            table.row(name, *cells)
            file.row(name, kernel, *values, *[""] * (4 - len(values)))

        progress.step("plan.run of every case")
        runs(device, synchronize, show)
        print()
        steps(device, synchronize, show, progress)
        print()
        progress.step("calls inside accelerate()")
        foreign(device, synchronize, show)
    return 0


def runs(device: str, synchronize: Callable[[], None], show: Callable[..., None]) -> None:
    """A run of each case, and the parts of the first run. Ratio: to torch.neg(out=)."""
    import torch

    problems = [Problem(case, TorchSource(device), SHAPE, "float32") for case in distinct(CASES)]
    x, y = torch.randn(2, *SHAPE, device=device)
    library, plan, given = _library.load(), problems[0].plan, problems[0].operands()
    held = plan._held(given, None)
    launch = "native: read, check, launch, count the writes"
    calls: dict[str, Callable[[], Any]] = {
        "torch.neg(out=)": lambda: torch.neg(x, out=y),
        "an empty native call": library.pybind_GetNumThreads,
        "native: read the operands and check them": lambda: library.pybind_CanImplement(plan._handle, id(held)),
        launch: lambda: _library.run_fast_path(plan._handle, plan._names, plan._inputs, False, given, -1),
    }
    kernels = {**dict.fromkeys(calls, ""), launch: plan.sku.kernel}
    for problem in problems:
        tensors = problem.operands()
        calls[f"{problem.case.op}: plan.run ({problem.case.name})"] = lambda p=problem.plan, t=tensors: p.run(**t)  # type: ignore[misc]
    kernels |= {name: kernels_of(call) for name, call in calls.items() if name not in kernels}
    seconds = host(calls, synchronize)
    for name, found in seconds.items():
        show(name, kernels[name], (found,), (seconds["torch.neg(out=)"],))


def distinct(cases: Iterable[Case]) -> list[Case]:
    """The cases that differ in more than the values of their inputs."""
    found: dict[Any, Case] = {}
    for case in cases:
        problem = Problem(case, TorchSource("cpu"), SHAPE, "float32")
        found.setdefault((case.plan, problem.plan.descriptor, tuple(problem.operands())), case)
    return list(found.values())


def differentiable() -> list[tuple[Case, Callable[..., Any], list[str]]]:
    """The cases with a drop-in, each with the drop-in and the names of its gradients of floating inputs."""
    found = []
    for case in distinct(CASES):
        values = Problem(case, TorchSource("cpu"), SHAPE, "float32").values
        outputs = case.outputs.items()  # dy stands for packed values, which have no gradient in a drop-in
        floats = [name for name, out in outputs if out.of != "dy" and getattr(values, out.of).is_floating_point()]
        if case.drop_in and floats:
            found.append((case, case.drop_in, floats))
    return found


def steps(device: str, synchronize: Callable[[], None], show: Callable[..., None], progress: Progress) -> None:
    """Forward, autograd.grad, and both together, through sternway.torch and through torch. Ratio: to torch."""
    for case, drop_in, floats in differentiable():
        progress.step(f"autograd of {case.op} {case.name}")
        problem = Problem(case, TorchSource(device), SHAPE, "float32")
        calls: dict[str, Callable[[], Any]] = {}
        for library, function in (("torch", case.torch), ("sternway", drop_in)):
            calls[f"forward, {library}"], calls[f"forward and autograd.grad, {library}"] = problem.step(function, floats)
            calls[f"autograd.grad, {library}"] = problem.backward(function, floats)
        kernel = kernels_of(calls["autograd.grad, sternway"])
        seconds = host(calls, synchronize, batches=100, number=20, least=True)
        after = paused(calls, synchronize, PAUSE)
        of = f"{', '.join(floats)} of {case.op} ({case.name})"
        for part in ("autograd.grad", "forward", "forward and autograd.grad"):
            theirs, ours = ((seconds[f"{part}, {who}"], after[f"{part}, {who}"]) for who in ("torch", "sternway"))
            show(f"{part}, {of}: torch", "", theirs, theirs)
            show(f"{part}, {of}: sternway", kernel if "autograd" in part else "", ours, theirs)


def foreign(device: str, synchronize: Callable[[], None], show: Callable[..., None]) -> None:
    """Calls of torch that accelerate() does not serve, inside it. Ratio: to the same call outside."""
    import torch

    from ..torch import accelerate

    x = torch.randn(*SHAPE, device=device)
    calls: dict[str, Callable[[], Any]] = {"torch.neg": lambda: torch.neg(x), "Tensor.shape": lambda: x.shape}
    least: dict[str, float] = {}
    for _ in range(20):  # in turn, with one region around a batch
        for region, place in ((contextlib.nullcontext(), "outside"), (accelerate(), "inside")):
            with region:
                found = host(calls, synchronize, batches=5, least=True)
            for name, seconds in found.items():
                key = f"{name}, {place} accelerate()"
                least[key] = min(seconds, least.get(key, seconds))
    for name in calls:
        for place in ("outside", "inside"):
            show(
                f"{name}, {place} accelerate()",
                "",
                (least[f"{name}, {place} accelerate()"],),
                (least[f"{name}, outside accelerate()"],),
            )
