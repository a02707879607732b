"""``ShardedEmbeddingBag``: an embedding bag whose table is cut over the ranks of a process group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..._types import BagMode
from ..._types import Optimizer as OptimizerName
from ...errors import make
from .._autograd.bag_problem import MODES
from .._autograd.calls import FLOATS, flag, integer
from .._learning import LearningTable
from ._bag_exchange import bags, whole
from ._bag_routes import OP, SHARDINGS, Cut, Reduction, Sharding, agreed
from ._exchange import gathered

__all__ = ["ShardedEmbeddingBag"]

DRAWN = 4096  # rows whose initial values come from one seed


class _Group:
    """The process group of a module, which cannot be copied: copies of the module share it."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def __deepcopy__(self, memo: Any) -> _Group:
        return self


class ShardedEmbeddingBag(LearningTable):
    """:class:`sternway.torch.EmbeddingBag` with its table cut over the ranks of a process group.

    Each rank gives its own bags, any number of them, and gets their results, as one process with the whole table would compute
    them. ``"row"`` cuts the table [V, D] by rows and ``"column"`` by columns, as :func:`torch.chunk` does: each rank has
    ceil(V / ranks) rows, except the last ones, which may have fewer or none. The parameter ``weight`` is this rank's shard.
    Its gradient is the sum, not the mean, over the bags of all ranks, with each row written once, in the order of ranks and
    positions. The bits repeat from run to run.

    The constructor, ``forward``, the backward, ``reset_parameters`` and ``state_dict`` are collectives: every rank calls them,
    in the same order. ``state_dict`` has the whole table as ``weight`` on every rank, and ``load_state_dict`` takes it, so that
    this module and :class:`torch.nn.EmbeddingBag` load each other's state. Loading does not communicate.

    The initial values are normal with mean 0 and standard deviation 1, and 0 in the row of padding_idx. They follow from the
    random number generator of the CPU on the first rank, and do not depend on the number of ranks or the sharding. They are
    not the numbers that torch.nn.EmbeddingBag draws.

    With an optimizer the backward of each rank updates the used rows of its shard, or its columns of the used rows, as
    :class:`sternway.torch.EmbeddingBag` would by the bags of all ranks. ``optimizer`` of the module is that of the shard:
    each rank has its own schedule, and its ``state_dict`` is the state of the shard, which the rank saves, and loads into a
    module with the same shard. The state dict of the module stays the table.

    Args:
        num_embeddings, embedding_dim: the shape [V, D] of the whole table.
        group: the process group; None: that of all processes. With NCCL, each rank calls ``torch.cuda.set_device`` before.
        sharding: "row" or "column".
        mode: "sum", "mean" or "max".
        scale_grad_by_freq: True: divide the gradient of a row by the number of its positions in the calls of all ranks.
        include_last_offset: True: the last offset is the end of the last bag, which must be the end of input.
        padding_idx: a row that is not counted; a negative one counts from the end.
        max_norm, norm_type, sparse: refused, except max_norm None and sparse False.
        device, dtype: of the shard; None: torch's defaults.
        optimizer, lr, optimizer_options: as for :class:`sternway.torch.EmbeddingBag`, the same on every rank. Stochastic
            rounding on rank r of the group has the seed plus r. In mode "max" rows that are named, but win nothing, may count
            as used; on a rank with columns, rows that win only in columns of other ranks may not.

    Raises:
        UnsupportedError: max_norm or sparse is given; an optimizer or an option that there is not, and "rowwise_adagrad" with
            columns, as the mean of a row's squares is of all columns.
        InvalidProblemError: on every rank, if an argument of one rank is invalid or differs from those of the others; on this
            rank, if no process group is initialized or this process is not in the group.

    Example:
        >>> import torch
        >>> import sternway.torch.distributed as std
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # one process; torchrun starts more
        >>> bag = std.ShardedEmbeddingBag(3, 2, mode="sum")
        >>> bag(torch.tensor([[2, 0], [1, 1]])).sum().backward()
        >>> bag.weight.grad.tolist()
        [[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]
        >>> bag = std.ShardedEmbeddingBag(3, 2, mode="sum", optimizer="sgd", lr=0.5)
        >>> bag.load_state_dict({"weight": torch.ones(3, 2)})
        <All keys matched successfully>
        >>> bag(torch.tensor([[2, 0], [2, 2]])).sum().backward()
        >>> bag.weight.tolist(), bag.weight.grad
        ([[0.5, 0.5], [1.0, 1.0], [-0.5, -0.5]], None)
        >>> torch.distributed.destroy_process_group()
    """

    _package = "sternway.torch.distributed"

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        group: Any = None,
        *,
        sharding: Sharding = "row",
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: BagMode = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        optimizer: OptimizerName | None = None,
        lr: float | Tensor = 0.01,
        optimizer_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.max_norm, self.norm_type, self.sparse = None, norm_type, False

        def find() -> tuple[Cut, Reduction, str, str, str]:
            cut = _cut(num_embeddings, embedding_dim, sharding, dist.get_world_size(group))
            reduction = _reduction(mode, padding_idx, include_last_offset, scale_grad_by_freq, cut.rows)
            _refuse_options(max_norm, sparse)
            try:
                probe = torch.empty(0, device=device, dtype=dtype)
            except (RuntimeError, TypeError) as error:
                got = f"device {device!r:.60} and dtype {dtype!r:.60}"
                raise make("invalid_problem", OP, "the table", "of a device and dtype that torch has", got) from error
            if probe.dtype not in FLOATS:
                wanted, got = "float32, float64, float16 or bfloat16", str(probe.dtype).removeprefix("torch.")
                raise make("unsupported", OP, "dtype", wanted, got)
            self.weight = torch.nn.Parameter(probe.view(0, 0))  # until the ranks agree
            self._learn_by(optimizer, lr, optimizer_options)
            return cut, reduction, str(probe.dtype), probe.device.type, _learning(self.optimizer, cut)

        calls = gathered(OP, group, find)
        names = "shapes and sharding", "options", "dtype", "device", "optimizer"
        for name, values in zip(names, zip(*calls, strict=True), strict=True):
            if len(set(values)) > 1:
                got = ", ".join(dict.fromkeys(map(_shown, values)))
                raise make("invalid_problem", OP, name, "the same on every rank", got)
        self._group, self._rank = _Group(group), dist.get_rank(group)
        self._cut, self._reduction = calls[self._rank][:2]
        self._table_optimizer = None
        self.weight = torch.nn.Parameter(torch.empty(self._cut.shape(self._rank), device=device, dtype=dtype))
        self._learn_by(optimizer, lr, optimizer_options)
        if self.optimizer is not None and "seed" in (numbers := self.optimizer.param_groups[0]):
            numbers["seed"] = (numbers["seed"] + self._rank) % 2**32  # no two ranks round by the same random numbers
        self.num_embeddings, self.embedding_dim, self.sharding = self._cut.rows, self._cut.dim, sharding
        self.mode, self.padding_idx, self.include_last_offset, self.scale_grad_by_freq = self._reduction
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table again, as the constructor does. Every rank calls it.

        Raises:
            InvalidProblemError: no process group is initialized.

        Example:
            >>> import torch
            >>> import sternway.torch.distributed as std
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> bag = std.ShardedEmbeddingBag(3, 2, padding_idx=1)
            >>> _ = torch.manual_seed(0)
            >>> bag.reset_parameters()
            >>> bag.weight[1].tolist()
            [0.0, 0.0]
            >>> torch.distributed.destroy_process_group()
        """
        mine = int(torch.randint(2**62, (), dtype=torch.int64, device="cpu"))
        seed = gathered(OP, self._group.group, lambda: mine)[0]
        if self.weight.is_meta:
            return
        cut, part, padding = self._cut, self._cut.part(self._rank), self._reduction.padding
        rows = part if self.sharding == "row" else slice(0, cut.rows)
        columns = slice(0, cut.dim) if self.sharding == "row" else part
        generator = torch.Generator(self.weight.device)
        with torch.no_grad():
            for first in range(rows.start - rows.start % DRAWN, rows.stop, DRAWN):
                generator.manual_seed(seed + first // DRAWN)
                drawn = self.weight.new_empty(DRAWN, cut.dim).normal_(generator=generator)
                start, stop = max(first, rows.start), min(first + DRAWN, rows.stop)
                self.weight[start - rows.start : stop - rows.start] = drawn[start - first : stop - first, columns]
            if padding is not None and rows.start <= padding < rows.stop:
                self.weight[padding - rows.start] = 0

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return the reduced bags of this rank. Every rank calls it, with bags or without.

        The result requires a gradient on every rank or on none, and the backward is run by every rank or by none.

        Args:
            input: this rank's indices of rows of the whole table: [positions] with offsets, or [bags, positions of a bag];
                int32 or int64, on the device of the table.
            offsets: [bags], or [bags + 1] with include_last_offset: the position at which each bag begins; int32 or int64.
            per_sample_weights: a factor of each position, of the shape of input and the table's dtype, in mode "sum"; given on
                all ranks or on none. It has a gradient too.

        Returns:
            [bags, D], in the table's dtype.

        Raises:
            InvalidProblemError: on every rank, if the call of one is wrong: shapes, dtypes, devices, offsets out of order, and
                on every device an index outside [0, V). The group can be used afterwards.
            UnsupportedError: a tensor that is no plain strided one; per_sample_weights with another mode than "sum"; a dtype
                without a kernel; in the backward, ``create_graph=True``. With an optimizer also what
                :class:`sternway.torch.EmbeddingBag` refuses then, as a shard that DistributedDataParallel replicates.
            TypeError: an operand that is no tensor.

        Example:
            >>> import torch
            >>> import sternway.torch.distributed as std
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> bag = std.ShardedEmbeddingBag(3, 2, sharding="column")
            >>> bag(torch.tensor([0, 1, 2]), offsets=torch.tensor([0, 2])).shape
            torch.Size([2, 2])
            >>> torch.distributed.destroy_process_group()
        """
        y: Tensor = _run(self, input, offsets, per_sample_weights)
        return y

    if TYPE_CHECKING:

        def __call__(
            self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
        ) -> Tensor: ...

    def extra_repr(self) -> str:
        """Describe the module, for its ``repr``.

        Returns:
            the shape of the table, the shard of this rank, and options that are not the default.

        Example:
            >>> import torch
            >>> import sternway.torch.distributed as std
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> std.ShardedEmbeddingBag(3, 2)
            ShardedEmbeddingBag(3, 2, rows 0 to 3, mode='mean')
            >>> torch.distributed.destroy_process_group()
        """
        part, o = self._cut.part(self._rank), self._reduction
        shard = f"{self.sharding}s {part.start} to {part.stop}"
        options = {"padding_idx": o.padding, "include_last_offset": o.last, "scale_grad_by_freq": o.by_frequency}
        given = [f", {name}={value}" for name, value in options.items() if value is not None and value is not False]
        text = f"{self.num_embeddings}, {self.embedding_dim}, {shard}, mode={self.mode!r}"
        return self._described(text + "".join(given))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = whole(self.weight.detach(), self._cut, self._group.group)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        key, shape = f"{prefix}weight", (self.num_embeddings, self.embedding_dim)
        table = state_dict.get(key)
        if isinstance(table, Tensor):
            if table.shape != shape:
                errors = rest[-1]
                errors.append(f"{OP}: {key} must be the whole table {list(shape)}, got shape {list(table.shape)}")
                return
            state_dict = {**state_dict, key: self._cut.of(table, self._rank).contiguous()}
        super()._load_from_state_dict(state_dict, prefix, *rest)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # the exchange of facts reads values
