"""bench step: steps are checked before they are timed, failures become rows, and each contestant has a line in the CSV."""

from __future__ import annotations

import argparse
import csv
import functools
import gc
import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import python
from sternway.bench.report import Csv
from sternway.bench.step import check, learning, measure, report, run, table
from sternway.bench.step.case import COMPILE, OURS, TORCH, Contestant, Size, Step, StepCase, by_gradient
from sternway.bench.step.check import Checked, WrongResultError

from sternway.__main__ import parser
from sternway._kinds import WITH_KERNELS

SIZE = Size((4, 8), "float32")
X = torch.ones(4, 8, requires_grad=True)


@pytest.fixture(autouse=True)
def quick_on_one_thread(monkeypatch: pytest.MonkeyPatch, threads: None) -> Iterator[None]:
    """Few repetitions, and one thread, as threads that wait for each other are slow on a busy machine."""
    import sternway

    monkeypatch.setattr(measure, "LEAST", 3)
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    sternway.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def options(*arguments: str) -> argparse.Namespace:
    return parser().parse_args(["bench", "step", "--quiet", *arguments])


def bench(path: Path, *arguments: str) -> tuple[int, list[dict[str, str]]]:
    """The exit code, and the lines of the CSV file."""
    chosen = options("--csv", str(path), *arguments)
    code = run.bench_step(chosen, "cpu", functools.partial(Csv, chosen.csv, "cpu", "abc1234"))
    return code, list(csv.DictReader(path.read_text().splitlines()[1:]))


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def step_of(ours: Any = doubled, check: Any = None, **others: Contestant) -> Step:
    """A step of 2 x, in which sternway's contestant is a given function."""
    dy = torch.ones_like(X)
    contestants = {TORCH: by_gradient(lambda: doubled(X), (X,), dy), OURS: by_gradient(lambda: ours(X), (X,), dy), **others}
    reference = (torch.full((4, 8), 2.0, dtype=torch.float64),)
    return Step(contestants, check or (lambda them: against(reference, them)))


def against(reference: Any, contestants: Any) -> dict[str, Checked]:
    return check.against(reference, contestants, "float32", 1)


# --- The rows -----------------------------------------------------------------------------------------------------------


def test_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each contestant with both times, their ratios, the kernels and the error; a table; a summary at the end."""
    path = tmp_path / "step.csv"
    code, lines = bench(path, "--quick", "--rows", "cumprod, dim 1")
    assert code == 0
    assert "commit abc1234" in path.read_text().splitlines()[0]
    assert [line["contestant"] for line in lines] == [TORCH, OURS]
    theirs, ours = lines
    for part in ("", "forward_"):
        assert all(float(line[f"{part}best_ms"]) <= float(line[f"{part}ms"]) for line in lines)
        ratio = float(theirs[f"{part}ms"]) / float(ours[f"{part}ms"])
        assert float(ours[f"{part}ratio"]) == pytest.approx(ratio, rel=1e-3)
        assert float(theirs[f"{part}ratio"]) == 1
    assert ours["kernel"]
    assert theirs["kernel"] == "" == ours["host_ms"] == ours["device_ms"]
    assert 0 < float(ours["error"]) < 1e-6
    assert int(ours["repetitions"]) >= measure.FEWEST
    text = capsys.readouterr().out
    assert text.index("above 1.00x sternway is faster") < text.index("x torch  ") < text.index("cumprod, dim 1")
    assert text.index("1 rows in") > text.index("cumprod, dim 1")


def test_no_such_row(tmp_path: Path) -> None:
    assert run.bench_step(options("--rows", "nonsense"), "cpu", functools.partial(Csv, None, "cpu", None)) == 2


def test_rows_after_the_limit_are_told(tmp_path: Path) -> None:
    code, lines = bench(tmp_path / "a.csv", "--quick", "--rows", "dim 0", "--limit", "0")
    assert code == 1
    assert len(lines) == 5
    assert {line["note"] for line in lines} == {"failed: not measured: 0 s are over"}


def test_given_shapes() -> None:
    """They replace those of the steps that have as many extents."""
    chosen = [(case.name, size.shape) for case, size in run.rows(options("--shapes", "3x5", "--rows", "cum"), "cpu")]
    assert ("cumsum, dim 1", (3, 5)) in chosen
    assert {shape for _, shape in chosen} == {(3, 5)}


def test_given_shapes_of_quick() -> None:
    """Alone finds shapes that --quick replaces by its own."""
    assert {size.shape for _, size in run.rows(options("--quick", "--shapes", "3x5"), "cpu")} == {(3, 5)}


def test_quick_is_never_compiled_and_the_same_everywhere() -> None:
    for device in ("cpu", "cuda:0"):
        sizes = [size for _, size in run.rows(options("--quick"), device)]
        assert sizes == [case.quick for case in table.CASES]
        assert not any(size.compiled for size in sizes)


def test_names_are_unique() -> None:
    names = [(case.name, size) for case in table.CASES for size in (*case.cuda, *case.cpu)]
    assert len({case.name for case in table.CASES}) == len(table.CASES)
    assert len(names) > 60


@pytest.mark.parametrize("case", table.CASES, ids=lambda case: case.name)
def test_every_step_is_right(case: StepCase) -> None:
    """The check passes, for sternway's error and torch's, and gradients depend on what sternway computes."""
    if reason := case.missing():
        pytest.skip(reason)
    step = case.make("cpu", case.quick)
    try:
        found = step.check(step.contestants)
        assert {TORCH, OURS} <= found.keys()
        assert all(0 <= checked.error < 0.01 for checked in found.values())
        for contestant in step.contestants.values():
            contestant.forward()
            if contestant.step:
                contestant.step()
    finally:
        step.close()


def test_a_table_that_does_not_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone finds a check of tables that does not look at what a step leaves in them."""
    made = learning.tables_of

    def frozen(contestant: str, *arguments: Any) -> Any:
        return made(contestant, *arguments).requires_grad_(contestant != OURS)

    step = learning.learning("adagrad", "cpu", learning.QUICK)
    monkeypatch.setattr(learning, "tables_of", frozen)
    with pytest.raises(WrongResultError, match="a table of sternway is"):
        step.check(step.contestants)


