"""``torch.nn.functional.embedding_bag`` and ``torch.nn.EmbeddingBag`` with sternway's backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from .._tracing import keep_untraced
from .._types import BagMode
from .._types import Optimizer as OptimizerName
from ..errors import Error
from ._autograd.bag_eager import run_eager
from ._autograd.bag_problem import NAME
from ._autograd.dispatch import with_index, with_public_names
from ._autograd.learning import Learner, require_recording, require_table
from ._autograd.operators import is_jit_tracing
from ._autograd.overrides import handed_on, is_overridden
from ._autograd.prepared_bag import prepare, run_prepared
from ._learning import LearningTable
from ._modules import Configuration

__all__ = ["EmbeddingBag", "embedding_bag"]

_torch_embedding_bag = torch.nn.functional.embedding_bag  # as at import: accelerate() replaces the attribute
_OPERANDS = {
    **dict.fromkeys(("dtype", "num_embeddings", "embedding_dim", "num_rows"), "weight"),
    **dict.fromkeys(("index_dtype", "total_indices", "total"), "input"),
    **dict.fromkeys(("offset_dtype", "num_bags"), "offsets"),
}
"""By field of the descriptors, the argument of embedding_bag that it comes from."""


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: BagMode = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of the rows of weight that each bag of indices names: :func:`torch.nn.functional.embedding_bag`.

    The backward is :func:`sternway.embedding_bag_backward`: each row of the gradient is written once, summed in the order of
    positions, so the bits repeat. With ``sparse=True`` the gradient is coalesced: one row for each index that occurs. A dense
    gradient can be differentiated again.

    Args:
        input: [positions] with offsets, or [bags, positions of a bag]; int32 or int64. Each row of a nested tensor, jagged or
            strided, is a bag.
        weight: [V, D]; float32, float64, float16 or bfloat16, on the CPU or CUDA.
        offsets: [bags], or [bags + 1] with include_last_offset: the position at which each bag begins.
        max_norm, norm_type: if max_norm is given, the rows that are read are first scaled in place to at most this norm.
        scale_grad_by_freq: True: divide the gradient of a row by the number of its positions.
        mode: "sum", "mean" or "max".
        sparse: True: the gradient is a sparse tensor.
        per_sample_weights: a factor of each position, in mode "sum"; it has a gradient too. Of weight's dtype; nested like
            input.
        include_last_offset: True: the last offset is the end of the last bag. On the CPU it must be the end of input; torch's
            forward on CUDA takes the end of input whatever its value.
        padding_idx: a row that is not counted; a negative one counts from the end.

    Returns:
        [bags, D], in weight's dtype.

    Raises:
        ValueError, NotImplementedError, RuntimeError: arguments that torch refuses.
        UnsupportedError: a dtype, layout or device without a kernel.
        InvalidProblemError: an option that is no bool; per_sample_weights of another dtype than weight; on the CPU, offsets
            that decrease, or input behind the last offset, which the modes of torch's forward treat differently.
        TypeError: an operand that is no tensor.

    On CUDA an index outside the table contributes nothing where sternway's forward gathers the rows, which it does in large
    calls; torch's forward stops the device with an assertion.

    Example:
        >>> import torch, sternway.torch as st
        >>> weight = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
        >>> y = st.embedding_bag(torch.tensor([2, 0, 2]), weight, torch.tensor([0, 1]), mode="sum")
        >>> y.tolist()
        [[5.0, 6.0], [6.0, 8.0]]
        >>> y.sum().backward()
        >>> weight.grad.tolist()
        [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]
    """
    arguments = (
        input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset,
        padding_idx,
    )  # fmt: skip
    try:
        done = run_eager(*arguments)
        if done is not None:
            return done
        if is_overridden((input, weight, offsets, per_sample_weights)):
            return handed_on(embedding_bag, arguments, {}, (_torch_embedding_bag, arguments))  # type: ignore[no-any-return]
        if is_jit_tracing():
            return _torch_embedding_bag(*arguments)
        c = with_public_names(
            NAME, _OPERANDS, prepare, input, weight, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
            include_last_offset, padding_idx,
        )  # fmt: skip
        return run_prepared(c, max_norm, norm_type)
    except RuntimeError as error:
        if "idx" not in str(error) or isinstance(error, Error):  # of torch's mode "max", which does not name the number of rows
            raise
        raise with_index(error, NAME, input, weight) from None


