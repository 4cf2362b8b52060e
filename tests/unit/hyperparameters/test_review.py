"""What a hostile review of the hyperparameters broke."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, AdamW, NAdam

import hdet
from hdet.engine.fan_out import FanOut
from hdet.engine.gradients import GradientSharing
from hdet.hyperparameters import ScalarAxis
from hdet.policies import Regression, Vote
from hdet.schedules import Every
from tests.fakes import Alike, Attention, bound


@pytest.mark.parametrize("how", ["positional", "by name"])
def test_a_gradient_that_a_closure_computes_is_clipped(how: str) -> None:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = SGD([weight], lr=1.0)
    with hdet.Ensemble(optimizer, [hdet.GradientClip(0.5, spread=0.0)], replicas=Alike()) as ensemble:

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = 1e6 * weight.sum()
            loss.backward()
            return loss

        optimizer.step(closure) if how == "positional" else optimizer.step(closure=closure)
        assert float(weight.detach().norm()) == pytest.approx(0.5, rel=1e-4)
        assert ensemble.values == {"gradient_clip": 0.5}


def test_lbfgs_is_clipped_at_every_evaluation() -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = LBFGS([weight], lr=1.0, max_iter=1)
    hdet.Ensemble(optimizer, [hdet.GradientClip(1.0, spread=0.0)], replicas=Alike())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (1e6 * weight).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert float(weight.detach().norm()) <= 1.0 + 1e-4


def test_a_buffer_that_somebody_loads_or_broadcasts_keeps_its_base() -> None:
    """DistributedDataParallel broadcasts buffers, a checkpoint holds another replica's value."""
    model = Attention(torch.tensor(1.0))
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    ensemble = hdet.Ensemble(
        optimizer, [hdet.Temperature(model)], gradients="none", replicas=Alike(1), sync_every=1
    )
    for _ in range(3):
        model.scale.fill_(0.607)  # type: ignore[operator]
        optimizer.step()
        ensemble.step(1.0)
    ensemble.detach()
    assert float(model.scale) == 1.0  # type: ignore[arg-type]


