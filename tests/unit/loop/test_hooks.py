"""The replica's own value stands in the groups while the optimizer steps, and only true steps count: what
GradScaler skips on the host is seen at once, what a fused optimizer skips on the device at a sync."""

from __future__ import annotations

import copy
import io
import logging
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet.loop.announce import Announcer
from hdet.loop.fan_out import FanOut
from hdet.loop.hooks import StepHooks
from hdet.replicas import SoloReplica
from tests.fakes import Alike, Faster, Thread, on_threads
from tests.states import inside
from tests.unit.training import X, network, probe_of, squared


@pytest.mark.parametrize("kind", ["float", "one tensor for both groups"])
def test_the_base_is_back_after_every_optimizer_step(kind: str) -> None:
    weights = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    lr: Any = 0.1 if kind == "float" else torch.tensor(0.1)
    optimizer = torch.optim.SGD([{"params": [w]} for w in weights], lr=lr)
    hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], process_group=Faster())
    for step in range(1, 4):
        for weight in weights:
            weight.grad = -torch.ones(2)
        optimizer.step()
        assert [float(g["lr"]) for g in optimizer.param_groups] == pytest.approx([0.1, 0.1], rel=1e-6)
        for weight in weights:
            torch.testing.assert_close(weight.detach(), torch.full((2,), 0.15 * step))


def test_what_a_user_writes_after_a_failed_step_stays() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], process_group=Faster())

    def fail() -> float:
        raise KeyError

    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 0.025
    for write in (
        lambda: optimizer.param_groups[0].update(lr=0.025),
        lambda: optimizer.load_state_dict(saved),
    ):
        optimizer.param_groups[0]["lr"] = 0.1
        with pytest.raises(KeyError):
            optimizer.step(fail)
        write()
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 0.025
        assert ensemble.replica_lrs == [0.025 * 1.5]
    with pytest.raises(KeyError):
        optimizer.step(fail)
    assert ensemble.replica_lrs == [0.025 * 1.5]
    assert optimizer.param_groups[0]["lr"] == 0.025


def test_detach_leaves_a_plain_optimizer_and_so_does_the_next_run() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], process_group=Faster())
    other = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], process_group=Faster())
    weight.grad = torch.ones(2)
    optimizer.step()
    assert torch.allclose(weight, torch.full((2,), 0.85)), "two would multiply each other's spread"
    other.detach()
    optimizer.step()
    assert torch.allclose(weight, torch.full((2,), 0.75))
    del ensemble  # until here


