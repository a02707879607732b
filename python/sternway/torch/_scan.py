"""The autograd functions of the cumulative operations, and the selection of their plans before the forward runs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arrays import device_name
from ..errors import Error
from ..scan import ScanBackwardPlan, scan_plan
from ..scan_forward import ScanPlan, forward_scan_plan
from ._calls import FLOATS, empty_gradient, materialized, strides_like
from ._dispatch import (
    Sentence,
    constant,
    device_to_ask,
    reach_plans,
    require,
    require_strided,
    run_operator,
    sentence,
)
from ._eager import bare_apply, is_eager, is_final
from ._operators import apply, each, exporting, is_distributed, way
from ._scan_gradient import FORWARDS, GRADIENT, PAIRS, run_backward, torch_forward

_is_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled

Forward = Callable[[Tensor, int], Any]
"""Computes a scan of x along a dimension; with indices for cummax and cummin."""


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


class Steps(NamedTuple):
    """How a scan of tensors of one shape is done, which is decided before anything runs."""

    kind: str
    dim: int
    reverse: bool
    dtype: torch.dtype
    forward: Forward
    backward: ScanBackwardPlan


def _by_plan(plan: ScanPlan, has_indices: bool, x: Tensor, _dim: int) -> Any:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)  # as torch lays it out
    outputs = {"y": y}
    if has_indices:
        outputs["indices"] = torch.empty_like(y, dtype=torch.int64)
    if not plan._run_plain({"x": x, **outputs}):
        plan.run(x=materialized(x.detach()), **outputs)
    return tuple(outputs.values()) if has_indices else y


def _forward_of(
    kind: str, shape: torch.Size, dtype: torch.dtype, dim: int, reverse: bool, device: torch.device, own: bool
) -> Forward:
    """The forward that runs: that of a plan if own says so and there is one, or else torch's operation."""
    if own:
        try:
            plan = forward_scan_plan(kind, tuple(shape), dtype, dim, reverse, "last", device_name(device))
            return functools.partial(_by_plan, plan, kind in PAIRS)
        except Error:
            pass
    if not reverse:
        return FORWARDS[kind]
    return lambda x, dim: torch_forward(x, kind, dim, True)


@functools.lru_cache(maxsize=1024)
def _steps(
    kind: str, shape: torch.Size, dtype: torch.dtype, dim: int, reverse: bool, device: torch.device, own: bool
) -> Steps | None:
    """The steps of a scan, from a cache; None: torch refuses dim, or no plan has the dtype.

    Raises:
        Error: there is no plan of the backward.
    """
    rank = max(len(shape), 1)
    if dtype not in FLOATS or not -rank <= dim < rank:
        return None
    backward = scan_plan(kind, tuple(shape), dtype, dim, reverse, "last", device_name(device))
    return Steps(kind, dim, reverse, dtype, _forward_of(kind, shape, dtype, dim, reverse, device, own), backward)


def ask(x: Tensor, kind: str, dim: int, reverse: bool) -> Steps | None:
    """The steps of a scan in the general way, with torch's forward; None if the call is traced. x has one of FLOATS.

    Raises:
        Error: there is no plan.
    """
    if not reach_plans(x):
        require_strided(kind, x=x)
        require(kind, _probed(kind, x.dim(), x.dtype, device_to_ask(x)))
        return None
    return _steps(kind, x.shape, x.dtype, dim, reverse, x.device, False)


def eager(x: Tensor, kind: str, dim: Any, reverse: Any = False, own: bool = True) -> Any:
    """Do a scan as an ordinary eager call; None: nothing was done, and the call takes the general way or is wrong.

    own: whether a plan may do the forward. Under autocast torch does it, which may widen the dtype.
    """
    if type(dim) is not int or type(reverse) is not bool or not is_eager(x):
        return None
    try:
        steps = _steps(kind, x.shape, x.dtype, dim, reverse, x.device, own and not _is_autocast_enabled())
    except (RuntimeError, ValueError):  # errors of plans; a nested tensor, which has no shape
        return None
    if steps is None:
        return None
    if kind == "cumsum":
        return _apply_sum(x, steps) if x.requires_grad else steps.forward(x, dim)
    y = _apply(x, steps) if x.requires_grad else steps.forward(x, dim)
    return _NAMED[kind](y) if kind in PAIRS else y


_NAMED = {kind: getattr(torch.return_types, kind) for kind in PAIRS}


