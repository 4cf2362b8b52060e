"""What is told of the runs."""

from __future__ import annotations

import random
import statistics
from dataclasses import asdict

import pytest

from benchmarks.rows import Row
from benchmarks.speedrun.runs import Run
from benchmarks.speedrun.tables import analyse, markdown, z_test


def _row(arm: str, seed: int, accuracy: float, loss: float | None = 0.3) -> tuple[Run, Row]:
    run = Run(arm, seed)
    told = {"accuracy_augmented": accuracy, "accuracy": accuracy - 0.01, "loss": loss}
    return run, {**asdict(run), **told, "seconds": 2.0, "trained_on": 50_000, "taken": 200}


def _rows(arm: str, mean: float, seeds: int = 30) -> dict[Run, Row]:
    return dict(_row(arm, seed, mean + 0.001 * (seed % 3 - 1)) for seed in range(seeds))


def test_the_z_test_is_that_of_a_slow_twin() -> None:
    """How often means of normal numbers, of these deviations, differ by more than what was seen."""
    draw = random.Random(0)
    ours, theirs = ([draw.gauss(mean, 1 + mean) for _ in range(30)] for mean in (0.6, 0.0))
    difference, half, p = z_test(ours, theirs)
    assert difference == pytest.approx(statistics.fmean(ours) - statistics.fmean(theirs))
    errors = [statistics.stdev(values) / len(values) ** 0.5 for values in (ours, theirs)]
    drawn = [draw.gauss(0, errors[0]) - draw.gauss(0, errors[1]) for _ in range(40_000)]
    assert p == pytest.approx(sum(abs(one) > abs(difference) for one in drawn) / len(drawn), abs=0.01)
    assert sum(abs(one) < half for one in drawn) / len(drawn) == pytest.approx(0.95, abs=0.01)


def test_no_noise_is_no_error() -> None:
    assert z_test([1.0, 1.0], [1.0, 1.0]) == (0.0, 0.0, 1.0)
    assert z_test([2.0, 2.0], [1.0, 1.0]) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("ours", "seeds", "verdict"),
    [(0.94, 30, "equal"), (0.93, 30, "worse"), (0.945, 30, "better"), (0.9425, 3, "not told apart")],
)
def test_a_verdict_needs_a_small_p_or_a_narrow_interval(ours: float, seeds: int, verdict: str) -> None:
    found = analyse({**_rows("hand", 0.94, seeds), **_rows("autolr", ours, seeds)})
    assert found["arms"]["autolr"]["accuracy_augmented"]["verdict"] == verdict
    assert "verdict" not in found["arms"]["hand"]["accuracy_augmented"]
    assert verdict in markdown(found)
    assert found["reproduced"]


def test_a_lower_loss_is_better() -> None:
    rows = _rows("hand", 0.94) | dict(_row("default", seed, 0.94, 0.2 + 0.001 * seed) for seed in range(30))
    assert analyse(rows)["arms"]["default"]["loss"]["verdict"] == "better"


def test_what_diverged_counts_with_its_accuracy() -> None:
    rows = _rows("hand", 0.94) | dict(_row("autolr", seed, 0.1, None) for seed in range(30))
    found = analyse(rows)
    assert found["arms"]["autolr"]["accuracy_augmented"]["mean"] == 0.1
    assert markdown(found).endswith("| not finite |")


def test_hand_alone_has_a_table() -> None:
    found = analyse(_rows("hand", 0.9, 1))
    assert not found["reproduced"]
    assert "| by hand | 1 | 50,000 | 89.90 | – |" in markdown(found)
