"""The recurrences that layers of transformers' models run in Python, and how sternway computes each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._linear_recurrence_backward import LinearRecurrenceBackwardDescriptor, LinearRecurrenceBackwardPlan
from .._selective_scan_backward import SelectiveScanBackwardDescriptor, SelectiveScanBackwardPlan
from ._comparison import apart, derived, near
from ._linear_recurrence import linear_recurrence
from ._patches import Owner, is_readable, methods, names_in, original_of, parameters_of
from ._selective_scan import selective_scan


class Recurrence(NamedTuple):
    """A function of models that runs a recurrence, known by its name and its parameters."""

    name: str
    is_method: bool  # of a class; else a function of a Python module
    function: Callable[..., Any]  # sternway's, without self; None for a call that is left to the model
    trials: Callable[[], Iterator[dict[str, Any]]]  # arguments of calls, as models make them
    select: Callable[[torch.dtype, str], object]  # selects a plan for a dtype and a device
    left: tuple[str, ...]  # the calls that are left to the model, in words


class Place(NamedTuple):
    """Where a model finds a function that runs a recurrence."""

    recurrence: Recurrence
    owner: Owner
    modules: list[torch.nn.Module]  # that call it as their method; none for a function of a Python module

    @property
    def function(self) -> Any:
        """The function, or a replacement of it."""
        space = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return space[self.recurrence.name]

    @property
    def takes_self(self) -> bool:
        return isinstance(self.owner, type)

    def ours(self) -> Callable[..., Any]:
        """Sternway's function with the parameters of the model's."""
        function = self.recurrence.function
        return (lambda _self, *args, **kwargs: function(*args, **kwargs)) if self.takes_self else function

    def is_known(self) -> bool:
        """Whether the model's function has our parameters, and our results and gradients in every trial."""
        original = original_of(self.function)
        parameters = list(parameters_of(original).values())[self.takes_self :]
        if [(p.name, p.kind, p.default) for p in parameters] != [
            (p.name, p.kind, p.default) for p in parameters_of(self.recurrence.function).values()
        ]:
            return False
        if self.takes_self and not isinstance(original, FunctionType):
            return False
        firsts: list[tuple[Any, ...]] = [(module,) for module in self.modules] if self.takes_self else [()]
        with apart():
            return all(
                _is_same(self.recurrence.function, original, first, trial)
                for first in firsts
                for trial in self.recurrence.trials()
            )


def places(model: torch.nn.Module) -> list[Place]:
    """The places of the known recurrences that the classes of a model use."""
    found: dict[tuple[int, str], Place] = {}
    for recurrence in RECURRENCES:
        name = recurrence.name
        if not recurrence.is_method:
            for space in (f.__globals__ for f in methods(model) if name in names_in(f) and name in f.__globals__):
                found.setdefault((id(space), name), Place(recurrence, space, []))
            continue
        for module in model.modules():
            spaces: list[Owner] = [vars(module), *type(module).__mro__]
            owners = [owner for owner in spaces if name in (owner if isinstance(owner, dict) else vars(owner))]
            if owners:
                found.setdefault((id(owners[0]), name), Place(recurrence, owners[0], [])).modules.append(module)
    return list(found.values())


def _is_same(ours: Callable[..., Any], theirs: Callable[..., Any], first: tuple[Any, ...], trial: dict[str, Any]) -> bool:
    """Whether two functions have the same results, their dtypes and gradients included, for the arguments of a trial.

    Args:
        first: the arguments that only theirs takes.
    """
    leaves = [x for x in trial.values() if isinstance(x, Tensor) and x.requires_grad]
    narrow = any(x.dtype != torch.float32 for x in leaves)
    expected, found = derived(lambda: theirs(*first, **trial), leaves), derived(lambda: ours(**trial), leaves)
    if expected is None or found is None or [x.dtype for x in found] != [x.dtype for x in expected]:
        return False
    return all(near(x, y, 2.0**-6 if narrow else 1e-5) for x, y in zip(found, expected, strict=True))


# --- RecurrentGemma -------------------------------------------------------------------------------------------------------


def _rnn_scan(
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor] | None:
    """``h[t] = recurrent_gate[t] * h[t-1] + hidden_states[t]`` in float32, from 0 where reset is set; the last h in float32."""
    x, a, state = hidden_states, recurrent_gate, recurrent_states
    if not (is_readable(x) and is_readable(a)) or x.dim() != 3 or x.shape[1] == 1 or a.shape != x.shape:
        return None
    if not isinstance(reset, Tensor) or reset.dtype != torch.bool or a.device != x.device or acc_dtype != torch.float32:
        return None
    a = a * ~reset
    if a.shape != x.shape:
        return None
    if state is None:
        state = x.new_zeros(x.shape[0], x.shape[2], dtype=torch.float32)
    elif not is_readable(state) or state.shape != (x.shape[0], x.shape[2]) or state.dtype == torch.float64:
        return None
    narrow = x.dtype == a.dtype and x.dtype in (torch.float16, torch.bfloat16)  # which the operation accumulates in float32
    dtype = x.dtype if narrow else torch.float32
    state = state.to(x.device, torch.float32)
    h, last = linear_recurrence(a.to(dtype), x.to(dtype), 1, initial_state=state, output_final_state=True)
    return h.to(x.dtype), last


