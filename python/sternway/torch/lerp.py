"""``torch.lerp`` with sternway's backward."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from .._arrays import device_of, dtype_name
from ..errors import make
from ..lerp import LerpBackwardPlan, lerp_backward, lerp_plan, split_weight
from ._calls import FLOATS, empty_gradient, is_bool, materialized, require_tensors, strides_like
from ._dispatch import Sentence, constant, device_to_ask, named, reach_plans, require, require_strided, sentence
from ._operators import MAX_RANK, apply, by_formula, differentiable, each, exporting, in_front, way

_NAMES = ("da", "db", "dweight")
_NAME = "sternway.torch.lerp"
_OPERANDS = {"shape": "the broadcast shape", "a_shape": "input", "b_shape": "end", "weight_shape": "weight"}
"""By field of the descriptor, the argument of lerp that it comes from."""
_WEIGHTS = (float, Tensor, torch.SymFloat, torch.SymInt)


@torch.library.custom_op("sternway::lerp_backward", mutates_args=())
def _operator(
    dy: Tensor,
    weight: Tensor | None,
    number: float,
    a: Tensor | None,
    b: Tensor | None,
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    needs: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """lerp_backward as an operator, for calls that torch must see. Outputs that are not needed are empty."""
    ends = {"a": a, "b": b} if "dweight" in needs else {"a_shape": a_shape, "b_shape": b_shape}
    names = needs.split()
    grads = dict(zip(names, lerp_backward(dy, number if weight is None else weight, needs=names, **ends), strict=True))
    da, db, dweight = (grads[name] if name in grads else dy.new_empty(0) for name in _NAMES)
    return da, db, dweight


@_operator.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    dy, weight, _, _, _, a_shape, b_shape, needs = inputs
    shapes = a_shape, b_shape, () if weight is None else weight.shape
    return tuple(
        dy.new_empty(0) if name not in needs else torch.empty_like(dy) if list(shape) == list(dy.shape) else dy.new_empty(shape)
        for name, shape in zip(_NAMES, shapes, strict=True)
    )


@_operator.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    dy, weight, number, a, b, a_shape, b_shape, needs = in_front(info, in_dims, inputs)
    if dy.dim() > MAX_RANK:
        return each("lerp", _operator)(info, in_dims, *inputs)  # type: ignore[no-any-return]
    if in_dims[1] is None and "dweight" not in needs:
        weight = inputs[1]  # perhaps a number on the CPU
    n, rank = info.batch_size, dy.dim() - 1

    def long(shape: Sequence[int]) -> list[int]:
        """A shape behind the batch, as long as dy's, so that it broadcasts."""
        return [n, *[1] * (rank - len(shape)), *shape]

    factor, *ends = (x if x is None or x is inputs[1] else x.reshape(long(x.shape[1:])) for x in (weight, a, b))
    grads = _operator(dy, factor, number, *ends, long(a_shape), long(b_shape), needs)
    shapes = a_shape, b_shape, () if weight is None else weight.shape[1:]
    return tuple(
        g.reshape(n, *shape) if name in needs else g.expand(n, 0) for name, g, shape in zip(_NAMES, grads, shapes, strict=True)
    ), (0, 0, 0)


def _formula(*inputs: Any) -> tuple[Tensor, ...]:
    dy, weight, number, a, b, a_shape, b_shape, needs = inputs
    wide = torch.promote_types(dy.dtype, torch.float32)
    g, w = dy.to(wide), number if weight is None else weight.to(wide)
    formulas: dict[str, Callable[[], Tensor]] = {
        "da": lambda: (1 - w) * g,
        "db": lambda: w * g,
        "dweight": lambda: g * (b.to(wide) - a),
    }
    shapes = a_shape, b_shape, () if weight is None else weight.shape
    return tuple(
        formula().sum_to_size(shape).to(dy.dtype) if name in needs else dy.new_empty(0)
        for (name, formula), shape in zip(formulas.items(), shapes, strict=True)
    )


_GRADIENT = differentiable(_operator, by_formula(_formula))


@constant
def _probed(rank: int, dtype: torch.dtype, device: torch.device) -> Sentence | None:
    ones = (1,) * rank
    return sentence(lerp_plan, ones, dtype, 0.5, ones, ones, None, str(device))


