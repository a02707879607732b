"""The time of a call itself: host time on tensors so small that the work does not count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _plan
from .._cases import CASES, Problem, TorchSource
from .._cases.table import Table, time_text
from .report import Csv, machine
from .timing import host

SHAPE = (4, 8)


def bench_host(device: str, csv: str | None) -> int:
    """Print host times: a run and its parts beside torch.neg(out=), then autograd through both libraries."""
    import torch

    def synchronize() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    print(f"{machine(device)}\n")
    table = Table(call=96, time=-8, ratio=-6)
    table.head()
    with Csv(csv, device, ("call", "us", "ratio")) as file:

        def show(name: str, seconds: float, against: float) -> None:
            table.row(name, time_text(seconds), f"{seconds / against:.2f}")
            file.row(name, seconds * 1e6, seconds / against)

        runs(device, synchronize, show)
        print()
        autograd(device, synchronize, show)
    return 0


def runs(device: str, synchronize: Callable[[], None], show: Callable[..., None]) -> None:
    """A run of each case against torch.neg(out=), and what the first one is made of. Ratio: to torch.neg(out=)."""
    import torch

    problems = [Problem(case, TorchSource(device), SHAPE, "float32") for case in CASES]
    x, y = torch.randn(2, *SHAPE, device=device)
    library, plan, given = _plan._native(), problems[0].plan, problems[0].operands()
    held = plan._held(given, None)
    calls: dict[str, Callable[[], Any]] = {
        "torch.neg(out=)": lambda: torch.neg(x, out=y),
        "an empty native call": library.pybind_GetNumThreads,
        "native: read the operands and check them": lambda: library.pybind_CanImplement(plan._handle, id(held)),
        "native: read, check, launch, count the writes": lambda: _plan._run_usual(
            plan._handle, plan._names, plan._inputs, given, -1
        ),
    }
    for problem in problems:
        tensors = problem.operands()
        calls[f"{problem.case.op}: plan.run ({problem.case.name})"] = lambda p=problem.plan, t=tensors: p.run(**t)  # type: ignore[misc]
    seconds = host(calls, synchronize)
    for name, found in seconds.items():
        show(name, found, seconds["torch.neg(out=)"])


def autograd(device: str, synchronize: Callable[[], None], show: Callable[..., None]) -> None:
    """autograd.grad through sternway.torch and through torch. Ratio: to torch."""
    for case in CASES:
        problem = Problem(case, TorchSource(device), SHAPE, "float32")
        floats = [name for name, output in case.outputs.items() if getattr(problem.values, output.of).is_floating_point()]
        if not case.drop_in or not floats:
            continue
        calls = {"torch": problem.backward(case.torch, floats), "ours": problem.backward(case.drop_in, floats)}
        seconds = host(calls, synchronize, number=50)
        name = f"autograd.grad, {', '.join(floats)} of {case.op} ({case.name})"
        show(f"{name}: torch", seconds["torch"], seconds["torch"])
        show(f"{name}: sternway", seconds["ours"], seconds["torch"])
