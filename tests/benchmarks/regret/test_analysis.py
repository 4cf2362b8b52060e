"""The tuned sweep, and its interval."""

from __future__ import annotations

import math

import pytest

from benchmarks.regret.analysis import interval, tuned
from tests.benchmarks.regret.rows import row, sweep

BEST = sweep(0.1, 1.0, 1.2, 0.8)
OTHERS = sweep(0.01, 1.5, 1.5, 1.5) + sweep(1.0, 1.1, 1.1, 1.1)


def test_tuned_is_the_lowest_mean_over_seeds() -> None:
    best = tuned(BEST + OTHERS)
    assert best is not None
    assert (best.lr, best.schedule, best.mean("held_out")) == (0.1, "wsd", 1.0)
    assert tuned([row("autolr", 0, 1.0)]) is None


def test_confidence_interval_is_students() -> None:
    # Mean 2, standard deviation 1, three values: t = 4.303.
    assert interval([1, 2, 3]) == (2, pytest.approx(4.303 / math.sqrt(3)))
    assert interval([5.0]) == (5.0, None)
    assert interval([1.0, math.inf]) == (math.inf, None)
    mean, half = interval([0.0, 2.0] * 50)
    assert half == pytest.approx(1.984 * math.sqrt(100 / 99) / 10, rel=1e-3)
    assert mean == 1
