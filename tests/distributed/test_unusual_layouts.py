"""Layouts that are seldom: three dimensions of a mesh, ranks in another order, stages of a pipeline; what
travels in fewer bits between shards; and a part that fails where the others need it."""

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
from tests.fake_torchft import FakeManager, Lighthouse

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


def diverging(rank: int, layout: str) -> dict[str, Any]:
    run = Run(rank, layout, widths=(8, 4))
    auto = hdet.AutoLR(run.optimizer, probe=run.probe(), total_steps=60, spread=0.2)
    run.run(auto, 60)
    return {"records": run.records, "weights": run.weights()}


def test_three_dimensions_of_two(ranks: LocalProcesses) -> None:
    """Replicated, sharded, and cut into matrices, each over two of eight ranks."""
    expected = alike(ranks.run(diverging, "ddp", size=2))
    with LocalProcesses(8) as eight:
        same(expected, alike(eight.run(diverging, "hsdp x tp", timeout=300)))


# ---------------------------------------------------------------------- doors


def auto_tune(rank: int, layout: str) -> dict[str, Any]:
    run = Run(rank, layout, decay=0.1)
    tune = hdet.AutoTune(run.optimizer, [hdet.WeightDecay(spread=0.5)], probe=run.probe(), total_steps=100)
    run.run(tune, 100)
    before = run.weights()
    return {"records": run.records, "weights": before, "values": tune.values, "handed": tune.finish_()}


def test_auto_tune_decides_as_under_ddp(ranks: LocalProcesses) -> None:
    expected = alike(ranks.run(auto_tune, "ddp", size=2))
    found = alike(ranks.run(auto_tune, "hsdp", size=4))
    same(expected, found)
    assert found["values"] == pytest.approx(expected["values"], rel=1e-6)
    assert found["handed"].step == expected["handed"].step


def in_few_bits(rank: int, layout: str, wire: Any) -> dict[str, Any]:
    run = Run(rank, layout)
    explore = [hdet.LearningRate(spread=0.3)]
    engine = hdet.Ensemble(run.optimizer, explore, sync_every=5, wire=wire, model=run.model)
    run.run(engine, 40)
    return {"records": [], "weights": run.weights()}  # of bytes every part tells its own


@pytest.mark.parametrize("wire", ["int8", "bf16"])
def test_displacements_of_shards_travel_in_few_bits(ranks: LocalProcesses, wire: str) -> None:
    """All ranks have the same weights to the last bit, and they are near the exact ones."""
    exact = alike(ranks.run(in_few_bits, "hsdp", None, size=4))
    found = alike(ranks.run(in_few_bits, "hsdp", wire, size=4))
    start = {name: p.detach() for name, p in start_of().items()}
    for name, weight in exact["weights"].items():
        moved = (weight - start[name]).norm()
        off = (found["weights"][name] - weight).norm()
        assert 0 < off < 0.02 * moved, (name, float(off / moved))


def start_of() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return dict(Uneven().named_parameters())


def carried(rank: int, layout: str) -> Answer:
    run = Run(rank, layout)
    replicas = hdet.FaultTolerantReplicas(
        FakeManager(Lighthouse(), "a", load_state_dict=lambda _: None, state_dict=dict)
    )
    settings: dict[str, Any] = {
        "sync_every": 5,
        "gradients": "none",
        "replicas": replicas,
        "model": run.model,
    }
    return answer_to(lambda: hdet.Ensemble(run.optimizer, [hdet.LearningRate(0.1)], **settings))


@pytest.mark.parametrize("layout", ["fsdp2", "fsdp1 original"])
def test_a_manager_carries_whole_models_alone(ranks: LocalProcesses, layout: str) -> None:
    for kind, message, _ in ranks.run(carried, layout, size=2):
        assert kind == "TypeError"
        assert "are whole models, each in one process, got sharded parameters" in message


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
    assert "the probe raised on part 1 of 2" in first.message
    assert "the held-out file is gone" in first.message
    assert "let this process end" in first.message
    assert waited < 60
