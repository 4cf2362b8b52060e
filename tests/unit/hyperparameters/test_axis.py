"""An explored scalar and its places: what others write there, and what precision makes of it."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

import hdet
from hdet.hyperparameters import ScalarAxis
from tests.fakes import Attention
from tests.states import forged, seal
from tests.unit.hyperparameters.scenes import Scene


def test_what_somebody_else_writes_is_the_new_base() -> None:
    """A schedule of the weight decay, dropout that is annealed by hand: exploration goes on around it."""
    scene = Scene()
    model: Any = scene.model
    explored = [
        hdet.WeightDecay(groups=[0]),
        hdet.Dropout(model, layers=["a", "b", "c"]),
        scene.hyperparameter(),
    ]
    ensemble = scene.explore(explored, sync_every=1)
    scene.optimizer.param_groups[0]["weight_decay"] = 0.5
    scene.own["x"] = 0.75
    for name in "abc":
        model[name].p = 0.4
    with pytest.raises(KeyError) as caught:
        scene.raise_in_step()
    assert float(re.findall("'weight_decay': ([^,}]*)", caught.value.args[0])[0]) == pytest.approx(
        0.5 * math.exp(0.5), rel=1e-3
    )
    scene.step()
    record = ensemble.step(1.0)
    assert record is not None
    assert [h.base_before for h in record.hyperparameters] == [0.5, 0.4, 0.75]
    assert model["a"].p not in (0.1, 0.4)
    ensemble.detach()
    assert scene.optimizer.param_groups[0]["weight_decay"] == 0.5
    assert [model[name].p for name in "abc"] == [0.4] * 3
    assert scene.own["x"] == 0.75


def test_what_somebody_else_writes_may_lie_outside_of_the_bounds() -> None:
    """The replicas' values stay within; an annealing down to 0 on a logarithmic scale is no exception."""
    scene = Scene()
    item = scene.hyperparameter(acts="step", scale="log", bounds=(0.01, 1.0))
    ensemble = scene.explore([item])
    for written in (5.0, 0.0):
        scene.own["x"] = written
        inside: list[float] = []
        scene.optimizer.step(lambda seen=inside: seen.append(scene.own["x"]) or 0.0)
        assert 0.01 <= inside[0] <= 1.0
        assert scene.own["x"] == written
    ensemble.detach()


def test_places_of_different_precision_are_all_put_back() -> None:
    """One temperature for a float and a float32 buffer that hold the same number."""
    model = nn.ModuleList([Attention(0.5), Attention(torch.tensor(0.5))])
    scene = Scene()
    ensemble = scene.explore([hdet.Temperature(model)])
    ensemble.detach()
    assert [float(module.scale) for module in model] == [0.5, 0.5]  # type: ignore[arg-type]


def test_a_rounded_bound_is_a_bound() -> None:
    """What a float32 buffer makes of a bound can be started from, as a run that ended there must resume."""
    scene = Scene()
    model = Attention(torch.tensor(0.25))
    for _ in range(2):
        ensemble = scene.explore([hdet.Temperature(model, bounds=(0.1, 0.3))])
        assert float(model.scale) <= 0.3 * (1 + 1e-7)
        state = ensemble.state_dict()
        forged(state)["explored"][0]["base"] = 0.3
        seal(state)
        ensemble.load_state_dict(state)
        ensemble.detach()


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


@pytest.mark.parametrize("scale", [0.5, torch.tensor(0.5)], ids=["number", "buffer"])
def test_what_moves_within_a_round_is_the_base(scale: Any) -> None:
    """Not the replica's own value, which stands there at that moment."""
    model = Attention(scale)
    (axis,) = hdet.Temperature(model).bind(AdamW([nn.Parameter(torch.zeros(1))]))
    (moved,) = axis.values([0.5])
    axis.fan_out(1.0)
    axis.shift(0.5 * axis.spread)
    axis.restore()
    assert float(model.scale) == axis.base == pytest.approx(moved)
    assert not axis.overwritten
