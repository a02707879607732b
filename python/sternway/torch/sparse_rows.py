"""Sparse gradients of a table, with one row for each index that occurs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._unique_rows import unique_rows
from ..embedding import embedding_backward
from ..embedding_bag import embedding_bag_backward
from ._calls import materialized


def _coalesced(
    indices: Tensor, shape: tuple[int, int], padding_idx: int | None, sums: Callable[[Tensor, int, int | None], Tensor]
) -> Tensor:
    """The coalesced gradient of a table. The host reads the number of rows, as torch's coalesce does.

    Args:
        indices: of rank 1.
        shape: of the table.
        padding_idx: the row that is not counted.
        sums: computes the sum of each place from the place of each index, the number of places, and the place of padding_idx.
    """
    rows, places, count = unique_rows(indices, shape[0], padding_idx=padding_idx)
    n, first = int(count), int(padding_idx is not None)  # with padding_idx, its place is before those of the rows
    values = sums(places, _rounded(first + n), 0 if first else None)[first : first + n]
    # torch.sparse_coo_tensor either checks the indices, which waits for the device, or warns in torch 2.11 that it does not,
    # even where it was told not to.
    gradient: Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        1, 1, shape, rows[None, :n], values,
        dtype=values.dtype, layout=torch.sparse_coo, device=values.device, is_coalesced=True,
    )  # fmt: skip
    return gradient


def sparse_gradient(
    dy: Tensor, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None,
    num_embeddings: int, mode: str, padding_idx: int | None, include_last_offset: bool, scale_grad_by_freq: bool,
) -> Tensor:  # fmt: skip
    """The coalesced gradient of an embedding bag."""
    weights = None if per_sample_weights is None else materialized(per_sample_weights)

    def sums(places: Tensor, rows: int, padding: int | None) -> Tensor:
        return embedding_bag_backward(  # type: ignore[no-any-return]
            dy, places, offsets, num_embeddings=rows, mode=mode, padding_idx=padding, per_sample_weights=weights,
            include_last_offset=include_last_offset, scale_grad_by_freq=scale_grad_by_freq,
        )  # fmt: skip

    return _coalesced(indices, (num_embeddings, dy.shape[1]), padding_idx, sums)


def sparse_embedding_gradient(
    dy: Tensor, indices: Tensor, num_embeddings: int, padding_idx: int | None, scale_grad_by_freq: bool
) -> Tensor:
    """The coalesced gradient of an embedding."""

    def sums(places: Tensor, rows: int, padding: int | None) -> Tensor:
        return embedding_backward(  # type: ignore[no-any-return]
            dy, places.view(indices.shape), num_embeddings=rows, padding_idx=padding, scale_grad_by_freq=scale_grad_by_freq
        )

    return _coalesced(indices.reshape(-1), (num_embeddings, dy.shape[-1]), padding_idx, sums)


sparse_operator = torch.library.custom_op("sternway::embedding_bag_sparse_backward", sparse_gradient, mutates_args=())
"""sparse_gradient as an operator. torch.compile cannot trace sparse tensors, but accepts one from an operator."""

sparse_embedding_operator = torch.library.custom_op(
    "sternway::embedding_sparse_backward", sparse_embedding_gradient, mutates_args=()
)
"""sparse_embedding_gradient as an operator."""


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
