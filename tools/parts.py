"""Runs parts of `make test` and tells what each took, also when one fails.

    python tools/parts.py "wheel site" lint test-python

Each argument is a stage: targets of the Makefile that run side by side. The output of a part of several comes when it ends,
so that lines do not mix. No stage begins after a failure.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed


def run(part: str, captured: bool) -> tuple[str, float, int, str]:
    """Name, seconds, exit code and output of a part."""
    start = time.monotonic()
    done = subprocess.run(
        ["make", "--no-print-directory", part],
        stdout=subprocess.PIPE if captured else None,
        stderr=subprocess.STDOUT if captured else None,
        text=True,
        errors="replace",
    )
    return part, time.monotonic() - start, done.returncode, done.stdout or ""


def run_stage(parts: list[str]) -> list[tuple[str, float, int]]:
    """Runs parts side by side; their order is that of their ends."""
    print(f"== {', '.join(parts)}", flush=True)
    ended = []
    with ThreadPoolExecutor(len(parts)) as pool:
        for job in as_completed([pool.submit(run, part, len(parts) > 1) for part in parts]):
            part, seconds, code, output = job.result()
            print(f"{output}== {part} {'failed' if code else 'passed'} after {seconds:.0f} s", flush=True)
            ended.append((part, seconds, code))
    return ended


def main() -> None:
    rows: list[tuple[str, float, int]] = []
    start = time.monotonic()
    for stage in sys.argv[1:]:
        rows += run_stage(stage.split())
        if any(code for _, _, code in rows):
            break
    print(f"\n{'part':20}{'seconds':>8}")
    for part, seconds, code in rows:
        print(f"{part:20}{seconds:8.0f}{'  failed' if code else ''}")
    print(f"{'all':20}{time.monotonic() - start:8.0f}")
    sys.exit(any(code for _, _, code in rows))


if __name__ == "__main__":
    main()
