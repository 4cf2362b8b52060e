"""What is averaged beside the weights: the optimizer's state, where it differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, NAdam

import hdet
from tests.fakes import Alike, Faster


def test_state_of_one_number_is_averaged_as_well() -> None:
    """NAdam keeps a product of momenta, which differs where momenta do."""
    from hdet.engine.converge import Converge

    weight = nn.Parameter(torch.zeros(2))
    optimizer = NAdam([weight])
    weight.grad = torch.ones(2)
    optimizer.step()
    kept = dict(Converge(Alike(), optimizer, None, with_state=True)._kept(weight))
    assert set(kept) == {"exp_avg", "exp_avg_sq", "mu_product"}


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


def test_parameters_unfrozen_later_are_averaged() -> None:
    class Counting(Faster):
        planned: list[int]

        def plan_mean(self, tensors: Any, buffers: Any = ()) -> Any:
            self.planned.append(len(tensors))
            return tuple

    replicas = Counting()
    replicas.planned = []
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=1, replicas=replicas)
    for step in range(4):
        if step == 2:
            model[0].requires_grad_(True)
        optimizer.step()
        ensemble.step()
    assert replicas.planned == [2, 4]
