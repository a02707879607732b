"""The axes of the tests (device, dtype, family), the skip of GPU tests, the error report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from families import FAMILIES, Family
from ranks import Ranks, started
from support import FLOATS, REPORT, name_of

NO_GPU = "torch sees no CUDA device"
HAS_GPU = torch.cuda.is_available()

hypothesis.settings.register_profile("default", deadline=None, max_examples=60, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("all", deadline=None, max_examples=300, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the examples of Hypothesis: the same ones in each run, or with ``--all`` others every time.

    In a worker of pytest-xdist give torch one thread, and sternway this worker's share of the processors, at least two.
    """
    hypothesis.settings.load_profile("all" if config.getoption("--all") else "default")
    if "PYTEST_XDIST_WORKER" in os.environ:
        share = len(os.sched_getaffinity(0)) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        torch.set_num_threads(1)
        os.environ.setdefault("STERNWAY_NUM_THREADS", str(max(share, 2)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run every combination of sizes, and new random examples")
    parser.addoption("--ulp", action="store_true", help="print the largest error of each output, ours and torch's")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))
    if "PYTEST_XDIST_WORKER" in os.environ:  # long tests first, so that no worker begins one when the others are done
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("--ulp") or not REPORT:
        return
    terminalreporter.section("largest error against float64: norm-wise, in ulp of the row's largest element")
    line = "{:42} {:9} {:5} {:>10} {:>8} {:>10} {:>8}"
    terminalreporter.write_line(line.format("output", "dtype", "on", "sternway", "ulp", "torch", "ulp"))
    for (label, dtype, device), pair in sorted(REPORT.items()):
        numbers = [f"{number:.2g}" for d in pair for number in (d.norm, d.ulps)]
        terminalreporter.write_line(line.format(label, dtype, device, *numbers))


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


RANKS = [("cpu", 2), ("cpu", 4), pytest.param(("cuda", 2), marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=RANKS, ids=lambda param: f"{param[1]} on {param[0]}")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    device, size = request.param
    if device == "cuda" and torch.cuda.device_count() < size:
        pytest.skip(f"torch sees fewer than {size} CUDA devices")
    with started(tmp_path_factory.mktemp("ranks"), device, size) as all_of_them:
        yield all_of_them


@pytest.fixture(scope="session", params=FLOATS, ids=name_of)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(scope="session", params=FAMILIES, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture
def threads() -> Iterator[None]:
    """Put the number of CPU threads back."""
    import sternway as sw

    before = sw.get_num_threads()
    yield
    sw.set_num_threads(before)


@pytest.fixture(scope="session")
def root() -> Path:
    """Find the repository."""
    return Path(__file__).parents[2]
