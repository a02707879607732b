"""The first use leaves to Python what it owns: dispositions, handlers and masks of signals."""

from __future__ import annotations

import subprocess
import sys

import pytest
from interpreter import RUN, WHERE, python

pytestmark = pytest.mark.alone

LIBC = """
import ctypes, os, signal, threading, time
libc = ctypes.CDLL(None, use_errno=True)

class Action(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_byte * 128), ("rest", ctypes.c_byte * 64)]

def disposition(number):
    action = Action()
    return action.handler if libc.sigaction(number, None, ctypes.byref(action)) == 0 else None

def statuses(*names):
    lines = dict(line.split(":", 1) for line in open("/proc/thread-self/status"))
    return [lines[name].strip() for name in names]
"""
THREADS = """
large = np.random.default_rng(0).standard_normal((512, 2048)).astype(np.float32)
def work():
    for _ in range(10):
        sw.logcumsumexp_backward(large, large)
def work_on_threads():
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_dispositions_stay() -> None:
    """All but SIGSEGV, of which the library keeps the faults of its own nil pointers; SIGPIPE is still ignored."""
    python(LIBC + "before = [disposition(n) for n in range(65)]" + RUN + THREADS + """
ignored = statuses("SigIgn", "SigBlk")
run()
work_on_threads()
now = [disposition(n) for n in range(65)]
changed = [n for n in range(65) if now[n] != before[n]]
assert changed == [signal.SIGSEGV], changed
assert disposition(signal.SIGPIPE) == 1, "SIG_IGN"
assert statuses("SigIgn", "SigBlk") == ignored
try:
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")
except BrokenPipeError:
    pass
else:
    raise AssertionError
""")  # fmt: skip


@pytest.mark.parametrize("when", ["before", "after"])
def test_handlers_are_called(when: str) -> None:
    """Of every signal that a process can catch and Python can set, once for each one sent; none comes by itself."""
    install = "for n in numbers: signal.signal(n, lambda number, _: seen.append(number))\n"
    python(LIBC + f"""
numbers = sorted(signal.valid_signals() - {{signal.SIGKILL, signal.SIGSTOP}})
seen = []
{install if when == "before" else ""}
""" + RUN + "run()\n" + (install if when == "after" else "") + THREADS + """
work_on_threads()
assert seen == [], "nobody sent one"
for number in numbers:
    os.kill(os.getpid(), number)
    until = time.monotonic() + 10
    while not seen and time.monotonic() < until:
        time.sleep(0.001)
    assert seen == [number], (number, seen)
    seen.clear()
work_on_threads()
assert seen == []
""")  # fmt: skip


def test_masks_stay() -> None:
    """Those of the thread that loads the library, and of other threads that call it."""
    python(LIBC + "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())" + RUN + """
before = statuses("SigBlk", "SigIgn", "SigCgt")
run()
assert statuses("SigBlk") == before[:1]
def other():
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGPROF, signal.SIGSEGV, signal.SIGCHLD, signal.SIGUSR1})
    blocked = statuses("SigBlk")
    run()
    found.append(statuses("SigBlk") == blocked)
found = []
thread = threading.Thread(target=other)
thread.start()
thread.join()
assert found == [True]
""")  # fmt: skip


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM", "SIGHUP", "SIGINT", "SIGALRM", "SIGUSR2"])
def test_threads_of_the_library_take_no_signals(name: str) -> None:
    """A signal that the program blocks and waits for reaches it, also where it is blocked after the first use."""
    python(LIBC + RUN + THREADS + f"""
work()
number = signal.{name}
signal.pthread_sigmask(signal.SIG_BLOCK, [number])
for _ in range(20):
    os.kill(os.getpid(), number)
    info = signal.sigtimedwait([number], 10)
    assert info and info.si_signo == number
""", OPENBLAS_NUM_THREADS="1")  # fmt: skip


def test_an_interrupt_ends_a_sleep() -> None:
    """SIGINT reaches the main thread at once."""
    python(LIBC + RUN + THREADS + """
run()
work_on_threads()
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with it ignored
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    time.sleep(30)
except KeyboardInterrupt:
    assert time.monotonic() - began < 10
else:
    raise AssertionError
""")  # fmt: skip


CRASH = """
import ctypes, os, signal, sys, faulthandler
import numpy as np
BEFORE
import sternway as sw
sw.cumsum_backward(np.ones((4, 4), np.float32))
AFTER
def fault():
    THIS
fault()
"""


@pytest.mark.parametrize("this", ["ctypes.string_at(1)", "ctypes.string_at(1 << 46)", "os.kill(os.getpid(), signal.SIGSEGV)"])
@pytest.mark.parametrize("when", ["BEFORE", "AFTER", "never"])
def test_faults_elsewhere(this: str, when: str) -> None:
    """The process dies of the signal, and faulthandler tells where it was in Python; nothing of Go is printed."""
    code = CRASH.replace("THIS", this).replace(when, "faulthandler.enable()").replace("BEFORE", "").replace("AFTER", "")
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": WHERE}, capture_output=True, text=True, check=False)
    assert done.returncode == -11, done
    assert "goroutine" not in done.stderr
    if when == "never":
        assert done.stderr == ""
    else:
        assert "Segmentation fault" in done.stderr
        assert "in fault" in done.stderr


def test_no_signals_of_preemption() -> None:
    """The library is linked so that its runtime interrupts goroutines by no signal, which would be Python's."""
    python(LIBC + RUN + THREADS + """
import gc
counted = []
signal.signal(signal.SIGURG, lambda *_: counted.append(1))
run()
signal.signal(signal.SIGURG, lambda *_: counted.append(1))
end = time.monotonic() + 1
while time.monotonic() < end:
    work_on_threads()
    for n in range(200):  # garbage for the collector of Go, which stops goroutines
        sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor(shape=(n + 1,), dtype="float32", weight=0.5), device="cpu")
assert not counted
""")  # fmt: skip
