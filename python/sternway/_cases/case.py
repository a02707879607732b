"""Cases: ways to call an operation, for any shape, dtype and device, with arrays of torch or NumPy."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .._arrays import Array, dtype_name
from .._descriptor import Descriptor
from .._dtypes import ACCUMULATORS, DTYPES
from .._plan import Plan
from .source import Source

Shape = tuple[int, ...]
Values = types.SimpleNamespace
"""The arrays and numbers of one problem by name; dy is always among them."""


@dataclass(frozen=True)
class Format:
    """A floating dtype: the distance from 1 to the next number, the smallest normal number, and the eps of its accumulator."""

    eps: float
    tiny: float
    carried: float


FORMATS = {
    name: Format(DTYPES[name].eps, DTYPES[name].tiny, DTYPES[accumulator].eps) for name, accumulator in ACCUMULATORS.items()
}


@dataclass(frozen=True)
class Truth:
    """One output in the widest format, the magnitude its rounding errors scale with, and the accumulator roundings allowed.

    exact: where the output must be equal to the value; None: nowhere.
    """

    value: Array
    size: Array
    roundings: float
    exact: Array | None = None


def roundings(n: int) -> float:
    """The roundings of the accumulator that a sum of n terms may carry, which is added in blocks."""
    return 4 + math.log2(max(n, 1))


def blocks(shape: Sequence[int], extents: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """A shape whose dimensions are two each where an extent divides them: blocks and their elements. And the latter dimensions.

    extents: of each dimension, a divisor; at the end they may be left out where they are 1.
    """
    split: list[int] = []
    within: list[int] = []
    for n, extent in zip(shape, (*extents, *[1] * (len(shape) - len(extents))), strict=True):
        split.append(extent)
        if extent != n:
            within.append(len(split))
            split.append(n // extent)
    return split, tuple(within)


def summed(terms: Array, like: Array, size: Array | None = None) -> Truth:
    """The sum over the dimensions that `like` is broadcast along, and over blocks where its extents are other divisors.

    Its roundings scale with the 2-norm of the terms, or of `size`, and not with the sum, since terms may cancel.
    """
    lead = terms.ndim - like.ndim
    split, dims = blocks(terms.shape, (*[1] * lead, *like.shape))
    size = abs(terms) if size is None else size
    shape = tuple(like.shape)
    if not dims:
        return Truth(terms.reshape(shape), size.reshape(shape), roundings(1))
    total = terms.reshape(split).sum(dims).reshape(shape)
    norm = (size * size).reshape(split).sum(dims).reshape(shape) ** 0.5
    return Truth(total, norm, roundings(math.prod(split[d] for d in dims)))


@dataclass(frozen=True)
class Output:
    """A result: the name of the input whose shape and floating dtype it has, and its value by definition.

    A gradient has those of the input that it is the gradient of. in_place: a run reads the output too, which begins as a
    copy of the input.
    """

    of: str
    truth: Callable[[Values], Truth]
    in_place: bool = False


@dataclass(frozen=True)
class Case:
    """One way to call an operation.

    Attributes:
        family: the word that names its files, such as ``lerp``.
        name: the variant of the operation.
        plan: the class of its plan.
        inputs: makes the inputs of the forward and dy, at a shape, in a dtype.
        describe: the descriptor of a problem.
        reads: the operands that a run reads; every array where empty.
        outputs: the operands that it writes.
        torch: the forward in operations of torch, which autograd differentiates for the plan of a backward. For outputs in
            place it is the operation itself, which may write into their inputs.
        rival: that in words.
        drop_in: the forward of ``sternway.torch``, where there is one.
        cpu, cuda: the shapes that the benchmark measures there.
        demo: the shape that the demo runs; None: it leaves the case out.
        stored: the dtypes of inputs that are only stored, such as float8_e5m2.
        moved: the elements of an operand, by its name, that an ideal run moves; operands that it moves as a whole are left
            out. None: all are.
    """

    family: str
    name: str
    plan: type[Plan[Any]]
    inputs: Callable[[Source, Shape, str], Values]
    describe: Callable[[Values], Descriptor]
    outputs: dict[str, Output]
    torch: Callable[[Values], Any]
    rival: str
    reads: tuple[str, ...] = ()
    drop_in: Callable[[Values], Any] | None = None
    cpu: tuple[Shape, ...] = ()
    cuda: tuple[Shape, ...] = ()
    demo: Shape | None = None
    stored: tuple[str, ...] = ()
    moved: Callable[[Values], dict[str, int]] | None = None

    @property
    def op(self) -> str:
        """The name of the function, ``lerp_backward``."""
        return self.plan.descriptor_type.family

    @property
    def is_forward(self) -> bool:
        """Whether the plan computes the operation itself, and no gradient."""
        return not self.op.endswith("_backward")

    @property
    def is_in_place(self) -> bool:
        """Whether a run reads what it overwrites."""
        return any(output.in_place for output in self.outputs.values())


class Problem:
    """A case at one shape, in one dtype, on one device."""

    def __init__(self, case: Case, source: Source, shape: Shape, dtype: str) -> None:
        self.case, self.source, self.shape, self.dtype = case, source, shape, dtype
        self.values = case.inputs(source, shape, dtype)
        self.plan: Plan[Any] = case.plan.select(case.describe(self.values), source.device)

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """The inputs that a run reads."""
        for name, value in vars(self.values).items():
            if hasattr(value, "shape") and name in (self.case.reads or (name,)):
                yield name, value

    def output_dtype(self, name: str) -> str:
        """The dtype of an output: that of its input, or dy's if the input holds integers."""
        dtype = dtype_name(getattr(self.values, self.case.outputs[name].of).dtype)
        return dtype if dtype in FORMATS else self.dtype

    def outputs(self, poisoned: bool = True) -> dict[str, Array]:
        """New outputs, filled with NaN or uninitialized; copies of the inputs of those in place."""
        new, found = self.source.poisoned if poisoned else self.source.empty, {}
        for name, output in self.case.outputs.items():
            of = getattr(self.values, output.of)
            found[name] = copied(of) if output.in_place else new(tuple(of.shape), self.output_dtype(name))
        return found

    def bytes(self) -> int:
        """The bytes that an ideal run moves: each operand once, and one in place twice."""
        part = self.case.moved(self.values) if self.case.moved else {}
        operands = (*self.arrays(), *self.outputs(poisoned=False).items())
        return sum(part.get(name, math.prod(x.shape)) * x.dtype.itemsize for name, x in operands)

    def operands(self, poisoned: bool = True) -> dict[str, Array]:
        """All operands of a run, with new outputs."""
        return {**dict(self.arrays()), **self.outputs(poisoned)}

    def run(self) -> dict[str, Array]:
        """The results of the plan."""
        operands = self.operands()
        self.plan.run(**operands)
        return {name: operands[name] for name in self.case.outputs}

    def by_torch(self) -> Callable[[], dict[str, Any]]:
        """torch's way to all outputs, which can be called any number of times: the case's forward, or its backward.

        Outputs in place begin as copies of their inputs, and each call goes on from the call before.
        """
        if not self.case.is_forward and not self.case.is_in_place:
            return self.backward(self.case.torch)
        import torch

        inputs = {output.of: getattr(self.values, output.of) for output in self.case.outputs.values() if output.in_place}
        values = Values(**{**vars(self.values), **{name: copied(x) for name, x in inputs.items()}})

        @torch.no_grad()
        def forward() -> dict[str, Any]:
            results = self.case.torch(values)
            return dict(zip(self.case.outputs, results if isinstance(results, tuple) else (results,), strict=False))

        return forward

    def backward(self, forward: Callable[[Values], Any], names: Iterable[str] = ()) -> Callable[[], dict[str, Any]]:
        """The backward of a torch forward, which can be called any number of times.

        names: the gradients that it computes; all outputs where empty.
        """
        import torch

        values, leaves = self._recorded(names)
        y, dy, into = forward(values), values.dy, tuple(leaves.values())
        return lambda: dict(zip(leaves, torch.autograd.grad(y, into, dy, retain_graph=True), strict=True))

    def step(self, forward: Callable[[Values], Any], names: Iterable[str] = ()) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """A torch forward that autograd records, and this forward with its backward.

        names: as for ``backward``.
        """
        import torch

        values, leaves = self._recorded(names)
        into = tuple(leaves.values())
        return lambda: forward(values), lambda: torch.autograd.grad(forward(values), into, values.dy)

    def _recorded(self, names: Iterable[str]) -> tuple[Values, dict[str, Any]]:
        """The values with leaves of autograd in place of some, and the leaves by the name of the gradient."""
        values, leaves = Values(**vars(self.values)), {}
        for name in names or self.case.outputs:
            of = getattr(values, self.case.outputs[name].of)
            leaf = of if of.is_floating_point() else of.to(values.dy.dtype)
            leaves[name] = leaf.detach().requires_grad_()
            setattr(values, self.case.outputs[name].of, leaves[name])
        return values, leaves

    def truths(self) -> dict[str, Truth]:
        """Every output by definition, in the format of `wide`."""
        values = Values(**{k: wide(v) if hasattr(v, "shape") else v for k, v in vars(self.values).items()})
        return {name: output.truth(values) for name, output in self.case.outputs.items()}

    def allowed(self, name: str, truth: Truth) -> float:
        """The largest error allowed, in ulp: one rounding of the output's dtype, and the roundings of the accumulator."""
        return 0.5 + truth.roundings * FORMATS[self.dtype].carried / FORMATS[self.output_dtype(name)].eps


