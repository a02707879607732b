"""Backwards that update a table in place, as the optimizer of its module says, in place of returning a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..._plan import Plan
from ...errors import make
from .calls import resolve
from .operators import PLAIN, is_distributed
from .tangents import has_tangents

Kind = tuple[Any, bool]
"""The fields ``optimizer`` and ``stochastic_rounding`` of a descriptor."""
NO_LEARNER: Kind = (None, False)
"""The kind of a backward that has gradients."""


class Learner(Protocol):
    """The optimizer of a table, or of some."""

    op: str  # the module's class, for errors

    @property
    def weight(self) -> Tensor: ...

    @property
    def weights(self) -> Sequence[Tensor]: ...

    @property
    def kind(self) -> Kind: ...

    def operands(self) -> dict[str, Tensor]: ...


def require_table(learner: Learner, weight: Tensor) -> None:
    """Refuse a weight that is not the table whose state the learner has, or that each rank would update alone.

    Raises:
        UnsupportedError: with the way out.
    """
    wanted, hint = "the module's own parameter where it has an optimizer", "keep the module out of them"
    if type(weight) not in PLAIN and is_distributed(weight):
        hint = "use sternway.torch.distributed.ShardedEmbeddingBag"
        raise make("unsupported", learner.op, "weight", wanted, "a DTensor", hint)
    if weight is not learner.weight:
        got = "another tensor in its place, as DataParallel, FSDP, functional_call and parametrizations put there"
        raise make("unsupported", learner.op, "weight", wanted, got, hint)
    require_one_process(learner)


def requires_update(learner: Learner) -> bool:
    """Whether the tables require gradients, of which a backward updates all.

    Raises:
        UnsupportedError: some do and some do not.
    """
    required = {weight.requires_grad for weight in learner.weights}
    if len(required) == 2:
        hint = "give the tables that learn a module of their own"
        raise make("unsupported", learner.op, "weights", "all frozen or none where they have an optimizer", "some", hint)
    return True in required


def require_one_process(learner: Learner) -> None:
    """Refuse tables that DistributedDataParallel replicates.

    Raises:
        UnsupportedError: with the way out.
    """
    replicas = DistributedDataParallel._active_ddp_module
    if replicas is None:
        return
    replicated = set(map(id, replicas._module_parameters))
    if any(id(weight) in replicated for weight in learner.weights):
        got = "one that DistributedDataParallel replicates, where each rank would learn alone"
        hint = "name the weight to DDP as a parameter to ignore; sternway.torch.distributed.ShardedEmbeddingBag shares a table"
        raise make("unsupported", learner.op, "weight", "a table of one process where it has an optimizer", got, hint)


def require_recording(learner: Learner, weight: Tensor, *others: Tensor | None) -> None:
    """Refuse a call that something but autograd differentiates, or whose operands are not plain tensors with values.

    Args:
        others: the operands but the table. One that is no tensor is left to the checks that follow.

    Raises:
        UnsupportedError: with the way out.
    """
    got = unrecorded(weight, *others)
    if got is not None:
        wanted, hint = "an ordinary one where the table has an optimizer", "freeze the table with requires_grad_(False)"
        raise make("unsupported", learner.op, "the call", wanted, got, hint)


def unrecorded(*operands: Tensor | None) -> str | None:
    """Why autograd alone does not see a call, in words; None: it does."""
    if torch._C._are_functorch_transforms_active():
        return "a transform of torch.func"
    if has_tangents():
        return "forward-mode AD"
    if not all(_has_values(x) and not x.is_meta for x in operands if isinstance(x, Tensor)):
        return "one of tensors without values or of a class of their own"
    return None


def _has_values(x: Tensor) -> bool:
    return x.is_nested or type(x).__torch_dispatch__ is Tensor.__torch_dispatch__


def reaches_table(ctx: Any, learner: Learner) -> bool:
    """Whether the backward that is running updates the table; the first input of the node is the table.

    It does not where ``backward(inputs=...)`` or ``torch.autograd.grad`` leave the table out.

    Raises:
        UnsupportedError: the gradient of the table is asked for, or shall be differentiated again.
    """
    hint = "call backward(), which updates the table; the weight of a module without an optimizer has a gradient"
    try:
        reached: bool = torch._C._will_engine_execute_node(ctx.next_functions[0][0])
    except RuntimeError:  # the leaf is captured
        got = "torch.autograd.grad of weight"
        raise make("unsupported", learner.op, "weight", "left to its optimizer", got, hint) from None
    if torch.is_grad_enabled():
        wanted, got = "one that is not differentiated where the table has an optimizer", "create_graph=True"
        raise make("unsupported", learner.op, "the backward", wanted, got, hint)
    return reached and requires_update(learner)


def versions(tables: Iterable[Tensor]) -> list[int]:
    """The version counters of tables."""
    return [table._version for table in tables]


def require_versions(learner: Learner, tables: Iterable[Tensor], before: list[int] | None) -> None:
    """Refuse a gradient of the weights of samples that would read a row after it has changed.

    torch refuses it where it has saved the table, but not under hooks of saved tensors.

    Args:
        before: the version counters at the forward; None: there is no such gradient.

    Raises:
        UnsupportedError: a counter differs.
    """
    if before is not None and versions(tables) != before:
        got, hint = "one that reads a table that has changed since the forward", "call backward() before the next update"
        raise make("unsupported", learner.op, "the gradient of per_sample_weights", "of the table of the forward", got, hint)


def update(plan: Plan[Any], learner: Learner, table: Tensor, operands: dict[str, Tensor | None]) -> None:
    """Run a plan with an optimizer on the table.

    Args:
        table: of the forward.
        operands: all others, by name.

    Raises:
        Error: a check failed, and nothing was changed.
    """
    if table is not learner.weight:
        got = "another tensor since the forward"
        raise make("unsupported", learner.op, "weight", "the module's own parameter where it has an optimizer", got)
    run_update(plan, learner, table, operands)


def run_update(plan: Plan[Any], learner: Learner, table: Tensor, operands: dict[str, Tensor | None]) -> None:
    """Run a plan with an optimizer on its operand ``weight``.

    Raises:
        Error: a check failed, and nothing was changed.
    """
    every: dict[str, Any] = {**operands, "weight": table.detach(), **learner.operands()}
    if not plan._run_plain(every):
        every.pop("workspace", None)
        plan.run(**{name: x if x is None or name in plan._outputs else resolve(x.detach()) for name, x in every.items()})
