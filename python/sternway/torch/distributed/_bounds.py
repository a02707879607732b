"""The bounds of packed sequences in a whole that ranks share: what a rank is given, and its checks."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ..._library import is_checking
from ..._sequences import count_sequences
from ...errors import Error, make
from ._exchange import gathered


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
    options = f", {count_sequences(op, cu_seqlens)} sequences{', exclusive' if exclusive else ''}"
    check_bounds(op, cu_seqlens)
    return f"{options}{_digest(cu_seqlens)}"


def _on_host(cu_seqlens: Tensor | None) -> Tensor | None:
    """The bounds on the CPU, to be checked. None: they are on a GPU, and STERNWAY_CHECK=1 does not ask for a check."""
    return cu_seqlens.cpu() if cu_seqlens is not None and (cu_seqlens.device.type == "cpu" or is_checking()) else None


def _digest(cu_seqlens: Tensor) -> str:
    """A checksum of the bounds, in words, by which ranks compare them; empty if they are not checked."""
    bounds = _on_host(cu_seqlens)
    return "" if bounds is None else f" (bounds {zlib.crc32(bounds.long().numpy().tobytes()):08x})"


def check_bounds(op: str, cu_seqlens: Tensor | None, extent: int | None = None) -> None:
    """Check bounds of the whole, if they are on the CPU or STERNWAY_CHECK=1. extent: of the whole; None: not known yet.

    Raises:
        InvalidProblemError: they do not rise from 0 to the extent.
    """
    cu_seqlens = _on_host(cu_seqlens)
    if cu_seqlens is None:
        return
    is_wrong = torch.cat([cu_seqlens[:1] != 0, cu_seqlens[1:] < cu_seqlens[:-1]])
    if extent is not None:
        is_wrong |= cu_seqlens > extent
        is_wrong[-1] |= cu_seqlens[-1] != extent
    if is_wrong.any():
        at = int(is_wrong.int().argmax())
        wanted = f"bounds that rise from 0 to {'' if extent is None else f'{extent}, '}the extent along dim"
        raise make("invalid_problem", op, "cu_seqlens", wanted, f"{int(cu_seqlens[at])} at position {at}")


def own_bounds(op: str, cu_seqlens: Any, extent: int, mesh: DeviceMesh) -> Tensor | None:
    """The bounds of sequences in a DTensor on this rank, checked.

    With STERNWAY_CHECK=1 the ranks of the mesh compare them, so that wrong ones are an error on every rank.

    Args:
        extent: of the dimension that ranks share.

    Raises:
        InvalidProblemError: they do not rise from 0 to the extent, or are found to differ on another rank.
        UnsupportedError: they are a DTensor that is not replicated.
    """
    if isinstance(cu_seqlens, DTensor):
        if not all(p.is_replicate() for p in cu_seqlens.placements):
            raise make("unsupported", op, "cu_seqlens", "replicated", str(cu_seqlens.placements))
        cu_seqlens = cu_seqlens.to_local()
    bounds: Tensor | None = cu_seqlens
    if bounds is not None and is_checking():
        _compare(op, bounds, extent, mesh)
    else:
        check_bounds(op, bounds, extent)
    return bounds


def _compare(op: str, bounds: Tensor, extent: int, mesh: DeviceMesh) -> None:
    """Check bounds and compare them over one dimension of the mesh after the other, so that an error reaches every rank.

    Raises:
        InvalidProblemError: those of a rank are wrong or differ.
    """
    failure: Error | None = None

    def find() -> str:
        if failure is not None:
            raise failure
        check_bounds(op, bounds, extent)
        return _digest(bounds)

    for k in range(mesh.ndim):
        try:
            found = gathered(op, mesh.get_group(k), find)
            for rank, digest in enumerate(found):
                if digest != found[0]:
                    wanted = f"those of rank 0{found[0]}"
                    raise make("invalid_problem", op, f"cu_seqlens of rank {rank}", wanted, f"others{digest}")
        except Error as error:
            failure = error
    if failure is not None:
        raise failure
