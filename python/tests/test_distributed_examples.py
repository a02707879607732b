"""The programs in examples/ run on two ranks, and end with the line that their docstring promises."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from interpreter import WHERE

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
if not EXAMPLES:
    pytest.skip(f"{FOLDER} is not there: the tests are apart from the sources", allow_module_level=True)

RANKS = 2
TIMEOUT = 120.0  # seconds
COMMANDS = [
    *((path.name,) for path in EXAMPLES),
    pytest.param(("context_parallel_llama.py", "--order", "zigzag"), marks=pytest.mark.nightly),
]


def torchrun(name: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run an example by torchrun, on the loopback interface, with the package that this process imports.

    Raises:
        subprocess.TimeoutExpired: it ran longer than TIMEOUT. Its ranks are ended.
    """
    path = os.pathsep.join(filter(None, (WHERE, os.environ.get("PYTHONPATH"))))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("STERNWAY_")}
    options = f"--standalone --local-addr 127.0.0.1 --nproc-per-node {RANKS}".split()
    with subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, str(FOLDER / name), *arguments],
        env={**kept, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun then ends its ranks, which it could not if it were killed
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def promised(name: str) -> str:
    """The last line of a program's output, as its docstring has it."""
    text = ast.get_docstring(ast.parse((FOLDER / name).read_text())) or ""
    [line] = [line.strip() for line in text.splitlines() if line.strip().startswith("ok:")]
    return line


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_example(command: tuple[str, ...], device: str) -> None:
    if device == "cuda" and torch.cuda.device_count() < RANKS:
        pytest.skip(f"torch sees fewer than {RANKS} CUDA devices")
    done = torchrun(*command, **({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}))
    assert done.returncode == 0, f"stdout: {done.stdout}\nstderr: {done.stderr}"
    assert done.stdout.splitlines()[-1] == promised(command[0])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_docstring_and_documents_name_the_command(path: Path) -> None:
    command = f"torchrun --nproc-per-node {RANKS} examples/{path.name}"
    assert command in (ast.get_docstring(ast.parse(path.read_text())) or "")
    assert f"(../examples/{path.name})" in (FOLDER.parent / "docs/distributed.md").read_text()
