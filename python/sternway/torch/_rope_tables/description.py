"""The rotary embedding that rope settings describe: checks of the settings against each other and their rope type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .columns import LAYOUTS
from .frequencies import ROPE_TYPES, VARIANTS, Rope, RopeType
from .models import MAPPING, Model
from .values import checked, refused, shown, unknown_key

_WIDTHS = ("head_dim", "hidden_size", "num_attention_heads", "rotary_dim")
ANY_TYPE = ("rope_theta", "partial_rotary_factor", "max_position_embeddings")
MULTIMODAL = ("mrope_section", "mrope_interleaved")
_LARGEST_HEAD = 2**20


def rope_type_of(model: Model, rope_type: Any) -> str:
    """The rope type that a setting names, or the model's own where it names none."""
    name = "default" if rope_type is None else str(checked("rope_type", rope_type))
    if model.rope_types == ("axial",) and name == "default":
        return "axial"
    if name not in model.rope_types:
        raise refused("rope_type", f"one of {', '.join(model.rope_types)}", shown(rope_type), kind="unsupported")
    return name


def _row(model: Model, rope_type: str) -> str:
    """The row of ROPE_TYPES or VARIANTS that a model's rope type stands for."""
    return dict(model.variants).get(rope_type, rope_type)


def formula_of(model: Model, rope_type: str) -> RopeType:
    """The formula of a model's rope type, and the settings that it reads."""
    return {**ROPE_TYPES, **VARIANTS}[_row(model, rope_type)]


def keys_of(formula: RopeType) -> tuple[str, ...]:
    """The settings that a formula reads, or that have no effect on it."""
    trained = ("original_max_position_embeddings",) if formula.trained else ()
    return (*formula.required, *formula.optional, *formula.without_effect, *trained)


