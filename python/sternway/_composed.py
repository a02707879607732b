"""The scans that torch lacks, as expressions of torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Composed(NamedTuple):
    """A scan as a user of torch would write it."""

    text: str
    """The expression in words."""
    scan: Callable[[Any, int], Any]
    """The result of a tensor and a dimension, by methods of the tensor."""


COMPOSED: dict[str, Composed] = {}
"""By name. Of other scans torch has a function of this name."""
