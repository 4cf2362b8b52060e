"""Regret: its arithmetic, its interval, and the goals."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest

from benchmarks.regret.analysis import analyse, interval, regrets, tuned
from benchmarks.regret.plan import Run
from tests.benchmarks.regret.rows import row, sweep

BEST = sweep(0.1, 1.0, 1.2, 0.8)
OTHERS = sweep(0.01, 1.5, 1.5, 1.5) + sweep(1.0, 1.1, 1.1, 1.1)


def test_tuned_is_the_lowest_mean_over_seeds() -> None:
    best = tuned(BEST + OTHERS)
    assert best is not None
    assert (best.lr, best.schedule, best.mean("held_out")) == (0.1, "wsd", 1.0)
    assert tuned([row("default", 0, 1.0)]) is None


def test_regret_is_paired_by_seed() -> None:
    best = tuned(BEST)
    assert best is not None
    # Each seed loses 10 % of what its own tuned run gained.
    ours = [row("autolr", seed, 0.9 * loss + 0.1 * 2.0) for seed, loss in enumerate((1.0, 1.2, 0.8))]
    assert regrets(ours, best) == pytest.approx([10, 10, 10])
    mean, half = interval(regrets(ours, best))
    assert (mean, half) == (pytest.approx(10), pytest.approx(0, abs=1e-9))


def test_confidence_interval_is_students() -> None:
    # Mean 2, standard deviation 1, three values: t = 4.303.
    assert interval([1, 2, 3]) == (2, pytest.approx(4.303 / math.sqrt(3)))
    assert interval([5.0]) == (5.0, None)
    assert interval([1.0, math.inf]) == (math.inf, None)
    mean, half = interval([0.0, 2.0] * 50)
    assert half == pytest.approx(1.984 * math.sqrt(100 / 99) / 10, rel=1e-3)
    assert mean == 1


def test_analysis_of_known_regrets() -> None:
    rows = [
        *BEST,
        *OTHERS,
        *(row("autolr", seed, loss) for seed, loss in enumerate((1.01, 1.2, 0.8))),
        *(row("prodigy", seed, loss) for seed, loss in enumerate((1.1, 1.3, 0.9))),
        *(row("mechanic", seed, 1.0, diverged=seed == 1) for seed in range(3)),
        row("autolr@10", 0, 1.5),
    ]
    found = analyse(rows)
    (pair,) = found["pairs"]
    assert pair["tuned"] == {"loss": 1.0, "lr": 0.1, "schedule": "wsd", "seeds": 3}
    assert pair["arms"]["autolr"]["held_out"]["regret"] == pytest.approx(1 / 3)
    assert pair["arms"]["autolr"]["train"]["regret"] == pytest.approx(1 / 3)
    assert pair["arms"]["prodigy"]["held_out"]["regret"] == pytest.approx((10 + 12.5 + 8 + 1 / 3) / 3)
    assert pair["arms"]["mechanic"] | {"reached": 0} == {
        "seeds": 3,
        "diverged": 1,
        "reached": 0,
        "held_out": {"regret": None, "half_width": None},
        "train": {"regret": None, "half_width": None},
    }
    assert found["overall"]["autolr@10"]["worst"] == pytest.approx(50)
    assert found["overall"]["mechanic"]["mean"] is None
    assert found["overall"]["autolr"]["train_mean"] == pytest.approx(1 / 3)
    met = {name: goal["met"] for name, goal in found["goals"].items()}
    assert met == {
        "mean regret of AutoLR at most 0.3 %": False,
        "worst at most 1 %": True,
        "at least: mean 0.7 %": True,
        "at least: worst 2 %": True,
        "never diverges": True,
        "ahead of every learning-rate-free peer on every workload": True,
    }
    json.dumps(found, allow_nan=False)


def test_goals_notice_a_lost_run_and_a_better_peer() -> None:
    rows = [*BEST, row("autolr", 0, 1.1), row("autolr@1", 0, 1.0, diverged=True), row("prodigy", 0, 1.05)]
    goals = analyse(rows)["goals"]
    assert goals["never diverges"] == {"at_most": 0, "measured": 1, "of": 2, "met": False}
    assert goals["ahead of every learning-rate-free peer on every workload"]["behind"] == [
        "quadratic adamw: Prodigy"
    ]
    raised = {**asdict(Run("quadratic", "adamw", "autolr", None, "own", 1)), "error": "ValueError: no"}
    assert analyse(rows, [raised])["goals"]["never diverges"]["measured"] == 2
    assert not any(goal["met"] for goal in analyse([])["goals"].values())