@pytest.mark.parametrize(("model", "function"), [("llama", "apply_rotary_pos_emb"), ("mamba", "mamba_selective_scan")])
def test_the_model_has_its_own_function_again(model: str, function: str) -> None:
    modeling = pytest.importorskip(f"transformers.models.{model}.modeling_{model}")
    before = getattr(modeling, function)
    [case] = [case for case in table.CASES if case.name.lower().startswith(model)]
    step = case.make("cpu", case.quick)
    step.contestants[OURS].forward()
    assert getattr(modeling, function) is not before
    step.contestants[TORCH].forward()
    step.close()
    assert getattr(modeling, function) is before


@pytest.mark.slow
def test_compile_takes_part() -> None:
    """torch.compile has a line of its own. The first compilation of a process takes a while."""
    [case] = [case for case in table.CASES if case.name == "lerp"]
    row = run.measured(case, Size((64, 100), "float32", True), "cpu")
    assert not row.failed, row
    line = row.line(COMPILE)
    assert line is not None
    assert line.ms


# --- Failures -----------------------------------------------------------------------------------------------------------


def wrong(x: torch.Tensor) -> torch.Tensor:
    return 2.001 * x


def failing(*_: Any) -> Any:
    raise RuntimeError("no memory\nfor this")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda *_: step_of(wrong), "WrongResultError: the gradient is 0.0005"),
        (lambda *_: step_of(failing), "RuntimeError: no memory"),
        (failing, "RuntimeError: no memory"),
    ],
)
def test_a_failing_row(make: Any, words: str) -> None:
    """It becomes a line without times that says what happened, and the step is closed."""
    row = run.measured(StepCase("doubled", make, SIZE, (SIZE,), ()), SIZE, "cpu")
    [line] = row.lines
    assert row.failed
    assert line.note.startswith(f"failed: {words}")
    assert line.ms is None
    assert report.cells(row)[-1] == line.note


def test_the_rows_after_a_failing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [StepCase(name, make, SIZE, (SIZE,), ()) for name, make in (("a", failing), ("b", lambda *_: step_of()))]
    monkeypatch.setattr(run, "CASES", cases)
    code, lines = bench(tmp_path / "a.csv")
    assert code == 1
    assert [(line["step"], bool(line["ms"])) for line in lines] == [("a", False), ("b", True), ("b", True)]


def test_a_step_is_closed() -> None:
    closed: list[bool] = []
    step = step_of(wrong)
    step.close = lambda: closed.append(True)
    run.measured(StepCase("doubled", lambda *_: step, SIZE, (SIZE,), ()), SIZE, "cpu")
    assert closed == [True]


def test_a_row_freezes_older_objects() -> None:
    """Alone finds collections of all modules in each row, which take most of a quick run, and objects that stay frozen."""
    before, counts = gc.get_freeze_count(), list[int]()

    def make(*_: Any) -> Step:
        counts.append(gc.get_freeze_count())
        return step_of()

    run.measured(StepCase("doubled", make, SIZE, (SIZE,), ()), SIZE, "cpu")
    assert counts[0] > 10_000
    assert gc.get_freeze_count() == before == 0


def test_a_failing_rival() -> None:
    """The others are measured, and the row counts as failed."""
    row = run.measured(StepCase("doubled", lambda *_: step_of(rival=Contestant(failing, None)), SIZE, (SIZE,), ()), SIZE, "cpu")
    assert row.failed
    assert row.line(OURS) is not None
    assert row.line("rival") is None
    [line] = [line for line in row.lines if line.contestant == "rival"]
    assert line.note == "failed: RuntimeError: no memory"
    assert line.note in report.cells(row)[-1]


