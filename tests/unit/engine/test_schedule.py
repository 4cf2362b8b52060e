"""A factor over any torch schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hdet
from tests.fakes import Faster

SCHEDULES: dict[str, Any] = {
    "constant": lambda o: None,
    "step": lambda o: lr_scheduler.StepLR(o, 4),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 30, eta_min=0.01),
    "cosine to zero": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(o, 15)], [5]
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # SequentialLR of torch 2.6, of itself
@pytest.mark.parametrize("name", SCHEDULES)
def test_any_torch_schedule_is_followed_by_one_factor(name: str) -> None:
    """Whatever the curve, recursive or closed, the base is the controller's factor × curve."""

    def build() -> torch.optim.Optimizer:
        return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)

    plain = build()
    curve = SCHEDULES[name](plain)
    optimizer = build()
    controller = hdet.SoftmaxController(temperature=0.1)
    ensemble = hdet.Ensemble(
        optimizer,
        [hdet.LearningRate(spread=0.2)],
        schedule=SCHEDULES[name](optimizer),
        sync_every=5,
        controller=controller,
        replicas=Faster(),
    )
    factors = []
    for _ in range(20):
        optimizer.step()
        plain.step()
        ensemble.step(1.0)
        if curve is not None:
            curve.step()
        expected = plain.param_groups[0]["lr"]
        if expected > 1e-12:
            factors.append(optimizer.param_groups[0]["lr"] / expected)
    assert factors[:4] == [1.0] * 4
    assert factors[9] > factors[4] > 1.0
    assert factors[4:9] == pytest.approx([factors[4]] * 5, rel=1e-6)


def test_without_a_controller_the_users_own_scheduler_composes() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    own = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], sync_every=5, replicas=Faster())
    for _ in range(4):
        optimizer.step()
        ensemble.step()
        own.step(1.0)
        assert ensemble.replica_lrs == [1.5 * optimizer.param_groups[0]["lr"]]
    assert optimizer.param_groups[0]["lr"] < 0.1


def test_plateau_cannot_be_the_schedule() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(TypeError, match=r"ReduceLROnPlateau.*schedule=None"):
        hdet.Ensemble(optimizer, schedule=lr_scheduler.ReduceLROnPlateau(optimizer))  # type: ignore[arg-type]
