"""What is told of the runs."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.pretrained.plan import Run
from benchmarks.pretrained.tables import analyse, markdown
from benchmarks.rows import Row


def _row(run: Run, rmse: float) -> tuple[Run, Row]:
    return run, {**asdict(run), "loss": 0.1, "r2": 1 - rmse / 100, "rmse": rmse}


def test_an_arm_is_held_against_the_published_one_on_the_splits_that_both_have() -> None:
    rows = dict(
        _row(Run("suzuki", arm, split, 1e-4, 0.1, 15), rmse + split)
        for arm, rmse, splits in (("published, as it ran", 6.0, 3), ("default", 8.0, 5))
        for split in range(splits)
    )
    found = analyse(rows)
    default = found["yields"]["suzuki"]["default"]
    assert (default["rmse"], default["rmse_difference"], default["on"]) == (10.0, 2.0, [0, 1, 2])
    assert "rmse_difference" not in found["yields"]["suzuki"]["published, as it ran"]
    assert found["done"]["as-it-ran"] == [0, 20]
    lines = markdown(found).splitlines()
    assert lines[-1].startswith("| suzuki | 5e-5, dropout 0.1 | 5 | 0.900 ")
    assert "| +2.00 ± 0.00 (splits 0–2) | 1 |" in lines[-1]


@pytest.mark.parametrize("held", [False, True])
def test_a_trial_is_no_arm_of_the_table(held: bool) -> None:
    rows = dict([_row(Run("suzuki", "trial", 0, 1e-4, 0.1, 15, held=held), 6.0)])
    assert bool(analyse(rows)["yields"]) is not held
