# The front door. Every target first prepares what it needs (scripts/setup, once) and builds what has changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

test_presets := dev $(if $(filter x86_64,$(shell uname -m)),emulated)

.PHONY: help build wheel demo train-indexer bench test test-cpp test-python test-built test-network test-aarch64 test-matrix api docs lint \
        lint-aarch64 format clean
help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- Build -------------------------------------------------------------------------------------------------------------
# What is said on the way goes to standard error: the standard output of `make -s demo JSON=1` is JSON alone.

.PHONY: setup-build setup-demo setup-dev setup-wheel setup-docs setup-arm setup-clang
setup-build setup-demo setup-dev setup-wheel setup-docs setup-arm setup-clang: setup-%:
	@scripts/setup $*

build: setup-build ## Builds the Python package into .venv
	@$(MAKE) --no-print-directory build/python/installed >&2
	@cmake --build build/python >&2
	@cmake --install build/python --component python --prefix $$(python -c 'import sysconfig as s; print(s.get_path("platlib"))') >&2

# Installs the package as editable: python/ as it lies, its commands, and the compiled module, which `build` then renews.
build/python/installed: pyproject.toml .venv/ready-build
	@echo "compiling the package: minutes the first time" >&2
	pip install --quiet --no-deps --no-build-isolation --config-settings=build-dir=build/python --editable .
	touch $@

build/%/build.ninja: CMakePresets.json .venv/ready-build
	@cmake --preset $* --log-level=WARNING

# A source package, the wheel that is built from it, for this Python, and what `scripts/check_wheel` says of both. The wheel
# is named after the oldest C library that it runs with. With PYTHON=python3.12 and a fresh .venv: the one for 3.12 and later.
wheel: setup-build setup-wheel ## Builds and checks a source package and a wheel in dist/
	@rm -rf build/wheel/raw && mkdir -p build/wheel dist && rm -f dist/*.tar.gz
	@python -m build --no-isolation --outdir build/wheel/raw >build/wheel/log 2>&1 || { tail -50 build/wheel/log; exit 1; }
	@mv build/wheel/raw/*.tar.gz dist/
	@auditwheel repair --wheel-dir dist build/wheel/raw/*.whl >>build/wheel/log 2>&1 || { tail build/wheel/log; exit 1; }
	@scripts/check_wheel dist

# ---- Run ---------------------------------------------------------------------------------------------------------------
# make demo SEQ=4096 TEXT=book.txt MODEL=dir INDEXERS=dir JSON=1

# Those of the model that is read by default. They lack where a training has been started anew.
INDEXERS ?= $(if $(MODEL),,$(patsubst %/,%,$(firstword $(dir $(wildcard models/smollm2-135m-indexer/*.safetensors)))))
demo_options := $(if $(SEQ),--seq $(SEQ)) $(if $(TEXT),--text "$(TEXT)") $(if $(MODEL),--model "$(MODEL)") \
                $(if $(INDEXERS),--indexers "$(INDEXERS)") $(if $(JSON),--json)

demo: build setup-demo ## Reads a long text with a real language model; SEQ=tokens TEXT=file MODEL=directory INDEXERS=directory JSON=1
	@tessera demo $(demo_options)

# Freed memory is kept, for every layer of every window asks for the same again.
train-indexer: build setup-demo ## Trains the indexers of the demo's model anew; goes on where it was stopped
	@MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=2000000000 \
	    python examples/train_indexer/train.py --out models/smollm2-135m-indexer

CASE ?= msa-prefill
bench: build setup-demo ## Times a case against its ceiling and its peers; CASE=name, ARGS="--seq 16384 --json"
	@tessera bench $(CASE) $(ARGS)

# ---- Check -------------------------------------------------------------------------------------------------------------

test: test-cpp test-python test-built docs ## Runs the C++ and the Python tests, and builds the documentation

test-cpp: setup-dev $(test_presets:%=test-%) ## Runs the C++ tests

test-%: setup-build setup-dev
	@$(MAKE) --no-print-directory build/$*/build.ninja
	@cmake --build --preset $*
	@ctest --preset $*

test-python: build setup-demo setup-dev ## Runs the Python tests
	@python -m pytest

test-network: build setup-demo setup-dev ## Runs the distributed examples across network namespaces; needs root
	@scripts/network_ranks

test-built: build ## Compares the spills of the optimised kernels and the interfaces with what is committed
	@scripts/check_spills build/python
	@scripts/api

# No parts of `make test`: a quarter of an hour of two cores, and hours.
test-aarch64: lint-aarch64 setup-dev ## Cross-builds for 64-bit Arm and runs the C++ tests under qemu
	@$(MAKE) --no-print-directory build/aarch64/build.ninja
	@cmake --build --preset aarch64
	@scripts/check_spills build/aarch64
	@ctest --preset aarch64 --parallel $(CMAKE_BUILD_PARALLEL_LEVEL)

test-matrix: setup-build setup-dev setup-clang setup-arm ## Runs the C++ tests in every build with every variant; BUILDS="dev clang"
	@scripts/test_matrix $(BUILDS)

api: ## Writes the lists of the interfaces, docs/api, anew
	@scripts/api --update

docs: build setup-docs ## Builds the documentation site into build/docs; a warning or a broken link is an error
	@NO_MKDOCS_2_WARNING=1 python -m mkdocs build --quiet --strict

cpp_files = $(shell find src include tests bench examples -name '*.h' -o -name '*.hpp' -o -name '*.cc' -o -name '*.c')

lint: setup-build setup-dev ## Checks the format, the usual mistakes and the objects built with ISA flags
	@$(MAKE) --no-print-directory build/gate/build.ninja
	clang-format --dry-run -Werror $(cpp_files)
	ruff check --quiet
	ruff format --check --quiet
	cmake --build --preset gate
	scripts/check_isa_objects build/gate
	scripts/tidy build/gate

lint-aarch64: setup-build setup-arm ## Compiles the kernels for 64-bit Arm and checks the objects
	@$(MAKE) --no-print-directory build/gate-aarch64/build.ninja
	cmake --build --preset gate-aarch64
	scripts/check_isa_objects build/gate-aarch64

format: setup-dev ## Formats the sources in place
	clang-format -i $(cpp_files)
	ruff check --quiet --fix
	ruff format --quiet

clean: ## Removes all that was built, not .venv
	rm -rf build
