"""Compiles the .cu files below cuda/ into the images that the Go package `cuda` embeds, and manifest.json.

    python tools/kernels.py [--out DIR]

Kernels are compiled for the GPUs of this machine. STERNWAY_CUDA_ARCHS=all compiles them for every GPU, and
STERNWAY_CUDA_ARCHS="80;90" for these architectures; both add PTX of the lowest, for GPUs that none of the others fits.

An image, lerp.sm_90.lzma for example, is one source compiled for one architecture, and named after the file. The images of a
source are made again only when it, a header that it includes, the flags or the architectures have changed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import inspect
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent.parent / "cuda"
IMAGES = SOURCES / "image"
ARCHITECTURES = "80;90;100;120"  # of STERNWAY_CUDA_ARCHS=all
FLAGS = ("-std=c++17", "-O3", "--no-compress")
INCLUDE = re.compile(r'^#include "(.+)"', re.M)  # from cuda/
OLDEST_NVCC = (12, 8)  # the first that knows sm_100 and sm_120
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # numbers of attributes of a device in cuda.h
MORE = "STERNWAY_CUDA_ARCHS=all compiles them for every GPU"

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


def gpus() -> list[tuple[int, int]]:
    """The compute capabilities of the GPUs that the CUDA driver shows, (9, 0) for example; [] without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []

    def attribute(number: int, device: int) -> int:
        value = ctypes.c_int()
        status = driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return 0 if status else value.value

    return sorted({(attribute(CAPABILITY_MAJOR, k), attribute(CAPABILITY_MINOR, k)) for k in range(count.value)})


def code_for(capability: tuple[int, int]) -> str | None:
    """The code that cuda/embed.go chooses for a GPU: machine code of its generation, or else PTX. None if it is too old."""
    architectures = sorted(int(text) for text in ARCHITECTURES.split(";"))
    wanted = 10 * capability[0] + capability[1]
    fitting = [arch for arch in architectures if arch // 10 == capability[0] and arch <= wanted]
    if fitting:
        return f"sm_{fitting[-1]}"
    return f"compute_{architectures[0]}" if wanted > architectures[0] else None


def wanted_codes() -> list[str]:
    """The codes to compile for, sm_90 (machine code) and compute_80 (PTX) for example; [] for a build without kernels."""
    asked = os.environ.get("STERNWAY_CUDA_ARCHS", "")
    if not asked:
        return sorted({code for capability in gpus() if (code := code_for(capability))})
    architectures = [text for text in re.split(r"[;,\s]+", ARCHITECTURES if asked == "all" else asked) if text]
    lowest = min(architectures, key=lambda arch: int(re.sub(r"\D", "", arch)))
    return [*(f"sm_{arch}" for arch in architectures), f"compute_{lowest}"]


def plan_in_words(codes: list[str]) -> str:
    """What a build is going to compile for and, unless that was asked for, how to get more."""
    if os.environ.get("STERNWAY_CUDA_ARCHS"):
        return f"the kernels are compiled for {', '.join(codes)}"
    if codes:
        return f"the kernels are compiled for the GPU of this machine ({', '.join(codes)}); {MORE}"
    return f"this machine has no GPU that the kernels run on, so none are compiled; {MORE}"


def say(sentence: str) -> None:
    """A line of progress, seen at once even if it goes to a pipe."""
    print(f"sternway: {sentence}", flush=True)


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
    """One source, one architecture: the fat binary of nvcc, packed for the Go package `cuda`."""
    made = image.with_suffix(".part")
    target = f"-gencode=arch=compute_{code.rpartition('_')[2]},code={code}"
    command = list(map(str, [nvcc, "-fatbin", *FLAGS, "-I", SOURCES, target, "-o", made, source]))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        made.unlink(missing_ok=True)
        raise KernelError(f"nvcc failed on {source.name}:\n{done.stdout}{done.stderr}")
    made.write_bytes(lzma.compress(made.read_bytes(), lzma.FORMAT_ALONE))
    made.replace(image)


def compile_images(nvcc: Path, jobs: list[tuple[Path, str, Path]]) -> None:
    """Compiles (source, code, image), a job for each processor at a time, the largest sources first."""
    jobs = sorted(jobs, key=lambda job: -sum(file.stat().st_size for file in files_of(job[0])))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        names = {pool.submit(compile_image, nvcc, *job): f"{job[0].stem} for {job[1]}" for job in jobs}
        try:
            for done, job in enumerate(as_completed(names), 1):
                job.result()
                say(f"compiled {names[job]} ({done} of {len(names)})")
        except KernelError:
            pool.shutdown(cancel_futures=True)
            raise


def build(out: Path, codes: list[str]) -> dict[str, Any]:
    """Brings every image in `out` up to date and returns the manifest."""
    sources = {source.stem: source for source in sorted(SOURCES.rglob("*.cu"))}
    how = f"{FLAGS}{inspect.getsource(compile_image)}".encode()
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
        compile_images(nvcc, [(sources[name], code, file) for name in stale for code, file in images[name].items()])
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
    codes = wanted_codes()
    say(plan_in_words(codes))
    if not codes:
        return
    try:
        manifest = build(out, codes)
    except KernelError as error:
        sys.exit(str(error))
    for name in manifest["images"]:
        print(f"{name}: {sum(file.stat().st_size for file in out.glob(f'{name}.*.lzma'))} bytes")
    print(f"{', '.join(manifest['architectures'])} by nvcc {manifest['nvcc']}")


if __name__ == "__main__":
    main()
