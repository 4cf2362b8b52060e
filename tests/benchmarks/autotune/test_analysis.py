"""The numbers of the table, against some that were computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.autotune.analysis import analyse, outcome, truth
from benchmarks.autotune.plan import AUTOTUNE, PBT, RANDOM, SWEEP
from benchmarks.rows import Row


def row(arm: str, *points: tuple[int, float, float], seed: int = 0, number: int = 0, **known: Any) -> Row:
    """Each point: samples, loss on the probe, loss on the test."""
    _, probe, test = points[-1]
    made: Row = {"task": "a", "arm": arm, "number": number, "seed": seed, "samples": 100, "seconds": 2.0}
    made |= {"probe": probe, "test": test, "cores": 1, "trials": 1, "pruned": 0, "points": list(points)}
    return {**made, "lr": 0.1, "weight_decay": 0.0, "dropout": 0.0, "label_smoothing": 0.0, **known}


def test_runs_of_an_arm_are_one_search() -> None:
    rows = [
        row(RANDOM, (0, 3.0, 3.0), (60, 1.5, 1.7), number=1),
        row(RANDOM, (0, 3.0, 3.0), (50, 2.0, 1.8), (90, 1.8, 1.9), number=0, cores=2),
    ]
    found = outcome(rows)
    assert found.points == ((0, 3.0, 3.0), (50, 2.0, 1.8), (90, 1.8, 1.9), (160, 1.5, 1.7))
    assert (found.probe, found.test, found.samples, found.trials) == (1.5, 1.7, 200, 2)
    assert found.core_seconds == 2.0 + 2 * 2.0
    assert found.samples_to(1.8) == 50, "also if the probe lets go of it again"
    assert found.samples_to(1.75) == 160
    assert found.samples_to(1.0) is None


def test_the_truth_is_chosen_by_the_probe_among_what_most_seeds_have_tried() -> None:
    rows = [
        row(SWEEP, (100, 0.5, 0.1), number=0),  # the best, but of one seed alone
        row(SWEEP, (100, 1.0, 2.0), number=1),
        row(SWEEP, (100, 1.4, 2.0), number=1, seed=1),
        row(SWEEP, (100, 1.1, 1.5), number=2),
        row(SWEEP, (100, 1.1, 1.7), number=2, seed=1),
    ]
    assert {seed: one["test"] for seed, one in truth(rows).items()} == {0: 1.5, 1: 1.7}
    assert truth(rows[:2])[0]["test"] == 0.1
    assert truth([]) == {}


def rows_of_two_seeds() -> list[Row]:
    return [
        row(SWEEP, (100, 1.0, 2.0), seed=0),
        row(SWEEP, (100, 1.0, 4.0), seed=1),
        row(AUTOTUNE, (0, 9.0, 9.0), (40, 1.0, 2.02), (80, 0.9, 2.08), seed=0, samples=800),
        row(AUTOTUNE, (0, 9.0, 9.0), (80, 0.9, 4.04), seed=1, samples=800),
        row(PBT, (0, 9.0, 9.0), (80, 1.0, 2.4), seed=0, samples=800, trials=8, pruned=2),
        row(PBT, (0, 9.0, 9.0), (40, 1.0, 4.4), seed=1, samples=800, trials=10, pruned=4),
    ]


def test_excess_interval_and_samples_to_reach_the_truth() -> None:
    (task,) = analyse(rows_of_two_seeds(), {"a": 100})["tasks"]
    assert task["truth"]["test"] == 3.0
    assert task["truth"]["seeds"] == 2
    lines = {line["arm"]: line for line in task["arms"]}
    auto, pbt = lines[AUTOTUNE], lines[PBT]
    assert auto["test"] == pytest.approx((2.08 + 4.04) / 2)
    assert auto["excess"] == pytest.approx((4 + 1) / 2)
    # The t quantile of one degree of freedom times the standard error: 12.706 · (2.121 / √2).
    assert auto["excess_half_width"] == pytest.approx(12.706 * 1.5, rel=1e-3)
    assert auto["runs_to_reach"] == pytest.approx((0.4 + 0.8) / 2)
    assert auto["reached"] == 2
    assert auto["runs_spent"] == 8
    assert pbt["excess"] == pytest.approx((20 + 10) / 2)
    assert pbt["runs_to_reach"] is None
    assert pbt["reached"] == 0
    assert (pbt["trials"], pbt["pruned"], pbt["core_seconds"]) == (9, 3, 2.0)


def test_verdicts() -> None:
    analysed = analyse(rows_of_two_seeds(), {"a": 100})
    found = analysed["verdicts"]
    mean_of_pbt = next(line["test"] for line in analysed["tasks"][0]["arms"] if line["arm"] == PBT)
    # By seed AutoTune is 0.32 and 0.36 lower: 0.34 ± 0.25.
    lead = {"ahead": 1, "clearly": 1, "of": 1, "by": pytest.approx(100 * 0.34 / mean_of_pbt), "behind": 0}
    assert found["autotune_ahead_of"] == {PBT: lead}
    assert found["near_the_truth"] == {
        PBT: {"near": 0, "of": 1, "excess": pytest.approx(15.0)},
        AUTOTUNE: {"near": 1, "of": 1, "excess": pytest.approx(2.5)},
    }


def test_without_a_sweep_or_without_autotune_nothing_is_claimed() -> None:
    rows = [one for one in rows_of_two_seeds() if one["arm"] == PBT]
    found = analyse(rows, {"a": 100})
    assert found["verdicts"] == {"autotune_ahead_of": {}, "near_the_truth": {}}
    (line,) = found["tasks"][0]["arms"]
    assert line["excess"] is None
    assert line["runs_to_reach"] is None
    assert found["tasks"][0]["truth"]["test"] is None


def test_an_arm_that_is_clearly_ahead_of_autotune_is_counted() -> None:
    swapped = {PBT: AUTOTUNE, AUTOTUNE: PBT}
    rows = [{**one, "arm": swapped.get(one["arm"], one["arm"])} for one in rows_of_two_seeds()]
    (lead,) = analyse(rows, {"a": 100})["verdicts"]["autotune_ahead_of"].values()
    assert (lead["ahead"], lead["behind"]) == (0, 1)
    assert lead["by"] < 0
