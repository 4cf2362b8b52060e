"""``choose_by=``: a metric chooses the weights, and the loss goes on judging the learning rate."""

from __future__ import annotations

import logging
import math
import re
import statistics
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet import AutoLR, BestMean, Probe
from hdet.history import SyncRecord
from tests.unit.training import Overfitting, Training, batch, decisions, loss_of, network, train


def right(model: nn.Module, x: Tensor) -> Tensor:
    """The share of samples whose sign is right: one of 32 at a time."""
    return ((model(x) > 0) == (x[:, :1].sin() + x[:, 1:2] > 0)).float().mean()


class Chosen(Training):
    """The net, with batch norm, under AutoLR with a metric."""

    def __init__(self, choose_by: Any = right, **options: Any) -> None:
        super().__init__(auto=False, **options)
        self.choose_by = choose_by
        self.attach()

    def attach(self) -> None:
        own = self.choose_by and (lambda x: self.choose_by(self.model, x))
        self.probe = Probe(
            lambda x: loss_of(self.model, x), lambda k: batch(50_000 + k, 32), model=self.model, choose_by=own
        )
        self.auto = AutoLR(self.optimizer, probe=self.probe, **self.settings)


def metrics(records: list[SyncRecord]) -> list[float]:
    return [record.horizon[0].metric for record in records if record.horizon[0].metric is not None]


def test_the_metric_chooses_and_the_loss_moves_the_rate() -> None:
    events: list[hdet.loop.announce.Event] = []
    by_loss = Chosen(None, patience=None).run(200)  # returns to the best weights follow what chooses
    chosen = Chosen(patience=None, on_event=events.append).run(200)
    assert chosen.lrs == by_loss.lrs
    assert not metrics(by_loss.records)
    assert '"metric"' not in by_loss.records[0].to_json()
    seen = metrics(chosen.records)
    assert len(seen) == len(chosen.records)
    assert SyncRecord.from_json(chosen.records[3].to_json()).horizon[0].metric == seen[3]
    best = chosen.auto.finish_()
    assert max(seen) - best.metric <= 0.02 * (max(seen) - seen[0])
    assert any(event.sentence.startswith("the metric is ") for event in events if event.kind == "best")
    chosen.model.eval()
    by_hand = [[float(right(chosen.model, x)) for x in half] for half in chosen.probe.halves()]
    assert (best.metric, best.metric_estimate) == pytest.approx(tuple(map(statistics.fmean, by_hand)))
    assert best.metric_error == pytest.approx(statistics.stdev(by_hand[1]) / math.sqrt(4))


def test_the_line_at_the_end_tells_both(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    best = Chosen().run(200).auto.best
    assert best is not None
    assert f"at a metric of {best.metric:.4g} and a loss of {best.loss:.4g}" in caplog.text


@pytest.mark.parametrize("at", [55, 160])
def test_a_resumed_run_equals_the_unbroken_one(at: int) -> None:
    whole, first = Chosen().run(200), Chosen().run(at)
    saved = first.save()
    rest = Chosen().load(saved).run(200)
    assert decisions(first.records + rest.records) == decisions(whole.records)
    assert repr(rest.auto.finish_()) == repr(whole.auto.finish_())
    assert torch.equal(rest.flat(), whole.flat())
    saved.seek(0)
    with pytest.raises(
        ValueError, match=r"weights are chosen by must be as it was .*, choose_by, got the loss"
    ):
        Chosen(None).load(saved)


def test_weights_are_returned_to_where_the_metric_falls_and_not_where_the_loss_rises() -> None:
    """Twenty-four noisy samples: the loss rises, and the weights grow all the time."""

    def run(metric: Any) -> Overfitting:
        overfit = Overfitting(total_steps=1500)
        overfit.auto._horizon._probe.choose_by = lambda pair: metric(overfit, pair)
        return overfit.run(1500)

    assert run(lambda overfit, pair: -overfit.loss(pair)).restarts
    grows = run(lambda overfit, pair: sum(p.norm() for p in overfit.model.parameters()))
    assert not [record for record in grows.records if any("better since" in e for e in record.events)]
    best = grows.auto.finish_()
    assert (best.step, best.kind) == (1500, "end")


def test_best_mean() -> None:
    model = network()
    accuracy = lambda x: ((model(x) > 0) == (x[:, :1] > 0)).float().mean()  # noqa: E731
    loss_fn = lambda x: (model(x) - x[:, :1]).square().mean()  # noqa: E731
    batches = list(torch.randn(8, 16, 8, generator=torch.Generator().manual_seed(9)))
    best_mean = BestMean(model, Probe(loss_fn, batches, model=model, choose_by=accuracy))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, best_mean, 60, lambda model, x: (model(x) - x[:, :1]).square().mean())
    again = BestMean(model, Probe(loss_fn, batches, model=model, choose_by=accuracy))
    again.load_state_dict(deepcopy(best_mean.state_dict()))
    best = best_mean.finish_()
    assert best is not None
    assert repr(again.finish_()) == repr(best)
    with torch.no_grad():
        found = [[float(measure(x)) for x in batches] for measure in (loss_fn, accuracy)]
    for of, (chosen, estimate) in zip(
        found, ((best.loss, best.estimate), (best.metric, best.metric_estimate)), strict=True
    ):
        assert chosen == pytest.approx(sum(of[:4]) / 4)
        assert estimate == pytest.approx(sum(of[4:]) / 4)


def test_with_a_criterion_it_gets_outputs_and_targets() -> None:
    model = nn.Linear(3, 1)
    loader = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(100)]
    probe, _ = Probe.set_aside(
        loader, model=model, criterion=nn.MSELoss(), choose_by=lambda outputs, targets: outputs - targets
    )
    x, y = loader[0]
    assert torch.equal(probe.choose_by((x, y)), model(x) - y)
    assert probe.describe().endswith("; a metric chooses the weights")


# ---------------------------------------------------------------------- what cannot be right


def test_what_is_no_metric_raises() -> None:
    with pytest.raises(
        TypeError, match=r"choose_by must be a callable .* of which higher is better, got str"
    ):
        Probe(lambda x: 0.0, [1.0], model=nn.Linear(1, 1), choose_by="accuracy")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"choose_by must return a real scalar, got a tensor of shape \(32, 1\)"
    ):
        Chosen(lambda model, x: model(x)).run(10)
    with pytest.raises(
        ValueError, match="choose_by must return a finite number at the weights that training"
    ):
        Chosen(lambda model, x: math.nan).run(10)


def test_a_metric_of_which_lower_is_better_is_told(caplog: pytest.LogCaptureFixture) -> None:
    run = Chosen(lambda model, x: loss_of(model, x)).run(200)
    best = run.auto.finish_()
    assert best.kind == "start"
    said = [r.getMessage() for r in caplog.records if "return the negative" in r.getMessage()]
    assert re.match(
        r"finish_: choose_by has never been higher than at the first weights .* of step 0, ", *said
    )
    caplog.clear()
    Chosen(patience=None).run(200).auto.finish_()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
