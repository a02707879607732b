"""The optimizer of tables that learn in the backward, as a torch.optim.Optimizer: its numbers, and its state."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .._arrays import dtype_name
from .._choices import OPTIMIZER_NUMBERS, OPTIMIZER_STATES
from ..errors import any_of, make, shown
from ._autograd.calls import FLOATS
from ._autograd.learning import Kind
from ._autograd.packed_tables import TableLayout
from ._table_options import check_option, check_options, real, require_narrow

_OF_TORCH: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0, "dampening": 0}, "adagrad": {"lr_decay": 0}}
"""Options that torch's optimizer of the same rule reads from a state dict, with the one value that a table has for them."""
_ABSENT = ("momentum", "dampening", "nesterov", "maximize", "lr_decay", "amsgrad", "decoupled_weight_decay")
"""Options of torch's optimizers that a table does not have. A state dict may hold them as 0 or False."""
_IGNORED = ("params", "foreach", "fused", "differentiable", "capturable")
"""Entries of a group of torch's state dict that do not change the numbers."""
_COUNT = len(OPTIMIZER_NUMBERS)
_STEP, _DRAW = map(OPTIMIZER_NUMBERS.index, ("step", "draw"))  # which a run counts


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


class TableOptimizer(torch.optim.Optimizer):
    """The optimizer of tables whose rows are updated in the backward, ``optimizer`` of a module with one.

    ``param_groups[0]`` holds ``lr``, ``grad_scale``, by which the gradient is divided, and the options by torch.optim's
    names; each backward reads them. ``lr`` and ``grad_scale`` may be tensors of one element. A tensor on a GPU is read there,
    without waiting, also in a CUDA graph. ``step`` and ``zero_grad`` do nothing. The state dict has the layout of torch's
    optimizer of the same rule, which can load it, and whose state dict can be loaded here.
    """

    def __init__(
        self, op: str, weights: Sequence[Parameter], optimizer: Any, lr: Any, options: Any, layout: TableLayout | None = None
    ) -> None:
        """Make the optimizer of tables. layout: where they lie in the operand ``weight``; None: it is the one table."""
        weight = weights[0]
        if weight.dtype not in FLOATS:
            raise make("unsupported", op, "dtype", any_of([dtype_name(x) for x in FLOATS]), dtype_name(weight.dtype))
        if not all(table.is_contiguous() for table in weights):
            got, hint = f"strides {list(weight.stride())}", "make it contiguous()"
            raise make("unsupported", op, "weight", "contiguous with an optimizer", got, hint)
        checked = check_options(op, optimizer, options, weight.dtype)
        real(op, "lr", lr, 0)
        self.op, self.name, self._layout = op, str(optimizer), layout
        self._written: list[float] = [math.nan] * _COUNT
        self._seen: list[Any] | None = None
        self._captured = False  # whether a CUDA graph writes numbers too, when it is replayed
        super().__init__(list(weights), {"lr": lr, "grad_scale": 1.0, **checked})
        self._options = torch.zeros(_COUNT, dtype=torch.float64, device=weight.device)
        self._arrays = {name: self._initial(name, weight) for name in OPTIMIZER_STATES[self.name]}
        self._link()

    @property
    def weight(self) -> Parameter:
        """The first table."""
        return self.weights[0]

    @property
    def weights(self) -> list[Parameter]:
        """The tables."""
        weights: list[Parameter] = self.param_groups[0]["params"]
        return weights

    @property
    def kind(self) -> Kind:
        """The fields of a descriptor: the name of the optimizer, and whether it rounds at random."""
        return self.name, self.param_groups[0]["stochastic_rounding"]

    # --- State ---

    def _initial(self, name: str, weight: Tensor) -> Tensor:
        """The state of all tables at the start, as a plan has it. weight: a table, for dtype and device."""
        is_by_row = self.name == "rowwise_adagrad"
        if self._layout is None:
            shape = tuple(weight.shape[:1] if is_by_row else weight.shape)
        else:
            shape = ((self._layout.rows if is_by_row else self._layout).size,)
        value = self.param_groups[0]["initial_accumulator_value"] if name == "sum" else 0.0
        return torch.full(shape, value, dtype=_accumulator(weight.dtype), device=weight.device)

    def _split(self, array: Tensor) -> list[Tensor]:
        """The state of each table in the state of all."""
        if self._layout is None:
            return [array]
        return (self._layout.rows if self.name == "rowwise_adagrad" else self._layout).split(array)

    def _join(self, name: str) -> Tensor:
        """The state of all tables from the state of each."""
        parts: list[Tensor] = [self.state[weight][name] for weight in self.weights]
        if self._layout is None:
            return parts[0]
        return (self._layout.rows if self.name == "rowwise_adagrad" else self._layout).join(parts)

    def _link(self) -> None:
        """Show the arrays and the counts of the device in the state."""
        counts = {}
        if self.name != "sgd":
            counts["step"] = self._options[_STEP]
        if self.param_groups[0]["stochastic_rounding"]:
            counts["draw"] = self._options[_DRAW]
        parts = {name: self._split(array) for name, array in self._arrays.items()}
        for i, weight in enumerate(self.weights):
            self.state[weight].update({name: part[i] for name, part in parts.items()}, **counts)
        self._operands = {"options": self._options, **self._arrays}

    def follow(self, weights: Sequence[Parameter]) -> None:
        """Make weights the tables, and move the state to their device. State on the meta device starts anew elsewhere.

        Raises:
            InvalidProblemError: a weight is of another shape.
        """
        weight = weights[0]
        device, dtype = weight.device, _accumulator(weight.dtype)
        for old, new in zip(self.weights, weights, strict=True):
            if new.shape != old.shape:
                got, hint = str(list(new.shape)), "make a new module, whose state is of that shape"
                raise make("invalid_problem", self.op, "weight", f"of shape {list(old.shape)}", got, hint)
        states = [self.state.pop(old, {}) for old in self.weights]
        self.param_groups[0]["params"] = list(weights)
        self.state.update(zip(weights, states, strict=True))
        for name, array in self._arrays.items():
            is_new = array.is_meta and device.type != "meta"
            self._arrays[name] = self._initial(name, weight) if is_new else array.to(device=device, dtype=dtype)
        if self._options.is_meta or device.type == "meta":
            self._options = torch.zeros(_COUNT, dtype=torch.float64, device=device)
            self._written, self._seen = [math.nan] * _COUNT, None
        else:
            self._options = self._options.to(device)
        if device.type == "cpu" and weight.is_shared():  # type: ignore[no-untyped-call]
            self._share()
        self._link()

    def _share(self) -> None:
        for array in self._arrays.values():
            array.share_memory_()  # type: ignore[no-untyped-call]
        self._options.share_memory_()  # type: ignore[no-untyped-call]

    def share_memory(self) -> None:
        """Move the state to shared memory, as :meth:`torch.optim.Adagrad.share_memory` does."""
        self._share()
        self._link()

    def __getstate__(self) -> dict[str, Any]:
        ours = {name: self.__dict__[name] for name in ("op", "name", "_layout", "_written", "_seen", "_options")}
        return {**super().__getstate__(), **ours}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._captured = False
        if "_options" in state:
            with torch.no_grad():
                self._arrays = {name: self._join(name) for name in OPTIMIZER_STATES[self.name]}
            self._link()

    def state_dict(self) -> dict[str, Any]:
        found = super().state_dict()
        states = {index: self._shown(found["state"].get(index, {})) for index in found["param_groups"][0]["params"]}
        groups = [{**_OF_TORCH.get(self.name, {}), **group} for group in found["param_groups"]]
        return {**found, "state": states, "param_groups": groups}

    def _shown(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a table with counts of the types that torch has."""
        shown = dict(state)
        if "step" in shown:
            step = 0.0 if shown["step"].is_meta else float(shown["step"])
            shown["step"] = int(step) if self.name == "adam" else torch.tensor(step, dtype=torch.float32)
        if "draw" in shown:
            shown["draw"] = 0 if shown["draw"].is_meta else int(shown["draw"])
        return shown

    @torch.no_grad()
    def load_state_dict(self, state_dict: Any) -> None:
        state_dict = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        group, states = self._parsed(state_dict)
        ours, options = self.param_groups[0], self._options
        for key, value in group.items():
            if isinstance(ours.get(key), Tensor):  # which a CUDA graph may have captured
                ours[key].copy_(torch.as_tensor(value).view_as(ours[key]))
            else:
                ours[key] = copy.deepcopy(value)
        for name, array in self._arrays.items():
            array.copy_(self._initial(name, self.weight))
            for weight, state in zip(self.weights, states, strict=True):
                if state.get(name) is not None:
                    self.state[weight][name].copy_(state[name])
        step = max(float(state.get("step", 0)) for state in states)
        options[_STEP].fill_(step)
        options[_DRAW].fill_(max(float(state.get("draw", step)) for state in states))
        self._seen = None
        self._link()
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _parsed(self, state_dict: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The entries of the group of a state dict that are taken over, and the state of each table, all checked."""
        op, options = f"{self.op}.optimizer", self.param_groups[0]
        groups, count = state_dict["param_groups"], len(self.weights)
        if len(groups) != 1 or len(groups[0]["params"]) != count:
            counts = [len(group["params"]) for group in groups]
            wanted = f"of one group with {'one parameter' if count == 1 else f'{count} parameters'}"
            raise make("invalid_problem", op, "state_dict", wanted, f"groups of {counts}")
        group = {key: value for key, value in groups[0].items() if key not in (*_IGNORED, *_ABSENT)}
        for key in _ABSENT:
            if groups[0].get(key):
                raise make("unsupported", op, key, f"0 or False, as {self.name} does not have it", shown(groups[0][key]))
        for key in ("betas", "initial_accumulator_value"):
            if key in options and key not in group:
                raise make("unsupported", op, "state_dict", f"of {self.name}", f"one without {key}")
        for key, value in group.items():
            if key in ("eps", "weight_decay", "betas", "initial_accumulator_value", "stochastic_rounding", "seed"):
                is_unset = not value and key != "eps"
                if key not in options and not is_unset:
                    raise make("unsupported", op, "state_dict", f"of {self.name}", f"one with {key}")
                check_option(op, key, value)
            elif key in ("lr", "grad_scale"):
                real(op, key, value, 0)
        is_rounding = group.get("stochastic_rounding", options["stochastic_rounding"])
        require_narrow(op, is_rounding, self.weight.dtype)
        group = {key: value for key, value in group.items() if key != "seed" or is_rounding}
        states = [state_dict["state"].get(index, {}) for index in groups[0]["params"]]
        for weight, state in zip(self.weights, states, strict=True):
            self._check_state(op, weight, state)
        steps = sorted({int(state.get("step", 0)) for state in states})
        if self.name == "adam" and len(steps) > 1:
            hint = "give each table a module of its own"
            raise make("unsupported", op, "step", "the same for all tables", f"{steps[0]} and {steps[-1]}", hint)
        return group, states

    def _check_state(self, op: str, weight: Parameter, state: Mapping[str, Any]) -> None:
        """Refuse a state that is not of this optimizer and of a table's shape."""
        names = OPTIMIZER_STATES[self.name]
        known = {*names, "step", "draw"}
        for name in ("step", "draw"):
            if name in state:
                real(op, name, state[name], 0)
        for name, value in state.items():
            if name not in known and value is not None:
                raise make("unsupported", op, "state_dict", f"of {self.name}", f"one with the state {shown(name)}")
        for name in names if state else ():
            want, value = self.state[weight][name].shape, state.get(name)
            found = "no tensor with values"
            if isinstance(value, Tensor) and not value.is_meta and value.layout is torch.strided:
                found = str(list(value.shape))
            if found != str(list(want)):
                raise make("invalid_problem", op, name, f"of shape {list(want)}", found)

    # --- What a training loop calls ---

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            got, hint = "another group", "give other parameters an optimizer of their own"
            raise make("unsupported", f"{self.op}.optimizer", "param_groups", "the one group of the table", got, hint)
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Return the loss of the closure, if there is one: the backward has updated the table."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the table has no gradient."""

    # --- What a backward calls ---

    def operands(self) -> dict[str, Tensor]:
        """The options and the state as operands of a plan, with the numbers of the group.

        Raises:
            InvalidProblemError: a number of the group that is none, or is out of its range.
        """
        group = self.param_groups[0]
        betas = group.get("betas", ())
        numbers = [group["lr"], group["grad_scale"], group["weight_decay"], group.get("eps", 0.0), group.get("seed", 0)]
        numbers.extend(betas if isinstance(betas, (tuple, list)) else [betas])
        may_change = self._captured or not all(isinstance(x, (int, float)) for x in numbers)  # a tensor, in place
        if may_change or numbers != self._seen:
            self._write(group)
            self._seen = None if may_change else numbers
        self._opt_called = True  # for schedulers, which warn where nobody has called step
        return self._operands

    @torch.no_grad()
    def _write(self, group: dict[str, Any]) -> None:
        """Write the numbers that have changed to the device. Each is an argument of a kernel, so that nothing waits."""
        op, options = f"{self.op}.optimizer", self._options
        for name in ("eps", "weight_decay", "betas", "seed"):
            if name in group:
                check_option(op, name, group[name])
        beta1, beta2 = group.get("betas", (0.0, 0.0))
        values = {"lr": group["lr"], "eps": group.get("eps", 0.0), "weight_decay": group["weight_decay"], "beta1": beta1}
        values |= {"beta2": beta2, "grad_scale": group["grad_scale"], "seed": group.get("seed") or 0}
        # A number on another device is not known here.
        numbers = {
            name: math.nan if isinstance(value, Tensor) and not value.is_cpu else real(op, name, value, 0)
            for name, value in values.items()
        }
        if numbers["grad_scale"] == 0:
            raise make("invalid_problem", op, "grad_scale", "a positive number", "0")
        if options.is_cuda and torch.cuda.is_current_stream_capturing():
            self._captured = True
        for name, number in numbers.items():
            place, value = OPTIMIZER_NUMBERS.index(name), values[name]
            if math.isnan(number):
                options[place].copy_(value.detach().reshape(()), non_blocking=True)
            elif number != self._written[place]:
                options[place].fill_(number)
            self._written[place] = math.nan if self._captured else number
