"""Times runs on one thread and on all, on a quiet machine and with all processors but one kept busy by other processes.

    python tools/busy_core.py            a table of medians and means in microseconds
    python tools/busy_core.py --step     with a parallel operation of torch before each run, whose threads spin afterwards

A run on all threads must take at most 1.2 times as long as on one thread where all processors but one are busy. Runs on one
thread and on all threads alternate in blocks, so that drift of the machine meets both.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import sternway as sw

SIZES = (2000, 5000, 20000, 50000, 200000, 1000000, 4000000)
KINDS = ("cumsum", "logcumsumexp")

Body = Callable[[], Any]


def burn(end: float) -> None:
    """Keep a processor busy."""
    while time.time() < end:
        pass


def compare(before: Body, run: Body, threads: int, budget: float) -> dict[int, list[float]]:
    """Seconds of each run by number of threads, blocks of 20 alternating; before() is not measured."""
    taken: dict[int, list[float]] = {1: [], threads: []}
    end = time.perf_counter() + budget
    while time.perf_counter() < end:
        for n, times in taken.items():
            sw.set_num_threads(n)
            for _ in range(20):
                before()
                began = time.perf_counter()
                run()
                times.append(time.perf_counter() - began)
                if times[-1] > budget / 20:
                    break
    return taken


def plan_runs(kinds: Sequence[str], sizes: Sequence[int]) -> list[tuple[str, Body]]:
    """Runs of backward plans over one row each."""
    runs: list[tuple[str, Body]] = []
    for kind in kinds:
        for n in sizes:
            x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
            plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor(kind, (n,), "float32"))
            operands = {"dy": x, "dx": np.empty_like(x), **({} if kind == "cumsum" else {"x": x})}
            runs.append((f"{kind} {n}", functools.partial(plan.run, **operands)))
    return runs


def parallel_operation() -> Body:
    """An operation of torch on all its threads."""
    import torch

    return functools.partial(torch.exp, torch.randn(1 << 18))


def table(title: str, before: Body, runs: list[tuple[str, Body]], threads: int, budget: float) -> None:
    """Print the times of each run on one thread and on all, and their ratio."""
    print(f"{title}: microseconds, 1 thread and {threads}")
    print(f"{'':24} {'median':>9} {'median':>9} {'ratio':>6} {'mean':>9} {'mean':>9} {'ratio':>6}")
    for name, run in runs:
        run()
        taken = compare(before, run, threads, budget)
        medians = [1e6 * statistics.median(times) for times in taken.values()]
        means = [1e6 * statistics.fmean(times) for times in taken.values()]
        columns = [f"{one:9.1f} {all_:9.1f} {all_ / one:6.2f}" for one, all_ in (medians, means)]
        print(f"{name:24}", *columns, flush=True)


def main() -> None:
    """Run both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--step", action="store_true", help="with a parallel operation of torch before each run")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row (1)")
    arguments = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    if threads < 2:
        sys.exit("one processor: there is nothing to compare")
    before = parallel_operation() if arguments.step else lambda: None
    runs = plan_runs(["cumprod"] if arguments.step else KINDS, SIZES)
    table("quiet", before, runs, threads, arguments.seconds)
    end = time.time() + (len(runs) + 1) * (arguments.seconds + 1) + 5
    spawn = multiprocessing.get_context("spawn")
    busy = [spawn.Process(target=burn, args=(end,)) for _ in range(threads - 1)]
    for process in busy:
        process.start()
    time.sleep(1)
    table(f"{threads - 1} of {threads} processors busy", before, runs, threads, arguments.seconds)
    for process in busy:
        process.terminate()
        process.join()


if __name__ == "__main__":
    main()
