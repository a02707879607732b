"""The oldest PyTorch: stated once, refused by one sentence where it is older."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from interpreter import python
from support import one_sentence

import sternway as sw
from sternway._requirements import OLDEST_TORCH, TORCH, require_torch

REFUSED = f"sternway.torch: torch must be version {OLDEST_TORCH} or newer, got {{}}; pip install '{TORCH}'"


def test_pip_is_told_the_same(root: Path) -> None:
    project = (root / "pyproject.toml").read_text()
    assert f'\ntorch = ["{TORCH}"]\n' in project
    assert runpy.run_path(str(root / "tools" / "oldest_torch.py"))["oldest"](project) == f"torch=={OLDEST_TORCH}.*"


@pytest.mark.parametrize("version", [OLDEST_TORCH, "2.11.0+cu130", "2.11.0a0+b4e4ee81d3", "2.15.0", "3.0"])
def test_versions_that_work(version: str) -> None:
    require_torch(version)


@pytest.mark.parametrize("version", ["2.10.0+cu128", "2.10.0a0+git1", "2.1", "1.13.1"])
def test_older_versions_are_refused(version: str) -> None:
    with pytest.raises(sw.UnsupportedError) as caught:
        require_torch(version)
    assert isinstance(caught.value, ImportError)
    assert str(caught.value).startswith(REFUSED.format(version))
    one_sentence(caught.value, "torch", (version,))


def test_import_beside_an_older_version() -> None:
    """It raises an ImportError, and again when it is tried again; functions of sternway take tensors all the same."""
    done = python("""
        import torch
        torch.__version__ = "2.9.1"
        for _ in range(2):
            try:
                import sternway.torch
            except ImportError as error:
                print(error)
        import sternway
        assert sternway.cumsum_backward(torch.tensor([1.0, 2.0])).tolist() == [3.0, 2.0]
    """)
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith(REFUSED.format("2.9.1"))