def test_the_decay_of_a_learning_rate_is_no_affair_of_others() -> None:
    model = nn.Dropout(0.5)
    (axis,) = hdet.Dropout(model).bind(SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    steering = bound(Vote([], Every(1), hdet.SoftmaxController(decay=0.05)), [axis])
    for _ in range(30):
        steering.move([(-1.0, 1.0)], (1.0, 1.0))
    assert model.p == pytest.approx(0.5)


def test_a_place_that_rounds_is_refused() -> None:
    place = {"x": 3}
    rounded = hdet.Hyperparameter(
        "x", lambda: place["x"], lambda v: place.update(x=round(v)), bounds=(0.0, 10.0), spread=3.0
    )
    with pytest.raises(ValueError, match=r"x: what is written must be read back, wrote 4.5 and read 4;"):
        hdet.Ensemble(SGD([nn.Parameter(torch.zeros(1))], lr=1.0), [rounded], replicas=Alike())
    assert place == {"x": 3}


@pytest.mark.parametrize(
    ("size", "count", "doubted"), [(5, 4, True), (3, 2, True), (5, 2, False), (8, 7, False)]
)
def test_too_few_replicas_for_permutations_are_doubted(
    size: int, count: int, doubted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    places = [{"x": 0.5} for _ in range(count)]
    explore = [
        hdet.Hyperparameter(f"h{i}", lambda p=p: p["x"], lambda v, p=p: p.update(x=v), bounds=(0.0, 1.0))
        for i, p in enumerate(places)
    ]
    with caplog.at_level(logging.WARNING, logger="hdet"):
        hdet.Ensemble(
            SGD([nn.Parameter(torch.zeros(1))], lr=1.0),
            explore,
            gradients="none",
            controller=hdet.RegressionController(),
            replicas=Alike(0, size),
        )
    assert any("apart poorly" in record.getMessage() for record in caplog.records) == doubted


def test_stacked_recurrent_layers_drop_out_too() -> None:
    model = nn.ModuleList([nn.LSTM(4, 4, num_layers=2, dropout=0.3), nn.Dropout(0.3), nn.LSTM(4, 4)])
    (axis,) = hdet.Dropout(model).bind(SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    axis.fan_out(1.0)
    recurrent, layer, single = model
    assert recurrent.dropout == layer.p > 0.3  # type: ignore[union-attr]
    assert single.dropout == 0  # type: ignore[union-attr]


def test_state_of_one_number_is_averaged_as_well() -> None:
    """NAdam keeps a product of momenta, which differs where momenta do."""
    from hdet.engine.converge import Converge

    weight = nn.Parameter(torch.zeros(2))
    optimizer = NAdam([weight])
    weight.grad = torch.ones(2)
    optimizer.step()
    kept = dict(Converge(Alike(), optimizer, None, with_state=True)._kept(weight))
    assert set(kept) == {"exp_avg", "exp_avg_sq", "mu_product"}


def test_a_resumed_value_is_not_taken_for_somebody_elses() -> None:
    optimizer = AdamW([nn.Parameter(torch.zeros(1))], weight_decay=0.1)
    (axis,) = hdet.WeightDecay().bind(optimizer)
    assert isinstance(axis, ScalarAxis)
    axis.shift(0.5)
    assert not axis.overwritten
    axis.load_state_dict({"base": 0.2, "spread": 0.5})
    assert not axis.overwritten
    optimizer.param_groups[0]["weight_decay"] = 0.3
    axis.shift(0.1)
    optimizer.param_groups[0]["weight_decay"] = 0.4
    assert axis.overwritten


def test_a_regression_begins_with_values_that_differ() -> None:
    """Round 0 of the paper deals every hyperparameter alike."""
    places = [{"x": 0.5} for _ in range(2)]
    axes = [
        axis
        for i, p in enumerate(places)
        for axis in hdet.Hyperparameter(
            f"h{i}", lambda p=p: p["x"], lambda v, p=p: p.update(x=v), bounds=(0.0, 1.0)
        ).bind(SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    ]
    fan_out = FanOut(axes, arms=5, arm=0, design="permutation", seed=0, first_round=1)
    fan_out.assign(0)
    assert fan_out.levels[0] != fan_out.levels[1]


def test_an_arm_with_a_rank_that_saw_nothing_is_unknown() -> None:
    """Its ranks are one replica: what one of them could not measure, the others did not measure for it."""
    arms = hdet.Arms(1)
    arms.count, arms.ranks = 2, 4
    sharing = GradientSharing("Ensemble", arms, Alike(0, 4), None)
    first, second = sharing.by_arm([1.0, 2.0, math.nan, 3.0])
    assert first == 1.5
    assert math.isnan(second)


def test_a_state_of_fewer_hyperparameters_says_nothing_to_a_regression() -> None:
    optimizer = AdamW([nn.Parameter(torch.zeros(1))], weight_decay=0.1)
    one = bound(Regression([], Every(1), hdet.RegressionController()), hdet.WeightDecay().bind(optimizer))
    axes = [*hdet.WeightDecay().bind(optimizer), *hdet.Betas(2).bind(optimizer)]
    two = bound(Regression([], Every(1), hdet.RegressionController()), axes)
    fresh = two.state_dict()["joint"]
    two.load_state_dict({**two.state_dict(), "joint": one.state_dict()["joint"]})
    assert two.state_dict()["joint"] == fresh


@pytest.mark.parametrize(("spread", "averaged"), [(0.5, True), (0.0, False)])
def test_state_is_averaged_only_for_what_is_really_explored(spread: float, averaged: bool) -> None:
    planned: list[int] = []

    class Planning(Alike):
        def plan_mean(self, tensors: Any, buffers: Any = ()) -> Any:
            planned.append(len(tensors))
            return super().plan_mean(tensors, buffers)

    weight = nn.Parameter(torch.zeros(2))
    optimizer = AdamW([weight])
    explore = [hdet.LearningRate(), hdet.Betas(1, spread=spread)]
    ensemble = hdet.Ensemble(optimizer, explore, sync_every=1, replicas=Planning())
    weight.grad = torch.ones(2)
    optimizer.step()
    ensemble.step(1.0)
    assert planned[-1] == (3 if averaged else 1)


def test_one_group_whose_decay_passes_through_the_gradient_bends_the_state() -> None:
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups = [{"params": [first]}, {"params": [second], "decoupled_weight_decay": True}]
    for optimizer, bends in ((torch.optim.Adam([first], weight_decay=0.1), True), (AdamW([first]), False)):
        (axis,) = hdet.WeightDecay().bind(optimizer)
        assert axis.bends_state == bends
    (axis,) = hdet.WeightDecay(spread=1.0).bind(torch.optim.Adam(groups, weight_decay=0.0))
    assert axis.bends_state
    assert axis.values([1.0])[0] == pytest.approx(1e-5 * (math.e - 1))
