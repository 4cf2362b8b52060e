"""Who the replicas are, where a launcher has started several processes and they have not met yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.replicas import SoloReplica, find_replicas, refuse_divergence
from hdet.replicas.find import _ranks_with_same_shards
from hdet.replicas.sharded import Layout
from tests.fakes import on_threads
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


class ZeroRedundancyOptimizer(torch.optim.SGD):
    """Known by its name alone: its module is not imported for it."""


def test_one_that_updates_each_parameter_on_one_rank_lets_nothing_diverge() -> None:
    zero = ZeroRedundancyOptimizer([nn.Parameter(torch.ones(1))])
    replicas = SoloReplica()
    refuse_divergence("Ensemble", [zero], replicas)
    replicas.ranks_per_replica = 2
    with pytest.raises(TypeError, match=r"ZeroRedundancyOptimizer: it updates each parameter on one rank"):
        refuse_divergence("Ensemble", [zero], replicas)
    zero._overlap_with_ddp = True  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"steps within the backward pass .* leave overlap_with_ddp out"):
        hdet.Ensemble(zero)


def test_stacked_replicas_have_no_process_group() -> None:
    model = nn.Linear(3, 1)
    stacked = hdet.StackedReplicas(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    with pytest.raises(ValueError, match=r"Ensemble: process_group was given, but all replicas .* leave it"):
        hdet.Ensemble(stacked.optimizer, process_group=object())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replicas", "found"),
    [
        ([(0, 1), (2, 3)], [[0, 2], [1, 3]] * 2),
        ([(0, 1), (2, 3), (4, 5)], [[0, 2, 4], [1, 3, 5]] * 3),
        ([(0, 1), (2,), (3,)], "must be sharded alike and have no rank in common, and lie on the ranks"),
        ([(0, 1), (1, 2)], r"lie on the ranks \[0, 1\], \[1, 2\]; shard the model"),
    ],
)
def test_who_holds_the_same_shards_is_found_from_what_each_takes_for_its_replica(
    replicas: list[tuple[int, ...]], found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every rank; the ranks are threads."""
    me = threading.local()
    monkeypatch.setattr("torch.distributed.get_rank", lambda: me.rank)
    members = sorted({rank for replica in replicas for rank in replica})

    def act(thread: Any) -> list[int]:
        me.rank = thread.rank
        own = next(replica for replica in replicas if me.rank in replica)
        return _ranks_with_same_shards("test", Layout(own, 1, {}, (), can_reshard=True), thread, members)

    told = on_threads(len(members), act)
    if isinstance(found, list):
        assert told == found
    else:
        for error in told:
            with pytest.raises(ValueError, match=found):
                raise error
