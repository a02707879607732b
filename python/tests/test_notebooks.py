"""The committed notebooks, and the tool that compares them with a fresh run (`make notebooks` runs it)."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
ON_GPU = sorted(ROOT.glob("notebooks/gpu/*.ipynb"))


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
    """It opens with a question, ends with the answer and what to do next, ran in order on the CPU, and has a figure."""
    notebook = json.loads(path.read_text())
    first, *others, last = notebook["cells"]
    assert "?**" in "".join(first["source"])
    answers = [k for k, cell in enumerate(others) if "".join(cell["source"]).startswith("## The answer")]
    assert len(answers) == 1
    assert "".join(last["source"]).startswith("## What to do next")
    printed = [text for cell in others[answers[0] + 1 :] for kind, text in tool.outputs_of(cell)]
    assert printed or "\n- " in "".join(others[answers[0]]["source"])  # of the numbers, or a list
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any("device: cpu\n" in text for cell in code for _, text in tool.outputs_of(cell))
    assert any(kind == "image/png" for cell in code for kind, _ in tool.outputs_of(cell))
    assert tool.faults(notebook, path.stat().st_size) == []
    assert {tag for cell in code for tag in cell["metadata"].get("tags", ())} <= {"varies", "unchecked"}


def links(notebook: dict[str, Any], tool: Any) -> list[str]:
    return [link for c in notebook["cells"] if c["cell_type"] == "markdown" for link in tool.LINK.findall("".join(c["source"]))]


@pytest.mark.parametrize("path", [*NOTEBOOKS, *ON_GPU], ids=lambda path: path.relative_to(ROOT / "notebooks").as_posix())
def test_links(path: Path, tool: Any) -> None:
    """A link to a file that was renamed: without the extra docs, no other test reads the links of notebooks."""
    found = links(json.loads(path.read_text()), tool)
    assert found
    assert [link for link in found if not (path.parent / link).exists()] == []


def test_copies_of_a_gpu(tool: Any) -> None:
    """A copy names its card first and has the code of its notebook: it alone finds one that is older than the notebook."""
    source = ROOT / "notebooks/05_embedding_bag.ipynb"
    made = json.loads(source.read_text().replace("device: cpu", "device: cuda"))
    tool.name_the_card(made, "NVIDIA X1, CUDA 13.0, driver 1.2, torch 2.9", source, ROOT / "notebooks/gpu" / source.name)
    for name, copied in [(source.name, made), *((path.name, json.loads(path.read_text())) for path in ON_GPU)]:
        first = "".join(copied["cells"][0]["source"])
        assert re.match(r"# .+\n\n\*\*A run on one NVIDIA .+, driver [\d.]+, torch .+\.\*\* .+\n", first)
        assert tool.ON_CPU not in first
        assert any("device: cuda\n" in text for c in copied["cells"] if "outputs" in c for _, text in tool.outputs_of(c))
        assert [link for link in links(copied, tool) if not (ROOT / "notebooks" / "gpu" / link).resolve().exists()] == []
        notebook = json.loads((ROOT / "notebooks" / name).read_text())
        code = [["".join(c["source"]) for c in each["cells"] if c["cell_type"] == "code"] for each in (copied, notebook)]
        assert code[0] == code[1], f"run {name} on a GPU again"
    with pytest.raises(ValueError, match="runs on the CPU alone"):
        tool.name_the_card(json.loads(NOTEBOOKS[-1].read_text()), "", NOTEBOOKS[-1], NOTEBOOKS[-1])


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
