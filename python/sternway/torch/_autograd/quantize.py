"""Parts that dequantization and fake quantization share: checks of operands, the numbers of blocks, and their operators.

A scale or zero point has a number for each block, as ``sternway._quantize`` defines it, or for each token: then it has the
shape [...] or [..., 1], in which [...] is the shape of the leading dimensions of x.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._arrays import dtype_name
from ..._plan import Plan
from ..._quantize import dimensions, extents_of, is_blocks, require_blocks
from ...errors import make
from . import eager
from .calls import FLOATS, require_tensors
from .dispatch import require_strided, runs_plan_directly
from .operators import MAX_RANK, batch_first, vmap_by_loop

_INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


def require_dtype(name: str, operand: str, dtype: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise UnsupportedError for a dtype of an operand that is none of these."""
    if dtype not in dtypes:
        wanted = f"one of {', '.join(map(dtype_name, dtypes))}"
        got = dtype_name(dtype) if isinstance(dtype, torch.dtype) else f"{dtype!r:.80}"
        raise make("unsupported", f"sternway.torch.{name}", operand, wanted, got)


def require_operands(
    name: str,
    operand: str,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    per_token: bool,
    shape: Sequence[int] | None = None,
) -> None:
    """Raise the error of the backward for operands that it cannot read, or a scale or zero point of another shape.

    Args:
        name: of the drop-in.
        operand: the name of x.
        per_token: whether there is one number for each token, otherwise for each block.
        shape: of the values that x holds, if it has several in an element.
    """
    op = f"sternway.torch.{name}"
    if not runs_plan_directly(x, scale, zero_point):
        require_strided(op, **{operand: x}, scale=scale, zero_point=zero_point)
    for of_block, value, dtypes in (("scale", scale, FLOATS), ("zero_point", zero_point, FLOATS + _INTEGERS)):
        if value is None:
            continue
        require_tensors(name, **{of_block: value})
        require_dtype(name, of_block, value.dtype, dtypes)
        if per_token:
            wanted = [list(shape) for shape in token_shapes(x.shape)]
            if list(value.shape) not in wanted:
                raise make("invalid_problem", op, of_block, f"of shape {wanted[0]} or {wanted[1]}", str(list(value.shape)))
        elif of_block == "scale":
            whole, described = (x.shape, operand) if shape is None else (shape, f"the values of {operand}")
            require_blocks(op, described, whole, scale.shape)
        elif value.shape != scale.shape:
            wanted_shape = f"of shape {list(scale.shape)}, as scale"
            raise make("invalid_problem", op, of_block, wanted_shape, str(list(value.shape)))


Facts = tuple[torch.Size, torch.dtype, torch.device]
"""Shape, dtype and device of a tensor."""


def fits(shape: tuple[int, ...], dtype: torch.dtype, scale: Facts, zero_point: Facts | None, per_token: bool) -> bool:
    """Whether the kernels read scale and zero_point as they are, with x, or the dequantized result, of a shape and dtype.

    per_token: whether there is one number for each token, otherwise for each block.
    """
    if dtype not in FLOATS or scale[1] not in (dtype, torch.float32):
        return False
    if zero_point is not None and (zero_point[1] not in FLOATS + _INTEGERS or zero_point[2] != scale[2]):
        return False
    if not per_token:
        return is_blocks(shape, scale[0]) and (zero_point is None or zero_point[0] == scale[0])
    tokens = token_shapes(shape)
    return bool(shape) and scale[0] in tokens and (zero_point is None or zero_point[0] in tokens)


def run_forward(plan: Plan[Any], operands: dict[str, Any]) -> Tensor:
    """Run the plan of a forward on operands, which are given by name, and return its output y."""
    eager.run_forward(plan, operands)
    return operands["y"]  # type: ignore[no-any-return]


def empty_sums(scale: Tensor | None, zero_point: Tensor | None) -> dict[str, Tensor | None]:
    """Memory for the gradients of scale and of a floating zero point, by name; None for those that are not asked for."""
    return {
        "dscale": None if scale is None else torch.empty_like(scale),
        "dzero_point": None if zero_point is None or not learned(zero_point) else torch.empty_like(zero_point),
    }


