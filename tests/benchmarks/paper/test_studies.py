"""What the cells of a study say."""

import json
import math

import pytest

from benchmarks.paper.studies import STUDIES, _by_arm, against
from tests import ROOT

WRITTEN = json.loads((ROOT / "docs" / "evidence" / "paper.json").read_text(encoding="utf-8"))


def cell(course, arm, lr, losses, spread=0.0):
    setting = {"replicas": 4, "spread": spread, "sync_every": 10}
    return {"course": course, "arm": arm, "lr": lr, **setting, "held_out": losses, "train": [1.0] * 2}


def test_cells_are_paired_by_course_rate_and_seed():
    found = [
        cell("a", "plain", 1.0, [1.0, 2.0]),
        cell("a", "plain", 2.0, [4.0, 8.0]),
        cell("b", "plain", 1.0, [16.0, 32.0]),
        cell("a", "fan-out", 1.0, [1.1, 2.2]),
        cell("a", "fan-out", 2.0, [2.0, 16.0]),
        cell("b", "fan-out", 1.0, [16.0, None]),
        cell("c", "fan-out", 1.0, [1.0, 1.0]),
    ]
    steady, torn, alone = against(found, "plain")
    assert (steady["course"], steady["arm"], steady["lr"], steady["sync_every"]) == ("a", "fan-out", 1.0, 10)
    assert (steady["mean"], steady["half"]) == pytest.approx((0.1, 0.0))
    assert torn["mean"] == pytest.approx(0.0)
    assert torn["half"] == pytest.approx(12.7 * math.log(2.0))
    assert torn["ahead"] == 1
    assert (alone["course"], alone["runs"], alone["mean"]) == ("b", 1, None)


def test_another_column_compares_an_arm_with_itself():
    (line,) = against([cell("a", "plain", 1.0, [2.0, 2.0])], "plain", "held_out", "train")
    assert line["mean"] == pytest.approx(1.0)


def line(course, lr, mean, half=0.001, arm="wide"):
    setting = {"spread": 0.5, "sync_every": 10, "replicas": 4}
    return {"course": course, "arm": arm, "lr": lr, **setting, "mean": mean, "half": half}


def test_a_setting_helps_in_two_courses_at_two_rates_each():
    lines = [line("a", 1, -0.1), line("a", 2, -0.1), line("b", 1, -0.1), line("b", 2, -0.3, half=0.5)]
    (told,) = _by_arm(lines)
    assert told.pop("median") == pytest.approx(-0.1)
    setting = {"arm": "wide", "spread": 0.5, "sync_every": 10, "replicas": 4}
    assert told == {**setting, "places": 4, "below": 3, "above": 0, "worst": -0.1, "helps": False}
    first, second = _by_arm([*lines, line("b", 3, -0.2), line("b", 3, 0.2, arm="narrow")])
    assert (first["arm"], first["below"], first["helps"]) == ("wide", 4, True)
    assert (second["arm"], second["above"], second["helps"]) == ("narrow", 1, False)


def nearly(value):
    if isinstance(value, dict):
        return {name: nearly(item) for name, item in value.items()}
    if isinstance(value, list):
        return [nearly(item) for item in value]
    return pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value


@pytest.mark.parametrize("study", [name for name in STUDIES if name in WRITTEN])
def test_the_cells_that_are_kept_make_the_summaries(study):
    cells = WRITTEN[study]["cells"]
    assert {one["course"] for one in cells} == set(STUDIES[study].courses)
    made = STUDIES[study].told(cells)
    assert made == nearly({name: told for name, told in WRITTEN[study].items() if name != "cells"})
