"""python -m sternway: info, info --json, selftest, bench."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from families import FAMILIES
from interpreter import WHERE
from support import FLOATS, name_of

import sternway


def sternway_command(*arguments: str, code: int = 0, timeout: float = 90) -> str:
    """Its standard output, when run outside the repository."""
    done = subprocess.run(
        [sys.executable, "-m", "sternway", *arguments], cwd="/", env={**os.environ, "PYTHONPATH": WHERE},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


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


def test_selftest() -> None:
    """Every op and dtype against float64, in a table, under a minute."""
    start = time.monotonic()
    text = sternway_command("selftest")
    assert time.monotonic() - start < 60
    for family in FAMILIES:
        rows = [line for line in text.splitlines() if family.name in line]
        for dtype in FLOATS:
            assert any(name_of(dtype) in line for line in rows), f"{family.name} {dtype} is not in\n{text}"


def test_bench_of_given_shapes() -> None:
    """Rows of the shapes that were asked for, of the cases that have any on this device."""
    text = sternway_command("bench", "scan", "--device", "cpu", "--rows", "cummin, dim 0", "--shapes", "33x65,64x129x3")
    rows = [line for line in text.splitlines() if line.startswith("scan")]
    assert len(rows) == 2 * len(FLOATS), text
    assert all("33x65" in row or "64x129x3" in row for row in rows), text


@pytest.mark.parametrize("family", ["scan", "growth"])
def test_bench_of_no_row(family: str) -> None:
    assert "No such row" in sternway_command("bench", family, "--device", "cpu", "--rows", "nonsense", code=2)


@pytest.mark.parametrize("arguments", [("nonsense",), ("info", "--nonsense"), ("bench", "--shapes", "8x")])
def test_unknown_command(arguments: tuple[str, ...]) -> None:
    assert "usage" in sternway_command(*arguments, code=2).lower()
