"""Docstrings of public names are complete and true: the sections that apply, every parameter, and examples that run."""

from __future__ import annotations

import builtins
import dataclasses
import doctest
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import sternway
import sternway.jax
import sternway.torch
import sternway.torch.distributed
from sternway._plan import Plan
from sternway.torch._patches import Patch

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MODULES = (sternway, sternway.jax, sternway.torch, sternway.torch.distributed)
RAISES_NOTHING = ("accelerate", "extra_repr", "optimizer", "to_json", "undo")
FILLED_BY_SELECT = (sternway.KernelSku, sternway.PrecisionGuarantee)
ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): \S", re.MULTILINE)


def public() -> dict[str, Any]:
    """Public objects by name: modules, what they export, the handle of a patch, and public methods of the classes."""
    found: dict[str, Any] = {module.__name__: module for module in MODULES}
    for module in MODULES:
        found |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__ if name != "__version__"}
    found["Patch"] = Patch
    for thing in [x for x in found.values() if inspect.isclass(x)]:
        found |= {f"{method.__qualname__}": method for method in methods(thing)}
    return found


def methods(cls: type) -> Iterator[Any]:
    """The public methods of a class that sternway defines, in it or in a base class, and the getters of its properties."""
    for name in dir(cls):
        thing = inspect.getattr_static(cls, name)
        thing = getattr(thing, "__func__", None) or getattr(thing, "fget", None) or thing
        if not name.startswith("_") and inspect.isfunction(thing) and thing.__module__.startswith("sternway"):
            yield thing


def section(doc: str, title: str) -> str | None:
    """The text of a section of a docstring; None if there is no such section."""
    match = re.search(rf"^{title}:(.*\n?(?:    .*\n?|\n)*)", doc, re.MULTILINE)
    return match[1] if match and match[1].strip() else None


def entries(text: str | None) -> list[str]:
    """The names that the entries of a section explain."""
    return [name.strip() for names in ENTRY.findall(text or "") for name in names.split(",")]


def parameters(thing: Any) -> list[str]:
    """The parameters of a callable as a docstring writes them."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = inspect.signature(thing).parameters.values()
    return [stars.get(p.kind, "") + p.name for p in found if p.name not in ("self", "cls") and not p.name.startswith("_")]


def required(thing: Any) -> dict[str, list[str] | None]:
    """The sections that a docstring must have, each with the names that it must explain, or None."""
    if inspect.ismodule(thing):
        return {}
    if inspect.isfunction(thing):
        names, returns = parameters(thing), inspect.signature(thing).return_annotation
        needs: dict[str, list[str] | None] = {"Args": names} if names else {}
        if returns not in (None, "None"):
            needs["Returns"] = None
        return needs | ({} if thing.__name__ in RAISES_NOTHING else {"Raises": None}) | {"Example": None}
    if issubclass(thing, Plan):
        return {"Operands": None, "Raises": None, "Example": None}
    if thing is Patch or thing in FILLED_BY_SELECT or issubclass(thing, sternway.Error):
        fields = [name for base in thing.__mro__[:2] for name in vars(base).get("__annotations__", ()) if name[0] != "_"]
        own = fields if thing is sternway.Error or not issubclass(thing, Exception) else set(fields) - set(COMMON)
        return {"Attributes": sorted(own)} | ({} if thing is Patch else {"Example": None})
    return {"Args": parameters(thing), "Raises": None, "Example": None}


COMMON = ("op", "operand", "wanted", "got", "hint")
"""The attributes that Error documents for its subclasses."""


def flaws(thing: Any, doc: str) -> list[str]:
    """What a docstring lacks, in words."""
    found = [] if doc else ["there is no docstring"]
    for title, names in required(thing).items():
        text = section(doc, title)
        if text is None:
            found.append(f"there is no section {title}")
        elif title == "Example" and ">>>" not in text:
            found.append("the section Example has no example")
        elif names is not None:
            explained = entries(text)
            found += [f"{title} does not name {name}" for name in names if name not in explained]
            if title == "Args":
                found += [f"{name} is no parameter" for name in explained if name not in names]
    for name in entries(section(doc, "Raises")):
        if not hasattr(sternway, name) and not hasattr(builtins, name):
            found.append(f"{name} is no error")
    return found


def is_property(name: str) -> bool:
    return name.endswith("Descriptor.shape")


PUBLIC = public()
NAMES = [name for name in PUBLIC if not is_property(name)]


def test_the_walk_finds_what_there_is() -> None:
    for name in (
        "sternway.info",
        "sternway.torch.rope",
        "sternway.KernelSku",
        "Plan.run",
        "Descriptor.from_json",
        "Patch.undo",
    ):
        assert name in PUBLIC
    assert all(inspect.getdoc(PUBLIC[name]) for name in PUBLIC if is_property(name))


@pytest.mark.parametrize("name", NAMES)
def test_sections(name: str) -> None:
    assert flaws(PUBLIC[name], inspect.getdoc(PUBLIC[name]) or "") == []


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_section_is_noticed(name: str) -> None:
    """Without any one of its sections, or the name of any one of its parameters, a docstring is refused."""
    thing, doc = PUBLIC[name], inspect.getdoc(PUBLIC[name]) or ""
    assert flaws(thing, "")
    for title, names in required(thing).items():
        assert flaws(thing, doc.replace(f"{title}:", f"Of {title}:", 1)), title
        for parameter in names or ():
            entry = re.compile(rf"^(    (?:[*\w, ]+, )?){re.escape(parameter)}\b(?=[\w*, ]*: )", re.MULTILINE)
            renamed, count = entry.subn(r"\1another", doc)
            assert count, parameter
            assert flaws(thing, renamed), parameter


@pytest.mark.parametrize("name", [name for name in NAMES if ">>>" in (PUBLIC[name].__doc__ or "")])
def test_example(name: str) -> None:
    thing = PUBLIC[name]
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", {}, name, None, 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(example, clear_globs=False)
    assert runner.tries
    assert runner.failures == 0
    if inspect.isclass(thing) and issubclass(thing, Plan):
        check_operands(thing, example.globs)


def check_operands(cls: type, names: dict[str, Any]) -> None:
    """The class of a plan explains each operand of the plan that its example selects."""
    plan = next(x for x in names.values() if type(x) is cls)
    explained = entries(section(inspect.getdoc(cls) or "", "Operands"))
    assert {"workspace"} == set(plan._names) - set(explained)


def test_fields_of_descriptors_are_parameters() -> None:
    """So that the sections Args of dataclasses cover every field."""
    for thing in PUBLIC.values():
        if dataclasses.is_dataclass(thing):
            assert parameters(thing) == [field.name for field in dataclasses.fields(thing)]