def wide(x: Array) -> Array:
    """An array of torch in float64, of NumPy in longdouble."""
    return x.double() if hasattr(x, "double") else x.astype("longdouble")


def copied(x: Array) -> Array:
    """A copy of an array."""
    return x.clone() if hasattr(x, "clone") else x.copy()


def library(x: Array) -> Any:
    """The module that an array comes from: torch or numpy."""
    return sys.modules[type(x).__module__.partition(".")[0]]


def whole(x: Array) -> Array:
    """Integers from the float64 copies that the truth is computed from."""
    return x.long() if hasattr(x, "long") else x.astype("int64")


def numbers(like: Array, n: int) -> Array:
    """0 .. n - 1, on the device and by the library of an array."""
    lib = library(like)
    return whole(lib.arange(n, **on(like)))


def on(x: Array) -> dict[str, Any]:
    """The keywords by which torch allocates on the device of x."""
    return {"device": x.device} if hasattr(x, "index_add") else {}


def error(out: Array, truth: Truth) -> float:
    """The largest error, in units in the last place of the largest element of its row.

    It is infinite if an element is not finite, or is not equal to the value where the truth is exact.
    """
    if not math.prod(out.shape):
        return 0.0
    if truth.exact is not None and bool(((wide(out) != truth.value) & truth.exact).any()):
        return math.inf
    lib, form = library(out), FORMATS[dtype_name(out.dtype)]
    row = (-1, out.shape[-1] if out.ndim else 1)
    largest = lib.amax(lib.maximum(truth.size, abs(truth.value)).reshape(row), -1)
    exponent = wide(lib.frexp(largest.clip(form.tiny))[1]) - 1
    worst = lib.amax(abs(wide(out) - truth.value).reshape(row), -1) / (form.eps * 2.0**exponent)
    found = float(worst.max())
    return found if math.isfinite(found) else math.inf
