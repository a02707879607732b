"""``torch.nn.functional.embedding`` and ``torch.nn.Embedding`` with sternway's backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from .._tracing import keep_untraced
from .._types import Optimizer as OptimizerName
from ._autograd.dispatch import with_index, with_public_names
from ._autograd.embedding import run_eager
from ._autograd.embedding_problem import NAME
from ._autograd.learning import Learner, require_recording, require_table
from ._autograd.operators import is_jit_tracing
from ._autograd.overrides import handed_on, is_overridden
from ._autograd.prepared_embedding import prepare, run_prepared
from ._learning import LearningTable
from ._modules import Configuration

__all__ = ["Embedding", "embedding"]

_torch_embedding = torch.nn.functional.embedding  # as at import: accelerate() replaces the attribute
_OPERANDS = {
    **dict.fromkeys(("dtype", "num_embeddings", "embedding_dim", "num_rows"), "weight"),
    **dict.fromkeys(("index_dtype", "num_indices", "total"), "input"),
}
"""By field of the descriptors, the argument of embedding that it comes from."""


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


def _learn(learner: Learner, weight: Tensor, input: Tensor, padding: Any, max_norm: Any, *others: Any) -> Tensor:
    """A call of a module whose table the backward updates. others: the arguments of embedding from norm_type on."""
    require_table(learner, weight)
    norm_type, by_frequency, sparse = others
    try:
        done = run_eager(input, weight, padding, max_norm, norm_type, by_frequency, sparse, learner)
        if done is not None:
            return done
        require_recording(learner, weight, input)
        c = with_public_names(NAME, _OPERANDS, prepare, input, weight, padding, by_frequency, sparse, learner.kind)
        return run_prepared(c, max_norm, norm_type, learner)
    except IndexError as error:
        raise with_index(error, NAME, input, weight) from None


def _learn_untraced(*arguments: Any) -> Tensor:
    """:func:`_learn` between the graphs of torch.compile."""
    return torch._dynamo.disable(_learn)(*arguments)  # type: ignore[no-any-return,no-untyped-call]


keep_untraced([_learn_untraced])

E = TypeVar("E", bound="Embedding")


class Embedding(torch.nn.Embedding, LearningTable):  # torch's class first: see _modules
    """:class:`torch.nn.Embedding` with the backward of :func:`sternway.torch.embedding`.

    It has the arguments, parameters and state dict of torch's module, so either loads the state of the other. To
    ``torch.ao.quantization`` it is torch's module, and becomes one when it is quantized.

    With an optimizer the backward updates the rows that were used, as :class:`EmbeddingBag` says.

    Args:
        num_embeddings, embedding_dim: the shape [V, D] of the table ``weight``, the one parameter.
        padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse: as for :func:`sternway.torch.embedding`.
        device, dtype: of the table; None: torch's defaults.
        optimizer, lr, optimizer_options: as for :class:`EmbeddingBag`. None: the backward stores a gradient.

    Raises:
        AssertionError: arguments that torch refuses.
        UnsupportedError, InvalidProblemError: as :class:`EmbeddingBag`, where there is an optimizer.

    Example:
        >>> import torch, sternway.torch as st
        >>> table = st.Embedding(3, 2)
        >>> table(torch.tensor([[2, 0], [2, 2]])).sum().backward()
        >>> table.weight.grad.tolist()
        [[1.0, 1.0], [0.0, 0.0], [3.0, 3.0]]
        >>> weight = torch.ones(3, 2)
        >>> table = st.Embedding.from_pretrained(weight, freeze=False, optimizer="sgd", lr=0.5)
        >>> table(torch.tensor([[2, 0], [2, 2]])).sum().backward()
        >>> weight.tolist(), table.weight.grad
        ([[0.5, 0.5], [1.0, 1.0], [-0.5, -0.5]], None)
    """

    qconfig = Configuration()

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        optimizer: OptimizerName | None = None,
        lr: float | Tensor = 0.01,
        optimizer_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight, _freeze,
            device, dtype,
        )  # fmt: skip
        self._learn_by(optimizer, lr, optimizer_options)

    @classmethod
    def from_pretrained(
        cls: type[E],
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        optimizer: OptimizerName | None = None,
        lr: float | Tensor = 0.01,
        optimizer_options: Mapping[str, Any] | None = None,
    ) -> E:
        """Make a module of a table.

        Args:
            embeddings: the table [V, D], whose memory the module shares.
            freeze: True: the table does not learn, until ``weight.requires_grad_(True)``.
            padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, optimizer, lr, optimizer_options: as for the class.

        Returns:
            the module.

        Raises:
            Error, AssertionError: as the class.

        Example:
            >>> import torch, sternway.torch as st
            >>> table = st.Embedding.from_pretrained(torch.ones(3, 2), freeze=False, optimizer="adagrad", lr=0.25)
            >>> table(torch.tensor([2, 0])).sum().backward()
            >>> table.weight.tolist()
            [[0.75, 0.75], [1.0, 1.0], [0.75, 0.75]]
        """
        make: Any = super().from_pretrained
        table = make(embeddings, freeze, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        table._learn_by(optimizer, lr, optimizer_options)
        return table  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Describe the module as torch's does, with its optimizer.

        Returns:
            its arguments.

        Example:
            >>> import sternway.torch as st
            >>> st.Embedding(3, 2, optimizer="adagrad")
            Embedding(3, 2, optimizer='adagrad')
        """
        return self._described(super().extra_repr())

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
        arguments = (
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )  # fmt: skip
        learner = self._learner()
        if learner is None:
            return embedding(*arguments)
        call = _learn_untraced if torch.compiler.is_dynamo_compiling() else _learn
        return call(learner, arguments[1], input, *arguments[2:])

    if TYPE_CHECKING:

        def __call__(self, input: Tensor) -> Tensor: ...
