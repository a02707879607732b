"""The bounds of packed sequences in a whole that ranks share: what a rank is given, and its checks."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..._sequences import sequences_of
from ...errors import make


def options_of(op: str, x: Tensor, cu_seqlens: Tensor | None, exclusive: bool = False) -> str:
    """The options of a call that ranks must agree on, in words.

    Raises:
        InvalidProblemError: cu_seqlens is of another device or dtype.
        TypeError: it is no plain tensor.
    """
    if cu_seqlens is None:
        return ", exclusive" if exclusive else ""
    if not isinstance(cu_seqlens, Tensor) or isinstance(cu_seqlens, DTensor):
        raise make("type", op, "cu_seqlens", "a torch.Tensor", type(cu_seqlens).__name__)
    if cu_seqlens.device != x.device:
        raise make("invalid_problem", op, "cu_seqlens", f"on {x.device} like the data", str(cu_seqlens.device))
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise make("invalid_problem", op, "cu_seqlens", "int32 or int64", str(cu_seqlens.dtype).removeprefix("torch."))
    options = f", {sequences_of(op, cu_seqlens)} sequences{', exclusive' if exclusive else ''}"
    if cu_seqlens.device.type != "cpu":
        return options
    check_bounds(op, cu_seqlens)
    return f"{options} (bounds {zlib.crc32(cu_seqlens.long().numpy().tobytes()):08x})"


def check_bounds(op: str, cu_seqlens: Tensor | None, extent: int | None = None) -> None:
    """Check bounds of the whole, if they are on the CPU. extent: of the whole; None: not known yet.

    Raises:
        InvalidProblemError: they do not rise from 0 to the extent.
    """
    if cu_seqlens is None or cu_seqlens.device.type != "cpu":
        return
    is_wrong = torch.cat([cu_seqlens[:1] != 0, cu_seqlens[1:] < cu_seqlens[:-1]])
    if extent is not None:
        is_wrong |= cu_seqlens > extent
        is_wrong[-1] |= cu_seqlens[-1] != extent
    if is_wrong.any():
        at = int(is_wrong.int().argmax())
        wanted = f"bounds that rise from 0 to {'' if extent is None else f'{extent}, '}the extent along dim"
        raise make("invalid_problem", op, "cu_seqlens", wanted, f"{int(cu_seqlens[at])} at position {at}")


def own_bounds(op: str, cu_seqlens: Any) -> Tensor | None:
    """The bounds of sequences on this rank.

    Raises:
        UnsupportedError: they are a DTensor that is not replicated.
    """
    if isinstance(cu_seqlens, DTensor):
        if not all(p.is_replicate() for p in cu_seqlens.placements):
            raise make("unsupported", op, "cu_seqlens", "replicated", str(cu_seqlens.placements))
        return cu_seqlens.to_local()
    return cu_seqlens  # type: ignore[no-any-return]
