"""The native library: loading it, its settings, and what it says of itself. No other module imports ``_native``."""

from __future__ import annotations

import functools
import json
import logging
import operator
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from . import errors
from ._show import Info

__all__ = ["get_num_threads", "info", "set_num_threads"]

log = logging.getLogger("sternway")
log_runs = False

VALUES = {"STERNWAY_BACKEND": ("cpu",), "STERNWAY_CHECK": ("0", "1"), "STERNWAY_LOG": ("info", "debug")}
"""The values that variables of the environment may have; an empty one is as if it were not set."""
THREAD_COUNTS = ("STERNWAY_NUM_THREADS", "OMP_NUM_THREADS")


def is_checking() -> bool:
    """Whether STERNWAY_CHECK=1 asks for checks that read values on a GPU, and so wait for it."""
    return os.environ.get("STERNWAY_CHECK") == "1"


@functools.cache
def load() -> Any:
    """The native library. It is loaded at first use, so a process that only imports sternway can still fork."""
    global run, log_runs
    from . import _native as library

    if is_checking():
        library.pybind_SetCheck(1)
    level = os.environ.get("STERNWAY_LOG", "").lower()
    if level in VALUES["STERNWAY_LOG"]:
        log.setLevel(level.upper())
        log_runs = level == "debug"
        if not logging.getLogger().handlers and not log.handlers:
            log.addHandler(logging.StreamHandler())
    _warn_of_ignored_values()
    os.register_at_fork(after_in_child=_after_fork)
    run = library.pybind_Run
    return library


def _warn_of_ignored_values() -> None:
    """Warn of values in the environment that are ignored, by the native library too: it has no log of its own."""
    for variable, allowed in VALUES.items():
        text = os.environ.get(variable, "")
        if text and (text.lower() if variable == "STERNWAY_LOG" else text) not in allowed:
            log.warning("%s=%r is ignored: it must be %s", variable, text, " or ".join(allowed))
    for variable in THREAD_COUNTS:
        text = os.environ.get(variable, "").strip()
        first = text.split(",")[0].strip() if variable == "OMP_NUM_THREADS" else text  # one for each level of nesting
        if text and not (re.fullmatch(r"\+?[0-9]{1,18}", first) and 1 <= int(first) <= 65536):
            log.warning("%s=%r is ignored: it must be a number of threads between 1 and 65536", variable, text)


NOT_RUN, RAN, RAN_UNCOUNTED = range(3)
"""Results of run_fast_path, as in fast_path.c: nothing was done, as an operand is wrong or is no plain tensor of torch; it ran;
it ran, and torch failed to raise the version counters of the outputs."""


def _before_torch(*_: Any) -> int:
    return NOT_RUN


run: Callable[..., int]
run_fast_path: Callable[..., int] = _before_torch  # the native library's, once it stores torch's classes


def _after_fork() -> None:
    """Make every call in a forked child raise: the Go runtime has only one thread there and would hang."""
    global load, run, run_fast_path

    def refuse(*_: Any) -> NoReturn:
        raise errors.make(
            "unsupported",
            "sternway",
            "the process",
            "the one that loaded the library",
            "a fork of it",
            'start workers with the "spawn" or "forkserver" method of multiprocessing',
        )

    load = run = run_fast_path = refuse  # type: ignore[assignment]


def raise_error(error: Exception, op: str = "", hint_of: errors.HintOf | None = None) -> NoReturn:
    """Raise the native library's error.

    Args:
        error: raised by the native library.
        op: replaces the operation where the error names the library or a step of it.
        hint_of: writes the advice of an error in the words of the operands' library.
    """
    refusal = None
    try:
        if type(error) is RuntimeError:  # the native library knows no other class
            refusal = errors.native_error(str(error), hint_of)
            if op and refusal.op in ("select", "sternway"):
                errors.renamed(refusal, op)
            raise refusal from None
        raise error
    finally:
        del error, refusal  # no cycle through the traceback, which would keep the operands alive


def info() -> dict[str, Any]:
    """Describe this installation: versions, devices, driver, kernel image and threads.

    Returns:
        a dict of plain values, which can be written as JSON:

        - ``version``, ``python``, ``go``: version strings; ``torch``: its version, or None where it has not been imported.
        - ``backends``: a list of ``"cpu"`` and, where a GPU can be used, ``"cuda"``.
        - ``devices``: a list of a dict for each GPU: its name, architecture, multiprocessors and memory in bytes.
        - ``driver``: the CUDA version that the driver supports, or why there is no driver.
        - ``kernel_image``: the architectures, the hash of each file and the version of nvcc; None in a build without kernels.
        - ``threads``: the number that :func:`get_num_threads` returns.
        - ``families``: the operations that there are plans for.

    Raises:
        UnsupportedError: in a fork of a process that had already loaded the native library.

    Example:
        >>> import sternway as sw
        >>> sw.info()["backends"][0]
        'cpu'
    """
    facts = Info(json.loads(load().pybind_Info()))
    facts["python"] = sys.version.split()[0]
    facts["torch"] = getattr(sys.modules.get("torch"), "__version__", None)
    if os.environ.get("STERNWAY_BACKEND") == "cpu":
        facts.update(backends=["cpu"], devices=[], driver="hidden by STERNWAY_BACKEND=cpu")
    return facts


def set_num_threads(n: int) -> None:
    """Set how many threads one run on the CPU may use, for the whole process. Results do not depend on it.

    This takes precedence over every other setting that :func:`get_num_threads` lists. A run never uses more threads than there
    are processors for this process.

    Args:
        n: a number of threads from 1 to 65536.

    Raises:
        InvalidProblemError: n < 1 or n > 65536.
        TypeError: n is no integer.
        UnsupportedError: in a fork of a process that had already loaded the native library.

    Example:
        >>> import sternway as sw
        >>> before = sw.get_num_threads()
        >>> sw.set_num_threads(1)
        >>> sw.get_num_threads()
        1
        >>> sw.set_num_threads(before)
    """
    try:
        load().pybind_SetNumThreads(min(max(operator.index(n), -(1 << 63)), (1 << 63) - 1))
    except RuntimeError as error:
        raise_error(error)


def get_num_threads() -> int:
    """Return how many threads one run on the CPU may use if the calling thread starts it.

    The first of these settings that exists decides:

    1. the number given to :func:`set_num_threads`;
    2. the environment variable STERNWAY_NUM_THREADS, as it was when the native library was loaded, at its first use;
    3. ``torch.get_num_threads()`` of the calling thread at this moment, if the process has imported torch;
    4. the environment variable OMP_NUM_THREADS, as it was when the native library was loaded;
    5. the processors of this process: its CPU affinity or, if that is smaller, the CPU quota of its control groups, rounded up.

    A variable whose value is no number from 1 to 65536 is ignored, with a warning of the logger ``sternway``. A run uses at
    most as many threads as setting 5 says, and fewer if its work is too small to share or other programs keep the processors
    busy.

    Returns:
        the number of threads, 1 or more.

    Raises:
        UnsupportedError: in a fork of a process that had already loaded the native library.

    Example:
        >>> import sternway as sw
        >>> sw.get_num_threads() >= 1
        True
    """
    return int(load().pybind_GetNumThreads())