def _rnn_scan_trials() -> Iterator[dict[str, Any]]:
    """Sequences with and without a state, with resets that rows share or have of their own, in the dtypes of training."""
    n, t, width = 2, 7, 3
    random = torch.Generator("cpu").manual_seed(0)  # the generators of the caller stay as they are
    reset = torch.zeros(n, t, 1, dtype=torch.bool, device="cpu")
    reset[0, 0] = reset[0, 3] = reset[1, 5] = True
    for gate, dtype, has_state in (
        (torch.float32, torch.float32, False),
        (torch.float32, torch.float32, True),
        (torch.bfloat16, torch.bfloat16, True),
        (torch.float32, torch.bfloat16, False),  # autocast
    ):
        values = torch.randn(n, t, width, generator=random, device="cpu").to(dtype)
        gates = torch.rand(n, t, width, generator=random, device="cpu").to(gate)
        state = torch.randn(n, width, generator=random, device="cpu").requires_grad_() if has_state else None
        yield {
            "hidden_states": values.requires_grad_(),
            "recurrent_gate": gates.requires_grad_(),
            "reset": reset if has_state else reset[:1],
            "recurrent_states": state,
        }


def _select_linear(dtype: torch.dtype, device: str) -> object:
    return LinearRecurrenceBackwardPlan.select(LinearRecurrenceBackwardDescriptor((1, 1, 1), dtype, 1), device)


# --- Mamba, FalconMamba, Jamba and Zamba, whose files hold one function each, all alike -----------------------------------

_MOST_STATES, _LONGEST = 256, 2**20  # of selective_scan


def _mamba_selective_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    use_mambapy: bool = False,
    use_associative_scan: bool = False,
    **kwargs: Any,
) -> Any:
    """The selective scan from states of 0. ``use_mambapy`` and ``use_associative_scan`` choose other ways to the same numbers.

    Operands whose dtypes differ, as norms make them under autocast, are converted to the dtype that they promote to.
    """
    if kwargs or not _is_selective((hidden_states, dt, A, B, C), D, z, delta_bias):
        return None
    dtype = _promoted(hidden_states, dt, B, C, z)
    u, step, b, c, gate = (None if x is None else x.to(dtype) for x in (hidden_states, dt, B, C, z))
    state = torch.promote_types(dtype, torch.float32)
    rates, skip, bias = (None if x is None else x.to(state) for x in (A, D, delta_bias))
    run: Callable[..., tuple[Tensor, Tensor]] = selective_scan
    y, last = run(u, step, rates, b, c, skip, gate, bias, bool(delta_softplus), True)
    y = y.to(_promoted(hidden_states, D, z))
    return (y, last) if return_last_state else y


def _promoted(first: Tensor, *rest: Tensor | None) -> torch.dtype:
    return functools.reduce(torch.promote_types, (x.dtype for x in rest if x is not None), first.dtype)


def _is_selective(required: tuple[Any, ...], D: Any, z: Any, delta_bias: Any) -> bool:
    """Whether selective_scan takes u, dt, A, B and C, of more positions than one, and the other operands."""
    u, _, A, _, _ = required
    given = *required, *(x for x in (D, z, delta_bias) if x is not None)
    if not all(map(is_readable, given)) or u.dim() != 3 or A.dim() != 2 or any(x.device != u.device for x in given):
        return False
    (batch, dim, length), n = u.shape, A.shape[1]
    rows, factors = (batch, dim, length), (batch, n, length)
    shapes = zip((*required, D, z, delta_bias), (rows, rows, (dim, n), factors, factors, (dim,), rows, (dim,)), strict=True)
    return all(x is None or x.shape == shape for x, shape in shapes) and 1 < length <= _LONGEST and n <= _MOST_STATES


def _mamba_trials() -> Iterator[dict[str, Any]]:
    """Sequences with all operands and with those that are required, in the dtypes of training."""
    random = torch.Generator("cpu").manual_seed(0)

    def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.rand(*shape, generator=random, device="cpu").to(dtype).requires_grad_()

    n, dim, t, states = 2, 4, 7, 3
    for dtype in (torch.float32, torch.bfloat16):
        required = {
            "hidden_states": leaf(n, dim, t, dtype=dtype),
            "dt": leaf(n, dim, t, dtype=dtype),
            "A": leaf(dim, states).detach().neg().requires_grad_(),
            "B": leaf(n, states, t, dtype=dtype),
            "C": leaf(n, states, t, dtype=dtype),
        }
        more = {"D": leaf(dim), "z": leaf(n, dim, t, dtype=dtype), "delta_bias": leaf(dim)}
        yield required
        yield {**required, **more, "delta_softplus": True, "return_last_state": True}


def _select_selective(dtype: torch.dtype, device: str) -> object:
    name: Any = str(dtype).removeprefix("torch.")
    return SelectiveScanBackwardPlan.select(SelectiveScanBackwardDescriptor(1, 1, 1, 1, name), device)


RECURRENCES = (
    Recurrence(
        "_rnn_scan",
        is_method=True,
        function=_rnn_scan,
        trials=_rnn_scan_trials,
        select=_select_linear,
        left=("decoding of one token", "states or accumulators other than float32"),
    ),
    Recurrence(
        "mamba_selective_scan",
        is_method=False,
        function=_mamba_selective_scan,
        trials=_mamba_trials,
        select=_select_selective,
        left=("decoding of one token", f"more than {_MOST_STATES} states or {_LONGEST} tokens"),
    ),
)
"""The recurrences that patch_recurrence knows."""
