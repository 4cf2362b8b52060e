"""What a search raises and warns of before training, and the summary at its end."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, AdamW, lr_scheduler

import hdet
from hdet import AutoLR, Probe
from hdet.autolr import search
from hdet.autolr.search import shortest_window
from tests.unit.training import Training, X, network, probe_of, squared, train


def test_lbfgs_is_refused() -> None:
    model = network()
    with pytest.raises(
        TypeError, match=r"got LBFGS, whose step evaluates a closure many times.*use it without"
    ):
        AutoLR(LBFGS(model.parameters()), probe=probe_of(model))
    with pytest.raises(TypeError, match="got LBFGS"):
        AutoLR([SGD(model[0].parameters(), 0.1), LBFGS(model[2].parameters())], probe=probe_of(model))


@pytest.mark.parametrize("door", [AutoLR, hdet.AutoTune, hdet.Guard])
def test_an_optimizer_of_another_copy_is_refused(door: Any) -> None:
    model = network()
    copied = deepcopy(model)
    options = {"model": model} if door is hdet.Guard else {"probe": probe_of(model)}
    with pytest.raises(ValueError, match=r"must train the model, and none of the Sequential's parameters"):
        door(SGD(copied.parameters(), 0.1), **options)
    door(SGD(model[2].parameters(), 0.1), **options)


def test_a_lazy_model_is_refused() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"must have their shapes, .* run one batch through the model first"):
        AutoLR(SGD(model.parameters(), 0.1), probe=probe_of(model), total_steps=40)


class ScheduleFree(SGD):
    def train(self) -> None: ...
    def eval(self) -> None: ...


class Prodigy(AdamW):
    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=1.0)
        for group in self.param_groups:
            group["d"] = 1e-6


class Mechanized(SGD): ...


@pytest.mark.parametrize(
    ("kind", "sign"),
    [
        (ScheduleFree, "by train() and eval()"),
        (Prodigy, "its groups hold 'd'"),
        (Mechanized, "is a Mechanic"),
    ],
)
def test_an_optimizer_with_a_rate_of_its_own_is_doubted(
    kind: Any, sign: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = network()
    AutoLR(kind(model.parameters()), probe=probe_of(model))
    (said,) = [r.message for r in caplog.records]
    assert f"optimizer {kind.__name__} brings a learning rate of its own" in said
    assert sign in said


def test_plain_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    AutoLR(AdamW(model.parameters()), probe=probe_of(model))
    AutoLR(AdamW(model.parameters(), lr=torch.tensor(0.1), capturable=False), probe=probe_of(model))
    assert caplog.records == []


@pytest.mark.parametrize(("batches", "words"), [(1, "no honest estimate"), (2, "one batch to choose by")])
def test_a_probe_of_one_batch_is_doubted(batches: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "hdet")
    model = network()
    AutoLR(AdamW(model.parameters()), probe=Probe(lambda x: squared(model, x), X[:batches], model=model))
    (said,) = [r.message for r in caplog.records]
    assert "decisions have no standard error" in said
    assert words in said


def test_one_search_is_no_shape_for_another() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    auto = AutoLR(optimizer, probe=probe_of(model))
    with pytest.raises(TypeError, match="a shape for AutoLR to scale, got an AutoLR"):
        AutoLR(optimizer, probe=probe_of(model), schedule=auto)
    assert isinstance(auto, lr_scheduler.LRScheduler)


@pytest.mark.parametrize(
    ("optimizer", "total_steps", "steps"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), 1000, 10),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 1000, 10),
        (lambda p: torch.optim.AdamW(p, betas=(0.95, 0.999)), 1000, 10),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.99), 1000, 100),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.99), None, 100),
        (lambda p: torch.optim.Adam(p, betas=(0.98, 0.999)), 1000, 50),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.99), 400, 50),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.99), 40, 5),
        (lambda p: torch.optim.SGD(p, 0.1), 80, 10),
        (lambda p: torch.optim.SGD(p, 0.1), 79, 9),
        (lambda p: torch.optim.AdamW(p), 39, 4),
        (lambda p: torch.optim.AdamW(p), 8, 1),
        (lambda p: torch.optim.AdamW(p), 4, 1),
    ],
)
def test_no_window_is_shorter_than_momentum_remembers(optimizer: Any, total_steps: Any, steps: int) -> None:
    """But where the run is too short for eight of them."""
    assert shortest_window(optimizer([torch.nn.Parameter(torch.ones(2))]), total_steps) == steps


# ---------------------------------------------------------------------- verdict


pytestmark = pytest.mark.usefixtures("same_seed")


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    words = ("did not improve", "the learning rate found is")
    return [(r.levelname, r.message) for r in caplog.records if any(word in r.message for word in words)]


def test_a_run_that_improved_says_what_it_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    run = Training().run(199)
    assert said(caplog) == []
    run.run(200)
    run.auto.finish_()
    ((level, message),) = said(caplog)
    assert level == "INFO"
    best = run.auto.best
    assert best is not None
    assert best.rate == run.lrs[149][0], "before the decay"
    assert best.rates == (best.rate / 6, best.rate * 6)
    assert f"found is {best.rate:.2g}, the best probably between {best.rates[0]:.1g} and " in message
    assert f"({len(run.records)} windows, 0 rollbacks)" in message
    assert "finish_() loads the mean of step 180" in message


@pytest.mark.parametrize(("short", "times"), [(10.0, 1), (1e-9, 0)])
def test_where_a_step_is_short_it_says_once_what_it_costs(
    short: float, times: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "hdet")
    monkeypatch.setattr(search, "_SHORT_STEP", short)
    Training().run(200)
    assert sum("a step takes" in record.message for record in caplog.records) == times


def test_a_run_that_did_not_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """There is nothing to learn: the targets are noise, and the model that knows nothing is the best."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1, bias=False)
    nn.init.zeros_(model.weight)
    x, y = torch.randn(40, 32, 8), torch.randn(40, 32, 1)
    loss = lambda k: (model(x[k]) - y[k]).square().mean()  # noqa: E731
    optimizer = SGD(model.parameters(), 0.1)
    auto = AutoLR(optimizer, probe=Probe(loss, range(8), model=model), total_steps=400)
    for _ in range(400):
        if auto.finished:
            break
        optimizer.zero_grad()
        loss(8).backward()
        optimizer.step()
        auto.step()
    best = auto.finish_()
    ((level, message),) = said(caplog)
    assert level == "WARNING"
    assert best is not None
    assert best.kind == "start"
    assert f"was {best.loss:.4g} at the start" in message
    assert "finish_() loads the start of step" in message


