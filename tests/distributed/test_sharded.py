"""A replica may lie on several ranks: HSDP decides, and trains, as data parallelism on as many replicas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed.classifier import timeless
from tests.distributed.sharded import Run

STEPS = 60


def one_cycle(
    rank: int, layout: str, optimizer: str, auto: bool, widths: tuple[int, ...] = ()
) -> dict[str, Any]:
    run = Run(rank, layout, optimizer, widths=widths)
    scheduler = hdet.OneCycleAutoLR(
        run.optimizer,
        max_lr=0.05,
        total_steps=STEPS,
        ensemble_lr_spread_ratio=0.3,
        model_sync_interval=7,
        auto_lr_warmup_steps=10,
        enable_auto_lr=auto,
        loss_scale=0.02,
        model=run.model,
    )
    run.run(scheduler, STEPS)
    return {"records": run.records, "weights": run.weights(), "lr": scheduler.get_last_lr()}


def same(a: dict[str, Any], b: dict[str, Any], tolerance: float = 1e-6) -> None:
    """Weights, learning rates, losses, distances; and to the letter what was decided."""
    assert len(a["records"]) == len(b["records"]) > 3
    for mine, other in zip(a["records"], b["records"], strict=True):
        assert mine.step == other.step
        for p, q in zip(mine.horizon, other.horizon, strict=True):
            assert (p.action, p.why) == (q.action, q.why)
        for p, q in zip(mine.hyperparameters, other.hyperparameters, strict=True):
            assert p.base_after == pytest.approx(q.base_after, rel=tolerance)
        for field in ("losses", "distance_measured", "distance_predicted", "weights", "held_out"):
            assert getattr(mine, field) == pytest.approx(
                getattr(other, field), rel=1e-5, abs=1e-9, nan_ok=True
            )
        assert mine.events == other.events
    for name, weight in a["weights"].items():
        torch.testing.assert_close(b["weights"][name], weight, rtol=tolerance, atol=tolerance)


def alike(results: list[dict[str, Any]]) -> dict[str, Any]:
    """All ranks end with the same weights and the same decisions."""
    first = results[0]
    for other in results[1:]:
        for mine, theirs in zip(first["records"], other["records"], strict=True):
            assert timeless(mine) == timeless(theirs)
        for name, weight in first["weights"].items():
            assert torch.equal(other["weights"][name], weight)
    return first


@pytest.mark.parametrize(
    ("layout", "optimizer", "auto"),
    [("hsdp", "adamw", True), ("fsdp1 hybrid", "sgd", False)],
)
def test_one_cycle(ranks: LocalProcesses, layout: str, optimizer: str, auto: bool) -> None:
    expected = alike(ranks.run(one_cycle, "ddp", optimizer, auto, size=2))
    found = alike(ranks.run(one_cycle, layout, optimizer, auto, size=4))
    same(expected, found)
    moved = {record.hyperparameters[0].base_after for record in found["records"]}
    assert len(moved) == len(found["records"])


@pytest.mark.parametrize("layout", ["tp x dp", "hsdp x tp"])
def test_replicas_of_tensor_parallel_ranks(ranks: LocalProcesses, layout: str) -> None:
    expected = alike(ranks.run(one_cycle, "ddp", "adamw", True, (8, 4), size=2))
    same(expected, alike(ranks.run(one_cycle, layout, "adamw", True, (8, 4), size=4)))


def auto_lr(rank: int, layout: str, optimizer: str, spike: int | None) -> dict[str, Any]:
    run = Run(rank, layout, optimizer)
    if spike is not None:
        run.scale[spike] = math.nan
    auto = hdet.AutoLR(run.optimizer, probe=run.probe(), total_steps=160)
    run.run(auto, 160)
    before = run.weights()
    handed = auto.finish_()
    return {"records": run.records, "weights": before, "handed": handed, "after": run.weights()}


@pytest.mark.parametrize(
    ("layout", "optimizer", "spike"),
    [("hsdp", "adamw", 94), ("fsdp1 hybrid original", "sgd", 94)],
)
def test_auto_lr(ranks: LocalProcesses, layout: str, optimizer: str, spike: int | None) -> None:
    expected = alike(ranks.run(auto_lr, "ddp", optimizer, spike, size=2))
    found = alike(ranks.run(auto_lr, layout, optimizer, spike, size=4))
    same(expected, found)
    actions = [record.horizon[0].action for record in found["records"]]
    assert ("back" in actions) == (spike is not None)
    assert (found["handed"].kind, found["handed"].step) == (expected["handed"].kind, expected["handed"].step)
    for name, weight in expected["after"].items():
        torch.testing.assert_close(found["after"][name], weight, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def as_if_trained(model: Any) -> None:
    for layer in (model.one, model.two):
        layer.weight.add_(torch.outer(torch.ones(len(layer.weight)), layer.weight[0]))


def usual_share(rank: int, layout: str) -> float:
    run = Run(rank, layout, widths=(160, 96), prepare=as_if_trained)
    auto = hdet.AutoLR(run.optimizer, probe=run.probe(), total_steps=160)
    run.run(auto, 1)
    (state,) = auto._horizon.state_dict()["states"]
    return float(state["fine_tuning"])


@pytest.mark.parametrize("layout", ["hsdp", "fsdp2", "tp x dp"])
def test_trained_weights_are_told_from_their_shards(ranks: LocalProcesses, layout: str) -> None:
    """Alike on all ranks; of a small matrix a shard may be too small to stand out."""
    expected, _ = ranks.run(usual_share, "ddp", size=2)
    first, *others = ranks.run(usual_share, layout, size=4)
    assert others == [first] * 3
    assert first == pytest.approx(expected, rel=0.05)
    assert first < 1


def test_flat_parameters_count_as_new(ranks: LocalProcesses) -> None:
    assert set(ranks.run(usual_share, "fsdp1 hybrid", size=4)) == {1.0}