def test_too_few_calls_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Rounds are counted in optimizer steps; a plain schedule may be stepped once an epoch."""
    for spread, times in ((0.5, 1), (0.0, 0)):
        caplog.clear()
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
        ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=spread)], process_group=Alike(rank=0))
        for _ in range(3):
            optimizer.step()
            optimizer.step()
            ensemble.step()
        said = [r.message for r in caplog.records if "must be called once after every" in r.message]
        assert len(said) == times
        assert all(message.startswith("Ensemble: step: must be") and "got 2" in message for message in said)


# ---------------------------------------------------------------------- steps that GradScaler skips

OVERFLOWS = (0, 7, 8, 23, 59)
ADAMW = torch.optim.AdamW


class Scaled:
    """Half-precision training whose gradient overflows at some calls."""

    def __init__(self, *, fused: bool, overflows: Any = OVERFLOWS) -> None:
        self.model = network()
        self.optimizer = ADAMW(self.model.parameters(), lr=0.01, fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        self.overflows, self.call = overflows, 0
        self.moved = 0
        self.lrs: list[float] = []

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
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


def one_cycle(run: Scaled, total_steps: int, sync_every: int) -> hdet.OneCycleAutoLR:
    options: Any = {"ensemble_lr_spread_ratio": 0.2, "model_sync_interval": sync_every, "model": run.model}
    return hdet.OneCycleAutoLR(run.optimizer, 0.05, total_steps=total_steps, **options)


def test_windows_and_the_run_end_after_as_many_true_steps() -> None:
    windows = []
    for fused, overflows in ((False, OVERFLOWS), (True, OVERFLOWS), (False, ())):
        run = Scaled(fused=fused, overflows=overflows)
        auto = search(run)
        ends = []
        while not auto.finished:
            run.backward()
            record = auto.step()
            if record:
                ends.append((record.step, run.moved))
        assert all(step == moved for step, moved in ends), ends
        assert ends[-1][0] == auto.steps == run.moved == 120
        assert run.call == 120 + len(overflows)
        assert run.optimizer.param_groups[0]["lr"] == 0.0
        windows.append(ends)
    assert windows[0] == windows[1] == windows[2]


@pytest.mark.parametrize("door", ["one cycle", "ensemble"])
def test_the_schedule_is_back_in_time_at_every_sync(door: str) -> None:
    """Linear, and without a floor: a schedule that ran on to its end would end at or below zero."""
    run = Scaled(fused=True)
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
            process_group=Alike(1),
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


@pytest.mark.parametrize(("calls", "skipped", "waits"), [(9, [8, 1, 0], 0), (10, [], 2)])
def test_a_resumed_run_takes_back_what_was_skipped_before(calls: int, skipped: Any, waits: int) -> None:
    """Saved before a window that has overflowed would have ended, and after, while the schedule waits."""
    whole = Scaled(fused=True)
    one = search(whole)
    for _ in range(calls):
        whole.backward()
        one.step()
    state = inside(one.state_dict())["engine"]
    assert (state["skipped"], state["waits"]) == (skipped, waits)
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
    ago = StepHooks.skipped_ago
    monkeypatch.setattr(StepHooks, "skipped_ago", lambda self: read.append(1) or ago(self))
    run = Scaled(fused=True, overflows=(3,))
    auto = one_cycle(run, 40, 20)
    for _ in range(19):
        run.backward()
        auto.step()
    assert not read
    assert auto.steps == 19, "a step ahead until then"
    run.backward()
    assert auto.step() is None
    assert auto.steps == 19
    run.backward()
    assert auto.step() is not None


def test_it_is_said_once_and_where_nothing_is_trained_so(caplog: pytest.LogCaptureFixture) -> None:
    run = Scaled(fused=True, overflows=range(5, 500))
    auto = one_cycle(run, 100, 10)
    with caplog.at_level(logging.WARNING, "hdet"):
        for _ in range(60):
            run.backward()
            assert auto.step() is None
    said = [message for message in caplog.messages if "skipped on the device" in message]
    assert len(said) == 2
    assert "5 of 10 steps were skipped" in said[0]
    assert "all of 5 steps were skipped" in said[1]
    assert auto.steps == run.moved == 5


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


class Skipping(torch.optim.Optimizer):
    """Says on the device whether it has skipped."""

    found_inf: Tensor | None
    _step_supports_amp_scaling: bool

    def __init__(self) -> None:
        super().__init__([nn.Parameter(torch.zeros(1))], {"lr": 0.1})

    def step(self, closure: Any = None) -> None: ...


class Flagged:
    """Such an optimizer, and its hooks."""

    def __init__(self, *, reads_flags: bool = True, fused: bool = False) -> None:
        self.optimizer = Skipping()
        self.optimizer._step_supports_amp_scaling = fused
        announcer = Announcer("test", writes=False)
        fan_out = FanOut([], arms=1, arm=0, design="permutation", seed=0)
        detach: Any = weakref.WeakMethod(self.detach)
        self.hooks = StepHooks(
            "test", announcer, self.optimizer, fan_out, None, detach, reads_flags=reads_flags
        )

    def detach(self) -> None: ...

    def step(self, skipped: bool | None) -> None:
        self.optimizer.found_inf = None if skipped is None else torch.tensor(float(skipped))
        self.optimizer.step()
        self.hooks.count()


def test_flags_are_folded_and_remember_their_calls() -> None:
    one, other, blind = Flagged(), Flagged(), Flagged(reads_flags=False)
    for call in range(300):
        one.step(None if call % 3 == 0 else call in (1, 100, 299))
    assert one.hooks.skipped_ago() == [298, 199, 0]
    assert len(one.hooks._single) < 64
    other.hooks.load_skipped(one.hooks.skipped_ago())
    other.step(True)
    assert other.hooks.skipped_ago() == [299, 200, 1, 0]
    blind.step(True)
    assert blind.hooks.skipped_ago() == []
    assert one.hooks.take_skipped(SoloReplica()) == [298, 199, 0]
    assert one.hooks.take_skipped(SoloReplica()) == []


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([[False, True], [False, False]], "have skipped 1, 0 since the last sync; share the gradients"),
        ([[False, True], [True, False]], "have skipped 1, 1 since the last sync; share the gradients"),
        ([[False, False], [None, None]], "on all ranks or on none, and rank 1 has none"),
    ],
)
def test_ranks_that_skip_other_steps_than_the_rest_raise_on_all(steps: Any, words: str) -> None:
    """Else one would go on to a sync, and wait there for another that does not come."""

    def act(rank: Thread) -> None:
        run = Flagged(fused=True)
        for skipped in steps[rank.rank]:
            run.step(skipped)
        run.hooks.take_skipped(rank)

    for error in on_threads(2, act):
        assert isinstance(error, RuntimeError)
        assert words in str(error)