def described(model: Model, settings: Mapping[str, Any]) -> Rope:
    """Checks the settings against each other and against their rope type."""
    name = rope_type_of(model, settings.get("rope_type"))
    formula = formula_of(model, name)
    known = ("rope_type", *ANY_TYPE, *_WIDTHS, *keys_of(formula), *MULTIMODAL)
    for key in settings:
        if key not in known:
            raise unknown_key(key, known, f"rope settings that rope_type {shown(name)} reads")
    _check_required(name, formula, settings)
    head_dim, dim = _widths(model, name, formula, settings)
    values = {key: settings[key] for key in (*keys_of(formula), "max_position_embeddings") if key in settings}
    if name == "proportional" and "partial_rotary_factor" in settings:
        values["partial_rotary_factor"] = settings["partial_rotary_factor"]
    for key in ("short_factor", "long_factor"):
        if key in values and len(values[key]) != dim // 2:
            raise refused(key, f"a list of {dim // 2} numbers, one for each pair", f"{len(values[key])}")
    if name == "llama3" and values["high_freq_factor"] < values["low_freq_factor"]:
        raise refused("high_freq_factor", "at least low_freq_factor", shown(values["high_freq_factor"]))
    layout, sections = _layout(model, name, settings, (dim + 1) // 2)
    return Rope(_row(model, name), head_dim, dim, float(settings.get("rope_theta", 10000.0)), values, layout, sections)


def _check_required(name: str, formula: RopeType, settings: Mapping[str, Any]) -> None:
    for key in formula.required:
        if key not in settings:
            raise refused(key, f"given for rope_type {name!r}", "nothing")
    if formula.trained and not settings.keys() & {"original_max_position_embeddings", "max_position_embeddings"}:
        raise refused("original_max_position_embeddings", f"given for rope_type {name!r}", "nothing")
    if formula.trained and "factor" in formula.optional and "factor" not in settings:
        needed = "max_position_embeddings" if name == "yarn" or "attention_factor" not in settings else ""
        if needed and needed not in settings:
            raise refused("factor", f"given for rope_type {name!r}, or else {needed}", "nothing")


def _widths(model: Model, name: str, formula: RopeType, settings: Mapping[str, Any]) -> tuple[int, int]:
    """The width of a head, and of the part of it that is rotated."""
    rotary, partial = settings.get("rotary_dim"), settings.get("partial_rotary_factor")
    head_dim = settings.get("head_dim")
    if head_dim is None and "hidden_size" in settings and "num_attention_heads" in settings:
        head_dim = settings["hidden_size"] // settings["num_attention_heads"]
    head_dim = rotary if head_dim is None else head_dim
    if head_dim is None:
        raise refused("head_dim", "given, or hidden_size and num_attention_heads", "nothing")
    if not 0 < head_dim <= _LARGEST_HEAD:
        raise refused("head_dim", f"an even number from 2 to {_LARGEST_HEAD}", shown(head_dim))
    dim = int(head_dim * _rotated_part(model, name, partial))
    if name == "proportional":
        if rotary is not None and rotary != head_dim:
            raise refused("rotary_dim", "left out for rope_type 'proportional'", shown(rotary), "give partial_rotary_factor")
        dim = head_dim
    elif rotary is not None:
        if rotary > head_dim or (partial is not None and rotary != dim):
            wanted = f"at most head_dim {head_dim}" if partial is None else f"{dim}, as partial_rotary_factor says"
            raise refused("rotary_dim", wanted, shown(rotary))
        dim = rotary
    # transformers rounds an odd part of a head up to whole pairs
    rounds_up = model is not MAPPING and formula.multiple == 2 and not formula.trained and dim < head_dim
    if dim < formula.multiple or (dim % formula.multiple and not rounds_up):
        of = "head_dim" if partial is None and rotary is None else "the rotated part of head_dim"
        raise refused(of, f"a positive multiple of {formula.multiple} for rope_type {name!r}", str(dim))
    return head_dim, dim


def _rotated_part(model: Model, name: str, partial: float | None) -> float:
    if name not in ("default", "axial"):
        return 1.0 if partial is None else partial
    if name == "default" and model.partial is not None:
        return model.partial if partial is None else partial
    if partial is not None and partial != 1:
        wanted = "1: the rotary class of this model rotates the whole head" if name == "default" else "1 for rope_type 'axial'"
        raise refused("partial_rotary_factor", wanted, shown(partial))
    return 1.0


def _layout(model: Model, name: str, settings: Mapping[str, Any], pairs: int) -> tuple[str, tuple[int, ...]]:
    """The layout of the tables, and the pairs of each axis where it is multimodal."""
    given, interleaved = settings.get("mrope_section"), settings.get("mrope_interleaved")
    layout = model.layout
    if model is MAPPING:
        if given is not None:
            layout = "interleaved sections" if interleaved else "sections"
        elif interleaved is not None:
            raise refused("mrope_section", "given beside mrope_interleaved", "nothing")
        elif name == "axial":
            layout = "axial"
        if given is not None and name == "axial":
            raise refused("mrope_section", "left out for rope_type 'axial'", "a list")
    elif interleaved is not None and interleaved != (layout == "interleaved sections"):
        raise refused("mrope_interleaved", f"{not interleaved} for this model", shown(interleaved))
    if model.sections is None or (model is MAPPING and given is None):
        return layout, ()
    sections = model.sections if given is None else given
    axes = LAYOUTS[layout].axes or len(sections)
    if len(sections) != axes or (sum(sections) != pairs and (layout != "interleaved sections" or model is MAPPING)):
        raise refused("mrope_section", f"{axes or 3} numbers whose sum is the number of pairs, {pairs}", _counts(sections))
    if layout == "time last" and sections[0] != sections[1]:
        raise refused("mrope_section", "of equal height and width", _counts(sections))
    return layout, sections


def _counts(sections: tuple[int, ...]) -> str:
    return str(list(sections[:8])) if sections and max(sections) < 10**9 else "nothing" if not sections else "larger numbers"
