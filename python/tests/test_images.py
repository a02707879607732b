"""The kernel images that a build makes: for which GPUs, of which files, in which form. No test needs nvcc or a GPU."""

from __future__ import annotations

import importlib
import json
import lzma
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ALL = ["sm_80", "sm_90", "sm_100", "sm_120", "compute_80"]

# Writes the name of the input and the architecture, after what is in PTX, to the output, and a line to the file $CALLS.
NVCC = """#!/bin/sh
[ "$1" = --version ] && { echo "Cuda compilation tools, release 13.0, V13.0.88"; exit; }
for argument; do case $argument in *.cu|*.ptx) source=$argument;; -gencode=*|-arch=*) target=$argument;; esac; done
while [ "$1" != -o ]; do shift; done
{ case $source in *.ptx) cat "$source";; esac; echo "$(basename "$source") $target" | tee -a "$CALLS"; } > "$2"
[ "$(basename "$source")" != "$BROKEN" ]
"""


@pytest.fixture
def kernels(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module tools/kernels.py."""
    monkeypatch.syspath_prepend(root / "tools")
    monkeypatch.delenv("STERNWAY_CUDA_ARCHS", raising=False)
    return importlib.import_module("kernels")


@pytest.mark.parametrize(
    ("asked", "gpus", "codes", "words"),
    [
        (None, [], [], "no GPU that the kernels run on, so none are compiled; STERNWAY_CUDA_ARCHS=all"),
        ("", [], [], "no GPU that the kernels run on"),
        (None, [(7, 5)], [], "no GPU that the kernels run on"),
        (None, [(9, 0)], ["sm_90"], "for the GPU of this machine (sm_90); STERNWAY_CUDA_ARCHS=all compiles them for every GPU"),
        (
            None,
            [(8, 6), (8, 9), (12, 1)],
            ["sm_120", "sm_80"],
            "for the GPU of this machine (sm_120, sm_80); STERNWAY_CUDA_ARCHS",
        ),
        (None, [(10, 3)], ["sm_100"], "(sm_100)"),
        (None, [(11, 0)], ["compute_80"], "(compute_80)"),
        ("all", [], ALL, "compiled for sm_80, sm_90, sm_100, sm_120, compute_80"),
        ("all", [(9, 0)], ALL, "compiled for sm_80, sm_90, sm_100, sm_120, compute_80"),
        ("100;90a", [(8, 0)], ["sm_100", "sm_90a", "compute_90a"], "compiled for sm_100, sm_90a, compute_90a"),
        ("86, 120", [], ["sm_86", "sm_120", "compute_86"], "compiled for sm_86, sm_120, compute_86"),
    ],
)
def test_codes(
    kernels: Any, monkeypatch: pytest.MonkeyPatch, asked: str | None, gpus: list[tuple[int, int]], codes: list[str], words: str
) -> None:
    """Those of the GPUs that are here, unless others are asked for; and a sentence says how to get all."""
    monkeypatch.setattr(kernels, "gpus", lambda: gpus)
    if asked is not None:
        monkeypatch.setenv("STERNWAY_CUDA_ARCHS", asked)
    assert kernels.wanted_codes() == codes
    assert words in kernels.plan_in_words(codes)


def test_gpus_are_those_of_the_driver(kernels: Any) -> None:
    """A machine without a driver has none; torch, which has a look of its own, finds the same ones."""
    torch = pytest.importorskip("torch", reason="torch tells which GPUs are here and is not installed")
    found = {torch.cuda.get_device_capability(k) for k in range(torch.cuda.device_count())}
    assert set(kernels.gpus()) == found


def test_headers_of_a_source(kernels: Any) -> None:
    """An image depends on every header that is included, also from folders, and on no other."""
    cuda = kernels.SOURCES
    files = {str(file.relative_to(cuda)) for file in kernels.files_of(cuda / "scan/scan_logcumsumexp.cu")}
    assert {"common/dtype.cuh", "scan/export.cuh", "scan/state/operands.cuh", "scan/kinds/logcumsumexp.cuh"} <= files
    assert not {file for file in files if file.startswith(("embedding/", "scan/kinds/cumprod"))}
    everything = {file for source in cuda.rglob("*.cu") for file in kernels.files_of(source)}
    assert everything == {*cuda.rglob("*.cu"), *cuda.rglob("*.cuh")}, "no header is left that nothing includes"
    assert len({source.stem for source in cuda.rglob("*.cu")}) == len([*cuda.rglob("*.cu")]), "images are named after them"


@pytest.fixture
def tree(tmp_path: Path, kernels: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two sources and a header, and a compiler that writes down what it was asked for."""
    folder = tmp_path / "cuda"
    for name, text in {"common/a.cuh": "", "one/x.cu": '#include "common/a.cuh"\n', "two/y.cu": ""}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    nvcc = tmp_path / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(NVCC)
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(nvcc.parent), prepend=os.pathsep)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(kernels, "SOURCES", folder)
    return folder


