"""The cumulative operations with autograd: the routes by which a call runs.

All routes but the sharded one share a gradient, ``_gradient``.

A call takes the first route that serves it:

========  ================================  ===================================================================================
route     calls                             reason
========  ================================  ===================================================================================
eager     plain tensors that autograd       It takes the least time on the host: an autograd function without
          alone has to see                  ``setup_context``, which gets its plans from a cache.
sharded   DTensors that are split along     Ranks scan their parts and exchange carries.
          the scanned dimension
operator  other DTensors; ``torch.export``  DTensor has sharding rules for operators, and an exported program keeps them; it
                                            would drop the backward of an autograd function.
general   all others: ``torch.compile``,    They take an autograd function that has ``setup_context``.
          ``torch.func``, forward-mode AD,
          dispatch modes, subclasses
========  ================================  ===================================================================================

``run_eager`` takes the first route or returns None. Then ``select_or_raise`` raises the error of a problem without a plan, and
``run_general`` takes one of the other routes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._arrays import device_name
from ..._kinds import EXTREMA
from ..._scan import ScanBackwardPlan, scan_plan
from ..._scan_forward import ScanPlan, forward_scan_plan
from ...errors import Error
from .calls import FLOATS, empty_gradient, resolve, strides_like
from .constants import constant
from .dispatch import ErrorParts, device_to_ask, require, require_strided, run_operator, runs_plan_directly, selection_error
from .eager import apply_in_c, is_eager, needs_no_graph, run_forward
from .operators import is_distributed, is_exporting, recorded_call, traceable, vmap_by_loop
from .scan_gradient import FORWARDS, GRADIENT, NEEDS_X, run_backward, torch_forward
from .sharding import sharding

_is_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled

ScanOptions = tuple[str, int, bool, torch.dtype]
"""The kind of a scan, the scanned dimension, whether it is reversed, and the dtype of x."""

Forward = Callable[[Tensor, int], Any]
"""Computes a scan of x along a dimension; with indices for cummax and cummin."""


@constant
def _probed(kind: str, rank: int, dtype: torch.dtype, device: torch.device) -> ErrorParts | None:
    """The error of selecting a plan for a small problem, as constants; None: there is a plan."""
    return selection_error(scan_plan, kind, (1,) * rank, dtype, -1, False, "last", str(device))


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
    """How the eager route scans tensors of one shape, chosen before the forward runs."""

    options: ScanOptions
    forward: Forward
    backward: ScanBackwardPlan


def _by_plan(plan: ScanPlan, has_indices: bool, x: Tensor, _dim: int) -> Any:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)  # as torch lays it out
    indices = torch.empty_like(y, dtype=torch.int64) if has_indices else None
    run_forward(plan, {"x": x, "y": y, "indices": indices})
    return (y, indices) if has_indices else y


def _forward_of(
    kind: str, shape: torch.Size, dtype: torch.dtype, dim: int, reverse: bool, device: torch.device, use_our_forward: bool
) -> Forward:
    """The forward that runs: that of a plan if use_our_forward says so and there is one, or else torch's operation."""
    if use_our_forward:
        try:
            plan = forward_scan_plan(kind, tuple(shape), dtype, dim, reverse, "last", device_name(device))
            return functools.partial(_by_plan, plan, kind in EXTREMA)
        except Error:
            pass
    if not reverse:
        return FORWARDS[kind]
    return lambda x, dim: torch_forward(x, kind, dim, True)


@functools.lru_cache(maxsize=1024)
def _steps(
    kind: str, shape: torch.Size, dtype: torch.dtype, dim: int, reverse: bool, device: torch.device, use_our_forward: bool
) -> Steps | None:
    """The steps of a scan, from a cache; None: torch refuses dim, or no plan has the dtype.

    Raises:
        Error: there is no plan of the backward.
    """
    rank = max(len(shape), 1)
    if dtype not in FLOATS or not -rank <= dim < rank:
        return None
    backward = scan_plan(kind, tuple(shape), dtype, dim, reverse, "last", device_name(device))
    return Steps((kind, dim, reverse, dtype), _forward_of(kind, shape, dtype, dim, reverse, device, use_our_forward), backward)


@functools.lru_cache(maxsize=256)
def _autocast_dtype(kind: str, dtype: torch.dtype, device: str, _to: torch.dtype) -> torch.dtype:
    """The dtype of the result of torch's scan under the active autocast, found by a call on a tensor without values.

    _to: the dtype of autocast, a key of the cache.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y = FORWARDS[kind](torch.empty(1, dtype=dtype, device=device), 0)
    return (y[0] if kind in EXTREMA else y).dtype  # type: ignore[no-any-return]


def autocast_input(x: Tensor, kind: str) -> Tensor:
    """x in the dtype in which torch's scan computes under the active autocast."""
    if _is_autocast_enabled() and x.dtype in FLOATS and not x.is_meta and torch.is_autocast_enabled(x.device.type):
        return x.to(_autocast_dtype(kind, x.dtype, x.device.type, torch.get_autocast_dtype(x.device.type)))
    return x


