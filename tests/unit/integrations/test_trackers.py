"""What a tracker logs, by whichever of its methods; real ones are in tests/integrations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.integrations.trackers import Tracker


class Logs:
    def __init__(self) -> None:
        self.lines: list[tuple[int | None, dict[str, Any]]] = []

    def log(self, line: dict[str, Any], step: int | None = None) -> None:
        self.lines.append((step, line))


class DropsEarlier(Logs):
    """As Weights & Biases: a step of its own counts the user's calls, and what is before it is dropped."""

    step = 25

    def define_metric(self, name: str, step_metric: str | None = None) -> None: ...


class LogsMetrics:
    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, line: dict[str, float], step: int) -> None:
        self.lines.append((step, line))


#: A sync at which something was odd.
ODD = {
    **{"step": 10, "hyperparameters": [], "losses": [None, 1.0], "milliseconds": 1.0},
    "events": ["replica 0 left out: its loss is nan"],
}


def train(target: Any) -> None:
    """Two rounds of ten steps."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    explore = [hdet.LearningRate(), hdet.WeightDecay()]
    ensemble = hdet.Ensemble(optimizer, explore, sync_every=10, model=model, history=Tracker(target))
    for _ in range(20):
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ensemble.step(loss)


def test_names_and_steps() -> None:
    run = Logs()
    train(run)
    at = [step for step, line in run.lines if "hdet/sync_ms" in line]
    assert at == [10, 20]
    names = {"hdet/lr/0", "hdet/value/weight_decay", "hdet/replica/0/loss", "hdet/sync_ms"}
    assert set(run.lines[-1][1]) == names
    assert run.lines[-1][1]["hdet/lr/0"] == pytest.approx(0.1)


def test_a_horizon_shows_its_lag() -> None:
    run = Logs()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return (model(x) - x.sum(1, keepdim=True)).square().mean()

    probe = hdet.Probe(loss_of, list(torch.randn(4, 8, 3)), model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=80, history=Tracker(run))
    for x in torch.randn(80, 8, 3):
        loss_of(x).backward()
        optimizer.step()
        optimizer.zero_grad()
        auto.step()
    assert any("hdet/lag/lr" in line for _, line in run.lines)
    assert not any("hdet/replica/0/loss" in line for _, line in run.lines), "no loss was given"


def test_events_are_text_or_a_number_and_what_is_not_finite_is_left_out() -> None:
    run, numbers = Logs(), LogsMetrics()
    tracker = Tracker(run)
    for line in (ODD, {"kind": "said", "level": "warning", "text": "odd"}, {"kind": "end", "step": 12}):
        tracker(line)
    shown = {"hdet/replica/1/loss": 1.0, "hdet/sync_ms": 1.0, "hdet/event": ODD["events"][0]}
    assert run.lines == [(10, shown), (10, {"hdet/event": "odd"})]
    Tracker(numbers)(ODD)
    assert numbers.lines == [(10, {**shown, "hdet/event": 1.0})]


def test_nothing_is_logged_before_the_step_at_which_the_run_stands() -> None:
    run = DropsEarlier()
    train(run)
    assert [step for step, line in run.lines if "hdet/sync_ms" in line] == [None, None]
    assert [line["hdet/step"] for _, line in run.lines if "hdet/sync_ms" in line] == [10, 20]


def test_a_target_that_cannot_log_raises_or_warns(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TypeError, match="must have one of add_scalar, log_metrics, log, got object"):
        Tracker(object())
    train(None)
    assert sum("must be a tracker on rank 0, got None" in r.getMessage() for r in caplog.records) == 1
