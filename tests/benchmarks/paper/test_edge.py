"""The rate at which training crashes, and how far an arm moves it."""

import math

import pytest
import torch

from benchmarks.paper.edge import crashed, edge_shift, half_crashed

RATES = [0.5 * 1.12**k for k in range(8)]


def simulated(shift, seeds=400, slope=12.0, middle=0.75, seed=0):
    """Crashes of a logistic edge at ``middle`` times 1 + shift."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.tensor([math.log(rate / middle / (1 + shift)) for rate in RATES])
    return (torch.rand(seeds, len(RATES), generator=draw) < (slope * x).sigmoid()).tolist()


def test_a_known_shift_is_found():
    arms = {"plain": simulated(0.0), "higher": simulated(0.15, seed=1), "same": simulated(0.0, seed=2)}
    found = edge_shift(RATES, arms, "plain")
    assert found["plain"]["edge"] == pytest.approx(0.75, rel=0.03)
    assert found["plain"]["shift"] == found["plain"]["low"] == found["plain"]["high"] == 0.0
    assert found["higher"]["low"] < 0.15 < found["higher"]["high"]
    assert found["higher"]["low"] > 0.1
    assert found["same"]["low"] < 0 < found["same"]["high"]


def test_the_interval_covers_the_shift_about_as_often_as_it_says():
    covered = 0
    for seed in range(40):
        arms = {"plain": simulated(0.0, 24, seed=seed), "higher": simulated(0.1, 24, seed=1000 + seed)}
        line = edge_shift(RATES, arms, "plain")["higher"]
        covered += line["low"] <= 0.1 <= line["high"]
    assert covered >= 34


def test_where_no_run_crashes_the_edge_is_beyond_the_rates():
    arms = {"plain": simulated(0.0, 24), "never": [[False] * len(RATES)] * 24}
    found = edge_shift(RATES, arms, "plain")["never"]
    assert found["crashed"] == 0
    assert found["runs"] == 24 * len(RATES)
    assert RATES[-1] < found["edge"] <= RATES[-1] ** 2 / RATES[0] * (1 + 1e-6)
    assert found["low"] > 0


def test_half_of_the_runs_must_crash_somewhere():
    assert half_crashed([1.0, 2.0], [0.0, 0.5]) == pytest.approx(2.0)
    for shares in ([0.0, 0.1, 0.4], [0.6, 0.7, 1.0]):
        with pytest.raises(ValueError, match="must pass one half"):
            half_crashed([1.0, 2.0, 4.0], shares)


def test_a_loss_that_is_not_finite_is_a_crash():
    assert [crashed(final, 1.0, 2.0) for final in (1.49, 1.5, math.inf, math.nan)] == [
        False,
        True,
        True,
        True,
    ]