def test_a_rival_with_a_forward_alone() -> None:
    rival = Contestant(lambda: doubled(X), None)
    row = run.measured(StepCase("doubled", lambda *_: step_of(rival=rival), SIZE, (SIZE,), ()), SIZE, "cpu")
    line = row.line("rival")
    assert line is not None
    assert line.forward_ms
    assert line.ms is None
    assert "rival forward" in report.cells(row)[-1]


def test_a_step_that_is_left_out() -> None:
    row = run.measured(StepCase("doubled", failing, SIZE, (SIZE,), (), lambda: "no such package"), SIZE, "cpu")
    assert not row.failed
    assert row.lines[0].note == "left out: no such package"


# --- The check ----------------------------------------------------------------------------------------------------------


def test_the_error_of_torch_is_allowed() -> None:
    check.require("it", 2e-3, 1e-6, 2e-3)
    for ours, theirs in ((2e-3, 1e-3), (math.inf, math.inf), (math.nan, 1.0), (2e-3, math.inf)):
        with pytest.raises(WrongResultError, match="allowed are 1e-06"):
            check.require("it", ours, 1e-6, theirs)


def test_sparse_gradients() -> None:
    def sparse(rows: list[int], values: list[float]) -> torch.Tensor:
        return torch.sparse_coo_tensor(torch.tensor([rows]), torch.tensor(values), (8,), check_invariants=True)

    truth = sparse([1, 3], [3.0, 4.0])
    assert check.relative([sparse([3, 1, 1], [4.0, 1.0, 2.0])], [truth]) == 0
    assert check.relative([sparse([1, 3], [3.0, 5.0])], [truth]) == pytest.approx(0.2)
    with pytest.raises(WrongResultError, match="other rows"):
        check.relative([sparse([1, 2], [3.0, 4.0])], [truth])


def test_a_gradient_that_is_not_finite() -> None:
    assert check.relative([torch.tensor([1.0, math.nan])], [torch.ones(2)]) == math.inf


# --- Times and memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "seconds", "more"),
    [
        (0, 100.0, True),
        (2, 100.0, True),
        (3, 100.0, False),
        (9, 1.0, True),
        (10, 1.0, False),
        (10, 0.1, True),
        (30, 0.0, False),
    ],
)
def test_repetitions(rounds: int, seconds: float, more: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least 3; 10 within the longest time; more, at most 30, while they are quick."""
    monkeypatch.setattr(measure, "LEAST", 10)
    monkeypatch.setattr(measure, "SECONDS", 0.4)
    assert measure._another(rounds, seconds) == more


@pytest.mark.alone  # the memory of the process is measured
def test_memory_of_the_cpu() -> None:
    """The peak of what a call has in use, whether it keeps it or not; nothing is said about little."""
    found = measure.peak_memory(lambda: torch.ones(16 << 20), "cpu")
    assert found is None or 60 << 20 < found < 80 << 20
    assert measure.peak_memory(lambda: torch.ones(10), "cpu") is None


@pytest.mark.alone  # the calls of a batch are counted by their time
def test_short_calls_are_measured_in_batches() -> None:
    count = [0]

    def call() -> None:
        count[0] += 1

    times = measure.measure({"a": call}, "cpu")["a"]
    assert times.count == measure.FEWEST
    assert count[0] > 20 * times.count
    assert times.host is None


# --- The Triton program -------------------------------------------------------------------------------------------------

IN_THE_INTERPRETER = """
import torch
from sternway.bench.step import triton_rows
for dtype in (torch.float32, torch.bfloat16):
    x = (torch.rand(3, 100, generator=torch.Generator().manual_seed(0)) + 0.5).to(dtype)
    for kind in triton_rows.KINDS:
        y, wanted = triton_rows.scan(kind, x), getattr(torch, kind)(x.double(), 1)
        if kind == "cummax":
            assert y.values.double().equal(wanted.values) and y.indices.equal(wanted.indices)
        else:
            torch.testing.assert_close(y.double(), wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_triton_in_the_interpreter() -> None:
    python(IN_THE_INTERPRETER, timeout=120, TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", WITH_KERNELS)
def test_triton_on_a_gpu(kind: str) -> None:
    """The row of the benchmark has the Triton program, with times of host and device, and memory."""
    [case] = [case for case in table.CASES if case.name == f"{kind}, dim 1"]
    row = run.measured(case, Size((256, 1000), "float32"), "cuda:0")
    assert not row.failed, row
    line, ours = row.line("triton"), row.line(OURS)
    assert line is not None
    assert ours is not None
    assert line.forward_device_ms
    assert line.error is not None
    assert line.error < 1e-5
    assert ours.host_ms
    assert ours.device_ms
    assert ours.memory_bytes
