#!/usr/bin/env bash
# Tests for linux/arm64 on another processor, under emulation (`make test-arm64`): the Go tests of the CPU backend, and the selftest
# of a cross-built wheel without kernels, on Debian's Python for arm64 with NumPy. Nothing is installed on the machine.
#
#     STERNWAY_SYSROOT=DIR          an arm64 root with usr/bin/python3, in place of the Debian packages that apt-get would download
#     STERNWAY_LIBRARY=torch==2.11  the selftest with PyTorch in place of NumPy, which downloads its 5 GB for arm64
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
folder=$PWD/build/arm64
sysroot=${STERNWAY_SYSROOT:-$folder/sysroot}
compiler=aarch64-linux-gnu-gcc

needs() { command -v "$1" >/dev/null || { echo "make test-arm64 needs $1, which is not on PATH: apt-get install $2"; exit 1; }; }
needs go golang
needs $compiler gcc-aarch64-linux-gnu
emulator=$(command -v qemu-aarch64-static qemu-aarch64 | head -1) || true
test -n "$emulator" || needs qemu-aarch64-static qemu-user-static
mkdir -p "$folder"

# The packages come from the archive of this machine's Debian, for another architecture, through a state of apt's own.
make_sysroot() {
    needs apt-get apt
    needs dpkg-deb dpkg
    local state=$folder/apt
    local options=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$state" -o Dir::State::status="$state/status"
        -o Dir::Cache="$state/cache" -o APT::Sandbox::User="$(id -un)")
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$folder/packages"
    touch "$state/status"
    apt-get "${options[@]}" --quiet=2 update
    local name
    name=$(apt-cache "${options[@]}" depends python3-minimal | sed -n 's/^ *PreDepends: \(python3\.[0-9]*\)-minimal$/\1/p')
    (cd "$folder/packages" && apt-get "${options[@]}" --quiet=2 download "$name-minimal" "lib$name-minimal" "lib$name-stdlib" \
        libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libssl3 libuuid1 libsqlite3-0)
    for package in "$folder"/packages/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
    ln -sf "$name" "$sysroot/usr/bin/python3"
}
test -e "$sysroot/usr/bin/python3" || make_sysroot
run_python() { "$emulator" -L "$sysroot" -E PYTHONPATH="$folder/site" "$sysroot/usr/bin/python3" "$@"; }

version=$(PYTHONPATH='' run_python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
platforms=(--platform linux_aarch64 --platform manylinux2014_aarch64)
for minor in {17..39}; do platforms+=(--platform "manylinux_2_${minor}_aarch64"); done  # of glibc
"$python" -m pip install --quiet --upgrade --target "$folder/site" --python-version "$version" --only-binary=:all: "${platforms[@]}" \
    "${STERNWAY_LIBRARY:-numpy}"

echo "building the wheel for arm64"
rm -rf "$folder/dist"
GOARCH=arm64 CC=$compiler STERNWAY_CUDA=0 "$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder/dist" .
rm -rf "$folder"/site/sternway*
"$python" -m zipfile --extract "$folder"/dist/*.whl "$folder/site"
ls -l "$folder"/dist
run_python -m sternway selftest

# Exact arithmetic must not depend on fused operations, which Go makes on arm64. Tests of launches preprocess CUDA sources with the C
# compiler of this machine. The others take hours under emulation, and those of core/driver start themselves again, for which the kernel
# of this machine would have to know the emulator (binfmt_misc).
export GOARCH=arm64 CGO_ENABLED=1 CC=$compiler
emulated="env CC=gcc $emulator -L $sysroot"
go test -exec "$emulated" ./core/internal/{cpu,threads,tensor}
go test -timeout 60m -exec "$emulated" -run 'Powers|Quantize|Properties' ./core/internal/ops/{rope,elementwise,scan}
