"""sternway.jax on several devices: gradients under jax.shard_map, and of arrays that explicit axes of a mesh shard."""

from __future__ import annotations

from pathlib import Path

import pytest
from interpreter import python

pytest.importorskip("jax", reason="JAX is not installed")


def test_gradients_on_two_devices() -> None:
    """In a process of its own, since the number of devices of the CPU is read when JAX starts."""
    code = f"import runpy; runpy.run_path({str(Path(__file__).with_name('jax_mesh.py'))!r}, run_name='__main__')"
    tests = str(Path(__file__).parent)
    done = python(
        f"import sys; sys.path.insert(0, {tests!r})\n{code}", 300, XLA_FLAGS="--xla_force_host_platform_device_count=2"
    )
    assert done.stdout == "done\n"
