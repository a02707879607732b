"""The documentation site: its parts that are not documents, and the tool that checks it. `make test` builds it, too."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import shutil
import struct
import zlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import sternway
import sternway.jax
import sternway.torch
import sternway.torch.distributed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of docs/site or tools, if the packages that it needs are installed."""

    def load(name: str, *needs: str) -> ModuleType:
        for needed in needs:
            pytest.importorskip(needed, reason=f"{needed} is not installed; the extra docs has it")
        for folder in ("docs/site", "tools"):
            monkeypatch.syspath_prepend(ROOT / folder)
        return importlib.import_module(name)

    return load


# --- The reference --------------------------------------------------------------------------------------------------------


def test_every_public_name_has_a_place(part: Any) -> None:
    reference = part("reference")
    modules = (sternway, sternway.torch, sternway.torch.distributed, sternway.jax)
    public = {f"{module.__name__}.{name}" for module in modules for name in module.__all__}
    assert sorted(public) == sorted(reference.exported())
    shown = [name for page in reference.PAGES for name in page.public]
    assert sorted(shown) == sorted(public)
    reference.check()


def test_each_name_is_that_of_its_object(part: Any) -> None:
    """Not of the submodule of the same name: the place in the sources is that of the object in the running package."""
    reference, griffe = part("reference"), part("griffe", "griffe")
    found = griffe.load("sternway", search_paths=[str(ROOT / "python")], resolve_aliases=True)
    for page in reference.PAGES:
        module = importlib.import_module(page.module)
        for name, there in page.objects.items():
            if there not in reference.TEXT:
                shown = found[there.removeprefix("sternway.")]
                running = getattr(module, name.rpartition(".")[2], None)
                assert shown.is_class or shown.is_function, there
                assert running is None or shown.canonical_path == f"{running.__module__}.{running.__qualname__}", there


def test_a_missing_name_and_an_unknown_one_are_found(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = part("reference")
    scans = next(page for page in reference.PAGES if page.path == "scans")
    for names in (scans.names[1:], [*scans.names, "cumulate"], [*scans.names, "info"]):
        pages = [reference.Page(scans.path, scans.title, "", names) if page is scans else page for page in reference.PAGES]
        monkeypatch.setattr(reference, "PAGES", pages)
        with pytest.raises(ValueError, match=r"differ in sternway\.(cummax_backward|cumulate|info)"):
            reference.check()
        monkeypatch.undo()


def test_docstrings_in_markdown(part: Any) -> None:
    rewritten = part("docstrings", "griffe").rewritten
    text = "See :func:`cumsum` and :class:`~torch.Tensor`.\n\nArgs:\n    dim, out: as there.\n\nExample:\n    >>> 1\n"
    entries = ["Args:", "    dim: as there.", "    out: as there.", "", "Examples:", "    >>> 1"]
    first = "See [`cumsum`][sternway.torch.cumsum] and `torch.Tensor`."
    assert rewritten(text, "sternway.torch.scan.cumprod").splitlines() == [first, "", *entries]
    listed = rewritten("Operands:\n    dy: input,\n        of any shape.\n    a, b: outputs.\n", "sternway.lerp.Plan")
    assert listed.splitlines()[2:] == ["- `dy`: input,", "        of any shape.", "- `a`, `b`: outputs."]


# --- Pages from documents -------------------------------------------------------------------------------------------------


def test_outputs_of_notebooks(part: Any, tmp_path: Path) -> None:
    """Text, errors, HTML and pictures appear as they were saved; lines in columns are marked, so that they do not break."""
    hooks = part("hooks", "mkdocs", "nbconvert", "latex2mathml")
    import nbformat.v4 as v4

    picture = v4.new_output("display_data", {"image/png": "aGVsbG8="})
    outputs = [
        v4.new_output("stream", text="one\n\n  two\n"),
        v4.new_output("execute_result", {"text/html": "<table><tr><td>3</td></tr></table>", "text/plain": "three"}),
        picture,
        v4.new_output("stream", text="name  value\n"),
    ]
    cell = v4.new_code_cell("x = {\n    1: 2,\n}", outputs=outputs)
    path = tmp_path / "a.ipynb"
    hooks.nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell("# A title"), cell]), path)
    text, pictures = hooks.notebook(path)
    assert "````{.text .output}\none\n\n  two\n````" in text
    assert "````{.text .output .aligned}\nname  value\n````" in text
    assert "    1: 2,\n" in text  # of the cell, untouched
    assert "<td>3</td>" in text
    assert "three" not in text
    assert list(pictures.values()) == [b"hello"]
    assert f"]({next(iter(pictures))})" in text


