"""Steps that GradScaler skips: by the host, seen at once, or on the device, seen at a sync."""

from __future__ import annotations

import copy
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet.engine.announce import Announcer
from hdet.engine.skips import Skips
from hdet.replicas import SoloReplica
from tests.fakes import Alike
from tests.unit.training import X, network, probe_of, squared

OVERFLOWS = (0, 7, 8, 23, 59)
ADAMW = torch.optim.AdamW
HALVES = [torch.float16, torch.bfloat16]


class Scaled:
    """Half-precision training whose gradient overflows at some calls."""

    def __init__(
        self, *, fused: bool, dtype: torch.dtype = torch.float16, overflows: Any = OVERFLOWS
    ) -> None:
        self.model = network()
        self.optimizer = ADAMW(self.model.parameters(), lr=0.01, fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        self.dtype, self.overflows, self.call = dtype, overflows, 0
        self.moved = 0
        self.lrs: list[float] = []

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype):
            return squared(model, x)

    def backward(self) -> Tensor:
        before = self.model[0].weight.detach().clone()
        lr = self.optimizer.param_groups[0]["lr"]
        self.optimizer.zero_grad()
        loss = self.loss(self.model, X[self.call % 200])
        self.scaler.scale(loss * (float("inf") if self.call in self.overflows else 1.0)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.call += 1
        moved = not torch.equal(before, self.model[0].weight)
        self.moved += moved
        self.lrs += [lr] if moved else []
        return loss.detach()


def search(run: Scaled, **options: Any) -> hdet.AutoLR:
    settings: Any = {"total_steps": 120, "schedule": "cosine", **options}
    return hdet.AutoLR(run.optimizer, probe=probe_of(run.model, run.loss), **settings)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("fused", [False, True])
def test_windows_and_the_run_end_after_as_many_true_steps(fused: bool, dtype: torch.dtype) -> None:
    run = Scaled(fused=fused, dtype=dtype)
    auto = search(run)
    ends = []
    while not auto.finished:
        run.backward()
        record = auto.step()
        if record:
            ends.append((record.step, run.moved))
    assert all(step == moved for step, moved in ends), ends
    assert ends[-1][0] == auto.steps == run.moved == 120
    assert run.call == 120 + len(OVERFLOWS)
    plain = Scaled(fused=False, overflows=())
    alone = search(plain)
    records = [alone.step() for _ in range(120) if [plain.backward()]]
    assert [step for step, _ in ends] == [record.step for record in records if record], "the same windows"
    assert run.optimizer.param_groups[0]["lr"] == 0.0


def test_what_is_exported_are_the_learning_rates_of_true_steps(tmp_path: Path) -> None:
    run = Scaled(fused=True)
    auto = search(run, schedule="wsd")
    while not auto.finished:
        run.backward()
        auto.step()
    auto.export(tmp_path / "found.json")
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight])
    replayed = hdet.replay(optimizer, tmp_path / "found.json")
    lrs = []
    for _ in run.lrs:
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        replayed.step()
    assert json.loads((tmp_path / "found.json").read_text())["steps"] == 120
    assert lrs == run.lrs


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("door", ["one cycle", "ensemble"])
def test_the_schedule_is_back_in_time_at_every_sync(door: str, fused: bool) -> None:
    """Linear, and without a floor: a schedule that ran on to its end would end at or below zero."""
    run = Scaled(fused=fused)
    shape: Any = {"max_lr": 0.05, "total_steps": 40, "anneal_strategy": "linear", "cycle_momentum": False}
    if door == "one cycle":
        auto: Any = hdet.OneCycleAutoLR(
            run.optimizer, **shape, ensemble_lr_spread_ratio=0.2, model_sync_interval=10, model=run.model
        )
    else:
        auto = hdet.Ensemble(
            run.optimizer,
            [hdet.LearningRate(spread=0.2)],
            schedule=torch.optim.lr_scheduler.OneCycleLR(run.optimizer, **shape),
            replicas=Alike(1),
            sync_every=10,
            total_steps=40,
            model=run.model,
        )
    curve = torch.optim.lr_scheduler.OneCycleLR(torch.optim.SGD([nn.Parameter(torch.ones(1))]), **shape)
    exact = [curve.get_last_lr()[0]]
    for _ in range(40):
        curve.optimizer.step()
        curve.step()
        exact.append(curve.get_last_lr()[0])
    records = []
    while len(run.lrs) < 40:
        loss = run.backward()
        record = auto.step(loss)
        if record:
            records.append(record.step)
            assert record.step == run.moved
            assert run.optimizer.param_groups[0]["lr"] == exact[record.step]
    assert records == [10, 20, 30, 40]
    assert min(run.lrs) > 0
    assert run.call == 44, "four of the overflows lie within"


