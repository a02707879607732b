"""``EmbeddingBags``: embedding bags of many tables at once."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .._arrays import dtype_name
from .._tracing import keep_untraced
from .._types import BagMode
from .._types import Optimizer as OptimizerName
from ..errors import Error, any_of, make, renamed, shown
from ._autograd.bag_problem import MODES
from ._autograd.bags import Call, Problem, run
from ._autograd.calls import FLOATS
from ._autograd.eager import is_eager, is_plain
from ._autograd.learning import Learner, require_one_process, requires_update, unrecorded
from ._autograd.operators import is_distributed, is_exporting, is_jit_tracing
from ._autograd.packed_tables import OP, Packed, TableLayout, TableList
from ._learning import LearningTable
from ._table_optimizer import TableOptimizer

__all__ = ["EmbeddingBags"]

_OPERANDS = {
    **dict.fromkeys(("dtype", "num_elements", "num_rows", "[num_elements]", "[num_rows]"), "weights"),
    **dict.fromkeys(("index_dtype", "total_indices", "[total_indices]"), "indices"),
    **dict.fromkeys(("offset_dtype", "num_bags", "[num_bags]", "[num_tables, num_bags]", "num_tables * num_bags"), "offsets"),
}
"""By field of the descriptors, the argument of forward that it comes from."""


def _check_tables(tables: Any) -> list[tuple[int, int]]:
    """The shapes of tables.

    Raises:
        InvalidProblemError: there are none, or they are no pairs of numbers.
    """
    try:
        shapes = [tuple(operator.index(number) for number in table) for table in tables]
    except TypeError:
        shapes = []
    if not shapes or not all(len(shape) == 2 and min(shape) >= 0 for shape in shapes):
        wanted = "a list of pairs (num_embeddings, embedding_dim), of one or more"
        raise make("invalid_problem", OP, "tables", wanted, shown(tables))
    return shapes  # type: ignore[return-value]


def _require_operands(indices: Any, offsets: Any, weights: Any, packed: Packed) -> None:
    """Refuse operands that a plan cannot read, before any attribute is.

    Raises:
        TypeError: an operand is no tensor.
        UnsupportedError: something but autograd has to see the call.
    """
    for name, x in (("indices", indices), ("offsets", offsets), ("per_sample_weights", weights)):
        if not isinstance(x, Tensor) and (x is not None or name != "per_sample_weights"):
            raise make("type", OP, name, "a torch.Tensor", type(x).__name__)
        if x is not None and (is_distributed(x) or x.is_nested or x.layout is not torch.strided):
            raise make("unsupported", OP, name, "a strided tensor", "one that is distributed, nested or sparse")
    got = unrecorded(packed.whole, indices, offsets, weights)
    if got is not None:
        raise make("unsupported", OP, "the call", "one that autograd alone sees", got)


def _problem(packed: Packed, layout: TableLayout, mode: str, indices: Tensor, offsets: Tensor) -> Problem:
    """The descriptor of a call.

    Raises:
        InvalidProblemError: shapes that do not fit.
    """
    if indices.dim() != 1:
        raise make("invalid_problem", OP, "indices", "of rank 1", f"rank {indices.dim()}")
    tables = layout.counts.tables
    bags, rest = divmod(offsets.shape[0] - 1, tables) if offsets.dim() == 1 else (0, 1)
    if rest or bags < 0:
        wanted, hint = f"of shape [{tables} * batch + 1], for {tables} tables", "the last one is the number of indices"
        raise make("invalid_problem", OP, "offsets", wanted, str(list(offsets.shape)), hint)
    whole = packed.whole
    return Problem(
        layout.counts, bags, indices.shape[0], whole.dtype, mode, indices.dtype, offsets.dtype, packed.is_aligned, whole.device
    )  # fmt: skip


def _run(module: EmbeddingBags, indices: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    """A call of the module."""
    tables, learner, mode = module.weights, module._optimizer_in_use(), module.mode
    if learner is not None:
        if not tables.are_own():
            wanted, hint = "the module's own parameters where they have an optimizer", "keep the module out of them"
            got = "other tensors in their place, as DataParallel, FSDP, functional_call and parametrizations put there"
            raise make("unsupported", OP, "weights", wanted, got, hint)
        require_one_process(learner)
    packed = tables.find()
    plain = is_eager(indices) and is_plain(offsets) and (weights is None or is_plain(weights))
    if not plain or packed.whole.is_meta:
        _require_operands(indices, offsets, weights, packed)
    if weights is not None and mode != "sum":
        raise NotImplementedError(f"EmbeddingBags: per_sample_weights go with mode sum, not {mode}")
    assert tables.layout is not None
    problem = _problem(packed, tables.layout, mode, indices, offsets)
    needs_tables = learner is not None or any(table.requires_grad for table in packed.tables)
    try:
        return run(Call(problem, packed, tables, learner), indices, offsets, weights, needs_tables)
    except Error as error:
        if error.op not in ("embedding_bags", "embedding_bags_backward"):
            raise
        raise renamed(error, OP, _OPERANDS) from error.__cause__


def _run_untraced(*arguments: Any) -> Tensor:
    """:func:`_run` between the graphs of torch.compile."""
    return torch._dynamo.disable(_run)(*arguments)  # type: ignore[no-any-return,no-untyped-call]


keep_untraced([_run_untraced])


class EmbeddingBags(LearningTable):
    """Embedding bags of many tables at once: one launch forward and one pass backward, as FBGEMM's table-batched embedding.

    The tables are parameters of their own, which lie in one allocation. Without an optimizer ``weights[t].grad`` is a dense
    gradient, which can be differentiated again. With one, the backward updates the rows that were used of all tables, as
    :class:`EmbeddingBag` says. No gradient exists, and ``weights[t].grad`` stays None. ``requires_grad_(False)`` of all
    tables stops it. In ``backward(inputs=...)`` the first table stands for all.

    ``torch.compile`` calls the module between its graphs.

    Args:
        tables: the shape (num_embeddings, embedding_dim) of each table.
        mode: "sum", "mean" or "max".
        optimizer, lr, optimizer_options: as for :class:`EmbeddingBag`. None: the backward stores gradients.
        device, dtype: of all tables; None: torch's defaults.

    Raises:
        InvalidProblemError: no tables, or shapes that are none; a number of the optimizer outside its range.
        UnsupportedError: a dtype, a mode, an optimizer or an option that there is not. In a call: a transform of torch.func,
            forward-mode AD, torch.export, or torch.jit.trace; where there is an optimizer, as for :class:`EmbeddingBag`, or
            because some tables are frozen and others not. In a backward: ``is_grads_batched``.

    Example:
        >>> import torch, sternway.torch as st
        >>> bags = st.EmbeddingBags([(3, 2), (4, 1)], optimizer="sgd", lr=0.5)
        >>> for weight in bags.weights:
        ...     weight = torch.nn.init.ones_(weight)
        >>> indices, offsets = torch.tensor([0, 2, 1, 3, 3]), torch.tensor([0, 2, 3, 4, 5])  # two bags of each table
        >>> y = bags(indices, offsets)
        >>> y.tolist()
        [[2.0, 2.0, 1.0], [1.0, 1.0, 1.0]]
        >>> y.sum().backward()
        >>> bags.weights[1].tolist(), bags.weights[1].grad
        ([[1.0], [1.0], [1.0], [0.0]], None)
    """

    _table_name = None
    weights: TableList

    def __init__(
        self,
        tables: Sequence[tuple[int, int]],
        mode: BagMode = "sum",
        *,
        optimizer: OptimizerName | None = None,
        lr: float | Tensor = 0.01,
        optimizer_options: Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shapes = _check_tables(tables)
        if mode not in MODES:
            raise make("unsupported", OP, "mode", any_of(list(MODES)), shown(mode))
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in FLOATS:
            raise make("unsupported", OP, "dtype", any_of([dtype_name(x) for x in FLOATS]), shown(dtype))
        self.mode: BagMode = mode
        layout = TableLayout(shapes)
        self.weights = TableList.of(layout, dtype, device)
        self._followed = self._tables()
        self._learn_by(optimizer, lr, optimizer_options, layout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the tables with normal numbers, table after table, as :class:`torch.nn.EmbeddingBag` does.

        Raises:
            RuntimeError: torch cannot write a table.

        Example:
            >>> import torch, sternway.torch as st
            >>> bags = st.EmbeddingBags([(3, 2)])
            >>> bags.reset_parameters()
        """
        for weight in self.weights:
            torch.nn.init.normal_(weight)

    def _tables(self) -> Sequence[Parameter]:
        return self.weights._known

    @property
    def optimizer(self) -> TableOptimizer | None:
        """The optimizer of all tables, a :class:`torch.optim.Optimizer`; None: the backward stores gradients.

        As of :class:`EmbeddingBag`: ``param_groups[0]["params"]`` and the state dict have the tables in order.

        Returns:
            the optimizer, or None.

        Example:
            >>> import torch, sternway.torch as st
            >>> bags = st.EmbeddingBags([(3, 2), (4, 1)], optimizer="adagrad")
            >>> [tuple(state["sum"].shape) for state in bags.optimizer.state_dict()["state"].values()]
            [(3, 2), (4, 1)]
        """
        learner = self._table_optimizer
        if learner is not None and self._followed is not self._tables():
            learner.follow(self._tables())
            self._followed = self._tables()
        return learner

    def _optimizer_in_use(self) -> Learner | None:
        """The optimizer, if the call is recorded for a backward that updates the tables."""
        if self._table_optimizer is None or not torch.is_grad_enabled():
            return None
        learner = self.optimizer
        return learner if learner is not None and requires_update(learner) else None

    def extra_repr(self) -> str:
        """Describe the tables, the mode and the optimizer.

        Returns:
            the arguments of the module.

        Example:
            >>> import sternway.torch as st
            >>> st.EmbeddingBags([(3, 2), (4, 1)], optimizer="adagrad").extra_repr()
            "2 tables, 7 rows, 3 columns, mode='sum', optimizer='adagrad'"
        """
        assert self.weights.layout is not None
        counts = self.weights.layout.counts
        return self._described(f"{counts.tables} tables, {counts.rows} rows, {counts.columns} columns, mode={self.mode!r}")

    def forward(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return the reduced bags of all tables.

        Args:
            indices: of all tables end to end, int32 or int64; each counts the rows of its own table.
            offsets: [tables * batch + 1], int32 or int64: bag b of table t has the positions from ``offsets[t * batch + b]``
                up to the next offset. The first is 0, the last the number of indices.
            per_sample_weights: a factor of each index, in mode "sum", of the tables' dtype or float32; it has a gradient.

        Returns:
            [batch, sum of embedding_dim], in the tables' dtype: the columns of table after table.

        Raises:
            InvalidProblemError: operands that contradict each other; on the CPU offsets that decrease or leave indices over,
                and an index out of range. On CUDA these contribute nothing.
            UnsupportedError: as for the class; a dtype or a device without a kernel.
            NotImplementedError: per_sample_weights in another mode than "sum".
            TypeError: an operand that is no tensor.

        Example:
            >>> import torch, sternway.torch as st
            >>> bags = st.EmbeddingBags([(3, 2), (4, 1)])
            >>> bags(torch.tensor([0, 2, 1, 3]), torch.tensor([0, 2, 4])).shape  # one bag of each table
            torch.Size([1, 3])
        """
        if torch.compiler.is_dynamo_compiling():
            return _run_untraced(self, indices, offsets, per_sample_weights)
        if is_exporting() or is_jit_tracing():
            raise make("unsupported", OP, "the call", "an ordinary one", "torch.export or torch.jit.trace")
        return _run(self, indices, offsets, per_sample_weights)
