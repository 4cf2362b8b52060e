"""Ranks that train one model go back together, whoever saw it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.replicas.launch import LocalProcesses


def lose_one(rank: int, what: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    guard = hdet.Guard(optimizer, model=model, sync_every=5)
    torch.manual_seed(1 + rank)
    said = []
    for step in range(20):
        x = torch.randn(16, 3)
        loss = (parallel(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 12 and rank == 1:
            if what == "buffer":
                model[1].running_mean.fill_(float("nan"))  # type: ignore[operator,union-attr]
            else:
                loss = loss * float("inf")
        if event := guard.step(loss):
            said.append((step, event))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"said": said, "weights": weights, "buffer": model[1].running_mean, "backs": guard.backs}


@pytest.mark.parametrize("what", ["buffer", "loss"])
def test_all_ranks_go_back_where_one_is_lost(ranks: LocalProcesses, what: str) -> None:
    first, second = ranks.run(lose_one, what, size=2)
    assert first["backs"] == second["backs"] == 1
    assert first["said"] == second["said"]
    assert "back to step 10" in first["said"][0][1]
    assert torch.equal(first["weights"], second["weights"])
    assert torch.isfinite(second["buffer"]).all()
