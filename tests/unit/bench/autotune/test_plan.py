"""The runs, their order, and what each arm may spend."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hdet.bench.autotune.plan import (
    ARMS,
    AUTOTUNE,
    DEFAULT,
    LONG,
    RANDOM,
    SWEEP,
    Plan,
    Rows,
    Run,
    planned,
    run_of,
)
from hdet.bench.rows import Row

PLAN = Plan(("digits",), seeds=2, members=3, swept=6, confirmed=2, steps=20)


def row(run: Run, probe: float = 1.0) -> Row:
    return {**asdict(run), "probe": probe, "test": 1.0}


def test_the_first_seed_and_its_sweep_come_first_and_every_run_once() -> None:
    runs = planned(PLAN, {})
    assert len(runs) == len(set(runs)) == 2 * (len(ARMS) - 1 + 3) + 6
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    assert [run.number for run in runs if run.arm == SWEEP] == list(range(6))
    assert sum(run.arm == RANDOM for run in runs) == 2 * 3
    assert all(PLAN.holds(run) for run in runs)


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
    others = {PLAN.budget("digits", arm) for arm in ARMS if arm != DEFAULT}
    assert others == {3 * 20 * 32}
    assert LONG in ARMS


def test_the_sweep_has_ten_times_the_budget() -> None:
    plan = replace(Plan(("digits",)), steps=20)
    assert plan.budget("digits", SWEEP) == 10 * plan.budget("digits", AUTOTUNE)
    assert plan.budget("digits", AUTOTUNE) == 8 * plan.single("digits")


def test_replicas_are_processes_and_the_rest_is_one() -> None:
    assert [run.replicas for run in planned(PLAN, {}) if run.arm == AUTOTUNE] == [3, 3]
    assert {run.replicas for run in planned(PLAN, {}) if run.arm != AUTOTUNE} == {1}


def test_a_length_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 10, got 25"):
        Run("digits", DEFAULT, 0, 0, steps=25).workload  # noqa: B018


def test_what_another_plan_has_run_is_none_of_this_one() -> None:
    run = planned(PLAN, {})[0]
    for changed in ({"steps": 30}, {"seed": 2}, {"members": 8}, {"scale": "gpu"}, {"task": "images"}):
        assert not PLAN.holds(replace(run, **changed))
    assert not replace(PLAN, arms=(RANDOM,)).holds(run)


def test_rows_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "rows.jsonl"
    runs = planned(PLAN, {})
    done = Rows(path)
    done.add(row(runs[0]))
    done.add({**asdict(runs[1]), "error": "it broke"})
    again = Rows(path)
    assert list(again.finished) == runs[:1]
    assert list(again.failed) == runs[1:2]
    assert run_of(again.finished[runs[0]]) == runs[0]
