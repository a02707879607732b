"""Operations of sternway on tensors that several processes share. Importing it registers the sharding rules of DTensor.

``DistributedDataParallel`` and FSDP2 hand a module plain local tensors and need nothing of this. A function of
:mod:`sternway.torch` that is given a ``DTensor`` imports this module by itself.

- ``scans``: scans along a dimension that ranks share; ``parts``: the part of a rank; ``whole``: second derivatives.
- ``linear_recurrence``: linear recurrences along such a dimension.
- ``cuts``: how ranks cut rows and packed sequences; ``bounds``: the checks of ``cu_seqlens``.
- ``positions``: the positions of a rank's tokens under context parallelism.
- ``sharded_bag``: an embedding bag whose table is cut over the ranks; ``bag_routes``: where its positions go; ``bag_exchange``:
  its forward and backward.
- ``rules``: how each operator may be sharded, in one table.
- ``placements``: the check of a call before its forward, and the registration with torch.
- ``derivatives``: second derivatives on the shards of DTensors; ``local``: the tensor that a rank has of a DTensor, and back.
- ``exchange``: the facts of a call on every rank, so that no rank waits for one whose call is wrong.
"""

from .._autograd.sharding import Sharding as _Sharding
from . import _linear_recurrence, _positions, _scans, _sharded_bag
from ._derivatives import gradients_by_shards
from ._linear_recurrence import *
from ._linear_recurrence import recurrence_sharded
from ._placements import register_rules, replicated, require_rule
from ._positions import *
from ._scans import *
from ._scans import scan_sharded
from ._sharded_bag import *

__all__ = [*_linear_recurrence.__all__, *_positions.__all__, *_scans.__all__, *_sharded_bag.__all__]
"""Each module states its public names."""

_SHARDING = _Sharding(require_rule, replicated, scan_sharded, recurrence_sharded, gradients_by_shards)
register_rules()
