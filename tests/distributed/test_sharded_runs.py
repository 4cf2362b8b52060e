"""What surrounds a run on sharded replicas: noise to begin with, precision, memory, the history, a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy

import hdet
from hdet import history
from hdet.replicas import local
from hdet.replicas.launch import LocalProcesses
from tests.distributed.sharded import Run, shards
from tests.distributed.test_sharded import alike, same
from tests.states import inside

# ---------------------------------------------------------------------- what is explored


def ensemble(rank: int, layout: str) -> dict[str, Any]:
    """Weight decay, by a regression on held-out losses; the optimizer's state is not touched by it."""
    run = Run(rank, layout, decay=0.1)
    explore = [hdet.WeightDecay(spread=0.5)]
    engine = hdet.Ensemble(run.optimizer, explore, probe=run.probe(2), sync_every=6, model=run.model)
    run.run(engine, 48)
    engine.converge()
    return {"records": run.records, "weights": run.weights(), "values": engine.values}


def test_an_ensemble_with_weight_decay(ranks: LocalProcesses) -> None:
    expected = alike(ranks.run(ensemble, "ddp", size=2))
    found = alike(ranks.run(ensemble, "hsdp", size=4))
    same(expected, found)
    assert found["values"] == pytest.approx(expected["values"], rel=1e-6)


def given_group(rank: int, layout: str) -> dict[str, Any]:
    """HSDP's replicate dimension as process_group, as one had to pass it before."""
    run = Run(rank, layout)
    mesh = getattr(next(iter(run.model.parameters())), "device_mesh", None)
    group = None if mesh is None else mesh.get_group("replicate")
    settings: dict[str, Any] = {"total_steps": 40, "ensemble_lr_spread_ratio": 0.3, "model_sync_interval": 8}
    settings |= {"auto_lr_warmup_steps": 0, "enable_auto_lr": True, "loss_scale": 0.02, "model": run.model}
    run.run(hdet.OneCycleAutoLR(run.optimizer, 0.05, process_group=group, **settings), 40)
    return {"records": run.records, "weights": run.weights()}


def test_the_replicate_group_means_the_same(ranks: LocalProcesses) -> None:
    expected = alike(ranks.run(given_group, "ddp", size=2))
    same(expected, alike(ranks.run(given_group, "hsdp", size=4)))


# ---------------------------------------------------------------------- how it is trained


def in_low_precision(rank: int, by_probe: bool) -> dict[str, Any]:
    """Forward and backward in bfloat16, activations computed anew; before each step(), an evaluation of the
    user's own, after which FSDP's root keeps what it has gathered."""
    run = Run(
        rank,
        "hsdp",
        prepare=lambda model: setattr(model, "two", checkpoint_wrapper(model.two)),
        mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32),
    )
    door: Any
    if by_probe:
        door = hdet.AutoLR(run.optimizer, probe=run.probe(), total_steps=60)
    else:
        door = hdet.Ensemble(run.optimizer, [hdet.LearningRate(0.2)], sync_every=10, model=run.model)
    losses = []
    while run.number < 60:
        loss = run.train_once()
        with torch.no_grad():
            run.loss(run.batch(5_000))
            if record := door.step(loss):
                run.records.append(record)
                kept = run.loss(run.batch(5_001)).item()
                for module in run.model.modules():
                    if hasattr(module, "reshard"):
                        module.reshard()
                losses.append((kept, run.loss(run.batch(5_001)).item()))
    return {"records": run.records, "weights": run.weights(), "losses": losses}


@pytest.mark.parametrize("by_probe", [True, False])
def test_mixed_precision_and_checkpoints_of_activations(ranks: LocalProcesses, by_probe: bool) -> None:
    found = alike(ranks.run(in_low_precision, by_probe, size=4))
    for kept, fresh in found["losses"]:
        assert kept == fresh, "the forward pass after a sync sees the weights as they stand"
    for record in found["records"][2:]:
        assert record.distance_measured == pytest.approx(record.distance_predicted, rel=0.05, abs=1e-6)


# ---------------------------------------------------------------------- noise to begin with


def warm(rank: int, layout: str, scope: str) -> dict[str, Any]:
    run = Run(rank, layout, widths=(8, 4))
    before, whole = shards(run.model), run.weights()
    hdet.warm_start_(run.model, 0.05, scope=scope, seed=3)
    noise = [a - b for a, b in zip(shards(run.model), before, strict=True)]
    after = run.weights()
    ratio = {name: float((after[name] - w).norm() / w.norm()) for name, w in whole.items()}
    return {"noise": noise, "ratio": ratio}


@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_every_shard_has_noise_of_its_own(ranks: LocalProcesses, scope: str) -> None:
    a, b, c, _ = ranks.run(warm, "hsdp", scope, size=4)
    for first, second, elsewhere in zip(a["noise"], b["noise"], c["noise"], strict=True):
        assert not torch.equal(first, elsewhere), "replicas differ"
        if first.numel() > 1 and first.shape == second.shape:
            assert not torch.allclose(first / first.norm(), second / second.norm()), "shards differ"
    if scope == "tensor":
        assert a["ratio"]["one.weight"] == pytest.approx(0.05, rel=0.3)


def test_what_all_parts_hold_has_the_same_noise(ranks: LocalProcesses) -> None:
    """Tensor parallelism: the last layer lies on every rank, and must stay one layer."""
    a, b, c, d = ranks.run(warm, "tp x dp", "global", size=4)
    for one, other in ((a, b), (c, d)):
        assert torch.equal(one["noise"][-1], other["noise"][-1])
        assert torch.equal(one["noise"][-2], other["noise"][-2])
        assert not torch.equal(one["noise"][0], other["noise"][0])
    assert not torch.equal(a["noise"][-2], c["noise"][-2])


# ---------------------------------------------------------------------- memory and the history


def remembered(rank: int, layout: str, path: str) -> dict[str, Any]:
    run = Run(rank, layout)
    auto = hdet.AutoLR(run.optimizer, probe=run.probe(), total_steps=100, history=path, offload=False)
    run.run(auto, 60)
    state = inside(auto.state_dict())["engine"]["policies"][0]
    held: list[Any] = [state["trail"], state["snapshot"], state["beginning"], state["incumbent"]["keeper"]]
    own = {t.data_ptr(): t for t in map(local, tensors_in(held)) if t.numel()}
    return {"told": auto.extra_bytes(), "held": sum(t.numel() * t.element_size() for t in own.values())}


def tensors_in(held: Any) -> list[torch.Tensor]:
    if isinstance(held, torch.Tensor):
        return [held]
    parts = held.values() if isinstance(held, dict) else held if isinstance(held, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def test_memory_is_told_as_it_is_and_one_process_writes(ranks: LocalProcesses, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for result in ranks.run(remembered, "fsdp2", str(path), size=2):
        assert result["told"] == result["held"]
    steps = [record.step for record in history.read_history(path)]
    assert len(steps) == len(set(steps)) >= 4
