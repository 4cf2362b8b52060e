"""From rows to the table."""

import itertools
import json
import math
import statistics
import xml.etree.ElementTree

import pytest

from benchmarks.tools.quote.tables.rates import zoo
from benchmarks.zoo import catalogue
from benchmarks.zoo.analysis import analyse
from benchmarks.zoo.chart import chart
from benchmarks.zoo.families import part_of
from benchmarks.zoo.plan import PEERS, Plan
from tests.benchmarks.zoo.rows import complete, row_of

PLAN = Plan([("letter-mlp", "adamw"), ("clothes-autoencoder", "sgd")])


def loss(run):
    if run.method in PEERS:
        return 3.0 if run.optimizer == "sgd" else 1.1
    if run.method == "autolr":
        return 1.05 if run.task == "letter-mlp" else 1.2
    return 1 + abs(math.log10(run.rate / (1e-3 if run.optimizer == "adamw" else 1e-1)))


def test_excess_is_told_per_cell_and_per_part():
    told = analyse(PLAN, complete(PLAN, loss))
    letters, clothes = told["cells"]
    assert letters["sweep"]["test"] == {"loss": 1.0, "rate": 1e-3, "schedule": "onecycle", "seeds": 3}
    assert letters["default"]["excess_test"] == 0
    assert letters["autolr"]["excess_test_chosen"] == pytest.approx(0.05)
    assert clothes["default"]["excess_test"] == pytest.approx(1.0)
    assert clothes["default"]["lost"] == 3
    everything = told["summary"]["all"]["autolr"]
    assert everything["test"]["mean"] == pytest.approx(0.125)
    assert everything["test"]["worst"] == pytest.approx(0.2)
    assert everything["test"]["ahead_of_default"] == 1
    assert everything["lost"] == 0
    assert told["summary"][part_of("clothes")]["autolr"]["cells"] >= 1
    json.dumps(told, allow_nan=False)


def test_how_often_the_tuned_rate_is_among_those_to_be_expected():
    done = complete(PLAN, loss)
    for seed, found in enumerate(
        (5.9e-3, 6.1e-3, None)
    ):  # the tuned one is 1e-3, the range a sixth to six times
        run = PLAN.run("autolr", PLAN.cells[0], seed)
        done[run] = done[run] | {"found": found}
    told = analyse(PLAN, done)
    assert told["cells"][0]["autolr"]["likely"] == 1
    assert told["summary"][part_of("letter-shapes")]["autolr"]["likely"] == pytest.approx(1 / 3)


def test_a_run_that_leaves_nothing_counts_as_its_start():
    done = complete(PLAN, loss)
    run = PLAN.run("autolr", PLAN.cells[0], 0)
    done[run] = row_of(run, math.inf) | {"test_chosen": None}
    line = analyse(PLAN, done)["cells"][0]
    assert line["autolr"]["excess_test"] == pytest.approx((2.0 + 1.05 + 1.05) / 3 - 1)
    assert line["autolr"]["lost"] == 1


def test_other_seeds_of_the_default_do_not_pass_for_the_sweep():
    sweep = complete(Plan(PLAN.cells[1:], methods=("sweep",), seeds=1), loss)
    default = complete(Plan(PLAN.cells[1:], methods=("default",)), loss)
    (line,) = analyse(PLAN, {**sweep, **default})["cells"]
    assert line["sweep"]["test"]["rate"] == 0.1
    assert line["autolr"] is None


def test_a_cell_without_a_sweep_has_no_line():
    done = complete(Plan(PLAN.cells, methods=("autolr",)), loss)
    assert analyse(PLAN, done) == {"cells": [], "summary": {}, "goals": {}}


def test_peers_are_compared_on_their_own_cells():
    told = analyse(PLAN, complete(PLAN, loss))
    letters, clothes = told["cells"]
    assert clothes["prodigy"] is None, "it is for AdamW"
    assert letters["prodigy"]["excess_test"] == pytest.approx(0.1)
    assert clothes["schedule-free"]["lost"] == 3
    prodigy = told["summary"]["all"]["prodigy"]
    assert (prodigy["cells"], prodigy["runs"]) == (1, 3)
    assert prodigy["test_chosen"]["autolr_there"] == pytest.approx(0.05)
    shown = zoo({**told, "summary": dict.fromkeys(("test", "dev", "fit"), told["summary"]["all"])})
    assert "| **AutoLR** | " in shown
    assert "Prodigy" not in shown, "it is not for every cell"


def test_a_floor_is_the_smallest_unit():
    plan = Plan([("mushrooms-separable", "adamw")])
    (line,) = analyse(plan, complete(plan, lambda run: 1e-6 if run.rate else 0.005))["cells"]
    assert line["autolr"]["excess_test"] == pytest.approx(0.1, rel=1e-3)


def test_what_a_user_would_do_instead_is_read_from_the_sweep(monkeypatch):
    monkeypatch.setattr("benchmarks.zoo.others.paces", lambda: {("letter-mlp", "adamw"): 1e3})
    told = analyse(PLAN, complete(PLAN, loss))
    letters, clothes = told["cells"]
    # One rate for each optimizer, from the fit families alone, whichever of the two is among them.
    fit = [line for line in told["cells"] if line["part"] == "fit"]
    assert all(line["one rate"]["excess_test"] == 0 for line in fit)
    assert (clothes["one rate"] is None) == (clothes["part"] != "fit")
    # The prior's rate at this pace is 4e-4, and the sweep's nearest is 3.2e-4.
    assert letters["prior"]["excess_test"] == pytest.approx(0.5, abs=1e-3)
    assert clothes["prior"] is None
    # Of eight rates, two at a distance of each half-decade but for the best and the last.
    ordered = sorted(1 + abs(exponent + 6) / 2 for exponent in range(-10, -2))
    assert letters["random 8"]["excess_test"] == pytest.approx(0.0, abs=1e-3)
    draws = list(itertools.combinations(ordered, 4))
    expected = statistics.fmean(min(draw) for draw in draws) - 1
    assert letters["random 4"]["excess_test"] == pytest.approx(expected, rel=1e-3)


def test_goals_are_those_of_the_test_families():
    cells = [cell for cell in catalogue.cells("test") if cell[1] == "adamw"][:3]
    plan = Plan(cells)
    met = analyse(plan, complete(plan, lambda run: 1.0 if run.method == "autolr" else loss(run) + 0.5))
    assert all(goal["met"] for goal in met["goals"].values())
    missed = analyse(plan, complete(plan, lambda run: 9.0 if run.method == "autolr" else loss(run)))
    assert not any(goal["met"] for goal in missed["goals"].values())
    assert analyse(PLAN, complete(PLAN, loss))["goals"] == {} or "test" in map(
        part_of, {"letter-shapes", "clothes"}
    )


def test_the_chart_has_a_line_for_most_methods():
    drawn = chart(analyse(PLAN, complete(PLAN, loss)))
    assert drawn.count("<polyline") == 6, "AutoLR, one rate, two of random rates, the default, Schedule-Free"
    assert "AutoLR of 0.2.0" not in drawn
    xml.etree.ElementTree.fromstring(drawn)
