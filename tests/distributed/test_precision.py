"""Half precision and accumulation on real ranks: who shares a gradient, skips its steps with the others."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks
from tests.distributed.classifier import Answer, answer_to


def fused(rank: int, skip: list[int], alone: list[int]) -> tuple[Answer, dict[str, Any]]:
    """Overflows in the loss of one rank, which all have through the gradient; or in its gradient alone."""
    model = DistributedDataParallel(tasks.Regression(torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, fused=True)
    scheduler = hdet.OneCycleAutoLR(
        optimizer, 0.05, total_steps=12, ensemble_lr_spread_ratio=0.2, model_sync_interval=5, model=model
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    records: list[Any] = []

    def run() -> None:
        for call in range(12 + len(skip)):
            optimizer.zero_grad()
            x, y = tasks.batch(rank, call, torch.float32)
            loss = (model(x) - y).square().mean()
            scaler.scale(loss * (float("inf") if call in skip and rank == 1 else 1)).backward()
            if call in alone and rank == 1:
                next(model.parameters()).grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
            records.append(scheduler.step(loss))

    answer = answer_to(run)
    return answer, {"records": [r for r in records if r], "weights": tasks.flat(model)}


@pytest.mark.parametrize("skip", [[2, 5, 13]])
def test_what_fused_optimizers_skip_does_not_count(ranks: LocalProcesses, skip: list[int]) -> None:
    (_, a), (_, b) = ranks.run(fused, skip, [], size=2)
    assert torch.equal(a["weights"], b["weights"])
    assert [r.step for r in a["records"]] == [r.step for r in b["records"]] == [5, 10, 12]
    for record in a["records"]:
        assert record.distance_measured == pytest.approx(record.distance_predicted, rel=1e-2)


def accumulated(rank: int, door: str, no_sync: bool) -> dict[str, Any]:
    """Four micro-batches a step; with ``no_sync`` the first three stay each rank's own until the last."""
    model = DistributedDataParallel(tasks.Regression())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    auto: Any
    if door == "AutoLR":
        probe = hdet.Probe(
            lambda pair: (model.module(pair[0]) - pair[1]).square().mean(),
            [tasks.batch(rank, 1000 + k) for k in range(64)],
            model=model,
        )
        auto = hdet.AutoLR(optimizer, probe=probe, total_steps=40)
    else:
        auto = hdet.OneCycleAutoLR(
            optimizer, 0.02, total_steps=40, ensemble_lr_spread_ratio=0.2, model_sync_interval=10, model=model
        )
    records, lrs = [], []
    for step in range(40):
        optimizer.zero_grad()
        for micro in range(4):
            held_back = no_sync and micro < 3
            with model.no_sync() if held_back else nullcontext():
                x, y = tasks.batch(rank, 4 * step + micro)
                loss = (model(x) - y).square().mean() / 4
                loss.backward()
        optimizer.step()
        lrs.append(optimizer.param_groups[0]["lr"])
        records.append(auto.step(4 * loss.detach()))
    return {"weights": tasks.flat(model), "lrs": lrs, "ends": [record.step for record in records if record]}


@pytest.mark.parametrize("door", ["AutoLR", "OneCycleAutoLR"])
def test_accumulation_without_communication_is_accumulation(ranks: LocalProcesses, door: str) -> None:
    held_back, other = ranks.run(accumulated, door, True, size=2)
    plain, _ = ranks.run(accumulated, door, False, size=2)
    assert torch.equal(held_back["weights"], other["weights"])
    assert held_back["lrs"] == other["lrs"]
    assert held_back["ends"] == plain["ends"]
    assert held_back["lrs"] == pytest.approx(plain["lrs"], rel=1e-9)
    torch.testing.assert_close(held_back["weights"], plain["weights"], rtol=1e-9, atol=1e-12)


def in_bfloat16(rank: int, door: str) -> dict[str, Any]:
    """Weights, gradients and state of sixteen bits."""
    model = DistributedDataParallel(tasks.Regression(torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

    def loss_on(pair: Any) -> torch.Tensor:
        return (model.module(pair[0]) - pair[1]).float().square().mean()

    held_out = [tasks.batch(rank, 1000 + k, torch.bfloat16) for k in range(64)]
    auto: Any
    if door == "AutoLR":
        auto = hdet.AutoLR(optimizer, probe=hdet.Probe(loss_on, held_out, model=model), total_steps=80)
    else:
        options: Any = {"ensemble_lr_spread_ratio": 0.2, "model_sync_interval": 20, "model": model}
        auto = hdet.OneCycleAutoLR(optimizer, 0.02, total_steps=80, **options)
    tests = [tasks.batch(0, 2000 + k, torch.bfloat16) for k in range(8)]
    before = sum(loss_on(pair).item() for pair in tests)
    for step in range(80):
        optimizer.zero_grad()
        x, y = tasks.batch(rank, step, torch.bfloat16)
        loss = (model(x) - y).float().square().mean()
        loss.backward()
        optimizer.step()
        auto.step(loss.detach())
    return {
        "weights": tasks.flat(model),
        "dtypes": {p.dtype for p in model.parameters()},
        "share": sum(loss_on(pair).item() for pair in tests) / before,
    }


@pytest.mark.parametrize("door", ["AutoLR", "OneCycleAutoLR"])
def test_weights_of_sixteen_bits_are_trained_and_averaged(ranks: LocalProcesses, door: str) -> None:
    a, b = ranks.run(in_bfloat16, door, size=2)
    assert torch.equal(a["weights"], b["weights"])
    assert a["dtypes"] == {torch.bfloat16}
    assert a["share"] < 0.8, "of the untrained loss"
