"""Poisons at random places, 200 times: nothing that is not finite is ever in a mean."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet.replicas.launch import LocalProcesses

SIZE, SYNC_EVERY, POISONS = 4, 3, 100
VALUES = (math.nan, math.inf, -math.inf, 1e30)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 12), nn.BatchNorm1d(12), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return out


def places(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Everything that a mean takes."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    state = [value for kept in optimizer.state.values() for name, value in kept.items() if name != "step"]
    return [*(p.detach() for p in model.parameters()), *buffers, *state]


def poisoned(rank: int, probes: bool, seed: int) -> dict[str, Any]:
    """In every other round some replicas, never all, are poisoned in one place, at one of its steps."""
    chance = random.Random(seed)  # the same on all ranks
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss_of(x: Tensor) -> Tensor:
        return (model(x) - x.sum(1, keepdim=True)).square().mean()

    judge = {"probe": hdet.Probe(loss_of, list(torch.randn(4, 16, 5)), model=model)} if probes else {}
    ensemble = hdet.Ensemble(
        optimizer, [hdet.WeightDecay()], gradients="none", sync_every=SYNC_EVERY, model=model, **judge
    )
    torch.manual_seed(rank + 1)
    left_out = not_finite = 0
    for round in range(2 * POISONS):
        sick = chance.sample(range(SIZE), chance.randrange(1, SIZE)) if round % 2 else []
        at, value = chance.randrange(SYNC_EVERY), chance.choice(VALUES)
        place, element = chance.random(), chance.random()
        for step in range(SYNC_EVERY):
            loss = loss_of(torch.randn(8, 5))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank in sick and step == at:
                every = places(model, optimizer)
                tensor = every[int(place * len(every))].view(-1)
                tensor[int(element * tensor.numel())] = value
            if step == SYNC_EVERY - 1 and chance.random() < 0.2:
                ensemble.converge()  # a mean on demand comes first
            record = ensemble.step(loss.detach())
        assert record is not None
        left_out += sum("left out of the mean" in event for event in record.events)
        held = places(model, optimizer)
        not_finite += not all(bool(torch.isfinite(tensor).all()) for tensor in held)
    return {"left out": left_out, "not finite": not_finite, "held": [tensor.clone() for tensor in held]}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("probes", [False, True])
def test_nothing_that_is_not_finite_is_ever_in_a_mean(ranks: LocalProcesses, probes: bool) -> None:
    results = ranks.run(poisoned, probes, 17, size=SIZE, timeout=1100)
    for result in results:
        assert result["not finite"] == 0
        assert result["left out"] > POISONS // 2
        for mine, other in zip(result["held"], results[0]["held"], strict=True):
            assert torch.equal(mine, other)
            assert float(mine.abs().max()) < 1e6, "an explosion is no better than what is not finite"
