"""From rows to what replicas add: regrets, paired differences, the noise, and the words for them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from hdet.bench.fan_out.analysis import analyse, exponent, follows
from hdet.bench.fan_out.plan import OWN, PROBES, SHARED, SWEEP, Run
from hdet.bench.rows import Row

SEEDS = range(3)


def row(
    arm: str, replicas: int, seed: int, loss: float, *, spread: float = 0.0, lr: float | None = None
) -> Row:
    run = Run("task", "sgd", arm, replicas, spread, seed, lr, "wsd" if lr else "own")
    return {
        **asdict(run),
        "init": 3.0,
        "held_out": loss,
        "chosen": loss - 0.1,
        "diverged": False,
        "progress_error": 0.1 / math.sqrt(replicas),
        "decision_error": 0.2,
        "slope_certainty": 2.0 if arm == OWN else None,
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


def line_of(rows: list[Row], arm: str, replicas: int) -> dict[str, Any]:
    line: dict[str, Any]
    (line,) = (one for one in analyse(rows)["lines"] if (one["arm"], one["replicas"]) == (arm, replicas))
    return line


def test_regret_is_taken_against_the_tuned_run_of_the_same_seed() -> None:
    line = line_of([*sweep(), *alone()], PROBES, 1)
    expected = [100 * 0.2 / (2.0 - 0.1 * seed) for seed in SEEDS]
    assert line["held_out"]["regret"] == pytest.approx(sum(expected) / 3)
    assert line["chosen"]["regret"] == pytest.approx(
        sum(100 * 0.2 / (2.1 - 0.1 * seed) for seed in SEEDS) / 3
    )
    assert line["held_out"]["regret_half_width"] > 0
    assert "difference" not in line["held_out"], "from itself"


def test_what_replicas_add_is_paired() -> None:
    """Seeds differ by more than replicas add; the difference does not."""
    rows = [*sweep(), *alone(), *(row(OWN, 4, seed, 1.1 + 0.1 * seed, spread=0.3) for seed in SEEDS)]
    found = line_of(rows, OWN, 4)["held_out"]
    assert found["difference"] == pytest.approx(sum(-100 * 0.1 / (2 - 0.1 * seed) for seed in SEEDS) / 3)
    assert found["difference"] + found["difference_half_width"] < 0
    assert (found["better"], found["compared"]) == (3, 3)
    (said,) = analyse(rows)["follows"]
    assert said.startswith("own gradients, spread 0.3, N = 4: the end is better than one replica's: -5.27 ± ")
    assert said.endswith("points (better in 3 of 3)")


def test_worse_and_not_told_apart_are_said_as_such() -> None:
    worse = [row(PROBES, 2, seed, 1.5 + 0.1 * seed) for seed in SEEDS]
    unsure = [row(SHARED, 2, seed, 1.2 + 0.1 * seed + 0.1 * (seed - 1), spread=0.1) for seed in SEEDS]
    said = analyse([*sweep(), *alone(), *worse, *unsure])["follows"]
    assert said[0] == "probing in parallel, the error of the progress falls like N^-0.50"
    assert "probes, N = 2: the end is worse than one replica's" in said[1]
    assert "shared gradient, spread 0.1, N = 2: the end is not told from one replica's" in said[2]


def test_the_error_of_progress_is_a_ratio_within_a_seed() -> None:
    rows = [*sweep(), *alone(), *(row(PROBES, 4, seed, 1.2) for seed in SEEDS)]
    assert line_of(rows, PROBES, 4)["progress_error_ratio"] == pytest.approx(0.5)
    assert exponent(analyse(rows)["lines"]) == pytest.approx(-0.5)


def test_one_that_diverged_leaves_no_mean_but_is_counted() -> None:
    lost = {**row(PROBES, 2, 0, 1.0), "diverged": True, "held_out": None}
    rows = [*sweep(), *alone(), lost, *(row(PROBES, 2, seed, 1.0) for seed in (1, 2))]
    line = line_of(rows, PROBES, 2)
    assert line["diverged"] == 1
    assert line["held_out"]["regret"] is None
    assert (line["held_out"]["better"], line["held_out"]["compared"]) == (2, 3)
    assert "the end is lost in some runs (better in 2 of 3)" in " ".join(analyse(rows)["follows"])


def test_without_a_sweep_there_is_noise_and_no_regret() -> None:
    line = line_of([*alone(), row(PROBES, 2, 0, 1.0)], PROBES, 2)
    assert line["held_out"]["regret"] is None
    assert line["held_out"]["compared"] == 0
    assert line["progress_error_ratio"] == pytest.approx(math.sqrt(0.5))
    assert "has not been compared" in follows([line])[0]


def test_nothing_yet_is_an_empty_table() -> None:
    assert analyse([]) == {"lines": [], "pairs": [], "follows": []}


def test_the_lines_stand_in_the_order_of_the_arms() -> None:
    kinds = [(OWN, 4, 0.3), (OWN, 2, 0.3), (SHARED, 2, 0.1), (PROBES, 4, 0.0), (PROBES, 2, 0.0)]
    rows = [*sweep(), *(row(arm, n, 0, 1.0, spread=s) for arm, n, s in kinds), *alone()]
    lines = analyse(rows)["lines"]
    assert [(line["arm"], line["replicas"]) for line in lines] == [
        (PROBES, 1),
        *[(arm, n) for arm, n, _ in reversed(kinds)],
    ]
