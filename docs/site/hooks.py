"""The parts of the site that docs/ lacks: tables, the reference, notebooks, examples, documents of the root; and formulas.

Documents are written for GitHub. A link to a file that has a page leads to the page; a link to another file of the repository
becomes plain text. Inline code that names a public object, such as `sw.cumsum`, becomes a link to the reference. A notebook is
shown with the outputs that it was saved with; nothing is executed.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import latex2mathml.converter
import nbformat
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import reference  # beside this file

import docs  # of tools/
from doc_results import Results  # of tools/
from packages import project  # of tools/

ROOT = Path(__file__).resolve().parents[2]
PROJECT = project()
DOCUMENTS = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
KINDS = {"notebooks": ".ipynb", "examples": ".py"}  # folders whose files are made into pages
FENCED = re.compile(r"(^ *(?P<fence>```+|~~~+).*?^ *(?P=fence) *$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:`[^`]*`|\[[^\]]*\]|[^\[\]`])*)\]\(\s*(?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\s*\)"
)


# --- Pages that are made here -------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Check that the reference is complete, fill the patterns of the navigation, and add the extensions of Markdown."""
    try:
        reference.check()
    except ValueError as error:
        raise PluginError(str(error)) from error
    found: dict[str, list[str | None]] = {
        "notebooks/*.ipynb": [site_path(path) for path in notebooks()],
        "examples/*.py": [site_path(path) for path in sorted(ROOT.glob("examples/*.py"))],
    }
    found["reference/*"] = [f"reference/{page.path}.md" for page in reference.PAGES]
    config.nav = [filled(entry, found) for entry in config.nav or []]
    config.copyright = f"sternway {PROJECT['version']}"
    config.markdown_extensions += [Formulas(), NamesAsLinks()]
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [{"name": "math", "class": "math", "format": displayed}]}
    return config


def filled(entry: Any, found: dict[str, list[Any]]) -> Any:
    """An entry of the navigation, with the files of a pattern in its place."""
    if isinstance(entry, dict):
        return {title: found.get(value, value) if isinstance(value, str) else value for title, value in entry.items()}
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose source is not in docs/."""
    for page in reference.PAGES:
        files.append(File.generated(config, f"reference/{page.path}.md", content=page.markdown()))
    for path in ROOT.glob("examples/*.py"):
        code = path.read_text()
        text = f"# {path.name}\n\nRun it by `torchrun --nproc-per-node 2 examples/{path.name}`.\n\n````python\n{code}````\n"
        files.append(File.generated(config, f"examples/{path.stem}.md", content=text))
    for name in DOCUMENTS:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for path in notebooks():
        text, pictures = notebook(path)
        page = site_path(path) or ""
        files.append(File.generated(config, page, content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"{posixpath.dirname(page)}/{name}", content=data))
    return files


def notebooks() -> list[Path]:
    """The notebooks, and then the copies with the outputs of a GPU."""
    return [*sorted(ROOT.glob("notebooks/*.ipynb")), *sorted(ROOT.glob("notebooks/gpu/*.ipynb"))]


def notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown with its saved outputs, and the files of its pictures by name."""
    cells = nbformat.read(path, as_version=4)
    resources = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    text, made = MarkdownExporter().from_notebook_node(cells, resources)
    return styled_outputs(text), dict(made["outputs"])


def styled_outputs(text: str) -> str:
    """The Markdown of nbconvert, with text outputs, which it indents, in fences of their own."""
    parts = FENCED.split(text)
    # split gives text, fence with its content, the mark of the fence, text, ...
    for k in range(0, len(parts), 3):
        parts[k] = re.sub(r"(?:^    .*\n(?:[ \t]*\n(?=    ))*)+", as_text, parts[k], flags=re.MULTILINE)
    return "".join(part for k, part in enumerate(parts) if k % 3 != 2)


def as_text(match: re.Match[str]) -> str:
    """Indented lines as a fence; nothing for blank ones, such as nbconvert writes beside a plot. Columns are marked."""
    lines = [line.removeprefix("    ") for line in match[0].rstrip().splitlines()]
    aligned = " .aligned" if any(re.search(r"\S {2,}\S", line) for line in lines) else ""
    return "\n".join([f"````{{.text .output{aligned}}}", *lines, "````", ""]) if lines else ""


# --- Links ---------------------------------------------------------------------------------------------------------------


