"""Operations of sternway on tensors that several processes share. Importing it registers the sharding rules of DTensor.

``DistributedDataParallel`` and FSDP2 hand a module plain local tensors and need nothing of this. A function of
:mod:`sternway.torch` that is given a ``DTensor`` imports this module by itself.

- ``rules``: how each operator may be sharded, in one table.
- ``placements``: the check of a call before its forward, and the registration with torch.
"""

from .placements import register_rules

__all__: list[str] = []

register_rules()
