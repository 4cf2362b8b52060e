"""What is told of the runs."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.pretrained.plan import Run
from benchmarks.pretrained.tables import analyse, classified, markdown
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
    assert found["done"]["given"] == [0, 40]  # of these settings none is planned
    lines = markdown(found).splitlines()
    assert lines[-1].startswith("| suzuki | 5e-5, dropout 0.1 | 5 | 0.900 ")
    assert "| +2.00 ± 0.00 (splits 0–2) | 1 |" in lines[-1]


def test_pictures_are_held_against_the_sweep_on_the_seeds_that_both_have() -> None:
    runs = {("swept", 0): 0.5, ("swept", 1): 0.5, ("autolr", 0): 0.6, ("autolr", 1): 0.4, ("autolr", 2): 0.9}
    runs |= {("usual", 0): None, ("sweep", 0): 0.1}
    rows: dict[Run, Row] = {}
    for (arm, seed), loss in runs.items():
        run = Run("photos", arm, seed, 1e-3, 0.2, 10, held=arm == "sweep")
        rows[run] = {**asdict(run), "loss": loss, "accuracy": 0.9, "found": 1e-3 * (1 + seed)}
    found = analyse(rows)
    (cell,) = found["images"]["cells"]
    assert set(cell["arms"]) == {"swept", "autolr", "usual"}
    assert cell["arms"]["autolr"]["log_ratio"] == 0
    assert found["images"]["together"]["all"]["usual"]["diverged"] == 1
    assert found["done"]["images"] == [2, 60]  # of these settings two are planned
    assert not found["texts"]["cells"]
    heads, _, line, together = classified(found, "images").splitlines()
    assert heads == "| test loss (accuracy; rate) | AutoLR | the sweep's rate | the usual rate |"
    assert line.endswith("| 0.500 (90.0; 1e-03 … 2e-03) | diverged (90.0; 1e-03) |")
    assert together == (
        "| **whole** | loss +0 % (median +0), below the sweep's in 0 of 1; accuracy 90.0 | accuracy 90.0 "
        "| diverged; accuracy 90.0 |"
    )


@pytest.mark.parametrize("held", [False, True])
def test_a_trial_is_no_arm_of_the_table(held: bool) -> None:
    rows = dict([_row(Run("suzuki", "trial", 0, 1e-4, 0.1, 15, held=held), 6.0)])
    assert bool(analyse(rows)["yields"]) is not held
