"""From rows to what replicas add: regrets, paired differences, the noise, and the words for them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.fan_out.analysis import analyse, exponent
from benchmarks.fan_out.plan import PROBES, SWEEP, Run
from benchmarks.rows import Row

SEEDS = range(3)


def row(arm: str, replicas: int, seed: int, loss: float, *, lr: float | None = None) -> Row:
    run = Run("task", "sgd", arm, replicas, seed, lr, "wsd" if lr else "own")
    return {
        **asdict(run),
        "init": 3.0,
        "held_out": loss,
        "chosen": loss - 0.1,
        "diverged": False,
        "progress_error": 0.1 / math.sqrt(replicas),
        "decision_error": 0.2,
    }


def sweep() -> list[Row]:
    """Won at 0.1, with a loss of 1 for seed 0, 1.1 and 1.2."""
    return [
        row(SWEEP, 1, seed, loss + 0.1 * seed, lr=lr)
        for lr, loss in ((0.1, 1.0), (1.0, 1.5))
        for seed in SEEDS
    ]


def alone(by: float = 0.2) -> list[Row]:
    return [row(PROBES, 1, seed, 1.0 + 0.1 * seed + by) for seed in SEEDS]


def line_of(rows: list[Row], replicas: int) -> dict[str, Any]:
    line: dict[str, Any]
    (line,) = (one for one in analyse(rows)["lines"] if one["replicas"] == replicas)
    return line


def test_regret_is_taken_against_the_tuned_run_of_the_same_seed() -> None:
    line = line_of([*sweep(), *alone()], 1)
    expected = [100 * 0.2 / (2.0 - 0.1 * seed) for seed in SEEDS]
    assert line["held_out"]["regret"] == pytest.approx(sum(expected) / 3)
    assert line["chosen"]["regret"] == pytest.approx(
        sum(100 * 0.2 / (2.1 - 0.1 * seed) for seed in SEEDS) / 3
    )
    assert line["held_out"]["regret_half_width"] > 0
    assert "difference" not in line["held_out"], "from itself"


def test_what_replicas_add_is_paired() -> None:
    """Seeds differ by more than replicas add; the difference does not."""
    rows = [*sweep(), *alone(), *(row(PROBES, 4, seed, 1.1 + 0.1 * seed) for seed in SEEDS)]
    found = line_of(rows, 4)["held_out"]
    assert found["difference"] == pytest.approx(sum(-100 * 0.1 / (2 - 0.1 * seed) for seed in SEEDS) / 3)
    assert found["difference"] + found["difference_half_width"] < 0
    assert (found["better"], found["compared"]) == (3, 3)
    _, said = analyse(rows)["follows"]
    assert said.startswith("N = 4: the end is better than one replica's: -5.27 ± ")
    assert said.endswith("points (better in 3 of 3)")


def test_the_error_of_progress_is_a_ratio_within_a_seed() -> None:
    rows = [*sweep(), *alone(), *(row(PROBES, 4, seed, 1.2) for seed in SEEDS)]
    assert line_of(rows, 4)["progress_error_ratio"] == pytest.approx(0.5)
    assert exponent(analyse(rows)["lines"]) == pytest.approx(-0.5)


def test_one_that_diverged_leaves_no_mean_but_is_counted() -> None:
    lost = {**row(PROBES, 2, 0, 1.0), "diverged": True, "held_out": None}
    rows = [*sweep(), *alone(), lost, *(row(PROBES, 2, seed, 1.0) for seed in (1, 2))]
    line = line_of(rows, 2)
    assert line["diverged"] == 1
    assert line["held_out"]["regret"] is None
    assert (line["held_out"]["better"], line["held_out"]["compared"]) == (2, 3)
    assert "the end is lost in some runs (better in 2 of 3)" in " ".join(analyse(rows)["follows"])
