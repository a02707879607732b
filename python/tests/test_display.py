"""What notebooks display: tables of plans, descriptors, SKUs, guarantees and info."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

from families import Family, make
from support import F32

import sternway as sw


def cells(html: str) -> dict[str, str]:
    """Titles and values of a table, which must be well-formed XML."""
    rows = [[cell.text or "" for cell in row] for row in ElementTree.fromstring(html).iter("tr")]
    return dict(rows)


def test_escaping() -> None:
    """Names from the caller are text, not markup."""
    descriptor = sw.ScanBackwardDescriptor("cumsum", (3,), "float32")
    vars(descriptor)["kind"] = "<b>&\"'"  # past the check
    assert "<b>" not in descriptor._repr_html_()
    assert cells(descriptor._repr_html_())["kind"] == "<b>&\"'"


def test_tables(family: Family, device: str) -> None:
    """A row for each field, and the text that Python prints as ever."""
    plan = make(family, (6, 37), F32, device).plan()
    for shown in (plan.descriptor, plan.sku, plan.precision_guarantee, plan.preference):
        table = cells(shown._repr_html_())
        assert list(table) == [field.name.replace("_", " ") for field in dataclasses.fields(shown)]
        assert repr(shown).startswith(f"{type(shown).__name__}({dataclasses.fields(shown)[0].name}=")
    table = cells(plan.sku._repr_html_())
    assert table["op"] == plan.sku.op
    assert plan.precision_guarantee.accumulator in table["precision guarantee"]
    assert cells(plan.precision_guarantee._repr_html_())["deterministic"] == "True"


def test_table_of_a_plan(family: Family, device: str) -> None:
    """The facts of the text, one in a row; the geometry names what a run really starts."""
    plan = make(family, (6, 37), F32, device).plan()
    shown = plan._repr_mimebundle_()
    assert shown["text/plain"] == repr(plan)
    table = cells(shown["text/html"])
    assert table["kernel"] == plan.sku.kernel
    assert f"geometry {table['geometry']};" in repr(plan)
    assert ("grid" if device != "cpu" else "task") in table["geometry"]


def test_table_of_info() -> None:
    info = sw.info()
    table = cells(info._repr_html_())  # type: ignore[attr-defined]
    assert table["sternway"] == info["version"]
    assert table["threads"] == str(info["threads"])
    assert {name.replace("_", " ") for name in info if name not in ("version", "families")} < set(table)
    assert table["operations"] == ", ".join(info["families"])
    assert repr(info) == repr(dict(info))
    hostile = type(info)({**info, "driver": "<script>", "surprise": None, "devices": [{"device": "cuda:0", "error": "<i>"}]})
    assert "<script" not in hostile._repr_html_()  # type: ignore[attr-defined]
    assert cells(hostile._repr_html_())["devices"] == "cuda:0 <i>"  # type: ignore[attr-defined]
