"""How many threads a run on the CPU uses: what was asked for, by whom, and never more than there are processors."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from interpreter import RUN, python

from sternway import _library

pytestmark = pytest.mark.alone

PROCESSORS = len(os.sched_getaffinity(0))
TWO = pytest.mark.skipif(PROCESSORS < 2, reason="one processor: every run is on one thread")

WORK = """
import os, time, threading
import numpy as np
import sternway as sw
large = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor(kind="logcumsumexp", shape=large.shape, dtype="float32"), "cpu")
dx = np.empty_like(large)
def work(runs=5):
    for _ in range(runs):
        plan.run(dy=large, x=large, dx=dx)

def seconds_of_others():
    '''Processor time of all threads but this one.'''
    ticks, me = 0, str(threading.get_native_id())
    for thread in set(os.listdir("/proc/self/task")) - {me}:
        fields = open(f"/proc/self/task/{thread}/stat").read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")

def others_work():
    '''Whether other threads take part in runs.'''
    work()
    before, end = seconds_of_others(), time.perf_counter() + 20
    alone = time.perf_counter() + 1
    while time.perf_counter() < end:
        work(1)
        if seconds_of_others() - before > 0.2:  # the Go runtime watches its threads, for less than a tenth of the time
            return True
        if time.perf_counter() > alone and sw.get_num_threads() == 1:
            return False
    return False
"""


def number(code: str, **env: str) -> int:
    kept = {"OMP_NUM_THREADS": "", "STERNWAY_NUM_THREADS": ""}
    return int(python(f"{code}\nimport sternway as sw\nprint(sw.get_num_threads())", **{**kept, **env}).stdout)


def test_order_of_settings() -> None:
    """set_num_threads, STERNWAY_NUM_THREADS, torch, OMP_NUM_THREADS, the processors; each without those before it."""
    with_torch = "import torch; torch.set_num_threads(3)"
    explicit = f"{with_torch}\nimport sternway; sternway.set_num_threads(7)"
    every = {"STERNWAY_NUM_THREADS": "5", "OMP_NUM_THREADS": "4"}
    assert number(explicit, **every) == 7
    assert number(with_torch, **every) == 5
    assert number(with_torch, OMP_NUM_THREADS="4") == 3
    assert number("", OMP_NUM_THREADS="4") == 4
    assert number("") == PROCESSORS
    assert number("import torch", OMP_NUM_THREADS="1") == 1
    assert number("", OMP_NUM_THREADS="1,2") == 1


def test_torch_set_late_and_in_threads() -> None:
    """What torch.get_num_threads() says when it is asked, also after the first use, and in every thread."""
    python("""
import threading, sternway as sw
assert sw.get_num_threads() >= 1
import torch
for n in (1, 2, 3, 1):
    torch.set_num_threads(n)
    assert sw.get_num_threads() == torch.get_num_threads() == n
    found = []
    thread = threading.Thread(target=lambda: found.append((sw.get_num_threads(), torch.get_num_threads())))
    thread.start()
    thread.join()
    assert found[0][0] == found[0][1], found
sw.set_num_threads(2)
torch.set_num_threads(1)
assert sw.get_num_threads() == 2, "an explicit setting stays"
""", OMP_NUM_THREADS="", STERNWAY_NUM_THREADS="")  # fmt: skip


@TWO
@pytest.mark.parametrize(
    ("before", "env"),
    [
        ("", {"OMP_NUM_THREADS": "1"}),
        ("", {"STERNWAY_NUM_THREADS": "1"}),
        ("import torch; torch.set_num_threads(1)", {}),
        ("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", {}),
    ],
    ids=["OMP_NUM_THREADS", "STERNWAY_NUM_THREADS", "torch", "affinity"],
)
def test_one_thread_is_one_thread(before: str, env: dict[str, str]) -> None:
    """No other thread works then, from the first run on."""
    done = python(f"{before}\n{WORK}\nassert sw.get_num_threads() == 1\nassert not others_work()", **env)
    assert done.stderr == ""


@TWO
def test_more_threads_work_and_stop() -> None:
    """Others take part, until torch is set to one thread."""
    python(f"""{WORK}
import torch
torch.set_num_threads(2)
assert others_work()
torch.set_num_threads(1)
assert not others_work()
""", timeout=120, OMP_NUM_THREADS="", STERNWAY_NUM_THREADS="")  # fmt: skip


@TWO
def test_affinity_set_late() -> None:
    """A thread that may run on one processor begins runs on that one alone."""
    python(f"""{WORK}
assert sw.get_num_threads() >= 2
work()
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
assert sw.get_num_threads() == 1
assert not others_work()
""", OMP_NUM_THREADS="", STERNWAY_NUM_THREADS="")  # fmt: skip


def test_data_loader_workers_have_one_thread() -> None:
    """torch sets one thread for each worker process."""
    python("""
import multiprocessing, sys, types
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, i):
        import sternway
        return sternway.get_num_threads()
loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="fork", timeout=60)
assert [batch.item() for batch in loader] == [1, 1]
""", timeout=120, OMP_NUM_THREADS="", STERNWAY_NUM_THREADS="")  # fmt: skip


def test_no_more_threads_than_processors() -> None:
    """Whatever number is set, by whatever means: a few threads of the Go runtime, and one for each processor at most."""
    code = """
    import os, numpy as np, sternway as sw
    a = np.ones((4096, 2048), np.float32)
    {}
    for _ in range(3):
        sw.cumsum_backward(a)
        sw.cumprod_backward(a, a)
    print(sw.get_num_threads(), len(os.listdir("/proc/self/task")))
    """
    for statement, env in (
        ("", {"STERNWAY_NUM_THREADS": "65536"}),
        ("sw.set_num_threads(4096)", {}),
        ("", {"OMP_NUM_THREADS": "999"}),
    ):
        said, made = map(int, python(code.format(statement), **{"OPENBLAS_NUM_THREADS": "1", **env}).stdout.split())
        assert said in (65536, 4096, 999)
        assert made <= 2 * PROCESSORS + 8


VARIABLES = pytest.mark.parametrize("variable", ["STERNWAY_NUM_THREADS", "OMP_NUM_THREADS"])


@VARIABLES
def test_a_value_that_is_no_number(variable: str) -> None:
    """It is ignored with a warning that names the variable and the value; nothing fails."""
    done = python(
        RUN + "run(); print(sw.get_num_threads())", **{"OMP_NUM_THREADS": "", "STERNWAY_NUM_THREADS": "", variable: "two"}
    )
    assert int(done.stdout) == PROCESSORS
    assert f"{variable}='two' is ignored" in done.stderr
    assert done.stderr.count("\n") == 1


@VARIABLES
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "65537", "9" * 40, "0x2", "\u0663", ";", ","])
def test_values_that_are_no_numbers(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is warned of. The Go test TestNumbersOfTheEnvironment has that each is ignored."""
    for name in ("STERNWAY_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, value if name == variable else "")
    _library._warn_of_ignored_values()
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"{variable}={value!r} is ignored")


@pytest.mark.parametrize("value", ["", " ", " 2 ", "+2"])
def test_values_without_a_warning(value: str) -> None:
    done = python(RUN + "run(); print(sw.get_num_threads())", OMP_NUM_THREADS="", STERNWAY_NUM_THREADS=value)
    assert int(done.stdout) == (2 if "2" in value else PROCESSORS)
    assert done.stderr == ""


def cpu_hierarchy() -> Path | None:
    """A hierarchy of control groups, of version 1, that limits processors and in which groups can be made."""
    folder = Path("/sys/fs/cgroup/cpu")
    return folder if (folder / "cpu.cfs_quota_us").exists() and os.access(folder, os.W_OK) and os.geteuid() == 0 else None


@TWO
@pytest.mark.skipif(cpu_hierarchy() is None, reason="no control group can be made here (it takes root and version 1)")
@pytest.mark.parametrize(("outer", "inner", "processors"), [(50, -1, 1), (-1, 100, 1), (110, 400, 2), (400, 30, 1)])
def test_quota_of_control_groups(outer: int, inner: int, processors: int) -> None:
    """The smaller one of nested groups, in percent of a processor, rounded up."""
    folder = cpu_hierarchy()
    assert folder
    group = folder / f"sternway-test-{uuid.uuid4().hex}"
    nested = group / "inner"
    nested.mkdir(parents=True)
    try:
        order = [(group, outer), (nested, inner)] if outer > 0 else [(nested, inner)]
        try:
            for place, percent in order:
                if percent > 0:
                    (place / "cpu.cfs_quota_us").write_text(str(percent * 1000))
        except OSError:  # an inner quota is not above the outer one's
            pytest.skip("this kernel refuses an inner quota above the outer one")
        join = f"open({str(nested / 'tasks')!r}, 'w').write(str(__import__('os').getpid()))"
        assert number(join) == min(processors, PROCESSORS)
    finally:
        nested.rmdir()
        group.rmdir()


@TWO
@pytest.mark.parametrize("n", [500, 5000, 50000, 1 << 20])
def test_one_busy_processor(n: int) -> None:
    """With all processors but one busy, the median run on all threads takes at most 1.2 times as long as on one.

    The best of eight attempts counts, as other work of the machine disturbs them.
    """
    done = python(f"""
import multiprocessing, os, statistics, subprocess, sys, time
import numpy as np
import sternway as sw
x = np.random.default_rng(0).standard_normal({n}).astype(np.float32)
dx = np.empty_like(x)
plan = sw.ScanBackwardPlan.select(sw.ScanBackwardDescriptor("logcumsumexp", x.shape, "float32"))
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range({PROCESSORS - 1})]
try:
    time.sleep(0.5)
    ratios = []
    for attempt in range(8):
        taken = {{1: [], {PROCESSORS}: []}}
        end = time.perf_counter() + 1
        while time.perf_counter() < end or len(taken[1]) < 20:
            for threads, times in taken.items():
                sw.set_num_threads(threads)
                for _ in range(10):
                    began = time.perf_counter()
                    plan.run(dy=x, x=x, dx=dx)
                    times.append(time.perf_counter() - began)
        one, all_ = (statistics.median(times) for times in taken.values())
        ratios.append(all_ / one)
        if ratios[-1] <= 1.2:
            break
    print(min(ratios))
finally:
    for process in busy:
        process.kill()
        process.wait()
""", timeout=120)  # fmt: skip
    assert float(done.stdout) <= 1.2


GROWTH = """
import gc, threading
import torch, sternway as sw
device = {device!r}
dy, da = torch.ones(64, 64, device=device), torch.empty(64, 64, device=device)
plan = sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor(shape=(64, 64), dtype="float32", weight=0.5), device=device)
def ours(): plan.run(dy=dy, da=da)
def theirs(): torch.neg(dy, out=da)
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def grown(body, count=1000):
    before = resident()
    for _ in range(count):
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
    return (resident() - before) / count
for body in (theirs, ours):
    grown(body, 300)
print(min(grown(theirs) for _ in range(3)), min(grown(ours) for _ in range(3)))
"""


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_threads_that_end_leave_nothing(where: str) -> None:
    """A thread that runs a plan once and ends costs no memory, as one that runs torch.neg: at most 500 bytes more than that."""
    theirs, ours = map(float, python(GROWTH.format(device=where), timeout=300).stdout.split())
    assert ours <= max(theirs, 0) + 500, (theirs, ours)
