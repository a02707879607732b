"""What every test shares: the tolerance rule, layouts, poisoned and guarded outputs, snapshots, reports."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sternway as sw
from sternway import _cases
from sternway._cases.case import roundings
from sternway._dtypes import ACCUMULATORS

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
ACCUMULATOR = {getattr(torch, name): getattr(torch, wide) for name, wide in ACCUMULATORS.items()}
FLOATS = tuple(ACCUMULATOR)
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# --- Pairwise choice --------------------------------------------------------------------------------------------------

ALL = False
"""Whether every combination is run: ``pytest --all``."""


def covering(rows: Sequence[set[Any]]) -> list[int]:
    """Choose rows, greedily, that together have everything that any row has; gives back their numbers in order."""
    missing, chosen = set().union(*rows), []
    while missing:
        best = max(range(len(rows)), key=lambda k: len(rows[k] & missing))
        chosen.append(best)
        missing -= rows[best]
    return sorted(chosen)


def pairs(row: Iterable[Any]) -> set[Any]:
    """The values of a row by axis, and every two of them."""
    values = list(enumerate(row))
    return {*values, *itertools.combinations(values, 2)}


def pairwise(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows of a product in which every two values of two axes meet; the whole product with ``--all``."""
    table = [list(axis) for axis in axes]
    places = list(itertools.product(*(range(len(axis)) for axis in table)))
    chosen = places if ALL else [places[k] for k in covering([pairs(row) for row in places])]
    return [tuple(axis[k] for axis, k in zip(table, row, strict=True)) for row in chosen]


def gradcheck(function: Callable[..., Any], inputs: Any, **options: Any) -> bool:
    """torch.autograd.gradcheck, by one random projection of the Jacobian, or with ``--all`` element by element."""
    return torch.autograd.gradcheck(function, inputs, fast_mode=not ALL, **options)


def gradgradcheck(function: Callable[..., Any], inputs: Any, **options: Any) -> bool:
    """torch.autograd.gradgradcheck, in the way of gradcheck."""
    return torch.autograd.gradgradcheck(function, inputs, fast_mode=not ALL, **options)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def values_of(y: Any) -> Tensor:
    """A result, or the values of one with indices."""
    return y[0] if isinstance(y, tuple) else y


def is_ours(y: Any) -> bool:
    """Whether autograd recorded a result by a function of sternway."""
    node = values_of(y).grad_fn
    return getattr(type(node), "_forward_cls", type(node)).__module__.startswith("sternway")


class Subclass(Tensor):
    """A class of tensors without behavior of its own."""


def free_memory() -> int:
    """Bytes that Linux could hand out without swapping."""
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
    return int(line.split()[1]) << 10


DIRECTIONS = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])

# --- The tolerance rule -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """One output in float64: its value, and the magnitude that the roundings on the way act on.

    Without a sum `size` is |value|. With one it is the 2-norm of the terms where that is larger, because the rounding
    errors of a sum that cancels are relative to its terms and not to what is left of them.
    """

    value: Tensor
    size: Tensor
    dtype: torch.dtype  # of the result
    carried: torch.dtype  # of the accumulator
    roundings: float = roundings(1)  # of the accumulator that the result may carry


def wide(x: Tensor) -> np.ndarray:
    """An array in NumPy's longdouble."""
    return x.detach().cpu().to(F64).numpy().astype(np.longdouble)


def stated(found: _cases.Truth, like: Tensor, dtype: torch.dtype, data: torch.dtype) -> Truth:
    """What a definition says of an output of the shape and on the device of `like`; data: the dtype of the main operand."""
    both = (torch.from_numpy(np.array(x, np.float64)) for x in (found.value, found.size))
    value, size = (x.reshape(like.shape).to(like.device) for x in both)
    return Truth(value, torch.maximum(size, value.abs()), dtype, ACCUMULATOR[data], found.roundings)


