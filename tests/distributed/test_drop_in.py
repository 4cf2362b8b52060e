"""The loops people have: the authors' own, accumulation, GradScaler, warm start, a group of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks


def authors_loop(rank: int) -> dict[str, Any]:
    """The loop of the authors' README; only the import is another."""
    from hdet import OneCycleAutoLR

    model = DistributedDataParallel(tasks.Regression())
    optimizer = torch.optim.Adam(model.parameters())
    total_steps = 40
    dataloader = [tasks.batch(rank, step) for step in range(total_steps)]

    scheduler = OneCycleAutoLR(
        optimizer,
        max_lr=0.0009,
        total_steps=total_steps,
        ensemble_lr_spread_ratio=1 / 9,
        model_sync_interval=10,
        auto_lr_warmup_steps=20,
        enable_auto_lr=True,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
    )

    lrs = []
    for x, y in dataloader:
        loss = (model(x) - y).square().mean()
        loss.backward()
        lrs.append((scheduler.get_last_lr()[0], scheduler.replica_lrs[0]))
        optimizer.step()
        scheduler.step(loss)
        optimizer.zero_grad()
    return {"lrs": lrs, "weights": tasks.flat(model)}


@pytest.mark.parametrize("size", [2, 4])
def test_the_authors_loop_runs_unchanged(ranks: LocalProcesses, size: int) -> None:
    results = ranks.run(authors_loop, size=size)
    for rank, result in enumerate(results):
        assert torch.equal(result["weights"], results[0]["weights"])
        rho = 1 + (2 * rank / (size - 1) - 1) / 9
        for base, own in result["lrs"][:10]:
            assert own == pytest.approx(base * rho, rel=1e-12), "fan-out from the first step"
        assert [b for b, _ in result["lrs"]] == [b for b, _ in results[0]["lrs"]]


def scaled(rank: int, skip: list[int], accumulate: int) -> dict[str, Any]:
    model, optimizer = tasks.build("sgd", torch.float32, groups=1)
    scheduler = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=0.05,
        total_steps=12,
        ensemble_lr_spread_ratio=0.2,
        model_sync_interval=5,
        auto_lr_warmup_steps=0,
        enable_auto_lr=True,
        loss_scale=0.1,
        model=model,
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    records, lrs = [], []
    micro = 0
    while len(lrs) < 12:
        skipped = micro // accumulate in skip
        for _ in range(accumulate):
            x, y = tasks.batch(rank, micro, torch.float32)
            loss = (model(x) - y).square().mean()
            # One rank's overflow reaches all through the shared gradient, as with real fp16.
            scaler.scale(loss * (float("inf") if skipped and rank == 1 else 1) / accumulate).backward()
            micro += 1
            if micro % accumulate == 0:
                before = optimizer.param_groups[0]["lr"]
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if not skipped:
                    lrs.append(before)
            records.append(scheduler.step(loss))
    return {"records": [r for r in records if r], "lrs": lrs, "weights": tasks.flat(model)}


@pytest.mark.parametrize(("skip", "accumulate"), [([0, 3, 4], 1), ([2], 2)])
def test_only_true_optimizer_steps_count(ranks: LocalProcesses, skip: list[int], accumulate: int) -> None:
    a, b = ranks.run(scaled, skip, accumulate, size=2)
    assert torch.equal(a["weights"], b["weights"])
    assert a["lrs"] == b["lrs"]
    assert len(set(a["lrs"])) == 12, "the schedule moved once per true step"
    assert [r.step for r in a["records"]] == [r.step for r in b["records"]] == [5, 10, 12]
    for record in a["records"]:
        assert record.distance_measured == pytest.approx(record.distance_predicted, rel=1e-2)


