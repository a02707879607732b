"""The options of the optimizers of tables that learn in the backward: their defaults and their checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor

from .._arrays import dtype_name
from .._types import Optimizer as OptimizerName
from ..errors import any_of, make, shown
from ._autograd.calls import is_bool

_NAMES: tuple[str, ...] = get_args(OptimizerName)
_OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"weight_decay": 0.0},
    "adagrad": {"eps": 1e-10, "weight_decay": 0.0, "initial_accumulator_value": 0.0},
    "rowwise_adagrad": {"eps": 1e-10, "weight_decay": 0.0, "initial_accumulator_value": 0.0},
    "adam": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
}
"""The options of each optimizer, with their defaults."""


def real(op: str, name: str, value: Any, least: float, below: float = math.inf) -> float:
    """A number in [least, below)."""
    single = isinstance(value, Tensor) and value.numel() == 1
    if not is_bool(value) and (single or not isinstance(value, (str, bytes, Tensor))):
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            number = math.nan
        if least <= number < below:
            return number
    wanted = f"a number of at least {least:g}" + (f" and below {below:g}" if below < math.inf else ", and finite")
    raise make("invalid_problem", op, name, wanted, shown(value))


def check_option(op: str, name: str, value: Any) -> Any:
    """An option with its type and range checked."""
    if name == "betas":
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise make("invalid_problem", op, "betas", "two numbers", shown(value))
        return tuple(real(op, f"betas[{i}]", beta, 0, 1) for i, beta in enumerate(value))
    if name == "stochastic_rounding":
        if not is_bool(value):
            raise make("invalid_problem", op, name, "True or False", shown(value))
        return bool(value)
    if name == "seed":
        if isinstance(value, int) and not is_bool(value) and 0 <= value < 2**32:
            return value
        raise make("invalid_problem", op, name, "an integer of at least 0 and below 2^32", shown(value))
    return real(op, name, value, 0)


def require_narrow(op: str, is_rounding: bool, dtype: torch.dtype) -> None:
    """Raise UnsupportedError for stochastic rounding of a table that is not of 16 bits."""
    if is_rounding and dtype.itemsize != 2:
        hint = "only 16-bit tables are rounded"
        raise make("unsupported", op, "stochastic_rounding", f"False for a table of {dtype_name(dtype)}", "True", hint)


def check_options(op: str, optimizer: Any, given: Any, dtype: torch.dtype) -> dict[str, Any]:
    """The options of an optimizer, defaults included.

    Raises:
        InvalidProblemError: an option of a wrong type, or out of its range.
        UnsupportedError: an optimizer or an option that there is not.
    """
    if not isinstance(optimizer, str) or optimizer not in _OPTIONS:
        meant = getattr(optimizer, "__name__", str(optimizer)).lower().removeprefix("sparse")  # such as torch.optim.SparseAdam
        hint = f'write optimizer="{meant}"' if meant in _OPTIONS else ""
        raise make("unsupported", op, "optimizer", f"{any_of(_NAMES)}, or None", shown(optimizer), hint)
    if given is not None and not isinstance(given, Mapping):
        raise make("invalid_problem", op, "optimizer_options", "a dict of options by name", shown(given))
    options = {**_OPTIONS[optimizer], "stochastic_rounding": False}
    given = dict(given or {})
    is_rounding = given.get("stochastic_rounding") is not False and "stochastic_rounding" in given
    if is_rounding:
        options["seed"] = 0
    for name, value in given.items():
        if name == "seed" and not is_rounding:
            raise make("unsupported", op, "seed", "left out without stochastic_rounding", shown(value))
        if name not in options:
            raise make("unsupported", op, "optimizer_options", f"of {optimizer}: {any_of(list(options))}", shown(name))
        options[name] = check_option(op, name, value)
    require_narrow(op, options["stochastic_rounding"], dtype)
    return options
