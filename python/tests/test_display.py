"""What notebooks display: tables of descriptors, SKUs, guarantees and info, and the picture of a plan."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from families import Family, make
from support import F32

import sternway as sw
from sternway._picture import (
    LONGEST_LINE,
    MOST_COLUMNS,
    MOST_LAUNCHES,
    MOST_MATRICES,
    MOST_ROWS,
    MOST_TILES,
    WIDTH,
    count,
    matrices_of,
    part_sizes,
    picture,
)

LARGEST = 16_000  # characters of a picture
ON_A_GPU = json.loads((Path(__file__).parents[2] / "core/testdata/divisions.json").read_text())
"""Descriptions of plans for an H100, by descriptor; core/division_test.go writes them."""


def parsed(html: str) -> Any:
    """The elements of a piece of HTML, which must be well-formed XML."""
    return ElementTree.fromstring(f"<body>{html}</body>")


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter() if element.tag.endswith("text")]


def cells(html: str) -> dict[str, str]:
    """Titles and values of a table."""
    rows = [[cell.text or "" for cell in row] for row in parsed(html).iter("tr")]
    return dict(rows)


def numbers_in(words: str, facts: dict[str, Any]) -> set[float]:
    """The numbers that a picture shows, without those in names of kernels."""
    for launch in facts["launches"]:
        words = words.replace(launch["kernel"], "")
    words = re.sub(r"\b[a-z]\w*", "", words)  # what is left of such names in titles
    return {float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", words)}


def divisions_of(facts: dict[str, Any]) -> list[dict[str, Any]]:
    return [*facts["tasks"], *(division for launch in facts["launches"] for division in launch["divisions"])]


def numbers_of(facts: dict[str, Any]) -> set[float]:
    """The numbers of a plan, and those that its picture derives from them."""
    launches = facts["launches"]
    known = set(map(float, range(1, len(launches) + 1)))  # of launches, and how often one occurs
    for division in divisions_of(facts):
        known |= {float(value) for value in division.values() if type(value) is int}
        known |= {float(number) for number in re.findall(r"\d+", division["column_unit"])}
        known.add(float(-(-division["block_columns"] // division["tile_columns"])))
    for launch in launches:
        known |= {float(launch[name]) for name in ("grid", "threads", "cluster")}
        known.add(float(f"{launch['shared'] / 1024:.4g}"))
    if launches:
        known.add(float(f"{facts['bytes'] / max(launch['grid'] for launch in launches):.0f}"))
    return known


def check_picture(svg: str, facts: dict[str, Any]) -> None:
    """It is well-formed, small, in the colors of the page, and its numbers are those of the plan."""
    [root] = parsed(svg)
    assert len(svg) <= LARGEST
    assert int(root.get("width")) <= WIDTH == 640
    assert not re.search(r"#[0-9a-f]{3}|black|white|rgb", svg)
    for element in root:
        assert element.get("fill", "currentColor") == element.get("stroke", "currentColor") == "currentColor"
        right = float(element.get("x", 0)) + float(element.get("width", 0))
        bottom = float(element.get("y", 0)) + float(element.get("height", 0))
        assert 0 <= right <= WIDTH
        assert 0 <= bottom <= float(root.get("height")) <= 860
    lines = texts(svg)
    assert all(len(line) <= LONGEST_LINE for line in lines), lines
    words = " ".join(lines)
    assert numbers_in(words, facts) <= numbers_of(facts)
    matrices = matrices_of(facts)
    assert matrices or facts["launches"]
    for division in (matrix.division for matrix in matrices[:MOST_MATRICES]):
        shown = [count(division["columns"], division["column_unit"]), count(division["block_columns"], division["column_unit"])]
        if division["row_unit"]:
            shown += [f"{division['rows']:,} ", count(division["block_rows"], division["row_unit"])]
        for expected in (*shown, f"{division['blocks']:,} "):
            assert expected in words, (expected, words)
        tiles = -(-division["block_columns"] // division["tile_columns"])
        if tiles > 1:
            assert f"in {tiles:,} tiles of {division['tile_columns']:,}" in words
    for launch in facts["launches"][: MOST_LAUNCHES - 1]:
        assert f"{launch['kernel']}: {count(launch['grid'], 'CTAs')} of {count(launch['threads'], 'threads')}" in words


# --- Pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (6, 37), (3, 2**12), (2**13, 5)], ids=str)
def test_picture_of_a_plan(family: Family, device: str, shape: tuple[int, ...]) -> None:
    plan = make(family, shape, F32, device).plan()
    html = plan._repr_mimebundle_()["text/html"]
    check_picture(html[html.index("<svg") :], plan._division())
    assert "picture" not in repr(plan)
    assert "<svg" not in plan._repr_mimebundle_()["text/plain"]


@pytest.mark.parametrize("exponent", range(0, 31, 5))
@pytest.mark.parametrize("dim", [0, 1])
def test_picture_of_any_size(exponent: int, dim: int) -> None:
    for rows in (1, 7, 2 ** (exponent // 2), 2**exponent):
        shape = (rows, 2**exponent // rows)
        if 0 in shape:
            continue
        descriptors = [
            (sw.ScanBackwardPlan, sw.ScanBackwardDescriptor("cumsum", shape, "float32", dim=dim)),
            (sw.ScanPlan, sw.ScanDescriptor("cummax", shape, "float64", dim=dim)),
            (sw.LerpBackwardPlan, sw.LerpBackwardDescriptor(shape, "bfloat16", weight=0.5, b_shape=shape[1:])),
            (sw.FakeQuantizePerTokenPlan, sw.FakeQuantizePerTokenDescriptor(shape, "float16", quant_min=-8, quant_max=7)),
            (sw.UniqueRowsPlan, sw.UniqueRowsDescriptor(num_rows=shape[0], total=shape[1])),
        ]
        for plan_type, descriptor in descriptors:
            plan = plan_type.select(descriptor)
            check_picture(picture(plan._division()), plan._division())


@pytest.mark.parametrize("descriptor", ON_A_GPU)
def test_picture_of_a_plan_on_a_gpu(descriptor: str) -> None:
    facts = ON_A_GPU[descriptor]
    assert facts["launches"]
    assert matrices_of(facts), "no launch has a division to draw"
    svg = picture(facts)
    check_picture(svg, facts)
    assert "CTA" in svg
    assert "task" not in svg


def test_nothing_to_draw() -> None:
    plan = sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor((0, 3), "float32", weight=0.5))
    assert picture(plan._division()) == ""
    assert "<table>" in plan._repr_mimebundle_()["text/html"]


def test_parts() -> None:
    assert part_sizes(10, 4, MOST_COLUMNS) == [4, 4, 2]
    assert part_sizes(8, 8, MOST_ROWS) == [8]
    assert part_sizes(2**30, 3, MOST_TILES) == [3] * (MOST_TILES - 2) + [None, 1]


def test_escaping() -> None:
    """Names from the native library and from the caller are text, not markup."""
    facts = json.loads(json.dumps(next(iter(ON_A_GPU.values()))))
    facts["launches"][0]["kernel"] = '<script>"&'
    check_picture(picture(facts), facts)
    assert "<script" not in picture(facts)
    descriptor = sw.ScanBackwardDescriptor("cumsum", (3,), "float32")
    vars(descriptor)["kind"] = "<b>&\"'"  # past the check
    assert "<b>" not in descriptor._repr_html_()
    assert cells(descriptor._repr_html_())["kind"] == "<b>&\"'"


# --- Tables -----------------------------------------------------------------------------------------------------------


def test_tables(family: Family, device: str) -> None:
    """A row for each field, and the text that Python prints as ever."""
    plan = make(family, (6, 37), F32, device).plan()
    for shown in (plan.descriptor, plan.sku, plan.precision_guarantee, plan.preference):
        table = cells(shown._repr_html_())
        assert list(table) == [field.name.replace("_", " ") for field in dataclasses.fields(shown)]
        assert repr(shown).startswith(f"{type(shown).__name__}({dataclasses.fields(shown)[0].name}=")
        assert "<svg" not in shown._repr_html_()
    table = cells(plan.sku._repr_html_())
    assert table["op"] == plan.sku.op
    assert plan.precision_guarantee.accumulator in table["precision guarantee"]
    assert cells(plan.precision_guarantee._repr_html_())["deterministic"] == "True"


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
