"""The order of runs: a prefix is already a picture, and the reference comes last."""

from __future__ import annotations

from benchmarks.hyperparameters.plan import FIXED, Plan, best_alone, planned
from benchmarks.hyperparameters.tasks import FOUR
from tests.benchmarks.hyperparameters.rows import all_done


def test_the_reference_follows_from_the_grids_of_each_alone() -> None:
    plan = Plan((FOUR,))
    assert best_alone(plan, {}) is None
    done = all_done(plan)
    best = (3.0, 0.2, 0.1, 1.0)
    assert best_alone(plan, done.finished) == best
    ends = [run for run in planned(plan, done.finished) if run.start == best]
    assert [(run.arm, run.seed) for run in ends] == [(FIXED, 0), (FIXED, 1), (FIXED, 2)]
