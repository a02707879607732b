"""Sparse gradients of a table, with one row for each index that occurs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_of
from ..._embedding import _embedding_plan, _rows
from ..._embedding_bag import _embedding_bag_plan
from ..._unique_rows import _unique_rows_plan
from .calls import resolve

Leaf = weakref.ref[Tensor]
"""A table that is a leaf, which the node of its gradient must not keep alive."""


def leaf_of(weight: Tensor) -> Leaf | None:
    """A weak reference to weight if its gradient goes into its ``.grad``."""
    return weakref.ref(weight) if weight.is_leaf else None


class _Rows(NamedTuple):
    """The distinct rows of indices.

    Attributes:
        rows: the distinct rows in ascending order, then -1.
        places: the place of each index among them; with a padding_idx counted from 1, and its own place is 0.
        number: how many there are, on the device.
    """

    rows: Tensor
    places: Tensor
    number: Tensor


def _find_rows(indices: Tensor, num_embeddings: int, padding_idx: int | None) -> _Rows:
    total, device = len(indices), indices.device
    wide = max(num_embeddings, total) >= 2**31 - 1
    found = _Rows(
        torch.empty(min(num_embeddings, total), dtype=torch.int64, device=device),
        torch.empty(total, dtype=torch.int64 if wide else torch.int32, device=device),
        torch.empty(1, dtype=torch.int64, device=device),
    )
    plan = _unique_rows_plan(num_embeddings, total, indices.dtype, padding_idx, device_of(indices))
    plan.run(indices=indices, rows=found.rows, inverse=found.places, count=found.number)
    return found


Sums = Callable[[Tensor, int, int | None], Tensor]
"""Computes the sum of each place from the place of each index, the number of places, and the place of padding_idx."""


def _gradient(indices: Tensor, shape: tuple[int, int], padding_idx: int | None, sums: Sums, leaf: Leaf | None) -> Tensor:
    """The gradient of a table. indices: of rank 1.

    A sparse tensor states the number of its rows on the host, so the host waits until the device has found them. Work that goes
    into a CUDA graph cannot be waited for: there the gradient has as many rows as there can be, and is not coalesced.
    """
    found = _find_rows(indices, shape[0], padding_idx)
    captured = indices.is_cuda and torch.cuda.is_current_stream_capturing()
    n = len(found.rows) if captured else int(found.number)
    first = int(padding_idx is not None)  # with padding_idx, its place is before those of the rows
    values = sums(found.places, _rounded(first + n), 0 if first else None)[first : first + n]
    rows = _repeated(found, padding_idx or 0) if captured else found.rows[:n]
    # torch.sparse_coo_tensor either checks the indices, which waits for the device, or warns in torch 2.11 that it does not,
    # even where it was told not to.
    gradient: Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        1, 1, shape, rows[None], values,
        dtype=values.dtype, layout=torch.sparse_coo, device=values.device, is_coalesced=not captured,
    )  # fmt: skip
    if leaf is not None and not captured:
        _keep_flag(leaf, rows, values)
    return gradient


def _repeated(found: _Rows, none: int) -> Tensor:
    """The rows, and in place of -1 the same rows again. A row repeated with zeros adds nothing, and stays one when coalesced.

    none: the row to name if there is none.
    """
    k = torch.arange(len(found.rows), device=found.rows.device)
    return torch.where(found.number > 0, found.rows[k % found.number.clamp(min=1)], none)


def _keep_flag(leaf: Leaf, rows: Tensor, values: Tensor) -> None:
    """Mark the leaf's ``.grad`` as coalesced when it is stored, if it is the gradient of these rows and values.

    AccumulateGrad moves a sparse gradient into ``.grad`` without its flag (torch 2.15), and SparseAdam and Adagrad would sort
    rows that are sorted, and wait for their number. The mark precedes all other hooks: DistributedDataParallel reduces the
    gradient in another thread from a hook on, and a flag that changes meanwhile is an error there. So there is no mark if
    the leaf has such a hook of somebody else, which would be called before.
    """
    weight = leaf()
    if weight is None or not weight.requires_grad or weight._post_accumulate_grad_hooks:
        return

    def mark(weight: Tensor) -> None:
        grad = weight.grad
        if grad is None or grad.layout is not torch.sparse_coo or grad._nnz() != len(rows):
            return
        if grad._indices().data_ptr() == rows.data_ptr() and grad._values().data_ptr() == values.data_ptr():
            grad._coalesced_(True)

    handle = weight.register_post_accumulate_grad_hook(mark)  # type: ignore[no-untyped-call]
    torch.autograd.Variable._execution_engine.queue_callback(handle.remove)  # which torch.autograd.grad reaches without a mark


def sparse_gradient(
    dy: Tensor, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None, num_embeddings: int, mode: str,
    padding_idx: int | None, include_last_offset: bool, scale_grad_by_freq: bool, leaf: Leaf | None = None,
) -> Tensor:  # fmt: skip
    """The sparse gradient of an embedding bag. leaf: the table, whose ``.grad`` it goes into."""
    weights = None if per_sample_weights is None else resolve(per_sample_weights)

    def sums(places: Tensor, rows: int, padding: int | None) -> Tensor:
        plan = _embedding_bag_plan(
            rows, dy.shape[1], dy.shape[0], places.shape[0], dy.dtype, mode, places.dtype, offsets.dtype, padding,
            include_last_offset, scale_grad_by_freq, device_of(dy), True,
        )  # fmt: skip
        values = dy.new_empty(plan.descriptor.shape)
        plan.run(dy=dy, indices=places, offsets=offsets, per_sample_weights=weights, dweight=values)
        return values

    return _gradient(indices, (num_embeddings, dy.shape[1]), padding_idx, sums, leaf)


def sparse_embedding_gradient(
    dy: Tensor, indices: Tensor, num_embeddings: int, padding_idx: int | None, scale_grad_by_freq: bool,
    leaf: Leaf | None = None,
) -> Tensor:  # fmt: skip
    """The sparse gradient of an embedding. leaf: the table, whose ``.grad`` it goes into."""
    flat, shape = indices.reshape(-1), (num_embeddings, dy.shape[-1])

    def sums(places: Tensor, rows: int, padding: int | None) -> Tensor:
        device = device_of(dy)
        plan = _embedding_plan(rows, shape[1], places.shape[0], dy.dtype, places.dtype, padding, scale_grad_by_freq, device)
        values = dy.new_empty(plan.descriptor.shape)
        of_dy, of_places = _rows(dy, places.view(indices.shape))
        plan.run(dy=of_dy, indices=of_places, dweight=values)
        return values

    return _gradient(flat, shape, padding_idx, sums, leaf)


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
