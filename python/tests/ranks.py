"""Processes on this machine, which run functions of tests at the same time, by gloo on the CPU and by NCCL on GPUs."""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

TIMEOUT = 120.0  # seconds of one function; a collective gives up after half of them


def default_device() -> str:
    """The type of the device on which a rank makes its tensors."""
    return torch.get_default_device().type


def seeded(seed: int) -> torch.Generator:
    """A random number generator of that device."""
    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def world() -> int:
    """The number of ranks."""
    return torch.distributed.get_world_size()


def _serve(rank: int, size: int, device: str, store: str, pipe: Connection) -> None:
    """Run the functions that come through the pipe, until it is closed or one of them fails."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    backend = "gloo"
    if device == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(rank)
        torch.set_default_device(f"cuda:{rank}")
    half = datetime.timedelta(seconds=TIMEOUT / 2)
    torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=half)
    failed = False
    while not failed:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        try:
            function(*arguments)
            answer = ""
        except BaseException:
            answer, failed = traceback.format_exc(), True
        pipe.send(answer)


class Ranks:
    """The processes. They are started by the first function, and again after one that failed."""

    def __init__(self, folder: Path, device: str, size: int) -> None:
        self.timeout = TIMEOUT
        self.device, self.size = device, size
        self._folder = folder
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._starts = 0

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run ``function(*arguments)`` on every rank. The function is one of a module, as it is pickled.

        Raises:
            AssertionError: a rank failed, with its traceback; or one had not answered in time.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, arguments))
        waiting = dict(zip(self._pipes, range(self.size), strict=True))
        deadline = time.monotonic() + self.timeout
        while waiting:
            ready = wait(list(waiting), max(deadline - time.monotonic(), 0))
            failures = [f"no answer from ranks {list(waiting.values())} after {self.timeout:.0f} s"] if not ready else []
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                try:
                    answer = pipe.recv()
                except EOFError:
                    answer = "the process died"
                if answer:
                    failures.append(f"rank {rank}: {answer}")
            if failures:  # the other ranks may wait for this one for ever
                self.stop()
                raise AssertionError("\n".join(failures))

    def _start(self) -> None:
        self._starts += 1
        context = multiprocessing.get_context("spawn")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            store = str(self._folder / f"store{self._starts}")
            process = context.Process(target=_serve, args=(rank, self.size, self.device, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def stop(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []


@contextlib.contextmanager
def started(folder: Path, device: str, size: int) -> Iterator[Ranks]:
    """The processes of a module of tests, which are ended after it."""
    ranks = Ranks(folder, device, size)
    try:
        yield ranks
    finally:
        ranks.stop()
