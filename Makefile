# Each target does its own set-up: a virtual environment with CPU torch and the package, made once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The frameworks of others have one of their own: the tests of the package do without them.
VENV_INTEGRATIONS := .venv-integrations
READY_INTEGRATIONS := $(VENV_INTEGRATIONS)/.ready

.PHONY: demo test test-integrations chaos lint clean

demo: $(READY)
	$(BIN)/hdet demo

test: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test-integrations: $(READY_INTEGRATIONS)
	OMP_NUM_THREADS=1 $(VENV_INTEGRATIONS)/bin/python -m pytest -rs tests/integrations

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

$(READY_INTEGRATIONS): pyproject.toml constraints-integrations.txt
	$(PYTHON) -m venv $(VENV_INTEGRATIONS)
	$(VENV_INTEGRATIONS)/bin/python -m pip install --quiet --editable '.[dev,integrations]' --constraint constraints-integrations.txt
	touch $@

clean:
	rm -rf $(VENV) $(VENV_INTEGRATIONS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
