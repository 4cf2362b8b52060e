"""The runs, their order, and what each arm may spend."""

from __future__ import annotations

from dataclasses import asdict, replace

from benchmarks.autotune.plan import (
    ARMS,
    AUTOTUNE,
    DEFAULT,
    LARGE,
    LARGE_TUNED,
    RATES,
    SWEEP,
    TWICE,
    Plan,
    Run,
    planned,
)
from benchmarks.rows import Row

PLAN = Plan(("digits",), seeds=2, members=3, swept=6, confirmed=2, steps=20)


def row(run: Run, probe: float = 1.0) -> Row:
    return {**asdict(run), "probe": probe, "test": 1.0}


def test_the_best_of_the_sweep_are_confirmed_once_it_is_done() -> None:
    swept = [run for run in planned(PLAN, {}) if run.arm == SWEEP]
    finished = {run: row(run, abs(run.number - 3.2)) for run in swept}
    then = [run for run in planned(PLAN, finished) if run.arm == SWEEP and run.seed == 1]
    assert [run.number for run in then] == [3, 4]
    finished.pop(swept[0])
    assert not [run for run in planned(PLAN, finished) if run.arm == SWEEP and run.seed == 1]


def test_the_budget_is_that_of_so_many_single_runs() -> None:
    assert PLAN.single("digits") == 20 * 32
    assert PLAN.budget("digits", DEFAULT) == 20 * 32
    assert PLAN.budget("digits", SWEEP) == 6 * 20 * 32
    more = {DEFAULT: 1, TWICE: 6, LARGE_TUNED: 3 * len(RATES)}
    for arm in ARMS:
        assert PLAN.budget("digits", arm) == more.get(arm, 3) * 20 * 32
    runs = [PLAN.run("digits", arm, 0) for arm in (AUTOTUNE, TWICE, LARGE)]
    assert [run.replicas for run in runs] == [3, 6, 1]


def test_the_sweep_has_ten_times_the_budget() -> None:
    plan = replace(Plan(("digits",)), steps=20)
    assert plan.budget("digits", SWEEP) == 10 * plan.budget("digits", AUTOTUNE)
    assert plan.budget("digits", AUTOTUNE) == 4 * plan.single("digits")
