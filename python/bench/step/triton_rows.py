"""The forward of scans as a plain Triton program: one program for each row, which it holds as one block.

It is a rival of the benchmark, written as a user of Triton would first write it: tl.load, tl.cumsum or tl.associative_scan,
tl.store. Values are float32 inside.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]

KINDS = ("cumsum", "cumprod", "cummax", "logcumsumexp")
LONGEST = 1 << 16  # elements of a row, so that a block stays in registers
ELEMENTS = 16  # of a thread


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _product(a, b):  # type: ignore[no-untyped-def]
    return a * b


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _log_add_exp(a, b):  # type: ignore[no-untyped-def]
    largest = tl.maximum(a, b)
    return largest + tl.log(1 + tl.exp(tl.minimum(a, b) - largest))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _later_maximum(a, i, b, j):  # type: ignore[no-untyped-def]
    later = b >= a
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _row(x_ptr, y_ptr, indices_ptr, n, kind: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row of n elements: y, and for cummax the indices."""
    row = tl.program_id(0).to(tl.int64) * n
    at = tl.arange(0, block)
    inside = at < n
    x = tl.load(x_ptr + row + at, mask=inside, other=0.0).to(tl.float32)
    if kind == "cummax":
        y, i = tl.associative_scan((x, at), 0, _later_maximum)
        tl.store(indices_ptr + row + at, i.to(tl.int64), mask=inside)
    elif kind == "cumsum":
        y = tl.cumsum(x, 0)
    elif kind == "cumprod":
        y = tl.associative_scan(x, 0, _product)
    else:
        y = tl.associative_scan(x, 0, _log_add_exp)
    tl.store(y_ptr + row + at, y.to(y_ptr.dtype.element_ty), mask=inside)


def takes(kind: str, length: int) -> bool:
    """Whether the program has this kind, for rows of this length."""
    return kind in KINDS and length <= LONGEST


def warps(block: int) -> int:
    """The warps of a program: 16 elements for each thread, from 4 to 32 warps."""
    return max(4, min(32, block // (32 * ELEMENTS)))


def scan(kind: str, x: Any) -> Any:
    """The scan of the rows of a contiguous matrix: y, or values and indices."""
    rows, n = x.shape
    block = triton.next_power_of_2(n)
    y = torch.empty_like(x)
    indices = torch.empty_like(x, dtype=torch.int64) if kind == "cummax" else None
    _row[(rows,)](x, y, indices, n, kind=kind, block=block, num_warps=warps(block))
    return y if indices is None else torch.return_types.cummax((y, indices))
