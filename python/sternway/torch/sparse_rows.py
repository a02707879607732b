"""Sparse gradients of a table, with one row for each index that occurs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._arrays import device_of
from .._unique_rows import _unique_rows_plan
from ..embedding import _embedding_plan, _rows
from ..embedding_bag import _embedding_bag_plan
from ._calls import materialized
from ._dispatch import reach_plans

VARIANT = "early"
"""How a gradient gets its number of rows, for measurements: ``python -m sternway bench sparse-steps``.

"late": the backward finds the rows, and the host waits for their number.
"early": the forward finds them, and the backward reads a number that has arrived long before.
"flagged": "early", and ``.grad`` is marked as coalesced, which torch's accumulation of gradients drops.
"bounded": as many rows as there can be, of which the unused ones repeat used ones with zeros; the host reads nothing.
"gathered": of an embedding without padding_idx, torch's own gradient, a row for each position; otherwise "late".
"""


def _is_captured(x: Tensor) -> bool:
    """Whether work on x goes into a CUDA graph, while which the host cannot read anything."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


class FoundRows:
    """The distinct rows of indices, whose number travels to the host.

    Attributes:
        rows: the distinct rows in ascending order, then -1.
        places: the place of each index among them; with a padding_idx counted from 1, and its own place is 0.
        number: how many there are, on the device.
        leaf: the table, if it is known to be a leaf.
    """

    def __init__(self, indices: Tensor, num_embeddings: int, padding_idx: int | None) -> None:
        total, device = len(indices), indices.device
        self.rows = torch.empty(min(num_embeddings, total), dtype=torch.int64, device=device)
        wide = max(num_embeddings, total) >= 2**31 - 1
        self.places = torch.empty(total, dtype=torch.int64 if wide else torch.int32, device=device)
        self.number = torch.empty(1, dtype=torch.int64, device=device)
        plan = _unique_rows_plan(num_embeddings, total, indices.dtype, padding_idx, device_of(indices))
        plan.run(indices=indices, rows=self.rows, inverse=self.places, count=self.number)
        self.leaf: Any = None  # a weak reference to the table, if it is a leaf
        self._on_host, self._arrived = self.number, None
        if indices.is_cuda and not _is_captured(indices):
            self._on_host = self.number.to("cpu", non_blocking=True)  # to pinned memory
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(device))

    def count(self) -> int:
        """The number of rows. Waits for the device only until it has found them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return int(self._on_host)


def early_rows(indices: Tensor, weight: Tensor, padding_idx: int | None) -> FoundRows | None:
    """The rows of indices of any rank, for a forward whose gradient will be sparse; None: the backward finds them.

    A backward that finds them itself waits until the device has done all work of the forward and of the backward so far, and
    the device then waits for the host. The number that the forward asks for arrives while the device does other work.
    """
    if VARIANT in ("late", "bounded", "gathered") or not reach_plans(indices, weight) or _is_captured(indices):
        return None
    found = FoundRows(indices.reshape(-1), weight.shape[0], padding_idx)
    found.leaf = weakref.ref(weight) if weight.is_leaf else None
    return found


Sums = Callable[[Tensor, int, int | None], Tensor]
"""Computes the sum of each place from the place of each index, the number of places, and the place of padding_idx."""


def _gradient(indices: Tensor, shape: tuple[int, int], padding_idx: int | None, sums: Sums, found: FoundRows | None) -> Tensor:
    """The gradient of a table. indices: of rank 1. found: their rows, if the forward has found them."""
    found = found or FoundRows(indices, shape[0], padding_idx)
    bounded = VARIANT == "bounded" or _is_captured(indices)
    n = found.rows.shape[0] if bounded else found.count()
    first = int(padding_idx is not None)  # with padding_idx, its place is before those of the rows
    values = sums(found.places, _rounded(first + n), 0 if first else None)[first : first + n]
    rows = _repeated(found, padding_idx or 0) if bounded else found.rows[:n]
    gradient = _sparse(rows, values, shape, coalesced=not bounded)
    if VARIANT == "flagged" and not bounded and found.leaf is not None:
        _keep_flag(found.leaf, rows, values)
    return gradient


def _sparse(rows: Tensor, values: Tensor, shape: tuple[int, int], *, coalesced: bool) -> Tensor:
    # torch.sparse_coo_tensor either checks the indices, which waits for the device, or warns in torch 2.11 that it does not,
    # even where it was told not to.
    gradient: Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        1, 1, shape, rows[None], values,
        dtype=values.dtype, layout=torch.sparse_coo, device=values.device, is_coalesced=coalesced,
    )  # fmt: skip
    return gradient


def _repeated(found: FoundRows, none: int) -> Tensor:
    """The rows, and in place of -1 the same rows again. A row repeated with zeros adds nothing, and stays one when coalesced.

    none: the row to name if there is none.
    """
    k = torch.arange(len(found.rows), device=found.rows.device)
    return torch.where(found.number > 0, found.rows[k % found.number.clamp(min=1)], none)


def _keep_flag(leaf: Any, rows: Tensor, values: Tensor) -> None:
    """Mark the leaf's ``.grad`` as coalesced at the end of the backward, if it still is the gradient of these rows.

    AccumulateGrad moves a sparse gradient into ``.grad`` without its flag (torch 2.15), and SparseAdam would sort rows that are
    sorted, and wait for their number.
    """

    def mark() -> None:
        weight = leaf()
        grad = None if weight is None else weight.grad
        if grad is None or grad.layout is not torch.sparse_coo or grad._nnz() != len(rows):
            return
        if grad._indices().data_ptr() == rows.data_ptr() and grad._values().data_ptr() == values.data_ptr():
            grad._coalesced_(True)

    torch.autograd.Variable._execution_engine.queue_callback(mark)


def sparse_gradient(
    dy: Tensor, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None, num_embeddings: int, mode: str,
    padding_idx: int | None, include_last_offset: bool, scale_grad_by_freq: bool, found: FoundRows | None = None,
) -> Tensor:  # fmt: skip
    """The sparse gradient of an embedding bag."""
    weights = None if per_sample_weights is None else materialized(per_sample_weights)

    def sums(places: Tensor, rows: int, padding: int | None) -> Tensor:
        plan = _embedding_bag_plan(
            rows, dy.shape[1], dy.shape[0], places.shape[0], dy.dtype, mode, places.dtype, offsets.dtype, padding,
            include_last_offset, scale_grad_by_freq, device_of(dy), True,
        )  # fmt: skip
        values = dy.new_empty(plan.descriptor.shape)
        plan.run(dy=dy, indices=places, offsets=offsets, per_sample_weights=weights, dweight=values)
        return values

    return _gradient(indices, (num_embeddings, dy.shape[1]), padding_idx, sums, found)


def sparse_embedding_gradient(
    dy: Tensor, indices: Tensor, num_embeddings: int, padding_idx: int | None, scale_grad_by_freq: bool,
    found: FoundRows | None = None,
) -> Tensor:  # fmt: skip
    """The sparse gradient of an embedding."""
    flat, shape = indices.reshape(-1), (num_embeddings, dy.shape[-1])
    if VARIANT == "gathered" and padding_idx is None and not scale_grad_by_freq:
        return _sparse(flat.long(), dy.reshape(len(flat), -1), shape, coalesced=False)

    def sums(places: Tensor, rows: int, padding: int | None) -> Tensor:
        device = device_of(dy)
        plan = _embedding_plan(rows, shape[1], places.shape[0], dy.dtype, places.dtype, padding, scale_grad_by_freq, device)
        values = dy.new_empty(plan.descriptor.shape)
        of_dy, of_places = _rows(dy, places.view(indices.shape))
        plan.run(dy=of_dy, indices=of_places, dweight=values)
        return values

    return _gradient(flat, shape, padding_idx, sums, found)


# Both as operators, which find the rows themselves: torch.compile cannot trace sparse tensors, but accepts one of an operator.


@torch.library.custom_op("sternway::embedding_bag_sparse_backward", mutates_args=())
def sparse_operator(
    dy: Tensor, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None, num_embeddings: int, mode: str,
    padding_idx: int | None, include_last_offset: bool, scale_grad_by_freq: bool,
) -> Tensor:  # fmt: skip
    """:func:`sparse_gradient` as an operator."""
    options = mode, padding_idx, include_last_offset, scale_grad_by_freq
    return sparse_gradient(dy, indices, offsets, per_sample_weights, num_embeddings, *options)


@torch.library.custom_op("sternway::embedding_sparse_backward", mutates_args=())
def sparse_embedding_operator(
    dy: Tensor, indices: Tensor, num_embeddings: int, padding_idx: int | None, scale_grad_by_freq: bool
) -> Tensor:
    """:func:`sparse_embedding_gradient` as an operator."""
    return sparse_embedding_gradient(dy, indices, num_embeddings, padding_idx, scale_grad_by_freq)


@sparse_operator.register_fake
def _(dy: Tensor, *inputs: Any) -> Tensor:
    return dy.new_empty((inputs[3], dy.shape[1]), layout=torch.sparse_coo)


@sparse_embedding_operator.register_fake
def _(dy: Tensor, *inputs: Any) -> Tensor:
    return dy.new_empty((inputs[1], dy.shape[-1]), layout=torch.sparse_coo)


def _rounded(n: int) -> int:
    """n rounded up by at most 1/16: it differs from step to step, and rounded numbers are found in the cache of plans."""
    step = 1 << max(0, n.bit_length() - 5)
    return -(-n // step) * step


def most_rows(num_embeddings: int, total: int, padding_idx: int | None) -> int:
    """The largest number of rows for which a sparse gradient selects a plan."""
    return _rounded(min(num_embeddings, total) + (padding_idx is not None))
