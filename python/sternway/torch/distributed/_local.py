"""The tensor that a rank has of a DTensor, and back, with derivatives of any order.

Those of torch do not suffice: the gradient of ``DTensor.to_local`` has no derivative in torch 2.11, nor has that of
``DTensor.from_local`` where it redistributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

Placements = tuple[Placement, ...]


def to_local(x: DTensor, placements: Sequence[Placement], grad_placements: Sequence[Placement] | None = None) -> Tensor:
    """The tensor of this rank, with x placed otherwise.

    Args:
        placements: of x, before it is taken apart.
        grad_placements: how the gradients that the ranks compute make that of x; None: as placed, replicated for a Partial.
    """
    placements = tuple(placements)
    grads = duals(placements) if grad_placements is None else tuple(grad_placements)
    return _Local.apply(x, placements, grads)  # type: ignore[no-any-return]


def from_local(
    local: Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: torch.Size,
    grad_placements: Sequence[Placement] | None = None,
) -> DTensor:
    """The DTensor of this shape that the tensors of the ranks make.

    grad_placements: of the gradients that the ranks get; None: as placed, replicated for a Partial.
    """
    placements = tuple(placements)
    grads = duals(placements) if grad_placements is None else tuple(grad_placements)
    return _Whole.apply(local, mesh, placements, grads, placements, shape)  # type: ignore[no-any-return]


def duals(placements: Placements) -> Placements:
    """The placements of gradients, by default: a term of a sum has the gradient of the sum."""
    return tuple(Replicate() if p.is_partial() else p for p in placements)


class _Local(torch.autograd.Function):
    """A DTensor to the tensors of the ranks."""

    @staticmethod
    def forward(ctx: Any, x: DTensor, placements: Placements, grads: Placements) -> Tensor:
        mesh = x.device_mesh
        ctx.options = mesh, grads, placements, duals(x.placements), x.shape
        # torch makes no terms of a sum: here the first rank has it, and the others have zeros
        divided = [k for k, (p, old) in enumerate(zip(placements, x.placements, strict=True)) if p.is_partial() and p != old]
        reached = [Replicate() if k in divided else p for k, p in enumerate(placements)]
        detached: Any = x.detach()
        local: Tensor = detached.redistribute(placements=reached).to_local()
        if any(mesh.get_local_rank(k) for k in divided):
            return torch.zeros_like(local)
        return local.view_as(local)  # an object of its own, for autograd

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[DTensor, None, None]:
        return _Whole.apply(grad, *ctx.options), None, None


class _Whole(torch.autograd.Function):
    """The tensors of the ranks to a DTensor, which is then placed as ``wanted``. It is the transpose of :class:`_Local`."""

    @staticmethod
    def forward(
        ctx: Any, local: Tensor, mesh: DeviceMesh, placements: Placements, grads: Placements, wanted: Placements,
        shape: torch.Size,
    ) -> DTensor:  # fmt: skip
        ctx.options = grads, placements
        strides = torch.empty(shape, device="meta").stride()
        own = local.detach().contiguous()
        x: DTensor = DTensor.from_local(own, mesh, placements, run_check=False, shape=shape, stride=strides)
        return x.redistribute(placements=wanted)

    @staticmethod
    def backward(ctx: Any, grad: DTensor) -> tuple[Tensor, None, None, None, None, None]:
        return _Local.apply(grad, *ctx.options), None, None, None, None, None