def test_links_and_formulas(part: Any) -> None:
    hooks = part("hooks", "mkdocs", "nbconvert", "latex2mathml")
    import markdown

    html = markdown.markdown(
        "`sw.cumsum` costs $x_1$ and $5 or $6. [`sw.rope`](a.md)", extensions=[hooks.NamesAsLinks(), hooks.Formulas()]
    )
    assert '<autoref identifier="sternway.cumsum"><code>sw.cumsum</code></autoref>' in html
    assert html.count("<math") == 1
    assert "$5 or $6" in html
    assert html.count("<autoref") == 1
    paths = {
        "docs/howto/plans.md": "howto/plans.md",
        "notebooks/01_start.ipynb": "notebooks/01_start.md",
        "notebooks/gpu/05_embedding_bag.ipynb": "notebooks/gpu/05_embedding_bag.md",
        "README.md": "README.md",
    }
    for path, there in {**paths, "go.mod": None, "docs/site/hooks.py": None}.items():
        assert hooks.site_path(ROOT / path) == there
    for path, there in paths.items():
        source = hooks.source_of(SimpleNamespace(file=SimpleNamespace(src_uri=there)))
        assert source == ROOT / ("docs/README.md" if path == "README.md" else path)


# --- The check of a site --------------------------------------------------------------------------------------------------

HEAD = "<!doctype html><html lang=en><head><meta charset=utf-8><title>A page</title><link rel=icon href='data:,'></head>"
FAULTY = f"""{HEAD}<body class=md-content><article><h1 id=top>A page</h1>
<a href="b.html#none">one</a> <a href="c.html">two</a> <a href="#top">three</a>
<p style="color:#eee;background:#fff">faint</p><div style="width:2000px">wide</div><img src="none.png">
<img src="chart.svg"><img src="plot.png" width="150">
<script>console.error("a fault"); fetch("http://127.0.0.1:9/").catch(() => 0)</script></article></body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text(FAULTY)
    (tmp_path / "chart.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="90" height="9" font-size="7"/>')
    parts = (
        (b"IHDR", struct.pack(">2I5B", 600, 1, 8, 0, 0, 0, 0)),
        (b"pHYs", struct.pack(">2IB", 3937, 3937, 1)),
        (b"IDAT", zlib.compress(bytes(601))),
        (b"IEND", b""),
    )  # 600 x 1 pixels, 100 for an inch
    chunks = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts]
    (tmp_path / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    (tmp_path / "b.html").write_text(
        f"{HEAD}<body class=md-content><article><p id=x>sound</p><a href='index.html#top'>back</a></article></body></html>"
    )
    return tmp_path


def test_dead_links_are_found(part: Any, site: Path) -> None:
    found = part("check_site").dead_links(site)
    assert found == ["index.html: no heading b.html#none", "index.html: dead link c.html", "index.html: dead link none.png"]


def test_faults_of_a_page_are_found(part: Any, site: Path) -> None:
    check_site = part("check_site")
    browser = next(filter(None, map(shutil.which, check_site.BROWSERS)), None)
    if importlib.util.find_spec("playwright") is None or browser is None:
        pytest.skip("no playwright, or no Chromium: a page is not opened")
    given = argparse.Namespace(browser=browser, only="*", screenshots=site / "pictures")
    found = "\n".join(check_site.check(site, given))
    for fault in (
        "a fault",
        "none.png",
        "contrast 1.",
        "wider than the window",
        "text of 7.0 pixels in a picture",  # of the chart
        "text of 3.8 pixels in a picture",  # of the plot: 11 points are 15.3 pixels, shown at a fourth
        "request to another site: http://127.0.0.1:9/",
    ):
        assert found.count(fault) >= 2, fault  # in light and in dark
    assert "b.html," not in found
    assert len(list((site / "pictures").iterdir())) == 8
