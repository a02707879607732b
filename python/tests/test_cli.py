"""python -m sternway: info, info --json, selftest, demo, bench; the progress on standard error; the CSV files."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from families import FAMILIES
from interpreter import WHERE
from sternway.bench import (
    carries,
    embedding,
    exactness,
    growth,
    packed,
    quantize,
    recurrence,
    report,
    run,
    selective,
    sparse,
    timing,
    updates,
)
from sternway.bench import jax as against_jax
from sternway.bench.kernels import kernels_of
from sternway.bench.row import Row
from sternway.bench.step import run as step_run
from sternway.bench.step.check import WrongResultError
from support import FLOATS, name_of

import sternway
import sternway.torch as st
from sternway import _demo, _selftest
from sternway.__main__ import main as command_line
from sternway.__main__ import shapes
from sternway._cases import CASES, NumPySource, Problem, TorchSource, Truth, error
from sternway._cases.progress import Progress
from sternway._cases.table import Table
from sternway._dtypes import BEYOND_NUMPY


def sternway_command(*arguments: str, code: int = 0, timeout: float = 90, errors: str | None = None) -> str:
    """Run it outside the repository, and return its standard output. errors: what it must write on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "sternway", *arguments], cwd="/", env={**os.environ, "PYTHONPATH": WHERE},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert errors is None or done.stderr == errors
    return done.stdout if code == 0 else done.stdout + done.stderr


def test_version() -> None:
    """It alone finds a command line that cannot say its version."""
    assert sternway_command("--version") == f"sternway {sternway.__version__}\n"


def test_no_command_prints_the_help() -> None:
    """It alone finds a bare command that ends with an error in place of the list of commands."""
    text = sternway_command(errors="")
    assert text == sternway_command("--help")
    for command in ("info", "selftest", "demo", "bench", "--version"):
        assert command in text


def test_info() -> None:
    """One line each: the version, the backends, the threads."""
    text = sternway_command("info")
    for word in (sternway.__version__, "cpu", "threads", "python"):
        assert word in text.lower()
    assert len(text.splitlines()) >= 5


def test_info_json() -> None:
    info = json.loads(sternway_command("info", "--json"))
    assert info.keys() == sternway.info().keys()
    assert sternway.__version__ in json.dumps(info)


@pytest.mark.alone  # it has a minute
def test_selftest() -> None:
    """Every op and dtype against float64, in a table, under a minute."""
    start = time.monotonic()
    text = sternway_command("selftest")
    assert time.monotonic() - start < 60
    for family in FAMILIES:
        op, _, kind = family.op.partition("(")
        rows = [line for line in text.splitlines() if line.startswith(f"{op} ") and kind.removesuffix(")") in line]
        for dtype in FLOATS:
            assert any(name_of(dtype) in line for line in rows), f"{family.name} {dtype} is not in\n{text}"


