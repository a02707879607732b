"""README.md and docs/: links lead somewhere, measured figures are those of the CSV files, and README.md stays short."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LONGEST_README = 200  # lines
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of tools/."""
    import importlib

    monkeypatch.syspath_prepend(ROOT / "tools")

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


# --- Generated figures --------------------------------------------------------------------------------------------------


GENERATED = [
    "README.md",
    "docs/errors.svg",
    "docs/speed.svg",
    "docs/steps.svg",
]


@pytest.mark.parametrize("path", GENERATED)
def test_generated(path: str, tool: Any) -> None:
    files = tool("docs").generated(ROOT)
    assert sorted(files) == GENERATED
    assert (ROOT / path).read_text() == files[path], "run make docs"


def test_every_table_has_one_place_on_the_site(tool: Any) -> None:
    """A line of a document stands for it, and begins with a link, which GitHub shows; a line without a table is an error."""
    docs, results = tool("docs"), tool("doc_results").Results(ROOT)
    places = [name for path in DOCUMENTS for name in docs.PLACE.findall(path.read_text())]
    assert sorted(places) == sorted(docs.TABLES)
    for path in DOCUMENTS:
        text = path.read_text()
        filled = docs.with_tables(text, results)
        assert "<!-- table" not in filled
        assert not re.search("^<!-- table", text, re.MULTILINE)  # GitHub would show the source of the link
        assert filled.count("\n| --- ") >= text.count("\n| --- ") + len(docs.PLACE.findall(text))
    with pytest.raises(ValueError, match="no table other"):
        docs.with_tables("[a](a) <!-- table: other -->", results)


def test_rows_are_folded(tool: Any) -> None:
    """Alone finds a table of docs/performance.md whose rows a reader of the site has to scroll past."""
    text = tool("docs").with_tables((ROOT / "docs/performance.md").read_text(), tool("doc_results").Results(ROOT))
    depth = shown = folded = 0
    for line in text.splitlines():
        depth += line.startswith("<details") - line.startswith("</details")
        shown += depth == 0 and line.startswith("| ")
        folded += depth > 0 and line.startswith("| ")
    assert depth == 0
    assert shown < 40
    assert folded > 1000


def test_the_speed_of_the_readme_by_hand() -> None:
    """Two rows, computed here from the CSV files without the generator."""
    import csv
    import statistics

    _, *lines = (ROOT / "python/bench/results/h200_scan.csv").read_text().splitlines()
    rows = list(csv.DictReader(lines))
    middle = statistics.median(float(row["ratio"]) for row in rows)
    text = (ROOT / "README.md").read_text()
    assert f"| backward of scans | {len(rows)} | {middle:.1f}x |" in text
    _, *lines = (ROOT / "python/bench/results/step_h200.csv").read_text().splitlines()
    gains = [
        float(row["ratio"]) for row in csv.DictReader(lines) if row["contestant"] == "sternway" and "cum" not in row["step"]
    ]
    assert f"`lerp` | {len(gains)} | {statistics.median(gains):.2f}x |" in text, "scans do not hide the gains of models"


STEPS = """\
# python -m sternway bench step --csv a.csv | NVIDIA H200, CUDA 13.0, driver 1.2 | commit abc1234
step,shape,dtype,device,contestant,ms,best_ms,host_ms,device_ms,forward_ms,forward_best_ms,memory_bytes,others,note
"cumsum, dim 1",8192x8192,float32,cuda:0,torch,1.2,1.1,0.5,1.15,0.9,0.8,1073741824,,
"cumsum, dim 1",8192x8192,float32,cuda:0,sternway,0.4,0.3,0.1,0.35,0.2,0.1,536870912,,
"cumsum, dim 1",8192x8192,float32,cuda:0,triton,,,,,0.24,0.2,,,
"cumprod, dim 0",8192x8192,float32,cuda:0,torch,8.0,7.0,0.5,7.9,0.9,0.8,9,,
"cumprod, dim 0",8192x8192,float32,cuda:0,sternway,2.0,1.9,0.5,1.9,0.9,0.8,8,,
embedding,8x8x8,bfloat16,cuda:0,sternway,,,,,,,,,failed: OutOfMemoryError: none left
"""
"""A file of bench step as a GPU writes it: two measured rows and a failed one."""


def test_the_tables_of_steps(tool: Any, tmp_path: Path) -> None:
    """Ratios of medians, and the reason of a failed row."""
    steps, results = tool("doc_steps"), tool("doc_results").Results(tmp_path)
    results.folder.mkdir(parents=True)
    (results.folder / "step_h200.csv").write_text(STEPS)
    text = steps.written(steps.GPU)(results)
    shown, parts, memory, other = [line for line in text.splitlines() if line.startswith("| cumsum, dim 1 |")]
    assert "| 400 µs | 1.2 ms | 3.00x |" in shown
    assert "| 200 µs | 4.50x | 100 µs | 500 µs |" in parts
    assert "| 512 MiB | 1 GiB |" in memory
    assert "| triton (forward) | 1.20x |" in other
    assert "failed: OutOfMemoryError: none left" in text
    assert "Steps of one scan are 3.50 times faster in the median of 2 rows (geometric mean 3.46x)" in text  # (3 x 4) ** 0.5
    assert "Steps of models" not in text  # the one is not measured
    assert "than compile" not in text


SVG = "{http://www.w3.org/2000/svg}"


