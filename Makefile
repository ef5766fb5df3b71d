# SPDX-License-Identifier: Apache-2.0
#
#   make demo    the main job, on a GPU if there is one, else on the simulated driver; the first time it sets up
#                everything, about 5 minutes on two cores
#   make test    all tests, on the simulated driver unless DRIVER says otherwise
#   make lint    style and likely mistakes; whether what is made from the sources is up to date
#   make stubs   writes that anew: type stubs, and the page of differences from the released package
#   make bench   times as ratios to plain driver calls
#   make docs    the documentation, in docs/_build/html
#   make wheel   the wheel and the source distribution, in $(BUILT)
#   make wheel-test    what is in them; installed into environments of their own, over the released cuda-core and back
#   make clean   removes everything that the other commands made
#
# Needed: Linux, Python 3.10 or later with venv, a C++ compiler, make. Everything else is installed into $(VENV).
#   PYTHON=python3.12     the interpreter to build for
#   VENV=folder           the environment (default .venv)
#   DRIVER=auto|sim|gpu   the driver that the package's tests run on (default auto)
#   WORKERS=number        processes that share the tests (default: one a processor; of the package on GPUs one a GPU)
#   SOURCE=archive        a source distribution to build the package from (default: this checkout)
#   ARGS="-k grow -x"     given to pytest, the example or the benchmarks; quoted as for a shell where there are spaces:
#                         ARGS="-k 'grow or close' --maxfail=3"

PYTHON ?= python3
VENV ?= .venv
DRIVER ?= auto
ARGS ?=
WORKERS ?= auto
SOURCE ?= .

.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: demo test test-sim test-package lint stubs bench docs wheel wheel-test clean environment

BIN := $(abspath $(VENV))/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip --quiet
# What is finished, so that a second call is quick. In the environment, so that they go when it goes.
DONE := $(VENV)/.done
WHEELS := build/wheels
# The package as it would be published, for this environment's Python.
BUILT := $(DONE)/built

SIM_SOURCES := $(shell find driver_sim -type f \( -name '*.py' -o -name '*.cpp' -o -name '*.h' -o -name '*.hpp' \
	-o -name '*.toml' -o -name '*.map' \) -not -path '*/build/*' -not -path '*/tests/*' 2>/dev/null)
PACKAGE_SOURCES := pyproject.toml setup.py $(shell find cuda_core/cuda -type f \( -name '*.py' -o -name '*.pyx' \
	-o -name '*.pxd' -o -name '*.pyi' -o -name '*.hpp' -o -name '*.h' -o -name 'py.typed' \) 2>/dev/null)

demo: $(DONE)/package
	$(BIN)/python examples/grow_buffer.py $(ARGS)

test: test-sim test-package

test-sim: $(DONE)/package $(DONE)/test-tools
	$(BIN)/python -m pytest driver_sim/tests -n $(WORKERS) --dist worksteal $(ARGS)

test-package: $(DONE)/package $(DONE)/test-tools
	PATH="$(BIN):$$PATH" $(BIN)/python -m pytest cuda_core/tests --driver=$(DRIVER) -n $(WORKERS) --dist worksteal $(ARGS)

lint: $(DONE)/lint-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(BIN):$$PATH" cython-lint cuda_core/cuda
	$(BIN)/python tools/check_sources.py
	$(BIN)/python tools/make_stubs.py --check
	$(BIN)/python tools/make_moving_page.py --check

stubs: $(DONE)/lint-tools
	$(BIN)/python tools/make_stubs.py
	$(BIN)/python tools/make_moving_page.py

bench: $(DONE)/package
	$(BIN)/python benchmarks/run.py $(ARGS)

docs: $(DONE)/package $(DONE)/docs-tools
	$(BIN)/python -m sphinx -q --fail-on-warning --keep-going -j auto -b html docs docs/_build/html
	@echo "The front page is docs/_build/html/index.html"

wheel: $(BUILT)/.wheel $(BUILT)/.archive
	@ls -l $(BUILT)

wheel-test: $(BUILT)/.wheel $(BUILT)/.archive $(DONE)/driver-sim $(DONE)/test-tools
	$(BIN)/python -m pytest -o faulthandler_timeout=0 cuda_core/wheel_tests --built $(BUILT) --simulator $(WHEELS) $(ARGS)

environment: $(DONE)/package $(DONE)/test-tools

clean:
	rm -rf $(VENV) build driver_sim/build docs/_build docs/design .pytest_cache .hypothesis .ruff_cache
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	find . -name __pycache__ -prune -exec rm -rf {} +

$(DONE)/environment:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else "Python 3.10 or later is needed")'
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(DONE)
	touch $@

# Without build isolation: the build tools are fetched once, and a changed file costs a rebuild of that file only.
$(DONE)/build-tools: $(DONE)/environment pyproject.toml driver_sim/pyproject.toml
	@echo "== Fetching the build tools into $(VENV)"
	$(BIN)/python tools/requirements.py pyproject.toml build > $(DONE)/build.txt
	$(BIN)/python tools/requirements.py driver_sim/pyproject.toml build >> $(DONE)/build.txt
	$(PIP) install -r $(DONE)/build.txt
	touch $@

# One wheel for every Python, so that a second environment need not compile it again.
$(WHEELS)/.driver-sim: $(SIM_SOURCES) | $(DONE)/build-tools
	@echo "== Compiling the simulated driver: about a minute, and silent"
	mkdir -p $(WHEELS)
	rm -f $(WHEELS)/cuda_driver_sim-*.whl
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(WHEELS) ./driver_sim
	touch $@

$(DONE)/driver-sim: $(DONE)/build-tools $(WHEELS)/.driver-sim
	$(PIP) install --no-deps --force-reinstall $(WHEELS)/cuda_driver_sim-*.whl
	touch $@

$(BUILT)/.wheel: $(DONE)/build-tools $(PACKAGE_SOURCES)
	@echo "== Compiling the package: a few minutes, and silent"
	mkdir -p $(BUILT)
	rm -f $(BUILT)/*.whl
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(BUILT) $(SOURCE)
	touch $@

$(BUILT)/.archive: $(DONE)/build-tools $(PACKAGE_SOURCES) MANIFEST.in
	mkdir -p $(BUILT)
	rm -f $(BUILT)/*.tar.gz
	$(BIN)/python setup.py --quiet sdist --dist-dir $(BUILT)
	touch $@

$(DONE)/package: $(DONE)/driver-sim $(BUILT)/.wheel
	@echo "== Installing the package, and what it needs"
	$(PIP) install $(BUILT)/*.whl
	$(PIP) install --no-deps --force-reinstall $(BUILT)/*.whl
	touch $@

$(DONE)/test-tools: $(DONE)/environment pyproject.toml
	@echo "== Fetching the test tools"
	$(BIN)/python tools/requirements.py pyproject.toml test > $(DONE)/test.txt
	$(PIP) install -r $(DONE)/test.txt
	$(BIN)/python tools/released_package.py > $(DONE)/released.txt
	touch $@

$(DONE)/lint-tools: $(DONE)/environment pyproject.toml
	@echo "== Fetching the lint tools"
	$(BIN)/python tools/requirements.py pyproject.toml lint > $(DONE)/lint.txt
	$(PIP) install -r $(DONE)/lint.txt
	touch $@

$(DONE)/docs-tools: $(DONE)/environment pyproject.toml
	@echo "== Fetching the tools that make the documentation"
	$(BIN)/python tools/requirements.py pyproject.toml docs > $(DONE)/docs.txt
	$(PIP) install -r $(DONE)/docs.txt
	touch $@
