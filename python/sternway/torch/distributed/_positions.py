"""The positions of the tokens of a rank, where ranks share the tokens of a sequence (context parallelism)."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ...errors import make
from .._autograd.calls import integer
from ._exchange import gathered

__all__ = ["positions"]

OP = "sternway.torch.distributed.positions"
Order = Literal["contiguous", "zigzag"]
ORDERS = get_args(Order)


def positions(local_len: int, group: Any = None, *, order: Order = "contiguous", device: Any = None) -> Tensor:
    """The positions of this rank's tokens in the whole sequence, for ``sternway.torch.rope`` under context parallelism.

    Every rank of the group calls it. ``"contiguous"``: each rank has one part of the sequence, in rank order; parts may differ
    in length and may be empty. ``"zigzag"``: the sequence is cut into 2 n equal chunks for n ranks, and rank r has chunks r and
    2 n - 1 - r, which balances causal attention (Megatron-LM, PyTorch's context parallelism).

    Args:
        local_len: the number of tokens of this rank; for ``"zigzag"`` even, and the same on every rank.
        group: the process group; None: that of all processes. With NCCL, each rank calls ``torch.cuda.set_device`` before.
        order: ``"contiguous"`` or ``"zigzag"``; the same on every rank.
        device: of the result; None: torch's default device.

    Returns:
        the positions from 0 on, int64 [local_len].

    Raises:
        InvalidProblemError: on every rank, if local_len, order or device of one rank is invalid, or if they do not fit those of
            another; on this rank, if no process group is initialized or this process is not in the group.

    Example:
        >>> import torch
        >>> import sternway.torch.distributed as std
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # one process; torchrun starts more
        >>> std.positions(4)
        tensor([0, 1, 2, 3])
        >>> torch.distributed.destroy_process_group()
    """

    def find() -> tuple[int, str]:
        length = integer("distributed.positions", "local_len", local_len)
        if length < 0:
            raise make("invalid_problem", OP, "local_len", "a number of tokens", str(length))
        if not isinstance(order, str) or order not in ORDERS:
            raise make("invalid_problem", OP, "order", "'contiguous' or 'zigzag'", f"{order!r:.80}")
        try:
            torch.empty(0, device=device)
        except (RuntimeError, TypeError) as error:
            raise make("invalid_problem", OP, "device", "a device that torch has", f"{device!r:.80}") from error
        if order == "zigzag" and length % 2:
            raise make("invalid_problem", OP, "local_len", "even for order='zigzag'", str(length))
        return length, str(order)

    calls = gathered(OP, group, find)
    lengths = [length for length, _ in calls]
    if len({chosen for _, chosen in calls}) > 1:
        raise make("invalid_problem", OP, "order", "the same on every rank", ", ".join(repr(chosen) for _, chosen in calls))
    if order == "zigzag" and len(set(lengths)) > 1:
        wanted = "the same on every rank for order='zigzag'"
        raise make("invalid_problem", OP, "local_len", wanted, ", ".join(map(str, lengths)))
    rank, ranks = torch.distributed.get_rank(group), len(calls)
    if order == "contiguous":
        first = sum(lengths[:rank])
        return torch.arange(first, first + lengths[rank], device=device)
    half = lengths[rank] // 2
    starts = torch.tensor([rank * half, (2 * ranks - 1 - rank) * half], device=device)
    return (starts[:, None] + torch.arange(half, device=device)).flatten()
