# make setup   install what is missing (Debian packages, wheels in .venv)
# make build   core, torch and Python modules; .venv/bin/medley works afterwards
# make test    build, then every tier of tests; the closing summary says what was skipped and why
# make nightly what takes longer too: slow tests, many random plans, every module sanitized, TSan, clang-tidy
# make wheel   dist/medley-*.whl, for the PyTorch of .venv
# make demo    a small run on an emulated cluster
# make format  rewrite; make lint: check formatting, types and layers
# make bench   google-benchmark programs, and training steps against PyTorch eager

NPROC ?= $(shell nproc)
PYTHON ?= python3
VENV := .venv/bin
CXX_FILES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp')
PY_FOLDERS = $(wildcard python scripts examples benchmarks testbed tests)
SETUP := .venv/setup.stamp

.PHONY: setup build sanitized test nightly wheel demo format lint bench clean

setup: $(SETUP)

$(SETUP): requirements.txt scripts/setup.sh
	PYTHON=$(PYTHON) scripts/setup.sh
	touch $@

build/%/build.ninja: $(SETUP)
	cmake --preset $*

build: $(SETUP) build/torch/build.ninja
	cmake --build build/torch -j $(NPROC)
	scripts/link_venv.sh

sanitized: $(SETUP) build/dev/build.ninja
	cmake --build build/dev -j $(NPROC) --target $$($(PYTHON) scripts/run_tests.py --targets dev)

test: build sanitized
	$(VENV)/python scripts/run_tests.py --jobs $(NPROC)

nightly: build build/dev/build.ninja build/tsan/build.ninja
	scripts/setup.sh --nightly
	cmake --build build/dev -j $(NPROC) --target $$($(PYTHON) scripts/run_tests.py --nightly --targets dev)
	cmake --build build/tsan -j $(NPROC) --target $$($(PYTHON) scripts/run_tests.py --targets tsan)
	$(VENV)/python scripts/run_tests.py --nightly --jobs $(NPROC)

# The compiler by the name by which CMake finds it: ccache then knows what `make build` has compiled.
wheel: $(SETUP)
	CXX=$${CXX:-c++} $(VENV)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

demo: build
	$(VENV)/python -m medley demo

format: $(SETUP)
	$(VENV)/clang-format -i $(CXX_FILES)
	$(VENV)/ruff format --quiet $(PY_FOLDERS)
	$(VENV)/ruff check --quiet --fix $(PY_FOLDERS)

lint: $(SETUP)
	$(VENV)/clang-format --dry-run --Werror $(CXX_FILES)
	$(VENV)/ruff format --check $(PY_FOLDERS)
	$(VENV)/ruff check $(PY_FOLDERS)
	$(VENV)/python scripts/check_layers.py
	$(VENV)/python scripts/line_report.py --check
	$(MAKE) build
	$(VENV)/mypy

bench: build
	set -e; for program in build/torch/bin/*_bench; do $$program; done
	$(VENV)/python benchmarks/executor.py

clean:
	rm -rf build python/medley/bin python/medley/*.so python/medley/_core.pyi python/medley/_runtime.pyi
