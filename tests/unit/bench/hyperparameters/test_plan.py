"""The order of runs: a prefix is already a picture, and the reference comes last."""

from __future__ import annotations

from hdet.bench.hyperparameters.plan import FIXED, HDET, Plan, best_alone, planned, wrong_start
from hdet.bench.hyperparameters.tasks import FOUR, TASKS
from tests.unit.bench.hyperparameters.rows import SINGLES, all_done


def test_a_prefix_of_the_plan_is_already_a_picture() -> None:
    runs = planned(Plan(), {})
    assert len(set(runs)) == len(runs)
    # The first runs: of every task both ends, with HDET and fixed.
    first = runs[: 4 * len(SINGLES)]
    for task in SINGLES:
        (values,) = TASKS[task].grids.values()
        ends = {(arm, (value,)) for arm in (HDET, FIXED) for value in (values[0], values[-1])}
        assert {(run.arm, run.start) for run in first if run.task == task} == ends
    own = [run for run in runs if run.task != FOUR or run.start == wrong_start(TASKS[FOUR])]
    assert [run.seed for run in own] == sorted(run.seed for run in own)
    assert runs[: len(own)] == own, "what only the reference needs comes last"
    for task in SINGLES:
        (values,) = TASKS[task].grids.values()
        for seed in range(3):
            fixed = [run.start[0] for run in runs if (run.task, run.arm, run.seed) == (task, FIXED, seed)]
            assert sorted(fixed) == list(values)


def test_the_reference_follows_from_the_grids_of_each_alone() -> None:
    plan = Plan((FOUR,))
    assert best_alone(plan, {}) is None
    done = all_done(plan)
    best = (3.0, 0.2, 0.1, 1.0)
    assert best_alone(plan, done.finished) == best
    ends = [run for run in planned(plan, done.finished) if run.start == best]
    assert [(run.arm, run.seed) for run in ends] == [(FIXED, 0), (FIXED, 1), (FIXED, 2)]
