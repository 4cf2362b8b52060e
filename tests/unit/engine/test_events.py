"""Who wants to know what happens is called when it has, on every rank, at every door."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import hdet
from hdet.engine.events import of_sync
from hdet.history import HyperparameterRecord, SyncRecord
from hdet.policies.base import Decided
from tests.fakes import Alike, Faster
from tests.unit.training import Overfitting, Training

pytestmark = pytest.mark.usefixtures("same_seed")


def kinds(events: list[hdet.Event]) -> set[str]:
    return {event.kind for event in events}


def test_a_search_tells_of_moves_of_the_best_and_of_its_end() -> None:
    events: list[hdet.Event] = []
    run = Training(on_event=events.append).run(200)
    assert kinds(events) == {"moved", "best", "end"}
    moved = [event for event in events if event.kind == "moved"]
    assert [e.step for e in moved] == [
        r.step for r in run.records if r.hyperparameters[0].base_after != r.hyperparameters[0].base_before
    ]
    assert all(event.record in run.records for event in events)
    assert moved[0].sentence.startswith("lr/0 from 1e-05 to ")
    best = [event for event in events if event.kind == "best"]
    assert all("the best so far" in event.sentence for event in best)
    assert 0 < len(best) < len(run.records)
    assert (events[-1].kind, events[-1].step) == ("end", 200)


def test_weights_that_go_back_are_told_when_they_are_back() -> None:
    """When it is called weights, optimizer and learning rate are those that training goes on from."""
    seen: list[tuple[hdet.Event, float, float]] = []

    def look(event: hdet.Event) -> None:
        if event.kind == "back":
            norm = max(float(p.detach().abs().max()) for p in run.model.parameters())
            seen.append((event, norm, run.auto.get_last_lr()[0]))

    run = Training(on_event=look)
    run.poisoned = 60
    run.run(100)
    ((event, norm, lr),) = seen
    assert event.record in run.records
    assert "back to the weights of step" in event.sentence
    assert norm < 100
    assert lr == run.lrs[event.step][0], "the next step's"


def test_a_retreat_to_the_best_weights_is_a_way_back_too() -> None:
    events: list[hdet.Event] = []
    Overfitting(total_steps=2000, on_event=events.append).run(2000)
    back = [event.sentence for event in events if event.kind == "back"]
    assert any("back to those weights" in said or "from the beginning" in said for said in back)


def train(optimizer: Any, run: Any, steps: int) -> None:
    (weight,) = optimizer.param_groups[0]["params"]
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        run.step(1.0)


@pytest.mark.parametrize("door", ["Ensemble", "OneCycleAutoLR"])
def test_the_other_doors_have_the_same_words(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a rank that does not speak."""
    events: list[hdet.Event] = []
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], lr=0.1, momentum=0.9)
    run: Any
    if door == "Ensemble":
        controller = hdet.SoftmaxController(temperature="auto")
        run = hdet.Ensemble(
            optimizer,
            controller=controller,
            sync_every=4,
            replicas=Faster(),
            total_steps=10,
            on_event=events.append,
        )
    else:
        monkeypatch.setattr("hdet.one_cycle.replicas_of", lambda *_, **__: Faster())
        options: Any = {"enable_auto_lr": True, "auto_lr_warmup_steps": 0, "on_event": events.append}
        run = hdet.OneCycleAutoLR(
            optimizer, 0.1, 10, ensemble_lr_spread_ratio=0.2, model_sync_interval=4, **options
        )
    train(optimizer, run, 10)
    assert kinds(events) == {"moved", "end"}
    assert [event.step for event in events if event.kind == "moved"][:2] == [4, 8]
    assert events[-1].record == run.history[-1]


def test_a_replica_that_is_lost_is_told() -> None:
    one = HyperparameterRecord("lr/0", (1.0,), (0.1,), 0.1, 0.1, 0.0, 0.0)
    record = SyncRecord(4, 0, (1.0,), (), (one,), (), (), 1.0)
    said = "replica 1 left out of the mean: its loss is nan"
    assert of_sync(record, Decided(()), [said]) == [hdet.Event("lost", 4, said, record)]


def test_one_that_raises_is_logged_once_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def fail(event: hdet.Event) -> None:
        calls.append(event.kind)
        raise KeyError("mine")

    plain = Training().run(100)
    run = Training(on_event=fail).run(100)
    assert len(calls) > 2
    assert torch.equal(run.flat(), plain.flat())
    (said,) = [r for r in caplog.records if "on_event raised" in r.getMessage()]
    assert said.levelno == logging.ERROR
    assert said.exc_info is not None
    assert "KeyError" in str(said.exc_info[0])


def test_what_cannot_be_called_is_refused() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(TypeError, match=r"Ensemble: on_event must be a function of one hdet.Event, got list"):
        hdet.Ensemble(optimizer, replicas=Alike(), on_event=[])  # type: ignore[arg-type]


@pytest.mark.parametrize("told", [True, False])
def test_an_average_of_the_weights_goes_back_with_them(told: bool) -> None:
    """As examples/ema.py does it. Untold, it is lost for good."""
    at_back: list[Any] = []

    def follow(event: hdet.Event) -> None:
        if event.kind == "back":
            ema.n_averaged.zero_()
            ema.update_parameters(run.model)
            at_back.append(copy.deepcopy((run.model.state_dict(), ema.module.state_dict())))

    run = Training(on_event=follow if told else None)
    ema = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(120):
        if step == 65:  # within a window
            with torch.no_grad():
                run.model.layers[-1].weight.fill_(float("nan"))
        run.backward()
        ema.update_parameters(run.model)
        run.auto.step()
    assert all(bool(p.isfinite().all()) for p in run.model.parameters())
    assert all(bool(p.isfinite().all()) for p in ema.parameters()) == told
    assert len(at_back) == told
    for model, average in at_back:  # what an assertion in a callback says is logged, and passes
        assert all(torch.equal(value, average[name]) for name, value in model.items())