def test_quiet_selftest(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Alone finds a quiet self-test that prints rows that passed, or hides one that failed."""
    lerp, cumprod = (next(case for case in CASES if case.op == op) for op in ("lerp_backward", "scan_backward"))
    monkeypatch.setattr(_selftest, "SHAPES", ((3, 5),))
    monkeypatch.setattr(_selftest, "CASES", (lerp, dataclasses.replace(cumprod, name="wrong")))
    allowed = Problem.allowed
    monkeypatch.setattr(Problem, "allowed", lambda p, *a: -1.0 if p.case.name == "wrong" else allowed(p, *a))
    before = torch.get_num_threads()
    try:
        code = command_line(["selftest", "--device", "cpu", "--quiet"])
    finally:
        torch.set_num_threads(before)
    assert code == 1
    said = capfd.readouterr()
    assert said.err == ""
    rows = [line.split() for line in said.out.splitlines() if "cpu" in line]
    assert [(row[1], row[-1]) for row in rows] == [("wrong", "FAILED")] * len(FLOATS)
    assert said.out.endswith(f"{len(FLOATS)} passed, {len(FLOATS)} failed\n")


def test_bench_of_given_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the shapes that were asked for, of the cases that have any on this device."""
    options = Namespace(family="scan", rows="cummin, dim 0", shapes=shapes("33x65,64x129x3"))
    found = Counter(shape for _, shape, _ in run.rows(options, "cpu"))
    assert found == dict.fromkeys(options.shapes, 2 * len(FLOATS)), "the operation and its gradient"
    monkeypatch.setattr(timing, "effort", timing.QUICK)
    found = Counter(shape for _, shape, _ in run.rows(options, "cpu"))
    assert found == dict.fromkeys(options.shapes, 2 * len(timing.dtypes()))


MODULES: dict[str | None, ModuleType] = {
    None: run, "carries": carries, "embedding": embedding, "exactness": exactness, "growth": growth, "jax": against_jax,
    "packed": packed, "quantize": quantize, "recurrence": recurrence, "selective": selective, "sparse": sparse,
    "step": step_run,
}  # fmt: skip
"""The modules of the families that --quick gives fewer rows, or smaller ones."""


@pytest.mark.parametrize("family", MODULES)
def test_bench_quick(family: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone finds a family whose --quick has more than its smallest size, which takes minutes, or does not say so."""
    if family == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    row_counts = list[int]()

    def count(_: str, total: int, *, quiet: bool) -> Progress:
        row_counts.append(total)
        raise KeyboardInterrupt  # nothing is measured

    monkeypatch.setattr(MODULES[family], "Progress", count)
    monkeypatch.setattr(timing, "effort", timing.FULL)
    for arguments in ((), ("--quick",)):
        chosen = ["bench", *([family] if family else []), "--device", "cpu", "--quiet", *arguments]
        assert command_line(chosen) == 130
        assert timing.effort is (timing.QUICK if arguments else timing.FULL)
        text = capsys.readouterr().out
        assert text.startswith("--quick: ") == ("Without --quick" in text) == bool(arguments)
    assert row_counts[1] < row_counts[0] or family == "quantize"  # which has one shape, and a smaller one


def test_bench_quick_of_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone finds an operation that `bench jax --quick` leaves out, or gives a shape that takes long to compile."""
    pytest.importorskip("jax", reason="JAX is not installed")
    rivals = list(against_jax.rivals())
    small = [rival for rival in rivals if rival.quick]
    assert [rival.op for rival in small] == [rival.op for rival in rivals if not rival.op.endswith("axis 0")]
    assert all(max(rival.quick or ()) <= 100 for rival in small)
    assert all((rival.quick or ())[1] <= 4 for rival in small if rival.op.startswith("cum"))
    monkeypatch.setattr(timing, "effort", timing.QUICK)
    new_csv = functools.partial(report.Csv, str(tmp_path / "a.csv"), "cpu", "abc1234")
    assert against_jax.bench_jax("cpu", "cumsum, axis 0", new_csv, quiet=True) == 2
    assert against_jax.bench_jax("cpu", "cumsum, axis 1 64x4 float32", new_csv, quiet=True) == 0
    [row] = csv.DictReader((tmp_path / "a.csv").read_text().splitlines()[1:])
    assert float(row["error"]) < 1


def test_repetitions_of_bench_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone finds a measurement that repeats each call more often than three times in a quick run."""
    monkeypatch.setattr(timing, "effort", timing.QUICK)
    count = [0]

    def call() -> None:
        count[0] += 1

    timing.host({"a": call}, lambda: None, batches=60, number=10)
    assert count[0] == 1 + 3 * 10
    assert timing.FULL.part_of(60) == 60


def test_bench_quick_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone finds a benchmark that ignores --quick."""
    assert command_line(["bench", "ranks", "--device", "cpu", "--quick"]) == 2
    assert capsys.readouterr().err == "bench ranks has no --quick.\n"


def test_help_of_bench_names_every_family() -> None:
    """Alone finds a benchmark that the list of families does not have."""
    text = " ".join(sternway_command("bench", "--help").split())
    assert [name for name in run.OTHERS if f"{name}: " not in text] == []


def test_output_of_the_demo_does_not_wait() -> None:
    """Alone finds rows that come many at once where standard output is a pipe: each comes when it is ready."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-m", "sternway", "demo", "--quiet"], cwd="/", env={**environment, "PYTHONPATH": WHERE},
        stdout=subprocess.PIPE,
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        text = ""
        while "float32" not in text:
            more = os.read(demo.stdout.fileno(), 1 << 16).decode()
            assert more, text
            text += more
        demo.kill()
    assert len(text.splitlines()) < 30, text  # a buffer of 8 kB holds more


def test_words_of_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone finds totals that come before the rows whose times are in doubt, and a large error that is not explained."""
    monkeypatch.setattr(timing, "QUIET", -1.0)
    monkeypatch.setattr(_demo, "CASES", [case for case in CASES if case.op == "selective_scan_backward"])
    assert command_line(["demo", "--quiet"]) == 0
    text = capsys.readouterr().out
    assert text.index("during 2 of 2 rows") < text.index("Of 2 errors") < text.index("Of 2 times")
    assert _demo.ABOUT_LARGE_ERRORS in text


def test_cause_of_the_large_errors_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone finds that the demo names another cause of torch's errors than the one that makes them."""
    [case] = [case for case in CASES if case.op == "selective_scan_backward" and case.demo]
    problem = Problem(case, TorchSource("cpu"), (8, 64), "bfloat16")

    def errors() -> dict[str, float]:
        results = problem.by_torch()()
        return {name: error(results[name], truth) for name, truth in problem.truths().items()}

    assert {name for name, found in errors().items() if found > _demo.LARGE} == {"dA", "dD"}
    silu = torch.nn.functional.silu
    monkeypatch.setattr(torch.nn.functional, "silu", lambda z: silu(z.float()))
    assert max(errors().values()) < 10


def test_gradients_of_bench_host() -> None:
    """Alone finds a case whose drop-in has no gradient that `bench host` asks for, which ends the benchmark."""
    from sternway.bench import host

    from sternway._cases import Problem, TorchSource

    for case, drop_in, floats in host.differentiable():
        assert floats
        Problem(case, TorchSource("cpu"), host.SHAPE, "float32").backward(drop_in, floats)()


def test_csv_of_bench(tmp_path: Path) -> None:
    """The first line names the command, the machine and the commit; each row names the kernel of its plan."""
    path = tmp_path / "lerp.csv"
    chosen = ("lerp", "--device", "cpu", "--quick", "--rows", "db 16x32", "--shapes", "16x32", "--csv", str(path))
    sternway_command("bench", *chosen, "--commit", "abc1234", "--quiet", errors="")
    first, *lines = path.read_text().splitlines()
    command, machine, commit = first.split(" | ")
    assert command == f"# python -m sternway bench {shlex.join(chosen)} --commit abc1234 --quiet"
    assert sternway.__version__ in machine
    assert commit == "commit abc1234"
    rows = list(csv.DictReader(lines))
    plan = sternway.LerpBackwardPlan.select(sternway.LerpBackwardDescriptor((16, 32), "float32", weight=0.25))
    assert {row["kernel"] for row in rows} == {plan.sku.kernel}


def test_rows_of_exactness_of_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finds a case whose composite of torch fails, or computes another operation; the self-test does not run it."""
    monkeypatch.setattr(exactness, "SHAPE", (16, 96))
    for op, name, _, dtype, _, numbers in exactness.cases("cpu", Progress("", 0, quiet=True)):
        assert dtype != "float32" or max(numbers[:2]) < 1000, (op, name, numbers)


def test_cases_of_numpy() -> None:
    """Alone finds a case that the self-test cannot run without PyTorch."""
    for case in CASES:
        if not set(case.stored) & set(BEYOND_NUMPY):
            problem = Problem(case, NumPySource(), (6, 96), "float32")
            results = problem.run()
            for name, truth in problem.truths().items():
                assert error(results[name], truth) <= problem.allowed(name, truth), (case.op, case.name, name)


def test_exact_elements_of_a_truth() -> None:
    """Alone finds an error that forgives a change, below one rounding, of a row that no bag has."""
    value = torch.tensor([[1.0, 1024.0], [1.0, 1024.0]], dtype=torch.float64)
    truth = Truth(value, value, 0, torch.tensor([[False, False], [True, True]]))
    changed = value.float()
    changed[0, 0] += 2.0**-20
    assert 0 < error(changed, truth) < 0.5
    changed[1, 0] += 2.0**-20
    assert error(changed, truth) == math.inf


def test_rows_of_exactness_beside_the_cases() -> None:
    """The inputs that are hard for a scan, and RoPE at large positions: our errors are those of the dtype, at most."""
    rows = [*exactness.hard_cases("cpu"), *exactness.far_positions("cpu")]
    assert {op for op, *_ in rows} == {
        "scan_backward(cumsum)", "scan_backward(cumprod)", "scan_backward(logcumsumexp)", "rope_backward",
    }  # fmt: skip
    for op, name, _, dtype, _, (_, _, ours, _) in rows:
        assert ours <= {"float32": 1e-6, "float16": 2**-11, "bfloat16": 2**-8}[dtype], (op, name, dtype, ours)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks measure once, however disturbed, and as few calls as they can, of the sizes of the CPU."""
    monkeypatch.setattr(timing, "effort", dataclasses.replace(timing.QUICK, is_quick=False))


def rows_of(bench: Callable[..., int], chosen: str, path: Path) -> list[dict[str, str]]:
    """The rows that a benchmark of its own writes on the CPU."""
    assert bench("cpu", chosen, functools.partial(report.Csv, str(path), "cpu", "abc1234"), quiet=True) == 0
    return list(csv.DictReader(path.read_text().splitlines()[1:]))


def test_bench_recurrence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    """Both directions, checked, with a ratio to each rival of the CPU; a wrong result has no row."""
    small = [recurrence.Setting("advantages", (2, 8), reverse=True), recurrence.Setting("constant", (8, 2), 0, constant=True)]
    monkeypatch.setitem(recurrence.SETTINGS, "cpu", small)
    rows = rows_of(recurrence.bench_recurrence, "float32", tmp_path / "a.csv")
    assert [(row["setting"], row["direction"]) for row in rows] == [
        (setting.name, direction) for setting in small for direction in recurrence.DIRECTIONS
    ]
    assert [row["bytes"] for row in rows] == ["192", "320", "136", "208"]
    assert [bool(row["loop_ratio"] and row["associative_scan_ratio"]) for row in rows] == [True, True, False, False]
    problem = recurrence.Problem(small[0], "float32", "cpu")
    for direction in recurrence.DIRECTIONS:
        wrong = [2 * x for x in problem.call(direction)()]
        with pytest.raises(WrongResultError, match="from its definition"):
            problem.check(direction, tuple(wrong))


def test_bench_embedding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    """A row for each operation, checked, beside torch; a table that is not updated has no row."""
    monkeypatch.setitem(embedding.SHAPES, "cpu", ((30, 4, 5, 6),))
    csv_of = functools.partial(report.Csv, str(tmp_path / "a.csv"), "cpu", "abc1234")
    assert embedding.bench_embedding("cpu", "float32", (), csv_of, quiet=True) == 0
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()[1:]))
    assert [row["operation"] for row in rows] == list(embedding.OPERATIONS)
    used, total = int(rows[0]["used_rows"]), 30
    state = {"sgd": 0, "rowwise_adagrad": 4, "adagrad": 16, "adam": 32}
    assert [int(row["bytes"]) for row in rows] == [
        (total + 5) * 16 + 16 * total, (30 + 5) * 16 + 16 * total,
        *(total * 16 + 2 * used * (16 + state[rule]) + 16 * total for rule in updates.RULES),
    ]  # fmt: skip
    assert all(row["kernel"] and float(row["ratio"]) > 0 and float(row["error"]) < 1e-6 for row in rows)
    monkeypatch.setattr(embedding.Problem, "call", lambda _: lambda: None)
    assert embedding.bench_embedding("cpu", "adam 3x4x5x6 float32", [(3, 4, 5, 6)], csv_of, quiet=True) == 1


