"""A fresh interpreter, and the scripts that it starts from."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import sternway

WHERE = str(Path(sternway.__file__).parents[1])
LIBRARY = "_native.abi3.so"

# A use of the library that needs no torch and no NumPy: selecting loads the shared object.
SELECT = """
import sternway as sw
descriptor = sw.LerpBackwardDescriptor(shape=(3, 4), dtype="float32", weight=0.5)
plan = sw.LerpBackwardPlan.select(descriptor, device="cpu")
"""
RUN = (
    SELECT
    + """
import numpy as np
dy, da, db = np.ones((3, 4), np.float32), np.empty((3, 4), np.float32), np.empty((3, 4), np.float32)
def run():
    plan.run(dy=dy, da=da, db=db)
    assert (da == 0.5).all() and (db == 0.5).all()
"""
)


def python(code: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the code in a fresh interpreter that finds the package where this one did."""
    code = textwrap.dedent(code)
    path = os.pathsep.join(filter(None, (WHERE, os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STERNWAY_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**kept, "PYTHONPATH": path, **env},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{code}\nstdout: {done.stdout}\nstderr: {done.stderr}"
    return done
