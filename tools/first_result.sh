#!/usr/bin/env bash
# Times how long a first result takes from a fresh clone of this repository, and from a wheel, with an empty home folder, an empty
# cache of pip, and without the go of this machine (docs/building.md has the table). Anything else that runs lengthens the times.
#
#     tools/first_result.sh [PYTHON]   PYTHON: without torch and NumPy; default: python3
#     DEMO=1 tools/first_result.sh     also `make demo`, which downloads PyTorch, and the first gradient of sternway.torch
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${1:-python3}")
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
mkdir "$folder/home"
export HOME=$folder/home PATH=/usr/bin:/bin PIP_NO_CACHE_DIR=1 TIMEFORMAT=%1R

# Prints the seconds of a command, and its output if it fails.
row() {
    printf '%-60s ' "$1"
    shift
    time { "$@" > "$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }; }
}

cd "$folder"
row "git clone" git clone --quiet "$root" clone
"$python" -m venv bare
row "clone: pip install ." bare/bin/pip install ./clone
echo "# changed" >> clone/python/sternway/_lerp.py
row "clone: pip install ., after a change of Python" bare/bin/pip install ./clone
bare/bin/pip wheel --quiet --no-deps --wheel-dir wheel ./clone
"$python" -m venv numpy
numpy/bin/pip install --quiet numpy
row "wheel: pip install" numpy/bin/pip install wheel/*.whl
row "wheel: the first plan with NumPy" numpy/bin/python -c 'import numpy as np, sternway as sw
plan = sw.LerpBackwardPlan.select(sw.LerpBackwardDescriptor((3,), "float32", weight=0.25))
plan.run(dy=np.ones(3, np.float32), da=np.empty(3, np.float32))'
row "wheel: selftest with NumPy" numpy/bin/python -m sternway selftest
test -n "${DEMO:-}" || exit 0
PATH=$(dirname "$python"):$PATH row "clone: make demo" make -C clone demo
row "wheel: the first gradient of sternway.torch" clone/.venv/bin/python -c 'import torch, sternway.torch as st
st.cumprod(torch.ones(3, requires_grad=True), 0).sum().backward()'
