"""The autograd functions of embedding bags of many tables."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_name, dtype_name
from ..._embedding_bags import (
    EmbeddingBagsBackwardDescriptor,
    EmbeddingBagsBackwardPlan,
    EmbeddingBagsDescriptor,
    EmbeddingBagsPlan,
)
from ..._types import FloatDType, IndexDType
from ...errors import make
from .calls import resolve
from .eager import apply_in_c, run_forward
from .learning import NO_LEARNER, Kind, Learner, reaches_table, require_versions, run_update, versions
from .operators import Gradients
from .packed_tables import OP, Counts, Packed, TableLayout, TableList


class Problem(NamedTuple):
    """The fields of a descriptor that a call states."""

    counts: Counts
    bags: int
    total: int
    dtype: torch.dtype
    mode: str
    index_dtype: torch.dtype
    offset_dtype: torch.dtype
    is_aligned: bool
    device: torch.device

    def fields(self) -> dict[str, Any]:
        counts = self.counts
        dtype: FloatDType = dtype_name(self.dtype)  # type: ignore[assignment]
        index: IndexDType = dtype_name(self.index_dtype)  # type: ignore[assignment]
        offset: IndexDType = dtype_name(self.offset_dtype)  # type: ignore[assignment]
        return {
            "num_tables": counts.tables, "num_bags": self.bags, "num_rows": counts.rows, "num_elements": counts.elements,
            "num_columns": counts.columns, "embedding_dim": counts.widest, "total_indices": self.total, "dtype": dtype,
            "mode": self.mode, "index_dtype": index, "offset_dtype": offset, "is_aligned": self.is_aligned,
        }  # fmt: skip


@functools.lru_cache(maxsize=1024)
def forward_plan(problem: Problem) -> EmbeddingBagsPlan:
    """The plan of a forward, from a cache."""
    return EmbeddingBagsPlan.select(EmbeddingBagsDescriptor(**problem.fields()), device_name(problem.device))


@functools.lru_cache(maxsize=1024)
def backward_plan(problem: Problem, kind: Kind) -> EmbeddingBagsBackwardPlan:
    """The plan of a backward, from a cache. kind: of the optimizer that updates the tables, or of none."""
    optimizer, is_rounding = kind
    descriptor = EmbeddingBagsBackwardDescriptor(**problem.fields(), optimizer=optimizer, stochastic_rounding=is_rounding)
    return EmbeddingBagsBackwardPlan.select(descriptor, device_name(problem.device))


class Call(NamedTuple):
    """A checked call.

    Attributes:
        packed: the tables at the time of the call.
        module_tables: those of the module.
        learner: updates the tables in the backward; None: the backward has gradients.
    """

    problem: Problem
    packed: Packed
    module_tables: TableList
    learner: Learner | None

    @property
    def layout(self) -> TableLayout:
        assert self.module_tables.layout is not None
        return self.module_tables.layout


class Operands(NamedTuple):
    """The operands of both plans, but the tables."""

    indices: Tensor
    offsets: Tensor
    weights: Tensor | None  # of samples
    max_indices: Tensor | None  # in mode "max", the row that each element of the result is of

    def of_forward(self, c: Call) -> dict[str, Tensor | None]:
        positions = {"indices": self.indices, "offsets": self.offsets, "tables": c.packed.bounds}
        return {**positions, "per_sample_weights": self.weights}

    def of_backward(self, c: Call, dy: Tensor) -> dict[str, Tensor | None]:
        if torch._C._functorch.is_legacy_batchedtensor(dy):
            got, hint = "a batch of them, by is_grads_batched", "call torch.autograd.grad once for each"
            raise make("unsupported", OP, "the upstream gradient", "one tensor", got, hint)
        return {"dy": resolve(dy).contiguous(), **self.of_forward(c), "max_indices": self.max_indices}


def _reduced(c: Call, whole: Tensor, x: Operands) -> Tensor:
    """The bags of a vector of tables. In mode "max" it fills in the max_indices."""
    y = whole.new_empty((c.problem.bags, c.problem.counts.columns))
    run_forward(forward_plan(c.problem), {**x.of_forward(c), "weight": whole, "y": y, "max_indices": x.max_indices})
    return y


def _save(ctx: Any, c: Call, x: Operands, reads_tables: bool) -> None:
    """Save the operands of the backward. reads_tables: it does, and the tables are saved for torch to see that they change."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*x, *(c.packed.tables if reads_tables else ()))
    if not reads_tables:  # the module may move its tables before the backward, which then must not hold their old memory
        c = c._replace(packed=c.packed._replace(whole=c.packed.bounds))
    ctx.call = c


