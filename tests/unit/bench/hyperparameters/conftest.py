"""A result of the benchmark of hyperparameters, made up."""

from __future__ import annotations

from typing import Any

import pytest

from hdet.bench.hyperparameters import command as hyperparameters
from hdet.bench.hyperparameters.plan import Plan
from tests.unit.bench.hyperparameters.rows import all_done


@pytest.fixture
def result() -> dict[str, Any]:
    machine = {"torch": "2", "cpu": "fast", "cores": 2, "date": "2026-11-15T00:00:00"}
    about = {"experiment": "hyperparameters", "command": "hdet bench hyperparameters", "machine": machine}
    return hyperparameters._result(Plan(), all_done(Plan()), {**about, "caveats": ["Mind it."]})
