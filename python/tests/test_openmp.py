"""Runs on the CPU beside the OpenMP threads of torch, which spin for some milliseconds after each parallel operation."""

from __future__ import annotations

import os

import pytest
import torch
from interpreter import python
from test_fork import CHILD

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif("OpenMP" not in torch.__config__.parallel_info(), reason="this torch has no OpenMP"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: every run is on one thread"),
]

STEPS = """
import statistics, threading, time, torch, sternway as sw
torch.set_num_threads(2)
x = torch.randn(1 << 19)
dy, dx = torch.randn_like(x), torch.empty_like(x)
plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor(kind="cumprod", shape=x.shape, dtype="float32"), "cpu")

def steps(threads, seconds=0.3):
    '''The median time of our part of steps that begin with a parallel operation of torch.'''
    sw.set_num_threads(threads)
    taken, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 10:
        torch.exp(x)
        began = time.perf_counter()
        plan.run(dy=dy, x=x, dx=dx)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
"""
SPINNING = {"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "2", "STERNWAY_NUM_THREADS": ""}


def test_steps_gain_from_threads_that_spin() -> None:
    """The threads of torch's team do our work where they would otherwise keep their processors from it."""
    done = python(STEPS + """
def torch_gains():
    taken = {1: [], 2: []}
    for _ in range(20):
        for threads, times in taken.items():
            torch.set_num_threads(threads)
            for _ in range(5):
                began = time.perf_counter()
                torch.exp(x)
                times.append(time.perf_counter() - began)
    one, two = map(statistics.median, taken.values())
    return two < 0.7 * one
ratios, quiet = [], 0
for _ in range(20):
    quiet += torch_gains()
    one = steps(1)
    ratios.append(steps(2) / one)
    if ratios[-1] < 0.85:
        break
print(min(ratios), quiet)
""", timeout=120, **SPINNING)  # fmt: skip
    ratio, quiet = map(float, done.stdout.split())
    if ratio >= 0.85 and quiet < 10:
        pytest.skip(f"busy processors: torch itself gained from two threads in {quiet:.0f} of 20 attempts")
    assert ratio < 0.85


def test_a_child_of_steps_can_use_torch() -> None:
    """The team is released before a fork: a forked child that never calls us does parallel operations of torch."""
    python(CHILD + STEPS + """
import warnings
warnings.simplefilter("ignore")
steps(2, 2)
def parallel():
    torch.set_num_threads(2)
    assert torch.ones(10**7).exp().sum() > 0
for _ in range(3):
    assert child(parallel) == 0
    parallel()
    steps(2, 0.2)
""", timeout=120, **SPINNING)  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_do_not_depend_on_it(threads: int) -> None:
    """Runs from the main thread and from others, at the same time, between operations of torch."""
    python(STEPS + f"""
sw.set_num_threads(1)
plan.run(dy=dy, x=x, dx=dx)
expected = dx.clone()
wrong = []
def work():
    mine = torch.empty_like(x)
    for _ in range(30):
        torch.exp(x)
        mine.fill_(float("nan"))
        plan.run(dy=dy, x=x, dx=mine)
        if not torch.equal(mine, expected):
            wrong.append(1)
sw.set_num_threads({threads})
others = [threading.Thread(target=work) for _ in range(2)]
for thread in others:
    thread.start()
work()
for thread in others:
    thread.join()
assert not wrong
""", timeout=120, **SPINNING)  # fmt: skip
