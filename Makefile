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

.PHONY: demo reproduce test test-all test-integrations docs docs-links chaos dist floors mutate lint clean

demo: $(READY)
	$(BIN)/hdet demo

# Table 1 and Figures 2 and 3 of the paper, on a synthetic feed, in runs/reproduce: hours. Stopped, it goes on from there.
reproduce: $(READY)
	for name in table1 figure2 figure3; do OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks reproduce $$name || exit 1; done

# What a contributor runs: every file of the package by itself, and the paper's method on two and four ranks.
test: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" tests/unit src tests/distributed/test_published.py tests/distributed/test_as_printed.py tests/distributed/test_drop_in.py tests/distributed/test_examples.py::test_published

# The rest as well: recorded runs, ranks, faults, pages, benchmarks.
test-all: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test-integrations: $(READY_INTEGRATIONS)
	OMP_NUM_THREADS=1 $(VENV_INTEGRATIONS)/bin/python -m pytest -rs tests/integrations tests/benchmarks/pretrained

# The site, in docs/_build/html: it needs no network. A link or an anchor that leads nowhere is an error.
docs: $(READY_DOCS)
	$(SPHINX) -b html docs docs/_build/html

# The addresses of others, which need one: not for CI.
docs-links: $(READY_DOCS)
	$(SPHINX) -b linkcheck docs docs/_build/links

# Faults at random places, and a long run: an hour or more. A short form is among the tests.
chaos: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos --output docs/evidence/chaos.json

# The wheel and the sdist, installed and tried where the checkout is not in sight.
dist: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.tools.dist

# Each pair of Python and torch that is promised and can be had here, in an environment of its own: half an hour.
floors: $(READY)
	$(BIN)/python -m benchmarks.tools.floors

# Forty lines of the package made wrong, one at a time, drawn by the commit's hash: half an hour or more.
mutate: $(READY)
	$(BIN)/python -m benchmarks.tools.mutate

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
