"""Median times of contestants that are measured in turn, so that other load on the machine affects them equally."""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .._cases import FORMATS

Call = Callable[[], object]
Contestants = Mapping[str, Sequence[Call]]
"""By name, the calls to repeat: one for each set of buffers, which take turns too."""
Samples = dict[str, list[float]]
Found = TypeVar("Found")

BLOCK = 2e-3  # seconds that a contestant has to itself
QUIET = 0.2  # processors that other work may take
L2 = 60e6  # bytes of the largest level-2 cache that is to be exceeded


@dataclass(frozen=True)
class Effort:
    """How much a measurement takes on the CPU.

    Attributes:
        least: repetitions of each contestant.
        seconds: of all repetitions of a contestant, at least.
        tries: measurements at most, as a disturbed one is repeated.
        pause: seconds between contestants, whose threads spin for a while and keep a core busy.
        is_quick: small sizes are measured, on every device, and what takes long is left out.
    """

    least: int
    seconds: float
    tries: int
    pause: float
    is_quick: bool

    def part_of(self, rounds: int) -> int:
        """The rounds of another measurement that takes so many with FULL."""
        return min(rounds, self.least) if self.is_quick else rounds


FULL = Effort(least=25, seconds=0.05, tries=3, pause=0.005, is_quick=False)
QUICK = Effort(least=3, seconds=0.0, tries=1, pause=0.001, is_quick=True)
effort = FULL
"""Of this process; ``--quick`` sets QUICK."""


def sizes(device: str) -> str:
    """The key of the sizes in the tables of benchmarks: cuda, cpu, or quick."""
    return "quick" if effort.is_quick else device.partition(":")[0]


def dtypes() -> tuple[str, ...]:
    """The dtypes of a benchmark of every dtype."""
    return ("float32", "bfloat16") if effort.is_quick else tuple(FORMATS)


@dataclass(frozen=True)
class Time:
    """Seconds of one call: the median of the repetitions, and the best."""

    median: float
    best: float


def measure(contestants: Contestants, device: str, tries: int | None = None) -> tuple[dict[str, Time], float]:
    """The time of each contestant, and the number of processors that other programs kept busy meanwhile.

    On the CPU other load ruins threads that wait for each other, so a disturbed measurement is repeated.

    Args:
        tries: measurements at most; None: those of the effort.
    """
    if device != "cpu":
        samples, others = on_cuda(contestants, device), 0.0
    else:
        found: list[tuple[Samples, float]] = []
        while len(found) < (tries or effort.tries) and not (found and found[-1][1] < QUIET):
            found.append(watched(lambda: on_cpu(contestants)))
        samples, others = min(found, key=lambda pair: pair[1])
    return {name: Time(statistics.median(times), min(times)) for name, times in samples.items()}, others


def watched(work: Callable[[], Found]) -> tuple[Found, float]:
    """Measure, and count the processors that other programs kept busy meanwhile."""
    start, ours, all_of_them = time.perf_counter(), time.process_time(), processor_time()
    samples = work()
    others = processor_time() - all_of_them - (time.process_time() - ours)
    return samples, max(0.0, others) / (time.perf_counter() - start)


def processor_time() -> float:
    """Seconds of processor time of the whole machine, from /proc/stat."""
    with Path("/proc/stat").open() as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def on_cpu(contestants: Contestants) -> Samples:
    """As many repetitions as the effort asks for; more if the calls are quick.

    Blocks of calls of the contestants alternate, with a pause in between. The first two calls of a block are left out, as they
    find caches full of another contestant's data.
    """
    samples: Samples = {name: [] for name in contestants}
    while any(len(times) < effort.least or sum(times) < effort.seconds for times in samples.values()):
        for name, calls in contestants.items():
            time.sleep(effort.pause)
            end, turn = time.perf_counter() + BLOCK, 0
            while turn < 5 or time.perf_counter() < end:
                start = time.perf_counter()
                calls[turn % len(calls)]()
                if turn > 1:
                    samples[name].append(time.perf_counter() - start)
                turn += 1
    return samples


