# Every target does its own set-up, in a virtual environment of its own for each interpreter: .venv/3.11, .venv/3.13.
#
#   make demo                        train a small network on handwritten digits; see where the memory goes
#   make test                        the tests, on all processors; one of them: make test T=tests/test_stage.py
#   make lint                        ruff and mypy --strict
#   make install                     what these two need, which each installs by itself
#   make bench                       automatic against hand-written donation; one workload: make bench W=mlp_adam
#   make fuzz                        hours of random programs; some: make fuzz PROGRAMS=1000 FUNCTIONS=100
#   make wheel                       dist/pytc-*.whl
#   make PYTHON=python3.13 test      any of these with another interpreter

PYTHON ?= python3
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ifeq ($(filter 3.11 3.12 3.13,$(VERSION)),)
$(error pytc is for Python 3.11 to 3.13, and "$(PYTHON)" is $(or $(VERSION),not there); try: make PYTHON=python3.13)
endif

VENV := .venv/$(VERSION)
# In quotes, since the folder that this is in may have a space in its name.
RUN := "$(CURDIR)/$(VENV)/bin/python"
T ?=
W ?=
PROGRAMS ?= 200000
FUNCTIONS ?= 20000

# The tests start hundreds of interpreters, each of which would otherwise compile all of pytc to bytecode once more.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := test
.PHONY: demo test lint install format bench fuzz wheel clean
.DELETE_ON_ERROR:

demo: $(VENV)/.demo
	@$(RUN) -m benchmarks.digits

test: $(VENV)/.test
	@$(RUN) -m $(if $(T),pytest $(T),tests)

lint: $(VENV)/.lint
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

install: $(VENV)/.test $(VENV)/.lint

format: $(VENV)/.lint
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

bench: $(VENV)/.bench
	@$(RUN) -m benchmarks $(W)

fuzz: $(VENV)/.test
	@$(RUN) -m tests.ownership.fuzz_callers --programs $(PROGRAMS) --kind hostile
	@$(RUN) -m tests.ownership.fuzz_callers --programs $(PROGRAMS) --kind training
	@$(RUN) -m tests.ownership.fuzz_callers --programs $(PROGRAMS) --kind ending
	@$(RUN) -m tests.ownership.fuzz_callers --programs $(PROGRAMS) --kind owners
	@$(RUN) -m tests.ownership.fuzz_callers --programs $(PROGRAMS) --kind fields
	@$(RUN) -m tests.ownership.fuzz_callers --programs $(PROGRAMS) --kind owners --thread
	@$(RUN) -m tests.ownership.fuzz_callers --programs $(PROGRAMS) --kind hostile --thread
	@$(RUN) -m tests.ownership.fuzz_compiled --programs $(PROGRAMS)
	@$(RUN) -m tests.random_functions --functions $(FUNCTIONS)
	@$(RUN) -m tests.random_captures --functions $(FUNCTIONS)

wheel: $(VENV)/.venv
	@$(RUN) -m pip wheel --quiet --no-deps --wheel-dir dist .

# One stamp for each extra of pyproject.toml that has been installed, made again when pyproject.toml changes. Of what is
# installed a tenth is ever imported, and compiled to bytecode then.
$(VENV)/.demo $(VENV)/.bench $(VENV)/.test $(VENV)/.lint: $(VENV)/.%: pyproject.toml | $(VENV)/.venv
	@echo "installing pytc[$*] into $(VENV), once"
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[$*]'
	@touch $@

$(VENV)/.venv:
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find pytc tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
