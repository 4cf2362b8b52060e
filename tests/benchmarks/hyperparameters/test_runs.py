"""Runs of the benchmark: their phases, and that they can be repeated."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.hyperparameters.plan import FIXED, HDET, IN_TURN, Run
from benchmarks.hyperparameters.runs import phases
from benchmarks.hyperparameters.tasks import FOUR


def test_in_turn_has_the_same_steps_and_all_of_them() -> None:
    run = Run(FOUR, IN_TURN, (1, 2, 3, 4), 0, 8)
    names = ("a", "b", "c", "d")
    for steps in (40, 41, 1000):
        parts = phases(run, names, steps)
        assert [name for (name,), _ in parts] == list(names)
        assert sum(length for _, length in parts) == steps
    assert phases(replace(run, arm=HDET), names, 40) == [(names, 40)]
    assert phases(replace(run, arm=FIXED), names, 40) == [((), 40)]