class _Bags(torch.autograd.Function):
    """The bags of tables whose backward has gradients."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor | None, c: Call, x: Operands, *tables: Tensor) -> Tensor:
        _save(ctx, c, x, ctx.needs_input_grad[0])
        return _reduced(c, c.packed.whole, x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Gradients:
        needs_weights, _, _, *needs = ctx.needs_input_grad
        if dy is None:
            return (None,) * (3 + len(needs))
        c, x = ctx.call, Operands(*ctx.saved_tensors[:4])
        if torch.is_grad_enabled():
            return _recorded(c, dy, x, needs)
        operands, dweight, dweights = x.of_backward(c, dy), None, None
        if any(needs):
            operands["dweight"] = dweight = dy.new_empty(c.layout.size)
        if needs_weights and x.weights is not None:
            dweights = torch.empty_like(x.weights, memory_format=torch.contiguous_format)
            operands |= {"weight": c.packed.whole, "d_per_sample_weights": dweights}
        run_forward(backward_plan(c.problem, NO_LEARNER), operands)
        return (dweights, None, None, *_needed(c, dweight, needs))


def _needed(c: Call, dweight: Tensor | None, needs: Sequence[bool]) -> Sequence[Tensor | None]:
    """The gradients of the tables that need one."""
    if dweight is None:
        return [None] * len(needs)
    parts = c.layout.views(dweight)
    return parts if all(needs) else [part if need else None for part, need in zip(parts, needs, strict=True)]


def _recorded(c: Call, dy: Tensor, x: Operands, needs: Sequence[bool]) -> Gradients:
    """Gradients that can be differentiated again with respect to dy."""
    if x.weights is not None and x.weights.requires_grad:
        got, hint = "create_graph=True", "only the gradient of the tables can be differentiated again"
        raise make("unsupported", OP, "the gradient of per_sample_weights", "differentiated once", got, hint)
    return (None, None, None, *_needed(c, _Gradient.apply(dy, c, *x), needs))


class _Gradient(torch.autograd.Function):
    """The gradient of the vector of tables, which is linear in the upstream gradient."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, c: Call, *x: Any) -> Tensor:
        ctx.call = c
        ctx.save_for_backward(*x)
        dweight = dy.new_empty(c.layout.size)
        run_forward(backward_plan(c.problem, NO_LEARNER), {**Operands(*x).of_backward(c, dy), "dweight": dweight})
        return dweight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Gradients:
        return _Reduction.apply(g, ctx.call, *ctx.saved_tensors), *[None] * 5


class _Reduction(torch.autograd.Function):
    """The bags of a vector of tables; in mode "max" the elements that have won before."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, c: Call, *saved: Any) -> Tensor:
        ctx.call, x = c, Operands(*saved)
        ctx.save_for_backward(*saved)
        g = resolve(g).contiguous()
        if x.max_indices is None:
            return _reduced(c, g, x)
        places = zip(c.layout.starts, c.layout.shapes, strict=True)
        columns = torch.tensor([(start + k, width) for start, (_, width) in places for k in range(width)], device=g.device)
        first, step = columns.unbind(1)
        return g.take(x.max_indices.clamp(min=0) * step + first).masked_fill(x.max_indices < 0, 0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        return _Gradient.apply(dy, ctx.call, *ctx.saved_tensors), *[None] * 5


class _LearningBags(torch.autograd.Function):
    """The bags of tables that learn.

    The first table stands for all, as each input costs the engine of autograd more than a microsecond.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, weights: Tensor | None, c: Call, x: Operands) -> Tensor:
        _save(ctx, c, x, ctx.needs_input_grad[1])
        ctx.versions = versions(c.packed.tables) if ctx.needs_input_grad[1] else None
        return _reduced(c, c.packed.whole, x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Gradients:
        c: Call = ctx.call
        learner, dweights = c.learner, None
        if dy is None or learner is None:
            return None, None, None, None
        is_update = reaches_table(ctx, learner)
        if not is_update and not ctx.needs_input_grad[1]:
            return None, None, None, None
        x = Operands(*ctx.saved_tensors[:4])
        packed = c.module_tables.find()
        if not all(map(operator.is_, packed.tables, c.packed.tables)):
            got = "other tensors since the forward"
            raise make("unsupported", learner.op, "weights", "the module's own parameters where they have an optimizer", got)
        require_versions(learner, packed.tables, ctx.versions)
        operands = x.of_backward(c, dy)
        if ctx.needs_input_grad[1] and x.weights is not None:
            dweights = torch.empty_like(x.weights, memory_format=torch.contiguous_format)
            operands["d_per_sample_weights"] = dweights
        if is_update:
            run_update(backward_plan(c.problem, learner.kind), learner, packed.whole, operands)
            torch.autograd.graph.increment_version(packed.tables)
        else:
            run_forward(backward_plan(c.problem, NO_LEARNER), {**operands, "weight": packed.whole})
        return None, dweights, None, None


_apply = apply_in_c(_Bags)
_apply_learning = apply_in_c(_LearningBags)


def run(c: Call, indices: Tensor, offsets: Tensor, weights: Tensor | None, needs_tables: bool) -> Tensor:
    """Run a checked call.

    Args:
        weights: of samples.
        needs_tables: whether a table requires grad.
    """
    max_indices = indices.new_empty((c.problem.bags, c.layout.columns)) if c.problem.mode == "max" else None
    x = Operands(indices, offsets, weights, max_indices)
    needs_weights = weights is not None and weights.requires_grad
    if not torch.is_grad_enabled() or not (needs_tables or needs_weights):
        return _reduced(c, c.packed.whole, x)
    backward_plan(c.problem, NO_LEARNER if c.learner is None else c.learner.kind)  # a call without one fails here
    if c.learner is not None:
        return _apply_learning(c.packed.tables[0], weights, c, x)  # type: ignore[no-any-return]
    return _apply(weights, c, x, *c.packed.tables)  # type: ignore[no-any-return]
