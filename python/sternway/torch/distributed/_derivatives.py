"""Derivatives of operators on DTensors, by the sharding rules of the operators: each rank differentiates its shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement

from ._local import duals, from_local, to_local
from ._placements import fits
from ._rules import RULES, Placements, Rule

Gradients = tuple[Tensor | None, ...]


def gradients_by_shards(
    name: str, backward: Callable[..., Gradients], inputs: tuple[Any, ...], grads: tuple[DTensor, ...], needs: tuple[bool, ...]
) -> Gradients:
    """The gradients of the inputs of an operator whose tensors are DTensors. They can be differentiated again.

    What fits no rule is gathered, as in any backward.

    Args:
        name: of the operator.
        backward: computes the gradients from plain tensors.
        inputs: of the operator.
        grads: of its outputs.
        needs: which inputs need a gradient.
    """
    mesh = next(x.device_mesh for x in inputs if isinstance(x, DTensor))
    rules = RULES[name](*inputs)
    tensors = inputs[: len(rules[0][1])]
    chosen = [_fitting([None if x is None else x.placements[k] for x in tensors], rules) for k in range(mesh.ndim)]
    made = list(zip(*(outputs for outputs, _ in chosen), strict=True))
    given = list(zip(*(placed for _, placed in chosen), strict=True))
    of_outputs, of_inputs = (list(zip(*side, strict=True)) for side in zip(*map(_of_gradients, chosen), strict=True))
    own = [x if x is None else to_local(x, placed, grad) for x, placed, grad in zip(tensors, given, of_inputs, strict=True)]
    upstream = [to_local(g, grad, placed) for g, placed, grad in zip(grads, made, of_outputs, strict=True)]
    found = backward((*own, *inputs[len(own) :]), tuple(upstream), needs)

    def whole(i: int, local: Tensor | None) -> Tensor | None:
        return None if local is None else from_local(local, mesh, of_inputs[i], inputs[i].shape, given[i])

    return tuple(whole(i, local) for i, local in enumerate(found))


def _fitting(placements: Placements, rules: list[Rule]) -> Rule:
    """The first rule that placements fit, or that of replicated tensors, which comes first."""
    fitting = (rule for rule in rules if all(fits(p, wanted) for p, wanted in zip(placements, rule[1], strict=True)))
    return next(fitting, rules[0])


def _of_gradients(rule: Rule) -> Rule:
    """The placements of the gradients of outputs and inputs. Shards make parts of the gradient of a replicated tensor."""
    is_whole = all(p is None or p.is_replicate() for p in rule[1])

    def of(p: Placement | None) -> Placement | None:
        return p if p is None else Partial() if p.is_replicate() and not is_whole else duals((p,))[0]

    return [of(p) for p in rule[0]], [of(p) for p in rule[1]]
