"""The learning rate's spread: one for each group, and never so wide that a rate is not positive."""

from __future__ import annotations

import math
from typing import Any

import pytest
from torch.optim import SGD

import hdet
from hdet.loop.levels import levels
from tests.fakes import Alike
from tests.unit.hyperparameters.scenes import train, weights


def test_learning_rates_have_a_spread_for_each_group() -> None:
    for rank, level in enumerate(levels(3)):
        first, second = weights(1, 1)
        optimizer = SGD([{"params": [first]}, {"params": [second], "lr": 0.2}], lr=0.1)
        ensemble = hdet.Ensemble(
            optimizer, [hdet.LearningRate(spread=[0.1, 0.5])], sync_every=1, process_group=Alike(rank, size=3)
        )
        train(optimizer, ensemble, [1.0], lambda: None)
        moved = [1 - weight.item() for weight in (first, second)]
        assert moved == pytest.approx([0.1 * (1 + 0.1 * level), 0.2 * (1 + 0.5 * level)])


def test_replicas_rates_are_so_many_times_the_groups() -> None:
    (axis,) = hdet.LearningRate(0.5).bind(SGD(weights(1), lr=0.2))
    assert axis.values([-1.0, 0.0, 1.0]) == pytest.approx([0.1, 0.2, 0.3])
    assert axis.offsets([-1.0, 0.0, 1.0]) == pytest.approx([math.log(0.5), 0.0, math.log(1.5)])


@pytest.mark.parametrize("spread", [-0.1, math.nan, [0.1, 1.0]])
def test_a_spread_of_the_learning_rate_keeps_it_positive(spread: Any) -> None:
    with pytest.raises(ValueError, match=r"LearningRate: spread .* must be in \[0, 1\), got"):
        hdet.LearningRate(spread)
