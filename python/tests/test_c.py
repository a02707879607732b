"""C compiles with gcc and with clang, for this processor and for arm64, without a warning."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [str(path.relative_to(ROOT)) for folder in ("core", "pybind") for path in sorted((ROOT / folder).rglob("*.c"))]
GENERATED = "pybind/native/native.c"
ARM64_HEADERS = Path("/usr/aarch64-linux-gnu/include")  # of Debian's cross compiler, for clang as well
# Some warnings need the optimizations of gcc, which take a minute.
OPTIMIZED = "gcc with optimizations"
COMPILERS = {
    OPTIMIZED: ["gcc", "-O2", "-c", "-o", os.devnull],
    "gcc": ["gcc", "-fsyntax-only"],
    "clang": ["clang", "-fsyntax-only"],
    "gcc for arm64": ["aarch64-linux-gnu-gcc", "-fsyntax-only"],
    "clang for arm64": ["clang", "-fsyntax-only", "--target=aarch64-linux-gnu", f"-I{ARM64_HEADERS}"],
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the header that cgo writes for the C files beside native.go."""
    if not shutil.which("go"):
        pytest.skip("go, which writes the header of pybind/native, is not on PATH")
    folder = tmp_path_factory.mktemp("exports")
    command = ["go", "tool", "cgo", "-objdir", f"{folder}/", "--", "-I../pytensor", "native.go"]
    subprocess.run(command, cwd=ROOT / "pybind/native", check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("compiler", [pytest.param(OPTIMIZED, marks=pytest.mark.nightly), *list(COMPILERS)[1:]])
def test_compiles_without_a_warning(compiler: str, source: str, request: pytest.FixtureRequest) -> None:
    command = COMPILERS[compiler]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not on PATH")
    if "arm64" in compiler and not ARM64_HEADERS.is_dir():
        pytest.skip(f"the C library for arm64 (libc6-dev-arm64-cross) is not in {ARM64_HEADERS}")
    options = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
    options += [f"-I{ROOT / folder}" for folder in (Path(source).parent, "pybind/pytensor")]
    if Path(source).parent == Path(GENERATED).parent:
        options.append(f"-I{request.getfixturevalue('exports')}")
    done = subprocess.run([*command, *options, str(ROOT / source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_there_is_c() -> None:
    assert len(SOURCES) > 5
    assert GENERATED in SOURCES
