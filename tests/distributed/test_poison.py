"""Poison on one replica stays there: nothing that is not finite, or has exploded, enters a mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet.history import SyncRecord
from hdet.replicas import local
from hdet.replicas.launch import LocalProcesses
from tests.distributed.classifier import Answer, answer_to, listening
from tests.distributed.sharded import Run

STEPS, SYNC_EVERY, SICK = 12, 4, 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return out


class Training:
    """One rank of an ensemble on gradients of its own."""

    def __init__(self, rank: int, *, probe: bool, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, weight_decay=0.1)
        held_out = torch.randn(64, 3)
        judged = {"probe": hdet.Probe(self.loss, [held_out], model=self.model)} if probe else {}
        settings = {"gradients": "none", "sync_every": SYNC_EVERY, "model": self.model, **options}
        self.ensemble = hdet.Ensemble(self.optimizer, [hdet.WeightDecay()], **judged, **settings)
        torch.manual_seed(rank + 1)

    def loss(self, x: Tensor) -> Tensor:
        return (self.model(x) - x.sum(1, keepdim=True)).square().mean()

    def step(self, poison: Callable[[], None] | None = None) -> SyncRecord | None:
        loss = self.loss(torch.randn(16, 3))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if poison is not None:
            with torch.no_grad():
                poison()
        return self.ensemble.step(loss.detach())

    def held(self) -> dict[str, Tensor]:
        """Everything that is averaged."""
        kept = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        for i, state in enumerate(self.optimizer.state.values()):
            kept |= {f"{i} {name}": value.clone() for name, value in state.items()}
        return kept


def poison(training: Training, what: str) -> None:
    model, state = training.model, training.optimizer.state
    if what == "weights":
        model.first.weight[0, 0] = math.nan
    elif what == "buffers":
        assert isinstance(model.norm.running_var, Tensor)
        model.norm.running_var.fill_(math.nan)
    elif what == "state":
        state[model.first.weight]["exp_avg_sq"].fill_(math.inf)
    elif what == "explosion":
        model.last.weight.fill_(1e10)
    else:
        raise AssertionError(what)


def with_a_mask(rank: int) -> tuple[list[tuple[str, ...]], bool, dict[str, Tensor]]:
    """Its third round poisons one replica; until then, nothing is wrong."""
    training = Training(rank, probe=False)
    training.model.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))
    training.ensemble.detach()
    training.ensemble = hdet.Ensemble(
        training.optimizer,
        [hdet.WeightDecay()],
        gradients="none",
        sync_every=SYNC_EVERY,
        model=training.model,
    )
    records = []
    for step in range(3 * SYNC_EVERY):
        sick = rank == SICK and step == 3 * SYNC_EVERY - 1
        records.append(training.step((lambda: poison(training, "buffers")) if sick else None))
    held = training.held()
    infinite = bool(held.pop("mask").isneginf().any())
    return [record.events for record in records if record is not None], infinite, held


def test_a_mask_of_infinities_makes_nobody_lost(ranks: LocalProcesses) -> None:
    """It was given so, and is averaged as it stands; another buffer that is lost is still found."""
    results = ranks.run(with_a_mask, size=3)
    for events, infinite, held in results:
        assert infinite
        assert [any("left out" in event for event in of_round) for of_round in events] == [False, False, True]
        assert not any("no replica can enter" in event for of_round in events for event in of_round)
        assert all(bool(value.isfinite().all()) for value in held.values())
        assert all(torch.equal(value, results[0][2][name]) for name, value in held.items())


WHY = {
    "weights": "its weights are not finite",
    "buffers": "its buffers or optimizer state are not finite",
    "state": "its buffers or optimizer state are not finite",
    "explosion": ", another's ",
}


def poisoned(rank: int, what: str, probe: bool, on_demand: bool) -> dict[str, Any]:
    training = Training(rank, probe=probe, total_steps=STEPS)
    records: list[SyncRecord] = []
    before: dict[str, Tensor] = {}

    def act() -> None:
        if rank == SICK:
            poison(training, what)
        before.update(training.held())

    with listening() as heard:
        for step in range(1, STEPS + 1):
            last = step == SYNC_EVERY - (1 if on_demand else 0)
            if record := training.step(act if last else None):
                records.append(record)
            if last:
                if on_demand:
                    training.ensemble.converge()
                after = training.held()
    return {"before": before, "after": after, "end": training.held(), "records": records, "heard": heard}


@pytest.mark.parametrize(
    ("what", "probe", "on_demand"),
    [
        ("weights", False, False),  # the training losses are all finite
        ("weights", True, True),
        ("buffers", True, False),  # the probe normalises by batch, and does not see it
        ("state", True, False),
        ("explosion", True, False),
    ],
)
def test_a_poisoned_replica_takes_the_mean_of_the_others(
    ranks: LocalProcesses, what: str, probe: bool, on_demand: bool
) -> None:
    results = ranks.run(poisoned, what, probe, on_demand, size=3)
    for name, mean in results[0]["after"].items():
        if "num_batches" in name or name.endswith(" step"):
            continue
        sound = torch.stack([r["before"][name] for i, r in enumerate(results) if i != SICK]).mean(0)
        assert torch.allclose(mean, sound, atol=1e-6), name
        for result in results:
            assert torch.equal(result["after"][name], mean), name
            assert torch.isfinite(result["end"][name]).all(), name
    said = [line for line in results[0]["heard"] if f"replica {SICK} left out of the mean: " in line]
    assert len(said) == 1
    assert WHY[what] in said[0] or "its loss is nan" in said[0]
    if not on_demand:
        assert any("left out of the mean" in event for event in results[0]["records"][0].events)


def sick_for_good(rank: int) -> Answer:
    training = Training(rank, probe=True)
    act = (lambda: poison(training, "state")) if rank == SICK else None

    def train() -> None:
        for _ in range(20 * SYNC_EVERY):
            training.step(act)

    return answer_to(train)


def test_who_is_lost_again_and_again_ends_the_run_on_all(ranks: LocalProcesses) -> None:
    for kind, message, _ in ranks.run(sick_for_good, size=2):
        assert kind == "RuntimeError"
        assert f"replica {SICK} was lost at 8 syncs in a row (its buffers or optimizer state" in message
        assert "look at its data and at its device" in message


def shared_nan(rank: int) -> list[str]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=0.01,
        total_steps=20,
        ensemble_lr_spread_ratio=0.1,
        model_sync_interval=4,
        model=model,
    )
    with listening() as heard:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3)).square().mean()
            (loss * (math.nan if rank == 0 and step == 1 else 1.0)).backward()
            optimizer.step()
            scheduler.step()
    return heard


def test_a_nan_on_a_shared_gradient_is_told_at_the_sync(ranks: LocalProcesses) -> None:
    heard = ranks.run(shared_nan, size=2)[0]
    assert any("the weights are lost: of the first one its weights are not finite" in line for line in heard)


def shared_buffers(rank: int) -> dict[str, Any]:
    """On one gradient for all, a rank whose own buffer is lost after the last forward pass."""
    torch.manual_seed(0)
    net = Net()
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.1)], sync_every=3, model=model)
    records = []
    for step in range(1, 7):
        optimizer.zero_grad()
        torch.manual_seed(10 * step + rank)
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
        if step == 3 and rank == SICK:
            assert isinstance(net.norm.running_mean, Tensor)
            net.norm.running_mean.fill_(math.nan)
            optimizer.state[net.first.weight]["exp_avg"].fill_(math.nan)
        records.append(ensemble.step())
    held = [*net.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
    return {"events": records[2].events, "held": [tensor.detach().clone() for tensor in held]}


def test_on_a_shared_gradient_the_state_comes_back_with_the_weights(ranks: LocalProcesses) -> None:
    results = ranks.run(shared_buffers, size=3)
    assert any(f"replica {SICK} left out of the mean" in event for event in results[0]["events"])
    for result in results:
        for mine, other in zip(result["held"], results[0]["held"], strict=True):
            assert torch.isfinite(mine).all()
            assert torch.allclose(mine, other, atol=1e-6)


def one_shard(rank: int) -> tuple[tuple[str, ...], bool]:
    """NaN in one shard of one replica: ranks 2 and 3 are the second one."""
    run = Run(rank, "hsdp")
    scheduler = hdet.OneCycleAutoLR(
        run.optimizer,
        max_lr=0.01,
        total_steps=20,
        ensemble_lr_spread_ratio=0.1,
        model_sync_interval=5,
        model=run.model,
    )
    run.run(scheduler, 4)
    loss = run.train_once()
    if rank == 3:
        shard = next(shard for p in run.model.parameters() if (shard := local(p)).numel())
        shard.view(-1)[0] = math.nan
    record = scheduler.step(loss)
    run.run(scheduler, 10)
    return record.events, all(bool(torch.isfinite(w).all()) for w in run.weights().values())


def test_one_shard_that_is_lost_leaves_the_whole_replica_out(ranks: LocalProcesses) -> None:
    for events, finite in ranks.run(one_shard, size=4):
        assert any("replica 1 left out of the mean: its weights are not finite" in event for event in events)
        assert finite
