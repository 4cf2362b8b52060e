"""The standard error of a decision: the jackknife, held against what can be known without it."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from benchmarks.fan_out.noise import NotedController, decision_error, usual, without
from hdet.autolr.choice import standard_error
from hdet.autolr.rule import HorizonController, HorizonState, Window

STATE = HorizonState(1e-3, windows=9, first_loss=4.0)


def window(mean: list[float], gap: float = 0.2) -> Window:
    """Progress of 2 − mean; a gap that brings the lag to where the decision is not clipped."""
    return Window(
        step=100,
        next_step=120,
        total_steps=2000,
        displacement=0.05,
        steps_between=18,
        previous=[2.0] * len(mean),
        mean=mean,
        end=[loss + gap for loss in mean],
    )


def test_the_rule_is_that_of_the_horizon_and_every_judged_window_is_noted() -> None:
    noting = NotedController(ranks=2)
    seen = window([1.9, 1.92, 1.88, 1.91])
    assert noting.update(STATE, seen) == HorizonController().update(STATE, seen)
    (noted,) = noting.noted
    assert noted.step == 100
    assert noted.progress == pytest.approx(0.0975)
    assert noted.progress_error == pytest.approx(statistics.stdev([0.1, 0.08, 0.12, 0.09]) / 2)
    noting.update(HorizonState(1e-3), seen)  # brings the weights to speed, and judges nothing
    assert len(noting.noted) == 1
    assert repr(noting) == repr(NotedController(ranks=2)), "ranks compare it"


def test_it_is_the_deviation_of_decisions_from_other_batches() -> None:
    """The mean of its square is the variance of the decision over probes, up to what a jackknife adds."""
    draw = random.Random(0)
    rule = NotedController(ranks=1)
    changes, errors = [], []
    for _ in range(400):
        seen = window([draw.gauss(1.9, 0.02) for _ in range(16)])
        changes.append(math.log(HorizonController.update(rule, STATE, seen).state.value))
        errors.append(decision_error(rule, STATE, seen, 1))
    assert statistics.pstdev(changes) > 0
    expected = statistics.pvariance(changes)
    assert statistics.fmean(error**2 for error in errors) == pytest.approx(expected, rel=0.2)


def test_one_batch_is_left_out_everywhere_that_it_was_measured() -> None:
    seen = Window(
        step=100,
        next_step=120,
        total_steps=2000,
        displacement=0.2,
        steps_between=18,
        previous=[0, 1, 2, 10, 11, 12],
        mean=[0, 1, 2, 10, 11, 12],
        end=[0, 1, 10, 11],
        mean_there=[0, 1, 10, 11],
    )
    less = without(seen, 4, ranks=2)
    assert (less.previous, less.mean) == ([0, 1, 2, 10, 12], [0, 1, 2, 10, 12])
    assert (less.end, less.mean_there, less.best) == ([0, 1, 10], [0, 1, 10], [])
    less = without(seen, 2, ranks=2)
    assert (less.mean, less.end) == ([0, 1, 10, 11, 12], [0, 1, 10, 11])


def test_what_few_batches_know_is_compared_with_what_many_do_without_a_bias() -> None:
    draw = random.Random(2)

    def found(batches: int) -> float | None:
        samples = [[draw.gauss(0, 1) for _ in range(batches)] for _ in range(3000)]
        return usual([standard_error(values) for values in samples], batches)

    assert found(4) == pytest.approx(1 / 2, rel=0.03)
    assert found(32) == pytest.approx(1 / math.sqrt(32), rel=0.03)
    assert usual([], 4) is None
    assert usual([0.0], 4) is None
