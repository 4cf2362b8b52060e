"""How a run went, said once at its end."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from hdet import AutoLR, Probe
from tests.unit.training import Training, network, probe_of, squared, train

pytestmark = pytest.mark.usefixtures("same_seed")


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    words = ("did not improve", "the highest learning rate was")
    return [(r.levelname, r.message) for r in caplog.records if any(word in r.message for word in words)]


def test_a_run_that_improved_says_what_it_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    run = Training().run(199)
    assert said(caplog) == []
    run.run(200)
    run.auto.finish_()
    ((level, message),) = said(caplog)
    assert level == "INFO"
    peak = max(lr for lrs in run.lrs for lr in lrs)
    assert f"{peak:.3g} ({len(run.records)} windows, 0 ways back)" in message
    assert "finish_() hands over the mean of step 180" in message


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
    handed = auto.finish_()
    ((level, message),) = said(caplog)
    assert level == "WARNING"
    assert handed is not None
    assert handed.kind == "start"
    assert f"was {handed.loss:.4g} at the start" in message
    assert "finish_() hands over the start of step" in message


def test_a_run_that_is_broken_off_says_it_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """Counted over both parts; and one that ends by finish_() says it there."""
    caplog.set_level(logging.INFO, "hdet")
    whole = Training().run(90)
    file = whole.save()
    whole.run(200)
    again = Training().load(file).run(200)
    (_, first), (_, second) = said(caplog)
    assert first == second
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
