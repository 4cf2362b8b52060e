"""What a rate found before training is held against."""

from __future__ import annotations

import pytest

from benchmarks.rows import Row
from benchmarks.zoo.finders import FINDERS, Run, compare, execute, truth

CELL = ("linear-layers-full-batch", "adamw")


def _swept(rate: float, loss: float | None, schedule: str = "wsd", seed: int = 0) -> Row:
    known = {"task": CELL[0], "optimizer": CELL[1], "method": "fixed", "schedule": schedule, "seed": seed}
    return {**known, "rate": rate, "probe_chosen": loss, "test_chosen": loss}


def _found(finder: str, rate: float | None) -> Row:
    return {"task": CELL[0], "optimizer": CELL[1], "finder": finder, "rate": rate}


def test_a_rate_is_told_by_its_factor_to_the_sweeps_best_and_by_what_the_nearest_of_it_costs() -> None:
    rows = [_swept(1e-4, 2.0), _swept(1e-3, 1.0), _swept(1e-2, 1.25), _swept(1e-1, None)]
    rows += [_swept(1e-4, 0.1, schedule="onecycle"), _swept(1e-4, 0.1, seed=1)]
    found = compare([_found("hdet.find", 8e-3), _found("range test", None)], truth(rows))
    told = found["hdet.find"]
    assert told["median_factor"] == pytest.approx(8)
    assert told["mean_above"] == pytest.approx(0.25)
    assert (told["within_3.2"], told["within_10"]) == (0, 1)
    assert found["range test"]["median_factor"] is None
    assert found["range test"]["nothing_found"] == 1


def test_a_rate_that_diverges_counts_for_all() -> None:
    sweep = truth([_swept(1e-3, 1.0), _swept(1e-1, None)])
    assert compare([_found("default", 0.2)], sweep)["default"]["mean_above"] == 1.0


@pytest.mark.parametrize("finder", FINDERS)
def test_each_finds_a_rate(finder: str) -> None:
    row = execute(Run(*CELL, finder))
    assert row.get("error") is None
    assert 1e-8 < row["rate"] < 1
