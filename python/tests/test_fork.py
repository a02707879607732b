"""Processes made of processes: fork refuses by name what Go cannot do after it, spawn and idle workers work."""

from __future__ import annotations

import textwrap

import pytest
from interpreter import RUN, python

pytestmark = pytest.mark.alone

CHILD = """
import os, signal
def child(body):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a child that hangs dies of it
        try:
            body()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_fork_after_use_raises_in_the_child() -> None:
    """Go does not survive a fork: every way in says so, quickly, and names what works instead. The parent goes on."""
    python(RUN + CHILD + """
run()
def refused():
    other = sw.LerpBackwardDescriptor(shape=(9,), dtype="float64")
    calls = [run, lambda: plan.can_implement(dy=dy, da=da), lambda: sw.lerp_backward(dy, 0.5), lambda: sw.set_num_threads(1),
             lambda: sw.LerpBackwardPlan.select(other, device="cpu")]
    for call in calls:
        try:
            call()
        except sw.Error as error:
            assert "spawn" in str(error) and "forkserver" in str(error), error
        else:
            raise AssertionError(call)
    import gc
    gc.collect()
assert child(refused) == 0
assert child(lambda: None) == 0
run()
""")  # fmt: skip


def test_fork_after_import_works() -> None:
    python("import sternway" + CHILD + f"""
def use():
{textwrap.indent(RUN, "    ")}
    run()
assert child(use) == 0
assert child(use) == 0
use()
""")  # fmt: skip


def test_torch_in_a_child_after_a_run() -> None:
    """A child that never calls us does parallel operations of torch; the parent did none, but had runs on several threads."""
    python(CHILD + """
import warnings, numpy as np, torch, sternway as sw
warnings.simplefilter("ignore")
torch.set_num_threads(2)
for _ in range(20):
    sw.cumsum_backward(np.ones((2048, 2048), np.float32))
assert child(lambda: torch.ones(10**7).exp().sum()) == 0
""")  # fmt: skip


def test_dropped_plans_in_a_forked_child() -> None:
    """A plan that the child's garbage collection frees releases nothing and says nothing."""
    done = python(RUN + CHILD + """
run()
def drop():
    global plan
    del plan
    import gc
    gc.collect()
assert child(drop) == 0
""")  # fmt: skip
    assert done.stderr == ""


def test_data_loader_workers_that_never_call_us() -> None:
    """Forked workers of a parent that used the library, with garbage collections on the way."""
    python(RUN + """
import gc, torch
run()
class Data(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, i):
        gc.collect()
        return torch.full((2,), float(i))
loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=30)
assert sum(batch.sum().item() for batch in loader) == 2 * sum(range(16))
run()
""")  # fmt: skip


def test_spawn_works() -> None:
    python(RUN + """
import multiprocessing, sternway
run()
with multiprocessing.get_context("spawn").Pool(1) as pool:
    assert pool.apply(sternway.get_num_threads) == sternway.get_num_threads()
""")  # fmt: skip