def _broadcast(a: torch.Size, b: torch.Size) -> torch.Size | None:
    """The shape that two shapes broadcast to; None: they do not broadcast."""
    a, b = (a, b) if len(a) >= len(b) else (b, a)
    if a[len(a) - len(b) :] == b:
        return a
    try:
        return cast(torch.Size, torch.broadcast_shapes(a, b))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None


def ask(input: Tensor, end: Tensor, weight: Tensor | float) -> LerpBackwardPlan | None:
    """Select the plan of the backward; None if the call is traced, or torch refuses it. The arguments pass ``is_ours``.

    Raises:
        Error: there is no plan.
    """
    tensors = (input, end, weight) if isinstance(weight, Tensor) else (input, end)
    if not reach_plans(*tensors):
        require_strided("lerp", input=input, end=end, weight=weight)
        require("lerp", _probed(max(x.dim() for x in tensors), input.dtype, device_to_ask(input)))
        return None
    shapes = input.shape, end.shape
    shape = _broadcast(*shapes)
    if shape is not None and isinstance(weight, Tensor):
        shape = _broadcast(shape, weight.shape)
    if shape is None:
        return None
    device = device_of(input if input.dim() or not end.dim() else end)
    number, factor = split_weight(weight, device) if torch.is_grad_enabled() else (0.5, None)  # one plan for all of them
    return lerp_plan(shape, input.dtype, number, *shapes, None if factor is None else factor.shape, device)


def _run(
    dy: Tensor,
    weight: Tensor | float,
    a: Tensor | None,
    b: Tensor | None,
    shapes: tuple[torch.Size, torch.Size],
    strides: tuple[Any, Any],
    names: list[str],
    plan: LerpBackwardPlan | None,
) -> dict[str, Tensor]:
    """Some of the gradients by name, laid out as a and b, which are given for dweight alone, and the weight."""
    device = device_of(dy)
    number, factor = split_weight(weight, device)
    lies = {"da": (shapes[0], strides[0]), "db": (shapes[1], strides[1])}
    if factor is not None:
        lies["dweight"] = factor.shape, strides_like(factor)
        factor = materialized(factor)
    grads = {name: empty_gradient(dy, *lies[name]) for name in names}
    plan = plan or lerp_plan(dy.shape, dy.dtype, number, *shapes, None if factor is None else factor.shape, device)
    a, b = (x if x is None else materialized(x) for x in (a, b))
    plan.run(dy=dy, weight=factor, a=a, b=b, **grads)
    return grads


