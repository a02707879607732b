"""``torch.nn.functional.embedding`` and ``torch.nn.Embedding`` with sternway's backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .._embedding import EmbeddingBackwardPlan
from ._autograd.calls import require_order, require_tensors
from ._autograd.dispatch import (
    refuse_distributed,
    require_strided,
    with_index,
    with_public_names,
)
from ._autograd.embedding import NAME, Options, look_up, options, run_eager, select_or_raise
from ._autograd.operators import is_jit_tracing
from ._autograd.overrides import handed_on, is_overridden
from ._modules import Configuration

__all__ = ["Embedding", "embedding"]

_torch_embedding = torch.nn.functional.embedding  # as at import: accelerate() replaces the attribute
_OPERANDS = {
    **dict.fromkeys(("dtype", "num_embeddings", "embedding_dim", "num_rows"), "weight"),
    **dict.fromkeys(("index_dtype", "num_indices", "total"), "input"),
}
"""By field of the descriptors, the argument of embedding that it comes from."""


class _Call(NamedTuple):
    """A checked call of embedding whose backward has plans."""

    input: Tensor
    weight: Tensor
    options: Options
    plan: EmbeddingBackwardPlan | None


def prepare(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, scale_grad_by_freq: bool = False, sparse: bool = False
) -> _Call:
    """Check a call of embedding, and select the plans of its backward.

    Raises:
        Error: there is no plan, or an option of a wrong type.
        ValueError, RuntimeError: arguments that torch refuses.
    """
    require_tensors("embedding", input=input, weight=weight)
    require_order("embedding", input, weight)
    require_strided("embedding", input=input, weight=weight)
    if weight.dim() != 2:
        raise ValueError(f"embedding: weight must be 2D, got {weight.dim()}D")
    o = options(padding_idx, scale_grad_by_freq, sparse, weight.shape[0])
    if o.sparse:
        refuse_distributed("embedding", "sparse", input, weight)
    return _Call(input, weight, o, select_or_raise(input, weight, o))


def run_prepared(c: _Call, max_norm: float | None, norm_type: float) -> Tensor:
    """Run a prepared call."""
    if max_norm is not None:
        refuse_distributed("embedding", "max_norm", c.weight, c.input)
        with torch.no_grad():
            torch.embedding_renorm_(c.weight.detach(), c.input.contiguous(), max_norm, norm_type)
    return look_up(c.weight, c.input, c.options, c.plan)


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of weight that indices name, ``y[i] = weight[input[i]]``: :func:`torch.nn.functional.embedding`.

    The backward is :func:`sternway.embedding_backward`: each row of the gradient is written once, summed in a fixed order of
    positions, so the bits repeat. With ``sparse=True`` the gradient is coalesced: one row for each index that occurs. A dense
    gradient can be differentiated again.

    Args:
        input: rows of weight [...], int32 or int64.
        weight: [V, D]; float32, float64, float16 or bfloat16, on the CPU or CUDA.
        padding_idx: a row whose gradient is zero; a negative one counts from the end.
        max_norm, norm_type: if max_norm is given, the rows that are read are first scaled in place to at most this norm.
        scale_grad_by_freq: True: divide the gradient of a row by the number of its positions.
        sparse: True: the gradient is a sparse tensor.

    Returns:
        [..., D], in weight's dtype.

    Raises:
        ValueError, RuntimeError, IndexError: arguments that torch refuses.
        UnsupportedError: a dtype, layout or device without a kernel.
        InvalidProblemError: an option of a wrong type.
        TypeError: an operand that is no tensor.

    Example:
        >>> import torch, sternway.torch as st
        >>> weight = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
        >>> y = st.embedding(torch.tensor([[2, 0], [2, 2]]), weight)
        >>> y[0].tolist()
        [[5.0, 6.0], [1.0, 2.0]]
        >>> y.sum().backward()
        >>> weight.grad.tolist()
        [[1.0, 1.0], [0.0, 0.0], [3.0, 3.0]]
    """
    arguments = input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
    try:
        done = run_eager(*arguments)
        if done is not None:
            return done
        if is_overridden((input, weight)):
            return handed_on(embedding, arguments, {}, (_torch_embedding, arguments))  # type: ignore[no-any-return]
        if is_jit_tracing():
            return _torch_embedding(*arguments)
        c = with_public_names(NAME, _OPERANDS, prepare, input, weight, padding_idx, scale_grad_by_freq, sparse)
        return run_prepared(c, max_norm, norm_type)
    except IndexError as error:
        raise with_index(error, NAME, input, weight) from None


class Embedding(torch.nn.Embedding):
    """:class:`torch.nn.Embedding` with the backward of :func:`sternway.torch.embedding`.

    It has the arguments, parameters and state dict of torch's module, so either loads the state of the other. To
    ``torch.ao.quantization`` it is torch's module, and becomes one when it is quantized.

    Args:
        num_embeddings, embedding_dim: the shape [V, D] of the table ``weight``, the one parameter.
        padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse: as for :func:`sternway.torch.embedding`.
        device, dtype: of the table; None: torch's defaults.

    Raises:
        AssertionError: arguments that torch refuses.

    Example:
        >>> import torch, sternway.torch as st
        >>> table = st.Embedding(3, 2)
        >>> table(torch.tensor([[2, 0], [2, 2]])).sum().backward()
        >>> table.weight.grad.tolist()
        [[1.0, 1.0], [0.0, 0.0], [3.0, 3.0]]
    """

    qconfig = Configuration()

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows.

        Args:
            input: as for :func:`sternway.torch.embedding`.

        Returns:
            [..., D], in the table's dtype.

        Raises:
            Error, ValueError, RuntimeError, IndexError: as :func:`sternway.torch.embedding`.

        Example:
            >>> import torch, sternway.torch as st
            >>> st.Embedding(3, 2)(torch.tensor([0, 1, 2, 1])).shape
            torch.Size([4, 2])
        """
        return embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )

    if TYPE_CHECKING:

        def __call__(self, input: Tensor) -> Tensor: ...
