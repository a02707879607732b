"""Times runs on one thread and on all, on a quiet machine and with processors kept busy by other processes.

    python tools/busy_core.py              a table of medians and means in microseconds
    python tools/busy_core.py --step       autograd steps: a forward of torch, whose OpenMP threads spin afterwards, and our backward

A run on all threads must take at most 1.2 times as long as on one thread where all processors but one are busy. Runs on one thread and
on all threads alternate in blocks, so that drift of the machine meets both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import sternway as sw

SIZES = (2000, 5000, 20000, 50000, 200000, 1000000, 4000000)
KINDS = ("cumsum", "logcumsumexp")


def burn(end: float) -> None:
    while time.time() < end:
        pass


def compare(run: Callable[[], Any], threads: int, budget: float) -> dict[int, list[float]]:
    """Seconds of each run by number of threads, blocks of 20 alternating."""
    taken: dict[int, list[float]] = {1: [], threads: []}
    end = time.perf_counter() + budget
    while time.perf_counter() < end:
        for n, list_ in taken.items():
            sw.set_num_threads(n)
            for _ in range(20):
                began = time.perf_counter()
                run()
                list_.append(time.perf_counter() - began)
                if list_[-1] > budget / 20:
                    break
    return taken


def plan_runs() -> list[tuple[str, Callable[[], Any]]]:
    runs = []
    for kind in KINDS:
        for n in SIZES:
            x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
            dx = np.empty_like(x)
            plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor(kind, (n,), "float32"))
            operands = {"dy": x, "dx": dx} if kind == "cumsum" else {"dy": x, "x": x, "dx": dx}
            runs.append((f"{kind} {n}", lambda plan=plan, operands=operands: plan.run(**operands)))
    return runs


def steps() -> list[tuple[str, Callable[[], Any]]]:
    import torch

    import sternway.torch as st

    runs = []
    for n in (50000, 200000, 1000000, 4000000):
        x, dy = torch.randn(n, requires_grad=True), torch.randn(n)

        def step(x: Any = x, dy: Any = dy) -> None:
            y = st.cumprod(torch.exp(-x.detach().square()).requires_grad_(), 0)
            y.backward(dy)

        runs.append((f"step {n}", step))
    return runs


def table(title: str, runs: list[tuple[str, Callable[[], Any]]], threads: int, budget: float) -> None:
    print(f"{title}: microseconds, 1 thread and {threads}")
    print(f"{'':24} {'median':>9} {'median':>9} {'ratio':>6} {'mean':>9} {'mean':>9} {'ratio':>6}")
    for name, run in runs:
        run()
        taken = compare(run, threads, budget)
        one, all_ = taken[1], taken[threads]
        medians = [1e6 * statistics.median(list_) for list_ in (one, all_)]
        means = [1e6 * statistics.fmean(list_) for list_ in (one, all_)]
        print(
            f"{name:24} {medians[0]:9.1f} {medians[1]:9.1f} {medians[1] / medians[0]:6.2f}"
            f" {means[0]:9.1f} {means[1]:9.1f} {means[1] / means[0]:6.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", action="store_true", help="autograd steps with torch")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row (1)")
    arguments = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    if threads < 2:
        sys.exit("one processor: there is nothing to compare")
    runs = steps() if arguments.step else plan_runs()
    table("quiet", runs, threads, arguments.seconds)
    end = time.time() + (len(runs) + 1) * (arguments.seconds + 1) + 5
    spawn = multiprocessing.get_context("spawn")
    busy = [spawn.Process(target=burn, args=(end,)) for _ in range(threads - 1)]
    for process in busy:
        process.start()
    time.sleep(1)
    table(f"{threads - 1} of {threads} processors busy", runs, threads, arguments.seconds)
    for process in busy:
        process.terminate()
        process.join()


if __name__ == "__main__":
    main()
