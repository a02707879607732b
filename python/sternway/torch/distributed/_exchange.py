"""Exchanges tensors between the ranks of a group, and the facts of a call, so that a wrong one is an error on every rank."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import make

Facts = TypeVar("Facts")

HEADER = 1024
"""Bytes of the first message of :func:`all_gather_objects`, of which 8 are a length."""


def all_gather(x: Tensor, group: Any) -> Tensor:
    """The tensors of all ranks, which are of one shape and dtype, [ranks, ...]."""
    every = x.new_empty(dist.get_world_size(group), *x.shape)
    dist.all_gather_into_tensor(every.view(-1), x.contiguous().view(-1), group=group)
    return every


def all_gather_objects(value: Any, group: Any) -> list[Any]:
    """The values of all ranks, which can be pickled: one collective of :data:`HEADER` bytes, and a second for long values.

    It goes through the CPU backend of the group if there is one, so that nothing waits for a GPU.
    """
    on_cpu = "cpu:" in dist.get_backend_config(group)
    device = torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device())
    payload = pickle.dumps(value)

    def exchange(content: bytes, size: int) -> list[bytes]:
        message = torch.frombuffer(bytearray(content.ljust(size, b"\0")), dtype=torch.uint8)
        return [row.numpy().tobytes() for row in all_gather(message.to(device), group).cpu()]

    length = len(payload).to_bytes(8, "little")
    headers = exchange(length + payload[: HEADER - 8], HEADER)
    lengths = [int.from_bytes(header[:8], "little") for header in headers]
    messages = [header[8:] for header in headers]
    if max(lengths) > HEADER - 8:
        messages = exchange(payload, max(lengths))
    return [pickle.loads(message[:n]) for message, n in zip(messages, lengths, strict=True)]


def gathered(op: str, group: Any, find: Callable[[], Facts]) -> list[Facts]:
    """What every rank found out about its call, in rank order.

    Args:
        op: the function that the user called, for errors.
        group: the process group; None: that of all processes.
        find: checks the call of this rank and returns its facts, small objects that can be pickled.

    Raises:
        InvalidProblemError: no process group is initialized, or this process is not in the group; or the call of another rank
            is wrong.
        Exception: ``find`` raised it on this rank.
    """
    if not (dist.is_available() and dist.is_initialized()):
        hint = "call torch.distributed.init_process_group"
        raise make("invalid_problem", op, "group", "a process group", "none, as none is initialized", hint)
    if dist.get_rank(group) < 0:
        raise make("invalid_problem", op, "group", "a group of which this process is a member", "another one")
    facts: Facts | None = None
    failure: Exception | None = None
    try:
        facts = find()
    except Exception as error:  # of any class: the other ranks wait
        failure = error
    answers = all_gather_objects((facts, None if failure is None else f"{failure!s:.700}"), group)
    if failure is not None:
        raise failure
    for rank, (_, message) in enumerate(answers):
        if message is not None:
            raise make("invalid_problem", op, f"the call of rank {rank}", "a correct one", message)
    return [found for found, _ in answers]
