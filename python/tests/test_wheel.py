"""The wheel as a file: its name, its contents, the shared library in it, and that it runs on every interpreter at hand.

Needs a wheel in dist/ (`make wheel`); STERNWAY_WHEEL names another one.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
LARGEST = 10_000_000


@pytest.fixture(scope="module")
def wheel(root: Path) -> Path:
    found = [Path(os.environ["STERNWAY_WHEEL"])] if "STERNWAY_WHEEL" in os.environ else list(root.glob("dist/*.whl"))
    if not found:
        pytest.skip("no wheel in dist/: `make wheel` builds it")
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(scope="module")
def library(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("sternway/_native.abi3.so", tmp_path_factory.mktemp("library")))


def readelf(library: Path, *options: str) -> str:
    if not shutil.which("readelf"):
        pytest.skip("readelf (binutils) is not on PATH")
    return subprocess.run(["readelf", "-W", *options, library], capture_output=True, text=True, check=True).stdout


# --- The file ---------------------------------------------------------------------------------------------------------


def test_name_and_size(wheel: Path, library: Path) -> None:
    glibc = max(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", readelf(library, "--version-info")))
    version = wheel.name.split("-")[1]
    assert wheel.name == f"sternway-{version}-cp310-abi3-manylinux_2_{glibc}_x86_64.whl"
    assert wheel.stat().st_size < LARGEST


def test_contents(wheel: Path, root: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [email.message_from_bytes(archive.read(name)) for name in names if name.endswith(".dist-info/METADATA")]
    python = root / "python"
    modules = {str(path.relative_to(python)) for path in (python / "sternway").rglob("*.py")}
    modules |= {f"sternway/{path.relative_to(python)}" for path in (python / "bench").rglob("*.py")}
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == modules | {"sternway/py.typed", "sternway/_native.pyi", "sternway/_native.abi3.so"}
    assert {Path(name).name for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    hard = [need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need]
    assert hard == []


# --- The library ------------------------------------------------------------------------------------------------------


def test_needs_libc_alone(library: Path) -> None:
    dynamic = readelf(library, "--dynamic")
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) == ["libc.so.6"]
    assert not re.search(r"\((RUNPATH|RPATH)\)", dynamic)


def test_symbols(library: Path) -> None:
    """One export; and every name that Python has to provide is in the stable ABI of 3.10."""
    abi3info = pytest.importorskip("abi3info", reason="abi3info lists the stable ABI and is not installed")
    models = pytest.importorskip("abi3info.models")
    rows = [line.split() for line in readelf(library, "--dyn-syms").splitlines() if re.match(r"\s*\d+:", line)]
    defined = [row[7] for row in rows if len(row) > 7 and row[6] != "UND" and row[4] != "LOCAL"]
    assert defined == ["PyInit__native"]
    imported = [row[7] for row in rows if len(row) > 7 and row[6] == "UND" and re.match(r"_?Py", row[7])]
    assert len(imported) > 10
    stable = abi3info.FUNCTIONS | abi3info.DATAS
    unstable = [n for n in imported if (s := stable.get(models.Symbol(n))) is None or (s.added.major, s.added.minor) > (3, 10)]
    assert unstable == []


def test_no_path_of_the_builder(library: Path, root: Path) -> None:
    text = library.read_bytes()
    places = {str(root), str(Path.home()), sys.prefix, sys.base_prefix, "/tmp/"}
    if go := shutil.which("go"):
        folders = subprocess.run([go, "env", "GOROOT", "GOPATH", "GOCACHE"], capture_output=True, text=True, check=True)
        places.update(folders.stdout.split())
    assert [place for place in places if len(place) > 4 and place.encode() in text] == []


# --- The interpreters -------------------------------------------------------------------------------------------------

CHECK = """
import sys, json
import sternway
assert "sternway._native" not in sys.modules, "the library is loaded at first use, not at import"
loaded = {"torch", "numpy"} & set(sys.modules)
assert not loaded, loaded
info = sternway.info()
assert "sternway._native" in sys.modules
print(json.dumps([sternway.__version__, info["version"], sternway.get_num_threads()]))
"""


def interpreter(version: str) -> str:
    """The path of a Python of this version: on PATH, or one that pyenv manages."""
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in [*([on_path] if on_path else []), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))]:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
        if answer.startswith(f"Python {version}."):  # a shim of pyenv may be there and answer nothing
            return path
    pytest.skip(f"no Python {version}: neither python{version} on PATH nor one in {pyenv}")


@pytest.mark.parametrize("version", VERSIONS)
def test_runs_bare_on(version: str, wheel: Path, tmp_path: Path) -> None:
    """Installed beside nothing: no torch, no NumPy."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([interpreter(version), "-m", "venv", "--without-pip", python.parents[1]], check=True)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(pip, check=True)

    def run(*arguments: str) -> str:
        command = [python, "-I", "-W", "error", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    number = wheel.name.split("-")[1]
    python_version, native_version, threads = json.loads(run("-c", CHECK))
    assert python_version == native_version == number
    assert threads >= 1
    assert number in run("-m", "sternway", "info")
    assert json.loads(run("-m", "sternway", "info", "--json"))["version"] == number


# --- The source distribution ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_builds_of_the_sdist_are_one_wheel(root: Path, tmp_path: Path) -> None:
    """The sdist is complete, and the bytes of a wheel depend neither on the folder nor on the hour of its build."""
    pytest.importorskip("build", reason="build makes the sdist and is not installed")
    environment = os.environ | {"STERNWAY_CUDA": "0", "SOURCE_DATE_EPOCH": "1700000000"}

    def call(*command: str | Path) -> None:
        done = subprocess.run([sys.executable, "-m", *command], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    call("build", "--sdist", "--outdir", tmp_path, root)
    [sdist] = tmp_path.glob("*.tar.gz")
    wheels = []
    for name in ("one", "another folder"):
        shutil.unpack_archive(sdist, tmp_path / name)
        [source] = (tmp_path / name).iterdir()
        call("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / name, source)
        wheels += (tmp_path / name).glob("*.whl")
    first, second = wheels
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
