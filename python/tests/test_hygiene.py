"""What importing and using the package does to a process: nothing that the user did not ask for."""

from __future__ import annotations

import importlib
import json
import re
import textwrap
import types
from pathlib import Path

import pytest
from interpreter import LIBRARY, RUN, SELECT, python

import sternway
from sternway import _library

pytestmark = pytest.mark.alone


def test_import_is_alone_and_silent() -> None:
    """No torch, no NumPy, no shared object, no gc callback, no word, no change of directory, float environment or signals."""
    done = python(f"""
        import gc, json, os, signal, sys, threading
        def state():
            handlers = [str(signal.getsignal(s)) for s in signal.valid_signals()]
            half = sys.float_info.min / 2
            floats = [half > 0, half * 2 == sys.float_info.min, 1 / 3]
            return [os.getcwd(), len(gc.callbacks), floats, threading.active_count(), handlers, dict(os.environ)]
        before = state()
        import sternway
        assert state() == before, (before, state())
        assert not {{"torch", "numpy", "cupy"}} & set(sys.modules), "imports an array library"
        assert "{LIBRARY}" not in open("/proc/self/maps").read(), "loads the shared object"
        assert "libcuda" not in open("/proc/self/maps").read()
        assert len(os.listdir("/proc/self/task")) == 1, "starts a thread"
    """)
    assert (done.stdout, done.stderr) == ("", "")


def test_first_use_is_silent_too() -> None:
    """The shared object comes with the first select; it leaves gc, floats and signals alone."""
    done = python(f"""
        import gc, os, signal, sys
        before = len(gc.callbacks), os.getcwd(), signal.getsignal(signal.SIGINT)
        {textwrap.indent(SELECT, " " * 8).strip()}
        assert "{LIBRARY}" in open("/proc/self/maps").read()
        assert not {{"torch", "numpy"}} & set(sys.modules)
        assert (len(gc.callbacks), os.getcwd(), signal.getsignal(signal.SIGINT)) == before
        assert sys.float_info.min / 2 > 0 and 5e-324 * 1.0 > 0
        gc.collect()
    """)
    assert (done.stdout, done.stderr) == ("", "")


def test_denormals_live_after_a_run() -> None:
    python(RUN + "run(); x = np.float32(1e-40); assert x * np.float32(1) != 0; assert np.array([1e-310])[0] * 0.5 != 0")


def test_import_is_quick() -> None:
    """Best of five, without the start of the interpreter."""
    code = "import time; t = time.perf_counter(); import sternway; print(time.perf_counter() - t)"
    assert min(float(python(code).stdout) for _ in range(5)) < 0.3


def test_sharding_rules_come_with_the_first_dtensor() -> None:
    python("import sys, sternway.torch; assert 'sternway.torch.distributed' not in sys.modules")


@pytest.mark.parametrize(
    "order",
    ["import torch, sternway", "import sternway, torch", "import sternway.torch", "import sternway; run(); import torch"],
)
def test_any_order_of_imports(order: str) -> None:
    done = python(f"{RUN if 'run()' in order else SELECT}\n{order}\nimport torch\n" + """
dy = torch.ones(3, 4)
(da,) = sw.lerp_backward(dy, 0.25, needs=("da",))
assert (da == 0.75).all()
""")  # fmt: skip
    assert done.stdout == ""


def test_torch_is_not_needed() -> None:
    """The functions on NumPy arrays, with torch forbidden."""
    python("""
        import sys
        sys.modules["torch"] = None
        import numpy as np, sternway as sw
        da, db = sw.lerp_backward(np.ones(5), 0.25)
        assert (da == 0.75).all() and (db == 0.25).all()
    """)


@pytest.mark.parametrize(("level", "said"), [("debug", True), ("info", True), ("", False)])
def test_log(level: str, said: bool) -> None:
    """Plan selection and runs, through the logger `sternway`; nothing unasked."""
    done = python("""
import logging
seen = []
class Keep(logging.Handler):
    def emit(self, record): seen.append((record.levelname, record.getMessage()))
logging.getLogger("sternway").addHandler(Keep())
""" + RUN + """
run()
import json
print(json.dumps(seen))
""", STERNWAY_LOG=level)  # fmt: skip
    seen = json.loads(done.stdout.splitlines()[-1])
    assert bool(seen) == said
    if said:
        assert any("lerp" in text for _, text in seen)
    if level == "info":
        assert not any(name == "DEBUG" for name, _ in seen)


def test_values_of_the_environment_that_are_not_known() -> None:
    """Alone finds a variable that the package reads and whose mistyped value is dropped without a warning."""
    source = "".join(path.read_text() for path in Path(sternway.__file__).parent.rglob("*.py"))
    read = set(re.findall(r"""environ(?:\.get\(|\[)"(STERNWAY_\w+)""", source))
    assert read == _library.VALUES.keys()
    variables = [*_library.VALUES, *_library.THREAD_COUNTS]
    done = python(RUN + "run()", **dict.fromkeys(variables, "loud"))
    said = done.stderr.splitlines()
    assert [line.partition(" is ignored: it must be ")[0] for line in said] == [f"{name}='loud'" for name in variables]


