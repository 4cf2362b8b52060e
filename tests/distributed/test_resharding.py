"""A run saved by ``torch.distributed.checkpoint`` goes on: in the same layout bit for bit, in others as if it
had been in them all along, and into an object that has not trained a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed.sharded import Run, shards
from tests.distributed.test_sharded import alike

STEPS = 120
#: At the end of a window, and within one.
AT_END, WITHIN = 50, 67
#: What is not the same after a resume: what was trained before it is not in the mean of its window's losses.
Door = Callable[[Run], Any]


def auto_lr(run: Run, **options: Any) -> Any:
    return hdet.AutoLR(run.optimizer, probe=run.probe(), total_steps=STEPS, **options)


def save(run: Run, door: Any, path: str) -> None:
    model, optimizer = get_state_dict(run.model, run.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=f"{path}/training")
    dcp.save({"door": door}, checkpoint_id=f"{path}/door")


def load(run: Run, make: Door, path: str, at: int, *, early: bool) -> Any:
    """``early``: the door is made before the optimizer has its state, as most training scripts do it."""
    door = make(run) if early else None
    model, optimizer = get_state_dict(run.model, run.optimizer)
    dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=f"{path}/training")
    set_state_dict(run.model, run.optimizer, model_state_dict=model, optim_state_dict=optimizer)
    door = door or make(run)
    dcp.load({"door": door}, checkpoint_id=f"{path}/door")
    run.number = at
    return door


def unbroken(rank: int, layout: str, path: str, make: Door = auto_lr, **options: Any) -> dict[str, Any]:
    run = Run(rank, layout, **options)
    door = make(run)
    for at in (AT_END, WITHIN):
        run.run(door, at)
        save(run, door, f"{path}/{at}")
    run.run(door, STEPS)
    return result(run, door)


def resumed(
    rank: int, layout: str, path: str, at: int, make: Door = auto_lr, early: bool = True, **options: Any
) -> dict[str, Any]:
    run = Run(rank, layout, **options)
    door = load(run, make, f"{path}/{at}", at, early=early)
    run.run(door, STEPS)
    return result(run, door)


def result(run: Run, door: Any) -> dict[str, Any]:
    every = {"records": run.records, "weights": run.weights(), "shards": shards(run.model)}
    if isinstance(door, hdet.AutoLR):
        every |= {"handed": door.finish_(), "after": run.weights()}
    return every


def goes_on(expected: dict[str, Any], found: dict[str, Any], *, exactly: bool = False) -> None:
    """The windows after the resume decide as those of the unbroken run."""
    rest = expected["records"][-len(found["records"]) :]
    assert len(rest) >= 2
    for mine, theirs in zip(rest, found["records"], strict=True):
        assert [h.action for h in mine.horizon] == [h.action for h in theirs.horizon]
        assert (mine.step, mine.round) == (theirs.step, theirs.round)
        for a, b in zip(mine.hyperparameters, theirs.hyperparameters, strict=True):
            assert b.base_after == pytest.approx(a.base_after, rel=0 if exactly else 1e-6, abs=0, nan_ok=True)
        for a, b in zip(mine.horizon, theirs.horizon, strict=True):
            assert b.speed == pytest.approx(a.speed, rel=0 if exactly else 1e-6, abs=0, nan_ok=True)
    if "handed" in expected:
        assert (found["handed"].kind, found["handed"].step) == (
            expected["handed"].kind,
            expected["handed"].step,
        )
    for name in ("weights", "after"):
        for key, weight in expected.get(name, {}).items():
            bound = 0.0 if exactly else 1e-6
            torch.testing.assert_close(found[name][key], weight, rtol=bound, atol=bound)


@pytest.fixture(scope="module")
def saved(ranks: LocalProcesses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One model on four ranks, two replicas of two parts, saved twice."""
    path = str(tmp_path_factory.mktemp("hsdp"))
    return {"path": path, "run": alike(ranks.run(unbroken, "hsdp", path, size=4))}


@pytest.mark.parametrize("at", [AT_END, WITHIN])
@pytest.mark.parametrize("early", [True, False])
def test_the_same_layout_bit_for_bit(
    ranks: LocalProcesses, saved: dict[str, Any], at: int, early: bool
) -> None:
    found = alike(ranks.run(resumed, "hsdp", saved["path"], at, auto_lr, early, size=4))
    goes_on(saved["run"], found, exactly=True)


@pytest.mark.parametrize("at", [AT_END, WITHIN])
@pytest.mark.parametrize(("layout", "size"), [("fsdp2", 4), ("fsdp2", 2), ("solo", 1), ("ddp", 2)])
def test_another_layout(
    ranks: LocalProcesses, saved: dict[str, Any], layout: str, size: int, at: int
) -> None:
    found = alike(ranks.run(resumed, layout, saved["path"], at, size=size))
    goes_on(saved["run"], found)
