"""Runs on the CPU work on the threads that torch's OpenMP runtime has, where they can."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

SCRIPT = """
import json, os, threading, time, torch, sternway as sw

def tasks():
    return set(os.listdir("/proc/self/task"))

def seconds(threads):
    ticks = 0
    for thread in threads:
        fields = open(f"/proc/self/task/{thread}/stat").read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")

torch.set_num_threads(2)
before = tasks()
x = torch.randn(1 << 22)
torch.exp(x)
team = tasks() - before
dy, dx = torch.randn_like(x), torch.empty_like(x)
plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor(kind="cumprod", shape=x.shape, dtype="float32"), "cpu")

def work():
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        plan.run(dy=dy, x=x, dx=dx)

def measured(run):
    start = seconds(team)
    run()
    return seconds(team) - start

def elsewhere():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

found = {"team": len(team)}
for threads in (1, 2, 3):
    sw.set_num_threads(threads)
    found[threads] = measured(work)
sw.set_num_threads(2)
found["elsewhere"] = measured(elsewhere)
print(json.dumps(found))
"""


@pytest.mark.skipif("OpenMP" not in torch.__config__.parallel_info(), reason="this torch has no OpenMP")
def test_the_main_thread_shares_the_team_of_torch() -> None:
    """Its second thread works where two are wanted; where none or more are, and for other threads, ours do."""
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "2", "STERNWAY_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["team"] == 1
    assert found["2"] > 0.1, found
    for idle in ("1", "3", "elsewhere"):
        assert found[idle] < 0.05, found