def test_the_chart(tool: Any) -> None:
    """A bar for each library and row, as long as the share says."""
    svg = ElementTree.fromstring((ROOT / "docs/speed.svg").read_text())
    chart, rows = tool("doc_chart"), tool("doc_tables").HIGHLIGHTS
    bars = list(svg.iter(f"{SVG}rect"))[2:]  # after those of the key
    assert len(bars) == 2 * len(rows)
    results, axis = tool("doc_results").Results(ROOT), chart.WIDTH - chart.LEFT - chart.RIGHT
    for k, (_, *key) in enumerate(rows):
        row = tool("doc_tables").found(results, *key, "bfloat16")
        ours, theirs = (float(bar.get("width", "")) / axis for bar in bars[2 * k : 2 * k + 2])
        assert ours == pytest.approx(float(row["share_of_copy"]), abs=3e-4)
        assert theirs == pytest.approx(ours * float(row["ms"]) / float(row["torch_ms"]), abs=2e-4)


def test_the_chart_of_steps(tool: Any) -> None:
    """A bar for each row, three times as long for a thousand as for ten."""
    svg = ElementTree.fromstring((ROOT / "docs/steps.svg").read_text())
    bars = [float(bar.get("width", "")) for bar in svg.iter(f"{SVG}rect")]
    words = [text.text or "" for text in svg.iter(f"{SVG}text")]
    gains = [
        float(word.rstrip("x"))
        for word in words
        if re.fullmatch(r"[\d.]+x", word) and word not in ("1x", "10x", "100x", "1000x")
    ]
    results = tool("doc_results").Results(ROOT)
    assert len(bars) == len(gains) == len(tool("doc_steps").highlights(results))
    decade = bars[gains.index(max(gains))] / math.log10(max(gains))
    assert bars == pytest.approx([decade * math.log10(gain) for gain in gains], abs=0.5)


def test_the_chart_of_errors(tool: Any) -> None:
    """Two dots for each row, where the numbers of the CSV file put them."""
    chart = tool("doc_chart")
    svg = ElementTree.fromstring((ROOT / "docs/errors.svg").read_text())
    dots = [float(dot.get("cx", "")) for dot in svg.iter(f"{SVG}circle")][2:]  # after those of the key
    rows = {(row["op"], row["input"]): row for row in tool("doc_results").Results(ROOT).file("exactness_h200.csv").rows
            if row["dtype"] == "bfloat16"}  # fmt: skip
    for k, (_, *key) in enumerate(chart.ERRORS):
        for x, column in zip(dots[2 * k :], ("torch_norm", "norm"), strict=False):
            share = (x - chart.LEFT) / (chart.WIDTH - chart.LEFT - chart.RIGHT)  # of the axis from 1e-4 to 1
            assert 1e-4 * 1e4**share == pytest.approx(float(rows[tuple(key)][column]), rel=0.01)
    assert len(dots) == 2 * len(chart.ERRORS)


def test_every_error_has_a_section_on_its_remedy() -> None:
    import sternway

    text = (ROOT / "docs/troubleshooting.md").read_text()
    by_class = text.partition("## Errors by class")[2].partition("\n## ")[0]
    sections = re.findall(r"^### (.*)$", by_class, re.MULTILINE)
    classes = [name for name in sternway.__all__ if name.endswith("Error") and name != "Error"]
    assert sorted(sections) == sorted(classes)


# --- Links --------------------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The anchors of the headings of a document, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def broken_links(path: Path, root: Path = ROOT) -> list[str]:
    """The links of a document to files or headings that do not exist."""
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", path.read_text()))
    broken = []
    for target in re.findall(r"\]\(\s*<?([^)\s>]+)", text):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or not there.is_relative_to(root) or (anchor and anchor not in anchors(there)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(path: Path) -> None:
    assert broken_links(path) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("# A title\n[a](#a-title) [b](#none) [c](none.md) [d](https://arxiv.org)\n```\n[e](none)\n```\n")
    assert broken_links(document, tmp_path) == ["#none", "none.md"]


def test_every_document_can_be_reached_from_the_readme() -> None:
    """By links from document to document."""
    reached, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        path = ahead.pop()
        if path not in reached:
            reached.add(path)
            targets = re.findall(r"\]\(\s*([^)\s#]+\.md)", path.read_text())
            ahead += [(path.parent / target).resolve() for target in targets if not target.startswith("http")]
    assert reached >= set(ROOT.glob("docs/**/*.md"))


# --- README.md ----------------------------------------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


def test_the_description_has_no_local_links(tool: Any) -> None:
    def plain(text: str) -> str:
        found: str = tool("description").with_absolute_links(text, "https://example.org/r", "1.2")
        return found

    text = (
        "![a chart](docs/a.svg) [the *guide*](docs/a.md#b), [top](#top), [paper](https://arxiv.org)\n```\n[a](b)\n```\n[c](d)\n"
    )
    there = "https://example.org/r/blob/v1.2"
    wanted = f" [the *guide*]({there}/docs/a.md#b), [top](#top), [paper](https://arxiv.org)\n```\n[a](b)\n```\n[c]({there}/d)\n"
    assert plain(text) == wanted
    readme = plain((ROOT / "README.md").read_text())
    assert readme.startswith("# sternway")
    assert not re.search(r"\]\((?!https?://|#)", readme)
    assert f"[docs/performance.md]({there}/docs/performance.md) has the method" in readme


def test_the_repository_has_one_address() -> None:
    """Alone finds a document that names another repository than pyproject.toml."""
    [repository] = re.findall(r'^Repository = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    texts = {name: (ROOT / name).read_text() for name in ("README.md", "docs/README.md", "CITATION.cff", "pyproject.toml")}
    assert all(repository in text for text in texts.values())
    found = re.findall(r"https://github\.com/[\w-]+/[\w.-]+", "".join(texts.values()))
    assert {url.removesuffix(".git") for url in found} == {repository}
