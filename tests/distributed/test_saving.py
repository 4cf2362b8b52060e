"""Ranks save together, learn of a failure together, leave together, and go on as many or as others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet import saving
from hdet.loop.levels import levels
from hdet.loop.state import digest
from hdet.replicas.launch import LocalProcesses
from hdet.tuning.regression import RegressionController
from tests.distributed.classifier import all_equal
from tests.states import inside

T = 5


class Run:
    """A tiny model on this rank: AutoLR on shared gradients, or an ensemble on gradients of its own."""

    def __init__(self, rank: int, kind: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.kind, self.rank = kind, rank
        held_out = list(torch.randn(8, 6, 4, generator=torch.Generator().manual_seed(7)))
        probe = hdet.Probe(self.loss, held_out, model=self.model)
        if kind == "ensemble":
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
                self.model.parameters(), lr=0.02, momentum=0.9
            )
            self.door: Any = hdet.Ensemble(
                self.optimizer,
                [hdet.LearningRate(0.2)],
                controller=RegressionController(),
                design="permutation",
                gradients="none",
                sync_every=T,
                model=self.model,
            )
            self.trained: nn.Module = self.model
        else:
            self.trained = nn.parallel.DistributedDataParallel(self.model)
            self.optimizer = torch.optim.Adam(self.model.parameters())
            self.door = hdet.AutoLR(self.optimizer, probe=probe, total_steps=160)
        self.records: list[Any] = []

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return (self.model(x) - x.sum(1, keepdim=True)).square().mean()

    def train(self, steps: int) -> Run:
        for _ in range(steps):
            x = torch.randn(6, 4)  # of this rank's own random state
            loss = (self.trained(x) - x.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            record = self.door.step(loss)
            self.records += [record] if record is not None else []
        return self

    def items(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "auto": self.door}

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1).clone() for p in self.model.parameters()])


def unbroken(rank: int, kind: str, path: str, at: int) -> dict[str, Any]:
    run = Run(rank, kind)
    torch.manual_seed(100 + rank)
    run.train(at)
    hdet.save(path, **run.items(), epoch=4)
    names = sorted(os.listdir(path))
    run.train(30)
    return {"weights": run.weights(), "lr": run.optimizer.param_groups[0]["lr"], "names": names}


def resumed(rank: int, kind: str, path: str) -> dict[str, Any]:
    run = Run(rank, kind)
    torch.manual_seed(999)
    assert hdet.load(path, **run.items())["epoch"] == 4
    run.train(30)
    return {"weights": run.weights(), "lr": run.optimizer.param_groups[0]["lr"]}


@pytest.mark.parametrize(("kind", "at"), [("shared", 43), ("ensemble", 40), ("ensemble", 43)])
def test_resumed_it_is_the_unbroken_run(ranks: LocalProcesses, tmp_path: Path, kind: str, at: int) -> None:
    """Each rank bit for bit, within a window, too; its own random state drew its batches."""
    path = str(tmp_path / "run")
    whole = ranks.run(unbroken, kind, path, at, size=2)
    again = ranks.run(resumed, kind, path, size=2)
    for a, b in zip(whole, again, strict=True):
        assert torch.equal(a["weights"], b["weights"])
        assert a["lr"] == b["lr"]
    assert whole[0]["names"] == ["manifest.json", "rank0.pt", "rank1.pt", "shared.pt"]
    shared = torch.load(tmp_path / "run" / "shared.pt", weights_only=True)
    assert {"model", "optimizer", "epoch"} <= shared.keys()
    if kind == "shared":
        assert "auto: tensors" in shared, "copies of the weights are written once"


def fails_on_one(rank: int, path: str) -> str:
    run = Run(rank, "ensemble").train(3)
    hdet.save(path, **run.items(), epoch=1)
    real = saving._write
    if rank == 1:
        saving._write = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))  # type: ignore[assignment]
    try:
        hdet.save(path, **run.items(), epoch=2)
    except (OSError, RuntimeError) as error:
        found = str(error)
    finally:
        saving._write = real
    assert hdet.load(path, **run.items())["epoch"] == 1
    return found


def test_all_ranks_learn_of_a_failure(ranks: LocalProcesses, tmp_path: Path) -> None:
    first, second = ranks.run(fails_on_one, str(tmp_path / "run"), size=2)
    assert "raised on rank 1" in first
    assert "No space left" in second


def not_whole_for_one(rank: int, path: str) -> tuple[int, str]:
    run = Run(rank, "ensemble").train(3)
    for epoch in (1, 2):
        hdet.save(path, **run.items(), epoch=epoch)
    if rank == 1:
        Path(path, "rank1.pt").write_bytes(b"")
    loaded = hdet.load(path, **run.items())
    return loaded["epoch"], loaded.why


def test_all_ranks_take_the_same_one(ranks: LocalProcesses, tmp_path: Path) -> None:
    found = ranks.run(not_whole_for_one, str(tmp_path / "run"), size=2)
    assert [epoch for epoch, _ in found] == [1, 1]
    assert "damaged on rank 1" in found[0][1]
    assert "rank1.pt is damaged" in found[1][1]


# ---------------------------------------------------------------------- told to stop


def told_to_stop(rank: int, path: str, who: int) -> dict[str, Any]:
    run = Run(rank, "ensemble")
    code = None
    try:
        with hdet.Interruptible(run.door, save=lambda: hdet.save(path, **run.items())) as told:
            for step in range(100_000):
                run.train(1)
                if step == 7 and rank == who:
                    os.kill(os.getpid(), signal.SIGTERM)
                told.check()
    except SystemExit as left:
        code = left.code
    return {"code": code, "steps": run.door.steps, "weights": run.weights()}


def test_one_rank_is_told_and_all_leave(ranks: LocalProcesses, tmp_path: Path) -> None:
    """At one step, as one model, which is saved."""
    path = str(tmp_path / "run")
    found = ranks.run(told_to_stop, path, 1, size=2, timeout=120)
    assert [one["code"] for one in found] == [143, 143]
    assert found[0]["steps"] == found[1]["steps"] >= 8
    assert all_equal([one["weights"] for one in found])
    saved = torch.load(Path(path, "shared.pt"), weights_only=True)
    assert torch.equal(torch.cat([w.reshape(-1) for w in saved["model"].values()]), found[0]["weights"])


# ---------------------------------------------------------------------- as many, or others


def goes_on(rank: int, path: str, size: int, first: bool) -> dict[str, Any]:
    run = Run(rank, "ensemble")
    found: dict[str, Any] = {}
    if not first:
        hdet.load(path, **run.items())
        found["loaded"] = run.weights()
        found["joint"] = inside(run.door.state_dict())["policies"][0]["joint"]
        found["steps"] = run.door.steps
    run.train(3 * T + 2)  # on into a round
    hdet.save(path, **run.items())
    found["record"] = run.records[-1]
    return {
        **found,
        "weights": run.weights(),
        "saved": inside(run.door.state_dict())["policies"][0]["joint"],
        "end": run.door.steps,
        "digest": digest(run.model.state_dict()),
    }


def test_four_then_two_then_three_then_one(ranks: LocalProcesses, tmp_path: Path) -> None:
    """The weights are one model, values are dealt anew, and what was learnt is kept."""
    path, before = str(tmp_path / "run"), None
    for size in (4, 2, 3, 1):
        found = ranks.run(goes_on, path, size, before is None, size=size)
        assert all_equal([one["weights"] for one in found])
        if before is not None:
            assert all(torch.equal(one["loaded"], before["weights"]) for one in found)
            assert all(one["joint"] == before["saved"] for one in found)
            assert all(one["steps"] == before["end"] for one in found)
        dealt = found[0]["record"].hyperparameters[0]
        assert sorted(dealt.multipliers) == pytest.approx([1 + dealt.spread * z for z in levels(size)])
        before = found[0]
