"""Times and memory of contestants that are measured in turn: wall time, host time, device time, peak memory."""

from __future__ import annotations

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import timing
from ..timing import Call, in_turn, watched

LEAST, MOST = 10, 30  # repetitions of each call
FEWEST = 3  # of calls that take longer than PATIENT seconds for 10 repetitions
SECONDS, LONGEST = 0.4, 3.0  # for the repetitions of all calls of a row: enough after the first, not more than the second
BATCH = 1e-3  # seconds that a sample lasts at least: it repeats a quick call, at most 20 times
EVENTS = 5  # repetitions of the device's time
SMALLEST = 1 << 20  # bytes of memory on the CPU; less is not distinguishable from the pages that a process takes anyway


@dataclass(frozen=True)
class Times:
    """Milliseconds of a call: medians, and the best wall time.

    Attributes:
        wall, best: until the device is done.
        host: until the call returns. None on the CPU, where it is the wall time.
        device: between two events around the call, which was queued before the device reached it. None on the CPU.
        count: the number of samples.
        others: the processors that other programs kept busy meanwhile. None on a GPU.
    """

    wall: float
    best: float
    host: float | None
    device: float | None
    count: int
    others: float | None


def measure(calls: Mapping[str, Call], device: str) -> dict[str, Times]:
    """Time the calls in turn. Each must have run before."""
    synchronize = _synchronize(device)
    gc.collect()
    number, started = _batch(calls, synchronize), time.perf_counter()

    def before(call: Call) -> None:
        if device == "cpu":
            time.sleep(timing.effort.pause)
            if number > 1:
                call()  # threads and caches are as this contestant leaves them

    def another(rounds: int) -> bool:
        return _another(rounds, time.perf_counter() - started)

    (walls, hosts), others = watched(lambda: in_turn(calls, synchronize, another, number, before))
    host = {name: None if device == "cpu" else statistics.median(found) for name, found in hosts.items()}
    on_device = {} if device == "cpu" else _on_device(calls, host, min(EVENTS, *map(len, walls.values())))
    return {
        name: Times(
            wall=1e3 * statistics.median(found),
            best=1e3 * min(found),
            host=_ms(host[name]),
            device=on_device.get(name),
            count=len(found),
            others=others if device == "cpu" else None,
        )
        for name, found in walls.items()
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _synchronize(device: str) -> Call:
    """A function that waits for the device."""
    if device == "cpu":
        return lambda: None
    import torch

    return lambda: torch.cuda.synchronize(device)


def _batch(calls: Mapping[str, Call], synchronize: Call) -> int:
    """The number of calls in a sample: one, and more if the quickest call is short."""
    quickest = math.inf
    for call in calls.values():
        call()
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        quickest = min(quickest, time.perf_counter() - start)
    return min(20, max(1, math.ceil(BATCH / quickest)))


def _another(rounds: int, seconds: float) -> bool:
    """Whether another round of samples is taken after some rounds and seconds."""
    if rounds < FEWEST:
        return True
    if timing.effort.is_quick or seconds > LONGEST or rounds >= MOST:
        return False
    return rounds < LEAST or seconds < SECONDS


def _on_device(calls: Mapping[str, Call], host: Mapping[str, float | None], repeats: int) -> dict[str, float]:
    """Median milliseconds between events. The stream first sleeps for longer than the host takes, so that the host's time
    counts only where a call waits for the device.
    """
    import torch

    cuda: Any = torch.cuda
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            cuda.synchronize()
            before, after = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda._sleep(int(min(0.1, 1e-4 + 1.5 * (host[name] or 0.0)) * 2e9))  # clock cycles, at 2 GHz
            before.record()
            call()
            after.record()
            cuda.synchronize()
            found[name].append(before.elapsed_time(after))
    return {name: statistics.median(times) for name, times in found.items()}


def peak_memory(call: Call, device: str) -> int | None:
    """The bytes that a call has in use at its peak, above those in use before it.

    On a GPU they are those of torch's allocator. On the CPU they are the growth of the process: the peak of its resident set,
    which counts every library's memory, but not memory that it kept from an earlier call. None: too little to tell, or a system
    that does not reset the peak.
    """
    gc.collect()
    if device == "cpu":
        return _resident_growth(call)
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)) - before


def _resident_growth(call: Call) -> int | None:
    """The peak of the resident set during a call, above the resident set before it, from Linux."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what malloc keeps of freed memory would hide the growth
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _status("VmRSS")
        call()
        grown = _status("VmHWM") - before
    except (OSError, AttributeError, KeyError):
        return None
    return grown if grown >= SMALLEST else None


def _status(name: str) -> int:
    """A number of bytes from /proc/self/status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[name].split()[0])