def run_eager(x: Tensor, kind: str, dim: Any, reverse: Any = False, use_our_forward: bool = True) -> Any:
    """Do a scan on the eager route; None: nothing was done, and the call takes another route or is wrong.

    use_our_forward: whether a plan may do the forward.
    """
    if type(dim) is not int or type(reverse) is not bool or not is_eager(x):
        return None
    if _is_autocast_enabled():
        x = autocast_input(x, kind)
    try:
        steps = _steps(kind, x.shape, x.dtype, dim, reverse, x.device, use_our_forward)
    except (RuntimeError, ValueError):  # errors of plans; a nested tensor, which has no shape
        return None
    if steps is None:
        return None
    y = _apply(x, steps) if x.requires_grad else steps.forward(x, dim)
    return NAMED[kind](y) if kind in EXTREMA else y


NAMED = {kind: getattr(torch.return_types, kind) for kind in EXTREMA}


def _save(ctx: Any, x: Tensor, options: ScanOptions, plan: ScanBackwardPlan | None, y: Any) -> None:
    """Save in ctx what ``_gradient`` needs; y is the result of the forward.

    plan: the backward's plan; None: it is selected in the backward.
    """
    kind, strides = options[0], None
    if kind not in NEEDS_X:  # but its layout
        strides = None if plan and x.is_contiguous() else strides_like(x)  # a traced x, without a plan, has no known layout
    else:
        ctx.save_for_backward(x)
        if kind in EXTREMA:
            ctx.mark_non_differentiable(y[1])
    ctx.saved_values = options, strides, plan
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, dy: Tensor | None) -> Tensor | None:
    """dx by the plan that was saved, or else with the operations on dy recorded if they must be."""
    if dy is None:
        return None
    (kind, dim, reverse, dtype), strides, plan = ctx.saved_values
    x = ctx.saved_tensors[0] if kind in NEEDS_X else None
    if plan is not None and dy.dtype is dtype and needs_no_graph(dy):
        dx = empty_gradient(dy, dy.shape, strides) if x is None else torch.empty_like(x)
        if plan._run_plain({"dy": dy, "x": x, "dx": dx}):
            return dx
    dy = resolve(dy)
    if x is not None and x.dtype != dy.dtype:  # autocast made the forward wider than x
        x = x.to(dy.dtype)
    if call := recorded_call(dy, GRADIENT):
        dx = call(dy, x, dim, kind, reverse)
    else:
        dx = empty_gradient(dy, dy.shape, strides) if x is None else torch.empty_like(x)
        dx = run_backward(dy, x, kind, dim, reverse, dx)
    return dx if dx.dtype == dtype else dx.to(dtype)


class _ScanEager(torch.autograd.Function):
    """The autograd function of the eager route."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: Steps) -> Any:
        options, forward, plan = steps
        y = forward(x, options[1])
        _save(ctx, x, options, plan, y)
        return tuple(y) if options[0] in EXTREMA else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, None]:
        return _gradient(ctx, dy), None


_apply = apply_in_c(_ScanEager)


class _Scan(torch.autograd.Function):
    """The autograd function of the general route, whose forward is torch's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, kind: str, reverse: bool) -> Any:
        y = torch_forward(x, kind, dim, reverse)
        return tuple(y) if kind in EXTREMA else y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, dim, kind, reverse = inputs
        _save(ctx, x, (kind, dim, reverse, x.dtype), None, output)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None, None]:
        return _gradient(ctx, dy), None, None, None


_scan = traceable(_Scan)


@torch.library.custom_op("sternway::scan", mutates_args=())
def _exported(x: Tensor, dim: int, kind: str, reverse: bool) -> tuple[Tensor, Tensor]:
    """The forward as an operator that has its gradient, for the operator route. The indices of other kinds are empty."""
    y = _forward_of(kind, x.shape, x.dtype, dim, reverse, x.device, not _is_autocast_enabled())(x, dim)
    return tuple(y) if kind in EXTREMA else (y, torch.empty(0, dtype=torch.int64, device=x.device))


@_exported.register_fake
def _(x: Tensor, dim: int, kind: str, reverse: bool) -> tuple[Tensor, Tensor]:
    y = torch_forward(x, kind, dim, reverse)
    return tuple(y) if kind in EXTREMA else (y, torch.empty(0, dtype=torch.int64, device=x.device))


@_exported.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    return vmap_by_loop(inputs[2], _exported)(info, in_dims, *inputs)


_exported.register_autograd(_Scan.backward, setup_context=_Scan.setup_context)


def select_or_raise(x: Tensor, kind: str, dim: int, reverse: bool) -> None:
    """Select the plan of the backward, or that of a small problem if the call is traced. x.dtype is in FLOATS.

    Raises:
        Error: there is no plan.
    """
    if runs_plan_directly(x):
        scan_plan(kind, tuple(x.shape), x.dtype, dim, reverse, "last", device_name(x.device))
    else:
        require_strided(kind, x=x)
        require(kind, _probed(kind, x.dim(), x.dtype, device_to_ask(x)))


def run_general(x: Tensor, kind: str, dim: int, reverse: bool) -> Any:
    """Do a scan on one of the routes behind the eager one, with torch's return type; ``select_or_raise`` found the plan."""
    if is_distributed(x):
        y = sharding().scan(x, kind, dim, reverse)
        if y is not None:
            return y
    if is_exporting() or is_distributed(x):
        y = run_operator("scan", kind, ("x",), x, dim, kind, reverse)
        y = y if kind in EXTREMA else y[0]
    else:
        y = _scan(x, dim, kind, reverse)
    return NAMED[kind](y) if kind in EXTREMA else y
