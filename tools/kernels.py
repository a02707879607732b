"""Compiles the .cu files below cuda/ into the images that the Go package `cuda` embeds, and manifest.json.

    python tools/kernels.py [--out DIR]

STERNWAY_CUDA_ARCHS="80;90;100;120" chooses the architectures; the lowest is also kept as PTX, for GPUs that none of them fits.
An image, lerp.sm_90.lzma for example, is one source compiled for one architecture, and named after the file. The images of a
source are made again only when it, a header that it includes, the flags or the architectures have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pack

SOURCES = Path(__file__).resolve().parent.parent / "cuda"
IMAGES = SOURCES / "image"
ARCHITECTURES = "80;90;100;120"
FLAGS = ("-std=c++17", "-O3", "--no-compress")
INCLUDE = re.compile(r'^#include "(.+)"', re.M)  # from cuda/
OLDEST_NVCC = (12, 8)  # the first that knows sm_100 and sm_120

# What pip provides where there is no CUDA toolkit.
REQUIREMENTS = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
)


class KernelError(RuntimeError):
    """No usable compiler, or a source that does not compile."""


def nvcc_version(nvcc: Path) -> tuple[int, ...]:
    """(13, 0, 88), or () when it does not run."""
    try:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    match = re.search(r"\bV(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else ()


def find_nvcc() -> Path | None:
    """The first nvcc that is new enough: on PATH, in CUDA_HOME or CUDA_PATH, or in NVIDIA's wheels on sys.path."""
    places = [Path(found).parent for found in [shutil.which("nvcc")] if found]
    places += [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places += [Path(entry or ".") / "nvidia/cu13/bin" for entry in sys.path]
    for nvcc in (place / "nvcc" for place in places):
        if nvcc.is_file() and nvcc_version(nvcc) >= OLDEST_NVCC:
            return nvcc
    return None


def codes_for(architectures: list[str]) -> list[str]:
    """Machine code for each architecture, sm_90, and PTX for the lowest, compute_80."""
    lowest = min(architectures, key=lambda arch: int(re.sub(r"\D", "", arch)))
    return [*(f"sm_{arch}" for arch in architectures), f"compute_{lowest}"]


def digest(*parts: bytes) -> str:
    """One hash of several byte strings, in order."""
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def files_of(source: Path) -> list[Path]:
    """A source and every header of the project that it includes, directly or not."""
    files, waiting = {source}, [source]
    while waiting:
        included = {SOURCES / name for name in INCLUDE.findall(waiting.pop().read_text())}
        waiting += included - files
        files |= included
    return sorted(files)


def read_manifest(out: Path) -> dict[str, Any]:
    """What the last build wrote, {} when there is none."""
    try:
        manifest: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    return manifest


def compile_image(nvcc: Path, source: Path, code: str, image: Path) -> None:
    """One source, one architecture."""
    made = image.with_suffix(".part")
    form, packed = ("-ptx", pack.packed_ptx) if code.startswith("compute") else ("-fatbin", pack.packed_code)
    target = f"-gencode=arch=compute_{code.rpartition('_')[2]},code={code}"
    done = subprocess.run([nvcc, form, *FLAGS, "-I", SOURCES, target, "-o", made, source], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        made.unlink(missing_ok=True)
        raise KernelError(f"nvcc failed on {source.name}:\n{done.stdout}{done.stderr}")
    made.write_bytes(packed(made.read_bytes()))
    made.replace(image)


def build(out: Path = IMAGES, architectures: list[str] | None = None) -> dict[str, Any]:
    """Brings every image in `out` up to date and returns the manifest."""
    architectures = architectures or [
        a for a in re.split(r"[;,\s]+", os.environ.get("STERNWAY_CUDA_ARCHS", ARCHITECTURES)) if a
    ]
    codes = codes_for(architectures)
    sources = {source.stem: source for source in sorted(SOURCES.rglob("*.cu"))}
    how = f"{FLAGS}".encode() + Path(pack.__file__).read_bytes()
    inputs = {name: digest(how, *(file.read_bytes() for file in files_of(source))) for name, source in sources.items()}
    before = read_manifest(out)

    images = {name: {code: out / f"{name}.{code}.lzma" for code in codes} for name in sources}

    def row(name: str) -> dict[str, str]:
        found = digest(*(file.read_bytes() if file.is_file() else b"" for file in images[name].values()))
        return {"sha256": found, "inputs": inputs[name]}

    stale = [name for name in sources if before.get("images", {}).get(name) != row(name)]
    version = before.get("nvcc")
    if stale:
        nvcc = find_nvcc()
        if nvcc is None:
            oldest, wheels = ".".join(map(str, OLDEST_NVCC)), " ".join(REQUIREMENTS)
            raise KernelError(f"no nvcc of {oldest} or newer; install a CUDA toolkit, or: pip install {wheels}")
        version = ".".join(map(str, nvcc_version(nvcc)))
        out.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [
                pool.submit(compile_image, nvcc, sources[name], code, file)
                for name in stale
                for code, file in images[name].items()
            ]
        for job in jobs:
            job.result()
    for file in {*out.glob("*.lzma")} - {file for files in images.values() for file in files.values()}:
        file.unlink()
    manifest = {"architectures": codes, "nvcc": version, "images": {name: row(name) for name in sources}}
    if manifest != before:
        (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return manifest


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compiles the .cu files below cuda/ into cuda/image.")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the images (cuda/image)")
    out = parser.parse_args().out
    try:
        manifest = build(out)
    except KernelError as error:
        sys.exit(str(error))
    for name in manifest["images"]:
        print(f"{name}: {sum(file.stat().st_size for file in out.glob(f'{name}.*.lzma'))} bytes")
    print(f"{', '.join(manifest['architectures'])} by nvcc {manifest['nvcc']}")


if __name__ == "__main__":
    main()
