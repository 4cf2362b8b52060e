"""A run saved by ``torch.distributed.checkpoint`` goes on: in the same layout bit for bit, in others as if it
had been in them all along, and into an object that has not trained a step."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed.sharded import Run, shards
from tests.distributed.test_sharded import alike
from tests.states import inside

STEPS = 120
#: At the end of a window, and within one.
AT_END, WITHIN = 50, 67
Door = Callable[[Run], Any]


def auto_lr(run: Run) -> Any:
    return hdet.AutoLR(run.optimizer, probe=run.probe(), total_steps=STEPS)


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


@pytest.mark.parametrize(("at", "early"), [(AT_END, True), (WITHIN, False)])
def test_the_same_layout_bit_for_bit(
    ranks: LocalProcesses, saved: dict[str, Any], at: int, early: bool
) -> None:
    found = alike(ranks.run(resumed, "hsdp", saved["path"], at, auto_lr, early, size=4))
    goes_on(saved["run"], found, exactly=True)


@pytest.mark.parametrize(
    ("layout", "size", "at"), [("fsdp2", 2, WITHIN), ("solo", 1, WITHIN), ("ddp", 2, AT_END)]
)
def test_another_layout(
    ranks: LocalProcesses, saved: dict[str, Any], layout: str, size: int, at: int
) -> None:
    found = alike(ranks.run(resumed, layout, saved["path"], at, size=size))
    goes_on(saved["run"], found)


def test_matrices_on_several_ranks_to_one_process_and_back(ranks: LocalProcesses, tmp_path: Path) -> None:
    """Shards of columns and rows, some of them cut twice, and layers that all ranks hold."""
    run, options = functools.partial(unbroken, widths=(8, 4)), {"widths": (8, 4)}
    again = functools.partial(resumed, **options)
    whole = alike(ranks.run(run, "fsdp2 x tp", str(tmp_path), size=4))
    goes_on(whole, ranks.run(again, "solo", str(tmp_path), WITHIN, size=1)[0])
    goes_on(whole, alike(ranks.run(again, "fsdp2 x tp", str(tmp_path), WITHIN, size=4)), exactly=True)


def one_cycle(run: Run) -> Any:
    settings: dict[str, Any] = {"ensemble_lr_spread_ratio": 0.3, "model_sync_interval": 10}
    settings |= {"auto_lr_warmup_steps": 0, "enable_auto_lr": True, "loss_scale": 0.02, "model": run.model}
    return hdet.OneCycleAutoLR(run.optimizer, 0.05, total_steps=STEPS, **settings)


def ensemble(run: Run) -> Any:
    explore = [hdet.LearningRate(spread=0.2)]
    return hdet.Ensemble(run.optimizer, explore, probe=run.probe(2), sync_every=10, model=run.model)


@pytest.mark.parametrize(("make", "layout", "size"), [(ensemble, "ddp", 2)])
def test_replicas_that_diverge(
    ranks: LocalProcesses, tmp_path: Path, make: Door, layout: str, size: int
) -> None:
    """At a sync, where they are one model; on two replicas again, however they lie."""
    whole = alike(ranks.run(unbroken, "hsdp", str(tmp_path), make, size=4))
    found = alike(ranks.run(resumed, layout, str(tmp_path), AT_END, make, size=size))
    goes_on(whole, found, exactly=layout == "hsdp")


# ---------------------------------------------------------------------- what cannot go on is refused


def into_fresh(rank: int, path: str) -> dict[str, Any]:
    """One process: before the first step of the optimizer, with a step that makes its state, and loaded."""
    run = Run(rank, "solo")
    auto = auto_lr(run)
    run.run(auto, WITHIN)
    save(run, auto, path)
    kept = snapshot_of(auto)
    said = ""
    try:
        dcp.load({"door": auto_lr(Run(rank, "solo"))}, checkpoint_id=f"{path}/door")
    except ValueError as error:
        said = str(error)
    fresh = Run(rank, "solo")
    again = auto_lr(fresh)
    fresh.train_once()
    dcp.load({"door": again}, checkpoint_id=f"{path}/door")
    return {"said": said, "kept": kept, "again": snapshot_of(again)}


def snapshot_of(auto: hdet.AutoLR) -> Any:
    """A copy: what state_dict() gives is written over."""
    return copy.deepcopy(inside(auto.state_dict())["engine"]["policies"][0]["snapshot"])


def test_a_fresh_object_takes_all_or_says_what_is_missing(ranks: LocalProcesses, tmp_path: Path) -> None:
    (found,) = ranks.run(into_fresh, str(tmp_path), size=1)
    assert "Load the optimizer first" in found["said"]
    assert "snapshot/kept/state/0/exp_avg" in found["said"]
    for kind in ("weight", "state"):
        torch.testing.assert_close(found["again"]["kept"][kind], found["kept"]["kept"][kind], rtol=0, atol=0)
    assert len(found["kept"]["kept"]["state"]) == 6


def flat(rank: int, path: str) -> list[str]:
    """A distributed checkpoint of flat parameters, offered to every rank, and to another layout."""
    run = Run(rank, "fsdp1 original")
    auto = auto_lr(run)
    run.run(auto, WITHIN)
    dcp.save({"door": auto}, checkpoint_id=path)
    other = Run(rank, "fsdp2")
    made = auto_lr(other)
    other.train_once()
    said = []
    for door in (auto, made):
        try:
            dcp.load({"door": door}, checkpoint_id=path)
            said.append("")
        except BaseException as error:  # torch's own is no Exception
            said.append(f"{type(error).__name__}: {error}")
    return said


def test_flat_parameters_stay_where_they_are(ranks: LocalProcesses, tmp_path: Path) -> None:
    for rank, (same, other) in enumerate(ranks.run(flat, str(tmp_path), size=2)):
        assert ("cannot be cut otherwise; fully_shard's can" in same) == (rank > 0)
        assert "Missing key in checkpoint" in other


def own_file(rank: int, layout: str) -> tuple[bool, str]:
    """``weights_only``, from a file for each rank; and the file of the next one."""
    run = Run(rank, layout, widths=(8, 4))
    auto = auto_lr(run)
    run.run(auto, WITHIN)
    file = io.BytesIO()
    torch.save(auto.state_dict(), file)
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, file.getvalue())
    before = snapshot_of(auto)
    auto.load_state_dict(torch.load(io.BytesIO(states[rank]), weights_only=True))
    after = snapshot_of(auto)
    same = all(torch.equal(before["kept"]["weight"][i], w) for i, w in after["kept"]["weight"].items())
    try:
        auto.load_state_dict(torch.load(io.BytesIO(states[(rank + 1) % len(states)]), weights_only=True))
    except ValueError as error:
        return same, str(error)
    return same, ""


@pytest.mark.parametrize(("layout", "size"), [("fsdp2 x tp", 4), ("fsdp1 original", 2)])
def test_a_file_for_each_rank(ranks: LocalProcesses, layout: str, size: int) -> None:
    for same, said in ranks.run(own_file, layout, size=size):
        assert same
        assert "must be of this rank's own part of the model" in said


def unknown_placement(rank: int) -> bool:
    """As on a torch that does not know the placement of a shard which is cut again."""
    from torch.distributed.tensor.placement_types import _StridedShard

    known = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([kind for kind in known if kind is not _StridedShard])
    auto_lr(Run(rank, "fsdp2 x tp", widths=(8, 4)))
    return _StridedShard in torch.serialization.get_safe_globals()


def test_every_placement_can_be_loaded(ranks: LocalProcesses) -> None:
    assert all(ranks.run(unknown_placement, size=4))