@pytest.mark.parametrize(
    "values",
    [{"STERNWAY_BACKEND": "cpu", "STERNWAY_CHECK": "0"}, dict.fromkeys(_library.VALUES, ""), {"STERNWAY_CHECK": "1"}],
)
def test_values_of_the_environment_that_are_known(values: dict[str, str]) -> None:
    """Alone finds a warning of a value that is heeded, or of an empty one."""
    assert python(RUN + "run()", **values).stderr == ""


def test_log_in_capitals() -> None:
    """Alone finds a level that is warned of, or ignored, for its case."""
    done = python(
        RUN + "run(); import logging; assert logging.getLogger('sternway').level == logging.INFO", STERNWAY_LOG="Info"
    )
    assert "ignored" not in done.stderr


def test_backend_cpu_hides_the_gpu() -> None:
    python("""
        import sternway as sw, json
        descriptor = sw.LerpBackwardDescriptor(shape=(3, 4), dtype="float32", weight=0.5)
        for device in ("cuda", "cuda:0"):
            try:
                sw.LerpBackwardPlan.select(descriptor, device=device)
            except sw.UnsupportedError as error:
                assert "STERNWAY_BACKEND" in str(error), error
            else:
                raise AssertionError(device)
        sw.LerpBackwardPlan.select(descriptor, device="cpu")
        assert "libcuda" not in open("/proc/self/maps").read()
    """, STERNWAY_BACKEND="cpu")  # fmt: skip


def test_number_of_threads() -> None:
    python(
        "import sternway as sw; assert sw.get_num_threads() == 3; sw.set_num_threads(2); assert sw.get_num_threads() == 2",
        STERNWAY_NUM_THREADS="3",
    )
    python("import os, sternway as sw; assert sw.get_num_threads() == len(os.sched_getaffinity(0))")
    python(
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "import sternway as sw; assert sw.get_num_threads() == 1"
    )


@pytest.mark.parametrize("wrong", [0, -1, 2**40, 2**70, -(2**70)])
def test_wrong_number_of_threads(wrong: int) -> None:
    before = sternway.get_num_threads()
    got = min(max(wrong, -(2**63)), 2**63 - 1)  # what fits into the native library
    with pytest.raises(ValueError, match=str(got)):
        sternway.set_num_threads(wrong)
    for word in ("a", 1.5, None):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            sternway.set_num_threads(word)  # type: ignore[arg-type]
    assert sternway.get_num_threads() == before


def test_check_is_accepted() -> None:
    python(RUN + "run()", STERNWAY_CHECK="1")


def test_memory_does_not_grow() -> None:
    """20000 runs and 2000 refused ones: handles, capsules, references and error texts all come back."""
    python(RUN + """
import gc, sys
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096
wrong = np.ones((3, 4), np.float64)
def fail():
    try:
        plan.run(dy=wrong, da=da, db=db)
    except sw.InvalidProblemError:
        return
    raise AssertionError
def work(runs, failures):
    for _ in range(runs):
        run()
    for _ in range(failures):
        fail()
work(5000, 500)
before, references = resident(), [sys.getrefcount(a) for a in (dy, da, db, wrong)]
work(20000, 2000)
gc.collect()
assert [sys.getrefcount(a) for a in (dy, da, db, wrong)] == references
assert resident() - before < 4 << 20, resident() - before
for n in range(1, 3000):
    sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor(shape=(n,), dtype="float32", weight=0.5), device="cpu")
assert resident() - before < 16 << 20, resident() - before
""", timeout=120)  # fmt: skip


def test_a_refused_call_holds_nothing() -> None:
    """The error and its traceback form no cycle: the operands are free when it is handled, without a garbage collection."""
    python(RUN + """
import gc, weakref
gc.disable()
def refused(body):
    wrong = np.ones((3, 4), np.float64)
    alive = weakref.ref(wrong)
    try:
        body(wrong)
    except sw.Error:
        pass
    del wrong
    return alive() is None
assert refused(lambda wrong: plan.run(dy=wrong, da=da, db=db))
assert refused(lambda wrong: plan.can_implement(dy=wrong, da=da, db=db))
assert refused(lambda wrong: plan.run(dy=dy, da=da, db=db, surprise=wrong))
assert refused(lambda wrong: sw.lerp_backward(dy, 0.5, out=(da, wrong)))
""")  # fmt: skip


def test_info_is_plain_data() -> None:
    """Versions, backends, devices, kernel image, threads; everything JSON can say."""
    info = sternway.info()
    assert json.loads(json.dumps(info)) == info
    assert sternway.__version__ in json.dumps(info)
    assert "cpu" in json.dumps(info["backends"])
    assert {"backends", "devices", "threads"} <= set(info)


def test_public_attributes_are_no_modules() -> None:
    """Alone finds a module that looks like a function, such as sw.lerp, which cannot be called and which completion offers."""
    pytest.importorskip("jax", reason="JAX is not installed")
    documented = {"sternway": {"bench", "errors", "jax", "torch"}, "sternway.torch": {"distributed"}}
    for name in ("sternway", "sternway.torch", "sternway.torch.distributed", "sternway.jax"):
        package = importlib.import_module(name)
        modules = {a for a in dir(package) if not a.startswith("_") and isinstance(getattr(package, a), types.ModuleType)}
        assert modules <= documented.get(name, set()), modules
