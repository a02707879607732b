"""What st.Embedding, st.EmbeddingBag and st.EmbeddingBags share where their tables learn in the backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter

from ..errors import make, shown
from ._autograd.learning import Learner
from ._autograd.operators import is_exporting, is_jit_tracing
from ._autograd.packed_tables import TableLayout
from ._table_optimizer import TableOptimizer


class LearningTable(torch.nn.Module):
    """The part of a module with a table ``weight`` that holds an optimizer, whose state follows the table."""

    _table_optimizer: TableOptimizer | None = None
    _table_name: ClassVar[str | None] = "weight"  # None: the tables are parameters of another module
    _package = "sternway.torch"  # of the class, for errors
    if TYPE_CHECKING:
        weight: Any

    def _tables(self) -> Sequence[Parameter]:
        """The parameters that learn."""
        return [self.weight]

    def _learn_by(self, optimizer: Any, lr: Any, options: Any, layout: TableLayout | None = None) -> None:
        """Give the tables an optimizer; None: they have none.

        Args:
            layout: of more than one table.

        Raises:
            Error: the optimizer, or an option, is refused.
        """
        op = f"{self._package}.{type(self).__name__}"
        if optimizer is None:
            if options is not None:
                got, hint = shown(options), "name the optimizer"
                raise make("invalid_problem", op, "optimizer_options", "left out without an optimizer", got, hint)
            return
        if getattr(self, "sparse", False):
            hint = "the backward makes no gradient"
            raise make("unsupported", op, "sparse", "False with an optimizer", "True", hint)
        self._table_optimizer = TableOptimizer(op, self._tables(), optimizer, lr, options, layout)

    @property
    def optimizer(self) -> TableOptimizer | None:
        """The optimizer of the table, a :class:`torch.optim.Optimizer`; None: the backward stores a gradient.

        ``param_groups[0]`` has ``lr``, ``grad_scale`` and the options, which every backward reads. ``state_dict()`` has the
        state, in the layout of torch's optimizer of the same rule, which can load it.

        Returns:
            the optimizer, or None.

        Example:
            >>> import torch, sternway.torch as st
            >>> bag = st.EmbeddingBag(3, 2, optimizer="sgd", lr=0.5)
            >>> schedule = torch.optim.lr_scheduler.StepLR(bag.optimizer, step_size=1, gamma=0.1)
            >>> bag(torch.tensor([[2, 0]])).sum().backward()
            >>> schedule.step()
            >>> bag.optimizer.param_groups[0]["lr"]
            0.05
        """
        return self._table_optimizer

    def _learner(self) -> Learner | None:
        """The optimizer, if a call of the module is recorded for a backward that updates the table."""
        learner = self._table_optimizer
        if learner is None or not self.weight.requires_grad or not torch.is_grad_enabled():
            return None
        return None if is_exporting() or is_jit_tracing() else learner

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Register a parameter, as where ``weight`` is replaced; the optimizer then has the new table.

        Args:
            name: of the parameter.
            param: the parameter. A table has the shape of the one before.

        Raises:
            InvalidProblemError: the table has an optimizer, and param is a ``weight`` of another shape.
            KeyError, TypeError: as :meth:`torch.nn.Module.register_parameter`.

        Example:
            >>> import torch, sternway.torch as st
            >>> bag = st.EmbeddingBag(3, 2, optimizer="sgd")
            >>> bag.weight = torch.nn.Parameter(torch.ones(3, 2))
            >>> bag.optimizer.param_groups[0]["params"][0] is bag.weight
            True
        """
        if name == self._table_name and param is not None and (learner := self._table_optimizer) is not None:
            learner.follow([param])
        super().register_parameter(name, param)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        done = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if (learner := self._table_optimizer) is not None:
            learner.follow(self._tables())
        return done

    def _described(self, text: str) -> str:
        """The arguments of the module, and the name of its optimizer."""
        return text if self._table_optimizer is None else f"{text}, optimizer={self._table_optimizer.name!r}"
