"""What a run recovers of what a wrong value loses."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.hyperparameters.analysis import analyse, best_of, recovered
from benchmarks.hyperparameters.plan import Plan
from benchmarks.rows import Row
from tests.benchmarks.hyperparameters.rows import BEST, SINGLES, all_done


def test_recovered_is_paired_by_seed() -> None:
    wrong, best = {0: 3.0, 1: 4.0}, {0: 1.0, 1: 2.0}
    assert recovered({0: 2.0, 1: 3.0, 2: 9.0}, wrong, best) == [50, 50]
    assert recovered({0: 1.0, 1: 1.0}, wrong, best) == [100, 150]
    assert recovered({0: 1.0}, {0: 1.0}, {0: 1.0}) == [], "where nothing is lost nothing can be recovered"
    assert recovered({0: 1.5}, {0: math.inf}, {0: 1.0}) == [100]
    assert recovered({0: math.inf}, {0: 2.0}, {0: 1.0}) == [-math.inf]


def test_the_best_value_is_that_of_the_lowest_mean_over_all_seeds() -> None:
    losses = {(0.1,): {0: 1.0, 1: 1.4}, (1.0,): {0: 1.1, 1: 1.2}, (3.0,): {0: 0.5}}
    assert best_of(losses) == (1.0,)
    assert best_of({}) is None


def made(plan: Plan) -> list[Row]:
    return [{**row, "start": tuple(row["start"])} for row in all_done(plan).finished.values()]


def paths_of(rows: list[Row]) -> list[Row]:
    return [
        {**{n: row[n] for n in ("task", "arm", "start", "seed")}, "explored": name, "values": values}
        for row in rows
        for name, values in row["paths"].items()
    ]


def test_analysis_of_known_shares() -> None:
    rows = made(Plan())
    found = analyse(rows, paths_of(rows))
    assert [task["task"] for task in found["tasks"]] == list(SINGLES)
    for task in found["tasks"]:
        assert [start["start"] for start in task["starts"]] == [
            task["grid"][0]["value"],
            task["grid"][-1]["value"],
        ]
        assert len(task["best"]["losses"]) == 3
        for start in task["starts"]:
            assert start["recovered"]["mean"] == pytest.approx(90, abs=1)
            assert start["recovered"]["seeds"] == 3
            assert start["found"] == [BEST[task["task"]]] * 3
    shares = {arm["arm"]: arm["recovered"]["mean"] for arm in found["four"]["arms"]}
    assert shares["all wrong, fixed"] == 0
    assert shares["each at the best of its own grid, fixed"] == 100
    assert shares["all at once"] == shares["one after the other"] == pytest.approx(90, abs=5)
    assert all(goal["met"] for goal in found["goals"].values())
    json.dumps(found, allow_nan=False)
