# Each target does its own set-up: a virtual environment with CPU torch and the package, made once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test chaos lint clean

demo: $(READY)
	$(BIN)/hdet demo

test: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# Faults at random places; minutes, and no part of the tests.
chaos: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/chaos/poisons.py tests/chaos/kills.py

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[cli,dev]' --constraint constraints-cpu.txt
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