def test_bench_selective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    """Rows beside the loop; a wrong gradient is named before anything is timed."""
    monkeypatch.setattr(selective, "CHECKED", 2)
    small = selective.Setting("small", (1, 3, 8), 2, is_transposed=True)
    monkeypatch.setitem(selective.SETTINGS, "cpu", [small])
    rows = rows_of(selective.bench_selective, "float32", tmp_path / "a.csv")
    assert [(row["direction"], row["n"]) for row in rows] == [("forward", "2"), ("backward", "2")]
    assert all(float(row["rival_ratio"]) > 0 and float(row["error"]) < 1e-6 for row in rows)
    values = selective.inputs(TorchSource(), small.shape, "float32", small.n)
    forward, backward = selective.by_autograd(selective.drop_in, values)
    with pytest.raises(WrongResultError, match=r"^ddelta is .* from its definition"):
        selective.check(values, (forward, lambda: [x * (1 + (i == 1)) for i, x in enumerate(backward())]), "float32")


@pytest.mark.parametrize("kind", ["cumprod", "cummax", "linear_recurrence"])
def test_bench_packed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    """A row for each mean length, and one for the exclusive scan where there is one."""
    monkeypatch.setitem(packed.SHAPES, "cpu", (((1, 64), -1, (1, 8)),))
    rows = rows_of(packed.bench_packed, f"{kind} backward 1x64 dim -1 float32", tmp_path / "a.csv")
    assert [(row["variant"], row["sequences"]) for row in rows] == [
        *([("exclusive", "1")] if kind == "cumprod" else []), ("mean length 1", "64"), ("mean length 8", "8"),
    ]  # fmt: skip