def _learn(learner: Learner, weight: Tensor, input: Tensor, offsets: Any, max_norm: Any, *others: Any) -> Tensor:
    """A call of a module whose table the backward updates. others: the arguments of embedding_bag from norm_type on."""
    require_table(learner, weight)
    norm_type, by_frequency, mode, sparse, weights, last, padding = others
    try:
        done = run_eager(
            input, weight, offsets, max_norm, norm_type, by_frequency, mode, sparse, weights, last, padding, learner
        )  # fmt: skip
        if done is not None:
            return done
        require_recording(learner, weight, input, offsets, weights)
        c = with_public_names(
            NAME, _OPERANDS, prepare, input, weight, offsets, by_frequency, mode, sparse, weights, last, padding, learner.kind
        )  # fmt: skip
        return run_prepared(c, max_norm, norm_type, learner)
    except RuntimeError as error:
        if "idx" not in str(error) or isinstance(error, Error):  # of torch's mode "max", which does not name the number of rows
            raise
        raise with_index(error, NAME, input, weight) from None


def _learn_untraced(*arguments: Any) -> Tensor:
    """:func:`_learn` between the graphs of torch.compile."""
    return torch._dynamo.disable(_learn)(*arguments)  # type: ignore[no-any-return,no-untyped-call]


keep_untraced([_learn_untraced])

B = TypeVar("B", bound="EmbeddingBag")


