"""The committed notebooks, and the tool that compares them with a fresh run (`make notebooks` runs it)."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("notebooks")


def test_there_are_notebooks() -> None:
    assert [path.name[:3] for path in NOTEBOOKS] == [f"{number:02d}_" for number in range(1, len(NOTEBOOKS) + 1)]
    readme = (ROOT / "README.md").read_text()
    assert all(f"notebooks/{path.name}" in readme for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebook(path: Path, tool: Any) -> None:
    """It opens with a question, ends with what to do next, ran in order on the CPU, and has a figure and no warnings."""
    notebook = json.loads(path.read_text())
    first, *_, last = notebook["cells"]
    assert "?**" in "".join(first["source"])
    assert "".join(last["source"]).startswith("## What to do next")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any("device: cpu\n" in text for cell in code for _, text in tool.outputs_of(cell))
    assert any(kind == "image/png" for cell in code for kind, _ in tool.outputs_of(cell))
    assert tool.faults(notebook, path.stat().st_size) == []
    assert {tag for cell in code for tag in cell["metadata"].get("tags", ())} <= {"varies", "unchecked"}


def cell(*outputs: tuple[str, str], tags: tuple[str, ...] = ()) -> dict[str, Any]:
    """A cell with outputs, each a kind and a text."""
    made: list[dict[str, Any]] = []
    for kind, text in outputs:
        if kind in ("stdout", "stderr"):
            made.append({"output_type": "stream", "name": kind, "text": text})
        else:
            made.append({"output_type": "display_data", "metadata": {}, "data": {kind: text}})
    return {"cell_type": "code", "metadata": {"tags": list(tags)}, "outputs": made}


@pytest.mark.parametrize(
    ("before", "after", "tags", "same"),
    [
        ("loss 0.512", "loss 0.513", (), True),
        ("loss 0.512", "loss 0.612", (), False),
        ("loss 0.51", "gain 0.51", (), False),
        ("loss 0.51", "gain 0.51", ("varies",), False),
        ("took 3.1 ms", "took 88.4 ms", ("varies",), True),
        ("took 3.1 ms", "took 88.4 s", ("varies",), False),
        ("1,797 images", "1,798 images", (), False),
        ("error 1.2e-07", "error 1.3e-07", (), True),
        ("error 1.2e-07", "error 1.2e-05", (), False),
        ("best: the, of", "best: an, of", ("unchecked",), True),
        ("a   b", "a b", (), True),
        ("True", "False", (), False),
    ],
)
def test_comparison(before: str, after: str, tags: tuple[str, ...], same: bool, tool: Any) -> None:
    for kind in ("stdout", "text/html"):
        assert (tool.difference(cell((kind, before), tags=tags), cell((kind, after))) == "") is same


def test_kinds_are_compared(tool: Any) -> None:
    """An image has to be there, and may differ."""
    image = cell(("image/png", "iVBOR"), tags=("unchecked",))
    assert tool.difference(image, cell(("image/png", "other"))) == ""
    assert tool.difference(image, cell(("stdout", "no image")))
    assert tool.difference(image, cell())


def test_erased_progress_bars_are_dropped(tool: Any) -> None:
    bar = cell(
        ("stderr", "\rtraining:   0%|  | 0/9"),
        ("stderr", "\rtraining: 100%|##| 9/9"),
        ("stderr", "\r" + " " * 23 + "\r"),
        ("stdout", "done\n"),
    )
    assert tool.outputs_of(bar) == [("stdout", "done\n")]


def test_faults_are_found(tool: Any) -> None:
    outputs = [("stderr", "noise"), ("stdout", "UserWarning: old"), ("stdout", f"{tool.ROOT}/x.py"), ("text/html", "<b/>")]
    for output in outputs[:3]:
        assert len(tool.faults({"cells": [cell(output)]}, 10)) == 1, output
    assert tool.faults({"cells": [cell(outputs[3])]}, 10) == []
    assert len(tool.faults({"cells": []}, 10**6)) == 1
