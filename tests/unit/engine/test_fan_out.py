"""The levels that a round deals to the replicas."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD

import hdet
from hdet.engine.fan_out import FanOut


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
