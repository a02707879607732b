"""Keeps torch.compile from tracing functions that run plans: a plan runs native code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_REASON = "it runs a plan, which torch.compile cannot trace; use sternway.torch, whose operators a graph can contain"


def keep_untraced(functions: Iterable[Any]) -> None:
    """Mark functions for torch.compile, which calls them between graphs, or under fullgraph=True says why it cannot.

    The marks are those of torch.compiler.disable, which would import torch and cost every call a wrapper.
    """
    for function in functions:
        function._torchdynamo_disable = True
        function._torchdynamo_disable_msg = _REASON
