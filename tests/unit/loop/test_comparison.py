"""Held-out losses: measured without regularisers, and compared however hard each replica's batches are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hdet
from hdet.hyperparameters import Axis
from hdet.loop.comparison import Comparison, judge
from hdet.loop.fan_out import FanOut
from hdet.loop.policy import Context
from hdet.loop.windows import Every
from hdet.published.softmax import SoftmaxController
from hdet.published.vote import Vote
from hdet.replicas import SoloReplica

numbers = st.floats(-100, 100)


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8), numbers)
def test_batches_of_different_difficulty_do_not_change_the_comparison(
    replicas: list[tuple[float, float]], mean: float
) -> None:
    """By its first number a replica is worse than the mean model, by its second its batches are harder."""
    alike, level = judge([(mean + worse, mean) for worse, _ in replicas])
    apart, other = judge([(mean + worse + hard, mean + hard) for worse, hard in replicas])
    for r in range(1, len(replicas)):
        assert apart[r] - apart[0] == pytest.approx(replicas[r][0] - replicas[0][0], abs=1e-9)
        assert alike[r] - alike[0] == pytest.approx(apart[r] - apart[0], abs=1e-9)
    assert level == pytest.approx(mean, abs=1e-9)
    assert other == pytest.approx(mean + statistics.fmean(hard for _, hard in replicas), abs=1e-9)


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_replica_whose_probe_was_not_finite_has_no_say(lost: float) -> None:
    judged, level = judge([(1.0, 2.0), (lost, 2.0), (3.0, 2.0), (4.0, math.nan)])
    assert (judged[0], judged[2], level) == (1.0, 3.0, 2.0)
    assert not math.isfinite(judged[1])
    assert math.isnan(judged[3])
    one_another, level = judge([(1.0, math.nan), (2.0, math.nan)])
    assert one_another == (1.0, 2.0)
    assert math.isnan(level)


def compared(probe: hdet.Probe, fan_out: FanOut) -> Comparison:
    """A policy that compares replicas by a probe."""
    policy = Vote([], Every(1), SoftmaxController(), probe=probe)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    policy.bind([], Context("test", optimizer, SoloReplica(), None, True, tuple, fan_out.silenced))
    return policy


class Functional(nn.Module):
    """Dropout as a function that never asks whether the model is training, and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.layer = nn.Dropout(0.3)
        self.drop_rate = 0.4
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(self.linear(F.dropout(x, self.drop_rate, training=True)))
        return self.scale * logits


class Set:
    """One replica of four: a model, a criterion, what is explored of them, and a probe."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Functional()
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
        self.seen: list[tuple[float, ...]] = []
        self.drawn: list[int] = []
        self.poison = False
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, weight_decay=0.1)
        axes: list[Axis] = []
        for item in (
            hdet.Dropout(self.model, attribute="drop_rate"),
            hdet.LabelSmoothing(self.criterion),
            hdet.Temperature(self.model),
        ):
            axes += item.bind(optimizer)
        self.fan_out = FanOut(axes, arms=4, arm=2, design="orthogonal", seed=3)
        self.probe = hdet.Probe(self.loss, self.batch, model=self.model, per_sync=2)
        self.held_out = compared(self.probe, self.fan_out)

    @property
    def values(self) -> tuple[float, ...]:
        return self.model.drop_rate, self.criterion.label_smoothing, self.model.scale

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        self.drawn.append(number)
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(16, 4, generator=generator)
        return x, torch.randint(3, (16,), generator=generator)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        if self.poison:
            raise KeyError("poison")
        self.seen.append(self.values)
        loss: Tensor = self.criterion(self.model(batch[0]), batch[1])
        return loss

    @torch.no_grad()
    def plain(self, numbers: Sequence[int], scale: float) -> float:
        """The loss by hand: no dropout, no smoothing, one temperature."""
        found = []
        for number in numbers:
            x, y = self.batch(number)
            self.drawn.pop()
            found.append(float(F.cross_entropy(scale * self.model.linear(x), y)))
        return statistics.fmean(found)


def test_held_out_losses_are_measured_without_regularisers_at_the_replicas_own_temperature() -> None:
    s = Set()
    s.model.train()
    for round in (1, 2):
        s.fan_out.assign(round)
        own = s.values
        assert all(a != b for a, b in zip(own, (0.4, 0.2, 2.0), strict=True)), "it explores all three"
        (at_own,) = s.held_out.at_own()
        assert s.seen == [(0.0, 0.0, own[2])] * 2
        assert s.values == own, "and trains on with its own"
        fresh = [2 * round - 2, 2 * round - 1]
        assert s.drawn == fresh
        assert at_own == pytest.approx(s.plain(fresh, own[2]), rel=1e-5)
        s.fan_out.restore()
        with torch.no_grad():  # what the mean does
            for parameter in s.model.parameters():
                parameter.mul_(0.5)
        (at_mean,) = s.held_out.at_mean()
        assert s.seen[2:] == [(0.0, 0.0, 2.0)] * 2
        assert s.drawn == fresh, "the same batches"
        assert s.held_out._batches == [], "which are not kept until the next sync"
        assert at_mean == pytest.approx(s.plain(fresh, 2.0), rel=1e-5)
        assert s.values == (0.4, 0.2, 2.0)
        assert s.model.training
        s.seen.clear()
        s.drawn.clear()


def test_a_probe_that_raises_leaves_the_replicas_own_values() -> None:
    s = Set()
    s.fan_out.assign(1)
    own = s.values
    s.poison = True
    with pytest.raises(KeyError):
        s.held_out.at_own()
    assert s.values == own
    s.fan_out.restore()
    with pytest.raises(KeyError):
        s.held_out.at_mean()
    assert s.values == (0.4, 0.2, 2.0)


def test_one_batch_without_a_finite_loss_makes_the_replica_unknown() -> None:
    model = nn.Linear(1, 1)
    probe = hdet.Probe(
        lambda batch: batch, [torch.tensor(1.0), torch.tensor(math.inf)], model=model, per_sync=2
    )
    fan_out = FanOut([], arms=2, arm=0, design="permutation", seed=0)
    held_out = compared(probe, fan_out)
    assert math.isnan(held_out.at_own()[0])
    assert math.isnan(held_out.at_mean()[0])
