"""The distance of the replicas."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hdet
from tests.fakes import Faster


def test_the_gauge_follows_parameters_into_new_memory() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], sync_every=2, replicas=Faster())
    predicted = []
    for step in range(8):
        if step == 3:
            weight.data = weight.data.clone()
        weight.grad = torch.ones(4)
        optimizer.step()
        record = ensemble.step(1.0)
        predicted += [max(record.distance_predicted)] if record else []
    assert predicted[0] == pytest.approx(predicted[-1], rel=1e-5)
    assert predicted[-1] > 0
