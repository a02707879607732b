"""Progress of a command that takes a while, on standard error: the tables themselves go to standard output."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

INTERVAL = 5.0  # seconds between two lines where standard error is no terminal


class Progress:
    """Says how many of the parts of a command are done, which one runs, and how long the rest will take.

    On a terminal it is one line that is rewritten, and erased at the end. Elsewhere, as in a log, it is a plain line at most
    every 5 seconds and at most once per tenth of the parts.

    Args:
        command: the name that each line begins with.
        total: the number of parts.
        quiet: True: write nothing.
        stream: None: standard error.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        command: str,
        total: int,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.command, self.total, self.quiet, self.clock = command, total, quiet, clock
        self.stream = sys.stderr if stream is None else stream
        self.rewrites = not quiet and self.stream.isatty()
        self.started = self.written = clock()
        self.done, self.tenth, self.shown = -1, 0, False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def step(self, part: str) -> None:
        """Say that a part begins, and with it that the parts before it are done."""
        self.done += 1
        if self.quiet:
            return
        if self.rewrites:
            width = shutil.get_terminal_size().columns
            self.clear()
            self.stream.write(self.line(part)[: width - 1])
            self.stream.flush()
            self.shown = True
            return
        tenth, now = 10 * self.done // max(self.total, 1), self.clock()
        if tenth > self.tenth and now - self.written >= INTERVAL:
            self.tenth, self.written = tenth, now
            print(self.line(part), file=self.stream, flush=True)

    def line(self, part: str) -> str:
        """The text of the line."""
        seconds = self.clock() - self.started
        left = f", about {duration(seconds / self.done * (self.total - self.done))} left" if self.done else ""
        return f"{self.command}: {self.done} of {self.total} done{left}: {part}"

    def clear(self) -> None:
        """Erase the line, so that something else can be printed there."""
        if self.shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self.shown = False


def duration(seconds: float) -> str:
    """A number of seconds in words: 40 s, 3 min."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
