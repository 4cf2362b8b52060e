"""Layouts that are seldom: ranks in another order, stages of a pipeline; and a rank that fails where the
others need its shards."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import hdet
from hdet.replicas.launch import LocalProcesses, ReplicaError
from tests.distributed.classifier import Answer, answer_to
from tests.distributed.sharded import Run, Uneven
from tests.distributed.test_sharded import alike, same
from tests.standing import standing

# ---------------------------------------------------------------------- meshes


def descending(rank: int) -> Answer:
    torch.manual_seed(0)
    model = Uneven()
    fully_shard(model, mesh=DeviceMesh("cpu", [[0, 1], [3, 2]], mesh_dim_names=("replicate", "shard")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    explore = [hdet.LearningRate(spread=0.2)]
    return answer_to(lambda: hdet.Ensemble(optimizer, explore, sync_every=5, model=model))


def test_a_mesh_whose_ranks_do_not_ascend_is_refused(ranks: LocalProcesses) -> None:
    for kind, message, _ in ranks.run(descending, size=4):
        assert kind == "RuntimeError"
        assert "let the ranks of a mesh ascend" in message


# ---------------------------------------------------------------------- doors


def auto_tune(rank: int, layout: str) -> dict[str, Any]:
    run = Run(rank, layout, decay=0.1)
    decay = hdet.WeightDecay(spread=0.5)
    tune = standing(
        hdet.AutoTune(run.optimizer, [decay], probe=run.probe(), total_steps=100, gradients="all")
    )
    run.run(tune, 100)
    before = run.weights()
    return {"records": run.records, "weights": before, "values": tune.values, "handed": tune.finish_()}


def test_auto_tune_decides_as_under_ddp(ranks: LocalProcesses) -> None:
    expected = alike(ranks.run(auto_tune, "ddp", size=2))
    found = alike(ranks.run(auto_tune, "hsdp", size=4))
    same(expected, found)
    assert found["values"] == pytest.approx(expected["values"], rel=1e-6)
    assert found["handed"].step == expected["handed"].step


# ---------------------------------------------------------------------- stages of a pipeline


def staged(rank: int, alike_in_shape: bool) -> Answer:
    """Every rank trains another stage; what it learns from is made up."""
    torch.manual_seed(rank)
    stage = nn.Linear(4, 4 if alike_in_shape else 4 + rank, dtype=torch.float64)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=0.01)
    data = torch.randn(40, 8, 4, dtype=torch.float64)

    def loss_of(x: Tensor) -> Tensor:
        out: Tensor = (stage(x) - 1).square().mean()
        return out

    def run() -> None:
        auto = hdet.AutoLR(optimizer, probe=hdet.Probe(loss_of, data[:8], model=stage), total_steps=100)
        for x in data[8:]:
            optimizer.zero_grad()
            loss_of(x).backward()
            optimizer.step()
            auto.step()

    return answer_to(run)


@pytest.mark.parametrize("alike_in_shape", [True, False])
def test_stages_of_a_pipeline_are_no_replicas(ranks: LocalProcesses, alike_in_shape: bool) -> None:
    for kind, message, seconds in ranks.run(staged, alike_in_shape, size=2):
        assert kind == "RuntimeError"
        expected = "must begin with the same weights" if alike_in_shape else "the ranks disagree"
        assert expected in message
        assert seconds < 30


# ---------------------------------------------------------------------- a part that fails


def fails(rank: int) -> None:
    run = Run(rank, "fsdp2")

    def loss_of(pair: tuple[Tensor, Tensor]) -> Tensor:
        if rank == 1 and run.number == 10:
            raise OSError("the held-out file is gone")
        return run.loss(pair)

    held_out = [run.batch(10_000 + k) for k in range(4)]
    auto = hdet.AutoLR(run.optimizer, probe=hdet.Probe(loss_of, held_out, model=run.model), total_steps=100)
    run.run(auto, 60)


def test_a_part_whose_probe_fails_says_so_and_none_waits_for_long() -> None:
    """In a pool of its own: the parts that wait in the forward pass are stopped with it."""
    with LocalProcesses(2) as two:
        two.run(abs)  # they are there
        began = time.monotonic()
        with pytest.raises(ReplicaError) as raised:
            two.run(fails, timeout=100)
        waited = time.monotonic() - began
    first = raised.value.failures[0]
    assert (first.rank, first.kind) == (1, "RuntimeError")
    assert "the probe raised on rank 1 of the 2 of replica 0" in first.message
    assert "the held-out file is gone" in first.message
    assert "let this process end" in first.message
    assert waited < 60