def summed(terms: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Truth:
    """Sum float64 `terms` over the dims in which `shape` is narrower."""
    like = terms.new_empty(tuple(shape))
    with np.errstate(invalid="ignore"):  # inf - inf
        return stated(_cases.summed(wide(terms), like), like, dtype, dtype)


@dataclass(frozen=True)
class Deviation:
    """How far a result is from the truth: norm-wise, and in units of the last place of its row's largest element."""

    norm: float
    ulps: float


def allowed(truth: Truth) -> Deviation:
    """One rounding of the result dtype and the roundings of the accumulator."""
    eps, carried = torch.finfo(truth.dtype).eps, torch.finfo(truth.carried).eps
    return Deviation(eps / 2 + truth.roundings * carried / 2, 0.5 + truth.roundings * carried / eps)


def deviation(out: Tensor, truth: Truth) -> Deviation:
    """Measures `out`; NaN and infinity must stand where the truth, rounded to the result dtype, has them."""
    got, want, size = (t.double().cpu() for t in (out, truth.value, truth.size))
    rounded = want.to(truth.dtype).double()
    finite = rounded.isfinite()
    torch.testing.assert_close(got[~finite], rounded[~finite], rtol=0, atol=0, equal_nan=True)
    assert got[finite].isfinite().all(), "not finite where the truth is finite"
    if not finite.any():
        return Deviation(0.0, 0.0)
    info = torch.finfo(truth.dtype)
    half_subnormal = info.tiny * info.eps / 2
    error = torch.where(finite, (got - want).abs() - half_subnormal, 0.0).clamp(min=0.0)
    size = torch.where(finite & size.isfinite(), size, 0.0).clamp(min=info.tiny)
    last = size.shape[-1] if size.ndim else 1
    largest = size.reshape(-1, last).amax(1)
    unit = info.eps * torch.exp2(torch.frexp(largest).exponent.to(F64) - 1)
    ulps = (error.reshape(-1, last).amax(1) / unit).max()
    scale = size.max()  # so that no square under- or overflows
    return Deviation(float((error / scale).norm() / (size / scale).norm()), float(ulps))


REPORT: dict[tuple[str, str, str], tuple[Deviation, Deviation]] = {}  # (label, dtype, device) -> worst of ours, worst of torch


def check(label: str, out: Tensor, truth: Truth, rival: Tensor | None = None) -> None:
    """Fails unless `out` is as near to the truth as torch's own result `rival`, or within the roundings allowed."""
    assert tuple(out.shape) == tuple(truth.value.shape), f"{label}: shape {tuple(out.shape)}, wanted {tuple(truth.value.shape)}"
    assert out.dtype == truth.dtype, f"{label}: dtype {out.dtype}, wanted {truth.dtype}"
    if out.numel() == 0:
        return
    if not truth.dtype.is_floating_point:
        assert torch.equal(out.to(F64), truth.value), f"{label}: integers that differ"
        return
    ours, limit = deviation(out, truth), allowed(truth)
    theirs = Deviation(0.0, 0.0)  # no allowance where torch was not asked, or is not even finite
    if rival is not None and torch.equal(rival.isfinite(), truth.value.to(truth.dtype).isfinite()):
        theirs = deviation(rival, truth)
    key = (label, name_of(truth.dtype), out.device.type)
    worst = REPORT.get(key, (ours, theirs))
    REPORT[key] = tuple(Deviation(max(a.norm, b.norm), max(a.ulps, b.ulps)) for a, b in zip(worst, (ours, theirs), strict=True))
    said = f"{label} {name_of(truth.dtype)} {tuple(out.shape)}"
    assert ours.norm <= max(limit.norm, theirs.norm), (
        f"{said}: norm-wise {ours.norm:.3g} > {limit.norm:.3g} (torch {theirs.norm:.3g})"
    )
    assert ours.ulps <= max(limit.ulps, theirs.ulps), (
        f"{said}: {ours.ulps:.3g} ulp > {limit.ulps:.3g} (torch {theirs.ulps:.3g})"
    )


# --- Memory -----------------------------------------------------------------------------------------------------------

GUARD = 64  # elements in front of and behind each tensor; keeps the alignment of the allocation
OUTPUT_LAYOUTS = ("contiguous", "offset", "transposed", "rotated", "stepped", "pitched")
INPUT_LAYOUTS = (*OUTPUT_LAYOUTS, "expanded", "inner_expanded", "constant")  # these three have strides of 0


def strides_of(layout: str, shape: Sequence[int]) -> list[int]:
    """Strides in elements of a named memory layout."""
    slowest_first = list(range(len(shape)))
    if layout == "transposed":
        slowest_first.reverse()
    elif layout == "rotated":
        slowest_first = slowest_first[1:] + slowest_first[:1]
    strides = [0] * len(shape)
    step = 2 if layout == "stepped" else 1
    for turn, dim in enumerate(reversed(slowest_first)):
        strides[dim] = step
        step *= max(shape[dim], 1)
        step += 3 if layout == "pitched" and turn == 0 else 0
    wide = [d for d, extent in enumerate(shape) if extent > 1]
    if layout == "expanded" and wide:
        strides[wide[0]] = 0
    elif layout == "inner_expanded" and wide:
        strides[wide[-1]] = 0
    elif layout == "constant":
        strides = [0] * len(shape)
    return strides


def place(shape: Sequence[int], dtype: torch.dtype, device: str, layout: str = "contiguous") -> tuple[Tensor, Tensor]:
    """Make a view in the layout, inside a buffer whose every bit is set (a NaN in each floating dtype)."""
    strides = strides_of(layout, shape)
    offset = GUARD + (layout == "offset")
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True) if extent)
    buffer = torch.full((offset + max(span, 1) + GUARD,), -1, dtype=BITS[dtype.itemsize], device=device)
    return buffer.view(dtype).as_strided(tuple(shape), strides, offset), buffer