def _run(module: ShardedEmbeddingBag, input: Tensor, offsets: Tensor | None, weights: Tensor | None) -> Tensor:
    """Check a call with the other ranks, and run it."""
    weight, reduction, group, learner = module.weight, module._reduction, module._group.group, module._learner()
    return bags(weight, weights, agreed(input, offsets, weights, weight, module._cut, reduction, group, learner))


def _cut(rows: Any, dim: Any, sharding: Any, ranks: int) -> Cut:
    name = "distributed.ShardedEmbeddingBag"
    shape = integer(name, "num_embeddings", rows), integer(name, "embedding_dim", dim)
    for option, extent in zip(("num_embeddings", "embedding_dim"), shape, strict=True):
        if extent < 1:
            raise make("invalid_problem", OP, option, "at least 1", str(extent))
    if not isinstance(sharding, str) or sharding not in SHARDINGS:
        raise make("invalid_problem", OP, "sharding", "'row' or 'column'", f"{sharding!r:.80}")
    return Cut(str(sharding), *shape, ranks)


def _reduction(mode: Any, padding: Any, last: Any, by_frequency: Any, rows: int) -> Reduction:
    name = "distributed.ShardedEmbeddingBag"
    if not isinstance(mode, str) or mode not in MODES:
        raise make("invalid_problem", OP, "mode", "'sum', 'mean' or 'max'", f"{mode!r:.80}")
    last, by_frequency = (
        flag(name, option, x) for option, x in (("include_last_offset", last), ("scale_grad_by_freq", by_frequency))
    )
    if mode == "max" and by_frequency:
        raise make("invalid_problem", OP, "scale_grad_by_freq", "False with mode 'max'", "True")
    if padding is not None:
        padding = integer(name, "padding_idx", padding)
        if not -rows <= padding < rows:
            raise make("invalid_problem", OP, "padding_idx", f"in [{-rows}, {rows})", str(padding))
        padding %= rows
    return Reduction(str(mode), padding, last, by_frequency)


def _refuse_options(max_norm: Any, sparse: Any) -> None:
    if max_norm is not None:
        hint = "clip the rows of weight after the step of the optimizer"
        raise make("unsupported", OP, "max_norm", "None: rows are not scaled in place", f"{max_norm!r:.80}", hint)
    if flag("distributed.ShardedEmbeddingBag", "sparse", sparse):
        raise make("unsupported", OP, "sparse", "False: the gradient of a shard is dense", "True")


def _learning(learner: Any, cut: Cut) -> str:
    """The optimizer of a module with its numbers, as a text that is the same on every rank.

    Raises:
        UnsupportedError: a shard does not have what the optimizer needs.
    """
    if learner is None:
        return "None"
    if learner.name == "rowwise_adagrad" and cut.sharding == "column":
        wanted, got = "another one with sharding 'column'", "'rowwise_adagrad', whose mean of a row is of all columns"
        raise make("unsupported", OP, "optimizer", wanted, got, "use sharding 'row' or 'adagrad'")
    group = learner.param_groups[0]
    numbers = {name: float(x) if isinstance(x, Tensor) else x for name, x in group.items() if name != "params"}
    return f"{learner.name} {numbers}"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
