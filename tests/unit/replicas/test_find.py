"""Who the replicas are, where a launcher has started several processes and they have not met yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.replicas import SoloReplica, find_replicas
from tests.unit.training import network, probe_of

DOORS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "AutoLR": lambda m, o: hdet.AutoLR(o, probe=probe_of(m), total_steps=100),
    "AutoTune": lambda m, o: hdet.AutoTune(o, [hdet.WeightDecay()], probe=probe_of(m), total_steps=100),
    "OneCycleAutoLR": lambda m, o: hdet.OneCycleAutoLR(o, 0.1, 100, ensemble_lr_spread_ratio=0.1),
    "Ensemble": lambda m, o: hdet.Ensemble(o),
    "BestMean": lambda m, o: hdet.BestMean(m, probe_of(m)),
    "warm_start_": lambda m, o: hdet.warm_start_(m),
}


def build(door: str) -> Any:
    model = network()
    return DOORS[door](model, torch.optim.AdamW(model.parameters(), lr=0.1))


@pytest.mark.parametrize("door", DOORS)
def test_several_processes_that_have_not_met_are_no_lone_ones(
    door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=f"{door}: the process group must exist before it is made") as seen:
        build(door)
    for words in ("WORLD_SIZE=2", "init_process_group", "TrainingArguments", "take WORLD_SIZE out of os.env"):
        assert words in str(seen.value)


@pytest.mark.parametrize("told", ["1", "", "auto", "0"])
def test_one_process_is_alone_whatever_its_launcher_says(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", told)
    for door in DOORS:
        build(door)


def test_who_was_told_who_trains_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hdet.Ensemble(optimizer, process_group=SoloReplica())
    stacked = hdet.StackedReplicas(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert hdet.Ensemble(stacked.optimizer).replicas is stacked


def test_a_lone_process_may_begin() -> None:
    found = find_replicas("test")
    found.before_first_step("test")
    assert found.size == 1
