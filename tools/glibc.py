"""Links the library so that it loads on old versions of glibc, and reads which version it needs.

glibc 2.34 merged libpthread and libdl into libc and gave their functions a new symbol version. A linker on such a system picks
the new version, although the old one is still there. A link-time stub of libpthread.so.0 and libdl.so.2, read before libc,
defines the functions with their first version. The library then names libpthread.so.0 and libdl.so.2 as needed: older systems
have the functions there, and newer ones keep both files, empty, for such libraries.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

# The version of the first glibc for an architecture, which is the one that old functions have. Others are linked as they are.
FIRST_VERSION = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}

# What Go's runtime and our C call, and close relatives. All have the first version in every glibc up to 2.31.
PTHREAD = """
    attr_getstack attr_getstacksize attr_setstack attr_setstacksize create detach getattr_np getspecific join
    key_create key_delete kill mutex_trylock mutexattr_destroy mutexattr_init mutexattr_settype once rwlock_rdlock
    rwlock_unlock rwlock_wrlock setspecific sigmask
"""
MOVED = {
    "libpthread.so.0": [f"pthread_{name}" for name in PTHREAD.split()],
    "libdl.so.2": ["dladdr", "dlclose", "dlerror", "dlopen", "dlsym"],
}


def running_version() -> str:
    """The glibc of this machine, "2.36" for example, and "" where the C library is another one."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, OSError, ValueError):
        return ""
    return version if name == "glibc" else ""


def link_stubs(compiler: list[str], folder: Path, machine: str | None = None) -> list[Path]:
    """Makes the stubs in a folder, for the linker to read before libc; none where they would be of no use."""
    version = FIRST_VERSION.get(machine or platform.machine())
    if version is None or not running_version():
        return []
    script = folder / "glibc.map"
    script.write_text(f"{version} {{ global: *; }};\n")
    stubs = []
    for name, functions in MOVED.items():
        source = folder / f"{name}.c"
        source.write_text("".join(f"void {function}(void) {{}}\n" for function in functions))
        stub = folder / name
        options = ["-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-w", f"-Wl,-soname,{name},--version-script={script}"]
        subprocess.run([*compiler, *options, "-o", stub, source], check=True, capture_output=True, text=True)
        stubs.append(stub)
    return stubs


def needed_minor(library: Path) -> int | None:
    """The lowest y such that a library loads with glibc 2.y, None when it was linked against another C library."""
    content = library.read_bytes()
    versions = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", content)]
    if not versions:
        return None
    if b"\0GLIBC_ABI_" in content:  # a feature of the loader, such as packed relocations, which the glibc of the linker has
        versions.append(int(running_version().partition(".")[2]))
    return max(versions)
