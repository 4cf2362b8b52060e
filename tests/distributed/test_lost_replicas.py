"""What one rank alone runs into where gradients are not shared: lost weights, skipped steps, other values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed.classifier import listening

STEPS, SYNC_EVERY = 12, 4


def build(rank: int, **options: Any) -> tuple[nn.Linear, torch.optim.Optimizer, hdet.Ensemble]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    held_out = torch.randn(64, 3)
    probe = hdet.Probe(lambda x: (model(x) - x.sum(1, keepdim=True)).square().mean(), [held_out], model=model)
    ensemble = hdet.Ensemble(
        optimizer,
        [hdet.WeightDecay()],
        gradients="none",
        probe=probe,
        sync_every=SYNC_EVERY,
        model=model,
        **options,
    )
    torch.manual_seed(rank)
    return model, optimizer, ensemble


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer, *, step: bool = True) -> torch.Tensor:
    x = torch.randn(16, 3)
    loss: torch.Tensor = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if step:
        optimizer.step()
    return loss.detach()


def lose_one(rank: int) -> dict[str, Any]:
    model, optimizer, ensemble = build(rank, total_steps=STEPS)
    records, kept = [], torch.zeros(0)
    for step in range(STEPS):
        loss = train_once(model, optimizer)
        if step == SYNC_EVERY - 1:
            kept = model.weight.detach().clone()
            if rank == 1:
                with torch.no_grad():
                    model.weight.fill_(math.nan)
                    optimizer.state[model.weight]["exp_avg"].fill_(math.inf)
        record = ensemble.step(loss)
        if record is not None:
            records.append(record)
            if len(records) == 1:
                after = model.weight.detach().clone()
    state = optimizer.state[model.weight]["exp_avg"]
    return {"records": records, "kept": kept, "after": after, "end": model.weight.detach(), "state": state}


def test_a_lost_replica_has_no_part_in_the_mean(ranks: LocalProcesses) -> None:
    results = ranks.run(lose_one, size=3)
    sane = torch.stack([r["kept"] for i, r in enumerate(results) if i != 1]).mean(0)
    for result in results:
        first = result["records"][0]
        assert any("replica 1 left out of the mean: its loss is nan" in event for event in first.events)
        assert math.isfinite(first.held_out_mean)
        assert torch.allclose(result["after"], sane, atol=1e-6), "the mean of the others"
        assert torch.equal(result["end"], results[0]["end"])
        assert torch.isfinite(result["end"]).all()
        assert torch.isfinite(result["state"]).all()


def skip_one(rank: int) -> tuple[int, torch.Tensor]:
    """As GradScaler does on one rank alone, where gradients are not shared."""
    model, optimizer, ensemble = build(rank, total_steps=STEPS)
    for step in range(STEPS):
        ensemble.step(train_once(model, optimizer, step=not (rank == 1 and step == 5)))
    return ensemble.steps, model.weight.detach()


def test_a_step_skipped_on_one_rank_does_not_part_the_ranks(ranks: LocalProcesses) -> None:
    results = ranks.run(skip_one, size=2, timeout=60)
    assert [steps for steps, _ in results] == [STEPS, STEPS]
    assert torch.equal(results[0][1], results[1][1])


def write_on_one(rank: int) -> str:
    model, optimizer, ensemble = build(rank)
    try:
        for _ in range(2 * SYNC_EVERY):
            record = ensemble.step(train_once(model, optimizer))
            if record is not None and rank == 1:
                optimizer.param_groups[0]["weight_decay"] = 0.7
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_base_that_differs_between_ranks_is_an_error_on_all(ranks: LocalProcesses) -> None:
    for said in ranks.run(write_on_one, size=2):
        assert "the base of weight_decay must be the same on all: rank 0 has 0.1; rank 1 has 0.7" in said


def leave_early(rank: int) -> list[int]:
    told = []
    for converges in (True, False):
        model, optimizer, ensemble = build(rank)
        with listening() as heard, ensemble:
            for _ in range(SYNC_EVERY + 1):
                ensemble.step(train_once(model, optimizer))
            if converges:
                ensemble.converge()
        told.append(sum("detached" in line for line in heard))
    return told


def test_whoever_leaves_replicas_apart_is_told(ranks: LocalProcesses) -> None:
    assert ranks.run(leave_early, size=2)[0] == [0, 1]


def converge_on_demand(rank: int) -> torch.Tensor:
    model, optimizer, ensemble = build(rank)
    ensemble.step(train_once(model, optimizer))
    if rank == 1:
        with torch.no_grad():
            model.weight.fill_(math.nan)
        ensemble.step(train_once(model, optimizer, step=False))
    else:
        ensemble.step(train_once(model, optimizer))
    ensemble.converge()
    return model.weight.detach()


def test_a_lost_replica_has_no_part_in_a_mean_on_demand_either(ranks: LocalProcesses) -> None:
    results = ranks.run(converge_on_demand, size=2)
    assert all(torch.equal(result, results[0]) for result in results)
    assert torch.isfinite(results[0]).all()
