"""How objects show themselves in notebooks: tables of two columns, in the colors of the page."""

from __future__ import annotations

import dataclasses
import html
from typing import Any


def table(rows: dict[str, str]) -> str:
    """An HTML table with two columns."""
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(k)}</th><td style="text-align:left">{html.escape(v)}</td></tr>'
        for k, v in rows.items()
    )
    return f"<table>{cells}</table>"


def words(value: Any) -> str:
    """Plain data on one line; the empty text for None."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(words, value))
    return "" if value is None else str(value)


class Shown:
    """Base class of dataclasses that notebooks display as a table of their fields."""

    def _repr_html_(self) -> str:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return table({name.replace("_", " "): field_words(value) for name, value in fields.items()})


def field_words(value: Any) -> str:
    """The value of a field: a name as it is, a shape in brackets, a nested dataclass as its fields."""
    if isinstance(value, str):
        return value or "none"
    if isinstance(value, tuple):
        return str(list(value))
    if dataclasses.is_dataclass(value):
        return ", ".join(f"{f.name.replace('_', ' ')} {field_words(getattr(value, f.name))}" for f in dataclasses.fields(value))
    return repr(value)


class Info(dict[str, Any]):
    """The dict of ``sternway.info()``, which notebooks display as a table."""

    def _repr_html_(self) -> str:
        return table(info_rows(self))


def info_rows(facts: dict[str, Any]) -> dict[str, str]:
    """The facts of ``sternway.info()`` in words, by title."""
    facts = dict(facts)
    first = ("version", "python", "torch", "go", "backends", "driver", "devices", "kernel_image", "threads", "families")
    facts["devices"] = [device_words(device) for device in facts.get("devices") or ()]
    facts["kernel_image"] = image_words(facts.get("kernel_image"))
    absent = {"torch": "not imported", "devices": "none", "kernel_image": "none, this build is for the CPU alone"}
    names = (*first, *(name for name in facts if name not in first))
    titles = {"version": "sternway", "families": "operations"}
    return {titles.get(name) or name.replace("_", " "): words(facts.get(name)) or absent.get(name, "none") for name in names}


def device_words(device: dict[str, Any]) -> str:
    """Describe a GPU on one line."""
    if "error" in device:
        return f"{device['device']} {device['error']}"
    memory = f"{device['memory'] / 2**30:.0f} GiB"
    return f"{device['device']} {device['name']} ({device['arch']}, {device['multiprocessors']} multiprocessors, {memory})"


def image_words(manifest: dict[str, Any] | None) -> str:
    """The kernel image in words: architectures, compiler, and the beginning of each file's hash."""
    if not manifest:
        return ""
    hashes = ", ".join(f"{name} {image['sha256'][:12]}" for name, image in manifest["images"].items())
    return f"{', '.join(manifest['architectures'])} by nvcc {manifest['nvcc']}: {hashes}"
