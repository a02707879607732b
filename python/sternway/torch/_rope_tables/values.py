"""Single settings: their names, the values that each may have, and their errors."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import Error, make

OP = "sternway.torch.rope_tables"
_LARGEST = 3.4e38  # of float32, in which frequencies are formed
_SMALLEST = 1.2e-38
_CLIP = 40


def shown(value: Any) -> str:
    """A setting for an error message: foreign keys and texts are quoted and clipped."""
    if isinstance(value, str):
        text = value if len(value) <= _CLIP else value[:_CLIP] + "..."
        return ascii(text).replace("{", "(").replace("}", ")")
    if isinstance(value, (bool, int, float)):
        return f"{value:g}" if isinstance(value, float) else str(value) if abs(value) < 10**_CLIP else "an integer beyond 1e40"
    return "nothing" if value is None else type(value).__name__[:_CLIP]


def refused(operand: str, wanted: str, got: str, hint: str = "", kind: str = "invalid_problem") -> Error:
    """An error of rope_tables about a setting or an argument."""
    return make(kind, OP, operand, wanted, got, hint)


# --- What a setting may be: each function gives the value, or None where it is not allowed ----------------------------


def _number(value: Any) -> float | int | None:
    """A finite number in the range of float32; integers stay integers."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = int(value) if isinstance(value, numbers.Integral) else float(value)
        size = abs(float(number))
    except (ArithmeticError, ValueError):
        return None
    return number if size == 0 or _SMALLEST <= size <= _LARGEST else None


def _positive(value: Any) -> float | int | None:
    number = _number(value)
    return number if number is not None and number > 0 else None


def _not_negative(value: Any) -> float | int | None:
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _fraction(value: Any) -> float | int | None:
    number = _positive(value)
    return number if number is not None and number <= 1 else None


def _count(value: Any) -> int | None:
    number = _positive(value)
    return number if isinstance(number, int) else None


def _flag(value: Any) -> bool | None:
    return bool(value) if type(value).__name__ in ("bool", "bool_") else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _divisors(value: Any) -> list[float | int] | None:
    numbers_ = [_positive(item) for item in value] if isinstance(value, (list, tuple)) else []
    return [number for number in numbers_ if number is not None] if numbers_ and None not in numbers_ else None


def _sections(value: Any) -> tuple[int, ...] | None:
    counts = [_not_negative(item) for item in value] if isinstance(value, (list, tuple)) else []
    whole = [count for count in counts if isinstance(count, int)]
    return tuple(whole) if whole and len(whole) == len(counts) else None


Check = Callable[[Any], Any]
_Rule = tuple[Check, str]
_POSITIVE: _Rule = (_positive, "a positive finite number")
_WEIGHT: _Rule = (_not_negative, "a finite number, 0 or more")
_FRACTION: _Rule = (_fraction, "a number above 0 and at most 1")
_COUNT: _Rule = (_count, "a positive integer")
_FLAG: _Rule = (_flag, "True or False")
_DIVISORS: _Rule = (_divisors, "a list of positive numbers, one for each pair")
_SECTIONS: _Rule = (_sections, "a list of integers, the pairs of each axis")

RULES: dict[str, _Rule] = {
    "rope_type": (_text, "the name of a rope type"),
    # the width of a head, and the part of it that is rotated
    "head_dim": _COUNT,
    "hidden_size": _COUNT,
    "num_attention_heads": _COUNT,
    "rotary_dim": _COUNT,
    "partial_rotary_factor": _FRACTION,
    # frequencies
    "rope_theta": _POSITIVE,
    "factor": _POSITIVE,
    "max_position_embeddings": _POSITIVE,
    "original_max_position_embeddings": _POSITIVE,
    "attention_factor": _POSITIVE,
    "beta_fast": _POSITIVE,
    "beta_slow": _POSITIVE,
    "mscale": _WEIGHT,
    "mscale_all_dim": _WEIGHT,
    "truncate": _FLAG,
    "short_factor": _DIVISORS,
    "long_factor": _DIVISORS,
    "low_freq_factor": _POSITIVE,
    "high_freq_factor": _POSITIVE,
    "alpha": _POSITIVE,
    "short_mscale": _POSITIVE,
    "long_mscale": _POSITIVE,
    # multimodal
    "mrope_section": _SECTIONS,
    "mrope_interleaved": _FLAG,
    # change no table
    "finetuned": _FLAG,
    "llama_4_scaling_beta": (_number, "a finite number"),
}
"""Every setting by its name, with what it may be."""

ALIASES = {
    "type": "rope_type",
    "base": "rope_theta",
    "rotary_emb_base": "rope_theta",
    "rotary_pct": "partial_rotary_factor",
    "qk_rope_head_dim": "rotary_dim",
    "interleaved": "mrope_interleaved",
}
"""Other names of settings."""

OTHER_ROPE_TYPES = {"mrope": "default", "su": "longrope", "xdrope": "dynamic"}
"""Older names of rope types: of Qwen2-VL, whose frequencies are the default ones, of Phi-3 and of HunYuan-VL."""


def checked(name: str, value: Any) -> Any:
    """The value of a setting, if it is allowed. `name` may be an alias."""
    setting = ALIASES.get(name, name)
    check, wanted = RULES[setting]
    good = check(value)
    if good is None:
        raise refused(name, wanted, shown(value))
    return OTHER_ROPE_TYPES.get(good, good) if setting == "rope_type" else good


def canonical(settings: Mapping[Any, Any], known: Iterable[str]) -> dict[str, Any]:
    """Settings under their main names, checked, without Nones. `known`: the names that may be used."""
    found: dict[str, Any] = {}
    known = frozenset(known)
    for key, value in settings.items():
        if not isinstance(key, str) or key not in known:
            raise unknown_key(key, known)
        if value is not None:
            found = merged(found, {ALIASES.get(key, key): checked(key, value)})
    return found


def merged(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """The union of two groups of settings; a setting in both must have one value."""
    for name in a.keys() & b.keys():
        if a[name] != b[name]:
            raise refused(name, "one value under all its names", f"{shown(a[name])} and {shown(b[name])}")
    return {**a, **b}


def unknown_key(key: Any, known: Iterable[str], wanted: str = "rope settings alone", hint: str = "") -> Error:
    """The error for a key that is unknown or has no effect."""
    near = difflib.get_close_matches(key[:_CLIP], sorted(known), 1) if isinstance(key, str) else []
    hint = hint or "pass a model's configuration as the object that it is, not as a mapping"
    return refused("config", wanted, f"the key {shown(key)}", f"did you mean {near[0]}?" if near else hint)
