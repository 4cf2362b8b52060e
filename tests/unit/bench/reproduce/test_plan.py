"""What is run for a table or figure, and that it is run once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hdet.bench.reproduce import command as reproduce
from hdet.bench.reproduce.plan import (
    CONFIGURATIONS,
    PLAIN,
    Plan,
    Row,
    Run,
    blocks,
    crash_lr,
    planned,
    sweep,
    tuned_lr,
)
from tests.unit.bench.reproduce.rows import PLAN, all_done, made_up


def test_the_sweep_goes_up_until_most_seeds_crash() -> None:
    finished: dict[Run, Row] = {}
    assert sweep(PLAN, finished) == [1e-4]
    assert [block.name for block in blocks(PLAN, finished)] == ["paper"]
    finished = all_done(PLAN)
    rates = [1e-4, 3.162e-4, 1e-3, 3.162e-3, 1e-2, 3.162e-2, 0.1, 0.3162]
    assert sweep(PLAN, finished) == rates
    assert (crash_lr(PLAN, finished), tuned_lr(PLAN, finished)) == (0.3162, 0.01)
    crash = blocks(PLAN, finished)[1]
    assert (crash.name, crash.high, crash.low) == ("crash", 0.3162, 0.03513)
    # One seed of three is no majority.
    for run in PLAN.over_seeds(PLAIN, 0.3162)[1:]:
        finished[run] = {**finished[run], "crashed": False}
    assert crash_lr(PLAN, finished) is None
    assert sweep(PLAN, finished) == [*rates, 1.0]


@pytest.mark.parametrize(
    ("seeds", "crashed", "most"), [(3, 1, False), (3, 2, True), (2, 1, False), (2, 2, True)]
)
def test_most_seeds_are_more_than_half(seeds: int, crashed: int, most: bool) -> None:
    plan = Plan("feed", "cpu", seeds=seeds, exponents=(-8, -7))
    finished = {
        run: {**made_up(run), "crashed": run.seed < crashed}
        for lr in (1e-4, 3.162e-4)
        for run in plan.over_seeds(PLAIN, lr)
    }
    assert sweep(plan, finished) == ([1e-4] if most else [1e-4, 3.162e-4])
    assert crash_lr(plan, finished) == (1e-4 if most else None)


def test_a_learning_rate_at_which_a_seed_crashed_is_not_the_tuned_one() -> None:
    finished = all_done(PLAN)
    lucky = PLAN.run(PLAIN, 0.01, 2)
    finished[lucky] = {**finished[lucky], "crashed": True}
    assert tuned_lr(PLAN, finished) in (0.003162, 0.03162)


def test_where_nothing_crashes_the_largest_learning_rate_is_taken_and_said() -> None:
    finished = all_done(PLAN, crash_from=math.inf)
    crash = blocks(PLAN, finished)[1]
    assert (crash_lr(PLAN, finished), crash.high) == (None, 10.0)
    assert "at 10, up to which the plain baseline never crashed" in crash.title


def test_every_line_of_both_blocks_is_run_once() -> None:
    finished = all_done(PLAN)
    runs = planned(PLAN, finished)
    assert len(runs) == len(set(runs)) == len(finished)
    # 8 of the sweep, 9e-4, the second block's low rate; 4 with replicas that differ, twice; AutoLR.
    assert len(runs) == 3 * (8 + 2 + 2 * 4 + 1)
    assert {run.configuration for run in runs} == {one.runs for one in CONFIGURATIONS.values()}


@pytest.mark.parametrize("name", ["figure2", "figure3"])
def test_a_figure_after_the_table_runs_nothing_anew(name: str) -> None:
    plan = replace(PLAN, lines=reproduce.NAMES[name])
    assert set(planned(plan, all_done(PLAN))) < set(all_done(PLAN))
    assert set(all_done(plan)) < set(all_done(PLAN))


def test_tables_of_other_sizes_and_seeds_are_kept_apart() -> None:
    run = PLAN.run(PLAIN, 1e-4, 2)
    assert PLAN.holds(run)
    assert not PLAN.holds(replace(run, seed=3))
    for change in ({"scale": "gpu"}, {"device": "cuda"}, {"task": "kuairand"}, {"data": "0123"}):
        assert not PLAN.holds(replace(run, **change))
