"""From runs to the cells of a table and the curves of a figure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.regret.analysis import interval
from benchmarks.reproduce.analysis import CURVES, curves, learning_rates, table
from benchmarks.reproduce.plan import CONFIGURATIONS
from benchmarks.reproduce.text import said
from tests.benchmarks.reproduce.rows import GROUPS, PLAN, all_done, with_head


def test_cells_of_the_table(result: dict[str, Any]) -> None:
    paper, crash = result["blocks"]
    assert [row["configuration"] for row in paper["rows"]] == list(CONFIGURATIONS)
    low, high = paper["rows"][:2]
    mean, half = interval([1.2, 1.21, 1.22])
    assert low["train"] == {"mean": pytest.approx(mean), "half_width": pytest.approx(half, rel=1e-5)}
    assert (low["paper"], high["paper"]) == (
        {"loss": 3.294, "crashed": False},
        {"loss": 4.169, "crashed": True},
    )
    crashed = crash["rows"][1]
    assert (crashed["lr"], crashed["crashed"], crashed["crash_step"]) == (0.3162, 3, 81)
    # One of the three is not finite: there is no mean.
    assert crashed["train"] == {"mean": None, "half_width": None}
    tuned = crash["rows"][-1]
    assert (tuned["lr"], tuned["train"]["mean"]) == (0.01, pytest.approx(1.01))
    assert paper["rows"][-2] == crash["rows"][-2]
    assert (paper["rows"][-2]["lr"], paper["rows"][-2]["paper"]) == (None, None)
    assert [row["crashed"] for row in result["sweep"]["rows"]] == [0] * 7 + [3]
    assert len(result["runs"]["rows"]) == len(all_done(PLAN))
    json.dumps(result, allow_nan=False)


def test_auc_and_normalised_entropy_stand_beside_the_losses(result: dict[str, Any]) -> None:
    low = result["blocks"][0]["rows"][0]
    assert low["auc"]["like"]["mean"] == pytest.approx(0.71)
    assert low["auc"]["mean"]["mean"] == pytest.approx(0.655)
    assert low["ne"]["mean"] == {"mean": pytest.approx(0.45), "half_width": 0.0}
    header = result["runs"]["header"]
    assert header[-2:] == ["auc", "ne"]
    assert result["runs"]["rows"][0][-2] == [0.7, 0.6]
    shown = [line.split() for line in said(result).splitlines() if line.startswith("Baseline-Low")]
    assert shown[1] == ["Baseline-Low", "0.7100", "0.6000", "0.6550", "0.9000", "0.0000", "0.4500"]


def test_rows_from_before_auc_have_no_such_column() -> None:
    old = {
        run: {k: v for k, v in row.items() if k not in ("auc", "ne")} for run, row in all_done(PLAN).items()
    }
    made = table(PLAN, old)
    assert made["runs"]["header"][-1] == "by_answer"
    assert not any("auc" in row for block in made["blocks"] for row in block["rows"])
    assert "AUC" not in said(with_head("table1", made))


def test_figures_have_the_curves_of_every_seed() -> None:
    finished = all_done(PLAN)
    for block in curves(PLAN, finished)["blocks"]:
        assert [curve["configuration"] for curve in block["curves"]] == list(CURVES)
        assert all([run["seed"] for run in curve["runs"]] == [0, 1, 2] for curve in block["curves"])
    crash = curves(PLAN, finished)["blocks"][1]["curves"][1]
    assert (crash["crashed"], crash["crash_step"], crash["runs"][0]["loss"]) == (3, 81, [2.0, None])

    found = learning_rates(PLAN, finished, steps=100, control_from=33)
    assert (found["groups"], found["control_from"]) == (list(GROUPS), 33)
    for block in found["blocks"]:
        assert max(block["plain"]["lr"]) == pytest.approx(block["high"], rel=1e-3)
        assert block["order"]["published"]["both"] == 3
        assert len(block["runs"]) == 3
    json.dumps(found, allow_nan=False)