def arrange(values: Tensor, layout: str = "contiguous") -> Tensor:
    """Copy the values to another layout, between poison; along a stride of 0 the first slice stands for all."""
    view, _ = place(values.shape, values.dtype, values.device, layout)
    target = view
    for dim, stride in enumerate(view.stride()):
        if stride == 0 and view.shape[dim] > 1:
            target, values = target.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    target.copy_(values)
    return view


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(BITS[tensor.element_size()])


def refusal(errors: type[Exception] | tuple[type[Exception], ...], call: Callable[[], object]) -> Exception | None:
    """Call, and give back the error of these classes that came of it, or None."""
    try:
        call()
    except errors as error:
        return error
    return None


class Guarded:
    """An output inside a poisoned buffer."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: str, layout: str = "contiguous") -> None:
        self.tensor, self.buffer = place(shape, dtype, device, layout)

    def take(self) -> Tensor:
        """Give back what was written; fail if a bit outside the view (guards, gaps between strides) is no longer poison."""
        values = self.tensor.clone(memory_format=torch.contiguous_format)
        bits(self.tensor).fill_(-1)
        assert (self.buffer == -1).all(), "memory outside the output was written"
        return values


class Snapshot:
    """The memory behind some tensors, to prove later that nobody wrote there."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.before = {name: self.memory(t).clone() for name, t in tensors.items()}

    @staticmethod
    def memory(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),))

    def check(self) -> None:
        for name, tensor in self.tensors.items():
            assert torch.equal(self.memory(tensor), self.before[name]), f"{name} was written"


class Maker:
    """Random operands, the same on each device."""

    def __init__(self, dtype: torch.dtype, device: str, seed: int = 0, positive: bool = False) -> None:
        self.dtype, self.device, self.positive = dtype, device, positive
        self.generator = torch.Generator().manual_seed(seed)

    def floats(self, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """Draw normal numbers; or uniform in [0.5, 1.5) / 1024, whose sums neither cancel nor overflow in 16 bits."""
        if self.positive:
            return self.uniform(0.5 / 1024, 1.5 / 1024, shape, dtype)
        return torch.randn(tuple(shape), dtype=F64, generator=self.generator).to(self.device, dtype or self.dtype)

    def uniform(self, low: float, high: float, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        unit = torch.rand(tuple(shape), dtype=F64, generator=self.generator)
        return (low + (high - low) * unit).to(self.device, dtype or self.dtype)

    def integers(self, low: int, high: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high + 1, tuple(shape), generator=self.generator).to(self.device, dtype)


# --- Errors -----------------------------------------------------------------------------------------------------------


def unbracketed(text: str) -> str:
    """[4, 6], (4, 6) and [4 6] are one way to write a shape."""
    return re.sub(r"[\[\]() ,]", "", text)


def one_sentence(error: Exception, operand: str, words: tuple[str, ...]) -> None:
    text = str(error)
    assert "\n" not in text
    assert "{" not in text
    assert 10 < len(text) < 400
    for word in (operand, *words):
        assert unbracketed(word) in unbracketed(text), f"{word!r} is not in: {text}"
    if isinstance(error, sw.Error):
        assert error.op, text
        assert text.startswith(error.op), text
        for part in (error.operand, error.wanted, error.got, error.hint):
            assert part is None or isinstance(part, (str, int)), text
        assert not operand or error.operand == operand, (error.operand, text)
    if isinstance(error, (sw.BufferTooSmallError, sw.WorkspaceTooSmallError)):
        assert error.needed > int(error.got)