def on_cuda(contestants: Contestants, device: str, repeats: int = 30) -> Samples:
    """Time each call by CUDA events. The stream first sleeps for longer than the launches take, which are not measured."""
    import torch

    cuda: Any = torch.cuda
    with cuda.device(device):
        for calls in contestants.values():
            for call in calls:
                call()
        cuda.synchronize()
        start = time.perf_counter()
        for calls in contestants.values():
            calls[0]()
        turn = time.perf_counter() - start
        cuda.synchronize()
        events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in contestants}
        wait = min(max(0.01, 2 * repeats * turn), 0.1)  # nobody gets ahead of a call that itself waits for the device
        cuda._sleep(int(wait * 2e9))  # clock cycles, at 2 GHz
        for k in range(repeats):
            for name, calls in contestants.items():
                before, after = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
                before.record()
                calls[k % len(calls)]()
                after.record()
                events[name].append((before, after))
        cuda.synchronize()
    return {name: [a.elapsed_time(b) / 1e3 for a, b in pairs] for name, pairs in events.items()}


def replayed(contestants: Contestants, device: str) -> dict[str, float]:
    """Median seconds of a call in replays of CUDA graphs of 12 calls or more, without launch times and events."""
    import torch

    cuda: Any = torch.cuda
    graphs, counts = {}, {}
    with cuda.device(device):
        for name, calls in contestants.items():
            graph, counts[name] = cuda.CUDAGraph(), 12 + -12 % len(calls)
            with cuda.graph(graph):
                for k in range(counts[name]):
                    calls[k % len(calls)]()
            graphs[name] = [graph.replay]
    samples = on_cuda(graphs, device)
    return {name: statistics.median(times) / counts[name] for name, times in samples.items()}


def in_turn(
    calls: Mapping[str, Call],
    synchronize: Call,
    another: Callable[[int], bool],
    number: int = 1,
    before: Callable[[Call], object] = lambda _: None,
) -> tuple[Samples, Samples]:
    """Seconds of each call until the device is done, and until the host returns: the means of a number of calls.

    Args:
        synchronize: waits for the device, whose queue is empty before each sample.
        another: whether another round of samples is taken, after so many.
        before: called with the call before each of its samples.
    """
    walls: Samples = {name: [] for name in calls}
    hosts: Samples = {name: [] for name in calls}
    rounds = 0
    while another(rounds):
        rounds += 1
        for name, call in calls.items():
            synchronize()
            before(call)
            start = time.perf_counter()
            for _ in range(number):
                call()
            returned = time.perf_counter()
            synchronize()
            walls[name].append((time.perf_counter() - start) / number)
            hosts[name].append((returned - start) / number)
    return walls, hosts


def host(
    calls: Mapping[str, Call],
    synchronize: Call,
    batches: int = 60,
    number: int = 200,
    *,
    finish: bool = False,
    least: bool = False,
) -> dict[str, float]:
    """Host seconds per call: the median of the means of batches.

    Args:
        finish: the time until the device is done, too.
        least: the minimum of the means instead, which other load on the machine does not raise.
    """
    for call in calls.values():
        call()
    walls, hosts = in_turn(calls, synchronize, lambda rounds: rounds < effort.part_of(batches), number)
    pick = min if least else statistics.median
    return {name: pick(found) for name, found in (walls if finish else hosts).items()}


def paused(calls: Mapping[str, Call], synchronize: Call, pause: float, rounds: int = 100) -> dict[str, float]:
    """Host seconds of a call that follows a pause, in which the device becomes idle and caches cool down: the median."""
    _, hosts = in_turn(calls, synchronize, lambda done: done < effort.part_of(rounds), before=lambda _: time.sleep(pause))
    return {name: statistics.median(found) for name, found in hosts.items()}


def buffers(moved: int, device: str) -> int:
    """The number of sets of buffers, of so many bytes each, that take turns: on a GPU no level-2 cache holds the next one."""
    return 1 if device == "cpu" else max(2, math.ceil(4 * L2 / moved))


def copies(moved: int, count: int, device: str) -> dict[str, list[Call]]:
    """Two ways to move as many bytes, the driver's copy and a vectorized kernel: half are read, half are written."""
    import torch

    calls: dict[str, list[Call]] = {"copy_": [], "neg": []}
    for _ in range(count):
        source, target = torch.randn(2, max(1, moved // 8), device=device)
        calls["copy_"].append(functools.partial(target.copy_, source))
        calls["neg"].append(functools.partial(torch.neg, source, out=target))
    return calls
