# Every command works from an empty clone: the first one makes .venv and installs the project into it.
#
#   make demo     the main job, end to end, on the embedded PostgreSQL
#   make test     all tests, on real PostgreSQL            (make test ARGS="tests/core -x"; JOBS=0 in one process)
#   make check    format, lint, types, layers
#   make torture  runs under kill -9, cut commits and restarts of PostgreSQL, about a minute (ARGS="--seed 7")
#   make bench    speed and memory, one JSON line each; minutes
#   make docs     the documentation, into site/
#   make clean    remove what these commands made, except the embedded server's data
#
# PYTHON chooses the interpreter (3.11 or newer), UV= installs with pip although uv is there.

PYTHON ?= python3
UV ?= $(shell command -v uv 2>/dev/null)
ARGS ?=
# Much of the suite waits for leases, timers and processes: one process a core is never too many.
JOBS ?= auto

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
BENCHES = $(patsubst bench/%.py,%,$(filter-out bench/_%,$(wildcard bench/*.py)))

# uv should say that the interpreter is unfit rather than fetch another one.
export UV_PYTHON_DOWNLOADS := never
# A venv whose interpreter is gone is replaced without a question.
export UV_VENV_CLEAR := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test torture check format bench docs clean

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

install: $(READY)

demo: $(READY)
	@$(BIN)/python -m samples.census $(ARGS)

test: $(READY)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

torture: $(READY)
	@$(BIN)/python -m tests.torture $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	@set -e; for bench in $(BENCHES); do $(BIN)/python -m bench.$$bench $(ARGS); done

docs: $(READY)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The venv is made once; the installation again whenever pyproject.toml changes. Where the interpreter has gone away,
# both are made anew: the stamp is in the folder that gets replaced, and make would still believe in it.
ifneq ($(shell test -x $(BIN)/python && echo yes),yes)
.PHONY: $(READY)
endif
$(READY): pyproject.toml | $(BIN)/python
	@echo "Installing the project into $(VENV) ..."
ifneq ($(UV),)
	@"$(UV)" pip install --quiet --python $(BIN)/python -e '.[dev]'
else
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@$(BIN)/python -m pip install --quiet -e '.[dev]'
endif
	@touch $@

# Asked before anything is made: a venv without ensurepip fails halfway and leaves a folder that looks finished.
$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "No '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Composer needs Python 3.11 or newer; '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1 | head -1)." >&2; \
	  echo "Name a newer one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
ifneq ($(UV),)
	@"$(UV)" venv --quiet --python "$$("$(PYTHON)" -c 'import sys; print(sys.executable)')" $(VENV)
else
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: its venv or ensurepip module is missing." >&2; \
	  echo "On Debian and Ubuntu: apt-get install python3-venv. Or put uv on the PATH." >&2; exit 1; }
	@"$(PYTHON)" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }
endif
