"""The oldest PyTorch that ``sternway.torch`` works with. The extra ``torch`` of pyproject.toml states the same for pip."""

from __future__ import annotations

import re

from .errors import make

OLDEST_TORCH = "2.11"
TORCH = f"torch>={OLDEST_TORCH}"
"""The requirement, as pip takes it."""


def require_torch(version: str) -> None:
    """Check the version of the PyTorch that was imported. Builds from source, such as 2.11.0a0, count as their release.

    Raises:
        UnsupportedError: an older version than OLDEST_TORCH. The error is also an ``ImportError``.
    """
    if _release(version) < _release(OLDEST_TORCH):
        hint = f"pip install '{TORCH}', or use the functions of sternway, which take tensors of older versions"
        raise make("version", "sternway.torch", "torch", f"version {OLDEST_TORCH} or newer", version, hint)


def _release(version: str) -> list[int]:
    """The first two numbers of a version."""
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
