"""The learning rate's spread: one for each group, and never so wide that a rate is not positive."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim import SGD

import hdet
from hdet.hyperparameters.learning_rate import separate_learning_rates
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


def test_one_tensor_in_several_groups_becomes_one_for_each() -> None:
    """Else what is written into one group would move the others; a tensor that is not shared stays."""
    first, second, third = weights(1, 1, 1)
    shared, own = torch.tensor(0.1), torch.tensor(0.2)
    optimizer = SGD([{"params": [first]}, {"params": [second]}, {"params": [third], "lr": own}], lr=shared)
    separate_learning_rates(optimizer)
    rates = [group["lr"] for group in optimizer.param_groups]
    assert [rate.item() for rate in rates] == pytest.approx([0.1, 0.1, 0.2])
    assert rates[0] is shared
    assert rates[1] is not shared
    assert rates[2] is own


def test_replicas_rates_are_so_many_times_the_groups() -> None:
    (axis,) = hdet.LearningRate(0.5).bind(SGD(weights(1), lr=0.2))
    assert axis.values([-1.0, 0.0, 1.0]) == pytest.approx([0.1, 0.2, 0.3])
    assert axis.offsets([-1.0, 0.0, 1.0]) == pytest.approx([math.log(0.5), 0.0, math.log(1.5)])


@pytest.mark.parametrize("level", [1.0, torch.tensor([-1.0, 1.0])], ids=["one replica", "rows"])
def test_what_a_replica_had_of_its_own_is_taken_back_and_what_others_wrote_is_not(level: Any) -> None:
    optimizer = SGD(weights(1), lr=0.2)
    group = optimizer.param_groups[0]
    (axis,) = hdet.LearningRate(0.5).bind(optimizer)
    axis.fan_out(level)
    axis.restore()
    assert group["lr"] == 0.2
    axis.fan_out(1.0)
    group["lr"] = group["lr"] + 0.0  # the same number, as a checkpoint brings it back
    axis.restore()
    assert group["lr"] == 0.2
    axis.fan_out(level)
    group["lr"] = 0.7
    axis.restore()
    assert group["lr"] == 0.7


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_factor_goes_on_from_what_was_saved_and_leaves_a_tensor_where_it_is(kind: Any) -> None:
    first, second = (SGD(weights(1), lr=kind(0.2)) for _ in range(2))
    (axis,), (again,) = (hdet.LearningRate(0.5).bind(optimizer) for optimizer in (first, second))
    untouched = axis.state_dict()
    axis.move(2.0)
    moved = axis.state_dict()
    axis.hold()
    for saved in (untouched, moved, axis.state_dict()):
        lr = second.param_groups[0]["lr"]
        again.load_state_dict(saved)
        again.move(3.0)
        assert again.curve == pytest.approx(0.2)
        assert float(second.param_groups[0]["lr"]) == pytest.approx(0.6)
        assert kind is float or second.param_groups[0]["lr"] is lr


@pytest.mark.parametrize("spread", [-0.1, math.nan, [0.1, 1.0]])
def test_a_spread_of_the_learning_rate_keeps_it_positive(spread: Any) -> None:
    with pytest.raises(ValueError, match=r"LearningRate: spread .* must be in \[0, 1\), got"):
        hdet.LearningRate(spread)
