"""What is run for a table or figure, and that it is run once."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.reproduce import command as reproduce
from benchmarks.reproduce.plan import (
    CONFIGURATIONS,
    PLAIN,
    Row,
    Rows,
    Run,
    Settings,
    blocks,
    crash_lr,
    planned,
    sweep,
    tuned_lr,
)
from tests.benchmarks.reproduce.rows import PLAN, all_done, made_up


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


def test_a_learning_rate_at_which_a_seed_crashed_is_not_the_tuned_one() -> None:
    finished = all_done(PLAN)
    lucky = PLAN.run(PLAIN, 0.01, 2)
    finished[lucky] = {**finished[lucky], "crashed": True}
    assert tuned_lr(PLAN, finished) in (0.003162, 0.03162)


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


def test_rows_of_other_settings_are_never_mixed_and_plain_ones_are_shared(tmp_path: Path) -> None:
    literal = replace(PLAN, settings=Settings("literal", sigma=0.002))
    seldom = replace(PLAN, settings=Settings(sync_every=100))
    flatter = replace(PLAN, settings=Settings(final_div=5.0))
    known = set(all_done(PLAN))
    for plan, shared in (
        (literal, {PLAIN, "Warm-Init", "AutoLR", "HDET w/o auto-LR"}),
        (seldom, {PLAIN, "Warm-Init", "AutoLR"}),
        (flatter, set()),
    ):
        assert {run.configuration for run in set(all_done(plan)) & known} == shared
        new = [run for run in all_done(plan) if run not in known]
        assert all(plan.holds(run) and not PLAN.holds(run) for run in new)
    rows = Rows(tmp_path / "rows.jsonl")
    run = literal.run("HDET (full)", 9e-4, 0)
    rows.add(made_up(run))
    assert list(Rows(tmp_path / "rows.jsonl").finished) == [run]


def test_a_row_from_before_the_settings_has_the_defaults(tmp_path: Path) -> None:
    run = PLAN.run("HDET (full)", 9e-4, 0)
    row = {name: value for name, value in made_up(run).items() if name != "settings"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert list(Rows(tmp_path / "rows.jsonl").finished) == [run]
    assert asdict(run)["settings"] == {
        "decay": "schedule",
        "sigma": 0.1,
        "sync_every": None,
        "final_div": 1e4,
        "rules": "corrected",
    }