def test_a_resumed_run_takes_back_what_was_skipped_before() -> None:
    """Saved after the overflow of a window and before its end."""
    whole = Scaled(fused=True)
    one = search(whole)
    for _ in range(10):
        whole.backward()
        one.step()
    file = io.BytesIO()
    parts = whole.model, whole.optimizer, whole.scaler, one
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    again = Scaled(fused=True)
    other = search(again)
    again.call, again.moved, again.lrs = whole.call, whole.moved, list(whole.lrs)
    for part, saved in zip(
        (again.model, again.optimizer, again.scaler, other), torch.load(file), strict=True
    ):
        part.load_state_dict(copy.deepcopy(saved))
    for run, auto in ((whole, one), (again, other)):
        while not auto.finished:
            run.backward()
            auto.step()
    assert other.steps == again.moved == 120
    assert again.lrs == whole.lrs
    assert all(
        torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True)
    )


def test_nothing_is_read_between_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    ago = Skips.ago
    monkeypatch.setattr(Skips, "ago", lambda self: read.append(1) or ago(self))
    run = Scaled(fused=True, overflows=(3,))
    auto = hdet.OneCycleAutoLR(
        run.optimizer,
        0.05,
        total_steps=40,
        ensemble_lr_spread_ratio=0.2,
        model_sync_interval=20,
        model=run.model,
    )
    for _ in range(19):
        run.backward()
        auto.step()
    assert not read
    assert auto._engine.steps == 19, "a step ahead until then"
    run.backward()
    assert auto.step() is None
    assert auto._engine.steps == 19
    run.backward()
    assert auto.step() is not None


def test_it_is_said_once_and_where_nothing_is_trained_so(caplog: pytest.LogCaptureFixture) -> None:
    run = Scaled(fused=True, overflows=range(5, 500))
    auto = hdet.OneCycleAutoLR(
        run.optimizer,
        0.05,
        total_steps=100,
        ensemble_lr_spread_ratio=0.2,
        model_sync_interval=10,
        model=run.model,
    )
    with caplog.at_level(logging.WARNING, "hdet"):
        for _ in range(60):
            run.backward()
            assert auto.step() is None
    said = [message for message in caplog.messages if "skipped on the device" in message]
    assert len(said) == 2
    assert "5 of 10 steps were skipped" in said[0]
    assert "all of 5 steps were skipped" in said[1]
    assert auto._engine.steps == run.moved == 5


def test_of_several_optimizers_a_call_counts_if_one_has_moved() -> None:
    """Two that are fused, with a scaler each, of which one overflows; then both at once."""
    model = network()
    optimizers = [ADAMW(layer.parameters(), lr=0.01, fused=True) for layer in (model[0], model[2])]
    scalers = [torch.amp.GradScaler("cpu", init_scale=256.0) for _ in optimizers]
    auto = hdet.AutoLR(optimizers, probe=probe_of(model), total_steps=60, schedule="cosine")
    moved = call = 0
    while not auto.finished:
        before = [p.detach().clone() for p in model.parameters()]
        for optimizer, scaler in zip(optimizers, scalers, strict=True):
            scaler.scale(torch.zeros(()))
            optimizer.zero_grad()
        squared(model, X[call]).backward()
        for i, (optimizer, scaler) in enumerate(zip(optimizers, scalers, strict=True)):
            if call in ((3, 11), (11, 30))[i]:
                next(p for group in optimizer.param_groups for p in group["params"]).grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
        moved += any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        call += 1
        auto.step()
    assert auto.steps == moved == 60
    assert call == 61, "call 11 alone moved nothing"


def test_flags_are_folded_and_remember_their_calls() -> None:
    skips = Skips(heeded=True)
    for call in range(300):
        skips.note([] if call % 3 == 0 else [torch.tensor(call in (1, 100, 299))])
    assert skips.ago() == [298, 199, 0]
    assert len(skips._single) < 64
    saved, other = skips.ago(), Skips(heeded=True)
    other.load(saved)
    other.note([torch.tensor(True)])
    assert other.ago() == [299, 200, 1, 0]
    assert Skips(heeded=False).ago() == []
    announcer = Announcer("test", speaks=lambda: False, history=None)
    assert skips.take("test", SoloReplica(), announcer) == [298, 199, 0]
    assert skips.take("test", SoloReplica(), announcer) == []
