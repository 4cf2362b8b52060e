"""AutoTune in one process: stacked replicas, or one alone that tries values in turn."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet.autolr.rule import HorizonController
from hdet.history import SyncRecord
from hdet.tuning.policies import windows_in_turn
from tests.standing import standing

SIZE, STEPS = 4, 240


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 24), nn.Dropout(0.4), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(torch.tanh(self.first(x))))
        return out


def batch(step: int, size: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 6, generator=generator)
    noise = torch.randn(size, 3, generator=generator)
    return x, (x[:, :3] + 0.5 * noise).argmax(1)


class Run:
    """One run; ``size`` 1 is a plain model, more are rows of one matrix on gradients of their own."""

    def __init__(
        self, size: int = SIZE, *, explored: int = 3, steps: int | None = STEPS, **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.size = size
        self.model, self.criterion = Net(), nn.CrossEntropyLoss(label_smoothing=0.1)
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1.0, weight_decay=0.1
        )
        self.replicas = None
        if size > 1:
            self.replicas = hdet.StackedReplicas(self.model, optimizer, size, gradients="none")
            optimizer = self.replicas.optimizer
        self.optimizer = optimizer
        probe = hdet.Probe(self.loss, [batch(10_000 + k) for k in range(8)], model=self.model)
        explore = [hdet.WeightDecay(), hdet.Dropout(self.model), hdet.LabelSmoothing(self.criterion)]
        self.tune = hdet.AutoTune(optimizer, explore[:explored], probe=probe, total_steps=steps, **options)

    def loss(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        def of(model: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
            loss: Tensor = self.criterion(model(part[0]), part[1])
            return loss

        return of(self.model, pair) if self.replicas is None else self.replicas.losses(of, pair)

    def step(self, step: int) -> SyncRecord | None:
        torch.manual_seed(step)
        self.optimizer.zero_grad()
        self.loss(batch(step)).sum().backward()
        self.optimizer.step()
        return self.tune.step()

    def weights(self) -> list[Tensor]:
        return [p.detach().clone() for group in self.optimizer.param_groups for p in group["params"]]


def records_of(run: Run, begin: int = 0, end: int = STEPS) -> list[SyncRecord]:
    found = [run.step(step) for step in range(begin, end)]
    return [replace(record, milliseconds=0.0) for record in found if record is not None]


# ---------------------------------------------------------------------- replicas in one process


def test_rows_are_one_model_after_every_sync_and_the_model_is_handed_over() -> None:
    run = Run()
    before = run.loss(batch(99)).mean().item()
    records = []
    for step in range(STEPS):
        if record := run.step(step):
            records.append(record)
            for matrix in run.weights():
                assert torch.equal(matrix, matrix[:1].expand_as(matrix))
    moved = {h.name for r in records for h in r.hyperparameters if h.base_after != h.base_before}
    assert moved == {"lr/0", "weight_decay", "dropout", "label_smoothing"}
    handed = run.tune.finish_()
    assert handed is not None
    assert handed.loss < before
    with torch.no_grad():
        run.model.eval()
        pairs = [batch(20_000 + k) for k in range(20)]
        alone = sum(nn.functional.cross_entropy(run.model(x), y).item() for x, y in pairs) / 20
    assert alone == pytest.approx(handed.estimate, rel=0.15), "the model itself holds it"
    assert run.model.drop.p == run.tune.values["dropout"]


def test_rows_are_judged_as_processes_are() -> None:
    """Each on its part of the batches: as many losses, and as honest errors."""
    records = records_of(Run())
    judged = [record for record in records if record.held_out]
    assert all(len(record.held_out) == SIZE for record in judged)
    assert any(math.isfinite(h.slope) for r in judged for h in r.hyperparameters[1:])


@pytest.mark.parametrize("at", [50, 57])
@pytest.mark.parametrize("size", [1, SIZE])
def test_a_resumed_run_equals_the_unbroken_one(size: int, at: int) -> None:
    unbroken = [record.to_json() for record in records_of(Run(size)) if record.step > at]
    first = Run(size)
    records_of(first, 0, at)
    kept = io.BytesIO()
    with first.tune.at_base():
        weights = first.model if first.replicas is None else first.replicas
        state = {"weights": weights.state_dict(), "optimizer": first.optimizer.state_dict()}
        torch.save({**state, "tune": first.tune.state_dict()}, kept)
    first.tune.detach()
    second = Run(size)
    kept.seek(0)
    saved = torch.load(kept, weights_only=True)
    (second.model if second.replicas is None else second.replicas).load_state_dict(saved["weights"])
    second.optimizer.load_state_dict(saved["optimizer"])
    second.tune.load_state_dict(saved["tune"])
    assert [record.to_json() for record in records_of(second, at)] == unbroken


@pytest.mark.parametrize("fewer", [False, True], ids=["all batches", "half of them"])
def test_auto_lr_follows_the_mean_of_rows(fewer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdet.autolr.best._AGREE", 10.0 if fewer else -1.0)
    model = Net()
    replicas = hdet.StackedReplicas(model, torch.optim.AdamW(model.parameters()), SIZE, gradients="none")

    def of(net: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(net(part[0]), part[1])

    probe = hdet.Probe(
        lambda pair: replicas.losses(of, pair), [batch(10_000 + k) for k in range(8)], model=model
    )
    auto = hdet.AutoLR(replicas.optimizer, total_steps=120, probe=probe)
    for step in range(120):
        replicas.backward(replicas.losses(of, batch(step)))
        replicas.optimizer.step()
        replicas.optimizer.zero_grad()
        auto.step()
    handed = auto.finish_()
    assert handed is not None
    assert handed.loss < 0.75
    assert auto._horizon.incumbent.weights.count == (2 if fewer else 4)


def test_rows_with_batch_norm_are_handed_over_with_statistics_that_fit() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))
    replicas = hdet.StackedReplicas(model, torch.optim.AdamW(model.parameters()), SIZE, gradients="none")

    def of(net: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(net(part[0]), part[1])

    probe = hdet.Probe(
        lambda pair: replicas.losses(of, pair), [batch(10_000 + k) for k in range(8)], model=model
    )
    tune = hdet.AutoTune(replicas.optimizer, [hdet.Dropout(model)], probe=probe, total_steps=120)
    for step in range(120):
        before = replicas.state_dict()["1.num_batches_tracked"]
        replicas.backward(replicas.losses(of, batch(step)))
        replicas.optimizer.step()
        replicas.optimizer.zero_grad()
        tune.step()
        now = replicas.state_dict()["1.num_batches_tracked"]
        assert torch.equal(now, before + 1), "what a probe measures leaves no statistics behind"
    handed = tune.finish_()
    assert handed is not None
    model.eval()
    with torch.no_grad():
        held_out = torch.stack([of(model, batch(10_000 + k)) for k in range(4, 8)]).mean().item()
    assert held_out == pytest.approx(handed.estimate, abs=0.02)
    assert held_out < 0.75


# ---------------------------------------------------------------------- one alone


def test_one_replica_tries_values_in_turn_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hdet"):
        run = Run(1, steps=2400)
    standing(run.tune)
    assert (
        "one replica alone tries weight_decay, dropout, label_smoothing in turn, and decides every 8"
        in caplog.text
    )
    assert "with 4 replicas or more" in caplog.text
    records = records_of(run, 0, 2400)
    searched = [r.hyperparameters[1:] for r in records if r.step <= 1800 and r.horizon[0].action != "back"]
    assert all(h.values[0] != h.base_before for row in searched for h in row), "every window tries something"
    moved = [i for i, row in enumerate(searched) if any(h.base_after != h.base_before for h in row)]
    assert moved
    assert all(j - i >= windows_in_turn(3) for i, j in pairwise(moved))
    assert all(h.values[0] == h.base_before for r in records if r.step > 1800 for h in r.hyperparameters[1:])
    assert run.tune.finish_() is not None


def test_in_turn_an_effect_is_found_and_none_is_not() -> None:
    """A dial that the loss depends on, and one that it does not, while training goes on beside them."""
    model = nn.Linear(1, 1, bias=False)
    dials = {"good": 5.0, "idle": 5.0}
    gained = {"so far": 0.0}

    def held_out(noise: float) -> Tensor:
        return 10 + model.weight.sum() * 0 - gained["so far"] + noise * 1e-3 + model.weight.square().sum()

    probe = hdet.Probe(held_out, [math.sin(k) for k in range(8)], model=model)

    def dial(name: str) -> hdet.Hyperparameter:
        def write(value: float) -> None:
            dials[name] = value

        return hdet.Hyperparameter(
            name, lambda: dials[name], write, scale="linear", spread=0.2, bounds=(0, 100)
        )

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tune = hdet.AutoTune(
        optimizer, [dial("good"), dial("idle")], probe=probe, total_steps=4000, patience=None
    )
    standing(tune)
    for _ in range(3000):
        optimizer.zero_grad()
        model.weight.square().sum().backward()
        optimizer.step()
        gained["so far"] += 1e-4 * dials["good"]  # what is gained in a window follows from what it had
        tune.step()
    assert tune.values["good"] > 5.1
    assert abs(tune.values["idle"] - 5.0) <= 0.4 + 1e-9, "within two of its first spreads"


# ---------------------------------------------------------------------- bad input

BAD: list[tuple[Callable[[Net], Any], str]] = [
    (
        lambda net: hdet.Dropout(net),
        r"explore must be a list of hyperparameters, got Dropout; write \[Dropout",
    ),
    (lambda net: [], "explore must name a hyperparameter.*AutoLR finds the learning rate alone"),
    (lambda net: [hdet.LearningRate()], "explore must not name the learning rate"),
    (lambda net: [object()], "explore must be a list of hyperparameters such as hdet.WeightDecay"),
    (lambda net: [hdet.Dropout(net), hdet.Dropout(net)], "name each hyperparameter once"),
]


@pytest.mark.parametrize(("explore", "message"), BAD)
def test_what_cannot_be_explored_is_refused(explore: Callable[[Net], Any], message: str) -> None:
    net = Net()
    probe = hdet.Probe(lambda pair: net(pair[0]).mean(), [batch(0)] * 8, model=net)
    with pytest.raises((TypeError, ValueError), match=message):
        hdet.AutoTune(torch.optim.SGD(net.parameters()), explore(net), probe=probe, total_steps=100)


def test_too_few_replicas_are_told_with_the_number_needed() -> None:
    with pytest.raises(ValueError, match=r"tell at most 1 hyperparameters apart, got 3.*use 4 replicas"):
        Run(2)


def test_the_rules_are_not_confused() -> None:
    with pytest.raises(TypeError, match=r"regression must be a .*RegressionController.*rule= is the"):
        Run(1, regression=HorizonController())


def test_without_a_number_of_steps_it_ends_by_itself() -> None:
    run = Run(steps=None, patience=1)
    for _ in range(1500):
        run.step(0)  # one batch alone: what is learnt from it is soon worse than nothing
        if run.tune.finished:
            break
    assert run.tune.finished
    handed = run.tune.finish_()
    assert handed is not None
    assert math.isfinite(handed.estimate)
