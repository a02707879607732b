"""Registers the sharding rules with torch, and checks the placements of a call before its forward.

torch finds the rule that costs least, and redistributes what does not fit it. In a backward that is what it does for its own
operators as well. In a forward it would gather a whole tensor without a word, so a call whose operands fit no rule is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor.experimental import register_sharding

from ...errors import Error, make
from ._rules import RULES, Placements


def register_rules() -> None:
    """Register the rule of every operator. Registering one again replaces it."""
    for name, rule in RULES.items():
        register_sharding(getattr(torch.ops.sternway, name).default)(rule)


def replicated(x: Tensor, like: DTensor) -> DTensor:
    """A tensor that all ranks have, as a DTensor on the mesh of another."""
    mesh = like.device_mesh
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def require_rule(name: str, op: str, operands: Sequence[str], inputs: Sequence[Any]) -> None:
    """Raise UnsupportedError unless the tensors of a call fit a rule, without communication.

    Args:
        name: of the operator.
        op: the drop-in, for errors.
        operands: what the drop-in calls the tensors of the operator, which are its first inputs.
        inputs: of the operator. One of them is a DTensor.
    """
    tensors = inputs[: len(operands)]
    mesh = require_mesh(op, operands, tensors)
    rules = [wanted for _, wanted in RULES[name](*inputs)]
    for k in range(mesh.ndim):
        require_fit(op, operands, [None if x is None else x.placements[k] for x in tensors], rules)


def require_mesh(op: str, operands: Sequence[str], tensors: Sequence[Any]) -> DeviceMesh:
    """The mesh of the tensors of a call, of which one is a DTensor; UnsupportedError unless all are, on one mesh."""
    mesh = next(x.device_mesh for x in tensors if isinstance(x, DTensor))
    for operand, x in zip(operands, tensors, strict=True):
        if x is None:
            continue
        if not isinstance(x, DTensor):
            hint = f"use DTensor.from_local({operand}, ...) or distribute_tensor, or redistribute the others and use to_local()"
            raise _refused(op, operand, "a DTensor, as another operand is", "a tensor of one process", hint)
        if x.device_mesh != mesh:
            hint = f"use distribute_tensor({operand}.full_tensor(), ...) on that mesh"
            raise _refused(op, operand, f"on the mesh {mesh} of the other operands", str(x.device_mesh), hint)
    return mesh


def require_fit(op: str, operands: Sequence[str], placements: Placements, rules: list[Placements]) -> Placements:
    """The first rule that placements fit, or the error of the first operand that fits none of those before it."""
    for i, (operand, placement) in enumerate(zip(operands, placements, strict=True)):
        fitting = [rule for rule in rules if fits(placement, rule[i])]
        if not fitting:
            wanted = "placed as " + " or ".join(dict.fromkeys(repr(p) for p in (Replicate(), *(rule[i] for rule in rules))))
            beside = ", with the other operands as they are" if i else ""
            hint = f"use {operand}.redistribute(placements=...)"
            raise _refused(op, operand, wanted + beside, repr(placement), hint)
        rules = fitting
    return rules[0]


def fits(placement: Placement | None, wanted: Placement | None) -> bool:
    """Whether a placement is the wanted one, or becomes it without communication: a replicated tensor has every shard."""
    if placement is None or wanted is None:
        return placement is wanted
    return placement == wanted or (placement.is_replicate() and wanted.is_shard())


def _refused(op: str, operand: str, wanted: str, got: str, hint: str) -> Error:
    return make("unsupported", f"sternway.torch.{op}", operand, wanted, got, hint)
