"""What is wrong in the layout of a page of the documentation site, as a browser shows it: for check_site.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

STYLE = Path(__file__).resolve().parent.parent / "notebooks" / "neutral.mplstyle"
POINTS = [int(size) for size in re.findall(r"^font\.size: (\d+)$", STYLE.read_text(), re.MULTILINE)]  # of the text of plots
LEAST_TEXT = 8  # pixels of the text of a picture
WINDOWS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
LEAST_CONTRAST = 3  # of WCAG for large text; syntax highlighting has less than the 4.5 for small text
TALLEST = 2400  # pixels of a screenshot

# Finds what is wrong in the layout of a page. The background of an element is that of the nearest ancestor that has one.
LAYOUT = """
(leastContrast) => {
  const found = [];
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) {
    const widest = [...document.querySelectorAll("article *")].find(e => e.getBoundingClientRect().right > innerWidth + 1);
    found.push(`is ${wide} pixels wider than the window: ${widest ? widest.outerHTML.slice(0, 80) : "?"}`);
  }
  for (const image of document.images)
    if (!image.complete || !image.naturalWidth) found.push(`has a picture that does not load: ${image.src}`);

  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const pixel = color => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((c, k) => (c * a + below[k] * (255 - a)) / 255);
  const background = element => {
    if (!element) return [255, 255, 255];
    const color = pixel(getComputedStyle(element).backgroundColor);
    return color[3] === 255 ? color.slice(0, 3) : over(color, background(element.parentElement));
  };
  const light = color => {
    const [r, g, b] = color.map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = new Set();
  const texts = document.createTreeWalker(document.querySelector("article") || document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest(".headerlink, script, style, button, [hidden]")) continue;
    if (!element.checkVisibility({opacityProperty: true})) continue;
    const below = background(element), text = over(pixel(getComputedStyle(element).color), below);
    const [low, high] = [light(below), light(text)].sort((x, y) => x - y);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < leastContrast)
      faint.add(`has text of contrast ${contrast.toFixed(1)}: ${element.tagName}.${element.className}`);
  }
  return [...found, ...faint];
}
"""

# Finds tables, code, pictures and formulas that are wider than their place, those in folded text as well. Code may be scrolled
# inside its own box, and in a window where scrolling is allowed tables and formulas, too.
BOXES = """
(mayScroll) => {
  const folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach(e => e.open = true);
  const found = [], headings = [...document.querySelectorAll("article :is(h1, h2, h3)")];
  const content = document.querySelector(".md-content").getBoundingClientRect();
  const scrolled = e => {
    const first = e.tagName === "PRE" ? e.querySelector("code") || e : e.matches("table") ? e.parentElement : e;
    for (let box = first; !box.matches("article"); box = box.parentElement)
      if (/auto|scroll/.test(getComputedStyle(box).overflowX)) return box;
    return null;
  };
  const title = e => {
    const before = headings.filter(h => h.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING).pop();
    const words = (e.alt || e.textContent).trim().replace(/\\s+/g, " ").slice(0, 50);
    return `${e.tagName.toLowerCase()} "${words}" below "${before ? before.firstChild.textContent : ""}"`;
  };
  for (const e of document.querySelectorAll("article :is(table, pre, img, svg, .formula)")) {
    if (!e.checkVisibility() || e.closest("button, .headerlink")) continue;
    if (e.tagName === "PRE" && !e.textContent.trim()) found.push(`has an empty box: ${title(e)}`);
    const own = e.tagName === "PRE", picture = /^(img|svg)$/i.test(e.tagName);
    const box = scrolled(e), held = (box || e).getBoundingClientRect();
    const beyond = e.getBoundingClientRect().right - e.parentElement.getBoundingClientRect().right;
    const hidden = box && (picture || !(own || mayScroll)) ? box.scrollWidth - box.clientWidth : 0;
    const over = Math.max(hidden, held.right - content.right, content.left - held.left, own || picture ? beyond : 0);
    if (over > 1) found.push(`is ${Math.round(over)} pixels too narrow for ${title(e)}`);
  }
  folded.forEach(e => e.open = false);
  return found;
}
"""

# Finds pictures whose text is too small: charts, which are SVG with attributes font-size, and plots, which are PNG. A PNG
# has its pixels for a meter in the chunk pHYs; its text has the size of the style of the notebooks.
PICTURES = """
async ([leastText, [points]]) => {
  const found = [];
  const pixelsPerMeter = data => {
    for (let chunk = 8; chunk < data.byteLength; chunk += 12 + data.getUint32(chunk))
      if (data.getUint32(chunk + 4) === 0x70485973) return data.getUint32(chunk + 8);
    return 0;
  };
  for (const image of document.querySelectorAll("article img")) {
    if (!image.naturalWidth || !/\\.(svg|png)$/.test(image.src)) continue;
    const file = await fetch(image.src);
    let size;
    if (image.src.endsWith(".svg")) {
      const svg = new DOMParser().parseFromString(await file.text(), "image/svg+xml");
      size = Math.min(...[...svg.querySelectorAll("[font-size]")].map(e => parseFloat(e.getAttribute("font-size"))));
    } else size = points / 72 * 0.0254 * pixelsPerMeter(new DataView(await file.arrayBuffer()));
    const shown = size * image.clientWidth / image.naturalWidth;
    if (shown < leastText) found.push(`has text of ${shown.toFixed(1)} pixels in a picture: ${image.src}`);
  }
  return found;
}
"""


def look(page: Any, path: str, picture: str) -> list[str]:
    """Look at a page that is open, in each window, and return what is wrong with its layout."""
    found = []
    for name, size in WINDOWS.items():
        page.set_viewport_size(size)
        page.evaluate("document.fonts.ready")
        found += [f"{path}, {name}: {wrong}" for wrong in page.evaluate(LAYOUT, LEAST_CONTRAST)]
        found += [f"{path}, {name}: {wrong}" for wrong in page.evaluate(BOXES, name == "phone")]
        found += [f"{path}, {name}: {wrong}" for wrong in page.evaluate(PICTURES, [LEAST_TEXT, POINTS])]
        if picture:
            height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
            page.screenshot(path=f"{picture}-{name}.png", full_page=True, clip={"x": 0, "y": 0, **size, "height": height})
    return found
