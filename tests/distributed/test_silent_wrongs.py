"""Set-ups in which averaging would do harm unseen: they are mended, told or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import hdet
from hdet.history import SyncRecord
from hdet.replicas.launch import LocalProcesses
from tests.distributed.classifier import Answer, answer_to
from tests.distributed.sharded import Run


class Masters(torch.optim.Optimizer):
    """SGD in bfloat16 that keeps float32 copies of its weights, as fused optimizers do."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["master_param"] = parameter.detach().float().clone()
                    state["seen"] = torch.zeros_like(parameter, dtype=torch.float32)
                state["seen"].add_(parameter.grad.float().square())
                state["master_param"].sub_(group["lr"] * parameter.grad.float())
                parameter.copy_(state["master_param"])


def halves(rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(64, 8, generator=generator)
    return x, x[:, :1].sin()


def with_masters(rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8, bias=False).bfloat16())
    optimizer = Masters(model.parameters(), 0.1)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], sync_every=5, model=model)
    x, y = halves(rank)
    records, apart = [], []
    for _ in range(20):
        optimizer.zero_grad()
        (model(x.bfloat16()) - y).square().mean().backward()
        optimizer.step()
        record = ensemble.step()
        if record:
            records.append(record)
            (master,) = (state["master_param"] for state in optimizer.state.values())
            apart.append(master.clone())
    (seen,) = (state["seen"] for state in optimizer.state.values())
    return {"records": records, "masters": apart, "seen": seen}


def test_copies_of_the_weights_in_the_optimizer_are_averaged_with_them(ranks: LocalProcesses) -> None:
    one, other = ranks.run(with_masters, size=2)
    for mine, theirs in zip(one["masters"], other["masters"], strict=True):
        assert torch.equal(mine, theirs)
    for record in one["records"]:
        assert max(record.distance_measured) < 1.5 * max(record.distance_predicted) + 0.05
        assert not record.events


def begins(rank: int, layout: str) -> tuple[Answer, bool]:
    """Every replica has another seed, which data parallelism mends and fully_shard does not."""
    run = Run(rank, layout, seed=rank // 2)
    scheduler = hdet.OneCycleAutoLR(
        run.optimizer,
        max_lr=0.01,
        total_steps=20,
        ensemble_lr_spread_ratio=0.1,
        model_sync_interval=5,
        model=run.model,
    )
    run.run(scheduler, 4)
    before = run.weights()
    answer = answer_to(lambda: run.run(scheduler, 5))
    near = all(torch.allclose(w, before[name], atol=0.05) for name, w in run.weights().items())
    return answer, near


def test_replicas_that_begin_apart_are_refused_before_they_are_mixed(ranks: LocalProcesses) -> None:
    for (kind, message, _), untouched in ranks.run(begins, "hsdp", size=4):
        assert kind == "RuntimeError"
        assert "replicas that share their gradients must begin with the same weights" in message
        assert untouched
    for (kind, message, _), _ in ranks.run(begins, "ddp", size=4):
        assert not kind, message


def not_wired(rank: int) -> tuple[Answer, list[SyncRecord]]:
    """DistributedDataParallel was forgotten: every rank follows its own gradient."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.1)], sync_every=5, model=model)
    x, y = halves(rank)
    records: list[Any] = []

    def train() -> None:
        for _ in range(20):
            optimizer.zero_grad()
            (model(x) - (2 * rank - 1) * y).square().mean().backward()
            optimizer.step()
            records.append(ensemble.step())

    return answer_to(train), [record for record in records if record]


def test_distances_that_the_learning_rate_does_not_explain(ranks: LocalProcesses) -> None:
    """Told at the first sync, refused at the third."""
    for (kind, message, _), records in ranks.run(not_wired, size=2):
        assert kind == "RuntimeError"
        assert "more than the learning rate makes them differ" in message
        assert [record.step for record in records] == [5, 10]
        assert all("apart where" in " ".join(record.events) for record in records)


def unlike(rank: int, calls: float) -> list[SyncRecord]:
    """On gradients of their own; rank 1 calls ``step()`` so often for each optimizer step."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    door = hdet.Ensemble(optimizer, [hdet.LearningRate()], gradients="none", sync_every=10, model=model)
    for call in range(20):
        loss = model(torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * call + rank))).mean()
        loss.backward()
        for _ in range(1 if not rank else int((call + 1) / calls) - int(call / calls)):
            optimizer.step()
        door.step(loss.detach())
    return door.history


@pytest.mark.parametrize(("calls", "taken"), [(0.5, (10, 20)), (1, None), (2, (5, 10))])
def test_a_rank_that_calls_step_too_often_or_too_rarely_is_told(
    ranks: LocalProcesses, calls: float, taken: tuple[int, int] | None
) -> None:
    for records in ranks.run(unlike, calls):
        said = [event for record in records for event in record.events if "optimizer steps, and" in event]
        assert len(said) == (2 if taken else 0)
        assert all(f"took {taken[0]} optimizer steps, and replica" in event for event in said if taken)


def shared_by_the_mesh(rank: int) -> Answer:
    run = Run(rank, "hsdp")
    return answer_to(lambda: hdet.Ensemble(run.optimizer, sync_every=5, gradients="none", model=run.model))


def test_what_the_mesh_shares_is_not_each_replicas_own(ranks: LocalProcesses) -> None:
    for kind, message, _ in ranks.run(shared_by_the_mesh, size=4):
        assert kind == "ValueError"
        assert (
            "gradients must be what the replicas share by the model's own mesh, 'all', got 'none'" in message
        )


def clipped(rank: int) -> Answer:
    run = Run(rank, "fsdp1 hybrid original")
    explore = [hdet.GradientClip(1.0)]
    return answer_to(lambda: hdet.Ensemble(run.optimizer, explore, sync_every=5, model=run.model))


def test_a_part_of_a_gradient_is_not_clipped_by_itself(ranks: LocalProcesses) -> None:
    for kind, message, _ in ranks.run(clipped, size=4):
        assert kind == "TypeError"
        assert "gradient_clip is taken over the whole gradient" in message


def made_too_early(rank: int, meeting: str, door: str) -> Answer:
    dist.destroy_process_group()
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = hdet.Probe(lambda pair: (model(pair[0]) - pair[1]).square().mean(), [halves(9)] * 8, model=model)
    run: Any
    if door == "AutoLR":
        run = hdet.AutoLR(optimizer, probe=probe, total_steps=100)
    else:
        run = hdet.BestMean(model, probe)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)

    def train() -> None:
        optimizer.step()
        run.step()

    return answer_to(train)


@pytest.mark.parametrize("door", ["AutoLR", "BestMean"])
def test_a_group_that_comes_after_is_refused_at_the_first_step(
    ranks: LocalProcesses, tmp_path: Any, door: str
) -> None:
    """Each rank would take itself for the only one: no fan-out, and decisions of its own."""
    for kind, words, _ in ranks.run(made_too_early, str(tmp_path / "late"), door, size=2):
        assert kind == "RuntimeError"
        assert words.startswith(door)
        assert "it was made for one process alone, and now there are 2; build it after" in words
