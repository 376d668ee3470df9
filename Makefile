# make setup   install what is missing (Debian packages, wheels in .venv)
# make build   what is needed to use Medley; .venv/bin/medley works afterwards
# make test    build the rest, then run every tier of tests; the closing summary says what was skipped and why
# make nightly what takes longer too: slow tests, many random plans, every module sanitized, TSan, fuzzing, oracles, clang-tidy
# make wheel   dist/medley-*.whl, for the PyTorch of .venv, with all libraries that it needs
# make demo    build, then a small run on an emulated cluster
# make format  rewrite; make lint: check formatting, types and layers
# make bench   google-benchmark programs, and training steps against PyTorch eager

NPROC ?= $(shell nproc)
PYTHON ?= python3
VENV := .venv/bin
CXX_FILES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.cpp')
PY_FOLDERS = $(wildcard python scripts examples benchmarks testbed tests)
# Debian packages, PyTorch, and the wheels with which Medley is built and runs; then all others.
RUNS := .venv/run.stamp
SETUP := .venv/setup.stamp
# When make began: the time limit of a full run counts set-up and builds too.
STARTED := $(shell date +%s)

.PHONY: setup modules build test nightly wheel demo format checks lint bench clean

setup: $(SETUP)

$(RUNS): requirements.txt scripts/setup.sh
	PYTHON=$(PYTHON) scripts/setup.sh
	touch $@

$(SETUP): $(RUNS) requirements-all.txt
	PYTHON=$(PYTHON) scripts/setup.sh --all
	touch $@

build/%/build.ninja: $(RUNS)
	cmake --preset $*

# No tests and no benchmarks: what the first demo waits for.
modules: $(RUNS) build/torch/build.ninja
	cmake --build build/torch -j $(NPROC) --target python_modules
	scripts/link_venv.sh

# Other wheels are unpacked while the compiler runs.
build: $(RUNS)
	@$(MAKE) --no-print-directory --jobs=2 modules $(SETUP)

test: build build/dev/build.ninja
	$(VENV)/python scripts/run_tests.py --build --jobs $(NPROC) --since $(STARTED)

nightly: build build/dev/build.ninja build/tsan/build.ninja
	PYTHON=$(PYTHON) scripts/setup.sh --nightly
	$(VENV)/python scripts/run_tests.py --build --nightly --jobs $(NPROC) --since $(STARTED)

# Into the wheel goes every library that is not Python's, PyTorch's or the C library's (auditwheel), so that it
# installs where there is neither a compiler nor a Debian package of ours. The compiler by the name by which CMake
# finds it: ccache then knows what `make build` has compiled.
wheel: $(SETUP)
	rm -rf build/wheel && mkdir -p build/wheel
	CXX=$${CXX:-c++} $(VENV)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	PATH="$(CURDIR)/$(VENV):$$PATH" $(VENV)/auditwheel repair --wheel-dir dist \
	  --exclude 'libtorch*.so*' --exclude 'libc10*.so*' --exclude 'libshm.so*' build/wheel/medley-*.whl

demo: modules
	$(VENV)/python -m medley demo
	@test -e $(SETUP) || echo "make: next, the wheels that models of transformers, data, reports and tests need"
	@$(MAKE) --no-print-directory setup

format: $(SETUP)
	$(VENV)/clang-format -i $(CXX_FILES)
	$(VENV)/ruff format --quiet $(PY_FOLDERS)
	$(VENV)/ruff check --quiet --fix $(PY_FOLDERS)

# Of files alone: while other wheels are unpacked and files checked, the compiler runs.
checks: $(SETUP)
	$(VENV)/clang-format --dry-run --Werror $(CXX_FILES)
	$(VENV)/ruff format --check $(PY_FOLDERS)
	$(VENV)/ruff check $(PY_FOLDERS)
	$(VENV)/python scripts/check_layers.py
	$(VENV)/python scripts/check_python.py
	$(VENV)/python scripts/check_constants.py --check
	$(VENV)/python scripts/check_types.py
	$(VENV)/python scripts/check_batches.py
	$(VENV)/python scripts/line_report.py --check

# In `make lint test` the tests are compiled while types are checked.
TESTS_TOO := $(filter test,$(MAKECMDGOALS))

lint: $(RUNS)
	@$(MAKE) --no-print-directory --jobs=3 checks modules $(if $(TESTS_TOO),build/dev/build.ninja)
	cmake --build build/torch -j $(NPROC) --target testing_modules
	$(if $(TESTS_TOO),$(VENV)/python scripts/run_tests.py --build --only build --jobs $(NPROC) &) \
	  $(VENV)/mypy; code=$$?; wait; exit $$code

bench: build
	cmake --build build/torch -j $(NPROC)
	set -e; for program in build/torch/bin/*_bench; do $$program; done
	$(VENV)/python benchmarks/executor.py

clean:
	rm -rf build python/medley/bin python/medley/*.so python/medley/_core.pyi python/medley/_runtime.pyi python/medley/_testing.pyi
