"""The regression as a policy: it walks, keeps its bounds, says what it did not see, and is taken up."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

import hdet
from hdet.hyperparameters import Axis
from hdet.loop.levels import orthogonal, permuted
from hdet.loop.policy import Seen
from hdet.loop.windows import Every
from hdet.tuning.policies import Regression
from hdet.tuning.regression import RegressionController
from tests.fakes import bound

Losses = Callable[[list[tuple[float, ...]]], list[float]]


# ---------------------------------------------------------------------- walking


class Cell:
    """A scalar that someone reads and writes."""

    def __init__(self, value: float) -> None:
        self.value = value

    def axis(self, name: str, spread: float, bounds: tuple[float, float]) -> Axis:
        explored = hdet.Hyperparameter(
            name, lambda: self.value, lambda v: setattr(self, "value", v), spread=spread, bounds=bounds
        )
        (axis,) = explored.bind(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
        return axis


def walk(
    axes: list[Axis],
    loss: Losses,
    rounds: int,
    *,
    controller: RegressionController | None = None,
    seed: int = 0,
) -> tuple[list[list[float]], list[list[float]]]:
    """Base values and spreads after every round; all replicas' values are checked against the bounds."""
    steering = bound(Regression([], Every(1), controller or RegressionController()), axes)
    bases, widths = [], []
    for k in range(1, rounds + 1):
        rows = orthogonal(8, [axis.name for axis in axes], seed=seed, round=k)
        values = [axis.values(row) for axis, row in zip(axes, rows, strict=True)]
        steered = steering.move(rows, tuple(loss(values)))
        for record, axis, row in zip(steered.hyperparameters, axes, values, strict=True):
            assert record.values == row
            assert record.base_after == axis.base
            assert math.isfinite(record.slope)
            assert record.error > 0
        bases.append([axis.base for axis in axes])
        widths.append([axis.spread for axis in axes])
    return bases, widths


def bowl(rng: random.Random, noise: float) -> Losses:
    def losses(values: list[tuple[float, ...]]) -> list[float]:
        x, y = values
        return [(a - 1) ** 2 + 0.5 * (b + 1) ** 2 + rng.gauss(0, noise) for a, b in zip(x, y, strict=True)]

    return losses


@pytest.mark.parametrize("start", [(-5.0, 5.0), (5.0, 5.0), (5.0, -5.0), (-5.0, -5.0)])
def test_it_walks_down_a_noisy_bowl_from_any_side_and_settles(start: tuple[float, float]) -> None:
    for seed in range(3):
        cells = [Cell(value) for value in start]
        axes = [cell.axis(name, 0.4, (-6.0, 6.0)) for cell, name in zip(cells, "xy", strict=True)]
        bases, widths = walk(axes, bowl(random.Random(seed), 0.05), 80, seed=seed)
        for h, optimum in enumerate((1.0, -1.0)):
            late = [base[h] for base in bases[50:]]
            assert statistics.fmean(late) == pytest.approx(optimum, abs=0.2)
            assert max(abs(base - optimum) for base in late) < 1.0
            assert widths[-1][h] < max(width[h] for width in widths)
            assert widths[-1][h] <= 0.5 * 0.4


def test_an_optimum_beyond_the_bounds_is_approached_as_far_as_they_allow() -> None:
    rng = random.Random(8)
    cell = Cell(0.5)
    axis = cell.axis("x", 0.1, (0.0, 1.0))
    everything: list[float] = []

    def losses(values: list[tuple[float, ...]]) -> list[float]:
        everything.extend(values[0])
        return [3 * value + rng.gauss(0, 0.01) for value in values[0]]

    bases, _ = walk([axis], losses, 40)
    assert min(everything) == 0.0
    assert max(everything) <= 1.0
    assert bases[-1] == [0.0]


def test_it_never_leaves_its_bounds_on_noise() -> None:
    rng = random.Random(9)
    cell = Cell(0.9)
    axis = cell.axis("x", 0.2, (0.0, 1.0))

    def losses(values: list[tuple[float, ...]]) -> list[float]:
        assert all(0 <= value <= 1 for value in values[0])
        return [rng.gauss(0, 1) for _ in values[0]]

    bases, widths = walk([axis], losses, 200)
    assert all(0 <= base <= 1 for (base,) in bases)
    assert all(0.05 <= width <= 0.8 for (width,) in widths)


