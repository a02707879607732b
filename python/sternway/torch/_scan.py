"""The autograd function of the cumulative operations, and the selection of its plan before the forward runs."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from .._arrays import device_of
from ..scan import ScanBackwardPlan, scan_plan
from ._calls import empty_gradient, materialized, strides_like
from ._dispatch import Sentence, constant, device_to_ask, reach_plans, require, require_strided, sentence
from ._operators import apply, each, exporting, way
from ._scan_gradient import GRADIENT, PAIRS, run_backward, torch_forward


@constant
def _probed(kind: str, rank: int, dtype: torch.dtype, device: torch.device) -> Sentence | None:
    return sentence(scan_plan, kind, (1,) * rank, dtype, -1, False, "last", str(device))


def dim_of(x: Tensor, dim: Any) -> int | None:
    """A dimension of x as an int; None if torch refuses it, as it does a bool."""
    if type(dim) is not int:
        if isinstance(dim, bool) or not hasattr(dim, "__index__"):
            return None
        try:
            dim = operator.index(dim)
        except TypeError:
            return None
    rank = max(x.dim(), 1)
    return dim if -rank <= dim < rank else None


def ask(x: Tensor, kind: str, dim: int, reverse: bool) -> ScanBackwardPlan | None:
    """Select the plan of the backward; None if the call is traced. x has one of FLOATS.

    Raises:
        Error: there is no plan.
    """
    if not reach_plans(x):
        require_strided(kind, x=x)
        require(kind, _probed(kind, x.dim(), x.dtype, device_to_ask(x)))
        return None
    return scan_plan(kind, x.shape, x.dtype, dim, reverse, "last", device_of(x))


class _Scan(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kind: str, dim: int, reverse: bool, plan: ScanBackwardPlan | None) -> Any:
        y = torch_forward(x, kind, dim, reverse)
        return tuple(y) if kind in PAIRS else y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, kind, dim, reverse, ctx.plan = inputs
        ctx.how = kind, dim, reverse
        ctx.dtype = x.dtype
        if kind == "cumsum":
            ctx.strides = strides_like(x)
        else:
            ctx.save_for_backward(x)
        if kind in PAIRS:
            ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *_: Any) -> Any:
        if dy is None:
            return None, None, None, None, None
        dy = materialized(dy)
        kind, dim, reverse = ctx.how
        x = None if kind == "cumsum" else ctx.saved_tensors[0]
        if x is not None and x.dtype != dy.dtype:  # autocast made the forward wider than x
            x = x.to(dy.dtype)
        if call := way(dy, GRADIENT):
            dx = call(dy, x, kind, dim, reverse)
        else:
            new = empty_gradient(dy, dy.shape, ctx.strides) if x is None else torch.empty_like(x)
            dx = run_backward(dy, x, kind, dim, reverse, new, ctx.plan if dy.dtype == ctx.dtype else None)
        return dx if dx.dtype == ctx.dtype else dx.to(ctx.dtype), None, None, None, None


@torch.library.custom_op("sternway::scan", mutates_args=())
def _exported(x: Tensor, kind: str, dim: int, reverse: bool) -> tuple[Tensor, Tensor]:
    """The forward as an operator that has its gradient, for torch.export. Operations without indices return empty ones."""
    y = torch_forward(x, kind, dim, reverse)
    return tuple(y) if kind in PAIRS else (y, torch.empty(0, dtype=torch.int64, device=x.device))


@_exported.register_fake
def _(x: Tensor, kind: str, dim: int, reverse: bool) -> tuple[Tensor, Tensor]:
    y = torch_forward(x, kind, dim, reverse)
    return tuple(y) if kind in PAIRS else (y, torch.empty(0, dtype=torch.int64, device=x.device))


@_exported.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return each(inputs[1], _exported)(info, in_dims, *inputs)


def _set_up_exported(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _Scan.setup_context(ctx, (*inputs, None), output)


_exported.register_autograd(lambda ctx, *grads: _Scan.backward(ctx, *grads)[:4], setup_context=_set_up_exported)


def call(x: Tensor, kind: str, dim: int, reverse: bool, plan: ScanBackwardPlan | None) -> Any:
    """One of the five operations with torch's return type and the backward of the plan that ``ask`` selected."""
    if exporting():
        y = _exported(x, kind, dim, reverse)
        y = y if kind in PAIRS else y[0]
    else:
        y = apply(_Scan, x, kind, dim, reverse, plan)
    return getattr(torch.return_types, kind)(y) if kind in PAIRS else y
