"""What sternway.torch.distributed does for the drop-ins where an operand is a DTensor.

The drop-ins do not import that package, which uses them. ``sternway.torch`` registers a function that imports it, and the first
DTensor calls that function: the import brings ``torch.distributed.tensor``, which takes half a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Sharding(NamedTuple):
    """The functions of sternway.torch.distributed that drop-ins call."""

    require_rule: Callable[..., None]
    """Raises the error of a call whose placements fit no sharding rule of its operator."""
    replicated: Callable[..., Any]
    """Makes a tensor that all ranks have a DTensor on the mesh of another."""
    scan: Callable[..., Any]
    """Scans a DTensor along a sharded dimension; None: the dimension is not sharded."""
    linear_recurrence: Callable[..., Any]
    """Runs a linear recurrence of DTensors along a sharded dimension; None: the dimension is not sharded."""
    gradients: Callable[..., tuple[Any, ...]]
    """Differentiates an operator of DTensors on the shards of each rank."""


_load: list[Callable[[], Sharding]] = []


def register(load: Callable[[], Sharding]) -> None:
    """Register the function that imports sternway.torch.distributed."""
    _load.append(load)


def sharding() -> Sharding:
    """The functions of sternway.torch.distributed, which is imported if it was not."""
    return _load[-1]()
