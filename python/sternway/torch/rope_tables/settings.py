"""Reads a configuration of transformers, or a mapping of rope settings, and gives the rotary embedding that it describes.

No key of rope settings is ignored: each is used, or is known to change no table beside its rope type, or is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .columns import LAYOUTS
from .frequencies import ROPE_TYPES, VARIANTS, Rope, RopeType
from .models import MAPPING, MODELS, REFUSED, Model
from .values import ALIASES, RULES, canonical, checked, merged, refused, shown, unknown_key

_WIDTHS = ("head_dim", "hidden_size", "num_attention_heads", "rotary_dim")
_ANY_TYPE = ("rope_theta", "partial_rotary_factor", "max_position_embeddings")
_MULTIMODAL = ("mrope_section", "mrope_interleaved")
_LARGEST_HEAD = 2**20


def read(config: Any, layer_type: str | None) -> Rope:
    """The rotary embedding of a layer type; without one, of all layer types, which must agree."""
    layers = _mapping_layers(config) if isinstance(config, Mapping) else _configuration_layers(config)
    return _choose(layers, layer_type)


# --- Layer types -------------------------------------------------------------------------------------------------------

_ALL = ""  # the name of the settings of a model whose layers do not differ


class Layers:
    """Rope settings by layer type, and the names of layer types that share the common settings."""

    def __init__(self, model: Model, config: Any, settings: Mapping[str, Any], names: tuple[str, ...] = ()) -> None:
        self.model, self.config, self.settings, self.names = model, config, settings, names

    def rope(self, name: str) -> Rope | None:
        """The rotary embedding of a layer type; None if it has none."""
        settings = self.settings[name]
        if settings is None:
            return None
        if isinstance(self.config, Mapping):
            return _from_settings(MAPPING, settings)
        return _from_settings(self.model, _with_attributes(self.model, self.config, settings, name))


def _choose(layers: Layers, layer_type: Any) -> Rope:
    names = list(layers.settings)
    if names == [_ALL]:
        if layer_type is not None and layer_type not in layers.names:
            wanted = f"None or one of {_listed(layers.names)}" if layers.names else "None: the settings name no layer types"
            raise refused("layer_type", wanted, shown(layer_type))
        chosen: Rope | None = layers.rope(_ALL)
    elif layer_type is None:
        ropes = [layers.rope(name) for name in names]
        if any(rope != ropes[0] for rope in ropes):
            raise refused("layer_type", f"one of {_listed(names)}, whose settings differ", "None")
        chosen = ropes[0]
    elif not isinstance(layer_type, str) or layer_type not in names:
        raise refused("layer_type", f"one of {_listed(names)}", shown(layer_type))
    else:
        chosen = layers.rope(layer_type)
    if chosen is None:
        raise refused("layer_type", "of layers with a rotary embedding", shown(layer_type))
    return chosen


def _listed(names: Any) -> str:
    return ", ".join(shown(name) for name in list(names)[:8])


# --- A mapping ---------------------------------------------------------------------------------------------------------


def _mapping_layers(config: Mapping[Any, Any]) -> Layers:
    """The settings of a mapping: at the top, in ``rope_parameters`` or ``rope_scaling``, or one mapping for each layer type."""
    common: dict[str, Any] = {}
    layers: dict[str, Any] = {}
    inner = {name: config.get(name) for name in ("rope_parameters", "rope_scaling")}
    for name, value in inner.items():
        if value is not None and not isinstance(value, Mapping):
            raise refused(name, "a mapping", shown(value))
    for level in (config, *(value for value in inner.values() if value is not None)):
        flat = {key: value for key, value in level.items() if not (level is config and key in inner)}
        nested = {key: value for key, value in flat.items() if _names_layers(key, value)}
        common = merged(common, canonical({k: v for k, v in flat.items() if k not in nested}, (*RULES, *ALIASES)))
        for key, value in nested.items():
            layers[key] = merged(layers.get(key, {}), canonical(value, (*RULES, *ALIASES)))
    if not layers:
        return Layers(MAPPING, config, {_ALL: common})
    return Layers(MAPPING, config, {name: merged(common, own) for name, own in layers.items()})


def _names_layers(key: Any, value: Any) -> bool:
    """Whether a key names a layer type: it is text, no known setting, and its value is a mapping."""
    return isinstance(value, Mapping) and isinstance(key, str) and key not in (*RULES, *ALIASES) and not key.startswith("rope")


# --- A configuration of transformers -----------------------------------------------------------------------------------


def _attribute(config: Any, name: str) -> Any:
    """An attribute; None if it is missing. A configuration whose layers differ raises if a single value is read."""
    try:
        return getattr(config, name, None)
    except Exception as error:
        wanted, hint = "one value for all layers", "give layer_type"
        raise refused(name, wanted, "values that differ by layer", hint) from error


def _configuration_layers(config: Any) -> Layers:
    model = _model(config)
    if model.own_base:
        return Layers(model, config, {_ALL: {"rope_theta": _attribute(config, "rope_theta")}})
    rope = _attribute(config, "rope_parameters") or _attribute(config, "rope_scaling")
    if not isinstance(rope, Mapping) or not rope:
        raise refused("config", "a configuration with rope_parameters", f"rope_parameters of {shown(rope or None)}")
    names = _attribute(config, "_rope_type_labels") or _attribute(config, "layer_types") or ()
    names = tuple(dict.fromkeys(name for name in names if isinstance(name, str)))
    nested = {key: value for key, value in rope.items() if key in names or _names_layers(key, value)}
    if not nested:
        return Layers(model, config, {_ALL: rope}, names)
    for key in rope:
        if key not in nested:
            hint = "move it to the settings of the layer types"
            raise unknown_key(key, (), "rope settings by layer type alone", hint)
    for key, value in nested.items():
        if value is not None and not isinstance(value, Mapping):
            raise refused(shown(key), "a mapping or None", shown(value))
    return Layers(model, config, nested, names)


def _model(config: Any) -> Model:
    """The row of a configuration in the table of models."""
    if not hasattr(config, "model_type"):
        wanted = "a configuration of transformers or a mapping of rope settings"
        raise refused("config", wanted, type(config).__name__[:40], kind="type")
    name = config.model_type if isinstance(config.model_type, str) and config.model_type else type(config).__name__
    if name in MODELS:
        return MODELS[name]
    if name in REFUSED:
        raise refused("config", "of a model with tables of positions", shown(name), REFUSED[name], kind="unsupported")
    parts = [part for part in _parts(config) if getattr(_attribute(config, part), "model_type", None) in MODELS]
    hint = "pass its rope settings as a mapping: dict(config.rope_parameters, head_dim=...)"
    if parts:
        hint = "pass " + " or ".join(f"config.{part}" for part in parts[:4])
    raise refused("config", "of a model whose rotary class is known", shown(name), hint, kind="unsupported")


def _parts(config: Any) -> list[str]:
    """Attributes of a composite configuration that are configurations."""
    parts = getattr(type(config), "sub_configs", None)
    return [part for part in parts if isinstance(part, str)] if isinstance(parts, Mapping) else []


def _with_attributes(model: Model, config: Any, settings: Mapping[str, Any], layer_type: str) -> dict[str, Any]:
    """Settings of a layer type, with the settings that transformers takes from the attributes of the configuration."""
    rope_type = _rope_type(model, settings.get("rope_type") or settings.get("type"))
    older = settings.get("type")  # beside rope_type
    if older is not None and checked("type", older) != rope_type and not (rope_type == "axial" and older == "default"):
        raise refused("rope_type", "one value under all its names", f"{shown(rope_type)} and {shown(older)}")
    formula = _formula(model, rope_type)
    multimodal = (*_MULTIMODAL, "interleaved") if model.sections is not None else ()
    known = ("rope_type", "type", *_ANY_TYPE, *_keys(formula), *multimodal)
    for key in settings:
        if key not in known:
            wanted = f"rope settings that rope type {shown(rope_type)} of this model reads"
            raise unknown_key(key, known, wanted, "take it out of rope_parameters")
    read = canonical({key: value for key, value in settings.items() if key not in ("rope_type", "type")}, known)
    read["rope_type"] = rope_type
    if layer_type and read.get("truncate") is False:
        hint = "transformers does not read it there"
        raise refused("truncate", "True beside a layer type", "False", hint, "unsupported")
    config = _of_layer(config, layer_type)
    lengths = {"max_position_embeddings": _attribute(config, "max_position_embeddings")}
    if not layer_type and formula.trained:
        lengths["original_max_position_embeddings"] = _attribute(config, "original_max_position_embeddings")
    read.update({name: checked(name, value) for name, value in lengths.items() if value is not None})
    if "rope_theta" not in read:
        theta = _attribute(config, "rope_theta")
        read["rope_theta"] = checked("rope_theta", _attribute(config, "default_theta") if theta is None else theta)
    partial = _attribute(config, "partial_rotary_factor")
    if rope_type != "default" and partial is not None and "partial_rotary_factor" not in read:
        read["partial_rotary_factor"] = checked("partial_rotary_factor", partial)
    read["head_dim"] = _head_of(model, config)
    _check_layers_of_molmo(config, rope_type)
    return read


def _of_layer(config: Any, layer_type: str) -> Any:
    """The configuration of the layers of a type, which may have heads of their own width."""
    view = getattr(config, "per_layer_config", None) if layer_type else None
    try:
        return config if view is None else view[layer_type]
    except (ValueError, KeyError, TypeError, IndexError):
        return config


def _head_of(model: Model, config: Any) -> int:
    """The width of a head: ``head_dim``, or a quotient of other settings."""
    given = _attribute(config, "head_dim")
    if given is not None:
        return int(checked("head_dim", given))
    first, *rest = (_attribute(config, name) for name in model.head)
    width = _positive_attribute(model.head[0], first)
    for name, value in zip(model.head[1:], rest, strict=True):
        width //= _positive_attribute(name, value)
    return width


def _positive_attribute(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise refused(name, "a positive integer", shown(value))
    return value


def _check_layers_of_molmo(config: Any, rope_type: str) -> None:
    """Molmo 2: layers that ``rope_scaling_layers`` leaves out have the rope type "default"."""
    scaled, layers = _attribute(config, "rope_scaling_layers"), _attribute(config, "num_hidden_layers")
    if scaled is not None and rope_type != "default" and len(set(scaled)) < layers:
        got = f"{len(set(scaled))} of {layers}"
        raise refused("rope_scaling_layers", "all layers", got, "their tables differ", "unsupported")


# --- From settings to a rotary embedding -------------------------------------------------------------------------------


def _rope_type(model: Model, rope_type: Any) -> str:
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


def _formula(model: Model, rope_type: str) -> RopeType:
    return {**ROPE_TYPES, **VARIANTS}[_row(model, rope_type)]


def _keys(formula: RopeType) -> tuple[str, ...]:
    trained = ("original_max_position_embeddings",) if formula.trained else ()
    return (*formula.required, *formula.optional, *formula.without_effect, *trained)


def _from_settings(model: Model, settings: Mapping[str, Any]) -> Rope:
    """Checks the settings against each other and against their rope type."""
    name = _rope_type(model, settings.get("rope_type"))
    formula = _formula(model, name)
    known = ("rope_type", *_ANY_TYPE, *_WIDTHS, *_keys(formula), *_MULTIMODAL)
    for key in settings:
        if key not in known:
            raise unknown_key(key, known, f"rope settings that rope_type {shown(name)} reads")
    _check_required(name, formula, settings)
    head_dim, dim = _widths(model, name, formula, settings)
    values = {key: settings[key] for key in (*_keys(formula), "max_position_embeddings") if key in settings}
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
