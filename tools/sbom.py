"""The software bill of materials of a wheel, as CycloneDX 1.6, which PEP 770 puts into dist-info/sboms/.

It names what the wheel holds besides sternway itself: Go's standard library and the modules that are linked in, as the library
says (`go version -m`), the text of generators, and the kernel images with their hashes. It has no date and no serial number, so
that two builds have the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

FILE = "sternway.cdx.json"
LICENSES = {"std": "BSD-3-Clause", "github.com/ulikunitz/xz": "BSD-3-Clause", "github.com/go-python/gopy": "BSD-3-Clause"}
GENERATORS = ("github.com/go-python/gopy",)  # text that they write is compiled into the library

Component = dict[str, Any]


def document(root: Path, go: str, library: Path, images: Path | None, version: str) -> str:
    """The bill of a wheel with this library, and with the kernel images of a folder unless that is None."""
    sternway = component("sternway", version, f"pkg:pypi/sternway@{version}", "Apache-2.0")
    parts = [*linked_modules(go, library), *generated_text(root)]
    if images:
        manifest = json.loads((images / "manifest.json").read_text())
        parts += [device_code(manifest["nvcc"]), *map(image, sorted(images.glob("*.lzma")))]
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": sternway},
        "components": parts,
        "dependencies": [
            {"ref": sternway["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }
    return json.dumps(bill, indent=2) + "\n"


def component(name: str, version: str, purl: str, license: str, **fields: Any) -> Component:
    row = {"type": "library", "bom-ref": purl, "name": name, "version": version, **fields}
    return {**row, "licenses": [{"license": {"id": license}}], "purl": purl}


def build_information(go: str, library: Path) -> dict[str, Any]:
    """What Go's linker wrote into a library: the version of Go and the modules."""
    command = [go, "version", "-m", "-json", str(library)]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def linked_modules(go: str, library: Path) -> list[Component]:
    """Go's standard library and runtime, and the modules of others that are linked into a library."""
    build = build_information(go, library)
    modules = [("std", build["GoVersion"].removeprefix("go").split()[0])]
    modules += [(module["Path"], module["Version"]) for module in build.get("Deps") or ()]
    return [component(name, version, f"pkg:golang/{name}@{version}", LICENSES[name]) for name, version in modules]


def generated_text(root: Path) -> list[Component]:
    """The generators whose text is part of the sources below pybind/native."""
    modules = (root / "go.mod").read_text()
    parts = []
    for name in GENERATORS:
        [version] = re.findall(rf"^\s*{re.escape(name)} (v\S+)", modules, re.M)
        note = "The library contains source text that this program generates."
        parts.append(component(name, version, f"pkg:golang/{name}@{version}", LICENSES[name], description=note))
    return parts


def device_code(nvcc: str) -> Component:
    """Functions of NVIDIA's headers and of libdevice, which nvcc compiles into kernels."""
    return {
        "type": "library",
        "bom-ref": f"cuda-toolkit@{nvcc}",
        "supplier": {"name": "NVIDIA Corporation"},
        "name": "cuda-toolkit",
        "version": nvcc,
        "description": "Device functions of CUDA's headers and of libdevice, compiled into the kernel images.",
        "licenses": [{"license": {"name": "NVIDIA CUDA Toolkit End User License Agreement"}}],
    }


def image(file: Path) -> Component:
    """One CUDA source of sternway, compiled for one architecture."""
    return {
        "type": "file",
        "bom-ref": f"image/{file.name}",
        "name": file.name,
        "description": "A CUDA kernel image, embedded in the library.",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}],
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
