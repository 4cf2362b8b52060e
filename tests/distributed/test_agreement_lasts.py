"""What the ranks agreed on at first still holds at every sync, or all of them say who differs in what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed.classifier import Answer, answer_to, listening
from tests.states import forged, seal


def ensemble(rank: int, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, hdet.Ensemble]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.1)], sync_every=4, model=model, **options)
    torch.manual_seed(rank + 1)
    return model, optimizer, found


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss: torch.Tensor = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def auto_lr(model: nn.Module, optimizer: torch.optim.Optimizer) -> hdet.AutoLR:
    batches = list(torch.randn(8, 32, 4, generator=torch.Generator().manual_seed(9)))
    probe = hdet.Probe(
        lambda x: (model(x) - x.sum(1, keepdim=True)).square().mean(), batches, model=model, per_sync=4
    )
    return hdet.AutoLR(optimizer, probe=probe, total_steps=400)


def differ(rank: int, how: str) -> Answer:
    """Rank 1 is another than the others, in one thing."""
    model, optimizer, found = ensemble(rank)
    for _ in range(4):
        found.step(train_once(model, optimizer))
    state = found.state_dict()
    if rank == 1:
        if how == "lr written":
            optimizer.param_groups[0]["lr"] *= 10
        elif how == "other seed":
            forged(state)["seed"] = 7
        seal(state)
    if how != "lr written":
        found.load_state_dict(state)

    def train() -> None:
        for _ in range(8):
            found.step(train_once(model, optimizer))

    return answer_to(train)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("lr written", "the base of lr/0 must be the same on all: rank 0 has 0.01; rank 1 has 0.1"),
        ("other seed", "the seed must be the same on all: rank 0 has 0; rank 1 has 7"),
    ],
)
def test_a_rank_that_differs_is_named_at_the_next_sync(ranks: LocalProcesses, how: str, said: str) -> None:
    for kind, message, _ in ranks.run(differ, how, size=2):
        assert kind == "RuntimeError"
        assert said in message
        assert "Load the same checkpoint everywhere" in message


def other_state(rank: int) -> Answer:
    """AutoLR under DistributedDataParallel: nothing is averaged that would show it."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    auto = auto_lr(model, optimizer)
    torch.manual_seed(rank + 1)
    for _ in range(60):
        auto.step(train_once(model, optimizer))
    state = auto.state_dict()
    if rank == 1:
        forged(state)["engine"]["explored"][0]["factor"] *= 3
        seal(state)
    auto.load_state_dict(state)

    def train() -> None:
        for _ in range(100):
            auto.step(train_once(model, optimizer))

    return answer_to(train)


def test_a_search_that_resumes_from_another_state_on_one_rank(ranks: LocalProcesses) -> None:
    for kind, message, _ in ranks.run(other_state, size=2):
        assert kind == "RuntimeError"
        assert "of lr/0 must be the same on all" in message


def other_version(rank: int, when: str) -> Answer:
    """One machine has not been updated, or is while it trains."""
    kept = hdet.__version__
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        if rank == 1 and when == "before":
            hdet.__version__ = "0.0.1"
        auto = auto_lr(model, optimizer)
        if rank == 1:
            hdet.__version__ = "0.0.1"
        for _ in range(60):
            auto.step(train_once(model, optimizer))

    try:
        return answer_to(train)
    finally:
        hdet.__version__ = kept


@pytest.mark.parametrize("when", ["before", "after"])
def test_another_version_on_one_rank(ranks: LocalProcesses, when: str) -> None:
    for kind, message, _ in ranks.run(other_version, when, size=2):
        assert kind == "RuntimeError"
        assert "hdet's version must be the same on all" in message
        assert "rank 1 has 0.0.1" in message


def other_order(rank: int) -> Answer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters if rank == 0 else parameters[::-1], lr=0.01)
    return answer_to(lambda: hdet.Ensemble(optimizer, sync_every=4, gradients="none", model=model))


def test_parameters_in_another_order_are_refused(ranks: LocalProcesses) -> None:
    for kind, message, _ in ranks.run(other_order, size=2):
        assert kind == "RuntimeError"
        assert "parameter 0 of group 0 must be the same on all: rank 0 has 0.weight" in message
        assert "rank 1 has 1.weight" in message


def drifting(rank: int) -> tuple[Answer, list[str]]:
    """AutoLR without DistributedDataParallel: all begin alike, and go ways of their own."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    auto = auto_lr(model, optimizer)

    def train() -> None:
        torch.manual_seed(rank + 1)
        for _ in range(400):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            (model(x) - (1 + rank) * x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            auto.step()

    with listening() as heard:
        answer = answer_to(train)
    return answer, [line for line in heard if "weights differ" in line]


def test_ranks_that_drift_apart_are_told_and_then_refused(ranks: LocalProcesses) -> None:
    results = ranks.run(drifting, size=2)
    assert len(results[0][1]) == 1
    for (kind, message, _), _ in results:
        assert kind == "RuntimeError"
        assert "although nothing makes replicas diverge" in message
        assert "DistributedDataParallel is missing" in message
