"""A result of the benchmark of hyperparameters, made up."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.hyperparameters import command as hyperparameters
from benchmarks.hyperparameters.plan import Plan
from tests.benchmarks.hyperparameters.rows import all_done


@pytest.fixture
def result() -> dict[str, Any]:
    machine = {"torch": "2", "cpu": "fast", "cores": 2, "date": "2026-11-15T00:00:00"}
    about = {
        "experiment": "hyperparameters",
        "command": "python -m benchmarks hyperparameters",
        "machine": machine,
    }
    return hyperparameters._result(Plan(), all_done(Plan()), {**about, "caveats": ["Mind it."]})
