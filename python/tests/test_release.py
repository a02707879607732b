"""A release: the machines that a build accepts, the bill of materials, versions, pinned tools, hints that work."""

from __future__ import annotations

import importlib
import json
import platform
import re
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SBOM_OF_TEST = {"GoVersion": "go1.26.8 X:test", "Deps": [{"Path": "github.com/ulikunitz/xz", "Version": "v0.5.17"}]}


@pytest.fixture
def backend(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("setuptools", reason="the build backend is one of setuptools, which is not installed")
    monkeypatch.syspath_prepend(root / "tools")
    monkeypatch.delenv("GOARCH", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return importlib.import_module("build_backend")


# --- Machines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "machine"),
    [("darwin", "arm64"), ("darwin", "x86_64"), ("win32", "AMD64"), ("linux", "riscv64"), ("freebsd14", "x86_64")],
)
@pytest.mark.parametrize("hook", ["get_requires_for_build_wheel", "get_requires_for_build_editable"])
def test_other_machines_stop_the_build(
    backend: Any, hook: str, system: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first hook that a frontend calls, with one sentence, before anything is fetched or compiled."""
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(SystemExit) as stop:
        getattr(backend, hook)()
    assert stop.value.code == f"sternway: Linux on x86-64 or arm64 is needed, and this is {system} on {machine}"


@pytest.mark.parametrize("step", ["get_requires_for_build_wheel", "get_requires_for_build_editable", "bdist_wheel"])
def test_free_threaded_python_stops_the_build(backend: Any, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone finds a build that ends in a traceback of setuptools, with and without build isolation."""
    variables = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else variables(name))
    monkeypatch.setattr(sys, "version_info", (3, 14, 0, "final", 0))
    wheel = backend.Wheel(importlib.import_module("setuptools").Distribution())
    start = wheel.finalize_options if step == "bdist_wheel" else getattr(backend, step)
    with pytest.raises(SystemExit) as stop:
        start()
    assert stop.value.code == (
        "sternway: free-threaded Python (python3.14t) cannot load the extension, which uses the stable ABI; "
        "use the standard build, python3.14"
    )


@pytest.mark.parametrize(
    ("machine", "goarch", "wanted", "compiler"),
    [
        ("x86_64", None, "x86_64", "gcc"),
        ("aarch64", None, "aarch64", "gcc"),
        ("x86_64", "amd64", "x86_64", "gcc"),
        ("x86_64", "arm64", "aarch64", "aarch64-linux-gnu-gcc"),
        ("aarch64", "amd64", "x86_64", "x86_64-linux-gnu-gcc"),
    ],
)
def test_processor(
    backend: Any, machine: str, goarch: str | None, wanted: str, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GOARCH names the processor that is built for, as for go itself; the wheel's name and the C compiler follow."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    if goarch:
        monkeypatch.setenv("GOARCH", goarch)
    assert backend.processor() == wanted
    assert backend.c_compiler() == [compiler]
    monkeypatch.setenv("CC", "clang --target=x")
    assert backend.c_compiler() == ["clang", "--target=x"]


def test_unknown_processor(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOARCH", "386")
    with pytest.raises(SystemExit) as stop:
        backend.processor()
    assert stop.value.code == "sternway: GOARCH must be amd64 or arm64, got 386"


# --- The bill of materials --------------------------------------------------------------------------------------------


def bill(backend: Any, root: Path, images: Path | None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(backend.sbom, "build_information", lambda go, library: SBOM_OF_TEST)
    text: str = backend.sbom.document(root, "go", Path("library.so"), images, "1.2.3")
    return text


def test_bill_of_materials(backend: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what is linked in, and each image with its hash; it has neither a date nor a serial number."""
    (tmp_path / "manifest.json").write_text(json.dumps({"nvcc": "13.0.88"}))
    (tmp_path / "lerp.sm_90.lzma").write_bytes(b"image")
    text = bill(backend, root, tmp_path, monkeypatch)
    found = json.loads(text)
    names = {part["name"]: part.get("version") for part in found["components"]}
    assert names["std"] == "1.26.8"
    assert names["github.com/ulikunitz/xz"] == "v0.5.17"
    assert names["cuda-toolkit"] == "13.0.88"
    assert {"github.com/go-python/gopy", "lerp.sm_90.lzma"} < names.keys()
    [image] = [part for part in found["components"] if part["type"] == "file"]
    assert image["hashes"][0]["content"] == "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d"
    assert "serialNumber" not in found
    assert "timestamp" not in text
    assert text == bill(backend, root, tmp_path, monkeypatch)
    without = json.loads(bill(backend, root, None, monkeypatch))
    assert "cuda-toolkit" not in {part["name"] for part in without["components"]}


def test_notice_names_the_works_of_others(backend: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notice = (root / "NOTICE").read_text()
    names = [part["name"] for part in json.loads(bill(backend, root, None, monkeypatch))["components"]]
    assert [name for name in names if name != "std" and name not in notice] == []
    assert "https://go.dev" in notice


def test_modules_that_go_links_have_licenses(backend: Any, root: Path) -> None:
    """The required modules of go.mod, less those of tests and of tools, are the ones whose license the bill knows."""
    modules = (root / "go.mod").read_text()
    required = re.findall(r"^\t(\S+) v\S+$", modules, re.MULTILINE)
    of_tests = {"github.com/stretchr/testify"}
    assert set(required) - of_tests <= backend.sbom.LICENSES.keys()


# --- Versions and pins ------------------------------------------------------------------------------------------------


def test_citation_has_the_version_and_the_date(root: Path) -> None:
    [version] = re.findall(r'^version = "(.*)"', (root / "pyproject.toml").read_text(), re.MULTILINE)
    [date] = re.findall(rf"^## {re.escape(version)} - (\d{{4}}-\d\d-\d\d)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text()
    assert f"\ndate-released: {date}\n" in (root / "CITATION.cff").read_text()


def test_checks_of_a_release_are_pinned(root: Path) -> None:
    lines = [line for line in (root / "tools/check_wheel.txt").read_text().splitlines() if line and line[0] != "#"]
    assert len(lines) > 5
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==[\w.]+", line)] == []


def test_actions_are_pinned_by_commit(root: Path) -> None:
    workflows = sorted((root / ".github/workflows").glob("*.yml"))
    assert [path.name for path in workflows] == ["ci.yml", "release.yml"]
    uses = [name for path in workflows for name in re.findall(r"\buses: (.*)", path.read_text())]
    assert len(uses) > 5
    pinned = r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/ci\.yml"
    assert [name for name in uses if not re.fullmatch(pinned, name)] == []


# --- Hints ------------------------------------------------------------------------------------------------------------


def test_hints_do_not_need_a_published_package(root: Path) -> None:
    """A message or document tells to install a clone, or packages of others, but not `sternway` from an index."""
    files = [path for path in (root / "python/sternway").rglob("*.py") if "bench" not in path.relative_to(root).parts]
    files += [root / "README.md", *(root / "docs").glob("*.md")]
    wrong = [str(path.relative_to(root)) for path in files if re.search(r"pip install ['\"]?sternway", path.read_text())]
    assert wrong == []
