# Each target does its own set-up: a virtual environment with CPU torch and the package, made once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The frameworks of others have one of their own: the tests of the package do without them.
VENV_INTEGRATIONS := .venv-integrations
READY_INTEGRATIONS := $(VENV_INTEGRATIONS)/.ready

# Sphinx stands beside the package, whose docstrings it reads. It begins anew each time (-E): of pages that
# it keeps from the last time it would not say again what is wrong with them.
READY_DOCS := $(VENV)/.ready-docs
SPHINX := $(BIN)/python -m sphinx -W --keep-going -n -q -E

.PHONY: demo test test-integrations docs docs-links chaos lint clean

demo: $(READY)
	$(BIN)/hdet demo

test: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test-integrations: $(READY_INTEGRATIONS)
	OMP_NUM_THREADS=1 $(VENV_INTEGRATIONS)/bin/python -m pytest -rs tests/integrations

# The site, in docs/_build/html: it needs no network. A link or an anchor that leads nowhere is an error.
docs: $(READY_DOCS)
	$(SPHINX) -b html docs docs/_build/html

# The addresses of others, which need one: not for CI.
docs-links: $(READY_DOCS)
	$(SPHINX) -b linkcheck docs docs/_build/links

# Faults at random places, and a long run: an hour or more. A short form is among the tests.
chaos: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos --output docs/evidence/chaos.json

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[cli,dev]' --constraint constraints-cpu.txt
	touch $@

$(READY_DOCS): $(READY) constraints-docs.txt
	$(BIN)/python -m pip install --quiet --editable '.[docs]' --constraint constraints-docs.txt
	touch $@

$(READY_INTEGRATIONS): pyproject.toml constraints-integrations.txt
	$(PYTHON) -m venv $(VENV_INTEGRATIONS)
	$(VENV_INTEGRATIONS)/bin/python -m pip install --quiet --editable '.[dev,integrations]' --constraint constraints-integrations.txt
	touch $@

clean:
	rm -rf $(VENV) $(VENV_INTEGRATIONS) .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_build