class EmbeddingBag(torch.nn.EmbeddingBag, LearningTable):  # torch's class first: see _modules
    """:class:`torch.nn.EmbeddingBag` with the backward of :func:`sternway.torch.embedding_bag`.

    It has the arguments, parameters and state dict of torch's module, so either loads the state of the other. To
    ``torch.ao.quantization`` it is torch's module, and becomes one when it is quantized.

    With an optimizer the backward updates the rows of the table that were used, in place, as if their whole gradient had
    been handed to the optimizer of torch.optim. No gradient exists, and ``weight.grad`` stays None. Each backward of each
    use of the module is an update, in ``eval()`` too. ``no_grad()`` and ``weight.requires_grad_(False)`` stop it.
    ``torch.compile`` calls such a module between its graphs; ``torch.export`` and ``torch.jit.trace`` leave the optimizer
    out.

    Args:
        num_embeddings, embedding_dim: the shape [V, D] of the table ``weight``, the one parameter.
        max_norm, norm_type, scale_grad_by_freq, mode, sparse, include_last_offset, padding_idx: as for
            :func:`sternway.torch.embedding_bag`; mode "mean" by default.
        device, dtype: of the table; None: torch's defaults.
        optimizer: "sgd" (:class:`torch.optim.SGD` without momentum), "adagrad" (:class:`torch.optim.Adagrad`),
            "rowwise_adagrad" (Adagrad with one number a row, to which the mean of the squares is added), or "adam"
            (:class:`torch.optim.SparseAdam`). None: the backward stores a gradient.
        lr: the learning rate, a number or a tensor of one element.
        optimizer_options: by the names and with the defaults of torch.optim: ``weight_decay`` (of the rows that were used);
            ``eps`` (all but "sgd"); ``initial_accumulator_value`` ("adagrad", "rowwise_adagrad"); ``betas`` ("adam"). For a
            table of 16 bits, whose state is float32, also ``stochastic_rounding``, False by default, and its ``seed``, 0 by
            default.

    Raises:
        ValueError: arguments that torch refuses.
        UnsupportedError: an optimizer or an option that there is not; ``sparse=True`` with an optimizer. In a call, where the
            table has an optimizer: a weight that is not the module's own parameter, is a DTensor or managed by FSDP, or that
            DistributedDataParallel replicates; a transform of torch.func. In a backward: a gradient of the weight that is asked
            for by ``torch.autograd.grad``, ``create_graph=True``. Nothing is updated then.
        InvalidProblemError: a number of the optimizer outside its range.

    Example:
        >>> import torch, sternway.torch as st
        >>> bag = st.EmbeddingBag(3, 2, mode="sum")
        >>> bag(torch.tensor([[2, 0], [1, 1]])).sum().backward()
        >>> bag.weight.grad.tolist()
        [[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]
        >>> weight = torch.ones(3, 2)
        >>> bag = st.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", optimizer="sgd", lr=0.5)
        >>> bag(torch.tensor([[2, 0], [2, 2]])).sum().backward()
        >>> weight.tolist(), bag.weight.grad
        ([[0.5, 0.5], [1.0, 1.0], [-0.5, -0.5]], None)
    """

    qconfig = Configuration()

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: BagMode = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        optimizer: OptimizerName | None = None,
        lr: float | Tensor = 0.01,
        optimizer_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, max_norm, norm_type, scale_grad_by_freq, mode, sparse, _weight, include_last_offset,
            padding_idx, device, dtype,
        )  # fmt: skip
        self._learn_by(optimizer, lr, optimizer_options)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls: type[B],
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: BagMode = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        optimizer: OptimizerName | None = None,
        lr: float | Tensor = 0.01,
        optimizer_options: Mapping[str, Any] | None = None,
    ) -> B:
        """Make a module of a table.

        Args:
            embeddings: the table [V, D], whose memory the module shares.
            freeze: True: the table does not learn, until ``weight.requires_grad_(True)``.
            max_norm, norm_type, scale_grad_by_freq, mode, sparse, include_last_offset, padding_idx: as for the class.
            optimizer, lr, optimizer_options: as for the class.

        Returns:
            the module.

        Raises:
            Error, ValueError, AssertionError: as the class.

        Example:
            >>> import torch, sternway.torch as st
            >>> bag = st.EmbeddingBag.from_pretrained(torch.ones(3, 2), freeze=False, optimizer="adagrad", lr=0.25)
            >>> bag(torch.tensor([[2, 0]])).sum().backward()
            >>> bag.weight.tolist()
            [[0.75, 0.75], [1.0, 1.0], [0.75, 0.75]]
        """
        bag: Any = super().from_pretrained(
            embeddings, freeze, max_norm, norm_type, scale_grad_by_freq, mode, sparse, include_last_offset, padding_idx
        )
        bag._learn_by(optimizer, lr, optimizer_options)
        return bag  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Describe the module as torch's does, with its optimizer.

        Returns:
            its arguments.

        Example:
            >>> import sternway.torch as st
            >>> st.EmbeddingBag(3, 2, optimizer="adagrad")
            EmbeddingBag(3, 2, mode='mean', optimizer='adagrad')
        """
        return self._described(super().extra_repr())

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return the reduced bags.

        Args:
            input, offsets, per_sample_weights: as for :func:`sternway.torch.embedding_bag`.

        Returns:
            [bags, D], in the table's dtype.

        Raises:
            Error, ValueError, NotImplementedError, RuntimeError: as :func:`sternway.torch.embedding_bag`.

        Example:
            >>> import torch, sternway.torch as st
            >>> bag = st.EmbeddingBag(3, 2)
            >>> bag(torch.tensor([0, 1, 2]), offsets=torch.tensor([0, 2])).shape
            torch.Size([2, 2])
        """
        learner = self._learner()
        if learner is None:
            return embedding_bag(
                input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse,
                per_sample_weights, self.include_last_offset, self.padding_idx,
            )  # fmt: skip
        call = _learn_untraced if torch.compiler.is_dynamo_compiling() else _learn
        return call(
            learner, self.weight, input, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode,
            self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip

    if TYPE_CHECKING:  # as torch's module, with the modes by name
        mode: BagMode

        def __call__(
            self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
        ) -> Tensor: ...
