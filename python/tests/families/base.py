"""A family as its tests see it: how to make a problem, what is true of it, what torch says, how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from support import FLOATS, Guarded, Maker, Snapshot, Truth, arrange, check, stated
from torch import Tensor

from sternway._cases.case import Output, Values

Tensors = dict[str, Tensor]


def truths(outputs: Mapping[str, Output], inputs: Tensors, values: Values, data: torch.dtype) -> dict[str, Truth]:
    """The truth of the outputs whose input is there, by the definitions that selftest and bench use.

    values: the inputs in longdouble, shaped as the definitions want them.
    """
    found = {}
    with np.errstate(all="ignore"):
        for name, output in outputs.items():
            if output.of in inputs:
                like = inputs[output.of]
                found[name] = stated(output.truth(values), like, like.dtype if like.dtype in FLOATS else data, data)
    return found


@dataclass(frozen=True)
class Family:
    name: str
    op: str  # what its errors carry
    descriptor: Callable[..., Any]  # (shape=, dtype=, **fields)
    plan: type
    build: Callable[..., tuple[dict[str, Any], Tensors]]  # (shape, maker, **options) -> descriptor fields, inputs
    truth: Callable[[Any, Tensors], dict[str, Truth]]  # float64, by definition; every output that the inputs allow
    torch: Callable[[Any, Tensors], Tensors]  # torch.autograd in the dtype under test; torch's own forward for a forward
    reads: Callable[[Iterable[str], Tensors], set[str]]  # the inputs that these outputs need
    call: Callable[..., Tensors]  # (problem, outputs, out=None) through the function
    options: Callable[..., dict[str, Any]]  # (hypothesis' draw, shape) -> options of build
    settle: Callable[[Tensors], None] = lambda inputs: None  # puts inputs right after their layout changed their values
    required: tuple[str, ...] = ()  # outputs that each run must have
    workspace: bool = True  # a GPU needs one for some shapes
    least_rank: int = 0  # of a shape written [..., D]
    in_place: tuple[str, ...] = ()  # outputs that, asked for alone, may be the first input itself


@dataclass(frozen=True)
class Problem:
    """One call: its descriptor, the inputs, the float64 truth of each output."""

    family: Family
    descriptor: Any
    inputs: Tensors
    truth: dict[str, Truth]

    @property
    def first(self) -> str:
        """The name of the first input, which has the shape of the problem: dy, or the input of a forward."""
        return next(iter(self.inputs))

    @property
    def main(self) -> Tensor:
        return self.inputs[self.first]

    @property
    def device(self) -> str:
        return str(self.main.device)

    @property
    def floating(self) -> Tensor:
        """The first floating input: outputs change their sign with it, and become tiny with it."""
        return next(x for x in self.inputs.values() if x.is_floating_point())

    def plan(self, **preference: Any) -> Any:
        return self.family.plan.select(self.descriptor, device=self.device, **preference)

    def inputs_for(self, wanted: Iterable[str]) -> Tensors:
        reads = self.family.reads(wanted, self.inputs)
        return {name: tensor for name, tensor in self.inputs.items() if name in reads}

    def outputs(self, wanted: Iterable[str] | None = None, layout: str = "contiguous") -> dict[str, Guarded]:
        names = tuple(self.truth) if wanted is None else tuple(wanted)
        return {n: Guarded(self.truth[n].value.shape, self.truth[n].dtype, self.device, layout) for n in names}

    def run(self, wanted: Iterable[str] | None = None, layout: str = "contiguous", plan: Any = None, **how: Any) -> Tensors:
        """Run a plan into poisoned, guarded memory, prove that the inputs stay as they were, give back the outputs."""
        outputs = self.outputs(wanted, layout)
        inputs = self.inputs_for(outputs)
        before = Snapshot(inputs)
        (plan or self.plan()).run(**inputs, **{name: out.tensor for name, out in outputs.items()}, **how)
        before.check()
        return {name: out.take() for name, out in outputs.items()}

    def call(self, wanted: Iterable[str] | None = None, out: Any = None) -> Tensors:
        return self.family.call(self, tuple(self.truth) if wanted is None else tuple(wanted), out)

    def check(self, results: Mapping[str, Tensor], rival: bool = False) -> None:
        theirs = self.family.torch(self.descriptor, self.inputs) if rival else {}
        for name, out in results.items():
            check(f"{self.family.name} {name}", out, self.truth[name], theirs.get(name))


def make(
    family: Family,
    shape: Iterable[int],
    dtype: torch.dtype,
    device: str,
    *,
    seed: int = 0,
    positive: bool = False,
    layouts: str | Mapping[str, str] = "contiguous",
    **options: Any,
) -> Problem:
    """Make a random problem; `layouts` is one memory layout for all inputs, or one by name."""
    shape = tuple(shape)
    fields, values = family.build(shape, Maker(dtype, device, seed, positive), **options)
    each = dict.fromkeys(values, layouts) if isinstance(layouts, str) else layouts
    inputs = {name: arrange(tensor, each.get(name, "contiguous")) for name, tensor in values.items()}
    family.settle(inputs)
    if "shape" in inspect.signature(family.descriptor).parameters:
        fields = {"shape": shape, **fields}
    descriptor = family.descriptor(dtype=dtype, **fields)
    return Problem(family, descriptor, inputs, family.truth(descriptor, inputs))
