"""Runs of the benchmark: their phases, and that they can be repeated."""

from __future__ import annotations

import math
from dataclasses import replace

from hdet.bench.hyperparameters.plan import FIXED, HDET, IN_TURN, Run, wrong_start
from hdet.bench.hyperparameters.runs import execute, phases
from hdet.bench.hyperparameters.tasks import FOUR, NEUTRAL, TASKS, workload
from hdet.replicas.launch import LocalProcesses
from tests.unit.bench.hyperparameters.rows import needs_data


def test_in_turn_has_the_same_steps_and_all_of_them() -> None:
    run = Run(FOUR, IN_TURN, (1, 2, 3, 4), 0, 8)
    names = ("a", "b", "c", "d")
    for steps in (40, 41, 1000):
        parts = phases(run, names, steps)
        assert [name for (name,), _ in parts] == list(names)
        assert sum(length for _, length in parts) == steps
    assert phases(replace(run, arm=HDET), names, 40) == [(names, 40)]
    assert phases(replace(run, arm=FIXED), names, 40) == [((), 40)]


def test_four_are_looked_for_in_turn(ranks: LocalProcesses) -> None:
    needs_data()
    run = Run(FOUR, IN_TURN, wrong_start(TASKS[FOUR]), 0, replicas=2, sync_every=2, steps=16)
    row = ranks.run(execute, run, size=2, timeout=60)[0]
    assert list(row["paths"]) == list(TASKS[FOUR].explored)
    # Each at its start, and after both syncs of its share of the steps.
    assert [len(values) for values in row["paths"].values()] == [3, 3, 3, 3]
    assert [values[0] for values in row["paths"].values()] == list(run.start)
    assert math.isfinite(row["held_out"])


def test_the_same_run_twice_is_the_same(ranks: LocalProcesses) -> None:
    run = Run("label smoothing", HDET, (0.2,), 0, replicas=2, sync_every=5, steps=10)
    one, two = (ranks.run(execute, run, size=2, timeout=60)[0] for _ in range(2))
    assert {**one, "seconds": 0} == {**two, "seconds": 0}
    assert workload("label smoothing").steps > 10
    assert NEUTRAL.keys() == set(TASKS[FOUR].explored)
