"""What is run next, once some of it has been."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.pretrained.plan import (
    FACTORS,
    FITTED,
    IMAGE_RATES,
    RATES,
    TRIALS,
    Run,
    asked,
    factor_arm,
    planned,
    run_of,
)
from benchmarks.rows import Row


def _rows(runs: list[Run], best: int) -> dict[Run, Row]:
    return {run: {"loss": float(abs(number - best))} for number, run in enumerate(runs)}


def test_the_rate_of_the_lowest_held_out_loss_is_trained_on_all_samples() -> None:
    runs = planned({}, ["texts"], "cpu")
    cell = [run for run in runs if (run.task, run.samples, run.lora) == ("news", 1000, True)]
    sweep = [run for run in cell if run.arm == "sweep"]
    assert [run.rate for run in sweep] == list(RATES)
    assert all(run.held for run in sweep)
    swept = [run for run in planned(_rows(sweep, 4), ["texts"], "cpu") if run.arm == "swept"]
    assert [(run.task, run.rate, run.held, run.seed) for run in swept] == [
        ("news", RATES[4], False, seed) for seed in range(3)
    ]


def test_the_factor_is_chosen_on_texts_that_tell_nothing_else() -> None:
    runs = planned({}, ["fit"], "cpu")
    assert {run.task for run in runs} == set(FITTED)
    assert not {run.task for run in runs} & {run.task for run in planned({}, ["texts"], "cpu")}
    assert {run.arm for run in runs} == {*map(factor_arm, FACTORS), "autolr", "usual", "sweep"}
    assert not any(run.lora for run in runs)


def test_what_has_diverged_is_not_chosen() -> None:
    sweep = [run for run in planned({}, ["texts"], "cpu") if run.arm == "sweep"][: len(RATES)]
    rows = _rows(sweep, 0) | {sweep[0]: {"loss": None}}
    assert next(run for run in planned(rows, ["texts"], "cpu") if run.arm == "swept").rate == RATES[1]


def test_of_pictures_every_seed_has_a_sweep_of_its_own() -> None:
    runs = [run for run in planned({}, ["images"], "cpu") if run.task == "characters"]
    sweeps = [[run for run in runs if run.arm == "sweep" and run.seed == seed] for seed in range(3)]
    assert all([run.rate for run in sweep] == list(IMAGE_RATES) for sweep in sweeps)
    assert (IMAGE_RATES[0], IMAGE_RATES[-1]) == (1e-5, 1e-2)
    rows = _rows(sweeps[0], 2) | _rows(sweeps[2], 5)
    swept = [run for run in planned(rows, ["images"], "cpu") if run.arm == "swept"]
    assert [(run.seed, run.rate) for run in swept] == [(0, IMAGE_RATES[2]), (2, IMAGE_RATES[5])]


def test_a_study_that_is_played_again_asks_for_the_same() -> None:
    pytest.importorskip("optuna")
    rows: dict[Run, Row] = {}
    while len(trials := asked(rows, "cpu")) < TRIALS or len(rows) < TRIALS:
        assert trials[: len(rows)] == list(rows)
        new = [run for run in trials if run not in rows]
        rows |= {run: {"loss": run.dropout} for run in new}
    few, many = (
        next(run for run in planned(rows, ["search"], "cpu") if run.arm == f"tpe {count}")
        for count in (8, TRIALS)
    )
    assert many.dropout == min(run.dropout for run in rows) <= few.dropout
    assert all(run.held for run in rows)
    assert not many.held


def test_a_row_tells_its_run() -> None:
    run = Run("suzuki", "published", 3, 1e-4, 0.5, 15)
    assert run_of({**asdict(run), "loss": 0.1}) == run
