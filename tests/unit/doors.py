"""A door in training, of any kind: for what all of them promise."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

import hdet
from hdet.loop.state import digest

DOORS = ["AutoLR", "AutoTune", "OneCycleAutoLR", "Ensemble", "BestMean", "Guard"]


class Made:
    """A small model, its optimizer, and a door."""

    def __init__(self, kind: str, *, width: int = 4, optimizer: Any = Adam, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 1))
        self.optimizer: Optimizer = optimizer(self.model.parameters(), lr=0.01)
        probe = hdet.Probe(self.loss, list(torch.randn(8, 4, 3)), model=self.model)
        self.kind = kind
        if callable(schedule := options.get("schedule")):
            options["schedule"] = schedule(self.optimizer)
        self.door: Any
        if kind == "AutoLR":
            options = {"total_steps": 400, "probe": probe, **options}
            self.door = hdet.AutoLR(self.optimizer, **options)
        elif kind == "AutoTune":
            options = {"total_steps": 400, "probe": probe, **options}
            self.door = hdet.AutoTune(self.optimizer, [hdet.WeightDecay()], **options)
        elif kind == "OneCycleAutoLR":
            options = {"max_lr": 0.1, "total_steps": 400, "cycle_momentum": False, **options}
            self.door = hdet.OneCycleAutoLR(self.optimizer, **options)
        elif kind == "Ensemble":
            self.door = hdet.Ensemble(self.optimizer, sync_every=10, model=self.model, **options)
        elif kind == "BestMean":
            self.door = hdet.BestMean(self.model, probe)
        else:
            self.door = hdet.Guard(self.optimizer, model=self.model, probe=probe, sync_every=10)

    def loss(self, x: Tensor) -> Tensor:
        return (self.model(x) - x.sum(1, keepdim=True)).square().mean()

    def train(self, steps: int) -> Made:
        for _ in range(steps):
            loss = self.loss(torch.randn(4, 3))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.door.step() if self.kind == "BestMean" else self.door.step(loss)
        return self

    def state(self) -> dict[str, Any]:
        return deepcopy(self.door.state_dict())

    def refuses(self, state: Any, match: str) -> None:
        """The door, and the learning rates, are as they were before."""
        before, rates = self.state(), [group["lr"] for group in self.optimizer.param_groups]
        with pytest.raises(ValueError, match=match):
            self.door.load_state_dict(state)
        assert digest(self.state()["state"]) == digest(before["state"]), "tensors have their sums in there"
        assert rates == [group["lr"] for group in self.optimizer.param_groups]
