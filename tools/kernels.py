"""Compiles the .cu files below cuda/ into the images that the Go package `cuda` embeds, and manifest.json.

    python tools/kernels.py [--out DIR]
    python tools/kernels.py --record       compile what changed for every GPU with the pinned nvcc, and write cuda/verified.json
    python tools/kernels.py --check        fail when a source has changed since then
    python tools/kernels.py --requirements print the packages that hold the pinned nvcc

Kernels are compiled for the GPUs of this machine. STERNWAY_CUDA_ARCHS=all compiles them for every GPU, and
STERNWAY_CUDA_ARCHS="80;90" for these architectures; both add PTX of the lowest, for GPUs that none of the others fits.
STERNWAY_CUDA_OPTIMIZE=0 compiles in a third of the time, to slow kernels: it shows that the sources compile.

An image, lerp.sm_90.lzma for example, is one source compiled for one architecture, and named after the file. The images of a
source are made again only when it, a header that it includes, the flags or the architectures have changed. The compiler proper
takes most of the time and makes PTX, from which both machine code and the PTX image of that architecture follow.
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
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent.parent / "cuda"
IMAGES = SOURCES / "image"
VERIFIED = SOURCES / "verified.json"
ARCHITECTURES = "80;90;100;120"  # of STERNWAY_CUDA_ARCHS=all
OPTIMIZES = os.environ.get("STERNWAY_CUDA_OPTIMIZE") != "0"
FLAGS = ("-std=c++17", "-O3", "--no-compress", *(() if OPTIMIZES else ("-Ofc=max",)))
INCLUDE = re.compile(r'^#include "(.+)"', re.M)  # from cuda/
OLDEST_NVCC = (12, 8) if OPTIMIZES else (12, 9)  # the first that knows sm_100 and sm_120, and the first with -Ofc
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


PINNED_NVCC = tuple(map(int, REQUIREMENTS[0].partition("==")[2].split(".")))


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


def is_new_enough(version: tuple[int, ...]) -> bool:
    return version >= OLDEST_NVCC


def find_nvcc(fits: Callable[[tuple[int, ...]], bool] = is_new_enough) -> Path | None:
    """The first nvcc whose version fits: on PATH, in CUDA_HOME or CUDA_PATH, or in NVIDIA's wheels on sys.path."""
    places = [Path(found).parent for found in [shutil.which("nvcc")] if found]
    places += [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places += [Path(entry or ".") / "nvidia/cu13/bin" for entry in sys.path]
    for nvcc in (place / "nvcc" for place in places):
        if nvcc.is_file() and fits(nvcc_version(nvcc)):
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
        return f"the kernels are compiled for {', '.join(codes)}{'' if OPTIMIZES else ', not optimized'}"
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


def call(source: Path, *command: str | Path) -> None:
    """Runs nvcc on a source, or on PTX that was made of it."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KernelError(f"nvcc failed on {source.name}:\n{done.stdout}{done.stderr}")


def architecture_of(code: str) -> str:
    """90 of sm_90 and of compute_90."""
    return code.rpartition("_")[2]


def compile_images(nvcc: Path, source: Path, images: dict[str, Path]) -> None:
    """One source, and its images by code, all of one architecture: fat binaries of nvcc, packed for the Go package `cuda`."""
    [architecture] = set(map(architecture_of, images))
    with tempfile.TemporaryDirectory(prefix="sternway-") as folder:
        ptx = Path(folder) / f"{source.stem}.ptx"
        call(source, nvcc, "-ptx", *FLAGS, "-I", SOURCES, f"-arch=compute_{architecture}", "-o", ptx, source)
        for code, image in images.items():
            made = Path(folder) / code
            target = f"-gencode=arch=compute_{architecture},code={code}"
            call(source, nvcc, "-fatbin", *FLAGS, target, "-o", made, ptx)
            packed = image.with_suffix(".part")
            packed.write_bytes(lzma.compress(made.read_bytes(), lzma.FORMAT_ALONE))
            packed.replace(image)


def by_architecture(images: dict[str, Path]) -> Iterable[dict[str, Path]]:
    """The images of a source, those of one architecture together."""
    for architecture in dict.fromkeys(map(architecture_of, images)):
        yield {code: image for code, image in images.items() if architecture_of(code) == architecture}


def compile_all(nvcc: Path, stale: dict[Path, dict[str, Path]]) -> None:
    """Compiles the images of each source by code, a job for each processor at a time, the largest sources first."""
    largest_first = sorted(stale, key=lambda source: -sum(file.stat().st_size for file in files_of(source)))
    jobs = [(source, images) for source in largest_first for images in by_architecture(stale[source])]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        names = {pool.submit(compile_images, nvcc, *job): f"{job[0].stem} for {', '.join(job[1])}" for job in jobs}
        try:
            for done, job in enumerate(as_completed(names), 1):
                job.result()
                say(f"compiled {names[job]} ({done} of {len(names)})")
        except KernelError:
            pool.shutdown(cancel_futures=True)
            raise


def inputs() -> dict[str, str]:
    """For each source, the digest of what its images are made of: source, headers and commands."""
    how = "".join([*FLAGS, *map(inspect.getsource, (call, compile_images))]).encode()
    sources = sorted(SOURCES.rglob("*.cu"))
    return {source.stem: digest(how, *(file.read_bytes() for file in files_of(source))) for source in sources}


def to_verify() -> dict[str, Any]:
    """The content of VERIFIED after a compilation of the sources as they are."""
    return {"nvcc": ".".join(map(str, PINNED_NVCC)), "architectures": ARCHITECTURES, "inputs": inputs()}


def changed_sources(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The names of the sources whose digests differ between two contents of VERIFIED."""
    before, after = found["inputs"], wanted["inputs"]
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def verified() -> dict[str, Any]:
    """The content of VERIFIED."""
    found: dict[str, Any] = json.loads(VERIFIED.read_text()) if VERIFIED.exists() else {"inputs": {}}
    return found


def check_verified() -> None:
    """Fails unless the sources are those that were last compiled for every architecture."""
    found, wanted = verified(), to_verify()
    if found != wanted:
        what = ", ".join(changed_sources(found, wanted)) or "nvcc or the architectures"
        sys.exit(f"changed since the kernels were last compiled for every GPU: {what}; run `make kernels-all`")


def require_nvcc(fits: Callable[[tuple[int, ...]], bool], version: str) -> Path:
    """The first nvcc whose version fits. The error names the version that is wanted."""
    nvcc = find_nvcc(fits)
    if nvcc is None:
        raise KernelError(f"no nvcc of {version}; install a CUDA toolkit, or: pip install {' '.join(REQUIREMENTS)}")
    return nvcc


def image_files(out: Path, source: Path, codes: Iterable[str]) -> dict[str, Path]:
    """The files of the images of a source, by code."""
    return {code: out / f"{source.stem}.{code}.lzma" for code in codes}


def build(out: Path, codes: list[str]) -> dict[str, Any]:
    """Brings every image in `out` up to date, and returns the manifest."""
    sources = {source.stem: source for source in sorted(SOURCES.rglob("*.cu"))}
    before, made_of = read_manifest(out), inputs()
    images = {name: image_files(out, source, codes) for name, source in sources.items()}

    def row(name: str) -> dict[str, str]:
        found = digest(*(file.read_bytes() if file.is_file() else b"" for file in images[name].values()))
        return {"sha256": found, "inputs": made_of[name]}

    stale = [name for name in sources if before.get("images", {}).get(name) != row(name)]
    version = before.get("nvcc")
    if stale:
        nvcc = require_nvcc(is_new_enough, f"{'.'.join(map(str, OLDEST_NVCC))} or newer")
        version = ".".join(map(str, nvcc_version(nvcc)))
        out.mkdir(parents=True, exist_ok=True)
        compile_all(nvcc, {sources[name]: images[name] for name in stale})
    for file in {*out.glob("*.lzma")} - {file for files in images.values() for file in files.values()}:
        file.unlink()
    manifest = {"architectures": codes, "nvcc": version, "images": {name: row(name) for name in sources}}
    if manifest != before:
        (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return manifest


def record() -> None:
    """Compiles the sources that have changed since VERIFIED was written, for every architecture with the pinned nvcc.

    Then it writes VERIFIED. All sources are compiled if VERIFIED is of another nvcc or of other architectures.
    """
    found, wanted = verified(), to_verify()
    if {**found, "inputs": {}} != {**wanted, "inputs": {}}:
        found = {"inputs": {}}
    sources = [source for source in sorted(SOURCES.rglob("*.cu")) if source.stem in changed_sources(found, wanted)]
    say(f"sources that have changed since they were compiled for every GPU: {len(sources)}")
    if sources:
        os.environ["STERNWAY_CUDA_ARCHS"] = "all"
        codes, nvcc = wanted_codes(), require_nvcc(lambda version: version == PINNED_NVCC, wanted["nvcc"])
        with tempfile.TemporaryDirectory(prefix="sternway-") as out:
            compile_all(nvcc, {source: image_files(Path(out), source, codes) for source in sources})
    VERIFIED.write_text(json.dumps(wanted, indent=2) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compiles the .cu files below cuda/ into cuda/image.")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the images (cuda/image)")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--record", action="store_true", help="compile what changed for every GPU, and write cuda/verified.json")
    modes.add_argument("--check", action="store_true", help="fail when a source has changed since --record")
    modes.add_argument("--requirements", action="store_true", help="print the packages that hold the pinned nvcc")
    options = parser.parse_args()
    try:
        if options.record:
            record()
        elif options.check:
            check_verified()
        elif options.requirements:
            print(*REQUIREMENTS, sep="\n")
        else:
            compile_here(options.out)
    except KernelError as error:
        sys.exit(str(error))


def compile_here(out: Path) -> None:
    """Compiles what STERNWAY_CUDA_ARCHS asks for."""
    codes = wanted_codes()
    say(plan_in_words(codes))
    if not codes:
        return
    manifest = build(out, codes)
    for name in manifest["images"]:
        print(f"{name}: {sum(file.stat().st_size for file in out.glob(f'{name}.*.lzma'))} bytes")
    print(f"{', '.join(manifest['architectures'])} by nvcc {manifest['nvcc']}")


if __name__ == "__main__":
    main()
