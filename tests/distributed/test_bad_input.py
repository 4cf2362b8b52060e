"""Mistakes that only ranks together can make: each raises on every rank, at once, and names the mend."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks


def message_of(call: Any) -> tuple[str, str, float]:
    began = time.monotonic()
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "", "no error", 0.0


Answers = list[tuple[str, str, float]]


def construct(rank: int, cases: list[list[dict[str, Any]]]) -> Answers:
    _, optimizer = tasks.build("sgd")
    usual = {"max_lr": 0.1, "total_steps": 10, "ensemble_lr_spread_ratio": 0.1}
    return [
        message_of(lambda own=usual | per_rank[rank]: hdet.OneCycleAutoLR(optimizer, **own))
        for per_rank in cases
    ]


DISAGREE: list[tuple[list[dict[str, Any]], str, list[str]]] = [
    ([{"rank": 0, "world_size": 2}] * 2, "RuntimeError", ["rank", "the group's", "0 of 2"]),
    ([{"world_size": 3}] * 2, "ValueError", ["world_size=2", "world_size=3", "Leave them out"]),
    (
        [{"model_sync_interval": 5}, {"model_sync_interval": 6}],
        "RuntimeError",
        ["model_sync_interval", "rank 0 has 5", "rank 1 has 6"],
    ),
    ([{}, {"ensemble_lr_spread_ratio": -1.0}], "RuntimeError", ["ensemble_lr_spread_ratio", "-1.0"]),
    ([{"seed": 1}, {"seed": 2}], "RuntimeError", ["seed"]),
    ([{"max_lr": 0.1}, {"max_lr": 0.2}], "RuntimeError", ["max_lr"]),
    ([{"total_steps": 10}, {"total_steps": 11}], "RuntimeError", ["total_steps"]),
]


def test_ranks_that_disagree(ranks: LocalProcesses) -> None:
    for answers in ranks.run(construct, [per_rank for per_rank, *_ in DISAGREE], size=2):
        for (got, message, seconds), (_, kind, words) in zip(answers, DISAGREE, strict=True):
            assert got == kind, message
            assert message.startswith("OneCycleAutoLR")
            assert all(word in message for word in words), message
            assert seconds < 20


def different_models(rank: int) -> Answers:
    def made(how: str) -> None:
        width = 4 + (rank if how == "shape" else 0)
        model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width))
        if how == "frozen" and rank == 1:
            model[0].bias.requires_grad_(False)
        if how == "tensors" and rank == 1:
            model.append(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        hdet.OneCycleAutoLR(optimizer, max_lr=0.1, total_steps=10, ensemble_lr_spread_ratio=0.1, model=model)

    return [message_of(lambda how=how: made(how)) for how in ("shape", "frozen", "tensors")]


def test_different_models(ranks: LocalProcesses) -> None:
    for answers in ranks.run(different_models, size=2):
        for (kind, message, _), word in zip(
            answers, ("(5, 4)", "trained", "parameter 4 of group 0"), strict=True
        ):
            assert kind == "RuntimeError"
            assert "disagree" in message
            assert word in message, message


def different_groups(rank: int) -> tuple[str, str, float]:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    parameters: Any = [{"params": [w]} for w in weights] if rank == 0 else [{"params": weights}]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return message_of(
        lambda: hdet.OneCycleAutoLR(
            optimizer, max_lr=[0.1, 0.2], total_steps=10, ensemble_lr_spread_ratio=0.1
        )
    )


def test_different_groups_raise_on_both_and_leave_nobody_waiting(ranks: LocalProcesses) -> None:
    for kind, message, seconds in ranks.run(different_groups, size=2):
        assert kind == "RuntimeError"
        assert "number of parameter groups" in message
        assert seconds < 20


def unwritable(rank: int, path: str) -> tuple[str, str, float]:
    _, optimizer = tasks.build("sgd")
    return message_of(
        lambda: hdet.OneCycleAutoLR(
            optimizer, max_lr=0.1, total_steps=10, ensemble_lr_spread_ratio=0.1, history=path
        )
    )


def test_an_unwritable_history_raises_on_all_ranks(ranks: LocalProcesses, tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    for kind, message, _ in ranks.run(unwritable, str(tmp_path / "file" / "h.jsonl"), size=2):
        assert kind == "RuntimeError"
        assert "history must be the same on all" in message


LAYOUTS = ("zero", "fsdp2", "fsdp1", "fsdp1 without model", "fsdp1, original parameters")


def sharded(rank: int) -> Answers:
    return [message_of(lambda how=how: shard(how)) for how in LAYOUTS]


def shard(how: str) -> None:
    model = nn.Linear(8, 8)
    if how == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    elif how == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel

        keep = how == "fsdp1, original parameters"
        model = FullyShardedDataParallel(model, use_orig_params=keep, device_id=torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    known = None if how == "fsdp1 without model" else model
    hdet.OneCycleAutoLR(optimizer, max_lr=0.1, total_steps=10, ensemble_lr_spread_ratio=0.1, model=known)


def test_what_cannot_diverge_is_refused(ranks: LocalProcesses) -> None:
    for answers in ranks.run(sharded, size=2):
        for (kind, message, _), how in zip(answers, LAYOUTS, strict=True):
            assert kind == "TypeError", (how, message)
            assert "DistributedDataParallel" in message
            assert "replicas" in message


def outsider(rank: int) -> tuple[str, str, float]:
    group = dist.new_group([0, 1])
    _, optimizer = tasks.build("sgd")
    return message_of(
        lambda: hdet.OneCycleAutoLR(
            optimizer, max_lr=0.1, total_steps=10, ensemble_lr_spread_ratio=0.1, process_group=group
        )
    )


def test_a_rank_outside_the_group(ranks: LocalProcesses) -> None:
    inside, also_inside, outside = ranks.run(outsider, size=3)
    assert inside[1] == also_inside[1] == "no error"
    assert outside[0] == "ValueError"
    assert "not in the group" in outside[1]
