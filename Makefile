# The user's two commands are `make demo` and `make test`; everything runs in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
AUDIT  := $(VENV)/audit
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off
KERNELS := $(wildcard tasks/engine/kernels/*.cpp tasks/engine/kernels/*.h)
# Modules are compiled once, not by each of the hundreds of processes that the tests start.
export PYTHONDONTWRITEBYTECODE :=
# A process takes up to 2 GB.
SPREAD := -n logical --maxprocesses 4 --dist worksteal
# They parse all code, so `make check` runs them, and `make test` does not.
LAYOUT := tests/test_layout.py tests/test_guarded_tasks.py
# Of what takes long, these compute and simulate: they need no root, no ports and no quiet machine.
TOGETHER := tests/netsim/daemons tests/bench/worlds tests/dht tests/state $(patsubst \
    %,tests/tasks/%,engine inference jobs placement tuning)
# What tests write lies in memory where 4 GB of it are free: they wait for a disk a third of the time.
TEMPORARY := $(shell [ "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null \
    && [ -w /dev/shm ] && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

.PHONY: help demo test test-ci test-long check bench setup lock audit wheel wheel-demo clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## prepare .venv (idempotent)

# pip checks the hash of every package. It also builds the kernels, whose older builds are refused.
$(STAMP): requirements/dev.lock requirements/torch.lock pyproject.toml $(KERNELS)
	@$(PYTHON) -c 'import sys; sys.exit("shoal needs Python 3.11 or newer, this is " + sys.version.split()[0] + "\nhint: make setup PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "preparing $(VENV), once: about 400 MB to download, some minutes" >&2
	@$(BIN)/python .ci/progress "1 of 3: libraries and tools" $(PIP) --require-hashes -r requirements/dev.lock
	@bash .ci/install-torch $(BIN)/python
	@$(BIN)/python .ci/progress "3 of 3: shoal itself" $(PIP) --no-build-isolation --no-deps -e .
	@# libp2p drags in stubs of a trio years gone, which hide trio's own types from mypy
	@rm -rf $(VENV)/lib/python3*/site-packages/trio-stubs
	@touch $(STAMP)

demo: setup  ## start three daemons on this machine and generate text through them
	$(BIN)/shoal demo

test: setup  ## run the tests (about 6 minutes on two cores)
	$(TEMPORARY) $(BIN)/python .ci/tests -q $(SPREAD) $(LAYOUT:%=--ignore %)

test-ci: setup  ## run what needs root, Chromium or miniupnpd, or takes long; nothing may be skipped
	$(TEMPORARY) $(BIN)/python .ci/tests -q -m ci --no-skips $(SPREAD) $(TOGETHER)
	$(BIN)/python .ci/tests -q -m ci --no-skips $(TOGETHER:%=--ignore %)

test-long: setup  ## run everything, also what takes hours, and property tests with new examples
	$(BIN)/python -m pytest -q $(SPREAD) -m "long or not long" --hypothesis-profile=new-examples

check: setup  ## lint, types, layout rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=bench:examples/tiny $(BIN)/mypy --explicit-package-bases bench examples docs/modules.py
	$(BIN)/python -m pytest -q $(LAYOUT)

bench: setup  ## run every script in bench/, record the runs and write docs/measured.md
	$(BIN)/python bench/run_all.py

wheel: setup  ## build dist/*.whl
	rm -rf dist build
	$(BIN)/python -m build --quiet --wheel --no-isolation

wheel-demo: wheel  ## install the wheel into an empty environment and run the demo from there
	bash .ci/wheel-demo

lock: setup  ## pin the dependencies again, with hashes (needs uv)
	for f in runtime dev audit; do uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate requirements/$$f.in -o requirements/$$f.lock; done
	$(PYTHON) .ci/lock-torch uv

audit: setup  ## check the pinned dependencies for known vulnerabilities (needs the network)
	@test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    -r requirements/audit.lock || { echo "error: pip-audit could not be installed" >&2; \
	    echo "hint: try again with access to https://pypi.org" >&2; exit 2; }
	$(PYTHON) .ci/audit $(AUDIT)/bin/python

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info