def site_path(path: Path) -> str | None:
    """The path within the site of the page or file made from a file of the repository; None: the site does not have it."""
    name = path.relative_to(ROOT).as_posix()
    if name == "README.md" or name in DOCUMENTS:
        return name
    folder, _, rest = name.partition("/")
    if folder == "docs" and not rest.startswith("site/"):
        return rest
    if KINDS.get(folder) == path.suffix:
        return f"{folder}/{rest.removesuffix(path.suffix)}.md"
    return None


def source_of(page: Page) -> Path:
    """The file of the repository that a page shows."""
    uri = page.file.src_uri
    folder, _, name = uri.partition("/")
    if folder in KINDS:
        return (ROOT / uri).with_suffix(KINDS[folder])
    if folder == "reference":
        return next(entry for entry in reference.PAGES if f"{entry.path}.md" == name).source()
    return ROOT / uri if uri in DOCUMENTS else ROOT / "docs" / uri


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put the tables into a document, and let its links lead to pages of the site."""
    here, uri = source_of(page).parent, page.file.src_uri
    markdown = docs.with_tables(markdown, Results(ROOT))

    def moved(match: re.Match[str]) -> str:
        target = match["target"]
        if not target or re.match(r"[a-z]+:", target) or uri.startswith("reference/"):
            return match[0]
        path = (here / target).resolve()
        if match["image"] and uri.startswith("notebooks/"):
            return match[0]  # a picture of the notebook
        if not path.is_relative_to(ROOT) or not path.exists():
            raise PluginError(f"{uri} has a link to {target}, which does not exist")
        there = site_path(path)
        if there is None:
            return match["text"]
        return f"{match['image']}[{match['text']}]({posixpath.relpath(there, posixpath.dirname(uri))}{match['anchor'] or ''})"

    parts = FENCED.split(markdown)
    for k in range(0, len(parts), 3):
        parts[k] = LINK.sub(moved, parts[k])
    return "".join(part for k, part in enumerate(parts) if k % 3 != 2)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Add the version and the link to the source, which the search leaves out; a plot opens as large as it was drawn."""
    html = re.sub(r'<img alt="png" src="([^"]*)"[^>]*>', r'<a href="\1"><img alt="plot" src="\1"></a>', html)
    path = source_of(page).relative_to(ROOT).as_posix()
    link = f'<a href="{PROJECT["urls"]["Repository"]}/blob/main/{path}">{path}</a>'
    return f'{html}\n<p class="source" data-search-exclude>sternway {PROJECT["version"]}, source of this page: {link}</p>'


class NamesAsLinks(Extension):
    """Inline code that names a public object links to its place in the reference."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Markdown calls
        """Register the processor, after the one that makes inline code."""
        md.treeprocessors.register(CodeLinks(md), "sternway-names", 5)


class CodeLinks(Treeprocessor):
    """Wraps such code in the element by which autorefs makes a link."""

    names = reference.links()

    def run(self, root: ElementTree.Element) -> None:
        """Walk the document, but not into links, headings and preformatted text."""
        if root.tag in {"a", "autoref", "pre", "h1", "h2", "h3", "h4"}:
            return
        for k, child in enumerate(root):
            identifier = self.names.get((child.text or "").removesuffix("()")) if child.tag == "code" else None
            if identifier is None:
                self.run(child)
                continue
            link = ElementTree.Element("autoref", {"identifier": identifier})
            link.tail, child.tail = child.tail, None
            root[k] = link
            link.append(child)


# --- Formulas ------------------------------------------------------------------------------------------------------------


class Formulas(Extension):
    """TeX between dollar signs becomes MathML, which browsers draw without a script; so do fences named math."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Markdown calls
        """Register the pattern, before escapes and emphasis."""
        md.inlinePatterns.register(Inline(r"(?<![\\\w$])\$([^\s$](?:[^$]*[^\s$])?)\$(?![\w$])", md), "sternway-math", 185)


class Inline(InlineProcessor):
    """A formula in a line of text."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override] # noqa: N802
        """Make the MathML of a formula."""
        return self.md.htmlStash.store(latex2mathml.converter.convert(m[1])), m.start(0), m.end(0)


def displayed(source: str, *_: Any, **__: Any) -> str:
    """A formula in a paragraph of its own."""
    return f'<div class="formula">{latex2mathml.converter.convert(source, display="block")}</div>'