def needs_gradient(*inputs: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


# --- Blocks -----------------------------------------------------------------------------------------------------------


def token_shapes(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of a scale for each token of a tensor of a shape."""
    return shape[:-1], (*shape[:-1], 1)


def is_per_token(x: Tensor, scale: Tensor) -> bool:
    """Whether a scale has a number for each token of x, so that the plans of tokens take it."""
    tokens, column = token_shapes(x.shape)
    return tuple(scale.shape) in (tuple(tokens), column)


def blocks_of(x: Tensor, scale: Tensor) -> tuple[int, ...] | None:
    """The shape of a scale as the selection of a plan takes it: None for that of tokens."""
    return None if is_per_token(x, scale) else tuple(scale.shape)


def small_problem(
    x: Tensor, scale: Tensor, shape: Sequence[int] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Shapes of x and scale whose problem is small, and has a plan if and only if that of these tensors has one.

    To the kernels a dimension that the scale divides is two dimensions. The second shape is None for tokens.

    shape: of the values that x holds, if it has several in an element.
    """
    if shape is None and is_per_token(x, scale):
        return (1,) * x.dim(), None
    whole = x.shape if shape is None else shape
    extents = extents_of(whole, scale.shape)
    pairs = [(1, 1) if e == 1 else (2, 2) if e == n else (4, 2) for e, n in zip(extents, whole, strict=True)]
    return tuple(n for n, _ in pairs), tuple(e for _, e in pairs)


def expanded(value: Tensor, like: Tensor) -> Tensor:
    """A scale or zero point as a tensor that broadcasts with a tensor whose blocks have these numbers."""
    if value.dim() != like.dim():  # one for the whole tensor, or tokens
        return value.reshape(extents_of(like.shape, value.shape))
    for d, (extent, n) in enumerate(zip(value.shape, like.shape, strict=True)):
        if extent not in (1, n):
            value = value.repeat_interleave(n // extent, d)
    return value


def block_sums(terms: Tensor, value: Tensor) -> Tensor:
    """The sums of terms over blocks, with the shape and dtype of a scale or zero point."""
    split: list[int] = []
    dims: list[int] = []
    for extent, n in zip(extents_of(terms.shape, value.shape), terms.shape, strict=True):
        split.append(extent)
        if extent != n:
            dims.append(len(split))
            split.append(n // extent)
    sums = terms.reshape(split).sum(dims) if dims else terms
    return sums.reshape(value.shape).to(value.dtype)


# --- Dtypes and operators ---------------------------------------------------------------------------------------------


def rounded(y: Tensor, dtype: torch.dtype) -> Tensor:
    """y in a dtype. torch 2.11 compiles a forward that ends in a conversion to its own dtype to a zero gradient."""
    return y if y.dtype == dtype else y.to(dtype)


def learned(zero_point: Tensor | None) -> bool:
    return zero_point is not None and zero_point.is_floating_point()


def kernel_scale_dtype(scale: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which the kernels read a scale: its own, or the dtype in which the forward reads it."""
    return scale.dtype if scale.dtype in (dtype, torch.float32) else torch.promote_types(dtype, torch.float32)


def kernel_scale(scale: Tensor, dy: Tensor) -> Tensor:
    return rounded(scale, kernel_scale_dtype(scale, dy.dtype))


def padded(dx: Tensor, dscale: Tensor, dzero_point: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The results of an operator, whose number is fixed: an absent gradient is an empty tensor."""
    return dx, dscale, dx.new_empty(0) if dzero_point is None else dzero_point


def fake_gradients(dy: Tensor, scale: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    like = (dy, scale) if zero_point is None or not learned(zero_point) else (dy, scale, zero_point)
    return padded(*map(torch.empty_like, like))


def laid_out(y: Tensor, like: Tensor) -> Tensor:
    """y with the strides that an operator promises."""
    promised = torch.empty_like(like, dtype=y.dtype)
    return y if y.stride() == promised.stride() else promised.copy_(y)


def ranked(given: Sequence[Any]) -> list[Any]:
    """The inputs of an operator with a batch in front. A scale of rank 0, and now 1, gets the rank of the first input."""
    rank = given[0].dim()
    return [x.reshape(-1, *[1] * (rank - 1)) if isinstance(x, Tensor) and x.dim() == 1 and rank > 1 else x for x in given]


def batched(name: str, operator: Any, scale: int) -> Callable[..., Any]:
    """The vmap rule of both operators: the batch is one more dimension of x and of the blocks, where a plan takes as many.

    scale: the index of scale among the inputs. The first is of the shape of x, and zero_point has the index 3.
    """
    one_by_one = vmap_by_loop(name, operator)

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        given = batch_first(info, in_dims, inputs)
        shape = given[0].shape
        if dimensions(shape, extents_of(shape, given[scale].shape)) > MAX_RANK:
            return one_by_one(info, in_dims, *inputs)
        dx, dscale, dzero_point = operator(*ranked(given))
        zero_point = given[3]
        absent = (info.batch_size, 0)
        dzero_point = dzero_point.reshape(zero_point.shape) if learned(zero_point) else dzero_point.expand(absent)
        return (dx, dscale.reshape(given[scale].shape), dzero_point), (0, 0, 0)

    return rule
