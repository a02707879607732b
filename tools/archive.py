"""Makes wheels and source distributions reproducible: the date of their files, their modes and their order.

The date is SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch), else the date of the commit in a clone,
else the date that a source distribution carries, else the first one that a zip file can hold.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

FIRST_DATE_OF_ZIP = 315532800  # 1980-01-01


def set_date(root: Path) -> int:
    """Puts the date [seconds since 1970] into SOURCE_DATE_EPOCH, from where setuptools takes it, and returns it."""
    if not os.environ.get("SOURCE_DATE_EPOCH"):
        os.environ["SOURCE_DATE_EPOCH"] = str(commit_date(root) or sdist_date(root) or FIRST_DATE_OF_ZIP)
    return int(os.environ["SOURCE_DATE_EPOCH"])


def commit_date(root: Path) -> int | None:
    if not (root / ".git").exists():  # git would go on to look in the folders above
        return None
    command = ["git", "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def sdist_date(root: Path) -> int | None:
    info = root / "PKG-INFO"
    return int(info.stat().st_mtime) if info.is_file() else None


def plain_mode(mode: int) -> int:
    """The permissions that a file or folder has under the usual umask, 022."""
    return 0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644


def rewrite_sdist(path: Path, date: int) -> None:
    """Writes a .tar.gz again: members in the order of their names, of one date, and of no user in particular."""
    content = io.BytesIO()
    with tarfile.open(path) as before, tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as after:
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            file = before.extractfile(member) if member.isfile() else None
            member.mode = plain_mode(member.mode | (stat.S_IFDIR if member.isdir() else 0))
            member.mtime, member.uid, member.gid, member.uname, member.gname, member.pax_headers = date, 0, 0, "", "", {}
            after.addfile(member, file)
    path.write_bytes(gzip.compress(content.getvalue(), mtime=date))