def test_what_is_compiled_again(
    kernels: Any, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images of a source that changed, or whose headers, codes, flags or files did; a source once for each architecture."""
    out, calls = tmp_path / "image", tmp_path / "calls"

    def compiled(codes: list[str]) -> list[str]:
        calls.write_text("")
        manifest = kernels.build(out, codes)
        assert manifest == json.loads((out / "manifest.json").read_text())
        assert {*out.glob("*.lzma")} == {out / f"{name}.{code}.lzma" for name in "xy" for code in codes}
        lines = capsys.readouterr().out.splitlines()
        found = sorted(calls.read_text().splitlines())
        jobs = sum(".cu " in line for line in found)
        assert len(lines) == jobs
        assert all(line.startswith("sternway: compiled ") and f"({k} of {jobs})" in line for k, line in enumerate(lines, 1))
        return found

    def of(name: str, architecture: int, *codes: str) -> list[str]:
        target = f"-gencode=arch=compute_{architecture},code="
        return [f"{name}.cu -arch=compute_{architecture}", *(f"{name}.ptx {target}{code}" for code in codes)]

    codes = ["sm_80", "sm_90", "compute_80"]
    x, y = (of(name, 80, "compute_80", "sm_80") + of(name, 90, "sm_90") for name in "xy")
    assert compiled(codes) == sorted(x + y)
    text = "x.cu -arch=compute_90\nx.ptx -gencode=arch=compute_90,code=sm_90\n"
    assert lzma.decompress((out / "x.sm_90.lzma").read_bytes()).decode() == text
    assert compiled(codes) == []
    (tree / "common/a.cuh").write_text("// changed")
    assert compiled(codes) == sorted(x)
    (out / "y.sm_90.lzma").write_bytes(b"else")
    assert compiled(codes) == sorted(y)
    everything = sorted(of("x", 90, "sm_90") + of("y", 90, "sm_90"))
    assert compiled(["sm_90"]) == everything
    monkeypatch.setattr(kernels, "FLAGS", ("-Ofc=max",))
    assert compiled(["sm_90"]) == everything, "what is not optimized is no image of a wheel for GPUs"


def test_a_source_must_have_been_compiled_for_every_gpu(
    kernels: Any, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone finds a check that lets a change of a header, of the flags or of the pinned nvcc through, or compiles all."""
    monkeypatch.setattr(kernels, "VERIFIED", tmp_path / "verified.json")
    monkeypatch.setenv("STERNWAY_CUDA_ARCHS", "")
    calls = tmp_path / "calls"

    def recorded() -> dict[str, int]:
        """How many images of each source were made."""
        calls.write_text("")
        kernels.record()
        made = [line.partition(".ptx ")[0] for line in calls.read_text().splitlines() if ".ptx " in line]
        return {name: made.count(name) for name in set(made)}

    assert recorded() == {"x": len(ALL), "y": len(ALL)}
    kernels.check_verified()
    assert recorded() == {}
    (tree / "common/a.cuh").write_text("// changed")
    with pytest.raises(SystemExit, match=r"every GPU: x; run `make kernels-all`"):
        kernels.check_verified()
    with monkeypatch.context() as patch:
        patch.setenv("BROKEN", "x.cu")
        with pytest.raises(kernels.KernelError):
            kernels.record()
    with pytest.raises(SystemExit):
        kernels.check_verified()
    assert recorded() == {"x": len(ALL)}
    kernels.check_verified()
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "FLAGS", ("-O1",))
        with pytest.raises(SystemExit, match=r"every GPU: x, y; run"):
            kernels.check_verified()
    monkeypatch.setattr(kernels, "PINNED_NVCC", (13, 1, 0))
    with pytest.raises(SystemExit, match=r"every GPU: nvcc or the architectures; run"):
        kernels.check_verified()
    with pytest.raises(kernels.KernelError, match=r"no nvcc"):  # 13.0.88 is here
        kernels.record()


def test_a_source_that_does_not_compile(kernels: Any, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "y.cu")
    with pytest.raises(kernels.KernelError, match=r"nvcc failed on y\.cu"):
        kernels.build(tmp_path / "image", ["sm_90"])
    assert not [*(tmp_path / "image").glob("y.*")]


@pytest.mark.parametrize(
    ("cuda", "gpus", "codes"), [(None, [(9, 0)], ["sm_90"]), (None, [], []), ("0", [(9, 0)], []), ("1", [(9, 0)], ["sm_90"])]
)
def test_compiler_is_fetched_for_a_gpu_alone(
    kernels: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cuda: str | None,
    gpus: list[tuple[int, int]],
    codes: list[str],
) -> None:
    """A build asks pip for nvcc if there are kernels to compile and no nvcc is here."""
    pytest.importorskip("setuptools", reason="the build backend is one of setuptools, which is not installed")
    backend = importlib.import_module("build_backend")
    backend.codes.cache_clear()
    monkeypatch.setattr(backend, "IMAGES", tmp_path)
    monkeypatch.setattr(kernels, "gpus", lambda: gpus)
    monkeypatch.setattr(kernels, "find_nvcc", lambda *_: None)
    monkeypatch.delenv("STERNWAY_CUDA", raising=False)
    if cuda is not None:
        monkeypatch.setenv("STERNWAY_CUDA", cuda)
    assert backend.codes() == codes
    nvidia = [requirement for requirement in backend.missing_compilers() if requirement.startswith("nvidia")]
    assert nvidia == (list(kernels.REQUIREMENTS) if codes else [])
    backend.codes.cache_clear()


def test_command_line_without_a_gpu(root: Path) -> None:
    """Says so, and how to compile anyway, and needs no compiler."""
    environment = {name: value for name, value in os.environ.items() if name != "STERNWAY_CUDA_ARCHS"}
    command = [sys.executable, str(root / "tools/kernels.py"), "--out", "/nowhere"]
    done = subprocess.run(command, env=environment | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "sternway: this machine has no GPU that the kernels run on, so none are compiled; "
        "STERNWAY_CUDA_ARCHS=all compiles them for every GPU\n"
    )
