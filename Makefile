# `make` lists the targets. Everything is set up below .venv and .cache; nothing else on the machine is changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROMTOOL_DIR := .cache/prometheus
export PATH := $(CURDIR)/$(BIN):$(PATH):$(CURDIR)/$(PROMTOOL_DIR)/usr/bin

.PHONY: help demo test lint unit bench generate clean promtool
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.run ## run a vLLM stand-in under a preemption storm, users, and the sidecar between them (Ctrl-C stops it all)
	@exec $(BIN)/kvpressure demo $(DEMO)

test: lint unit ## lint, type-check and test, with everything that this needs

lint: $(VENV)/.dev ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(VENV)/.dev promtool ## run the tests and hold the coverage of the core
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -rs $(PYTEST)
	$(BIN)/coverage report --skip-covered
	$(BIN)/coverage json -q -o .cache/coverage.json
	$(BIN)/python tests/branch_coverage.py .cache/coverage.json 95

bench: $(VENV)/.dev ## measure speed and size against named peers
	$(BIN)/python -m bench

generate: $(VENV)/.dev ## write the files that are generated and committed
	$(BIN)/python tests/generate.py

# promtool is unpacked from Debian's package rather than installed: installing it would start a Prometheus server.
promtool:
	@command -v promtool >/dev/null || { \
	  if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    mkdir -p $(PROMTOOL_DIR) && apt-get update -qq && cd $(PROMTOOL_DIR) && \
	    apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb; \
	  else \
	    echo "make test needs promtool: install the package prometheus, or run make test as root on Debian or Ubuntu." >&2; \
	    exit 1; \
	  fi; }

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "kvpressure needs Python 3.11 or later; name one with make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "python3 cannot make a virtual environment: install the package python3-venv." >&2; exit 1; }

$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@mkdir -p .cache
	@touch $@ $(VENV)/.run

clean: ## remove what the other targets made
	rm -rf $(VENV) .cache .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis bench/results
