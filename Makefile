# `make run` and `make test` need Python 3.11 or later and nothing else: both set up what they use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

TOOLS := chromium:chromium node:nodejs

SEEDS ?= 1 2 3

# Tests start hundreds of interpreters: none of them compiles the sources again.
unexport PYTHONDONTWRITEBYTECODE

# More processes than cores: half of the time a test waits for a server.
PROCESSES ?= 4
PYTEST := $(BIN)/pytest --numprocesses=$(PROCESSES) --dist=worksteal
QUICK := tests/unit $(wildcard tests/http/test_*_story.py) tests/live/test_counts.py tests/live/test_focus.py \
	tests/live/test_resume.py tests/model/test_laws.py
RANDOM := tests/model tests/embedded/test_fuzz.py tests/kafka/test_spool.py tests/valkey/test_valkey_at_random.py \
	tests/valkey_postgres/test_badge_replica.py tests/clients

.PHONY: help setup tools run quick test compiled lint types imports pytest test-long test-servers test-cluster chaos screenshots fmt fuzz bench lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY) ## Make the virtual environment with everything for use and development

$(READY): requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Readstate needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(READY)

tools: ## Install the Debian packages that tests need (a browser, Node.js), where they are missing
	@missing=; for tool in $(TOOLS); do command -v "$${tool%%:*}" >/dev/null || missing="$$missing $${tool##*:}"; done; \
	if [ -n "$$missing" ] && command -v apt-get >/dev/null; then \
		as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
		$$as_root apt-get update --quiet --quiet && \
		$$as_root apt-get install --quiet --yes --no-install-recommends $$missing >/dev/null || \
		echo "not installed:$$missing; tests that need them are skipped, or fail where CI is set"; \
	fi

run: setup ## Start the service with its demo page on http://127.0.0.1:8080/demo, with its data in ./readstate-data
	$(BIN)/readstate serve --demo

quick: setup ## While editing: the rules and stories, without servers, until the first failure (under a minute)
	$(BIN)/ruff check --quiet
	TEST_STORES=embedded $(BIN)/pytest --numprocesses=2 --dist=worksteal --exitfirst --quiet -m "not long" $(QUICK)

test: setup ## Everything that must hold: format, lint, types, import rules, tests
	$(MAKE) --no-print-directory --jobs=2 --output-sync types lint imports compiled
	$(MAKE) --no-print-directory pytest

compiled: setup # once, and not by each of the processes that run tests
	$(BIN)/pytest --collect-only --quiet >/dev/null
	$(BIN)/python -m tests.contract.kafka_classes

lint: setup ## Format and lint
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: setup ## Types, strictly
	$(BIN)/mypy

imports: setup ## Who may import whom
	$(BIN)/lint-imports

pytest: setup tools ## All tests but the long runs
	$(PYTEST) -m "not long"

test-long: setup tools ## Long runs: more seeds and storms, and ten times as many random examples (about an hour)
	HYPOTHESIS_PROFILE=long $(PYTEST) --timeout=3600 -m long
	HYPOTHESIS_PROFILE=long $(PYTEST) --timeout=3600 -m "not long" $(RANDOM)

test-servers: setup ## Run the tests of the service with everything on PostgreSQL and Valkey (about 10 minutes)
	TEST_STORES=servers $(PYTEST) tests/http tests/live \
		tests/embedded/test_memory_lost.py tests/embedded/test_concurrency.py

test-cluster: setup ## Run the same tests with every service as a cluster, over Kafka too (about half an hour)
	TEST_STORES=cluster $(PYTEST) tests/http tests/live

chaos: setup ## Storms over a cluster of real processes, each reproducible by its seed: make chaos SEEDS="1 2 3"
	$(BIN)/python -m tests.chaos --seeds $(SEEDS)

screenshots: setup tools ## Take the pictures of the demo page in docs/images anew
	$(BIN)/python -m tests.browser.screenshots

fmt: setup ## Format the code and mend what can be mended
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

fuzz: setup ## Make up requests from the OpenAPI document, for ten minutes
	FUZZ_EXAMPLES=500 FUZZ_SECONDS=600 $(BIN)/pytest tests/embedded/test_fuzz.py --timeout 900

bench: setup ## Measure, side by side with plain baselines, into bench/RESULTS.md (about 30 minutes)
	$(BIN)/python -m bench

lock: setup ## Renew the hashed lock from pyproject.toml
	$(BIN)/pip install --quiet 'pip-tools>=7.4'
	$(BIN)/pip-compile --quiet --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --allow-unsafe --no-header --extra dev --output-file requirements.txt pyproject.toml

clean: ## Remove what setup, tests and builds made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
