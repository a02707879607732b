"""The optimizers of tables that learn in the backward: their first update by definition, and torch's optimizers beside them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

RULES = ("sgd", "rowwise_adagrad", "adagrad", "adam")
RATES = {"sgd": 0.1, "rowwise_adagrad": 0.01, "adagrad": 0.01, "adam": 0.01}
BETAS = 0.9, 0.999
EPS = 1e-3  # not torch's: a first update divides a gradient by its size, which would make whole steps of its roundings


def options(rule: str) -> dict[str, Any]:
    """The options of an optimizer by torch's names."""
    return {} if rule == "sgd" else {"eps": EPS}


def of_torch(rule: str) -> str:
    """The rule that torch has, or that is nearest: it has no "rowwise_adagrad"."""
    return "adagrad" if rule == "rowwise_adagrad" else rule


def by_torch(rule: str, tables: Sequence[Any]) -> Any:
    """The optimizer of torch for sparse gradients of tables, by :func:`of_torch`."""
    import torch

    kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}
    return kinds[of_torch(rule)](tables, lr=RATES[rule], **options(rule))


@contextlib.contextmanager
def without_sparse_warning() -> Iterator[None]:
    """Hide torch's warning of sparse tensors that nothing checks, which its own Adagrad makes from valid indices."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled", UserWarning)
        yield


def first_update(rule: str, weight: Any, gradient: Any) -> Any:
    """The rows of a table after the first update, from their gradient, in the dtype of both."""
    rate = RATES[rule]
    if rule == "sgd":
        return weight - rate * gradient
    if rule == "rowwise_adagrad":
        return weight - rate * gradient / (gradient.square().mean(1, keepdim=True).sqrt() + EPS)
    if rule == "adagrad":
        return weight - rate * gradient / (gradient.abs() + EPS)
    root = (1 - BETAS[1]) ** 0.5  # the bias corrections of step 1 leave it in front of eps alone
    return weight - rate * root * gradient / (root * gradient.abs() + EPS)


def of_rows(gradients: Any, indices: Any, bag: int) -> tuple[Any, Any]:
    """The rows that indices name, and the sums of the gradients of their bags, each of `bag` positions."""
    import torch

    rows, places = torch.unique(indices, return_inverse=True)
    sums = gradients.new_zeros(len(rows), gradients.shape[1])
    return rows, sums.index_add_(0, places, gradients.repeat_interleave(bag, 0))


def deviation(found: Any, truth: Any) -> float:
    """The 2-norm of the deviation divided by that of the truth."""
    return float((found.to(truth.dtype) - truth).norm() / truth.norm())
