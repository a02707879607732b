"""Reads a configuration of transformers, or a mapping of rope settings, and gives the rotary embedding that it describes.

No key of rope settings is ignored: each is used, or is known to change no table beside its rope type, or is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .description import ANY_TYPE, MULTIMODAL, described, formula_of, keys_of, rope_type_of
from .frequencies import Rope
from .models import MAPPING, MODELS, REFUSED, Model
from .values import ALIASES, RULES, canonical, checked, merged, refused, shown, unknown_key


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
            return described(MAPPING, settings)
        return described(self.model, _with_attributes(self.model, self.config, settings, name))


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
    rope_type = rope_type_of(model, settings.get("rope_type") or settings.get("type"))
    older = settings.get("type")  # beside rope_type
    if older is not None and checked("type", older) != rope_type and not (rope_type == "axial" and older == "default"):
        raise refused("rope_type", "one value under all its names", f"{shown(rope_type)} and {shown(older)}")
    formula = formula_of(model, rope_type)
    multimodal = (*MULTIMODAL, "interleaved") if model.sections is not None else ()
    known = ("rope_type", "type", *ANY_TYPE, *keys_of(formula), *multimodal)
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