def _gradient(
    dy: Tensor, x: Tensor | None, how: tuple[str, int, bool], dtype: torch.dtype, strides: Any, plan: ScanBackwardPlan | None
) -> Tensor:
    """dx, with the operations on dy recorded if they must be.

    Args:
        x: the input of the forward; None for cumsum, of which dtype and strides tell enough.
        plan: of tensors of this shape and dtype; None: it is selected.
    """
    dy = materialized(dy)
    kind, dim, reverse = how
    if x is not None and x.dtype != dy.dtype:  # autocast made the forward wider than x
        x = x.to(dy.dtype)
    if call := way(dy, GRADIENT):
        dx = call(dy, x, dim, kind, reverse)
    else:
        new = empty_gradient(dy, dy.shape, strides) if x is None else torch.empty_like(x)
        dx = run_backward(dy, x, kind, dim, reverse, new, plan if dy.dtype == dtype else None)
    return dx if dx.dtype == dtype else dx.to(dtype)  # type: ignore[no-any-return]


class _ScanEagerSum(torch.autograd.Function):
    """The autograd function of an ordinary eager cumsum, which saves no tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: Steps) -> Any:
        ctx.how = steps, None if x.is_contiguous() else strides_like(x)
        ctx.set_materialize_grads(False)
        return steps.forward(x, steps.dim)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, None]:
        if dy is None:
            return None, None
        steps, strides = ctx.how
        if is_final(dy) and dy.dtype is steps.dtype:
            dx = empty_gradient(dy, dy.shape, strides)
            if steps.backward._run_plain({"dy": dy, "dx": dx}):
                return dx, None
        return _gradient(dy, None, steps[:3], steps.dtype, strides, steps.backward), None


class _ScanEager(torch.autograd.Function):
    """The autograd function of any other scan as an ordinary eager call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: Steps) -> Any:
        ctx.steps = steps
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        y = steps.forward(x, steps.dim)
        if steps.kind in PAIRS:
            ctx.mark_non_differentiable(y[1])
            return tuple(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, None]:
        if dy is None:
            return None, None
        steps: Steps = ctx.steps
        (x,) = ctx.saved_tensors
        if is_final(dy) and dy.dtype is steps.dtype:
            dx = torch.empty_like(x)
            if steps.backward._run_plain({"dy": dy, "x": x, "dx": dx}):
                return dx, None
        return _gradient(dy, x, steps[:3], steps.dtype, None, steps.backward), None


_apply_sum, _apply = map(bare_apply, (_ScanEagerSum, _ScanEager))


class _Scan(torch.autograd.Function):
    """The autograd function of all other calls."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kind: str, dim: int, reverse: bool, steps: Steps | None) -> Any:
        y = torch_forward(x, kind, dim, reverse) if steps is None else steps.forward(x, dim)
        return tuple(y) if kind in PAIRS else y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, kind, dim, reverse, steps = inputs
        ctx.how = kind, dim, reverse
        ctx.dtype = x.dtype
        ctx.plan = None if steps is None else steps.backward
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
        x, strides = (None, ctx.strides) if ctx.how[0] == "cumsum" else (ctx.saved_tensors[0], None)
        return _gradient(dy, x, ctx.how, ctx.dtype, strides, ctx.plan), None, None, None, None


@torch.library.custom_op("sternway::scan", mutates_args=())
def _exported(x: Tensor, dim: int, kind: str, reverse: bool) -> tuple[Tensor, Tensor]:
    """The forward as an operator that has its gradient, for torch.export and DTensors. Without indices, they are empty."""
    y = _forward_of(kind, x.shape, x.dtype, dim, reverse, x.device, not _is_autocast_enabled())(x, dim)
    return tuple(y) if kind in PAIRS else (y, torch.empty(0, dtype=torch.int64, device=x.device))


@_exported.register_fake
def _(x: Tensor, dim: int, kind: str, reverse: bool) -> tuple[Tensor, Tensor]:
    y = torch_forward(x, kind, dim, reverse)
    return tuple(y) if kind in PAIRS else (y, torch.empty(0, dtype=torch.int64, device=x.device))


@_exported.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return each(inputs[2], _exported)(info, in_dims, *inputs)


def _set_up_exported(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, dim, kind, reverse = inputs
    _Scan.setup_context(ctx, (x, kind, dim, reverse, None), output)


_exported.register_autograd(lambda ctx, *grads: _Scan.backward(ctx, *grads)[:4], setup_context=_set_up_exported)


def call(x: Tensor, kind: str, dim: int, reverse: bool, steps: Steps | None) -> Any:
    """One of the five operations by the steps that ``ask`` found, with torch's return type."""
    if is_distributed(x):
        from .distributed.scans import scan_sharded

        y = scan_sharded(x, kind, dim, reverse)  # type: ignore[arg-type]
        if y is not None:
            return y
    if exporting() or is_distributed(x):
        y = run_operator("scan", kind, ("x",), x, dim, kind, reverse)
        y = y if kind in PAIRS else y[0]
    else:
        y = apply(_Scan, x, kind, dim, reverse, steps)
    return _NAMED[kind](y) if kind in PAIRS else y
