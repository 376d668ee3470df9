# make setup   installs missing Debian packages, and wheels in .venv
# make build   builds Medley for use as .venv/bin/medley
# make test    builds the rest, then runs all tiers of tests and lists skipped ones with reasons
# make nightly also runs slow tests: random plans, sanitizers, TSan, fuzzing, oracles, clang-tidy
# make wheel   builds dist/medley-*.whl for the PyTorch of .venv, with all needed libraries
# make demo    builds, then runs a small emulated cluster
# make format  formats; make lint: checks formatting, types, layers and prose
# make docs    writes the documentation as a site, build/site, and fails on broken links and anchors
# make bench   runs google-benchmark programs, and training steps against PyTorch eager

NPROC ?= $(shell nproc)
PYTHON ?= python3
VENV := .venv/bin
CXX_FILES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp')
PY_FOLDERS = $(wildcard python scripts examples benchmarks testbed tests)
# Stamps of the Debian packages, PyTorch and the wheels to build and run, then of all others.
RUNS := .venv/run.stamp
SETUP := .venv/setup.stamp
# The start of make: the time limit of a full run includes set-up and builds.
STARTED := $(shell date +%s)

.PHONY: setup modules build test nightly wheel demo format checks lint bench docs clean

setup: $(SETUP)

$(RUNS): requirements.txt scripts/setup.sh
	PYTHON=$(PYTHON) scripts/setup.sh
	touch $@

$(SETUP): $(RUNS) requirements-all.txt
	PYTHON=$(PYTHON) scripts/setup.sh --all
	touch $@

build/%/build.ninja: $(RUNS)
	cmake --preset $*

# Builds what the demo needs, without tests and benchmarks.
modules: $(RUNS) build/torch/build.ninja
	cmake --build build/torch -j $(NPROC) --target python_modules
	scripts/link_venv.sh

# Unpacks other wheels while the compiler runs. The stubs of modules are for mypy and editors.
build: $(RUNS)
	@$(MAKE) --no-print-directory --jobs=2 modules $(SETUP)
	cmake --build build/torch -j $(NPROC) --target stubs

test: build build/dev/build.ninja
	$(VENV)/python scripts/run_tests.py --build --jobs $(NPROC) --since $(STARTED)

nightly: build build/dev/build.ninja build/tsan/build.ninja
	PYTHON=$(PYTHON) scripts/setup.sh --nightly
	$(VENV)/python scripts/run_tests.py --build --nightly --jobs $(NPROC) --since $(STARTED)

# The wheel contains every library except Python's, PyTorch's and the C library's (auditwheel), so
# it installs without a compiler and without our Debian packages. CXX is the name that CMake finds,
# so that ccache reuses the results of `make build`.
wheel: $(SETUP)
	rm -rf build/wheel && mkdir -p build/wheel
	CXX=$${CXX:-c++} $(VENV)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	PATH="$(CURDIR)/$(VENV):$$PATH" $(VENV)/auditwheel repair --wheel-dir dist \
	  --exclude 'libtorch*.so*' --exclude 'libc10*.so*' --exclude 'libshm.so*' build/wheel/medley-*.whl

demo: modules
	$(VENV)/python -m medley demo

format: $(SETUP)
	$(VENV)/clang-format -i $(CXX_FILES)
	$(VENV)/ruff format --quiet $(PY_FOLDERS)
	$(VENV)/ruff check --quiet --fix $(PY_FOLDERS)

# Checks files only, so that the compiler can run in parallel.
checks: $(SETUP)
	$(VENV)/clang-format --dry-run --Werror $(CXX_FILES)
	$(VENV)/ruff format --check $(PY_FOLDERS)
	$(VENV)/ruff check $(PY_FOLDERS)
	$(VENV)/python scripts/check_layers.py
	$(VENV)/python scripts/check_python.py
	$(VENV)/python scripts/check_constants.py --check
	$(VENV)/python scripts/check_types.py
	$(VENV)/python scripts/check_batches.py
	$(VENV)/python scripts/check_prose.py
	$(VENV)/python scripts/line_report.py --check

# `make lint test` compiles the tests while types are checked.
TESTS_TOO := $(filter test,$(MAKECMDGOALS))

lint: $(RUNS)
	@$(MAKE) --no-print-directory --jobs=3 checks modules $(if $(TESTS_TOO),build/dev/build.ninja)
	cmake --build build/torch -j $(NPROC) --target testing_modules stubs
	$(if $(TESTS_TOO),$(VENV)/python scripts/run_tests.py --build --only build --jobs $(NPROC) &) \
	  $(VENV)/mypy; code=$$?; wait; exit $$code

bench: build
	cmake --build build/torch -j $(NPROC)
	set -e; for program in build/torch/bin/*_bench; do $$program; done
	$(VENV)/python benchmarks/executor.py

# MEDLEY_REPOSITORY: the address to which links to files outside of docs/ lead, else copies in the site.
DOCS := .venv/docs.stamp
$(DOCS): requirements-docs.txt scripts/setup.sh
	PYTHON=$(PYTHON) scripts/setup.sh --docs
	touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build --strict
	@echo "make: build/site is the site; search needs a server: $(PYTHON) -m http.server --directory build/site"

clean:
	rm -rf build python/medley/bin python/medley/*.so python/medley/_core.pyi python/medley/_runtime.pyi python/medley/_testing.pyi
