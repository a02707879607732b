"""The description of the package in a package index: README.md with absolute links."""

from __future__ import annotations

import re

FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]*)\)")


def with_absolute_links(text: str, repository: str, version: str) -> str:
    """Let links to files of the source tree lead to the repository, at the tag of the version. Pictures are left out.

    Fenced code stays as it is.
    """
    base = f"{repository}/blob/v{version}"
    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(lambda link: "" if link[1] else f"[{link[2]}]({base}/{link[3]})", part) for part in parts[::2]]
    return "".join(parts)
