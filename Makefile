# One entry for users and contributors. Needs Python 3.11 or newer and make, nothing else:
# every target first sets up the virtual environment .venv if that is missing or out of date.
# `make demo` installs the library alone; the other targets add what tests and checks need.

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-slow lint format bench clean
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
BASE := .venv/.base
READY := .venv/.ready
SOURCES := src tests $(wildcard benchmarks examples)

help: ## Print this list
	@awk -F ':.*## ' '/^[.a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(BASE) ## Watch an agent keep its diary (options: make demo ARGS=--help)
	@$(BIN)/diarist demo $(ARGS)

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
CLOCK = start=$$(date +%s); took() { s=$$(($$(date +%s) - start)); echo "$@ took $$((s / 60)) min $$((s % 60)) s"; }; trap took EXIT

test: $(READY) ## Check style and types, then run the quick tests (options: make test ARGS="-k tokens")
	@$(CLOCK); $(MAKE) lint && $(PYTEST) -m "not slow" $(ARGS)

test-all: $(READY) ## The same, then the slow tests, as continuous integration does
	@$(CLOCK); $(MAKE) test && $(MAKE) test-slow

test-slow: $(READY) ## Run the slow tests only
	@$(CLOCK); $(PYTEST) -m slow $(ARGS)

lint: $(READY) ## Check style and types only
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/ruff format --check --quiet $(SOURCES) || \
		{ echo "Not formatted; run: make format" >&2; exit 1; }
	@$(BIN)/pyright

format: $(READY) ## Format the code and repair what ruff can repair
	@$(BIN)/ruff check --quiet --fix $(SOURCES) || true
	@$(BIN)/ruff format $(SOURCES)

bench: $(READY) ## Run the benchmarks behind our claims
	@set -e; for script in benchmarks/*.py; do \
		case "$$script" in */_*.py) continue ;; esac; \
		if [ -f "$$script" ]; then echo "== $$script"; $(BIN)/python "$$script" $(ARGS); \
		else echo "no benchmarks yet"; fi; \
	done

clean: ## Remove the virtual environment, caches and builds; never a database
	@rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. A candidate counts only if it really runs, since version managers leave
# launchers behind for versions that are not installed.
$(BASE): pyproject.toml constraints.txt
	@python=; \
	for candidate in python3.13 python3.12 python3.11 python3.14 python3; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
		then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "diarist needs Python 3.11 or newer; none of python3.13, python3.12, python3.11, python3 is one." >&2; \
		exit 1; \
	fi; \
	echo "Setting up .venv with $$($$python --version) (once; less than a minute)" >&2; \
	if command -v uv >/dev/null 2>&1; then \
		[ -x $(BIN)/python ] || uv venv --quiet --python "$$(command -v $$python)" .venv || exit 1; \
	else \
		[ -x $(BIN)/pip ] || $$python -m venv .venv || { \
			echo "$$python cannot create virtual environments; on Debian: apt install python3-venv" >&2; \
			exit 1; }; \
	fi
	@$(call INSTALL,.)
	@touch $@

$(READY): $(BASE)
	@echo "Adding the tools for tests and checks to .venv (once; one to three minutes)" >&2
	@$(call INSTALL,.[dev])
	@touch $@

INSTALL = if command -v uv >/dev/null 2>&1; \
	then uv pip install --quiet --python $(BIN)/python -e '$(1)' -c constraints.txt; \
	else $(BIN)/python -m pip --disable-pip-version-check install --quiet -e '$(1)' -c constraints.txt; fi

.PHONY: .venv
.venv: $(READY) ## Set up the virtual environment only
