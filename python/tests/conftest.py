"""The axes of the tests (device, dtype, family), the skip of GPU tests, the error report."""

from __future__ import annotations

import collections
import gc
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import support
import torch
from families import FAMILIES, Family
from ranks import Ranks, started
from support import FLOATS, REPORT, covering, name_of, pairs

PLACES = ("device", "ranks")
"""The fixtures that say where a test runs. What is chosen is chosen for each place."""
NO_GPU = "torch sees no CUDA device"
HAS_GPU = torch.cuda.is_available()

hypothesis.settings.register_profile("default", deadline=None, max_examples=60, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("all", deadline=None, max_examples=300, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the examples of Hypothesis: the same ones in each run, or with ``--all`` others every time.

    In a worker of pytest-xdist give torch one thread, and sternway this worker's share of the processors, at least two.
    """
    support.ALL = config.getoption("--all")
    hypothesis.settings.load_profile("all" if support.ALL else "default")
    if "PYTEST_XDIST_WORKER" in os.environ:
        share = len(os.sched_getaffinity(0)) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        torch.set_num_threads(1)
        os.environ.setdefault("STERNWAY_NUM_THREADS", str(max(share, 2)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="run every combination of parameters, new random examples, and the tests marked nightly",
    )
    parser.addoption("--ulp", action="store_true", help="print the largest error of each output, ours and torch's")


def chosen(group: list[pytest.Function]) -> list[pytest.Function]:
    """The items of one test function by which every two values of two of its parameters meet.

    In the class of a family, all other values meet float32, and a third of them each other dtype: the thirds of three
    families, which follow each other, are all of them.
    """
    together = [mark.args[0] for mark in group[0].iter_markers("parametrize")]
    joint = [tuple(names) for names in together if not isinstance(names, str)]
    alone = sorted(set(group[0].callspec.params) - {*PLACES, *itertools.chain(*joint)})
    axes = [*joint, *((name,) for name in alone)]
    columns = []  # for each axis the numbers of the items' values
    for names in axes:
        values = [tuple(id(item.callspec.params[name]) for name in names) for item in group]
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        columns.append([numbers[value] for value in values])
    rows = list(zip(*columns, strict=True))
    family = getattr(group[0].cls, "family", None)
    spread = axes.index(("dtype",)) if family and ("dtype",) in axes else None
    if len(axes) < (3 if spread is None else 2):
        return group

    def needed(feature: Any) -> bool:
        values = dict(feature) if isinstance(feature[0], tuple) else {}
        dtype = values.pop(spread, 0)
        return not dtype or (sum(values.values()) + dtype + FAMILIES.index(family)) % 3 == 0

    return [group[k] for k in covering([{feature for feature in pairs(row) if needed(feature)} for row in rows])]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    groups = collections.defaultdict(list)
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        where = *(params.get(name) for name in PLACES), item.get_closest_marker("gpu") is None
        groups[item.module, item.cls, item.originalname if params else item.name, where].append(item)
    if not support.ALL:
        kept = {item for group in groups.values() for item in (chosen(group) if len(group) > 1 else group)}
        kept = {item for item in kept if not item.get_closest_marker("nightly")}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))
    if "PYTEST_XDIST_WORKER" in os.environ:  # long tests first, so that no worker begins one when the others are done
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Exempt what the imports made from garbage collection, which would look at a million objects of torch each time."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Collect them as usual when the interpreter ends, or nanobind reports leaks."""
    gc.unfreeze()


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


# Of four ranks the first, the last and those between differ, as of no other number.
RANKS = [pytest.param(("cpu", 2), marks=pytest.mark.nightly), ("cpu", 4), pytest.param(("cuda", 2), marks=pytest.mark.gpu)]


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


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch has no gloo")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