def test_bench_quantize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    """A row for each operation and direction, with ratios to the rivals that there are; a wrong gradient has no row."""
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    monkeypatch.setitem(quantize.SHAPES, "cpu", (128, 256))
    rows = rows_of(quantize.bench_quantize, "block", tmp_path / "a.csv")
    assert [(row["operation"], row["direction"], row["bytes"]) for row in rows] == [
        ("fake quantize", "forward", "262144"), ("fake quantize", "backward", "393216"),
        ("dequantize", "forward", "163840"), ("dequantize", "backward", "294912"),
    ]  # fmt: skip
    assert {(row["torch_ratio"] == "", row["compile_ratio"] == "") for row in rows} == {(True, False)}
    right = sternway.dequantize_backward

    def wrong(*operands: torch.Tensor, q: torch.Tensor, out: tuple[torch.Tensor, torch.Tensor]) -> None:
        right(*operands, q=q, out=out)
        out[1].mul_(1.001)

    monkeypatch.setattr(sternway, "dequantize_backward", wrong)
    with pytest.raises(WrongResultError, match=r"^dscale is .* ulp from float64"):
        quantize.Problem("dequantize", "backward", "token", (8, 128), "float32", "cpu").check()


@pytest.mark.parametrize("granularity", quantize.GRANULARITIES)
def test_rivals_of_bench_quantize(granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's ways compute what ours does: each takes the scales of its blocks, in both directions."""
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    ways = Counter[str]()
    for operation, direction in itertools.product(quantize.OPERATIONS, quantize.DIRECTIONS):
        problem = quantize.Problem(operation, direction, granularity, (256, 256), "float32", "cpu")
        ours = problem.call()()
        for name, rival in quantize.RIVALS.items():
            call = rival(operation, direction, granularity, problem.values)
            if call is not None:
                ways[name] += 1
                theirs = call()
                pairs = zip(ours, theirs, strict=False) if direction == "backward" else [(ours, theirs)]
                for mine, other in pairs:
                    torch.testing.assert_close(other.view(mine.shape), mine, rtol=1e-3, atol=1e-3)
    has_operation = not granularity.startswith("block")
    assert ways == Counter(compile=4, torch=2 * has_operation, torch_dx=has_operation)


def test_commit_of_the_source() -> None:
    """By git where the package lies in its repository, otherwise the version."""
    found = report.commit()
    assert found == sternway.info()["version"] or re.fullmatch(r"[\w.-]+", found)


def test_kernels_of_a_call() -> None:
    """Each kernel once, in order, whichever thread ran it; none for a call that runs no plan."""
    dy, x = np.ones((4, 8), np.float32), np.ones((4, 8), np.float32)

    def two() -> None:
        for _ in range(2):
            sternway.cumprod_backward(dy, x)
        thread = threading.Thread(target=lambda: sternway.lerp_backward(dy, 0.5))
        thread.start()
        thread.join()

    scan = sternway.ScanBackwardPlan.select(sternway.ScanBackwardDescriptor("cumprod", dy.shape, "float32"))
    lerp = sternway.LerpBackwardPlan.select(sternway.LerpBackwardDescriptor(dy.shape, "float32", weight=0.5))
    assert kernels_of(two) == f"{scan.sku.kernel}+{lerp.sku.kernel}"
    assert kernels_of(lambda: None) == ""
    a = torch.ones(4, 8, requires_grad=True)
    assert kernels_of(lambda: st.lerp(a, a, 0.5).sum().backward()) == lerp.sku.kernel  # an eager call


@pytest.mark.parametrize(
    "columns",
    [
        growth.COLUMNS,
        packed.COLUMNS,
        recurrence.COLUMNS,
        selective.COLUMNS,
        sparse.COLUMNS,
        [field.name for field in dataclasses.fields(Row)],
    ],
)
def test_every_csv_has_kernels(columns: Sequence[str]) -> None:
    assert "kernel" in columns


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal() -> None:
    """One line, which is erased before it is written again, and at the end."""
    stream, now = Terminal(), iter(range(0, 1000, 10))
    with Progress("bench", 3, stream=stream, clock=lambda: next(now)) as progress:
        progress.step("one")
        progress.step("two")
    assert re.fullmatch(
        r"bench: 0 of 3 done: one\r\x1b\[Kbench: 1 of 3 done, about \d+ s left: two\r\x1b\[K", stream.getvalue()
    )


def test_a_row_erases_the_progress(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    with Progress("bench", 1, stream=stream) as progress:
        progress.step("one")
        Table(progress, op=4).row("lerp")
        assert stream.getvalue().endswith("one\r\x1b[K")
    assert capsys.readouterr().out == "lerp\n"


def test_progress_in_a_log() -> None:
    """Lines without control characters, at most one for each tenth and none before five seconds are over."""
    for seconds, most in ((0.01, 0), (1.0, 10)):
        stream, now = io.StringIO(), [0.0]
        with Progress("demo", 200, stream=stream, clock=lambda now=now: now[0]) as progress:  # type: ignore[misc]
            for _ in range(200):
                progress.step("lerp")
                now[0] += seconds
        lines = stream.getvalue().splitlines()
        assert len(lines) == min(most, 9), lines
        assert all(re.fullmatch(r"demo: \d+ of 200 done, about \d+ (s|min) left: lerp", line) for line in lines)


def test_quiet_progress() -> None:
    stream = Terminal()
    with Progress("demo", 2, quiet=True, stream=stream) as progress:
        progress.step("one")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("command", ["selftest", "demo", "bench"])
def test_commands_with_progress_can_be_quiet(command: str) -> None:
    assert "--quiet" in sternway_command(command, "--help")


@pytest.mark.parametrize("family", ["scan", "growth", "recurrence", "packed", "selective"])
def test_bench_of_no_row(family: str) -> None:
    assert "No such row" in sternway_command("bench", family, "--device", "cpu", "--rows", "nonsense", code=2)


def test_bench_of_no_family(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone finds an unknown family that is reported as an unknown row, or without the names of the families."""
    assert command_line(["bench", "foo", "--device", "cpu", "--quick"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("There is no family 'foo'. Families: ")
    named = set(re.findall(r"\w+", said.err.partition("Families: ")[2]))
    assert named == {*run.OTHERS, *(case.family for case in CASES)}


def test_summary_of_bench(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone finds a summary whose median is the mean, or whose slowest row is another one."""
    fields = dict.fromkeys(field.name for field in dataclasses.fields(Row))
    report.summary([Row(**{**fields, "ratio": ratio}) for ratio in (4.0, 1.0, 0.5, 0.5)])  # type: ignore[arg-type]
    assert capsys.readouterr().out == (
        "\n4 rows; torch takes 0.75 times as long in the median, 1.00 times in the geometric mean, "
        "and in the slowest row 0.50 times.\n"
    )


@pytest.mark.parametrize("family", ["step", "embedding"])
def test_bench_of_sparse_optimizers_is_silent(family: str) -> None:
    """Alone finds torch's warning of memory errors, which valid sparse gradients do not have."""
    chosen = "rowwise_adagrad" if family == "step" else "rowwise_adagrad 10000x64x2048x10 float32"
    sternway_command("bench", family, "--device", "cpu", "--quick", "--rows", chosen, "--quiet", errors="")


@pytest.mark.parametrize("arguments", [("nonsense",), ("info", "--nonsense"), ("bench", "--shapes", "8x")])
def test_unknown_command(arguments: tuple[str, ...]) -> None:
    assert "usage" in sternway_command(*arguments, code=2).lower()
