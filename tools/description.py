"""The description of the package in a package index: README.md without its links into the source tree."""

from __future__ import annotations

import re

FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)[^)]*\)")


def without_local_links(text: str) -> str:
    """Replace links to files of the source tree by their text, and leave out its pictures: an index has neither.

    Fenced code stays as it is.
    """
    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(lambda link: "" if link[1] else link[2], part) for part in parts[::2]]
    return "".join(parts)
