"""What a hostile review of the hyperparameters broke."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, AdamW, NAdam

import hdet
from hdet.fan_out import FanOut
from hdet.hyperparameters import ScalarAxis
from hdet.replicas.solo import SoloReplica
from hdet.steering import Steering


class Alike(SoloReplica):
    """Rank r of N; the others say and hold the same as this one."""

    def __init__(self, rank: int = 0, size: int = 2) -> None:
        self.rank, self.size = rank, size

    def gather(self, row: Any) -> list[list[float]]:
        return [list(row)] * self.size


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


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(1.0))


def test_a_buffer_that_somebody_loads_or_broadcasts_keeps_its_base() -> None:
    """DistributedDataParallel broadcasts buffers, a checkpoint holds another replica's value."""
    model = Attention()
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
    steering = Steering(hdet.SoftmaxController(decay=0.05), [axis])
    for _ in range(30):
        steering([(-1.0, 1.0)], (1.0, 1.0), acts=True)
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
    from hdet.converge import Converge

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
