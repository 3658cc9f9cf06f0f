# One entry for users and contributors. Needs Python 3.11 or newer and make, nothing else:
# every target first sets up the virtual environment .venv if that is missing or out of date.
# `make demo` installs the library alone; the other targets add what tests and checks need.

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-slow test-integrations lint format bench clean
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
unexport PYTHONDONTWRITEBYTECODE # tests and programs that they start would be compiled in each run

BIN := .venv/bin
BASE := .venv/.base
READY := .venv/.ready
SOURCES := src tests $(wildcard benchmarks examples)

help: ## Print this list
	@awk -F ':.*## ' '/^[.a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(BASE) ## Watch an agent keep its diary (options: make demo ARGS=--help)
	@$(BIN)/diarist demo $(ARGS)

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
CLOCK = start=$$(date +%s); took() { s=$$(($$(date +%s) - start)); echo "$@ took $$((s / 60)) min $$((s % 60)) s"; }; trap took EXIT

test: $(READY) ## Check style and types, then run the quick tests (options: make test ARGS="-k tokens")
	@$(CLOCK); $(MAKE) lint & lint=$$!; $(PYTEST) -m "not slow" $(ARGS); tests=$$?; \
	wait $$lint || { echo "make lint failed; its messages are above, or run: make lint" >&2; exit 1; }; exit $$tests

test-all: $(READY) ## The same, then the slow tests and the adapters, as continuous integration does
	@$(CLOCK); $(MAKE) test ARGS="--hypothesis-profile=thorough" && $(MAKE) test-slow && $(MAKE) test-integrations NAME="$(ADAPTERS)"

test-slow: $(READY) ## Run the slow tests only
	@$(CLOCK); $(BIN)/python -m pytest -n 2 --dist loadgroup -m slow --hypothesis-profile=thorough $(ARGS)

# Each framework has an environment of its own: in one for all of them, pip would go back to old versions silently.
NAME ?= pydantic_ai langchain openai_agents strands llama_index google_adk agent_framework
ADAPTERS = pydantic_ai langchain openai_agents
VERSIONS ?= pinned

test-integrations: $(READY) ## Test the adapters beside their frameworks (options: NAME=langchain VERSIONS=newest)
	@$(CLOCK); set -e; for name in $(NAME); do \
		bin=.venv-integrations/$$name-$(VERSIONS)/bin; tests=tests/integrations/$$name; \
		$(MAKE) -s "$${bin%/bin}/.ready"; \
		[ ! -e $$tests/pyrightconfig.json ] || $(BIN)/pyright -p $$tests --pythonpath $$bin/python; \
		$$bin/python -m pytest --confcutdir tests/integrations $$tests $(ARGS); \
	done

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

clean: ## Remove the virtual environments, caches and builds; never a database
	@rm -rf .venv .venv-integrations build dist .pytest_cache .ruff_cache .hypothesis
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
	@$(call INSTALL,.venv,-e . -c constraints.txt)
	@touch $@

$(READY): $(BASE)
	@echo "Adding the tools for tests and checks to .venv (once; one to three minutes)" >&2
	@$(call INSTALL,.venv,-e '.[dev]' -c constraints.txt)
	@touch $@

# The environments of the adapters' tests: the library without extras, a framework, and what the tests need.
FRAMEWORK = tests/integrations/$*/framework.txt
PINNED = tests/integrations/$*/constraints.txt
.SECONDEXPANSION:
.venv-integrations/%-pinned/.ready: pyproject.toml tests/integrations/requirements.txt $$(FRAMEWORK) $$(PINNED)
	@$(call CREATE,$(@D))
	@$(call INSTALL,$(@D),-e . -r tests/integrations/requirements.txt -r $(FRAMEWORK) -c $(PINNED))
	@touch $@

.PHONY: always
.venv-integrations/%-newest/.ready: $$(FRAMEWORK) always
	@$(call CREATE,$(@D))
	@$(call INSTALL,$(@D),--upgrade -e . -r tests/integrations/requirements.txt -r $(FRAMEWORK))
	@touch $@

CREATE = echo "Setting up $(1) (about half a minute)" >&2; \
	if command -v uv >/dev/null 2>&1; \
	then [ -x $(1)/bin/python ] || uv venv --quiet --python "$$(command -v $(BIN)/python)" $(1); \
	else [ -x $(1)/bin/pip ] || $(BIN)/python -m venv $(1); fi

INSTALL = if command -v uv >/dev/null 2>&1; \
	then uv pip install --quiet --python $(1)/bin/python $(2); \
	else $(1)/bin/python -m pip --disable-pip-version-check install --quiet $(2); fi

.PHONY: .venv
.venv: $(READY) ## Set up the virtual environment only
