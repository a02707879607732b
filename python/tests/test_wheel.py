"""The wheel as a file: its name, its contents, the shared library in it, and that it runs on every interpreter at hand.

Needs a wheel in dist/ (`make wheel`); STERNWAY_WHEEL names another one.
"""

from __future__ import annotations

import email
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
LARGEST = 25_000_000
"""Bytes of a wheel with kernels of one architecture and PTX. That of all four is twice as large; PyPI takes 100 MB."""
GLIBC_OF_TORCH = 28


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


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def readelf(library: Path, *options: str) -> str:
    if not shutil.which("readelf"):
        pytest.skip("readelf (binutils) is not on PATH")
    return subprocess.run(["readelf", "-W", *options, library], capture_output=True, text=True, check=True).stdout


# --- The file ---------------------------------------------------------------------------------------------------------


def test_name_and_size(wheel: Path, library: Path) -> None:
    glibc = max(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", readelf(library, "--version-info")))
    version = wheel.name.split("-")[1]
    assert wheel.name == f"sternway-{version}-cp310-abi3-manylinux_2_{glibc}_{platform.machine()}.whl"
    assert wheel.stat().st_size < LARGEST


def test_contents(wheel: Path, metadata: email.message.Message, root: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    python = root / "python"
    modules = {str(path.relative_to(python)) for path in (python / "sternway").rglob("*.py")}
    modules |= {f"sternway/{path.relative_to(python)}" for path in (python / "bench").rglob("*.py")}
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == modules | {"sternway/py.typed", "sternway/_native.pyi", "sternway/_native.abi3.so"}
    assert {Path(name).name for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    assert [Path(name).name for name in names if "/sboms/" in name] == ["sternway.cdx.json"]
    hard = [need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need]
    assert hard == []


def test_metadata_names_one_repository(metadata: email.message.Message, root: Path) -> None:
    """Links that are relative to a repository lead nowhere from a package index; each leads to a file of the tag."""
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL") or [])
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert text.startswith("# sternway")
    assert foreign_links(text) == []
    tag = f"{urls['Repository']}/blob/v{metadata['Version'].partition('+')[0]}/"
    files = [target.partition("#")[0] for target in re.findall(rf"\]\({re.escape(tag)}([^)]*)", text)]
    assert len(files) > 20
    assert [name for name in files if not (root / name).exists()] == []


def foreign_links(text: str) -> list[str]:
    """The targets that are neither absolute nor a heading of this text."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = {
        re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-") for line in re.findall(r"^#+ (.*)", text, re.MULTILINE)
    }
    targets = re.findall(r"\]\(\s*<?([^)\s>]*)", text) + re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    targets += re.findall(r"\b(?:href|src)\s*=\s*[\"']?([^\"'\s>]+)", text)
    inside = [target for target in targets if target.startswith("#")]
    assert {target[1:] for target in inside} <= {heading.replace(" ", "-") for heading in headings}
    return [target for target in targets if target not in inside and not target.startswith("https://")]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[a](docs/a.md) and [b](https://arxiv.org/abs/1902.08153) and [c](#some-words)\n## Some words", ["docs/a.md"]),
        ("![a](a.png)", ["a.png"]),
        ("[a][b]\n\n[b]: ./b.md", ["./b.md"]),
        ('<img src="x/y.svg">', ["x/y.svg"]),
        ("```\n[a](b)\n```", []),
    ],
)
def test_foreign_links(text: str, wanted: list[str]) -> None:
    assert foreign_links(text) == wanted


# --- The library ------------------------------------------------------------------------------------------------------


def test_loads_where_torch_does(library: Path) -> None:
    """The glibc that it asks for, from the names of the symbol versions in the file; others are features of newer loaders."""
    content = library.read_bytes()
    minors = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", content)]
    assert minors
    assert max(minors) <= GLIBC_OF_TORCH
    assert b"\0GLIBC_ABI_" not in content


def test_needs_glibc_alone(library: Path) -> None:
    """libpthread, libdl and the dynamic loader, which has thread-local variables, are parts of glibc."""
    dynamic = readelf(library, "--dynamic")
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    parts = {"libc.so.6", "libdl.so.2", "libpthread.so.0"}
    assert parts <= needed
    assert all(re.fullmatch(r"ld-linux.*\.so\.\d", name) for name in needed - parts), needed
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

    check_version(python, wheel.name.split("-")[1], tmp_path)


def check_version(python: Path, number: str, folder: Path) -> None:
    """Metadata, package, library and command line agree, and there is not a word on standard error."""

    def run(*arguments: str) -> str:
        command = [python, "-I", "-W", "error", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    python_version, native_version, threads = json.loads(run("-c", CHECK))
    assert python_version == native_version == number
    assert threads >= 1
    assert number in run("-m", "sternway", "info")
    assert json.loads(run("-m", "sternway", "info", "--json"))["version"] == number


# --- Builds without kernels --------------------------------------------------------------------------------------------


def call(*command: str | Path, umask: int = 0o022, **settings: str) -> None:
    """Runs a module of Python in the environment of a build without kernels."""
    environ = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    environ |= {"STERNWAY_CUDA": "0", **settings}
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environ, umask=umask, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def sdists(root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two of this tree, by builders that differ in what must not matter."""
    pytest.importorskip("build", reason="build makes the sdist and is not installed")
    folders = [tmp_path_factory.mktemp("sdist") for _ in range(2)]
    for folder, umask in zip(folders, (0o022, 0o027), strict=True):
        call("build", "--sdist", "--outdir", folder, root, umask=umask)
    return [sdist for folder in folders for sdist in folder.glob("*.tar.gz")]


@pytest.fixture(scope="module")
def sources(sdists: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Unpacked, in folders with other names."""
    folders = [tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("another folder")]
    for sdist, folder in zip(sdists, folders, strict=True):
        shutil.unpack_archive(sdist, folder)
    return [source for folder in folders for source in folder.iterdir()]


@pytest.mark.slow
def test_two_sdists_of_a_tree_have_the_same_bytes(sdists: list[Path]) -> None:
    first, second = sdists
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_sources_have_the_version_without_suffix(sdists: list[Path], root: Path) -> None:
    [number] = re.findall(r'^version = "(.*)"', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert [sdist.name for sdist in sdists] == [f"sternway-{number}.tar.gz"] * 2


@pytest.mark.nightly
@pytest.mark.slow
def test_two_builds_of_the_sdist_are_one_wheel(sources: list[Path], tmp_path: Path) -> None:
    """The sdist is complete, and the bytes of a wheel do not depend on the folder, the hour or the umask of its build.

    The first build compiles everything; the second takes from go's cache what the build of this tree compiled.
    """
    folders, umasks, caches = (
        [tmp_path / "first", tmp_path / "second"],
        (0o022, 0o077),
        ({"GOCACHE": str(tmp_path / "cache")}, {}),
    )
    for folder, source, umask, cache in zip(folders, sources, umasks, caches, strict=True):
        call("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source, umask=umask, **cache)
    first, second = (wheel for folder in folders for wheel in folder.glob("*.whl"))
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert len({entry.date_time for entry in archive.infolist()}) == 1, "a file has the date of its build"
    assert f"-{sources[0].name.split('-')[1]}+cpu-" in first.name


@pytest.mark.slow
def test_editable_version(sources: list[Path], tmp_path: Path) -> None:
    """An editable installation without kernels says so in the same way."""
    source = sources[0]
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parents[1]], check=True)
    call("pip", "--python", python, "install", "--quiet", "--no-deps", "--editable", source)
    check_version(python, source.name.split("-")[1] + "+cpu", tmp_path)
    assert not list(source.glob("*.egg-info")), "importlib.metadata finds it there, whatever its version"
