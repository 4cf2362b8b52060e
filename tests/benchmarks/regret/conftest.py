"""A result of the regret benchmark, made up."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.regret import command as regret
from benchmarks.regret.plan import Plan, Rows
from tests.benchmarks.regret.rows import row, sweep


@pytest.fixture
def result() -> dict[str, Any]:
    rows = []
    for workload in ("newsfeed", "charlm"):
        about = {"workload": workload}
        rows += sweep(0.1, 1.0, 1.2, 0.8, **about)
        rows += [row("default-onecycle", seed, 1.5, lr=1e-3, **about) for seed in range(3)]
        rows += [row("autolr", seed, 1.01, **about) for seed in range(3)]
        rows += [row("prodigy", seed, 1.3, **about) for seed in range(3)]
        rows += [row("greedy", seed, 1.0, diverged=True, **about) for seed in range(3)]
    plan, done = Plan(("newsfeed", "charlm"), seeds=3), Rows(None)
    for one in rows:
        done.add(one)
    machine = {"torch": "2", "cpu": "fast", "cores": 2, "date": "2026-11-15T00:00:00"}
    return regret._result(
        plan, done, {"experiment": "regret", "command": "python -m benchmarks regret", "machine": machine}
    )
