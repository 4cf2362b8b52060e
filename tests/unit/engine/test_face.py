"""One vocabulary at every door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from tests.unit.training import X, network, probe_of, squared, train

pytestmark = pytest.mark.usefixtures("same_seed")

DOORS: dict[str, Callable[[Any, nn.Module], Any]] = {
    "AutoLR": lambda o, m: hdet.AutoLR(o, probe=probe_of(m), total_steps=100, sync_every=20, spread=0.1),
    "AutoTune": lambda o, m: hdet.AutoTune(
        o, [hdet.WeightDecay()], probe=probe_of(m), total_steps=100, sync_every=20
    ),
    "OneCycleAutoLR": lambda o, _: hdet.OneCycleAutoLR(
        o, 0.01, 100, ensemble_lr_spread_ratio=0.1, model_sync_interval=20
    ),
    "Ensemble": lambda o, _: hdet.Ensemble(
        o, [hdet.LearningRate(spread=0.1)], total_steps=100, sync_every=20
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_says_the_same_of_its_run(door: str) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = DOORS[door](optimizer, model)
    assert run.optimizer is optimizer
    assert (run.steps, run.total_steps, run.sync_every, run.history) == (0, 100, 20, [])
    assert run.spread == (0.0 if door == "AutoTune" else 0.1)
    assert run.replicas.size == 1
    records = []
    for i in range(40):
        optimizer.zero_grad()
        squared(model, X[i % 200]).backward()
        optimizer.step()
        record = run.step(1.0)
        records += [record] if record else []
    assert run.steps == 40
    assert run.history == records
    assert [record.step for record in records] == [20, 40]
    assert records[-1].lr == records[-1].hyperparameters[0].base_after
    assert run.replica_lrs == pytest.approx([optimizer.param_groups[0]["lr"]], rel=0.11)
    assert run.values["lr/0"] == optimizer.param_groups[0]["lr"]
    with run.at_base():
        pass
    run.converge()
    run.detach()


def test_windows_that_grow_have_no_one_length() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    auto = hdet.AutoLR(optimizer, probe=probe_of(model), total_steps=60)
    assert auto.sync_every is None
    train(model, optimizer, auto, 60)
    assert auto.total_steps == 60


def test_no_more_than_a_thousand_records_are_kept() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    run = hdet.Ensemble(optimizer, sync_every=1)
    for _ in range(1010):
        optimizer.step()
        run.step(1.0)
    assert [run.history[0].step, run.history[-1].step, len(run.history)] == [11, 1010, 1000]
