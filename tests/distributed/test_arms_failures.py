"""Ranks that train apart: what is refused or doubted, and who fails when one of them does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks
from tests.distributed.classifier import (
    Answer,
    Classifier,
    advance,
    all_equal,
    answer_to,
    batch,
    listening,
    probe_of,
)

# ---------------------------------------------------------------------- refused, on every rank


def refused(rank: int, how: str) -> tuple[Answer, tuple[float, float], int]:
    torch.manual_seed(0)
    model, criterion = Classifier(), nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options: dict[str, Any] = {"gradients": "none", "model": model}
    explore: list[Any] = [hdet.Dropout(model), hdet.LabelSmoothing(criterion)]
    if how == "arms of a part":
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        options["gradients"] = hdet.Arms(2, process_group=halves[rank // 2])
    elif how == "wired to all":
        options["model"] = DistributedDataParallel(model)
    elif how == "wired to none":
        options["gradients"], options["model"] = hdet.Arms(2), DistributedDataParallel(model)
    elif how == "too many":
        options["gradients"] = hdet.Arms(2)
        options["probe"] = probe_of(model, criterion)
    elif how == "orthogonal":
        options["design"] = "orthogonal"
        explore.append(hdet.GradientClip())  # which hooks into the optimizer
    elif how == "word":
        options["gradients"] = "some"
    elif how == "disagree":
        options["gradients"] = "all" if rank else "none"
    answer = answer_to(lambda: hdet.Ensemble(optimizer, explore, **options))
    hooks = len(optimizer._optimizer_step_pre_hooks)  # no public name counts them
    return answer, (model.drop.p, criterion.label_smoothing), hooks


@pytest.mark.parametrize(
    ("how", "size", "kind", "words"),
    [
        ("arms of a part", 4, "ValueError", ["Ensemble", "4 ranks", "of 2", "same process_group"]),
        ("wired to all", 4, "ValueError", ["Ensemble", "DistributedDataParallel over 4", "Arms(count).wrap"]),
        ("wired to none", 4, "ValueError", ["2 ranks share a gradient", "over 4"]),
        (
            "too many",
            4,
            "ValueError",
            ["at most 1", "got 2 (dropout, label_smoothing)", "use 3 replicas"],
        ),
        ("orthogonal", 3, "ValueError", ["got 3", "use 2 replicas (or arms)", "design='permutation'"]),
        ("word", 2, "ValueError", ["gradients must be 'all', 'none', 'switch' or an hdet.Arms", "'some'"]),
        ("disagree", 2, "RuntimeError", ["disagree", "gradients must be the same", "'none'", "'all'"]),
    ],
)
def test_what_cannot_work_is_refused_by_all_ranks_and_leaves_nothing_behind(
    ranks: LocalProcesses, how: str, size: int, kind: str, words: list[str]
) -> None:
    for (got, message, seconds), values, hooks in ranks.run(refused, how, size=size):
        assert got == kind, message
        assert all(word in message for word in words), message
        assert seconds < 20
        assert values == (0.2, 0.1)
        assert hooks == 0


# ---------------------------------------------------------------------- doubted, and said once


def doubted(rank: int, how: str) -> dict[str, Any]:
    torch.manual_seed(rank if how in ("strangers", "wrapped") else 0)
    model, criterion = Classifier(), nn.CrossEntropyLoss()
    if how == "wrapped":
        hdet.Arms(dist.get_world_size()).wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with listening() as heard:
        ensemble = hdet.Ensemble(optimizer, [], gradients="none", sync_every=2, model=model)
        at_start = list(heard)
        records = []
        for step in range(4):
            seen_as = 0 if how == "same batches" else rank
            records.append(ensemble.step(advance(model, criterion, optimizer, seen_as, step)))
    return {"start": at_start, "all": list(heard), "events": [r.events for r in records if r]}


@pytest.mark.parametrize(("how", "warned"), [("strangers", True), ("wrapped", False), ("alike", False)])
def test_replicas_that_begin_as_strangers_are_doubted(ranks: LocalProcesses, how: str, warned: bool) -> None:
    results = ranks.run(doubted, how)
    assert any("norm apart" in said and "Arms.wrap(model)" in said for said in results[0]["start"]) == warned
    assert all(r["all"] == [] for r in results[1:]), "one rank speaks for all"
    if not warned:
        assert results[0]["all"] == []


# ---------------------------------------------------------------------- failing together


def failing_probe(rank: int, calls: int) -> dict[str, Any]:
    """On rank 2 the probe raises in the given call, once; training goes on after it."""
    torch.manual_seed(0)
    model, criterion = Classifier(), nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    asked = 0

    def loss(pair: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal asked
        asked += 1
        if rank == 2 and asked == calls:
            raise KeyError("no such sample")
        return F.cross_entropy(model(pair[0]), pair[1])

    ensemble = hdet.Ensemble(
        optimizer,
        [hdet.Dropout(model), hdet.LabelSmoothing(criterion)],
        gradients="none",
        probe=hdet.Probe(loss, [batch(rank, 9999)], model=model, per_sync=1),
        sync_every=2,
        model=model,
    )
    answers, records, own = [], [], []
    for step in range(6):
        own.append((model.drop.p, criterion.label_smoothing))
        value = advance(model, criterion, optimizer, rank, step)

        def go(value: Tensor = value) -> None:
            record = ensemble.step(value)
            records.extend([record] if record else [])

        answers.append(answer_to(go))
    weights = tasks.flat(model)
    ensemble.detach()
    return {
        "answers": answers,
        "records": records,
        "own": own,
        "weights": weights,
        "base": (model.drop.p, criterion.label_smoothing),
    }


@pytest.mark.parametrize("calls", [1, 2], ids=["at its own weights", "at the mean"])
def test_a_probe_that_fails_on_one_rank_fails_on_all(ranks: LocalProcesses, calls: int) -> None:
    results = ranks.run(failing_probe, calls)
    for rank, result in enumerate(results):
        kinds = [kind for kind, _, _ in result["answers"]]
        assert kinds == ["", "KeyError" if rank == 2 else "RuntimeError", "", "", "", ""]
        assert "no such sample" in result["answers"][1][1] if rank == 2 else True
        assert "probe raised on rank 2" in result["answers"][1][1] if rank != 2 else True
        assert result["answers"][1][2] < 20
        assert len(result["records"]) == 2
    assert all_equal([r["weights"] for r in results])
    assert len({r["base"] for r in results}) == 1
    for k, record in enumerate(results[0]["records"]):
        for h, known in enumerate(record.hyperparameters):
            stood = tuple(r["own"][2 * k + 2][h] for r in results)
            assert known.values == stood, "a replica is judged by the values that it had"
