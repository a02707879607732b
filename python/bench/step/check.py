"""Checks of results before they are timed: gradients and values against a more precise computation by torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..._cases import FORMATS, Truth
from .case import Checked, Contestant

SLACK = 1.05
"""Times the error of torch that a whole network may have.

The roundings of one operation reach all gradients behind it, so that the errors of two equally precise ways differ by chance.
"""


class WrongResultError(Exception):
    """A result of sternway that is further from the truth than the rules allow; it gets no time."""


def roundings(dtype: str, count: float) -> float:
    """The norm-wise error of one rounding to a dtype and of `count` roundings of its accumulator."""
    return FORMATS[dtype].eps / 2 + count * FORMATS[dtype].carried / 2


def deviation(result: Any, truth: Truth) -> float:
    """The 2-norm of the deviation divided by that of the magnitude that roundings act on; infinite where it is not finite."""
    if not math.prod(result.shape):
        return 0.0
    found = float((result.double() - truth.value).norm() / truth.size.norm())
    return found if math.isfinite(found) else math.inf


def require(name: str, ours: float, allowed: float, theirs: float) -> None:
    """Raise WrongResultError unless our error is allowed, or at most that of torch."""
    if not ours <= max(allowed, theirs if math.isfinite(theirs) else 0.0):
        raise WrongResultError(f"{name} is {ours:.2g} from the truth, allowed are {allowed:.2g}, torch has {theirs:.2g}")


def against(reference: Sequence[Any], contestants: Mapping[str, Contestant], dtype: str, terms: int) -> dict[str, Checked]:
    """Compare the gradients of contestants with those of a reference, all together by their norm.

    Args:
        reference: the gradients in a wider dtype, dense or sparse.
        terms: the number of terms of the longest sum.

    Raises:
        WrongResultError: sternway's error is above the roundings that are allowed and above 1.05 times that of torch.
    """
    found = {}
    for name, contestant in contestants.items():
        if contestant.step is not None:
            gradients = (contestant.gradients or contestant.step)()
            found[name] = Checked(relative(gradients, reference))
            del gradients
    allowed = roundings(dtype, 4 + math.log2(max(terms, 1)))
    require("the gradient", found["sternway"].error, allowed, SLACK * found["torch"].error)
    return found


def wider(x: Any) -> Any:
    """A tensor in the dtype of references: float64 for float32, float32 for 16 bits."""
    return x.double() if x.dtype.itemsize >= 4 else x.float()


def relative(gradients: Iterable[Any], reference: Iterable[Any]) -> float:
    """The norm of all deviations together, divided by the norm of the reference; infinite where it is not finite."""
    wrong = whole = 0.0
    for gradient, truth in zip(gradients, reference, strict=True):
        ours, theirs = pair(gradient, truth)
        wrong += float((ours.to(theirs.dtype) - theirs).norm()) ** 2
        whole += float(theirs.norm()) ** 2
    found = math.sqrt(wrong / whole)
    return found if math.isfinite(found) else math.inf


def pair(gradient: Any, truth: Any) -> tuple[Any, Any]:
    """A gradient and its truth as dense tensors; of sparse ones the values of their rows, which must be the same."""
    if not truth.is_sparse:
        return gradient, truth
    gradient, truth = gradient.coalesce(), truth.coalesce()
    if not gradient.indices().equal(truth.indices()):
        raise WrongResultError("a sparse gradient has other rows than that of torch")
    return gradient.values(), truth.values()