def test_a_learning_rate_is_moved_as_a_factor_on_its_schedule() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    axes: list[Axis] = [*hdet.LearningRate(0.2).bind(optimizer)]
    steering = bound(Regression([], Every(1), RegressionController()), axes)
    (row,) = orthogonal(8, [axes[0].name], seed=0, round=1)
    ripple = (0.1, -0.1) * 4
    steered = steering.move([row], tuple(2 - z + e for z, e in zip(row, ripple, strict=True)))
    (record,) = steered.hyperparameters
    assert record.values == pytest.approx([0.1 * (1 + 0.2 * z) for z in row])
    assert record.slope == pytest.approx(-2 / (math.log(1.2) - math.log(0.8)), rel=0.2)
    assert record.delta == pytest.approx(0.2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * math.exp(0.2))


def test_who_was_not_heard_in_full_and_what_was_not_seen_stands_in_the_events() -> None:
    axes = [Cell(0.0).axis("x", 0.4, (-6.0, 6.0)), Cell(0.0).axis("y", 0.4, (-6.0, 6.0))]
    steering = bound(Regression([], Every(1), RegressionController()), axes)
    rows = permuted(8, ["x", "y"], seed=0, round=0)  # Eq. 1 for both: they go together
    steered = steering.move(rows, (1.0, math.nan, *map(float, range(6))))
    assert any("replica 1 is heard, but not as loud: its loss is nan" in event for event in steered.events)
    assert any("7 replicas do not separate 2 hyperparameters" in event for event in steered.events)
    assert [axis.base for axis in axes] == [0.0, 0.0]


def test_before_its_time_nothing_is_judged() -> None:
    axes = [Cell(0.0).axis("x", 0.4, (-6.0, 6.0))]
    steering = bound(Regression([], Every(1), RegressionController(), act_from=6), axes)
    rows = orthogonal(8, ["x"], seed=0, round=1)
    before = steering.state_dict()
    steered = steering.decide(Seen(5, None, rows, tuple(rows[0]), ()))()
    assert steering.state_dict() == before
    assert axes[0].base == 0.0
    assert steered.hyperparameters[0].values == axes[0].values(rows[0])


# ---------------------------------------------------------------------- state


def test_a_resumed_steering_goes_on_as_the_unbroken_one() -> None:
    def build() -> tuple[list[Axis], Regression]:
        axes = [Cell(3.0).axis("x", 0.4, (-6.0, 6.0)), Cell(3.0).axis("y", 0.4, (-6.0, 6.0))]
        return axes, bound(Regression([], Every(1), RegressionController()), axes)

    def drive(axes: list[Axis], steering: Regression, first: int, last: int) -> list[Any]:
        done = []
        for k in range(first, last):
            rows = orthogonal(8, ["x", "y"], seed=0, round=k)
            values = [axis.values(row) for axis, row in zip(axes, rows, strict=True)]
            done.append(steering.move(rows, tuple(bowl(random.Random(k), 0.1)(values))))
        return done

    axes, steering = build()
    drive(axes, steering, 0, 10)
    text = json.dumps([steering.state_dict(), [axis.state_dict() for axis in axes]])
    unbroken = drive(axes, steering, 10, 20)
    axes, steering = build()
    state, bases = json.loads(text)
    steering.load_state_dict(state)
    for axis, saved in zip(axes, bases, strict=True):
        axis.load_state_dict(saved)
    assert repr(drive(axes, steering, 10, 20)) == repr(unbroken)


def test_a_state_of_fewer_hyperparameters_says_nothing_to_a_regression() -> None:
    optimizer = AdamW([nn.Parameter(torch.zeros(1))], weight_decay=0.1)
    one = bound(Regression([], Every(1), RegressionController()), hdet.WeightDecay().bind(optimizer))
    axes = [*hdet.WeightDecay().bind(optimizer), *hdet.Betas(2).bind(optimizer)]
    two = bound(Regression([], Every(1), RegressionController()), axes)
    fresh = two.state_dict()["joint"]
    two.load_state_dict({**two.state_dict(), "joint": one.state_dict()["joint"]})
    assert two.state_dict()["joint"] == fresh