def in_groups(rank: int) -> tuple[list[float], torch.Tensor]:
    """Two ensembles of two replicas side by side in a world of four."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = pairs[rank // 2]
    model = DistributedDataParallel(tasks.Regression(), process_group=own)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=0.05,
        total_steps=10,
        ensemble_lr_spread_ratio=0.2,
        model_sync_interval=5,
        process_group=own,
    )
    lrs = scheduler.replica_lrs
    for step in range(10):
        scheduler.step(tasks.train_step(model, optimizer, rank, step))
    return lrs, tasks.flat(model)


def test_a_process_group_of_ones_own(ranks: LocalProcesses) -> None:
    results = ranks.run(in_groups, size=4)
    lrs = [r[0][0] for r in results]
    assert lrs[0] == lrs[2] < lrs[1] == lrs[3]
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[2][1], results[3][1])
    assert not torch.equal(results[0][1], results[2][1])


def resume(rank: int, at: int, options: dict[str, Any]) -> tuple[list[list[float]], list[list[float]]]:
    """An unbroken run, and one saved and taken up by new objects."""

    def build() -> Any:
        model, optimizer = tasks.build("adam")
        return (
            model,
            optimizer,
            hdet.OneCycleAutoLR(
                optimizer,
                max_lr=0.02,
                total_steps=40,
                ensemble_lr_spread_ratio=0.3,
                model_sync_interval=5,
                enable_auto_lr=True,
                loss_scale=0.1,
                model=model,
                **options,
            ),
        )

    def train(parts: Any, begin: int, end: int) -> list[list[float]]:
        model, optimizer, scheduler = parts
        seen = []
        for step in range(begin, end):
            scheduler.step(tasks.train_step(model, optimizer, rank, step))
            seen.append([*scheduler.get_last_lr(), *scheduler.replica_lrs, *tasks.flat(model).tolist()])
        return seen

    whole = train(build(), 0, 40)
    first = build()
    train(first, 0, at)
    saved = [part.state_dict() for part in first]
    second = build()
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    return whole[at:], train(second, at, 40)


@pytest.mark.parametrize(
    ("at", "options"),
    [
        (15, {"auto_lr_warmup_steps": 0, "decay": "geometric"}),
        (17, {"auto_lr_warmup_steps": 0, "decay": "schedule"}),
        (12, {"auto_lr_warmup_steps": 18, "rules": "printed"}),  # in the warm-up, whose losses count
        (19, {"auto_lr_warmup_steps": 18, "rules": "printed"}),  # past S_w, in a round not yet dealt anew
        (23, {"auto_lr_warmup_steps": 18, "rules": "printed"}),
    ],
)
def test_a_resumed_run_equals_the_unbroken_one(
    ranks: LocalProcesses, at: int, options: dict[str, Any]
) -> None:
    # Every rank resumes from its own state here, so the middle of an interval resumes exactly too.
    for unbroken, resumed in ranks.run(resume, at, options, size=2):
        assert resumed == unbroken


def resume_from_rank_0(rank: int) -> Any:
    """A checkpoint of rank 0 in mid-interval, after converge(); losses fall and hardly differ by rank."""
    records = []
    state: Any = None
    for begin, end in ((0, 7), (7, 10)):
        model, optimizer = tasks.build("sgd")
        scheduler = hdet.OneCycleAutoLR(
            optimizer,
            max_lr=0.02,
            total_steps=40,
            ensemble_lr_spread_ratio=0.3,
            model_sync_interval=10,
            auto_lr_warmup_steps=0,
            enable_auto_lr=True,
            loss_scale="auto",
            model=model,
        )
        if state is not None:
            scheduler.load_state_dict(state)
        for step in range(begin, end):
            tasks.train_step(model, optimizer, rank, step)
            records.append(scheduler.step(10.0 - step + 0.001 * rank))
        scheduler.converge()
        holder = [scheduler.state_dict()]
        dist.broadcast_object_list(holder, 0)
        state = holder[0]
    return records[-1]


def test_all_ranks_may_resume_from_rank_0_within_an_interval(ranks: LocalProcesses) -> None:
    for record in ranks.run(resume_from_rank_0, size=2):
        assert record.step == 10
        assert record.losses == pytest.approx((5.5, 5.501)), "converge told them all, before the state"
        assert record.weights[0] > record.weights[1]