class _Lerp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, end: Tensor, weight: Tensor | float, plan: LerpBackwardPlan | None) -> Tensor:
        return torch.lerp(input, end, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, end, weight, ctx.plan = inputs
        ctx.shapes = input.shape, end.shape
        ctx.strides = strides_like(input), strides_like(end)
        ctx.dtype = input.dtype
        ctx.weight = None if isinstance(weight, Tensor) else weight
        ends = (input, end) if ctx.needs_input_grad[2] else (None, None)
        ctx.save_for_backward(*ends, weight if ctx.weight is None else None)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        if dy is None:
            return None, None, None, None
        dy = materialized(dy)
        needs, plan = ctx.needs_input_grad, ctx.plan
        input, end, weight = ctx.saved_tensors
        if weight is None:
            weight = ctx.weight
        home = weight if isinstance(weight, Tensor) else dy
        if home.dtype != dy.dtype or (home.device != dy.device and needs[2]):  # of a 0-d weight
            weight, plan = home.to(dy), None
        if ctx.dtype != dy.dtype:  # a 0-d weight of a wider dtype widens ends that are 0-d
            plan = None
            input, end = (x if x is None else x.to(dy.dtype) for x in (input, end))
        names = [name for name, need in zip(_NAMES, needs, strict=False) if need]
        if call := way(dy, _GRADIENT):
            factor, number = (weight, 0.0) if ctx.weight is None else (None, float(weight))
            ends = (input, end) if needs[2] else (None, None)
            da, db, dweight = call(dy, factor, number, *ends, *ctx.shapes, " ".join(names))
            grads = {"da": da, "db": db, "dweight": dweight}
        else:
            grads = _run(dy, weight, input, end, ctx.shapes, ctx.strides, names, plan)
        da, db, dweight = (grads[name] if need else None for name, need in zip(_NAMES, needs, strict=False))
        return da, db, dweight if dweight is None else dweight.to(home), None


@torch.library.custom_op("sternway::lerp", mutates_args=())
def _exported(input: Tensor, end: Tensor, weight: Tensor | None, number: float) -> Tensor:
    """The forward as an operator that has its gradient, for torch.export. If weight is None, number is the weight."""
    return torch.lerp(input, end, number if weight is None else weight)


@_exported.register_fake
def _(input: Tensor, end: Tensor, weight: Tensor | None, number: float) -> Tensor:
    return torch.lerp(input, end, number if weight is None else weight)


_exported.register_vmap(each("lerp", _exported))


def _set_up_exported(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, end, weight, number = inputs
    _Lerp.setup_context(ctx, (input, end, number if weight is None else weight, None), output)


_exported.register_autograd(_Lerp.backward, setup_context=_set_up_exported)


def call(input: Tensor, end: Tensor, weight: Tensor | float, plan: LerpBackwardPlan | None) -> Tensor:
    """torch.lerp with the backward of the plan that ``ask`` selected."""
    if exporting():
        how = (weight, 0.0) if isinstance(weight, Tensor) else (None, weight)
        return _exported(input, end, *how)  # type: ignore[no-any-return]
    return apply(_Lerp, input, end, weight, plan)  # type: ignore[no-any-return]


def is_ours(input: Any, end: Any, weight: Any) -> bool:
    """Whether a lerp gets sternway's gradient. Calls with complex numbers or wrong types are left to torch."""
    if not (isinstance(input, Tensor) and isinstance(end, Tensor) and isinstance(weight, _WEIGHTS)):
        return False
    return input.dtype in FLOATS and not (isinstance(weight, Tensor) and weight.is_complex())


def number_of(weight: Any) -> Any:
    """Convert a real number of Python or NumPy to float; return anything else unchanged."""
    if isinstance(weight, (float, Tensor)):
        return weight
    return float(weight) if isinstance(weight, numbers.Real) or is_bool(weight) else weight


def _with_out(lerp: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Add torch's keyword out to lerp: a call with it is torch's own operation."""

    @functools.wraps(lerp)
    def taking_out(*args: Any, **kwargs: Any) -> Tensor:
        out = kwargs.pop("out", None)
        return lerp(*args, **kwargs) if out is None else torch.lerp(*args, **kwargs, out=out)

    return taking_out


@_with_out
def lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """Linear interpolation, ``y = input + weight * (end - input)``, with broadcasting: :func:`torch.lerp`.

    The backward is :func:`sternway.lerp_backward`: one kernel for all the gradients that are needed, with the sums over
    broadcast dimensions. It can be differentiated again. A call with ``out=`` is torch's own operation.

    Args:
        input, end: tensors whose shapes broadcast, of up to 8 dimensions; float32, float64, float16 or bfloat16, on the CPU or
            CUDA. Complex tensors are left to torch.
        weight: a number or a tensor that broadcasts; a 0-d tensor on the CPU may go with data on CUDA.

    Returns:
        y, of the broadcast shape and input's dtype.

    Raises:
        UnsupportedError: a rank, layout or device without a kernel; a complex weight of real ends.
        RuntimeError: arguments that torch.lerp itself refuses, such as mixed dtypes.
        TypeError: input or end is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> a, b = torch.zeros(2, 3, requires_grad=True), torch.ones(3, requires_grad=True)
        >>> st.lerp(a, b, 0.25).sum().backward()
        >>> a.grad[0], b.grad
        (tensor([0.7500, 0.7500, 0.7500]), tensor([0.5000, 0.5000, 0.5000]))
    """
    require_tensors("lerp", input=input, end=end)
    weight = number_of(weight)
    if not isinstance(weight, _WEIGHTS) or input.dtype not in FLOATS:
        return torch.lerp(input, end, weight)
    if isinstance(weight, Tensor) and weight.is_complex():
        raise make("unsupported", _NAME, "weight", "real like input", dtype_name(weight.dtype))
    return call(input, end, weight, named(_NAME, _OPERANDS, ask, input, end, weight))