def test_a_run_that_explodes_in_its_last_window_warns(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    auto = AutoLR(optimizer, probe=probe_of(model), total_steps=100)

    def explode(i: int) -> None:
        if i == 99:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(50)

    train(model, optimizer, auto, 100, at=explode)
    (said,) = [r for r in caplog.records if "the run ended above its start" in r.message]
    assert said.levelname == "WARNING"
    assert "finish_() loads the mean of step" in said.message


def test_a_run_that_is_broken_off_says_it_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """Counted over both parts; and one that ends by finish_() says it there."""
    caplog.set_level(logging.INFO, "hdet")
    whole = Training().run(90)
    file = whole.save()
    whole.run(200)
    again = Training().load(file).run(200)
    (_, first), (_, second) = said(caplog)
    assert first.partition("; probing")[0] == second.partition("; probing")[0]
    assert f"({len(whole.records)} windows" in first
    assert len(again.records) < len(whole.records)
    caplog.clear()
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    auto: Any = AutoLR(optimizer, probe=probe_of(model))
    train(model, optimizer, auto, 100, squared)
    assert said(caplog) == []
    auto.finish_()
    assert len(said(caplog)) == 1


# ---------------------------------------------------------------------- asked to end early


@pytest.mark.parametrize(("total", "asked", "end"), [(200, 50, 60), (28, 20, 28), (None, 50, 60)])
def test_asked_to_end_early_it_decays_within_what_is_left(
    total: int | None, asked: int, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = Training(total_steps=total).run(asked)
    assert run.auto.end_early("somebody asks to stop")
    run.run(end)
    assert run.auto.finished
    assert run.auto.get_last_lr()[0] == 0.0
    (line,) = (r.message for r in caplog.records if "somebody" in r.message)
    assert line.endswith(f": the learning rate decays and training ends at step {end}")
    assert not run.auto.end_early("again"), "it has ended"


def test_where_it_cannot_decay_it_says_so() -> None:
    assert not Training().run(5).auto.end_early("before the first window has ended")
    assert not Training(schedule="cosine").run(50).auto.end_early("with a curve of its own")
    assert Training().run(180).auto.end_early("while it decays")


def test_best_claims_nothing_once_other_weights_were_loaded() -> None:
    run = Training().run(200)
    best = run.auto.finish_()
    weights = {name: value.clone() for name, value in run.model.state_dict().items()}
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.zero_()
    run.auto.weights_replaced()
    assert run.auto.best is None
    assert run.auto.finish_() == best == run.auto.best
    assert all(torch.equal(weights[name], value) for name, value in run.model.state_dict().items())
