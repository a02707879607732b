#!/usr/bin/env python3
"""Opens every page of the documentation site in Chromium, without a window, and names what is wrong.

    make docs                                          builds the site into build/site
    python tools/check_site.py                         checks it, in one or two minutes
    python tools/check_site.py --screenshots FOLDER    saves a picture of each page in each view, too

Each page is opened in light and dark, at the width of a desktop and of a phone. These are errors: a message of the console, a
request that fails or leaves the site, a link to a page or heading that does not exist or to a folder, a page wider than the
window, a picture that does not load or whose text is below 8 pixels, text whose contrast with its background is below 3, and a
table, a picture, code or a formula wider than its place; on a phone tables and formulas may be scrolled. The search, in files
opened without a server, must find the words WORDS first on a page that names the function to use. Links to other sites are not
followed.

It needs the Python package playwright (``pip install playwright``) and a Chromium: that of the machine (Debian and Ubuntu:
``apt-get install chromium``), or playwright's own (``playwright install chromium``). ``--browser PATH`` names another one.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from site_layout import WINDOWS, look

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCHEMES = ("light", "dark")
WORDS = {"GAE": "st.linear_recurrence", "int4": "st.dequantize", "mamba": "st.selective_scan", "torchao": "st.fake_quantize"}
"""What a reader searches for, and the function that the first page found must name."""


@dataclass
class Document(HTMLParser):
    """The identifiers of a page, to which links may lead, and its links."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the identifier and the link of an element."""
        values = dict(attrs)
        self.ids.update(value for value in (values.get("id"), values.get("name") if tag == "a" else None) if value)
        target = values.get("href") if tag in ("a", "link") else values.get("src")
        if target:
            self.links.append(target)


def read(path: Path) -> Document:
    """Read a page."""
    document = Document()
    document.feed(path.read_text())
    return document


def dead_links(site: Path) -> list[str]:
    """The links of all pages that lead to no file or no identifier of the site, each with its page."""
    documents = {path: read(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for page, document in documents.items():
        for link in document.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            # The page for missing files is served at any depth, so its links begin at the root.
            base = site if parts.path.startswith("/") else page.parent
            there = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else page
            if there.is_dir():
                found.append(f"{page.relative_to(site)}: link to a folder, which a browser lists without a server: {link}")
            elif not there.is_file():
                found.append(f"{page.relative_to(site)}: dead link {link}")
            elif parts.fragment and there in documents and unquote(parts.fragment) not in documents[there].ids:
                found.append(f"{page.relative_to(site)}: no heading {link}")
    return found


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that does not log."""

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine. The value is the address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def report(page: Any, address: str, found: list[str]) -> None:
    """Add to a list whatever goes wrong while a page loads and runs."""
    page.on("console", lambda message: message.type in ("error", "warning") and found.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    page.on("requestfailed", lambda request: found.append(f"request failed: {request.url}"))
    page.on("request", lambda request: leaves(request.url, address) and found.append(f"request to another site: {request.url}"))
    page.on("response", lambda response: response.status >= 400 and found.append(f"status {response.status}: {response.url}"))


def lost_words(site: Path, chromium: Any) -> list[str]:
    """The words of WORDS that the search of the site, opened without a server, does not lead from to their functions."""
    found: list[str] = []
    for word, function in WORDS.items():
        page = chromium.new_page()
        report(page, "", found)
        page.goto((site / "index.html").as_uri())
        query = page.locator("[data-md-component=search-query]")
        if not query.count():
            return [*found, "index.html has no search"]
        query.press_sequentially(word)
        hits = page.locator(".md-search-result__item > a")
        try:
            hits.first.wait_for(state="attached", timeout=10_000)
        except Exception as error:  # of the package playwright, which is imported late
            found.append(f"the search finds no page for {word}: {str(error).splitlines()[0]}")
        else:
            address = urlsplit(hits.first.get_attribute("href") or "")
            text = Path(unquote(address.path)).read_text().partition("<article")[2]
            if function not in text:
                found.append(f"{Path(address.path).name}, the first page found for {word}, does not name {function}")
        page.close()
    return found


def leaves(url: str, address: str) -> bool:
    """Whether a request goes to another site."""
    return urlsplit(url).scheme in ("http", "https", "ws", "wss") and not url.startswith(address + "/")


def check(site: Path, given: argparse.Namespace) -> list[str]:
    """Check the pages in every scheme and window, and all links; return what is wrong."""
    from playwright.sync_api import sync_playwright

    found = dead_links(site)
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    pages, pictures = fnmatch.filter(pages, given.only), given.screenshots
    options = {"executable_path": given.browser, "args": ["--no-sandbox"] if os.geteuid() == 0 else []}
    with served(site) as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(**options)
        found += lost_words(site, chromium)
        for scheme in SCHEMES:
            context = chromium.new_context(color_scheme=scheme)
            page, heard = context.new_page(), list[str]()
            report(page, address, heard)
            for path in pages:
                page.set_viewport_size(WINDOWS["desktop"])
                page.goto(f"{address}/{path}", wait_until="load")
                picture = f"{pictures}/{path.removesuffix('.html').replace('/', '-')}-{scheme}" if pictures else ""
                found += [f"{scheme}, {wrong}" for wrong in look(page, path, picture)]
                page.wait_for_load_state("networkidle")  # a request that the next page cuts off would count as failed
                found += [f"{scheme}, {path}: {wrong}" for wrong in heard]
                heard.clear()
            context.close()
        chromium.close()
    print(f"{len(pages)} pages, {len(SCHEMES)} schemes, {len(WINDOWS)} windows: {len(found)} errors")
    return found


def main(arguments: list[str]) -> int:
    """Check the site, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", nargs="?", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, BROWSERS)), None))
    parser.add_argument("--screenshots", type=Path)
    parser.add_argument("--only", default="*", help="a pattern of pages, such as 'reference/*'; links are checked in all")
    given = parser.parse_args(arguments)
    if not (given.site / "index.html").exists():
        print(f"{given.site} has no site; run make docs")
        return 2
    try:
        found = check(given.site.resolve(), given)
    except ModuleNotFoundError:
        print("the package playwright is needed: pip install playwright")
        return 2
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
