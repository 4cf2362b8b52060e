"""What is read off a sweep, against a fine grid and against draws."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.regret.curve import Curve

BOWL = Curve({1e-4: 2.0, 1e-3: 1.0, 1e-2: 0.5, 1e-1: 0.9, 1.0: 2.0}, best=1e-2)

losses = st.lists(st.floats(0.1, 10), min_size=2, max_size=7)


def made(values: list[float]) -> Curve:
    by_rate = {10.0**-place: value for place, value in enumerate(values)}
    return Curve(by_rate, best=min(by_rate, key=lambda rate: by_rate[rate]))


def loss_at(curve: Curve, rate: float) -> float:
    """The curve at any rate of its range, by the two rates around it."""
    rates = sorted(curve.losses)
    for low, high in itertools.pairwise(rates):
        if low <= rate <= high:
            share = math.log(rate / low) / math.log(high / low)
            return (1 - share) * curve.losses[low] + share * curve.losses[high]
    raise AssertionError(rate)


def fine(curve: Curve, count: int = 4001) -> list[tuple[float, float]]:
    """(rate, loss) at evenly spaced logarithms."""
    low, high = min(curve.losses), max(curve.losses)
    rates = [low * (high / low) ** (place / (count - 1)) for place in range(count)]
    return [(rate, loss_at(curve, min(max(rate, low), high))) for rate in rates]


def best_of_by_order(curve: Curve, trials: float) -> float:
    """E[min] over a fine grid, with replacement: how often the i-th is the best of k."""
    ordered = sorted(loss for _, loss in fine(curve))
    n = len(ordered)
    return math.fsum(
        loss * (((n - i) / n) ** trials - ((n - i - 1) / n) ** trials) for i, loss in enumerate(ordered)
    )


@settings(max_examples=60, deadline=None)
@given(values=losses, trials=st.sampled_from([0.5, 1, 3, 10, 30]))
def test_best_of_k_is_the_order_statistic(values: list[float], trials: float) -> None:
    curve = made(values)
    spread = max(values) - min(values)
    assert curve.best_of(trials) == pytest.approx(
        best_of_by_order(curve, trials), abs=2e-3 * spread * max(1, trials) + 1e-9
    )


@settings(max_examples=60, deadline=None)
@given(values=losses, trials=st.floats(0.1, 50))
def test_trials_undo_best_of(values: list[float], trials: float) -> None:
    curve = made(values)
    if max(values) - min(values) < 1e-3:
        return
    loss = curve.best_of(trials)
    assert curve.best_of(curve.trials(loss)) == pytest.approx(loss, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(values=losses, share=st.floats(0.01, 1.2))
def test_off_is_the_nearest_rate_as_bad(values: list[float], share: float) -> None:
    curve = made(values)
    loss = min(values) + share * (max(values) - min(values))
    grid = fine(curve)
    above = [rate / curve.best for rate, found in grid if rate >= curve.best and found >= loss]
    below = [curve.best / rate for rate, found in grid if rate <= curve.best and found >= loss]
    step = (max(curve.losses) / min(curve.losses)) ** (2 / len(grid))
    off = curve.off(loss)
    for mine, scanned in ((off.above, above), (off.below, below)):
        # A loss that only the very edge, or a peak between two points of the grid, reaches may be missed.
        if mine is not None and scanned and not math.isclose(loss, max(values), rel_tol=1e-2):
            assert mine == pytest.approx(min(scanned), rel=2 * (step - 1) + 1e-6)
        if mine is None:
            assert not scanned or math.isclose(loss, max(values), rel_tol=1e-6)
