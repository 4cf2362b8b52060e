"""Probes that say nothing: refused, or said once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import hdet
from hdet import AutoLR
from tests.unit.training import Net, Training, X, batch, loss_of, probe_of, train

pytestmark = pytest.mark.usefixtures("same_seed")


def with_probe(loss_fn: Callable[[Any], Any], batches: Any = batch) -> Training:
    run = Training(auto=False)
    probe = hdet.Probe(lambda x: loss_fn(run.model), batches, model=run.model)
    run.auto = hdet.AutoLR(run.optimizer, probe=probe, total_steps=200)
    return run


def test_a_probe_that_returns_nan_is_refused() -> None:
    run = with_probe(lambda model: math.nan).run(19)
    with pytest.raises(
        ValueError,
        match=r"AutoLR.step: step 20: the probe's loss must be finite .* got \[nan(, nan){3}\]",
    ):
        run.run(20)


def test_a_probe_that_returns_a_constant_is_refused_after_three_windows() -> None:
    run = with_probe(lambda model: 0.25).run(39)
    with pytest.raises(
        ValueError, match=r"step 40: the probe's loss must depend on the weights, and was 0.25 at"
    ) as e:
        run.run(40)
    assert "3 windows" in str(e.value)
    assert "does loss_fn call the model that the optimizer trains?" in str(e.value)


def test_a_probe_of_another_model_is_a_constant() -> None:
    other = Net()
    run = with_probe(lambda model: loss_of(other, batch(1))).run(39)
    with pytest.raises(ValueError, match="must depend on the weights"):
        run.run(40)


def test_the_same_batch_forever_trains_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    run = with_probe(lambda model: loss_of(model, batch(0)), lambda k: batch(0)).run(200)
    said = [record.getMessage() for record in caplog.records if "one and the same" in record.getMessage()]
    assert said == [
        "AutoLR: the probe's 8 batches so far were one and the same: the learning rate is fitted to it. "
        "Training goes on; give Probe more batches"
    ]
    assert run.lrs[149][0] > 1e-4


def test_different_batches_are_not_remarked_upon(caplog: pytest.LogCaptureFixture) -> None:
    Training().run(200)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_run_that_is_solved_goes_on() -> None:
    """A hinge loss reaches exactly zero, and the probe then sees no difference between points."""

    def hinge(model: nn.Module, x: Tensor) -> Tensor:
        return F.relu(1 - model(torch.where(x > 0, 2.0, -2.0)) * torch.where(x[:, :1] > 0, 1.0, -1.0)).mean()

    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = AdamW(model.parameters())
    train(model, optimizer, AutoLR(optimizer, total_steps=400, probe=probe_of(model, hinge)), 400, hinge)
    assert hinge(model, X[300]).item() == 0
