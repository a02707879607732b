#!/usr/bin/env python3
"""Tests the wheel in dist/ with the oldest PyTorch that the extra `torch` of pyproject.toml allows.

The environment build/oldest is made once for each version. The tests are those of the interfaces in which versions of
PyTorch differ: autograd, torch.compile, torch.export, transforms, operators and sparse gradients. Processes that exchange
tensors are left out, as they take minutes. Where the version has no wheel for this Python, it says so and tests nothing.

    python tools/oldest_torch.py PROCESSES
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "oldest"
PYTHON = HOME / "bin" / "python"
STAMP = HOME / "installed"
NEEDED_BY_TESTS = ("expecttest", "hypothesis", "numpy", "pytest>=8", "pytest-xdist>=3.6")
TESTS = ("torch", "transforms", "forward_mode", "export", "bag_torch", "embedding_torch", "sparse_rows")


def main(workers: str) -> int:
    """Install and test; the exit code of pytest."""
    requirement = oldest((ROOT / "pyproject.toml").read_text())
    [wheel] = (ROOT / "dist").glob("*.whl")
    if not (STAMP.exists() and STAMP.read_text() == requirement):
        missing = install(requirement)
        if missing:
            print(f"not tested with {requirement}: {missing}")
            return 0
        STAMP.write_text(requirement)
    pip("install", "--no-deps", "--force-reinstall", str(wheel), check=True)
    files = [f"python/tests/test_{name}.py" for name in TESTS]
    options = ["-n", workers, "--dist", "worksteal", "-m", "not gpu and not alone and not slow"]
    return subprocess.run([PYTHON, "-m", "pytest", *options, *files], cwd=ROOT, check=False).returncode


def oldest(project: str) -> str:
    """The requirement of the oldest release, such as ``torch==2.11.*``, by the text of pyproject.toml."""
    found = re.search(r'^torch = \["torch>=([0-9.]+)"\]$', project, re.MULTILINE)
    if found is None:
        raise SystemExit('pyproject.toml has no extra of the form torch = ["torch>=X.Y"]')
    return f"torch=={found[1]}.*"


def install(requirement: str) -> str:
    """Make the environment. Returns why there is none: PyTorch has wheels, but not this version for this Python."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
    print(f"installing {requirement} into {HOME.relative_to(ROOT)}", flush=True)
    done = pip("install", "--only-binary", "torch", requirement, *NEEDED_BY_TESTS, check=False)
    if done.returncode == 0:
        return ""
    others = re.search(r"satisfies the requirement torch==\S+ \(from versions: (?!none)([^)]*)\)", done.stderr)
    if others is None:
        raise SystemExit(done.stderr)
    return f"it has no wheel for Python {sys.version.split()[0]}, which has wheels of {others[1]}"


def pip(*arguments: str, check: bool) -> subprocess.CompletedProcess[str]:
    """Run pip of the environment."""
    done = subprocess.run(
        [PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if check and done.returncode:
        raise SystemExit(done.stderr)
    return done


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["1"]))
